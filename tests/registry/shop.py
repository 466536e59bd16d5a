"""A service between two topics in the wire format of a schema registry, and a workplace behind one."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

from saga import Event, Service
from saga.messages import Record
from saga.registry.edge import RegistryBroker
from saga.support.clock import SystemClock
from tests.contracts.folders import decimal, field, generated, put, schema, write
from tests.engine.real_worker import Workplace
from tests.registry.fake_registry import FakeRegistry

PLACED = schema("Placed", field("total", decimal()), topic="sales", owner="sale", starts=True, produced_by="external")
PAID = schema("Paid", field("total", decimal()), topic="money", owner="cash")


class Shop:
    """Contracts with both topics in the wire format, a service between them, and what runs it."""

    def __init__(self, folder: Path, wire: str = "registry", *, sales: str = "sales", money: str = "money") -> None:
        self.topics, self.clock = (sales, money), SystemClock()
        contracts = write(folder, {**PLACED, "topic": sales}, {**PAID, "topic": money})
        for topic in self.topics:
            put(contracts / topic / "topic.json", json.dumps({"partitions": 1, "wire": wire}))
        module: ModuleType = generated(folder, "Placed", "Paid")
        self.placed: type[Event] = module.Placed
        self.paid: type[Event] = module.Paid
        self.registry = FakeRegistry()
        self.service = Service("cash")

        async def take(placed):  # type: ignore[no-untyped-def]  # its classes are made while the test runs
            return self.paid(order_id=placed.order_id, total=placed.total)  # type: ignore[call-arg]

        take.__annotations__ = {"placed": self.placed, "return": self.paid}
        self.service.handler(take)

    def an_order(self, saga: str = "order-1") -> Event:
        return self.placed(order_id=saga, total=Decimal("9.80"))  # type: ignore[call-arg]

    def register(self) -> None:
        """Register what the service hears and says; other ids are taken, so none is right by chance."""
        self.registry.put("another", "string")
        self.registry.put("sales-Placed", PLACED)
        self.registry.put("money-Paid", PAID)


class Edge(RegistryBroker):
    """The edge, and what a workplace asks of the broker behind it."""

    @property
    def connection(self) -> Any:
        return self.behind.connection

    @property
    def behind(self) -> Any:
        return self._broker


class Standing(SystemClock):
    """A clock that stands still."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


@asynccontextmanager
async def open_at(shop: Shop, folder: Path) -> AsyncIterator[Workplace]:
    """A workplace whose broker is behind the registry."""
    place = Workplace(folder)
    edge: Any = Edge(place.broker, shop.registry, place.clock)
    place.broker = edge
    async with edge, place.store:
        yield place


async def as_they_lie(place: Workplace, topic: str) -> list[Record]:
    """Records of a topic as the log has them, without a question to a registry."""
    edge: Any = place.broker
    return [record async for record in edge.behind.scan(topic)]
