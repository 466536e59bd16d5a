"""Failures of everything: processes that die, calls that fail, ground that gives way."""
