"""All invariants of the kit over one run, and the cheap part of them over one progress."""

from collections.abc import Sequence

import msgspec

from saga.errors import SagaError
from saga.progress.document import decode, decode_entry
from saga.runtime.prepared import Prepared
from saga.testing.invariants import alone, begun, markers, order, outcomes, rest
from saga.testing.invariants.cases import cases_of, frame_of
from saga.testing.invariants.evidence import Evidence, Violation

OF_A_SAGA = (
    begun.asked_for_the_same,
    begun.as_begun,
    order.once,
    outcomes.one_outcome,
    outcomes.undone,
    outcomes.not_early,
    order.said_as_recorded,
    order.in_order,
    rest.nothing_waits,
)
"""What is asked of each saga whose history holds, the causes before the consequences."""

OF_ALL_VERSIONS = (begun.as_begun,)
"""Those of them that need every version of a progress."""
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
        broken = list(order.history(case))
        found += broken
        for check in asked if not broken else ():  # else they would speak of what nobody has done
            found += check(case)
    found += markers.documents(evidence, cases)
    found += rest.all_unreadable_told(evidence, cases)
    found += rest.all_committed(evidence)
    return found


def unsound(service: Prepared, contents: Sequence[bytes]) -> str | None:
    """What the last of these versions of a progress shows alone, in words; `None` if nothing is wrong with it."""
    try:
        p = decode(contents[-1])
        entries = tuple(map(decode_entry, p.transitions))
    except (SagaError, msgspec.DecodeError) as why:
        return str(why)
    return alone.unsound(service.roles, p, entries)
