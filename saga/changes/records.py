"""Records of changes: one JSON object each, in the forms that Couchbase's Kafka connector writes, of which ours is one.

    {"event": "insert", "key": "order-17", "cas": 4, "time_ms": 1767225600000, "content": {...}, "before": {...}}

The connector's `RawJsonWithMetadataSourceHandler` has the document as JSON in `content`; its default handler, through
Kafka Connect's JSON converter, as base64, with or without the converter's own envelope around it. It says `mutation`,
`deletion` and `expiration`; `revSeqno` 1 is the first version of a document. Records of anybody are read: nothing that
they hold raises but `BadInput`.
"""

from base64 import b64decode, b64encode
from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct

from saga.errors import BadInput
from saga.messages import Headers, Outgoing, Record
from saga.support.printable import shortened

Kind: TypeAlias = Literal["insert", "update", "delete", "expiry", "change"]
"""Fate of a document; `change`: the source does not tell."""

MARKERS = b"_saga"
KEY_BYTES_MAX = 1024
"""Longest key of a document whose changes are taken: it may be a saga id."""
TIMES_MS = range(0, 253_402_214_400_000)
"""Milliseconds since 1970 that a time may have: up to the year 9999."""
_NOTHING = Raw(b"null")
_HEADERS: Headers = (("content-type", b"application/json"),)


class DocumentChange(Struct, frozen=True, kw_only=True):
    """One change of a document, whoever tells of it."""

    kind: Kind
    key: str
    version: int
    """CAS of the document after the change: with the key it tells one change from all others."""
    time_ms: int
    before: bytes | None = None
    """JSON of the document before the change, if the source tells it, without the toolkit's marks."""
    after: bytes | None = None
    """JSON of the document after the change, without the toolkit's marks; `None`: it is gone."""
    refused: str | None = None
    """Reason why no service can take the change, where its source knows one already: it becomes a dead letter."""


class _ChangeRecord(Struct):
    event: Literal["insert", "update", "mutation", "deletion", "expiration"]
    key: str
    cas: int
    revision: int | None = msgspec.field(name="revSeqno", default=None)
    time_ms: int | None = None
    content: Raw = _NOTHING
    before: Raw = _NOTHING
    refused: str = ""


class _Envelope(Struct):
    payload: Raw


_told = msgspec.json.Decoder(_ChangeRecord)
_enveloped = msgspec.json.Decoder(_Envelope)
_fields = msgspec.json.Decoder(dict[str, Raw])
_ANY = msgspec.json.Decoder()


def to_record(topic: str, changed: DocumentChange) -> Outgoing:
    """Record of a change, on the topic of its collection; the document's key is the record's, or as much of it as a key
    may have."""
    event = {"delete": "deletion", "expiry": "expiration", "change": "mutation"}.get(changed.kind, changed.kind)
    key, refused = changed.key, changed.refused
    if len(key.encode()) > KEY_BYTES_MAX:
        refused = f"its key has {len(key.encode())} bytes: from 1 to {KEY_BYTES_MAX} can be"
        key = shortened(key, KEY_BYTES_MAX)
    told: dict[str, object] = {
        "event": event,
        "key": key,
        "cas": changed.version,
        "time_ms": changed.time_ms,
    }
    if refused is not None:
        told["refused"] = refused
    else:
        for name, content in (("content", changed.after), ("before", changed.before)):
            if content is not None:
                told[name] = Raw(content) if _is_json(content) else b64encode(content).decode()
    return Outgoing(topic, key.encode(), msgspec.json.encode(told), _HEADERS)


def from_record(record: Record) -> DocumentChange | None:
    """The change in a record; `None` if it tells of no change of the document, but of the toolkit's marks in it.

    Raises `BadInput` for a record that is none, or that lacks what tells one change from another.
    """
    told = _read(record.value)
    if not told.key or len(told.key.encode()) > KEY_BYTES_MAX:
        raise BadInput(f"the change's key has {len(told.key.encode())} bytes: from 1 to {KEY_BYTES_MAX} can be")
    if told.refused:
        raise BadInput(f"the document {told.key!r} cannot be taken: {told.refused}")
    is_gone = told.event in ("deletion", "expiration")
    after = None if is_gone else _document(told.content, told.key)
    before = _document(told.before, told.key)
    if (after is None and not is_gone) or (after is not None and after == before):
        return None
    return DocumentChange(
        kind=_kind(told, before),
        key=told.key,
        version=told.cas,
        time_ms=_time_ms(told, record),
        before=before,
        after=after,
    )


def _is_json(content: bytes) -> bool:
    try:
        _ANY.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return not content.startswith(b'"')


def _read(value: bytes | None) -> _ChangeRecord:
    if not value:
        raise BadInput(
            "the change is empty: nothing tells its version: have the connector use "
            "RawJsonWithMetadataSourceHandler, or its default handler with the JSON converter"
        )
    try:
        if b'"payload"' in value and b'"schema"' in value:
            try:
                return _told.decode(_enveloped.decode(value).payload)
            except msgspec.ValidationError:
                pass  # a document may have fields of these names
        return _told.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise BadInput(f"the record is no change of a document: {why}") from None


def _kind(told: _ChangeRecord, before: bytes | None) -> Kind:
    match told.event:
        case "deletion":
            return "delete"
        case "expiration":
            return "expiry"
        case "mutation" if told.revision is None:
            return "change"
        case "mutation":
            return "insert" if told.revision == 1 else "update"
        case "insert" if before is None:
            return "insert"
        case _:
            return "update" if before is not None or told.event == "update" else "insert"


def _time_ms(told: _ChangeRecord, record: Record) -> int:
    """Time of the change: as told; else Couchbase's CAS, which is one in nanoseconds; else the log's."""
    for time_ms in (told.time_ms, None if told.revision is None else told.cas // 1_000_000):
        if time_ms is not None and time_ms in TIMES_MS and time_ms > 0:
            return time_ms
    return record.time_ms if record.time_ms in TIMES_MS else 0


def _document(content: Raw, key: str) -> bytes | None:
    """JSON of a document without the toolkit's marks; `None` if nothing but those is in it."""
    given = bytes(content)
    if given == b"null":
        return None
    try:
        if given.startswith(b'"'):  # a document is an object: this is one as base64
            given = b64decode(_ANY.decode(given), validate=True)
        if MARKERS not in given:
            _ANY.decode(given)
            return given
        fields = _fields.decode(given)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as why:
        raise BadInput(f"the document {key!r} is no JSON object: {why}") from None
    if fields.pop("_saga", None) is None:
        return given
    return msgspec.json.encode(fields) if fields else None
