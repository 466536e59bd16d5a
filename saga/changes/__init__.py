"""Changes of documents on their way to services: the records they travel as, and where they come from.

Reading order: `records` (a change as a record, and a record as a change), `port` (what a source of changes promises).
"""
