"""The moments that the runtime reports: frozen values; logs, metrics and traces listen. New fields break nobody."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from saga.messages import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Something that happened in a service."""

    service: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled(Moment):
    """A message has come to its end here: the canonical one, once for each handled message. Times in milliseconds."""

    saga: str
    message: str
    type: str
    topic: str
    partition: int
    offset: int
    outcomes: tuple[tuple[str, str, str | None], ...]
    """Handler, outcome and reason of each transition; none for a repetition."""
    queued_ms: float
    """From when it was received to when its lane took it."""
    handler_ms: float
    """In handlers, their steps included, over all attempts."""
    persisted_ms: float
    """Waiting for the store."""
    published_ms: float
    """Waiting for the broker's acknowledgement."""
    total_ms: float
    """From when it was received to its end: more than the sum of the stages, by what the runtime itself takes."""
    attempts: int
    """Of its handlers, the successful ones included; 0 where none ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone(Moment):
    """A step has got its answer."""

    saga: str
    handler: str
    step: str
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying(Moment):
    """An attempt has failed; the next one follows after `delay_s` seconds."""

    saga: str
    handler: str
    message: str
    attempt: int
    attempts_max: int
    delay_s: float
    error: str
    where: str | None = None
    """File, line and function of the service's code in which it was raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRefused(Moment):
    """A write to the store did not happen, or perhaps not: all is read and decided again. Everyday, unless often."""

    saga: str | None
    """`None` for updates of a business document: those of several sagas go together."""
    operation: Literal["write", "archive", "update"]
    """Of the progress, of its archive, of a business document."""
    why: Literal["conflict", "ambiguous"]
    """Somebody else wrote first; or the answer was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettered(Moment):
    """A message was given up; it lies on `<service>.dead`."""

    reason: str
    remedy: str
    saga: str | None = None
    message: str | None = None
    type: str | None = None
    handler: str | None = None
    where: str | None = None
    """As in `Retrying`, of the last attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalated(Moment):
    """Something that only a person can put right."""

    saga: str
    handler: str
    reason: str
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck(Moment):
    """A lane cannot decide: it waits and tries again; nothing is lost, and other lanes go on."""

    saga: str
    message: str
    error: str
    retry_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable(Moment):
    """Store or broker cannot be reached: lanes wait. At most one a minute for each."""

    what: str
    """`store` or `broker`."""
    operation: str
    error: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(Moment):
    """Store or broker can be reached again; it was away for `away_s` seconds."""

    what: str
    """`store` or `broker`."""
    away_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Moment):
    """The service takes messages."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Moment):
    """The service has drained and left its group."""

    drained_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned(Moment):
    """These partitions are ours from now on."""

    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked(Moment):
    """These partitions were given back, drained."""

    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(Moment):
    """These partitions were taken away without warning."""

    partitions: tuple[Partition, ...]


Report: TypeAlias = Callable[[Moment], None]
