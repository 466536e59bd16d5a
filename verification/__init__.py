"""The protocol, explored on the shipped code: all interleavings of two workers on one saga, with every fault.

Reading order: `operations` (requests of a turn to the outside), `handlers` and `services` (the small services that are
explored), `state` (everything, as a value), `state_space` (the states that can follow one) and `environment` (events
beside the workers), `scenario` (services, messages and faults to choose), `building_blocks`, `scenarios` and the
`*_scenarios` beside them (all that is explored), `promises` and `books` (what must hold), `explore` (the search);
`generated_scenarios` (scenarios made by chance), `random_walks` (searches that visit a part), `shrinking` (a small
scenario of a large one), `parallel` (on all cores).
"""
