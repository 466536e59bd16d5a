"""Ports for running decisions outside a service: documents in memory, a publisher that discards everything or keeps it
in memory, and clocks that are set."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Never, TypeVar, cast

from saga.broker.port import RECORD_BYTES_MAX
from saga.encryption.port import Keys
from saga.engine.errors import Halted
from saga.engine.outage_watch import OutageWatch
from saga.engine.ports import Ports
from saga.engine.progress_cache import OverflowCache
from saga.errors import Exists
from saga.messages import Outgoing, Position
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.store.port import Document, Store
from saga.support.clock import SystemClock, is_cancelled


class NotIsolated(Halted):
    """Raised when a run needs anything outside of itself: an external system, a business document, or a pause."""


class RecordedDocuments:
    """Store in memory for one saga. It has no business documents: reading one raises `NotIsolated`."""

    def __init__(self, document_bytes_max: int) -> None:
        self.document_bytes_max = document_bytes_max
        self.there: dict[tuple[str, str], tuple[Document, float | None]] = {}
        self.trying = False
        """True while a run is tried. `NotIsolated` then stops a run that writes before its end, because only a run that
        makes a call does so."""

    async def get(self, collection: str, key: str) -> Document | None:
        if collection not in (PROGRESS, ARCHIVES):
            raise NotIsolated
        found = self.there.get((collection, key))
        return None if found is None else found[0]

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        if (collection, key) in self.there:
            raise Exists(key)
        return self._put(collection, key, content, 1, expiry_s)

    async def replace(
        self, collection: str, key: str, content: bytes, *, cas: int, expiry_s: float | None = None, **_: object
    ) -> int:
        return self._put(collection, key, content, cas + 1, expiry_s)

    async def remove(self, collection: str, key: str, *, cas: int) -> None:
        self.there.pop((collection, key), None)

    def _put(self, collection: str, key: str, content: bytes, cas: int, expiry_s: float | None) -> int:
        if self.trying:
            raise NotIsolated
        self.there[collection, key] = Document(content, cas), expiry_s
        return cas


class RecordedClock(SystemClock):
    """Clock that shows the time at which a message was handled."""

    at_ms = 0

    def now_ms(self) -> int:
        return self.at_ms


@dataclass(frozen=True, slots=True)
class DiscardingPublisher:
    """Publisher that discards everything: the events of a rebuild are in the log already, or are published later."""

    record_bytes_max: int

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        return None


class IsolatedAssignment:
    """Assignment that is never revoked. A pause on it raises `NotIsolated`."""

    def is_committed(self, position: Position, /) -> bool:
        return False

    def is_of_current_log(self, position: Position, /) -> bool:
        return False

    def check_running(self, position: Position, /) -> None:
        return None

    async def handled_ms(self, saga: str, due_ms: int, /) -> int:
        return due_ms

    def is_at_home(self, saga: str, position: Position, /) -> bool:
        return True

    def is_abandoned(self) -> bool:
        return is_cancelled()

    def forget_cancellations(self) -> None:
        return None

    async def pause(self, seconds: float, position: Position, /) -> Never:
        raise NotIsolated


async def asked(*what: object) -> Any:
    """Raise `NotIsolated`, whatever is called."""
    raise NotIsolated


def make_isolated_ports(
    service: str, documents: RecordedDocuments, clock: RecordedClock, record_bytes_max: int, keys: Keys | None = None
) -> Ports:
    """Make ports for a rebuild: every call outside of the run raises `NotIsolated`."""
    return Ports(
        store=cast(Store, documents),  # the part of a store that processing uses
        publisher=DiscardingPublisher(record_bytes_max),
        clock=clock,
        outage_watch=OutageWatch(service, clock, lambda moment: None),
        assignment=IsolatedAssignment(),
        batch=asked,
        overflow_cache=OverflowCache(bytes_max=0),
        worker="rebuild",
        call_external=asked,
        keys=keys,
    )


# -------------------------------------------------------------------- single messages, no worker


T = TypeVar("T")


@dataclass(slots=True)
class FixedClock:
    """Clock on which no time passes, so that records do not depend on when they are made."""

    now: int = 0

    def now_ms(self) -> int:
        return self.now

    def monotonic_s(self) -> float:
        return 0.0

    def chance(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        return None

    async def within(self, seconds: float, what: Awaitable[T]) -> T:
        return await what


async def at_once(seconds: float, position: Position) -> None:
    """Return at once, without a pause."""


@dataclass(frozen=True, slots=True)
class StaticAssignment:
    """Assignment that is never revoked. See `saga.engine.ports.Assignment` for the guarantees."""

    pause: Callable[[float, Position], Awaitable[None]] = at_once
    is_committed: Callable[[Position], bool] = lambda position: False
    is_of_current_log: Callable[[Position], bool] = lambda position: True

    handled: Callable[[int], int] = lambda due_ms: due_ms
    """Function that returns the time up to which the log has been handled, for the due time of a deadline."""

    def check_running(self, position: Position) -> None:
        return None

    def is_abandoned(self) -> bool:
        return is_cancelled()

    def forget_cancellations(self) -> None:
        return None

    async def handled_ms(self, saga: str, due_ms: int) -> int:
        return self.handled(due_ms)

    def is_at_home(self, saga: str, position: Position) -> bool:
        return True


@dataclass
class RecordingPublisher:
    """Publisher that keeps the published records, in order. See `saga.engine.ports.EventPublisher` for the
    guarantees."""

    messages: list[Outgoing] = field(default_factory=list)
    record_bytes_max: int = RECORD_BYTES_MAX

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        self.messages.extend(messages)
