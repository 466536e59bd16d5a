"""Sealing of sensitive values in JSON that could not be made an event: it is kept, for a version that reads it may be
deployed yet, and in a dead letter. Sealed texts stand where the values were, so that such a version reads them."""

import base64
import json
from collections.abc import Callable
from typing import Any, TypeAlias

from saga.contracts.jsonform import read_json
from saga.contracts.schema import ArrayType, MapType, OptionalType, RecordType, ScalarType, Type
from saga.encryption.sensitive_fields import MARK
from saga.encryption.text import is_sealed

Seal: TypeAlias = Callable[[str, bytes], str]
"""Function from the path of a value and its bytes to a sealed text. It leaves one that is sealed already."""


def subject_in(value: bytes, field: str) -> str | None:
    """Subject that such JSON names; `None` if it names none."""
    try:
        read, _ = read_json(value)
    except (ValueError, RecursionError):
        return None
    found = read.get(field) if isinstance(read, dict) else None
    return found if isinstance(found, str) and found else None


def sealed_json(value: bytes, record: RecordType, seal: Seal) -> bytes | None:
    """JSON with all that is sensitive sealed, and all that the contract does not know: a name may be misspelt. `None`:
    it is no JSON that could be taken apart and put together again."""
    try:
        read, twice = read_json(value)
        if twice or not isinstance(read, dict):
            return None
        return json.dumps(_seal_part(read, record, "", seal), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None


def _seal_part(data: Any, type_: Type, path: str, seal: Seal) -> Any:
    match type_, data:
        case OptionalType(inner), _ if data is not None:
            return _seal_part(data, inner, path, seal)
        case RecordType(fields=fields), dict():
            known = {field.name: field for field in fields}
            made = {}
            for name, part in data.items():
                at = f"{path}.{name}" if path else name
                if name in known and not known[name].sensitive:
                    made[name] = _seal_part(part, known[name].type, at, seal)
                else:
                    made[name] = _seal_whole(part, known[name].type if name in known else None, at, seal)
            return made
        case ArrayType(items), list():
            return [_seal_part(part, items, f"{path}[{n}]", seal) for n, part in enumerate(data)]
        case MapType(values), dict():
            return {name: _seal_part(part, values, f"{path}[{name!r}]", seal) for name, part in data.items()}
        case _:
            return _seal_whole(data, None, path, seal) if isinstance(data, dict | list) else data


def _seal_whole(data: Any, type_: Type | None, path: str, seal: Seal) -> Any:
    """A value that nobody is to see. A text of a field that takes one stays a text; anything else would be refused as
    it is, and is as an object."""
    while isinstance(type_, OptionalType):
        type_ = type_.inner
    if data is None or _is_closed(data):
        return data
    if not isinstance(data, str):
        text = seal(path, json.dumps(data).encode())
        return [text] if isinstance(data, list) else {MARK: text}
    if type_ != ScalarType("bytes"):
        return seal(path, data.encode("utf-8", "surrogatepass"))
    try:
        return base64.b64encode(seal(path, base64.b64decode(data, validate=True)).encode()).decode()
    except ValueError:  # it is refused, whatever stands there
        return {MARK: seal(path, data.encode("utf-8", "surrogatepass"))}


def _is_closed(data: Any) -> bool:
    """Return whether it is what `_closed` makes of an object or a list."""
    return (isinstance(data, dict) and data.keys() == {MARK}) or (
        isinstance(data, list) and len(data) == 1 and is_sealed(data[0])
    )
