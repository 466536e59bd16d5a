"""Timers that wait in memory: until the delay of their tier has passed, then until they are due. No message is
blocked."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from saga import Service
from saga.engine.consumer import timers as holding
from saga.engine.consumer.committer import Committer
from saga.engine.consumer.flow_control import FlowControl, FlowLimits
from saga.engine.consumer.keyed_executor import KeyedExecutor, WorkItem
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.consumer.partition_listener import PartitionListener
from saga.engine.consumer.poll_loop import POLL_S, PollLoop, UnreadableRecords
from saga.engine.consumer.sources import WorkerSources
from saga.engine.consumer.timers import EARLY_S, LostTimers, TimerBuffer
from saga.engine.consumer.worker_ports import WorkerAssignment, make_worker_ports
from saga.engine.outage_watch import OutageWatch
from saga.engine.prepared_service import prepare
from saga.engine.service_runtime import make_service_runtime
from saga.errors import Fenced
from saga.messages import Partition, Position, Record
from saga.messaging.names import timer_topic
from saga.messaging.timers import TIERS, SagaTimer, parse_timer, timer_to_record
from saga.progress.actions import AwaitLog
from saga.support.clock import SystemClock
from services.payment.events import OrderPlaced

T = TypeVar("T")
NOWHERE: Any = None
NOW_MS = 1_795_270_000_000
TIER = {tier.name: tier for tier in TIERS}
P, Q = Partition("payment.wake.4m", 0), Partition("payment.wake.4m", 1)
SETTLING = 12
payment = Service("payment")


@payment.handler
async def reserve(order: OrderPlaced) -> None: ...


class Standing(SystemClock):
    """Clock that stands still until it is put forward."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.wrong_s = 0.0
        """Seconds that its date is ahead."""
        self.waits: list[tuple[float, asyncio.Timeout]] = []
        self.looked = 0
        """Number of waits that have begun."""

    def now_ms(self) -> int:
        return NOW_MS + round((self.passed_s + self.wrong_s) * 1000)

    def monotonic_s(self) -> float:
        return self.passed_s

    async def within(self, seconds: float, what: Awaitable[T]) -> T:
        self.looked += 1
        async with asyncio.timeout(None) as limit:
            wait = (self.passed_s + seconds, limit)
            self.waits.append(wait)
            try:
                return await what
            finally:
                self.waits.remove(wait)

    async def forward(self, seconds: float) -> None:
        self.passed_s += seconds
        for until_s, limit in self.waits:
            if until_s <= self.passed_s:
                limit.reschedule(asyncio.get_running_loop().time())
        await settled()


async def settled() -> None:
    """Let all that can go on go on."""
    for _ in range(SETTLING):
        await SystemClock().sleep(0)


@dataclass
class Place:
    """Wakes, lanes, and what took its turn when."""

    clock: Standing
    held: TimerBuffer
    lanes: KeyedExecutor
    assignment: WorkerAssignment
    tasks: asyncio.TaskGroup
    begun: list[tuple[float, int]] = field(default_factory=list)
    """Seconds that had passed, and the offset."""
    again: list[float] = field(default_factory=list)
    """Times at which a full partition could be read again."""
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    def add(  # what a wake may be like
        self,
        offset: int,
        left_s: float,
        *,
        tier: str = "4m",
        appended_s: float = 0,
        partition: Partition = P,
        saga: str = "",
    ) -> WorkItem:
        """A timer due in so many seconds, which was appended so many seconds ago. `saga`: not one of its own."""
        now_ms = NOW_MS + round(self.clock.passed_s * 1000)
        out = timer_to_record("payment", saga or f"order-{offset}", "wake-1", now_ms + round(left_s * 1000), now_ms)
        at = now_ms - round(appended_s * 1000)
        record = Record(*partition, offset, out.key, out.value, out.headers, at)
        prefix = self.assignment.trackers[partition]
        prefix.begin(offset)
        item = WorkItem(parse_timer(record), Position(*partition, offset), prefix, self.clock.monotonic_s())
        self.held.add(item, record, TIER[tier])
        return item

    @property
    def offsets(self) -> list[int]:
        return [offset for _, offset in self.begun]


