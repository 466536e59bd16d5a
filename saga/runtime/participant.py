"""Service as it runs: prepared declarations with open resources and ports."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

from saga.broker.port import value_bytes_max
from saga.clock import Clock
from saga.contracts import codec
from saga.errors import BadInput, Permanent, SagaError
from saga.messages import Event, Outgoing, Position, name_of
from saga.observe.moments import Report
from saga.progress.document import Call
from saga.runtime.pages import KnownPages
from saga.runtime.prepared import Prepared
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant(Prepared):
    """A prepared service that runs: with its resources and ports."""

    resources: Mapping[type, object]
    """Each resource that is open, by the type that was declared."""
    timeouts: Mapping[type, float]
    """Seconds that one call may take, by the resource's own type: that of a fake, where one takes its place."""
    ports: Ports

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


def participant_of(prepared: Prepared, resources: Mapping[type, object], ports: Ports) -> Participant:
    """A service with what it runs on. `resources`: those that are open, by the types that were declared."""
    timeouts = {resource.gives: resource.timeout_s for resource in prepared.declared.resources}
    return Participant(
        **{field.name: getattr(prepared, field.name) for field in fields(Prepared)},
        resources=resources,
        timeouts={type(given): timeouts[gives] for gives, given in resources.items()},
        ports=ports,
    )
