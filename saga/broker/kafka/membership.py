"""Membership in a consumer group on Kafka, with one aiokafka consumer at a time.

A rebalance revokes all partitions and assigns them again. aiokafka reports this from a task of its own, and waits until
this module has reacted. That task must never wait for a `getmany`, because `getmany` waits until the rebalance is over.
So `poll` only returns records that `Prefetch` has buffered.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from saga.broker.kafka import client, consumers
from saga.broker.kafka.access import KafkaAccess
from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.client import FAILED, count_partitions, to_broker_error
from saga.broker.kafka.consumers import (
    CLEAN,
    IN_PROGRESS,
    IdentityAssignor,
    LogIds,
    OwnedPartition,
    Rebalances,
    commit,
    from_metadata,
    is_of_another_log,
)
from saga.broker.kafka.errors import GUESS
from saga.broker.kafka.fetching import PATIENCE_S, IsolatingFetcher, Prefetch, isolate_partitions
from saga.broker.port import Listener, Subscription, disagreement_error, find_disagreeing
from saga.errors import BrokerError, BrokerUnavailable, Fenced
from saga.messages import Partition, Record, StalledPartition
from saga.support.clock import Clock

WATCH_S, AGAIN_S = 0.25, 0.5
"""Pause between checks of aiokafka's tasks, and pause before a failed consumer is replaced, both in seconds."""
ALONE_S = 2.0
"""Time without a group coordinator after which the broker counts as unavailable, in seconds."""
LEAVE_S = 5.0
LET_GO_S_MAX = 2.0
"""Longest wait for `Listener.on_revoked`, in seconds. Meanwhile all members of the group wait."""
BOUNDS_S = 1.0
"""Longest wait for a broker's answer about the beginning and end of a partition, in seconds."""


class Positions(NamedTuple):
    """Positions of a group in some partitions, as far as they are known at present."""

    owned: dict[Partition, OwnedPartition]
    replaced: dict[Partition, int]
    """Positions that are invalid because they were committed for a log that has been replaced. `owned` contains these
    partitions with the beginning of the new log."""
    unknown: dict[Partition, BaseException]
    """Partitions without a valid position whose beginning no broker reports, each with the error."""


