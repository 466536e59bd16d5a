"""A service whose annotations are texts until they are evaluated; one of them names what is not imported."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from saga import Saga, Service
from services.payment.bank import Bank
from services.payment.events import OrderPlaced, PaymentReserved

if TYPE_CHECKING:
    from decimal import Decimal

payment = Service("payment")


@payment.resource
async def bank() -> AsyncIterator[Bank]:
    yield Bank()


@payment.handler
async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved | None: ...


async def lost(order: OrderPlaced, amount: Decimal) -> None: ...
