"""The books of the whole run, read by key: CouchbaseMock lists no keys."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from saga.broker.kafka.administration import KafkaAdministration
from saga.contracts.library import find_library
from saga.engine.prepared_service import reads_of
from saga.messaging.names import is_timer_topic
from saga.ops.histories import SagaHistory, read_history
from saga.ops.sources import ServiceStore
from saga.progress.history import verify_history
from saga.store.port import Store
from services import ledger
from services.audit.books import SERVICES, Sources, assemble
from services.audit.checks import Books, Check
from services.demo.fleet import ROOT
from services.demo.watch import CANCELLED, CONFIRMED
from services.inventory import inventory
from services.inventory.items import items
from services.inventory.stock import Stock
from services.order import order
from services.payment import payment
from services.shipping import shipping

AT_ONCE = 32
"""Orders that are read side by side."""
READ = {each.declared.name: each.declared for each in (order, payment, inventory, shipping)}


class Shelves(NamedTuple):
    """Number of each article at first: what the shop has, so many times."""

    times: int

    @property
    def seeded(self) -> Mapping[str, int]:
        return {item.sku: item.left * self.times for item in items()}


@dataclass(slots=True)
class Readings:
    """The stores of all services, and what was read of them. Open inside its `with` block."""

    store_of: Callable[[str], Store]
    ledgers: Path
    shelves: Shelves
    histories: dict[str, dict[str, SagaHistory]] = field(default_factory=lambda: {service: {} for service in SERVICES})
    """By service and order, of those that are settled there: they do not change any more."""
    _stores: dict[str, Store] = field(default_factory=dict)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        for service in SERVICES:
            self._stores[service] = await self._stack.enter_async_context(self.store_of(service))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def fill(self) -> None:
        """Put the articles into inventory's store."""
        for sku, left in self.shelves.seeded.items():
            await self._stores["inventory"].insert("stock", sku, msgspec.json.encode(Stock(left=left)))

    async def unsettled(self, orders: Collection[str]) -> dict[str, list[str]]:
        """By service the orders that are not at their end there: the outcome is carried out, and nothing is open.
        Services that have settled all are left out."""
        left = {}
        for service in SERVICES:
            missing = [id_ for id_ in orders if id_ not in self.histories[service]]
            read = await self._read(service, missing)
            self.histories[service] |= {id_: history for id_, history in read.items() if _is_settled(history)}
            if rest := [id_ for id_ in missing if id_ not in self.histories[service]]:
                left[service] = rest
        return left

    async def _read(self, service: str, orders: Iterable[str]) -> dict[str, SagaHistory]:
        found: dict[str, SagaHistory] = {}
        rest = iter(orders)

        async def read() -> None:
            for id_ in rest:
                history = await read_history(ServiceStore(service, self._stores[service]), id_)
                if history is not None:
                    found[id_] = history

        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(read())
        return found

    async def books(self, orders: Collection[str]) -> Books:
        """All that there is, of these orders and of all that was asked of bank and carrier."""
        kept = {service: await self._read(service, orders) for service in SERVICES}
        stock = {sku: await self._stores["inventory"].get("stock", sku) for sku in self.shelves.seeded}
        sources = Sources(
            kept=kept,
            stock={sku: msgspec.json.decode(d.content, type=Stock) for sku, d in stock.items() if d is not None},
            bank=ledger.read(self.ledgers / "bank.db"),
            carrier=ledger.read(self.ledgers / "carrier.db"),
            seeded=self.shelves.seeded,
        )
        return assemble(sources, find_library(ROOT), frozenset(orders))

    def chains(self) -> Check:
        """Check that each history is what was written."""
        broken = [
            f"{id_}: {service}: {found.what}"
            for service, histories in self.histories.items()
            for id_, history in histories.items()
            if (found := verify_history(history.transitions, history.progress)) is not None
        ]
        count = sum(map(len, self.histories.values()))
        return Check(name="histories are what was written", figures=f"{count} of them", differences=tuple(broken))


async def log(broker: KafkaAdministration) -> list[Check]:
    """Check that everything in the log was handled and committed, but for wakes: those of deadlines that are closed lie
    there until their time."""
    behind, count = list[str](), 0
    for service, declared in READ.items():
        topics = [topic for topic in reads_of(declared) if not is_timer_topic(topic)]
        positions = (await broker.describe_group(service)).positions
        consumed = {topic for topic in topics if any(at.topic == topic for at in positions)}
        for at, bounds in (await broker.fetch_bounds(consumed)).items():
            count += bounds.end
            if positions.get(at, bounds.begin) != bounds.end:
                behind.append(f"{service}: {at.topic} {at.number}: committed {positions.get(at)} of {bounds.end}")
    return [
        Check(name="no message is left", figures=f"{count} read, by all groups together", differences=tuple(behind)),
    ]


def _is_settled(history: SagaHistory) -> bool:
    p = history.progress
    return not p.is_open and (p.outcome is not None or any(e.type in (CONFIRMED, CANCELLED) for e in history.entries))
