"""Every single call of one saga's run fails, one after another and in every way it can; the books balance each time."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from decimal import Decimal
from itertools import count
from pathlib import Path

import pytest

from services.audit.books import read_books
from services.audit.checks import audit
from services.inventory.items import items
from services.order.events import OrderPlaced
from tests.failure.failing_calls import Fault, House, house_of

POINTS_MIN = 60
"""For each way in which an order can go."""


class Shop:
    """Makes orders, each for goods that are there."""

    def __init__(self, card: str = "visa-1", address: str = "Kiel", quantity: int = 1) -> None:
        self.card, self.address, self.quantity = card, address, quantity
        self._skus = self._shelves()

    def order(self, id_: str) -> OrderPlaced:
        return OrderPlaced(
            order_id=id_,
            customer_id="customer-1",
            sku=next(self._skus),
            quantity=self.quantity,
            total=Decimal("9.80"),
            card=self.card,
            address=self.address,
        )

    def _shelves(self) -> Iterator[str]:
        for left in count():
            skus = [item.sku for item in items() if item.left > left]
            assert skus, "the shelves are empty"
            yield from skus


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[House]:
    async with house_of(folder) as house:
        await house.at_rest()
        yield house


async def run(house: House, shop: Shop, fault: Fault | None, id_: str) -> bool:
    """One saga with one fault, to its end; whether it came to the fault."""
    house.plan.begin(fault)
    await house.publish(shop.order(id_))
    await house.at_rest()
    return house.plan.fired


async def every_call(house: House, shop: Shop) -> list[Fault]:
    """Run a saga for each call that one needs and each way in which that call can fail; where they failed."""
    await run(house, shop, None, "no-fault")
    needed = dict(house.plan.calls)
    return [
        fault
        for kind, modes in sorted(house.plan.modes.items())
        for mode in modes
        for n in range(1, needed[kind] + 1)
        # How many polls and commits there are is a matter of time: sometimes the last one does not come.
        if await run(house, shop, fault := Fault(kind, n, mode), name(fault))
    ]


def name(fault: Fault) -> str:
    """The id of the order that has it: so the audit says which one it was."""
    return f"{fault.kind}-{fault.n}-{fault.mode}"


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("shop", "because"),
    [
        pytest.param(Shop(), None, id="confirmed", marks=pytest.mark.slow),
        pytest.param(Shop(card="declined-1"), "PaymentDeclined", id="declined"),
        pytest.param(Shop(address="Atlantis"), "ShipmentRefused", id="undeliverable", marks=pytest.mark.slow),
        pytest.param(Shop(quantity=1_000_000), "InventoryRejected", id="out of stock", marks=pytest.mark.slow),
    ],
)
async def test_books_balance_whichever_call_fails_before_or_after_it_takes_effect(
    tmp_path: Path, shop: Shop, because: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path) as house:
        points = await every_call(house, shop)
    with capsys.disabled():
        print(f"\n{because or 'confirmed'}: {len(points)} points of failure, the books balance after each")  # noqa: T201
    ids = frozenset(map(name, points))
    books = await read_books(tmp_path, ids)
    assert {check.name: check.differences for check in audit(books) if check.differences} == {}
    assert [o.id for o in books.orders.values() if o.confirmed is not (because is None)] == []
    assert len(points) >= POINTS_MIN
