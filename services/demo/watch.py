"""Follow the progress of orders: read their outcomes from the log, and read from the stores whether all work is
finished."""

from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from saga.broker.port import Broker, Membership, Subscription
from saga.messages import Partition, name_of
from saga.messaging import envelope
from saga.ops.sources import ServiceStore
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import Clock
from services.audit.books import SERVICES, all_orders
from services.order.events import OrderCancelled, OrderConfirmed

CONFIRMED, CANCELLED = name_of(OrderConfirmed), name_of(OrderCancelled)
TOPICS = ("inventory", "orders", "payments", "shipments")
RECORDS_MAX = 500


class Watch:
    """Consumer that reads all events, in a group of its own, and remembers the outcome and the last event of each
    order. It is also the `Listener` of its group."""

    def __init__(self) -> None:
        self.ended: dict[str, set[str]] = {CONFIRMED: set(), CANCELLED: set()}
        """Ids of orders by outcome."""
        self.records = 0
        """Number of events that were read."""
        self._last: dict[str, str] = {}
        """Type of the last event of each order."""
        self._partitions: set[Partition] = set()
        self._membership: Membership | None = None

    @property
    def known(self) -> set[str]:
        """Return the ids of the orders that have ended."""
        return self.ended[CONFIRMED] | self.ended[CANCELLED]

    @property
    def count(self) -> int:
        """Return the number of orders that have ended."""
        return sum(map(len, self.ended.values()))

    @asynccontextmanager
    async def on(self, broker: Broker) -> AsyncGenerator["Watch"]:
        """Be a member of the consumer group while the block runs. The topics must exist."""
        async with broker.join(Subscription("demo", TOPICS), self) as self._membership:
            yield self

    async def look(self, timeout_s: float) -> None:
        """Read new events. Return as soon as some have come, or after `timeout_s`."""
        assert self._membership is not None, "look inside `async with watch.on(broker)`"
        for record in await self._membership.poll(self._partitions, records_max=RECORDS_MAX, timeout_s=timeout_s):
            type_, self.records = envelope.type_of(record) or "", self.records + 1
            if record.key is not None:
                order = record.key.decode("utf-8", "replace")
                self._last[order] = type_
                if type_ in self.ended:
                    self.ended[type_].add(order)

    def waits_for(self, placed: Iterable[str]) -> str:
        """Return a sentence that says how many of the `placed` orders have not ended, and what their last events
        are."""
        last = Counter(self._last.get(order, "nothing yet") for order in set(placed) - self.known)
        counts = ", ".join(f"{count} after {type_}" for type_, count in last.most_common())
        return f"waiting for {last.total()} orders to end: {counts or 'none is placed'}"

    async def on_assigned(self, partitions: Mapping[Partition, int]) -> None:
        self._partitions |= partitions.keys()

    async def on_revoked(self, partitions: Collection[Partition]) -> None:
        self._partitions.difference_update(partitions)

    def on_lost(self, partitions: Collection[Partition]) -> None:
        self._partitions.difference_update(partitions)

    def on_expired(self, partition: Partition, first: int, after: int) -> None:
        """Do nothing: if events have expired, their orders count as not ended."""

    def on_replaced(self, partition: Partition, position: int) -> None:
        """Do nothing: if a log was replaced, the orders in it count as not ended."""

    def on_partitions_added(self, topic: str, before: int, now: int) -> None:
        """Do nothing: new partitions are read like the others."""


async def unsettled(folder: Path, orders: Collection[str], clock: Clock) -> dict[str, list[str]]:
    """Return, by service, the orders that the service has not settled yet. A service that has settled all orders is
    left out.

    A service has settled an order if it has done what the order's outcome requires and has no open work for the order.
    It ignores all later messages of that order.
    """
    waiting: dict[str, list[str]] = {}
    for service in SERVICES:
        async with SqliteStore(folder / f"{service}.db", clock=clock, readonly=True) as store:
            kept = await all_orders(ServiceStore(service, store))
        settled = {
            id_
            for id_, of in kept.items()
            if not of.progress.is_open and (of.progress.outcome or any(e.type in _OUTCOMES for e in of.entries))
        }
        if left := sorted(set(orders) - settled):
            waiting[service] = left
    return waiting


_OUTCOMES = frozenset({CONFIRMED, CANCELLED})
