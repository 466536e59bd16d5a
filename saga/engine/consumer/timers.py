"""Timers of a worker: buffer them until they are due, and republish timers that were lost with their topics.

Buffered timers stay in memory and in the log: their offsets are committed only after they were handled. They have
limits of their own and do not count as messages in flight, because they put no load on anything while they wait.

A progress names its current timer, whose record is on a timer topic. If that topic or its records are deleted, nothing
wakes the saga when the timer is due. So a worker that sees a gap in a timer topic republishes the current timer of
every saga. A duplicate is harmless. The committed offset moves past the gap only afterwards, so after a crash the next
owner does the work.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

from saga.engine.consumer.deadline_fence import DeadlineFence
from saga.engine.consumer.keyed_executor import KeyedExecutor, WorkItem
from saga.engine.persistence.outbox import timer_record
from saga.engine.persistence.service_record import known_logs, note_logs, replaced_logs
from saga.engine.prepared_service import writes_of
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import BrokerUnavailable, SagaError, StoreUnavailable
from saga.messages import Outgoing, Partition, Record
from saga.messaging.names import PROGRESS
from saga.messaging.timers import LAST_S, SagaTimer, TimerTier
from saga.progress import timers
from saga.progress.actions import AwaitLog
from saga.progress.document import decode_progress, progress_key
from saga.support.clock import Clock
from saga.telemetry.events import PublishedLost, TimersLost

BATCH = 200
"""Number of timers published in one batch."""
BESIDE = 50
"""Number of documents scanned before other tasks get to run."""
AGAIN_S_FIRST, AGAIN_S_MAX = 0.2, 10.0
"""First and longest pause before another attempt, after store or broker was unavailable."""

LogIds = Callable[[Collection[str]], Awaitable[Mapping[str, str]]]
"""Queries the broker for the log ids of topics."""


@dataclass(slots=True)
class LostTimers:
    """Republishes the timers of a service if a timer topic has lost records."""

    service: ServiceRuntime
    log_ids: LogIds | None
    """Queries the current log ids; `None` if only committed offsets show that a log was replaced."""
    _lost: set[str] = field(default_factory=set)
    """Topics whose timers have to be republished."""
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _told: set[tuple[str, str]] = field(default_factory=set)
    """Topics, with their current log ids, for which it was reported that published events were lost."""

    async def republish(self, topics: Collection[str]) -> bool:
        """Republish the timers of all sagas, because these topics have lost records. Returns False if that failed for
        good."""
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
        """Publish the current timer of each saga. Returns the number of timers."""
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
            if p.timer is None or due_ms is None:
                continue
            batch.append(timer_record(service, key.removeprefix(prefix), p.timer.id, due_ms))
            sent += 1
            if len(batch) == BATCH:
                await ports.publisher.publish(batch)
                batch = []
        if batch:
            await ports.publisher.publish(batch)
        return sent

    async def _retry(self, work: Callable[[], Awaitable[int | None]], *, tells: bool) -> int:
        """Call `work` until store and broker are available. `tells`: whether outages are reported.

        Raises `SagaError` for an error that waiting does not cure.
        """
        ports, pause_s = self.service.ports, AGAIN_S_FIRST
        while True:
            try:
                return await work() or 0
            except (StoreUnavailable, BrokerUnavailable) as why:
                if tells:
                    ports.outage_watch.unavailable("get" if isinstance(why, StoreUnavailable) else "publish", why)
            await ports.clock.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_S_MAX)


# -------------------------------------------------------------------- buffered timers


HELD_MAX = 5000
"""Maximum number of buffered timers of one partition."""
WAITING_MAX = 200
"""Maximum number of buffered timers of a partition whose tier delay has not passed. Timers behind them are not read
yet, because they become due no earlier."""
EARLY_S = 5
"""Seconds for which a timer is buffered that is not due although its tier delay has passed: the clocks of worker and
broker may differ. Without this pause the timer would circulate through the log until it is due."""
LOOK_S_MIN, LOOK_PARTS = 1.0, 60
"""Interval between two checks of the wall clock: `LOOK_S_MIN` seconds, or 1/`LOOK_PARTS` of the time until the next
timer if that is longer. While a machine sleeps, its monotonic clock stops. Timers that became due meanwhile are
released when it wakes up."""
BEHIND_S_FIRST, BEHIND_S_MAX = 0.05, 2.0
"""First and longest pause between two checks whether the log is processed far enough."""
STEP_S = 1.0
"""Seconds by which the wall clock must have moved against the monotonic clock to count as having jumped."""


@dataclass(slots=True)
class TimerBuffer:
    """Holds timers of a worker in memory until they are due."""

    clock: Clock
    executor: KeyedExecutor
    inflight_max: int
    """Maximum number of messages in flight. While it is reached, no timer is released."""
    on_room: Callable[[], None]
    """Called when a full partition may be polled again."""
    fence: DeadlineFence | None = None
    """Knows how far the log is processed; `None` if no log is consumed, so that no timer waits for it."""
    full: set[tuple[str, int]] = field(default_factory=set)
    """Partitions that should not be polled now."""
    _heap: list[tuple[float, int, WorkItem, bool]] = field(default_factory=list)
    """Heap of the buffered timers. Each entry has the monotonic time at which the timer is released, a sequence number
    that breaks ties, the timer, and whether it waits for the delay of its timer tier."""
    _added: int = 0
    _all: Counter[tuple[str, int]] = field(default_factory=Counter)
    _waiting: Counter[tuple[str, int]] = field(default_factory=Counter)
    _sooner: asyncio.Event = field(default_factory=asyncio.Event)
    _first: dict[tuple[str, str], WorkItem] = field(default_factory=dict)
    """Buffered timers by saga and id. If there are several copies of a timer, it is the copy due first."""
    _behind: dict[WorkItem, AwaitLog] = field(default_factory=dict)
    """Due timers that wait until the log is processed far enough, oldest first."""
    _some_behind: asyncio.Event = field(default_factory=asyncio.Event)
    _date_s: float = inf
    """Wall-clock time at which the monotonic clock was zero, in seconds since 1970."""

    def count(self, partition: tuple[str, int]) -> int:
        """Return the number of buffered timers of a partition."""
        return self._all[partition] if self._heap or self._behind else 0

    def add(self, item: WorkItem, record: Record, tier: TimerTier) -> None:
        """Buffer a timer for the delay of its tier, counted from when its record was appended.

        Because the writer's clock may differ, the timer is never buffered longer than the tier's delay from now, nor
        beyond its due time. A copy of a buffered timer that is due no earlier is finished at once: if each copy were
        forwarded, their number would grow without end.
        """
        known = self._first.get(_name(item))
        if known is not None and _due_ms(known) <= _due_ms(item):
            self.executor.finish(item.tracker, item.position.offset)
            return
        passed_s = (self.clock.now_ms() - record.time_ms) / 1000
        left_s = min(tier.seconds - passed_s, tier.seconds, self._left_s(item))
        if left_s > 0:
            self._hold(item, left_s, waits=True)
        elif self._left_s(item) >= LAST_S:
            self._hold(item, EARLY_S, waits=False)
        else:
            self._submit(item)

    def keep_until_handled(self, item: WorkItem, awaits: AwaitLog) -> None:
        """Keep a due timer until the log is processed far enough, or until `awaits.look_ms`.

        A copy of a kept timer is finished at once. If the timer's partition was revoked meanwhile, the timer is
        ignored, because it will be delivered again.
        """
        if self.fence is None or not self.fence.owns(item.position, item.tracker):
            return
        other = self._first.get(_name(item))
        if other is not None and _due_ms(other) <= _due_ms(item):
            self.executor.finish(item.tracker, item.position.offset)
            return
        self._first[_name(item)] = item
        self._count(item.position[:2])
        self._behind[item] = awaits
        self._some_behind.set()

    async def run_waiting_for_log(self) -> None:
        """Release timers that wait for the log once it is processed far enough, until cancelled. The pause between two
        checks grows while none is released."""
        pause_s = BEHIND_S_FIRST
        while True:
            if not self._behind:
                self._some_behind.clear()
                await self._some_behind.wait()
                pause_s = BEHIND_S_FIRST
            await self.clock.sleep(pause_s)
            released = await self._release_handled()
            pause_s = BEHIND_S_FIRST if released else min(2 * pause_s, BEHIND_S_MAX)

    async def _release_handled(self) -> bool:
        """Release the timers for which the log is processed far enough. Returns whether there were any."""
        assert self.fence is not None, "without a fence no timer is kept"
        await self.fence.refresh_positions()
        released, now_ms = False, self.clock.now_ms()
        for item, awaits in list(self._behind.items()):
            if item not in self._behind or self.executor.inflight >= self.inflight_max:
                continue
            is_over = self.fence.is_handled(item.message.saga, awaits.due_ms) or not self.fence.has_ends_since(
                awaits.due_ms
            )
            if is_over or (awaits.look_ms is not None and now_ms >= awaits.look_ms):
                released = True
                del self._behind[item]
                self._uncount(item)
                item.received_s = self.clock.monotonic_s()
                self.executor.add(item)
        self.fence.report_behind({item.message.saga for item in self._behind})
        return released

    async def run(self) -> None:
        """Release each timer when it is due, until cancelled."""
        while True:
            self._sooner.clear()
            if self._heap:
                self._check_clock_jump()
                left_s = self._heap[0][0] - self.clock.monotonic_s()
                if left_s > 0:
                    await self._within(min(left_s, max(LOOK_S_MIN, left_s / LOOK_PARTS)))
                elif self.executor.inflight >= self.inflight_max:
                    self.executor.freed.clear()
                    await self.executor.freed.wait()
                else:
                    self._release()
            else:
                await self._sooner.wait()

    def forget(self, partitions: Collection[Partition]) -> None:
        """Drop the timers of these partitions, because another member owns the partitions now."""
        gone = {partition[:2] for partition in partitions}
        self._heap = [entry for entry in self._heap if entry[2].position[:2] not in gone]
        heapify(self._heap)
        self._behind = {item: awaits for item, awaits in self._behind.items() if item.position[:2] not in gone}
        items = sorted((*(item for _, _, item, _ in self._heap), *self._behind), key=_due_ms, reverse=True)
        self._first = {_name(item): item for item in items}
        for partition in gone:
            self._all.pop(partition, None)
            self._waiting.pop(partition, None)
            self.full.discard(partition)

    def _check_clock_jump(self) -> None:
        """Release timers that became due because the wall clock jumped ahead. After a jump back nothing has to be done:
        a timer that is then too early is buffered again, or forwarded."""
        now_s = self.clock.monotonic_s()
        date_s = self.clock.now_ms() / 1000 - now_s
        if date_s >= self._date_s + STEP_S:
            self._heap = [
                (min(until_s, now_s + self._left_s(item)), number, item, waits)
                for until_s, number, item, waits in self._heap
            ]
            heapify(self._heap)
        elif date_s >= self._date_s:
            return
        self._date_s = date_s

    async def _within(self, seconds: float) -> None:
        try:
            await self.clock.within(seconds, self._sooner.wait())
        except TimeoutError:
            return

    def _hold(self, item: WorkItem, seconds: float, *, waits: bool) -> None:
        partition = item.position[:2]
        if waits:
            self._waiting[partition] += 1
        self._added += 1
        self._count(partition)
        first = self._first.get(_name(item))
        if first is None or _due_ms(item) < _due_ms(first):
            self._first[_name(item)] = item
        heappush(self._heap, (self.clock.monotonic_s() + seconds, self._added, item, waits))
        if self._heap[0][1] == self._added:
            self._sooner.set()

    def _release(self) -> None:
        _, _, item, waits = heappop(self._heap)
        if waits:
            self._waiting[item.position[:2]] -= 1
        self._uncount(item)
        self._submit(item)

    def _count(self, partition: tuple[str, int]) -> None:
        """Count one more timer of the partition."""
        self._all[partition] += 1
        if self._is_full(partition):
            self.full.add(partition)

    def _uncount(self, item: WorkItem) -> None:
        """Count one timer less of its partition. If the partition was full, it may be polled again."""
        if self._first.get(_name(item)) is item:
            del self._first[_name(item)]
        partition = item.position[:2]
        self._all[partition] -= 1
        if partition in self.full and not self._is_full(partition):
            self.full.discard(partition)
            self.on_room()

    def _is_full(self, partition: tuple[str, int]) -> bool:
        return self._waiting[partition] >= WAITING_MAX or self._all[partition] >= HELD_MAX

    def _submit(self, item: WorkItem) -> None:
        """Pass a timer to the executor, or wait here if it is due too soon to be worth forwarding."""
        left_s = self._left_s(item)
        if 0 < left_s < LAST_S:
            self._hold(item, left_s, waits=False)
        else:
            self.executor.add(item)

    def _left_s(self, item: WorkItem) -> float:
        return (_due_ms(item) - self.clock.now_ms()) / 1000


def _name(item: WorkItem) -> tuple[str, str]:
    return item.message.saga, item.message.id


def _due_ms(item: WorkItem) -> int:
    assert isinstance(item.message, SagaTimer)
    return item.message.due_ms
