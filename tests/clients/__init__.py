"""Tests of saga/clients."""
