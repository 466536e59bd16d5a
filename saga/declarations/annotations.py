"""Annotations of the functions that users hand over: read once, at import, and written out in messages."""

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Union, get_args, get_origin, get_type_hints

from typing_extensions import TypeAliasType

from saga.errors import DeclarationError


def parameters_of(function: Callable[..., object], where: str) -> Mapping[str, Parameter]:
    """Parameters by name. Raises `DeclarationError` for one that the toolkit could not give by its name."""
    found = signature(function).parameters
    for name, parameter in found.items():
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is Parameter.VAR_POSITIONAL else "**"
            raise DeclarationError(f"{where} takes {stars}{name}: name each parameter, its type says what it is given")
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
