"""Annotations of the functions that handlers hand to the runtime. Read once for each function."""

from collections.abc import Callable
from functools import lru_cache
from inspect import signature
from types import NoneType
from typing import Any, get_args, get_type_hints

from saga.errors import Permanent


def returns_of(call: Callable[..., object]) -> Any:
    """The type that a call returns, by its annotation. Raises `Permanent` without one."""
    return _returns(getattr(call, "__func__", call))


@lru_cache(maxsize=4096)
def _returns(function: Callable[..., object]) -> Any:
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError) as why:
        raise Permanent(f"the annotations of {_name(function)} cannot be read: {why}") from why
    if "return" not in hints:
        raise Permanent(f"{_name(function)} has no return annotation: its result could not be read back; annotate it")
    return NoneType if hints["return"] is None else hints["return"]


@lru_cache(maxsize=4096)
def accepts_none(change: Callable[..., object]) -> bool:
    """Return whether the first parameter takes `None`: then an absent document may be created."""
    try:
        hints = get_type_hints(change)
    except (NameError, TypeError):
        return False
    first = next(iter(signature(change).parameters), "")
    return NoneType in get_args(hints.get(first)) or hints.get(first) is NoneType


def _name(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", repr(function))
