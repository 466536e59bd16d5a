"""The protocol, explored on the shipped code: all interleavings of two workers on one saga, with every fault.

Reading order: `operations` (what a turn asks of the outside), `services` (the small services that are explored),
`world` (the state of everything and how it moves on), `scenario` (what can be chosen), `cast`, `scenarios` and the
`about_*` beside them (what is explored), `promises` (what must hold), `explore` (the search), `side_by_side` (on all
cores).
"""
