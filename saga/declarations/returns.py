"""Shapes of return annotations: which events a handler may emit, and whether what it returned has a shape it declared.

`A | B` is one of them, `tuple[A, B]` both, `list[A]`, `Sequence[A]`, `tuple[A, ...]` any number, `None` nothing; in any
combination. Annotations become shapes once, at import; what is returned is compared with its shape on every run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Protocol, get_args, get_origin

from saga.declarations.annotations import options_of, spelt
from saga.errors import DeclarationError
from saga.messages import Event


class Shape(Protocol):
    """Shape in which events are returned."""

    @property
    def events(self) -> tuple[type[Event], ...]:
        """Events that may be emitted, in the order of the annotation."""

    def fit(self, returned: object) -> tuple[Event, ...] | None:
        """Events in `returned`, in order; `None` if it has another shape."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """Shape of `None`: no event."""

    events: tuple[type[Event], ...] = ()

    def fit(self, returned: object) -> tuple[Event, ...] | None:
        return () if returned is None else None


@dataclass(frozen=True, slots=True)
class One:
    """Shape of one event."""

    event: type[Event]

    @property
    def events(self) -> tuple[type[Event], ...]:
        return (self.event,)

    def fit(self, returned: object) -> tuple[Event, ...] | None:
        return (returned,) if isinstance(returned, Event) and type(returned) is self.event else None


@dataclass(frozen=True, slots=True)
class Either:
    """Shape `A | B`: the first option that fits."""

    options: tuple[Shape, ...]

    @property
    def events(self) -> tuple[type[Event], ...]:
        return _together(self.options)

    def fit(self, returned: object) -> tuple[Event, ...] | None:
        return next((fits for option in self.options if (fits := option.fit(returned)) is not None), None)


@dataclass(frozen=True, slots=True)
class Both:
    """Shape `tuple[A, B]`: as many parts as there are, in this order."""

    parts: tuple[Shape, ...]

    @property
    def events(self) -> tuple[type[Event], ...]:
        return _together(self.parts)

    def fit(self, returned: object) -> tuple[Event, ...] | None:
        if not isinstance(returned, tuple) or len(returned) != len(self.parts):
            return None
        return _joined(part.fit(value) for part, value in zip(self.parts, returned, strict=True))


@dataclass(frozen=True, slots=True)
class Many:
    """Shape `list[A]`, `Sequence[A]`, `tuple[A, ...]`: any number."""

    of: Shape

    @property
    def events(self) -> tuple[type[Event], ...]:
        return self.of.events

    def fit(self, returned: object) -> tuple[Event, ...] | None:
        if not isinstance(returned, Sequence) or isinstance(returned, str | bytes):
            return None
        return _joined(map(self.of.fit, returned))


def any_of(events: Sequence[type[Event]]) -> Shape:
    """Shape of any number of any of these events: for a handler that has no annotation to be read."""
    return Many(Either(tuple(map(One, events))))


def shape_of(annotation: object, where: str) -> Shape:
    """Shape that an annotation describes. Raises `DeclarationError`, beginning with `where`."""
    first, *others = options_of(annotation)
    if others:
        return Either(tuple(shape_of(option, where) for option in (first, *others)))
    annotation = first
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is None or annotation is NoneType:
        return Nothing()
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return Many(shape_of(args[0], where))
    if origin is tuple:
        return Both(tuple(shape_of(part, where) for part in args))
    if origin in (list, Sequence):
        return Many(shape_of(args[0], where))
    if isinstance(annotation, type) and issubclass(annotation, Event) and annotation is not Event:
        return One(annotation)
    raise DeclarationError(
        f"{where} returns {spelt(annotation)}, which says of no event that it may be emitted: "
        "annotate it with events (A | B one of them, tuple[A, B] both, list[A] many, | None maybe nothing)"
    )


def described(returned: object) -> str:
    """Describe what was returned, by its types alone: an event's content has no place in a message.

    >>> described((1, None, ["a"]))
    'tuple[int, None, list[str]]'
    """
    if returned is None:
        return "None"
    name = type(returned).__name__
    if isinstance(returned, list | tuple):
        return f"{name}[{', '.join(map(described, returned))}]"
    return name


def _together(shapes: Sequence[Shape]) -> tuple[type[Event], ...]:
    return tuple(dict.fromkeys(event for shape in shapes for event in shape.events))


def _joined(parts: Iterable[tuple[Event, ...] | None]) -> tuple[Event, ...] | None:
    joined: list[Event] = []
    for part in parts:
        if part is None:
            return None
        joined += part
    return tuple(joined)
