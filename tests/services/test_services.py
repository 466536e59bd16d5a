"""Each service of the example as plain functions: its reaction to an event, with a fake bank and carrier."""

from decimal import Decimal

from saga.testing import a_saga
from services.inventory import events as inventory_events
from services.inventory import hand_out, put_back, set_aside
from services.inventory.stock import Stock
from services.order import cancel, confirm
from services.order import events as order_events
from services.payment import capture, release, reserve
from services.payment import events as payment_events
from services.payment.bank import Bank
from services.shipping import book, dispatch, unbook
from services.shipping import events as shipping_events
from services.shipping.carrier import Carrier

ID = "order-17"
PRICE = Decimal("9.80")


class FakeBank(Bank):
    """A stand-in is a subclass: so a plain call takes it."""


def an_order_for_payment(card: str = "visa-4242") -> payment_events.OrderPlaced:
    return payment_events.OrderPlaced(
        order_id=ID, customer_id="c-1", sku="tea", quantity=2, total=PRICE, card=card, address="Kiel"
    )


def an_order_for_inventory() -> inventory_events.OrderPlaced:
    return inventory_events.OrderPlaced(
        order_id=ID, customer_id="c-1", sku="tea", quantity=2, total=PRICE, card="visa-4242", address="Kiel"
    )


def parts_for_shipping(
    address: str,
) -> tuple[shipping_events.OrderPlaced, shipping_events.PaymentReserved, shipping_events.InventoryReserved]:
    placed = shipping_events.OrderPlaced(
        order_id=ID, customer_id="c-1", sku="tea", quantity=2, total=PRICE, card="visa-4242", address=address
    )
    paid = shipping_events.PaymentReserved(order_id=ID, charge_id="c-17", amount=PRICE)
    return placed, paid, shipping_events.InventoryReserved(order_id=ID, sku="tea", quantity=2)


async def test_an_order_is_confirmed_when_its_shipment_is_booked() -> None:
    booked = order_events.ShipmentBooked(order_id=ID, booking_id="b-1")
    assert await confirm(booked) == order_events.OrderConfirmed(order_id=ID)


async def test_an_order_is_cancelled_with_the_reason_of_the_refusal() -> None:
    refused = order_events.ShipmentRefused(order_id=ID, reason="nobody delivers to Atlantis")
    assert await cancel(refused) == order_events.OrderCancelled(order_id=ID, reason="nobody delivers to Atlantis")


async def test_money_is_reserved_and_captured_when_the_order_is_confirmed() -> None:
    bank = FakeBank()
    reserved = await reserve(an_order_for_payment(), bank, a_saga())
    assert isinstance(reserved, payment_events.PaymentReserved)
    assert bank.held == {reserved.charge_id: PRICE}
    captured = await capture(payment_events.OrderConfirmed(order_id=ID), reserved, bank, a_saga())
    assert captured == payment_events.PaymentCaptured(order_id=ID, amount=PRICE)
    assert (bank.held, bank.taken) == ({}, {reserved.charge_id: PRICE})


async def test_money_is_released_when_the_order_is_cancelled() -> None:
    bank = FakeBank()
    bank.held["c-17"] = PRICE
    reserved = payment_events.PaymentReserved(order_id=ID, charge_id="c-17", amount=PRICE)
    released = await release(payment_events.OrderCancelled(order_id=ID, reason="no"), reserved, bank, a_saga())
    assert released == payment_events.PaymentReleased(order_id=ID, charge_id="c-17")
    assert (bank.held, bank.taken) == ({}, {})


async def test_a_blocked_card_declines_the_payment() -> None:
    declined = await reserve(an_order_for_payment(card="declined-1"), FakeBank(), a_saga())
    assert declined == payment_events.PaymentDeclined(order_id=ID, reason="card declined")


async def test_goods_are_set_aside_and_handed_out_when_the_order_is_confirmed() -> None:
    saga = a_saga(documents={"tea": Stock(left=5)})
    reserved = await set_aside(an_order_for_inventory(), saga)
    assert reserved == inventory_events.InventoryReserved(order_id=ID, sku="tea", quantity=2)
    assert await saga.read(Stock, "tea") == Stock(left=3, aside=2)
    handed = await hand_out(inventory_events.OrderConfirmed(order_id=ID), reserved, saga)
    assert handed == inventory_events.InventoryHandedOut(order_id=ID, sku="tea", quantity=2)
    assert await saga.read(Stock, "tea") == Stock(left=3)


async def test_goods_are_put_back_when_the_order_is_cancelled() -> None:
    saga = a_saga(documents={"tea": Stock(left=3, aside=2)})
    reserved = inventory_events.InventoryReserved(order_id=ID, sku="tea", quantity=2)
    back = await put_back(inventory_events.OrderCancelled(order_id=ID, reason="no"), reserved, saga)
    assert back == inventory_events.InventoryPutBack(order_id=ID, sku="tea", quantity=2)
    assert await saga.read(Stock, "tea") == Stock(left=5)


async def test_an_order_for_more_than_is_left_is_rejected_and_changes_nothing() -> None:
    saga = a_saga(documents={"tea": Stock(left=1)})
    rejected = await set_aside(an_order_for_inventory(), saga)
    assert rejected == inventory_events.InventoryRejected(order_id=ID, reason="1 left, 2 ordered")
    assert await saga.read(Stock, "tea") == Stock(left=1)


async def test_a_shipment_is_booked_and_dispatched_when_the_order_is_confirmed() -> None:
    carrier = Carrier()
    booked = await book(*parts_for_shipping("Kiel"), carrier, a_saga())
    assert isinstance(booked, shipping_events.ShipmentBooked)
    assert carrier.booked == {booked.booking_id: "Kiel"}
    sent = await dispatch(shipping_events.OrderConfirmed(order_id=ID), booked, carrier, a_saga())
    assert sent == shipping_events.ShipmentDispatched(order_id=ID, tracking=f"tracking-{booked.booking_id}")
    assert (carrier.booked, carrier.dispatched) == ({}, {booked.booking_id: "Kiel"})


async def test_a_booking_is_taken_back_when_the_order_is_cancelled() -> None:
    carrier = Carrier()
    booked = await book(*parts_for_shipping("Kiel"), carrier, a_saga())
    assert isinstance(booked, shipping_events.ShipmentBooked)
    back = await unbook(shipping_events.OrderCancelled(order_id=ID, reason="no"), booked, carrier, a_saga())
    assert back == shipping_events.ShipmentUnbooked(order_id=ID, booking_id=booked.booking_id)
    assert (carrier.booked, carrier.dispatched) == ({}, {})


async def test_a_shipment_that_the_carrier_refuses_emits_shipment_refused() -> None:
    refused = await book(*parts_for_shipping("Atlantis"), Carrier(), a_saga())
    assert refused == shipping_events.ShipmentRefused(order_id=ID, reason="nobody delivers to Atlantis")
