"""Telemetry events: frozen values that the engine reports, and from which logs, metrics and traces are made.

New events and fields may be added in any version. They are msgspec structs because at least one is created for each
message, and creating a frozen dataclass of this size takes five times as long.
"""

import logging
from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

from saga.messages import Partition


class TelemetryEvent(Struct, frozen=True, kw_only=True, gc=False):
    """Base of all telemetry events."""

    service: str


class Handled(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A message is finished. Reported once for each handled message. Times are in milliseconds."""

    saga: str
    message: str
    type: str
    topic: str
    partition: int
    offset: int
    outcomes: tuple[tuple[str, str, str | None], ...]
    """Handler, outcome and reason of each transition; empty for a duplicate."""
    queued_ms: float
    """Time from the message's receipt until the keyed executor started to process it."""
    handler_ms: float
    """Time spent in handlers, including their steps, over all attempts."""
    persisted_ms: float
    """Time spent waiting for the store."""
    published_ms: float
    """Time spent waiting for the broker's acknowledgement."""
    total_ms: float
    """Time from receipt to finish: the sum of the stages plus the engine's own work."""
    attempts: int
    """Number of attempts of its handlers, including successful ones; 0 if none ran."""
    principal: str | None = None
    """Principal that started the saga, as stated in the message."""


class Span(Struct, frozen=True, kw_only=True, gc=False):
    """A span in the processing of a message. It contains ids, and names from code, but no values and no error texts."""

    id: str
    """Id of the span, 16 hexadecimal digits."""
    parent: str | None
    """Id of the enclosing span of the same turn; `None` for the span of the message."""
    kind: Literal["turn", "handler", "step", "store", "publish"]
    name: str
    began_s: float
    ended_s: float
    error: str | None = None
    """Class name of the exception that ended the span; `None` if it ended without one."""
    links: tuple[str, ...] = ()
    """`traceparent` headers of the other messages that it handles, as in a fan-in."""
    event: str | None = None
    """Id of the event that was published; `None` if the span is about something else."""


class Traced(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A message with a trace is finished. Reported after `Handled`, with all spans."""

    saga: str
    message: str
    type: str
    topic: str
    partition: int
    offset: int
    trace: str
    """Id of the trace."""
    parent: str | None
    """Id of the parent span in another process; `None` if the trace begins here."""
    flags: int
    """Flags of the trace."""
    spans: tuple[Span, ...]
    now_s: float
    """Current time on the monotonic clock that measures the spans."""
    now_ms: int
    """Wall-clock time at the moment of `now_s`, in milliseconds since 1970. With it the times of the spans are
    converted to wall-clock times.
    """
    principal: str | None = None


class StepDone(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A call of a step was answered."""

    saga: str
    handler: str
    step: str
    ms: float


class Failed(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A counted attempt failed, whether or not another one follows. Reported so that metrics can count failures by
    class.
    """

    saga: str
    handler: str
    kind: str
    """Name of the exception's class."""
    blame: str
    """Who can fix the failure, see `saga.policies.retry`."""


class Retrying(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """An attempt failed; the next one follows after `delay_s` seconds."""

    saga: str
    handler: str
    message: str
    attempt: int
    attempts_max: int
    delay_s: float
    error: str
    where: str | None = None
    """File, line and function of the service's code that raised the error."""


class Parked(Retrying, frozen=True, kw_only=True, gc=False):
    """An attempt failed and the run was parked, so only this saga waits. The next attempt follows after `delay_s`
    seconds, in this worker or another one.
    """


class PutOff(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """An attempt was postponed without being counted, because its call was not made: the circuit breaker of the
    resource is open, too many calls wait, or an operator paused it. The attempt is repeated after `delay_s` seconds.
    """

    saga: str
    handler: str
    message: str
    delay_s: float
    is_parked: bool
    """True if the run is parked, so that only its saga waits. False if the run keeps its place in the keyed executor
    for a short wait.
    """
    error: str


class BreakerTurned(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """The circuit breaker of a resource changed its state in this process."""

    resource: str
    state: Literal["closed", "half-open", "open"]
    open_s: float
    """Seconds for which the breaker stays open from now on; 0 if it is not open."""


class ControlTurned(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A control that an operator set (a pause, limit or route) took effect or ended in this process."""

    control: str
    """`pause`, `limit` or `route`."""
    what: str
    """Kind of target: a `handler`, an `event`, a `resource` or the `service`."""
    name: str
    is_on: bool
    who: str
    why: str
    until: str | None
    """Time at which the control ends by itself; `None` if it does not."""


class ControlUnknown(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """An operator set a control of a kind that this version of the service does not know, but another version does.
    This version ignores it."""

    kind: str


class CallWaited(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A call of a step had to wait because of a limit, and now continues."""

    resource: str
    """Name of the resource. If the call has limits of its own, `<resource>.<call>`, or the name of the function."""
    ms: float


class FellBack(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A call of a step was rejected by a breaker or a limit, and a fallback answered."""

    saga: str
    handler: str
    step: str
    instead: str
    """Name of the function that was called instead, or `remembered` for the last good answer."""


class WriteRefused(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A write to the store failed, or may have failed. The document is loaded again, and what to write is decided
    again. This is normal unless it is frequent.
    """

    saga: str | None
    """Saga id; `None` for an update of a business document, which may combine several sagas."""
    operation: Literal["write", "archive", "update"]
    """Kind of document that was written: the progress, its archive, or a business document."""
    why: Literal["conflict", "ambiguous"]
    """`conflict`: another process wrote first. `ambiguous`: the answer was lost."""


class DeadLettered(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A message was given up and is now a dead letter on `<service>.dead`."""

    reason: str
    remedy: str
    saga: str | None = None
    message: str | None = None
    type: str | None = None
    handler: str | None = None
    where: str | None = None
    """Place in the service's code at which the last attempt failed, as in `Retrying`."""
    blame: str | None = None
    """Who can fix the failure, see `saga.policies.retry`."""
    owner: str | None = None
    """Service that owns the contract of the message's type."""
    id: str | None = None
    """Id of the dead letter if it blocks its saga until an operator acts, else `None`."""


class ReplayEnded(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A dead letter that an operator replayed or resolved was processed."""

    saga: str
    handler: str
    message: str
    result: Literal["succeeded", "died", "ignored"]
    """`succeeded`. `died`: it is a dead letter again. `ignored`: it no longer had to be handled."""


class Escalated(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A failure needs an operator, for example a compensation that keeps failing."""

    saga: str
    handler: str
    reason: str
    steps: tuple[str, ...]
    id: str | None = None
    """Id of the record on `<service>.dead`; `None` if no record was written this time."""


class Stuck(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """The service cannot decide how to continue a saga, for example because a newer version wrote its progress. It
    waits and tries again. Nothing is lost, and other sagas continue."""

    saga: str
    message: str
    error: str
    retry_s: float


class Unavailable(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Store, registry, broker, key folder or alert hook cannot be reached, so messages wait. At most one report a
    minute each.
    """

    what: str
    """`store`, `registry`, `broker`, `key folder` or `hook`."""
    operation: str
    error: str
    since_s: float


class Recovered(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """What was reported as unavailable can be reached again, after `away_s` seconds."""

    what: str
    """`store`, `registry`, `broker`, `key folder` or `hook`."""
    away_s: float


class PassedOver(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A record was skipped although it may have been meant for the service."""

    topic: str
    partition: int
    offset: int
    why: Literal["tombstone", "unknown type"]
    """`tombstone`: the record has no value. `unknown type`: no contract has its type."""


class UnknownType(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A consumed topic contains a record of a type that no contract has. All records of that type are skipped. Each
    process reports only the first one.
    """

    topic: str
    partition: int
    offset: int
    type: str


class OtherPartitioner(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A record of an event topic is in another partition than its key requires, which means that some client uses
    another partitioner. Each process reports only the first one.
    """

    topic: str
    partition: int
    offset: int
    expected: int
    """Partition in which Kafka's default partitioner puts the key."""
    what: str = (
        "records of one saga may lie in several partitions: their order is lost, and they are handled apart; set the "
        "sender's partitioner to murmur2 (librdkafka: partitioner=murmur2_random)"
    )
    """Consequence, and the recommended action."""


class Expired(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Records were removed from the log before this service had read them, so it never gets these events. To avoid
    this, keep records longer than a service may be stopped (`retention_days`).
    """

    topic: str
    partition: int
    first: int
    """Offset of the first lost record."""
    last: int
    """Offset of the last lost record."""
    count: int
    """Maximum number of lost records. There may be fewer, because some offsets belong to transaction markers."""


class LogReplaced(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A topic was deleted and created again, or the end of its log was lost, and it is now read from its beginning.
    Records of the old log from offset `first` on are lost for this service.
    """

    topic: str
    partition: int
    first: int
    """Offset of the first record of the old log that this service had not read."""


class PartitionsRaised(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A topic got more partitions while this service was running. The new ones are read from their beginning."""

    topic: str
    before: int
    now: int
    what: str = (
        "a key may lie in another partition from now on: what was published before may be handled after what is "
        "published now; raise partitions by `saga topics apply`, with the services stopped and nothing left to handle"
    )
    """Consequence, and how to avoid it the next time."""


class TimersLost(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Timer topics, or records in them, were deleted. The service has published the timers of its sagas again. If it
    could not, use `saga sagas repair`.
    """

    topics: tuple[str, ...]
    sent: int = 0
    """Number of timers that were published again."""
    error: str | None = None
    """Reason why the timers could not be published; `None` if they were."""


class PublishedLost(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A topic to which this service publishes was deleted and created again. Its events are lost, although the
    progresses record them as published; `saga sagas repair` publishes them again.
    """

    topic: str


class SchemasDeployed(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Schemas were deployed while the service was running, and it uses them from now on."""

    schemas: tuple[str, ...]
    """Paths in the contracts folder, such as `payments/PaymentReserved.v2`."""


class ContractsUnreadable(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """The contracts could not be reloaded for a message with an unknown schema. Reported once."""

    folder: str
    error: str


class TransitionsDropped(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Transition events could not be published and were dropped from memory. They are published when their sagas are
    next loaded. Reported once a minute.
    """

    count: int
    """Number of dropped events since the last report."""
    error: str


class Misfit(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Configured durations contradict each other. Reported at the start of a service, which runs nevertheless."""

    what: str


class Opened(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A broker or store was opened at the start of a process."""

    what: str
    took_s: float


class StillOpening(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A starting process still waits for a broker or store. Reported every few seconds."""

    what: str
    since_s: float
    left_s: float
    """Seconds until the process stops trying."""


class StoppedBeforeStart(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """The process received a stop signal while it opened broker and stores. The service was not started."""


class Started(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """The service has started and accepts messages."""

    topics: tuple[str, ...]


class Stopped(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """The service has drained, left its consumer group and stopped."""

    drained_s: float


class Assigned(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Partitions were assigned to this worker."""

    partitions: tuple[Partition, ...]


class Revoked(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """This worker drained partitions and gave them up."""

    partitions: tuple[Partition, ...]


class Lost(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """This worker lost partitions without warning, so it could not drain them."""

    partitions: tuple[Partition, ...]


class StandsStill(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A partition or topic is stalled because it cannot be read. None of its records is skipped, and other partitions
    continue. Reported once.
    """

    topic: str
    partition: int | None
    """Number of the partition; `None` for the whole topic."""
    offset: int | None
    """Offset of the first unreadable record; `None` if the cause is not a record."""
    error: str


class GoesOn(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A stalled partition or topic can be read again, or is now assigned to another worker."""

    topic: str
    partition: int | None


class TimerKept(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A timer belongs to a saga that this store does not know. It is published again, for a process with the right
    store. Possible causes: another store of this service, or another project with a service of the same name.
    """

    saga: str
    timer: str
    again_s: float
    """Seconds until the timer is due again."""


class StrangersMet(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """The consumer group has members of another service, or members with another store. Each side loses the messages
    that the other one receives. Reported once a minute while they are in the group.
    """

    members: tuple[str, ...]


class DeadlineBehindLog(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Due deadlines wait until the log has been handled up to their due time, because it may contain an event that
    arrived in time. Reported once a minute for each partition.
    """

    topic: str
    partition: int
    count: int
    """Number of messages of the partition that have not been handled yet."""
    waited_s: float


class DeadlinePassedLog(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A deadline handler runs although the log has not been handled up to its due time, because a partition is stalled
    or the deadline's grace period is over. An unread event may have closed the deadline in time.
    """

    saga: str
    topic: str | None
    """Topic of the stalled partition; `None` if the grace period is over."""
    partition: int | None
    error: str


class StartInFuture(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A saga's start time is far ahead of this worker's clock. Either the sender's clock is wrong, or this one."""

    saga: str
    message: str
    type: str
    begins: str
    """Start time of the saga as stated in the message."""
    ahead_s: float


Report: TypeAlias = Callable[[TelemetryEvent], None]


log = logging.getLogger("saga.telemetry")


def to_all(*listeners: Report) -> Report:
    """Combine several listeners into one. An exception of a listener is not raised; for each listener the first one is
    logged with its traceback.
    """
    failed: set[int] = set()

    def report(moment: TelemetryEvent) -> None:
        for number, listener in enumerate(listeners):
            try:
                listener(moment)
            except Exception:  # failing telemetry must not stop the handling of messages
                if number not in failed:
                    failed.add(number)
                    log.exception("a telemetry listener failed; it still gets the next events")

    return report
