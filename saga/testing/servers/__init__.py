"""Real servers for tests: Kafka and Couchbase at given addresses, in containers, or as processes from jars.

`provider.servers` chooses among these, for tests and for `python -m saga.testing.servers`. Reading order: `missing`
(skip tests if there are no servers), `given` (addresses in environment variables), `containers` (Docker). Then the
processes of this machine: `jars` (Maven fetches them), `leash` (a server never outlives its test run), `server` (one
JVM), `kafka`, `couchbase`, `proxy` and `world_servers` (both servers, with faults).
"""