@asynccontextmanager
async def a_place(*, inflight_max: int = 100, runs: bool = True) -> AsyncIterator[Place]:
    clock = Standing()

    async def take(item: WorkItem) -> bool:
        place.begun.append((clock.passed_s, item.position.offset))
        await place.may_end.wait()
        return True

    async with asyncio.TaskGroup() as tasks, KeyedExecutor(tasks, take, take) as lanes:
        assignment = WorkerAssignment(OutageWatch("payment", clock, lambda moment: None))
        assignment.trackers.update({P: OffsetTracker(0), Q: OffsetTracker(0)})
        held = TimerBuffer(clock, lanes, inflight_max, lambda: place.again.append(clock.passed_s))
        place = Place(clock, held, lanes, assignment, tasks)
        place.may_end.set()
        running = tasks.create_task(held.run()) if runs else None
        try:
            yield place
        finally:
            place.may_end.set()
            if running is not None:
                running.cancel()


# ---------------------------------------------------------------- until when


async def test_a_wake_lies_here_until_its_tier_has_passed_since_it_was_appended() -> None:
    async with a_place() as place:
        place.add(0, 900)
        place.add(1, 900, appended_s=100)
        assert (place.held.count(P), place.lanes.inflight) == (2, 0)
        await place.clock.forward(139.9)
        assert place.offsets == []
        await place.clock.forward(0.1)
        assert place.offsets == [1], "it is sent on in its turn"
        await place.clock.forward(100)
        assert place.begun == [(140, 1), (240, 0)]
        assert place.held.count(P) == 0


async def test_in_its_last_minute_a_timer_stays_in_memory_until_it_is_due() -> None:
    async with a_place() as place:
        place.add(0, 59.9, tier="now")
        place.add(1, 299, tier="4m")
        await place.clock.forward(59.8)
        assert place.offsets == []
        await place.clock.forward(0.1)
        assert place.offsets == [0]
        await place.clock.forward(240 - 59.9)
        assert (place.offsets, place.held.count(P)) == ([0], 1), "its tier has passed, and it is not due"
        await place.clock.forward(59)
        assert place.offsets == [0, 1]


async def test_a_timer_due_in_over_a_minute_after_its_tier_is_forwarded() -> None:
    async with a_place() as place:
        place.add(0, 300, tier="4m")
        place.add(1, 299, tier="4m")
        await place.clock.forward(240)
        assert (place.offsets, place.held.count(P)) == ([0], 1)


async def test_an_overdue_timer_is_delivered_at_once() -> None:
    async with a_place() as place:
        place.add(0, -1, tier="now")
        place.add(1, 0, tier="1d", appended_s=90_000)
        await settled()
        assert place.offsets == [0, 1]
        assert place.clock.looked == 0


async def test_the_earliest_is_released_first_whenever_it_came() -> None:
    async with a_place() as place:
        for offset, left_s in enumerate((30, 10, 50, 10)):
            place.add(offset, left_s, tier="now")
            await settled()
        await place.clock.forward(10)
        assert place.offsets == [1, 3]
        await place.clock.forward(40)
        assert place.offsets == [1, 3, 0, 2]


async def test_the_waiting_task_is_woken_for_an_earlier_timer_and_for_no_other() -> None:
    async with a_place() as place:
        place.add(0, 30, tier="now")
        await settled()
        assert place.clock.looked == 1
        place.add(1, 40, tier="now")
        await settled()
        assert place.clock.looked == 1
        place.add(2, 20, tier="now")
        await settled()
        assert place.clock.looked == 2
        await place.clock.forward(0.9)
        assert place.clock.looked == 2, "the date is read at most once a second"


async def test_the_date_is_looked_at_the_more_seldom_the_longer_there_is_to_wait() -> None:
    async with a_place() as place:
        place.add(0, 90_000, tier="1d")
        for _ in range(10):
            await place.clock.forward(1200)
        assert place.clock.looked <= 11


# ---------------------------------------------------------------- clocks that disagree


async def test_a_log_whose_clock_is_ahead_holds_a_wake_no_longer_than_its_tier() -> None:
    async with a_place() as place:
        place.add(0, 900, appended_s=-7200)
        await place.clock.forward(239)
        assert place.offsets == []
        await place.clock.forward(1)
        assert place.offsets == [0]


