"""Schema registry: values of topics that are configured for it are published and read in the registry's wire format.

Reading order: `port` (what is asked of a registry, and its settings), `http` (Confluent's interface, by aiohttp),
`edge` (a broker that translates values on the way in and out, and a cache of ids and schemas).
"""
