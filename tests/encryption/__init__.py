"""Tests of the keys of sensitive values."""
