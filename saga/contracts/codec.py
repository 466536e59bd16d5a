"""Encode events to bytes and decode them: Avro's single-object encoding (C3 01, the schema's fingerprint, the record).

No registry is needed, because every version is in `contracts/`, and the fingerprint in a message identifies its
version. Avro's schema resolution reads a value of one version as another version. fastavro reads and writes the bytes;
`saga.contracts.conversion` applies logical types.

The values in a message are counted before it is decoded, because in some schemas a few bytes can stand for very many
values. In a contract every value takes at least one byte, because empty records and fields of type null are not
allowed. So the values in messages of at most `VALUES_MAX` bytes need not be counted. The nesting depth needs no limit,
because types are not recursive and the schema parser limits how deep they nest. Foreign schemas guarantee none of this:
values of a foreign schema are always counted, and they may nest as deep as Python's recursion limit allows.
"""

import json
import struct
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from typing import Any, TypeAlias

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.read import SchemaResolutionError

from saga.contracts import json_form
from saga.contracts.contract import Version
from saga.contracts.conversion import Convert, InvalidValue, MalformedBytes, from_raw, to_raw
from saga.contracts.library import Binding, Library, binding_of
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
from saga.contracts.schema_parser import NULLS
from saga.contracts.sensitive_fields import has_sensitive, record_with_marks
from saga.contracts.upcasters import is_closed_to, upcaster_of
from saga.errors import BadInput, NewerVersion, UnknownSchema
from saga.messages import Event, name_of

MARKER = b"\xc3\x01"
HEADER_SIZE = 10

_HINTS = {
    b"\0": "; it looks like a schema registry's wire format: set SAGA_REGISTRY",
    b"{": "; it looks like JSON: its content type has to say application/json",
}
"""Hints about what a value is instead of a single object, by its first byte."""
_canonical = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode

Read: TypeAlias = Callable[[bytes], Any]
"""Function that decodes a single object to its raw record."""
# What fastavro raises for bytes that do not match the schema. Any other exception would be a bug in this module.
_CORRUPT = (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error, SchemaResolutionError)

VALUES_MAX = 100_000
"""Largest number of values in one message: strings, numbers, records and lists together. With twenty times as many, one
message blocked the event loop for seconds and took 100 MB."""
_Walk: TypeAlias = Callable[["_Cursor"], None]
_LONG_BYTES_MAX = 10
TOO_DEEP = "its values are nested too deeply"
_NOT_OF_THE_SCHEMA = "the bytes end in the middle, or are not of its schema"


def encode(event: Event) -> bytes:
    """Encode an event as an Avro single object.

    Raises `BadInput` with the path of the first field whose value the contract does not allow, or at which the message
    exceeds `VALUES_MAX` values.
    """
    codec = _codec(type(event))
    out = BytesIO()
    out.write(codec.header)
    try:
        schemaless_writer(out, codec.schema, codec.to_raw(event))
        value = out.getvalue()
        if len(value) > VALUES_MAX:
            codec.check_values(value, HEADER_SIZE)
    except InvalidValue as why:
        raise BadInput(f"{codec.name}: {why}") from None
    except UnicodeEncodeError:
        raise BadInput(
            f"{codec.name}: {_find_unwritable(codec.to_raw(event), codec.version.record)}: {NO_TEXT}"
        ) from None
    return value


def decode(value: bytes | None, to: type[Event], library: Library) -> Event:
    """Decode an event to the class `to`, whichever version of its contract encoded `value`.

    A value of another version is converted by schema resolution. If the class's own version declares an upcaster for
    the older version (`"upcasts"`), it is converted by that upcaster.

    Raises:
        BadInput: the value is empty, truncated, not a single object, or of another contract; its bytes do not match the
            schema, or bytes are left over; a field has a value that its type does not allow; or there are more than
            `VALUES_MAX` values. The errors below are subclasses of it.
        UnknownSchema: the fingerprint is not in the library.
        NewerVersion: a newer version encoded the value, and the class's own version cannot read it.
        UpcasterFailed: an upcaster raised, or returned something unusable.
    """
    codec = _codec(to)
    value = value or b""
    read = codec.read_own if value.startswith(codec.header) else _make_other_reader(codec, to, value, library)
    try:
        event: Event = codec.from_raw(read(value))
    except InvalidValue as why:
        raise BadInput(f"{codec.name}: {why}") from None
    except (BadInput, MemoryError):
        raise
    except Exception as why:  # any sender may have written the value, and a retry would raise the same error
        reason = type(why).__name__ if codec.has_sensitive else why  # the text may contain a sensitive value
        raise BadInput(f"{codec.name}: its fields cannot be taken for what they are to be: {reason}") from why
    return event


