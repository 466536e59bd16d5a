"""Real servers for tests and benchmarks, started from the jars that Maven has: Kafka, Couchbase's own test server, a
schema registry.

Reading order: `jars` (fetching them), `leash` (a server never outlives whoever started it), `server` (one JVM),
`kafka`, `cluster` (three of them), `couchbase`, `registry`, `shared_servers` (one of each for all processes of a test
run), `fixtures` (what tests take).
"""
