"""Fence of a worker's deadlines: how far the log has been handled, saga by saga.

A time that has passed does not say that nobody answered: the answer may lie in the log, unread. So the ends of the log
are noted at or after a deadline's due time, and the deadline runs once everything below them has come to its place
here: handled, pending, queued or dead. One look at the ends serves all deadlines that were due before it; where the
ends are reached already, which is the normal case, that one question is all it takes.

Of a partition of ours everything below an end has come to its place once it was taken and nothing of the saga waits
behind the turn that asks, for a saga's messages go one after another. Of a partition that another worker has, the
group's committed position tells.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from saga.broker.partitioner import partition_of
from saga.engine.consumer.keyed_executor import Lanes
from saga.engine.consumer.offset_tracker import Prefix
from saga.engine.consumer.sources import Sources
from saga.engine.consumer.worker_ports import WorkerAssignment
from saga.engine.outage_watch import OutageWatch
from saga.errors import BrokerError, BrokerUnavailable
from saga.messages import Partition, Position
from saga.messaging.timers import Tier
from saga.support.clock import Clock
from saga.telemetry.events import DeadlineBehindLog, DeadlinePassedLog

AGAIN_S = 1.0
"""Pause after a broker did not tell the ends of the log before it is asked again."""
PENDING_MAX = 16
"""Ends of one partition that are noted and not reached, at most: a later one takes the place of the last."""
TELL_EVERY_S = 60.0
"""Pause before people are told again that deadlines wait for a partition."""


class Look(NamedTuple):
    """Time of a look at the ends of the log: by the date, and by the clock that never goes back."""

    at_ms: int
    at_s: float


@dataclass(slots=True)
class Fence:
    """Knowledge of one worker about how far the log has been handled."""

    clock: Clock
    topics: Collection[str]
    """Topics of events that the service consumes."""
    sources: Sources
    assignment: WorkerAssignment
    lanes: Lanes
    wakes: Mapping[str, Tier]
    """Topics of the service's wakes."""
    yields: Callable[[str], bool] | None = None
    """Tells whether a message of a saga was taken and is held back for others; `None`: none ever is."""
    _counts: dict[str, int] = field(default_factory=dict)
    """Number of partitions of each topic, as last heard."""
    _unknown: set[Partition] = field(default_factory=set)
    """Partitions whose end could not be told."""
    _pending: dict[Partition, list[tuple[int, Look]]] = field(default_factory=dict)
    """Ends that are noted and not reached, oldest first."""
    _reached: dict[Partition, tuple[Look, float]] = field(default_factory=dict)
    """The last look whose end is reached, and the monotonic time at which that was seen."""
    _positions: dict[Partition, int] = field(default_factory=dict)
    """Committed positions of partitions that others have, as last heard."""
    _looked: Look | None = None
    """The last look that was answered."""
    _forgotten: int = 0
    """Number of times that partitions went."""
    _refused_until_s: float = 0.0
    _told_s: dict[Partition, float] = field(default_factory=dict)
    """Time at which people were last told that deadlines wait for a partition."""
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def watching(self) -> OutageWatch:
        return self.assignment.watching

    # ---------------------------------------------------------------- what a turn asks

    async def handled_ms(self, saga: str, due_ms: int) -> int:
        """See `saga.engine.ports.Assignment`. Asks the broker for the ends of the log, unless that was done since."""
        if not self._is_since(self._looked, due_ms):
            await self._look(due_ms)
        self._settle()
        handled_ms, seen_s = self._handled(saga)
        if handled_ms < due_ms or self._is_behind(saga, seen_s):
            return 0
        for partition in self._standing(saga):
            self._tell_passed(saga, due_ms, partition)
        return handled_ms

    def is_at_home(self, saga: str, position: Position) -> bool:
        """See `saga.engine.ports.Assignment`. A wake that lies among those of its saga stays: the worker that has them
        has the saga's events, too, unless the topics have other numbers of partitions."""
        tier = self.wakes.get(position.topic)
        return tier is None or not tier.seconds or all(map(self._is_ours, self._partitions(saga)))

    # ---------------------------------------------------------------- what waiting wakes ask

    def has(self, position: Position, prefix: Prefix) -> bool:
        """Return whether a message that was taken in this assignment of its partition is still ours."""
        return self.assignment.prefixes.get(Partition(*position[:2])) is prefix

    async def refresh(self) -> None:
        """See how far the group is by now in partitions that others have."""
        others = [partition for partition, pending in self._pending.items() if pending and not self._is_ours(partition)]
        if others and self.clock.monotonic_s() >= self._refused_until_s:
            try:
                await self._ask_positions(others)
            except BrokerUnavailable as why:
                self._refused(why)
        self._settle()

    def is_handled(self, saga: str, due_ms: int) -> bool:
        """Return whether everything that the log held then has been taken here, or handled elsewhere: a turn that
        begins now, behind the saga's other messages, finds it in its place."""
        return self._handled(saga)[0] >= due_ms

    def is_noted(self, due_ms: int) -> bool:
        """Return whether the ends of the log were noted at this time or later: without that nothing is reached."""
        return self._is_since(self._looked, due_ms)

    def tell_behind(self, sagas: Iterable[str]) -> None:
        """Tell people, once a minute for each partition, that deadlines of these sagas wait for it."""
        now_s = self.clock.monotonic_s()
        waiting = {p: None for saga in sagas for p in self._partitions(saga) if self._pending.get(p)}
        for partition in waiting:
            if now_s >= self._told_s.get(partition, now_s - TELL_EVERY_S) + TELL_EVERY_S:
                self._told_s[partition] = now_s
                end, look = self._pending[partition][0]
                self.watching.report(
                    DeadlineBehindLog(
                        service=self.watching.service,
                        topic=partition.topic,
                        partition=partition.number,
                        count=end - min(end, self._read_to(partition, self.sources.read_to())),
                        waited_s=now_s - look.at_s,
                    )
                )

    # ---------------------------------------------------------------- what becomes of partitions

    def forget(self, partitions: Collection[Partition]) -> None:
        """Forget what was taken of these partitions: it may not have come to its place here."""
        for partition in partitions:
            self._pending.pop(partition, None)
            self._reached.pop(partition, None)
            self._positions.pop(partition, None)
        self._looked = None
        self._forgotten += 1

    # ---------------------------------------------------------------- looks

    async def _look(self, due_ms: int) -> None:
        """Note the ends of the log as they are now, if that has not been done since then. A broker that does not answer
        is asked again in a moment: nothing is handled as far as anybody knows."""
        async with self._one_at_a_time:
            if self._is_since(self._looked, due_ms) or self.clock.monotonic_s() < self._refused_until_s:
                return
            look = Look(self.clock.now_ms(), self.clock.monotonic_s())
            before = self._forgotten
            try:
                ends = await self.sources.ends()
                self._counts, self._unknown = {}, set()
                self._note(ends, look)
                others = [
                    partition for partition, end in ends.items() if end is not None and not self._is_ours(partition)
                ]
                if others := [partition for partition in others if partition.topic in self.topics]:
                    await self._ask_positions(others)
            except BrokerUnavailable as why:
                self._refused(why)
                return
            except BrokerError as why:  # nothing can be said, and the polls tell why
                self._refused_until_s = self.clock.monotonic_s() + AGAIN_S
                self.watching.unavailable("ends", BrokerUnavailable(str(why)))
                return
            self.watching.answered("broker")
            if self._forgotten == before:  # else partitions went meanwhile: what was noted of them is gone
                self._looked = look

    def _note(self, ends: Mapping[Partition, int | None], look: Look) -> None:
        for partition, end in ends.items():
            if partition.topic not in self.topics:
                continue
            self._counts[partition.topic] = max(self._counts.get(partition.topic, 0), partition.number + 1)
            if end is None:
                self._unknown.add(partition)
                continue
            pending = self._pending.setdefault(partition, [])
            if len(pending) >= PENDING_MAX:
                pending.pop()
            pending.append((end, look))

    async def _ask_positions(self, partitions: Collection[Partition]) -> None:
        self._positions.update(await self.sources.positions(partitions))

    def _refused(self, why: BrokerUnavailable) -> None:
        self._refused_until_s = self.clock.monotonic_s() + AGAIN_S
        self.watching.unavailable("ends", why)

    def _is_since(self, look: Look | None, due_ms: int) -> bool:
        return look is not None and self._time_of(look) >= due_ms

    def _time_of(self, look: Look) -> int:
        """Date of a look, as it is told by the date of then and by the time that has passed since: the earlier one. A
        date that was ahead then says nothing of now, nor does a clock that stood still while the machine slept."""
        passed_ms = round((self.clock.monotonic_s() - look.at_s) * 1000)
        return min(look.at_ms, self.clock.now_ms() - passed_ms)

    # ---------------------------------------------------------------- how far it is handled

    def _settle(self) -> None:
        """See which of the noted ends are reached."""
        read_to, now_s = self.sources.read_to(), self.clock.monotonic_s()
        for partition, pending in self._pending.items():
            if not pending:
                continue
            to = self._read_to(partition, read_to)
            while pending and pending[0][0] <= to:
                self._reached[partition] = pending.pop(0)[1], now_s
            if not pending:
                self._told_s.pop(partition, None)

    def _read_to(self, partition: Partition, read_to: Mapping[Partition, int]) -> int:
        """Offset below which everything was taken here, or handled elsewhere."""
        if self._is_ours(partition):
            return max(self.assignment.prefixes[partition].end, read_to.get(partition, 0))
        return self._positions.get(partition, -1)

    def _is_ours(self, partition: Partition) -> bool:
        return partition in self.assignment.prefixes and partition not in self.assignment.leaving

    def _handled(self, saga: str) -> tuple[int, float]:
        """Time up to which all has been taken here or handled elsewhere, and the latest time at which that was seen."""
        if self._looked is None:
            return 0, 0.0
        handled_ms, seen_s = self._time_of(self._looked), 0.0
        standing = set(self._standing(saga))
        for partition in self._partitions(saga):
            if partition in standing:
                continue
            reached = self._reached.get(partition)
            if reached is None:
                return 0, 0.0
            handled_ms, seen_s = min(handled_ms, self._time_of(reached[0])), max(seen_s, reached[1])
        return handled_ms, seen_s

    def _partitions(self, saga: str) -> list[Partition]:
        """Partitions in which messages of the saga may lie."""
        key = saga.encode()
        return [
            Partition(topic, number)
            for topic, count in self._counts.items()
            for number in (range(count) if topic in self.assignment.scattered else (partition_of(key, count),))
        ]

    def _standing(self, saga: str) -> list[Partition]:
        """Partitions of the saga that cannot be read now: no deadline waits for them."""
        still = {(each.topic, each.partition) for each in self.sources.standstills()}
        if not still and not self._unknown:
            return []
        return [
            partition
            for partition in self._partitions(saga)
            if partition in self._unknown or partition in still or (partition.topic, None) in still
        ]

    def _is_behind(self, saga: str, seen_s: float) -> bool:
        """True if a message of the saga that was taken by then waits for its turn: it may not be passed."""
        if self.lanes.has_waiting(saga, seen_s):
            return True
        return self.yields is not None and self.yields(saga)

    def _tell_passed(self, saga: str, due_ms: int, partition: Partition) -> None:
        topic, number = partition
        if self.watching.is_news(f"{saga} {due_ms} {topic}/{number}"):
            why = "it cannot be read now, and no deadline waits for it"
            self.watching.report(
                DeadlinePassedLog(service=self.watching.service, saga=saga, topic=topic, partition=number, error=why)
            )
