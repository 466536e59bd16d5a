"""Bugs planted in the services of the shop, one each: what their author would have to find."""

from collections.abc import AsyncIterator
from itertools import count

import pytest

from saga import Saga, Service
from services.inventory import events as goods
from services.inventory.stock import OutOfStock, Stock
from services.order import events as decided
from services.payment import events as money
from services.payment.bank import Bank, Declined
from tests.mutants.scenarios import shop


async def a_bank() -> AsyncIterator[Bank]:
    async with Bank.connect() as bank:
        yield bank


# -------------------------------------------------------------------- payment


async def reserve(order: money.OrderPlaced, bank: Bank, saga: Saga) -> money.PaymentReserved | money.PaymentDeclined:
    try:
        charge = await saga.step(bank.reserve, saga.idempotency_key("charge"), order.card, order.total)
    except Declined as why:
        return money.PaymentDeclined(order_id=order.order_id, reason=str(why))
    return money.PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)


async def capture(
    confirmed: money.OrderConfirmed, reserved: money.PaymentReserved, bank: Bank, saga: Saga
) -> money.PaymentCaptured:
    await saga.step(bank.capture, saga.idempotency_key("capture"), reserved.charge_id)
    return money.PaymentCaptured(order_id=confirmed.order_id, amount=reserved.amount)


async def release(
    cancelled: money.OrderCancelled, reserved: money.PaymentReserved, bank: Bank, saga: Saga
) -> money.PaymentReleased:
    await saga.step(bank.release, saga.idempotency_key("release"), reserved.charge_id)
    return money.PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)


def a_payment() -> Service:
    payment = Service("payment")
    payment.resource(timeout_s=5, expected_errors=(Declined,))(a_bank)
    return payment


def money_is_released_before_the_outcome(patch: pytest.MonkeyPatch) -> None:
    async def let_go(
        rejected: goods.InventoryRejected, reserved: money.PaymentReserved, bank: Bank, saga: Saga
    ) -> money.PaymentReleased:
        await saga.step(bank.release, saga.idempotency_key("release"), reserved.charge_id)
        return money.PaymentReleased(order_id=rejected.order_id, charge_id=reserved.charge_id)

    payment = a_payment()
    payment.handler(reserve)
    payment.handler(capture)
    payment.handler(let_go)
    patch.setattr(shop, "payment", payment)


def money_is_never_released(patch: pytest.MonkeyPatch) -> None:
    payment = a_payment()
    payment.handler(reserve)
    payment.handler(capture)
    patch.setattr(shop, "payment", payment)


def a_reservation_has_a_fresh_key_for_each_attempt(patch: pytest.MonkeyPatch) -> None:
    fresh = count()

    async def reserve_under_a_new_key(
        order: money.OrderPlaced, bank: Bank, saga: Saga
    ) -> money.PaymentReserved | money.PaymentDeclined:
        async def reserve() -> str:
            return await bank.reserve(f"{order.order_id}-{next(fresh)}", order.card, order.total)

        try:
            charge = await saga.step(reserve)
        except Declined as why:
            return money.PaymentDeclined(order_id=order.order_id, reason=str(why))
        return money.PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    payment = a_payment()
    payment.handler(reserve_under_a_new_key)
    payment.handler(capture)
    payment.compensation(reserve_under_a_new_key)(release)
    patch.setattr(shop, "payment", payment)


def a_capture_has_no_key(patch: pytest.MonkeyPatch) -> None:
    fresh = count()

    async def capture_under_a_new_key(
        confirmed: money.OrderConfirmed, reserved: money.PaymentReserved, bank: Bank, saga: Saga
    ) -> money.PaymentCaptured:
        async def capture() -> None:
            await bank.capture(f"capture-{next(fresh)}", reserved.charge_id)

        await saga.step(capture)
        return money.PaymentCaptured(order_id=confirmed.order_id, amount=reserved.amount)

    payment = a_payment()
    payment.handler(reserve)
    payment.handler(capture_under_a_new_key)
    payment.compensation(reserve)(release)
    patch.setattr(shop, "payment", payment)


def money_is_taken_before_the_outcome(patch: pytest.MonkeyPatch) -> None:
    async def capture_at_once(reserved: money.PaymentReserved, bank: Bank, saga: Saga) -> money.PaymentCaptured:
        await saga.step(bank.capture, saga.idempotency_key("capture"), reserved.charge_id)
        return money.PaymentCaptured(order_id=reserved.order_id, amount=reserved.amount)

    payment = a_payment()
    payment.handler(reserve)
    payment.handler(capture_at_once)
    patch.setattr(shop, "payment", payment)


