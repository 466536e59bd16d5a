"""Sealing of an event's sensitive fields in its bytes: they stay bytes of its schema, in which texts are sealed ones.

It is done on what is encoded already, by the version that encodes it. So whoever reads, of whatever version, by
resolution or an upcaster, reads bytes that were opened before; and encoding and decoding know nothing of keys.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeAlias

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from saga.contracts.codec import HEADER_SIZE, identify
from saga.contracts.contract import Version
from saga.contracts.hiding import has_sensitive
from saga.contracts.library import Library, binding_of
from saga.contracts.schema import (
    MISSING,
    ArrayType,
    MapType,
    OptionalType,
    RecordType,
    ScalarType,
    Type,
    described,
    without_logical_types,
)
from saga.errors import BadInput, KeyMissing
from saga.messages import Event
from saga.sealing import text as texts
from saga.sealing.text import ERASED, Unopened, is_sealed, name_in

if TYPE_CHECKING:
    from saga.sealing.keys import SubjectKey

Change: TypeAlias = Callable[[str, bytes], bytes]
"""Function from the place and the bytes of a value to what stands there instead."""
SEALABLE = (ScalarType("string"), ScalarType("bytes"))


def sealed(value: bytes, version: Version, saga: str, key: "SubjectKey | None") -> bytes:
    """Seal the sensitive fields of an encoded event. `key`: that of its subject; `None`: which was forgotten, so that
    nobody is to read them ever. A value that equals its field's default is left as it is: the schema tells it."""

    def change(place: str, plain: bytes) -> bytes:
        return ERASED.encode() if key is None else key.seal(plain, f"{version.name}|{place}|{saga}").encode()

    return _rewritten(value, version, change, leaves_defaults=True)


def opened(value: bytes, library: Library, saga: str, keys: "Callable[[str], SubjectKey | None]") -> bytes:
    """Open the sealed fields of an encoded event. `keys`: gives the key of a name; `None`: its subject was forgotten,
    and the value reads `erased`; or raises `KeyMissing`, as this does then. Raises `BadInput` for one that was sealed
    for another place, or changed."""
    version = identify(value, library)

    def change(place: str, text: bytes) -> bytes:
        said = text.decode("ascii", "replace")
        if not is_sealed(said):
            return text
        key = keys(name_in(said))
        if key is None:
            return ERASED.encode()
        try:
            return key.open(said, f"{version.name}|{place}|{saga}")
        except Unopened:
            raise BadInput(
                f"{version.name}: {place}: it was sealed for another field or saga, or changed since"
            ) from None

    return _rewritten(value, version, change, leaves_defaults=False)


def names_in(value: bytes, library: Library) -> set[str]:
    """Names of the keys that it takes to open an encoded event: of what is sealed in its sensitive fields."""
    names = set[str]()
    if texts.names_in(value):

        def note(_: str, text: bytes) -> bytes:
            said = text.decode("ascii", "replace")
            if is_sealed(said):
                names.add(name_in(said))
            return text

        with suppress(BadInput):  # who decodes it says what is wrong with it
            _rewritten(value, identify(value, library), note, leaves_defaults=False)
    return names


def subject_of(event: Event) -> str:
    """Subject of an event: the one that it is about."""
    return str(getattr(event, binding_of(type(event)).version.subject))


def unsealable(type_: Type, at: str = "") -> Iterator[str]:
    """Problems of a record of which the sensitive fields are to be sealed, each with its path."""
    match type_:
        case RecordType(fields=fields):
            for field in fields:
                path = f"{at}.{field.name}".lstrip(".")
                inner = field.type.inner if isinstance(field.type, OptionalType) else field.type
                if not field.sensitive:
                    yield from unsealable(field.type, path)
                elif inner not in SEALABLE:
                    yield (
                        f"field {path} is sensitive and {described(field.type)}: a string or bytes, "
                        "or an optional one, holds a sealed text; say it as a string, or mark the fields inside of it"
                    )
        case ArrayType(inner) | MapType(inner) | OptionalType(inner):
            yield from unsealable(inner, at)
        case _:
            return


def _rewritten(value: bytes, version: Version, change: Change, *, leaves_defaults: bool) -> bytes:
    """An encoded event with its sensitive texts changed."""
    if not has_sensitive(version.record):
        return value
    schema, body = _schema(version), BytesIO(value)
    body.seek(HEADER_SIZE)
    try:
        raw: Any = schemaless_reader(body, schema, None)
        rest = body.read()
        _change(raw, version.record, change, leaves_defaults)
        out = BytesIO()
        out.write(value[:HEADER_SIZE])
        schemaless_writer(out, schema, raw)
    except (BadInput, KeyMissing):
        raise
    except Exception:  # noqa: BLE001 - bytes of anybody: who decodes them says what is wrong with them
        return value
    return out.getvalue() + rest


def _change(raw: Any, type_: Type, change: Change, leaves_defaults: bool) -> None:
    """Change the sensitive texts of a raw value in place."""
    match type_:
        case RecordType(fields=fields):
            for field in fields:
                part = raw[field.name]
                if not field.sensitive:
                    _change(part, field.type, change, leaves_defaults)
                elif leaves_defaults and field.default is not MISSING and part == field.default:
                    continue
                elif isinstance(part, str):
                    raw[field.name] = change(field.name, part.encode()).decode()
                elif isinstance(part, bytes):
                    raw[field.name] = change(field.name, part)
        case ArrayType(items):
            for part in raw:
                _change(part, items, change, leaves_defaults)
        case MapType(values):
            for part in raw.values():
                _change(part, values, change, leaves_defaults)
        case OptionalType(inner) if raw is not None:
            _change(raw, inner, change, leaves_defaults)
        case _:
            return


@lru_cache(maxsize=4096)
def _schema(version: Version) -> Any:
    return parse_schema(without_logical_types(version.schema))
