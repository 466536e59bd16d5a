"""Telemetry of a running service: the events that the engine reports, and the logs, metrics and traces made from
them."""
