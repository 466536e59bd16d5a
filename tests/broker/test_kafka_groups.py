"""Members of a group on Kafka: who has what while they come and go."""

import asyncio
import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.administration import KafkaAdministration
from saga.broker.kafka.broker import KafkaBroker
from saga.broker.kafka.membership import KafkaMember
from saga.broker.port import Membership, Subscription
from saga.errors import Fenced
from saga.messages import Partition, Record, Topic
from saga.testing.conformance.broker_suite import RecordingListener, event
from tests.broker.waiting import CLOCK, WITHIN_S, until


@pytest.fixture
def settings(kafka_settings: KafkaSettings) -> KafkaSettings:
    return kafka_settings


@pytest.fixture
def topic(kafka_topic: str) -> str:
    return kafka_topic


# -------------------------------------------------------------------- coming and going


@dataclass
class Book:
    """Partitions by member, and everything that all members have read."""

    owners: dict[Partition, object] = field(default_factory=dict)
    read: list[tuple[int, int, str]] = field(default_factory=list)
    committed: dict[Partition, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class Reader:
    """A member that reads and commits, and lets go slowly."""

    def __init__(self, book: Book) -> None:
        self.book, self.next = book, dict[Partition, int]()

    async def on_assigned(self, partitions: Mapping[Partition, int]) -> None:
        for partition, offset in partitions.items():
            if self.book.owners.get(partition) is not None:
                self.book.wrong.append(f"{partition} has two members")
            if offset < self.book.committed.get(partition, 0):
                self.book.wrong.append(f"{partition} begins at {offset}, but more was committed")
            self.book.owners[partition] = self
            self.next[partition] = offset

    async def on_revoked(self, partitions: Collection[Partition]) -> None:
        await CLOCK.sleep(0.05)
        self.on_lost(partitions)

    def on_lost(self, partitions: Collection[Partition]) -> None:
        for partition in self.next.keys() & set(partitions):
            self.book.owners[partition] = None
            del self.next[partition]

    def on_expired(self, partition: Partition, first: int, after: int) -> None:
        self.book.wrong.append(f"{partition} has lost {first} to {after - 1}")

    def on_replaced(self, partition: Partition, position: int) -> None:
        raise AssertionError(f"{partition}: its topic was created again")

    def on_partitions_added(self, topic: str, before: int, now: int) -> None:
        self.book.wrong.append(f"{topic} has {now} partitions")

    async def read(self, membership: Membership) -> None:
        while True:
            records = await membership.poll(list(self.next), records_max=20, timeout_s=0.05)
            for record in records:
                partition = Partition(record.topic, record.partition)
                if partition not in self.next:
                    continue
                if record.offset != self.next[partition]:
                    self.book.wrong.append(f"{partition}: {record.offset} instead of {self.next[partition]}")
                self.next[partition] = record.offset + 1
                self.book.read.append((record.partition, record.offset, (record.value or b"").decode()))
            done = dict(self.next)
            try:
                await membership.commit(done)
            except Fenced:
                continue
            self.book.committed |= {p: max(offset, self.book.committed.get(p, 0)) for p, offset in done.items()}


async def test_members_that_come_and_go_under_load_share_everything_and_skip_nothing(
    settings: KafkaSettings, topic: str
) -> None:
    book, group = Book(), topic
    published: list[str] = []
    stop = asyncio.Event()

    async def stay(seconds: float) -> None:
        reader = Reader(book)
        async with (
            KafkaBroker(settings, clock=CLOCK) as broker,
            broker.join(Subscription(group, [topic]), reader) as membership,
            asyncio.TaskGroup() as tasks,
        ):
            reading = tasks.create_task(reader.read(membership))
            await CLOCK.sleep(seconds)
            reading.cancel()

    async def publish(broker: KafkaBroker) -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            await broker.publish([event(topic, f"k{number % 50}", f"{number}")])
            published.append(f"{number}")
            await CLOCK.sleep(0.002)

    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 6)])
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publish(broker))
            staying = [tasks.create_task(stay(5))]
            for seconds in (3.5, 0.7, 2.0, 0.3, 1.0):
                staying.append(tasks.create_task(stay(seconds)))
                await CLOCK.sleep(0.4)
            await asyncio.wait(staying)
            stop.set()
        last = Reader(book)
        async with broker.join(Subscription(group, [topic]), last) as membership, asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(last.read(membership))
            await until(lambda: {value for *_, value in book.read} >= set(published))
            reading.cancel()
    assert not book.wrong
    assert len(published) > 200


