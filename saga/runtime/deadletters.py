"""Dead letters as records on `<service>.dead`: the original bytes and headers, the reason, and what to do."""

from saga import envelope
from saga.clock import iso
from saga.messages import Message, Outgoing, Record
from saga.progress import ids
from saga.progress.document import DeadLetter
from saga.runtime.topics import dead_letters_of

TOO_LARGE = "the progress cannot be written"
"""How the reason of a letter begins that no progress holds, because the store takes none that is larger."""
TOO_OLD = "older than memory"
"""How the reason of such a letter begins."""


def _headers(service: str, id_: str, what: str, reason: str, remedy: str, time: str) -> tuple[tuple[str, bytes], ...]:
    return (
        ("dead_id", id_.encode()),
        ("dead_what", what.encode()),
        ("dead_service", service.encode()),
        ("dead_reason", reason.encode()),
        ("dead_remedy", remedy.encode()),
        ("dead_time", time.encode()),
    )


def too_large(service: str, id_: str, message: Message, handler: str, reason: str, remedy: str) -> Outgoing:
    """A message of a saga whose progress has no room for it."""
    headers = (
        *envelope.headers_of(message),
        *_headers(service, id_, "dead letter", f"{TOO_LARGE}: {reason}", remedy, message.time),
        ("dead_handler", handler.encode()),
    )
    return Outgoing(dead_letters_of(service), message.saga.encode(), message.value, headers)


def letter(service: str, dead: DeadLetter, time: str) -> Outgoing:
    """A dead letter that a progress knows."""
    message = dead.message
    headers = (
        *envelope.headers_of(message),
        *_headers(service, dead.id, dead.what, dead.reason, dead.remedy, time),
        ("dead_handler", dead.handler.encode()),
        ("dead_attempts", str(dead.attempts).encode()),
        *((("dead_where", dead.where.encode()),) if dead.where else ()),
        *(("dead_call", call.encode()) for call in dead.calls),
    )
    return Outgoing(dead_letters_of(service), message.saga.encode(), message.value, headers)


def unreadable(service: str, record: Record, reason: str, now_ms: int) -> Outgoing:
    """A record of which not even the saga can be told: the bytes and headers as they came."""
    where = f"{record.topic}/{record.partition}/{record.offset}"
    remedy = "mend its sender; the original bytes are in this dead letter"
    headers = (
        *record.headers,
        *_headers(service, ids.dead_id(service, where, "-", where, 0), "dead letter", reason, remedy, iso(now_ms)),
        ("dead_position", where.encode()),
    )
    return Outgoing(dead_letters_of(service), record.key or b"", record.value, headers)


def older_than_memory(service: str, message: Message) -> Outgoing:
    """A message of a saga that is forgotten here: never taken for the first one of a new saga."""
    reason = f"{TOO_OLD}: its saga began {message.started}, and nothing is known of it here any more"
    headers = (
        *envelope.headers_of(message),
        *_headers(
            service,
            ids.dead_id(service, message.saga, "-", message.id, 0),
            "dead letter",
            reason,
            "look why it comes so late; a longer memory= of the service would know its saga",
            message.time,
        ),
    )
    return Outgoing(dead_letters_of(service), message.saga.encode(), message.value, headers)
