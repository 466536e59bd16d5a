"""One service at a real worker, on a real store and a real log in a folder, with a clock that does not let it wait."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from decimal import Decimal
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

from saga import Event, Service
from saga.broker.embedded.broker import EmbeddedBroker
from saga.broker.port import RECORD_BYTES_MAX
from saga.clients import events
from saga.contracts import codec
from saga.contracts.library import binding_of, contract_of, find_library
from saga.encryption.port import Keys
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.known_schemas import ReloadContracts, reload_in_thread
from saga.engine.lifecycle import ServiceOptions, serve
from saga.engine.prepared_service import prepare, topics_of
from saga.engine.worker import Worker
from saga.messages import Message, Outgoing, Partition, Record, Topic, texts_of
from saga.messaging import envelope
from saga.progress import ids
from saga.progress.document import SagaProgress, Transition, decode_progress, decode_transition, progress_key
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock, iso
from saga.telemetry.events import DeadLettered, TelemetryEvent, to_all
from saga.telemetry.health import Watch, WorkerView
from saga.telemetry.traces import Traces
from services.payment.events import OrderPlaced

T = TypeVar("T")
M = TypeVar("M", bound=TelemetryEvent)

ROOT = Path(__file__).parents[2]
AWAITED_S_MAX = 60.0
LOOK_S = 0.002
SAGA = "order-1"


class Impatient(SystemClock):
    """Pauses are remembered, and take a fraction of their time; calls have the time that they are given."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self.faster: float = 50
        """Times that pauses are shorter: by default all attempts of a message take five seconds."""
        self.ahead_ms = 0
        """Milliseconds that it is ahead of the real time."""

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_ms / 1000

    def chance(self) -> float:
        return 0.0

    async def within(self, seconds: float, what: Awaitable[T]) -> T:
        if isinstance(what, asyncio.Future):  # a pause between two attempts, which only draining ends earlier
            self.pauses.append(seconds)
            seconds /= self.faster
        return await super().within(seconds, what)


class Dated(SystemClock):
    """Clock of the log: its records have the workplace's time, and it waits for others as long as it really takes."""

    def __init__(self, of: Impatient) -> None:
        self._of = of

    def now_ms(self) -> int:
        return self._of.now_ms()


class Workplace:
    """The log, the store of the service, and all that is reported."""

    def __init__(self, folder: Path, record_bytes_max: int = RECORD_BYTES_MAX) -> None:
        self.folder, self.clock = folder, Impatient()
        self.moments: list[TelemetryEvent] = []
        self.traces: Traces | None = None
        """Listener that makes spans, where a test is about them."""
        self.leaps = True
        """False to let the time until the next timer pass by itself."""
        dated = Dated(self.clock)
        self.broker = EmbeddedBroker(folder / "broker.db", clock=dated, record_bytes_max=record_bytes_max)
        self.store = SqliteStore(folder / "store.db", clock=self.clock)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """With all topics of the example."""
        async with self.broker, self.store:
            await self.broker.ensure_topics(list(find_library(ROOT).topics.values()))
            yield

    async def publish(
        self, *events: Event, source: str = "somebody", started: str | None = "now", id: str = ""
    ) -> None:
        """Publish as another service does. `id`: in the place of one made of the content."""
        await self.broker.publish([self.record_of(e, source=source, started=started, id=id) for e in events])

    def record_of(
        self, event: Event, *, source: str = "somebody", started: str | None = "now", id: str = ""
    ) -> Outgoing:
        """An event as another service publishes it."""
        now = iso(self.clock.now_ms())
        started = now if started == "now" else started
        message = message_of(event, time=now, source=source, started=started, id=id)
        return envelope.to_record(message, contract_of(type(event)))

    def to_client_record(self, event: Event) -> Outgoing:
        """An event as a Client publishes it."""
        return events.to_record(event, self.clock.now_ms())

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when it does."""
        real = SystemClock()  # the other one may be put forward meanwhile
        until_s = real.monotonic_s() + AWAITED_S_MAX
        while not holds():
            assert real.monotonic_s() < until_s, f"not within {AWAITED_S_MAX} s; {self.moments[-5:]}"
            await self.clock.sleep(LOOK_S)

    async def at_rest(self, service: Service[Any]) -> None:
        """Return when the service has handled and committed everything in the log."""
        await self.until(lambda: not self.is_behind(service))

    def is_behind(self, service: Service[Any]) -> bool:
        """True if it has something to do, or has not joined its group yet."""
        behind = "SELECT 1 FROM positions JOIN logs ON id = log WHERE grp = ? AND offset < next LIMIT 1"
        name, execute = service.declared.name, self.broker.connection.execute
        joined = execute("SELECT 1 FROM groups WHERE name = ?", (name,)).fetchone()
        return not joined or execute(behind, (name,)).fetchone() is not None

    def committed(self, service: Service[Any], partition: Partition) -> int:
        """The group's position in a partition."""
        first = "SELECT first_log FROM topics WHERE name = ?"
        position = f"SELECT offset FROM positions WHERE grp = ? AND log = ({first}) + ?"
        row = self.broker.connection.execute(position, (service.declared.name, *partition)).fetchone()
        return int(row[0]) if row else 0

    async def records(self, topic: str) -> list[Record]:
        """Everything in a topic."""
        return [record async for record in self.broker.scan(topic)]

    async def dead(self, service: Service[Any]) -> list[tuple[Record, dict[str, str]]]:
        """The service's dead letters, each with its headers as text where they are text."""
        records = await self.records(f"{service.declared.name}.dead")
        return [(r, texts_of(r.headers)) for r in records]

    async def progress(self, service: Service[Any], saga: str = SAGA) -> SagaProgress | None:
        """Progress of a saga in the service."""
        document = await self.store.get("saga", progress_key(service.declared.name, saga))
        return None if document is None else decode_progress(document.content)

    async def history(self, service: Service[Any], saga: str = SAGA) -> list[Transition]:
        """Transitions of a saga in the service."""
        p = await self.progress(service, saga)
        return [] if p is None else [decode_transition(raw) for raw in p.transitions]

    def reported_dead_letters(self) -> list[DeadLettered]:
        """The dead letters that were reported."""
        return self.reported(DeadLettered)

    def reported(self, kind: type[M]) -> list[M]:
        """Moments of one kind that were reported."""
        return [moment for moment in self.moments if isinstance(moment, kind)]


