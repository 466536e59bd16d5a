"""Orders in very many parts, each of which is set aside and let go again: results in pages, and claims."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from decimal import Decimal

from saga import Saga, Service
from saga.progress.overflow import OverflowBounds
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.order.events import OrderCancelled, OrderPlaced
from services.payment.events import OrderCancelled as Cancelled
from services.payment.events import OrderPlaced as Placed
from services.payment.events import PaymentReserved

PARTS = 9
BOUNDS = OverflowBounds(head_max=2, segment_max=2, value_bytes_max=0)
"""Bounds so small that most results are in pages, and each answer of a step lies apart."""


class Vault:
    """Place where parts lie; it counts nothing twice that has one key."""

    def __init__(self) -> None:
        self.places: dict[str, str] = {}
        self.labels: dict[str, str] = {}
        self.free: dict[str, str] = {}

    async def put(self, key: str) -> str:
        """Place of a part."""
        return self.places.setdefault(key, f"place of {key}")

    async def label(self, key: str, place: str) -> str:
        """Label of a place."""
        return self.labels.setdefault(key, f"label of {place}")

    async def let_go(self, key: str, place: str) -> None:
        """Have the place empty again."""
        self.free[key] = place


order, payment = Service("order"), Service("payment")


@order.handler(repeats=OrderPlaced)
async def cancel(placed: OrderPlaced) -> OrderCancelled | None:
    return OrderCancelled(order_id=placed.order_id, reason="late") if placed.quantity == PARTS else None


@payment.resource(timeout_s=5)
async def vault() -> AsyncIterator[Vault]:
    yield Vault()


@payment.handler(repeats=Placed)
async def reserve(placed: Placed, vault: Vault, saga: Saga) -> PaymentReserved:
    place = await saga.step(vault.put, saga.idempotency_key("place"))
    label = await saga.step(vault.label, saga.idempotency_key("label"), place)
    return PaymentReserved(order_id=placed.order_id, charge_id=label.removeprefix("label of "), amount=placed.total)


@payment.compensation(reserve)
async def release(cancelled: Cancelled, reserved: PaymentReserved, vault: Vault, saga: Saga) -> None:
    await saga.step(vault.let_go, saga.idempotency_key("let go"), reserved.charge_id)


def orders_in_many_parts(world: SimulatedWorld) -> Callable[[], None]:
    """Every part that has a place, has it no more once the order is cancelled."""
    vault = Vault()
    world.start(order, payment, use=[vault])
    placed = OrderPlaced(
        order_id="order-1",
        customer_id="c-1",
        sku="tea",
        quantity=0,
        total=Decimal("9.80"),
        card="4242",
        address="Kiel",
    )
    for number in range(PARTS + 1):
        world.publish(replace(placed, quantity=number))
    world.run_until_quiet()

    def judge() -> None:
        dead = [record for record in world.cluster.log if record.topic.endswith(".dead")]
        assert not dead, dead
        assert world.outcome("order-1") is OrderCancelled
        assert sorted(vault.free.values()) == sorted(vault.places.values()), (vault.places, vault.free)

    return judge