def _make_other_reader(codec: "_Codec", to: type[Event], value: bytes, library: Library) -> Read:
    """Return the reader for values of a version other than the class's own, and cache it in the library."""
    known = library.readers.get((to, value[:HEADER_SIZE]))
    if known is not None:
        return known
    version = identify(value, library)
    if version.name != codec.name:
        raise BadInput(f"it is a {version.name} ({version.path}), not a {codec.name}")
    if version.number in codec.version.upcasts:
        read = _make_upcasting_reader(to, version, library)
    elif is_closed_to(codec.version, version):
        raise codec.refuse_newer(version, f"it reads {codec.version.path} by an upcaster, so it means something else")
    else:
        read = codec.reader_of(version)
    library.readers[to, value[:HEADER_SIZE]] = read
    return read


def _make_upcasting_reader(to: type[Event], old: Version, library: Library) -> Read:
    """Make a reader that upcasts values of an older version to the raw record of the class's own version."""
    own = _codec(to)

    def read(value: bytes) -> Any:
        upcaster = upcaster_of(to, old.number)
        # Only a class that no service consumes and no client listens to can lack one, such as one made for
        # `Client.outcome`: see `saga.contracts.upcasters.find_missing_upcasters`.
        if upcaster is None:
            raise BadInput(
                f"it is of {old.path}, which {own.version.path} reads by an upcaster, and {to.__module__}."
                f"{to.__qualname__} has none: declare it, @upcast({to.__name__}, {old.number})"
            )
        made = upcaster(decode(value, upcaster.takes, library))
        try:
            written = encode(made)  # so the result is exactly what a message of that version would be
        except BadInput as why:
            raise upcaster.failure(f"what it returned cannot be written: {why}") from why
        return (own.read_own if upcaster.gives is to else _make_other_reader(own, to, written, library))(written)

    return read


def identify(value: bytes | None, library: Library) -> Version:
    """Return the version that encoded `value`, found by the header of the value. Raises `BadInput` and `UnknownSchema`
    as `decode` does."""
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


def find_class(events: Iterable[type[Event]], value: bytes, library: Library) -> type[Event]:
    """Return the class to which a value is to be decoded: the class of the value's own version if there is one,
    otherwise another class of the same contract.

    Raises `BadInput` and `UnknownSchema` as `decode` does, and `LookupError` if none of the classes belongs to the
    value's contract.

    Args:
        events: classes of one contract or of several.
        value: an encoded event.
        library: the library that knows its version.
    """
    version = identify(value, library)
    named = [event for event in events if name_of(event) == version.name]
    exact = [event for event in named if event.__contract__ == version.path]
    return [*exact, *named][0]


def content(event: type[Event], value: bytes) -> bytes:
    """Return bytes that are the same for equal events: the contract name and the decoded fields.

    The ids of the events that a `Client` publishes are derived from these bytes. So the bytes do not contain the
    version, and leave out fields that equal their default: a new version with an additional field gives the same bytes.

    Args:
        event: the class of the event.
        value: what `encode` returned for an event of this class.
    """
    codec = _codec(event)
    fields = codec.essentials(codec.from_raw(codec.read_own(value)))
    return f"{codec.name}\n{_canonical(fields)}".encode()


def to_json(event: Event) -> dict[str, object]:
    """Return the fields of an event as JSON. Raises `BadInput` for a field that its contract does not allow."""
    encode(event)  # encoding checks the fields
    fields: dict[str, object] = _codec(type(event)).to_json(event)
    return fields


