"""Convert between messages and records. Records are CloudEvents in binary mode: the envelope is in the record's
headers. CloudEvents in structured mode are read as well.

Any sender may have written a record. Only the headers that the toolkit needs are interpreted. All others are kept with
the message unchanged, up to a limit.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any

from saga.contracts.contract import URN, Contract
from saga.contracts.json_form import read_objects
from saga.contracts.sensitive_fields import has_sensitive
from saga.errors import BadInput
from saga.messages import Headers, Message, Outgoing, Record, unquote_header
from saga.messaging.message_ids import id_in, identity, identity_of_declared, identity_of_place, identity_without_source
from saga.support.clock import from_iso, iso
from saga.support.printable import quote_text

CONTENT_TYPE, VERSION = b"application/avro", b"1.0"
SAGA_BYTES_MAX = 1024
"""Maximum length of a saga id in bytes. It is limited because every event of the saga and the keys of documents contain
it."""
PRINCIPAL = "ce_sagaprincipal"
"""Header with the principal that started the saga. It is an extension attribute of CloudEvents."""
PRINCIPAL_BYTES_MAX = 256
"""Maximum length of a principal in bytes. It is limited because every event of the saga and its progress contain it."""
HEADER_BYTES_MAX = 512
"""Maximum length in bytes of the value of an interpreted header. It is limited because the progress stores it with the
message."""
UNKNOWN_SOURCE = "unknown"
"""Source of a message that names no source."""
FOREIGN_BYTES_MAX = 1 << 14
"""Maximum total size in bytes of the other headers that are kept with a message."""
FOREIGN = "foreign_"
"""Prefix added to the name of another sender's header if the header could otherwise be mistaken for one of the
toolkit's."""

_FIXED: Headers = (("content-type", CONTENT_TYPE), ("ce_specversion", VERSION))
_ALWAYS: Mapping[str, bytes | None] = dict(_FIXED)
_FIXED_OF_OURS: Headers = (("ce_specversion", VERSION), ("content-type", b"application/json"))
ALWAYS_OF_OURS: Mapping[str, bytes | None] = dict(_FIXED_OF_OURS)
"""Headers that every timer, control and operator command has."""
_OURS = frozenset(
    {"ce_type", "ce_id", "ce_source", "ce_time", "ce_subject", "ce_dataschema", "ce_sagastart", PRINCIPAL}
    | {"traceparent"}
    | {name for name, _ in _FIXED}
)
_UNQUOTED = _OURS - {"ce_id", "ce_source"}
"""Headers whose values are read without surrounding quotes. Id and source are read as the sender wrote them."""
_AS_WRITTEN = ("ce_type", "ce_id", "ce_source", "ce_time", "ce_subject", *dict(_FIXED), "ce_dataschema", "ce_sagastart")
"""Names of the headers that most messages have, in the order in which `headers_of` writes them."""
_NO_HEADERS: Headers = (("", None),)
_NAME_END = slice(-HEADER_BYTES_MAX, None)
_FIXED_VALUES = tuple(dict(_FIXED).values())
_IS_OURS = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z").fullmatch
_IS_TRACE = re.compile(rb"[0-9a-f-]{55,100}").fullmatch
_SCHEMA = re.compile(r"(?:.*[/:])?([A-Za-z0-9._-]+/[A-Za-z_][A-Za-z0-9_]*\.v[0-9]+)").fullmatch
TIMES_MS = range(0, from_iso("9999-12-31T00:00:00Z"))
"""Accepted times of a record, in milliseconds since 1970."""

STRUCTURED = "application/cloudevents+json"
OTHER_MODES = "application/cloudevents"
"""Prefix of the content types of CloudEvents in structured mode or in batches. Of these, only `STRUCTURED` is
supported."""
JSON = "application/json"
_NEEDED = frozenset(
    {"specversion", "type", "id", "source", "time", "subject", "dataschema", "datacontenttype", "data", "data_base64"}
    | {"sagastart", "sagaprincipal"}
)
"""Attributes of an event that are interpreted; all others are kept unchanged, whatever they contain."""
_SHOWN_MAX = 40


def headers_of(message: Message, contract: Contract | None) -> Headers:
    """Return the envelope of a message as headers. `contract`: the contract of the message's type, if it is known."""
    name, base = (message.type, URN) if contract is None else (contract.full_name, contract.schemas)
    first, source, last = _of_type(name, base, message.schema, message.source)
    headers: Headers = (
        first,
        ("ce_id", id_in(message.id).encode()),
        source,
        ("ce_time", message.time.encode()),
        ("ce_subject", message.saga.encode()),
        *last,
    )
    if message.started is not None:
        headers += (("ce_sagastart", message.started.encode()),)
    if message.trace is not None:
        headers += (("traceparent", message.trace.encode()),)
    if message.principal is not None:
        headers += ((PRINCIPAL, message.principal.encode()),)
    return headers


