"""Apache Kafka behind the port, through aiokafka. Needs the extra `kafka`.

Suggested reading order: `adapter` (addresses and settings), `access` (credentials, and why servers refused
connections), `errors` (meaning of each error), `client` (private parts of aiokafka, and requests that it lacks),
`producer`, `fetching` (partitions isolated from each other), `consumers` (with log ids and commits), `membership`,
`broker` (the port, and checks when it opens). For tools: `administration`.
"""
