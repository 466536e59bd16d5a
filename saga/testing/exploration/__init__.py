"""The protocol, explored on the shipped code: all interleavings of two workers on one saga, with every fault.

Reading order: `operations` (what a turn asks of the outside), `services` (the small services that are explored),
`world` (the state of everything and how it moves on), `promises` (what must hold), `explore` (the search),
`scenarios` (what is explored).
"""
