"""Queries on the read model. The number of sagas that a query examines is bounded."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge, nlargest
from itertools import islice
from typing import NamedTuple, Protocol

from saga.errors import BreakerOpen
from saga.monitor.counters import (
    MINUTE_MS,
    MINUTES,
    RECENT,
    MinuteCounts,
    RecentCounts,
    TimeHistogram,
    add_up_minutes,
    compute_rate_per_s,
    is_storm,
)
from saga.monitor.read_model import ReadModel
from saga.monitor.saga_index import IndexSlice, InternTable, NextRun, TrackedSaga
from saga.monitor.stuck_detection import (
    OVERDUE_MS,
    BlockedHandler,
    OpenWait,
    Reason,
    compute_allowed_ms,
    find_dead,
    find_failing,
    find_waits,
    list_unfinished,
)
from saga.monitor.views import (
    EVERYTHING,
    PAGE_MAX,
    WHOLE_PAGE,
    ErrorClass,
    HandlerRate,
    HandlerRates,
    HotPartition,
    HotSaga,
    HotSpots,
    KnownNames,
    MinuteActivity,
    MinuteRate,
    MonitorActivity,
    PageRequest,
    SagaFilter,
    SagaPage,
    SagaRow,
    SagaWait,
    ServiceActivity,
    StuckCount,
    StuckFilter,
    StuckSaga,
    StuckSagas,
    Timeline,
    Why,
)
from saga.support.clock import LATEST_MS, iso

LOOK_MAX = 100_000
"""Approximate maximum number of sagas that are examined for one page. When it is reached, the page ends, and the next
page continues from there."""
HOT_LEAST = 3.0
"""A partition counts as hot if it has at least this many times as many messages as the mean of its topic."""
HOT_TRANSITIONS_LEAST = 100
"""Minimum number of transitions for a partition to count as hot."""
HELD_UP = "once nothing holds it up: it is looked at each minute whether the pause, limit or open breaker is over"
"""Describes what ends a wait without a known end."""
SHOWN_MAX = 100
"""Maximum number of hot sagas, of hot partitions, and of classes of errors that are shown."""


class UsualTimes(Protocol):
    """Usual durations, computed from one read model or from several."""

    @property
    def waits(self) -> Mapping[tuple[str, str], TimeHistogram]:
        """Waiting times, by service and handler."""

    @property
    def lives(self) -> Mapping[str, TimeHistogram]:
        """Times from start to outcome, by kind of saga."""


class Queries:
    """Answers queries from a read model. Implements `saga.monitor.views.Views`.

    Args:
        usual: The usual durations, by which it is decided which sagas are stuck. By default they come from this read
            model.
    """

    def __init__(self, folds: ReadModel, usual: UsualTimes | None = None) -> None:
        self.folds = folds
        self._usual: UsualTimes = folds if usual is None else usual

    # ---------------------------------------------------------------- sagas

    def sagas(self, which: SagaFilter, page: PageRequest) -> SagaPage:
        """Return a page of the sagas that match the filter. Those that changed last come first.

        If the filter selects sagas without an outcome, those that began first come first.
        """
        limit = max(1, min(page.limit, PAGE_MAX))
        rows, looked, end = list[SagaRow](), 0, (0, "")
        for part in self._scan(which, _parse_cursor(page.after)):
            if looked >= LOOK_MAX:
                return self._build_page(rows, looked, end)
            looked += part.looked
            for ms, known in part.found:
                if len(rows) == limit:
                    return self._build_page(rows, looked, end)
                rows.append(self._build_row(known))
                end = ms, known.saga
            end = part.end
        return self._build_page(rows, looked, None)

    def _build_page(self, rows: list[SagaRow], looked: int, end: tuple[int, str] | None) -> SagaPage:
        following = "" if end is None else f"{end[0]}:{end[1]}"
        return SagaPage(rows=tuple(rows), next=following, looked=looked, known=len(self.folds.sagas))

    def _scan(self, which: SagaFilter, after: tuple[int, str] | None) -> Iterator[IndexSlice[TrackedSaga]]:
        """Yield the sagas that match, one index slice after another."""
        folds, holds = self.folds, _build_predicate(which, self.folds.intern_table)
        if which.stuck_ms is not None or which.dead:
            yield from self._scan_stuck(which, holds, after)
        elif which.outcome == "none":
            yield from folds.without_outcome.scan(holds, latest_first=False, after=after)
        else:
            for part in folds.by_change_time.scan(holds, latest_first=True, after=after):
                yield part
                if which.since_ms is not None and part.end[0] < which.since_ms:
                    return  # the others last changed before that time, so they began before it

    def _scan_stuck(
        self, which: SagaFilter, holds: Callable[[TrackedSaga], bool], after: tuple[int, str] | None
    ) -> Iterator[IndexSlice[TrackedSaga]]:
        """Yield the stuck sagas for which `holds` is true. Those that changed last come first.

        Up to `LOOK_MAX` of them are taken from the indexes of stuck sagas and sorted. If there are more, all sagas are
        scanned, bucket by bucket, because then many of them are stuck.
        """
        now_ms = LATEST_MS if which.stuck_ms is None else which.stuck_ms
        candidates = {
            reason: (index, now_ms - self._get_allowed_ms(reason))
            for reason, index in self.folds.stuck_candidates.items()
            if reason[0] == "dead" or not which.dead
        }
        if sum(index.count_until(until_ms) for index, until_ms in candidates.values()) > LOOK_MAX:
            yield from self.folds.by_change_time.scan(
                lambda known: (
                    any(each in candidates and ms <= candidates[each][1] for each, ms in known.stuck_candidates)
                    and holds(known)
                ),
                latest_first=True,
                after=after,
            )
            return
        stuck = {known for index, until_ms in candidates.values() for _, known in index.iterate_oldest(until_ms)}
        found = [
            (known.changed_ms, known)
            for known in stuck
            if holds(known) and (after is None or (known.changed_ms, known.saga) < after)
        ]
        found.sort(key=lambda each: (each[0], each[1].saga), reverse=True)
        yield IndexSlice(found, len(stuck), (0, ""))

    def _build_row(self, known: TrackedSaga) -> SagaRow:
        names, ended = self.folds.intern_table.services_and_workers, known.ended
        return SagaRow(
            saga=known.saga,
            began_ms=known.began_ms,
            changed_ms=known.changed_ms,
            result="" if ended is None else "success" if ended[1] == "success" else "failure",
            outcome="" if ended is None else ended[2],
            transitions=known.count,
            kind=known.kind,
            services=tuple(sorted(names[number] for number in known.last_numbers)),
            open=tuple(sorted(names[each.service] for each in known.service_states if each.open)),
            dead=any(find_dead(known, self.folds.intern_table)),
        )

    # ---------------------------------------------------------------- one saga

    def saga(self, saga: str, now_ms: int) -> Timeline | None:
        """Return one saga across all services."""
        known = self.folds.sagas.get(saga)
        if known is None:
            return None
        packed = known.list_newest()
        lines = sorted(
            map(self.folds.intern_table.to_timeline_entry, packed),
            key=lambda line: (line.time_ms, line.service, line.number),
        )
        stuck = [
            self._build_stuck(known, reason, since_ms)
            for reason, since_ms in known.stuck_candidates
            if since_ms + self._get_allowed_ms(reason) <= now_ms
        ]
        return Timeline(
            row=self._build_row(known),
            lines=tuple(lines),
            missing=known.missing,
            left_out=known.count - len(packed),
            awaited=tuple(self._list_waits(known)),
            stuck=tuple(stuck),
        )

    def _list_waits(self, known: TrackedSaga) -> Iterator[SagaWait]:
        """List everything that a saga waits for."""
        names = self.folds.intern_table.services_and_workers
        for each in sorted(
            find_dead(known, self.folds.intern_table), key=lambda each: (each.since_ms, names[each.service])
        ):
            yield _wait_for_person(names[each.service], each)
        for standing in sorted(list_unfinished(known), key=lambda each: names[each.service]):
            service, is_held_up = names[standing.service], standing.due_ms >= LATEST_MS
            until_ms = None if is_held_up else standing.due_ms or None
            for wait in find_waits(known, self.folds.intern_table, standing):
                yield SagaWait(
                    service=service,
                    handler=wait.handler,
                    for_=wait.types,
                    since_ms=wait.since_ms,
                    until_ms=wait.until_ms or until_ms,
                    ends=_describe_later(wait) if wait.until_ms else _describe_events(wait, until_ms),
                )
            if standing.due_ms and standing.next_run != "later" and all(each.until_ms for each in standing.awaits):
                ends = f"{_GOES[standing.next_run]} {HELD_UP if until_ms is None else f'at {_format_time(until_ms)}'}"
                yield SagaWait(
                    service=service, handler="", for_=(), since_ms=known.changed_ms, until_ms=until_ms, ends=ends
                )

    # ---------------------------------------------------------------- what is stuck

    def stuck(self, now_ms: int, which: StuckFilter = EVERYTHING, page: PageRequest = WHOLE_PAGE) -> StuckSagas:
        """Return a page of the sagas that are stuck now, those stuck longest first, and the numbers of all stuck sagas.

        For the numbers, only index entries are counted. Only the sagas of the page are examined.
        """
        limit, place = max(1, min(page.limit, PAGE_MAX)), _parse_place(page.after)
        counts, streams = Counter[tuple[Why, str, str]](), list[Iterator[_StuckMember]]()
        for reason, index in self.folds.stuck_candidates.items():
            until_ms = now_ms - which.age_ms - self._get_allowed_ms(reason)
            why, service, kind = _WHYS[reason[0]], "" if reason[0] == "silent" else reason[1], reason[-1]
            if not (count := index.count_until(until_ms)):
                continue
            counts[why, service, kind] += count
            if which.why in ("", why) and which.service in ("", service) and which.kind in ("", kind):
                streams.append(_rank_members(reason, index.iterate_oldest(until_ms, place.since_ms)))
        merged = merge(*streams, key=lambda each: each.rank)
        found = [*islice(merged, place.skipped, place.skipped + limit + 1)]
        shown = found[:limit]
        return StuckSagas(
            sagas=tuple(self._build_stuck(each.known, each.reason, each.since_ms) for each in shown),
            more=len(found) > limit,
            next=_make_place(shown, place) if len(found) > limit else "",
            counts=tuple(
                sorted(StuckCount(why=why, service=of, kind=kind, count=n) for (why, of, kind), n in counts.items())
            ),
        )

    def names(self) -> KnownNames:
        """Return the services and kinds of sagas that are known."""
        services, kinds = sorted(self.folds.services), sorted(kind for kind in self.folds.kinds if kind)
        return KnownNames(services=tuple(services[:PAGE_MAX]), kinds=tuple(kinds[:PAGE_MAX]))

    def _get_allowed_ms(self, reason: Reason) -> int:
        if reason[0] == "waiting":
            return compute_allowed_ms(self._usual.waits.get((reason[1], reason[2]), _NOTHING))
        if reason[0] == "silent":
            return compute_allowed_ms(self._usual.lives.get(reason[1], _NOTHING))
        return OVERDUE_MS if reason[0] == "overdue" else 0

    def _build_stuck(self, known: TrackedSaga, reason: Reason, since_ms: int) -> StuckSaga:
        measure_ms = self._get_allowed_ms(reason)
        return StuckSaga(
            saga=known.saga,
            why=_WHYS[reason[0]],
            since_ms=since_ms + measure_ms,
            measure_ms=measure_ms,
            awaited=self._find_wait(known, reason, since_ms),
        )

    def _find_wait(self, known: TrackedSaga, reason: Reason, since_ms: int) -> SagaWait:
        """Describe what the saga waits for because of this reason: an event, a time or a person."""
        names = self.folds.intern_table.services_and_workers
        if reason[0] == "dead":
            blocked = [each for each in find_dead(known, self.folds.intern_table) if names[each.service] == reason[1]]
            return _wait_for_person(reason[1], min(blocked, key=lambda each: (each.since_ms, each.handler)))
        if reason[0] == "failing":
            each = min(
                (each for each in find_failing(known, self.folds.intern_table) if names[each.service] == reason[1]),
                key=lambda each: each.since_ms,
            )
            ends = f"a release that fixes {each.handler}, or a rollback: its own code fails on {each.type}"
            service = names[each.service]
            return SagaWait(service=service, handler=each.handler, for_=(), since_ms=since_ms, until_ms=None, ends=ends)
        if reason[0] == "waiting":
            return next(
                each for each in self._list_waits(known) if (each.service, each.handler) == (reason[1], reason[2])
            )
        if reason[0] == "overdue":
            late = min(
                (each for each in known.service_states if each.due_ms and names[each.service] == reason[1]),
                key=lambda each: each.due_ms,
            )
            service = names[late.service]
            at = (
                f"due at {_format_time(late.due_ms)}: check that {service} runs and keeps up; if so, its timer is "
                f"lost, and `saga sagas repair` with the module of {service} sends it again"
            )
            ends = f"{_GOES[late.next_run]}, which was {at}"
            goes_on = [
                each.handler for each in late.awaits if late.next_run == "later" and each.until_ms == late.due_ms
            ]
            handler = min(goes_on, default="")
            return SagaWait(service=service, handler=handler, for_=(), since_ms=since_ms, until_ms=since_ms, ends=ends)
        last = max(known, key=lambda each: (each.time_ms, names[each.service], each.number))
        emitted = self.folds.intern_table.facts[last.what].emitted
        who = f"those that take {' and '.join(emitted)}" if emitted else f"{names[last.service]} and the others"
        return SagaWait(
            service=names[last.service],
            handler="",
            for_=emitted,
            since_ms=since_ms,
            until_ms=None,
            ends=f"any transition: check that {who} run and keep up",
        )

    # ---------------------------------------------------------------- counts

    def rates(self) -> HandlerRates:
        """Return rates and durations of each handler, busiest first."""
        folds = self.folds
        return compute_rates(
            folds.counts, sagas=len(folds.sagas), in_flight=len(folds.without_outcome), taken=folds.taken
        )

    def activity(self, now_ms: int) -> MonitorActivity:
        """Return what is happening in each service now. For each service and reason, only the saga that has been stuck
        longest is examined."""
        folds, stuck, silent = self.folds, dict[str, Counter[Why]](), 0
        oldest: dict[tuple[str, Why], tuple[int, Reason, TrackedSaga]] = {}
        for reason, index in folds.stuck_candidates.items():
            until_ms = now_ms - self._get_allowed_ms(reason)
            since_ms, known = next(index.iterate_oldest(until_ms), (0, None))
            if known is None:
                continue
            count, why, service = (
                index.count_until(until_ms),
                _WHYS[reason[0]],
                "" if reason[0] == "silent" else reason[1],
            )
            silent += count if why == "silent" else 0
            stuck.setdefault(service, Counter())[why] += count
            if (service, why) not in oldest or since_ms < oldest[service, why][0]:
                oldest[service, why] = since_ms, reason, known
        found: dict[str, list[StuckSaga]] = {}
        for (service, _), (since_ms, reason, known) in oldest.items():
            found.setdefault(service, []).append(self._build_stuck(known, reason, since_ms))
        return MonitorActivity(
            newest_ms=folds.counts.newest_ms,
            sagas=len(folds.sagas),
            in_flight=len(folds.without_outcome),
            services=compute_activity(folds.counts, folds.parked, stuck, found, now_ms),
            silent=silent,
            oldest_silent=next(iter(found.get("", ())), None),
        )

    def errors(self) -> tuple[ErrorClass, ...]:
        """Return failures by class, most frequent first."""
        return list_errors(self.folds.counts)

    def hot(self) -> HotSpots:
        """Return the hot sagas and the hot partitions, hottest first."""
        return find_hot_spots(self.folds.counts, self.folds.busy)


def compute_rates(counts: RecentCounts, *, sagas: int, in_flight: int, taken: int) -> HandlerRates:
    """Compute rates and durations of each handler, busiest first."""
    recent = counts.list_recent_minutes()
    handlers = [_compute_rate(key, minutes, recent) for key, minutes in counts.handlers.items()]
    return HandlerRates(
        minutes=MINUTES,
        newest_ms=counts.newest_ms,
        sagas=sagas,
        in_flight=in_flight,
        taken=taken,
        handlers=tuple(sorted(handlers, key=lambda each: (-each.transitions, each.service, each.handler))),
    )


def compute_activity(
    counts: RecentCounts,
    parked: Mapping[tuple[str, str], int],
    stuck: Mapping[str, Mapping[Why, int]],
    oldest: Mapping[str, Sequence[StuckSaga]],
    now_ms: int,
) -> tuple[ServiceActivity, ...]:
    """Compute what is happening in each service now. The result is sorted by service.

    Args:
        parked: Numbers of sagas with parked runs, by service and by the cause that postpones the run.
        stuck: Numbers of stuck sagas, by service and reason.
        oldest: For each service, the sagas that have been stuck for the longest time.
    """
    recent, newest = counts.list_minutes_until(now_ms, RECENT + 1), counts.list_minutes_until(now_ms, MINUTES)
    handlers: dict[str, list[tuple[str, dict[int, MinuteCounts]]]] = {}
    for (service, handler), minutes in counts.handlers.items():
        handlers.setdefault(service, []).append((handler, minutes))
    found = []
    for service in sorted({*handlers, *stuck, *(service for service, _ in parked)} - {""}):
        mine = handlers.get(service, ())
        lately = add_up_minutes([minutes[each] for _, minutes in mine for each in recent if each in minutes])
        summed = [
            (minute, add_up_minutes(parts))
            for minute in newest
            if (parts := [minutes[minute] for _, minutes in mine if minute in minutes])
        ]
        found.append(
            ServiceActivity(
                service=service,
                minutes=tuple(
                    MinuteActivity(
                        minute_ms=minute * MINUTE_MS,
                        transitions=each.transitions,
                        failures=each.failures,
                        p95_ms=each.handler.percentile(0.95),
                    )
                    for minute, each in summed
                ),
                per_s=round(sum(compute_rate_per_s(minutes, recent) for _, minutes in mine), 3),
                p95_ms=lately.handler.percentile(0.95),
                failures=lately.failures,
                storms=tuple(sorted(handler for handler, minutes in mine if is_storm(minutes, recent))),
                parked=sum(count for (of, _), count in parked.items() if of == service),
                behind_breaker=parked.get((service, BreakerOpen.__name__), 0),
                stuck=dict(stuck.get(service, {})),
                oldest=tuple(sorted(oldest.get(service, ()), key=lambda each: each.since_ms)),
            )
        )
    return tuple(found)


def list_errors(counts: RecentCounts) -> tuple[ErrorClass, ...]:
    """List failures by class, most frequent first."""
    found = [
        ErrorClass(
            service=service,
            handler=handler,
            error=error,
            count=sum(failures.minutes.values()),
            last_ms=failures.last[0],
            saga=failures.last[1],
        )
        for (service, handler, error), failures in counts.failures.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.count, each.service, each.handler, each.error))[:SHOWN_MAX])


def find_hot_spots(counts: RecentCounts, busy: Mapping[str, int]) -> HotSpots:
    """Find hot sagas and hot partitions, hottest first."""
    sums = {at: sum(minutes.values()) for at, minutes in counts.partitions.items()}
    topics: dict[str, list[int]] = {}
    for (topic, _), count in sums.items():
        topics.setdefault(topic, []).append(count)
    partitions = [
        HotPartition(topic=topic, partition=partition, transitions=count, share=round(share, 2))
        for (topic, partition), count in sums.items()
        if count >= HOT_TRANSITIONS_LEAST and (share := count * len(topics[topic]) / sum(topics[topic])) >= HOT_LEAST
    ]
    most = nlargest(SHOWN_MAX, busy.items(), key=lambda each: (each[1], each[0]))
    return HotSpots(
        sagas=tuple(HotSaga(saga=saga, transitions=count) for saga, count in most),
        partitions=tuple(
            sorted(partitions, key=lambda each: (-each.transitions, each.topic, each.partition))[:SHOWN_MAX]
        ),
    )


_NOTHING = TimeHistogram()
_WHYS: dict[str, Why] = {
    "dead": "dead", "failing": "failing", "overdue": "overdue", "waiting": "waiting", "silent": "silent"
}  # fmt: skip


def _compute_rate(key: tuple[str, str], minutes: dict[int, MinuteCounts], recent: range) -> HandlerRate:
    whole = add_up_minutes(minutes.values())
    return HandlerRate(
        service=key[0],
        handler=key[1],
        transitions=whole.transitions,
        per_s=round(compute_rate_per_s(minutes, recent), 3),
        runs=whole.runs,
        retries=whole.retries,
        dead=whole.dead,
        p50_ms=whole.handler.percentile(0.5),
        p95_ms=whole.handler.percentile(0.95),
        p99_ms=whole.handler.percentile(0.99),
        queued_p95_ms=whole.queued.percentile(0.95),
        storm=is_storm(minutes, recent),
        slices=tuple(
            MinuteRate(minute_ms=minute * MINUTE_MS, transitions=each.transitions, failures=each.failures)
            for minute, each in sorted(minutes.items())
        ),
    )


class _StuckMember(NamedTuple):
    """A saga that may be stuck, as found in an index, with its sort key."""

    rank: tuple[int, Reason, str]
    """Sort key. For a given saga it is the same in every worker of a shared monitor."""
    reason: Reason
    known: TrackedSaga

    @property
    def since_ms(self) -> int:
        return self.rank[0]


def _rank_members(reason: Reason, members: Iterable[tuple[int, TrackedSaga]]) -> Iterator[_StuckMember]:
    """Yield the members of an index with sort keys, with which the members of all indexes can be merged."""
    for since_ms, known in members:
        yield _StuckMember((since_ms, reason[:-1], known.saga), reason, known)


class _StuckPlace(NamedTuple):
    """Position in the list of stuck sagas at which a page begins."""

    since_ms: int = 0
    skipped: int = 0
    """Number of sagas with this time that earlier pages have shown."""


def _parse_place(after: str) -> _StuckPlace:
    """Parse the position at which a page begins. An invalid position means the first page."""
    ms, colon, skipped = after.partition(":")
    is_place = colon and all(text.isascii() and text.isdigit() and len(text) < 16 for text in (ms, skipped))
    return _StuckPlace(int(ms), int(skipped)) if is_place else _StuckPlace()


def _make_place(shown: Sequence[_StuckMember], begun: _StuckPlace) -> str:
    """Return the position at which the next page begins. `begun`: the position at which this page began."""
    last_ms = shown[-1].since_ms
    skipped = sum(each.since_ms == last_ms for each in shown) + (begun.skipped if begun.since_ms == last_ms else 0)
    return f"{last_ms}:{skipped}"


def _wait_for_person(service: str, blocked: BlockedHandler) -> SagaWait:
    return SagaWait(
        service=service,
        handler=blocked.handler,
        for_=(),
        since_ms=blocked.since_ms,
        until_ms=None,
        ends=f"a person: `saga dead replay` or `saga dead discard`, for {blocked.type} in {service}",
    )


def _format_time(ms: int) -> str:
    return iso(min(ms, LATEST_MS))


_GOES: dict[NextRun, str] = {
    "attempt": "its next attempt",
    "deadline": "its deadline",
    "later": "the time requested by `Later`",
}


def _describe_later(wait: OpenWait) -> str:
    """Describe what ends the wait of a suspended run."""
    by = " or ".join(wait.types)
    return f"it continues at {_format_time(wait.until_ms)}, as requested by `Later`{f'; or with {by}' if by else ''}"


def _describe_events(wait: OpenWait, until_ms: int | None) -> str:
    """Describe what ends the wait of a handler for events."""
    or_at = "" if until_ms is None else f"; or the time {_format_time(until_ms)}"
    return f"{' and '.join(wait.types) or 'an event'}, published to its topic{or_at}"


def _build_predicate(which: SagaFilter, words: InternTable) -> Callable[[TrackedSaga], bool]:
    """Build a function that tests whether a saga matches a filter. It is called for very many sagas, so it tests only
    those fields of the filter that are set."""
    asked = list[Callable[[TrackedSaga], bool]]()
    if text := which.text:
        asked.append(lambda known: text in known.saga)
    if (outcome := which.outcome) == "none":
        asked.append(lambda known: known.ended is None)
    elif outcome:
        asked.append(lambda known: known.ended is not None and known.ended[1] == outcome)
    if kind := which.kind:
        asked.append(lambda known: known.kind == kind)
    if (since_ms := which.since_ms) is not None:
        asked.append(lambda known: known.began_ms >= since_ms)
    if (before_ms := which.before_ms) is not None:
        asked.append(lambda known: known.began_ms < before_ms)
    if which.open:
        asked.append(lambda known: any(each.open for each in known.service_states))
    if which.service:
        number = words.find_name(which.service)
        asked.append(lambda known: number is not None and known.involves(number))
    match asked:
        case []:
            return lambda known: True
        case [one]:
            return one
        case _:
            return lambda known: all(each(known) for each in asked)


def _parse_cursor(after: str) -> tuple[int, str] | None:
    """Parse the cursor of a page; an invalid one means the first page."""
    ms, colon, saga = after.partition(":")
    return (int(ms), saga) if colon and ms.isascii() and ms.isdigit() and len(ms) < 20 else None
