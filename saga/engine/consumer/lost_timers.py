"""Republish timers that were lost with their topics.

A progress names its current timer, whose record lies on a timer topic. If that topic or its records are deleted,
nothing wakes the saga when the timer is due. So a worker that sees a gap in a timer topic republishes the current timer
of every saga. A duplicate is harmless. The committed offset moves past the gap only afterwards, so a crash leaves the
work to the next owner.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

from saga.engine.persistence.outbox import timer_record
from saga.engine.persistence.service_record import known_logs, note_logs, replaced_logs
from saga.engine.prepared_service import writes_of
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import BrokerUnavailable, SagaError, StoreUnavailable
from saga.messages import Outgoing
from saga.messaging.names import PROGRESS
from saga.progress import timers
from saga.progress.document import decode_progress, progress_key
from saga.telemetry.events import PublishedLost, TimersLost

BATCH = 200
"""Number of timers published in one batch."""
BESIDE = 50
"""Number of documents scanned before other tasks get to run."""
AGAIN_S_FIRST, AGAIN_S_MAX = 0.2, 10.0
"""First and longest pause after store or broker was unavailable."""

LogIds = Callable[[Collection[str]], Awaitable[Mapping[str, str]]]
"""Queries the broker for the log ids of topics."""


@dataclass(slots=True)
class LostTimers:
    """Republishes the timers of a service that its topics have lost."""

    service: ServiceRuntime
    log_ids: LogIds | None
    """`None`: committed offsets alone show that a log was replaced."""
    _lost: set[str] = field(default_factory=set)
    """Topics whose timers have to be republished."""
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _told: set[tuple[str, str]] = field(default_factory=set)
    """Topics, with their current log ids, that were reported as having lost published events."""

    async def republish(self, topics: Collection[str]) -> bool:
        """Republish all timers after these topics lost theirs. Returns false if that failed for good."""
        self._lost.update(topics)
        async with self._one_at_a_time:
            if not self._lost.intersection(topics):
                return True  # another task has republished since the loss was known
            lost, self._lost = tuple(sorted(self._lost)), set()
            watching = self.service.ports.outage_watch
            try:
                sent = await self._retry(self._republish_all, tells=True)
            except SagaError as why:
                watching.report(TimersLost(service=self.service.name, topics=lost, error=str(why)))
                return False
            except BaseException:  # cancelled: the tasks that wait for the lock still have to do it
                self._lost.update(lost)
                raise
            watching.report(TimersLost(service=self.service.name, topics=lost, sent=sent))
            return True

    async def compare_logs(self) -> None:
        """Compare the log ids of the topics that the service writes with those that its store knows.

        A topic may have been deleted and created again while no worker ran, and the broker forgets the committed
        offsets of a deleted topic.
        """
        try:
            await self._retry(self._compare, tells=False)
        except SagaError as why:
            self.service.ports.outage_watch.report(TimersLost(service=self.service.name, topics=(), error=str(why)))

    async def _compare(self) -> None:
        assert self.log_ids is not None, "only called if log ids are compared"
        service = self.service
        now = await self.log_ids(writes_of(service.declared))
        replaced = replaced_logs(await known_logs(service.ports.store, service.name), now)
        events = [topic for topic in replaced if topic not in service.wakes]
        for topic in events:
            if (topic, now[topic]) not in self._told:
                self._told.add((topic, now[topic]))
                service.ports.outage_watch.report(PublishedLost(service=service.name, topic=topic))
        timers = [topic for topic in replaced if topic in service.wakes]
        if timers and not await self.republish(timers):
            return
        await note_logs(service.ports.store, service.name, now, but=events)

    async def _republish_all(self) -> int:
        """Publish the current timer of each saga. Returns their number."""
        service, batch, sent, looked = self.service, list[Outgoing](), 0, 0
        ports, prefix = service.ports, progress_key(service.name, "")
        async for key, document in ports.store.scan(PROGRESS, prefix):
            looked += 1
            if looked % BESIDE == 0:
                await ports.clock.sleep(0)
            if b'"wake"' not in document.content:
                continue
            try:
                p = decode_progress(document.content)
            except SagaError:  # reported when the saga's next message is handled
                continue
            due_ms = timers.find_earliest_ms(p)
            if p.wake is None or due_ms is None:
                continue
            batch.append(timer_record(service, key.removeprefix(prefix), p.wake.id, due_ms))
            sent += 1
            if len(batch) == BATCH:
                await ports.publisher.publish(batch)
                batch = []
        if batch:
            await ports.publisher.publish(batch)
        return sent

    async def _retry(self, work: Callable[[], Awaitable[int | None]], *, tells: bool) -> int:
        """Retry until store and broker are available. `tells`: whether outages are reported. Raises `SagaError` for an
        error that waiting does not cure."""
        ports, pause_s = self.service.ports, AGAIN_S_FIRST
        while True:
            try:
                return await work() or 0
            except (StoreUnavailable, BrokerUnavailable) as why:
                if tells:
                    ports.outage_watch.unavailable("get" if isinstance(why, StoreUnavailable) else "publish", why)
            await ports.clock.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_S_MAX)
