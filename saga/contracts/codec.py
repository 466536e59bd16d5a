"""Encoding of events to bytes and back: Avro's single-object encoding, C3 01, the schema's fingerprint, the record.

No registry is needed: every version's fingerprint is in `contracts/`. What was written with one version is read as
another by Avro's schema resolution. fastavro does the bytes; logical types are applied by `saga.contracts.convert`.
"""

import json
import struct
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from typing import Any, TypeAlias

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.read import SchemaResolutionError

from saga.contracts import jsonform
from saga.contracts.bounds import VALUES_MAX, check_json, check_values
from saga.contracts.contract import Version
from saga.contracts.convert import from_raw, to_raw
from saga.contracts.hiding import has_sensitive, marked
from saga.contracts.library import Binding, Library, binding_of
from saga.contracts.scalars import Convert, NotOfTheSchema, Wrong
from saga.contracts.schema import (
    MISSING,
    NO_TEXT,
    ArrayType,
    MapType,
    OptionalType,
    RecordType,
    Type,
    is_text,
    without_logical_types,
)
from saga.contracts.upcast import is_closed_to, upcaster_of
from saga.errors import BadInput, NewerVersion, UnknownSchema
from saga.messages import Event, name_of

MARKER = b"\xc3\x01"
HEADER_SIZE = 10

_HINTS = {
    b"\0": "; it looks like a schema registry's wire format: set SAGA_REGISTRY",
    b"{": "; it looks like JSON: its content type has to say application/json",
}
"""Likely forms of values that are no single objects, by their first byte."""
_canonical = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode

Read: TypeAlias = Callable[[bytes], Any]
"""Function from a single object to the raw record in it."""
# What fastavro raises for bytes that are not of the schema; anything else would be a mistake of ours.
_CORRUPT = (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error, SchemaResolutionError)


def encode(event: Event) -> bytes:
    """Encode an event. Raises `BadInput` naming the path of a field that its contract does not allow, or in which there
    are more values than one message may hold."""
    codec = _codec(type(event))
    out = BytesIO()
    out.write(codec.header)
    try:
        schemaless_writer(out, codec.schema, codec.to_raw(event))
        value = out.getvalue()
        if len(value) > VALUES_MAX:
            codec.check_values(value, HEADER_SIZE)
    except Wrong as why:
        raise BadInput(f"{codec.name}: {why}") from None
    except UnicodeEncodeError:
        raise BadInput(f"{codec.name}: {_unwritable(codec.to_raw(event), codec.version.record)}: {NO_TEXT}") from None
    return value


def decode(value: bytes | None, to: type[Event], library: Library) -> Event:
    """Decode an event as the class `to`, whichever version wrote `value`: an older one by resolution, or by the
    upcaster of that class where its version says so.

    Raises `BadInput` with the reason: empty, partial, no single object, another type, bytes left over, bytes that are
    not of the schema, a field with what its type does not allow, more values than one message may hold; as
    `UnknownSchema`, a fingerprint that is not in the library; as `NewerVersion`, what a newer version wrote and this
    one cannot read; and as `UpcasterFailed`, what an upcaster made nothing of.
    """
    codec = _codec(to)
    value = value or b""
    read = codec.read_own if value.startswith(codec.header) else _reader_of_another(codec, to, value, library)
    try:
        event: Event = codec.from_raw(read(value))
    except Wrong as why:
        raise BadInput(f"{codec.name}: {why}") from None
    except (BadInput, MemoryError):
        raise
    except Exception as why:  # anybody may have written it: whatever it makes of us, it is no reason to try again
        said = type(why).__name__ if codec.has_sensitive else why  # its text may be a value, and that sensitive
        raise BadInput(f"{codec.name}: its fields cannot be taken for what they are to be: {said}") from why
    return event


def _reader_of_another(codec: "_Codec", to: type[Event], value: bytes, library: Library) -> Read:
    """Reader of what another version than the class's own wrote. The library has it, which knows the version."""
    known = library.readers.get((to, value[:HEADER_SIZE]))
    if known is not None:
        return known
    version = identify(value, library)
    if version.name != codec.name:
        raise BadInput(f"it is a {version.name} ({version.path}), not a {codec.name}")
    if version.number in codec.version.upcasts:
        read = _upcasting(to, version, library)
    elif is_closed_to(codec.version, version):
        raise codec.too_new(version, f"it reads {codec.version.path} by an upcaster, so it means something else")
    else:
        read = codec.reader_of(version)
    library.readers[to, value[:HEADER_SIZE]] = read
    return read


