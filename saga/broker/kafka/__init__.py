"""Apache Kafka behind the port, through aiokafka. Needs the extra `kafka`.

Reading order: `adapter` (what it says of itself), `settings` (where and how), `errors` (what each failure means),
`connecting` (can it be reached at all), `client` (what of aiokafka is not public), `names` (whether it is still there),
`producing`, `batches` (bytes that may be damaged), `fetching` (partitions kept apart), `consumers`, `topics`, `intake`,
`rebalances`, `rivals` (two with one id), `held`, `membership`, `requests` (those that aiokafka has no classes for),
`rights` (what we may do), `broker` (all of it). Then for tools: `administration`.
"""
