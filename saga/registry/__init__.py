"""Schema registry: values of topics that are configured for it are published and read in the registry's wire format.

Reading order: `port` (what is asked of a registry), `http` (Confluent's interface, by aiohttp), `cache` (ids and
schemas, for the life of the process), `edge` (a broker that translates values on the way in and out), `settings`.
"""
