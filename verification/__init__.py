"""The protocol, explored on the shipped code: all interleavings of two workers on one saga, with every fault.

Reading order: `operations` (what a turn asks of the outside), `handlers` and `services` (the small services that are
explored), `state` (everything, as a value), `world` (how it moves on) and `others` (what happens beside the workers),
`scenario` (what can be chosen), `cast`, `scenarios` and the `about_*` beside them (what is explored), `promises` and
`books` (what must hold), `explore` (the search); `seeds` (scenarios made by chance), `walks` (how they are searched),
`shrinking` (what is told of a find), `side_by_side` (on all cores).
"""
