"""Servers that only this project's tests and benchmarks need; those that users get too are in `saga.testing.servers`.

Reading order: `cluster` (three Kafka brokers), `connections` (of a mock), `registry`, `shared_servers` (one of each for
all processes of a test run), `fixtures` (what tests take).
"""
