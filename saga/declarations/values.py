"""Frozen values that a service declares, and the runtime reads."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, TypeAlias

from saga.declarations.returns import Either, One, Shape, any_of, described
from saga.errors import Permanent
from saga.messages import Event
from saga.policies.retry import Retry

ReactionKind: TypeAlias = Literal["handler", "compensation", "deadline"]
"""Purpose of a reaction: to handle an event, to undo what a handler did, or to do something if nothing else came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """Parameter of a handler, and what it is given."""

    name: str
    role: Literal["event", "saga", "resource"]
    events: tuple[type[Event], ...] = ()
    """Classes that a parameter of the role `event` takes, any of them."""
    gives: type | None = None
    """Type of the resource that a parameter of the role `resource` is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """Function of the service that runs because of something that happened."""

    kind: ReactionKind

    service: str
    name: str
    function: Callable[..., Awaitable[object]]
    parameters: tuple[Parameter, ...]
    """Parameters in the order of the signature."""
    emits: tuple[type[Event], ...]
    """Events that it may emit."""
    many: bool
    retry: Retry
    timeout_s: float
    undoes: str | None = None
    """Handler that a compensation undoes."""
    within: timedelta | None = None
    """Time after its event at which a deadline runs."""
    unless: tuple[type[Event], ...] = ()
    """Events that close a deadline."""
    shape: Shape | None = None
    """Shape in which it returns events; left out, any number of what it emits."""
    _alone: frozenset[type] = field(init=False, repr=False, compare=False)
    """Events that it may return as they are: the common case, and cheap to see."""

    def __post_init__(self) -> None:
        shape = any_of(self.emits) if self.shape is None else self.shape
        options = shape.parts if isinstance(shape, Either) else (shape,)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "_alone", frozenset(option.event for option in options if isinstance(option, One)))

    @property
    def takes(self) -> tuple[type[Event], ...]:
        """Events that its parameters take."""
        return tuple(event for parameter in self.parameters for event in parameter.events)

    @property
    def hears(self) -> tuple[type[Event], ...]:
        """Events that the service has to read because of it."""
        return (*self.takes, *self.unless)

    def events_of(self, returned: object) -> tuple[Event, ...]:
        """Events in what the function returned, in order. Raises `Permanent` for what its annotation denies."""
        if type(returned) in self._alone:
            return (returned,)  # type: ignore[return-value] # all of `_alone` are classes of events
        assert self.shape is not None
        events = self.shape.fit(returned)
        if events is None:
            raise Permanent(
                f"{self.service}.{self.name} returned {described(returned)}, which its return annotation does not "
                f"allow: return {_names(self.emits)} as it says, or mend the annotation"
            )
        return events


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """Thing outside, as a bank, that handlers use."""

    name: str
    opener: Callable[[], AsyncIterator[object]]
    """Generator function that yields it once; what comes after the `yield` closes it."""
    gives: type
    timeout_s: float
    """Seconds that one call by `saga.step` may take."""
    answers: tuple[type[Exception], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentKind:
    """Kind of business document."""

    kind: type
    collection: str
    answers: tuple[type[Exception], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Declarations of a service so far, in their order."""

    name: str
    state: type | None
    memory: timedelta
    reactions: list[Reaction] = field(default_factory=list)
    resources: list[Resource] = field(default_factory=list)
    documents: list[DocumentKind] = field(default_factory=list)

    @property
    def handlers(self) -> list[Reaction]:
        """Reactions to events."""
        return [reaction for reaction in self.reactions if reaction.kind == "handler"]

    @property
    def deadlines(self) -> list[Reaction]:
        """Reactions to a time."""
        return [reaction for reaction in self.reactions if reaction.kind == "deadline"]

    @property
    def compensations(self) -> list[Reaction]:
        """Reactions to failure outcomes, each undoing a handler."""
        return [reaction for reaction in self.reactions if reaction.kind == "compensation"]


def _names(events: tuple[type[Event], ...]) -> str:
    return " or ".join(event.__name__ for event in events) or "nothing"
