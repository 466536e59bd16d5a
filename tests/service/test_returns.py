"""Returns of handlers: a handler may emit what it says it returns, and nothing else passes."""

from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal

import pytest

from saga import Event, Service
from saga.errors import Permanent
from saga.service import Reaction
from services.payment.events import OrderPlaced, PaymentCaptured, PaymentDeclined, PaymentReleased, PaymentReserved

RESERVED = PaymentReserved(order_id="order-17", charge_id="c-17", amount=Decimal(1))
DECLINED = PaymentDeclined(order_id="order-17", reason="no money")
CAPTURED = PaymentCaptured(order_id="order-17", amount=Decimal(1))
RELEASED = PaymentReleased(order_id="order-17", charge_id="c-17")


async def one(order: OrderPlaced) -> PaymentReserved:
    return RESERVED


async def either(order: OrderPlaced) -> PaymentReserved | PaymentDeclined | None:
    return None


async def nothing(order: OrderPlaced) -> None: ...


async def both(order: OrderPlaced) -> tuple[PaymentReserved, PaymentCaptured]:
    return RESERVED, CAPTURED


async def parts(order: OrderPlaced) -> tuple[PaymentReserved | PaymentDeclined, PaymentCaptured | None]:
    return RESERVED, None


async def many(order: OrderPlaced) -> list[PaymentReserved | PaymentDeclined]:
    return []


async def sequence(order: OrderPlaced) -> Sequence[PaymentReserved]:
    return []


async def open_tuple(order: OrderPlaced) -> tuple[PaymentReserved, ...]:
    return ()


async def mixed(
    order: OrderPlaced,
) -> PaymentDeclined | tuple[PaymentReserved, PaymentCaptured] | list[PaymentReleased]:
    return DECLINED


async def again(order: OrderPlaced) -> PaymentReserved | tuple[PaymentReserved, PaymentDeclined]:
    return RESERVED


def handler(function: Callable[[OrderPlaced], Awaitable[Event | Sequence[Event | None] | None]]) -> Reaction:
    """The function as a handler of payment."""
    payment = Service("payment")
    payment.handler(function)
    return payment.declared.handlers[0]


@pytest.mark.parametrize(
    ("function", "returned", "events"),
    [
        (one, RESERVED, (RESERVED,)),
        (either, DECLINED, (DECLINED,)),
        (either, None, ()),
        (nothing, None, ()),
        (both, (RESERVED, CAPTURED), (RESERVED, CAPTURED)),
        (parts, (DECLINED, None), (DECLINED,)),
        (parts, (RESERVED, CAPTURED), (RESERVED, CAPTURED)),
        (many, [], ()),
        (many, [RESERVED, DECLINED, RESERVED], (RESERVED, DECLINED, RESERVED)),
        (sequence, (RESERVED, RESERVED), (RESERVED, RESERVED)),
        (open_tuple, (RESERVED, RESERVED), (RESERVED, RESERVED)),
        (mixed, DECLINED, (DECLINED,)),
        (mixed, (RESERVED, CAPTURED), (RESERVED, CAPTURED)),
        (mixed, [RELEASED, RELEASED], (RELEASED, RELEASED)),
    ],
)
def test_returned_events_pass_in_order(
    function: Callable[[OrderPlaced], Awaitable[Event | None]], returned: object, events: tuple[Event, ...]
) -> None:
    assert handler(function).events_of(returned) == events


@pytest.mark.parametrize(
    ("function", "returned", "described"),
    [
        (one, None, "None"),
        (one, DECLINED, "PaymentDeclined"),
        (one, "text", "str"),
        (one, [RESERVED], "list[PaymentReserved]"),
        (either, CAPTURED, "PaymentCaptured"),
        (nothing, RESERVED, "PaymentReserved"),
        (both, (CAPTURED, RESERVED), "tuple[PaymentCaptured, PaymentReserved]"),
        (both, (RESERVED,), "tuple[PaymentReserved]"),
        (both, RESERVED, "PaymentReserved"),
        (parts, (None, CAPTURED), "tuple[None, PaymentCaptured]"),
        (many, [RESERVED, CAPTURED], "list[PaymentReserved, PaymentCaptured]"),
        (many, [None], "list[None]"),
        (many, "text", "str"),
        (mixed, (RESERVED, RELEASED), "tuple[PaymentReserved, PaymentReleased]"),
        (mixed, RELEASED, "PaymentReleased"),
    ],
)
def test_anything_else_is_a_permanent_failure_that_names_types_only(
    function: Callable[[OrderPlaced], Awaitable[Event | None]], returned: object, described: str
) -> None:
    with pytest.raises(Permanent) as why:
        handler(function).events_of(returned)
    assert f"payment.{function.__name__} returned {described}, which its return annotation does not allow" in str(
        why.value
    )
    assert "c-17" not in str(why.value)


def test_possible_events_are_listed_once_in_the_order_of_the_annotation() -> None:
    assert handler(mixed).emits == (PaymentDeclined, PaymentReserved, PaymentCaptured, PaymentReleased)
    assert handler(parts).emits == (PaymentReserved, PaymentDeclined, PaymentCaptured)
    assert handler(nothing).emits == ()
    assert handler(again).emits == (PaymentReserved, PaymentDeclined)


def test_a_handler_made_without_annotation_returns_any_number_of_what_it_emits() -> None:
    made = Reaction(
        kind="handler",
        service="payment",
        name="reserve",
        function=both,
        parameters=(),
        emits=(PaymentReserved,),
        retry=None,
        timeout_s=1,
    )
    assert made.events_of((RESERVED, RESERVED)) == (RESERVED, RESERVED)
    assert made.events_of(()) == ()
    with pytest.raises(Permanent, match=r"returned tuple\[PaymentDeclined\]"):
        made.events_of((DECLINED,))
