"""Services in this process, on real stores and a real broker, whose every call can be counted and made to fail."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Literal, NamedTuple, Self, TypeVar

from saga import Service
from saga.broker.embedded.broker import EmbeddedBroker
from saga.broker.port import Listener, Membership, Subscription
from saga.clients.events import to_record
from saga.contracts.library import find_library
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.lifecycle import ServiceOptions, serve
from saga.engine.prepared_service import prepare, topics_of
from saga.errors import Ambiguous, BrokerUnavailable, StoreUnavailable
from saga.messages import Event, Outgoing, Partition, Record, StalledPartition
from saga.messaging.names import ARCHIVES, PROGRESS, is_timer_topic
from saga.progress.document import Transition, decode_progress, decode_transition, progress_key
from saga.store.port import Document, Store
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import Clock, SystemClock
from saga.telemetry.events import TelemetryEvent
from services.demo.fleet import ROOT
from services.inventory import inventory
from services.inventory.seed import seed
from services.ledger import Ledger
from services.order import order
from services.payment import payment
from services.payment.bank import Bank, LedgerBank
from services.shipping import shipping
from services.shipping.carrier import Carrier, LedgerCarrier

T = TypeVar("T")

FASTER = 20
REST_S_MAX = 60.0
LOOK_S = 0.002

Mode = Literal["before", "lost", "after", "late"]
"""Ways in which a call fails: before it takes effect, by an error that says so; the same, by one that leaves it open;
after it has taken effect; and as if it had not, taking effect later."""


class Hasty(SystemClock):
    """Shorten pauses, as between attempts: they are not what is tested. Calls have the time that they are given."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / FASTER)

    async def within(self, seconds: float, what: Awaitable[T]) -> T:
        is_pause = isinstance(what, asyncio.Future)
        return await super().within(seconds / FASTER if is_pause else seconds, what)


class Fault(NamedTuple):
    """The `n`-th call of one kind fails."""

    kind: str
    n: int
    mode: Mode


