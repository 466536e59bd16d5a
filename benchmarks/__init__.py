"""Benchmarks of the toolkit. Each is measured in the same run as the limit that it is compared with."""
