"""A service with a bug for the runs of these tests to find: its drawer does not honour keys."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from decimal import Decimal

from saga import Retry, Saga, Service
from saga.testing import World
from services.payment.events import OrderPlaced

till = Service("till")


class Drawer:
    """Counts how often it was asked for each customer: more than once after a crash at the wrong moment."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    async def put(self, key: str, customer: str) -> None:
        self.asked[customer] += 1


@till.resource
async def drawer() -> AsyncIterator[Drawer]:
    yield Drawer()


@till.handler
async def ring(order: OrderPlaced, drawer: Drawer, saga: Saga) -> None:
    await saga.step(drawer.put, saga.idempotency_key("put"), order.customer_id)


impatient = Service("impatient", retry=Retry(attempts_max=1))
"""A service that gives up at once, so that real processes come to rest although its fake is broken."""


@impatient.resource
async def other_drawer() -> AsyncIterator[Drawer]:
    yield Drawer()


@impatient.handler
async def ring_once(order: OrderPlaced, drawer: Drawer, saga: Saga) -> None:
    await saga.step(drawer.put, saga.idempotency_key("put"), order.customer_id)


def an_order(number: int) -> OrderPlaced:
    return OrderPlaced(
        order_id=f"order-{number}",
        customer_id=f"c-{number}",
        sku="tea",
        quantity=1,
        total=Decimal("9.80"),
        card="4242",
        address="Kiel",
    )


def scenario(orders: int, asked_max: int, customer: str = "c-1") -> Callable[[World], None]:
    """So many orders come in; the drawer must not be asked more often than so for this customer."""

    def run(world: World) -> None:
        drawer = Drawer()
        world.start(till, use=[drawer])
        world.publish(*map(an_order, range(orders)))
        world.run_until_quiet()
        assert drawer.asked[customer] <= asked_max, f"{customer} was asked {drawer.asked[customer]} times"

    return run
