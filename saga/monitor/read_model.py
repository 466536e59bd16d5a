"""The read model of the monitor, which is built from transition events. Pure: no clock, no broker.

Transition events arrive in any order, because each service publishes at its own pace, and some arrive twice. The result
does not depend on the order, and a duplicate changes nothing: `number` identifies a transition within its service and
saga. Everything is bounded. If there are too many sagas, those that have ended and have been silent for the longest
time are dropped.
"""

from collections import Counter
from itertools import islice

from saga.messaging.transition_events import TransitionEvent
from saga.monitor.counters import RecentCounts, TimeHistogram
from saga.monitor.saga_index import (
    UNSEEN_MS,
    HandlerWait,
    InternTable,
    NextRun,
    PackedTransition,
    ServiceState,
    TimeIndex,
    TrackedSaga,
    TransitionFacts,
)
from saga.monitor.stuck_detection import RUNS, Reason, find_stuck_candidates, measure_waits
from saga.support.clock import from_iso

SAGAS_MAX = 1_000_000
"""Default maximum number of sagas that are tracked."""
NUMBER_MAX = 1 << 20
"""Maximum transition number that is accepted. No real saga has so many transitions."""
TYPES_MAX = 8
"""Maximum number of event types that are kept for one transition. The same limit applies to its steps, and to its
waiting handlers."""
NAME_MAX, SAGA_MAX = 200, 1000
"""Maximum length of a name, and of a saga id, in characters. Longer names are cut. Transitions of sagas with longer ids
are ignored."""
AHEAD_MS = 60_000
"""Maximum time in milliseconds by which a service's clock may be ahead of the broker's clock. A later time is replaced
with this limit."""
BUSY_LEAST, BUSY_MAX = 50, 1000
"""Minimum number of transitions of a hot saga, and number of hot sagas that are kept when there are twice as many."""
EVICT_LOOK = 1000
"""To make room, a saga that has ended is searched for among this number of sagas, those that have been silent
longest."""


