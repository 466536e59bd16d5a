"""Workers of one service on one store, each driven message by message: for schedules that a real log seldom gives."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from saga import Event, Service
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.isolated_ports import RecordingPublisher
from saga.engine.lifecycle import open_resources
from saga.engine.prepared_service import prepare
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import ServiceRuntime, make_service_runtime
from saga.messages import Message, Position, texts_of
from saga.messaging.names import ARCHIVES
from saga.progress.document import SagaProgress, Transition, decode_progress, decode_transition, progress_key
from saga.store.port import Document, Store
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import iso
from saga.telemetry.events import TelemetryEvent
from saga.testing.trials import TrialClock, trial_ports
from tests.engine.real_worker import SAGA, message_of, topic_of

Before = Callable[[str, str], Awaitable[None]]


class Watched:
    """The store, with something that happens before a write: `before(collection, key)`."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.document_bytes_max = store.document_bytes_max
        self.before: Before | None = None
        self.instead: Callable[[str, str, bytes], Awaitable[None]] | None = None
        """Function in the place of the first insert."""
        self.reads = 0

    async def get(self, collection: str, key: str) -> Document | None:
        self.reads += 1
        return await self.store.get(collection, key)

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        await self._happens(collection, key)
        if self.instead is not None:
            await self.instead(collection, key, content)
        return await self.store.insert(collection, key, content, expiry_s=expiry_s)

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
        await self._happens(collection, key)
        return await self.store.replace(collection, key, content, cas=cas, expiry_s=expiry_s, keep_expiry=keep_expiry)

    async def remove(self, collection: str, key: str, *, cas: int) -> None:
        await self._happens(collection, key)
        await self.store.remove(collection, key, cas=cas)

    async def _happens(self, collection: str, key: str) -> None:
        if self.before is not None:
            await self.before(collection, key)


class At:
    """One worker of a service. What it has cached is what the test hands it."""

    def __init__(
        self, participant: ServiceRuntime, log: RecordingPublisher, moments: list[TelemetryEvent], store: SqliteStore
    ) -> None:
        self.participant, self.log, self.moments, self.store = participant, log, moments, store
        self.offset = 0

    def message(self, event: Event, *, started: str | None = "now", id: str = "", source: str = "somebody") -> Message:
        """A message as another service says it."""
        now = iso(self.participant.ports.clock.now_ms())
        started = now if started == "now" else started
        return message_of(event, time=now, started=started, id=id, source=source)

    def begun(self, event: Event, message: Message, known: ProcessingState | None = None) -> ProcessingState:
        """The turn on a message, on what is cached of an earlier one; left out: on nothing."""
        self.offset += 1
        cached = None if known is None else (known.loaded_progress, known.cas)
        return MessageProcessor(self.participant).begin(message, Position(topic_of(event), 0, self.offset), cached)

    async def takes(
        self,
        event: Event,
        *,
        writes_max: int = 100,
        started: str | None = "now",
        id: str = "",
        source: str = "somebody",
    ) -> ProcessingState:
        """The message to its end; or, as by a crash, only to so many writes."""
        turn = self.begun(event, self.message(event, started=started, id=id, source=source))
        while not turn.is_complete:
            cas, was_read = turn.cas, turn.progress is not None
            turn = await MessageProcessor(self.participant).advance(turn)
            writes_max -= was_read and turn.cas not in (cas, 0)
            if not writes_max:
                break
        return turn

    async def progress(self, saga: str = SAGA) -> SagaProgress:
        """Progress as it is in the store."""
        document = await self.store.get("saga", progress_key(self.participant.name, saga))
        return (
            SagaProgress(service=self.participant.name, saga=saga)
            if document is None
            else decode_progress(document.content)
        )

    async def history(self) -> list[Transition]:
        """Transitions of the saga, as far as they are in the progress."""
        return [decode_transition(raw) for raw in (await self.progress()).transitions]

    async def outcomes(self) -> list[tuple[str, str]]:
        """Handler and outcome of each transition."""
        return [(entry.handler, entry.outcome) for entry in await self.history()]

    @property
    def dead(self) -> list[dict[str, str]]:
        """The headers of what it left on `<service>.dead`, each letter once."""
        letters = [texts_of(r.headers) for r in self.log.messages if r.topic.endswith(".dead")]
        return list({headers["dead_id"]: headers for headers in letters}.values())


class Workers:
    """The store, the time, and the workers on them."""

    def __init__(self, store: SqliteStore, clock: TrialClock, stack: AsyncExitStack) -> None:
        self.store, self.clock, self._stack = store, clock, stack
        self.watched = Watched(store)

    async def worker(self, service: Service[Any], *, use: Sequence[object] = (), name: str = "") -> At:
        """One more worker, of this version of the service."""
        log, moments, watched = (
            RecordingPublisher(),
            list[TelemetryEvent](),
            cast(Store, self.watched),
        )  # what a turn uses of a store
        ports = replace(trial_ports(service.declared.name, watched, self.clock, log, moments), worker=name)
        resources = await open_resources(service.declared, self._stack, self.clock, 9, use)
        return At(make_service_runtime(prepare(service.declared), resources, ports), log, moments, self.store)

    async def archive(self, key: str, content: bytes | None) -> None:
        """Put this in the place of what the archives hold under the key; `None`: nothing."""
        found = await self.store.get(ARCHIVES, key)
        if found is not None:
            await self.store.remove(ARCHIVES, key, cas=found.cas)
        if content is not None:
            await self.store.insert(ARCHIVES, key, content)


@asynccontextmanager
async def place(folder: Path) -> AsyncIterator[Workers]:
    """With an empty store."""
    clock = TrialClock()
    async with AsyncExitStack() as stack:
        yield Workers(await stack.enter_async_context(SqliteStore(folder / "store.db", clock=clock)), clock, stack)
