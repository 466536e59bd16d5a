"""Make dead letters, records on `<service>.dead`: the original bytes and headers, the reason, and what to do.

A dead letter is never too large. The size of its own fields is limited, and it contains as much of the original as the
log accepts, with length, digest, and the place where the whole original is.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from saga.broker.port import FRAME_BYTES, record_size
from saga.contracts.contract import Contract
from saga.messages import Headers, Message, Outgoing, Position, Record
from saga.messaging import envelope
from saga.messaging.envelope import rename_foreign
from saga.messaging.names import dead_letter_topic
from saga.policies.retry import Blame
from saga.progress import ids
from saga.progress.decisions import HANDLED_AS_NEW, TOO_OLD
from saga.progress.document import DeadLetterRecord
from saga.support.clock import iso
from saga.support.printable import printable, shorten
from saga.telemetry.events import DeadLettered, Escalated

TOO_LARGE = "the progress cannot be written"
"""Beginning of a dead letter's reason: the dead letter is in no progress, because the progress would be too large for
the store."""

DEADLY = "fix what ends the process: the log of the machine may name it; then retry the message: saga dead replay"
"""Remedy for a poison message."""

REASON_BYTES_MAX, REMEDY_BYTES_MAX, WHERE_BYTES_MAX, CALL_BYTES_MAX = 2000, 500, 500, 300
STACK_BYTES_MAX, STATE_BYTES_MAX = 300, 2000
CALLS_BYTES_MAX = 8000
"""Maximum size of all listed calls together, in bytes."""
SMALLER_BYTES = (1 << 18, 1 << 16, 1 << 13)
"""Sizes in bytes to which a dead letter is cut, one after another, while the log refuses it. Finally it is sent without
the original."""
LEAST_BYTES_MAX = 120
"""Maximum size in bytes of each of the toolkit's headers, in a dead letter without the original."""
_LEAST = ("dead_id", "dead_what", "dead_service", "dead_reason", "dead_time", "dead_handler", "dead_whole")


def to_outgoing(service: str, dead: DeadLetterRecord, time: str, whole: str, contract: Contract | None) -> Outgoing:
    """Make the record on `<service>.dead` for a handler's dead letter.

    `whole`: the place of the complete original, for a record that must be cut because it is too large for the log.
    """
    message = dead.message
    headers = (
        *envelope.headers_of(message, contract),
        *message.foreign,
        *_headers(service, dead.id, dead.kind, Explanation(dead.reason, dead.remedy), time, whole),
        _header("dead_message", message.id),
        _header("dead_handler", dead.handler),
        _header("dead_attempts", str(dead.attempts)),
        *((_header("dead_where", dead.where, WHERE_BYTES_MAX),) if dead.where else ()),
        *(_header("dead_stack", place, STACK_BYTES_MAX) for place in dead.stack),
        *_blame_headers(dead.blame, contract),
        *((_header("dead_state", dead.state, STATE_BYTES_MAX),) if dead.state else ()),
        *_call_headers(dead.calls),
    )
    return Outgoing(dead_letter_topic(service), message.saga.encode(), message.value, headers)


def escalation_to_outgoing(
    service: str, dead: DeadLetterRecord, time: str, undoes: str, whole: str, contract: Contract | None
) -> Outgoing:
    """Make the record of an escalation: a compensation keeps failing. `undoes`: the event that it cannot undo."""
    record = to_outgoing(service, dead, time, whole, contract)
    return record._replace(headers=(*record.headers, _header("dead_undoes", undoes)))


def to_telemetry(
    service: str, saga: str, dead: DeadLetterRecord, contract: Contract | None
) -> DeadLettered | Escalated | None:
    """Make the telemetry event of a dead letter or escalation; `None` for a record that only ends a dead letter."""
    if dead.kind == "escalation":
        return Escalated(
            service=service, saga=saga, handler=dead.handler, reason=dead.reason, steps=dead.calls, id=dead.id
        )
    if dead.kind != "dead letter":
        return None
    return DeadLettered(
        service=service,
        saga=saga,
        message=dead.message.id,
        type=dead.message.type,
        handler=dead.handler,
        reason=dead.reason,
        remedy=dead.remedy,
        where=dead.where,
        blame=dead.blame,
        owner=None if contract is None else contract.owner,
        # A message that is only rejected, and so blocks nothing, is its sender's, and was never attempted.
        id=dead.id if dead.attempts or dead.blame not in ("data", None) else None,
    )


def from_unreadable(service: str, record: Record, reason: str, now_ms: int, contract: Contract | None) -> Outgoing:
    """Make the dead letter of a record whose saga is unknown, with its bytes and headers. `contract`: the contract of
    the type that the record declares."""
    where = f"{record.topic}/{record.partition}/{record.offset}"
    remedy = "fix its sender; this dead letter has the original, or says where it is"
    id_ = ids.dead_letter_id(service, where, "-", f"{where}@{record.log_id}" if record.log_id else where, 0)
    headers = (
        *((rename_foreign(name), value) for name, value in record.headers),
        *_headers(service, id_, "dead letter", Explanation(reason, remedy), iso(now_ms), where),
        _header("dead_position", where),
        *_blame_headers("data", contract),
    )
    return Outgoing(dead_letter_topic(service), record.key or b"", record.value, headers)


