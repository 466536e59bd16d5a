"""A compensation of something that is no handler at all. Rejected by: mypy, basedpyright."""

from saga import Service
from services.payment import bank
from services.payment.events import OrderCancelled, PaymentReleased, PaymentReserved

payment = Service("payment")


@payment.compensation(bank)  # bad
async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> PaymentReleased | None:
    return None
