"""Torture: the order saga on a real Kafka and CouchbaseMock, under load, while processes and servers die and freeze.

`python -m tests.torture --minutes 30 --seed N`. Reading order: `workers` (the processes), `customers` (the load, and
who waits), `accidents` (what goes wrong), `books` (the audit), `traces` (what accidents must leave), `story` (all of
it), `__main__`.
"""
