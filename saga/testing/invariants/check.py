"""All invariants of the kit over one run, and the cheap part of them over one progress."""

from collections.abc import Sequence

import msgspec

from saga.engine.prepared_service import PreparedService
from saga.errors import SagaError
from saga.progress.document import decode_progress, decode_transition
from saga.testing.invariants import message_checks, progress_checks, saga_checks
from saga.testing.invariants.evidence import Evidence, Violation, cases_of, frame_of

OF_A_SAGA = (
    saga_checks.asked_for_the_same,
    saga_checks.as_begun,
    message_checks.once,
    saga_checks.one_outcome,
    saga_checks.undone,
    saga_checks.not_early,
    saga_checks.in_time,
    message_checks.said_as_recorded,
    message_checks.in_order,
    message_checks.nothing_waits,
)
"""Invariants of each saga whose history is valid, causes before consequences."""

OF_ALL_VERSIONS = (saga_checks.as_begun,)
"""Invariants that need every version of a progress."""
UNSEEN_IN_PARTIAL = (
    "calls made before they were written down",
    "older versions of progresses and documents",
    "reruns",
)
"""Parts of the invariants that partial evidence cannot show: of `history`, of `documents`, and `rerun`."""


def violations(evidence: Evidence) -> list[Violation]:
    """Return every violation, once nothing is in progress any more; in partial evidence without `UNSEEN_IN_PARTIAL`.

    `saga.testing.invariants.rerun` is separate: it runs handlers again, and takes longer.
    """
    cases = cases_of(evidence, frame_of(evidence))
    asked = [check for check in OF_A_SAGA if not (evidence.partial and check in OF_ALL_VERSIONS)]
    found = list(cases.broken)
    for case in cases.cases.values():
        broken = list(message_checks.history(case))
        found += broken
        for check in (
            asked if not broken else ()
        ):  # with an invalid history they would report things that never happened
            found += check(case)
    found += saga_checks.documents(evidence, cases)
    found += message_checks.all_unreadable_told(evidence, cases)
    found += message_checks.all_committed(evidence)
    return found


def unsound(service: PreparedService, contents: Sequence[bytes]) -> str | None:
    """Return a description of what is wrong with the last of these versions of a progress; `None` if nothing is."""
    try:
        p = decode_progress(contents[-1])
        entries = tuple(map(decode_transition, p.transitions))
    except (SagaError, msgspec.DecodeError) as why:
        return str(why)
    return progress_checks.unsound(service.roles, p, entries)
