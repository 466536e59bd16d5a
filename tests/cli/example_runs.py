"""Runs services of the example on the real runtime and real stores, in this process, until nothing is left to do."""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import msgspec

from saga import Event, Saga, Service
from saga.broker.port import RECORD_BYTES_MAX
from saga.clients.events import to_record
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.lifecycle import open_resources
from saga.engine.prepared_service import prepare
from saga.engine.service_runtime import ServiceRuntime, make_service_runtime
from saga.errors import Exists, Permanent
from saga.messages import Outgoing, Position, Record
from saga.messaging import envelope
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from saga.testing.trials import TrialClock, trial_ports
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.order.events import OrderConfirmed
from services.payment import payment
from services.payment.bank import Bank
from services.payment.events import OrderPlaced
from services.shipping import shipping
from services.shipping.carrier import Carrier


@dataclass(frozen=True, kw_only=True)
class Tally:
    """The state of the service `tally`, which counts what it sees of an order."""

    seen: int = 0
    last: str = ""


tally = Service("tally", state=Tally)


@tally.handler(repeats=OrderPlaced)
async def count_placed(placed: OrderPlaced, saga: Saga[Tally]) -> None:
    saga.state = Tally(seen=saga.state.seen + 1, last=placed.sku)


@tally.handler
async def count_confirmed(confirmed: OrderConfirmed, saga: Saga[Tally]) -> None:
    saga.state = Tally(seen=saga.state.seen + 1, last=saga.state.last)


class ShopBank(Bank):
    """Cannot make sense of one card, for ever."""

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        if card == "broken":
            raise Permanent("the bank does not know such cards")
        return await super().reserve(key, card, amount)


class ShopClock(TrialClock):
    """Begins now: commands look at stores by the real clock, and what expired is not there."""

    def __init__(self) -> None:
        super().__init__()
        self._now_ms = SystemClock().now_ms()


@dataclass(frozen=True)
class Shop:
    """Its services and their topics. What is published waits until `settle`."""

    clock: TrialClock
    participants: Sequence[ServiceRuntime]
    published: deque[Outgoing]
    offsets: dict[str, int]

    async def settle(self, *events: Event) -> None:
        """Publish events as a client does, and go on until every service has handled everything."""
        self.published.extend(to_record(event, self.clock.now_ms()) for event in events)
        while self.published:
            await self._deliver(self.published.popleft())

    async def again(self, event: Event, times: int) -> None:
        """The same event by senders who each call it by an id of their own."""
        once = to_record(event, self.clock.now_ms())
        for i in range(times):
            headers = tuple((n, b"%s-%d" % (v, i) if n == "ce_id" else v) for n, v in once.headers)
            self.published.append(once._replace(headers=headers))
        await self.settle()

    async def _deliver(self, out: Outgoing) -> None:
        offset = self.offsets[out.topic] = self.offsets.get(out.topic, -1) + 1
        record = Record(out.topic, 0, offset, out.key, out.value, out.headers, self.clock.now_ms())
        type_ = envelope.type_of(record)
        for participant in self.participants:
            if type_ not in participant.consumed or participant.contracts[type_].topic != out.topic:
                continue  # a dead letter has the type of what died, and a topic of its own
            contract = participant.contracts[type_]
            schema = contract.versions[-1].path
            message = envelope.to_message(record, type_=type_, schema=schema, contract=contract)
            await MessageProcessor(participant).process(
                MessageProcessor(participant).begin(message, Position(out.topic, 0, offset), None)
            )
            await self.clock.sleep(0.25)


@dataclass
class ShopLog:
    """Log of the shop, in which published events wait."""

    waiting: deque[Outgoing]
    record_bytes_max: int = RECORD_BYTES_MAX

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        self.waiting.extend(messages)


@asynccontextmanager
async def open_shop(folder: Path, *names: str) -> AsyncIterator[Shop]:
    """Services of the example and `tally`, all of them or those named, each with a store of its own in `folder`."""
    clock, log, participants = ShopClock(), deque[Outgoing](), []
    fakes: dict[str, list[object]] = {"payment": [ShopBank()], "shipping": [Carrier()]}
    async with AsyncExitStack() as stack:
        for declared in (s.declared for s in (order, payment, inventory, shipping, tally)):
            if names and declared.name not in names:
                continue
            store = await stack.enter_async_context(SqliteStore(folder / f"{declared.name}.db", clock=clock))
            resources = await open_resources(declared, stack, clock, 10, fakes.get(declared.name, []))
            ports = trial_ports(declared.name, store, clock, ShopLog(log))
            participants.append(make_service_runtime(prepare(declared), resources, ports))
            with suppress(Exists):
                await store.insert("stock", "tea", msgspec.json.encode(Stock(left=100)))
        yield Shop(clock, participants, log, {})


def an_order(order_id: str = "order-1", *, card: str = "visa-1", quantity: int = 1) -> OrderPlaced:
    return OrderPlaced(
        order_id=order_id,
        customer_id="customer-1",
        sku="tea",
        quantity=quantity,
        total=Decimal("9.80"),
        card=card,
        address="Kiel",
    )
