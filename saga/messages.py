"""Values that travel: events as services see them, messages as the runtime sees them, records as the broker sees
them."""

from functools import lru_cache
from typing import ClassVar, NamedTuple, TypeAlias

from msgspec import Struct


class Event:
    """Something that happened, said once, immutable: the base of the classes that `saga contracts generate` writes.

    Promises: a frozen, keyword-only dataclass with typed fields; equal by value; nothing of the transport is in it.
    A union of events in a signature means any of them. Do not subclass by hand: a class without contract is a
    `DeclarationError` where it is used.
    """

    __slots__ = ()

    __contract__: ClassVar[str]
    """Path of its schema below `contracts/`, without `.avsc`: `"payments/PaymentReserved.v1"`."""


def name_of(event: type[Event]) -> str:
    """Contract's record name: `PaymentReserved`, for a class with `__contract__` `payments/PaymentReserved.v1`."""
    return _name_in(event.__contract__)


@lru_cache(maxsize=1024)  # there are not many, and each event is asked for its name
def _name_in(contract: str) -> str:
    return contract.rpartition("/")[2].rpartition(".v")[0]


Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Headers as the log has them: a name may come twice, and a value may be null."""


def unquote_header(header: bytes) -> bytes:
    """Value of a header without the quotes in which Spring, and whoever writes headers as JSON, puts it.

    >>> unquote_header(b'"application/json"'), unquote_header(b"application/json")
    (b'application/json', b'application/json')
    """
    return header[1:-1] if len(header) > 1 and header[:1] == header[-1:] == b'"' else header


def texts_of(headers: Headers) -> dict[str, str]:
    """Headers for people: what is no text is escaped, a null is empty, and the last of a name counts."""
    return {name: (value or b"").decode("utf-8", "backslashreplace") for name, value in headers}


# `gc=False` here and in `saga.progress`: values that cannot form a cycle need not be looked at by the collector, which
# took a third of the runtime's time when it did.
class Message(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An event on its way, with its envelope: what decisions read and what a progress keeps of it. Immutable."""

    id: str
    """Name of the message in the toolkit: see `saga.messaging.message_ids`."""
    type: str
    """Contract's record name, without namespace: `PaymentReserved`."""
    schema: str
    """Path of its schema, `payments/PaymentReserved.v1`, as in the class's `__contract__`."""
    saga: str
    """Saga id: the value of the contract's key field."""
    source: str
    """Service that emitted it; `client` for a Client; anything for others."""
    time: str
    """Time at which it was recorded, RFC 3339 in milliseconds, UTC."""
    value: bytes
    """Event as Avro, as it came."""
    started: str | None = None
    """Time at which its saga began; `None` where the sender cannot know (a Client, for a contract that does not start
    sagas)."""
    trace: str | None = None
    """Trace context from the header `traceparent`, handed on."""
    principal: str | None = None
    """Principal that began its saga, as said with the start event; `None`: nobody said, and nothing is made up."""
    foreign_time: bool = False
    """True if its time is that of a sender which is neither a service nor a `Client`, and its contract does not trust
    it: a deadline that it opens counts from when it is first seen here. Said of events that open one."""
    foreign: Headers = ()
    """Headers that mean nothing here, as they came: a dead letter gives them back."""


class Partition(NamedTuple):
    """One ordered part of a topic."""

    topic: str
    number: int


class Position(NamedTuple):
    """Position of a record in the log."""

    topic: str
    partition: int
    offset: int
    log_id: str = ""
    """Id of the topic's log, in which the offset counts: a topic that is deleted and created again has another one.
    Empty where the broker does not say."""

    @property
    def place(self) -> str:
        """Topic, partition and offset, for people."""
        return f"{self.topic}/{self.partition}/{self.offset}"


class StalledPartition(NamedTuple):
    """Part of the log that cannot be read for now; everything else goes on."""

    topic: str
    partition: int | None
    """Number of the partition; `None`: all of the topic: it is gone, hidden, or we may not read it."""
    offset: int | None
    """Offset of the first record that cannot be read, if the trouble is one of records."""
    reason: str
    """Reason for people, with what to do."""


class Writer(NamedTuple):
    """Schema with which a value was written, as a schema registry knows it by the id in the value."""

    id: int
    schema: str
    """Avro schema, as JSON text; empty: the registry has none of that id."""
    registry: str
    """Address of the registry, for people."""
    lacks: str = ""
    """Reason that there is no schema, if it is another one than that the registry has none of that id."""


class Record(NamedTuple):
    """Entry of the log, as a broker hands it out."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    time_ms: int
    """Time at which the broker appended it."""
    writer: Writer | None = None
    """Schema that a registry has for a value in its wire format; `None`: it is in none, or nobody asked."""
    log_id: str = ""
    """Id of the topic's log, as in `Position`."""


class Outgoing(NamedTuple):
    """Entry to append to the log: the key chooses the partition."""

    topic: str
    key: bytes
    value: bytes | None
    headers: Headers
    subject: str = ""
    """Subject under which a schema registry has its schema, if it is to be in the registry's wire format."""


class Topic(NamedTuple):
    """Topic of the log, as contracts want it."""

    name: str
    partitions: int = 12
    retention_days: float | None = 7
    """Days for which records are kept; `None`: for ever."""
    wire: str = "single-object"
    """Form of what is published to it: `single-object`, or `registry`, the wire format of a schema registry."""
    id_header: str | None = None
    """Header in which senders that write no `ce_id` have the id of each message; `None`: in none."""
    id_field: str | None = None
    """Field of the events in which they have it; `None`: in none."""
