"""An outcome that precedes the start event of its saga in the log: no effect stands at the end, and nothing is lost."""

from decimal import Decimal
from pathlib import Path

from saga.contracts import codec
from saga.contracts.library import contract_of
from saga.messages import Event, Message
from saga.messaging import envelope
from saga.progress.document import Transition
from saga.support.clock import iso
from services import ledger
from services.inventory import inventory
from services.order.events import OrderCancelled, OrderConfirmed, OrderPlaced
from services.payment import payment
from services.shipping import shipping
from tests.failure.failing_calls import House, house_of

ID = "order-first-last"
ORDER = OrderPlaced(
    order_id=ID, customer_id="c-1", sku="tea-earl-grey-250g", quantity=2, total=Decimal("9.80"), card="visa-1",
    address="Kiel",
)  # fmt: skip
OTHERS = (payment, inventory, shipping)


async def publish_as(house: House, *events: Event, source: str) -> None:
    """Publish as the service `source` does."""
    now = iso(house.clock.now_ms())
    for event in events:
        contract = contract_of(type(event))
        message = Message(
            id=f"{contract.name}-{ID}",
            type=contract.name,
            schema=type(event).__contract__,
            saga=ID,
            source=source,
            time=now,
            value=codec.encode(event),
            started=now,
        )
        await house.broker.publish([envelope.to_record(message, contract)])


def summarize_transitions(entries: list[Transition]) -> list[tuple[str, str, str, str | None]]:
    return [(entry.type, entry.handler, entry.outcome, entry.reason) for entry in entries]


async def test_late_originals_are_ignored_visibly_after_a_failure_outcome_that_came_first(tmp_path: Path) -> None:
    async with house_of(tmp_path, OTHERS) as house:
        shelves = {key: document.content async for key, document in house.stores["inventory"].scan("stock")}
        await publish_as(house, OrderCancelled(order_id=ID, reason="the customer called"), source="order")
        await house.at_rest()
        await house.publish(ORDER)
        await house.at_rest()
        histories = {name: summarize_transitions(await house.history(name, ID)) for name in house.stores}
        after = {key: document.content async for key, document in house.stores["inventory"].scan("stock")}
        services = {name: await house.history(name, ID) for name in house.stores}
    assert after == shelves
    assert ledger.read(tmp_path / "bank.db") == []
    assert ledger.read(tmp_path / "carrier.db") == []
    assert [event for entries in services.values() for entry in entries for event in entry.events] == []
    for service, handler, undo in (
        ("payment", "reserve", "release"),
        ("inventory", "set_aside", "put_back"),
        ("shipping", "book", "unbook"),
    ):
        (first, second) = histories[service]
        assert first == ("OrderCancelled", undo, "compensated", f"nothing of {handler} to undo; it is closed")
        assert second[:3] == ("OrderPlaced", handler, "ignored")
        assert second[3] is not None
        assert "closed" in second[3]


async def test_a_success_outcome_that_came_first_waits_and_is_carried_out(tmp_path: Path) -> None:
    async with house_of(tmp_path, OTHERS) as house:
        await publish_as(house, OrderConfirmed(order_id=ID), source="order")
        await house.at_rest()
        await house.publish(ORDER)
        await house.at_rest()
        histories = {name: await house.history(name, ID) for name in house.stores}
        shelf = await house.stores["inventory"].get("stock", ORDER.sku)
    for service, emitted in (
        ("payment", ["PaymentReserved", "PaymentCaptured"]),
        ("inventory", ["InventoryReserved", "InventoryHandedOut"]),
        ("shipping", ["ShipmentBooked", "ShipmentDispatched"]),
    ):
        assert summarize_transitions(histories[service])[0][2] == "waiting"
        assert [event.type for entry in histories[service] for event in entry.events] == emitted
    assert [row.call.operation for row in ledger.read(tmp_path / "bank.db")] == ["reserve", "capture"]
    assert [row.call.operation for row in ledger.read(tmp_path / "carrier.db")] == ["book", "dispatch"]
    assert shelf is not None
    assert b'"aside":0' in shelf.content


async def test_an_outcome_between_the_originals_of_three_services_undoes_what_was_done(tmp_path: Path) -> None:
    """Payment and inventory have reserved; shipping hears of the cancellation before it hears of either."""
    async with house_of(tmp_path, (payment, inventory)) as house:
        await house.publish(ORDER)
        await house.at_rest()
        await publish_as(house, OrderCancelled(order_id=ID, reason="the customer called"), source="order")
        await house.at_rest()
        assert "PaymentReleased" in [e.type for entry in await house.history("payment", ID) for e in entry.events]
    async with house_of(tmp_path, OTHERS) as house:
        await house.at_rest()
        entries = await house.history("shipping", ID)
        assert [event for entry in entries for event in entry.events] == []
    rows = [row.call.operation for row in ledger.read(tmp_path / "bank.db")]
    assert rows == ["reserve", "release"]
    assert ledger.read(tmp_path / "carrier.db") == []