async def test_a_log_whose_clock_is_behind_does_not_have_a_wake_run_through_it_without_a_pause() -> None:
    async with a_place() as place:
        place.add(0, 900, appended_s=7200)
        await settled()
        assert (place.offsets, place.held.count(P)) == ([], 1)
        await place.clock.forward(EARLY_S - 0.1)
        assert place.offsets == []
        await place.clock.forward(0.1)
        assert place.offsets == [0]
        place.add(1, 60, appended_s=7200)
        await settled()
        assert place.held.count(P) == 1, "nor one that is due in a minute: only then it is held until it is due"
        await place.clock.forward(EARLY_S)
        assert (place.offsets, place.held.count(P)) == ([0], 1)


async def test_a_date_that_jumps_back_holds_a_wake_for_its_tier_and_then_until_it_is_due() -> None:
    async with a_place() as place:
        place.add(0, 250)
        place.clock.wrong_s = -20
        await place.clock.forward(240)
        assert place.offsets == [], "it is due in 30 seconds"
        await place.clock.forward(30)
        assert place.offsets == [0]


async def test_a_timer_in_a_tier_longer_than_its_delay_stays_in_memory_until_it_is_due() -> None:
    """A sender with another date put it there: its copy in the right place is handled, so it must not be late."""
    async with a_place() as place:
        place.add(0, 30, tier="1d", saga="order-1")
        place.add(1, 30, tier="now", saga="order-1")
        assert (place.held.count(P), place.assignment.trackers[P].unfinished) == (1, 1)
        await place.clock.forward(29)
        assert place.offsets == []
        await place.clock.forward(1)
        assert place.offsets == [0]
        place.add(2, -3600, tier="1d", saga="order-2")
        await settled()
        assert place.offsets == [0, 2], "what is overdue is not held at all"


async def test_a_date_that_jumps_ahead_releases_what_is_due_by_it_and_nothing_else() -> None:
    """As when the machine has slept: by the monotonic clock no time has passed."""
    async with a_place() as place:
        place.add(0, 90_000, tier="1d")
        place.add(1, 50, tier="now")
        place.add(2, 40_000, tier="6h")
        await settled()
        place.clock.wrong_s = 45_000
        await place.clock.forward(1)
        assert place.begun == [(1, 1), (1, 2)]
        await place.clock.forward(20_000)
        assert place.offsets == [1, 2], "its tier is as long as it was"
        place.clock.wrong_s = 70_000
        await place.clock.forward(1200)
        assert place.offsets == [1, 2, 0]
        place.add(3, 70_000 + 50, tier="now")
        place.clock.wrong_s = 70_000.9
        await place.clock.forward(49)
        assert place.offsets == [1, 2, 0], "a date that is put right by less than a second has not jumped"


async def test_a_date_that_jumps_back_and_half_of_it_ahead_again_has_jumped_ahead() -> None:
    async with a_place() as place:
        place.add(0, 3000)
        await settled()
        place.clock.wrong_s = -100
        await place.clock.forward(5)
        place.add(1, -45, tier="now")
        await settled()
        place.clock.wrong_s = -50
        await place.clock.forward(6)
        assert place.offsets == [1], "it was due in 55 seconds, and is so in 5"


# ---------------------------------------------------------------- partitions that go


async def test_waiting_timers_of_a_revoked_partition_are_dropped_and_no_others() -> None:
    async with a_place() as place:
        for offset, (partition, left_s) in enumerate(((P, 1), (P, 2), (Q, 9), (Q, 3), (Q, 4))):
            place.add(offset, left_s, tier="now", partition=partition)
        place.held.forget([P])
        assert (place.held.count(P), place.held.count(Q)) == (0, 3)
        for _ in range(9):
            await place.clock.forward(1)
        assert place.begun == [(3, 3), (4, 4), (9, 2)]


