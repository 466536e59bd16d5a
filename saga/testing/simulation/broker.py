"""An in-memory broker behind the simulated network. Each process has a broker object of its own, and all of these share
one cluster.
"""

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol, Self

from saga.broker.port import RECORD_BYTES_MAX, Listener, Subscription, disagreement_error, find_disagreeing
from saga.errors import BrokerError, BrokerUnavailable, SagaError
from saga.messages import Outgoing, Partition, Record, StalledPartition, Topic
from saga.messaging.envelope import type_of
from saga.messaging.names import is_timer_topic
from saga.testing.fault_plans import OperationKind, PlannedFault
from saga.testing.simulation.cluster import DRAIN_S, LOOK_S, SILENCE_S, Cluster
from saga.testing.simulation.loop import Process
from saga.testing.simulation.network import HOP_S_FIRST, Backend, Effect, Network


class MemberConnection(Protocol):
    """The parts of a process's broker that a group member uses."""

    process: Process
    cluster: Cluster
    network: Network

    def asks(self, what: OperationKind, where: str, names: tuple[str, ...], effect: Effect) -> "Future[Any]": ...


class SimulatedMember:
    """A member of a consumer group: see `saga.broker.port.Membership` for the guarantees."""

    def __init__(self, broker: MemberConnection, subscription: Subscription, listener: Listener) -> None:
        self.topics, self.identity = list(subscription.topics), subscription.identity
        self._starts = subscription.starts
        self.process = broker.process
        self._broker, self._listener = broker, listener
        self._cluster = broker.cluster
        self._network = broker.network
        self._group = broker.cluster.group(subscription.group)
        self._id = 0
        self._at: dict[Partition, int] = {}
        """Offset to read next in each partition of this member."""
        self._log_ids: dict[Partition, str] = {}
        """Log id of each partition, as this member last saw it."""
        self._granted: dict[Partition, int] = {}
        """Number of the grant with which this member took each partition; see `SimulatedGroup.grants`."""
        self._left: set[Partition] = set()
        """Partitions whose previous owner did not leave them properly, so their messages may be in progress."""
        self._readable: set[Partition] = set()
        self._behind: dict[Partition, None] = {}
        """Partitions with unread records, as an ordered set. The first one was not read for the longest time, and is
        read next.
        """
        self._news = asyncio.Event()
        self._changed = asyncio.Event()
        self._woken = False
        self._next_s = 0.0
        """Time until which `poll` returns no record, while a fault limits the service to one record at a time."""
        self._broken: BaseException | None = None
        self._placed = False
        """True once this member has handled an assignment of the group."""

    # ---------------------------------------------------------------- the port

    async def poll(self, partitions: Collection[Partition], *, records_max: int, timeout_s: float) -> Sequence[Record]:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while True:
            self._check()
            self._news.clear()
            if self._woken:
                self._woken = False
                return []
            if self._network.cut_for_s(self.process, "broker"):
                raise BrokerUnavailable("planted: the broker cannot be reached")
            every_s = self._network.every_s(self.process)
            if every_s and loop.time() < self._next_s:
                self._network.later(self._next_s - loop.time(), self._news.set)
                await self._news.wait()
                continue
            if records := self._read(partitions, 1 if every_s else records_max):
                self._next_s = loop.time() + every_s
                topics = tuple(dict.fromkeys(record.topic for record in records))
                if not self._network.survives_poll(self.process, f"{len(records)} of {', '.join(topics)}", topics):
                    await loop.create_future()  # the process has died, so nothing after this may run
                return records
            if loop.time() >= deadline_s:
                return []
            timer = self._network.idle_later(deadline_s - loop.time(), self._news.set)
            try:
                await self._news.wait()
            finally:
                timer.cancel()

    def wake(self) -> None:
        self._woken = True
        self._news.set()

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        self._check()
        if offsets:
            id_, grants = self._id, {partition: self._granted.get(partition) for partition in offsets}
            log_ids = {partition: self.log_id(partition) for partition in offsets}
            await self._broker.asks(
                "commit",
                self._group.name,
                tuple(dict.fromkeys(p.topic for p in offsets)),
                lambda *_: self._group.commit(id_, offsets, grants, log_ids),
            )

    async def mark_in_progress(self, offsets: Mapping[Partition, int]) -> Collection[Partition]:
        await self._mark(offsets, in_progress=True)
        return [partition for partition in offsets if partition in self._left]

    async def clear_in_progress(self, offsets: Mapping[Partition, int]) -> None:
        await self._mark(offsets, in_progress=False)

    async def _mark(self, offsets: Mapping[Partition, int], *, in_progress: bool) -> None:
        self._check()
        if offsets:
            id_, grants = self._id, {partition: self._granted.get(partition) for partition in offsets}
            log_ids = {partition: self.log_id(partition) for partition in offsets}
            await self._broker.asks(
                "commit",
                self._group.name,
                tuple(dict.fromkeys(p.topic for p in offsets)),
                lambda *_: self._group.mark(id_, offsets, grants, log_ids, in_progress=in_progress),
            )

    def log_id(self, partition: Partition) -> str:
        return self._log_ids.get(partition, "")

    def lag(self) -> Mapping[Partition, int] | None:
        if not self._placed:
            return None
        return {partition: self._cluster.count_behind(partition, at) for partition, at in self._at.items()}

    def disagreeing_members(self) -> Sequence[str]:
        others = self._group.members.values()
        return find_disagreeing(self.identity, [other.identity for other in others if other is not self])

    def polled_offsets(self) -> Mapping[Partition, int]:
        return {partition: self._at[partition] for partition in self._readable}

    async def fetch_ends(self) -> Mapping[Partition, int | None]:
        await self._wait_for_answer()
        return {
            Partition(topic, number): self._cluster.end(Partition(topic, number))
            for topic in self.topics
            for number in range(self._cluster.partitions_of(topic))
        }

    async def fetch_positions(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        await self._wait_for_answer()
        log_of, committed = self._cluster.log_id, self._group.committed
        ours = [p for p in partitions if self._group.committed_in.get(p, log_of(p.topic)) == log_of(p.topic)]
        return {partition: committed.get(partition, 0) for partition in ours}

    async def _wait_for_answer(self) -> None:
        """Wait as long as a request to the broker takes. Raises `BrokerUnavailable` if the broker cannot be reached.

        Such a request changes nothing, so it gets no number as an operation of the fault plan. Otherwise it would shift
        the numbers of operations in recorded schedules.
        """
        self._check()
        arrived = asyncio.Event()
        self._network.later(HOP_S_FIRST, arrived.set)
        await arrived.wait()
        if self._network.cut_for_s(self.process, "broker"):
            raise BrokerUnavailable("planted: the broker cannot be reached")

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        broken = self._cluster.broken
        return [
            StalledPartition(*partition, at, f"planted: {partition.topic}/{partition.number} is stalled at offset {at}")
            for partition, at in self._at.items()
            if broken.get(partition) == at and self._cluster.has_more(partition, at)
        ]

    def _read(self, partitions: Collection[Partition], records_max: int) -> list[Record]:
        records: list[Record] = []
        if not self._behind:
            return records
        wanted = set(partitions)
        for partition in [p for p in self._behind if p in wanted]:
            at, begins = self._at[partition], self._cluster.begins(partition)
            if begins > at:
                self._listener.on_expired(partition, at, begins)
                at = begins
            # As on Kafka: until the member has checked, it believes that these are records of the log that it knows.
            log_id = self._log_ids[partition]
            read = self._cluster.read(partition, at, records_max - len(records))
            some = [each if each.log_id == log_id else each._replace(log_id=log_id) for each in read]
            self._at[partition] = at + len(some)
            records += some
            del self._behind[partition]
            if self._cluster.broken.get(partition) == self._at[partition]:
                self.wake()  # the caller sees the stall; reading continues once the partition is readable
            elif self._cluster.has_more(partition, self._at[partition]):
                self._behind[partition] = None  # moves to the end, so that the other partitions are read first
            if len(records) >= records_max:
                break
        return records

    # ---------------------------------------------------------------- news from the broker

    def partitions_of(self, topic: str) -> int:
        return self._cluster.partitions_of(topic)

    def has_news(self, partition: Partition) -> None:
        """Note that the partition has unread records, if this member may read it."""
        if partition in self._readable:
            self._behind[partition] = None
            self._news.set()

    def on_change(self) -> None:
        """Let this member check its assignment again, as soon as a notice from the broker can have reached it."""
        cut_s = self._network.cut_for_s(self.process, "broker")
        if self.process.alive:
            self._network.later(cut_s + HOP_S_FIRST, self.on_change if cut_s else self._changed.set)

    # ---------------------------------------------------------------- lifetime

    def enter(self) -> None:
        self._id = self._group.enter(self)

    async def follow(self) -> None:
        """Take and give up partitions whenever the group changes, until cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._step()
                self._placed = True
        except Exception as why:  # noqa: BLE001 - a listener's error is raised by the next poll or commit
            self._broken = why
            self._news.set()

    async def leave(self) -> None:
        """Give up all partitions, and leave the group."""
        await self._revoke(list(self._at))
        await self._wait_until_reachable()
        self._group.leave(self._id)

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken

    async def _wait_until_reachable(self) -> None:
        """Wait until the broker can be reached."""
        while cut_s := self._network.cut_for_s(self.process, "broker"):
            heals = asyncio.Event()
            self._network.later(cut_s, heals.set)
            await heals.wait()

    async def _step(self) -> None:
        """Take or give up partitions according to the group's current assignment."""
        await self._wait_until_reachable()
        if self._id not in self._group.members:  # the group considers this member dead
            self._lose(list(self._at))
            self.enter()
            return
        await self._look_at_logs()
        owned = self._group.owned_by(self._id)
        self._lose([p for p in self._at if p not in owned])
        wanted = self._group.assigned_to(self._id)
        if leaving := [p for p in self._at if p not in set(wanted)]:
            await self._revoke(leaving)
            await self._wait_until_reachable()
            self._group.release(self._id, leaving)
            self._listener.on_lost(leaving)
            return
        missing = [p for p in wanted if p not in self._at]
        patience_s = self._group.since_s + DRAIN_S - asyncio.get_running_loop().time()
        ready = [p for p in missing if patience_s <= 0 or self._group.owner.get(p) in (None, self._id)]
        if ready:
            await self._take(ready)
        if len(ready) < len(missing):
            self._network.later(max(0.0, patience_s) + HOP_S_FIRST, self.on_change)

    async def _look_at_logs(self) -> None:
        """Find partitions whose topic was deleted and created again. Read them from the beginning."""
        for partition, at in list(self._at.items()):
            log_id = self._cluster.log_id(partition.topic)
            if log_id != self._log_ids[partition]:
                self._stop_reading([partition])
                self._log_ids[partition], self._at[partition] = log_id, 0
                self._listener.on_lost([partition])
                self._listener.on_replaced(partition, at)
                await self._listener.on_assigned({partition: 0})
                self._readable.add(partition)
                self.has_news(partition)

    async def _take(self, partitions: Sequence[Partition]) -> None:
        taken = self._group.take(self._id, partitions, lambda p: self._cluster.since(p, self._starts.get(p.topic, 0)))
        if not taken:
            return
        for partition, at in list(taken.items()):
            log_id = self._log_ids[partition] = self._cluster.log_id(partition.topic)
            if self._group.committed_in.get(partition, log_id) != log_id:
                taken[partition] = 0
                self._group.in_progress.discard(partition)
                self._listener.on_replaced(partition, at)
        self._at.update(taken)
        self._granted.update({partition: self._group.grants[partition] for partition in taken})
        self._left = (self._left - taken.keys()) | (self._group.in_progress & taken.keys())
        await self._listener.on_assigned(taken)
        self._readable.update(taken)
        self._behind |= {p: None for p, at in taken.items() if self._cluster.has_more(p, at)}
        self._news.set()

    async def _revoke(self, partitions: Collection[Partition]) -> None:
        if not partitions:
            return
        self._stop_reading(partitions)
        with suppress(TimeoutError):  # the partitions are taken away regardless
            async with asyncio.timeout(DRAIN_S):
                await self._listener.on_revoked(partitions)
        for partition in partitions:
            self._at.pop(partition, None)

    def _lose(self, partitions: Collection[Partition]) -> None:
        if not partitions:
            return
        for partition in partitions:
            del self._at[partition]
        self._stop_reading(partitions)
        self._listener.on_lost(partitions)

    def _stop_reading(self, partitions: Collection[Partition]) -> None:
        self._readable.difference_update(partitions)
        for partition in partitions:
            self._behind.pop(partition, None)

    # ---------------------------------------------------------------- considered dead

    def stop_heartbeats(self, time_s: float) -> None:
        """Send no heartbeats for this time. If it exceeds `SILENCE_S`, the group continues without this member."""
        if time_s > SILENCE_S:
            self._network.later(SILENCE_S, self.leave_as_dead)

    def leave_as_dead(self) -> None:
        """Remove this member from the group, because the group considers it dead."""
        self._group.leave(self._id)
        self.on_change()


LAG_S_MAX = 3600.0
"""Maximum delay in seconds until readers of a partition see a record."""
DELIVERED_S = 0.002
"""Maximum time in seconds from appending a record until readers see it, without faults."""


class SimulatedBroker:
    """A broker for one process; all processes share one cluster. See `saga.broker.port.Broker` for the guarantees."""

    record_bytes_max = RECORD_BYTES_MAX
    creates_topics = True

    def __init__(
        self, cluster: Cluster, process: Process, network: Network, retention_s: float = 30 * 86_400.0
    ) -> None:
        """Create a broker that is not open yet.

        `retention_s`: time after which the services forget a saga.
        """
        self.cluster, self.process, self.network = cluster, process, network
        self.members: list[SimulatedMember] = []
        self._retention_s = retention_s
        self._backend = Backend("broker", BrokerUnavailable, BrokerUnavailable)
        self._open = False
        self._publishing: list[Future[Any]] = []

    async def __aenter__(self) -> Self:
        self._open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        if under_way := [publish for publish in self._publishing if not publish.done()]:
            await asyncio.wait(under_way)
        self._open = False

    async def ensure_topics(self, topics: Sequence[Topic]) -> None:
        self.cluster.ensure_topics(topics)

    async def count_partitions(self, topics: Collection[str]) -> Mapping[str, int]:
        return {name: len(self.cluster.topics[name]) for name in topics if name in self.cluster.topics}

    async def fetch_log_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        return {name: self.cluster.log_id(name) for name in topics if name in self.cluster.topics}

    async def find_missing_rights(
        self, reads: Collection[str], writes: Collection[str], groups: Collection[str] = ()
    ) -> Sequence[str]:
        return ()

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        self.cluster.check(messages)
        batch = list(messages)
        topics = tuple(dict.fromkeys(message.topic for message in batch))
        where = ", ".join(f"{_type_of(message)} of {message.key.decode(errors='replace')}" for message in batch)
        self._publishing = [publish for publish in self._publishing if not publish.done()]
        asked = self.asks("publish", where, topics, lambda planned, draws: self._append(batch, planned, draws))
        self._publishing.append(asked)
        await asyncio.shield(asked)  # cancelling the caller does not undo a publish that was sent

    @asynccontextmanager
    async def join(self, subscription: Subscription, listener: Listener) -> AsyncIterator[SimulatedMember]:
        member = SimulatedMember(self, subscription, listener)
        if strangers := member.disagreeing_members():
            raise disagreement_error(subscription.group, subscription.identity, strangers)
        self.members.append(member)
        member.enter()
        # No TaskGroup: it would wrap the block's own exceptions.
        following = asyncio.get_running_loop().create_task(member.follow(), name=f"{subscription.group} follows")
        try:
            yield member
        finally:
            following.cancel()
            await asyncio.wait([following])
            await member.leave()
            self.members.remove(member)

    async def scan(self, topic: str) -> AsyncIterator[Record]:
        for record in [record for log in self.cluster.topics.get(topic, ()) for record in log.records]:
            if self.cluster.broken.get(Partition(topic, record.partition)) == record.offset:
                raise BrokerError(f"planted: {topic}/{record.partition} is stalled at offset {record.offset}")
            yield record

    def asks(self, what: OperationKind, where: str, names: tuple[str, ...], effect: Effect) -> "Future[Any]":
        """Send an operation to the cluster. Raises `SagaError` if this broker is not open."""
        if not self._open:
            raise SagaError("the broker is not open: use it inside `async with`")
        return self.network.ask(self.process, self._backend, what, where, names, effect)

    def _append(
        self, batch: Sequence[Outgoing], planned: PlannedFault | None, draws: tuple[float, float, float, float]
    ) -> None:
        """Append the batch as soon as the publish has reached the cluster, with the effects of the fault that is
        planned for it.
        """
        delay_s, beside = DELIVERED_S * draws[2], 0
        if planned is None:
            for message in batch:
                self.cluster.append(message, delay_s)
            return
        landing, later = batch, self.network.later
        chosen = batch[int(draws[3] * len(batch))]
        match planned.kind:
            case "lost answer" | "crash":
                landing = batch[: int(draws[2] * (len(batch) + 1))] if len(batch) > 1 else batch
            case "delay":
                delay_s = 10 * draws[3] ** 2
            case "lag":
                delay_s = 60 + LAG_S_MAX * draws[3] ** 2
            case "duplicate":
                later(60 * draws[2] ** 4, lambda: self.cluster.append(chosen, delay_s))
            case "expiry":
                self.cluster.spoiled.add(chosen.key.decode())
                forgotten_s = self._retention_s * (1.01 + draws[2])
                later(forgotten_s, self.network.disruptions.restart_all)
                later(forgotten_s + DRAIN_S, lambda: self.cluster.append(chosen, delay_s))
            case "recreated topic":
                later(
                    LOOK_S * draws[2],
                    lambda: self.cluster.recreate(chosen.topic, republish=not is_timer_topic(chosen.topic)),
                )
            case "newer schema" | "poison":
                self.cluster.spoiled.add(chosen.key.decode())
                self.cluster.append(make_unreadable(chosen, planned, draws[2]), delay_s)
            case "other partitioner":
                beside = 1 + int(draws[2] * (self.cluster.partitions_of(chosen.topic) - 1))
            case _:
                pass
        for message in landing:
            self.cluster.append(message, delay_s, beside)


def _type_of(message: Outgoing) -> str:
    return type_of(message) or "record"


NEWER = b"\xc3\x01" + bytes(range(8))
"""First bytes of a value in single-object encoding whose schema is in no contracts folder."""


def make_unreadable(message: Outgoing, planned: PlannedFault, drawn: float) -> Outgoing:
    """Return another message of the same saga and type that no service can handle: its schema is unknown, or its bytes
    are not Avro.
    """
    value = message.value or b""
    headers = [(name, text) for name, text in message.headers if name != "ce_id"]
    headers.append(("ce_id", f"spoiled-{planned.process}-{planned.number}".encode()))
    if planned.kind == "newer schema":
        named = [(n, t + b"9" if t and n == "ce_dataschema" else t) for n, t in headers]
        return Outgoing(message.topic, message.key, NEWER + value[10:], tuple(named))
    bad = (b"", value[: len(value) // 2], b"\x00" * len(value), b"not avro at all")[int(drawn * 4)]
    return Outgoing(message.topic, message.key, bad, tuple(headers))
