"""The engine: takes one message from its record to a committed offset.

Reading order: `worker` (connects all parts), `consumer` (reads records, commits offsets), `execution` (carries out
decisions, calls handlers), `persistence` (loads and commits progress, publishes events), `lifecycle` (opens and closes
everything).
"""