async def test_a_timer_of_a_partition_that_is_revoked_and_comes_back_waits_again_and_is_not_taken_for_a_copy() -> None:
    """Else its offset would be committed, and no worker would wait for it."""
    async with a_place() as place:
        place.add(0, 30, tier="now", saga="order-1")
        place.held.forget([P])
        place.assignment.trackers[P] = OffsetTracker(0)
        place.add(0, 30, tier="now", saga="order-1")
        assert (place.held.count(P), place.assignment.trackers[P].unfinished) == (1, 1)
        await place.clock.forward(30)
        assert place.offsets == [0]


async def test_a_full_partition_that_goes_and_comes_back_is_empty(monkeypatch: Any) -> None:
    monkeypatch.setattr(holding, "WAITING_MAX", 2)
    async with a_place() as place:
        place.add(0, 900)
        place.add(1, 900)
        assert place.held.full == {P}
        place.held.forget([P, Q])
        assert (place.held.full, place.held.count(P)) == (set(), 0)
        place.add(2, 900)
        assert place.held.full == set()


async def test_revoked_and_lost_partitions_take_their_waiting_timers_with_them() -> None:
    async with a_place() as place:
        watching = place.assignment.outage_watch
        cache: Any = {}
        commits = Committer(place.assignment, NOTHING, place.lanes.finished)
        timers: Any = None
        listener = PartitionListener(place.assignment, watching, place.lanes, place.held, cache, commits, 1000, timers)
        place.add(0, 10, tier="now")
        place.add(1, 10, tier="now", partition=Q)
        await listener.on_revoked([P])
        assert (place.held.count(P), place.held.count(Q)) == (0, 1)
        listener.on_lost([Q])
        await place.clock.forward(10)
        assert place.offsets == []


async def test_a_commit_that_was_refused_because_of_a_lost_partition_is_repeated_for_the_others() -> None:
    committed = asyncio.get_running_loop().create_future()

    class Group:
        topics = (P.topic,)

        def wake(self) -> None: ...

        async def commit(self, offsets: Mapping[Partition, int]) -> None:
            if Q in offsets:
                raise Fenced("somebody else's")
            committed.set_result(offsets)

    group: Any = Group()
    cache: Any = {}
    timers: Any = None
    async with a_place() as place:
        commits = Committer(place.assignment, WorkerSources([group], [(group, group)]), place.lanes.finished)
        watching = place.assignment.outage_watch
        listener = PartitionListener(place.assignment, watching, place.lanes, place.held, cache, commits, 1000, timers)
        for prefix in place.assignment.trackers.values():
            prefix.begin(0)
            prefix.finish(0)
        await commits.commit()
        assert not commits.due.is_set()
        running = place.tasks.create_task(commits.run())
        listener.on_lost([Q])
        assert await SystemClock().within(5, committed) == {P: 1}
        running.cancel()


async def test_revoked_and_lost_partitions_take_what_yields_with_them() -> None:
    gone = list[Partition]()

    class Noted:
        def forget(self, partitions: Collection[Partition]) -> None:
            gone.extend(partitions)

    yields: Any = Noted()
    async with a_place() as place:
        cache: Any = {}
        commits = Committer(place.assignment, NOTHING, place.lanes.finished)
        watching = place.assignment.outage_watch
        listener = PartitionListener(
            place.assignment, watching, place.lanes, place.held, cache, commits, 1000, yields, yields
        )
        await listener.on_revoked([P])
        listener.on_lost([Q])
        assert gone == [P, Q]


async def test_a_gap_that_is_found_before_a_partition_is_open_is_forgotten_if_the_partition_is_revoked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: Any = {}
    async with a_place() as place:
        commits, lost = Committer(place.assignment, NOTHING, place.lanes.finished), LostTimers(opened, None)
        listener = PartitionListener(
            place.assignment, place.assignment.outage_watch, place.lanes, place.held, opened, commits, 1000, lost
        )
        del place.assignment.trackers[P]
        await listener.on_assigned({P: 0})  # which waits for a broker for ever
        listener.on_expired(P, 0, 5)
        await listener.on_revoked([P])
        monkeypatch.setattr(Committer, "open_partitions", opens_at_once)
        await listener.on_assigned({P: 9})
        await SystemClock().sleep(0)
        assert (place.assignment.trackers[P].done, place.assignment.trackers[P].end) == (9, 9)


async def opens_at_once(*_: object) -> Collection[Partition]:
    return ()


