"""Suites that every adapter of a port must pass: one class of tests for each port. Use them for your own adapters
too.
"""
