"""Schema registry: the values in topics that are configured for it have the wire format of the registry.

Suggested reading order: `port` (what the toolkit asks of a registry, and its settings), `http` (Confluent's interface,
with aiohttp), `edge` (a broker that translates values when they are published and read, and a cache of ids and
schemas).
"""
