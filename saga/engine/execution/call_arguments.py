"""Encode the arguments of a call: for comparing a rerun with the record, and for people."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from itertools import chain
from typing import cast
from uuid import UUID

import msgspec

from saga.declarations.annotations import parameter_type_at
from saga.encryption.sensitive_fields import HIDDEN, find_marks
from saga.errors import Permanent
from saga.progress.document import UNENCODABLE

BYTES_MAX = 256
"""Bytes of the arguments that are recorded for people, at most: the run's intent is written before each of its calls,
and holds them all."""

SCALARS = (str, bool, int, float, bytes, Decimal, UUID, datetime, date, time, timedelta, Enum)
"""Types of values that have no fields."""

_encoder = msgspec.json.Encoder(order="deterministic")


def encode_arguments(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
    """Encode arguments as JSON, the same for equal ones. Raises `Permanent`, naming the one that cannot be encoded."""
    try:
        return _encoder.encode((args, kwargs))
    except UNENCODABLE as why:
        for where, argument in (*enumerate(args, 1), *kwargs.items()):
            try:
                _encoder.encode(argument)
            except UNENCODABLE as its:
                raise Permanent(
                    f"argument {where} of {name!r} cannot be recorded: {its}; hand over plain values"
                ) from its
        raise Permanent(f"the arguments of {name!r} cannot be recorded: {why}; hand over plain values") from why


def digest_of(written: bytes) -> str:
    """Return the digest that tells two inputs of a call apart."""
    return blake2b(written, digest_size=12).hexdigest()


def describe_arguments(
    call: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], *, first: int = 0
) -> str:
    """Arguments as people read them. One whose annotation marks anything as sensitive is hidden, and of an object the
    class alone is named: its fields may be marked, or hold what is. Nothing, where annotations cannot be read. `first`:
    number of the parameter that takes the first of `args`.

    >>> def charge(order: str, cents: int, *, note: str) -> None: ...
    >>> describe_arguments(charge, ("order-17", 4200), {"note": "tea"})
    '"order-17", 4200, note="tea"'
    """
    places = chain(
        ((str(n), "", value) for n, value in enumerate(args, first)), ((n, f"{n}=", v) for n, v in kwargs.items())
    )
    try:
        return ", ".join([lead + _show(value, parameter_type_at(call, place)) for place, lead, value in places])
    except Permanent:  # what they would mark is not known
        return ""


def _show(value: object, type_: object) -> str:
    return _encoder.encode(_to_plain(value) if find_marks(type_) is None else HIDDEN).decode()


def _to_plain(value: object) -> object:
    """Return a value without the content of objects. A class derived from a list has fields of its own, so it is an
    object."""
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        return [_to_plain(part) for part in cast(Iterable[object], value)]
    if kind is dict:
        return {name: _to_plain(part) for name, part in cast(Mapping[object, object], value).items()}
    return value if value is None or isinstance(value, SCALARS) else f"<{kind.__name__}>"
