"""Rebalances: a worker lets go of a partition at once, whatever runs, and a run outlives the assignment."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from saga import Saga, Service
from saga.engine.consumer.flow_control import FlowLimits
from saga.messages import Partition
from saga.telemetry.events import Lost, Revoked, Stopped
from services.order.events import OrderConfirmed
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.real_worker import Workplace, an_order, at_work, workplace

ORDERS = 24
HASTY = FlowLimits(drain_s=0.01)


@dataclass
class Desk:
    """Calls of one worker that take until they are let go on."""

    begun: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, key: str) -> str:
        self.begun.append(key)
        await self.opened.wait()
        self.ended.append(key)
        return key

    async def after(self, key: str) -> str:
        self.begun.append(key)
        return key


def slow() -> Service:
    """A service with a handler that takes long, and one that does not."""
    payment = Service("payment")

    @payment.resource
    async def desk() -> AsyncIterator[Desk]:
        yield Desk()

    @payment.handler
    async def reserve(order: OrderPlaced, desk: Desk, saga: Saga) -> PaymentReserved:
        charge = await saga.step(desk.call, saga.idempotency_key("a"))
        await saga.step(desk.after, saga.idempotency_key("b"))
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    @payment.handler
    async def quick(confirmed: OrderConfirmed) -> None:
        return None

    return payment


async def placed(place: Workplace, *desks: Desk) -> None:
    """Have all orders running, at one of these."""
    await place.publish(*(an_order(f"order-{n}") for n in range(ORDERS)))
    await place.until(lambda: sum(len(desk.begun) for desk in desks) == ORDERS)


async def outcomes(place: Workplace, payment: Service) -> list[list[str]]:
    return [[e.outcome for e in await place.history(payment, f"order-{n}")] for n in range(ORDERS)]


async def test_a_member_that_joins_waits_for_no_run_and_each_worker_makes_each_call_once(tmp_path: Path) -> None:
    payment, first, second = slow(), Desk(), Desk()
    async with workplace(tmp_path) as place, at_work(place, payment, use=(first,)):
        await placed(place, first)
        async with at_work(place, payment, use=(second,)):
            await place.until(lambda: len(second.begun) > 2)
            assert place.reported(Revoked)
            assert not first.ended, "nothing was waited for"
            moved = {p for each in place.reported(Revoked) for p in each.partitions}
            await place.publish(*(OrderConfirmed(order_id=f"other-{n}") for n in range(ORDERS)))
            for n in range(ORDERS):  # on either worker: both continue
                while not await place.history(payment, f"other-{n}"):
                    await place.clock.sleep(0.01)
            assert not first.ended
            assert not second.ended
            first.opened.set()
            second.opened.set()
            await place.at_rest(payment)
        calls = first.begun + second.begun
        assert all(len(desk.begun) == len(set(desk.begun)) for desk in (first, second)), "once for each worker"
        assert len(set(calls)) == 2 * ORDERS, "with the same keys"
        assert await outcomes(place, payment) == [["handled"]] * ORDERS
        assert len(await place.records("payments")) == ORDERS
        assert moved
        assert not place.reported(Lost)


async def test_a_run_whose_partition_comes_back_continues_and_is_committed(tmp_path: Path) -> None:
    payment, first, second = slow(), Desk(), Desk()
    async with workplace(tmp_path) as place:
        async with at_work(place, payment, use=(first,)):
            await placed(place, first)
            async with at_work(place, payment, use=(second,), limits=HASTY):
                await place.until(lambda: len(second.begun) > 2)
            await place.publish(OrderConfirmed(order_id="order-0"))
            first.opened.set()
            await place.at_rest(payment)
        assert not second.ended
        assert len(first.ended) == ORDERS
        assert len(first.begun) == len(set(first.begun)) == 2 * ORDERS, "it never called twice"
        (of_first, *others) = await outcomes(place, payment)
        assert of_first == ["handled", "handled"]
        assert others == [["handled"]] * (ORDERS - 1)
        for topic in ("orders",):
            ends: dict[int, int] = {}
            for record in await place.records(topic):
                ends[record.partition] = record.offset + 1
            assert {n: place.committed(payment, Partition(topic, n)) for n in ends} == ends


async def test_a_run_whose_partition_is_another_members_begins_nothing_more(tmp_path: Path) -> None:
    payment, first, second = slow(), Desk(), Desk()
    second.opened.set()
    async with workplace(tmp_path) as place, at_work(place, payment, use=(first,)):
        await placed(place, first)
        async with at_work(place, payment, use=(second,)):
            await place.until(lambda: len(second.ended) > 2)
            theirs = set(second.ended)
            await place.until(lambda: len(second.begun) == 2 * len(second.ended))
            first.opened.set()
            await place.at_rest(payment)
            await place.until(lambda: len(first.ended) == ORDERS)
        keys = [key for key in first.begun if key not in first.ended]
        assert len(keys) == ORDERS - len(theirs), "after the step that was under way no other one"
        assert await outcomes(place, payment) == [["handled"]] * ORDERS
        assert len(await place.records("payments")) == ORDERS


async def test_a_worker_that_stops_hands_its_partitions_on_before_a_slow_handler_has_ended(tmp_path: Path) -> None:
    payment, first, second = slow(), Desk(), Desk()
    async with workplace(tmp_path) as place, at_work(place, payment, use=(first,)) as stop:
        await place.publish(an_order("order-0"))
        await place.until(lambda: len(first.begun) == 1)
        async with at_work(place, payment, use=(second,)):
            stop.set()
            await place.until(lambda: second.begun == first.begun)
            assert not place.reported(Stopped)
            first.opened.set()
            await place.until(lambda: bool(place.reported(Stopped)))
            second.opened.set()
            await place.at_rest(payment)
        assert len(first.begun) == 1, "nothing new begins in a worker that stops"
        assert [e.outcome for e in await place.history(payment, "order-0")] == ["handled"]
        assert len(await place.records("payments")) == 1
