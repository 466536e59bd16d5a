"""Encrypt and decrypt the sensitive fields of encoded events. A ciphertext is a string and replaces a string or bytes,
so an encrypted event stays valid for its schema.

The functions work on encoded bytes, with the schema of the version that encoded them. Bytes are decrypted before they
are decoded, so encoding, decoding, schema resolution and upcasters do not deal with keys.

A ciphertext is bound to the contract, the saga and the path of its field, such as `payers[1].iban`: if two ciphertexts
of one event are swapped, neither can be decrypted.

JSON that could not be converted to an event is encrypted, too (`encrypt_json`), because it is stored: in a dead letter,
or until a version that can read it is deployed. Each value is encrypted separately, so that version can read the JSON.
"""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from saga.contracts.codec import HEADER_SIZE, MARKER, identify
from saga.contracts.contract import Version
from saga.contracts.foreign_values import FRAME, FRAME_SIZE, schema_id_in
from saga.contracts.json_form import read_json
from saga.contracts.library import Library, binding_of
from saga.contracts.schema import (
    MISSING,
    ArrayType,
    Field,
    MapType,
    OptionalType,
    RecordType,
    ScalarType,
    Type,
    describe_type,
    without_logical_types,
)
from saga.contracts.sensitive_fields import has_sensitive
from saga.encryption.sensitive_fields import (
    ENCRYPTED_PREFIX,
    ERASED,
    MARK,
    DecryptionFailed,
    WrongSecret,
    find_key_names,
    is_encrypted,
    key_name_of,
)
from saga.errors import BadInput, KeyMissing
from saga.messages import Event

if TYPE_CHECKING:
    from saga.encryption.keys import SubjectKey


Change: TypeAlias = Callable[[str, bytes], bytes]
"""Function that takes the path and the bytes of a value, and returns the bytes that replace the value."""
WHOLE = "*"
"""Path to which a ciphertext is bound if a value is encrypted as a whole: because the value is not an event, or its
schema is not known here."""
_PREFIX = ENCRYPTED_PREFIX.encode()
NO_KEYS = (
    "it holds encrypted values, and this process has no keys: set SAGA_KEYS to the folder of keys that all services "
    "share"
)
OTHER_SECRET = (
    "it was encrypted with another secret of its subject, which was lost from the folder of keys and created again: "
    "restore the older one"
)
ENCRYPTABLE = (ScalarType("string"), ScalarType("bytes"))

EncryptText: TypeAlias = Callable[[str, bytes], str]
"""Function that encrypts the bytes of a value at a path and returns the ciphertext. Values that are already encrypted
stay as they are."""


def encrypt_fields(
    value: bytes, version: Version, saga: str, key: "SubjectKey | None", *, arrived: bool = False
) -> bytes:
    """Return an encoded event with its sensitive fields encrypted.

    A value that equals the default of its field is not encrypted, because the schema shows it anyway. An event that
    fastavro cannot encode again, because another sender encoded it, is encrypted as a whole, and so is an event that
    arrives in an older version with a sensitive field of a type that cannot hold a ciphertext.

    Args:
        value: the encoded event.
        version: the version that encoded it.
        saga: the saga id, to which ciphertexts are bound.
        key: key of the subject; `None` if it was erased. Then the values are replaced with `erased`, and are lost.
        arrived: true if the event comes from the log. Its sender may have encrypted it already, so encrypted values are
            left as they are.
    """

    def change(path: str, plain: bytes) -> bytes:
        if arrived and is_encrypted(plain.decode("ascii", "replace")):
            return plain
        return ERASED.encode() if key is None else key.encrypt(plain, f"{version.name}|{path}|{saga}").encode()

    is_whole = arrived and not _is_encryptable(version)
    rewritten = None if is_whole else _rewrite(value, version, change, leaves_defaults=True)
    return encrypt_value(value, value[:HEADER_SIZE], version.name, saga, key) if rewritten is None else rewritten


