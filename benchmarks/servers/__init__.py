"""Benchmarks of the toolkit on Kafka and Couchbase, compared with the plain clients in one run.

Suggested reading order: `ground` (the servers, and processes that use them), `raw` (the plain clients), `ours`
(services), `messages`, `latency`, `sagas` (the measurements), `__main__`.
"""
