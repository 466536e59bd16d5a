"""Read model of the monitor, built from transition events. Pure: no clock, no broker.

Transitions come in any order, for each service writes at its own pace, and some come twice. What is folded is the same
whatever the order, and twice is as once: `number` says which is which, for each service and saga. Everything is
bounded: of too many sagas the ones are forgotten that ended and were not heard of for the longest time.
"""

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
"""Sagas that are known at once, unless a setting says otherwise."""
NUMBER_MAX = 1 << 20
"""Largest number of a transition that is taken in: a saga has fewer."""
TYPES_MAX = 8
"""Types of events, steps, and handlers that wait, which are kept of one transition."""
NAME_MAX, SAGA_MAX = 200, 1000
"""Characters of a name, and of a saga's id, that are kept."""
AHEAD_MS = 60_000
"""Time that a service's clock may be ahead of the broker's: what is later counts as told at that time."""
BUSY_LEAST, BUSY_MAX = 50, 1000
"""Transitions from which on a saga may be hot, and the number of sagas that are remembered for it."""
EVICT_LOOK = 1000
"""Sagas, longest unheard of first, among which one is looked for that has ended."""


class ReadModel:
    """Sagas, counts and indexes, folded from transitions."""

    def __init__(self, sagas_max: int = SAGAS_MAX, counts: RecentCounts | None = None) -> None:
        self.sagas: dict[str, TrackedSaga] = {}
        self.intern_table = InternTable()
        self.counts = RecentCounts() if counts is None else counts
        self.taken = 0
        """Transitions that were taken in, each once."""
        self.forgotten = 0
        """Sagas that were forgotten to make room."""
        self.by_change_time: TimeIndex[TrackedSaga] = TimeIndex()
        self.without_outcome: TimeIndex[TrackedSaga] = TimeIndex()
        """Sagas without an outcome, by their beginning."""
        self.stuck_candidates: dict[Reason, TimeIndex[TrackedSaga]] = {}
        """Sagas that may be stuck one day, by reason and the time from which its measure counts."""
        self.waits: dict[tuple[str, str], TimeHistogram] = {}
        """Waits that are usual, by service and handler."""
        self.lives: dict[str, TimeHistogram] = {}
        """Times from beginning to outcome, by kind: what is usual for a quick one says nothing about a slow one."""
        self.busy: dict[str, int] = {}
        """Sagas with very many transitions."""
        self._sagas_max = sagas_max

    def apply(self, told: TransitionEvent, appended_ms: int) -> bool:
        """Apply a transition event; return whether it was new. `appended_ms`: time at which the broker appended it."""
        if told.number > NUMBER_MAX or len(told.saga) > SAGA_MAX:
            return False
        known = self.sagas.get(told.saga)
        is_first = known is None
        if known is None:
            known = TrackedSaga(told.saga)
        service, time_ms = self.intern_table.intern_name(truncate(told.service)), bound_time(told.time, appended_ms)
        if told.anew is not None and told.number == 0:
            known.forget_service(service)
        was_told, before = known.find(service, told.number)
        if was_told:
            self._apply_repeated(known, before, told, service)
            return False
        what = self._to_facts(told)
        self._count(known, told, what, service, time_ms)
        new = PackedTransition(
            service,
            told.number,
            time_ms,
            self.intern_table.intern_facts(what),
            min(told.attempt, 0xFFFF),
            _pack_ms(told.queued_ms),
            _pack_ms(told.handler_ms),
            self.intern_table.intern_name(truncate(told.worker)),
        )
        if is_first:
            self._make_room()
            self.sagas[told.saga] = known
        known.add(new)
        known.has_start = known.has_start or told.number == 0
        self._update_times(known, told, time_ms, is_first)
        self._update_service_state(known, told, service)
        if (count := known.count) >= BUSY_LEAST:
            self._note_busy_saga(told.saga, count)
        self.taken += 1
        return True

    # ---------------------------------------------------------------- parts of a saga

    def _update_times(self, known: TrackedSaga, told: TransitionEvent, time_ms: int, is_first: bool) -> None:
        """Beginning, end and last change, in the saga and in the indexes."""
        began = (
            time_ms,
            self.intern_table.services_and_workers[self.intern_table.intern_name(truncate(told.message.type))],
        )
        began_ms, kind = began if is_first else min((known.began_ms, known.kind), began)
        changed_ms = max(known.changed_ms, time_ms)
        ended = known.ended
        if told.result is not None:
            said = (time_ms, told.result, ", ".join(_limit_names(tuple(each.type for each in told.emitted))))
            ended = said if ended is None else min(ended, said)
        if is_first:
            self.by_change_time.add(known, changed_ms)
        elif changed_ms != known.changed_ms:
            self.by_change_time.move(known, known.changed_ms, changed_ms)
        if not is_first and known.ended is None:
            self.without_outcome.remove(known, known.began_ms)
        elif known.ended is not None:
            self._get_durations(known.kind).add(max(0, known.ended[0] - known.began_ms), -1)
        known.began_ms, known.kind, known.changed_ms, known.ended = began_ms, kind, changed_ms, ended
        if ended is None:
            self.without_outcome.add(known, began_ms)
        else:
            self._get_durations(kind).add(max(0, ended[0] - began_ms))

    def _get_durations(self, kind: str) -> TimeHistogram:
        return self.lives.setdefault(kind, TimeHistogram())

    def _update_service_state(self, known: TrackedSaga, told: TransitionEvent, service: int) -> None:
        """Update the service's latest state, and the saga's entries in the indexes of sagas that may be stuck."""
        if told.number >= known.last_numbers[service]:
            new = to_service_state(told, service)
            others = [each for each in known.service_states if each.service != service]
            old = next((each for each in known.service_states if each.service == service), None)
            if old is None or old.number < new.number or old < new:
                known.set_service_state(new, others)
        places = find_stuck_candidates(known, self.intern_table)
        if places == known.stuck_candidates:
            return
        self._remove_candidates(known)
        for reason, since_ms in places:
            self.stuck_candidates.setdefault(reason, TimeIndex()).add(known, since_ms)
        known.stuck_candidates = places

    def _remove_candidates(self, known: TrackedSaga) -> None:
        """Remove a saga from the indexes of sagas that may be stuck."""
        for reason, since_ms in known.stuck_candidates:
            index = self.stuck_candidates[reason]
            index.remove(known, since_ms)
            if not index:
                del self.stuck_candidates[reason]
        known.stuck_candidates = ()

    def _apply_repeated(
        self, known: TrackedSaga, before: PackedTransition | None, told: TransitionEvent, service: int
    ) -> None:
        """Add from a repeated event what its first copy did not contain: the durations."""
        if before is not None and before.queued_ms == before.handler_ms == UNSEEN_MS:
            queued_ms, handler_ms = _pack_ms(told.queued_ms), _pack_ms(told.handler_ms)
            if queued_ms != UNSEEN_MS or handler_ms != UNSEEN_MS:
                known.replace(before._replace(queued_ms=queued_ms, handler_ms=handler_ms))
                what = self.intern_table.facts[before.what]
                self._count_durations(truncate(told.service), what.handler, what.outcome, before.time_ms, told)
        self._update_service_state(known, told, service)

    # ---------------------------------------------------------------- counts

    def _count(
        self, known: TrackedSaga, told: TransitionEvent, what: TransitionFacts, service: int, time_ms: int
    ) -> None:
        counts, name = self.counts, truncate(told.service)
        minute = counts.get_minute(name, what.handler, time_ms)
        if minute is not None:
            minute.transitions += 1
            minute.failures += bool(what.error)
            minute.runs += what.outcome in RUNS
            minute.retries += what.outcome == "retrying"
            minute.dead += what.outcome == "dead"
        self._count_durations(name, what.handler, what.outcome, time_ms, told)
        if what.error:
            counts.count_failure((name, what.handler, what.error), told.saga, time_ms)
        if told.message.topic is not None and told.message.partition is not None:
            counts.count_message(truncate(told.message.topic), told.message.partition, time_ms)
        for wait_ms in measure_waits(known, self.intern_table, what.handler, service, time_ms, what.outcome):
            self.waits.setdefault((name, what.handler), TimeHistogram()).add(wait_ms)

    def _count_durations(self, service: str, handler: str, outcome: str, time_ms: int, told: TransitionEvent) -> None:
        """Count how long a run took, and how long its message stood in line."""
        if outcome not in RUNS:
            return
        minute = self.counts.get_minute(service, handler, time_ms)
        if minute is None:
            return
        if told.handler_ms is not None:
            minute.handler.add(min(told.handler_ms, UNSEEN_MS))
        if told.queued_ms is not None:
            minute.queued.add(min(told.queued_ms, UNSEEN_MS))

    def _to_facts(self, told: TransitionEvent) -> TransitionFacts:
        return TransitionFacts(
            truncate(told.handler),
            truncate(told.outcome),
            truncate(told.error or ""),
            truncate(told.message.type),
            truncate(told.message.source),
            _limit_names(tuple(each.type for each in told.emitted)),
            _limit_names(told.steps),
            told.blame == "code",
        )

    # ---------------------------------------------------------------- bounds

    def _note_busy_saga(self, saga: str, count: int) -> None:
        self.busy[saga] = count
        if len(self.busy) > 2 * BUSY_MAX:
            most = sorted(self.busy.items(), key=lambda each: (-each[1], each[0]))
            self.busy = dict(most[:BUSY_MAX])

    def _make_room(self) -> None:
        """Make room for one more saga."""
        if len(self.sagas) >= self._sagas_max:
            self.forget_one()

    def forget_one(self) -> TrackedSaga:
        """Drop one saga to make room: the one that ended and has not changed for the longest time."""
        oldest = [known for _, known in islice(self.by_change_time.iterate_oldest(), EVICT_LOOK)]
        ended = (known for known in oldest if known.ended is not None and not known.stuck_candidates)
        least = next(ended, oldest[0])
        self.forget(least)
        self.forgotten += 1
        return least

    def forget(self, known: TrackedSaga) -> None:
        """Drop a saga. What was counted of it stays counted."""
        self._remove_candidates(known)
        self.by_change_time.remove(known, known.changed_ms)
        if known.ended is None:
            self.without_outcome.remove(known, known.began_ms)
        self.busy.pop(known.saga, None)
        del self.sagas[known.saga]