def from_json(data: object, to: type[Event]) -> Event:
    """Make an event from its fields as JSON. Raises `BadInput` with the path of the first field that is wrong."""
    for problem in find_json_problems(data, to):
        raise BadInput(problem)
    event: Event = _codec(to).from_json(data)
    return event


def find_json_problems(data: object, to: type[Event]) -> Iterator[str]:
    """Yield the reasons why `from_json` would refuse this JSON, each with the path of its field.

    The generator is lazy, because the JSON may have more problems than a caller wants to show.
    """
    codec = _codec(to)
    try:
        check_json(data)
    except InvalidValue as why:
        yield f"{codec.name}: {why}"
        return
    yield from (f"{codec.name}: {why}" for why in codec.problems_in(data))


class _Codec:
    """The compiled encoder and decoder of one event class."""

    def __init__(self, binding: Binding, cls: type[Event]) -> None:
        version = binding.version
        self.name = version.name
        self.version = version
        self.has_sensitive = has_sensitive(record_with_marks(binding))
        self.header = MARKER + version.fingerprint
        self.schema = parse_schema(without_logical_types(version.schema))
        self.to_raw = to_raw(version.record, binding.classes)
        self.from_raw: Convert = from_raw(version.record, binding.classes) or cls
        self.to_json = json_form.to_json(version.record, binding.classes)
        self.essentials = json_form.to_json(version.record, binding.classes, essential=True)
        self.from_json = json_form.from_json(version.record, binding.classes)
        self.problems_in = json_form.make_problem_finder(version.record, binding.classes)
        self.read_own = _reader(self.schema, None)
        self.check_values = check_values(self.schema)

    def reader_of(self, writer: Version) -> Read:
        """Make a function that reads values of another version as values of the class's own version."""
        read = make_reader(parse_schema(without_logical_types(writer.schema)), self.version)
        if writer.number < self.version.number:
            return read

        def read_newer(value: bytes) -> Any:
            try:
                return read(value)
            except BadInput as why:
                if isinstance(why.__cause__, SchemaResolutionError):
                    raise self.refuse_newer(writer, _describe_mismatch(why.__cause__)) from why
                raise

        return read_newer

    def refuse_newer(self, writer: Version, why: str) -> NewerVersion:
        """Make the error for a value of a newer version that the class's own version cannot read."""
        return NewerVersion(
            writer.fingerprint,
            f"it is of {writer.path}, and this release of the service, which knows {self.version.path}, cannot read "
            f"it: {why}",
        )


class _Codecs(dict[type[Event], _Codec]):
    """Codecs by class, each made when it is first needed."""

    def __missing__(self, event: type[Event]) -> _Codec:
        codec = self[event] = _Codec(binding_of(event), event)
        return codec


_codec = _Codecs().__getitem__


def make_reader(writer: Any, version: Version, *, uncounted_bytes_max: int = VALUES_MAX) -> Read:
    """Make a function that decodes values of a writer's schema to raw records of a version. That function raises
    `BadInput`.

    Args:
        writer: the writer's schema, parsed by fastavro.
        version: the reader's version, whose fields the raw records have.
        uncounted_bytes_max: largest size in bytes of a message whose values are not counted; 0 for a foreign schema.
    """
    reader = parse_schema(without_logical_types(version.schema))
    _set_defaults(reader, version.record)
    return _reader(writer, reader, uncounted_bytes_max)


