"""Transition events: reports of each transition of a service on the topic `saga.transitions`, for monitors and the
history verifier.

One record holds transitions of several sagas: one JSON object per line. A record for each transition would cost more
than everything else about reporting. All transitions of a saga have the same record key, so they stay in order.

Each line says that a service has written one transition of one saga: for which message, with which outcome, how long it
took, and what the saga waits for in this service. It contains only ids, types, names and times: no payload and no error
text.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple
from zlib import crc32

import msgspec
from msgspec import Meta, Struct

from saga.errors import BadInput
from saga.messages import Outgoing, Record, Topic
from saga.messaging.names import TRANSITIONS
from saga.support.clock import from_iso

VALUE_BYTES_MAX = 1 << 20
"""Maximum size in bytes of a record that is read. The toolkit writes no larger ones."""
RECORD_BYTES = 32 << 10
"""Maximum size in bytes of a record that is written. A record is larger only if a single line is."""
KEYS = 16
"""Number of record keys among which the sagas are divided. With fewer keys the records are fuller; with more keys they
spread over more partitions. Changing this number would move sagas to other partitions."""
TOPIC = Topic(TRANSITIONS)
"""Topic for the transition events of all services, with default settings."""
Result = Literal["success", "failure"]
Count = Annotated[int, Meta(ge=0)]

_encoder = msgspec.json.Encoder()


class TransitionCause(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The message that a transition handled."""

    id: str
    type: str
    source: str
    topic: str | None = None
    """Topic of the message, which with `partition` and `offset` is its position in the log. `None` if the message did
    not come from the log, or was not new to the saga."""
    partition: int | None = None
    offset: int | None = None


class EmittedMessage(Struct, frozen=True, kw_only=True, gc=False):
    """An event that a transition emitted."""

    id: str
    type: str


