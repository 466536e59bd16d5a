"""Tests of saga/messaging."""