def _upcasting(to: type[Event], old: Version, library: Library) -> Read:
    """Make a function from a value of an older version to the raw record of the class's own."""
    own = _codec(to)

    def read(value: bytes) -> Any:
        upcaster = upcaster_of(to, old.number)
        if upcaster is None:  # of a class that no service takes: see `saga.contracts.upcast.lacking`
            raise BadInput(
                f"it is of {old.path}, which {own.version.path} reads by an upcaster, and {to.__module__}."
                f"{to.__qualname__} has none: declare it, @upcast({to.__name__}, {old.number})"
            )
        made = upcaster(decode(value, upcaster.takes, library))
        try:
            written = encode(made)  # so it is what a message of that version is, and no more
        except BadInput as why:
            raise upcaster.failed(f"what it returned cannot be written: {why}") from why
        return (own.read_own if upcaster.gives is to else _reader_of_another(own, to, written, library))(written)

    return read


def identify(value: bytes | None, library: Library) -> Version:
    """Find the version that wrote `value`. Raises `BadInput` and `UnknownSchema` as `decode`, for what the header
    tells."""
    if not value:
        raise BadInput("the message is empty: it has no value to decode")
    if value[:2] != MARKER[: len(value)]:
        hint = _HINTS.get(value[:1], "")
        raise BadInput(f"the value is no Avro single object: it begins with {value[:2].hex(' ')}, not c3 01{hint}")
    if len(value) < HEADER_SIZE:
        raise BadInput(f"the value is partial: {len(value)} bytes, and the header alone has {HEADER_SIZE}")
    version = library.by_fingerprint.get(value[2:HEADER_SIZE])
    if version is None:
        raise UnknownSchema(
            value[2:HEADER_SIZE],
            f"no schema in {library.folder} has the fingerprint {value[2:HEADER_SIZE].hex()}; get the newest contracts",
        )
    return version


def class_among(events: Iterable[type[Event]], value: bytes, library: Library) -> type[Event]:
    """Find the class, of some of one contract or several, that a value is of: that of its own version, if it is there.
    Raises `BadInput` and `UnknownSchema` as `decode`, and `LookupError` if there is none."""
    version = identify(value, library)
    named = [event for event in events if name_of(event) == version.name]
    exact = [event for event in named if event.__contract__ == version.path]
    return [*exact, *named][0]


def content(event: type[Event], value: bytes) -> bytes:
    """Bytes that are the same for equal events: contract name without version, and the fields after decoding. `value`:
    what `encode` made of an event of this class.

    Fields equal to their default are left out, so a version that adds one changes nothing. The ids of a Client's
    events are made of it.
    """
    codec = _codec(event)
    fields = codec.essentials(codec.from_raw(codec.read_own(value)))
    return f"{codec.name}\n{_canonical(fields)}".encode()


def to_json(event: Event) -> dict[str, object]:
    """Fields of an event as JSON has them. Raises `BadInput` for a field that its contract does not allow."""
    encode(event)  # looks at them
    fields: dict[str, object] = _codec(type(event)).to_json(event)
    return fields


def from_json(data: object, to: type[Event]) -> Event:
    """Make an event of that class with these fields. Raises `BadInput` naming the path of the field that is wrong."""
    for problem in wrong_in(data, to):
        raise BadInput(problem)
    event: Event = _codec(to).from_json(data)
    return event


def wrong_in(data: object, to: type[Event]) -> Iterator[str]:
    """Reasons for which `from_json` would refuse this, each naming the path of its field; nothing if it would not.
    Found as they are asked for: a line may be wrong in more places than anybody wants to see."""
    codec = _codec(to)
    try:
        check_json(data)
    except Wrong as why:
        yield f"{codec.name}: {why}"
        return
    yield from (f"{codec.name}: {why}" for why in codec.problems_in(data))


class _Codec:
    """Encoder and decoder of one class, compiled once."""

    def __init__(self, binding: Binding, cls: type[Event]) -> None:
        version = binding.version
        self.name = version.name
        self.version = version
        self.has_sensitive = has_sensitive(marked(binding))
        self.header = MARKER + version.fingerprint
        self.schema = parse_schema(without_logical_types(version.schema))
        self.to_raw = to_raw(version.record, binding.classes)
        self.from_raw: Convert = from_raw(version.record, binding.classes) or cls
        self.to_json = jsonform.to_json(version.record, binding.classes)
        self.essentials = jsonform.to_json(version.record, binding.classes, essential=True)
        self.from_json = jsonform.from_json(version.record, binding.classes)
        self.problems_in = jsonform.problems_in(version.record, binding.classes)
        self.read_own = _reader(self.schema, None)
        self.check_values = check_values(self.schema)

    def reader_of(self, writer: Version) -> Read:
        """Compile the reader of another version: it is read as the version of the class."""
        read = reader_between(parse_schema(without_logical_types(writer.schema)), self.version)
        if writer.number < self.version.number:
            return read

        def read_newer(value: bytes) -> Any:
            try:
                return read(value)
            except BadInput as why:
                if isinstance(why.__cause__, SchemaResolutionError):
                    raise self.too_new(writer, _unlike(why.__cause__)) from why
                raise

        return read_newer

    def too_new(self, writer: Version, why: str) -> NewerVersion:
        """Make the refusal of what a newer version wrote."""
        return NewerVersion(
            writer.fingerprint,
            f"it is of {writer.path}, and this release of the service, which knows {self.version.path}, cannot read "
            f"it: {why}",
        )


