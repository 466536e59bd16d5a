"""Turn changes of documents into messages, which are handled like any other event. Pure."""

from typing import Any

import msgspec

from saga.changes.records import TIMES_MS, DocumentChange, from_record
from saga.contracts import codec
from saga.declarations.changes import AFTER, BEFORE, KEY, KIND, OWNER, kind_of
from saga.declarations.values import DocumentKind
from saga.errors import BadInput
from saga.messages import Event, Message, Record, name_of
from saga.messaging.envelope import SAGA_BYTES_MAX
from saga.messaging.message_ids import id_of_change, identity
from saga.support.clock import iso

SOURCE = "documents/"
"""Prefix of the message source; the name of the collection follows."""
_fields = msgspec.json.Decoder(dict[str, Any])


def parse_change(record: Record, event: type[Event]) -> Message | None:
    """Parse a record of a change topic. Returns `None` if the document itself did not change. Raises `BadInput`."""
    changed = from_record(record)
    if changed is None:
        return None
    appended_ms = record.time_ms if record.time_ms in TIMES_MS else changed.time_ms
    return make_change_message(changed, event, max(appended_ms, changed.time_ms))


def make_change_message(changed: DocumentChange, event: type[Event], started_ms: int) -> Message:
    """Make the message of a change.

    Args:
        event: The class declared for changes of this collection.
        started_ms: Start time of a saga that the change starts: when the change was published, because the document
            may be older than the retention of sagas.

    Raises:
        BadInput: The document has no valid saga id.
    """
    kind = kind_of(event)
    assert kind is not None
    contract, name = event.__contract__, name_of(event)
    saga = _find_saga(changed, kind)
    fields = {KEY: changed.key, KIND: changed.kind, BEFORE: changed.before, AFTER: changed.after}
    id_ = id_of_change(changed.key, changed.version, is_gone=changed.after is None)
    value = codec.encode(event(**fields, **{_key_of(event): saga}))
    return Message(
        id=identity(f"{SOURCE}{kind.collection}", id_, name, OWNER),
        type=name,
        schema=contract,
        saga=saga,
        source=f"{SOURCE}{kind.collection}",
        time=iso(changed.time_ms),
        value=value,
        started=iso(started_ms),
    )


def _key_of(event: type[Event]) -> str:
    key: str = next(iter(event.__dataclass_fields__))  # type: ignore[attr-defined] # it is a dataclass
    return key


def _find_saga(changed: DocumentChange, kind: DocumentKind) -> str:
    """Return the saga of a change: the document's key, or the declared field of the document."""
    if kind.saga is None:
        return changed.key
    content = changed.before if changed.after is None else changed.after
    if content is None:
        raise BadInput(
            f"the document {changed.key!r} of {kind.collection!r} is gone, and its source does not tell what "
            f"{kind.saga} was: leave out saga=, so that the key is the saga id"
        )
    try:
        said = _fields.decode(content).get(kind.saga)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise BadInput(f"the document {changed.key!r} of {kind.collection!r} is no JSON object: {why}") from None
    saga = str(said) if isinstance(said, int) and not isinstance(said, bool) else said
    if not isinstance(saga, str) or not 0 < len(saga.encode()) <= SAGA_BYTES_MAX:
        raise BadInput(
            f"the document {changed.key!r} of {kind.collection!r}: its {kind.saga} is no saga id: a text of 1 to "
            f"{SAGA_BYTES_MAX} bytes, or a whole number"
        )
    return saga
