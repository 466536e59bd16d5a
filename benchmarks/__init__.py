"""Benchmarks of the toolkit. Each one is measured in the same run as the limit with which it is compared."""
