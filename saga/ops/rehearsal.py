"""Rehearsal of a replay: it runs the service's current code on a copy of the saga, and discards all effects.

Recorded step results are reused. A step without a recorded result is not called. Instead, the rehearsal ends there and
reports the call. The command and all its consequences are decided exactly as in a worker.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Self

import msgspec

from saga.declarations.values import Declared
from saga.encryption.port import Keys
from saga.encryption.sensitive_fields import hide_marked, redact_text
from saga.engine.consumer.keyed_executor import Batcher
from saga.engine.errors import Halted
from saga.engine.execution import value_codec
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.isolated_ports import RecordingPublisher, StaticAssignment
from saga.engine.outage_watch import OutageWatch
from saga.engine.ports import ExternalCall, Ports
from saga.engine.prepared_service import PreparedService, prepare
from saga.engine.progress_cache import OverflowCache
from saga.engine.service_runtime import ServiceRuntime, make_service_runtime
from saga.errors import BadInput, Conflict, Exists, SagaError
from saga.messages import Message, Position, Record
from saga.messaging.names import PROGRESS, is_reserved_collection
from saga.messaging.operator_commands import CommandValue, command_to_record, parse_command
from saga.ops.dead_letters import DeadLetter
from saga.ops.event_fields import EventFields, read_event_fields
from saga.ops.histories import SagaHistory
from saga.ops.operator_commands import CommandRequest
from saga.policies.retry import Retry
from saga.progress.document import SagaProgress, decode_progress, decode_transition, progress_key
from saga.store.port import Document, Store
from saga.support.clock import Clock
from saga.support.printable import shorten

NO_POSITION = Position("(rehearsal)", 0, 0)
ARGUMENT_BYTES_MAX = 100
"""Maximum number of bytes that are shown of each argument of a call."""


class RehearsalStopped(Halted):
    """Raised where a rehearsal would call an external system. The text of the exception describes the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalResult:
    """The effects that a replay would have, up to the first call of an external system without a recorded result."""

    letter: DeadLetter
    did: tuple[tuple[str, str, str | None], ...]
    """Handler, outcome and reason of each transition that would be written."""
    emitted: tuple[EventFields, ...]
    """Events that would be emitted."""
    before: Mapping[str, Any]
    """State of the saga before the replay."""
    after: Mapping[str, Any]
    documents: tuple[str, ...]
    """Business documents that would change, as `collection/key`."""
    stops: str | None = None
    """The call of an external system at which the rehearsal ended, because the call has no recorded result; `None` if
    there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalSetup:
    """The code, store and keys that a rehearsal uses."""

    declared: Declared
    store: Store
    """The service's store. It is read, and never written."""
    clock: Clock
    keys: Keys | None = None
    """The keys with which recorded values are decrypted; `None` if no keys are configured."""


async def rehearse(
    letter: DeadLetter, wish: CommandRequest, setup: RehearsalSetup, original: Message | None = None
) -> RehearsalResult:
    """Run everything that a command about a dead letter would cause, without any lasting effect.

    Args:
        original: The original message, if the service no longer stores it.

    Raises:
        SagaError: This version of the code cannot continue the saga, or the store cannot be read.
    """
    declared, store, clock, keys = setup.declared, setup.store, setup.clock, setup.keys
    saga, copy, log = letter.saga, StoreOverlay(store), RecordingPublisher()
    if not saga:
        raise BadInput(f"dead letter {letter.id} belongs to no saga")
    service = _make_runtime(declared, copy, log, clock, keys)
    command = command_to_record(
        declared.name,
        saga,
        wish.wanted,
        CommandValue(
            dead=letter.id, who=wish.operator.who, why=wish.operator.why, answered=wish.answered, original=original
        ),
        clock.now_ms(),
    )
    message = parse_command(Record(command.topic, 0, 0, command.key, command.value, command.headers, clock.now_ms()))
    before = await _read_progress(copy, declared.name, saga)
    stops = None
    try:
        arrived = await value_codec.encrypt_message(service, message, NO_POSITION)
        await MessageProcessor(service).process(MessageProcessor(service).begin(arrived, NO_POSITION, None))
    except RehearsalStopped as stop:
        stops = str(stop)
    after = await _read_progress(copy, declared.name, saga)
    entries = after.transitions[max(0, before.n - after.first) :]
    events = read_event_fields(SagaHistory(after, tuple(entries)))
    return RehearsalResult(
        letter=letter,
        did=tuple((e.handler, e.outcome, e.reason) for e in map(decode_transition, entries)),
        emitted=tuple(event for n in sorted(events) for event in events[n]),
        before=hide_marked(before.state),
        after=hide_marked(after.state),
        documents=tuple(
            sorted(f"{collection}/{key}" for collection, key in copy.written if not is_reserved_collection(collection))
        ),
        stops=stops,
    )


