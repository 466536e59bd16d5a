"""Benchmarks of the toolkit on Kafka and Couchbase, beside the plain clients, in one run.

Reading order: `ground` (the servers, and processes that serve on them), `raw` (the plain clients), `ours` (services),
`messages`, `latency`, `sagas` (what is measured), `__main__`.
"""
