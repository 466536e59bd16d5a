"""Transitions as services tell them to whoever watches: records on the topic `saga.transitions`, by saga.

Each says that a service has written one transition of one saga: which message, what became of it, how long it took, and
what the saga waits for there now. Ids, types, names and times alone: no payload, and no text of an error.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from saga.clock import from_iso
from saga.errors import BadInput
from saga.messages import Outgoing, Record, Topic
from saga.names import TRANSITIONS

VALUE_BYTES_MAX = 1 << 20
"""Bytes of a record that is read: a longer one is none of ours."""
TOPIC = Topic(TRANSITIONS)
"""Topic of all services, as it is made where nobody says otherwise."""
Result = Literal["success", "failure"]
Count = Annotated[int, Meta(ge=0)]


class Cause(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Message that a transition handled."""

    id: str
    type: str
    source: str
    topic: str | None = None
    """Place in the log, with `partition` and `offset`: of a message that came from it and was new to the saga."""
    partition: int | None = None
    offset: int | None = None


class Said(Struct, frozen=True, kw_only=True, gc=False):
    """Event that a transition emitted."""

    id: str
    type: str


class Awaited(Struct, frozen=True, kw_only=True, gc=False):
    """Message that waits here, and the types of events of which it needs one each."""

    handler: str
    types: tuple[str, ...]


class Told(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field="v", tag=1):
    """One transition of one saga in one service.

    Told at least once: `number` and `hash` say which are the same, `previous` is the `hash` of the one before. What is
    open, awaited and due is as the service knows it when it tells, which is at this transition or later.
    """

    service: str
    saga: str
    number: Count
    """Counted from 0, for each saga in each service."""
    time: str
    """Time at which it was written, RFC 3339 in milliseconds."""
    handler: str
    outcome: str
    """`handled`, `later`, `ignored`, `noted`, `waiting`, `queued`, `retrying`, `compensated`, `dead`, `replayed`,
    `discarded` or `resolved`; a later release may say others."""
    error: str | None = None
    """Class of the exception with which an attempt failed last."""
    message: Cause
    attempt: Count = 1
    worker: str = ""
    emitted: tuple[Said, ...] = ()
    steps: tuple[str, ...] = ()
    """Names of the calls to the outside that were made."""
    queued_ms: Count | None = None
    """Milliseconds between taking the message and its turn; `None` if it was told again, by one who did not see."""
    handler_ms: Count | None = None
    """Milliseconds in the handler, and in others of its message before; `None` likewise."""
    open: bool = False
    """True if something of the saga is still to happen here."""
    kept_s: Count | None = None
    """Seconds for which the service keeps the saga from `time` on, if nothing more comes; `None` while it is open."""
    awaits: tuple[Awaited, ...] = ()
    parked_until: str | None = None
    """Time of the next attempt of what blocks the saga here."""
    due: str | None = None
    """Time of the nearest deadline."""
    result: Result | None = None
    """Outcome of the saga, if this transition decided it."""
    hash: str
    """SHA-256 of the transition, as the service has it."""
    previous: str
    """`hash` of the transition before; of the first one text that names service and saga."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Told)


def to_record(told: Told) -> Outgoing:
    """Record of a transition.

    >>> to_record(Told(service="payment", saga="order-17", number=0, time="2026-11-21T14:06:40.123Z", handler="reserve",
    ...     outcome="handled", message=Cause(id="1", type="OrderPlaced", source="order"), hash="ab", previous="")).key
    b'order-17'
    """
    return Outgoing(TRANSITIONS, told.saga.encode(), _encoder.encode(told), ())


def from_record(record: Record) -> Told:
    """Transition in a record. Raises `BadInput`: anybody may write to the topic."""
    value = record.value
    if value is None:
        raise BadInput("it is no transition: it has no value")
    if len(value) > VALUE_BYTES_MAX:
        raise BadInput(f"it is no transition: it has {len(value)} bytes, and may have {VALUE_BYTES_MAX}")
    try:
        told = _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise BadInput(f"it is no transition that this version reads: {why}") from why
    if record.key != told.saga.encode():
        raise BadInput("it is no transition: its key is not its saga")
    for name in ("time", "parked_until", "due"):
        time: str | None = getattr(told, name)
        try:
            if time is not None:
                from_iso(time)
        except (ValueError, OverflowError) as why:
            raise BadInput(f"it is no transition: its {name} is no time: {why}") from why
    return told
