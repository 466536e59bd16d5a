"""Route records: each is skipped, becomes a dead letter, or becomes a message for its saga. Pure functions.

The contract of a record is recognized from its type header, and from the schema that its bytes or a schema registry
name. A type that is spelled differently (quotes around it, a version behind it, lower case, dots in a word) is accepted
if the bytes confirm the contract. If they cannot confirm it, as in JSON, or contradict the header, the record becomes a
dead letter: nothing is guessed.

A change of a document becomes an event of the class that was declared for its collection, and is handled like any other
event.
"""

import re
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from saga.change import TIMES_MS, DocumentChange, from_record
from saga.contracts import codec, foreign_values
from saga.contracts.contract import Contract
from saga.contracts.library import Library, MeantType
from saga.declarations.changes import AFTER, BEFORE, KEY, KIND, OWNER, kind_of
from saga.declarations.values import DocumentKind
from saga.engine.errors import describe_exception
from saga.engine.foreign_values import identify_message, to_single_object
from saga.engine.prepared_service import PreparedService
from saga.errors import BadInput
from saga.messages import Event, Message, Record, name_of
from saga.messaging import envelope
from saga.messaging.controls import TYPE, parse_control
from saga.messaging.envelope import SAGA_BYTES_MAX, content_type_of, is_json, to_binary_mode
from saga.messaging.message_ids import CLIENT, could_be_own, id_of_change, identity
from saga.messaging.operator_commands import parse_command
from saga.messaging.timers import parse_timer
from saga.support.clock import iso
from saga.support.printable import printable, quote_text, shorten


class SkippedRecord(Struct, frozen=True, gc=False):
    """A record that does not concern this service: it is finished at once."""

    reason: str
    why: Literal["tombstone", "unknown type"] | None = None
    """Why the record may have been meant for this service, so that it is counted; `None` if it certainly was not."""
    type: str = ""
    """Event type that matches no contract, for telemetry; shortened to printable text."""


class BadRecord(Struct, frozen=True, gc=False):
    """A record that cannot be handled, and whose saga may be unknown: it becomes a dead letter."""

    reason: str


RoutedRecord: TypeAlias = SkippedRecord | BadRecord | Message
"""Result of routing a record. A message goes to the executor."""

TYPE_BYTES_MAX = 100
"""Maximum number of bytes of an unknown type in reports."""
CONTROL = TYPE.rpartition(".")[2]
"""Type header of a control record, without its namespace."""
UNTOUCHED = SkippedRecord("no change of an application's document: only the toolkit's own marks or test documents")
UNKNOWN = SkippedRecord("no handler here names its type")
TOMBSTONE = SkippedRecord("it has no value: the log may forget what has its key, and it says nothing", "tombstone")
OWN = SkippedRecord("a copy of an own event: the progress has it")
FORGED = BadRecord(
    "its sender calls itself as this service does, which never makes such an id: it is no copy of an own event; have "
    "the sender use a name of its own"
)


def _route_special_record(record: Record, service: PreparedService) -> RoutedRecord:
    """Route a record of a timer topic, a change topic or the command topic."""
    if record.topic in service.wakes:
        return parse_timer(record)
    if record.topic in service.changes:
        return parse_change(record, service.changes[record.topic]) or UNTOUCHED
    return _parse_command(record, service)


def _parse_command(record: Record, service: PreparedService) -> Message:
    """Parse a record of the command topic: an operator command about a dead letter or a parked run, or a control of the
    service."""
    if envelope.type_of(record) != CONTROL:
        command = parse_command(record)
        if command.original is not None and command.original.source == service.name:
            raise BadInput(FORGED.reason)  # the service's own events are in the progress already
        return command
    control = parse_control(record)
    if control.saga != service.name:
        raise BadInput(f"the control's key is {control.saga!r}, and not the service")
    return control


def _skip_unknown_type(type_: str) -> SkippedRecord:
    """Skip a record of an unknown type. The type is reported, because the sender may have meant one of this service's
    types."""
    shown = shorten(printable(type_), TYPE_BYTES_MAX)
    return SkippedRecord(f"no contract here is called {shown}", "unknown type", shown)


