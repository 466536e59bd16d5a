"""Orders that are paid at another bank while the first one cannot be asked: a scenario of another way."""

from collections.abc import AsyncIterator, Callable
from decimal import Decimal

from saga import Breaker, BreakerOpen, Saga, Service
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.bank import Bank
from services.payment.events import OrderCancelled as Cancelled
from services.payment.events import OrderConfirmed as Confirmed
from services.payment.events import OrderPlaced, PaymentCaptured, PaymentReleased, PaymentReserved
from services.shipping import shipping
from services.shipping.carrier import Carrier
from services.simulate import an_order

ORDERS = 6
OUTAGE_S = 120.0
BREAKER = Breaker(failures=2, within_s=120, open_s=30)
OTHER = "other:"


class FirstBank(Bank):
    """Bank that does what it is asked, and whose answers are lost for a time."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__()
        self.now_s = now_s

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        charge = await super().reserve(key, card, amount)
        if self.now_s() < OUTAGE_S:
            raise ConnectionError("no answer from the bank")
        return charge


class OtherBank(Bank):
    """Bank that always answers."""


payment = Service("payment")
"""The example's service, with two banks."""


@payment.resource(timeout_s=5, expected_errors=(BreakerOpen,), breaker=BREAKER)
async def first() -> AsyncIterator[FirstBank]:
    yield FirstBank(lambda: OUTAGE_S)


@payment.resource(timeout_s=5)
async def other() -> AsyncIterator[OtherBank]:
    yield OtherBank()


@payment.handler
async def reserve(placed: OrderPlaced, first: FirstBank, other: OtherBank, saga: Saga) -> PaymentReserved:
    try:
        charge = await saga.step(first.reserve, saga.idempotency_key("charge"), placed.card, placed.total)
    except BreakerOpen:
        charge = OTHER + await saga.step(other.reserve, saga.idempotency_key("other-charge"), placed.card, placed.total)
    return PaymentReserved(order_id=placed.order_id, charge_id=charge, amount=placed.total)


@payment.handler
async def capture(
    confirmed: Confirmed, reserved: PaymentReserved, first: FirstBank, other: OtherBank, saga: Saga
) -> PaymentCaptured:
    where = other if reserved.charge_id.startswith(OTHER) else first
    await saga.step(where.capture, saga.idempotency_key("capture"), reserved.charge_id.removeprefix(OTHER))
    return PaymentCaptured(order_id=confirmed.order_id, amount=reserved.amount)


@payment.compensation(reserve)
async def release(
    cancelled: Cancelled, reserved: PaymentReserved, first: FirstBank, other: OtherBank, saga: Saga
) -> PaymentReleased:
    where = other if reserved.charge_id.startswith(OTHER) else first
    await saga.step(where.release, saga.idempotency_key("release"), reserved.charge_id.removeprefix(OTHER))
    return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)


def orders_with_two_banks(world: SimulatedWorld) -> Callable[[], None]:
    """Each order is paid once: at the bank that was asked first, if perhaps it has the money, else at either."""
    first, other = FirstBank(lambda: world.now_s), OtherBank()
    world.start(order, payment, inventory, shipping, use=[first, other, Carrier()], documents={"tea": Stock(left=100)})
    for number in range(ORDERS):
        world.publish(an_order(f"order-{number}", card=f"card-{number}", address="Kiel" if number % 3 else "Atlantis"))
    world.run_until_quiet()

    def judge() -> None:
        cards = [
            call.arguments[0] for bank in (first, other) for call in bank.calls.values() if call.operation == "reserve"
        ]
        twice = sorted({card for card in cards if cards.count(card) > 1})
        assert not twice, f"asked both banks for the money of {twice}"
        ends = [world.outcome(f"order-{number}") for number in range(ORDERS)]
        assert ends == [OrderConfirmed if number % 3 else OrderCancelled for number in range(ORDERS)], ends
        assert (first.held, other.held) == ({}, {}), f"money is set aside for ever: {first.held}, {other.held}"
        assert len(first.taken) + len(other.taken) == ends.count(OrderConfirmed), f"{first.taken}, {other.taken}"

    return judge
