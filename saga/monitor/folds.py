"""Folds of transitions into what can be asked of the monitor: pure, without a clock or a broker.

Transitions come in any order, for each service writes at its own pace, and some come twice. What is folded is the same
whatever the order, and twice is as once: `number` says which is which, for each service and saga. Everything is
bounded: of too many sagas the ones are forgotten that ended and were not heard of for the longest time.
"""

from itertools import islice

from saga.messaging.transition_events import Told
from saga.monitor.by_time import ByTime
from saga.monitor.counting import Counts, Histogram
from saga.monitor.known import UNSEEN_MS, Awaits, Goes, Known, Packed, Standing, What, Words
from saga.monitor.standing import RUNS, Reason, places_of, waits_between
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


class Folds:
    """Sagas, counts and indexes, folded from transitions."""

    def __init__(self, sagas_max: int = SAGAS_MAX, counts: Counts | None = None) -> None:
        self.known: dict[str, Known] = {}
        self.words = Words()
        self.counts = Counts() if counts is None else counts
        self.taken = 0
        """Transitions that were taken in, each once."""
        self.forgotten = 0
        """Sagas that were forgotten to make room."""
        self.changed: ByTime[Known] = ByTime()
        self.unended: ByTime[Known] = ByTime()
        """Sagas without an outcome, by their beginning."""
        self.places: dict[Reason, ByTime[Known]] = {}
        """Sagas that may be stuck one day, by reason and the time from which its measure counts."""
        self.waits: dict[tuple[str, str], Histogram] = {}
        """Waits that are usual, by service and handler."""
        self.lives: dict[str, Histogram] = {}
        """Times from beginning to outcome, by kind: what is usual for a quick one says nothing about a slow one."""
        self.busy: dict[str, int] = {}
        """Sagas with very many transitions."""
        self._sagas_max = sagas_max

    def take(self, told: Told, appended_ms: int) -> bool:
        """Take in a transition, and say whether it was new. `appended_ms`: time at which the broker had it."""
        if told.number > NUMBER_MAX or len(told.saga) > SAGA_MAX:
            return False
        known = self.known.get(told.saga)
        is_first = known is None
        if known is None:
            known = Known(told.saga)
        service, time_ms = self.words.name(cut(told.service)), bounded(told.time, appended_ms)
        if told.anew is not None and told.number == 0:
            known.forget(service)
        was_told, before = known.find(service, told.number)
        if was_told:
            self._again(known, before, told, service)
            return False
        what = self._what(told)
        self._count(known, told, what, service, time_ms)
        new = Packed(
            service,
            told.number,
            time_ms,
            self.words.what(what),
            min(told.attempt, 0xFFFF),
            _packed_ms(told.queued_ms),
            _packed_ms(told.handler_ms),
            self.words.name(cut(told.worker)),
        )
        if is_first:
            self._room()
            self.known[told.saga] = known
        known.add(new)
        known.whole = known.whole or told.number == 0
        self._date(known, told, time_ms, is_first)
        self._stand(known, told, service)
        if (count := known.count) >= BUSY_LEAST:
            self._is_busy(told.saga, count)
        self.taken += 1
        return True

    # ---------------------------------------------------------------- parts of a saga

    def _date(self, known: Known, told: Told, time_ms: int, is_first: bool) -> None:
        """Beginning, end and last change, in the saga and in the indexes."""
        began = (time_ms, self.words.names[self.words.name(cut(told.message.type))])
        began_ms, kind = began if is_first else min((known.began_ms, known.kind), began)
        changed_ms = max(known.changed_ms, time_ms)
        ended = known.ended
        if told.result is not None:
            said = (time_ms, told.result, ", ".join(_types(tuple(each.type for each in told.emitted))))
            ended = said if ended is None else min(ended, said)
        if is_first:
            self.changed.add(known, changed_ms)
        elif changed_ms != known.changed_ms:
            self.changed.move(known, known.changed_ms, changed_ms)
        if not is_first and known.ended is None:
            self.unended.remove(known, known.began_ms)
        elif known.ended is not None:
            self._lives_of(known.kind).add(max(0, known.ended[0] - known.began_ms), -1)
        known.began_ms, known.kind, known.changed_ms, known.ended = began_ms, kind, changed_ms, ended
        if ended is None:
            self.unended.add(known, began_ms)
        else:
            self._lives_of(kind).add(max(0, ended[0] - began_ms))

    def _lives_of(self, kind: str) -> Histogram:
        return self.lives.setdefault(kind, Histogram())

    def _stand(self, known: Known, told: Told, service: int) -> None:
        """Last word of the service on the saga, and the saga's places among what may be stuck."""
        if told.number >= known.lasts[service]:
            new = standing_of(told, service)
            others = [each for each in known.standings if each.service != service]
            old = next((each for each in known.standings if each.service == service), None)
            if old is None or old.number < new.number or old < new:
                known.stands(new, others)
        places = places_of(known, self.words)
        if places == known.places:
            return
        self._leave(known)
        for reason, since_ms in places:
            self.places.setdefault(reason, ByTime()).add(known, since_ms)
        known.places = places

    def _leave(self, known: Known) -> None:
        """Take a saga out of its places."""
        for reason, since_ms in known.places:
            index = self.places[reason]
            index.remove(known, since_ms)
            if not index:
                del self.places[reason]
        known.places = ()

    def _again(self, known: Known, before: Packed | None, told: Told, service: int) -> None:
        """Take from a transition that is told again what the first telling did not know."""
        if before is not None and before.queued_ms == before.handler_ms == UNSEEN_MS:
            queued_ms, handler_ms = _packed_ms(told.queued_ms), _packed_ms(told.handler_ms)
            if queued_ms != UNSEEN_MS or handler_ms != UNSEEN_MS:
                known.put(before._replace(queued_ms=queued_ms, handler_ms=handler_ms))
                what = self.words.whats[before.what]
                self._time(cut(told.service), what.handler, what.outcome, before.time_ms, told)
        self._stand(known, told, service)

    # ---------------------------------------------------------------- counts

    def _count(self, known: Known, told: Told, what: What, service: int, time_ms: int) -> None:
        counts, name = self.counts, cut(told.service)
        minute = counts.minute_of(name, what.handler, time_ms)
        if minute is not None:
            minute.transitions += 1
            minute.failures += bool(what.error)
            minute.runs += what.outcome in RUNS
            minute.retries += what.outcome == "retrying"
            minute.dead += what.outcome == "dead"
        self._time(name, what.handler, what.outcome, time_ms, told)
        if what.error:
            counts.failed((name, what.handler, what.error), told.saga, time_ms)
        if told.message.topic is not None and told.message.partition is not None:
            counts.came_from(cut(told.message.topic), told.message.partition, time_ms)
        for wait_ms in waits_between(known, self.words, what.handler, service, time_ms, what.outcome):
            self.waits.setdefault((name, what.handler), Histogram()).add(wait_ms)

    def _time(self, service: str, handler: str, outcome: str, time_ms: int, told: Told) -> None:
        """Count how long a run took, and how long its message stood in line."""
        if outcome not in RUNS:
            return
        minute = self.counts.minute_of(service, handler, time_ms)
        if minute is None:
            return
        if told.handler_ms is not None:
            minute.handler.add(min(told.handler_ms, UNSEEN_MS))
        if told.queued_ms is not None:
            minute.queued.add(min(told.queued_ms, UNSEEN_MS))

    def _what(self, told: Told) -> What:
        return What(
            cut(told.handler),
            cut(told.outcome),
            cut(told.error or ""),
            cut(told.message.type),
            cut(told.message.source),
            _types(tuple(each.type for each in told.emitted)),
            _types(told.steps),
            told.blame == "code",
        )

    # ---------------------------------------------------------------- bounds

    def _is_busy(self, saga: str, count: int) -> None:
        self.busy[saga] = count
        if len(self.busy) > 2 * BUSY_MAX:
            most = sorted(self.busy.items(), key=lambda each: (-each[1], each[0]))
            self.busy = dict(most[:BUSY_MAX])

    def _room(self) -> None:
        """Make room for one more saga."""
        if len(self.known) >= self._sagas_max:
            self.forget_one()

    def forget_one(self) -> Known:
        """Forget the saga that is missed least, of those that there are."""
        oldest = [known for _, known in islice(self.changed.oldest(), EVICT_LOOK)]
        ended = (known for known in oldest if known.ended is not None and not known.places)
        least = next(ended, oldest[0])
        self.forget(least)
        self.forgotten += 1
        return least

    def forget(self, known: Known) -> None:
        """Forget a saga: what was counted of it stays counted."""
        self._leave(known)
        self.changed.remove(known, known.changed_ms)
        if known.ended is None:
            self.unended.remove(known, known.began_ms)
        self.busy.pop(known.saga, None)
        del self.known[known.saga]


