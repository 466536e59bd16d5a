"""Operations that a worker requests while it processes a message, as values. Each await of a port is one operation, at
which the exploration chooses how to continue."""

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from types import coroutine
from typing import Any, NamedTuple, TypeAlias, TypeVar

from saga.broker.port import RECORD_BYTES_MAX
from saga.errors import Ambiguous, BrokerUnavailable, Conflict, Exists, SagaError
from saga.messages import Outgoing, Position
from saga.store.port import Document
from saga.support.clock import LATEST_MS

T = TypeVar("T")
Item = TypeVar("Item")


class Get(NamedTuple):
    """A read of the store."""

    collection: str
    key: str


class Put(NamedTuple):
    """An insert (`cas` 0) or a replace."""

    collection: str
    key: str
    content: bytes
    cas: int
    expires: bool
    """True if the document expires after the retention."""


class Remove(NamedTuple):
    """A removal of the document with this version."""

    collection: str
    key: str
    cas: int


class Publish(NamedTuple):
    """A publish of these records."""

    records: tuple[Outgoing, ...]


class Outside(NamedTuple):
    """A step: a call to an external system with its idempotency key and input."""

    key: str
    input: str
    what: str
    """Name of the effect: kind, handler, content and number."""


class Together(NamedTuple):
    """An update of a document, made alone or in one replace with the update of another saga in this worker."""


Operation: TypeAlias = Get | Put | Remove | Publish | Outside | Together


class Found(NamedTuple):
    """Answer to a read, with the positions that are committed at that moment, and the logs that exist."""

    document: Document | None
    committed: frozenset[Position]
    logs: frozenset[tuple[str, str]]
    """Topic and id of each log."""


class Done(NamedTuple):
    """Answer that an operation succeeded. `cas`: version after a write."""

    cas: int = 0


class Failed(NamedTuple):
    """Answer that an operation failed: `how` is `conflict`, `ambiguous` or `unavailable`, or `broken` for a step."""

    how: str


class Batched(NamedTuple):
    """Answer to `Together`: the updates that go into one replace, in order. `mine` is the requested update, `theirs`
    the update of another saga."""

    whose: tuple[str, ...]


Answer: TypeAlias = Found | Done | Failed | Batched


class Broken(Exception):
    """Raised by a step: the external system failed, or its answer was lost."""


@coroutine
def ask(operation: Operation) -> Generator[Operation, Answer, Answer]:
    """Pass an operation to the exploration, and return the answer."""
    return (yield operation)


class ExploredStore:
    """The store of an exploration, with only the methods that are used while a message is processed. Each call is an
    operation."""

    def __init__(self) -> None:
        self.committed: frozenset[Position] = frozenset()
        """Committed positions, as of the last read."""
        self.logs: frozenset[tuple[str, str]] = frozenset()
        """Existing logs, as of the last read."""
        self.handled_ms = LATEST_MS
        """Time up to which the current worker has handled the log."""
        self.document_bytes_max = 1 << 30

    async def get(self, collection: str, key: str) -> Document | None:
        answer = await ask(Get(collection, key))
        assert isinstance(answer, Found)
        self.committed, self.logs = answer.committed, answer.logs
        return answer.document

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        return _cas(await ask(Put(collection, key, content, 0, expiry_s is not None)), Exists)

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
        return _cas(await ask(Put(collection, key, content, cas, expiry_s is not None)), Conflict)

    async def remove(self, collection: str, key: str, *, cas: int) -> None:
        _cas(await ask(Remove(collection, key, cas)), Conflict)


def _cas(answer: Answer, refused: type[SagaError]) -> int:
    if isinstance(answer, Failed):
        raise {"conflict": refused, "ambiguous": Ambiguous}[answer.how](answer.how)
    assert isinstance(answer, Done)
    return answer.cas


NOW_MS = 1_800_000_000_000
AGE_MS = 18 * 86400 * 1000
"""Time that passes in one move: more than half of the retention. After two such moves, what was written before has
expired."""
AGES_OF_MEMORY = 2
TICK_MS = 1000
"""Duration of a tick: the time that passes until waiting work is due."""


LOOK = "look "
"""Beginning of the name of a call that is not a step."""


class PlainRun:
    """Run scope of explored handlers: steps run one after the other, and nothing times out."""

    @property
    def gate(self) -> AbstractAsyncContextManager[object]:
        return nullcontext()

    async def write(self, work: Coroutine[object, object, T]) -> T:
        return await work

    async def wait_for_writes(self) -> None:
        return None


class ExploredLog:
    """The publisher. Each publish is an operation of the exploration."""

    record_bytes_max = RECORD_BYTES_MAX

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        answer = await ask(Publish(tuple(messages)))
        if isinstance(answer, Failed):
            raise BrokerUnavailable(answer.how)


@dataclass
class OtherLane:
    """Another saga in the same worker, whose update may go into one replace with an update of the explored saga."""

    update: Any = None

    async def together(self, what: str, item: Item, act: Callable[[Sequence[Item]], Awaitable[Sequence[Any]]]) -> Any:
        if self.update is None:
            (made,) = await act([item])
            return made
        answer = await ask(Together())
        assert isinstance(answer, Batched)
        made_together = await act([item if whose == "mine" else self.update for whose in answer.whose])
        return made_together[answer.whose.index("mine")]


async def call_outside(key: str, given: str, what: str) -> str:
    """Call the external system. This is the function that explored handlers pass to `saga.step`."""
    answer = await ask(Outside(key, given, what))
    if isinstance(answer, Failed):
        raise Broken(answer.how)
    return "ok"