def decrypt_fields(value: bytes, library: Library, saga: str, keys: "Callable[[str], SubjectKey | None]") -> bytes:
    """Return an encoded event with its encrypted fields decrypted.

    Args:
        value: the encoded event.
        library: the library that knows its version.
        saga: the saga id, to which the ciphertexts are bound.
        keys: function that returns the key with a name. It returns `None` if the key was erased; the values encrypted
            with that key are replaced with `erased`. It raises `KeyMissing` if the key is missing.

    Raises:
        KeyMissing: `keys` raised it, or a value was encrypted with another secret of the same subject.
        BadInput: a ciphertext was made for another field or saga, or has been changed; or the event with its decrypted
            values cannot be encoded.
    """
    version = identify(value, library)

    def change(path: str, text: bytes) -> bytes:
        ciphertext = text.decode("ascii", "replace")
        if not is_encrypted(ciphertext):
            return text
        key = keys(key_name_of(ciphertext))
        if key is None:
            return ERASED.encode()
        field = path.rpartition(".")[2]
        try:
            return key.decrypt(ciphertext, f"{version.name}|{path}|{saga}", f"{version.name}|{field}|{saga}")
        except WrongSecret:
            raise KeyMissing(f"{version.name}: {path}: {OTHER_SECRET}") from None
        except DecryptionFailed:
            raise BadInput(
                f"{version.name}: {path}: it was encrypted for another field or saga, or changed since"
            ) from None

    rewritten = _rewrite(value, version, change, leaves_defaults=False)
    if rewritten is None and is_encoded_event(value, version):
        raise BadInput(f"{version.name}: its fields cannot be decrypted: one of its values is not of its schema")
    return value if rewritten is None else rewritten  # decoding reports what is wrong with other bytes


def is_encoded_event(value: bytes, version: Version) -> bool:
    """Return whether a value is a complete encoded event of that version, with no bytes left over."""
    try:
        return not _read(value, version)[1]
    except Exception:  # noqa: BLE001 - the bytes may be anything
        return False


def unencrypted_subject(value: bytes, version: Version) -> str | None:
    """Return the subject of an encoded event if at least one of its sensitive fields still has to be encrypted;
    otherwise `None`."""
    found: list[str] = []

    def note(path: str, plain: bytes) -> bytes:
        text = plain.decode("ascii", "replace")
        if text != ERASED and not is_encrypted(text):
            found.append(path)
        return plain

    _rewrite(value, version, note, leaves_defaults=True)
    if not _is_encryptable(version):
        found.append(WHOLE)
    return _normalize_subject(str(_read(value, version)[0][version.subject]), version) if found else None


def key_names_in(value: bytes, library: Library) -> set[str]:
    """Return the names of the keys that are needed to decrypt the sensitive fields of an encoded event. The result is
    empty if the value cannot be decoded."""
    names = set[str]()
    if find_key_names(value):

        def note(_: str, text: bytes) -> bytes:
            ciphertext = text.decode("ascii", "replace")
            if is_encrypted(ciphertext):
                names.add(key_name_of(ciphertext))
            return text

        with suppress(BadInput):  # decoding reports what is wrong with it
            _rewrite(value, identify(value, library), note, leaves_defaults=False)
    return names


def unknown_header(value: bytes, library: Library) -> bytes:
    """Return the header of a value if the header names a schema that is not known here; otherwise empty bytes.

    The schema of a value in the wire format of a registry never counts as known.
    """
    if value[:2] == MARKER and len(value) >= HEADER_SIZE:
        return b"" if value[2:HEADER_SIZE] in library.by_fingerprint else value[:HEADER_SIZE]
    return value[:FRAME_SIZE] if schema_id_in(value) is not None else b""


def encrypt_value(value: bytes, header: bytes, name: str, saga: str, key: "SubjectKey | None") -> bytes:
    """Encrypt a whole value except its header, which names the schema.

    Args:
        value: the value.
        header: the first bytes of the value, which stay readable.
        name: name of the contract.
        saga: the saga id.
        key: key of the subject; `None` if it was erased.
    """
    if key is None:
        return ERASED.encode()
    return header + key.encrypt(value[len(header) :], _place_of_whole(name, header, saga)).encode()


