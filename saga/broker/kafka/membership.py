"""One member of a group, from joining to leaving, around one consumer of aiokafka at a time.

A rebalance takes everything from everybody and gives it anew: aiokafka tells us so from a task of its own, and waits.
What that task waits for must never wait for a `getmany`, which itself waits for the rebalance to be over: so `poll`
only looks at what the `Intake` has.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from saga.broker.kafka import client
from saga.broker.kafka.client import FAILED, failed, partitions_of
from saga.broker.kafka.held import Held
from saga.broker.kafka.intake import Intake
from saga.broker.kafka.rivals import Rivals
from saga.broker.kafka.settings import Access, KafkaSettings
from saga.broker.kafka.topics import to_record
from saga.broker.port import Listener
from saga.clock import Clock
from saga.errors import BrokerError, BrokerUnavailable, Fenced
from saga.messages import Partition, Record

FETCH_BYTES = 1 << 23
"""What one broker sends at once, at most; and of one partition an eighth of it."""
WATCH_S, AGAIN_S = 0.25, 0.5
"""How often to look whether aiokafka is well, and the pause before another consumer is tried."""
ALONE_S = 2.0
"""A member that finds no coordinator for so long says that the broker is unavailable."""
LEAVE_S = 5.0
GAP_S = 10.0
"""How often, at most, a gap between offsets of one partition is looked into."""
BEGINS_S = 1.0
"""How long it may take to learn where partitions begin."""

log = logging.getLogger("saga.broker.kafka")


class Member:
    """See `saga.broker.port.Membership` for the promises."""

    def __init__(
        self,
        group: str,
        topics: Sequence[str],
        listener: Listener,
        settings: KafkaSettings,
        access: Access,
        clock: Clock,
    ) -> None:
        self._group, self._topics, self._listener = group, list(topics), listener
        self._settings, self._access, self._clock = settings, access, clock
        self._consumer: AIOKafkaConsumer | None = None
        self._held: dict[Partition, Held] = {}
        self._open: set[Partition] = set()
        """Those that may be read: not before the listener knows of them, and not while they are given up."""
        self._intake = Intake(group)
        self._rivals = Rivals(group, settings.instance, settings.session_s, clock)
        self._woken = False
        self._changing = asyncio.Lock()
        """Held by whoever tells the listener."""
        self._told = self._was_in = False
        """Whether the group has said what is ours, which may be nothing; and whether it ever has: from then on whatever
        people can mend is waited for."""
        self._leaving = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._broken: BaseException | None = None
        """Raised from now on."""
        self._away: BrokerUnavailable | None = None
        """Raised as long as it lasts."""
        self._untold: BaseException | None = None
        """Why the listener could not be told of an assignment."""
        self._is_new = False
        """Whether nobody has looked yet whether the log still has what comes next of this assignment."""

    # ---------------------------------------------------------------- the port

    async def poll(self, partitions: Collection[Partition], *, records_max: int, timeout_s: float) -> Sequence[Record]:
        deadline_s = self._clock.monotonic_s() + timeout_s
        while True:
            self._check()
            self._intake.news.clear()
            woken, self._woken = self._woken, False
            if woken and self._away is None:  # who has lost everything to a trouble is woken, and has to hear of it
                return []
            if records := await self._take(partitions, records_max):
                return records
            if (failure := self._intake.failure or self._away) is not None:
                self._intake.failure = None
                raise failure
            self._intake.ask([p for p in partitions if p in self._open], records_max)
            try:
                await self._clock.within(max(deadline_s - self._clock.monotonic_s(), 0), self._intake.news.wait())
            except TimeoutError:
                return []

    def wake(self) -> None:
        self._woken = True
        self._intake.news.set()

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        self._check()
        moved: dict[Partition, tuple[Held, int]] = {}
        for partition, offset in offsets.items():
            held = self._held.get(partition)
            if held is None:
                raise Fenced(
                    f"group {self._group!r}: {partition} is not this member's; what it did comes again elsewhere"
                )
            if offset > held.committed:
                moved[partition] = held, offset
        consumer = self._consumer
        if not moved or consumer is None:
            return
        over = next(iter(moved.values()))[0].over  # all of one assignment
        await self._committed(consumer, {partition: offset for partition, (_, offset) in moved.items()}, over)
        for held, offset in moved.values():
            held.committed = max(held.committed, offset)

    def lag(self) -> Mapping[Partition, int] | None:
        if not self._told or self._consumer is None:
            return None
        ends = {partition: self._consumer.highwater(TopicPartition(*partition)) for partition in self._open}
        return {p: max(0, end - self._held[p].next) for p, end in ends.items() if end is not None}

    async def _committed(
        self, consumer: AIOKafkaConsumer, offsets: Mapping[Partition, int], over: asyncio.Future[None]
    ) -> None:
        """aiokafka would go on until it succeeds: under the next assignment, when partitions may be somebody else's,
        and the broker would not object."""
        doing = f"group {self._group!r}: committing"
        positions = {TopicPartition(*partition): offset for partition, offset in offsets.items()}
        task = asyncio.get_running_loop().create_task(consumer.commit(positions))
        try:
            await asyncio.wait({task, over}, timeout=self._settings.commit_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            elif over.done():
                raise Fenced(f"{doing}: the assignment was over before it was acknowledged")
            else:
                raise BrokerUnavailable(f"{doing}: not acknowledged within {self._settings.commit_s:g} s")
        except (*FAILED, asyncio.CancelledError) as why:
            client.let_through(why)
            raise failed(why, doing, "Read", waits=True) from why
        finally:
            task.cancel()

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken

    # ---------------------------------------------------------------- reading

    async def _take(self, partitions: Collection[Partition], records_max: int) -> list[Record]:
        for partition in self._intake.waiting(partitions):
            if partition in self._open and partition in self._intake:  # meanwhile it may all be given up
                first = self._intake.first(partition)
                if first != self._held[partition].next:
                    await self._jumped(partition, first)
        records: list[Record] = []
        for partition in self._intake.waiting(partitions):  # without a pause: all of one assignment
            if partition not in self._open:
                continue
            taken = self._intake.take(partition, records_max - len(records))
            self._held[partition].next = taken[-1].offset + 1
            records.extend(map(to_record, taken))
            if len(records) >= records_max:
                break
        return records

    async def _jumped(self, partition: Partition, first: int) -> None:
        """Offsets have gaps, where transactions ended; or because records were removed before they were read. They go
        back when the log has lost what we have read: then all of it begins anew."""
        held, consumer = self._held[partition], self._consumer
        if first > held.next:
            now_s = self._clock.monotonic_s()
            if consumer is not None and (held.looked_s is None or now_s - held.looked_s >= GAP_S):
                held.looked_s = now_s
                await self._look_for_removed(consumer, {partition: held})
            return
        log.error(
            "group %s: %s/%d has lost what was read of it: it is read again from offset %d on",
            *(self._group, partition.topic, partition.number, first),
        )
        async with self._changing:
            if self._held.get(partition) is not held:
                return
            self._held[partition] = Held(first, first, held.over)
            self._listener.lost([partition])
            await self._listener.assigned({partition: first})

    async def _look_for_removed(self, consumer: AIOKafkaConsumer, looked_at: Mapping[Partition, Held]) -> None:
        """Tell of each partition that begins behind what comes next of it."""
        with suppress(*FAILED):
            places = [TopicPartition(*partition) for partition in looked_at]
            begins = await self._clock.within(BEGINS_S, consumer.beginning_offsets(places))
            for partition, held in looked_at.items():
                first, after = held.next, begins[TopicPartition(*partition)]
                if partition in self._intake:  # fetched in time
                    after = min(after, self._intake.first(partition))
                if after > first and self._held.get(partition) is held:
                    held.next = after
                    self._listener.expired(partition, first, after)

    # ---------------------------------------------------------------- what the group tells

    async def given_up(self, consumer: AIOKafkaConsumer) -> None:
        """Everything goes, before another assignment."""
        async with self._changing:
            if consumer is self._consumer and not self._leaving.is_set():
                if is_out := client.is_out(consumer):
                    self._rivals.forgotten()
                await self._give_up(with_warning=not is_out)

    async def given(self, consumer: AIOKafkaConsumer, places: Collection[TopicPartition]) -> None:
        """These are ours. Nobody hears of this member meanwhile, so it has to be quick."""
        async with self._changing:
            if consumer is not self._consumer or self._leaving.is_set():
                return
            try:
                offsets = await self._clock.within(self._settings.session_s / 2, self._positions(consumer, places))
            except Exception as why:  # noqa: BLE001 - aiokafka would drop it, and nobody would ever be told
                self._untold = why
                return
            self._told = self._was_in = True
            over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._held = {partition: Held(offset, offset, over) for partition, offset in offsets.items()}
            try:
                if offsets:
                    await self._listener.assigned(offsets)
            except Exception as why:  # noqa: BLE001 - a listener's error reaches whoever polls or commits
                self._broken = why
            self._open = set(offsets)
            self._is_new = True
            self._intake.news.set()

    async def _positions(
        self, consumer: AIOKafkaConsumer, places: Collection[TopicPartition]
    ) -> Mapping[Partition, int]:
        found = dict(await client.committed(consumer, places)) if places else {}
        new = [place for place in places if Partition(*place) not in found]
        if new:
            begins = await consumer.beginning_offsets(new)
            found |= {Partition(*place): offset for place, offset in begins.items()}
        return found

    async def _give_up(self, *, with_warning: bool) -> None:
        """Stop reading, tell the listener, and let nothing of this assignment be committed any more."""
        partitions = list(self._held)
        self._open = set()
        self._told = False
        self._intake.forget()
        if not partitions:
            return
        over = self._held[partitions[0]].over
        try:
            if with_warning:
                await self._clock.within(self._settings.drain_s, self._listener.revoked(partitions))
                partitions = []
        except TimeoutError:
            log.warning("group %s: partitions were not given up in time; they are taken", self._group)
        except Exception as why:  # noqa: BLE001 - as above
            self._broken = why
        finally:
            self._held = {}
            if not over.done():
                over.set_result(None)
            if partitions:
                self._listener.lost(partitions)
            self._intake.news.set()

    # ---------------------------------------------------------------- lifetime

    async def enter(self) -> None:
        """Join the group. Raises `BrokerError`."""
        await self._connect()
        self._life = asyncio.get_running_loop().create_task(self._live())

    async def leave(self) -> None:
        """Give up what is ours, in time, and let the group know; not with an id, which keeps the place."""
        async with self._changing:
            self._leaving.set()
            await self._give_up(with_warning=self._consumer is not None and not client.is_out(self._consumer))
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait([self._life])
        await self._disconnect()

    def renew_password(self) -> None:
        """Use the password as it is now."""
        if self._consumer is not None:
            client.renew_password(self._consumer._client, self._access.password)

    async def _connect(self) -> None:
        settings = self._settings
        consumer = AIOKafkaConsumer(
            **self._access.options,
            group_id=self._group,
            group_instance_id=settings.instance_for(self._topics),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            partition_assignment_strategy=(RangePartitionAssignor,),
            session_timeout_ms=int(settings.session_s * 1000),
            heartbeat_interval_ms=int(settings.heartbeat_s * 1000),
            rebalance_timeout_ms=int(settings.rebalance_s * 1000),
            max_poll_interval_ms=(1 << 31) - 1,  # who cannot go on for want of a store shall not lose partitions for it
            request_timeout_ms=int(settings.request_s * 1000),
            fetch_max_wait_ms=int(settings.fetch_wait_s * 1000),
            fetch_max_bytes=FETCH_BYTES,
            max_partition_fetch_bytes=FETCH_BYTES // 8,
        )
        try:
            await self._clock.within(settings.connect_s, consumer.start())
            for topic in self._topics:
                await partitions_of(consumer._client, topic, self._clock)
        except BaseException as why:
            await client.end_consumer(consumer, self._clock, 0)
            if isinstance(why, FAILED) or client.given_up(why):
                raise failed(why, f"group {self._group!r}: joining", "Read") from why
            raise
        self._consumer = consumer
        self._intake.begin(consumer)
        consumer.subscribe(topics=self._topics, listener=_Rebalances(self, consumer))

    async def _disconnect(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await client.end_consumer(consumer, self._clock, LEAVE_S)
        await self._intake.end()

    async def _live(self) -> None:
        """Watch the consumer, and put another one in its place when it has failed."""
        try:
            while True:
                try:
                    if self._consumer is None:
                        await self._connect()
                    await self._watch()
                except (*FAILED, BrokerError, asyncio.CancelledError) as why:
                    client.let_through(why)
                    trouble = why if isinstance(why, BrokerError) else failed(why, f"group {self._group!r}", "Read")
                    if not isinstance(trouble, BrokerUnavailable) and not self._was_in:
                        raise trouble from why
                    self._stands(str(trouble))
                async with self._changing:
                    await self._give_up(with_warning=False)
                await self._disconnect()
                await self._clock.sleep(AGAIN_S)
        except Exception as why:  # noqa: BLE001 - it reaches whoever polls or commits
            self._broken = why
            self._intake.news.set()

    async def _watch(self) -> None:
        alone_s = 0.0
        while True:
            await self._clock.sleep(WATCH_S)
            assert self._consumer is not None  # only this task puts it away
            client.check(self._consumer)
            if self._untold is not None:
                why, self._untold = self._untold, None
                raise why
            if self._is_new and self._held:  # not while partitions move: who asks then holds up the whole group
                self._is_new = False
                await self._look_for_removed(self._consumer, dict(self._held))
            alone_s = alone_s + WATCH_S if client.is_alone(self._consumer) else 0
            trouble = ""
            if alone_s >= ALONE_S:
                trouble = "no broker answers for it: see whether Kafka runs and can be reached"
            elif unseen := client.unseen(self._consumer, self._topics):
                trouble = (
                    f"{', '.join(unseen)} cannot be seen any more: have the user allowed Read on it, if it is there"
                )
            self._stands(f"group {self._group!r}: {trouble}" if trouble else "")

    def _stands(self, trouble: str) -> None:
        """What whoever polls is told, until it is over."""
        self._away = BrokerUnavailable(trouble) if trouble else None
        if trouble:
            self._intake.news.set()


class _Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """What aiokafka calls; it is always about everything."""

    def __init__(self, member: Member, consumer: AIOKafkaConsumer) -> None:
        self._member, self._consumer = member, consumer

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        await self._member.given_up(self._consumer)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        await self._member.given(self._consumer, assigned)
