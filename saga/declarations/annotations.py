"""Annotations of the functions that users hand over, each read once: of handlers and resources at import, of what is
called by steps and updates when it first is. And written out in messages."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from typing_extensions import TypeAliasType

from saga.errors import DeclarationError, Permanent


def parameters_of(function: Callable[..., object], where: str) -> Mapping[str, Parameter]:
    """Parameters by name. Raises `DeclarationError` for one that the toolkit could not give by its name."""
    found = signature(function).parameters
    for name, parameter in found.items():
        if parameter.kind in _STARS:
            raise DeclarationError(
                f"{where} takes {_STARS[parameter.kind]}{name}: name each parameter, its type says what it is given"
            )
        if parameter.kind is Parameter.POSITIONAL_ONLY:
            raise DeclarationError(f"{where} takes {name} by position only, but is called by names: leave out the `/`")
        if parameter.default is not Parameter.empty:
            raise DeclarationError(f"{where}, parameter {name}: a default is never used, all is given: leave it out")
        if parameter.annotation is Parameter.empty:
            raise DeclarationError(
                f"{where}, parameter {name}: annotate it, its type says what it is given "
                "(an event, Saga, or what a resource of this service yields)"
            )
    return found


def hints_of(function: Callable[..., object], where: str) -> Mapping[str, object]:
    """Annotations by name, `return` among them. Raises `DeclarationError` for one that names what is not there."""
    try:
        return get_type_hints(function)
    except (NameError, AttributeError, TypeError, SyntaxError) as why:
        raise DeclarationError(
            f"the annotations of {where} cannot be read while its module is imported ({why}): import what they name at "
            "the top of the module, above it, and not under TYPE_CHECKING or inside a function"
        ) from why


def options_of(annotation: object) -> tuple[object, ...]:
    """Members of a union, whatever names they go by; of anything else, itself.

    >>> options_of(int | None), options_of(int)
    ((<class 'int'>, <class 'NoneType'>), (<class 'int'>,))
    """
    while isinstance(annotation, TypeAliasType):
        annotation = annotation.__value__
    if get_origin(annotation) not in (Union, UnionType):
        return (annotation,)
    return tuple(option for member in get_args(annotation) for option in options_of(member))


def spelt(annotation: object) -> str:
    """Write an annotation as its author did, as nearly as can be told.

    >>> spelt(int | None), spelt(list[int])
    ('int | None', 'list[int]')
    """
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is NoneType:
        return "None"
    if annotation is Ellipsis:
        return "..."
    if origin in (Union, UnionType):
        return " | ".join(map(spelt, args))
    if origin is not None:
        return f"{getattr(origin, '__name__', origin)}[{', '.join(map(spelt, args))}]"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def returns_of(call: Callable[..., object]) -> Any:
    """The type that a call returns, by its annotation. Raises `Permanent` without one."""
    return _returns(getattr(call, "__func__", call))


@lru_cache(maxsize=4096)
def _returns(function: Callable[..., object]) -> Any:
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as why:
        raise Permanent(f"the annotations of {_name(function)} cannot be read: {why}") from why
    if "return" not in hints:
        raise Permanent(f"{_name(function)} has no return annotation: its result could not be read back; annotate it")
    return NoneType if hints["return"] is None else hints["return"]


def type_at(call: Callable[..., object], place: str) -> Any:
    """Type of what a call takes by that name or, as "0", "1"..., at that place; `None` without one. Raises `Permanent`
    where its annotations cannot be read."""
    function = getattr(call, "__func__", call)
    types = _takes(function, function is not call)
    return types.get(place, types.get("*" if place.isdigit() else "**"))


@lru_cache(maxsize=4096)
def _takes(function: Callable[..., object], is_bound: bool) -> Mapping[str, Any]:
    """Types by name and by place; `*` and `**`: of all that has no parameter of its own."""
    try:
        parameters = list(signature(function).parameters.values())[is_bound:]
        hints = get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError, ValueError) as why:
        raise Permanent(f"the annotations of {_name(function)} cannot be read: {why}") from why
    types: dict[str, Any] = {}
    for place, parameter in enumerate(parameters):
        hint, kind = hints.get(parameter.name), parameter.kind
        if kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
            types[str(place)] = hint
        if kind in (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
            types[parameter.name] = hint
        if kind in _STARS:
            types[_STARS[kind]] = hint
    return types


_STARS = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}


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
