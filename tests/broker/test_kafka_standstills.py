"""Records that cannot be read: they are reported again under another assignment; no broker is needed for this."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from saga.broker.kafka import client, fetching
from saga.broker.kafka.access import KafkaAccess
from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.consumers import OwnedPartition
from saga.broker.kafka.fetching import FetchFailure, IsolatingFetcher, Prefetch
from saga.broker.kafka.membership import KafkaMember
from saga.broker.port import Subscription
from saga.messages import Partition, Record, StalledPartition
from saga.testing.conformance.broker_suite import RecordingListener
from tests.broker.waiting import CLOCK, until

PLACE = TopicPartition("orders", 0)


class StandstillReports:
    """Standstills, each time that they were different."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self.lists: list[list[StalledPartition]] = []
        self.fetching = IsolatingFetcher(consumer, CLOCK, lambda: self.lists.append(self.fetching.stalled_partitions()))

    def stands(self, consumer: AIOKafkaConsumer) -> None:
        """The partition, at offset 5."""
        assignment = consumer._subscription.subscription.assignment
        self.fetching._stall(assignment, PLACE, FetchFailure(5, "damaged"))


@pytest.fixture
async def consumer() -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(bootstrap_servers="127.0.0.1:9")
    consumer.assign([PLACE])
    yield consumer
    await consumer.stop()


async def test_a_stalled_partition_is_reported_as_over_when_the_assignment_ends_and_again_under_the_next_one(
    consumer: AIOKafkaConsumer,
) -> None:
    reports, stands = StandstillReports(consumer), [StalledPartition("orders", 0, 5, "damaged")]
    reports.stands(consumer)
    reports.stands(consumer)
    assert reports.lists == [stands], "news only"
    reports.fetching.begin()
    reports.fetching.begin()
    assert reports.lists == [stands, []]
    reports.stands(consumer)
    assert reports.lists == [stands, [], stands]
    await reports.fetching.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


class Raising:
    """A consumer that gives nothing but exceptions, as long as `why` says one."""

    def __init__(self) -> None:
        self.why: Exception | None = RuntimeError("unforeseen")
        self.sought: list[tuple[TopicPartition, int]] = []

    async def getmany(self, *_: object, **__: object) -> dict[TopicPartition, list[object]]:
        if self.why is not None:
            raise self.why
        return {}

    def assignment(self) -> set[TopicPartition]:
        return {PLACE}

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.sought.append((place, offset))


class Giving(Raising):
    """A consumer that gives one record of the partition, at this offset, when it is let."""

    def __init__(self, offset: int) -> None:
        super().__init__()
        self.may = asyncio.Event()
        self._record = Record("orders", 0, offset, b"k", b"v", (), 0)

    async def getmany(self, *_: object, **__: object) -> dict[TopicPartition, list[object]]:
        await self.may.wait()
        return {PLACE: [self._record]}


async def test_records_fetched_without_an_assignment_do_not_count_for_the_next_one() -> None:
    """Another member may have had the partition meanwhile, and these records be handled already."""
    place, giving = Partition(*PLACE), Giving(5)
    taken = Prefetch("payment", CLOCK, lambda: None)
    taken.begin(giving)
    taken.start({place: 5})
    taken.request([place], 10)
    taken.forget()
    giving.may.set()
    await until(lambda: not taken._gets)
    assert place in taken, "it was under way"
    taken.start({place: 8})
    assert place not in taken
    assert taken._ends == {place: 8}
    await taken.end()


async def test_a_partition_that_only_raises_is_reported_as_stalled_at_once_and_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetching, "REST_S", 0.001)
    place, reported, raising = Partition(*PLACE), list[bool](), Raising()
    taken = Prefetch("payment", CLOCK, lambda: reported.append(bool(taken.standstills)))
    taken.begin(raising)
    taken.start({place: 5})
    for _ in range(3):
        taken.request([place], 10)
        await until(lambda: not taken._gets)
    assert reported == [True], "news only"
    raising.why = None
    taken.request([place], 10)
    await until(lambda: not taken._gets)
    assert reported == [True, False]
    raising.why = RuntimeError("again")
    taken.request([place], 10)
    taken.start({})  # meanwhile another member has the partition
    await until(lambda: not taken._gets)
    assert reported == [True, False]
    assert not taken.standstills
    await taken.end()


@pytest.mark.parametrize(("begin", "end"), [(9, 20), (0, 3)], ids=["expired", "lost"])
async def test_a_member_with_a_new_offset_to_read_from_does_not_go_back_when_a_fetch_fails(
    consumer: AIOKafkaConsumer, monkeypatch: pytest.MonkeyPatch, begin: int, end: int
) -> None:
    """Or the partition would be out of range again, and the same records be reported twice."""

    async def bounds(*_: object) -> dict[TopicPartition, tuple[int, int]]:
        return {PLACE: (begin, end)}

    monkeypatch.setattr(client, "fetch_bounds", bounds)
    settings, place, listening = KafkaSettings(servers=("127.0.0.1:9",)), Partition(*PLACE), RecordingListener()
    member = KafkaMember(Subscription("payment", ["orders"]), listening, settings, KafkaAccess(settings), CLOCK)
    member._owned = {place: OwnedPartition(5, 5, asyncio.get_running_loop().create_future())}
    raising, fetching = Raising(), IsolatingFetcher(consumer, CLOCK, lambda: None)
    member._prefetch.begin(raising)
    member._prefetch.start({place: 5})
    fetching.out_of_range[PLACE] = 5
    await member._resolve_out_of_range(consumer, fetching)
    assert listening.expired == ({place: [range(5, 9)]} if begin else {})
    assert listening.has == ({} if begin else {place: 0})
    assert consumer._subscription.subscription.assignment.state_value(PLACE).position == begin
    member._prefetch.request([place], 10)
    await until(lambda: not member._prefetch._gets)
    assert raising.sought == [(PLACE, begin)]
    await member._prefetch.end()
    await fetching.close()
