"""Telemetry of a running service: the events that it reports, and the logs, metrics and traces that are made from
them.
"""
