"""Real servers for tests: Kafka and Couchbase at given addresses, in containers, or as processes from jars.

`provider.servers` chooses where they come from. Reading order: `missing` (skip tests where there are none), `given`
(addresses in variables), `containers` (Docker), then processes of this machine: `jars` (Maven fetches them), `leash` (a
server never outlives its test run), `server` (one JVM), `kafka`, `couchbase`, `proxy` and `world_servers` (both, with
faults).
"""
