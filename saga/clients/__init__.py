"""Clients outside of any service: publish events, wait for outcomes, subscribe to events."""
