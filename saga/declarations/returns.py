"""Shapes of return annotations: which events a handler may emit, and whether what it returned has a shape it declared.

`A | B` is one of them, `tuple[A, B]` both, `list[A]`, `Sequence[A]`, `tuple[A, ...]` any number, `None` nothing; in any
combination. `Later`, or `Later[E]`, alone or in a tuple: it goes on another time.

Annotations become shapes once, at import; what is returned is compared with its shape on every run.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import TypeAlias, get_args, get_origin

from saga.declarations.annotations import options_of, spelt
from saga.errors import DeclarationError
from saga.later import Later
from saga.messages import Event

Returned: TypeAlias = Event | Later[Event | None]
"""Values that may be in what a handler returns."""


@dataclass(frozen=True, slots=True)
class Shape(ABC):
    """Shape in which events are returned, made of others."""

    parts: tuple["Shape", ...] = ()

    @property
    def events(self) -> tuple[type[Event], ...]:
        """Events that may be emitted, in the order of the annotation."""
        return tuple(dict.fromkeys(event for part in self.parts for event in part.events))

    @property
    def awaited(self) -> tuple[type[Event], ...]:
        """Events for which it may wait, in the order of the annotation."""
        return tuple(dict.fromkeys(event for part in self.parts for event in part.awaited))

    @property
    def may_wait(self) -> bool:
        """True if a `Later` may be in it."""
        return any(part.may_wait for part in self.parts)

    @abstractmethod
    def fit(self, returned: object) -> tuple[Returned, ...] | None:
        """Events in `returned`, in order, and a `Later` that is among them; `None` if it has another shape."""


class Nothing(Shape):
    """Shape of `None`: no event."""

    __slots__ = ()

    def fit(self, returned: object) -> tuple[Returned, ...] | None:
        return () if returned is None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class One(Shape):
    """Shape of one event."""

    event: type[Event]

    @property
    def events(self) -> tuple[type[Event], ...]:
        return (self.event,)

    def fit(self, returned: object) -> tuple[Returned, ...] | None:
        return (returned,) if isinstance(returned, Event) and type(returned) is self.event else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Again(Shape):
    """Shape of `Later`, or of `Later[E]`."""

    until: tuple[type[Event], ...]
    """Events for which it may wait; none: it waits for a time."""

    @property
    def awaited(self) -> tuple[type[Event], ...]:
        return self.until

    @property
    def may_wait(self) -> bool:
        return True

    def fit(self, returned: object) -> tuple[Returned, ...] | None:
        if not isinstance(returned, Later):
            return None
        fits = returned.until in self.until if self.until else returned.until is None
        return (returned,) if fits else None


class Either(Shape):
    """Shape `A | B`: the first part that fits."""

    __slots__ = ()

    def fit(self, returned: object) -> tuple[Returned, ...] | None:
        return next((fits for part in self.parts if (fits := part.fit(returned)) is not None), None)


class Both(Shape):
    """Shape `tuple[A, B]`: as many parts as there are, in this order."""

    __slots__ = ()

    def fit(self, returned: object) -> tuple[Returned, ...] | None:
        if not isinstance(returned, tuple) or len(returned) != len(self.parts):
            return None
        return _joined(part.fit(value) for part, value in zip(self.parts, returned, strict=True))


class Many(Shape):
    """Shape `list[A]`, `Sequence[A]`, `tuple[A, ...]`: any number of its part."""

    __slots__ = ()

    def fit(self, returned: object) -> tuple[Returned, ...] | None:
        if not isinstance(returned, Sequence) or isinstance(returned, str | bytes):
            return None
        return _joined(map(self.parts[0].fit, returned))


def any_of(events: Sequence[type[Event]]) -> Shape:
    """Shape of any number of any of these events: for a handler that has no annotation to be read."""
    return Many((Either(tuple(One(event=event) for event in events)),))


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
        return Many((shape_of(args[0], where),))
    if origin is tuple:
        return Both(tuple(shape_of(part, where) for part in args))
    if origin in (list, Sequence):
        return Many((shape_of(args[0], where),))
    if annotation is Later or origin is Later:
        return _again(args, where)
    if isinstance(annotation, type) and issubclass(annotation, Event) and annotation is not Event:
        return One(event=annotation)
    raise DeclarationError(
        f"{where} returns {spelt(annotation)}, which says of no event that it may be emitted: "
        "annotate it with events (A | B one of them, tuple[A, B] both, list[A] many, | None maybe nothing)"
    )


def _again(args: tuple[object, ...], where: str) -> Shape:
    """Shape of `Later`, `Later[None]`, `Later[A | B]`. Raises `DeclarationError` for one that waits for no event."""
    options = options_of(args[0]) if args else (NoneType,)
    if options == (NoneType,):
        return Again(until=())
    until = [o for o in options if isinstance(o, type) and issubclass(o, Event) and o is not Event]
    if len(until) < len(options):
        raise DeclarationError(
            f"{where} returns Later[{' | '.join(map(spelt, options))}]: name the events that end the wait, "
            "Later[A | B], or leave out the brackets: then it waits for a time"
        )
    return Again(until=tuple(until))


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


def _joined(parts: Iterable[tuple[Returned, ...] | None]) -> tuple[Returned, ...] | None:
    joined: list[Returned] = []
    for part in parts:
        if part is None:
            return None
        joined += part
    return tuple(joined)
