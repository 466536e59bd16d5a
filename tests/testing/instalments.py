"""A payment in instalments: a long job of several turns, which then waits for the order's confirmation."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from saga import Later, Saga, Service
from saga.testing.simulation.simulated_world import SimulatedWorld
from saga.testing.world import World
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.bank import Bank, Declined
from services.payment.events import OrderCancelled as Cancelled
from services.payment.events import OrderConfirmed as Confirmed
from services.payment.events import (
    OrderPlaced,
    PaymentCaptured,
    PaymentReleased,
    PaymentReserved,
)
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.testing.simulation.orders import an_order

PARTS, A_TURN = 6, 2
PAUSE = timedelta(minutes=8)
"""Pause between the turns of an order that is paid slowly: too slowly, and it expires."""
CORRECTED = timedelta(minutes=5)
"""Time in which a second confirmation would be a correction."""


class InstalmentBank(Bank):
    """Bank that notes each part it was paid, and each correction."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, tuple[str, int]] = {}
        self.refunds: dict[str, tuple[str, int]] = {}
        self.contradictions: list[str] = []
        self.corrected: list[str] = []

    async def pay(self, key: str, order_id: str, number: int) -> None:
        if self.parts.setdefault(key, (order_id, number)) != (order_id, number):
            self.contradictions.append(f"{key} paid {self.parts[key]}, and now {order_id} {number}")

    async def refund(self, key: str, order_id: str, number: int) -> None:
        if self.refunds.setdefault(key, (order_id, number)) != (order_id, number):
            self.contradictions.append(f"{key} gives back {self.refunds[key]}, and now {order_id} {number}")

    async def correct(self, key: str, order_id: str) -> None:
        self.corrected.append(order_id)

    def paid(self, order_id: str) -> list[int]:
        """Parts of an order, in order of payment."""
        return [number for saga, number in self.parts.values() if saga == order_id]

    def given_back(self, order_id: str) -> list[int]:
        """Parts of an order that were given back, in order."""
        return [number for saga, number in self.refunds.values() if saga == order_id]


@dataclass(frozen=True)
class Paid:
    parts: int = 0
    charge: str = ""
    is_taken: bool = False


payment = Service("payment", state=Paid)


@payment.resource(timeout_s=5, expected_errors=(Declined,))
async def bank() -> AsyncIterator[InstalmentBank]:
    yield InstalmentBank()


@payment.handler
async def reserve(
    placed: OrderPlaced, confirmed: Confirmed | None, bank: InstalmentBank, saga: Saga[Paid]
) -> Later | tuple[PaymentReserved | PaymentCaptured, Later[Confirmed]] | None:
    if confirmed is not None:
        return await settled(placed, bank, saga)
    if saga.state.charge:
        return None  # it is not confirmed, or the confirmation is not corrected
    for number in range(saga.state.parts, saga.state.parts + A_TURN):
        await saga.step(bank.pay, saga.idempotency_key(f"part-{number % A_TURN}"), placed.order_id, number)
        if placed.address != "slow, for a person":
            saga.on_abort(bank.refund, saga.idempotency_key(f"refund-{number % A_TURN}"), placed.order_id, number)
    saga.state = replace(saga.state, parts=saga.state.parts + A_TURN)
    if saga.state.parts < PARTS:
        return Later(after=PAUSE) if placed.address.startswith("slow") else Later()
    charge = await saga.step(bank.reserve, saga.idempotency_key("charge"), placed.card, placed.total)
    saga.state = replace(saga.state, charge=charge)
    reserved = PaymentReserved(order_id=placed.order_id, charge_id=charge, amount=placed.total)
    return reserved, Later(until=Confirmed, within=timedelta(hours=1))


async def settled(
    placed: OrderPlaced, bank: InstalmentBank, saga: Saga[Paid]
) -> tuple[PaymentCaptured, Later[Confirmed]] | None:
    """Take the money, or note that the confirmation was corrected."""
    if saga.state.is_taken:
        await saga.step(bank.correct, saga.idempotency_key("correct"), placed.order_id)
        return None
    await saga.step(bank.capture, saga.idempotency_key("capture"), saga.state.charge)
    saga.state = replace(saga.state, is_taken=True)
    captured = PaymentCaptured(order_id=placed.order_id, amount=placed.total)
    return captured, Later(until=Confirmed, within=CORRECTED)


@payment.compensation(reserve)
async def release(
    cancelled: Cancelled, reserved: PaymentReserved, bank: InstalmentBank, saga: Saga[Paid]
) -> PaymentReleased:
    await saga.step(bank.release, saga.idempotency_key("release"), reserved.charge_id)
    return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)


def started(world: World) -> InstalmentBank:
    paid = InstalmentBank()
    world.start(order, payment, inventory, shipping, use=[paid, Carrier()], documents={"tea": Stock(left=50)})
    return paid


def orders_in_instalments(world: SimulatedWorld) -> Callable[[], None]:
    """Two orders are paid and confirmed, one is paid and cancelled, two are cancelled while they are paid."""
    paid = started(world)
    ends = {f"order-{n}": OrderConfirmed if n < 3 else OrderCancelled for n in range(1, 6)}
    world.publish(an_order(1), an_order(2), an_order(3, address="Atlantis"), an_order(4, address="slow"))
    world.publish(an_order(5, address="slow, for a person"))
    world.run_until_quiet()

    def judge() -> None:
        assert {saga: world.outcome(saga) for saga in ends} == ends
        assert not paid.contradictions, paid.contradictions
        assert not paid.corrected, paid.corrected
        for saga in ("order-1", "order-2", "order-3"):
            assert paid.paid(saga) == list(range(PARTS)), (saga, paid.paid(saga))
        for saga in ("order-4", "order-5"):
            assert len(paid.paid(saga)) < PARTS, f"{saga} went on though it was cancelled"
        assert {saga for saga, _ in paid.refunds.values()} == {"order-4"}
        assert paid.given_back("order-4") == paid.paid("order-4")[::-1], "what was paid last is given back first"
        assert (len(paid.taken), paid.held) == (2, {})
        for saga in ends:
            p = world.progress("payment", saga)
            assert p is not None
            assert (p.suspended_runs, p.intents) == ((), ()), saga
        keys = {record.key for record in world.cluster.log if record.topic == "payment.dead"}
        assert keys == {b"order-5"}, "a person has to put right what was paid of the order that was cancelled"

    return judge
