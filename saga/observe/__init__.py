"""Observation of a running service: the moments it reports, and those who listen to them."""
