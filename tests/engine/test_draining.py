"""Draining: what runs may end within the limit, nothing new begins, and the next start resumes from there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from saga import Retry, Saga, Service
from saga.engine.consumer.flow_control import FlowLimits
from saga.messages import Partition
from saga.telemetry.events import Retrying, Stopped
from services.inventory.events import InventoryReserved
from services.order.events import OrderConfirmed
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.real_worker import SAGA, an_order, at_work, workplace


@dataclass
class Gate:
    """Steps that go on when they are let."""

    begun: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    opened_wide: asyncio.Event = field(default_factory=asyncio.Event)

    async def first(self, key: str) -> str:
        self.begun.append(f"first {key}")
        await self.opened.wait()
        self.ended.append(f"first {key}")
        return key

    async def interrupted(self, key: str) -> str:
        """Make the first step with a client that raises an error of its own when it is cancelled."""
        try:
            return await self.first(key)
        except asyncio.CancelledError:
            raise ConnectionError("closed") from None

    async def second(self, key: str) -> str:
        self.begun.append(f"second {key}")
        await self.opened_wide.wait()
        return key


def gated() -> tuple[Service, Gate]:
    """A service with one handler of one step, and one of two."""
    payment, gate = Service("payment"), Gate()
    gate.opened_wide.set()

    @payment.resource
    async def opened() -> AsyncIterator[Gate]:
        yield gate

    @payment.handler
    async def reserve(order: OrderPlaced, gate: Gate, saga: Saga) -> PaymentReserved:
        charge = await saga.step(gate.first, saga.idempotency_key("a"))
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    @payment.handler
    async def both(confirmed: OrderConfirmed, gate: Gate, saga: Saga) -> None:
        await saga.step(gate.first, saga.idempotency_key("b"))
        await saga.step(gate.second, saga.idempotency_key("c"))

    return payment, gate


async def test_draining_finishes_running_handlers_and_begins_none(tmp_path: Path) -> None:
    payment, gate = gated()
    async with workplace(tmp_path) as place:
        async with at_work(place, payment) as stop:
            await place.publish(an_order(), an_order(quantity=2))  # the second one behind the first, in its lane
            await place.until(lambda: len(gate.begun) == 1)
            stop.set()
            await place.publish(an_order("order-2"))
            await place.clock.sleep(0.02)
            gate.opened.set()
        assert len(gate.ended) == 1
        (stopped,) = place.reported(Stopped)
        assert 0.01 < stopped.drained_s < 15
        (entry,) = await place.history(payment)
        assert (entry.outcome, [e.type for e in entry.events]) == ("handled", ["PaymentReserved"])
        (first, second, *_) = await place.records("orders")
        partition = Partition("orders", first.partition)
        assert place.committed(payment, partition) == second.offset
        async with at_work(place, payment):
            await place.at_rest(payment)
        assert [e.outcome for e in await place.history(payment)] == ["handled", "dead"]
        assert [e.outcome for e in await place.history(payment, "order-2")] == ["handled"]
        assert len(gate.begun) == 2
        assert len(await place.records("payments")) == 2


async def test_a_step_after_stop_does_not_begin_and_the_next_start_resumes_after_the_one_that_ended(
    tmp_path: Path,
) -> None:
    payment, gate = gated()
    async with workplace(tmp_path) as place:
        async with at_work(place, payment) as stop:
            await place.publish(OrderConfirmed(order_id=SAGA))
            await place.until(lambda: len(gate.begun) == 1)
            stop.set()
            await place.clock.sleep(0.02)
            gate.opened.set()
        assert [name.split()[0] for name in gate.begun] == ["first"]
        (record,) = await place.records("orders")
        assert place.committed(payment, Partition("orders", record.partition)) == record.offset
        assert not place.reported(Retrying)
        async with at_work(place, payment):
            await place.at_rest(payment)
        assert [name.split()[0] for name in gate.begun][-1] == "second"
        assert len({name for name in gate.begun if name.startswith("first")}) == 1
        (entry,) = await place.history(payment)
        assert (entry.outcome, entry.attempt) == ("handled", 1)


async def test_a_step_longer_than_the_limit_is_left_as_by_a_crash_and_repeated_with_the_same_key(
    tmp_path: Path,
) -> None:
    payment, gate = gated()
    async with workplace(tmp_path) as place:
        async with at_work(place, payment, limits=FlowLimits(drain_s=0.05)):
            await place.publish(an_order())
            await place.until(lambda: len(gate.begun) == 1)
        (stopped,) = place.reported(Stopped)
        assert 0.05 <= stopped.drained_s < 15
        (record,) = await place.records("orders")
        assert place.committed(payment, Partition("orders", record.partition)) == record.offset
        assert await place.history(payment) == []
        assert not place.reported(Retrying)
        gate.opened.set()
        async with at_work(place, payment):
            await place.at_rest(payment)
        assert len(gate.begun) == 2
        assert len(set(gate.begun)) == 1
        (entry,) = await place.history(payment)
        assert (entry.outcome, entry.attempt) == ("handled", 1)
        assert len(await place.records("payments")) == 1


@pytest.mark.parametrize("call", ["first", "interrupted"])
async def test_a_run_that_is_left_is_no_failed_attempt_even_if_its_code_raises_another_error(
    tmp_path: Path, call: str
) -> None:
    payment, gate = gated()

    @payment.handler(retry=Retry(attempts_max=1))
    async def stubborn(reserved: InventoryReserved, gate: Gate, saga: Saga) -> None:
        with suppress(asyncio.CancelledError):
            await saga.step(getattr(gate, call), "a")

    async with workplace(tmp_path) as place:
        async with at_work(place, payment, limits=FlowLimits(drain_s=0.02)):
            await place.publish(InventoryReserved(order_id=SAGA, sku="tea", quantity=1))
            await place.until(lambda: len(gate.begun) == 1)
        assert (await place.history(payment), await place.dead(payment)) == ([], [])
        gate.opened.set()
        async with at_work(place, payment):
            await place.at_rest(payment)
        (entry,) = await place.history(payment)
        assert (entry.outcome, entry.attempt) == ("handled", 1)


async def test_answers_that_were_recorded_are_not_asked_for_again_by_the_next_start(tmp_path: Path) -> None:
    payment, gate = gated()
    gate.opened.set()
    gate.opened_wide.clear()
    async with workplace(tmp_path) as place:
        async with at_work(place, payment, limits=FlowLimits(drain_s=0.02)):
            await place.publish(OrderConfirmed(order_id=SAGA))
            await place.until(lambda: len(gate.begun) == 2)
        gate.opened_wide.set()
        async with at_work(place, payment):
            await place.at_rest(payment)
        first, second, again = gate.begun
        assert first.startswith("first")
        assert second == again


async def test_a_pause_between_attempts_ends_at_once_when_the_worker_stops(tmp_path: Path) -> None:
    payment, attempts = Service("payment"), list[int]()

    @payment.handler
    async def reserve(order: OrderPlaced) -> None:
        attempts.append(1)
        if len(attempts) < 2:
            raise OSError("away")

    async with workplace(tmp_path) as place:
        place.clock.faster = 0.001  # a second is a quarter of an hour
        async with at_work(place, payment):
            await place.publish(an_order())
            await place.until(lambda: len(place.reported(Retrying)) == 1)
        (stopped,) = place.reported(Stopped)
        assert stopped.drained_s < 15
        assert len(attempts) == 1
        place.clock.faster = 50
        async with at_work(place, payment):
            await place.at_rest(payment)
        assert [(e.outcome, e.attempt) for e in await place.history(payment)] == [("handled", 1)]


async def test_a_message_is_not_handled_twice_after_a_restart(tmp_path: Path) -> None:
    payment, gate = gated()
    gate.opened.set()
    async with workplace(tmp_path) as place:
        for _ in range(3):
            async with at_work(place, payment):
                await place.publish(an_order())
                await place.at_rest(payment)
        assert len(gate.begun) == 1
        assert [e.outcome for e in await place.history(payment)] == ["handled"]
        assert len(await place.records("payments")) == 1
