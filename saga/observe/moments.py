"""The moments that the runtime reports: frozen values; logs, metrics and traces listen. New fields break nobody.

Structs of msgspec, for one is made for each message: a frozen dataclass of this size takes five times as long to make.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

from saga.messages import Partition


class Moment(Struct, frozen=True, kw_only=True, gc=False):
    """Something that happened in a service."""

    service: str


class Handled(Moment, frozen=True, kw_only=True, gc=False):
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


class StepDone(Moment, frozen=True, kw_only=True, gc=False):
    """A step has got its answer."""

    saga: str
    handler: str
    step: str
    ms: float


class Retrying(Moment, frozen=True, kw_only=True, gc=False):
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


class WriteRefused(Moment, frozen=True, kw_only=True, gc=False):
    """A write to the store did not happen, or perhaps not: all is read and decided again. Everyday, unless often."""

    saga: str | None
    """`None` for updates of a business document: those of several sagas go together."""
    operation: Literal["write", "archive", "update"]
    """Of the progress, of its archive, of a business document."""
    why: Literal["conflict", "ambiguous"]
    """Somebody else wrote first; or the answer was lost."""


class DeadLettered(Moment, frozen=True, kw_only=True, gc=False):
    """A message was given up; it lies on `<service>.dead`."""

    reason: str
    remedy: str
    saga: str | None = None
    message: str | None = None
    type: str | None = None
    handler: str | None = None
    where: str | None = None
    """As in `Retrying`, of the last attempt."""


class Escalated(Moment, frozen=True, kw_only=True, gc=False):
    """Something that only a person can put right."""

    saga: str
    handler: str
    reason: str
    steps: tuple[str, ...]


class Stuck(Moment, frozen=True, kw_only=True, gc=False):
    """A lane cannot decide: it waits and tries again; nothing is lost, and other lanes go on."""

    saga: str
    message: str
    error: str
    retry_s: float


class Unavailable(Moment, frozen=True, kw_only=True, gc=False):
    """Store or broker cannot be reached: lanes wait. At most one a minute for each."""

    what: str
    """`store` or `broker`."""
    operation: str
    error: str
    since_s: float


class Recovered(Moment, frozen=True, kw_only=True, gc=False):
    """Store or broker can be reached again; it was away for `away_s` seconds."""

    what: str
    """`store` or `broker`."""
    away_s: float


class Expired(Moment, frozen=True, kw_only=True, gc=False):
    """Records were removed from the log before this service had them: keep them for longer than it may stand still
    (`retention_days`). What they said is lost to it."""

    topic: str
    partition: int
    first: int
    """The offset of the first one that is gone."""
    last: int
    """The offset of the last one."""
    count: int
    """How many, at most: where transactions ended, offsets had no record."""


class Started(Moment, frozen=True, kw_only=True, gc=False):
    """The service takes messages."""

    topics: tuple[str, ...]


class Stopped(Moment, frozen=True, kw_only=True, gc=False):
    """The service has drained and left its group."""

    drained_s: float


class Assigned(Moment, frozen=True, kw_only=True, gc=False):
    """These partitions are ours from now on."""

    partitions: tuple[Partition, ...]


class Revoked(Moment, frozen=True, kw_only=True, gc=False):
    """These partitions were given back, drained."""

    partitions: tuple[Partition, ...]


class Lost(Moment, frozen=True, kw_only=True, gc=False):
    """These partitions were taken away without warning."""

    partitions: tuple[Partition, ...]


class StandsStill(Moment, frozen=True, kw_only=True, gc=False):
    """Part of the log cannot be read, and only that stands: nothing of it is stepped over. Told once."""

    topic: str
    partition: int | None
    """`None`: all of the topic."""
    offset: int | None
    """Offset of the first record that cannot be read, if the trouble is one of records."""
    error: str


class GoesOn(Moment, frozen=True, kw_only=True, gc=False):
    """It can be read again, or is somebody else's now."""

    topic: str
    partition: int | None


Report: TypeAlias = Callable[[Moment], None]
