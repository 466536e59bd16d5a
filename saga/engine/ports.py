"""Ports of a turn: all that it asks and awaits, each by what it is. A world gives what differs there, and shares the
rest with the worker."""

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
    """Log that events and dead letters are published to: of a broker, what a turn uses."""

    @property
    def record_bytes_max(self) -> int:
        """Bytes that it takes as one record: see `Broker.record_bytes_max`."""

    def publish(self, messages: Sequence[Outgoing]) -> Coroutine[object, object, None]:
        """Return when all is durable. Raises `BrokerUnavailable`."""


class TransitionListener(Protocol):
    """Listener to the transitions of a progress; none of its calls waits for anything."""

    def published_below(self, p: SagaProgress, /) -> int:
        """Number of the first transition of a progress that is not known as told."""

    def on_written(self, p: SagaProgress, entry: Transition, stages: Measurements, /) -> None:
        """Take note of a transition that is in the store now, `p` with it."""

    def on_loaded(self, p: SagaProgress, /) -> None:
        """Take note of a progress as it was read from the store."""


class Heartbeat(Protocol):
    """Durable notes of when the service works."""

    @property
    def absences(self) -> tuple[tuple[int, int], ...]:
        """Times in which no worker has written anything: see `saga.progress.actions.Now`."""

    def is_recent(self) -> bool:
        """True if a progress may be written now."""

    def record(self) -> Coroutine[object, object, None]:
        """Note that the service works now. Raises `StoreError`."""


class Assignment(Protocol):
    """Partitions that this worker owns now, and the permission to begin something of them."""

    def is_committed(self, position: Position, /) -> bool:
        """True if the position lies below the committed one of a partition that this worker owns."""

    def is_of_current_log(self, position: Position, /) -> bool:
        """True if the position's log is known to be the one that its topic has now: a message there that is not
        committed comes to whoever has its partition."""

    def check_running(self, position: Position, /) -> None:
        """Raises `Draining` when nothing new of this partition may begin."""

    def handled_ms(self, saga: str, due_ms: int, /) -> Awaitable[int]:
        """Time up to which the log has been handled as far as it may concern the saga: whatever its partitions of the
        topics of events held then has come to its place here. At least `due_ms` if that can be said of it now; 0 if it
        cannot be said of any time."""

    def is_at_home(self, saga: str, position: Position, /) -> bool:
        """False if a wake that lies there should go to the worker that has the saga's partitions, which knows more of
        them than this one."""

    def pause(self, seconds: float, position: Position, /) -> Awaitable[None]:
        """Wait between attempts. Raises `Draining` at once when the worker stops or is to lose the partition."""


class ExternalCall(Struct, frozen=True):
    """Call to the outside that a handler makes now by `saga.step`."""

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
    """Meeting place of lanes that want something done to one thing."""

    def __call__(
        self, what: str, item: Item, act: Callable[[Sequence[Item]], Awaitable[Sequence[T]]], /
    ) -> Awaitable[T]:
        """Give what `act` gives for `item`. Items of one `what` that come up while others are acted on, go together."""


class RunScope(Protocol):
    """Needs of one run of a handler: steps one after another, and writes that a timeout cannot abandon."""

    @property
    def gate(self) -> AbstractAsyncContextManager[object]:
        """A lock: steps of one handler never overlap."""

    def write(self, work: Coroutine[object, object, T]) -> Awaitable[T]:
        """Begin a write; it goes on to its end when the awaiting handler is cancelled."""

    async def wait_for_writes(self) -> None:
        """Return when no write is under way."""


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
    """All that is around a turn. Whatever it awaits is a call of one of these."""

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
    """Told of each transition that is written or loaded; `None`: nobody is."""
    heartbeat: Heartbeat | None = None
    """Notes of when the service works; `None`: its absences are not looked at."""
    make_run_scope: Callable[[], RunScope] = ShieldedRunScope
    """Makes what one run of a handler needs, at its first step."""
