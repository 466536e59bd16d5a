"""A service's declarations made ready: what it reads from the log, and what decisions know of its handlers."""

from datetime import timedelta

from saga import Service
from saga.contracts.library import contract_of
from saga.engine.prepared_service import consumed_by, prepare, roles_of
from saga.messages import name_of
from saga.messaging.timers import tiers_of
from saga.progress.handlers import CompensationRole
from services.order.events import InventoryRejected, OrderCancelled, OrderConfirmed, OrderPlaced, PaymentDeclined
from services.payment import events

order = Service("order")


@order.handler
async def note(placed: OrderPlaced) -> None: ...


@order.handler
async def decide(declined: PaymentDeclined, rejected: InventoryRejected) -> OrderCancelled | OrderConfirmed | None: ...


@order.handler
async def listen(confirmed: OrderConfirmed) -> None: ...


CONTRACTS = {
    name_of(e): contract_of(e)
    for e in (OrderPlaced, OrderConfirmed, OrderCancelled, PaymentDeclined, InventoryRejected)
}


def test_own_events_are_read_only_if_others_may_say_them() -> None:
    assert consumed_by(order.declared, CONTRACTS) == {"OrderPlaced", "PaymentDeclined", "InventoryRejected"}


def test_a_failure_is_what_a_compensation_acts_on_and_never_what_it_undoes() -> None:
    payment = Service("payment")

    @payment.handler
    async def reserve(placed: events.OrderPlaced) -> events.PaymentReserved | events.PaymentDeclined:
        raise AssertionError

    @payment.compensation(reserve)
    async def release(reserved: events.PaymentReserved, cancelled: events.OrderCancelled) -> None: ...

    contracts = {**CONTRACTS, "PaymentReserved": contract_of(events.PaymentReserved)}
    assert roles_of(payment.declared, contracts).handlers["reserve"].undo == CompensationRole(
        name="release", outcomes=frozenset({"OrderCancelled"}), results=frozenset({"PaymentReserved"})
    )


def test_a_handler_that_may_emit_an_outcome_decides() -> None:
    roles = roles_of(order.declared, CONTRACTS)
    assert [(role.name, role.decides) for role in roles.handlers.values()] == [
        ("note", False),
        ("decide", True),
        ("listen", False),
    ]
    assert roles.outcomes == {"OrderCancelled", "OrderConfirmed"}


def test_topics_are_those_of_events_that_are_read_and_not_of_those_that_are_emitted() -> None:
    prepared = prepare(order.declared)
    assert {contract.topic for contract in prepared.contracts.values()} == {"orders", "payments", "inventory"}
    assert prepared.topics == {"orders", "payments", "inventory", "order.commands", *tiers_of("order")}

    payment = Service("payment")

    @payment.handler
    async def reserve(placed: events.OrderPlaced) -> events.PaymentReserved:
        raise AssertionError

    assert prepare(payment.declared).topics == {"orders", "payment.commands", *tiers_of("payment")}


def test_a_deadline_surely_ends_its_saga_if_it_always_returns_an_outcome_and_nothing_else_closes_it() -> None:
    shop = Service("order")

    @shop.deadline(within=timedelta(hours=1))
    async def expire(placed: OrderPlaced) -> OrderCancelled | OrderConfirmed:
        raise AssertionError

    @shop.deadline(within=timedelta(hours=1), unless=(PaymentDeclined,))
    async def expire_unless(placed: OrderPlaced) -> OrderCancelled:
        raise AssertionError

    @shop.deadline(within=timedelta(hours=1))
    async def expire_perhaps(placed: OrderPlaced) -> OrderCancelled | None:
        raise AssertionError

    @shop.deadline(within=timedelta(hours=1))
    async def expire_some(placed: OrderPlaced) -> list[OrderCancelled]:
        raise AssertionError

    @shop.deadline(within=timedelta(hours=1))
    async def place_again(placed: OrderPlaced) -> OrderPlaced:
        raise AssertionError

    @shop.handler
    async def cancel(placed: OrderPlaced) -> OrderCancelled:
        raise AssertionError

    roles = roles_of(shop.declared, CONTRACTS)
    assert [role.name for role in roles.handlers.values() if role.ends_surely] == ["expire"]
