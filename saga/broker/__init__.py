"""Brokers of an ordered, replayable log: the port with its promises, and an adapter beside it for each broker."""
