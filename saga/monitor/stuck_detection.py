"""Detection of stuck sagas: sagas that do not continue by themselves, or should already have continued.

A saga is stuck for one of five reasons:

- **dead**: a dead letter blocks it in a service. It has been stuck since the transition that recorded the dead letter.
- **failing**: a parked run fails because of the service's own code, so waiting does not help. It has been stuck since
  the first such failure.
- **overdue**: the time of a next attempt, a deadline or a suspended run passed more than `OVERDUE_MS` ago, and nothing
  was reported since. It has been stuck since that time.
- **waiting**: a handler waits for events, and nothing in the saga resumes by itself at a set time. It is stuck once it
  has waited four times as long as 99 % of this handler's earlier waits, and at least `LEAST_MS`.
- **silent**: the saga has no outcome, and no service waits for an event or a time. It is stuck once nothing was
  reported for four times as long as 99 % of the sagas of its kind took from start to outcome, and at least `LEAST_MS`.
  Sagas that were started by messages of the same type are of one kind.

If fewer than `USUAL_LEAST` earlier waits, or earlier outcomes of sagas of the kind, are known, `UNKNOWN_MS` is used as
the allowed time.

After the outcome only work that a service reports as open counts. A saga whose start was not reported is never silent,
because it may have ended before.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from saga.monitor.counters import TimeHistogram
from saga.monitor.saga_index import InternTable, PackedTransition, ServiceState, TrackedSaga, TransitionFacts

OVERDUE_MS = 10_000
LEAST_MS = 60_000
UNKNOWN_MS = 300_000
USUAL_LEAST = 20
FACTOR, SHARE = 4, 0.99
RUNS = frozenset({"handled", "later", "compensated"})
"""Outcomes of a run that has finished or was suspended."""
BY_HAND = frozenset({"replayed", "discarded", "resolved"})
"""Outcomes with which an operator's command ends a dead letter."""

Reason: TypeAlias = tuple[str, ...]
"""Reason why a saga is stuck: `dead`, `failing` or `overdue` with the service; `waiting` with service and handler; or
`silent` without either. The last element is always the kind of the saga, so that stuck sagas can be counted by kind."""


class BlockedHandler(NamedTuple):
    """A dead letter that blocks a saga in a service, or a run that fails because of the service's own code."""

    service: int
    handler: str
    type: str
    since_ms: int


def compute_allowed_ms(usual: TimeHistogram) -> int:
    """Return how long a wait may take in milliseconds, computed from the usual durations.

    >>> usual = TimeHistogram()
    >>> compute_allowed_ms(usual)
    300000
    >>> usual.add(60_000, 100)
    >>> compute_allowed_ms(usual)
    245756
    """
    if usual.count < USUAL_LEAST:
        return UNKNOWN_MS
    return max(LEAST_MS, FACTOR * usual.percentile(SHARE))


def find_dead(known: TrackedSaga, words: InternTable) -> Iterator[BlockedHandler]:
    """Yield the dead letters that block a saga: one for each service and handler."""
    for standing in known.service_states:
        if not standing.open:
            continue
        blocked: dict[str, BlockedHandler] = {}
        for each in known.list_transitions(standing.service):
            what = words.facts[each.what]
            if what.outcome == "dead":
                blocked.setdefault(what.handler, BlockedHandler(each.service, what.handler, what.type, each.time_ms))
            elif what.outcome in BY_HAND or what.outcome in RUNS:
                blocked.pop(what.handler, None)
            for closed in what.closed:
                blocked.pop(closed, None)
        yield from blocked.values()


def find_failing(known: TrackedSaga, words: InternTable) -> Iterator[BlockedHandler]:
    """Yield the parked runs that fail because of the service's own code: one for each service and handler."""
    for standing in known.service_states:
        if standing.next_run != "attempt":
            continue
        failing: dict[str, BlockedHandler] = {}
        for each in known.list_transitions(standing.service):
            what = words.facts[each.what]
            if what.outcome == "retrying" and what.is_code:
                failing.setdefault(what.handler, BlockedHandler(each.service, what.handler, what.type, each.time_ms))
            elif what.outcome in RUNS or what.outcome in ("retrying", "dead", "ignored"):
                failing.pop(what.handler, None)
            for closed in what.closed:
                failing.pop(closed, None)
        yield from failing.values()


