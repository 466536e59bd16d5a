"""Document changes: the values that a handler receives when a document was written, removed or expired, and how stores
report changes.

`Change` and its subclasses are what handlers see. `DocumentChange` is the form in which the engine handles a change.
`to_record` writes it to a record of a topic; `from_record` reads it, also from records of Couchbase's Kafka connector.
`ChangeSource` is the port of a store that records changes.
"""

from base64 import b64decode, b64encode
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec
from msgspec import Raw, Struct
from typing_extensions import TypeVar

from saga.errors import BadInput
from saga.messages import Headers, Outgoing, Record
from saga.messaging.names import PROBE
from saga.support.printable import shorten

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


D_co = TypeVar("D_co", bound="DataclassInstance", covariant=True)

Kind: TypeAlias = Literal["insert", "update", "delete", "expiry", "change"]
"""What happened to a document; `change` if the source does not say which of the others it was."""
MARKERS = b"_saga"
KEY_BYTES_MAX = 1024
"""Maximum size of the key of a changed document, in bytes. The key is limited because it may become a saga id."""
TIMES_MS = range(0, 253_402_214_400_000)
"""Accepted times of a change, in milliseconds since 1970: until the end of the year 9999."""
_NOTHING = Raw(b"null")
_HEADERS: Headers = (("content-type", b"application/json"),)
_fields = msgspec.json.Decoder(dict[str, Raw])
_ANY = msgspec.json.Decoder()


class Change(Generic[D_co]):
    """One change of a document. A handler receives it instead of an event, through a parameter
    `change: Change[OrderDocument]`.

    Its class says what happened: `Insert`, `Update`, `Delete` or `Expiry`. A plain `Change` only contains the current
    document. Use `match` or `isinstance` to distinguish them.

    Guarantees:
    - The changes of one document arrive in order, and each is handled once. The position of the service is stored, so
      it continues there after a restart.
    - If a document changes several times quickly, only the last change may arrive. So the first change that a service
      sees of a document may be an `Update`.
    - A change whose document does not fit the class `D` becomes a dead letter.
    """

    __slots__ = ("_before", "_document", "_key")

    def __init__(self, *, key: str, document: D_co | None, before: D_co | None = None) -> None:
        """Create a change.

        Args:
            key: The document's key.
            document: The document after the change.
            before: The document before the change, if the source reports it.
        """
        self._key, self._document, self._before = key, document, before

    @property
    def key(self) -> str:
        """Return the key of the document; it is the saga id, unless `document(..., saga=...)` names a field."""
        return self._key

    @property
    def document(self) -> D_co | None:
        """Return the document after the change; `None` if it was removed or has expired."""
        return self._document

    @property
    def before(self) -> D_co | None:
        """Return the document before the change; `None` if there was none, or if the source does not report it. SQLite
        reports it, Couchbase does not."""
        return self._before

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or not isinstance(other, Change):
            return NotImplemented
        return (self._key, self._document, self._before) == (other._key, other._document, other._before)

    def __hash__(self) -> int:
        return hash((type(self), self._key))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(key={self._key!r}, document={self._document!r}, before={self._before!r})"


class Insert(Change[D_co]):
    """A document that did not exist before."""

    __slots__ = ()

    def __init__(self, *, key: str, document: D_co) -> None:
        super().__init__(key=key, document=document)


class Update(Change[D_co]):
    """A document that was replaced; `before` is set if the source reports it."""

    __slots__ = ()

    def __init__(self, *, key: str, document: D_co, before: D_co | None = None) -> None:
        super().__init__(key=key, document=document, before=before)


class Delete(Change[D_co]):
    """A document that was removed; `before` is set if the source reports it."""

    __slots__ = ()

    def __init__(self, *, key: str, before: D_co | None = None) -> None:
        super().__init__(key=key, document=None, before=before)


class Expiry(Delete[D_co]):
    """A document that was removed because its time to live ended."""

    __slots__ = ()


# -------------------------------------------------------------------- records


class DocumentChange(Struct, frozen=True, kw_only=True):
    """One change of a document, from any source, as the engine handles it."""

    kind: Kind
    key: str
    version: int
    """CAS value of the document after the change. Together with the key it identifies the change."""
    time_ms: int
    before: bytes | None = None
    """JSON of the document before the change, without the toolkit's markers; `None` if the source does not report
    it.
    """
    after: bytes | None = None
    """JSON of the document after the change, without the toolkit's markers; `None` if the document was removed."""
    refused: str | None = None
    """Reason why no service can handle the change, if the source already knows one. Such a change becomes a dead
    letter."""


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


def to_record(topic: str, changed: DocumentChange) -> Outgoing:
    """Return the record in which a change is published. Its key is the document's key.

    If that key is too long, the record has a shortened key, and says that the change is refused.
    """
    event = {"delete": "deletion", "expiry": "expiration", "change": "mutation"}.get(changed.kind, changed.kind)
    key, refused = changed.key, changed.refused
    if len(key.encode()) > KEY_BYTES_MAX:
        refused = f"its key has {len(key.encode())} bytes: from 1 to {KEY_BYTES_MAX} can be"
        key = shorten(key, KEY_BYTES_MAX)
    fields: dict[str, object] = {
        "event": event,
        "key": key,
        "cas": changed.version,
        "time_ms": changed.time_ms,
    }
    if refused is not None:
        fields["refused"] = refused
    else:
        for name, content in (("content", changed.after), ("before", changed.before)):
            if content is not None:
                fields[name] = Raw(content) if _is_json(content) else b64encode(content).decode()
    return Outgoing(topic, key.encode(), msgspec.json.encode(fields), _HEADERS)


