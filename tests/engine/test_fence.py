"""How far the log has been handled, saga by saga: what a deadline waits for."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from saga.broker.port import partition_of
from saga.engine.consumer.deadline_fence import AGAIN_S, PENDING_MAX, TELL_EVERY_S, DeadlineFence
from saga.engine.consumer.keyed_executor import KeyedExecutor, WorkItem
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.consumer.sources import WorkerSources
from saga.engine.consumer.worker_ports import WorkerAssignment
from saga.engine.outage_watch import OutageWatch
from saga.errors import BrokerError, BrokerUnavailable
from saga.messages import Message, Partition, Position, StalledPartition
from saga.messaging.timers import SagaTimer, tiers_of
from saga.telemetry.events import DeadlineBehindLog, DeadlinePassedLog, TelemetryEvent, Unavailable
from tests.engine.test_waiting_timers import NOW_MS, Standing
from tests.progress.pieces import a_message

COUNT = 4
SAGA = "order-1"
NUMBER = partition_of(SAGA.encode(), COUNT)
ORDERS, BILLS = Partition("orders", NUMBER), Partition("bills", NUMBER)
ALL = [Partition(topic, number) for topic in ("orders", "bills", "order.wake.now") for number in range(COUNT)]


@dataclass
class Member:
    """A membership as far as it is asked: it tells what it is given to tell."""

    clear_in_progress: dict[Partition, int | None] = field(default_factory=lambda: dict.fromkeys(ALL, 0))
    read: dict[Partition, int] = field(default_factory=dict)
    committed: dict[Partition, int] = field(default_factory=dict)
    still: list[StalledPartition] = field(default_factory=list)
    failure: BrokerError | None = None
    asked: int = 0

    topics = ("orders", "bills", "order.wake.now")

    def polled_offsets(self) -> Mapping[Partition, int]:
        return self.read

    async def fetch_ends(self) -> Mapping[Partition, int | None]:
        self.asked += 1
        await asyncio.sleep(0)  # noqa: TID251 - a question takes its way
        if self.failure is not None:
            raise self.failure
        return dict(self.clear_in_progress)

    async def fetch_positions(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        if self.failure is not None:
            raise self.failure
        return {p: self.committed[p] for p in partitions if p in self.committed}

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        return self.still


@dataclass
class Place:
    clock: Standing
    member: Member
    fence: DeadlineFence
    assignment: WorkerAssignment
    lanes: KeyedExecutor
    moments: list[TelemetryEvent]

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    async def is_handled(self, saga: str = SAGA, due_ms: int | None = None) -> bool:
        due_ms = self.now_ms if due_ms is None else due_ms
        return await self.fence.handled_ms(saga, due_ms) >= due_ms

    def take(self, partition: Partition, offset: int) -> None:
        self.assignment.trackers[partition].begin(offset)


def a_place(tasks: Any = None, *, owned: Collection[Partition] = ALL) -> Place:
    clock, member, moments = Standing(), Member(), list[TelemetryEvent]()
    assignment = WorkerAssignment(OutageWatch("order", clock, moments.append))
    assignment.trackers.update({partition: OffsetTracker(0) for partition in owned})
    lanes: KeyedExecutor = KeyedExecutor(tasks, _take, _take)
    joined: Any = [(member, member)]
    sources = WorkerSources([], joined)
    fence = DeadlineFence(clock, ("orders", "bills"), sources, assignment, lanes, tiers_of("order"))
    assignment.fence = fence
    return Place(clock, member, fence, assignment, lanes, moments)


async def _take(item: WorkItem) -> bool:
    await asyncio.Event().wait()
    return True


async def test_with_the_whole_log_read_one_request_of_log_ends_serves_all_sagas() -> None:
    place = a_place()
    assert await place.is_handled()
    assert all([await place.is_handled(f"order-{n}", place.now_ms - n) for n in range(50)])
    assert place.member.asked == 1


async def test_lanes_that_ask_at_once_share_one_question() -> None:
    place = a_place()
    due_ms = place.now_ms
    found = await asyncio.gather(*(place.is_handled(f"order-{n}", due_ms) for n in range(20)))
    assert all(found)
    assert place.member.asked == 1


async def test_a_deadline_waits_for_records_before_its_due_time_and_for_no_later_ones() -> None:
    place = a_place()
    place.member.clear_in_progress[BILLS] = 3
    due_ms = place.now_ms
    assert not await place.is_handled(due_ms=due_ms)
    for offset in range(2):
        place.take(BILLS, offset)
    assert not await place.is_handled(due_ms=due_ms)
    place.member.clear_in_progress[BILLS] = 9
    place.take(BILLS, 2)
    assert await place.is_handled(due_ms=due_ms)
    await place.clock.forward(1)
    assert not await place.is_handled(), "another time is another question"


async def test_only_the_partitions_of_the_saga_count() -> None:
    place = a_place()
    place.member.clear_in_progress[Partition("orders", (NUMBER + 1) % COUNT)] = 5
    place.member.clear_in_progress[Partition("order.wake.now", NUMBER)] = 5
    assert await place.is_handled()
    await place.clock.forward(1)
    place.assignment.scattered.add("orders")
    assert not await place.is_handled(), "its messages may lie in each of them"


async def test_the_end_of_a_transaction_is_read_though_no_record_comes_of_it() -> None:
    place = a_place()
    place.member.clear_in_progress[ORDERS] = 2
    place.member.read[ORDERS] = 2
    assert await place.is_handled()


async def test_for_a_partition_of_another_worker_the_committed_offset_of_the_group_counts() -> None:
    place = a_place(owned=[p for p in ALL if p != BILLS])
    place.member.clear_in_progress[BILLS] = 2
    place.member.committed[BILLS] = 1
    due_ms = place.now_ms
    assert not await place.is_handled(due_ms=due_ms)
    place.member.committed[BILLS] = 2
    assert not place.fence.is_handled(SAGA, due_ms)
    await place.fence.refresh_positions()
    assert place.fence.is_handled(SAGA, due_ms)
    assert await place.is_handled(due_ms=due_ms)


async def test_records_read_from_a_lost_partition_no_longer_count() -> None:
    place = a_place()
    due_ms = place.now_ms
    assert await place.is_handled(due_ms=due_ms)
    place.assignment.let_go([ORDERS])
    place.fence.forget([ORDERS])
    place.member.clear_in_progress[ORDERS], place.member.committed[ORDERS] = 1, 0
    assert not await place.is_handled(due_ms=due_ms)


async def test_a_partition_that_goes_while_the_ends_are_asked_for_is_asked_for_again() -> None:
    place = a_place()
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(place.is_handled())
        await asyncio.sleep(0)  # noqa: TID251 - it is on its way
        place.fence.forget([ORDERS])
    assert not asking.result()
    assert await place.is_handled()
    place.fence.forget([ORDERS])
    assert not place.fence.has_ends_since(place.now_ms)


async def test_a_message_of_the_saga_that_was_taken_and_waits_behind_goes_before() -> None:
    async with asyncio.TaskGroup() as tasks:
        place = a_place(tasks)
        async with place.lanes:
            a = a_message("A")
            now_s, prefix = place.clock.passed_s, place.assignment.trackers[ORDERS]
            for offset in range(2):
                place.take(ORDERS, offset)
                place.lanes.add(WorkItem(a, Position(*ORDERS, offset), prefix, now_s))
            await asyncio.sleep(0)  # noqa: TID251 - the first one is in hand
            place.member.clear_in_progress[ORDERS] = 2
            saga = a.saga
            assert place.lanes.has_saga(saga)
            partition = Partition("orders", partition_of(saga.encode(), COUNT))
            assert not await place.fence.handled_ms(saga, place.now_ms)
            if partition == ORDERS:
                assert place.fence.is_handled(saga, place.now_ms), "a turn that begins behind it finds it in its place"
            for lane in [place.lanes._queues[saga]]:
                lane.waiting.clear()
                assert await place.fence.handled_ms(saga, place.now_ms)
                wake = SagaTimer(**{f: getattr(a, f) for f in Message.__struct_fields__} | {"due_ms": 1})
                lane.waiting.append(WorkItem(wake, Position("order.wake.now", 0, 0), prefix, now_s))
                assert await place.fence.handled_ms(saga, place.now_ms), "a wake closes nothing"
                lane.waiting.clear()
            await place.lanes.drain(0)


async def test_a_message_that_yields_goes_before() -> None:
    place = a_place()
    place.fence.is_low_priority = {SAGA}.__contains__
    assert not await place.is_handled()
    assert await place.is_handled("order-2")


async def test_an_unreadable_record_blocks_no_deadline_and_is_reported_once() -> None:
    place = a_place()
    place.member.clear_in_progress[BILLS] = 5
    place.member.still = [StalledPartition(*BILLS, 0, "it is damaged")]
    due_ms = place.now_ms
    assert await place.is_handled(due_ms=due_ms)
    assert await place.is_handled(due_ms=due_ms)
    (reported,) = [moment for moment in place.moments if isinstance(moment, DeadlinePassedLog)]
    assert (reported.saga, reported.topic, reported.partition) == (SAGA, *BILLS)


async def test_a_hidden_topic_and_a_partition_without_a_leader_block_no_deadline() -> None:
    place = a_place()
    place.member.clear_in_progress[BILLS] = 5
    place.member.still = [StalledPartition("bills", None, None, "hidden")]
    place.member.clear_in_progress[ORDERS] = None
    assert await place.is_handled()
    place.member.still = []
    place.member.clear_in_progress[ORDERS] = 0
    await place.clock.forward(1)
    assert not await place.is_handled()


async def test_while_no_broker_answers_nothing_is_handled_and_it_is_asked_again_after_a_pause() -> None:
    place = a_place()
    for failure in (BrokerUnavailable("away"), BrokerError("refused")):
        place.member.failure = failure
        assert not await place.is_handled()
        asked = place.member.asked
        assert not await place.is_handled()
        await place.fence.refresh_positions()
        assert place.member.asked == asked
        place.member.failure = None
        await place.clock.forward(AGAIN_S)
    assert await place.is_handled()
    assert any(isinstance(moment, Unavailable) for moment in place.moments)


async def test_a_position_that_cannot_be_asked_for_is_asked_for_again() -> None:
    place = a_place(owned=[p for p in ALL if p != BILLS])
    place.member.clear_in_progress[BILLS] = 2
    due_ms = place.now_ms
    assert not await place.is_handled(due_ms=due_ms)
    place.member.failure = BrokerUnavailable("away")
    await place.fence.refresh_positions()
    place.member.failure, place.member.committed[BILLS] = None, 2
    await place.fence.refresh_positions()
    assert not place.fence.is_handled(SAGA, due_ms)
    await place.clock.forward(AGAIN_S)
    await place.fence.refresh_positions()
    assert place.fence.is_handled(SAGA, due_ms)


async def test_a_date_that_was_ahead_proves_nothing_about_the_time_after() -> None:
    place = a_place()
    place.clock.wrong_s = 86_400
    assert await place.is_handled()
    place.clock.wrong_s = 0
    await place.clock.forward(10)
    place.member.clear_in_progress[BILLS] = 1
    assert not await place.is_handled(), "the log was looked at ten seconds ago, whatever the date was then"


async def test_a_clock_that_stood_still_proves_nothing_about_the_time_that_passed() -> None:
    place = a_place()
    assert await place.is_handled()
    place.clock.wrong_s = 3600  # the machine has slept
    place.member.clear_in_progress[BILLS] = 1
    assert not await place.is_handled()


async def test_ends_that_are_noted_are_bounded_and_the_first_ones_stay() -> None:
    place = a_place()
    due = []
    for n in range(2 * PENDING_MAX):
        place.member.clear_in_progress[BILLS] = n + 1
        due.append(place.now_ms)
        assert not await place.is_handled()
        await place.clock.forward(1)
    place.take(BILLS, 0)
    assert await place.is_handled(due_ms=due[0])
    assert not await place.is_handled(due_ms=due[-1])
    assert max(map(len, place.fence._pending.values())) <= PENDING_MAX


async def test_the_partitions_that_deadlines_wait_for_are_reported_once_a_minute() -> None:
    place = a_place()
    place.member.clear_in_progress[BILLS] = 3
    assert not await place.is_handled()
    place.take(BILLS, 0)
    for _ in range(2):
        place.fence.report_behind([SAGA])
    (reported,) = [moment for moment in place.moments if isinstance(moment, DeadlineBehindLog)]
    assert (reported.topic, reported.partition, reported.count) == (*BILLS, 2)
    await place.clock.forward(TELL_EVERY_S)
    place.fence.report_behind([SAGA])
    assert sum(isinstance(moment, DeadlineBehindLog) for moment in place.moments) == 2


def test_a_wake_is_at_home_where_the_partitions_of_its_saga_are() -> None:
    tiers = tiers_of("order")
    now, later = (next(t for t, tier in tiers.items() if (tier.seconds == 0) == is_now) for is_now in (True, False))
    place = a_place(owned=[ORDERS])
    place.fence._counts = {"orders": COUNT, "bills": COUNT}
    assert place.fence.is_at_home(SAGA, Position(now, 0, 0))
    assert not place.fence.is_at_home(SAGA, Position(later, 0, 0))
    place.assignment.trackers[BILLS] = OffsetTracker(0)
    assert place.fence.is_at_home(SAGA, Position(later, 0, 0))
    assert place.fence.is_at_home(SAGA, Position("orders", 0, 0))
    assert place.assignment.is_at_home(SAGA, Position(later, 0, 0))


async def test_a_worker_that_reads_no_log_knows_of_nothing_that_is_handled() -> None:
    assignment = WorkerAssignment(OutageWatch("order", Standing(), lambda moment: None))
    assert await assignment.handled_ms(SAGA, NOW_MS) == 0
    assert assignment.is_at_home(SAGA, Position("order.wake.1m", 0, 0))
