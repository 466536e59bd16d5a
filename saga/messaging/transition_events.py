"""Transitions as services tell them to whoever watches: records on the topic `saga.transitions`.

A record holds those of several sagas, as JSON, a line each: one record for each would cost a service more than all else
of telling. All of one saga are under one key, so in order. Each line says that a service has written one transition of
one saga: which message, what became of it, how long it took, and what the saga waits for there now. Ids, types, names
and times alone: no payload, and no text of an error.
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
"""Bytes of a record that is read: a longer one is none of ours."""
RECORD_BYTES = 32 << 10
"""Bytes of a record that is written, unless a single line is longer."""
KEYS = 16
"""Keys under which sagas are told. With fewer, records are fuller; with more, they spread over more partitions. Another
number would take sagas to other partitions."""
TOPIC = Topic(TRANSITIONS)
"""Topic of all services, as it is made where nobody says otherwise."""
Result = Literal["success", "failure"]
Count = Annotated[int, Meta(ge=0)]

_encoder = msgspec.json.Encoder()


class TransitionCause(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Message that a transition handled."""

    id: str
    type: str
    source: str
    topic: str | None = None
    """Place in the log, with `partition` and `offset`: of a message that came from it and was new to the saga."""
    partition: int | None = None
    offset: int | None = None


class EmittedMessage(Struct, frozen=True, kw_only=True, gc=False):
    """Event that a transition emitted."""

    id: str
    type: str


class WaitingMessage(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Message that waits here, and the types of events of which it needs one each; or a run that goes on later, and
    those with any of which it may go on sooner."""

    handler: str
    types: tuple[str, ...] = ()
    until: str | None = None
    """Time at which the run goes on, as it asked for by `Later`; `None`: it is no such run, or a dead letter blocks
    it."""


class TransitionEvent(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field="v", tag=1):
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
    `discarded`, `resolved` or `released`; a later release may say others."""
    error: str | None = None
    """Class of the exception with which an attempt failed last."""
    blame: str | None = None
    """Who can mend that failure: `code`, who writes the service; `data`, `outside`, `person`; a later release may say
    others."""
    message: TransitionCause
    attempt: Count = 1
    worker: str = ""
    emitted: tuple[EmittedMessage, ...] = ()
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
    awaits: tuple[WaitingMessage, ...] = ()
    parked_until: str | None = None
    """Time of the next attempt of what blocks the saga here; the end of the year 9999 for what a pause, a limit or an
    open breaker holds up: it is looked at each minute, and nothing is told of it."""
    due: str | None = None
    """Time of the nearest deadline; the end of the year 9999 likewise."""
    result: Result | None = None
    """Outcome of the saga, if this transition decided it."""
    hash: str
    """SHA-256 of the transition, as the service has it."""
    previous: str
    """`hash` of the transition before; of the first one text that names service and saga."""
    anew: str | None = None
    """Time at which `saga sagas rebuild` made the history anew, of its first transition: what was told of it before
    counts no
    more. Only the command says it, and no progress holds it: a forged document cannot excuse itself with it."""


_decoder = msgspec.json.Decoder(TransitionEvent)


class TransitionLine(NamedTuple):
    """Transition as it stands in a record."""

    key: bytes
    text: bytes


def make_line(told: TransitionEvent) -> TransitionLine:
    """Line of a transition.

    >>> line_of(Told(service="payment", saga="order-17", number=0, time="2026-11-21T14:06:40.123Z", handler="reserve",
    ...     outcome="handled", message=Cause(id="1", type="OrderPlaced", source="order"), hash="ab", previous="")).key
    b'4'
    """
    return TransitionLine(_key_of(told.saga), _encoder.encode(told))


def transitions_to_records(lines: Iterable[TransitionLine]) -> list[Outgoing]:
    """Records of these transitions, in their order for each key."""
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
    """Transitions in a record. Raises `BadInput`: anybody may write to the topic."""
    value = record.value
    if value is None:
        raise BadInput("it is no transition: it has no value")
    if len(value) > VALUE_BYTES_MAX:
        raise BadInput(f"it is no transition: it has {len(value)} bytes, and may have {VALUE_BYTES_MAX}")
    return [_parse_line(line, record.key) for line in value.split(b"\n")]


def _parse_line(line: bytes, key: bytes | None) -> TransitionEvent:
    try:
        told = _decoder.decode(line)
        its_key = _key_of(told.saga)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as why:
        raise BadInput(f"it is no transition that this version reads: {why}") from why
    if key != its_key:
        raise BadInput(f"it is no transition: its key is not that of its saga, {its_key.decode()}")
    _check("time", told.time)
    _check("parked_until", told.parked_until)
    _check("due", told.due)
    _check("anew", told.anew)
    for each in told.awaits:
        _check("until", each.until)
    return told


def _check(name: str, time: str | None) -> None:
    try:
        if time is not None:
            from_iso(time)
    except (ValueError, OverflowError) as why:
        raise BadInput(f"it is no transition: its {name} is no time: {why}") from why