def split_encrypted(value: bytes) -> tuple[bytes, str] | None:
    """Split a value that is encrypted as a whole into its header and its ciphertext; return `None` for any
    other value."""
    size = HEADER_SIZE if value[:2] == MARKER else FRAME_SIZE if value[:1] == FRAME else 0
    if not value.startswith(_PREFIX, size):
        return None
    text = value[size:].decode("ascii", "replace")
    return (value[:size], text) if is_encrypted(text) else None


def decrypt_value(value: bytes, name: str, saga: str, keys: "Callable[[str], SubjectKey | None]") -> bytes:
    """Decrypt a value that was encrypted as a whole. Any other value is returned unchanged.

    `name` is the name of the contract. `keys` and the errors are the same as in `decrypt_fields`.
    """
    parts = split_encrypted(value)
    if parts is None:
        return value
    header, text = parts
    key = keys(key_name_of(text))
    if key is None:
        return ERASED.encode()
    try:
        return header + key.decrypt(text, _place_of_whole(name, header, saga))
    except WrongSecret:
        raise KeyMissing(f"{name}: {OTHER_SECRET}") from None
    except DecryptionFailed:
        raise BadInput(f"{name}: it was encrypted for another saga, or changed since") from None


def _place_of_whole(name: str, header: bytes, saga: str) -> str:
    return f"{name}|{WHOLE}{header.hex()}|{saga}"


def subject_of_event(event: Event) -> str:
    """Return the subject of an event: the person or thing that it is about, whose key encrypts its sensitive fields."""
    return str(getattr(event, binding_of(type(event)).version.subject))


def _normalize_subject(subject: str, version: Version) -> str:
    """Return a subject in the form that it has in the decoded event. For example, a sender may write a UUID in
    capitals."""
    field = version.record.field(version.subject)
    if field is not None and field.type == ScalarType("uuid"):
        with suppress(ValueError):  # decoding reports that it is no uuid
            return str(UUID(subject))
    return subject


def find_unencryptable(type_: Type, at: str = "") -> Iterator[str]:
    """Report sensitive fields whose type cannot hold a ciphertext, each with its path."""
    match type_:
        case RecordType(fields=fields):
            for field in fields:
                path = f"{at}.{field.name}".lstrip(".")
                inner = field.type.inner if isinstance(field.type, OptionalType) else field.type
                if not field.sensitive:
                    yield from find_unencryptable(field.type, path)
                elif inner not in ENCRYPTABLE:
                    yield (
                        f"field {path} is sensitive and {describe_type(field.type)}: a string or bytes, "
                        "or an optional one, holds an encrypted text; declare it as a string, or mark the fields "
                        "inside of it"
                    )
        case ArrayType(inner) | MapType(inner) | OptionalType(inner):
            yield from find_unencryptable(inner, at)
        case _:
            return


@lru_cache(maxsize=4096)
def _is_encryptable(version: Version) -> bool:
    """Return whether each sensitive field of a version can hold a ciphertext. In an older version it may not, because a
    field that a newer one marks as sensitive is sensitive there, too."""
    return not any(find_unencryptable(version.record))


def _rewrite(value: bytes, version: Version, change: Change, *, leaves_defaults: bool) -> bytes | None:
    """Return an encoded event after passing each sensitive value to `change`; `None` if the event cannot be read, or
    cannot be encoded again.

    fastavro reads some values that it refuses to write, such as an `int` of more than 32 bits in a union.
    """
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
    except Exception:  # noqa: BLE001 - the bytes may be anything
        return None
    return out.getvalue() + rest


def _read(value: bytes, version: Version) -> tuple[Any, bytes]:
    """Return the raw record of an encoded event, and the bytes that follow it."""
    body = BytesIO(value)
    body.seek(HEADER_SIZE)
    raw: Any = schemaless_reader(body, _schema(version), None)
    return raw, body.read()


