"""Test suites that every adapter of a port must pass, one class for each port. You can use them for your own
adapters.
"""
