"""Everything a service decides about one saga, as pure functions on one document. No I/O, no clock, no randomness.

Reading order: `document` (what is stored), `handlers` (what decisions know of handlers), `actions` (what can happen
next), `decisions` (what to do with a message), `next_action` (which action comes next), `journal` (how it is recorded),
`compensation` (how results are undone), `history` (how the transitions are read).
"""