def route_record(record: Record, service: PreparedService) -> RoutedRecord:
    """Route one record. Any program may have written it, so this never raises, whatever the record contains."""
    schema, consumed = "", service.consumed
    try:
        if record.topic in service.set_apart:
            return _route_special_record(record, service)
        value, library = record.value, service.schemas.library
        if value is None:
            return TOMBSTONE
        foreign = value[:2] != codec.MARKER
        if foreign:
            record = to_binary_mode(record)
        type_ = envelope.type_of(record)
        if foreign or type_ is None or type_ not in consumed:  # the type header alone does not decide
            version = library.by_fingerprint.get(value[2 : codec.HEADER_SIZE])
            if version is not None and version.name == type_ and type_ not in consumed:
                return UNKNOWN  # the usual case
            found = recognize(record, library)
            if found.name not in consumed:
                return UNKNOWN if found.name else _skip_unknown_type(found.unknown_type)
            if found.doubt:
                return BadRecord(found.doubt)
            type_, schema = found.name, found.schema
        contract = service.contracts[type_]
        message = envelope.to_message(record, type_=type_, schema=schema, contract=contract)
        if foreign:
            message = to_single_object(message, record.writer, library)
        if contract.id_field is not None:
            message = identify_message(message, record.topic, contract, library)
    except BadInput as why:
        return BadRecord(str(why))
    except Exception as why:  # noqa: BLE001 - no record may end a worker
        return BadRecord(f"it cannot be read as a message: {describe_exception(why)}")
    if message.source != service.name:
        return _mark_foreign_time(message, service) if type_ in service.roles.opening else message
    return OWN if could_be_own(message.id, message.type) else FORGED


def _mark_foreign_time(message: Message, service: PreparedService) -> Message:
    """Mark an event that opens a deadline if its time may not be the time of publication.

    A foreign sender may write any time. For example, it may export an order days later and write the order's time.
    """
    is_ours = message.source == CLIENT or could_be_own(message.id, message.type)
    if is_ours or service.contracts[message.type].trusts_time:
        return message
    return replace(message, foreign_time=True)


# -------------------------------------------------------------------- event recognition


TYPES_MAX = 1024
"""Maximum number of cached type headers."""
PUBLISHED_AGAIN = "have its sender publish it again"
_TYPE_BYTES_MAX = 512
_WORDS_MAX = 6
"""Maximum number of words at the end of a type that may form the name of a contract."""
_is_version = re.compile(r"v?[0-9]+").fullmatch
_version_behind = re.compile(r"[vV][0-9]+$")
_between = re.compile(r"[^A-Za-z0-9]+")


class Recognition(NamedTuple):
    """Result of recognizing a record."""

    name: str
    """Name of the contract; empty if no known contract fits."""
    schema: str = ""
    """Path of its schema, if the type is known only from the bytes."""
    doubt: str = ""
    """Reason why the record cannot be handled although its contract is known."""
    remark: str = ""
    """What is unusual about the type header of a record that is handled nevertheless."""
    unknown_type: str = ""
    """Event type that matches no contract, or contradicts the record's bytes; for telemetry. Empty if there is none."""


def recognize(record: Record, library: Library) -> Recognition:
    """Recognize a record in binary mode. Raises `BadInput` if neither header nor bytes name a type."""
    header, value = _get_type_header(record), record.value or b""
    if header is None:
        content, path = _identify_value(record, library)
        if content is None:
            raise BadInput(_explain_missing_type(record, library))
        return Recognition(content, path, unknown_type=_schema_name(record) if content == "" else "")
    meant = _resolve_type(header, library)
    try:
        content, path = _identify_value(record, library)
    except BadInput:
        if meant is None:
            return Recognition("", unknown_type=_text(header))
        return Recognition(meant.name)  # decoding reports what is wrong with the schema
    if content:
        if meant is not None and meant.name == content:
            return Recognition(content, remark="" if meant.is_exact else _describe_near_match(header, content))
        what = path or f"{_schema_name(record)} by their schema"
        return Recognition(
            content,
            doubt=f"its ce_type is {quote_text(_text(header))}, and its bytes are those of {what}: have its sender "
            "write the "
            "type that it is of",
            unknown_type=_text(header),
        )
    if meant is None or (content == "" and not meant.is_exact):
        return Recognition("", unknown_type=_text(header))
    if meant.is_exact:
        return Recognition(meant.name)
    if value[:2] == codec.MARKER or foreign_values.schema_id_in(value) is not None:  # decoding checks the schema
        return Recognition(meant.name, remark=_describe_near_match(header, meant.name))
    full_name = library.contracts[meant.name].full_name
    return Recognition(
        meant.name,
        doubt=f"{_describe_near_match(header, meant.name)}, and nothing in it shows that it is one: have its sender "
        f"write {full_name}",
        unknown_type=_text(header),
    )


def _get_type_header(record: Record) -> bytes | None:
    """Return the type header; `None` if there is none."""
    return next((value for name, value in record.headers if name == "ce_type"), None) or None


