"""Read the annotations of user functions, and format them for messages. The annotations of handlers and resources are
read at import. Those of functions called through `saga.step` and `saga.update` are read at their first call."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from inspect import Parameter, iscoroutinefunction, signature, unwrap
from types import NoneType, UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from saga.encryption.sensitive_fields import resolve_alias
from saga.errors import DeclarationError, Permanent
from saga.messages import Event
from saga.view import Later

_UNREADABLE = (NameError, AttributeError, TypeError, SyntaxError)
"""Errors that `get_type_hints` raises for annotations that cannot be read."""
_STARS = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
Returned: TypeAlias = Event | Later[Event | None]
"""Values that a handler may return, alone or inside a tuple or list."""


def read_parameters(function: Callable[..., object], where: str) -> Mapping[str, Parameter]:
    """Return the parameters of a function by name. Raises `DeclarationError` for a parameter that the toolkit could not
    pass by name."""
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


def read_hints(function: Callable[..., object], where: str) -> Mapping[str, object]:
    """Return the annotations of a function by name, including `return`. Raises `DeclarationError` if one names
    something undefined."""
    try:
        return get_type_hints(function)
    except _UNREADABLE as why:
        raise DeclarationError(
            f"the annotations of {where} cannot be read while its module is imported ({why}): import what they name at "
            "the top of the module, above it, and not under TYPE_CHECKING or inside a function"
        ) from why


def split_union(annotation: Any) -> tuple[object, ...]:
    """Return the members of a union. Any other annotation is returned as its only member.

    >>> split_union(int | None), split_union(int)
    ((<class 'int'>, <class 'NoneType'>), (<class 'int'>,))
    """
    while hasattr(annotation, "__value__"):
        annotation = resolve_alias(annotation)
    if get_origin(annotation) not in (Union, UnionType):
        return (annotation,)
    return tuple(option for member in get_args(annotation) for option in split_union(member))


def spell(annotation: object) -> str:
    """Return an annotation as text, as similar as possible to what its author wrote.

    >>> spell(int | None), spell(list[int])
    ('int | None', 'list[int]')
    """
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is NoneType:
        return "None"
    if annotation is Ellipsis:
        return "..."
    if origin in (Union, UnionType):
        return " | ".join(map(spell, args))
    if origin is not None:
        return f"{getattr(origin, '__name__', origin)}[{', '.join(map(spell, args))}]"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def is_async(call: object) -> bool:
    """Return whether a function or method is async, even if decorators that set `__wrapped__` are around it, or make an
    async function of one that is not.

    >>> from functools import wraps
    >>> async def ask() -> int: ...
    >>> @wraps(ask)
    ... def measure() -> object: ...
    >>> @wraps(sum)
    ... async def sum_in_thread() -> object: ...
    >>> [is_async(call) for call in (ask, measure, sum_in_thread, sum)]
    [True, True, True, False]
    """
    return callable(call) and (iscoroutinefunction(call) or iscoroutinefunction(unwrap(call)))


def return_type_of(call: Callable[..., object]) -> Any:
    """Return the result type of a call, from its return annotation. Raises `Permanent` if it has none."""
    return _read_return_type(getattr(call, "__func__", call))


@lru_cache(maxsize=4096)
def _read_return_type(function: Callable[..., object]) -> Any:
    try:
        hints = get_type_hints(function, include_extras=True)
    except _UNREADABLE as why:
        raise Permanent(f"the annotations of {_name(function)} cannot be read: {why}") from why
    if "return" not in hints:
        raise Permanent(f"{_name(function)} has no return annotation: its result could not be read back; annotate it")
    return NoneType if hints["return"] is None else hints["return"]


def parameter_type_at(call: Callable[..., object], place: str) -> Any:
    """Return the type of the argument at `place`, which is a parameter name or a position ("0", "1", ...). Return
    `None` if there is no such parameter or annotation. Raises `Permanent` if the annotations cannot be read."""
    function = getattr(call, "__func__", call)
    types = _read_parameter_types(function, function is not call)
    return types.get(place, types.get("*" if place.isdigit() else "**"))


@lru_cache(maxsize=4096)
def _read_parameter_types(function: Callable[..., object], is_bound: bool) -> Mapping[str, Any]:
    """Return the parameter types of a function by name and by position. The keys `*` and `**` hold the types of all
    further arguments."""
    try:
        parameters = list(signature(function).parameters.values())[is_bound:]
        hints = get_type_hints(function, include_extras=True)
    except (*_UNREADABLE, ValueError) as why:
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


@lru_cache(maxsize=4096)
def accepts_none(change: Callable[..., object]) -> bool:
    """Return whether the first parameter of a change function accepts `None`. If it does, the function may create a
    missing document."""
    try:
        hints = get_type_hints(change)
    except _UNREADABLE:
        return False
    first = next(iter(signature(change).parameters), "")
    return NoneType in split_union(hints.get(first))


def _name(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", repr(function))


# The shape of what a handler returns


@dataclass(frozen=True, slots=True)
class ReturnShape(ABC):
    """The shape of the value that a handler returns, according to its annotation. Shapes are composed of other
    shapes."""

    parts: tuple["ReturnShape", ...] = ()

    @property
    def events(self) -> tuple[type[Event], ...]:
        """Return the events that may be emitted, in the order of the annotation."""
        return tuple(dict.fromkeys(event for part in self.parts for event in part.events))

    @property
    def awaited_events(self) -> tuple[type[Event], ...]:
        """Return the events for which the handler may wait, in the order of the annotation."""
        return tuple(dict.fromkeys(event for part in self.parts for event in part.awaited_events))

    @property
    def may_wait(self) -> bool:
        """Return whether the returned value may contain a `Later`."""
        return any(part.may_wait for part in self.parts)

    @abstractmethod
    def fit(self, returned: object) -> tuple[Returned, ...] | None:
        """Return the events in `returned`, in order, and a `Later` if there is one; `None` if the value does not have
        this shape."""


class NothingReturned(ReturnShape):
    """Shape of the value `None`, which contains no event."""

    __slots__ = ()

    def fit(self, returned: object) -> tuple[Returned, ...] | None:
        return () if returned is None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OneEvent(ReturnShape):
    """Shape of a single event."""

    event: type[Event]

    @property
    def events(self) -> tuple[type[Event], ...]:
        return (self.event,)

    def fit(self, returned: object) -> tuple[Returned, ...] | None:
        return (returned,) if isinstance(returned, Event) and type(returned) is self.event else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterReturned(ReturnShape):
    """Return annotation `Later` or `Later[E]`: the handler may suspend its run."""

    until: tuple[type[Event], ...]
    """Events for which the handler may wait; empty if it waits for a time."""

    @property
    def awaited_events(self) -> tuple[type[Event], ...]:
        return self.until

    @property
    def may_wait(self) -> bool:
        return True

    def fit(self, returned: object) -> tuple[Returned, ...] | None:
        if not isinstance(returned, Later):
            return None
        fits = returned.until in self.until if self.until else returned.until is None
        return (returned,) if fits else None


class EitherShape(ReturnShape):
    """Shape of `A | B`. A value has the first of these shapes that fits."""

    __slots__ = ()

    def fit(self, returned: object) -> tuple[Returned, ...] | None:
        return next((fits for part in self.parts if (fits := part.fit(returned)) is not None), None)


class TupleShape(ReturnShape):
    """Shape of `tuple[A, B]`: one value for each part, in this order."""

    __slots__ = ()

    def fit(self, returned: object) -> tuple[Returned, ...] | None:
        if not isinstance(returned, tuple) or len(returned) != len(self.parts):
            return None
        return _join_events(part.fit(value) for part, value in zip(self.parts, returned, strict=True))


class SequenceShape(ReturnShape):
    """Shape of `list[A]`, `Sequence[A]` and `tuple[A, ...]`: any number of values of one shape."""

    __slots__ = ()

    def fit(self, returned: object) -> tuple[Returned, ...] | None:
        if not isinstance(returned, Sequence) or isinstance(returned, str | bytes):
            return None
        return _join_events(map(self.parts[0].fit, returned))


def any_number_of(events: Sequence[type[Event]]) -> ReturnShape:
    """Return the shape of any number of these events, for a reaction that is created without a return annotation."""
    return SequenceShape((EitherShape(tuple(OneEvent(event=event) for event in events)),))


def parse_shape(annotation: object, where: str) -> ReturnShape:
    """Return the shape that an annotation describes. Raises `DeclarationError` with a message that begins with
    `where`."""
    first, *others = split_union(annotation)
    if others:
        return EitherShape(tuple(parse_shape(option, where) for option in (first, *others)))
    annotation = first
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is None or annotation is NoneType:
        return NothingReturned()
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return SequenceShape((parse_shape(args[0], where),))
    if origin is tuple:
        return TupleShape(tuple(parse_shape(part, where) for part in args))
    if origin in (list, Sequence) and args:
        return SequenceShape((parse_shape(args[0], where),))
    if annotation is Later or origin is Later:
        return _parse_later(args, where)
    if isinstance(annotation, type) and issubclass(annotation, Event) and annotation is not Event:
        return OneEvent(event=annotation)
    raise DeclarationError(
        f"{where} returns {spell(annotation)}, which says of no event that it may be emitted: "
        "annotate it with events (A | B one of them, tuple[A, B] both, list[A] many, | None maybe nothing)"
    )


def _parse_later(args: tuple[object, ...], where: str) -> ReturnShape:
    """Return the shape of `Later`, `Later[None]` or `Later[A | B]`. Raises `DeclarationError` if the brackets contain
    something other than events."""
    options = split_union(args[0]) if args else (NoneType,)
    if options == (NoneType,):
        return LaterReturned(until=())
    until = [o for o in options if isinstance(o, type) and issubclass(o, Event) and o is not Event]
    if len(until) < len(options):
        raise DeclarationError(
            f"{where} returns Later[{' | '.join(map(spell, options))}]: name the events that end the wait, "
            "Later[A | B], or leave out the brackets: then it waits for a time"
        )
    return LaterReturned(until=tuple(until))


def describe_returned(returned: object) -> str:
    """Describe a returned value by its types only, because messages must not show the content of events.

    >>> describe_returned((1, None, ["a"]))
    'tuple[int, None, list[str]]'
    """
    if returned is None:
        return "None"
    name = type(returned).__name__
    if isinstance(returned, list | tuple):
        return f"{name}[{', '.join(map(describe_returned, returned))}]"
    return name


def _join_events(parts: Iterable[tuple[Returned, ...] | None]) -> tuple[Returned, ...] | None:
    joined: list[Returned] = []
    for part in parts:
        if part is None:
            return None
        joined += part
    return tuple(joined)
