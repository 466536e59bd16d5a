"""Runs the suite on each Python that the package names, where it can be had."""
