"""Binary form of raw values, as Avro defines it: a function for each schema, made once.

Of what Avro has, contracts use few types, and an event passes here each time that it is emitted: fastavro, which reads,
would take longer to write one than all else that is done to it.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, TypeAlias

from saga.contracts.schema import NULLS

Write: TypeAlias = Callable[[Any], bytes]

_BYTES = [bytes((number,)) for number in range(128)]
_END = _BYTES[0]
"""Last block of an array or map: there are no more."""


def writer(schema: Any, named: dict[str, Write] | None = None) -> Write:
    """A function from a raw value to its bytes. `schema`: without logical types; `named`: types that stand before it.

    >>> writer({"type": "record", "name": "A", "fields": [{"name": "n", "type": "int"}]})({"n": -65}).hex()
    '8101'
    """
    named = {} if named is None else named
    match schema:
        case "null":
            return lambda _: b""
        case "boolean":
            return _BYTES.__getitem__
        case "int" | "long":
            return _whole
        case "float":
            return Struct("<f").pack
        case "double":
            return Struct("<d").pack
        case "bytes":
            return _sized
        case "string":
            return _text
        case str():
            return named[schema]
        case [*branches]:
            return _optional(branches, named)
        case {"type": "array", "items": items}:
            each = writer(items, named)
            return lambda values: _blocks([each(value) for value in values])
        case {"type": "map", "values": values}:
            one = writer(values, named)
            return lambda values: _blocks([_text(key) + one(value) for key, value in values.items()])
        case {"type": "enum", "name": name, "symbols": symbols}:
            named[name] = {symbol: _whole(number) for number, symbol in enumerate(symbols)}.__getitem__
            return named[name]
        case {"type": "record", "name": name, "fields": fields}:
            parts = [(field["name"], writer(field["type"], named)) for field in fields]
            named[name] = lambda raw: b"".join([part(raw[name]) for name, part in parts])
            return named[name]
        case _:
            return writer(schema["type"], named)


def _whole(number: int) -> bytes:
    """Seven bits a byte, the lowest first; negative numbers stand between the others."""
    number = number << 1 ^ number >> 63
    if number < 128:
        return _BYTES[number]
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _sized(value: bytes) -> bytes:
    return _whole(len(value)) + value


def _text(value: str) -> bytes:
    return _sized(value.encode())


def _blocks(parts: list[bytes]) -> bytes:
    """All in one block, if there are any."""
    return b"".join([_whole(len(parts)), *parts, _END]) if parts else _END


def _optional(branches: list[Any], named: dict[str, Write]) -> Write:
    """Union of null and one other type, in any order: the number of the branch, and what is in it."""
    (other,) = (number for number, branch in enumerate(branches) if branch not in NULLS)
    absent, present, inside = _whole(1 - other), _whole(other), writer(branches[other], named)
    return lambda value: absent if value is None else present + inside(value)
