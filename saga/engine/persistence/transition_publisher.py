"""Publish transition events in the background, in batches: no message waits for them.

A transition event is published soon after the transition is written, and before the offset of its message is committed.
If a worker dies before that, the message is redelivered, and the next worker loads the progress and publishes the
events that are not known to be published.

If the log accepts no events for a long time, commits continue. The backlog is limited: further events are dropped. The
progress records up to which transition the events are published, and the next worker that loads it publishes the rest.
"""

import asyncio
import re
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import inf
from typing import NamedTuple

from saga.engine.outage_watch import MOMENT_EVERY_S, OutageWatch
from saga.engine.ports import EventPublisher
from saga.engine.prepared_service import PreparedService
from saga.engine.processing_state import Measurements
from saga.errors import BrokerUnavailable
from saga.messaging.transition_events import (
    EmittedMessage,
    Result,
    TransitionCause,
    TransitionEvent,
    TransitionLine,
    WaitingMessage,
    make_line,
    transitions_to_records,
)
from saga.progress.decisions import find_parts
from saga.progress.document import UNREADABLE, PendingMessage, SagaProgress, Transition, decode_transition
from saga.progress.timers import find_timed_runs
from saga.support.clock import LATEST_MS, Clock, iso
from saga.telemetry.events import TransitionsDropped

PUBLISH_S = 0.1
"""Pause before queued events are published, so that one batch contains the events of many sagas."""
WITHIN_S = 2.0
"""Maximum seconds for publishing one batch."""
AGAIN_S = 0.5
"""Pause after a batch that could not be published."""
HOLDS_S_MAX = 10.0
"""Maximum seconds for which commits wait for events that cannot be published. After that, commits continue."""
BATCH_MAX = 1000
QUEUED_BYTES_MAX = 8 << 20
"""Maximum bytes of events that wait to be published; further ones are dropped."""
SAGAS_MAX = 20_000
"""Maximum number of sagas for which the worker remembers which transitions are published. For others it uses the
progress, and some events are published twice."""
_CLASS = re.compile(r"([A-Za-z_]\w{0,99})(?=:)")


@dataclass(slots=True)
class _PublishedSaga:
    """How many transitions of one saga are published, as far as this worker knows."""

    published: int
    """All transitions below this number are published."""
    queued: int
    """Number of the next transition that is new to this worker."""


class QueuedTransition(NamedTuple):
    """A transition event that waits to be published."""

    saga: str
    known: _PublishedSaga
    """What is known about its saga. A later saga with the same id has an object of its own."""
    number: int
    line: TransitionLine


