"""Benchmarks of the toolkit, measured beside the limit, in one run."""
