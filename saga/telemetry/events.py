"""Moments that the runtime reports: frozen values; logs, metrics and traces listen. New fields break nobody.

Structs of msgspec, for one is made for each message: a frozen dataclass of this size takes five times as long to make.
"""

import logging
from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

from saga.messages import Partition


class TelemetryEvent(Struct, frozen=True, kw_only=True, gc=False):
    """Event in the life of a service that is reported."""

    service: str


class Handled(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """End of a message here: the canonical moment, once for each handled message. Times in milliseconds."""

    saga: str
    message: str
    type: str
    topic: str
    partition: int
    offset: int
    outcomes: tuple[tuple[str, str, str | None], ...]
    """Transitions, each with handler, outcome and reason; none for a repetition."""
    queued_ms: float
    """Time from when it was received to when its lane took it."""
    handler_ms: float
    """Time in handlers, their steps included, over all attempts."""
    persisted_ms: float
    """Time of waiting for the store."""
    published_ms: float
    """Time of waiting for the broker's acknowledgement."""
    total_ms: float
    """Time from when it was received to its end: more than the sum of the stages, by what the runtime itself takes."""
    attempts: int
    """Attempts of its handlers, the successful ones included; 0 where none ran."""
    principal: str | None = None
    """Principal that began its saga, as the message says."""


class Span(Struct, frozen=True, kw_only=True, gc=False):
    """Stretch of the handling of a message: with names out of code, and ids; without values, or what errors say."""

    id: str
    """Id of the span, 16 hexadecimal digits."""
    parent: str | None
    """Id of the span of the same turn that it is part of; `None`: that of the message."""
    kind: Literal["turn", "handler", "step", "store", "publish"]
    name: str
    began_s: float
    ended_s: float
    error: str | None = None
    """Name of the class of the exception that ended it."""
    links: tuple[str, ...] = ()
    """Headers `traceparent` of other messages that it was given."""
    event: str | None = None
    """Id of the event that was published."""


class Traced(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Spans of the handling of a message, where it is traced: told behind `Handled`."""

    saga: str
    message: str
    type: str
    topic: str
    partition: int
    offset: int
    trace: str
    """Id of the trace."""
    parent: str | None
    """Id of the span of another process that it is below; `None`: the trace begins here."""
    flags: int
    """Flags of the trace."""
    spans: tuple[Span, ...]
    now_s: float
    """Time of the monotonic clock, by which the spans are timed, now."""
    now_ms: int
    """The same moment, in milliseconds since 1970."""
    principal: str | None = None


class StepDone(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Answer that a step has got."""

    saga: str
    handler: str
    step: str
    ms: float


class Failed(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Failure of an attempt that counts, the last one included, for those who count by class."""

    saga: str
    handler: str
    kind: str
    """Name of the exception's class."""
    blame: str
    """Class of the failure: who can mend it, see `saga.policies.blame`."""


class Retrying(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Failure of an attempt; the next one follows after `delay_s` seconds."""

    saga: str
    handler: str
    message: str
    attempt: int
    attempts_max: int
    delay_s: float
    error: str
    where: str | None = None
    """File, line and function of the service's code in which it was raised."""


class Parked(Retrying, frozen=True, kw_only=True, gc=False):
    """Failure of an attempt after which only this saga waits: the next one follows, here or at another worker, after
    `delay_s` seconds."""


class PutOff(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Attempt that ended without counting, for a call was not made, or nothing was begun: the breaker of its resource
    is open, too many wait for their turn, or a person has paused it. It is made again after `delay_s` seconds."""

    saga: str
    handler: str
    message: str
    delay_s: float
    is_parked: bool
    """True if only this saga waits; else its lane does, for a short time."""
    error: str


class BreakerTurned(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Turn of the breaker of a resource, in this process."""

    resource: str
    state: Literal["closed", "half-open", "open"]
    open_s: float
    """Seconds for which it stays open from now on; 0 if it is not."""


class ControlTurned(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Begin or end of what a person has paused, limited or routed, as this process takes note of it."""

    control: str
    """`pause`, `limit` or `route`."""
    what: str
    """Kind of the thing that it is for: a `handler`, an `event`, a `resource` or the `service`."""
    name: str
    is_on: bool
    who: str
    why: str
    until: str | None
    """Time at which it ends by itself."""


class ControlUnknown(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Switch of a kind that this version of the service does not know, and leaves alone: another version does."""

    kind: str


class CallWaited(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Call of a step that had to wait for its turn, and has it now."""

    resource: str
    """Resource; `<resource>.<call>`, or the function's name, for the turns of a call that has limits of its own."""
    ms: float


class FellBack(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Call of a step that was refused, by a breaker or without a turn in time, and was answered in another way."""

    saga: str
    handler: str
    step: str
    instead: str
    """Function that is called in its place, or `remembered`."""


class WriteRefused(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Write to the store that did not happen, or perhaps not: all is read and decided again. Everyday, unless often."""

    saga: str | None
    """Saga id; `None` for updates of a business document: those of several sagas go together."""
    operation: Literal["write", "archive", "update"]
    """Write of the progress, of its archive, or of a business document."""
    why: Literal["conflict", "ambiguous"]
    """Reason: somebody else wrote first; or the answer was lost."""


class DeadLettered(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """End of a message that was given up; it lies on `<service>.dead`."""

    reason: str
    remedy: str
    saga: str | None = None
    message: str | None = None
    type: str | None = None
    handler: str | None = None
    where: str | None = None
    """Place in the service's code, as in `Retrying`, of the last attempt."""
    blame: str | None = None
    """Class of the failure: who can mend it, see `saga.policies.blame`."""
    owner: str | None = None
    """Service that owns the contract of its type."""
    id: str | None = None
    """Id of the dead letter, if its saga waits for a person because of it."""


class ReplayEnded(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """End of what a person had tried again: a dead letter that was replayed or resolved."""

    saga: str
    handler: str
    message: str
    result: Literal["succeeded", "died", "ignored"]
    """`died`: it is a dead letter again. `ignored`: it was not due any more."""


class Escalated(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Trouble that only a person can put right."""

    saga: str
    handler: str
    reason: str
    steps: tuple[str, ...]
    id: str | None = None
    """Id of its letter; `None`: this time there is none."""


class Stuck(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Lane that cannot decide: it waits and tries again; nothing is lost, and other lanes go on."""

    saga: str
    message: str
    error: str
    retry_s: float


class Unavailable(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Outage of store or broker: lanes wait. At most one a minute for each."""

    what: str
    """Name of what it is about: `store`, `broker` or `hook`."""
    operation: str
    error: str
    since_s: float


class Recovered(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """End of an outage: store or broker was away for `away_s` seconds."""

    what: str
    """Name of what it is about: `store`, `broker` or `hook`."""
    away_s: float


class PassedOver(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Record that is not handled, though it may have been meant for the service."""

    topic: str
    partition: int
    offset: int
    why: Literal["tombstone", "unknown type"]
    """Reason: it has no value; or it is of a type that no contract has."""


class UnknownType(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """First record of a type that no contract has, in a topic that the service consumes. Records of that type are
    passed over: told once in the life of a process."""

    topic: str
    partition: int
    offset: int
    type: str


class OtherPartitioner(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """First record of a topic of events that lies in another partition than its key asks for: another client writes
    there with a partitioner of its own. Reported once in the life of a process."""

    topic: str
    partition: int
    offset: int
    expected: int
    """Partition in which Kafka's default partitioner puts the key."""
    what: str = (
        "records of one saga may lie in several partitions: their order is lost, and they are handled apart; set the "
        "sender's partitioner to murmur2 (librdkafka: partitioner=murmur2_random)"
    )
    """Consequence, and what to do."""


class Expired(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Loss of records that were removed from the log before this service had them: keep them for longer than it may be
    stopped (`retention_days`). What they said is lost to it."""

    topic: str
    partition: int
    first: int
    """Offset of the first one that is gone."""
    last: int
    """Offset of the last one."""
    count: int
    """Number of records lost, at most: where transactions ended, offsets had no record."""


class LogReplaced(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A topic was deleted and created again, or its log has lost its end: it is read from its beginning. What the log
    before held from `first` on is lost to this service."""

    topic: str
    partition: int
    first: int
    """Offset, in the log before, of the first record that this service had not had."""


class PartitionsRaised(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Topic that has got more partitions while this service runs: the new ones are read from their beginning."""

    topic: str
    before: int
    now: int
    what: str = (
        "a key may lie in another partition from now on: what was published before may be handled after what is "
        "published now; raise partitions by `saga topics apply`, with the services stopped and nothing left to handle"
    )
    """Consequence, and what to do the next time."""


class TimersLost(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Topics of timers were deleted, or their records were. The service has sent the current timer of each of its sagas
    again; if it could not, `saga sagas repair` does."""

    topics: tuple[str, ...]
    sent: int = 0
    """Number of timers that were sent again."""
    error: str | None = None
    """Reason that they could not be sent."""


class PublishedLost(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A topic to which this service publishes was deleted and created again: what lay there is gone, and recorded as
    published. `saga sagas repair` publishes it again."""

    topic: str


class SchemasDeployed(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Schemas that were deployed while the service runs, and that it knows from now on."""

    schemas: tuple[str, ...]
    """Paths in the contracts: `payments/PaymentReserved.v2`."""


class ContractsUnreadable(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Failure to read the contracts anew, for a message of a schema that nobody here knows. Told once."""

    folder: str
    error: str


class Untold(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Transitions that were let go, for the log did not take them: they are told when their sagas are loaded next. Told
    once a minute."""

    count: int
    """Number of them since people were told of any."""
    error: str


class Misfit(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Times that do not go together, told at the start of a service, which runs all the same."""

    what: str


class Opened(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Broker or store that is open, at the start of a process."""

    what: str
    took_s: float


class StillOpening(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Broker or store that is not open yet, every few seconds while a process waits for it at its start."""

    what: str
    since_s: float
    left_s: float
    """Seconds after which the process gives up if nothing comes on by then."""


class Started(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Start of the service: it takes messages."""

    topics: tuple[str, ...]


class Stopped(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """End of the service: it has drained and left its group."""

    drained_s: float


class Assigned(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Partitions that are ours from now on."""

    partitions: tuple[Partition, ...]


class Revoked(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Partitions that were given back, drained."""

    partitions: tuple[Partition, ...]


class Lost(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Partitions that were taken away without warning."""

    partitions: tuple[Partition, ...]


class StandsStill(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Part of the log that cannot be read stands still, and nothing else: nothing of it is stepped over. Told once."""

    topic: str
    partition: int | None
    """Number of the partition; `None`: all of the topic."""
    offset: int | None
    """Offset of the first record that cannot be read, if the trouble is one of records."""
    error: str


class GoesOn(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """End of a standstill: that part can be read again, or is somebody else's now."""

    topic: str
    partition: int | None


class TimerKept(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Timer of a saga that this store does not know: it is published again, for a process that has the store which
    does. Does the service have another store elsewhere, or another project a service of the same name?"""

    saga: str
    timer: str
    again_s: float
    """Seconds until it comes again."""


class StrangersMet(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Members of another service, or of one on another store, are in the service's group: each side loses the messages
    that the other one takes. Reported once a minute as long as they are there."""

    members: tuple[str, ...]


class DeadlineBehindLog(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Deadlines are due and wait until what the log held at their time has been handled here: an answer that came in
    time may lie there. Told once a minute for each partition."""

    topic: str
    partition: int
    count: int
    """Messages of the partition that are still to be handled."""
    waited_s: float


class DeadlinePassedLog(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Deadline that runs although a part of the log has not been handled up to its due time: it cannot be read, or the
    deadline's grace is over. What lies there may have closed it."""

    saga: str
    topic: str | None
    """Topic of the part that cannot be read; `None`: its grace is over, whatever is behind."""
    partition: int | None
    error: str


class StartInFuture(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Start of a saga that lies far ahead of this worker's clock: its sender's clock is wrong, or this one."""

    saga: str
    message: str
    type: str
    begins: str
    """Time at which its saga is said to have begun."""
    ahead_s: float


Report: TypeAlias = Callable[[TelemetryEvent], None]


log = logging.getLogger("saga.telemetry")


def to_all(*listeners: Report) -> Report:
    """Make a listener that tells each of these. What one raises stays here: the first time it is logged, with its
    traceback."""
    told: set[int] = set()

    def report(moment: TelemetryEvent) -> None:
        for number, listener in enumerate(listeners):
            try:
                listener(moment)
            except Exception:  # a message is handled whether or not somebody can count it
                if number not in told:
                    told.add(number)
                    log.exception("a listener of moments fails; it is told of the next ones all the same")

    return report