@dataclass(slots=True)
class TransitionPublisher:
    """Publishes the events of the transitions that one worker writes or loads. It remembers for each saga which of them
    are published."""

    service: PreparedService
    log: EventPublisher
    watching: OutageWatch
    worker: str = ""
    _waiting: deque[QueuedTransition] = field(default_factory=deque)
    _bytes: int = 0
    _due: asyncio.Event = field(default_factory=asyncio.Event)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _sagas: OrderedDict[str, _PublishedSaga] = field(default_factory=OrderedDict)
    _rests_until_s: float = -inf
    _fails_since_s: float | None = None
    """Time since which publishing fails; `None` while it works."""
    _dropped: int = 0
    """Number of events dropped since the last report."""
    _reported_s: float = -inf

    @property
    def clock(self) -> Clock:
        return self.watching.clock

    def published_below(self, p: SagaProgress) -> int:
        """Return the number of the first transition that is not known to be published."""
        known = self._sagas.get(p.saga)
        return p.transitions_published if known is None else min(max(p.transitions_published, known.published), p.n)

    def on_written(self, p: SagaProgress, entry: Transition, stages: Measurements) -> None:
        """Queue the event of a transition that was written. The event is dropped if too many bytes of events wait
        already."""
        number, known = entry.n, self._sagas.get(p.saga)
        if known is None or number < known.queued:  # unknown, or another saga of the same id
            known = self._remember(p.saga, min(p.transitions_published, number))
        known.queued = number + 1
        queued, took = (stages.begun_s - stages.received_s) * 1000, stages.handler_s * 1000
        event = make_transition_event(
            self.service, self.worker, p, entry, p.hash, (max(0, round(queued)), max(0, round(took)))
        )
        self._queue(p, known, event)

    def on_loaded(self, p: SagaProgress) -> None:
        """Queue the events of all transitions of a loaded progress that are not known to be published."""
        known = self._sagas.get(p.saga)
        if known is not None and known.queued == p.n:
            return
        if known is None or known.queued > p.n:
            known = self._remember(p.saga, p.transitions_published)
        first = max(p.transitions_published, known.queued, p.first)
        known.published, known.queued = max(p.transitions_published, known.published), p.n
        for raw in p.transitions[first - p.first :]:
            try:
                entry = decode_transition(raw)
            except UNREADABLE:  # `saga sagas verify` reports it; the saga continues
                continue
            self._queue(
                p, known, make_transition_event(self.service, self.worker, p, entry, sha256(bytes(raw)).hexdigest())
            )

    def _remember(self, saga: str, published: int) -> _PublishedSaga:
        known = self._sagas[saga] = _PublishedSaga(published, published)
        if len(self._sagas) > SAGAS_MAX:
            self._sagas.popitem(last=False)
        return known

    def _queue(self, p: SagaProgress, known: _PublishedSaga, event: TransitionEvent) -> None:
        line = make_line(event)
        size = len(line.text)
        if self._bytes + size > QUEUED_BYTES_MAX:
            self._drop(p.saga, BrokerUnavailable(f"{QUEUED_BYTES_MAX >> 20} MiB of them wait for the log"))
            return
        self._bytes += size
        self._waiting.append(QueuedTransition(p.saga, known, event.number, line))
        self._due.set()

    async def run(self) -> None:
        """Publish queued events, until cancelled."""
        while True:
            await self._due.wait()
            await self.clock.sleep(max(PUBLISH_S, self._rests_until_s - self.clock.monotonic_s()))
            await self.publish()

    async def publish(self) -> bool:
        """Publish all queued events, as far as possible. Returns whether offsets may be committed."""
        async with self._one_at_a_time:
            left = len(self._waiting)
            while left > 0 and self.clock.monotonic_s() >= self._rests_until_s:
                batch = [self._waiting[i] for i in range(min(left, BATCH_MAX))]
                left -= len(batch)
                try:
                    await self.clock.within(
                        WITHIN_S, self.log.publish(transitions_to_records(queued.line for queued in batch))
                    )
                except (BrokerUnavailable, TimeoutError):  # kept, and published when the log is available again
                    now = self.clock.monotonic_s()
                    self._rests_until_s = now + AGAIN_S
                    if self._fails_since_s is None:
                        self._fails_since_s = now
                    break
                except Exception as why:  # noqa: BLE001 - whatever the error is, no message waits for it
                    self._remove(batch)
                    for queued in batch:
                        self._drop(queued.saga, why)
                    continue
                self._fails_since_s = None
                self._remove(batch)
                self._record_published(batch)
            if not self._waiting:
                self._due.clear()
            return self._fails_since_s is None or self.clock.monotonic_s() - self._fails_since_s > HOLDS_S_MAX

    def _remove(self, batch: Sequence[QueuedTransition]) -> None:
        """Remove a batch from the queue."""
        for queued in batch:
            self._waiting.popleft()
            self._bytes -= len(queued.line.text)

    def _record_published(self, batch: Sequence[QueuedTransition]) -> None:
        for queued in batch:
            if queued.known.published == queued.number:
                queued.known.published += 1

    def _drop(self, saga: str, why: Exception) -> None:
        """Drop a transition event. Its saga is forgotten, so that the event is published when the progress is loaded
        again."""
        self._sagas.pop(saga, None)
        self._dropped += 1
        now = self.clock.monotonic_s()
        if now - self._reported_s >= MOMENT_EVERY_S:
            error = f"{type(why).__name__}: {why}"
            self.watching.report(TransitionsDropped(service=self.service.name, count=self._dropped, error=error))
            self._reported_s, self._dropped = now, 0


def make_transition_event(
    service: PreparedService,
    worker: str,
    p: SagaProgress,
    entry: Transition,
    hash_: str,
    times_ms: tuple[int | None, int | None] = (None, None),
) -> TransitionEvent:
    """Make the event of a transition. Open work, awaited events and due times come from the progress `p`.

    `times_ms`: how long the message was queued, and how long its handler took, if known.
    """
    topic, partition, offset = entry.position or (None, None, None)
    events = entry.events
    is_open = p.is_open
    return TransitionEvent(
        service=p.service,
        saga=p.saga,
        number=entry.n,
        time=entry.time,
        handler=entry.handler,
        outcome=entry.outcome,
        error=_error_of(entry) if entry.failures or entry.letters else None,
        blame=_blame_of(entry) if entry.failures or entry.letters else None,
        message=TransitionCause(
            id=entry.message, type=entry.type, source=entry.source, topic=topic, partition=partition, offset=offset
        ),
        attempt=entry.attempt,
        worker=worker,
        emitted=tuple([EmittedMessage(id=e.id, type=e.type) for e in events]) if events else (),
        steps=tuple([c.name for c in entry.calls if c.kind == "step"]) if entry.calls else (),
        closed=_list_closed(service, p, entry) if entry.letters or entry.outcome == "compensated" else (),
        queued_ms=times_ms[0],
        handler_ms=times_ms[1],
        open=is_open,
        awaits=_list_awaited(service, p) if p.waiting or p.suspended_runs or p.compensating else (),
        parked_until=_parked_until(p) if p.queue or p.compensating else None,
        postponed_by=_postponed_by(p, entry) if entry.outcome == "retrying" else None,
        due=iso(min(LATEST_MS, *map(_due_ms, p.deadlines))) if p.deadlines else None,
        kept_s=None if is_open else service.retention_s,
        result=_find_outcome(service, entry) if events else None,
        hash=hash_,
        previous=entry.previous,
    )