async def _read_progress(store: Store, service: str, saga: str) -> SagaProgress:
    document = await store.get(PROGRESS, progress_key(service, saga))
    return SagaProgress(service=service, saga=saga) if document is None else decode_progress(document.content)


# -------------------------------------------------------------------- store and resources


@dataclass(slots=True)
class StoreOverlay:
    """In-memory overlay over another store. Writes stay in memory.

    Documents that were not written here are read from the other store. For the guarantees see `Store`.
    """

    source: Store
    written: dict[tuple[str, str], Document | None] = field(default_factory=dict)
    _cas: int = 1 << 62

    @property
    def document_bytes_max(self) -> int:
        return self.source.document_bytes_max

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def check_expiry(self, collections: Collection[str], expiry_s: float) -> None: ...

    async def get(self, collection: str, key: str) -> Document | None:
        if (collection, key) in self.written:
            return self.written[collection, key]
        return await self.source.get(collection, key)

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        if await self.get(collection, key) is not None:
            raise Exists(key)
        return self._put(collection, key, content)

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
        await self._check(collection, key, cas)
        return self._put(collection, key, content)

    async def remove(self, collection: str, key: str, *, cas: int) -> None:
        await self._check(collection, key, cas)
        self.written[collection, key] = None

    def scan(self, collection: str, prefix: str = "") -> AsyncIterator[tuple[str, Document]]:
        return self.source.scan(collection, prefix)

    async def _check(self, collection: str, key: str, cas: int) -> None:
        there = await self.get(collection, key)
        if there is None or there.cas != cas:
            raise Conflict(key)

    def _put(self, collection: str, key: str, content: bytes) -> int:
        self._cas += 1
        self.written[collection, key] = Document(content, self._cas)
        return self._cas


def _make_runtime(
    declared: Declared, copy: StoreOverlay, log: RecordingPublisher, clock: Clock, keys: Keys | None
) -> ServiceRuntime:
    async def unreachable(seconds: float, position: Position) -> NoReturn:
        raise SagaError("the store cannot be read, or the rehearsal waits for something: it stops here")

    ports = Ports(
        store=copy,
        publisher=log,
        clock=clock,
        outage_watch=OutageWatch(declared.name, clock, lambda moment: None),
        assignment=StaticAssignment(unreachable),
        batch=Batcher().submit,
        overflow_cache=OverflowCache(bytes_max=0),
        call_external=_stop,
        keys=keys,
    )
    resources = {resource.gives: make_stand_in(resource.gives) for resource in declared.resources}
    return make_service_runtime(_with_one_attempt(prepare(declared)), resources, ports)


def _with_one_attempt(prepared: PreparedService) -> PreparedService:
    """Return the service with a single attempt for each handler. So a rehearsal reports a failure at once."""
    once = Retry(attempts_max=1, in_place_s=0)
    handlers = {name: replace(handler, retry=once) for name, handler in prepared.handlers.items()}
    return replace(prepared, handlers=handlers)


def make_stand_in(gives: type) -> object:
    """Return a replacement for a resource of this type. Its methods can be passed to `saga.step`. Any other use of it
    ends the rehearsal."""

    def missing(self: object, name: str) -> NoReturn:
        raise RehearsalStopped(f"{gives.__name__}.{name} is used outside of a step")

    # a finalizer of the class would look for attributes that the stand-in does not have
    ours: dict[str, Any] = {"__getattr__": missing, "__del__": lambda self: None, "__slots__": ()}
    try:
        made: Any = type(gives.__name__, (gives,), ours)
        made.__abstractmethods__ = frozenset()
        return object.__new__(made)
    except TypeError:  # for example a class written in C, which can only be created by its own constructor
        names = [name for name in dir(gives) if not name.startswith("__") and callable(getattr(gives, name, None))]
        methods = {name: _make_method(gives, name) for name in names}
        return object.__new__(type(gives.__name__, (), {**ours, **methods}))


def _make_method(gives: type, name: str) -> Callable[..., Awaitable[None]]:
    """Return a method with the given name, which can be passed to `saga.step`. If it is called outside a step, the
    rehearsal ends."""

    async def method(self: object, *args: object, **kwargs: object) -> None:
        raise RehearsalStopped(f"{gives.__name__}.{name} is used outside of a step")

    method.__name__, method.__qualname__ = name, f"{gives.__name__}.{name}"
    return method


async def _stop(step: ExternalCall) -> NoReturn:
    given = [_describe_result(value) for value in step.args] + [
        f"{n}={_describe_result(v)}" for n, v in step.kwargs.items()
    ]
    name = getattr(step.call, "__qualname__", step.record.name)
    raise RehearsalStopped(redact_text(f"{step.handler} would call {name}({', '.join(given)})", step.secrets()))


def _describe_result(value: object) -> str:
    try:
        return shorten(msgspec.json.encode(value).decode(), ARGUMENT_BYTES_MAX)
    except (TypeError, ValueError, msgspec.MsgspecError):
        return f"<{type(value).__name__}>"
