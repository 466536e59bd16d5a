"""All invariants of the kit over one run, and the cheap part of them over one progress."""

from collections.abc import Sequence

import msgspec

from saga.engine.prepared_service import PreparedService
from saga.errors import SagaError
from saga.progress.document import decode_progress, decode_transition
from saga.testing.invariants import (
    begun_calls,
    business_documents,
    nothing_waits,
    outcomes,
    progress_checks,
    said_and_recorded,
)
from saga.testing.invariants.evidence import Evidence, Violation
from saga.testing.invariants.saga_cases import cases_of, frame_of

OF_A_SAGA = (
    begun_calls.asked_for_the_same,
    begun_calls.as_begun,
    said_and_recorded.once,
    outcomes.one_outcome,
    outcomes.undone,
    outcomes.not_early,
    outcomes.in_time,
    said_and_recorded.said_as_recorded,
    said_and_recorded.in_order,
    nothing_waits.nothing_waits,
)
"""Invariants of each saga whose history holds, the causes before the consequences."""

OF_ALL_VERSIONS = (begun_calls.as_begun,)
"""Invariants that need every version of a progress."""
UNSEEN_IN_PARTIAL = (
    "calls made before they were written down",
    "older versions of progresses and documents",
    "reruns",
)
"""Parts of the invariants that partial evidence does not show: of `history`, of `documents`, and `rerun`."""


def violations(evidence: Evidence) -> list[Violation]:
    """Everything that does not hold, once nothing is under way any more; in partial evidence less `UNSEEN_IN_PARTIAL`.
    `saga.testing.invariants.rerun` is beside it: it runs handlers again, and takes longer."""
    cases = cases_of(evidence, frame_of(evidence))
    asked = [check for check in OF_A_SAGA if not (evidence.partial and check in OF_ALL_VERSIONS)]
    found = list(cases.broken)
    for case in cases.cases.values():
        broken = list(said_and_recorded.history(case))
        found += broken
        for check in asked if not broken else ():  # else they would speak of what nobody has done
            found += check(case)
    found += business_documents.documents(evidence, cases)
    found += nothing_waits.all_unreadable_told(evidence, cases)
    found += nothing_waits.all_committed(evidence)
    return found


def unsound(service: PreparedService, contents: Sequence[bytes]) -> str | None:
    """The fault that the last of these versions of a progress shows by itself, in words; `None` if there is none."""
    try:
        p = decode_progress(contents[-1])
        entries = tuple(map(decode_transition, p.transitions))
    except (SagaError, msgspec.DecodeError) as why:
        return str(why)
    return progress_checks.unsound(service.roles, p, entries)
