"""Declarations of deadlines, and what is refused about them."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from saga import DeclarationError, Service
from saga.engine.prepared_service import consumed_by, prepare, reads_of, topics_of
from services.order.events import OrderCancelled, OrderConfirmed, OrderPlaced, PaymentDeclined, ShipmentBooked

WITHIN = timedelta(minutes=15)


async def expire(placed: OrderPlaced) -> OrderCancelled:
    return OrderCancelled(order_id=placed.order_id, reason="too late")


def refusal(function: Callable[..., Awaitable[Any]] = expire, **options: Any) -> str:
    """Why a service refuses the deadline; it is as it was before."""
    order = Service("order")
    with pytest.raises(DeclarationError) as refused:
        order.deadline(**{"within": WITHIN, **options})(function)
    assert order.declared.reactions == []
    return str(refused.value)


def test_a_deadline_is_a_reaction_of_its_own_and_its_function_is_unchanged() -> None:
    order = Service("order")
    assert order.deadline(within=WITHIN, unless=(ShipmentBooked,))(expire) is expire
    (declared,) = order.declared.deadlines
    assert (declared.name, declared.within, declared.unless) == ("expire", WITHIN, (ShipmentBooked,))
    assert declared.taken_events == (OrderPlaced,)
    assert declared.consumed_events == (OrderPlaced, ShipmentBooked)
    assert order.declared.handlers == []


def test_events_that_open_or_close_a_deadline_are_consumed_without_a_handler() -> None:
    order = Service("order")

    @order.handler
    async def confirm(booked: ShipmentBooked) -> OrderConfirmed:
        return OrderConfirmed(order_id=booked.order_id)

    order.deadline(within=WITHIN, unless=(PaymentDeclined,))(expire)
    prepared = prepare(order.declared)
    assert prepared.consumed == {"OrderPlaced", "PaymentDeclined", "ShipmentBooked"}
    assert consumed_by(order.declared, prepared.contracts) == prepared.consumed
    assert {"orders", "payments", "shipments"} <= reads_of(order.declared)
    assert {"orders", "payments", "shipments"} <= {topic.name for topic in topics_of(order.declared)}
    roles = prepared.roles
    assert [role.name for role in roles.by_type["ShipmentBooked"]] == ["confirm"]
    assert "OrderPlaced" not in roles.by_type
    assert [role.name for role in roles.opening["OrderPlaced"]] == ["expire"]
    role = roles.deadlines["expire"]
    assert role.within_ms == 15 * 60 * 1000
    assert role.unless == {"PaymentDeclined", "OrderCancelled", "OrderConfirmed"}, "every outcome closes it"
    assert role.decides
    assert roles.noted == {"OrderPlaced", "PaymentDeclined", "OrderCancelled", "OrderConfirmed"}


@pytest.mark.parametrize("within", [timedelta(0), timedelta(seconds=-1), timedelta(days=31), 900, None])
def test_a_time_that_is_none_or_longer_than_the_memory_is_refused(within: Any) -> None:
    assert "give a timedelta above zero, and not longer than the service's retention, 30 days" in refusal(within=within)


def test_the_memory_itself_is_not_too_long() -> None:
    order = Service("order", retention=timedelta(days=1))
    order.deadline(within=timedelta(days=1))(expire)
    assert order.declared.deadlines


def test_a_deadline_is_closed_only_by_events() -> None:
    assert "give a tuple of events" in refusal(unless=[ShipmentBooked])
    assert "'ShipmentBooked' is no event" in refusal(unless=("ShipmentBooked",))
    assert "OrderPlaced would open and close it" in refusal(unless=(OrderPlaced,))


def test_a_deadline_is_opened_by_one_event_that_is_no_outcome() -> None:
    async def of_two(placed: OrderPlaced, booked: ShipmentBooked) -> OrderCancelled:
        return await expire(placed)

    async def of_an_outcome(confirmed: OrderConfirmed) -> OrderCancelled:
        return OrderCancelled(order_id=confirmed.order_id, reason="too late")

    assert "order.of_two has 2 event parameters: a deadline has one" in refusal(of_two)
    assert "counts from OrderConfirmed, an outcome, which closes every deadline" in refusal(of_an_outcome)


def test_its_name_is_its_own() -> None:
    order = Service("order")
    order.deadline(within=WITHIN)(expire)
    with pytest.raises(DeclarationError, match="two functions called expire"):
        order.deadline(within=WITHIN)(expire)


def test_a_handler_may_take_what_opens_it() -> None:
    order = Service("order")
    order.deadline(within=WITHIN)(expire)

    @order.handler
    async def note(placed: OrderPlaced) -> None: ...

    roles = prepare(order.declared).roles
    assert [role.name for role in roles.by_type["OrderPlaced"]] == ["note"]
    assert "OrderPlaced" not in roles.noted
