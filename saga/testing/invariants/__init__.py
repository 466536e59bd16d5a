"""Invariants: truths about every run of a choreography, whatever broke. Pure checks of the evidence that a run left.

Reading order: `evidence` (documents, log and positions to be judged; violations found), `progress_checks` (checks of
one progress by itself; the explorer makes them too), `progress_lives` (the history of one saga in one service),
`saga_cases` (the evidence put together by saga), then the invariants: `begun_calls`, `outcomes`, `said_and_recorded`,
`nothing_waits`, `business_documents`, `rerun`; `check` (all of them).
"""
