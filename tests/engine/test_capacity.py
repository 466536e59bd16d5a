"""Room of a worker for more messages, and the say of store and log in it."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from saga import Service
from saga.engine.consumer import flow_control as rooms
from saga.engine.consumer.flow_control import POLL_MAX, WINDOW, FlowControl, FlowLimits
from saga.engine.consumer.keyed_executor import KeyedExecutor
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.consumer.timers import TimerBuffer
from saga.engine.consumer.worker_ports import WorkerAssignment, make_worker_ports
from saga.engine.errors import Draining
from saga.engine.outage_watch import OutageWatch
from saga.engine.persistence import outbox
from saga.engine.ports import ExternalCall
from saga.errors import Ambiguous, StoreUnavailable
from saga.messages import Partition, Position
from saga.policies.concurrency import InFlight
from saga.progress.document import StepRecord
from saga.support.clock import SystemClock
from saga.telemetry.events import Handled
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.real_worker import Workplace, an_order, at_work, workplace

A, B = Partition("orders", 0), Partition("orders", 1)
NOWHERE: Any = None
CLOCK = SystemClock()


async def nothing(_: object) -> bool:
    return True


def a_room(*, most: int = 80, bytes_max: int = 1000, unfinished: dict[Partition, int] | None = None) -> FlowControl:
    """With a fixed bound, and so many messages of each partition in flight."""
    assignment = WorkerAssignment(OutageWatch("payment", CLOCK, lambda moment: None))
    lanes = KeyedExecutor(NOWHERE, nothing, nothing)
    for partition, count in (unfinished or {A: 0, B: 0}).items():
        prefix = assignment.trackers[partition] = OffsetTracker(0)
        for offset in range(count):
            prefix.begin(offset)
        lanes.inflight += count
        lanes.without_saga += count  # all of them are being handled
    limits = FlowLimits(inflight_max=most, inflight_min=most, inflight_bytes_max=bytes_max)
    return FlowControl(limits, assignment, lanes, TimerBuffer(CLOCK, lanes, most, NOWHERE))


def test_a_partition_is_read_up_to_its_share() -> None:
    assert a_room().choose_partitions() == ([A, B], 20)
    assert a_room(unfinished={A: 12, B: 0}).choose_partitions() == ([A, B], 8)
    assert a_room(unfinished={A: 19, B: 0}).choose_partitions() == ([A, B], 2)  # not one by one
    assert a_room(unfinished={A: 20, B: 0}).choose_partitions() == ([B], 20)
    assert a_room(most=8000).choose_partitions() == ([A, B], POLL_MAX)


def test_the_bound_as_it_is_now_counts() -> None:
    room = a_room(most=80)
    room.concurrency.limit = 10
    assert room.choose_partitions() == ([A, B], 10)
    assert not room.concurrency.reached


def test_room_gathers_before_anything_more_is_taken() -> None:
    others = {Partition("orders", number): 14 for number in range(2, 7)}
    room = a_room(unfinished={**others, A: 0})  # 70 of 80: an eighth is free
    assert (room.choose_partitions()[1], room.concurrency.reached) == (6, False)
    room = a_room(unfinished={**others, A: 1})
    assert (room.choose_partitions(), room.concurrency.reached) == (([], 0), True)


def test_messages_that_wait_for_neither_store_nor_log_do_not_count_against_their_limit() -> None:
    room = a_room(most=1000, unfinished={A: 60, B: 0})
    room.concurrency.limit = 64
    assert room.choose_partitions() == ([], 0)
    room.assignment.outage_watch.idle = 60
    assert room.choose_partitions() == ([A, B], 64)
    room = a_room(most=80, unfinished={Partition("orders", number): 16 for number in range(5)})
    room.assignment.outage_watch.idle = 80
    assert room.choose_partitions() == ([], 0)  # whatever they wait for, there are not more than the most


def test_a_bound_of_one_lets_one_in_at_a_time() -> None:
    assert a_room(most=1).choose_partitions() == ([A, B], 1)
    assert a_room(most=1, unfinished={A: 1, B: 0}).choose_partitions() == ([], 0)


def test_nothing_is_taken_while_what_is_in_flight_is_too_large() -> None:
    room = a_room(bytes_max=100)
    room.executor.inflight_bytes = 99
    assert room.choose_partitions() == ([A, B], 20)
    room.executor.inflight_bytes = 100
    assert room.choose_partitions() == ([], 0)


def test_a_partition_with_much_behind_one_that_is_not_finished_is_left_out_and_one_that_is_leaving() -> None:
    room = a_room(most=8)
    held = room.assignment.trackers[A]
    for offset in range(WINDOW * 8):
        held.begin(offset)
        if offset:
            held.finish(offset)
    assert room.choose_partitions()[0] == [B]
    room.assignment.leaving.add(B)
    assert room.choose_partitions() == ([], 0)
    held.finish(0)
    assert room.choose_partitions()[0] == [A]  # before the commit, which wakes no poll


# ---------------------------------------------------------------- store and log


class Noted(InFlight):
    """Limit that notes all that is reported to it."""

    observed: list[tuple[float, int]]
    failures: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.observed, self.failures = [], 0

    def observe(self, latency_s: float, inflight: int, now_s: float) -> None:
        self.observed.append((latency_s, inflight))
        super().observe(latency_s, inflight, now_s)

    def count_failure(self, now_s: float) -> None:
        self.failures += 1
        super().count_failure(now_s)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[Noted]:
    made = list[Noted]()

    def make(least: int, most: int) -> Noted:
        made.append(Noted(least, most))
        return made[-1]

    monkeypatch.setattr(rooms, "InFlight", make)
    return made


payment = Service("payment")


@payment.handler
async def reserve(order: OrderPlaced) -> PaymentReserved:
    return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)


async def test_each_write_and_each_publishing_reports_its_latency_to_the_limit(
    tmp_path: Path, noted: list[Noted]
) -> None:
    async with workplace(tmp_path) as place:
        await place.publish(*(an_order(f"order-{n}") for n in range(5)))
        async with at_work(place, payment):
            await place.at_rest(payment)
    (bound,) = noted
    assert len(bound.observed) == 10
    assert all(0 < latency_s < 5 and 1 <= inflight <= 5 for latency_s, inflight in bound.observed)
    assert bound.failures == 0


@pytest.mark.parametrize("outage", [False, True])
async def test_lanes_that_pause_make_room_unless_they_wait_for_store_or_log(outage: bool) -> None:
    room = a_room(unfinished={A: 1, B: 0})
    room.executor.freed.clear()
    if outage:
        room.assignment.outage_watch.unavailable("write", StoreUnavailable("full"))
    pausing = asyncio.get_running_loop().create_task(room.assignment.pause(1, Position(*A, 0)))
    await CLOCK.sleep(0)
    assert (room.busy, room.executor.freed.is_set()) == ((1, False) if outage else (0, True))
    room.assignment.stop()
    with pytest.raises(Draining):
        await pausing
    assert room.busy == 1


async def test_a_step_that_waits_for_the_outside_makes_room() -> None:
    room, answer = a_room(unfinished={A: 1, B: 0}), asyncio.Event()
    step = ExternalCall("s", "h", StepRecord(kind="step", name="wait", number=0, input=""), answer.wait, (), {})
    ports = make_worker_ports(NOWHERE, NOWHERE, room.assignment)
    stepping = asyncio.get_running_loop().create_task(_given(ports.call_external(step)))
    await CLOCK.sleep(0)
    assert (room.busy, room.executor.freed.is_set()) == (0, True)
    answer.set()
    assert await stepping is True
    assert room.busy == 1


async def _given(what: Awaitable[Any]) -> Any:
    return await what


@pytest.mark.parametrize(
    ("why", "writes"), [(StoreUnavailable("full"), 1), (Ambiguous("lost"), 1)], ids=["unavailable", "ambiguous"]
)
async def test_a_write_that_failed_is_reported_and_its_pause_is_not_taken_for_its_latency(
    tmp_path: Path, noted: list[Noted], monkeypatch: pytest.MonkeyPatch, why: Exception, writes: int
) -> None:
    async with workplace(tmp_path) as place:
        place.clock.faster = 1
        monkeypatch.setattr(outbox, "WAIT_S_FIRST", 2 * PAUSE_S)
        _fail_once(place, monkeypatch, why)
        await place.publish(an_order())
        async with at_work(place, payment):
            await place.at_rest(payment)
        assert len(place.reported(Handled)) == 1
    (bound,) = noted
    assert bound.failures == 1
    assert len(bound.observed) == writes + 1  # and what was published
    assert max(latency_s for latency_s, _ in bound.observed) < PAUSE_S


PAUSE_S = 2.0
"""First pause after an outage, at its shortest, which `Impatient` draws: no write takes as long."""


def _fail_once(place: Workplace, monkeypatch: pytest.MonkeyPatch, why: Exception) -> None:
    insert, left = place.store.insert, [why]

    async def failing(collection: str, *args: Any, **kwargs: Any) -> int:
        if left and collection == "saga":
            raise left.pop()
        return await insert(collection, *args, **kwargs)

    monkeypatch.setattr(place.store, "insert", failing)


async def test_lanes_that_cannot_decide_leave_room_for_others_however_low_the_bound_is(tmp_path: Path) -> None:
    stuck, good = [f"order-{n}" for n in range(30)], [f"order-{n}" for n in range(30, 60)]
    async with workplace(tmp_path) as place:
        place.clock.faster = 1
        for saga in stuck:
            await place.store.insert("saga", f"payment::{saga}", b'{"service":"payment","saga":"?","format":99}')
        await place.publish(*map(an_order, (*stuck, *good)))
        async with at_work(place, payment, limits=FlowLimits(inflight_min=4, inflight_max=200)):
            await place.until(lambda: len(place.reported(Handled)) == len(good))
        assert {handled.saga for handled in place.reported(Handled)} == set(good)
