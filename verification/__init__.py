"""Explore the protocol on the shipped code: every interleaving of two workers on one saga, with faults of every kind.

Suggested reading order:

- `operations`: the operations that code under exploration requests;
- `handlers` and `services`: the small services that are explored;
- `state`, `state_space` and `environment`: a state as a value, the states that can follow it, and events outside of the
  workers;
- `scenario` and `building_blocks`: a service, its messages and the faults that may happen; `scenarios` and the modules
  `*_scenarios` list all of them;
- `promises` and `books`: what must hold;
- `explore`: the search; `random_walks` visits a part of a large state space, `parallel` uses all cores;
- `generated_scenarios` makes random scenarios, `shrinking` reduces a scenario with a violation to a small one.

In `operations`, `services`, `state` and `state_space`, a *turn* is the processing of one message by a worker. In
`handlers` and in the scenarios, it is a turn of a suspended run, as in the glossary. Time passes in *ticks*, after
which waiting work is due, and in *ages*, which are longer than half of the retention.
"""
