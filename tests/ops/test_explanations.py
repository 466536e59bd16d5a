"""Why a saga is not finished: each trouble is made at real workers, on the embedded broker and SQLite."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from saga import Breaker, Later, Saga, Service
from saga.contracts import codec
from saga.contracts.library import contract_of
from saga.errors import Permanent
from saga.messages import Event, Message, Outgoing
from saga.messaging import envelope
from saga.messaging.controls import Switch
from saga.ops.explanation import SagaExplanation
from saga.ops.saga_path import format_path
from saga.support.clock import iso
from services.inventory.events import InventoryReserved
from services.order.events import OrderCancelled, OrderPlaced, PaymentDeclined, ShipmentBooked
from services.payment.events import PaymentReserved
from tests.cli.example_runs import an_order
from tests.ops.troubled_shop import (
    CLOCK,
    PARKS_AT_ONCE,
    SAGA,
    TroubledShop,
    a_payment,
    a_shipping,
    an_inventory,
    an_order_service,
    open_troubled_shop,
    pay,
)

UNKNOWN_SCHEMA = b"\xc3\x01" + bytes(8)
"""Header of a value whose schema is nowhere."""
HOUR = timedelta(hours=1)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[TroubledShop]:
    async with open_troubled_shop(tmp_path) as shop:
        yield shop


async def break_down(placed: OrderPlaced) -> PaymentReserved | PaymentDeclined:
    if placed.card == "broken":
        raise Permanent("the bank does not know such cards")
    return await pay(placed)


async def be_shut(placed: OrderPlaced) -> PaymentReserved | PaymentDeclined:
    raise ConnectionError("the bank is shut")


async def have_a_mistake(placed: OrderPlaced) -> PaymentReserved | PaymentDeclined:
    raise TypeError("pay() takes no card")


async def cannot_undo(cancelled: OrderCancelled) -> None:
    raise ConnectionError("the warehouse is shut")


def marks(found: SagaExplanation) -> dict[str, str]:
    return {each.type: each.mark for each in found.path}


def a_record(event: Event, *, started: bool) -> Outgoing:
    """An event of a service, as another program publishes it."""
    contract, now = contract_of(type(event)), iso(CLOCK.now_ms())
    message = Message(
        id=f"{contract.name}-1",
        type=contract.name,
        schema=type(event).__contract__,
        saga=SAGA,
        source=contract.owner,
        time=now,
        value=codec.encode(event),
        started=now if started else None,
    )
    return envelope.to_record(message, contract)


# -------------------------------------------------------------------- finished


async def test_a_saga_that_succeeded_is_finished(shop: TroubledShop) -> None:
    await shop.start(an_order_service(), a_payment(), an_inventory(), a_shipping())
    await shop.place()
    found = await shop.until_finished()
    assert (found.outcome, found.result, found.obstacles) == ("OrderConfirmed", "success", ())
    assert found.waits_for == (
        f"Saga order-1 is finished: it ended with OrderConfirmed (success), emitted by order at {found.ended}."
    )
    assert found.held_up_by == "No service has anything left to do for it: inventory, order, payment, shipping."
    assert [(each.type, each.mark) for each in found.path if each.type != "InventoryReserved"] == [
        ("OrderPlaced", "done"), ("PaymentReserved", "done"), ("ShipmentBooked", "done"), ("OrderConfirmed", "done")
    ]  # fmt: skip


async def test_a_saga_that_was_compensated_is_finished(shop: TroubledShop) -> None:
    await shop.start(an_order_service(), a_payment(), an_inventory(), a_shipping())
    await shop.place(card="declined-1")
    found = await shop.until_finished()
    assert (found.outcome, found.result) == ("OrderCancelled", "failure")
    assert found.held_up_by.endswith(" inventory compensated what it did.")
    assert marks(found) == {
        "OrderPlaced": "done", "PaymentDeclined": "done", "InventoryReserved": "compensated",
        "OrderCancelled": "done", "InventoryPutBack": "done",
    }  # fmt: skip


async def test_a_saga_that_no_service_knows_may_still_be_in_the_log(shop: TroubledShop) -> None:
    await shop.start(a_payment())
    await shop.place()
    await shop.until_it(lambda found: "PaymentReserved" in marks(found))
    await shop.stop()
    await shop.place("order-2")
    found = await shop.explain("order-2")
    assert (found.state, found.obstacles, found.path) == ("unknown", (), ())
    assert found.waits_for == "No service knows saga order-2."
    assert found.held_up_by == (
        "Its first event may not be handled yet: payment is 1 record behind and no worker of it runs."
    )
    assert found.ends_with.startswith("Check the id: `saga sagas list`")


# -------------------------------------------------------------------- events that are missing


async def test_it_waits_for_an_event_that_no_service_emits(shop: TroubledShop) -> None:
    await shop.start(an_order_service(patience=HOUR), a_payment(), an_inventory())
    await shop.place()
    found = await shop.until_only(("missing_event", ""), ("deadline", "order"))
    assert found.waits_for == "Saga order-1 waits for ShipmentBooked."
    assert found.held_up_by.startswith("It has to come from outside: no service emits ShipmentBooked here")
    deadline = found.obstacles[1]
    assert found.ends_with == (
        "It continues when ShipmentBooked is published: `saga publish ShipmentBooked` for a client that cannot. "
        f"Otherwise the deadline expire of order emits OrderCancelled at {deadline.until}."
    )
    assert marks(found)["ShipmentBooked"] == "missing"


async def test_a_handler_has_run_and_nothing_came_of_it(shop: TroubledShop) -> None:
    payment = Service("payment")

    @payment.handler
    async def reserve(placed: OrderPlaced) -> PaymentReserved | None:
        return None

    await shop.start(an_order_service(), payment, an_inventory(), a_shipping())
    await shop.place()
    found = await shop.until("no_event", "payment")
    assert found.waits_for == "Saga order-1 waits for PaymentReserved."
    assert "payment has to emit it with reserve: reserve has run (`handled` for OrderPlaced) and emitted nothing" in (
        found.held_up_by
    )
    assert found.ends_with.startswith("No event ends it. Read what reserve did: ")


async def test_the_start_of_the_saga_is_not_known(shop: TroubledShop) -> None:
    await shop.start(a_shipping())
    shop.declare(an_order_service(), a_payment(), an_inventory())
    reserved = PaymentReserved(order_id=SAGA, charge_id="charge-1", amount=Decimal(1))
    await shop.send([a_record(reserved, started=False)])
    found = await shop.until("no_start", "")
    assert found.waits_for == "Saga order-1 waits for OrderPlaced."
    assert found.held_up_by.startswith(
        "Shipping keeps PaymentReserved for book, and no message with the start of the saga has come"
    )
    assert "without one it waits for ever" in found.ends_with


async def test_an_outcome_without_a_start_waits_for_it(shop: TroubledShop) -> None:
    await shop.start(a_payment())
    shop.declare(an_order_service())
    await shop.send([a_record(OrderCancelled(order_id=SAGA, reason="no money"), started=False)])
    found = await shop.until("no_start", "")
    assert (found.outcome, found.state) == ("OrderCancelled", "unfinished")
    assert found.waits_for.endswith(", and still waits for OrderPlaced.")
    assert found.held_up_by.startswith("Payment keeps OrderCancelled for reserve")


# -------------------------------------------------------------------- failures


async def test_a_handler_fails_and_is_parked(shop: TroubledShop) -> None:
    await shop.start(an_order_service(), a_payment(be_shut, retry=PARKS_AT_ONCE), an_inventory(), a_shipping())
    await shop.place()
    found = await shop.until("retrying", "payment")
    first = found.obstacles[0]
    assert found.waits_for == "Saga order-1 waits for PaymentReserved or PaymentDeclined."
    assert found.held_up_by.startswith(
        "payment has to emit it with reserve: a run has failed and is parked until its next attempt: "
        f"ConnectionError: the bank is shut; 1 attempt failed, the next one is at {first.until}"
    )
    assert "payment last wrote `retrying` for OrderPlaced (reserve) at " in found.held_up_by
    assert found.ends_with == (
        f"It is tried again at {first.until}; `saga dead release payment --saga order-1 --who NAME --why REASON` tries "
        "it at once."
    )
    assert marks(found)["PaymentReserved"] == "missing"
    assert marks(found)["OrderConfirmed"] == "open"


async def test_its_own_code_fails(shop: TroubledShop) -> None:
    await shop.start(an_order_service(), a_payment(have_a_mistake, retry=PARKS_AT_ONCE), an_inventory())
    await shop.place()
    found = await shop.until("failing", "payment")
    assert "TypeError: pay() takes no card" in found.held_up_by
    assert found.ends_with.startswith("Deploy a release of payment that fixes reserve, or roll back; then `saga dead ")


async def test_a_dead_letter_blocks_it(shop: TroubledShop) -> None:
    await shop.start(an_order_service(), a_payment(break_down), an_inventory(), a_shipping())
    await shop.place(card="broken")
    found = await shop.until_only(("dead_letter", "payment"))  # shipping only waits for payment
    first = found.obstacles[0]
    assert found.waits_for == "Saga order-1 waits for PaymentReserved or PaymentDeclined."
    assert "blocks it: Permanent: the bank does not know such cards (since 20" in found.held_up_by
    assert "`saga dead replay payment --saga order-1 --who NAME --why REASON`" in found.ends_with
    assert "`saga dead discard payment --saga order-1 --who NAME --why REASON`" in found.ends_with
    assert first.since is not None


async def test_a_dead_letter_of_another_saga_does_not_hold_it_up(shop: TroubledShop) -> None:
    await shop.start(an_order_service(), a_payment(break_down), an_inventory(), a_shipping())
    await shop.place("order-2", card="broken")
    await shop.place()
    await shop.until("dead_letter", "payment", "order-2")
    assert (await shop.until_finished()).outcome == "OrderConfirmed"


async def test_messages_are_queued_behind_a_dead_letter(shop: TroubledShop) -> None:
    payment = a_payment(break_down)

    @payment.handler
    async def note(goods: InventoryReserved) -> None:
        return None

    await shop.start(an_order_service(), payment, an_inventory(), a_shipping())
    await shop.place(card="broken")
    await shop.until_it(lambda found: "1 message queued behind it" in found.held_up_by)
    await shop.until_only(("dead_letter", "payment"))


async def test_a_compensation_fails_again_and_again(shop: TroubledShop) -> None:
    await shop.start(an_order_service(), a_payment(), an_inventory(cannot_undo), a_shipping())
    await shop.place(card="declined-1")
    found = await shop.until("compensation_failing", "inventory")
    first = found.obstacles[0]
    assert found.waits_for == (
        f"Saga order-1 ended with OrderCancelled at {found.ended}, and still waits for InventoryPutBack."
    )
    assert found.held_up_by.startswith(
        "inventory has to emit it with put_back: put_back cannot undo what set_aside did: "
        "ConnectionError: the warehouse is shut; 1 attempt failed"
    )
    assert found.ends_with.startswith(f"It is tried again at {first.until}, without end: repair what put_back calls;")
    assert marks(found)["InventoryPutBack"] == "missing"
    assert marks(found)["InventoryReserved"] == "done"


async def test_the_schema_of_a_message_is_missing(shop: TroubledShop) -> None:
    await shop.start(a_payment(), an_order_service())
    record = a_record(
        OrderPlaced(
            order_id=SAGA, customer_id="customer-1", sku="tea", quantity=1, total=Decimal(1), card="v", address="Kiel"
        ),
        started=True,
    )
    await shop.send([record._replace(value=UNKNOWN_SCHEMA + (record.value or b"")[10:])])
    found = await shop.until("missing_schema", "payment")
    assert "the schema of a message is not deployed: " in found.held_up_by
    assert found.ends_with.startswith("Deploy the schema, or the release that reads it, where payment runs; then ")


# -------------------------------------------------------------------- time


async def test_a_deadline_is_open_and_not_due(shop: TroubledShop) -> None:
    payment = Service("payment")

    @payment.handler
    async def reserve(placed: OrderPlaced) -> PaymentReserved | None:
        return None

    await shop.start(an_order_service(patience=HOUR), payment, an_inventory(), a_shipping())
    await shop.place()
    found = await shop.until_only(("deadline", "order"), ("no_event", "payment"))
    first = found.obstacles[0]
    assert found.waits_for == "Saga order-1 waits for OrderCancelled."
    assert found.ends_with == (
        f"At {first.until} the deadline expire runs and emits OrderCancelled, unless the outcome of the saga "
        "comes before."
    )


async def test_a_deadline_is_due_and_the_log_is_not_handled(shop: TroubledShop) -> None:
    order, is_free, is_busy = an_order_service(patience=timedelta(seconds=0.5)), asyncio.Event(), asyncio.Event()

    @order.handler
    async def note(reserved: PaymentReserved) -> None:
        is_busy.set()
        await is_free.wait()

    await shop.start(order, a_payment())
    await shop.place()
    await is_busy.wait()
    found = await shop.until("deadline_behind_log", "order")
    is_free.set()
    assert found.obstacles[0].what.startswith("deadline expire was due at ")
    assert " behind in partitions of this saga" in found.obstacles[0].what
    assert found.ends_with.startswith("It runs and emits OrderCancelled once order has handled the log up to ")


async def test_a_run_is_suspended_until_a_time(shop: TroubledShop) -> None:
    payment = Service("payment")

    @payment.handler
    async def reserve(placed: OrderPlaced, saga: Saga) -> PaymentReserved | Later:
        return Later(after=HOUR)

    await shop.start(an_order_service(), payment)
    await shop.place()
    found = await shop.until("suspended", "payment")
    first = found.obstacles[0]
    assert found.waits_for == "Saga order-1 waits for PaymentReserved."
    assert f"reserve has suspended its run for OrderPlaced until {first.until} (since " in found.held_up_by
    assert found.ends_with == f"It continues by itself at {first.until}."


async def test_a_run_is_suspended_until_an_event(shop: TroubledShop) -> None:
    payment = Service("payment")

    @payment.handler
    async def reserve(
        placed: OrderPlaced, booked: ShipmentBooked | None, saga: Saga
    ) -> PaymentReserved | Later[ShipmentBooked]:
        return Later(until=ShipmentBooked, within=HOUR)

    await shop.start(payment)
    await shop.place()
    found = await shop.until("suspended", "payment")
    first = found.obstacles[0]
    assert found.waits_for == "Saga order-1 waits for ShipmentBooked."
    assert found.ends_with == f"It continues by itself at {first.until} or with ShipmentBooked."


# -------------------------------------------------------------------- what postpones runs


async def test_an_operator_has_paused_a_handler(shop: TroubledShop) -> None:
    await shop.start(an_order_service(), a_payment(), an_inventory(), a_shipping())
    await shop.control("payment", Switch(kind="pause", handler="reserve"))
    await shop.place()
    found = await shop.until("paused", "payment")
    assert "payment has to emit it with reserve: reserve is paused by ada: the bank is moving" in found.held_up_by
    assert found.ends_with == "`saga control resume payment --handler reserve --who NAME --why REASON`."


async def test_an_operator_has_paused_a_service_for_a_time(shop: TroubledShop) -> None:
    await shop.start(an_order_service(), a_payment(), an_inventory(), a_shipping())
    until = iso(CLOCK.now_ms() + 3_600_000)
    await shop.control("payment", Switch(kind="pause", until=until))
    await shop.place()
    found = await shop.until("paused", "payment")
    assert found.ends_with == (
        f"It ends by itself at {until}; to end it now: `saga control resume payment --who NAME --why REASON`."
    )


class Bank:
    def __init__(self) -> None:
        self.is_shut = True

    async def reserve(self) -> str:
        if self.is_shut:
            raise ConnectionError("the bank is shut")
        return "charge-1"


def a_payment_with(bank: Bank, *, breaker: Breaker | None = None, rate_per_s: float | None = None) -> Service:
    payment = Service("payment", retry=PARKS_AT_ONCE)

    @payment.resource(breaker=breaker, rate_per_s=rate_per_s)
    async def the_bank() -> AsyncIterator[Bank]:
        yield bank

    @payment.handler
    async def reserve(placed: OrderPlaced, the_bank: Bank, saga: Saga) -> PaymentReserved:
        charge = await saga.step(the_bank.reserve)
        return PaymentReserved(order_id=placed.order_id, charge_id=charge, amount=placed.total)

    return payment


async def test_the_breaker_of_a_resource_is_open(shop: TroubledShop) -> None:
    await shop.start(a_payment_with(Bank(), breaker=Breaker(failures=1, part=0, open_s=3600)))
    await shop.place("order-2")
    await shop.until("retrying", "payment", "order-2")
    await shop.place()
    found = await shop.until("breaker", "payment")
    assert "BreakerOpen: the breaker of the_bank is open: calls to it failed" in found.held_up_by
    assert found.ends_with.startswith("It continues when the called system answers again; check that system.")


async def test_a_limit_postpones_it(shop: TroubledShop) -> None:
    bank = Bank()
    bank.is_shut = False
    await shop.start(a_payment_with(bank, rate_per_s=0.001))
    shop.declare(an_order_service())
    await shop.place("order-2")
    await shop.until_it(lambda found: any(each.type == "PaymentReserved" for each in found.path), "order-2")
    await shop.place()
    found = await shop.until("limited", "payment")
    assert "payment has to emit it with reserve: a limit postpones the run: TooManyCalls: " in found.held_up_by
    assert found.ends_with == ("It continues when the limit admits it; `saga control limit payment` sets another one.")


# -------------------------------------------------------------------- services


async def test_a_service_is_down(shop: TroubledShop) -> None:
    await shop.start(an_order_service(), a_payment(), an_inventory(), a_shipping())
    await shop.place("order-2")
    await shop.until_finished("order-2")
    await shop.stop("inventory")
    await shop.place()
    found = await shop.until_only(("down", "inventory"))
    assert found.waits_for == "Saga order-1 waits for InventoryReserved or InventoryRejected."
    assert found.held_up_by.startswith(
        "inventory has to emit it with set_aside: no worker of inventory runs; OrderPlaced exists since "
    )
    assert ", and its lag in orders is 1 record" in found.held_up_by
    assert "; inventory has written nothing about this saga." in found.held_up_by
    assert found.ends_with == "Start inventory: `saga run` with its module."


async def test_a_service_with_a_parked_run_is_down(shop: TroubledShop) -> None:
    await shop.start(a_payment(be_shut, retry=PARKS_AT_ONCE))
    await shop.place()
    await shop.until("retrying", "payment")
    await shop.stop()
    found = await shop.until("down", "payment")
    assert "no worker of payment runs; a run has failed and is parked" in found.held_up_by
    assert found.ends_with.startswith("Start payment: `saga run` with its module. It is tried again at ")


async def test_a_service_lags(shop: TroubledShop) -> None:
    is_free, is_busy = asyncio.Event(), asyncio.Event()

    async def take_long(placed: OrderPlaced) -> PaymentReserved | PaymentDeclined:
        is_busy.set()
        await is_free.wait()
        return await pay(placed)

    await shop.start(an_order_service(), a_payment(take_long), an_inventory(), a_shipping())
    await shop.place()
    await is_busy.wait()
    found = await shop.until("lagging", "payment")
    is_free.set()
    assert ", and payment is 1 record behind in the partition of this saga in orders" in found.held_up_by
    assert "`saga offsets show payment`" in found.ends_with
    assert (await shop.until_finished()).outcome == "OrderConfirmed"


async def test_a_service_began_to_read_after_the_event(shop: TroubledShop) -> None:
    await shop.start(an_order_service(patience=HOUR), an_inventory(), a_shipping())
    await shop.publish(an_order(SAGA), ago_s=60)
    payment = Service("payment", start="now")

    @payment.handler
    async def reserve(placed: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=placed.order_id, charge_id="charge-1", amount=placed.total)

    await shop.start(payment)
    found = await shop.until("not_seen", "payment")
    assert ", and payment has handled the partition of this saga in orders without it" in found.held_up_by
    assert "`saga sagas rebuild MODULE --saga order-1 --dry-run`" in found.ends_with
    assert "`saga offsets reset payment --topic orders --to 2" in found.ends_with


async def test_a_release_does_not_declare_the_handler(shop: TroubledShop) -> None:
    await shop.start(a_payment(be_shut, retry=PARKS_AT_ONCE))
    await shop.place()
    await shop.until("retrying", "payment")
    await shop.stop()
    payment = Service("payment")

    @payment.handler
    async def pay_now(placed: OrderPlaced) -> PaymentReserved | PaymentDeclined:
        return await pay(placed)

    await shop.start(payment)
    found = await shop.until("undeclared", "payment")
    assert found.waits_for == "Saga order-1 waits for reserve in payment to handle OrderPlaced."
    assert "the manifest of payment does not declare it" in found.held_up_by
    assert found.ends_with.startswith("Deploy a release of payment that declares reserve")


# -------------------------------------------------------------------- picture


async def test_the_path_is_text_with_the_missing_event_marked(shop: TroubledShop) -> None:
    await shop.start(an_order_service(), a_payment(break_down))
    shop.declare(an_inventory(), a_shipping())
    await shop.place(card="broken")
    found = await shop.until("dead_letter", "payment")
    placed = found.path[0]
    assert format_path(found.path) == [
        f"  + OrderPlaced        client at {placed.time}",
        "  ! PaymentReserved    payment.reserve after OrderPlaced  <-- missing",
        "  . InventoryReserved  inventory.set_aside after OrderPlaced",
        "  . ShipmentBooked     shipping.book after OrderPlaced and PaymentReserved and InventoryReserved",
        "  . OrderConfirmed     order.confirm after ShipmentBooked",
    ]
