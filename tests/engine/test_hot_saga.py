"""A saga with more messages than may be in flight, held up at the first: other partitions go on."""

import asyncio
from pathlib import Path

import pytest

from saga import Service
from saga.broker.port import partition_of
from saga.engine.consumer.flow_control import FlowLimits
from saga.telemetry.events import Handled
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.real_worker import an_order, at_work, workplace


@pytest.mark.parametrize("limits", [FlowLimits(inflight_max=20), FlowLimits()], ids=["few in flight", "as shipped"])
async def test_a_hot_saga_that_is_blocked_blocks_its_partition_and_no_other(tmp_path: Path, limits: FlowLimits) -> None:
    payment, held, opened = Service("payment"), asyncio.Event(), asyncio.Event()

    @payment.handler(repeats=OrderPlaced)
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        if order.order_id == "hot":
            held.set()
            await opened.wait()
        return PaymentReserved(order_id=order.order_id, charge_id="c-1", amount=order.total)

    others = [f"order-{n}" for n in range(60)]
    elsewhere = [o for o in others if partition_of(o.encode(), 12) != partition_of(b"hot", 12)]
    async with workplace(tmp_path) as place:
        await place.publish(*(an_order("hot", quantity=n) for n in range(200)))
        async with at_work(place, payment, limits=limits):
            await held.wait()
            await place.publish(*map(an_order, others))  # the worker is full of what comes behind the first by now
            await place.until(lambda: {m.saga for m in place.reported(Handled)} >= set(elsewhere))
            assert "hot" not in {m.saga for m in place.reported(Handled)}
            opened.set()
            await place.at_rest(payment)
        assert [m.saga for m in place.reported(Handled)].count("hot") == 200
