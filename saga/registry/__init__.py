"""Schema registry: values of topics whose contracts ask for it are published in its wire format, and read from it.

Reading order: `port` (what is asked of a registry), `http` (Confluent's interface, by aiohttp), `cache` (ids and
schemas, for the life of the process), `edge` (a broker that translates values on the way in and out), `settings`.
"""