def _error_of(entry: Transition) -> str | None:
    """Return the class name of the exception of the last failed attempt or dead letter; never its text."""
    return _class_of(entry.letters[-1].reason if entry.letters else entry.failures[-1].reason)


def _postponed_by(p: SagaProgress, entry: Transition) -> str | None:
    """Return the class name of the reason that postpones a run; never the reason's text. `None` if no run is
    postponed."""
    is_postponed = any(pending.put_off for pending in (*p.queue[:1], *p.compensating, *p.deadlines))
    return _class_of(entry.reason or "") if is_postponed else None


def _class_of(reason: str) -> str | None:
    found = _CLASS.match(reason)
    return None if found is None else found[1]


def _blame_of(entry: Transition) -> str | None:
    """Return who can correct the cause of the last failed attempt or dead letter."""
    return entry.letters[-1].blame if entry.letters else entry.failures[-1].blame


def _list_closed(service: PreparedService, p: SagaProgress, entry: Transition) -> tuple[str, ...]:
    """List the handlers whose parked run or dead letter a transition has ended without running them.

    The transition itself has the name of the compensation.
    """
    names = [letter.handler for letter in entry.letters if letter.kind == "dropped"]
    if entry.outcome == "compensated":
        undone = (each for each in service.roles.handlers.values() if each.undo and each.undo.name == entry.handler)
        names += [each.name for each in undone if each.name in p.closed]
    return tuple(dict.fromkeys(names))


def _list_awaited(service: PreparedService, p: SagaProgress) -> tuple[WaitingMessage, ...]:
    """List what the saga waits for: missing event types of pending messages, and times and events of suspended runs.

    While the start of the saga is unknown, everything waits for a message that carries it.
    """
    found = dict[WaitingMessage, None]()
    if p.started is None:
        starts = tuple(sorted(service.starts))
        waits = dict.fromkeys([*(k.handler for k in p.waiting), *(_undo_name(service, k) for k in p.compensating)])
        return tuple(WaitingMessage(handler=name, types=starts) for name in waits)
    for pending in p.waiting:
        role = service.roles.handlers.get(pending.handler)
        lacking = (
            [types for i, types in enumerate(role.takes) if next(find_parts(p, role, i), None) is None] if role else []
        )
        found[WaitingMessage(handler=pending.handler, types=tuple(sorted(frozenset[str]().union(*lacking))))] = None
    timed = find_timed_runs(p) if p.suspended_runs else ()
    for later in p.suspended_runs:
        until = iso(later.due_ms) if later in timed else None
        found[WaitingMessage(handler=later.handler, types=later.awaited_types, until=until)] = None
    return tuple(found)


def _undo_name(service: PreparedService, pending: PendingMessage) -> str:
    """Return the name, as in the journal, of the compensation for which an outcome is stored."""
    role = service.roles.handlers.get(pending.handler)
    return pending.handler if role is None or role.undo is None else role.undo.name


def _parked_until(p: SagaProgress) -> str | None:
    """Return the time of the next attempt of a parked run."""
    times = [_due_ms(pending) for pending in (*p.queue[:1], *p.compensating) if pending.due_ms]
    return iso(min(LATEST_MS, *times)) if times else None


def _due_ms(pending: PendingMessage) -> int:
    """Return the time after which stored work is late. A postponed run is never late, because its rechecks are not
    recorded."""
    return LATEST_MS if pending.put_off else pending.due_ms


def _find_outcome(service: PreparedService, entry: Transition) -> Result | None:
    outcomes = service.roles.outcomes
    for event in entry.events:
        if event.type in outcomes:
            outcome: Result | None = service.contracts[event.type].outcome
            return outcome
    return None
