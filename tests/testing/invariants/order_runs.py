"""The four example services, run one message after another in memory; what they leave behind, as evidence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace as with_

from saga import Service
from saga.broker.port import RECORD_BYTES_MAX
from saga.clients.events import to_record
from saga.engine.consumer.keyed_executor import Batcher
from saga.engine.consumer.record_router import BadRecord, route_record
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.isolated_ports import FixedClock, StaticAssignment
from saga.engine.outage_watch import OutageWatch
from saga.engine.persistence import dead_letters
from saga.engine.ports import Ports
from saga.engine.prepared_service import prepare
from saga.engine.progress_cache import OverflowCache
from saga.engine.service_runtime import ServiceRuntime, make_service_runtime
from saga.errors import Conflict, Exists
from saga.messages import Event, Message, Outgoing, Partition, Position, Record
from saga.messaging import envelope
from saga.messaging.timers import SagaTimer
from saga.progress.document import SagaProgress, Transition, decode_progress, decode_transition, encode, progress_key
from saga.progress.overflow import parse_saga
from saga.store.port import Document
from saga.testing.invariants.evidence import Evidence, ServiceEvidence
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order.events import OrderPlaced
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.services.waiting_order import order

SKU = "tea"


class Disk:
    """Documents in memory, and every content that they ever had."""

    document_bytes_max = 1 << 30

    def __init__(self) -> None:
        self.now: dict[tuple[str, str], Document] = {}
        self.ever: dict[tuple[str, str], list[bytes]] = {}

    async def get(self, collection: str, key: str) -> Document | None:
        return self.now.get((collection, key))

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        if (collection, key) in self.now:
            raise Exists(key)
        return self._put(collection, key, content)

    async def replace(self, collection: str, key: str, content: bytes, *, cas: int, **_: object) -> int:
        if self.now[collection, key].cas != cas:
            raise Conflict(key)
        return self._put(collection, key, content)

    def _put(self, collection: str, key: str, content: bytes) -> int:
        versions = self.ever.setdefault((collection, key), [])
        versions.append(content)
        self.now[collection, key] = Document(content, len(versions))
        return len(versions)


@dataclass(slots=True)
class ShopClock(FixedClock):
    """It advances by a millisecond whenever it is read."""

    def now_ms(self) -> int:
        self.now += 1
        return self.now


@dataclass
class ShopLog:
    """Log of the shop, in which a published event is at once."""

    append: Callable[[Outgoing], None]
    record_bytes_max: int = RECORD_BYTES_MAX

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            self.append(message)


class BrokenCarrier(Carrier):
    """Takes no booking, and does not say no either."""

    async def book(self, key: str, address: str, parcels: int) -> str:
        raise ConnectionError("nobody answers")


class Shop:
    """The services, the log, and how far each has read."""

    def __init__(
        self,
        *,
        left: int = 5,
        carrier: Carrier | None = None,
        services: Sequence[Service[Any]] = (order, payment, inventory, shipping),
    ) -> None:
        self.clock = ShopClock(1_800_000_000_000)
        self.log: list[Record] = []
        self.ends: dict[Partition, int] = {}
        self.services: dict[str, ServiceRuntime] = {}
        self.disks: dict[str, Disk] = {}
        self.read: dict[str, int] = {}
        self.held: list[tuple[ServiceRuntime, SagaTimer, Position]] = []
        """Wakes, until everything else is read: then the time is that of the earliest."""
        given: dict[type, object] = {Bank: Bank(), Carrier: carrier or Carrier()}
        for service in services:
            declared, disk = service.declared, Disk()
            resources = {r.gives: given[r.gives] for r in declared.resources}
            self.services[declared.name] = make_service_runtime(
                prepare(declared), resources, self._ports(declared.name, disk)
            )
            self.disks[declared.name], self.read[declared.name] = disk, 0
        self.stock = msgspec.json.encode(Stock(left=left))

    def _ports(self, name: str, disk: Any) -> Ports:
        """Everything at once, nothing ever away."""
        return Ports(
            store=disk,
            publisher=ShopLog(self.append),
            clock=self.clock,
            outage_watch=OutageWatch(name, self.clock, lambda moment: None),
            assignment=StaticAssignment(),
            batch=Batcher().submit,
            overflow_cache=OverflowCache(bytes_max=0),
        )

    def append(self, message: Outgoing) -> None:
        partition = Partition(message.topic, 0)
        offset = self.ends.get(partition, 0)
        self.ends[partition] = offset + 1
        self.log.append(Record(*partition, offset, message.key, message.value, message.headers, self.clock.now))

    def publish(self, event: Event, principal: str | None = None) -> None:
        self.append(to_record(event, self.clock.now, principal=principal))

    def again(self, index: int) -> None:
        """The same record once more, as by a sender that is in doubt."""
        record = self.log[index]
        assert record.key is not None
        self.append(Outgoing(record.topic, record.key, record.value, record.headers))

    async def run(self, stock: bool = True) -> None:
        """Until everybody has read everything, and nothing waits for its time."""
        disk = self.disks.get("inventory")
        if stock and disk is not None and ("stock", SKU) not in disk.now:
            await disk.insert("stock", SKU, self.stock)
        while True:
            for name, service in self.services.items():
                if self.read[name] < len(self.log):
                    self.read[name] += 1
                    await self._take(service, self.log[self.read[name] - 1])
            if any(read < len(self.log) for read in self.read.values()):
                continue
            if not self.held:
                return
            self.held.sort(key=lambda held: held[1].due_ms)
            service, wake, position = self.held.pop(0)
            self.clock.now = max(self.clock.now, wake.due_ms)
            await MessageProcessor(service).process(MessageProcessor(service).begin(wake, position, None))

    async def _take(self, service: ServiceRuntime, record: Record) -> None:
        """Take a record as `saga.engine.consumer.poll_loop` does."""
        if record.topic not in service.topics:
            return
        taken = route_record(record, service)
        if isinstance(taken, BadRecord):
            self.append(dead_letters.from_unreadable(service.name, record, taken.reason, self.clock.now, None))
        elif isinstance(taken, Message):
            position = Position(record.topic, record.partition, record.offset)
            if isinstance(taken, SagaTimer):
                self.held.append((service, taken, position))
            else:
                await MessageProcessor(service).process(MessageProcessor(service).begin(taken, position, None))

    def evidence(self, spoiled: frozenset[str] = frozenset()) -> Evidence:
        witnessed = {}
        for name, service in self.services.items():
            ever, prefix = self.disks[name].ever, progress_key(name, "")
            archives: dict[str, list[tuple[str, bytes]]] = {}
            for (collection, key), contents in ever.items():
                if collection == "saga-archive":
                    archives.setdefault(parse_saga(key), []).append((key, contents[-1]))
            witnessed[name] = ServiceEvidence(
                service=service,
                resources=service.resources,
                versions={key.removeprefix(prefix): tuple(v) for (c, key), v in ever.items() if c == "saga"},
                archives=archives,
                documents={where: tuple(v) for where, v in ever.items() if where[0] not in ("saga", "saga-archive")},
                committed={partition: end for partition, end in self.ends.items() if partition.topic in service.topics},
            )
        return Evidence(services=witnessed, log=tuple(self.log), ends=dict(self.ends), spoiled=spoiled)


def an_order(id_: str = "o-1", *, card: str = "visa", quantity: int = 1, address: str = "Kiel") -> OrderPlaced:
    return OrderPlaced(
        order_id=id_,
        customer_id="c-1",
        sku=SKU,
        quantity=quantity,
        total=Decimal("9.80"),
        card=card,
        address=address,
    )


async def a_run(
    *events: Event, left: int = 5, carrier: Carrier | None = None, principal: str | None = None
) -> Evidence:
    """Evidence that the shop leaves after these events."""
    shop = Shop(left=left, carrier=carrier)
    for event in events:
        shop.publish(event, principal)
    await shop.run()
    return shop.evidence()


def at_the_end(evidence: Evidence) -> Evidence:
    """Evidence for those who come when all is over: of each progress and document the last content."""
    services = {
        name: replace(
            witnessed,
            versions={saga: contents[-1:] for saga, contents in witnessed.versions.items()},
            documents={where: contents[-1:] for where, contents in witnessed.documents.items()},
        )
        for name, witnessed in evidence.services.items()
    }
    return replace(evidence, services=services, partial=True)


# -------------------------------------------------------------------- changing evidence


def with_service(evidence: Evidence, name: str, **changes: Any) -> Evidence:
    changed = replace(evidence.services[name], **changes)
    return replace(evidence, services={**evidence.services, name: changed})


def with_versions(evidence: Evidence, name: str, saga: str, versions: Sequence[bytes]) -> Evidence:
    there = evidence.services[name].versions
    return with_service(evidence, name, versions={**there, saga: tuple(versions)})


def with_last(
    evidence: Evidence, name: str, change: Callable[[SagaProgress], SagaProgress], saga: str = "o-1"
) -> Evidence:
    """The last version of a progress, changed."""
    versions = evidence.services[name].versions[saga]
    return with_versions(evidence, name, saga, [*versions[:-1], encode(change(decode_progress(versions[-1])))])


def rewritten(p: SagaProgress, change: Callable[[Transition], Transition | None], *more: Transition) -> SagaProgress:
    """A progress with other transitions and a chain of hashes that holds: as by a runtime that does other things."""
    entries = [e for e in (*map(change, map(decode_transition, p.transitions)), *more) if e is not None]
    previous, raws = "", []
    for n, entry in enumerate(entries):
        raw = encode(with_(entry, n=n, previous=previous))
        previous = sha256(raw).hexdigest()
        raws.append(Raw(raw))
    return with_(p, n=len(raws), published=len(raws) - 1, hash=previous, transitions=tuple(raws))


def with_snapshot(
    evidence: Evidence, name: str, change: Callable[[SagaProgress], SagaProgress], saga: str = "o-1"
) -> Evidence:
    """Evidence as if a runtime with other rules had written the snapshot, and bound it to no transition."""
    p = rewritten(change(decode_progress(evidence.services[name].versions[saga][-1])), lambda entry: entry)
    return with_versions(evidence, name, saga, [encode(p)])


def with_transitions(
    evidence: Evidence,
    name: str,
    change: Callable[[Transition], Transition | None],
    *more: Transition,
    saga: str = "o-1",
) -> Evidence:
    """Evidence as if the progress had always been written that way: one version is left of it."""
    p = rewritten(decode_progress(evidence.services[name].versions[saga][-1]), change, *more)
    return with_versions(evidence, name, saga, [encode(p)])


def entries_of(evidence: Evidence, name: str, saga: str = "o-1") -> list[Transition]:
    return [decode_transition(raw) for raw in decode_progress(evidence.services[name].versions[saga][-1]).transitions]


def without_records(evidence: Evidence, *types: str) -> Evidence:
    """A log in which events of these types never were. Where it ends stays as it was."""
    return replace(evidence, log=tuple(r for r in evidence.log if envelope.type_of(r) not in types))
