"""Answers that a rerun could not make again from what is recorded: a failure for good that names them, not a riddle."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from saga import Saga, Service
from services.inventory.events import InventoryRejected, InventoryReserved
from services.inventory.stock import Stock
from services.payment.events import OrderPlaced
from tests.engine.real_worker import an_order, at_work, workplace

LOST = (
    "Permanent: {what!r} answered Full, which cannot be made again from its args, with which it is recorded: its left "
    "would be lost, or another; hand all that its __init__ takes to super().__init__(...), by position and as it came"
)


class Full(Exception):
    """Nothing is lost of it, unless `left` is given by keyword."""

    def __init__(self, why: str, *, left: int = 0) -> None:
        super().__init__(why)
        self.left = left


class Shelf:
    """Outside."""

    async def put(self, left: int) -> None:
        raise Full("no room", left=left)


def put(stock: Stock, left: int) -> Stock:
    raise Full("no room", left=left)


def a_service(how: str, left: int) -> Service:
    inventory = Service("inventory")
    inventory.document(Stock, "stock", expected_errors=(Full,))

    @inventory.resource(expected_errors=(Full,))
    async def shelf() -> AsyncIterator[Shelf]:
        yield Shelf()

    @inventory.handler
    async def set_aside(order: OrderPlaced, shelf: Shelf, saga: Saga) -> InventoryReserved | InventoryRejected:
        try:
            if how == "step":
                await saga.step(shelf.put, left)
            else:
                await saga.update(Stock, "tea", put, left)
        except Full as why:
            return InventoryRejected(order_id=order.order_id, reason=f"{why}, {why.left} left")
        return InventoryReserved(order_id=order.order_id, sku=order.sku, quantity=order.quantity)

    return inventory


@pytest.mark.parametrize("how", ["step", "update"])
async def test_an_answer_that_cannot_be_made_again_is_a_failure_that_names_it(tmp_path: Path, how: str) -> None:
    inventory = a_service(how, left=5)
    async with workplace(tmp_path) as place, at_work(place, inventory):
        await place.store.insert("stock", "tea", b'{"left":1}')
        await place.publish(an_order())
        await place.at_rest(inventory)
        ((_, letter),) = await place.dead(inventory)
        assert letter["dead_reason"] == LOST.format(what="put")
        assert not await place.records("inventory")
        stock = await place.store.get("stock", "tea")
        assert stock is not None
        assert stock.content == b'{"left":1}'  # nothing was refused in it, either


@pytest.mark.parametrize("how", ["step", "update"])
async def test_one_that_can_be_is_an_answer(tmp_path: Path, how: str) -> None:
    inventory = a_service(how, left=0)
    async with workplace(tmp_path) as place, at_work(place, inventory):
        await place.store.insert("stock", "tea", b'{"left":1}')
        await place.publish(an_order())
        await place.at_rest(inventory)
        assert not await place.dead(inventory)
        (record,) = await place.records("inventory")
        assert b"no room, 0 left" in (record.value or b"")
