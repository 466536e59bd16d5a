"""Everything a service decides about one saga, as pure functions on one document. No I/O, no clock, no chance.

Reading order: `document` (what is kept), `roles` (what decisions know of handlers), `actions` (what can happen next),
`step` (which of it does, and what is only written down), `decide` (what to do with a message), `record` (how it is
written down), `compensate` (how results are undone), `history` (what people read).
"""
