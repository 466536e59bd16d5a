"""Releases of a payment service, and a till that all of them use."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from decimal import Decimal

from saga import Retry, Saga, Service
from services.payment.events import (
    OrderCancelled,
    OrderConfirmed,
    OrderPlaced,
    PaymentCaptured,
    PaymentReleased,
    PaymentReserved,
)

PATIENT = Retry(attempts_max=60, delay_s_max=1)


class Till:
    """The external system: it takes each sum once, by key, and fails as often as it is asked to."""

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails
        self.calls: dict[str, tuple[str, ...]] = {}
        """Arguments of each call, by key."""

    async def reserve(self, key: str, total: str) -> str:
        return self._called("reserve", key, total)

    async def look(self, key: str) -> str:
        return self._called("look", key)

    async def take(self, key: str, charge: str, total: str) -> None:
        self._called("take", key, charge, total)

    async def release(self, key: str, charge: str) -> None:
        self._called("release", key, charge)

    @property
    def taken(self) -> list[str]:
        """Sums that were taken."""
        return sorted(call[-1] for call in self.calls.values() if call[0] == "take")

    @property
    def open(self) -> list[str]:
        """Charges that were reserved, and neither taken nor released."""
        ended = {call[1] for call in self.calls.values() if call[0] in ("take", "release")}
        return [key for key, call in self.calls.items() if call[0] == "reserve" and key not in ended]

    def _called(self, *call: str) -> str:
        what, key, *arguments = call
        known = self.calls.setdefault(key, (what, *arguments))
        assert known == (what, *arguments), f"one key, two calls: {known}, {what, *arguments}"
        if self.fails:
            self.fails -= 1
            raise ConnectionError("no answer")
        return key


@dataclass(frozen=True)
class NotesV1:
    total: str = ""


@dataclass(frozen=True)
class Notes:
    cents: int = 0


def cents_of(total: str) -> int:
    return round(Decimal(total or "0") * 100)


def totalled(cents: int) -> str:
    return str(Decimal(cents) / 100 + Decimal("0.00"))


def before() -> Service[NotesV1]:
    """The first release: it keeps a text."""
    payment = Service("payment", state=NotesV1, retry=PATIENT)

    @payment.resource
    async def till() -> AsyncIterator[Till]:
        yield Till()

    @payment.handler
    async def reserve(order: OrderPlaced, till: Till, saga: Saga[NotesV1]) -> PaymentReserved:
        charge = await saga.step(till.reserve, saga.idempotency_key("charge"), str(order.total))
        saga.state = replace(saga.state, total=str(order.total))
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    @payment.handler
    async def capture(
        confirmed: OrderConfirmed, reserved: PaymentReserved, till: Till, saga: Saga[NotesV1]
    ) -> PaymentCaptured:
        await saga.step(till.look, saga.idempotency_key("look"))
        await saga.step(till.take, saga.idempotency_key("take"), reserved.charge_id, saga.state.total)
        return PaymentCaptured(order_id=confirmed.order_id, amount=Decimal(saga.state.total))

    @payment.compensation(reserve)
    async def release(
        cancelled: OrderCancelled, reserved: PaymentReserved, till: Till, saga: Saga[NotesV1]
    ) -> PaymentReleased:
        await saga.step(till.release, saga.idempotency_key("release"), reserved.charge_id)
        return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)

    return payment


def improved(*, looks_first: bool = True) -> Service[NotesV1]:
    """A release that keeps a text, and from version 2 of a handler on reserves in another way. `looks_first`: False for
    the release before it."""
    payment = Service("payment", state=NotesV1, retry=PATIENT)

    @payment.resource
    async def till() -> AsyncIterator[Till]:
        yield Till()

    @payment.handler(version=2 if looks_first else 1)
    async def reserve(order: OrderPlaced, till: Till, saga: Saga[NotesV1]) -> PaymentReserved:
        if looks_first and saga.version >= 2:
            await saga.step(till.look, saga.idempotency_key("first"))
        charge = await saga.step(till.reserve, saga.idempotency_key("charge"), str(order.total))
        saga.state = replace(saga.state, total=str(order.total))
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    @payment.handler
    async def capture(
        confirmed: OrderConfirmed, reserved: PaymentReserved, till: Till, saga: Saga[NotesV1]
    ) -> PaymentCaptured:
        await saga.step(till.take, saga.idempotency_key("take"), reserved.charge_id, saga.state.total)
        return PaymentCaptured(order_id=confirmed.order_id, amount=Decimal(saga.state.total))

    @payment.compensation(reserve)
    async def release(
        cancelled: OrderCancelled, reserved: PaymentReserved, till: Till, saga: Saga[NotesV1]
    ) -> PaymentReleased:
        await saga.step(till.release, saga.idempotency_key("release"), reserved.charge_id)
        return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)

    return payment


def after(*, looks_first: bool = False, flagged: bool = False, keeps: bool = True) -> Service[Notes]:
    """The next release: it keeps cents. `looks_first`: it reserves in another way, with a step more; `flagged`: that is
    behind a flag. `keeps`: it still has the handler that reserved."""
    payment = Service("payment", state=Notes, retry=PATIENT)

    @payment.migrate(1)
    def in_cents(old: NotesV1) -> Notes:
        return Notes(cents=cents_of(old.total))

    @payment.resource
    async def till() -> AsyncIterator[Till]:
        yield Till()

    async def reserve(order: OrderPlaced, till: Till, saga: Saga[Notes]) -> PaymentReserved:
        if looks_first and (not flagged or await saga.flag("looks_first")):
            await saga.step(till.look, saga.idempotency_key("first"))
        charge = await saga.step(till.reserve, saga.idempotency_key("charge"), str(order.total))
        saga.state = Notes(cents=cents_of(str(order.total)))
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    if not keeps:
        reserve.__name__ = "set_aside"
    payment.handler(reserve)

    @payment.handler
    async def capture(
        confirmed: OrderConfirmed, reserved: PaymentReserved, till: Till, saga: Saga[Notes]
    ) -> PaymentCaptured:
        total = totalled(saga.state.cents)
        await saga.step(till.look, saga.idempotency_key("look"))
        await saga.step(till.take, saga.idempotency_key("take"), reserved.charge_id, total)
        return PaymentCaptured(order_id=confirmed.order_id, amount=Decimal(total))

    @payment.compensation(reserve)
    async def release(
        cancelled: OrderCancelled, reserved: PaymentReserved, till: Till, saga: Saga[Notes]
    ) -> PaymentReleased:
        await saga.step(till.release, saga.idempotency_key("release"), reserved.charge_id)
        return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)

    return payment