class ReadModel:
    """Sagas, counts and indexes, computed from transition events."""

    def __init__(self, sagas_max: int = SAGAS_MAX, counts: RecentCounts | None = None) -> None:
        self.sagas: dict[str, TrackedSaga] = {}
        self.intern_table = InternTable()
        self.counts = RecentCounts() if counts is None else counts
        self.taken = 0
        """Number of transitions that were applied, without duplicates."""
        self.forgotten = 0
        """Number of sagas that were dropped to make room."""
        self.by_change_time: TimeIndex[TrackedSaga] = TimeIndex()
        self.without_outcome: TimeIndex[TrackedSaga] = TimeIndex()
        """Sagas without an outcome, by start time."""
        self.stuck_candidates: dict[Reason, TimeIndex[TrackedSaga]] = {}
        """Sagas that may become stuck, by reason and by the time from which they count as waiting."""
        self.waits: dict[tuple[str, str], TimeHistogram] = {}
        """Histograms of waiting times, by service and handler."""
        self.lives: dict[str, TimeHistogram] = {}
        """Histograms of the times from start to outcome, by kind of saga, because kinds differ in speed."""
        self.services: set[str] = set()
        """Services that have reported a transition."""
        self.kinds: Counter[str] = Counter()
        """Numbers of tracked sagas by kind."""
        self.parked: Counter[tuple[str, str]] = Counter()
        """Numbers of sagas with a parked run, by service and by the cause that postpones the run."""
        self.busy: dict[str, int] = {}
        """Sagas with very many transitions, and how many they have."""
        self._sagas_max = sagas_max

    def apply(self, event: TransitionEvent, appended_ms: int) -> bool:
        """Apply a transition event. Return whether it was new.

        Args:
            appended_ms: Time at which the broker appended the event.
        """
        if event.number > NUMBER_MAX or len(event.saga) > SAGA_MAX:
            return False
        known = self.sagas.get(event.saga)
        is_first = known is None
        if known is None:
            known = TrackedSaga(event.saga)
        service, time_ms = self.intern_table.intern_name(truncate(event.service)), bound_time(event.time, appended_ms)
        if event.rebuilt_at is not None and event.number == 0:
            self._count_parked(known, -1)
            known.forget_service(service)
            self._count_parked(known, 1)
        is_repeated, before = known.find(service, event.number)
        if is_repeated:
            self._apply_repeated(known, before, event, service)
            return False
        what = self._to_facts(event)
        new = PackedTransition(
            service,
            event.number,
            time_ms,
            self.intern_table.intern_facts(what),
            min(event.attempt, 0xFFFF),
            _pack_ms(event.queued_ms),
            _pack_ms(event.handler_ms),
            self.intern_table.intern_worker(truncate(event.worker)),
        )
        self._count(known, event, what, new)
        if is_first:
            self._make_room()
            self.sagas[event.saga] = known
        known.add(new)
        known.has_start = known.has_start or event.number == 0
        self._update_times(known, event, time_ms, is_first)
        self._update_service_state(known, event, service)
        if (count := known.count) >= BUSY_LEAST:
            self._note_busy_saga(event.saga, count)
        self.taken += 1
        return True

    # ---------------------------------------------------------------- parts of a saga

    def _update_times(self, known: TrackedSaga, event: TransitionEvent, time_ms: int, is_first: bool) -> None:
        """Update the start, the end and the last change of a saga, also in the indexes."""
        began = (
            time_ms,
            self.intern_table.services_and_workers[self.intern_table.intern_name(truncate(event.message.type))],
        )
        began_ms, kind = began if is_first else min((known.began_ms, known.kind), began)
        changed_ms = max(known.changed_ms, time_ms)
        ended = known.ended
        if event.result is not None:
            outcome = (time_ms, event.result, ", ".join(_limit_names(tuple(each.type for each in event.emitted))))
            ended = outcome if ended is None else min(ended, outcome)
        if is_first:
            self.by_change_time.add(known, changed_ms)
        elif changed_ms != known.changed_ms:
            self.by_change_time.move(known, known.changed_ms, changed_ms)
        if not is_first and known.ended is None:
            self.without_outcome.remove(known, known.began_ms)
        elif known.ended is not None:
            self._get_durations(known.kind).add(max(0, known.ended[0] - known.began_ms), -1)
        if is_first or kind != known.kind:
            self._count_kind(kind, 1)
            if not is_first:
                self._count_kind(known.kind, -1)
        known.began_ms, known.kind, known.changed_ms, known.ended = began_ms, kind, changed_ms, ended
        if ended is None:
            self.without_outcome.add(known, began_ms)
        else:
            self._get_durations(kind).add(max(0, ended[0] - began_ms))

    def _get_durations(self, kind: str) -> TimeHistogram:
        return self.lives.setdefault(kind, TimeHistogram())

    def _update_service_state(self, known: TrackedSaga, event: TransitionEvent, service: int) -> None:
        """Update the service's latest state, and the saga's entries in the indexes of sagas that may be stuck."""
        if event.number >= known.last_numbers[service]:
            new = to_service_state(event, service)
            others = [each for each in known.service_states if each.service != service]
            old = next((each for each in known.service_states if each.service == service), None)
            if old is None or old.number < new.number or old < new:
                self._count_parked(known, -1)
                known.set_service_state(new, others)
                self._count_parked(known, 1)
        places = find_stuck_candidates(known, self.intern_table)
        if places == known.stuck_candidates:
            return
        self._remove_candidates(known)
        for reason, since_ms in places:
            self.stuck_candidates.setdefault(reason, TimeIndex()).add(known, since_ms)
        known.stuck_candidates = places

    def _count_kind(self, kind: str, by: int) -> None:
        self.kinds[kind] += by
        if not self.kinds[kind]:
            del self.kinds[kind]

    def _count_parked(self, known: TrackedSaga, by: int) -> None:
        """Add this saga to the numbers of sagas with parked runs, or remove it from them. `by`: 1 or -1."""
        for each in known.service_states:
            if each.next_run == "attempt":
                key = (self.intern_table.services_and_workers[each.service], each.postponed_by)
                self.parked[key] += by
                if not self.parked[key]:
                    del self.parked[key]

    def _remove_candidates(self, known: TrackedSaga) -> None:
        """Remove a saga from the indexes of sagas that may be stuck."""
        for reason, since_ms in known.stuck_candidates:
            index = self.stuck_candidates[reason]
            index.remove(known, since_ms)
            if not index:
                del self.stuck_candidates[reason]
        known.stuck_candidates = ()

    def _apply_repeated(
        self, known: TrackedSaga, before: PackedTransition | None, event: TransitionEvent, service: int
    ) -> None:
        """Add the durations in a repeated event if its first copy had none."""
        if before is not None and before.queued_ms == before.handler_ms == UNSEEN_MS:
            queued_ms, handler_ms = _pack_ms(event.queued_ms), _pack_ms(event.handler_ms)
            if queued_ms != UNSEEN_MS or handler_ms != UNSEEN_MS:
                known.replace(before._replace(queued_ms=queued_ms, handler_ms=handler_ms))
                what = self.intern_table.facts[before.what]
                self._count_durations(truncate(event.service), what.handler, what.outcome, before.time_ms, event)
        self._update_service_state(known, event, service)

    # ---------------------------------------------------------------- counts

    def _count(self, known: TrackedSaga, event: TransitionEvent, what: TransitionFacts, new: PackedTransition) -> None:
        counts, name, time_ms = self.counts, truncate(event.service), new.time_ms
        if self.intern_table.find_name(name):
            self.services.add(name)
        minute = counts.get_minute(name, what.handler, time_ms)
        if minute is not None:
            minute.transitions += 1
            minute.failures += bool(what.error)
            minute.runs += what.outcome in RUNS
            minute.retries += what.outcome == "retrying"
            minute.dead += what.outcome == "dead"
        self._count_durations(name, what.handler, what.outcome, time_ms, event)
        if what.error:
            counts.count_failure((name, what.handler, what.error), event.saga, time_ms)
        if event.message.topic is not None and event.message.partition is not None:
            counts.count_message(truncate(event.message.topic), event.message.partition, time_ms)
        for wait_ms, times in measure_waits(known, self.intern_table, new, what).items():
            self.waits.setdefault((name, what.handler), TimeHistogram()).add(wait_ms, times)

    def _count_durations(self, service: str, handler: str, outcome: str, time_ms: int, event: TransitionEvent) -> None:
        """Add the duration of a run, and the time for which its message was queued, to the histograms."""
        if outcome not in RUNS:
            return
        minute = self.counts.get_minute(service, handler, time_ms)
        if minute is None:
            return
        if event.handler_ms is not None:
            minute.handler.add(min(event.handler_ms, UNSEEN_MS))
        if event.queued_ms is not None:
            minute.queued.add(min(event.queued_ms, UNSEEN_MS))

    def _to_facts(self, event: TransitionEvent) -> TransitionFacts:
        return TransitionFacts(
            truncate(event.handler),
            truncate(event.outcome),
            truncate(event.error or ""),
            truncate(event.message.type),
            truncate(event.message.source),
            _limit_names(tuple(each.type for each in event.emitted)),
            _limit_names(event.steps),
            event.blame == "code",
            tuple(map(truncate, event.closed[:TYPES_MAX])),
        )

    # ---------------------------------------------------------------- bounds

    def _note_busy_saga(self, saga: str, count: int) -> None:
        self.busy[saga] = count
        if len(self.busy) > 2 * BUSY_MAX:
            most = sorted(self.busy.items(), key=lambda each: (-each[1], each[0]))
            self.busy = dict(most[:BUSY_MAX])

    def _make_room(self) -> None:
        """Drop a saga if there is no room for one more."""
        if len(self.sagas) >= self._sagas_max:
            self.forget_one()

    def forget_one(self) -> TrackedSaga:
        """Drop one saga to make room, and return it.

        Among the sagas that have been silent for the longest time, the first one that has ended and cannot be stuck is
        dropped. If there is none, the saga that has been silent longest is dropped.
        """
        oldest = [known for _, known in islice(self.by_change_time.iterate_oldest(), EVICT_LOOK)]
        ended = (known for known in oldest if known.ended is not None and not known.stuck_candidates)
        least = next(ended, oldest[0])
        self.forget(least)
        self.forgotten += 1
        return least

    def forget(self, known: TrackedSaga) -> None:
        """Drop a saga. Its transitions stay counted."""
        self._remove_candidates(known)
        self._count_parked(known, -1)
        self._count_kind(known.kind, -1)
        self.by_change_time.remove(known, known.changed_ms)
        if known.ended is None:
            self.without_outcome.remove(known, known.began_ms)
        self.busy.pop(known.saga, None)
        del self.sagas[known.saga]