class WaitingMessage(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a handler waits for in this saga.

    For a pending message, `types` are the event types that the handler needs, one event of each. For a suspended run,
    any event of one of `types` lets the run continue sooner than `until`.
    """

    handler: str
    types: tuple[str, ...] = ()
    until: str | None = None
    """Time at which a suspended run continues, as requested with `Later`. `None` for a pending message, and for a
    suspended run that a dead letter blocks."""


class TransitionEvent(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field="v", tag=1):
    """One transition of one saga in one service.

    It is published at least once. `number` and `hash` identify duplicates, and `previous` is the `hash` of the
    transition before. Fields about what is open, awaited or due describe the saga at the time when this event was made,
    which may be after later transitions.
    """

    service: str
    saga: str
    number: Count
    """Number of the transition in its saga and service, from 0."""
    time: str
    """Time at which the transition was written, in RFC 3339 format with milliseconds."""
    handler: str
    outcome: str
    """`handled`, `later`, `ignored`, `noted`, `waiting`, `queued`, `retrying`, `compensated`, `dead`, `replayed`,
    `discarded`, `resolved` or `released`; later releases may report others.
    """
    error: str | None = None
    """Class of the exception of the last failed attempt."""
    blame: str | None = None
    """Who can fix that failure: `code` (the authors of the service), `data`, `outside` or `person`; later releases may
    report others.
    """
    message: TransitionCause
    attempt: Count = 1
    worker: str = ""
    emitted: tuple[EmittedMessage, ...] = ()
    steps: tuple[str, ...] = ()
    """Names of the external calls that were made."""
    closed: tuple[str, ...] = ()
    """Handlers whose parked run or dead letter has ended with this transition, because they never run in the saga any
    more, or their event was withdrawn."""
    queued_ms: Count | None = None
    """Milliseconds from receiving the message to the start of its processing. `None` if a process that did not measure
    this reports the transition again."""
    handler_ms: Count | None = None
    """Milliseconds spent in the handler, and in earlier handlers of the same message; `None` as for `queued_ms`."""
    open: bool = False
    """True if the saga has unfinished work in this service."""
    kept_s: Count | None = None
    """Seconds from `time` for which the service keeps the saga if no more messages come; `None` while the saga is open.
    """
    awaits: tuple[WaitingMessage, ...] = ()
    parked_until: str | None = None
    """Time of the next attempt of the run that blocks the saga here. If a pause, a limit or an open breaker postpones
    the run, this is the end of the year 9999, because the run is then tried each minute without a report."""
    postponed_by: str | None = None
    """Class of the reason that postponed the run, such as `BreakerOpen`; `None` unless this transition parked the run
    without counting an attempt."""
    due: str | None = None
    """Time of the nearest deadline. It may be the end of the year 9999, as in `parked_until`."""
    result: Result | None = None
    """Outcome of the saga if this transition decided it, otherwise `None`."""
    hash: str
    """SHA-256 of the transition as the service stores it."""
    previous: str
    """`hash` of the transition before. For the first transition, the names of service and saga."""
    rebuilt_at: str | None = msgspec.field(default=None, name="anew")
    """Time at which `saga sagas rebuild` created the history again; `None` for other transitions. It is set on the
    first transition of the new history, and earlier reports about the saga no longer count. Only that command sets it,
    and no progress contains it, so it cannot be forged by changing a document."""


_decoder = msgspec.json.Decoder(TransitionEvent)


class TransitionLine(NamedTuple):
    """A transition as one line of a record, with the record's key."""

    key: bytes
    text: bytes


def make_line(event: TransitionEvent) -> TransitionLine:
    """Return a transition as a line.

    >>> make_line(TransitionEvent(service="payment", saga="order-17", number=0, time="2026-11-21T14:06:40.123Z",
    ...     handler="reserve", outcome="handled", hash="ab", previous="",
    ...     message=TransitionCause(id="1", type="OrderPlaced", source="order"))).key
    b'4'
    """
    return TransitionLine(_key_of(event.saga), _encoder.encode(event))


def transitions_to_records(lines: Iterable[TransitionLine]) -> list[Outgoing]:
    """Return records that contain these lines. Lines with the same key stay in order."""
    full, begun, sizes = list[Outgoing](), dict[bytes, list[bytes]](), Counter[bytes]()
    for key, text in lines:
        if key in begun and sizes[key] + len(text) > RECORD_BYTES:
            full.append(Outgoing(TRANSITIONS, key, b"\n".join(begun.pop(key)), ()))
            del sizes[key]
        begun.setdefault(key, []).append(text)
        sizes[key] += len(text) + 1
    return full + [Outgoing(TRANSITIONS, key, b"\n".join(texts), ()) for key, texts in begun.items()]


def _key_of(saga: str) -> bytes:
    return b"%d" % (crc32(saga.encode()) % KEYS)


def parse_transitions(record: Record) -> list[TransitionEvent]:
    """Return the transitions in a record. Raises `BadInput` if one of them is invalid, because anyone may write to the
    topic."""
    value = record.value
    if value is None:
        raise BadInput("it is no transition: it has no value")
    if len(value) > VALUE_BYTES_MAX:
        raise BadInput(f"it is no transition: it has {len(value)} bytes, and may have {VALUE_BYTES_MAX}")
    return [_parse_line(line, record.key) for line in value.split(b"\n")]


def _parse_line(line: bytes, key: bytes | None) -> TransitionEvent:
    try:
        event = _decoder.decode(line)
        its_key = _key_of(event.saga)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as why:
        raise BadInput(f"it is no transition that this version reads: {why}") from why
    if key != its_key:
        raise BadInput(f"it is no transition: its key is not that of its saga, {its_key.decode()}")
    _check("time", event.time)
    _check("parked_until", event.parked_until)
    _check("due", event.due)
    _check("anew", event.rebuilt_at)
    for each in event.awaits:
        _check("until", each.until)
    return event


def _check(name: str, time: str | None) -> None:
    try:
        if time is not None:
            from_iso(time)
    except (ValueError, OverflowError) as why:
        raise BadInput(f"it is no transition: its {name} is no time: {why}") from why
