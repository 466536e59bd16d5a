"""Ports of the engine: everything that it asks and awaits. Tests and tools replace single ones, and share the rest."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from saga.encryption.port import Keys
from saga.engine.known_schemas import AskRegistry, ReloadContracts, reload_now
from saga.engine.outage_watch import OutageWatch
from saga.engine.processing_state import Measurements
from saga.engine.progress_cache import OverflowCache
from saga.messages import Outgoing, Position
from saga.progress.document import SagaProgress, StepRecord, Transition
from saga.store.port import Store
from saga.support.clock import Clock

T = TypeVar("T")
Item = TypeVar("Item")


class EventPublisher(Protocol):
    """The part of a broker that the engine uses: it publishes events and dead letters."""

    @property
    def record_bytes_max(self) -> int:
        """Largest record in bytes: see `Broker.record_bytes_max`."""

    def publish(self, messages: Sequence[Outgoing]) -> Coroutine[object, object, None]:
        """Publish records; return when all are durable. Raises `BrokerUnavailable`."""


class TransitionListener(Protocol):
    """Listens to the transitions of progress documents. None of its methods waits."""

    def published_below(self, p: SagaProgress, /) -> int:
        """Return the number of the first transition that is not known as published on `saga.transitions`."""

    def on_written(self, p: SagaProgress, entry: Transition, stages: Measurements, /) -> None:
        """Take note of a transition that has been written, and of the progress with it."""

    def on_loaded(self, p: SagaProgress, /) -> None:
        """Take note of a progress that was read from the store."""


class Heartbeat(Protocol):
    """Durable records of when the service works."""

    @property
    def absences(self) -> tuple[tuple[int, int], ...]:
        """Times in which no worker has written anything: see `saga.progress.actions.Now`."""

    def is_recent(self) -> bool:
        """Return True if a progress may be written now."""

    def record(self) -> Coroutine[object, object, None]:
        """Record that the service works now. Raises `StoreError`."""


class Assignment(Protocol):
    """The partitions that this worker owns now, and the permission to begin work on their messages."""

    def is_committed(self, position: Position, /) -> bool:
        """Return True if the offset is committed, in a partition that this worker owns."""

    def is_of_current_log(self, position: Position, /) -> bool:
        """Return True if the topic still has the log of this position: then an uncommitted message there is
        redelivered."""

    def check_running(self, position: Position, /) -> None:
        """Raise `Draining` if nothing new of this partition may begin."""

    def handled_ms(self, saga: str, due_ms: int, /) -> Awaitable[int]:
        """Return the time up to which everything in the log that may concern the saga has been handled.

        At least `due_ms` if that is known now; 0 if nothing is known.
        """

    def is_at_home(self, saga: str, position: Position, /) -> bool:
        """Return False if a timer at this position should go to the worker that owns the saga's partitions."""

    def pause(self, seconds: float, position: Position, /) -> Awaitable[None]:
        """Wait between attempts. Raises `Draining` at once when the worker stops or loses the partition."""


class ExternalCall(Struct, frozen=True):
    """A call to an external system that a handler makes by `saga.step`."""

    saga: str
    handler: str
    record: StepRecord
    call: Callable[..., Awaitable[Any]]
    args: Sequence[object]
    kwargs: Mapping[str, object]
    secrets: Callable[[], Sequence[str]] = tuple
    """Function that tells which texts are hidden where people see them."""
    trace: str | None = None
    """Header `traceparent` below which the outside may go on with the trace; `None`: it is not traced."""

    def make(self) -> Awaitable[Any]:
        """Make the call."""
        return self.call(*self.args, **self.kwargs)


CallExternal: TypeAlias = Callable[[ExternalCall], Awaitable[Any]]
"""Way of the calls of steps to the outside: it gives what the call gives. `Step.make` is the straight one."""


class Batch(Protocol):
    """Joins work that several sagas want done to one thing."""

    def __call__(
        self, what: str, item: Item, act: Callable[[Sequence[Item]], Awaitable[Sequence[T]]], /
    ) -> Awaitable[T]:
        """Return what `act` returns for `item`. Items of one `what` that arrive while others are under way go
        together."""


class RunScope(Protocol):
    """What one run of a handler needs: steps one after another, and writes that a timeout cannot abandon."""

    @property
    def gate(self) -> AbstractAsyncContextManager[object]:
        """Return the lock that keeps the steps of one handler apart."""

    def write(self, work: Coroutine[object, object, T]) -> Awaitable[T]:
        """Begin a write. It goes on to its end when the awaiting handler is cancelled."""

    async def wait_for_writes(self) -> None:
        """Wait until no write is under way."""


@dataclass(slots=True)
class ShieldedRunScope:
    """See `RunScope` for the promises. On asyncio."""

    gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    _writing: asyncio.Task[object] | None = None

    def write(self, work: Coroutine[object, object, T]) -> Awaitable[T]:
        task = asyncio.get_running_loop().create_task(work, name="write")
        self._writing = task
        return asyncio.shield(task)

    async def wait_for_writes(self) -> None:
        if self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Everything around the engine. Whatever the engine awaits is a call of one of these."""

    store: Store
    publisher: EventPublisher
    clock: Clock
    outage_watch: OutageWatch
    assignment: Assignment
    batch: Batch
    """Meeting place of updates of one business document."""
    overflow_cache: OverflowCache
    worker: str = ""
    """Name of this worker, for people."""
    call_external: CallExternal = ExternalCall.make
    reload_contracts: ReloadContracts = reload_now
    """Way to the contracts as they are by now, asked for when a message is of a schema that is not known."""
    ask_registry: AskRegistry | None = None
    """Way to the schema registry, asked for a message that could not be read when it came; `None`: there is none."""
    waits_for_schemas: bool = True
    """False in a world in which what is not deployed after ten attempts never will be."""
    keys: Keys | None = None
    """Keys of sealed values; `None`: nothing is sealed."""
    transition_listener: TransitionListener | None = None
    """Receives each transition that is written or loaded; `None`: none is published."""
    heartbeat: Heartbeat | None = None
    """Notes of when the service works; `None`: its absences are not looked at."""
    make_run_scope: Callable[[], RunScope] = ShieldedRunScope
    """Makes what one run of a handler needs, at its first step."""
