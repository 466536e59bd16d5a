"""Tests of saga/support."""
