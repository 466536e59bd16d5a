"""Customers: they order at a steady rate whatever happens, some of them twice, and see how their orders end."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random  # noqa: TID251 - seeded
from typing import TypeAlias

from saga.broker.port import Broker
from saga.clients.events import to_record
from saga.errors import BrokerUnavailable
from saga.messages import Outgoing
from saga.support.clock import Clock
from services.demo.__main__ import ORDERS, read_orders
from services.demo.watch import Watch
from services.order.events import OrderPlaced

TWICE = 0.05
"""Share of orders that come a second time, some time later."""
LATER = 200
"""Most orders that such a second one may go back."""
STEP_S = 0.05
BATCH_MAX = 200
AGAIN_S = 0.2
LOOK_S = 0.1
RECOVERED_S_MAX = 60.0
"""Longest time that a fault may be felt: whatever was ordered before it ended has ended itself then."""


Publish: TypeAlias = Callable[[Sequence[Outgoing]], Awaitable[None]]
"""Way of records to the log."""


class NotRecovered(Exception):
    """Orders did not end that should have."""


def orders() -> Iterator[OrderPlaced]:
    """Orders of the shop, again and again, each with an id of its own."""
    for number, order in enumerate(itertools.cycle(list(read_orders(ORDERS))), start=1):
        yield replace(order, order_id=f"order-{number:06}")


@dataclass(slots=True)
class Recovery:
    """Recovery of the orders after a fault."""

    what: str
    ended_s: float
    """End of the fault, by the clock's monotonic time."""
    known: int
    """Number of orders that had ended by then."""
    waiting: set[str]
    """Orders that were placed by then and have not ended."""
    report: Callable[["Recovery"], None]
    """Called when it is over."""
    under_way: int = field(init=False)
    goes_on_s: float | None = None
    """Time until another order ended."""
    took_s: float | None = None
    """Time until all ended that were placed by then."""

    def __post_init__(self) -> None:
        self.under_way = len(self.waiting)


class Customers:
    """`order` and `look` run side by side."""

    def __init__(self, broker: Broker, per_s: float, chance: Random, clock: Clock) -> None:
        self.placed: dict[str, int] = {}
        """The ids of all orders that the broker has acknowledged, in order, and when each was first placed, in ms."""
        self.repeated = 0
        self.refused = 0
        """Times that the broker did not acknowledge, and the same orders were sent again."""
        self.writing = asyncio.Lock()
        """Lock held while something is written: its holder keeps the others out."""
        self._publish: Publish = broker.publish
        self._broker, self._per_s, self._chance, self._clock = broker, per_s, chance, clock
        self._orders = orders()
        self._last = deque[OrderPlaced](maxlen=LATER)
        self._watch = Watch()
        self._recoveries: list[Recovery] = []

    @property
    def ended(self) -> int:
        """Number of orders that have their outcome."""
        return self._watch.count

    async def order(self, over: asyncio.Event) -> None:
        """Until it is over; what is due while the broker is away is ordered when it is back."""
        began_s, count = self._clock.monotonic_s(), 0
        while not over.is_set():
            due = int((self._clock.monotonic_s() - began_s) * self._per_s) - count
            batch = list(itertools.islice(self._orders, min(due, BATCH_MAX)))
            count += len(batch)
            await self._place(batch)
            await self._clock.sleep(STEP_S)

    @asynccontextmanager
    async def publishing(self, publish: Publish) -> AsyncGenerator[None]:
        """Order in another way inside the block."""
        before, self._publish = self._publish, publish
        try:
            yield
        finally:
            async with self.writing:
                self._publish = before

    async def _place(self, batch: list[OrderPlaced]) -> None:
        again = [self._chance.choice(self._last) for _ in batch if self._last and self._chance.random() < TWICE]
        now_ms = self._clock.now_ms()
        records = [to_record(order, now_ms) for order in (*batch, *again)]
        while records:
            try:
                async with self.writing:
                    await self._publish(records)
                break
            except BrokerUnavailable:
                self.refused += 1
                await self._clock.sleep(AGAIN_S)
        self.repeated += len(again)
        self.placed |= dict.fromkeys((order.order_id for order in batch), now_ms)
        self._last += batch

    async def look(self) -> None:
        """See how orders end, until cancelled. Raises `NotRecovered`."""
        async with self._watch.on(self._broker):
            while True:
                try:
                    await self._watch.look(LOOK_S)
                except BrokerUnavailable:
                    await self._clock.sleep(AGAIN_S)
                self._recover()

    def feel(self, what: str, report: Callable[[Recovery], None]) -> None:
        """A fault has ended now: wait for all orders that are under way, and tell."""
        known = self._watch.known
        waiting = self.placed.keys() - known
        self._recoveries.append(Recovery(what, self._clock.monotonic_s(), len(known), waiting, report))

    @property
    def is_recovered(self) -> bool:
        """True if no fault is felt any more."""
        return not self._recoveries

    def _recover(self) -> None:
        now_s = self._clock.monotonic_s()
        for recovery in list(self._recoveries):
            passed_s = now_s - recovery.ended_s
            recovery.waiting -= self._watch.known
            if recovery.goes_on_s is None and self._watch.count > recovery.known:
                recovery.goes_on_s = passed_s
            if not recovery.waiting and recovery.goes_on_s is not None:
                recovery.took_s = passed_s
                self._recoveries.remove(recovery)
                recovery.report(recovery)
            elif passed_s > RECOVERED_S_MAX:
                some = ", ".join(sorted(recovery.waiting)[:3])
                raise NotRecovered(
                    f"{recovery.what}: {len(recovery.waiting)} orders of before its end have not ended after "
                    f"{RECOVERED_S_MAX:.0f} s: {some}"
                )
