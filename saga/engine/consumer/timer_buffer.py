"""Wakes that are held until their time: those of a tier until it has passed, and all in the last minute before they are
due.

They are in memory and in the log: their offsets are not committed before their turn is over. They count against bounds
of their own, not as messages in flight, for nothing is done with them meanwhile.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

from saga.engine.consumer.deadline_fence import Fence
from saga.engine.consumer.keyed_executor import Item, Lanes
from saga.messages import Partition, Record
from saga.messaging.timers import LAST_S, Tier, Wake
from saga.progress.actions import AwaitLog
from saga.support.clock import Clock

HELD_MAX = 5000
"""Wakes of one partition that are held, at most."""
WAITING_MAX = 200
"""Wakes among them whose tier has not passed, at most: none behind them is released before they are."""
EARLY_S = 5
"""Seconds that a wake lies here which is early though its tier has passed when it comes. If that is because the clocks
of workers and log disagree, it would else run through the log without a pause until it is due."""
LOOK_S_MIN, LOOK_PARTS = 1.0, 60
"""Looks at the date while wakes are held: one a second, or in each of so many parts of what is left for the first.
While a machine sleeps its monotonic clock stands still: what becomes due in that time is due when it wakes up."""
BEHIND_S_FIRST, BEHIND_S_MAX = 0.05, 2.0
"""Pauses between two looks whether the log has been handled far enough."""
STEP_S = 1.0
"""Time by which the date has to be ahead of where it would be by the monotonic clock: then it has jumped."""


@dataclass(slots=True)
class Held:
    """Wakes of a worker."""

    clock: Clock
    lanes: Lanes
    inflight_max: int
    """Messages in flight with which none is released."""
    roomier: Callable[[], None]
    """Called when a partition that was full may be read again."""
    fence: Fence | None = None
    """How far the log has been handled; `None`: nobody here reads it, and nothing waits for it."""
    full: set[tuple[str, int]] = field(default_factory=set)
    """Partitions that should not be read now."""
    _heap: list[tuple[float, int, Item, bool]] = field(default_factory=list)
    """Time of the monotonic clock at which each is looked at again, a number to tell them apart, and true if it waits
    for its tier."""
    _added: int = 0
    _all: Counter[tuple[str, int]] = field(default_factory=Counter)
    _waiting: Counter[tuple[str, int]] = field(default_factory=Counter)
    _sooner: asyncio.Event = field(default_factory=asyncio.Event)
    _first: dict[tuple[str, str], Item] = field(default_factory=dict)
    """Item of each wake that is held, the one due first: by saga and id, for a wake may come in several copies."""
    _behind: dict[Item, AwaitLog] = field(default_factory=dict)
    """Wakes that are due, and wait until the log has been handled far enough, oldest first."""
    _some_behind: asyncio.Event = field(default_factory=asyncio.Event)
    _date_s: float = inf
    """Date at which the monotonic clock was at zero, in seconds since 1970."""

    def count(self, partition: tuple[str, int]) -> int:
        """Return how many of the partition are held."""
        return self._all[partition] if self._heap or self._behind else 0

    def add(self, item: Item, record: Record, tier: Tier) -> None:
        """Hold a wake as long as its tier says: from when it was appended, but never longer than the tier from now on,
        whatever the clocks say, nor beyond its time: who put it there may have had another date. A copy of one that is
        held, and due no later, is finished at once: else each would be sent on, and those that readers and lost answers
        bring would become more and more."""
        held = self._first.get(_name(item))
        if held is not None and _due_ms(held) <= _due_ms(item):
            self.lanes.finish(item.prefix, item.position.offset)
            return
        passed_s = (self.clock.now_ms() - record.time_ms) / 1000
        left_s = min(tier.seconds - passed_s, tier.seconds, self._left_s(item))
        if left_s > 0:
            self._hold(item, left_s, waits=True)
        elif self._left_s(item) >= LAST_S:
            self._hold(item, EARLY_S, waits=False)
        else:
            self._look(item)

    def keep(self, item: Item, awaits: AwaitLog) -> None:
        """Keep a wake until the log has been handled so far, or until its time to be looked at; a copy of one that is
        kept is finished at once. One of a partition that has gone meanwhile, also if it has come back, comes again."""
        if self.fence is None or not self.fence.has(item.position, item.prefix):
            return
        other = self._first.get(_name(item))
        if other is not None and _due_ms(other) <= _due_ms(item):
            self.lanes.finish(item.prefix, item.position.offset)
            return
        self._first[_name(item)] = item
        self._count(item.position[:2])
        self._behind[item] = awaits
        self._some_behind.set()

    async def run_behind(self) -> None:
        """Release each wake that waits for the log when it has been handled far enough, until cancelled. The pause
        between two looks grows while none is."""
        pause_s = BEHIND_S_FIRST
        while True:
            if not self._behind:
                self._some_behind.clear()
                await self._some_behind.wait()
                pause_s = BEHIND_S_FIRST
            await self.clock.sleep(pause_s)
            released = await self._look_behind()
            pause_s = BEHIND_S_FIRST if released else min(2 * pause_s, BEHIND_S_MAX)

    async def _look_behind(self) -> bool:
        """Release those for which the log has been handled far enough; true if there were any."""
        assert self.fence is not None, "without it nothing is kept"
        await self.fence.refresh()
        released, now_ms = False, self.clock.now_ms()
        for item, awaits in list(self._behind.items()):
            if item not in self._behind or self.lanes.inflight >= self.inflight_max:
                continue
            is_over = self.fence.is_handled(item.message.saga, awaits.due_ms) or not self.fence.is_noted(awaits.due_ms)
            if is_over or (awaits.look_ms is not None and now_ms >= awaits.look_ms):
                released = True
                del self._behind[item]
                self._uncount(item)
                item.received_s = self.clock.monotonic_s()
                self.lanes.add(item)
        self.fence.tell_behind({item.message.saga for item in self._behind})
        return released

    async def run(self) -> None:
        """Release each at its time, until cancelled."""
        while True:
            self._sooner.clear()
            if self._heap:
                self._look_at_the_date()
                left_s = self._heap[0][0] - self.clock.monotonic_s()
                if left_s > 0:
                    await self._within(min(left_s, max(LOOK_S_MIN, left_s / LOOK_PARTS)))
                elif self.lanes.inflight >= self.inflight_max:
                    self.lanes.freed.clear()
                    await self.lanes.freed.wait()
                else:
                    self._release()
            else:
                await self._sooner.wait()

    def forget(self, partitions: Collection[Partition]) -> None:
        """Drop those of these partitions: they are not ours any more."""
        gone = {partition[:2] for partition in partitions}
        self._heap = [held for held in self._heap if held[2].position[:2] not in gone]
        heapify(self._heap)
        self._behind = {item: awaits for item, awaits in self._behind.items() if item.position[:2] not in gone}
        held = sorted((*(item for _, _, item, _ in self._heap), *self._behind), key=_due_ms, reverse=True)
        self._first = {_name(item): item for item in held}
        for partition in gone:
            self._all.pop(partition, None)
            self._waiting.pop(partition, None)
            self.full.discard(partition)

    def _look_at_the_date(self) -> None:
        """Release what is due by a date that has jumped ahead. One that has jumped back holds nothing up: what comes
        too early then is held again, or sent on."""
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

    def _hold(self, item: Item, seconds: float, *, waits: bool) -> None:
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
        self._look(item)

    def _count(self, partition: tuple[str, int]) -> None:
        """Count one more of the partition."""
        self._all[partition] += 1
        if self._is_full(partition):
            self.full.add(partition)

    def _uncount(self, item: Item) -> None:
        """Count one less of its partition, which may be read again."""
        if self._first.get(_name(item)) is item:
            del self._first[_name(item)]
        partition = item.position[:2]
        self._all[partition] -= 1
        if partition in self.full and not self._is_full(partition):
            self.full.discard(partition)
            self.roomier()

    def _is_full(self, partition: tuple[str, int]) -> bool:
        return self._waiting[partition] >= WAITING_MAX or self._all[partition] >= HELD_MAX

    def _look(self, item: Item) -> None:
        """Begin its turn, unless it is due so soon that it is not worth a way through the log."""
        left_s = self._left_s(item)
        if 0 < left_s < LAST_S:
            self._hold(item, left_s, waits=False)
        else:
            self.lanes.add(item)

    def _left_s(self, item: Item) -> float:
        return (_due_ms(item) - self.clock.now_ms()) / 1000


def _name(item: Item) -> tuple[str, str]:
    return item.message.saga, item.message.id


def _due_ms(item: Item) -> int:
    assert isinstance(item.message, Wake)
    return item.message.due_ms
