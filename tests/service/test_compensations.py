"""Compensations: what may undo a handler, and what is refused about it."""

from collections.abc import Awaitable, Callable

import pytest

from saga import DeclarationError, Saga, Service
from services.order import events as order_events
from services.payment.events import (
    OrderCancelled,
    OrderConfirmed,
    OrderPlaced,
    PaymentCaptured,
    PaymentDeclined,
    PaymentReleased,
    PaymentReserved,
)
from tests.service.events import OrderExpired


async def reserve(order: OrderPlaced) -> PaymentReserved | PaymentCaptured | None:
    return None


async def capture(confirmed: OrderConfirmed) -> None: ...


def a_service() -> Service:
    """Payment, with a handler to be undone and one that emits nothing."""
    payment = Service("payment")
    payment.handler(reserve)
    payment.handler(capture)
    return payment


def refusal(compensation: Callable[..., Awaitable[None]], original: Callable[..., Awaitable[object]] = reserve) -> str:
    """Why it is refused; nothing was declared."""
    service = a_service()
    with pytest.raises(DeclarationError) as refused:
        service.compensation(original)(compensation)  # type: ignore[arg-type] # some are mistakes
    assert service.declared.compensations == []
    return str(refused.value)


async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...


def test_a_compensation_knows_what_it_undoes() -> None:
    payment = a_service()

    @payment.compensation(reserve)
    async def let_go(reserved: PaymentReserved, why: OrderCancelled, saga: Saga) -> PaymentReleased | None: ...

    (compensation,) = payment.declared.compensations
    assert (compensation.name, compensation.undoes, compensation.emits) == ("let_go", "reserve", (PaymentReleased,))
    assert [h.name for h in payment.declared.handlers] == ["reserve", "capture"]