def _change(raw: Any, type_: Type, change: Change, path: str, leaves_defaults: bool) -> bool:
    """Encrypt or decrypt the sensitive values inside `raw`, in place. Return whether any of them changed.

    `raw`: a value as fastavro reads it, of type `type_`. `change`: function that encrypts or decrypts one value.
    `path`: path of `raw` in the event, to which each ciphertext is bound. `leaves_defaults`: true to leave a sensitive
    field alone if it has its default value.
    """
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


# -------------------------------------------------------------------- JSON


def subject_in_json(value: bytes, version: Version) -> str | None:
    """Return the text in the subject's field of JSON that is not a valid event; `None` if there is none, or if it
    cannot be encoded."""
    try:
        read, _ = read_json(value)
        found = read.get(version.subject) if isinstance(read, dict) else None
        if not isinstance(found, str) or not found.encode():  # half of a surrogate pair names no key
            return None
    except (ValueError, RecursionError):
        return None
    return _normalize_subject(found, version)


def encrypt_json(value: bytes, record: RecordType, encrypt: EncryptText) -> bytes | None:
    """Return JSON with its sensitive fields encrypted. Fields that the contract does not have are encrypted, too,
    because one of them may be a sensitive field with a misspelt name.

    Return `None` if the value is not a JSON object, or if rewriting it would lose data, because a name occurs twice in
    one object.
    """
    try:
        read, twice = read_json(value)
        if twice or not isinstance(read, dict):
            return None
        return json.dumps(_encrypt_part(read, record, "", encrypt), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None


def _encrypt_part(data: Any, type_: Type, path: str, encrypt: EncryptText) -> Any:
    match type_, data:
        case OptionalType(inner), _ if data is not None:
            return _encrypt_part(data, inner, path, encrypt)
        case RecordType(fields=fields), dict():
            known = {field.name: field for field in fields}
            made = {}
            for name, part in data.items():
                at = f"{path}.{name}" if path else name
                if name in known and not known[name].sensitive:
                    made[name] = _encrypt_part(part, known[name].type, at, encrypt)
                else:
                    made[name] = _encrypt_whole(part, known[name].type if name in known else None, at, encrypt)
            return made
        case ArrayType(items), list():
            return [_encrypt_part(part, items, f"{path}[{n}]", encrypt) for n, part in enumerate(data)]
        case MapType(values), dict():
            return {name: _encrypt_part(part, values, f"{path}[{name!r}]", encrypt) for name, part in data.items()}
        case _:
            # A value of another form than the type: it may be what a sensitive field in the type should hold.
            unfit = isinstance(data, dict | list) or has_sensitive(type_)
            return _encrypt_whole(data, None, path, encrypt) if unfit else data


def _encrypt_whole(data: Any, type_: Type | None, path: str, encrypt: EncryptText) -> Any:
    """Return a whole JSON value in encrypted form. Encryption never makes an invalid event valid.

    Text becomes text if the field takes text. Any other value, which the contract refuses, becomes a list or an
    object, which the contract also refuses.
    """
    while isinstance(type_, OptionalType):
        type_ = type_.inner
    if data is None or _is_encrypted(data):
        return data
    if not isinstance(data, str):
        text = encrypt(path, json.dumps(data).encode())
        return [text] if isinstance(data, list) else {MARK: text}
    if type_ != ScalarType("bytes"):
        return encrypt(path, data.encode("utf-8", "surrogatepass"))
    try:
        return base64.b64encode(encrypt(path, base64.b64decode(data, validate=True)).encode()).decode()
    except ValueError:  # not base64, so the contract refuses the value whether it is encrypted or not
        return {MARK: encrypt(path, data.encode("utf-8", "surrogatepass"))}


def _is_encrypted(data: Any) -> bool:
    """Return whether a value is the result of `_encrypt_whole` for an object or a list."""
    return (isinstance(data, dict) and data.keys() == {MARK}) or (
        isinstance(data, list) and len(data) == 1 and is_encrypted(data[0])
    )
