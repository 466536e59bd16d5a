"""Costs of a message, counted at the store: one write, no read when warm, and one write more for each step."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from math import inf
from pathlib import Path

import pytest

from saga import Service
from saga.engine.execution import control_log
from saga.engine.service_runtime import ServiceRuntime
from saga.messages import Position
from services.inventory import inventory
from services.inventory.events import InventoryReserved
from services.order.events import OrderCancelled, OrderConfirmed, OrderPlaced
from services.payment import payment
from services.payment.events import PaymentReserved
from services.shipping import shipping
from tests.failure.failing_calls import House, house_of
from tests.failure.test_outcome_first import publish_as

ID = "order-first-last"
ORDER = OrderPlaced(
    order_id=ID, customer_id="c-1", sku="tea-earl-grey-250g", quantity=1, total=Decimal("9.80"), card="visa-1",
    address="Kiel",
)  # fmt: skip

listener = Service("listener")
"""Has no step; its first message starts the saga, its second comes when the progress is in memory."""


@listener.handler
async def note(placed: OrderPlaced) -> None:
    assert placed.order_id


@listener.handler
async def note_the_end(confirmed: OrderConfirmed) -> None:
    assert confirmed.order_id


@pytest.fixture(autouse=True)
def no_book(monkeypatch: pytest.MonkeyPatch) -> None:
    """No one reads the control log, which is one read in five seconds, however many messages come."""

    async def known(service: ServiceRuntime, at: Position) -> None:
        service.controls.until_s = inf

    monkeypatch.setattr(control_log, "refresh", known)


@asynccontextmanager
async def counted(house: House, service: str) -> AsyncIterator[Counter[str]]:
    """The calls of the service's store, by operation, of what is published inside the block."""
    await house.at_rest()  # what a service reads and writes when it begins does not count
    house.plan.begin(None)
    calls = Counter[str]()
    yield calls
    await house.at_rest()
    prefix = f"{service}."
    calls.update(
        {
            kind.removeprefix(prefix): times
            for kind, times in house.plan.calls.items()
            if kind.startswith(prefix) and kind.removeprefix(prefix) in ("get", "insert", "replace", "remove")
        }
    )


async def test_a_message_without_steps_costs_one_write_and_no_read(tmp_path: Path) -> None:
    async with house_of(tmp_path, [listener]) as house:
        async with counted(house, "listener") as first:
            await house.publish(ORDER)
        async with counted(house, "listener") as second:
            await publish_as(house, OrderConfirmed(order_id=ID), source="order")
        outcomes = [entry.outcome for entry in await house.history("listener", ID)]
    assert first == {"insert": 1}
    assert second == {"replace": 1}
    assert outcomes == ["handled", "handled"]


async def test_a_handler_with_one_step_costs_two_writes_and_no_read(tmp_path: Path) -> None:
    async with house_of(tmp_path, [payment]) as house:
        async with counted(house, "payment") as first:
            await house.publish(ORDER)
        async with counted(house, "payment") as second:
            await publish_as(house, OrderConfirmed(order_id=ID), source="order")
        outcomes = [entry.outcome for entry in await house.history("payment", ID)]
        assert house.plan.calls["bank.capture"] == 1
    assert first == {"insert": 1, "replace": 1}
    assert second == {"replace": 2}
    assert outcomes == ["handled", "handled"]


async def test_a_handler_with_one_update_costs_three_writes_and_two_reads(tmp_path: Path) -> None:
    """Intent, document, transition; the document is read, and then the progress, whether the run still stands."""
    async with house_of(tmp_path, [inventory]) as house:
        async with counted(house, "inventory") as first:
            await house.publish(ORDER)
        outcomes = [entry.outcome for entry in await house.history("inventory", ID)]
    assert first == {"insert": 1, "get": 2, "replace": 2}
    assert outcomes == ["handled"]


async def test_a_part_that_waits_costs_one_write_and_the_fan_in_that_it_completes_two(tmp_path: Path) -> None:
    async with house_of(tmp_path, [shipping]) as house:
        async with counted(house, "shipping") as first:
            await house.publish(ORDER)
        async with counted(house, "shipping") as second:
            charge = PaymentReserved(order_id=ID, charge_id="c", amount=Decimal("9.80"))
            await publish_as(house, charge, source="payment")
        async with counted(house, "shipping") as third:
            goods = InventoryReserved(order_id=ID, sku=ORDER.sku, quantity=1)
            await publish_as(house, goods, source="inventory")
    assert (first, second, third) == ({"insert": 1}, {"replace": 1}, {"replace": 2})


async def test_a_message_that_comes_again_costs_no_write(tmp_path: Path) -> None:
    async with house_of(tmp_path, [listener]) as house:
        await house.publish(ORDER)
        await house.at_rest()
        async with counted(house, "listener") as again:
            await house.publish(ORDER)
    assert again == {}


async def test_a_message_of_a_saga_that_is_not_in_memory_costs_one_read(tmp_path: Path) -> None:
    async with house_of(tmp_path, [listener]) as house:
        await house.publish(ORDER)
        await house.at_rest()
    async with house_of(tmp_path, [listener]) as house:
        async with counted(house, "listener") as cold:
            await publish_as(house, OrderConfirmed(order_id=ID), source="order")
        assert cold == {"get": 1, "replace": 1}
        async with counted(house, "listener") as late:
            await publish_as(house, OrderCancelled(order_id=ID, reason="late"), source="order")
        assert late == {}, "a type that no handler names is none of its business"