def from_forgotten(service: str, message: Message, position: Position, contract: Contract | None) -> Outgoing:
    """Make the dead letter of a message whose saga is forgotten here. If it were handled, it would start a new saga."""
    reason = f"{TOO_OLD}: its saga began {message.started}, and this service has no record of it any more"
    remedy = (
        "look why it comes so late, or whether this worker's clock is ahead; "
        f"a longer retention= of the service would know its saga; {HANDLED_AS_NEW}"
    )
    id_, where = forgotten_id(service, message), position.place
    headers = (
        *envelope.headers_of(message, contract),
        *message.foreign,
        *_headers(service, id_, "dead letter", Explanation(reason, remedy), message.time, where),
        _header("dead_message", message.id),
        *_blame_headers("data", contract),
    )
    return Outgoing(dead_letter_topic(service), message.saga.encode(), message.value, headers)


def describe_deaths(deaths: int) -> str:
    """Return the reason of the dead letter for a poison message."""
    return f"the process died {deaths} times while it processed this message"


def from_poisonous(
    service: str, message: Message, position: Position, deaths: int, contract: Contract | None
) -> Outgoing:
    """Make the dead letter of a message on which processes die before any handler runs. No progress mentions the
    message."""
    where = position.place
    headers = (
        *envelope.headers_of(message, contract),
        *message.foreign,
        *_headers(
            service,
            ids.dead_letter_id(service, message.saga, "-", message.id, 0),
            "dead letter",
            Explanation(describe_deaths(deaths), "find out of what the process dies; then have its sender repeat it"),
            message.time,
            where,
        ),
        _header("dead_message", message.id),
        *_blame_headers("code", contract),
    )
    return Outgoing(dead_letter_topic(service), message.saga.encode(), message.value, headers)


def forgotten_id(service: str, message: Message) -> str:
    """Return the id of the dead letter for a message whose saga is older than the retention."""
    return ids.dead_letter_id(service, message.saga, "-", message.id, 0)


def _blame_headers(blame: Blame | None, contract: Contract | None) -> Headers:
    """Return headers with the class of the failure, and the service that owns the contract."""
    of_class = (_header("dead_class", blame),) if blame else ()
    return (*of_class, _header("dead_owner", contract.owner)) if contract is not None else of_class


class Explanation(NamedTuple):
    """Why a message was given up, and what to do."""

    reason: str
    remedy: str


def _headers(service: str, id_: str, what: str, explanation: Explanation, time: str, whole: str) -> Headers:
    return (
        _header("dead_id", id_),
        _header("dead_what", what),
        _header("dead_service", service),
        _header("dead_reason", explanation.reason, REASON_BYTES_MAX),
        _header("dead_remedy", explanation.remedy, REMEDY_BYTES_MAX),
        _header("dead_time", time),
        _header("dead_whole", whole),
    )


def _header(name: str, text: str, bytes_max: int = 4 * envelope.SAGA_BYTES_MAX) -> tuple[str, bytes]:
    return name, shorten(printable(text), bytes_max).encode()


def _call_headers(calls: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    left = CALLS_BYTES_MAX
    for n, call in enumerate(calls):
        header = _header("dead_call", call, CALL_BYTES_MAX)
        left -= len(header[1])
        if left < 0:
            yield _header("dead_call", f"and {len(calls) - n} more: saga sagas show lists all")
            return
        yield header


# ---------------------------------------------------------------- what a log takes


def shrink(whole: Outgoing, record_bytes_max: int) -> Iterator[Outgoing]:
    """Yield a dead letter in full or with as much of the original as the log accepts, then with less and less of it.

    The smaller forms are tried because the topic may accept less than the log.
    """
    size = record_size(whole)
    if size <= record_bytes_max:
        yield whole
    for bytes_max in (record_bytes_max, *SMALLER_BYTES):
        if bytes_max < size and bytes_max <= record_bytes_max:
            smaller = cut(whole, bytes_max)
            if record_size(smaller) < size:
                size = record_size(smaller)
                yield smaller
    yield _least(whole)


def cut(whole: Outgoing, bytes_max: int) -> Outgoing:
    """Cut a dead letter to a maximum number of bytes, if there is room for its own fields.

    It keeps the original's key or the beginning of it, as many headers as fit, and the beginning of the value, each
    with length and digest.
    """
    ours = [header for header in whole.headers if header[0].startswith("dead_")]
    theirs = [header for header in whole.headers if not header[0].startswith("dead_")]
    place = (dict(ours).get("dead_whole") or b"").decode()
    digests = [_digest("key", whole.key), _digest("value", whole.value or b"")]
    room = bytes_max - FRAME_BYTES - envelope.size_of((*ours, *digests, _CUT))
    if room < 0:
        return _least(whole)
    key = whole.key[: room // 4]
    headers = envelope.bound_headers(theirs, max(0, (room - len(key)) // 2 - 300), place)
    value = whole.value and whole.value[: room - len(key) - envelope.size_of(headers)]
    return Outgoing(whole.topic, key, value, (*headers, *ours, *digests, _CUT))


_CUT = ("dead_cut", b"the original is larger than the log takes: dead_whole says where all of it lies")


def _digest(what: str, content: bytes) -> tuple[str, bytes]:
    return f"dead_{what}", f"{len(content)} bytes, sha256 {sha256(content).hexdigest()}".encode()


def _least(whole: Outgoing) -> Outgoing:
    """Make the dead letter without the original, which any log accepts."""
    given = dict(whole.headers)
    ours = tuple(
        (name, shorten((given[name] or b"").decode(), LEAST_BYTES_MAX).encode()) for name in _LEAST if name in given
    )
    digests = (_digest("key", whole.key), _digest("value", whole.value or b""), _CUT)
    return Outgoing(whole.topic, whole.key[:LEAST_BYTES_MAX], None, (*ours, *digests))
