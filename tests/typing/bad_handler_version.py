"""A version that is no whole number. Rejected by: mypy, basedpyright."""

from datetime import timedelta

from saga import Saga, Service
from services.payment.events import OrderPlaced

service = Service("payment")


@service.deadline(within=timedelta(days=1), version=1.5)  # bad
async def remind(order: OrderPlaced, saga: Saga) -> None:
    saga.version = 2  # bad
