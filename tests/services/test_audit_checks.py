"""The audit finds each kind of difference, names the order, and finds nothing in books that agree."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal

import pytest

from services.audit.__main__ import report, table
from services.audit.checks import Booking, Books, Charge, Check, Ending, Goods, Order, Shelf, audit, outcomes

BEFORE, CONFIRMED_AT, AFTER = (f"2026-11-21T14:00:0{second}.000Z" for second in (1, 2, 3))
PRICE = Decimal("9.80")

TEA_ASIDE = Goods(sku="tea", quantity=2, time=BEFORE)
TEA_LATER = Goods(sku="tea", quantity=2, time=AFTER)

CONFIRMED = Order(
    id="order-1",
    endings=(Ending(confirmed=True, because="ShipmentBooked", time=CONFIRMED_AT),),
    reserved=(PRICE,),
    charges=(Charge(id="c-1", amount=PRICE, captured=(AFTER,)),),
    bookings=(Booking(id="b-1", dispatched=(AFTER,)),),
    set_aside=(TEA_ASIDE,),
    handed_out=(TEA_LATER,),
)
CANCELLED = Order(
    id="order-2",
    endings=(Ending(confirmed=False, because="ShipmentRefused", time=CONFIRMED_AT),),
    reserved=(PRICE,),
    charges=(Charge(id="c-2", amount=PRICE, released=(AFTER,)),),
    bookings=(Booking(id="b-2", unbooked=(AFTER,)),),
    set_aside=(TEA_ASIDE,),
    put_back=(TEA_LATER,),
)
DECLINED = Order(id="order-3", endings=(Ending(confirmed=False, because="PaymentDeclined", time=CONFIRMED_AT),))


def books(*orders: Order) -> Books:
    return Books(
        orders={order.id: order for order in (orders or (CONFIRMED, CANCELLED, DECLINED))},
        shelves=(Shelf(sku="tea", seeded=5, left=3, aside=0),),
        expected=frozenset({"order-1", "order-2", "order-3"} if not orders else ()),
    )


def changed(order: Order) -> Callable[[Books], Books]:
    """The same books, but for this order."""
    return lambda good: replace(good, orders={**good.orders, order.id: order})


def shelf(*, left: int = 3, aside: int = 0) -> Callable[[Books], Books]:
    """The same books, but for the shelf."""
    return lambda good: replace(good, shelves=(Shelf(sku="tea", seeded=5, left=left, aside=aside),))


def differing(checks: Sequence[Check]) -> dict[str, tuple[str, ...]]:
    return {check.name: check.differences for check in checks if check.differences}


def test_books_that_agree_have_no_difference_and_show_their_figures() -> None:
    checks = audit(books())
    assert differing(checks) == {}
    assert [check.figures for check in checks] == [
        "3 orders = 1 confirmed + 2 cancelled",
        "19.60 set aside = 9.80 captured + 9.80 released",
        "5 articles = 2 handed out + 3 left",
        "1 orders paid, handed out and dispatched",
        "2 orders, 3 effects taken back",
        "3 captures, hand-outs and dispatches, each after its confirmation",
        "12 effects",
        "3 of 3 orders at rest in all services",
    ]


def test_outcomes_are_counted_with_the_event_that_decided() -> None:
    assert outcomes(books()) == {"confirmed": 1, "cancelled: ShipmentRefused": 1, "cancelled: PaymentDeclined": 1}
    both = replace(CONFIRMED, endings=CONFIRMED.endings + CANCELLED.endings)
    assert outcomes(books(both, Order(id="order-9"))) == {"ended in two ways": 1, "not ended": 1}


ENDS, MONEY, STOCK = "every order ended once", "the money balances", "the stock balances"
CARRIED_OUT, UNDONE = "confirmed orders are carried out", "cancelled orders are undone"
EARLY, ONCE, REST = "nothing irreversible came early", "every effect happened once", "nothing is left to do"

PLANTED: dict[str, tuple[Callable[[Books], Books], str, str]] = {
    "an order that never came": (
        lambda good: replace(good, expected=good.expected | {"order-4"}),
        ENDS,
        "order-4: no service knows it",
    ),
    "an order that did not end": (changed(replace(DECLINED, endings=())), ENDS, "order-3: ended 0 times: not at all"),
    "an order that ended in two ways": (
        changed(replace(CONFIRMED, endings=CONFIRMED.endings + CANCELLED.endings)),
        ENDS,
        "order-1: ended 2 times: confirmed, cancelled",
    ),
    "an order confirmed twice": (
        changed(replace(CONFIRMED, endings=CONFIRMED.endings * 2)),
        ENDS,
        "order-1: ended 2 times: confirmed, confirmed",
    ),
    "money still held": (
        changed(replace(CANCELLED, charges=(Charge(id="c-2", amount=PRICE),))),
        MONEY,
        "order-2: 9.80 is still set aside (charge c-2)",
    ),
    "money captured and released": (
        changed(replace(CONFIRMED, charges=(Charge(id="c-1", amount=PRICE, captured=(AFTER,), released=(AFTER,)),))),
        MONEY,
        "order-1: charge c-1 was captured 1 times and released 1 times",
    ),
    "another amount than payment published": (
        changed(replace(CONFIRMED, charges=(Charge(id="c-1", amount=Decimal(98), captured=(AFTER,)),))),
        MONEY,
        "order-1: payment says 9.80 was set aside, the bank says 98",
    ),
    "a charge that payment published and the bank does not know": (
        changed(replace(CANCELLED, charges=())),
        MONEY,
        "order-2: payment says 9.80 was set aside, the bank says 0",
    ),
    "a tea too few": (shelf(left=2), STOCK, "tea: 5 at first, 2 handed out, 2 left, 0 set aside"),
    "a tea too many": (shelf(left=4), STOCK, "tea: 5 at first, 2 handed out, 4 left, 0 set aside"),
    "teas still set aside": (shelf(aside=1), STOCK, "tea: 5 at first, 2 handed out, 3 left, 1 set aside"),
    "goods of no shelf": (
        changed(replace(CONFIRMED, handed_out=(TEA_LATER, Goods(sku="gin", quantity=1, time=AFTER)))),
        STOCK,
        "gin: handed out, and on no shelf",
    ),
    "a confirmed order that was not paid": (
        changed(replace(CONFIRMED, charges=(Charge(id="c-1", amount=PRICE, released=(AFTER,)),))),
        CARRIED_OUT,
        "order-1: confirmed, and not paid",
    ),
    "a confirmed order of which nothing was done": (
        changed(replace(CONFIRMED, charges=(), handed_out=(), bookings=())),
        CARRIED_OUT,
        "order-1: confirmed, and not paid and not handed out and not dispatched",
    ),
    "less handed out than set aside": (
        changed(replace(CONFIRMED, handed_out=(replace(TEA_LATER, quantity=1),))),
        CARRIED_OUT,
        "order-1: confirmed, and not handed out",
    ),
    "a cancelled order that was paid": (
        changed(replace(CANCELLED, charges=(Charge(id="c-2", amount=PRICE, captured=(AFTER,)),))),
        UNDONE,
        "order-2: cancelled, and there stands charge c-2",
    ),
    "a booking that stands": (
        changed(replace(CANCELLED, bookings=(Booking(id="b-2"),))),
        UNDONE,
        "order-2: cancelled, and there stands booking b-2",
    ),
    "goods not put back": (
        changed(replace(CANCELLED, put_back=())),
        UNDONE,
        "order-2: cancelled, and there stands goods: 2 set aside, 0 put back, 0 handed out",
    ),
    "goods put back that were never set aside": (
        changed(replace(DECLINED, put_back=(TEA_LATER,))),
        UNDONE,
        "order-3: cancelled, and there stands goods: 0 set aside, 2 put back, 0 handed out",
    ),
    "a capture before the confirmation": (
        changed(replace(CONFIRMED, charges=(Charge(id="c-1", amount=PRICE, captured=(BEFORE,)),))),
        EARLY,
        f"order-1: captured at {BEFORE}, confirmed only at {CONFIRMED_AT}",
    ),
    "a hand-out before the confirmation": (
        changed(replace(CONFIRMED, handed_out=(TEA_ASIDE,))),
        EARLY,
        f"order-1: handed out at {BEFORE}, confirmed only at {CONFIRMED_AT}",
    ),
    "a dispatch before the confirmation": (
        changed(replace(CONFIRMED, bookings=(Booking(id="b-1", dispatched=(BEFORE,)),))),
        EARLY,
        f"order-1: dispatched at {BEFORE}, confirmed only at {CONFIRMED_AT}",
    ),
    "a dispatch without confirmation": (
        changed(replace(CANCELLED, bookings=(Booking(id="b-2", dispatched=(AFTER,)),))),
        EARLY,
        f"order-2: dispatched at {AFTER}, and never confirmed",
    ),
    "two charges": (
        changed(replace(CANCELLED, charges=(*CANCELLED.charges, Charge(id="c-3", amount=PRICE, released=(AFTER,))))),
        ONCE,
        "order-2: charged 2 times",
    ),
    "goods set aside twice": (
        changed(replace(CONFIRMED, set_aside=(TEA_ASIDE,) * 2)),
        ONCE,
        "order-1: set aside 2 times",
    ),
    "a booking taken back twice": (
        changed(replace(CANCELLED, bookings=(Booking(id="b-2", unbooked=(AFTER, AFTER)),))),
        ONCE,
        "order-2: unbooked 2 times",
    ),
    "a charge of no order": (
        lambda good: replace(good, strays=("charge c-9: no order knows it",)),
        ONCE,
        "charge c-9: no order knows it",
    ),
    "something still open": (
        changed(replace(CONFIRMED, open_in=("payment", "shipping"))),
        REST,
        "order-1: not at rest in payment, shipping",
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_difference_is_found_and_named(planted: str) -> None:
    change, check, difference = PLANTED[planted]
    assert difference in differing(audit(change(books())))[check]


def test_each_check_finds_something_planted() -> None:
    assert {check for _, check, _ in PLANTED.values()} == {check.name for check in audit(books())}


def test_differences_are_printed_below_their_check_and_a_long_list_is_truncated() -> None:
    many = [replace(DECLINED, id=f"order-{n:02}", endings=()) for n in range(25)]
    lines = report(audit(books(*many)))
    assert lines[0] == "DIFFERS  every order ended once            25 orders = 0 confirmed + 0 cancelled"
    assert lines[1] == "         - order-00: ended 0 times: not at all"
    assert lines[21] == "         - and 5 more: --json shows all"
    assert lines[22] == "ok       the money balances                0.00 set aside = 0.00 captured + 0.00 released"


def test_outcomes_are_printed_as_a_table() -> None:
    assert table({"confirmed": 503, "cancelled: PaymentDeclined": 46}) == [
        "confirmed                      503",
        "cancelled: PaymentDeclined      46",
    ]