@lru_cache(maxsize=1024)  # there are not many types
def _of_type(name: str, base: str, schema: str, source: str) -> tuple[tuple[str, bytes], tuple[str, bytes], Headers]:
    """Return the headers that are the same in all messages of one type, schema and source: the header of the type, the
    header of the source, and the headers that come last."""
    first = ("ce_type", name.encode())  # first, because it decides whether the rest is read
    last = (*_FIXED, ("ce_dataschema", (schema if ":" in schema else base + schema).encode())) if schema else _FIXED
    return first, ("ce_source", source.encode()), last


def to_record(message: Message, contract: Contract) -> Outgoing:
    """Return the record that publishes a message. The record's key is the saga id."""
    headers = headers_of(message, contract)
    return Outgoing(contract.topic, message.saga.encode(), message.value, headers, contract.subject)


def type_of(record: Record | Outgoing) -> str | None:
    """Return the name of a record's contract, without namespace, from the record's header; `None` if the header is
    missing."""
    for name, value in record.headers:
        if name == "ce_type":
            return _last_part(value[_NAME_END]) if value else None
    return None


@lru_cache(maxsize=1024)  # there are not many types
def _last_part(name: bytes) -> str:
    return name.decode("utf-8", "replace").rpartition(".")[2]


def headers_of_ours(type_: str, id_: str, source: str, time: str, saga: str) -> Headers:
    """Return the headers of a timer, a control or an operator command. These are not events, and their value is
    JSON."""
    return (
        ("ce_type", type_.encode()),
        ("ce_id", id_.encode()),
        ("ce_source", source.encode()),
        ("ce_time", time.encode()),
        ("ce_subject", saga.encode()),
        *_FIXED_OF_OURS,
    )


def to_message(
    record: Record,
    *,
    type_: str,
    schema: str,
    contract: Contract | None,
    always: Mapping[str, bytes | None] = _ALWAYS,
) -> Message:
    """Convert a record to a message. Fields that its sender left out get defaults.

    Args:
        type_: Type of the message.
        schema: Schema of the message if the record does not name one.
        contract: Contract of the type, if it is known.
        always: Headers that every record of this kind has if the toolkit wrote it.

    Raises:
        BadInput: The record has no value, no key, or a key that differs from its subject. Or a header is not UTF-8, is
            too long, or should be a time and is not.
    """
    key, value, headers = record.key, record.value, record.headers
    if not value:
        raise BadInput("the message is empty: it has no value to decode")
    if not key:
        raise BadInput("the message has no key: its key must be the saga id")
    names, values = zip(*(headers or _NO_HEADERS), strict=True)
    if names == _AS_WRITTEN and values[5:7] == _FIXED_VALUES and all(values):  # the usual case, and cheap to check
        _, sent_id, sent_source, at, subject, _, _, path, began = values
        trace = who = None
        foreign: Headers = ()
    else:
        given, foreign = _split_headers(record, contract, always)
        get = given.get
        sent_id, sent_source, at, subject = get("ce_id"), get("ce_source"), get("ce_time"), get("ce_subject")
        path, began, trace, who = get("ce_dataschema"), get("ce_sagastart"), get("traceparent"), get(PRINCIPAL)
    saga = _saga(key)
    if subject and subject != key:
        raise BadInput(
            f"the message's key {quote_text(saga)} is not its subject "
            f"{quote_text(_decode_key(subject, 'header ce_subject'))}: "
            "both must be the saga id"
        )
    id_ = _decode_key(sent_id, "header ce_id") if sent_id else None
    source = _source(sent_source) if sent_source else UNKNOWN_SOURCE
    time = _time(at, "ce_time") if at else _append_time(record)
    started = None
    if began:
        started = time if began == at else _time(began, "ce_sagastart")
    elif contract is not None and contract.starts:
        started = time  # its sender does not use the toolkit: the saga begins with the event
    return Message(
        id=identity(source, id_, type_, "" if contract is None else contract.owner)
        if id_ and sent_source
        else _identity_of_others(record, type_, contract, id_, source if sent_source else None),
        type=type_,
        schema=_path(path) if path else schema,
        saga=saga,
        source=source,
        time=time,
        value=value,
        started=started,
        trace=trace.decode() if trace else None,
        principal=_principal(who) if who else None,
        foreign=foreign,
    )