class Plan:
    """Counts calls, and fails the one that is to fail."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.modes: dict[str, tuple[Mode, ...]] = {}
        """Kind of call -> the ways in which it can fail, of those that were counted."""
        self.fault: Fault | None = None
        self.fired = False

    def begin(self, fault: Fault | None) -> None:
        """Count from here on, with another fault."""
        self.calls.clear()
        self.modes.clear()
        self.fault, self.fired = fault, False

    def due(self, kind: str, *modes: Mode) -> Mode | None:
        """Count a call; how it is to fail."""
        self.calls[kind] += 1
        self.modes[kind] = modes
        if self.fault is None or (kind, self.calls[kind]) != self.fault[:2] or self.fired:
            return None
        self.fired = True
        return self.fault.mode


class FailingStore:
    """A store whose calls fail as planned."""

    def __init__(self, service: str, store: SqliteStore, plan: Plan) -> None:
        self.service, self.store, self.plan = service, store, plan
        self._late: list[Callable[[], Awaitable[object]]] = []

    @property
    def document_bytes_max(self) -> int:
        return self.store.document_bytes_max

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def check_expiry(self, collections: Collection[str], expiry_s: float) -> None:
        await self.store.check_expiry(collections, expiry_s)

    async def get(self, collection: str, key: str) -> Document | None:
        if self.plan.due(self._kind("get", collection), "before"):
            raise StoreUnavailable("planted: the store cannot be reached")
        document = await self.store.get(collection, key)
        while self._late:  # right after a read: its caller decides on what is outdated
            await self._late.pop()()
        return document

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        return await self._write(
            self._kind("insert", collection),
            lambda: self.store.insert(collection, key, content, expiry_s=expiry_s),
        )

    async def replace(
        self,
        collection: str,
        key: str,
        content: bytes,
        *,
        cas: int,
        expiry_s: float | None = None,
        keep_expiry: bool = False,
    ) -> int:
        return await self._write(
            self._kind("replace", collection),
            lambda: self.store.replace(collection, key, content, cas=cas, expiry_s=expiry_s, keep_expiry=keep_expiry),
        )

    async def remove(self, collection: str, key: str, *, cas: int) -> None:
        await self._write(self._kind("remove", collection), lambda: self.store.remove(collection, key, cas=cas))

    def scan(self, collection: str, prefix: str = "") -> AsyncIterator[tuple[str, Document]]:
        return self.store.scan(collection, prefix)

    def _kind(self, operation: str, collection: str) -> str:
        """Kind of a call. Documents that are no sagas count apart: a service reads them when it starts, too."""
        return f"{self.service}.{operation}{' beside' if collection == ARCHIVES else ''}"

    async def _write(self, kind: str, act: Callable[[], Awaitable[T]]) -> T:
        match self.plan.due(kind, "before", "lost", "after", "late"):
            case None:
                return await act()
            case "before":
                raise StoreUnavailable("planted: the store is full")
            case "lost":
                raise Ambiguous("planted: the answer was lost, and the request before it")
            case "after":
                await act()
                raise Ambiguous("planted: the answer was lost")
            case "late":
                self._late.append(lambda: _landing(act))
                raise Ambiguous("planted: the answer was lost, and the request takes its time")


async def _landing(act: Callable[[], Awaitable[object]]) -> None:
    """A write that lands late finds its version gone, or takes effect: its caller never learns of it."""
    await asyncio.gather(act(), return_exceptions=True)


class FailingBroker:
    """A broker whose calls fail as planned, as one service uses it."""

    creates_topics = True

    def __init__(self, service: str, broker: EmbeddedBroker, plan: Plan) -> None:
        self.service, self.broker, self.plan = service, broker, plan
        self.ensure_topics, self.count_partitions = broker.ensure_topics, broker.count_partitions
        self.scan = broker.scan
        self.fetch_log_ids = broker.fetch_log_ids
        self.record_bytes_max = broker.record_bytes_max
        self.find_missing_rights = broker.find_missing_rights

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        mode = self.plan.due(f"{self.service}.publish", "before", "after")
        if mode != "before":
            await self.broker.publish(messages)
        if mode is not None:
            raise BrokerUnavailable(f"planted: the broker failed, {mode} it appended")

    @asynccontextmanager
    async def join(self, subscription: Subscription, listener: Listener) -> AsyncIterator[Membership]:
        async with self.broker.join(subscription, listener) as membership:
            yield FailingMembership(self.service, membership, self.plan)


class FailingMembership:
    """A membership whose calls fail as planned."""

    def __init__(self, service: str, membership: Membership, plan: Plan) -> None:
        self.service, self.membership, self.plan = service, membership, plan
        self._held: Sequence[Record] = ()
        """Polled, and not handed out: nothing of it is lost."""

    def disagreeing_members(self) -> Sequence[str]:
        return self.membership.disagreeing_members()

    async def poll(self, partitions: Collection[Partition], *, records_max: int, timeout_s: float) -> Sequence[Record]:
        held, self._held = self._held, ()
        if held:
            return held
        records = await self.membership.poll(partitions, records_max=records_max, timeout_s=timeout_s)
        # How often nothing comes is a matter of time: only polls that give something are counted.
        if records and self.plan.due(f"{self.service}.poll", "before"):
            self._held = records
            raise BrokerUnavailable("planted: the broker cannot be reached")
        return records

    def wake(self) -> None:
        self.membership.wake()

    def log_id(self, partition: Partition) -> str:
        return self.membership.log_id(partition)

    def lag(self) -> Mapping[Partition, int] | None:
        return self.membership.lag()

    def polled_offsets(self) -> Mapping[Partition, int]:
        held = {Partition(*record[:2]): record.offset for record in reversed(self._held)}
        return {**self.membership.polled_offsets(), **held}

    async def fetch_ends(self) -> Mapping[Partition, int | None]:
        return await self.membership.fetch_ends()

    async def fetch_positions(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        return await self.membership.fetch_positions(partitions)

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        return self.membership.stalled_partitions()

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        mode = self.plan.due(f"{self.service}.commit", "before", "after")
        if mode != "before":
            await self.membership.commit(offsets)
        if mode is not None:
            raise BrokerUnavailable(f"planted: the broker failed, {mode} it committed")

    async def mark_in_progress(self, offsets: Mapping[Partition, int]) -> Collection[Partition]:
        return await self.membership.mark_in_progress(offsets)

    async def clear_in_progress(self, offsets: Mapping[Partition, int]) -> None:
        await self.membership.clear_in_progress(offsets)


class Outage(Exception):
    """Raised by a step when the network fails."""


async def _call(plan: Plan, kind: str, act: Callable[[], Awaitable[T]]) -> T:
    mode = plan.due(kind, "before", "after")
    if mode == "before":
        raise Outage("planted: no connection")
    answer = await act()
    if mode == "after":
        raise Outage("planted: the connection broke")
    return answer


class FailingBank(Bank):
    """A bank with a ledger, whose calls fail as planned."""

    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        super().__init__()
        self.bank, self.plan = LedgerBank(ledger), plan

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        return await _call(self.plan, "bank.reserve", lambda: self.bank.reserve(key, card, amount))

    async def capture(self, key: str, charge_id: str) -> None:
        await _call(self.plan, "bank.capture", lambda: self.bank.capture(key, charge_id))

    async def release(self, key: str, charge_id: str) -> None:
        await _call(self.plan, "bank.release", lambda: self.bank.release(key, charge_id))


class FailingCarrier(Carrier):
    """A carrier with a ledger, whose calls fail as planned."""

    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        super().__init__()
        self.carrier, self.plan = LedgerCarrier(ledger), plan

    async def book(self, key: str, address: str, parcels: int) -> str:
        return await _call(self.plan, "carrier.book", lambda: self.carrier.book(key, address, parcels))

    async def dispatch(self, key: str, booking_id: str) -> str:
        return await _call(self.plan, "carrier.dispatch", lambda: self.carrier.dispatch(key, booking_id))

    async def unbook(self, key: str, booking_id: str) -> None:
        await _call(self.plan, "carrier.unbook", lambda: self.carrier.unbook(key, booking_id))


class House:
    """Running services, with all that they use."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self.clock = folder, clock
        self.plan = Plan()
        self.moments: list[TelemetryEvent] = []
        self.stores: dict[str, Store] = {}
        self.broker = EmbeddedBroker(folder / "broker.db", clock=SystemClock())

    async def publish(self, *events: Event) -> None:
        """Publish as a Client does."""
        await self.broker.publish([to_record(event, self.clock.now_ms()) for event in events])

    async def at_rest(self) -> None:
        """Return when everything in the log is handled and committed by all who read it."""
        until_s = self.clock.monotonic_s() + REST_S_MAX
        while behind := self.behind() or await self.waiting():
            assert self.clock.monotonic_s() < until_s, f"{behind} after {REST_S_MAX} s; {self.moments[-5:]}"
            await SystemClock().sleep(LOOK_S)

    def behind(self) -> list[str]:
        """Each service that has something to do, or has not joined its group yet."""
        execute = self.broker.connection.execute
        groups = {group for (group,) in execute("SELECT name FROM groups")}
        rows = execute(
            "SELECT DISTINCT grp, name FROM positions JOIN logs ON id = log "
            "JOIN topics ON log >= first_log AND log < first_log + partitions WHERE offset < next"
        )
        behind = {group for group, topic in rows if group in self.stores and not is_timer_topic(topic)}
        return sorted((self.stores.keys() - groups) | behind)

    async def waiting(self) -> list[str]:
        """Each service in which a saga waits for a time. Wakes of others lie in the log until theirs."""
        found = []
        for name, store in self.stores.items():
            progresses = [decode_progress(document.content) async for _, document in store.scan(PROGRESS)]
            found += [name for p in progresses if p.timer is not None]
        return found

    async def history(self, service: str, saga: str) -> list[Transition]:
        """Transitions of a saga in a service."""
        document = await self.stores[service].get("saga", progress_key(service, saga))
        return (
            []
            if document is None
            else [decode_transition(raw) for raw in decode_progress(document.content).transitions]
        )


