"""Brokers of an ordered, replayable log: the port with its promises, and an adapter for each kind of broker."""