def from_record(record: Record) -> DocumentChange | None:
    """Return the change in a record; `None` if no document of an application changed: only the toolkit's markers in
    it, or a document with which the toolkit tests the store.

    Raises:
        BadInput: The record is not a change, or lacks the values that identify a change.
    """
    change = _read(record.value)
    if change.key.startswith(PROBE):
        return None  # each start on Couchbase writes and removes one in each collection, and the connector publishes it
    if not change.key or len(change.key.encode()) > KEY_BYTES_MAX:
        raise BadInput(f"the change's key has {len(change.key.encode())} bytes: from 1 to {KEY_BYTES_MAX} can be")
    if change.refused:
        raise BadInput(f"the document {change.key!r} cannot be taken: {change.refused}")
    is_gone = change.event in ("deletion", "expiration")
    after = None if is_gone else _document(change.content, change.key)
    before = _document(change.before, change.key)
    if (after is None and not is_gone) or (after is not None and before is not None and _is_same(after, before)):
        return None
    return DocumentChange(
        kind=_kind(change, before),
        key=change.key,
        version=change.cas,
        time_ms=_time_ms(change, record),
        before=before,
        after=after,
    )


def _is_same(one: bytes, other: bytes) -> bool:
    """Return whether two documents differ in nothing but white space. The toolkit writes none, other programs may."""
    return one == other or msgspec.json.format(one, indent=-1) == msgspec.json.format(other, indent=-1)


def _is_json(content: bytes) -> bool:
    try:
        _ANY.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return not content.startswith(b'"')


def _read(value: bytes | None) -> _ChangeRecord:
    if not value:
        raise BadInput(
            "the change is empty: its version is unknown: have the connector use "
            "RawJsonWithMetadataSourceHandler, or its default handler with the JSON converter"
        )
    try:
        if b'"payload"' in value and b'"schema"' in value:
            try:
                return _told.decode(_enveloped.decode(value).payload)
            except msgspec.ValidationError:
                pass  # documents may have fields with these names, too
        return _told.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise BadInput(f"the record is no change of a document: {why}") from None


def _kind(change: _ChangeRecord, before: bytes | None) -> Kind:
    match change.event:
        case "deletion":
            return "delete"
        case "expiration":
            return "expiry"
        case "mutation" if change.revision is None:
            return "change"
        case "mutation":
            return "insert" if change.revision == 1 else "update"
        case "insert" if before is None:
            return "insert"
        case _:
            return "update" if before is not None or change.event == "update" else "insert"


def _time_ms(change: _ChangeRecord, record: Record) -> int:
    """Return the time of a change: the reported time, or else the time in Couchbase's CAS value (nanoseconds), or else
    the time of the record."""
    for time_ms in (change.time_ms, None if change.revision is None else change.cas // 1_000_000):
        if time_ms is not None and time_ms in TIMES_MS and time_ms > 0:
            return time_ms
    return record.time_ms if record.time_ms in TIMES_MS else 0


def _document(content: Raw, key: str) -> bytes | None:
    """Return the JSON of a document without the toolkit's markers; `None` if the document contains nothing else."""
    given = bytes(content)
    if given == b"null":
        return None
    try:
        if given.startswith(b'"'):  # documents are objects, so a string is a document encoded as base64
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


# -------------------------------------------------------------------- port


class RecordedChange(NamedTuple):
    """A change that a store has recorded."""

    number: int
    """Sequence number among all changes that this store has recorded."""
    collection: str
    changed: DocumentChange


@runtime_checkable
class ChangeSource(Protocol):
    """A store that records changes."""

    async def watch(self, service: str, collections: Collection[str], *, from_beginning: bool) -> None:
        """Start recording changes of these collections for a service, in addition to the collections already watched.

        Args:
            from_beginning: Also record the existing documents of newly watched collections, as if they had just
                changed.

        Raises:
            StoreError: The store failed.
        """

    def list_watched(self, service: str) -> Collection[str]:
        """Return the collections that are watched for a service. Raises `StoreError`."""

    async def unwatch(self, service: str, collections: Collection[str]) -> None:
        """Stop recording changes of these collections for a service, and drop the changes recorded so far. Raises
        `StoreError`."""

    def read_recorded(self, service: str, count_max: int, *, before_ms: int | None = None) -> Sequence[RecordedChange]:
        """Read the oldest recorded changes for a service.

        Args:
            before_ms: Return nothing unless the oldest change was made before this time.

        Raises:
            StoreError: The store failed.
        """

    async def forget(self, service: str, number: int) -> None:
        """Drop the changes for a service up to and including this one. Raises `StoreError`."""

    async def pause(self, seconds: float) -> None:
        """Wait for this many seconds, or less if new changes may have been recorded meanwhile."""

    def leads(self, service: str) -> bool:
        """Return whether this process is the leader that publishes the changes of a service. At most one process is the
        leader; it stays so until it closes the store or dies."""