def _reader(writer: Any, reader: Any, uncounted_bytes_max: int = VALUES_MAX) -> Read:
    """Make a function that skips a value's header and decodes the rest to the raw record."""

    values = check_values(writer)
    if reader is not None:
        writer, reader = _define_names(writer, {}), _define_names(reader, {})

    def read(value: bytes) -> Any:
        if len(value) > uncounted_bytes_max:
            try:
                values(value, HEADER_SIZE)
            except InvalidValue as why:
                if len(value) > VALUES_MAX or not isinstance(
                    why, MalformedBytes
                ):  # other malformed bytes get a better message below
                    raise BadInput(f"the value cannot be read as {writer['name']}: {why}") from None
        body = BytesIO(value)
        body.seek(HEADER_SIZE)
        try:
            raw = schemaless_reader(body, writer, reader)
        except EOFError:
            raise BadInput(f"the value is partial: it ends in the middle of {writer['name']}") from None
        except UnicodeDecodeError as why:
            raise BadInput(f"the value cannot be read as {writer['name']}: a string in it is not UTF-8") from why
        except SchemaResolutionError as why:
            raise BadInput(f"the value cannot be read as {writer['name']}: {_describe_mismatch(why)}") from why
        except _CORRUPT as why:  # the text of fastavro would only help those who know fastavro
            raise BadInput(f"the value cannot be read as {writer['name']}: its bytes are not those of one") from why
        if body.tell() != len(value):
            extra = len(value) - body.tell()
            raise BadInput(f"the value has {extra} bytes behind the end of {writer['name']}")
        return raw

    return read


def _describe_mismatch(why: SchemaResolutionError) -> str:
    """Describe why two schemas do not match, without the value, which may be sensitive."""
    return "a symbol of an enum that the reader does not know" if "reader symbol list" in str(why) else str(why)


def _set_defaults(schema: Any, type_: Type) -> None:
    """Replace the defaults in a parsed reader's schema with raw values.

    fastavro returns defaults as the schema's JSON contains them, where bytes are written as text.
    """
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
                if branch not in NULLS:
                    _set_defaults(branch, inner)
        case _:
            pass  # a primitive, or the name of a record that has been visited before


def _define_names(schema: Any, known: dict[str, Any]) -> Any:
    """Return a parsed schema with each name of a type replaced with its definition, except within that definition.

    fastavro cannot resolve a type against a union if one of them only names the type and the other one defines it, as
    they do if a field became optional and another field has the definition now.

    Args:
        schema: the schema, or a part of it.
        known: definitions of the types defined so far, by full name; those in `schema` are added.
    """
    if isinstance(schema, str):
        return known.get(schema, schema)
    if isinstance(schema, list):
        return [_define_names(branch, known) for branch in schema]
    made = dict(schema)
    if "fields" in made:
        made["fields"] = [{**field, "type": _define_names(field["type"], known)} for field in made["fields"]]
    for part in ("items", "values"):
        if part in made:
            made[part] = _define_names(made[part], known)
    if "name" in made:
        known[made["name"]] = made
    return made


def _find_unwritable(raw: Any, type_: Type) -> str | None:
    """Return the path of a string that cannot be encoded as UTF-8; `None` if there is none.

    The path stops at the first sensitive field, because map keys inside of that field are sensitive, too.
    """
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
        below = _find_unwritable(part, of)
        if below is not None:
            key = f"[{name}]" if isinstance(name, int) else ascii(name)[1:-1]
            if is_sensitive:
                return key
            return f"{key}{'.' if below and not below.startswith('[') else ''}{below}"
    return None


# -------------------------------------------------------------------- bounds


def check_values(schema: Any) -> Callable[[bytes, int], None]:
    """Make a function that counts the values in an encoded record. Its arguments are the bytes, and the offset at which
    the record begins.

    That function raises `InvalidValue` with the path if there are more than `VALUES_MAX` values, or if the bytes do not
    match the schema. `schema` must have been parsed by fastavro.
    """
    walk = _walk(schema, dict(_PRIMITIVES))

    def check(value: bytes, at: int) -> None:
        cursor = _Cursor(value, at)
        try:
            walk(cursor)
        except RecursionError:
            raise InvalidValue(TOO_DEEP) from None
        if cursor.left < 0:
            raise _too_many()

    return check


def check_json(data: object) -> None:
    """Check that JSON has at most `VALUES_MAX` values. Raises `InvalidValue` if it has more.

    The error has no path, because the JSON has not been compared with the schema yet.
    """
    left, open_ = VALUES_MAX, [data]
    while open_:
        part = open_.pop()
        left -= 1
        if isinstance(part, list):
            open_ += part
        elif isinstance(part, dict):
            open_ += part.values()
        if len(open_) > left:
            raise _too_many()


