"""Timers that are lost with their topics, and sent again.

A progress names its current timer, which lies on a topic. If that topic is deleted, or its records are, nobody looks at
the saga when its time has come. So whoever sees that a log of timers does not go on where it was sends the current
timer of every saga again: what is not lost comes twice, which does no harm. The position in such a log moves only when
that is done: a process that dies over it leaves it to the next one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

from saga.engine.persistence.progress_repository import timer_record
from saga.engine.persistence.service_record import known_logs, note_logs, replaced_logs
from saga.engine.prepared_service import writes_of
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import BrokerUnavailable, SagaError, StoreUnavailable
from saga.messages import Outgoing
from saga.messaging.names import PROGRESS
from saga.progress import timers
from saga.progress.document import decode, progress_key
from saga.telemetry.events import PublishedLost, TimersLost

BATCH = 200
"""Timers that are published at once."""
BESIDE = 50
"""Documents that are looked at before anybody else gets a turn."""
AGAIN_S_FIRST, AGAIN_S_MAX = 0.2, 10.0
"""Pauses before a store or a log that was unavailable is asked again."""

LogIds = Callable[[Collection[str]], Awaitable[Mapping[str, str]]]
"""Function that asks the broker for the ids of the logs of topics."""


@dataclass(slots=True)
class LostTimers:
    """Timers of a service, as far as topics lose them."""

    service: ServiceRuntime
    log_ids: LogIds | None
    """`None`: what positions tell of logs is enough."""
    _lost: set[str] = field(default_factory=set)
    """Topics whose timers are to be sent again."""
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _told: set[tuple[str, str]] = field(default_factory=set)
    """Topics, with the ids that they have now, of which people know that what was published in them is gone."""

    async def send_again(self, topics: Collection[str]) -> bool:
        """Return when all timers have been sent since these topics lost theirs; false if that cannot be done."""
        self._lost.update(topics)
        async with self._one_at_a_time:
            if not self._lost.intersection(topics):
                return True  # somebody else has begun to, after it was known
            lost, self._lost = tuple(sorted(self._lost)), set()
            watching = self.service.ports.outage_watch
            try:
                sent = await self._patiently(self._send, tells=True)
            except SagaError as why:
                watching.report(TimersLost(service=self.service.name, topics=lost, error=str(why)))
                return False
            except BaseException:  # cancelled: nothing was sent for those who wait behind it
                self._lost.update(lost)
                raise
            watching.report(TimersLost(service=self.service.name, topics=lost, sent=sent))
            return True

    async def look(self) -> None:
        """Compare the topics that the service publishes to with those that it knows: they may have been created again
        while nobody ran, and a broker that deletes a topic forgets its positions."""
        try:
            await self._patiently(self._compare, tells=False)
        except SagaError as why:
            self.service.ports.outage_watch.report(TimersLost(service=self.service.name, topics=(), error=str(why)))

    async def _compare(self) -> None:
        assert self.log_ids is not None, "else nobody looks"
        service = self.service
        now = await self.log_ids(writes_of(service.declared))
        replaced = replaced_logs(await known_logs(service.ports.store, service.name), now)
        events = [topic for topic in replaced if topic not in service.wakes]
        for topic in events:
            if (topic, now[topic]) not in self._told:
                self._told.add((topic, now[topic]))
                service.ports.outage_watch.report(PublishedLost(service=service.name, topic=topic))
        timers = [topic for topic in replaced if topic in service.wakes]
        if timers and not await self.send_again(timers):
            return
        await note_logs(service.ports.store, service.name, now, but=events)

    async def _send(self) -> int:
        """Send the current timer of each saga again; how many."""
        service, batch, sent, looked = self.service, list[Outgoing](), 0, 0
        ports, prefix = service.ports, progress_key(service.name, "")
        async for key, document in ports.store.scan(PROGRESS, prefix):
            looked += 1
            if looked % BESIDE == 0:
                await ports.clock.sleep(0)
            if b'"wake"' not in document.content:
                continue
            try:
                p = decode(document.content)
            except SagaError:  # the lane of its next message tells
                continue
            due_ms = timers.earliest_ms(p)
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

    async def _patiently(self, work: Callable[[], Awaitable[int | None]], *, tells: bool) -> int:
        """Do it until store and log can be reached. `tells`: whether people are told that they cannot. Raises
        `SagaError` for what waiting cannot mend."""
        ports, pause_s = self.service.ports, AGAIN_S_FIRST
        while True:
            try:
                return await work() or 0
            except (StoreUnavailable, BrokerUnavailable) as why:
                if tells:
                    ports.outage_watch.unavailable("get" if isinstance(why, StoreUnavailable) else "publish", why)
            await ports.clock.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_S_MAX)