_NO_TIME: tuple[int, NextRun] = (0, "")


def to_service_state(event: TransitionEvent, service: int) -> ServiceState:
    """Return the service's state after this transition: what the service waits for, and until when."""
    awaits = [
        HandlerWait(truncate(each.handler), _limit_names(each.types), max(0, from_iso(each.until)) if each.until else 0)
        for each in event.awaits[:TYPES_MAX]
    ]
    times: list[tuple[int, NextRun]] = []
    if event.due:
        times.append((from_iso(event.due), "deadline"))
    if event.parked_until:
        times.append((from_iso(event.parked_until), "attempt"))
    else:  # a parked run blocks the suspended ones
        times.extend((each.until_ms, "later") for each in awaits if each.until_ms)
    due_ms, goes = min(times) if times else _NO_TIME
    return ServiceState(
        service=service,
        number=event.number,
        open=event.open,
        due_ms=max(0, due_ms),
        next_run=goes,
        awaits=tuple(awaits),
        postponed_by=truncate(event.postponed_by or "") if event.parked_until else "",
    )


def bound_time(time: str, appended_ms: int) -> int:
    """Return the time of a transition, limited to the range from 1970 to shortly after the broker's clock."""
    return max(1, min(from_iso(time), appended_ms + AHEAD_MS))


def _pack_ms(ms: int | None) -> int:
    return UNSEEN_MS if ms is None else min(ms, UNSEEN_MS - 1)


def truncate(text: str) -> str:
    """Cut a name to the maximum length."""
    return text if len(text) <= NAME_MAX else f"{text[:NAME_MAX]}..."


def _limit_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first of these names. If some are left out, the last element says how many."""
    if len(names) <= TYPES_MAX:
        return tuple(map(truncate, names))
    return (*map(truncate, names[:TYPES_MAX]), f"and {len(names) - TYPES_MAX} more")
