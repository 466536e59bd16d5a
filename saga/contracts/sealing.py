"""Sealing of an event's sensitive fields in its bytes: they stay bytes of its schema, in which texts are sealed ones.

It is done on what is encoded already, by the version that encodes it. So whoever reads, of whatever version, by
resolution or an upcaster, reads bytes that were opened before; and encoding and decoding know nothing of keys.

A sealed text is bound to the contract, the saga and the path of its field, `payers[1].iban`: two texts of one event
that have changed places do not open.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeAlias

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from saga.contracts.codec import HEADER_SIZE, MARKER, identify
from saga.contracts.contract import Version
from saga.contracts.hiding import has_sensitive
from saga.contracts.library import Library, binding_of
from saga.contracts.registered import FRAME, FRAME_SIZE, id_in
from saga.contracts.schema import (
    MISSING,
    ArrayType,
    Field,
    MapType,
    OptionalType,
    RecordType,
    ScalarType,
    Type,
    described,
    without_logical_types,
)
from saga.encryption import text as texts
from saga.encryption.text import ERASED, DecryptionFailed, WrongSecret, is_sealed, key_name_of
from saga.errors import BadInput, KeyMissing
from saga.messages import Event

if TYPE_CHECKING:
    from saga.encryption.keys import SubjectKey

Change: TypeAlias = Callable[[str, bytes], bytes]
"""Function from the path and the bytes of a value to what stands there instead."""
WHOLE = "*"
"""Path in the place of a value that is sealed as a whole: it is no event, or nobody here knows its schema."""
_PREFIX = texts.PREFIX.encode()
NO_KEYS = (
    "it holds sealed values, and this process has no keys: set SAGA_KEYS to the folder of keys that all services share"
)
OTHER_SECRET = (
    "it was sealed with another secret of its subject, which was lost from the folder of keys, and made anew: restore "
    "the older one"
)
SEALABLE = (ScalarType("string"), ScalarType("bytes"))


def sealed(value: bytes, version: Version, saga: str, key: "SubjectKey | None", *, arrived: bool = False) -> bytes:
    """Seal the sensitive fields of an encoded event. `key`: that of its subject; `None`: which was forgotten, so that
    nobody is to read them ever. A value that equals its field's default is left as it is: the schema tells it.
    `arrived`: it comes from the log, where its sender may have sealed it; what is sealed stays as it is."""

    def change(path: str, plain: bytes) -> bytes:
        if arrived and is_sealed(plain.decode("ascii", "replace")):
            return plain
        return ERASED.encode() if key is None else key.seal(plain, f"{version.name}|{path}|{saga}").encode()

    return _rewritten(value, version, change, leaves_defaults=True)


def opened(value: bytes, library: Library, saga: str, keys: "Callable[[str], SubjectKey | None]") -> bytes:
    """Open the sealed fields of an encoded event. `keys`: gives the key of a name; `None`: its subject was forgotten,
    and the value reads `erased`; or raises `KeyMissing`, as this does then. Raises `BadInput` for one that was sealed
    for another place, or changed."""
    version = identify(value, library)

    def change(path: str, text: bytes) -> bytes:
        said = text.decode("ascii", "replace")
        if not is_sealed(said):
            return text
        key = keys(key_name_of(said))
        if key is None:
            return ERASED.encode()
        field = path.rpartition(".")[2]
        try:
            return key.open(said, f"{version.name}|{path}|{saga}", f"{version.name}|{field}|{saga}")
        except WrongSecret:
            raise KeyMissing(f"{version.name}: {path}: {OTHER_SECRET}") from None
        except DecryptionFailed:
            raise BadInput(
                f"{version.name}: {path}: it was sealed for another field or saga, or changed since"
            ) from None

    return _rewritten(value, version, change, leaves_defaults=False)


def is_whole(value: bytes, version: Version) -> bool:
    """Return whether a value is an encoded event of that version, and nothing else."""
    try:
        return not _read(value, version)[1]
    except Exception:  # noqa: BLE001 - bytes of anybody
        return False


def subject_in_the_clear(value: bytes, version: Version) -> str | None:
    """Subject of an encoded event that has a sensitive field in the clear; `None` for any other."""
    found: list[str] = []

    def note(path: str, plain: bytes) -> bytes:
        text = plain.decode("ascii", "replace")
        if text != ERASED and not is_sealed(text):
            found.append(path)
        return plain

    _rewritten(value, version, note, leaves_defaults=True)
    return str(_read(value, version)[0][version.subject]) if found else None


def names_in(value: bytes, library: Library) -> set[str]:
    """Names of the keys that it takes to open an encoded event: of what is sealed in its sensitive fields."""
    names = set[str]()
    if texts.find_key_names(value):

        def note(_: str, text: bytes) -> bytes:
            said = text.decode("ascii", "replace")
            if is_sealed(said):
                names.add(key_name_of(said))
            return text

        with suppress(BadInput):  # who decodes it says what is wrong with it
            _rewritten(value, identify(value, library), note, leaves_defaults=False)
    return names


def header_of_unknown(value: bytes, library: Library) -> bytes:
    """What a value begins with that says its schema, where that schema is not known here; empty for any other."""
    if value[:2] == MARKER and len(value) >= HEADER_SIZE:
        return b"" if value[2:HEADER_SIZE] in library.by_fingerprint else value[:HEADER_SIZE]
    return value[:FRAME_SIZE] if id_in(value) is not None else b""


def seal_whole(value: bytes, header: bytes, name: str, saga: str, key: "SubjectKey | None") -> bytes:
    """Seal a value as a whole but for its header, which says by what schema it is to be read. `name`: the contract's.
    `key`: of its subject; `None`: which was forgotten."""
    if key is None:
        return ERASED.encode()
    return header + key.seal(value[len(header) :], _place_of_whole(name, header, saga)).encode()


def split_whole(value: bytes) -> tuple[bytes, str] | None:
    """Split a value that is sealed as a whole into its header and the sealed text; return `None` for any other."""
    size = HEADER_SIZE if value[:2] == MARKER else FRAME_SIZE if value[:1] == FRAME else 0
    if not value.startswith(_PREFIX, size):
        return None
    text = value[size:].decode("ascii", "replace")
    return (value[:size], text) if is_sealed(text) else None


def open_whole(value: bytes, name: str, saga: str, keys: "Callable[[str], SubjectKey | None]") -> bytes:
    """Open a value that was sealed as a whole; return any other as it is. `name`: the contract's. `keys`: as for
    `opened`, and it raises as that does."""
    parts = split_whole(value)
    if parts is None:
        return value
    header, text = parts
    key = keys(key_name_of(text))
    if key is None:
        return ERASED.encode()
    try:
        return header + key.open(text, _place_of_whole(name, header, saga))
    except WrongSecret:
        raise KeyMissing(f"{name}: {OTHER_SECRET}") from None
    except DecryptionFailed:
        raise BadInput(f"{name}: it was sealed for another saga, or changed since") from None


def _place_of_whole(name: str, header: bytes, saga: str) -> str:
    return f"{name}|{WHOLE}{header.hex()}|{saga}"


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
    try:
        raw, rest = _read(value, version)
        if not _change(raw, version.record, change, "", leaves_defaults):
            return value
        out = BytesIO()
        out.write(value[:HEADER_SIZE])
        schemaless_writer(out, _schema(version), raw)
    except (BadInput, KeyMissing):
        raise
    except Exception:  # noqa: BLE001 - bytes of anybody: who decodes them says what is wrong with them
        return value
    return out.getvalue() + rest


def _read(value: bytes, version: Version) -> tuple[Any, bytes]:
    """Raw record of an encoded event, and the bytes behind it."""
    body = BytesIO(value)
    body.seek(HEADER_SIZE)
    raw: Any = schemaless_reader(body, _schema(version), None)
    return raw, body.read()


def _change(raw: Any, type_: Type, change: Change, path: str, leaves_defaults: bool) -> bool:
    """Change the sensitive texts of a raw value in place. Returns whether any is another one now."""
    match type_:
        case RecordType(fields=fields):
            return sum(_change_field(raw, field, change, path, leaves_defaults) for field in fields) > 0
        case ArrayType(items):
            return sum(_change(each, items, change, f"{path}[{n}]", leaves_defaults) for n, each in enumerate(raw)) > 0
        case MapType(values):
            return sum(_change(raw[n], values, change, f"{path}[{n!r}]", leaves_defaults) for n in raw) > 0
        case OptionalType(inner) if raw is not None:
            return _change(raw, inner, change, path, leaves_defaults)
        case _:
            return False


def _change_field(raw: Any, field: Field, change: Change, path: str, leaves_defaults: bool) -> bool:
    part = raw[field.name]
    path = f"{path}.{field.name}" if path else field.name
    if not field.sensitive:
        return _change(part, field.type, change, path, leaves_defaults)
    if leaves_defaults and field.default is not MISSING and part == field.default:
        return False
    if isinstance(part, str):
        raw[field.name] = change(path, part.encode()).decode()
    elif isinstance(part, bytes):
        raw[field.name] = change(path, part)
    return bool(raw[field.name] != part)


@lru_cache(maxsize=4096)
def _schema(version: Version) -> Any:
    return parse_schema(without_logical_types(version.schema))