_NO_TIME: tuple[int, NextRun] = (0, "")


def to_service_state(told: TransitionEvent, service: int) -> ServiceState:
    """Expectation of the service, after the transition that it told."""
    awaits = [
        HandlerWait(truncate(each.handler), _limit_names(each.types), max(0, from_iso(each.until)) if each.until else 0)
        for each in told.awaits[:TYPES_MAX]
    ]
    times: list[tuple[int, NextRun]] = []
    if told.due:
        times.append((from_iso(told.due), "deadline"))
    if told.parked_until:
        times.append((from_iso(told.parked_until), "attempt"))
    else:  # what is parked blocks runs that would go on
        times.extend((each.until_ms, "later") for each in awaits if each.until_ms)
    due_ms, goes = min(times) if times else _NO_TIME
    return ServiceState(
        service=service,
        number=told.number,
        open=told.open,
        due_ms=max(0, due_ms),
        next_run=goes,
        awaits=tuple(awaits),
    )


def bound_time(time: str, appended_ms: int) -> int:
    """Time of a transition: not before 1970, and not far ahead of the broker's clock."""
    return max(1, min(from_iso(time), appended_ms + AHEAD_MS))


def _pack_ms(ms: int | None) -> int:
    return UNSEEN_MS if ms is None else min(ms, UNSEEN_MS - 1)


def truncate(text: str) -> str:
    """Name, as much of it as is kept."""
    return text if len(text) <= NAME_MAX else f"{text[:NAME_MAX]}..."


def _limit_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """First of these names, and how many more there are."""
    if len(names) <= TYPES_MAX:
        return tuple(map(truncate, names))
    return (*map(truncate, names[:TYPES_MAX]), f"and {len(names) - TYPES_MAX} more")
