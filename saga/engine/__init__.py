"""The engine: one message from its record to a committed offset.

Reading order: `worker` (all parts, put together), `consumer` (records in, offsets out), `execution` (decisions carried
out, handlers called), `persistence` (progress loaded and committed, events published), `lifecycle` (opened and closed).
"""
