"""Invariants: facts that hold in every run of a choreography, whatever fails. They are checked by pure functions on the
evidence of a run.

Reading order: `evidence` (documents, log and committed offsets, grouped by saga and service; the violations found),
`progress_checks` (checks of one progress by itself, which the exhaustive exploration uses too), then the invariants:
`call_checks` (calls and documents), `checks` (messages, outcomes, compensations, deadlines; the list of all
invariants), `rerun` (repeats transitions).
"""
