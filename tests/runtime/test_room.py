"""What a worker may still take in, and how store and log have a say in it."""

from pathlib import Path
from typing import Any

import pytest

from saga import Service
from saga.clock import SystemClock
from saga.errors import Ambiguous, StoreUnavailable
from saga.messages import Partition
from saga.observe.moments import Handled
from saga.policies.concurrency import InFlight
from saga.runtime import room as rooms
from saga.runtime.lanes import Lanes
from saga.runtime.offsets import Prefix
from saga.runtime.ports import RunningPorts
from saga.runtime.room import POLL_MAX, WINDOW, Limits, Room
from services.payment.events import OrderPlaced, PaymentReserved
from tests.runtime.workplace import Workplace, an_order, at_work, workplace

A, B = Partition("orders", 0), Partition("orders", 1)
NOWHERE: Any = None


async def nothing(_: object) -> bool:
    return True


def a_room(*, most: int = 80, bytes_max: int = 1000, unfinished: dict[Partition, int] | None = None) -> Room:
    """With a fixed bound, and so many messages of each partition in flight."""
    ports = RunningPorts("payment", NOWHERE, NOWHERE, SystemClock(), lambda moment: None)
    lanes = Lanes(NOWHERE, nothing)
    for partition, count in (unfinished or {A: 0, B: 0}).items():
        prefix = ports.prefixes[partition] = Prefix(0)
        for offset in range(count):
            prefix.begun(offset)
        lanes.inflight += count
    return Room(Limits(inflight_max=most, inflight_min=most, inflight_bytes_max=bytes_max), ports, lanes)


def test_a_partition_is_read_up_to_its_share() -> None:
    assert a_room().open() == ([A, B], 20)
    assert a_room(unfinished={A: 12, B: 0}).open() == ([A, B], 8)
    assert a_room(most=8000).open() == ([A, B], POLL_MAX)


def test_the_bound_as_it_is_now_counts() -> None:
    room = a_room(most=80)
    room.now.limit = 40
    assert room.open() == ([A, B], 10)


def test_one_that_has_nearly_all_of_its_share_is_left_out_and_others_are_not() -> None:
    room = a_room(unfinished={A: 18, B: 0})
    assert room.open() == ([A, B], 2)
    assert not room.now.reached
    room = a_room(unfinished={A: 19, B: 0})
    assert room.open() == ([B], 20)
    assert room.now.reached


def test_room_gathers_before_anything_more_is_taken() -> None:
    others = {Partition("orders", number): 14 for number in range(2, 7)}
    assert a_room(unfinished={**others, A: 0}).open()[1] == 6  # 70 of 80: an eighth is free
    assert a_room(unfinished={**others, A: 1}).open() == ([], 0)


def test_a_bound_of_one_lets_one_in_at_a_time() -> None:
    assert a_room(most=1).open() == ([A, B], 1)
    assert a_room(most=1, unfinished={A: 1, B: 0}).open() == ([], 0)


def test_nothing_is_taken_while_what_is_in_flight_is_too_large() -> None:
    room = a_room(bytes_max=100)
    room.lanes.inflight_bytes = 99
    assert room.open() == ([A, B], 20)
    room.lanes.inflight_bytes = 100
    assert room.open() == ([], 0)


def test_a_partition_with_much_behind_one_that_is_not_finished_is_left_out_and_one_that_is_leaving() -> None:
    room = a_room(most=8)
    held = room.ports.prefixes[A]
    for offset in range(WINDOW * 8):
        held.begun(offset)
        if offset:
            held.finished(offset)
    assert room.open()[0] == [B]
    room.ports.leaving.add(B)
    assert room.open() == ([], 0)


# ---------------------------------------------------------------- store and log


class Noted(InFlight):
    """What the bound was told."""

    observed: list[tuple[float, int]]
    failures: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.observed, self.failures = [], 0

    def observe(self, latency_s: float, inflight: int, now_s: float) -> None:
        self.observed.append((latency_s, inflight))
        super().observe(latency_s, inflight, now_s)

    def failed(self, now_s: float) -> None:
        self.failures += 1
        super().failed(now_s)


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


async def test_each_write_and_each_publishing_tells_the_bound_how_long_it_took(
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


@pytest.mark.parametrize(
    ("why", "writes"), [(StoreUnavailable("full"), 1), (Ambiguous("lost"), 1)], ids=["unavailable", "ambiguous"]
)
async def test_a_write_that_failed_is_told_and_its_pause_is_not_taken_for_its_latency(
    tmp_path: Path, noted: list[Noted], monkeypatch: pytest.MonkeyPatch, why: Exception, writes: int
) -> None:
    async with workplace(tmp_path) as place:
        place.clock.faster = 1
        _fail_once(place, monkeypatch, why)
        await place.publish(an_order())
        async with at_work(place, payment):
            await place.at_rest(payment)
        assert len(place.told(Handled)) == 1
    (bound,) = noted
    assert bound.failures == 1
    assert len(bound.observed) == writes + 1  # and what was published
    assert max(latency_s for latency_s, _ in bound.observed) < PAUSE_S


PAUSE_S = 0.025
"""The first pause after an outage, at its shortest, which `Impatient` draws."""


def _fail_once(place: Workplace, monkeypatch: pytest.MonkeyPatch, why: Exception) -> None:
    insert, left = place.store.insert, [why]

    async def failing(*args: Any, **kwargs: Any) -> int:
        if left:
            raise left.pop()
        return await insert(*args, **kwargs)

    monkeypatch.setattr(place.store, "insert", failing)
