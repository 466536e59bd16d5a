"""Suites that every adapter of a port has to pass: one class of tests for each port, for adapters of your own too."""
