"""Invariants: what holds in every run of a choreography, whatever fails. They are pure checks of the evidence of a run.

Reading order: `evidence` (documents, log and positions, grouped by saga and service; violations found),
`progress_checks` (checks of one progress by itself, which the exhaustive exploration makes too), then the invariants:
`call_checks` (calls and documents), `checks` (messages, outcomes, compensations, deadlines; all together), `rerun`
(repeats transitions).
"""
