"""What one running service works with: its declarations made ready for the runtime, and its ports."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import msgspec

from saga.broker.port import value_bytes_max
from saga.clock import Clock
from saga.contracts import codec
from saga.contracts.library import Contract, Library, binding_of, contract_of
from saga.declarations.values import Declared, DocumentKind, Reaction
from saga.errors import BadInput, Permanent, SagaError
from saga.messages import Event, Message, Outgoing, Position, name_of
from saga.observe.moments import Report
from saga.progress import spill
from saga.progress.document import Call
from saga.progress.roles import Role, Roles, Undo
from saga.progress.spill import Bounds
from saga.runtime.pages import KnownPages
from saga.store.port import Store

T = TypeVar("T")
Item = TypeVar("Item")


class Ports(Protocol):
    """The outside, as a turn sees it. Whatever a turn awaits is one of these."""

    @property
    def store(self) -> Store: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def report(self) -> Report: ...
    @property
    def pages(self) -> KnownPages: ...

    @property
    def record_bytes_max(self) -> int:
        """Bytes that the log takes as one record: see `Broker.record_bytes_max`."""

    @property
    def outages(self) -> int:
        """How often `unavailable` was told. What runs out of time meanwhile has not failed."""

    def publish(self, messages: Sequence[Outgoing]) -> Coroutine[object, object, None]:
        """Return when all is durable. Raises `BrokerUnavailable`."""

    def outside(
        self,
        saga: str,
        handler: str,
        asked: Call,
        call: Callable[..., Awaitable[Any]],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> Awaitable[Any]:
        """What `call` gives: the call of a step, which this handler of this saga makes now."""

    def is_committed(self, position: Position) -> bool:
        """Whether the position lies below the committed one of a partition that this worker owns."""

    async def pause(self, seconds: float, position: Position) -> None:
        """Wait between attempts. Raises `Draining` at once when the worker stops or is to lose the partition."""

    def check_running(self, position: Position) -> None:
        """Raises `Draining` when nothing new of this partition may begin."""

    def unavailable(self, operation: str, why: SagaError) -> None:
        """Told each time that store or broker could not be reached; people are told once a minute."""

    def recovered(self, why: SagaError) -> None:
        """Told when what raised `why` has answered again."""

    def took(self, seconds: float, now_s: float) -> None:
        """Told how long the store took for a write, or the log for what was published."""

    def answer_lost(self) -> None:
        """Told of each write whose answer was lost."""

    def is_news(self, id_: str) -> bool:
        """Whether people have not been told of this dead letter by this process; asking counts as telling."""

    async def together(self, what: str, item: Item, act: Callable[[Sequence[Item]], Awaitable[Sequence[T]]]) -> T:
        """What `act` gives for `item`. Items of one `what` that come up while others are acted on, go together."""

    def one_run(self) -> "OneRun":
        """What one run of a handler needs of the event loop, made at its first step."""


class OneRun(Protocol):
    """Steps one after another, writes that a timeout cannot abandon."""

    @property
    def gate(self) -> AbstractAsyncContextManager[object]:
        """A lock: steps of one handler never overlap."""

    async def write(self, work: Coroutine[object, object, T]) -> T:
        """Await a write; it goes on to its end when the awaiting handler is cancelled."""

    async def settled(self) -> None:
        """Return when no write is under way."""


@dataclass(frozen=True, slots=True)
class Participant:
    """One service, ready to handle messages."""

    name: str
    roles: Roles
    handlers: Mapping[str, Reaction]
    """By the function's name, compensations with them."""
    classes: Mapping[str, Mapping[str, type[Event]]]
    """For each handler the class it takes for each type."""
    contracts: Mapping[str, Contract]
    """By record name: all that is consumed or emitted."""
    consumed: frozenset[str]
    """The types that a handler or a compensation here names and that others may say."""
    library: Library
    state: type[Any] | None
    memory_s: int
    documents: Mapping[type, DocumentKind]
    resources: Mapping[type, object]
    """What each resource gives, by its type."""
    timeouts: Mapping[type, float]
    answers: Mapping[str, tuple[type[Exception], ...]]
    """For each handler the exceptions by which its resources answer."""
    ports: Ports
    bounds: Bounds = spill.BOUNDS

    def state_of(self, fields: dict[str, Any]) -> Any:
        """The state as the service's class, from the fields that were recorded."""
        return None if self.state is None else msgspec.convert(fields, self.state, strict=False)

    def decode(self, handler: str, message: Message) -> Event:
        """The message as the class that `handler` takes. Raises `BadInput`."""
        event = codec.decode(message.value, self.classes[handler][message.type], self.library)
        contract = self.contracts[message.type]
        said = str(getattr(event, contract.key))
        if said != message.saga:
            raise BadInput(f"its {contract.key} is {said!r}, its key {message.saga!r}: both must be the saga id")
        return event

    def encode(self, event: Event, saga: str) -> tuple[str, str, bytes]:
        """Type, schema and bytes of an event to be emitted. Raises `Permanent` for one of another saga."""
        contract = self.contracts[name_of(type(event))]
        said = str(getattr(event, contract.key))
        if said != saga:
            raise Permanent(f"{contract.name} has {contract.key}={said!r}, but this is saga {saga!r}: emit its own id")
        try:
            value = codec.encode(event)
        except BadInput as why:
            raise Permanent(f"{contract.name} cannot be emitted: {why}") from why
        bytes_max = value_bytes_max(self.ports.record_bytes_max)
        if len(value) > bytes_max:  # now: once it is in the progress, nothing else of the saga can go out
            raise Permanent(
                f"{contract.name} has {len(value)} bytes, and may have {bytes_max}: emit a reference to what is large, "
                "or raise SAGA_RECORD_BYTES_MAX and what its topic takes"
            )
        return contract.name, event.__contract__, value


