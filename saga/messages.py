"""The basic values of messaging: events (as services see them), messages (as the engine sees them), records (as the
broker sees them), with partitions, positions and topics.
"""

from functools import lru_cache
from typing import ClassVar, NamedTuple, TypeAlias

from msgspec import Struct


class Event:
    """Base class of the event classes that `saga contracts generate` writes: something that has happened, immutable.

    Promises: a frozen, keyword-only dataclass with typed fields, equal by value, without anything of the transport. A
    union of events in a signature means any of them. Do not subclass it by hand: a class without a contract causes a
    `DeclarationError` where it is used.
    """

    __slots__ = ()

    __contract__: ClassVar[str]
    """Path of its schema below `contracts/`, without `.avsc`: `"payments/PaymentReserved.v1"`."""


def name_of(event: type[Event]) -> str:
    """Return the contract's record name: `PaymentReserved`, for a class with `__contract__`
    `payments/PaymentReserved.v1`.
    """
    return _name_in(event.__contract__)


@lru_cache(maxsize=1024)  # there are not many, and each event is asked for its name
def _name_in(contract: str) -> str:
    return contract.rpartition("/")[2].rpartition(".v")[0]


Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Headers as they are in the log: a name may occur twice, and a value may be null."""


def unquote_header(header: bytes) -> bytes:
    """Return the value of a header without the quotes that Spring, and senders that write headers as JSON, put around
    it.

    >>> unquote_header(b'"application/json"'), unquote_header(b"application/json")
    (b'application/json', b'application/json')
    """
    return header[1:-1] if len(header) > 1 and header[:1] == header[-1:] == b'"' else header


def texts_of(headers: Headers) -> dict[str, str]:
    """Return headers as readable text: bytes that are not UTF-8 are escaped, null becomes empty, and of several headers
    with one name the last one counts.
    """
    return {name: (value or b"").decode("utf-8", "backslashreplace") for name, value in headers}


# `gc=False` here and in `saga.progress`: these values cannot form a cycle, so the garbage collector need not track
# them. When it did, it took a third of the engine's time.
class Message(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An event with its envelope: what decisions are based on, and what the progress stores of it. Immutable."""

    id: str
    """Id by which the toolkit identifies the message: see `saga.messaging.message_ids`."""
    type: str
    """Contract's record name, without namespace: `PaymentReserved`."""
    schema: str
    """Path of its schema, `payments/PaymentReserved.v1`, as in the class's `__contract__`."""
    saga: str
    """Saga id: the value of the contract's key field."""
    source: str
    """Service that emitted it, `client` for a `Client`, any text for other senders."""
    time: str
    """Time at which it was recorded, RFC 3339 in milliseconds, UTC."""
    value: bytes
    """Event as Avro, as received."""
    started: str | None = None
    """Time at which its saga began; `None` if the sender cannot know it (a `Client`, for a contract that does not start
    sagas).
    """
    trace: str | None = None
    """Trace context from the header `traceparent`; it is passed on."""
    principal: str | None = None
    """Principal that began the saga, as given with the start event; `None` if none was given."""
    foreign_time: bool = False
    """True if the time comes from a sender that is neither a service nor a `Client`, and the contract does not trust
    it. A deadline that the event opens then counts from when the event is first seen here. Set only on events that open
    one.
    """
    foreign: Headers = ()
    """Other headers, as received; a dead letter passes them on."""


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
    """Id of the topic's log, to which the offset belongs: a topic that is deleted and created again has another one.
    Empty if the broker does not report it.
    """

    @property
    def place(self) -> str:
        """Return topic, partition and offset as text."""
        return f"{self.topic}/{self.partition}/{self.offset}"


class StalledPartition(NamedTuple):
    """A partition, or a topic, that cannot be read for now; all others continue."""

    topic: str
    partition: int | None
    """Number of the partition; `None` if the whole topic is gone or hidden, or may not be read."""
    offset: int | None
    """Offset of the first record that cannot be read, if the problem is with records."""
    reason: str
    """Reason for operators, with what to do."""


class Writer(NamedTuple):
    """The schema with which a value was written, as a schema registry has it under the id in the value."""

    id: int
    schema: str
    """Avro schema as JSON text; empty if the registry has none with that id."""
    registry: str
    """Address of the registry, to show to operators."""
    lacks: str = ""
    """Reason why there is no schema, if it is not that the registry has none with that id."""


class Record(NamedTuple):
    """A record in the log, as the broker delivers it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    time_ms: int
    """Time at which the broker appended it."""
    writer: Writer | None = None
    """Schema from a registry, for a value in its wire format; `None` if the value is in another format or was not
    looked up.
    """
    log_id: str = ""
    """Id of the topic's log, as in `Position`."""


class Outgoing(NamedTuple):
    """A record to append to the log; its key chooses the partition."""

    topic: str
    key: bytes
    value: bytes | None
    headers: Headers
    subject: str = ""
    """Subject of its schema in a schema registry, if the value is to be published in the registry's wire format."""


class Topic(NamedTuple):
    """A topic as the contracts define it."""

    name: str
    partitions: int = 12
    retention_days: float | None = 7
    """Days for which records are kept; `None` means for ever."""
    wire: str = "single-object"
    """Format of published values: `single-object`, or `registry`, the wire format of a schema registry."""
    id_header: str | None = None
    """Header that holds the message id, for senders that write no `ce_id`; `None` if there is no such header."""
    id_field: str | None = None
    """Event field that holds the message id, for the same senders; `None` if there is no such field."""
