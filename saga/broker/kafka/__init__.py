"""Apache Kafka behind the port, through aiokafka. Needs the extra `kafka`.

Reading order: `adapter` (addresses and settings), `settings` (connections and credentials), `errors` (meaning of each
failure), `connecting` (a first attempt that explains what is wrong, and what the user may do), `client` (private parts
of aiokafka), `producer`, `record_batches` (bytes that may be damaged), `fetching` (partitions isolated from each
other), `consumers`, `positions` (log ids and commits), `membership`, `requests` (those that aiokafka lacks), `broker`
(all of it behind the port). For tools: `administration`.
"""