def test_a_handler_that_is_a_method_may_have_a_compensation() -> None:
    class Cashier:
        async def take(self, order: OrderPlaced) -> PaymentReserved | None: ...

        async def give_back(self, cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    payment, cashier = Service("payment"), Cashier()
    payment.handler(cashier.take)
    payment.compensation(cashier.take)(cashier.give_back)
    (compensation,) = payment.declared.compensations
    assert (compensation.name, compensation.undoes) == ("give_back", "take")
    with pytest.raises(DeclarationError, match="take is no handler of 'payment'"):
        payment.compensation(Cashier().take)


def test_a_compensation_may_act_on_several_failures_and_undo_several_results() -> None:
    payment = a_service()

    @payment.compensation(reserve)
    async def let_go(why: OrderCancelled | OrderExpired, done: PaymentReserved | PaymentCaptured) -> None: ...

    assert payment.declared.compensations[0].parameters[0].events == (OrderCancelled, OrderExpired)


def test_a_function_that_is_no_handler_cannot_have_a_compensation() -> None:
    async def elsewhere(order: OrderPlaced) -> PaymentReserved | None: ...

    message = refusal(release, elsewhere)
    assert "elsewhere is no handler of 'payment'" in message
    assert "each service undoes its own work only" in message


def test_a_compensation_cannot_be_undone() -> None:
    payment = a_service()
    payment.compensation(reserve)(release)
    with pytest.raises(DeclarationError, match="release is no handler of 'payment'"):
        payment.compensation(release)(release)


def test_a_compensation_that_does_not_say_what_it_undoes_is_refused() -> None:
    payment = a_service()
    with pytest.raises(DeclarationError, match=r"If release is what undoes, say what: @payment\.compensation\(the_h"):
        payment.compensation(release)  # as a bare decorator does


def test_a_handler_is_undone_by_one_compensation() -> None:
    async def again(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    payment = a_service()
    payment.compensation(reserve)(release)
    with pytest.raises(DeclarationError, match=r"payment\.reserve already has a compensation, release: keep one"):
        payment.compensation(reserve)(again)


def test_a_compensation_takes_an_outcome_and_a_result_and_nothing_else() -> None:
    async def short(cancelled: OrderCancelled) -> None: ...
    async def long(cancelled: OrderCancelled, reserved: PaymentReserved, other: PaymentDeclined) -> None: ...

    assert "payment.short has 1 event parameters: a compensation takes the failure outcome" in refusal(short)
    assert "payment.long has 3 event parameters" in refusal(long)


def test_a_compensation_acts_on_the_outcome_failure_only() -> None:
    async def neighbour(declined: PaymentDeclined, reserved: PaymentReserved) -> None: ...
    async def success(confirmed: OrderConfirmed, reserved: PaymentReserved) -> None: ...
    async def either(ended: OrderConfirmed | OrderCancelled, reserved: PaymentReserved) -> None: ...
    async def failures(cancelled: OrderCancelled, expired: OrderExpired) -> None: ...

    assert 'neither PaymentDeclined nor PaymentReserved is an outcome "failure"' in refusal(neighbour)
    assert 'neither OrderConfirmed nor PaymentReserved is an outcome "failure"' in refusal(success)
    assert 'neither OrderConfirmed | OrderCancelled nor PaymentReserved is an outcome "failure"' in refusal(either)
    assert 'both events are outcomes "failure"' in refusal(failures)


def test_a_compensation_undoes_what_its_original_returns() -> None:
    async def other(cancelled: OrderCancelled, declined: PaymentDeclined) -> None: ...
    async def partly(cancelled: OrderCancelled, done: PaymentReserved | PaymentDeclined) -> None: ...

    assert "reserve never returns PaymentDeclined" in (message := refusal(other))
    assert "so one of PaymentReserved | PaymentCaptured" in message
    assert "reserve never returns PaymentDeclined" in refusal(partly)
    assert "so one of nothing: it emits no event" in refusal(release, capture)


def test_a_compensation_is_given_one_result_at_a_time() -> None:
    async def all_at_once(cancelled: OrderCancelled, reserved: list[PaymentReserved]) -> None: ...

    assert "takes list[PaymentReserved], but is given one event at a time (a compensation one result)" in refusal(
        all_at_once
    )


def test_a_compensation_emits_no_outcome() -> None:
    async def expire(cancelled: OrderCancelled, reserved: PaymentReserved) -> OrderExpired | None: ...

    payment = a_service()
    with pytest.raises(DeclarationError, match=r"payment\.expire returns OrderExpired, an outcome"):
        payment.compensation(reserve)(expire)


def test_a_compensation_has_a_name_of_its_own() -> None:
    async def capture(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    assert "'payment' has two functions called capture" in refusal(capture)


def test_a_compensation_of_an_outcome_success_would_never_run() -> None:
    order = Service("order")

    @order.handler
    async def confirm(booked: order_events.ShipmentBooked) -> order_events.OrderConfirmed:
        raise AssertionError

    async def take_back(cancelled: order_events.OrderCancelled, confirmed: order_events.OrderConfirmed) -> None: ...

    with pytest.raises(DeclarationError) as refused:
        order.compensation(confirm)(take_back)
    assert str(refused.value) == (
        'order.take_back wants OrderConfirmed, an outcome "success": a saga with this outcome does not fail, so '
        "there is nothing to undo; leave the compensation out, or let it undo what confirm returns before the saga is "
        "decided"
    )
    assert order.declared.compensations == []


def test_a_handler_of_a_failure_outcome_is_not_compensated_by_it() -> None:
    payment = Service("payment")

    @payment.handler
    async def give_back(order: OrderPlaced, cancelled: OrderCancelled) -> PaymentReleased | None:
        return None

    async def again(cancelled: OrderCancelled | OrderExpired, released: PaymentReleased) -> None: ...

    with pytest.raises(DeclarationError) as refused:
        payment.compensation(give_back)(again)
    assert str(refused.value) == (
        "payment.again wants what give_back did, but give_back reacts to OrderCancelled itself, on which it is undone: "
        "what is done because a saga failed is not undone; leave the compensation out"
    )
