"""Basic values of messaging: events (as services see them), messages (as the engine sees them) and records (as the
broker sees them), with partitions, positions and topics."""

from functools import lru_cache
from typing import ClassVar, NamedTuple, TypeAlias

from msgspec import Struct


class Event:
    """Base class of the event classes that `saga contracts generate` writes, or that `@event` declares. An event is
    something that has happened, and is immutable.

    Guarantees:
    - An event class is a frozen, keyword-only dataclass with typed fields.
    - Events are compared by value and contain nothing of the transport.

    A union of events in a signature means any of them. A subclass without `@event` has no contract, and causes a
    `DeclarationError` where it is used.
    """

    __slots__ = ()

    __contract__: ClassVar[str]
    """Path of the class's schema below `contracts/`, without `.avsc`: `"payments/PaymentReserved.v1"`."""


def name_of(event: type[Event]) -> str:
    """Return the record name in an event class's contract: `PaymentReserved`, if `__contract__` is
    `payments/PaymentReserved.v1`."""
    return _name_in(event.__contract__)


@lru_cache(maxsize=1024)  # there are not many event classes, and the name is needed for each event
def _name_in(contract: str) -> str:
    return contract.rpartition("/")[2].rpartition(".v")[0]


Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Headers as they stand in the log: a name may occur twice, and a value may be null."""


def unquote_header(header: bytes) -> bytes:
    """Return the value of a header without surrounding quotes, which Spring and senders that write headers as JSON add.

    >>> unquote_header(b'"application/json"'), unquote_header(b"application/json")
    (b'application/json', b'application/json')
    """
    return header[1:-1] if len(header) > 1 and header[:1] == header[-1:] == b'"' else header


def texts_of(headers: Headers) -> dict[str, str]:
    """Return headers as readable text.

    Bytes that are not UTF-8 are escaped, and null becomes empty. If several headers have the same name, the last one
    counts.
    """
    return {name: (value or b"").decode("utf-8", "backslashreplace") for name, value in headers}


# `gc=False` here and in `saga.progress`: these values cannot form a cycle, so the garbage collector need not track
# them. Tracking them took a third of the engine's time.
class Message(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An event with its envelope. Decisions are based on it, and the progress stores it. Immutable."""

    id: str
    """Id by which the toolkit identifies the message: see `saga.messaging.message_ids`."""
    type: str
    """Record name in the contract, without namespace: `PaymentReserved`."""
    schema: str
    """Path of the event's schema, `payments/PaymentReserved.v1`, as in the class's `__contract__`."""
    saga: str
    """Saga id: the value of the contract's key field."""
    source: str
    """Service that emitted the event; `client` for a `Client`, any text for other senders."""
    time: str
    """Time at which the event was recorded, RFC 3339 in milliseconds, UTC."""
    value: bytes
    """The event as encoded Avro, as received."""
    started: str | None = None
    """Time at which the message's saga began; `None` if the sender cannot know it (a `Client`, for a contract that does
    not start sagas)."""
    trace: str | None = None
    """Trace context from the header `traceparent`; it is passed on."""
    principal: str | None = None
    """Principal that began the saga, as given with the start event; `None` if none was given."""
    foreign_time: bool = False
    """True if the time comes from a sender that is neither a service nor a `Client`, and the contract does not trust
    it. A deadline that the event opens then counts from when the event is first seen here. The flag is set only on
    events that open a deadline."""
    foreign: Headers = ()
    """Other headers, as received. A dead letter repeats them."""


class Partition(NamedTuple):
    """One partition of a topic."""

    topic: str
    number: int


class Position(NamedTuple):
    """The position of a record in the log."""

    topic: str
    partition: int
    offset: int
    log_id: str = ""
    """Id of the topic's log, to which the offset belongs. A topic that is deleted and created again has another log id.
    Empty if the broker does not report ids."""

    @property
    def place(self) -> str:
        """Return topic, partition and offset as text."""
        return f"{self.topic}/{self.partition}/{self.offset}"


class StalledPartition(NamedTuple):
    """A partition, or a whole topic, that cannot be read for now. All others continue."""

    topic: str
    partition: int | None
    """Number of the partition; `None` if the whole topic is missing or hidden, or may not be read."""
    offset: int | None
    """Offset of the first record that cannot be read; `None` if the problem is not a record."""
    reason: str
    """Reason for operators, with what to do about it."""


class Writer(NamedTuple):
    """The schema with which a value was written, as a schema registry returned it for the id in the value."""

    id: int
    schema: str
    """Avro schema as JSON text; empty if the registry has no schema with that id."""
    registry: str
    """Address of the registry, to show to operators."""
    lacks: str = ""
    """Why the registry returned no schema; empty if it returned one, or if it simply has none with that id."""


class Record(NamedTuple):
    """A record in the log, as the broker delivers it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    time_ms: int
    """Time at which the broker appended the record, in milliseconds since 1970."""
    writer: Writer | None = None
    """Schema from a registry, if the value is in the registry's wire format; `None` if the value is in another format
    or the schema was not looked up."""
    log_id: str = ""
    """Id of the topic's log, as in `Position`."""


class Outgoing(NamedTuple):
    """A record to append to the log; its key chooses the partition."""

    topic: str
    key: bytes
    value: bytes | None
    headers: Headers
    subject: str = ""
    """Subject of the value's schema in a schema registry, if the value is to be published in the registry's wire
    format."""


class Topic(NamedTuple):
    """A topic as the contracts define it."""

    name: str
    partitions: int = 12
    retention_days: float | None = 7
    """Days for which records are kept; `None` means for ever."""
    wire: str = "single-object"
    """Format of published values: `single-object`, or `registry`, the wire format of a schema registry."""
    id_header: str | None = None
    """Header that holds the message id if a sender writes no `ce_id`; `None` if there is no such header."""
    id_field: str | None = None
    """Event field that holds the message id if a sender writes no `ce_id`; `None` if there is no such field."""
