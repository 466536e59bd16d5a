"""Handlers that return something their annotation does not allow: a world fails, although other sagas end."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from saga import Service
from saga.testing.simulation.simulated_world import SimulatedWorld
from saga.testing.world import CheckFailed
from services.order.events import OrderCancelled, OrderPlaced
from services.payment.events import OrderCancelled as Cancelled
from services.payment.events import OrderPlaced as Placed
from services.payment.events import PaymentDeclined, PaymentReserved
from tests.testing.simulation.orders import an_order

BAD = "order-2"
"""The order for which a wrong value is returned."""


def wrong_for_one(order_id: str, right: object) -> Any:
    return "wrong" if order_id == BAD else right


def a_handler() -> Service:
    payment = Service("payment")

    @payment.handler
    async def reserve(placed: Placed) -> PaymentReserved | PaymentDeclined:
        reserved = PaymentReserved(order_id=placed.order_id, charge_id="c", amount=placed.total)
        return wrong_for_one(placed.order_id, reserved)  # type: ignore[no-any-return]  # the mistake

    return payment


def a_compensation() -> Service:
    payment = Service("payment")

    @payment.handler
    async def decline(placed: Placed) -> PaymentReserved:
        return PaymentReserved(order_id=placed.order_id, charge_id="c", amount=placed.total)

    @payment.compensation(decline)
    async def reserve(cancelled: Cancelled, reserved: PaymentReserved) -> None:
        return wrong_for_one(cancelled.order_id, None)  # type: ignore[no-any-return]  # the mistake

    return payment


def a_deadline() -> Service:
    payment = Service("payment")

    @payment.deadline(within=timedelta(minutes=1))
    async def reserve(placed: Placed) -> PaymentDeclined:
        declined = PaymentDeclined(order_id=placed.order_id, reason="late")
        return wrong_for_one(placed.order_id, declined)  # type: ignore[no-any-return]  # the mistake

    return payment


def cancelling() -> Service:
    order = Service("order")

    @order.handler
    async def cancel(placed: OrderPlaced) -> OrderCancelled:
        return OrderCancelled(order_id=placed.order_id, reason="never")

    return order


@pytest.mark.parametrize(
    ("declare", "others", "allowed"),
    [
        (a_handler, [], "PaymentReserved or PaymentDeclined"),
        (a_compensation, [cancelling()], "nothing"),
        (a_deadline, [], "PaymentDeclined"),
    ],
    ids=["handler", "compensation", "deadline"],
)
def test_a_world_fails_with_the_handler_what_it_returned_and_what_is_allowed(
    declare: Callable[[], Service], others: list[Service], allowed: str
) -> None:
    with SimulatedWorld() as world:
        world.start(declare(), *others)
        world.publish(an_order(1), an_order(2))
        with pytest.raises(CheckFailed) as failed:
            world.run_until_quiet()
    assert (failed.value.invariant, failed.value.saga) == ("as annotated", BAD)
    assert "payment.reserve returned str, which its return annotation does not allow" in str(failed.value)
    assert f"return {allowed} as it says" in str(failed.value)


def test_a_dead_letter_for_another_reason_is_no_failure() -> None:
    payment = Service("payment")

    @payment.handler
    async def reserve(placed: Placed) -> PaymentReserved:
        raise TypeError("its text says: returned str, which its return annotation does not allow")

    with SimulatedWorld() as world:
        world.start(payment)
        world.publish(an_order(1))
        world.run_until_quiet()
        world.verify()