_NO_TIME: tuple[int, Goes] = (0, "")


def standing_of(told: Told, service: int) -> Standing:
    """Expectation of the service, after the transition that it told."""
    awaits = [
        Awaits(cut(each.handler), _types(each.types), max(0, from_iso(each.until)) if each.until else 0)
        for each in told.awaits[:TYPES_MAX]
    ]
    times: list[tuple[int, Goes]] = []
    if told.due:
        times.append((from_iso(told.due), "deadline"))
    if told.parked_until:
        times.append((from_iso(told.parked_until), "attempt"))
    else:  # what is parked blocks runs that would go on
        times.extend((each.until_ms, "later") for each in awaits if each.until_ms)
    due_ms, goes = min(times) if times else _NO_TIME
    return Standing(
        service=service,
        number=told.number,
        open=told.open,
        due_ms=max(0, due_ms),
        goes=goes,
        awaits=tuple(awaits),
    )


def bounded(time: str, appended_ms: int) -> int:
    """Time of a transition: not before 1970, and not far ahead of the broker's clock."""
    return max(1, min(from_iso(time), appended_ms + AHEAD_MS))


def _packed_ms(ms: int | None) -> int:
    return UNSEEN_MS if ms is None else min(ms, UNSEEN_MS - 1)


def cut(text: str) -> str:
    """Name, as much of it as is kept."""
    return text if len(text) <= NAME_MAX else f"{text[:NAME_MAX]}..."


def _types(names: tuple[str, ...]) -> tuple[str, ...]:
    """First of these names, and how many more there are."""
    if len(names) <= TYPES_MAX:
        return tuple(map(cut, names))
    return (*map(cut, names[:TYPES_MAX]), f"and {len(names) - TYPES_MAX} more")