async def test_a_commit_after_the_end_of_the_assignment_is_fenced(settings: KafkaSettings, topic: str) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker, KafkaBroker(settings, clock=CLOCK) as other:
        await broker.ensure_topics([Topic(topic, 1)])
        async with broker.join(Subscription(topic, [topic]), listening := RecordingListener()) as membership:
            await until(lambda: listening.has)
            assert isinstance(membership, KafkaMember)
            never = asyncio.Event()

            async def hang(_: object) -> None:
                await never.wait()

            membership._consumer.commit = hang  # type: ignore[union-attr]  # as aiokafka does while it tries again
            committing = asyncio.gather(membership.commit({Partition(topic, 0): 1}))
            async with other.join(Subscription(topic, [topic]), RecordingListener()):
                with pytest.raises(Fenced, match="the assignment was over"):
                    await CLOCK.within(WITHIN_S, committing)


async def test_fetched_records_are_not_returned_under_another_assignment(settings: KafkaSettings, topic: str) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker, KafkaBroker(settings, clock=CLOCK) as other:
        await broker.ensure_topics([Topic(topic, 1)])
        place = Partition(topic, 0)
        async with broker.join(Subscription(topic, [topic]), listening := RecordingListener()) as membership:
            await until(lambda: listening.has)
            assert isinstance(membership, KafkaMember)
            for _ in range(20):  # each gives up before anything can have come
                assert await membership.poll([place], records_max=5, timeout_s=0) == []
            assert len(membership._prefetch._gets) == 1
            await broker.publish([event(topic, "k", f"{n}") for n in range(20)])
            while place not in membership._prefetch:
                membership._prefetch.request([place], 5)
                await CLOCK.sleep(0.01)
            async with other.join(Subscription(topic, [topic]), second := RecordingListener()):
                await until(lambda: listening.partitions_of("revoked"))
                await until(lambda: listening.has or second.has)
            await until(lambda: listening.has)
            offsets: list[int] = []
            while len(offsets) < 20:
                offsets += [r.offset for r in await membership.poll([place], records_max=20, timeout_s=1)]
            assert offsets == list(range(20))


async def test_leaving_while_everything_is_being_given_up_gives_it_up_once(settings: KafkaSettings, topic: str) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker, KafkaBroker(settings, clock=CLOCK) as other:
        await broker.ensure_topics([Topic(topic, 2)])
        leave = asyncio.Event()
        first = RecordingListener()

        async def stay() -> None:
            async with broker.join(Subscription(topic, [topic]), first):
                await leave.wait()

        async with asyncio.TaskGroup() as tasks:
            staying = tasks.create_task(stay())
            await until(lambda: len(first.has) == 2)
            first.may_let_go.clear()
            async with other.join(Subscription(topic, [topic]), second := RecordingListener()):
                await until(lambda: first.partitions_of("revoked"))
                leave.set()
                await CLOCK.sleep(0.2)
                assert not staying.done()
                assert not second.has
                first.may_let_go.set()
                await until(lambda: len(second.has) == 2)
        assert [what for what, _ in first.calls] == ["assigned", "revoked"]


async def test_a_member_that_leaves_while_its_broken_consumer_ends_leaves_nothing_behind(
    settings: KafkaSettings, topic: str
) -> None:
    """Its heartbeats would keep its partitions for as long as the process lives."""
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 2)])
        before, stops = asyncio.all_tasks(), asyncio.Event()
        async with broker.join(Subscription(topic, [topic]), listener := RecordingListener()) as member:
            assert isinstance(member, KafkaMember)
            await until(lambda: len(listener.has) == 2)
            consumer: Any = member._consumer

            async def stop() -> None:  # waits for brokers that do not answer
                consumer._closed = True
                stops.set()
                await asyncio.get_running_loop().create_future()

            consumer.stop = stop
            consumer._client._sync_task.cancel()
            await CLOCK.within(WITHIN_S, stops.wait())
        await until(lambda: asyncio.all_tasks() <= before)  # connections end in the next turns of the loop
        async with broker.join(Subscription(topic, [topic]), listener := RecordingListener()):
            await until(lambda: len(listener.has) == 2)


async def test_a_member_whose_task_is_cancelled_again_and_again_leaves_nothing_behind(
    settings: KafkaSettings, topic: str
) -> None:
    """As the cancel scopes of anyio do, in which web servers run their requests."""
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 2)])
        before, listener = asyncio.all_tasks(), RecordingListener()

        async def stay() -> None:
            async with broker.join(Subscription(topic, [topic]), listener):
                await asyncio.get_running_loop().create_future()

        staying = asyncio.get_running_loop().create_task(stay())
        await until(lambda: len(listener.has) == 2)
        while not staying.done():
            staying.cancel()
            await CLOCK.sleep(0)
        assert staying.cancelled()
        await until(lambda: asyncio.all_tasks() <= before)
        async with broker.join(Subscription(topic, [topic]), listener := RecordingListener()):
            await until(lambda: len(listener.has) == 2)


