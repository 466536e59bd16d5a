"""Schema registry: what is published to topics whose contracts ask for it is written in its wire format, and what comes
in that format is read.

Reading order: `port` (what is asked of a registry), `http` (Confluent's interface to one, by aiohttp), `known` (what
was learned, for the life of the process), `edge` (a broker behind which values are in the wire format), `settings`,
`opening` (what the settings say, put together).
"""
