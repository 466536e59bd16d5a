"""Monitor shared by several processes on Kafka: each reads some partitions, and each answers for all of them.

Reading order: `partitions.py` (read model of one partition and its stored entries), `queries.py` (answers for all
partitions); then the edges: `worker.py` (Faust), `server.py`.
"""