class _Cursor:
    """Position in the bytes of a value, together with the number of values that are still allowed."""

    __slots__ = ("at", "left", "value")

    def __init__(self, value: bytes, at: int) -> None:
        self.value, self.at, self.left = value, at, VALUES_MAX

    def long(self) -> int:
        """Read a variable-length number of one to ten bytes."""
        read = shift = 0
        for byte in self.value[self.at : self.at + _LONG_BYTES_MAX]:
            self.at += 1
            read |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (read >> 1) ^ -(read & 1)
            shift += 7
        raise MalformedBytes(_NOT_OF_THE_SCHEMA)

    def skip(self, size: int) -> None:
        """Skip `size` bytes."""
        if not 0 <= size <= len(self.value) - self.at:
            raise MalformedBytes(_NOT_OF_THE_SCHEMA)
        self.at += size


def _too_many() -> InvalidValue:
    return InvalidValue(f"one message holds at most {VALUES_MAX} values; say it in several, or refer to what is large")


def _walk(schema: Any, named: dict[str, _Walk]) -> _Walk:
    """Make a function that skips one value and counts it.

    Args:
        schema: the type of the value.
        named: the functions for primitives and for the named types defined so far; functions for named types in
            `schema` are added.
    """
    if isinstance(schema, list):
        return _union([_walk(branch, named) for branch in schema])
    if isinstance(schema, str):
        return named.get(schema) or (
            lambda cursor: named[schema](cursor)
        )  # for a type that contains itself, the function does not exist yet
    match schema["type"]:
        case "record":
            walk = named[schema["name"]] = _record([(f["name"], _walk(f["type"], named)) for f in schema["fields"]])
            return walk
        case "fixed":
            walk = named[schema["name"]] = _walk_fixed(schema["size"])
            return walk
        case "enum":
            named[schema["name"]] = _long
            return _long
        case "array":
            return _blocks(_walk(schema["items"], named))
        case "map":
            return _blocks(_walk(schema["values"], named), keys=True)
        case kind:
            return _walk(kind, named)


def _long(cursor: _Cursor) -> None:
    cursor.left -= 1
    cursor.long()


def _text(cursor: _Cursor) -> None:
    cursor.left -= 1
    cursor.skip(cursor.long())


def _walk_fixed(width: int) -> _Walk:
    def walk(cursor: _Cursor) -> None:
        cursor.left -= 1
        cursor.skip(width)

    return walk


_PRIMITIVES: dict[str, _Walk] = {
    "null": _walk_fixed(0),
    "boolean": _walk_fixed(1),
    "float": _walk_fixed(4),
    "double": _walk_fixed(8),
    **dict.fromkeys(("int", "long"), _long),
    **dict.fromkeys(("string", "bytes"), _text),
}


def _union(branches: list[_Walk]) -> _Walk:
    def walk(cursor: _Cursor) -> None:
        number = cursor.long()
        if not 0 <= number < len(branches):
            raise MalformedBytes(_NOT_OF_THE_SCHEMA)
        branches[number](cursor)

    return walk


def _record(fields: list[tuple[str, _Walk]]) -> _Walk:
    def walk(cursor: _Cursor) -> None:
        cursor.left -= 1
        at = ""
        try:
            for at, inside in fields:  # noqa: B007 - the error needs the field that failed
                inside(cursor)
        except InvalidValue as why:
            raise why.under(at) from None

    return walk


def _blocks(inside: _Walk, *, keys: bool = False) -> _Walk:
    """Make a function that skips and counts the items of an array, or the entries of a map if `keys` is true."""

    def walk(cursor: _Cursor) -> None:
        cursor.left -= 1
        number = 0
        while count := cursor.long():
            if count < 0:
                count = -count
                cursor.long()  # size of the block in bytes, which is not needed here
            if count > cursor.left:
                raise _too_many()
            for number in range(number + 1, number + count + 1):  # noqa: B020 - continues after the previous block
                if keys:
                    cursor.skip(cursor.long())
                try:
                    inside(cursor)
                except InvalidValue as why:
                    raise why.under(f"[{number - 1}]") from None
                if cursor.left < 0:
                    raise _too_many()

    return walk
