"""Members of a group on Kafka that have an id: while they are away for a moment, their place in the group is kept."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.broker import KafkaBroker
from saga.broker.kafka.membership import DuplicateInstance, KafkaMember
from saga.broker.port import Subscription
from saga.errors import BrokerError
from saga.messages import Partition, Topic
from saga.testing.conformance.broker_suite import RecordingListener, event, values
from saga.testing.trials import TrialClock
from tests.broker.waiting import CLOCK, until


@pytest.fixture
def settings(kafka_settings: KafkaSettings) -> KafkaSettings:
    return kafka_settings


@pytest.fixture
async def topic(kafka_settings: KafkaSettings, kafka_topic: str) -> str:
    """Topic of four partitions; also the name of the group."""
    async with KafkaBroker(kafka_settings, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(kafka_topic, 4)])
    return kafka_topic


@dataclass
class Process:
    """A process, as much of one as a group sees."""

    broker: KafkaBroker
    member: KafkaMember
    listening: RecordingListener

    @property
    def generation(self) -> int:
        """Times that the group has moved partitions, as far as this member knows."""
        assert self.member._consumer is not None
        return int(self.member._consumer._coordinator.generation)


@asynccontextmanager
async def running(
    settings: KafkaSettings, instance: str, group: str, topics: Collection[str] = ()
) -> AsyncIterator[Process]:
    listening = RecordingListener()
    async with (
        KafkaBroker(replace(settings, instance=instance), clock=CLOCK) as broker,
        broker.join(Subscription(group, list(topics) or [group]), listening) as membership,
    ):
        assert isinstance(membership, KafkaMember)
        yield Process(broker, membership, listening)


@asynccontextmanager
async def two(
    settings: KafkaSettings, topic: str, instances: Sequence[str], *, goes: int
) -> AsyncIterator[tuple[Process, AsyncExitStack, Process]]:
    """Two members: the one that is to go, with its end, and the one that stays. The first of the two leads the
    group."""
    async with AsyncExitStack() as all_, AsyncExitStack() as going:
        stacks = [going, all_] if goes == 0 else [all_, going]
        processes: list[Process] = []
        for stack, instance in zip(stacks, instances, strict=True):
            process = await stack.enter_async_context(running(settings, instance, topic))
            await until(lambda: process.listening.has)  # noqa: B023 - waited for here
            processes.append(process)
        await until(lambda: all(len(process.listening.has) == 2 for process in processes))
        yield processes[goes], going, processes[1 - goes]


async def work(process: Process, found: list[str]) -> None:
    """Read and commit, until cancelled."""
    while True:
        try:
            records = await process.member.poll(list(process.listening.has), records_max=5, timeout_s=0.05)
            found += values(records)
            await process.member.commit({Partition(r.topic, r.partition): r.offset + 1 for r in records})
        except BrokerError:  # what it has is taken from it just now
            await CLOCK.sleep(0.05)


# -------------------------------------------------------------------- coming back in time


@pytest.mark.parametrize(
    ("goes", "leave_s"),
    [(0, 5.0), (1, 5.0), (1, 0.0)],
    ids=["who leads", "who follows", "who is ended by force, as when it waits for others that give up"],
)
async def test_a_restarted_static_member_keeps_its_partitions_without_a_rebalance(
    settings: KafkaSettings, topic: str, goes: int, leave_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saga.broker.kafka.membership.LEAVE_S", leave_s)
    async with two(settings, topic, ["one-0", "one-1"], goes=goes) as (first, going, other):
        had, generation = set(first.listening.has), first.generation
        heard = list(other.listening.calls)
        await going.aclose()
        what, last = first.listening.calls[-1]
        assert (what, set(last)) == ("revoked", had)  # what ran there could end
        async with running(settings, f"one-{goes}", topic) as again:
            await until(lambda: again.listening.has)
            assert set(again.listening.has) == had
            assert again.generation == other.generation == generation
            await other.member.commit({next(iter(other.listening.has)): 0})
            assert other.listening.calls == heard


async def test_without_an_id_the_others_have_the_partitions_of_who_stops(settings: KafkaSettings, topic: str) -> None:
    async with two(settings, topic, ["", ""], goes=0) as (_, going, other):
        await going.aclose()
        await CLOCK.within(settings.session_s / 2, until(lambda: len(other.listening.has) == 4))
        assert other.listening.partitions_of("revoked")


async def test_records_published_during_a_static_members_restart_are_read_once_by_it(
    settings: KafkaSettings, topic: str
) -> None:
    before, meanwhile = ([f"{when} {n}" for n in range(40)] for when in ("before", "meanwhile"))
    found: list[str] = []
    async with (
        two(settings, topic, ["one-0", "one-1"], goes=0) as (first, going, other),
        asyncio.TaskGroup() as tasks,
    ):
        working = [tasks.create_task(work(process, found)) for process in (first, other)]
        await other.broker.publish([event(topic, text, text) for text in before])
        await until(lambda: len(found) == len(before))
        working.pop(0).cancel()
        await going.aclose()
        await other.broker.publish([event(topic, text, text) for text in meanwhile])
        async with running(settings, "one-0", topic) as again:
            theirs: list[str] = []
            working.append(tasks.create_task(work(again, theirs)))
            await until(lambda: {*found, *theirs} >= {*before, *meanwhile})
            for task in working:
                task.cancel()
    assert theirs
    assert sorted(found + theirs) == sorted(before + meanwhile)


@pytest.mark.parametrize("broken", ["_coordinator._coordination_task", "_client._sync_task"])
async def test_a_client_that_breaks_is_replaced_without_the_others_hearing_of_it(
    settings: KafkaSettings, topic: str, broken: str
) -> None:
    async with two(settings, topic, ["one-0", "one-1"], goes=0) as (first, _, other):
        had, generation, heard = set(first.listening.has), first.generation, list(other.listening.calls)
        owner, _, task = broken.partition(".")
        getattr(getattr(first.member._consumer, owner), task).cancel()
        await until(lambda: first.listening.partitions_of("lost"))
        await until(lambda: first.listening.has)
        assert set(first.listening.has) == had
        assert first.generation == other.generation == generation
        assert other.listening.calls == heard


# -------------------------------------------------------------------- not coming back, or as another


async def test_a_static_member_absent_longer_than_its_session_loses_its_partitions(
    settings: KafkaSettings, topic: str
) -> None:
    short = replace(settings, session_s=2)
    async with two(short, topic, ["one-0", "one-1"], goes=0) as (_, going, other):
        await going.aclose()
        await until(lambda: len(other.listening.has) == 4)


async def test_a_static_member_that_returns_with_another_topic_is_assigned_its_partitions(
    settings: KafkaSettings, topic: str
) -> None:
    short, new = replace(settings, session_s=2), f"{topic}.new"
    async with running(short, "one-0", topic) as first:
        await first.broker.ensure_topics([Topic(new, 2)])
        await until(lambda: len(first.listening.has) == 4)
    async with running(short, "one-0", topic, [topic, new]) as again:
        await until(lambda: len(again.listening.has) == 6)


# -------------------------------------------------------------------- one id twice


async def test_two_processes_with_one_id_are_reported_and_lose_nothing(
    settings: KafkaSettings, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    published = {f"{n}" for n in range(60)}
    found: list[str] = []
    async with running(settings, "one-0", topic) as first, asyncio.TaskGroup() as tasks:
        await until(lambda: first.listening.has)
        working = [tasks.create_task(work(first, found))]
        async with running(settings, "one-0", topic) as rival:
            working.append(tasks.create_task(work(rival, found)))
            for text in sorted(published):
                await rival.broker.publish([event(topic, text, text)])
                await CLOCK.sleep(0.02)
            await until(lambda: "another process has SAGA_KAFKA_INSTANCE=one-0 too" in caplog.text)
            working.pop().cancel()
        await until(lambda: set(found) == published)
        working.pop().cancel()


@pytest.mark.parametrize(
    ("instance", "every_s", "is_logged"), [("one-0", 0.5, True), ("one-0", 10, False), ("", 0.5, False)]
)
async def test_only_what_silence_does_not_explain_is_taken_for_another_process(
    caplog: pytest.LogCaptureFixture, instance: str, every_s: float, is_logged: bool
) -> None:
    clock = TrialClock()
    duplicate_instance = DuplicateInstance("payment", instance, 10, clock)
    for _ in range(9):
        duplicate_instance.record_forgotten()
        await clock.sleep(every_s)
    assert len(caplog.records) == is_logged  # once