class _Nothing:
    """No source to commit to."""

    joined: Sequence[Any] = ()

    async def commit(self, offsets: Any) -> None:
        assert not offsets

    async def mark_in_progress(self, offsets: Any) -> Any:
        return ()

    def wake(self) -> None:
        return None

    def log_id(self, partition: Partition) -> str:
        return ""


NOTHING: Any = _Nothing()


async def test_no_offset_is_committed_beyond_a_waiting_timer() -> None:
    async with a_place() as place:
        prefix = place.assignment.trackers[P]
        for offset, left_s in enumerate((5, 30, 10)):
            place.add(offset, left_s, tier="now")
        await place.clock.forward(5)
        assert (place.offsets, prefix.offset_to_commit()) == ([0], 1)
        prefix.acknowledge(1)
        await place.clock.forward(5)
        assert (place.offsets, prefix.offset_to_commit()) == ([0, 2], None), "the one before is held"
        await place.clock.forward(20)
        assert (place.offsets, prefix.offset_to_commit()) == ([0, 2, 1], 3)


async def test_a_copy_of_a_waiting_timer_is_finished_at_once_and_does_not_hold_back_the_offset() -> None:
    async with a_place() as place:
        prefix = place.assignment.trackers[P]
        for offset in (0, 1, 2):
            place.add(offset, 30, tier="now", saga="order-1")
        assert (place.held.count(P), prefix.unfinished) == (1, 1), "one is held for all of them"
        await place.clock.forward(30)
        assert place.offsets == [0]
        assert prefix.offset_to_commit() == 3


async def test_a_copy_that_is_due_earlier_waits_beside_the_first() -> None:
    async with a_place() as place:
        place.add(0, 30, tier="now", saga="order-1")
        place.add(1, 10, tier="now", saga="order-1")
        await place.clock.forward(10)
        assert place.offsets == [1]
        await place.clock.forward(20)
        assert (place.offsets, place.assignment.trackers[P].offset_to_commit()) == ([1, 0], 2)


async def test_the_copy_that_is_due_first_does_for_all_that_come_after_it() -> None:
    async with a_place() as place:
        for offset, (left_s, partition) in enumerate(((30, P), (10, P), (20, P), (20, Q))):
            place.add(offset, left_s, tier="now", saga="order-1", partition=partition)
        assert (place.held.count(P), place.held.count(Q)) == (2, 0)
        place.held.forget([Q])
        place.add(4, 20, tier="now", saga="order-1")
        assert place.held.count(P) == 2, "nor is that forgotten with another partition"


# ---------------------------------------------------------------- bounds


async def test_a_burst_of_wakes_is_released_as_there_is_room_for_it() -> None:
    async with a_place(inflight_max=3) as place:
        place.may_end.clear()
        for offset in range(10):
            place.add(offset, 10, tier="now")
        await place.clock.forward(10)
        assert (place.offsets, place.lanes.inflight, place.held.count(P)) == ([0, 1, 2], 3, 7)
        place.may_end.set()
        for _ in range(10):
            await settled()
        assert (place.offsets, place.held.count(P)) == (list(range(10)), 0)