@asynccontextmanager
async def workplace(folder: Path, *, record_bytes_max: int = RECORD_BYTES_MAX) -> AsyncIterator[Workplace]:
    """Open."""
    place = Workplace(folder, record_bytes_max)
    async with place.opened():
        yield place


@asynccontextmanager
async def at_work(
    place: Workplace,
    service: Service[Any],
    *,
    use: Sequence[object] = (),
    limits: FlowLimits | None = None,
    contracts: ReloadContracts = reload_in_thread,
    keys: Keys | None = None,
    tells: Topic | None = None,
) -> AsyncIterator[asyncio.Event]:
    """The service runs inside the block, or until the event is set; then it drains."""
    prepared, stop, workers = prepare(service.declared), asyncio.Event(), list[Worker]()
    await place.broker.ensure_topics(topics_of(service.declared))
    options = ServiceOptions(
        clock=place.clock,
        report=place.moments.append if place.traces is None else to_all(place.moments.append, place.traces),
        tracing=None if place.traces is None else place.traces.tracing,
        limits=limits or FlowLimits(),
        stop=stop,
        worker="payment-1",
        watch=watched(workers),
        reload_contracts=contracts,
        keys=keys,
        transitions_topic=tells,
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(prepared, store=place.store, broker=place.broker, use=use, options=options))
        leaping = tasks.create_task(leap(place, workers))
        try:
            yield stop
        finally:
            leaping.cancel()
            stop.set()


def watched(workers: list[Worker]) -> Watch:
    """Way to get at the worker."""

    @contextmanager
    def watch(worker: WorkerView) -> Iterator[None]:
        assert isinstance(worker, Worker)
        workers.append(worker)
        yield

    return watch


async def leap(place: Workplace, workers: Sequence[Worker]) -> None:
    """Put the time forward to the next timer whenever nothing else is in flight."""
    while True:
        await place.clock.sleep(LOOK_S)
        for worker in workers if place.leaps else ():
            held = worker.timers._heap
            left_s = held[0][0] - place.clock.monotonic_s() if held and not worker.executor.inflight else 0
            if left_s > 0:
                place.clock.ahead_ms += ceil(left_s * 1000)
                worker.timers._sooner.set()


def message_of(
    event: Event, *, time: str = "2026-01-01T00:00:00.000Z", source: str = "somebody", started: str | None, id: str = ""
) -> Message:
    """An event on its way."""
    contract = binding_of(type(event)).contract
    value, saga = codec.encode(event), str(getattr(event, contract.key))
    return Message(
        id=id or f"{contract.name}-{ids.digest('test', saga, value.hex())}",
        type=contract.name,
        schema=type(event).__contract__,
        saga=saga,
        source=source,
        time=time,
        value=value,
        started=started,
    )


def topic_of(event: Event) -> str:
    return binding_of(type(event)).contract.topic


def an_order(saga: str = SAGA, *, quantity: int = 1, card: str = "visa-1", sku: str = "tea") -> OrderPlaced:
    return OrderPlaced(
        order_id=saga,
        customer_id="customer-1",
        sku=sku,
        quantity=quantity,
        total=Decimal("9.80"),
        card=card,
        address="Kiel",
    )