class KafkaMember:
    """Member of a group on Kafka. See `saga.broker.port.Membership` for the promises."""

    def __init__(
        self,
        subscription: Subscription,
        listener: Listener,
        settings: KafkaSettings,
        access: KafkaAccess,
        clock: Clock,
    ) -> None:
        group = subscription.group
        self._group, self._topics, self._listener = group, list(subscription.topics), listener
        self._identity, self._starts = subscription.identity, subscription.starts
        self._assignor = IdentityAssignor(subscription.identity)
        self._strangers: tuple[str, ...] = ()
        self._settings, self._access, self._clock = settings, access, clock
        self._consumer: AIOKafkaConsumer | None = None
        self._owned: dict[Partition, OwnedPartition] = {}
        self._let_go: set[Partition] = set()
        """Partitions that were revoked cleanly. The next assignment shows whether this member gets them again."""
        self._open: set[Partition] = set()
        """Partitions that may be read, because the listener knows them and they are not being revoked."""
        self._unopened: dict[Partition, BaseException] = {}
        """Partitions that are assigned to this member but not yet owned, because the offset to read is unknown. Often
        they have no leader."""
        self._unopened_stalls: list[StalledPartition] = []
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Future that is done when the current assignment has ended."""
        self._assigned_s = 0.0
        self._fetching: IsolatingFetcher | None = None
        self._prefetch = Prefetch(group, clock, self.wake)
        self._duplicate_instance = DuplicateInstance(group, settings.instance, settings.session_s, clock)
        self._woken = False
        self._changing = asyncio.Lock()
        """Lock that is held during changes of the assignment and calls of the listener."""
        self._assigned = self._was_in = False
        """`_assigned` is true while there is an assignment, which may be empty. `_was_in` is true after the first one.
        Before it, an error other than an outage ends the member, so that a wrong configuration is seen at the start.
        After it, each error is an outage: `poll` raises it, and the member connects again.
        """
        self._counts: dict[str, int] = {}  # number of partitions of each topic, as last seen
        self._unseen: list[str] = []  # topics that are missing or hidden; all others are read
        self._leaving = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._broken: BaseException | None = None
        """Error that every later call raises."""
        self._outage: BrokerError | None = None
        """Error that `poll` raises until the outage is over."""
        self._assign_error: BaseException | None = None
        """Error that prevented the last assignment from being processed."""

    # ---------------------------------------------------------------- the port

    async def poll(self, partitions: Collection[Partition], *, records_max: int, timeout_s: float) -> Sequence[Record]:
        deadline_s = self._clock.monotonic_s() + timeout_s
        while True:
            self._raise_if_broken()
            self._prefetch.news.clear()
            woken, self._woken = self._woken, False
            if woken and self._outage is None:  # a member that was woken because of an outage has to raise the outage
                return []
            if records := self._take(partitions, records_max):
                return records
            if (failure := self._prefetch.failure or self._outage) is not None:
                self._prefetch.failure = None
                raise self._access.explain(failure)
            self._prefetch.request([p for p in partitions if p in self._open], records_max)
            try:
                await self._clock.within(max(deadline_s - self._clock.monotonic_s(), 0), self._prefetch.news.wait())
            except TimeoutError:
                return []

    def wake(self) -> None:
        self._woken = True
        self._prefetch.news.set()

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        moved = self._prepare_offsets(offsets)
        await self._commit_offsets(
            {partition: (owned, at) for partition, (owned, at) in moved.items() if at > owned.committed}
        )

    async def mark_in_progress(self, offsets: Mapping[Partition, int]) -> Collection[Partition]:
        ours = self._prepare_offsets(offsets)
        await self._commit_note(ours, IN_PROGRESS)
        return [partition for partition, (owned, _) in ours.items() if owned.was_in_progress]

    async def clear_in_progress(self, offsets: Mapping[Partition, int]) -> None:
        await self._commit_note(self._prepare_offsets(offsets), CLEAN)

    def _prepare_offsets(self, offsets: Mapping[Partition, int]) -> dict[Partition, tuple[OwnedPartition, int]]:
        """Return each owned partition with the offset to commit. Raises `Fenced`."""
        self._raise_if_broken()
        moved: dict[Partition, tuple[OwnedPartition, int]] = {}
        for partition, offset in offsets.items():
            owned = self._owned.get(partition)
            if owned is None:
                raise Fenced(
                    f"group {self._group!r}: {partition} is not this member's; another one processes its messages again"
                )
            at = self._read_to(partition) if offset == owned.next and offset > owned.committed else offset
            moved[partition] = owned, max(at, owned.committed)
        return moved

    async def _commit_note(self, ours: Mapping[Partition, tuple[OwnedPartition, int]], note: str) -> None:
        for owned, _ in ours.values():
            owned.note = note
        await self._commit_offsets(ours)

    async def _commit_offsets(self, moved: Mapping[Partition, tuple[OwnedPartition, int]]) -> None:
        if moved and self._consumer is not None:
            with self._access.explaining():
                await commit(self._consumer, moved, f"group {self._group!r}: committing", self._settings.commit_s)

    def log_id(self, partition: Partition) -> str:
        owned = self._owned.get(partition)
        return "" if owned is None else owned.log_id

    def lag(self) -> Mapping[Partition, int] | None:
        if not self._assigned or self._consumer is None:
            return None
        ends = {partition: self._consumer.last_stable_offset(TopicPartition(*partition)) for partition in self._open}
        return {p: max(0, end - self._read_to(p)) for p, end in ends.items() if end is not None}

    def disagreeing_members(self) -> Sequence[str]:
        return self._strangers

    def polled_offsets(self) -> Mapping[Partition, int]:
        return {partition: self._read_to(partition) for partition in self._open}

    async def fetch_ends(self) -> Mapping[Partition, int | None]:
        consumer = self._consumer_to_ask()
        known = consumer._client.cluster.partitions_for_topic
        places = [TopicPartition(topic, number) for topic in self._topics for number in sorted(known(topic) or ())]
        return await client.fetch_ends(consumer, places, self._clock, BOUNDS_S)

    async def fetch_positions(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        consumer, places = self._consumer_to_ask(), [TopicPartition(*partition) for partition in partitions]
        try:
            found = await self._clock.within(BOUNDS_S, self._fetch_positions(consumer, places, BOUNDS_S / 3))
        except FAILED as why:
            raise to_broker_error(why, f"group {self._group!r}: asking for positions", "Read", waits=True) from why
        return {partition: owned.next for partition, owned in found.owned.items()}

    def _consumer_to_ask(self) -> AIOKafkaConsumer:
        """Return the consumer for requests to brokers. Raises `BrokerUnavailable` while there is none."""
        self._raise_if_broken()
        if self._consumer is None:
            raise BrokerUnavailable(f"group {self._group!r} is not connected: it is tried again")
        return self._consumer

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        fetched = () if self._fetching is None else self._fetching.stalled_partitions()
        unseen = client.report_invisible_topics(self._unseen)
        found = [*fetched, *self._prefetch.standstills.values(), *self._unopened_stalls, *unseen]
        return sorted({(each.topic, each.partition): each for each in found}.values(), key=str)

    def _read_to(self, partition: Partition) -> int:
        """Return the offset up to which the partition has been read: after the last polled record, and after the
        transaction markers that follow it."""
        owned = self._owned[partition]
        if self._consumer is None or partition in self._prefetch:
            return owned.next
        return max(owned.next, client.read_position(self._consumer, partition) or 0)

    def _raise_if_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    # ---------------------------------------------------------------- reading

    def _take(self, partitions: Collection[Partition], records_max: int) -> list[Record]:
        records: list[Record] = []
        for partition in self._prefetch.list_buffered(partitions):  # without an await: the assignment stays the same
            if partition not in self._open:
                continue
            taken = self._prefetch.take(partition, records_max - len(records))
            self._owned[partition].next = taken[-1].offset + 1
            records.extend(taken)
            if len(records) >= records_max:
                break
        return records

    async def _resolve_out_of_range(self, consumer: AIOKafkaConsumer, fetching: IsolatingFetcher) -> None:
        """Find where to continue in partitions whose log does not contain the offset to read.

        If the log begins after that offset, records expired before they were read. If the log ends before it, the log
        has lost records that were read already, and the partition is read again from the beginning.
        """
        for place, offset in list(fetching.out_of_range.items()):
            try:
                begin, end = (await self._clock.within(BOUNDS_S, client.fetch_bounds(consumer, [place])))[place]
            except FAILED:
                continue  # tried again soon
            partition = Partition(*place)
            async with self._changing:
                owned = self._owned.get(partition)
                if owned is None or partition in self._prefetch or fetching.out_of_range.get(place) != offset:
                    continue
                if offset < begin:
                    owned.next = begin
                    self._listener.on_expired(partition, offset, begin)
                elif offset > end:
                    await self._restart_partition(partition, begin, fetching)
                    continue
                goes_on = max(offset, begin)
                self._prefetch.resume_at(partition, goes_on)
                fetching.resume_at(place, goes_on)

    async def _restart_partition(self, partition: Partition, begin: int, fetching: IsolatingFetcher) -> None:
        """Set a partition back to its beginning, because its log was replaced and old positions are not valid in the
        new log.

        The lock must be held.
        """
        owned = self._owned[partition]
        log.error(
            "group %s: %s/%d has lost records that were already read: it is read again from offset %d on",
            *(self._group, partition.topic, partition.number, begin),
        )
        self._owned[partition] = OwnedPartition(
            begin, begin, owned.over, log_id=fetching.log_ids.get(partition.topic, "")
        )
        self._listener.on_lost([partition])
        self._listener.on_replaced(partition, owned.next)
        await self._listener.on_assigned({partition: begin})
        self._prefetch.resume_at(partition, begin)
        fetching.resume_at(TopicPartition(*partition), begin)

    async def _check_log_ids(self, consumer: AIOKafkaConsumer, fetching: IsolatingFetcher) -> None:
        """Set topics that were deleted and created again back to their beginning. Only their log ids reveal this,
        because fetches and commits refer to topics by name."""
        ids, before = fetching.log_ids, {partition: owned.log_id for partition, owned in self._owned.items()}
        with suppress(*FAILED):  # tried again soon
            await self._clock.within(BOUNDS_S, ids.learn(self._topics, consumer._client))
        there = consumer._client.cluster.partitions_for_topic
        places = [
            TopicPartition(*p)
            for p, known in before.items()
            if known and known != ids.get(p.topic) and p.number in (there(p.topic) or ())
        ]
        if not places:
            return
        try:
            found = await self._clock.within(BOUNDS_S, client.fetch_bounds(consumer, places))
        except FAILED:
            return  # as above
        async with self._changing:
            for place, (begin, _) in found.items():
                partition = Partition(*place)
                owned = self._owned.get(partition)
                if owned is not None and partition in self._open and owned.log_id == before[partition]:
                    await self._restart_partition(partition, begin, fetching)

    async def _report_added_partitions(self, consumer: AIOKafkaConsumer) -> None:
        """Report topics that have more partitions than before. The leader of the group assigns the new partitions by
        itself."""
        for topic, now in client.count_cached_partitions(consumer._client, self._topics).items():
            before, self._counts[topic] = self._counts.get(topic, now), now
            if now > before:
                async with self._changing:
                    self._listener.on_partitions_added(topic, before, now)

    async def _commit_ends(self) -> None:
        """Commit positions that have moved without a record, because only transaction markers followed."""
        moved = {
            partition: (owned, read_to)
            for partition, owned in self._owned.items()
            if partition in self._open
            and owned.committed >= owned.next
            and (read_to := self._read_to(partition)) > owned.committed
        }
        with suppress(BrokerError):  # the commit is tried again
            await self._commit_offsets(moved)

    # ---------------------------------------------------------------- rebalances

    async def revoke(self, consumer: AIOKafkaConsumer) -> None:
        """Release all partitions before the next assignment."""
        async with self._changing:
            if consumer is self._consumer and not self._leaving.is_set():
                if is_out := client.is_unknown_to_group(consumer):
                    self._duplicate_instance.record_forgotten()
                await self._give_up(with_warning=not is_out)

    async def assign(self, consumer: AIOKafkaConsumer, places: Collection[TopicPartition]) -> None:
        """Begin to read the assigned partitions. The member sends no heartbeats meanwhile, so this has to be quick."""
        async with self._changing:
            if consumer is not self._consumer or self._leaving.is_set():
                return
            self._strangers = find_disagreeing(self._identity, self._assignor.members)
            if self._strangers and not self._was_in:  # the other member joined at the same time as this one
                self._broken = disagreement_error(self._group, self._identity, self._strangers)
                self._prefetch.news.set()
                return
            self._over = asyncio.get_running_loop().create_future()
            session_s = self._settings.session_s
            try:
                found = await self._clock.within(
                    session_s / 2, self._fetch_positions(consumer, list(places), session_s / 6)
                )
            except Exception as why:  # noqa: BLE001 - aiokafka would swallow it
                self._assign_error = why
                return
            self._assigned = self._was_in = True
            self._assigned_s = self._clock.monotonic_s()
            assert self._fetching is not None, "as long as there is a consumer"
            self._fetching.begin()
            self._prefetch.start({})
            gone, self._let_go = self._let_go - (found.owned.keys() - found.replaced.keys()), set()
            self._unopened = found.unknown
            await self._open_partitions(found, self._fetching, gone)
            self.wake() if self._strangers else self._prefetch.news.set()

    async def _fetch_positions(
        self, consumer: AIOKafkaConsumer, places: Sequence[TopicPartition], limit_s: float
    ) -> Positions:
        """Return the group's positions. A partition without a valid position begins at the time that the subscription
        has for its topic, or else at its oldest record. `limit_s` limits each request for such a beginning."""
        ids = LogIds(self._clock) if self._fetching is None else self._fetching.log_ids
        # Ids come first: if a topic is created again in between, its position is found to be invalid later.
        await ids.learn({place.topic for place in places}, consumer._client)
        committed = await client.fetch_committed(consumer, places)
        gone = {place: at for place, (at, note) in committed.items() if is_of_another_log(note, ids.get(place.topic))}
        valid = {place: position for place, position in committed.items() if place not in gone}
        new = [place for place in places if place not in valid]
        times = {
            place: self._starts[place.topic] for place in new if place not in gone and self._starts.get(place.topic)
        }
        ask = partial(client.fetch_starts, consumer, times=times)
        starts = await client.ask_for_each(ask, new, self._clock, limit_s)
        found = Positions({}, {}, {})
        for place in places:
            partition, start = Partition(*place), starts.get(place, 0)
            if isinstance(start, BaseException):
                found.unknown[partition] = start
                continue
            at, metadata = valid.get(place, (start, ""))
            note, _ = from_metadata(metadata)
            found.owned[partition] = OwnedPartition(
                *(at, at, self._over),
                was_in_progress=note == IN_PROGRESS,
                note=note,
                log_id=ids.get(partition.topic, ""),
            )
            if place in gone:
                found.replaced[partition] = gone[place]
        return found

    async def _open_partitions(
        self, found: Positions, fetching: IsolatingFetcher, gone: Collection[Partition] = ()
    ) -> None:
        """Begin to read these partitions at their positions, and discard what aiokafka has already done for them.

        aiokafka may have started to fetch as soon as it had the assignment, and may have found no log at the committed
        offset, or a broker without the topic. The lock must be held.
        """
        self._owned |= found.owned
        offsets = {partition: each.next for partition, each in found.owned.items()}
        for partition, offset in offsets.items():
            self._prefetch.resume_at(partition, offset)
            fetching.resume_at(TopicPartition(*partition), offset)
        try:
            if gone:
                self._listener.on_lost(gone)
            for partition, position in found.replaced.items():
                self._listener.on_replaced(partition, position)
            if offsets:
                await self._listener.on_assigned(offsets)
        except Exception as why:  # noqa: BLE001 - a listener's error is raised by `poll` and `commit`
            self._broken = why
        self._open |= offsets.keys()

    async def _open_later(self, consumer: AIOKafkaConsumer, fetching: IsolatingFetcher) -> None:
        """Open partitions whose positions were unknown when they were assigned. Report those that still cannot be
        opened."""
        over, limit_s = self._over, self._settings.session_s / 4
        places = [place for p in self._unopened if client.has_leader(consumer, place := TopicPartition(*p))]
        if places:
            with suppress(*FAILED):  # tried again soon
                found = await self._clock.within(2 * limit_s, self._fetch_positions(consumer, places, limit_s))
                async with self._changing:
                    if self._over is not over or over.done():
                        return
                    self._unopened = {
                        partition: found.unknown.get(partition, why)
                        for partition, why in self._unopened.items()
                        if partition not in found.owned
                    }
                    await self._open_partitions(found, fetching)
                    self._prefetch.news.set()
        self._report_unopened()

    def _report_unopened(self) -> None:
        now = []
        if self._clock.monotonic_s() - self._assigned_s >= PATIENCE_S:
            for partition, why in self._unopened.items():
                what = f"{partition.topic}/{partition.number} is not read, because no broker says where it begins"
                error = to_broker_error(why, f"{what}; perhaps it has no leader", "Read", waits=True)
                now.append(StalledPartition(*partition, None, str(error)))
        if now != self._unopened_stalls:
            self._unopened_stalls = now
            self.wake()

    async def _give_up(self, *, with_warning: bool) -> None:
        """Stop reading, notify the listener, and end this assignment, so that nothing more can be committed in it."""
        ours = list(self._owned)
        self._open = set()
        self._assigned = False
        self._unopened = {}
        lost = set() if with_warning else self._let_go.union(ours)
        try:
            if with_warning and ours:
                await self._clock.within(LET_GO_S_MAX, self._listener.on_revoked(ours))
                self._let_go.update(ours)
        except TimeoutError:
            log.warning(
                "group %s: partitions were not released in time; they are revoked without a commit", self._group
            )
            lost = set(ours)
        except Exception as why:  # noqa: BLE001 - as above
            self._broken = why
        finally:
            self._owned = {}
            self._let_go -= lost
            self._prefetch.forget()  # after the last commit, which would count buffered records as read
            if not self._over.done():
                self._over.set_result(None)
            if lost:
                self._listener.on_lost(lost)
            self._prefetch.news.set()

    # ---------------------------------------------------------------- lifetime

    async def join(self) -> None:
        """Join the group. Raises `BrokerError`."""
        await self._connect()
        self._life = asyncio.get_running_loop().create_task(self._run())

    async def leave(self) -> None:
        """Release the partitions, and leave the group. A static member keeps its place in the group."""
        async with self._changing:
            self._leaving.set()
            await self._give_up(
                with_warning=self._consumer is not None and not client.is_unknown_to_group(self._consumer)
            )
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait([self._life])
        await self._disconnect()

    def renew_password(self) -> None:
        """Use the current password for new connections."""
        if self._consumer is not None:
            client.renew_password(self._consumer._client, self._access.password)

    async def _connect(self) -> None:
        settings = self._settings
        consumer = consumers.create_group_consumer(self._group, self._topics, settings, self._access, self._assignor)
        try:
            with client.closing_on_failure(consumer._client):
                await self._clock.within(settings.connect_s, consumer.start())
            await self._add_topics(consumer)
            if not self._was_in:
                await self._refuse_disagreeing(consumer)
        except BaseException as why:  # even a cancelled join must leave no consumer behind
            await client.end_consumer(consumer, self._clock, 0)
            if isinstance(why, FAILED) or client.is_stray_cancellation(why):
                raise self._access.explain(to_broker_error(why, f"group {self._group!r}: joining", "Read")) from why
            raise
        try:
            client.check_consumer(consumer)
        except BrokerError:
            await consumer.stop()
            raise
        self._consumer = consumer
        self._fetching = isolate_partitions(consumer, self._clock, self.wake)
        self._prefetch.begin(consumer)
        consumer.subscribe(topics=self._topics, listener=Rebalances(consumer, self.revoke, self.assign))

    async def _refuse_disagreeing(self, consumer: AIOKafkaConsumer) -> None:
        """Raise `ConfigurationError` if the identity of a member of the group disagrees with this member's identity.

        This happens before joining, because joining causes a rebalance.
        """
        if self._identity is not None:
            request = client.fetch_identities(consumer._client, self._group, self._clock)
            members = await self._clock.within(self._settings.connect_s, request)
            if strangers := find_disagreeing(self._identity, members):
                raise disagreement_error(self._group, self._identity, strangers)

    async def _add_topics(self, consumer: AIOKafkaConsumer) -> None:
        """Add the subscribed topics to the consumer. A missing topic is an error at the first start; later the member
        waits for it."""
        for topic in self._topics:
            try:
                await count_partitions(consumer._client, topic, self._clock)
            except BrokerError as why:
                if isinstance(why, BrokerUnavailable) or not self._was_in:
                    raise

    async def _disconnect(self) -> None:
        consumer, self._consumer, self._fetching = self._consumer, None, None
        if consumer is not None:
            await client.end_consumer(consumer, self._clock, LEAVE_S)
        await self._prefetch.end()

    async def _run(self) -> None:
        """Watch the consumer, and replace it when it has failed."""
        try:
            while True:
                try:
                    if self._consumer is None:
                        await self._connect()
                    await self._watch()
                except (Exception, asyncio.CancelledError) as why:
                    client.reraise_cancellation(why)
                    if not (
                        self._was_in or isinstance(why, (*FAILED, BrokerError)) or client.is_stray_cancellation(why)
                    ):
                        raise
                    trouble = (
                        why if isinstance(why, BrokerError) else to_broker_error(why, f"group {self._group!r}", "Read")
                    )
                    if not isinstance(trouble, BrokerUnavailable) and not self._was_in:
                        raise trouble from why
                    self._set_outage(str(trouble))
                async with self._changing:
                    await self._give_up(with_warning=False)
                await self._disconnect()
                await self._clock.sleep(AGAIN_S)
        except Exception as why:  # noqa: BLE001 - `poll` and `commit` raise the error
            self._broken = why
            self._prefetch.news.set()

    async def _watch(self) -> None:
        alone_s = 0.0
        while True:
            await self._clock.sleep(WATCH_S)
            consumer, fetching = self._consumer, self._fetching
            assert consumer is not None, "only this task removes it"
            assert fetching is not None, "as above"
            client.raise_if_broken(consumer)
            if self._assign_error is not None:
                why, self._assign_error = self._assign_error, None
                raise why
            if fetching.log_ids.is_due() or fetching.out_of_range or self._unopened:  # opening learns the ids, too
                await self._check_log_ids(consumer, fetching)
            await self._resolve_out_of_range(consumer, fetching)
            await self._open_later(consumer, fetching)
            alone_s = alone_s + WATCH_S if client.lacks_coordinator(consumer) else 0
            if not alone_s:
                await self._commit_ends()
            await self._report_added_partitions(consumer)
            trouble = ""
            if alone_s >= ALONE_S:
                trouble = f"it has no coordinator: {GUESS}"
            if (unseen := client.find_invisible_topics(consumer, self._topics)) != self._unseen:
                self._unseen = unseen
                self.wake()
            self._set_outage(f"group {self._group!r}: {trouble}" if trouble else "")

    def _set_outage(self, trouble: str) -> None:
        """Set the error that `poll` raises until the outage is over; an empty text ends the outage."""
        self._outage = self._access.explain(BrokerUnavailable(trouble)) if trouble else None
        if trouble:
            self._prefetch.news.set()


# ---------------------------------------------------------------- processes that share one id


OFTEN = 3
"""Number of removals of a member within one session timeout that proves that another process has the same id. Missing
heartbeats remove a member at most once in this time."""
log = logging.getLogger("saga.broker.kafka")


class DuplicateInstance:
    """Detector of another process with the same `group.instance.id`. It logs its finding once.

    A broker gives the place of a static member to any process that joins with its id. The previous process learns at
    its next heartbeat that it was removed, and joins again. So the two replace each other for ever. No broker reports
    this, so it is inferred from how often the group removes this member.
    """

    def __init__(self, group: str, instance: str, session_s: float, clock: Clock) -> None:
        self._group, self._instance, self._session_s, self._clock = group, instance, session_s, clock
        self._forgotten_s: deque[float] = deque(maxlen=OFTEN)
        self._logged = False

    def record_forgotten(self) -> None:
        """Record that the group has removed the member."""
        self._forgotten_s.append(self._clock.monotonic_s())
        often = len(self._forgotten_s) == OFTEN and self._forgotten_s[-1] - self._forgotten_s[0] < self._session_s
        if not self._instance or self._logged or not often:
            return
        self._logged = True
        log.error(
            "group %s: %d times within %g s its member was replaced: another process has SAGA_KAFKA_INSTANCE=%s too, "
            "and they take the partitions from each other: give each process its own, or remove the setting",
            *(self._group, OFTEN, self._session_s, self._instance),
        )
