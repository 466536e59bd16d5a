"""A saga with more messages than its progress has room for, in a world with faults: pages hold the rest."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from saga import Service
from saga.progress import overflow
from saga.testing.fault_plans import faults
from saga.testing.invariants.rerun import find_rerun_differences
from saga.testing.simulation.loop import SimulatedLoop
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.order.events import OrderCancelled, OrderPlaced
from services.payment.events import PaymentReserved
from services.shipping.events import ShipmentRefused
from tests.testing.simulation.orders import an_order, drawn

SMALL = overflow.OverflowBounds(inbox_max=8, inbox_kept=3, small_segments_max=3, head_max=2, segment_max=3)
ORDERS, LAST = 24, 18


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overflow, "BOUNDS", SMALL)


def services_of() -> list[Service[Any]]:
    order, payment, shipping = Service("order"), Service("payment"), Service("shipping")

    @order.handler(repeats=OrderPlaced)
    async def cancel(placed: OrderPlaced) -> OrderCancelled | None:
        return OrderCancelled(order_id=placed.order_id, reason="late") if placed.quantity == LAST else None

    @payment.handler(repeats=OrderPlaced)
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id=f"c-{order.quantity}", amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    @shipping.handler(repeats=PaymentReserved)
    async def refuse(reserved: PaymentReserved, cancelled: OrderCancelled) -> ShipmentRefused:
        return ShipmentRefused(order_id=reserved.order_id, reason=reserved.charge_id)

    return [order, payment, shipping]


def test_runs_with_moved_and_restored_segments_can_be_repeated() -> None:
    kinds = set[str]()
    for seed in range(3):
        with SimulatedWorld(seed, drawn(seed, faults.everything()), guarded=False) as world:
            world.start(*services_of())
            for number in range(ORDERS):
                world.publish(replace(an_order(7), quantity=number))
            world.run_until_quiet()
            world.verify()
            evidence = world.evidence()
            for witnessed in evidence.services.values():
                checked, found = SimulatedLoop().run_until_complete(find_rerun_differences(witnessed, evidence.log))
                assert [str(violation) for violation in found] == []
                assert checked == len(witnessed.versions["order-7"]), "every write was made again"
                pages = [content for key, content in witnessed.archives["order-7"] if overflow.is_segment(key)]
                kinds |= {msgspec.json.decode(content, type=overflow.SegmentDocument).kind for content in pages}
    assert kinds == {"inbox", "waiting", "results"}