EVERYBODY: Sequence[Service] = (order, payment, inventory, shipping)


@asynccontextmanager
async def house_of(
    folder: Path,
    services: Sequence[Service] = EVERYBODY,
    *,
    clock: Clock | None = None,
    connection: type[sqlite3.Connection] = sqlite3.Connection,
) -> AsyncIterator[House]:
    """These services, running; stock is seeded. `connection`: the class of their stores' connections."""
    clock, stop = clock or Hasty(), asyncio.Event()
    async with AsyncExitStack() as stack:
        house = House(folder, clock)
        await stack.enter_async_context(house.broker)
        await house.broker.ensure_topics(list(find_library(ROOT).topics.values()))
        bank = FailingBank(await stack.enter_async_context(Ledger(folder / "bank.db")), house.plan)
        carrier = FailingCarrier(await stack.enter_async_context(Ledger(folder / "carrier.db")), house.plan)
        use: dict[str, Sequence[object]] = {"payment": [bank], "shipping": [carrier]}
        for name in (service.declared.name for service in services):
            usual = SqliteStore(folder / f"{name}.db", clock=SystemClock(), connection=connection)
            store = await stack.enter_async_context(usual)
            if name == "inventory":
                await seed(store)
            house.stores[name] = FailingStore(name, store, house.plan)
        async with asyncio.TaskGroup() as tasks:
            for service in services:
                name = service.declared.name
                await house.broker.ensure_topics(topics_of(service.declared))
                tasks.create_task(
                    serve(
                        prepare(service.declared),
                        store=house.stores[name],
                        broker=FailingBroker(name, house.broker, house.plan),
                        use=use.get(name, ()),
                        options=ServiceOptions(
                            clock=clock, report=house.moments.append, limits=FlowLimits(), stop=stop
                        ),
                    )
                )
            try:
                yield house
            finally:
                stop.set()