async def test_a_member_that_leaves_during_a_rebalance_is_not_waited_for(settings: KafkaSettings, topic: str) -> None:
    patient = replace(settings, rebalance_s=30, session_s=20)
    leave, first, slow, third = asyncio.Event(), RecordingListener(), RecordingListener(), RecordingListener()
    async with (
        KafkaBroker(patient, clock=CLOCK) as broker,
        KafkaBroker(patient, clock=CLOCK) as other,
        asyncio.TaskGroup() as tasks,
    ):
        await broker.ensure_topics([Topic(topic, 3)])

        async def stay() -> None:
            async with broker.join(Subscription(topic, [topic]), first):
                await leave.wait()

        staying = tasks.create_task(stay())
        await until(lambda: len(first.has) == 3)
        async with other.join(Subscription(topic, [topic]), slow):
            await until(lambda: first.has and slow.has)
            slow.may_let_go.clear()
            async with other.join(Subscription(topic, [topic]), third):
                await until(
                    lambda: slow.partitions_of("revoked") and not first.has
                )  # the first has to wait for the slow one
                leave.set()
                await CLOCK.within(WITHIN_S, asyncio.wait([staying]))
                slow.may_let_go.set()
                began_s = CLOCK.monotonic_s()
                await until(lambda: len(slow.has) + len(third.has) == 3)
                assert CLOCK.monotonic_s() - began_s < 15  # less than the wait for a member that is away


async def test_a_position_never_goes_back_within_an_assignment(settings: KafkaSettings, topic: str) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        place = Partition(topic, 0)
        for offset in (5, 3):
            async with broker.join(Subscription(topic, [topic]), listening := RecordingListener()) as membership:
                await until(lambda: listening.has)
                await membership.commit({place: offset})
        async with broker.join(Subscription(topic, [topic]), listening := RecordingListener()):
            await until(lambda: listening.has)
            assert listening.has == {place: 5}


async def test_an_error_of_the_listener_reaches_who_polls(settings: KafkaSettings, topic: str) -> None:
    class Bad(RecordingListener):
        async def on_assigned(self, partitions: Mapping[Partition, int]) -> None:
            raise ArithmeticError("of the listener")

    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        async with broker.join(Subscription(topic, [topic]), Bad()) as membership:
            with pytest.raises(ArithmeticError, match="of the listener"):
                await CLOCK.within(WITHIN_S, membership.poll([], records_max=1, timeout_s=60))


async def test_a_listener_that_does_not_let_go_in_time_loses_what_it_has(settings: KafkaSettings, topic: str) -> None:
    quick = KafkaSettings(
        servers=settings.servers, replication_factor=1, min_insync_replicas=1, heartbeat_s=0.2, rebalance_s=3.5
    )
    async with KafkaBroker(quick, clock=CLOCK) as broker, KafkaBroker(quick, clock=CLOCK) as other:
        await broker.ensure_topics([Topic(topic, 2)])
        async with broker.join(Subscription(topic, [topic]), slow := RecordingListener()):
            await until(lambda: len(slow.has) == 2)
            slow.may_let_go.clear()
            async with other.join(Subscription(topic, [topic]), second := RecordingListener()):
                await until(lambda: second.has)
                assert slow.partitions_of("lost") == {Partition(topic, 0), Partition(topic, 1)}
                await until(lambda: len(slow.has) == 1)
            slow.may_let_go.set()


async def test_how_far_behind_a_member_is(settings: KafkaSettings, topic: str) -> None:
    async with KafkaBroker(settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        await broker.publish([event(topic, "k", f"{n}") for n in range(10)])
        async with broker.join(Subscription(topic, [topic]), listening := RecordingListener()) as membership:
            assert membership.lag() is None
            await until(lambda: listening.has)
            place = Partition(topic, 0)
            while not (records := await membership.poll([place], records_max=4, timeout_s=0.05)):
                pass
            assert len(records) == 4
            assert membership.lag() == {place: 6}


async def test_partitions_added_to_a_topic_are_reported_read_and_written_by_running_members(
    settings: KafkaSettings, topic: str
) -> None:
    quick = replace(settings, metadata_s=1)
    async with KafkaBroker(quick, clock=CLOCK) as broker, KafkaAdministration(settings, clock=CLOCK) as admin:
        await broker.ensure_topics([Topic(topic, 1)])
        async with broker.join(Subscription(topic, [topic]), listening := RecordingListener()) as membership:
            await until(lambda: listening.has)
            await broker.publish([event(topic, "k", "before")])
            await admin.add_partitions(topic, 4)
            await until(lambda: len(listening.has) == 4)
            await until(lambda: listening.added == [(topic, 1, 4)])
            keys, read = [f"k{n}" for n in range(40)], list[Record]()
            while len({record.partition for record in read}) < 4:
                await broker.publish([event(topic, key, "after") for key in keys])
                read += await membership.poll(list(listening.has), records_max=500, timeout_s=1)
            assert listening.added == [(topic, 1, 4)]
    assert KafkaSettings(servers=("kafka:9092",)).metadata_s <= 15, "seen within 30 s, with a rebalance"
