"""Apache Kafka behind the port, through aiokafka. Needs the extra `kafka`.

Reading order: `adapter` (addresses and settings), `settings` (where and how), `errors` (meaning of each failure),
`connecting` (a first try, to say what is wrong, and what we may do), `client` (private parts of aiokafka),
`private_names` (check that they are still there), `producing`, `batches` (bytes that may be damaged), `fetching`
(partitions kept apart), `consumers`, `topics`, `prefetch`, `duplicate_instance` (two processes with one id),
`committing`, `membership`, `requests` (those that aiokafka has no classes for), `broker` (all of it). Then for tools:
`administration`.
"""
