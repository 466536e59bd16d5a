"""Telemetry events: frozen values that the engine reports, from which logs, metrics and traces are made.

New events and fields may be added in any version. The events are msgspec structs because at least one is created for
each message, and creating a frozen dataclass of this size takes five times as long.
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
    """The processing of a message is finished. Reported once for each handled message. Times are in milliseconds."""

    saga: str
    message: str
    type: str
    topic: str
    partition: int
    offset: int
    outcomes: tuple[tuple[str, str, str | None], ...]
    """Handler, outcome and reason of each transition. Empty if the message was a duplicate."""
    queued_ms: float
    """Time from the message's receipt until the keyed executor started to process it."""
    handler_ms: float
    """Time spent in handlers, including their steps, over all attempts."""
    persisted_ms: float
    """Time spent waiting for the store."""
    published_ms: float
    """Time spent waiting for the broker's acknowledgement."""
    total_ms: float
    """Time from receipt to finish: the sum of the stages above, and the engine's own work."""
    attempts: int
    """Number of attempts of the message's handlers, including successful ones; 0 if no handler ran."""
    principal: str | None = None
    """Principal that started the saga, as stated in the message."""


class Span(Struct, frozen=True, kw_only=True, gc=False):
    """A span in the processing of a message. It contains ids, and names from code, but no values and no error texts."""

    id: str
    """Id of the span, 16 hexadecimal digits."""
    parent: str | None
    """Id of the enclosing span for the same message; `None` for the outermost span, which is of kind `turn`."""
    kind: Literal["turn", "handler", "step", "store", "publish"]
    name: str
    began_s: float
    ended_s: float
    error: str | None = None
    """Class name of the exception that ended the span; `None` if it ended without one."""
    links: tuple[str, ...] = ()
    """`traceparent` headers of the other messages that the span handles, as in a fan-in."""
    event: str | None = None
    """Id of the event that was published in this span; `None` for other kinds of spans."""