async def test_a_partition_is_full_with_many_that_wait_for_their_tier_or_very_many_that_wait_at_all(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(holding, "WAITING_MAX", 2)
    monkeypatch.setattr(holding, "HELD_MAX", 4)
    async with a_place() as place:
        place.add(0, 250)
        place.add(1, 30, tier="now")
        place.add(2, 31, tier="now")
        assert place.held.full == set()
        place.add(3, 32, tier="now")
        assert place.held.full == {P}
        await place.clock.forward(30)
        assert (place.held.full, place.again) == (set(), [30])
        place.add(4, 251)
        assert place.held.full == {P}
        await place.clock.forward(2)
        assert (place.held.full, place.again, place.held.count(P)) == ({P}, [30], 2), "its tiers have not passed"
        await place.clock.forward(240 - 32)
        assert (place.held.full, place.again, place.held.count(P)) == (set(), [30, 240], 2), "one is in its last minute"


class Polled:
    """A membership: what was asked of it, and a poll that ends when it is woken."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[Partition], float]] = []
        self.woken = asyncio.Event()

    async def poll(self, partitions: Any, *, records_max: int, timeout_s: float) -> list[Record]:
        self.asked.append((sorted(partitions), timeout_s))
        await self.woken.wait()
        self.woken.clear()
        return []

    def disagreeing_members(self) -> Sequence[str]:
        return ()

    def stalled_partitions(self) -> tuple[()]:
        return ()


async def polled(place: Place, look: Callable[[Polled], Awaitable[None]]) -> None:
    """Polling, as the worker has it, while `look` looks on."""
    membership: Any = Polled()
    stop = asyncio.Event()
    service = make_service_runtime(prepare(payment.declared), {}, make_worker_ports(NOWHERE, NOWHERE, place.assignment))
    room = FlowControl(FlowLimits(), place.assignment, place.lanes, place.held)
    polling = PollLoop(
        service, place.assignment, room, place.lanes, place.held, UnreadableRecords(service, place.lanes)
    )

    def look_again() -> None:
        place.lanes.freed.set()
        membership.woken.set()

    place.held.on_room = look_again
    task = place.tasks.create_task(polling.run(membership, stop))
    await settled()
    await look(membership)
    stop.set()
    look_again()
    await task


async def test_a_full_partition_is_left_out_of_polls_and_taken_up_again_when_it_has_room(monkeypatch: Any) -> None:
    monkeypatch.setattr(holding, "WAITING_MAX", 2)
    async with a_place() as place:
        place.add(0, 250)
        place.add(1, 250)

        async def look(membership: Polled) -> None:
            assert membership.asked == [([Q], POLL_S)], "and its room is not looked at"
            await place.clock.forward(239)
            assert len(membership.asked) == 1
            await place.clock.forward(1)
            assert membership.asked[1:] == [([P, Q], POLL_S)]

        await polled(place, look)


async def test_with_all_partitions_full_nothing_is_polled_until_one_has_room(monkeypatch: Any) -> None:
    monkeypatch.setattr(holding, "WAITING_MAX", 1)
    async with a_place() as place:
        place.add(0, 250)
        place.add(1, 250, partition=Q)

        async def look(membership: Polled) -> None:
            assert membership.asked == []
            await place.clock.forward(240)
            while not membership.asked:
                await SystemClock().sleep(0)
            assert membership.asked[0] == ([P, Q], POLL_S)

        await polled(place, look)


async def test_waiting_timers_take_no_room_of_what_is_in_flight(monkeypatch: Any) -> None:
    async with a_place() as place:
        for offset in range(290):  # more than a partition's share of what may be in flight
            place.add(offset, 30, tier="now")
        room = FlowControl(FlowLimits(inflight_min=1000), place.assignment, place.lanes, place.held)
        open_, count = room.choose_partitions()
        assert (sorted(open_), count, room.has_full_partition) == ([P, Q], 250, False)


async def test_wakes_are_known_by_their_topic_and_go_through_here() -> None:
    async with a_place() as place:
        service = make_service_runtime(
            prepare(payment.declared), {}, make_worker_ports(NOWHERE, NOWHERE, place.assignment)
        )
        room = FlowControl(FlowLimits(), place.assignment, place.lanes, place.held)
        polling = PollLoop(
            service, place.assignment, room, place.lanes, place.held, UnreadableRecords(service, place.lanes)
        )
        out = timer_to_record("payment", "order-1", "wake-1", NOW_MS + 300_000, NOW_MS)
        assert out.topic == timer_topic("payment", "4m") == P.topic
        record = Record(out.topic, 0, 0, out.key, out.value, out.headers, NOW_MS)
        polling._route_records([record])
        assert (place.held.count(P), place.lanes.inflight, place.assignment.trackers[P].unfinished) == (1, 0, 1)
        assert isinstance(parse_timer(record), SagaTimer)


# ---------------------------------------------------------------- behind the log


class Log:
    """How far the log has been handled, as it is given."""

    def __init__(self, assignment: WorkerAssignment) -> None:
        self.assignment = assignment
        self.handled_ms, self.noted = 0, True
        self.reported: list[set[str]] = []

    async def refresh_positions(self) -> None:
        return None

    def is_handled(self, saga: str, due_ms: int) -> bool:
        return self.handled_ms >= due_ms

    def has_ends_since(self, due_ms: int) -> bool:
        return self.noted

    def owns(self, position: Position, tracker: OffsetTracker) -> bool:
        return self.assignment.trackers.get(Partition(*position[:2])) is tracker

    def report_behind(self, sagas: set[str]) -> None:
        self.reported.append(sagas)


def behind(place: Place) -> Log:
    log: Any = Log(place.assignment)
    place.held.fence = log
    return log  # type: ignore[no-any-return]  # a fence as far as it is asked


def item_of(place: Place, offset: int, saga: str = "") -> WorkItem:
    """A timer that is due, and being handled."""
    out = timer_to_record("payment", saga or f"order-{offset}", "wake-1", NOW_MS, NOW_MS)
    prefix = place.assignment.trackers[P]
    prefix.begin(offset)
    return WorkItem(
        parse_timer(Record(*P, offset, out.key, out.value, out.headers, NOW_MS)), Position(*P, offset), prefix, 0.0
    )


async def test_a_wake_waits_until_the_log_has_been_handled_or_something_else_is_due() -> None:
    async with a_place(runs=False) as place:
        log = behind(place)
        place.held.keep_until_handled(item_of(place, 1), AwaitLog(NOW_MS, None))
        place.held.keep_until_handled(item_of(place, 2), AwaitLog(NOW_MS + 5000, NOW_MS + 3000))
        place.held.keep_until_handled(item_of(place, 3), AwaitLog(NOW_MS + 9000, None))
        assert place.held.count(P) == 3
        assert not await place.held._release_handled()
        assert log.reported[-1] == {"order-1", "order-2", "order-3"}
        log.handled_ms = NOW_MS
        assert await place.held._release_handled()
        await place.clock.forward(3)
        assert await place.held._release_handled()
        await settled()
        assert place.offsets == [1, 2]
        log.noted = False
        assert await place.held._release_handled(), "the ends are to be asked for again: partitions went"
        await settled()
        assert place.offsets == [1, 2, 3]
        assert place.held.count(P) == 0


async def test_a_copy_of_a_wake_that_waits_for_the_log_is_finished_and_one_of_a_lost_partition_is_left() -> None:
    async with a_place(runs=False) as place:
        behind(place)
        place.held.keep_until_handled(item_of(place, 1, "same"), AwaitLog(NOW_MS, None))
        place.held.keep_until_handled(item_of(place, 2, "same"), AwaitLog(NOW_MS, None))
        assert place.held.count(P) == 1
        gone = item_of(place, 3)
        place.assignment.trackers[P] = OffsetTracker(0)
        place.held.keep_until_handled(gone, AwaitLog(NOW_MS, None))
        assert place.held.count(P) == 1
        place.held.forget([P])
        assert place.held.count(P) == 0
        assert not await place.held._release_handled()


async def test_a_partition_with_too_many_wakes_that_wait_for_the_log_is_not_read_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holding, "HELD_MAX", 2)
    async with a_place(runs=False) as place:
        log = behind(place)
        for offset in (1, 2):
            place.held.keep_until_handled(item_of(place, offset), AwaitLog(NOW_MS, None))
        assert P[:2] in place.held.full
        log.handled_ms = NOW_MS
        await place.held._release_handled()
        assert not place.held.full
        assert place.again


async def test_wakes_that_wait_for_the_log_are_looked_at_while_there_are_any() -> None:
    async with a_place(runs=False) as place:
        log = behind(place)
        looking = place.tasks.create_task(place.held.run_waiting_for_log())
        await settled()
        place.held.keep_until_handled(item_of(place, 1), AwaitLog(NOW_MS, None))
        await SystemClock().within(5, wait_until_reported(log, 2))
        log.handled_ms = NOW_MS
        await SystemClock().within(5, until_begun(place))
        looking.cancel()
        assert place.offsets == [1]


async def wait_until_reported(log: Log, times: int) -> None:
    while len(log.reported) < times:
        await SystemClock().sleep(0.01)


async def until_begun(place: Place) -> None:
    while not place.begun:
        await SystemClock().sleep(0.01)