class _Codecs(dict[type[Event], _Codec]):
    """Codecs by class, each made when it is first asked for."""

    def __missing__(self, event: type[Event]) -> _Codec:
        codec = self[event] = _Codec(binding_of(event), event)
        return codec


_codec = _Codecs().__getitem__


def reader_between(writer: Any, version: Version, *, uncounted_bytes_max: int = VALUES_MAX) -> Read:
    """Make a function that reads what was written with a schema, as fastavro has parsed it, as a version. It raises
    `BadInput`. `uncounted_bytes_max`: largest value whose parts are not counted; 0 for a schema of somebody else's."""
    reader = parse_schema(without_logical_types(version.schema))
    _set_defaults(reader, version.record)
    return _reader(writer, reader, uncounted_bytes_max)


def _reader(writer: Any, reader: Any, uncounted_bytes_max: int = VALUES_MAX) -> Read:
    """Make a function from a value, of which the header is known, to the raw record."""

    values = check_values(writer)

    def read(value: bytes) -> Any:
        if len(value) > uncounted_bytes_max:
            try:
                values(value, HEADER_SIZE)
            except Wrong as why:
                if len(value) > VALUES_MAX or not isinstance(why, NotOfTheSchema):  # else it is told better below
                    raise BadInput(f"the value cannot be read as {writer['name']}: {why}") from None
        body = BytesIO(value)
        body.seek(HEADER_SIZE)
        try:
            raw = schemaless_reader(body, writer, reader)
        except EOFError:
            raise BadInput(f"the value is partial: it ends in the middle of {writer['name']}") from None
        except UnicodeDecodeError as why:
            raise BadInput(f"the value cannot be read as {writer['name']}: a text in it is not UTF-8") from why
        except SchemaResolutionError as why:
            raise BadInput(f"the value cannot be read as {writer['name']}: {_unlike(why)}") from why
        except _CORRUPT as why:  # its words are for who knows the library
            raise BadInput(f"the value cannot be read as {writer['name']}: its bytes are not those of one") from why
        if body.tell() != len(value):
            extra = len(value) - body.tell()
            raise BadInput(f"the value has {extra} bytes behind the end of {writer['name']}")
        return raw

    return read


def _unlike(why: SchemaResolutionError) -> str:
    """Words about two schemas that do not go together, without the value."""
    return "a symbol of an enum that the reader does not know" if "reader symbol list" in str(why) else str(why)


def _set_defaults(schema: Any, type_: Type) -> None:
    """Give a parsed reader's schema raw defaults: fastavro hands them out as they are, and JSON has no bytes."""
    match type_:
        case RecordType(fields=fields) if isinstance(schema, dict):
            for parsed, field in zip(schema["fields"], fields, strict=True):
                if field.default is not MISSING:
                    parsed["default"] = field.default
                _set_defaults(parsed["type"], field.type)
        case ArrayType(items):
            _set_defaults(schema["items"], items)
        case MapType(values):
            _set_defaults(schema["values"], values)
        case OptionalType(inner):
            for branch in schema:
                if branch != "null":
                    _set_defaults(branch, inner)
        case _:
            pass  # a primitive, or a record met before, of which only the name is here


def _unwritable(raw: Any, type_: Type) -> str | None:
    """Path of a text that UTF-8 does not have, up to a sensitive field; `None` if there is none."""
    while isinstance(type_, OptionalType):
        type_ = type_.inner
    match raw, type_:
        case str(), _:
            return None if is_text(raw) else ""
        case dict(), RecordType(fields=fields):
            parts: Any = [(f.name, raw[f.name], f.type, f.sensitive) for f in fields]
        case dict(), MapType(values):
            parts = [(name, part, values, False) for name, value in raw.items() for part in (name, value)]
        case list(), ArrayType(items):
            parts = [(i, part, items, False) for i, part in enumerate(raw)]
        case _:
            return None
    for name, part, of, is_sensitive in parts:
        below = _unwritable(part, of)
        if below is not None:
            key = f"[{name}]" if isinstance(name, int) else ascii(name)[1:-1]
            if is_sensitive:
                return key
            return f"{key}{'.' if below and not below.startswith('[') else ''}{below}"
    return None
