"""Real servers for tests and benchmarks: Kafka, and Couchbase's own test server, started from the jars that Maven has.

Reading order: `jars` (fetching them), `leash` (a server never outlives whoever started it), `server` (one JVM),
`kafka`, `cluster` (three of them), `couchbase`, `shared_servers` (one of each for all processes of a test run),
`fixtures` (what tests take).
"""
