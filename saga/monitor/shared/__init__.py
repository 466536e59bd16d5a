"""A monitor that several processes on Kafka share. Each process reads some partitions, and each can answer for all of
them.

Reading order: `partitions.py` (the read model of one partition and its stored entries), `server.py` (queries for all
partitions, and the HTTP server), `worker.py` (reading with Faust).
"""
