"""Ports of the engine: everything outside the engine that it calls. Tests and tools replace single ports."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from inspect import isawaitable
from types import CoroutineType
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from saga.encryption.port import Keys
from saga.engine.errors import NotAsync
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
    """The part of a broker that the engine uses: publishing events and dead letters."""

    @property
    def record_bytes_max(self) -> int:
        """Return the size of the largest record that the broker accepts, in bytes: see `Broker.record_bytes_max`."""

    def publish(self, messages: Sequence[Outgoing]) -> Coroutine[object, object, None]:
        """Publish records, and return when all are durable. Raises `BrokerUnavailable`."""


class TransitionListener(Protocol):
    """Receives the transitions of progress documents. None of its methods waits."""

    def published_below(self, p: SagaProgress, /) -> int:
        """Return the number of the first transition that is not known to be published on `saga.transitions`."""

    def on_written(self, p: SagaProgress, entry: Transition, stages: Measurements, /) -> None:
        """Record that a transition was written; `p`: the progress that contains it."""

    def on_loaded(self, p: SagaProgress, /) -> None:
        """Record that a progress was read from the store."""


class Heartbeat(Protocol):
    """Durable record of the times at which the service was running."""

    @property
    def absences(self) -> tuple[tuple[int, int], ...]:
        """Return the periods in which no worker wrote anything: see `saga.progress.actions.Now`."""

    def is_recent(self) -> bool:
        """Return True if a progress may be written now, because the last record is recent enough."""

    def record(self) -> Coroutine[object, object, None]:
        """Record that the service is running. Raises `StoreError`."""


class Assignment(Protocol):
    """The partitions that this worker owns now, and the permission to begin work on their messages."""

    def is_committed(self, position: Position, /) -> bool:
        """Return True if the offset is committed in a partition that this worker owns."""

    def is_of_current_log(self, position: Position, /) -> bool:
        """Return True if the topic still has the log of this position, so that a message there whose offset is not
        committed will be redelivered."""

    def check_running(self, position: Position, /) -> None:
        """Raise `Draining` if no new work for messages of this partition may begin."""

    def handled_ms(self, saga: str, due_ms: int, /) -> Awaitable[int]:
        """Return the time up to which everything in the log that may concern the saga has been handled.

        The result is at least `due_ms` if the log is known to be handled up to `due_ms`, and 0 if nothing is known.
        """

    def is_at_home(self, saga: str, position: Position, /) -> bool:
        """Return False if a timer at this position should go to the worker that owns the saga's partitions."""

    def is_abandoned(self) -> bool:
        """Return True if the current run was cancelled from outside, and has to end as in a crash."""

    def forget_cancellations(self) -> None:
        """Forget the cancellations that the current run itself has caused and survived, so that no later error counts
        as another one.

        Before Python 3.13, a task group whose task failed leaves one behind in the task of its handler.
        """

    def pause(self, seconds: float, position: Position, /) -> Awaitable[None]:
        """Wait between attempts. Raises `Draining` at once when the worker stops or loses the partition."""


class ExternalCall(Struct, frozen=True):
    """A call to an external system that a handler makes with `saga.step`."""

    saga: str
    handler: str
    record: StepRecord
    call: Callable[..., Awaitable[Any]]
    args: Sequence[object]
    kwargs: Mapping[str, object]
    secrets: Callable[[], Sequence[str]] = tuple
    """Function that returns the sensitive strings to hide in displays and reports."""
    trace: str | None = None
    """Header `traceparent`, with which the external system can continue the trace; `None` if the call is not traced."""

    def make(self) -> Awaitable[Any]:
        """Make the call. Raises `NotAsync` if the function gives nothing to await."""
        made = self.call(*self.args, **self.kwargs)
        if type(made) is not CoroutineType and not isawaitable(made):
            raise NotAsync(
                f"{self.record.name!r} is no `async def`, and has run already: make it one, or wrap it in one"
            )
        return made


CallExternal: TypeAlias = Callable[[ExternalCall], Awaitable[Any]]
"""Function that makes the call of a step and returns its result. `ExternalCall.make` makes it directly."""


class Batch(Protocol):
    """Combines work of several sagas on the same target."""

    def __call__(
        self, what: str, item: Item, act: Callable[[Sequence[Item]], Awaitable[Sequence[T]]], /
    ) -> Awaitable[T]:
        """Return the result of `act` for `item`.

        Items with the same `what` that arrive while an earlier `act` runs are passed to the next `act` together.
        """


class RunScope(Protocol):
    """Support for one run of a handler: its steps run one after another, and a timeout cannot abandon a write."""

    @property
    def gate(self) -> AbstractAsyncContextManager[object]:
        """Return the lock that prevents steps of one run from overlapping."""

    def write(self, work: Coroutine[object, object, T]) -> Awaitable[T]:
        """Begin a write. It runs to its end even if the handler that awaits it is cancelled."""

    async def wait_for_writes(self) -> None:
        """Wait until no write is in progress."""


@dataclass(slots=True)
class ShieldedRunScope:
    """A `RunScope` for asyncio."""

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
    """Everything outside the engine: each external operation that the engine awaits is a call of one of these ports."""

    store: Store
    publisher: EventPublisher
    clock: Clock
    outage_watch: OutageWatch
    assignment: Assignment
    batch: Batch
    """Combines concurrent updates of one business document."""
    overflow_cache: OverflowCache
    worker: str = ""
    """Name of this worker, for reports and displays."""
    call_external: CallExternal = ExternalCall.make
    reload_contracts: ReloadContracts = reload_now
    """Function that reloads the contracts as currently deployed. It is called for a message whose schema is unknown."""
    ask_registry: AskRegistry | None = None
    """Function that asks the schema registry about a message that could not be read when it arrived; `None` if there is
    no registry."""
    waits_for_schemas: bool = True
    """False in tests where a schema that is missing after all attempts will never be deployed."""
    keys: Keys | None = None
    """Keys of encrypted values; `None` if nothing is encrypted."""
    transition_listener: TransitionListener | None = None
    """Receives each transition that is written, and each progress that is loaded; `None` if transitions are not
    published."""
    heartbeat: Heartbeat | None = None
    """Records when the service is running; `None` if its absences are not considered."""
    has_run_tasks: bool = False
    """True if each message is processed in a task of its own, so that the runner need not make one for each run."""
    make_run_scope: Callable[[], RunScope] = ShieldedRunScope
    """Function that makes the `RunScope` of a run at its first step."""