NOWHERE: Any = None
"""The ports of a participant that works nowhere yet."""
PREPARED_MAX = 100
_prepared: dict[int, tuple[Declared, int, Participant]] = {}
"""Declarations made ready, by identity: a simulation does it for thousands of lives of the same services."""


def participant_of(declared: Declared, resources: Mapping[type, object], ports: Ports) -> Participant:
    """A service's declarations, made ready. `resources`: what each has given, by its type."""
    by_type = {resource.gives: resource for resource in declared.resources}
    return replace(
        _participant(declared),
        resources=resources,
        timeouts={type(given): by_type[gives].timeout_s for gives, given in resources.items()},
        ports=ports,
    )


def _participant(declared: Declared) -> Participant:
    size = len(declared.reactions) + len(declared.resources) + len(declared.documents)
    known = _prepared.get(id(declared))
    if known is not None and known[0] is declared and known[1] == size:
        return known[2]
    if len(_prepared) >= PREPARED_MAX:
        _prepared.clear()
    made = _made_ready(declared)
    _prepared[id(declared)] = declared, size, made
    return made


def _made_ready(declared: Declared) -> Participant:
    """What does not depend on who runs it."""
    everything = declared.reactions
    taken = {e for h in everything for p in h.parameters for e in p.events}
    emitted = {e for h in everything for e in h.emits}
    contracts = {name_of(e): contract_of(e) for e in sorted(taken | emitted, key=name_of)}
    by_type = {resource.gives: resource for resource in declared.resources}
    return Participant(
        name=declared.name,
        roles=roles_of(declared, contracts),
        handlers={h.name: h for h in everything},
        classes={h.name: {name_of(e): e for p in h.parameters for e in p.events} for h in everything},
        contracts=contracts,
        consumed=consumed_by(declared, contracts),
        library=binding_of(next(iter(taken))).library,
        state=declared.state,
        memory_s=int(declared.memory.total_seconds()),
        documents={document.kind: document for document in declared.documents},
        resources={},
        timeouts={},
        answers={
            h.name: tuple(a for p in h.parameters if p.gives is not None for a in by_type[p.gives].answers)
            for h in everything
        },
        ports=NOWHERE,
        bounds=spill.BOUNDS,
    )


def consumed_by(declared: Declared, contracts: Mapping[str, Contract]) -> frozenset[str]:
    """The types to be read from the log: those that handlers take and the outcomes on which compensations act, less own
    ones that nobody else may say."""
    taken = {n for h in declared.handlers for p in h.parameters for n in _names(p.events)}
    undoing = {n for h in declared.compensations for p in h.parameters for n in _names(p.events)}
    taken |= {n for n in undoing if contracts[n].outcome is not None}  # the results are in the progress
    return frozenset(n for n in taken if contracts[n].owner != declared.name or contracts[n].said_outside)


def roles_of(declared: Declared, contracts: Mapping[str, Contract]) -> Roles:
    """What decisions have to know of a service's handlers."""
    undo = {}
    for compensation in declared.compensations:
        taken = frozenset(_names(p.events) for p in compensation.parameters if p.role == "event")
        failures = frozenset(n for names in taken for n in names if contracts[n].outcome == "failure")
        results = frozenset(n for names in taken for n in names) - failures
        assert compensation.undoes is not None
        undo[compensation.undoes] = Undo(name=compensation.name, outcomes=failures, results=results)
    emitted = {n for h in declared.reactions for n in _names(h.emits)}
    # What it takes and alone may say, an earlier version of it has said.
    own = {
        n
        for h in declared.handlers
        for p in h.parameters
        for n in _names(p.events)
        if contracts[n].owner == declared.name
    }
    handlers = [
        Role(
            name=handler.name,
            takes=tuple(_names(p.events) for p in handler.parameters if p.role == "event"),
            many=handler.many,
            decides=any(contracts[n].outcome for n in _names(handler.emits)),
            undo=undo.get(handler.name),
        )
        for handler in declared.handlers
    ]
    outcomes = frozenset(n for n in emitted if contracts[n].outcome)
    return Roles(declared.name, handlers, outcomes=outcomes, emitted=frozenset(emitted | own))


def _names(events: tuple[type[Event], ...]) -> frozenset[str]:
    return frozenset(map(name_of, events))
