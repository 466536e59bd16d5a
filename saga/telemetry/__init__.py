"""Telemetry of a running service: the events it reports, and the logs, metrics and traces made of them."""