def a_blocked_card_is_no_answer(patch: pytest.MonkeyPatch) -> None:
    payment = Service("payment")
    payment.resource(timeout_s=5)(a_bank)
    payment.handler(reserve)
    payment.handler(capture)
    payment.compensation(reserve)(release)
    patch.setattr(shop, "payment", payment)


# -------------------------------------------------------------------- inventory


async def set_aside(order: goods.OrderPlaced, saga: Saga) -> goods.InventoryReserved | goods.InventoryRejected:
    try:
        await saga.update(Stock, order.sku, Stock.set_aside, order.quantity)
    except OutOfStock as why:
        return goods.InventoryRejected(order_id=order.order_id, reason=str(why))
    return goods.InventoryReserved(order_id=order.order_id, sku=order.sku, quantity=order.quantity)


async def hand_out(
    confirmed: goods.OrderConfirmed, reserved: goods.InventoryReserved, saga: Saga
) -> goods.InventoryHandedOut:
    await saga.update(Stock, reserved.sku, Stock.hand_out, reserved.quantity)
    return goods.InventoryHandedOut(order_id=confirmed.order_id, sku=reserved.sku, quantity=reserved.quantity)


async def put_back(
    cancelled: goods.OrderCancelled, reserved: goods.InventoryReserved, saga: Saga
) -> goods.InventoryPutBack:
    await saga.update(Stock, reserved.sku, Stock.put_back, reserved.quantity)
    return goods.InventoryPutBack(order_id=cancelled.order_id, sku=reserved.sku, quantity=reserved.quantity)


def an_inventory() -> Service:
    inventory = Service("inventory")
    inventory.document(Stock, "stock", expected_errors=(OutOfStock,))
    return inventory


def goods_are_handed_out_before_the_success(patch: pytest.MonkeyPatch) -> None:
    async def hand_out_at_once(reserved: goods.InventoryReserved, saga: Saga) -> goods.InventoryHandedOut:
        await saga.update(Stock, reserved.sku, Stock.hand_out, reserved.quantity)
        return goods.InventoryHandedOut(order_id=reserved.order_id, sku=reserved.sku, quantity=reserved.quantity)

    inventory = an_inventory()
    inventory.handler(set_aside)
    inventory.handler(hand_out_at_once)
    inventory.compensation(set_aside)(put_back)
    patch.setattr(shop, "inventory", inventory)


def the_stock_is_read_and_written_in_two_steps(patch: pytest.MonkeyPatch) -> None:
    def overwrite(there: Stock, stock: Stock) -> Stock:
        return stock

    async def set_aside_slowly(
        order: goods.OrderPlaced, saga: Saga
    ) -> goods.InventoryReserved | goods.InventoryRejected:
        stock = await saga.read(Stock, order.sku)
        if stock is None or stock.left < order.quantity:
            return goods.InventoryRejected(order_id=order.order_id, reason="none left")
        await saga.update(Stock, order.sku, overwrite, stock.set_aside(order.quantity))
        return goods.InventoryReserved(order_id=order.order_id, sku=order.sku, quantity=order.quantity)

    inventory = an_inventory()
    inventory.handler(set_aside_slowly)
    inventory.handler(hand_out)
    inventory.compensation(set_aside_slowly)(put_back)
    patch.setattr(shop, "inventory", inventory)


# -------------------------------------------------------------------- order


def an_order_is_confirmed_when_it_is_paid(patch: pytest.MonkeyPatch) -> None:
    async def confirm_early(paid: money.PaymentReserved) -> decided.OrderConfirmed:
        return decided.OrderConfirmed(order_id=paid.order_id)

    async def cancel(
        why: decided.PaymentDeclined | decided.InventoryRejected | decided.ShipmentRefused,
    ) -> decided.OrderCancelled:
        return decided.OrderCancelled(order_id=why.order_id, reason=why.reason)

    order = Service("order")
    order.handler(confirm_early)
    order.handler(cancel)
    patch.setattr(shop, "order", order)


def an_order_is_not_cancelled_when_its_shipment_is_refused(patch: pytest.MonkeyPatch) -> None:
    async def confirm(booked: decided.ShipmentBooked) -> decided.OrderConfirmed:
        return decided.OrderConfirmed(order_id=booked.order_id)

    async def cancel(why: decided.PaymentDeclined | decided.InventoryRejected) -> decided.OrderCancelled:
        return decided.OrderCancelled(order_id=why.order_id, reason=why.reason)

    order = Service("order")
    order.handler(confirm)
    order.handler(cancel)
    patch.setattr(shop, "order", order)