class OpenWait(NamedTuple):
    """A handler that waits in a service."""

    handler: str
    types: tuple[str, ...]
    since_ms: int
    until_ms: int
    """Time at which the handler runs even without an event, as requested with `Later`; 0 if it waits only for
    events."""


def find_waits(known: TrackedSaga, words: InternTable, standing: ServiceState) -> Iterator[OpenWait]:
    """Yield the waiting handlers of a service, each with the event types that it waits for and the time at which its
    wait began."""
    transitions = known.list_transitions(standing.service)
    last_ms = next((each.time_ms for each in transitions if each.number == standing.number), known.changed_ms)
    for handler, types, until_ms in standing.awaits:
        since_ms = None
        for each in transitions:
            what = words.facts[each.what]
            if what.handler != handler:
                continue
            if what.outcome == "waiting":
                since_ms = each.time_ms if since_ms is None else since_ms
            elif what.outcome in RUNS:
                since_ms = each.time_ms if what.outcome == "later" else None
        yield OpenWait(handler, types, last_ms if since_ms is None else since_ms, until_ms)


def list_unfinished(known: TrackedSaga) -> list[ServiceState]:
    """Return the states of the services that still have something to do.

    After the outcome, a service counts only if it reports open work.
    """
    return [each for each in known.service_states if each.open or (known.ended is None and not each.is_idle)]


def find_stuck_candidates(known: TrackedSaga, words: InternTable) -> tuple[tuple[Reason, int], ...]:
    """Return the reasons why a saga may become stuck if nothing more is reported. Each comes with the time at which the
    wait began."""
    if known.ended is not None and not known.service_states:
        return ()
    names, kind = words.services_and_workers, known.kind
    if dead := [(("dead", names[each.service], kind), each.since_ms) for each in find_dead(known, words)]:
        return _keep_earliest(dead)
    if failing := [(("failing", names[each.service], kind), each.since_ms) for each in find_failing(known, words)]:
        return _keep_earliest(failing)
    expecting = list_unfinished(known)
    if due := [(each.due_ms, ("overdue", names[each.service], kind)) for each in expecting if each.due_ms]:
        due_ms, overdue = min(due)
        return ((overdue, due_ms),)
    waiting = [
        (("waiting", names[standing.service], wait.handler, kind), wait.since_ms)
        for standing in expecting
        for wait in find_waits(known, words, standing)
    ]
    if waiting:
        return _keep_earliest(waiting)
    if (known.ended is None or expecting) and known.has_start:
        return ((("silent", known.kind), known.changed_ms),)
    return ()


def _keep_earliest(found: Iterable[tuple[Reason, int]]) -> tuple[tuple[Reason, int], ...]:
    """Return each reason with its earliest time."""
    earliest: dict[Reason, int] = {}
    for reason, since_ms in found:
        earliest[reason] = min(since_ms, earliest.get(reason, since_ms))
    return tuple(sorted(earliest.items()))


def measure_waits(known: TrackedSaga, words: InternTable, new: PackedTransition, what: TransitionFacts) -> Counter[int]:
    """Return how a transition, which the saga does not contain yet, changes the waits of its handler: each duration in
    milliseconds, with the number of waits by which it occurs more (or less) often.

    A wait ends with the first run after it. Transitions may arrive in any order, so a run that arrives late may end a
    wait sooner than known before.
    """
    if what.outcome != "waiting" and what.outcome not in RUNS:
        return Counter()
    before = list[_WaitMoment]()
    for each in known:
        if each.service != new.service:
            continue
        other = words.facts[each.what]
        if other.handler == what.handler and (other.outcome == "waiting" or other.outcome in RUNS):
            before.append(_WaitMoment(each.number, each.time_ms, other.outcome != "waiting"))
    changes = Counter(_pair_waits([*before, _WaitMoment(new.number, new.time_ms, what.outcome != "waiting")]))
    changes.subtract(_pair_waits(before))
    return changes


class _WaitMoment(NamedTuple):
    """A transition with which a handler's wait begins or ends."""

    number: int
    time_ms: int
    ends: bool


def _pair_waits(moments: Iterable[_WaitMoment]) -> Iterator[int]:
    """Yield the duration in milliseconds of each wait that has ended."""
    began_ms = list[int]()
    for each in sorted(moments):
        if not each.ends:
            began_ms.append(each.time_ms)
            continue
        yield from (max(0, each.time_ms - ms) for ms in began_ms)
        began_ms.clear()