def _identity_of_others(
    record: Record, type_: str, contract: Contract | None, id_: str | None, source: str | None
) -> str:
    """Return the message id for a message that lacks an id or a source.

    The message id is made from the sender's id if there is one. Otherwise it is made from the header that the contract
    names, or else from the record's position in the log.
    """
    if id_ and contract is not None and is_sensitive(contract):  # a value can be guessed from its digest
        return identity_of_declared(record.topic, type_, id_)
    if id_:
        return identity_without_source(id_, record.value or b"")
    header = None if contract is None else contract.id_header
    if header is not None and (declared := _first(record, header)):
        return declared_identity(record.topic, type_, source, _text_of(declared, f"header {header}"))
    return identity_of_place(record.topic, record.partition, record.offset, record.log_id)


@lru_cache(maxsize=1024)  # there are not many contracts
def is_sensitive(contract: Contract) -> bool:
    """Return whether any version of a contract has a sensitive field."""
    return any(has_sensitive(version.record) for version in contract.versions)


def declared_identity(topic: str, type_: str, source: str | None, id_: str) -> str:
    """Return the message id for a message whose contract says where its id is. `source`: the source that the message
    names; `None` if it names none."""
    return identity_of_declared(topic, type_, id_) if source is None else identity(source, id_, type_, "")


def _text_of(id_: bytes, what: str) -> str:
    """Return the id in another sender's header as text. An id that is not UTF-8 is returned in hexadecimal. Raises
    `BadInput` if the id is too long."""
    try:
        return _decode_key(id_, what)
    except BadInput:
        if len(id_) > HEADER_BYTES_MAX:
            raise
        return id_.hex()


def check_message(message: Message) -> None:
    """Raise `BadInput` if a message that did not come from a record contains something that no record may contain.

    The fields of a message are copied to every event that is emitted because of it. Receivers would refuse such events.
    """
    _decode_key(message.id.encode(), "name", 6 * HEADER_BYTES_MAX + 1)  # source and id, with all characters encoded
    for what, text in (("source", message.source), ("type", message.type), ("schema", message.schema)):
        _decode_key(text.encode(), what)
    if not message.id or not message.source or not message.type:
        raise BadInput("the message lacks its id, its source or its type")
    for header, time in (("ce_time", message.time), ("ce_sagastart", message.started)):
        if time is not None:
            _time(time.encode(), header)
    if message.trace is not None and not _IS_TRACE(message.trace.encode()):
        raise BadInput(f"the message's trace is none: {quote_text(message.trace)}")
    if message.principal is not None:
        _principal(message.principal.encode())
    if size_of(message.foreign) > 2 * FOREIGN_BYTES_MAX:
        raise BadInput(f"the message's other headers have more than {2 * FOREIGN_BYTES_MAX} bytes")


def _decode_key(text: bytes, what: str, bytes_max: int = HEADER_BYTES_MAX) -> str:
    if len(text) > bytes_max:
        beginning = quote_text(text[:40].decode("utf-8", "replace"))
        raise BadInput(
            f"the message's {what} has {len(text)} bytes, at most {bytes_max} may be: it begins with {beginning}"
        )
    try:
        return text.decode()
    except UnicodeDecodeError as why:
        raise BadInput(
            f"the message's {what} is not UTF-8: its byte {why.start + 1} is {text[why.start]:02x}"
        ) from None


@lru_cache(maxsize=1024)  # it comes with each of a saga's messages
def _saga(key: bytes) -> str:
    return _decode_key(key, "key", SAGA_BYTES_MAX)


@lru_cache(maxsize=1024)  # there are not many
def _source(given: bytes) -> str:
    return _decode_key(given, "header ce_source")


@lru_cache(maxsize=1024)  # it is in every message of a saga, and one principal may begin many sagas
def _principal(given: bytes) -> str:
    return _decode_key(given, f"header {PRINCIPAL}, which says who began the saga,", PRINCIPAL_BYTES_MAX)


@lru_cache(maxsize=1024)  # a saga's start comes with each of its messages, and is often the time of the first
def _time(given: bytes, header: str) -> str:
    """Return the time in a header in the toolkit's format, in which strings sort in the order of time."""
    text = _decode_key(given, f"header {header}")
    try:
        if _IS_OURS(text):
            datetime.fromisoformat(text)  # raises if the digits are no valid time
            return text
        return iso(from_iso(text.upper()))
    except (ValueError, OverflowError):
        raise BadInput(f"the header {header} is no RFC 3339 time: {quote_text(text)}") from None


