"""The principal of a saga, in a world full of faults: every event, progress and handler has the same."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from saga import Later, Retry, Saga, Service
from saga.errors import Permanent
from saga.messaging.names import is_without_events
from saga.progress.document import decode_progress
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.bank import Bank, Declined
from services.payment.events import OrderCancelled as Cancelled
from services.payment.events import OrderConfirmed as Confirmed
from services.payment.events import OrderPlaced, PaymentCaptured, PaymentDeclined, PaymentReleased, PaymentReserved
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.services.waiting_order import order
from tests.testing.faulty_worlds import seeds, simulated
from tests.testing.simulation.orders import an_order

SEEDS = seeds(6)
ADA, BEA = "user:4711", "user:4712"
SEEN = set[tuple[str, str | None]]()
"""Sagas of which the handler has seen who began them, at its first look too."""


class AuditedBank(Bank):
    """Bank that gets the principal, fails often, and cannot read one card before it is mended."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.is_mended, self.fails = set[tuple[str, str | None]](), False, 6

    async def audited(self, saga_id: str, principal: str | None, card: str) -> None:
        self.asked.add((saga_id, principal))
        if self.fails:
            self.fails -= 1
            raise ConnectionError("no answer")
        if card == "smudged" and not self.is_mended:
            raise Permanent("nobody can read this card")


payment = Service("payment")


@payment.resource(timeout_s=5, expected_errors=(Declined,))
async def bank() -> AsyncIterator[AuditedBank]:
    yield AuditedBank()


@payment.handler(retry=Retry(attempts_max=60, delay_s_max=2))
async def reserve(order: OrderPlaced, bank: AuditedBank, saga: Saga) -> PaymentReserved | PaymentDeclined | Later:
    SEEN.add((order.order_id, saga.principal))
    if not saga.elapsed:
        return Later(after=timedelta(seconds=1))
    await saga.step(bank.audited, order.order_id, saga.principal, order.card)
    try:
        charge = await saga.step(bank.reserve, saga.idempotency_key("charge"), order.card, order.total)
    except Declined as why:
        return PaymentDeclined(order_id=order.order_id, reason=str(why))
    return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)


@payment.handler
async def capture(confirmed: Confirmed, reserved: PaymentReserved, bank: AuditedBank, saga: Saga) -> PaymentCaptured:
    await saga.step(bank.capture, saga.idempotency_key("capture"), reserved.charge_id)
    return PaymentCaptured(order_id=confirmed.order_id, amount=reserved.amount)


@payment.compensation(reserve)
async def release(cancelled: Cancelled, reserved: PaymentReserved, bank: AuditedBank, saga: Saga) -> PaymentReleased:
    await saga.step(bank.audited, cancelled.order_id, saga.principal, "")
    await saga.step(bank.release, saga.idempotency_key("release"), reserved.charge_id)
    return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)


def principals_in(world: SimulatedWorld, saga: str) -> set[bytes | None]:
    """Principals in the events of a saga, and in its dead letters."""
    log = [r for r in world.evidence().log if r.key == saga.encode() and not is_produced_by_operators(r.topic)]
    assert len(log) > 5
    return {dict(record.headers).get("ce_sagaprincipal") for record in log}


def is_produced_by_operators(topic: str) -> bool:
    return is_without_events(topic) and not topic.endswith(".dead")


def kept_of(world: SimulatedWorld, saga: str) -> bytes:
    """All that the services have ever written of a saga."""
    return b"".join(content for w in world.evidence().services.values() for content in w.versions.get(saga, ()))


def known_in(world: SimulatedWorld, saga: str) -> set[str | None]:
    """Principals in the progresses of a saga, in each version that there was."""
    of_all = [w.versions.get(saga, ()) for w in world.evidence().services.values()]
    return {decode_progress(content).principal for contents in of_all for content in contents}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_principal_of_a_saga_survives_crashes_parking_suspension_replays_and_compensations(seed: int) -> None:
    SEEN.clear()
    with simulated(seed) as world:
        bank = AuditedBank()
        world.start(order, payment, inventory, shipping, use=[bank, Carrier()], documents={"tea": Stock(left=9)})
        world.publish(an_order(17), an_order(20, card="smudged"), principal=ADA)
        world.publish(an_order(18, address="Atlantis"), principal=BEA)
        world.publish(an_order(19))
        world.run_until_quiet()
        bank.is_mended = True
        world.replay(payment, "order-20")
        world.run_until_quiet()
        outcomes = [world.outcome(f"order-{n}") for n in (17, 18, 19, 20)]
        assert outcomes == [OrderConfirmed, OrderCancelled, OrderConfirmed, OrderConfirmed]
        for n, who in ((17, ADA), (18, BEA), (19, None), (20, ADA)):
            assert principals_in(world, f"order-{n}") == {who.encode() if who else None}
            assert known_in(world, f"order-{n}") == {who}
        assert b"principal" not in kept_of(world, "order-19"), "without a principal it costs not a byte"
        assert bank.asked == {("order-17", ADA), ("order-18", BEA), ("order-19", None), ("order-20", ADA)}
        assert bank.asked == SEEN
        world.verify(rerun=True)