class Traced(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """The processing of a sampled message is finished. Reported after `Handled`, with all spans of the message."""

    saga: str
    message: str
    type: str
    topic: str
    partition: int
    offset: int
    trace: str
    """Id of the trace."""
    parent: str | None
    """Id of the parent span, which belongs to another process; `None` if the trace begins here."""
    flags: int
    """Flags of the trace."""
    spans: tuple[Span, ...]
    now_s: float
    """Current time on the monotonic clock that measures the spans."""
    now_ms: int
    """Wall-clock time at the moment of `now_s`, in milliseconds since 1970. Used to convert the times of the spans to
    wall-clock times."""
    principal: str | None = None


class StepDone(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """An external system has answered the call of a step."""

    saga: str
    handler: str
    step: str
    ms: float


class Failed(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """An attempt failed and was counted, whether or not another one follows. Reported so that metrics can count
    failures by class."""

    saga: str
    handler: str
    kind: str
    """Class name of the exception."""
    blame: str
    """Who can fix the failure: see `saga.policies.retry`."""


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
    """An attempt failed and its run was parked, so that only this saga waits. The next attempt follows after `delay_s`
    seconds, in this worker or another one."""


class PutOff(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A run was postponed, and no attempt was counted: the circuit breaker of a resource is open, a limit is reached,
    or an operator has paused the handler or the service. The next try follows after `delay_s` seconds."""

    saga: str
    handler: str
    message: str
    delay_s: float
    is_parked: bool
    """True if the run is parked, so that only its saga waits. False if it waits in memory, for a short time, and keeps
    its place in the keyed executor."""
    error: str


class BreakerTurned(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """The circuit breaker of a resource has changed its state in this process."""

    resource: str
    state: Literal["closed", "half-open", "open"]
    open_s: float
    """Seconds for which the breaker will stay open; 0 if it is not open."""


class ControlTurned(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A pause, limit or route that an operator set has taken effect in this process, or has ended."""

    control: str
    """`pause`, `limit` or `route`."""
    what: str
    """Kind of the target: `handler`, `event`, `resource` or `service`."""
    name: str
    is_on: bool
    who: str
    why: str
    until: str | None
    """Time at which the control ends by itself; `None` if it does not."""


class ControlUnknown(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """An operator has set a control of a kind that only a later version of the toolkit knows. This version ignores
    it."""

    kind: str


class CallWaited(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A call of a step had to wait because of a limit. It now continues."""

    resource: str
    """Name of the resource. If the call has limits of its own, this is `<resource>.<call>`, or the name of the
    function."""
    ms: float


class FellBack(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A breaker or a limit refused a call of a step, and a fallback gave the answer."""

    saga: str
    handler: str
    step: str
    instead: str
    """Name of the function that was called instead; `remembered` if the last good answer was used."""


class WriteRefused(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """The store refused a write, or its answer was lost. The worker loads the document again and repeats its decision.
    This is normal unless it is frequent."""

    saga: str | None
    """Saga id; `None` for an update of a business document, because one write may contain updates of several sagas."""
    operation: Literal["write", "archive", "update"]
    """What was to be written: the progress (`write`), its archive, or a business document (`update`)."""
    why: Literal["conflict", "ambiguous"]
    """`conflict`: another process wrote first. `ambiguous`: the store's answer was lost."""


class DeadLettered(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A message was given up and is now a dead letter on `<service>.dead`."""

    reason: str
    remedy: str
    saga: str | None = None
    message: str | None = None
    type: str | None = None
    handler: str | None = None
    where: str | None = None
    """Place in the service's code where the last attempt failed, as in `Retrying`."""
    blame: str | None = None
    """Who can fix the failure: see `saga.policies.retry`."""
    owner: str | None = None
    """The service that owns the contract of the message's type."""
    id: str | None = None
    """Id of the dead letter if it blocks its saga until an operator acts, otherwise `None`."""


class ReplayEnded(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """The handler of a dead letter has finished, after an operator replayed or resolved the dead letter."""

    saga: str
    handler: str
    message: str
    result: Literal["succeeded", "died", "ignored"]
    """`succeeded`: the message was handled. `died`: it became a dead letter again. `ignored`: it no longer had to be
    handled."""


class Escalated(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A failure needs an operator, for example a compensation that keeps failing."""

    saga: str
    handler: str
    reason: str
    steps: tuple[str, ...]
    id: str | None = None
    """Id of the escalation's record on `<service>.dead`; `None` if no record was written this time."""


class Stuck(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """The service cannot decide how to continue a saga, for example because a newer version wrote its progress. The
    service waits and tries again. Nothing is lost, and other sagas continue."""

    saga: str
    message: str
    error: str
    retry_s: float


class Unavailable(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """The store, registry, broker or key folder cannot be reached, so messages wait. Or the alert hook cannot be
    reached, so alerts are delayed; messages do not wait for it.

    While an outage lasts, each of the first four is reported at most once a minute. An outage of the hook is reported
    once.
    """

    what: str
    """`store`, `registry`, `broker`, `key folder` or `hook`."""
    operation: str
    error: str
    since_s: float


class Recovered(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Something that was reported as unavailable can be reached again, after `away_s` seconds."""

    what: str
    """`store`, `registry`, `broker`, `key folder` or `hook`."""
    away_s: float


class PassedOver(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A record was skipped although it may have been intended for the service."""

    topic: str
    partition: int
    offset: int
    why: Literal["tombstone", "unknown type"]
    """`tombstone`: the record has no value. `unknown type`: no contract has the record's type."""


class UnknownType(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A consumed topic contains a record of a type that no contract has. All records of that type are skipped. Each
    process reports only the first record of each such type."""

    topic: str
    partition: int
    offset: int
    type: str


class OtherPartitioner(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A record of an event topic is in another partition than its key requires. So some client uses another
    partitioner. Each process reports only the first such record of each topic."""

    topic: str
    partition: int
    offset: int
    expected: int
    """The partition in which Kafka's default partitioner would put the key."""
    what: str = (
        "records of one saga may lie in several partitions: their order is lost, and they are handled apart; set the "
        "sender's partitioner to murmur2 (librdkafka: partitioner=murmur2_random)"
    )
    """The consequence, and what to do."""


class Expired(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Records were removed from the log before this service had read them, so it never gets these events. To avoid
    this, keep records longer than the service may be stopped (`retention_days`)."""

    topic: str
    partition: int
    first: int
    """Offset of the first lost record."""
    last: int
    """Offset of the last lost record."""
    count: int
    """Upper bound of the number of lost records. Fewer may be lost, because some offsets belong to transaction
    markers."""


class LogReplaced(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A topic was deleted and created again, or the end of its log was lost. The partition is now read from its
    beginning. For this service, records of the old log from offset `first` on are lost."""

    topic: str
    partition: int
    first: int
    """Offset of the first record of the old log that this service had not read."""


class PartitionsRaised(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A topic got more partitions while this service was running. The new partitions are read from their beginning."""

    topic: str
    before: int
    now: int
    what: str = (
        "a key may lie in another partition from now on: what was published before may be handled after what is "
        "published now; raise partitions by `saga topics apply`, with the services stopped and nothing left to handle"
    )
    """The consequence, and how to avoid it the next time."""


class TimersLost(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Timer topics, or records in them, were deleted. The service has published the timers of its sagas again. If
    `error` says that it could not, run `saga sagas repair`."""

    topics: tuple[str, ...]
    sent: int = 0
    """Number of timers that were published again."""
    error: str | None = None
    """Reason why the timers could not be published; `None` if they were."""


class PublishedLost(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A topic to which this service publishes was deleted and created again. The service's events on it are lost,
    although its progresses record them as published. `saga sagas repair` publishes them again."""

    topic: str


class SchemasDeployed(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Schemas were deployed while the service was running. The service uses them from now on."""

    schemas: tuple[str, ...]
    """Paths in the contracts folder, such as `payments/PaymentReserved.v2`."""


class ContractsUnreadable(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A message has an unknown schema, and the contracts could not be loaded again to look for it. Reported once."""

    folder: str
    error: str


class TransitionsDropped(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Transition events could not be published and were dropped from memory. They will be published when their sagas
    are next loaded. Reported once a minute."""

    count: int
    """Number of dropped events since the last report."""
    error: str


class Misfit(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Configured durations contradict each other. Reported when a service starts. The service runs nevertheless."""

    what: str


class Opened(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A starting process has opened a broker or a store."""

    what: str
    took_s: float


class StillOpening(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A starting process is still waiting for a broker or a store. Reported every few seconds."""

    what: str
    since_s: float
    left_s: float
    """Seconds until the process gives up."""


class StoppedBeforeStart(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """The process received a stop signal while it was opening brokers, stores or resources. The service was not
    started."""


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
    """This worker has drained partitions and given them up."""

    partitions: tuple[Partition, ...]


class Lost(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """This worker lost partitions without warning, so it could not drain them."""

    partitions: tuple[Partition, ...]


class StandsStill(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A partition or a whole topic cannot be read, and is stalled. None of its records is skipped, and other partitions
    continue. Reported once."""

    topic: str
    partition: int | None
    """Number of the partition; `None` for the whole topic."""
    offset: int | None
    """Offset of the first unreadable record; `None` if no record is the cause."""
    error: str


class GoesOn(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A partition or topic is no longer stalled for this worker: it can be read again, or another worker got it."""

    topic: str
    partition: int | None


class TimerKept(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A timer belongs to a saga that this store does not know. The timer is published again, so that a process with the
    right store may get it. Possible causes: the service also has another store, or another project has a service of the
    same name."""

    saga: str
    timer: str
    again_s: float
    """Seconds until the timer is due again."""


class StrangersMet(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """The consumer group has members of another service, or members with another store. Each side misses the messages
    that the other side receives. Reported once a minute while they are in the group."""

    members: tuple[str, ...]


class DeadlineBehindLog(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """Deadlines are due, but wait until the log has been handled up to their due time, because it may contain an event
    that arrived in time. Reported once a minute for each partition."""

    topic: str
    partition: int
    count: int
    """Number of messages in the partition that have not been handled yet."""
    waited_s: float


class DeadlinePassedLog(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """A deadline handler runs although the log has not been handled up to the deadline's due time, because a partition
    is stalled or the deadline's grace period is over. An unread event may have closed the deadline in time."""

    saga: str
    topic: str | None
    """Topic of the stalled partition; `None` if the grace period is over."""
    partition: int | None
    error: str


class StartInFuture(TelemetryEvent, frozen=True, kw_only=True, gc=False):
    """The start time of a saga is far ahead of this worker's clock. Either the sender's clock is wrong, or this one
    is."""

    saga: str
    message: str
    type: str
    begins: str
    """Start time of the saga as stated in the message."""
    ahead_s: float


Report: TypeAlias = Callable[[TelemetryEvent], None]


log = logging.getLogger("saga.telemetry")


def to_all(*listeners: Report) -> Report:
    """Combine several listeners into one. An exception of a listener is not raised. For each listener, the first one is
    logged with its traceback."""
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