def _append_time(record: Record) -> str:
    """Return the time of a record in the log. Depending on the topic, it is the broker's time or the sender's."""
    if record.time_ms not in TIMES_MS:
        raise BadInput(
            f"the message has no ce_time, and its time in the log cannot be one: {record.time_ms} milliseconds since "
            "1970; are they microseconds?"
        )
    return iso(record.time_ms)


@lru_cache(maxsize=1024)  # there are not many
def _path(given: bytes) -> str:
    """Return the path below `contracts/` with which a schema's URI ends, such as `payments/PaymentReserved.v2`. Return
    any other schema name unchanged."""
    schema = _decode_key(given, "header ce_dataschema")
    ours = _SCHEMA(schema)
    return ours[1] if ours else schema


# ---------------------------------------------------------------- headers of other senders


def _split_headers(
    record: Record, contract: Contract | None, always: Mapping[str, bytes | None]
) -> tuple[Mapping[str, bytes | None], Headers]:
    """Split a record's headers into those for which a message has fields, by name, and all others. For the arguments
    see `to_message`."""
    headers, given = record.headers, dict(record.headers)
    trace = given.get("traceparent")
    if (  # the usual case, and cheap to check: all headers are the toolkit's
        len(given) == len(headers)
        and _OURS.issuperset(given)
        and all(given.values())
        and given.items() >= always.items()
        and (not trace or _IS_TRACE(trace))
    ):
        return given, ()
    given, foreign = _partition_headers(record)
    if contract is not None and contract.principal_header and PRINCIPAL not in given:
        given[PRINCIPAL] = unquote_header(_first(record, contract.principal_header) or b"")
    return given, foreign


def _partition_headers(record: Record) -> tuple[dict[str, bytes | None], Headers]:
    """Split a record's headers into those for which a message has fields, and all others.

    If a name occurs several times, the first valid header counts, and the rest belong to the others. The others are
    unchanged apart from prefixes, and limited in size.
    """
    given: dict[str, bytes | None] = {}
    foreign: list[tuple[str, bytes | None]] = []
    for header in record.headers:
        name, value = header
        if name in _UNQUOTED and value is not None:
            value = unquote_header(value)
        if name in _OURS and name not in given and value is not None and _is_usual(name, value):
            given[name] = value
        else:
            foreign.append((f"{FOREIGN}{name}" if name in _OURS else rename_foreign(name), value))
    return given, bound_headers(foreign, FOREIGN_BYTES_MAX, f"{record.topic}/{record.partition}/{record.offset}")


def _first(record: Record, name: str) -> bytes | None:
    """Return the value of the first header with this name; `None` if there is none."""
    return next((value for header, value in record.headers if header == name), None)


def _is_usual(name: str, value: bytes) -> bool:
    """Return whether the message's fields hold all information in this header."""
    if name == "traceparent":
        return not value or _IS_TRACE(value) is not None
    return _ALWAYS.get(name, value) == value


def rename_foreign(name: str) -> str:
    """Return the name under which another sender's header is kept, so that it cannot be mistaken for one of the
    toolkit's.

    The renaming can be reversed.

    >>> rename_foreign("x-shop"), rename_foreign("dead_reason"), rename_foreign("foreign_dead_reason")
    ('x-shop', 'foreign_dead_reason', 'foreign_foreign_dead_reason')
    """
    name = name.encode("utf-8", "backslashreplace").decode()
    return f"{FOREIGN}{name}" if name.startswith((FOREIGN, "dead_")) else name


def size_of(headers: Headers) -> int:
    """Return an upper bound of the bytes that these headers take in a record."""
    return sum(len(name.encode()) + len(value or b"") + 10 for name, value in headers)


def bound_headers(headers: list[tuple[str, bytes | None]], bytes_max: int, whole: str) -> Headers:
    """Return the first headers that fit into `bytes_max` bytes. If any are left out, a header is added that says how
    many, and where all of them can be found. `whole`: position of the record that has all of them."""
    if size_of(tuple(headers)) <= bytes_max:
        return tuple(headers)
    bounded: list[tuple[str, bytes | None]] = []
    left: list[tuple[str, bytes | None]] = []
    for header in headers:
        bytes_max -= size_of((header,))
        (bounded if bytes_max >= 0 else left).append(header)
    digest = sha256(repr(left).encode()).hexdigest()
    note = f"{len(left)} headers of {size_of(tuple(left))} bytes (sha256 of their text {digest}) lie at {whole}"
    return (*bounded, (f"{FOREIGN}left_out", note.encode()))


# -------------------------------------------------------------------- structured mode


