"""The result of a step used as another type. Rejected by: mypy, basedpyright."""

from decimal import Decimal

from saga import Saga
from services.payment.bank import Bank
from services.payment.events import OrderPlaced, PaymentReserved


async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved:
    charge = await saga.step(bank.reserve, saga.key("charge"), order.card, Decimal(1))
    return PaymentReserved(order_id=order.order_id, charge_id="", amount=charge)  # bad