def _identify_value(record: Record, library: Library) -> tuple[str | None, str]:
    """Return the contract that the value itself names, and the path of its schema.

    The contract is empty if the value names a type without a contract here, and `None` if it names none. Raises
    `BadInput` for an invalid schema.
    """
    value = record.value or b""
    if value[:2] == codec.MARKER:
        version = library.by_fingerprint.get(value[2 : codec.HEADER_SIZE])
        return (None, "") if version is None else (version.name, version.path)
    return foreign_values.contract_name_in(value, record.writer, library), ""


def _schema_name(record: Record) -> str:
    return foreign_values.record_name_of(record.writer) if record.writer is not None else ""


def _resolve_type(header: bytes, library: Library) -> MeantType | None:
    """Return the contract that a type header means; `None` if it means none. Results are cached, because there are few
    types."""
    try:
        return library.types[header]
    except KeyError:
        found = _look_up_type(_text(header), library)
        if len(library.types) < TYPES_MAX:
            library.types[header] = found
        return found


def _look_up_type(header: str, library: Library) -> MeantType | None:
    space, _, last = header.rpartition(".")
    contract = library.contracts.get(last)
    if contract is not None:
        return MeantType(last, not space or not contract.namespace or space == contract.namespace)
    words = [word for word in _between.split(header) if word]
    while words and _is_version(words[-1].lower()):
        words.pop()
    if words:
        words[-1] = _version_behind.sub("", words[-1])
    names = {_normalize(name): name for name in library.contracts}
    for count in range(min(len(words), _WORDS_MAX), 0, -1):
        name = names.get("".join(words[-count:]).lower())
        if name is not None:
            return MeantType(name, _is_exact_but_for_quotes(header, library.contracts[name]))
    return None


def _is_exact_but_for_quotes(header: str, contract: Contract) -> bool:
    """Return whether a type is the name of a contract, apart from quotes or blanks around it."""
    space, _, last = header.strip(" \t\r\n\0\"'").rpartition(".")
    return last == contract.name and (not space or not contract.namespace or space == contract.namespace)


def _normalize(name: str) -> str:
    return _between.sub("", name).lower()


def _describe_near_match(header: bytes, name: str) -> str:
    return f"no contract is called {quote_text(_text(header))}; it comes near {name}"


def _text(header: bytes) -> str:
    return header[:_TYPE_BYTES_MAX].decode("utf-8", "replace")


def _explain_missing_type(record: Record, library: Library) -> str:
    """Explain why the type of a record is unknown, and what its sender has to change."""
    near = next((name for name, _ in record.headers if name != "ce_type" and _normalize(name) == "cetype"), None)
    hint = f"; its header {quote_text(near)} is not looked at: it has to be called ce_type" if near is not None else ""
    why = foreign_values.why_id_elsewhere(record.headers) or foreign_values.why_unreadable(
        record.value, record.writer, PUBLISHED_AGAIN
    )
    if why is not None:
        return f"{why}{hint}"
    if is_json(content_type_of(record)):
        return (
            "it is JSON, of which only its header ce_type could say what event it is, and it has none: have its sender "
            f"write one{hint}"
        )
    try:
        codec.identify(record.value, library)
    except BadInput as reason:
        return f"{reason}{hint}"
    raise AssertionError("its bytes say what it is")


# -------------------------------------------------------------------- document changes


SOURCE = "documents/"
"""Prefix of the source of messages that are document changes; the collection's name follows."""
_fields = msgspec.json.Decoder(dict[str, Any])


def parse_change(record: Record, event: type[Event]) -> Message | None:
    """Parse a record of a change topic. Returns `None` if no document of an application changed. Raises `BadInput`."""
    changed = from_record(record)
    if changed is None:
        return None
    appended_ms = record.time_ms if record.time_ms in TIMES_MS else changed.time_ms
    return make_change_message(changed, event, max(appended_ms, changed.time_ms))


def make_change_message(changed: DocumentChange, event: type[Event], started_ms: int) -> Message:
    """Make the message of a document change.

    Args:
        event: The class declared for changes of this collection.
        started_ms: Start time of a saga that the change starts: when the change was published, because the document may
            be older than the retention of sagas.

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
            f"the document {changed.key!r} of {kind.collection!r} is gone, and its source does not say what its "
            f"{kind.saga!r} was: leave out saga=, so that the key is the saga id"
        )
    try:
        header = _fields.decode(content).get(kind.saga)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise BadInput(f"the document {changed.key!r} of {kind.collection!r} is no JSON object: {why}") from None
    saga = str(header) if isinstance(header, int) and not isinstance(header, bool) else header
    if not isinstance(saga, str) or not 0 < len(saga.encode()) <= SAGA_BYTES_MAX:
        raise BadInput(
            f"the document {changed.key!r} of {kind.collection!r}: its {kind.saga} is not a saga id: a string of 1 to "
            f"{SAGA_BYTES_MAX} bytes, or a whole number"
        )
    return saga