def content_type_of(record: Record) -> str:
    """Return the content type in the headers of a record, without parameters; an empty string if there is none.

    >>> content_type_of(Record("t", 0, 0, None, b"{}", (("Content-Type", b"Application/JSON; charset=utf-8"),), 0))
    'application/json'
    """
    for name, value in record.headers:
        if value and name.lower() == "content-type":
            return media_type(value)
    return ""


def media_type(header: bytes) -> str:
    """Return the media type in the value of a header: in lower case, without parameters and surrounding quotes."""
    return unquote_header(header[:200]).decode("utf-8", "replace").partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """Return whether data of this content type is JSON.

    >>> is_json("application/json"), is_json("application/vnd.shop+json"), is_json("application/avro")
    (True, True, False)
    """
    return content_type in (JSON, "text/json") or content_type.endswith("+json")


def to_binary_mode(record: Record) -> Record:
    """Convert a record in structured mode to binary mode. Return a record in binary mode unchanged.

    Raises:
        BadInput: The structured event is invalid, or the record is in another mode, which is not supported.
    """
    content_type = content_type_of(record)
    if not content_type.startswith(OTHER_MODES):
        return record
    if content_type != STRUCTURED:
        raise BadInput(
            f"its content type is {quote_text(content_type)}, which is not read: have its sender write one event a "
            "record, "
            f"in binary mode or as {STRUCTURED}"
        )
    event = _event_in(record.value or b"")
    attributes = {name: value for name, value in event.items() if name not in ("data", "data_base64")}
    content_type, value = _data(event, str(attributes.pop("datacontenttype", None) or JSON))
    headers: Headers = (("content-type", content_type.encode()), *_headers(attributes))
    others = tuple(header for header in record.headers if header[0].lower() != "content-type")
    return record._replace(value=value, headers=(*headers, *others))


def _event_in(value: bytes) -> dict[str, Any]:
    """Parse the structured event in a record's value. Raises `BadInput` if it is invalid."""
    what = f"its content type is {STRUCTURED}, but its value is no CloudEvent:"
    try:
        event, twice = read_objects(value)
    except (ValueError, RecursionError) as why:
        raise BadInput(f"{what} it cannot be read as JSON: {_first_line(why)}") from None
    if not isinstance(event, dict):
        raise BadInput(f"{what} it is no JSON object")
    for doubled, names in twice:
        if doubled is event:
            names = [name for name in names if name in _NEEDED]
        elif not any(doubled is part for part in _objects_in(event.get("data"))):
            names = []
        if names:
            raise BadInput(f"{what} the name {_show_name(names[0])} comes twice in one object")
    if event.get("specversion") != "1.0":
        raise BadInput(f'{what} its "specversion" is not "1.0"')
    if not isinstance(event.get("type"), str) or not event["type"]:
        raise BadInput(f'{what} its "type" is missing')
    return event


def _data(event: dict[str, Any], content_type: str) -> tuple[str, bytes | None]:
    """Return the content type and the bytes of an event's data. Raises `BadInput` if either is invalid."""
    if not content_type.isprintable() or not content_type.isascii():
        raise BadInput(f'the event\'s "datacontenttype" is no content type: {_show_name(content_type)}')
    data, packed = event.get("data"), event.get("data_base64")
    if packed is not None:
        if data is not None:
            raise BadInput('the event has "data" and "data_base64": it may have one of them')
        try:
            return content_type, base64.b64decode(packed, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise BadInput('the event\'s "data_base64" is no base64 text') from None
    if data is None:
        return content_type, None
    if isinstance(data, str) and not is_json(media_type(content_type.encode())):
        return content_type, data.encode("utf-8", "surrogatepass")
    return content_type, json.dumps(data, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _objects_in(data: object) -> Iterator[object]:
    """Yield all objects in JSON data, at any depth."""
    open_ = [data]
    while open_:
        part = open_.pop()
        if isinstance(part, list):
            open_ += part
        elif isinstance(part, dict):
            yield part
            open_ += part.values()


def _headers(attributes: dict[str, Any]) -> Headers:
    """Return the attributes of a structured event as headers of binary mode. Raises `BadInput` if an attribute that is
    interpreted has a wrong type."""
    made = []
    for name, value in attributes.items():
        if value is None:
            continue
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif not isinstance(value, str | int):
            if name in _NEEDED:
                raise BadInput(f'the event\'s attribute "{name}" is neither text nor a whole number, true or false')
            value = json.dumps(value, ensure_ascii=False)
        made.append((f"ce_{name}", str(value).encode("utf-8", "surrogatepass")))
    return tuple(made)


def _first_line(why: Exception) -> str:
    return "it is nested too deeply" if isinstance(why, RecursionError) else str(why)


def _show_name(name: str) -> str:
    return quote_text(name[:_SHOWN_MAX])
