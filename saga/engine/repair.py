"""Repair a saga: continue work that no message triggers, republish lost timers, and rebuild lost progress from the log.

A repair is safe while workers are running, and may be stopped at any point. It writes by compare-and-swap, as they do.
A saga counts as repaired only after its last write, when all earlier events are published. A repeated repair continues
where the first one stopped.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from saga.declarations.values import Reaction
from saga.encryption.port import Keys
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.consumer.worker_ports import WorkerAssignment
from saga.engine.errors import Superseded
from saga.engine.execution import value_codec
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.execution.runs import RunRequest
from saga.engine.isolated_ports import NotIsolated, RecordedClock, RecordedDocuments, make_isolated_ports
from saga.engine.prepared_service import PreparedService
from saga.engine.processing_state import NOWHERE, Measurements, ProcessingState
from saga.engine.service_runtime import EncodedEvent, ServiceRuntime, make_service_runtime
from saga.errors import SagaError, TooLarge
from saga.messages import Message, Partition, Position, name_of
from saga.messaging import timers
from saga.messaging.message_ids import own_identity
from saga.messaging.names import PROGRESS
from saga.messaging.timers import SagaTimer
from saga.progress import failed_attempts, ids, journal, takeover
from saga.progress.actions import (
    Abort,
    ApplyCommand,
    AwaitLog,
    Compensate,
    Complete,
    ForwardTimer,
    LoadProgress,
    Now,
    RecallOverflow,
    RecordDecision,
    RescheduleTimer,
    RunHandler,
    TouchDeadline,
)
from saga.progress.compensation import complete_compensation
from saga.progress.document import SagaProgress, decode_progress
from saga.progress.failed_attempts import RunFailure
from saga.progress.journal import Commit, TransitionDetails
from saga.progress.next_action import choose_next_action, record_decision
from saga.progress.timers import find_earliest_ms, is_timer_too_late
from saga.support.clock import from_iso, iso

NOTHING_COMMITTED: Mapping[Partition, int] = MappingProxyType({})
UNKNOWN_LOGS: Mapping[str, str] = MappingProxyType({})


def may_act(
    assignment: WorkerAssignment,
    positions: Mapping[Partition, int] = NOTHING_COMMITTED,
    log_ids: Mapping[str, str] = UNKNOWN_LOGS,
) -> None:
    """Allow a process outside the consumer group to process sagas that no message triggers.

    `positions`: committed offsets of the group. Messages below these offsets are not redelivered, so this process
    publishes their events. `log_ids`: ids of the logs to which the offsets belong, by topic.
    """
    for partition, offset in positions.items():
        assignment.trackers[partition] = OffsetTracker(offset, log_ids.get(partition.topic, ""))
    assignment.trackers[Partition(NOWHERE.topic, NOWHERE.partition)] = OffsetTracker(0)


async def republish_saga(
    service: ServiceRuntime, saga: str, triggers: Sequence[Message] = ()
) -> list[tuple[str, str, str | None]]:
    """Continue the saga until no work is ready, and forward its timer. Returns handler, outcome and reason of each
    transition.

    `triggers`: messages to process again, because the runs that they began are stored only as intents. Raises
    `SagaError` if this version cannot decide, and `Draining` when the process is to stop.
    """
    stages, processor = Measurements(), MessageProcessor(service)
    for message in triggers:
        message = await value_codec.encrypt_message(service, message, NOWHERE)
        await processor.process(processor.begin(message, NOWHERE, None, stages).drop_progress())
    while True:
        state = await processor.process(_without_message(service, saga, stages))
        if state.progress is None or not takeover.is_takeover_due(state.progress, service.roles):
            return stages.outcomes
        whole = replace(state.loaded_progress, self_consumed_types=service.roles.self_consumed_types)
        try:
            await processor.repository.write_progress(state, Commit(whole))
        except Superseded:
            continue
        return stages.outcomes


async def republish_timer(service: ServiceRuntime, saga: str) -> None:
    """Publish the saga's current timer again, for the earliest time at which work is due. No handler runs here.

    The worker that reads the timer continues the work that is due then. Raises the errors of `republish_saga`.
    """
    processor = MessageProcessor(service)
    state = await processor.repository.load(_without_message(service, saga, Measurements()))
    p = state.loaded_progress
    due_ms = find_earliest_ms(p)
    if due_ms is None:  # the saga has continued meanwhile
        return
    if p.timer is None or is_timer_too_late(p, service.ports.clock.now_ms()):
        await processor.process(state)  # this sets a timer that is in time
    else:
        await processor.forward_timer(state, ForwardTimer(due_ms))


def _without_message(service: ServiceRuntime, saga: str, stages: Measurements) -> ProcessingState:
    message = Message(
        id="", type="", schema="", saga=saga, source="", time=iso(service.ports.clock.now_ms()), value=b""
    )
    return ProcessingState(message=message, position=NOWHERE, measurements=stages)


# -------------------------------------------------------------------- rebuilding lost progress
#
# No external system is called. The messages are processed again, in the order in which they were handled. The log has
# every event that a handler emitted, with an id made from its cause. So a run with an event in the log has ended, and
# is recorded with exactly its events. A run without one is repeated here if it makes no call; otherwise it is left to
# the service, which repeats it with the same idempotency keys, as after a crash. If neither is safe, the rebuild is
# refused.


REASON = "rebuilt from the log"
WITHOUT_CALLS = "rebuilt from the log, without its steps"
LEFT = "rebuilt from the log, which does not show that this run has ended: it is repeated, under the same keys"
STEPS_MAX = 1_000_000
"""Maximum number of decisions for one message. More than that indicates an error."""


Order = Literal["emitted", "appended", "silent last"]
"""Order in which messages of different topics are processed.

- `appended`: by the time at which they were appended.
- `emitted`: like `appended`, but a message that made the service emit an event counts as appended at the event's time.
- `silent last`: like `emitted`, but messages that made the service emit nothing come after all of its events.
"""
ORDERS: tuple[Order, ...] = ("emitted", "appended", "silent last")


class Unknowable(SagaError):
    """Error for a progress that cannot be rebuilt, because the log does not contain all that it depends on."""


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message that the service consumed from the log."""

    message: Message
    position: Position
    time_ms: int
    """Time at which the message was appended, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltProgress:
    """A rebuilt progress, and what remains to do."""

    snapshot: SagaProgress
    documents: Mapping[tuple[str, str], tuple[bytes, float | None]]
    """Content and expiry of each document, by collection and key: archives and overflow segments first, the progress
    last."""
    unpublished: Sequence[Message]
    """Events that are missing in the log and have to be published."""
    left_to_service: Sequence[str]
    """Handlers whose runs the service will repeat."""


@dataclass
class _Rebuilding:
    """Rebuilds the progress of one saga."""

    service: ServiceRuntime
    saga: str
    documents: RecordedDocuments
    clock: RecordedClock
    published: Mapping[str, Message]
    """Events of this service that are in the log, by id."""
    now_ms: int
    """Time from which the service repeats the runs that are left to it, in milliseconds since 1970."""
    known: tuple[SagaProgress, int] | None = None
    emitted: dict[str, Message] = field(default_factory=dict)
    left_to_service: list[str] = field(default_factory=list)
    processor: MessageProcessor = field(init=False)

    def __post_init__(self) -> None:
        self.processor = MessageProcessor(self.service)

    async def process(self, received: ReceivedMessage) -> None:
        """Process a message until it is finished."""
        self.clock.at_ms = max(self.clock.at_ms, received.time_ms)
        message = await value_codec.encrypt_message(self.service, received.message, received.position)
        state: ProcessingState = self.processor.begin(message, received.position, self.known)
        state = replace(state, is_current=state.progress is not None)
        for _ in range(STEPS_MAX):
            if state.is_complete:
                break
            state = await self._step(state)
        if state.progress is not None and state.cas:
            self.known = state.progress, state.cas

    async def _step(self, state: ProcessingState) -> ProcessingState:
        """Carry out the next decision, like `MessageProcessor.advance`, but on a progress that is being rebuilt.

        Runs are recorded as the log shows them: see `_run`. No timer is forwarded: the message is complete instead.
        Raises `Unknowable` for an abort or an operator command.
        """
        now = Now(self._decision_time_ms(state.progress), self.service.retention_s)
        action = choose_next_action(
            self.processor.prepare_progress(state, now.ms), self.service.roles, state, now, state.is_current
        )
        repository = self.processor.repository
        match action:
            case RunHandler() | Compensate():
                return await self._run(state, action)
            case Complete() | ForwardTimer() | AwaitLog():
                return replace(state, is_complete=True)
            case LoadProgress():
                return await repository.load(state)
            case RecallOverflow():
                return await repository.overflow.recall(state)
            case RecordDecision() | TouchDeadline() | RescheduleTimer():
                return await repository.commit(state, record_decision, action)
            case Abort() | ApplyCommand():
                raise Unknowable("a person has decided about it, or it has calls that cannot be undone")

    def _decision_time_ms(self, p: SagaProgress | None) -> int:
        """Return the time for decisions. It is before the due time of every deadline that has no event in the log.

        It is unknown whether such a deadline has run, so it is left to the service.
        """
        open_ = () if p is None else [k.due_ms for k in p.deadlines if not self.published_by(k.handler, k.message.id)]
        return min([self.clock.now_ms(), *(due_ms - 1 for due_ms in open_)])

    async def _run(self, state: ProcessingState, action: RunHandler | Compensate) -> ProcessingState:
        """Record the end of a run. Run the handler here if it makes no call. Otherwise record the run with the events
        that the log has of it or, if there are none, leave the run to the service.

        Raises `Unknowable` if the log does not show what the run did, or whether it ran.
        """
        request = _make_request(self.service, action)
        published = self.published_by(request.handler.name, request.run[2])
        result = await self._try_run(state, request)
        if result is not None:
            events = _check_same_events(request, self._build_messages(state, request, result[0]), published)
            return await self._record_end(state, request, events, result[1], REASON)
        if published:
            if self.service.state is not None and any(p.role == "saga" for p in request.handler.parameters):
                raise Unknowable(
                    f"{request.handler.name} may have changed the state, and makes calls: the log does not show how"
                )
            return await self._record_end(state, request, published, {}, WITHOUT_CALLS)
        if _may_be_silent(request.handler):
            raise Unknowable(
                f"{request.handler.name} makes calls, and may emit nothing: the log does not show whether it ran"
            )
        self.left_to_service.append(request.handler.name)
        failure = RunFailure(reason=LEFT, remedy="", attempts=1)
        return await self.processor.repository.commit(
            state, failed_attempts.park, action, failure, None, due_ms=self.now_ms
        )

    async def _record_end(
        self, state: ProcessingState, request: RunRequest, events: Sequence[Message], delta: dict[str, Any], reason: str
    ) -> ProcessingState:
        """Record the end of a run."""
        self.emitted |= {event.id: event for event in events}
        self.clock.at_ms = max([self.clock.at_ms, *(from_iso(e.time) for e in events if e.id in self.published)])
        action = request.action
        details = TransitionDetails(
            message=action.message, cause=request.run[2], parts=action.parts, reason=reason, delta=delta, events=events
        )
        if isinstance(action, Compensate):
            return await self.processor.repository.commit(
                state, complete_compensation, action.role, action.result, details
            )
        return await self.processor.repository.commit(state, journal.complete_run, action.role, details)

    async def _try_run(
        self, state: ProcessingState, request: RunRequest
    ) -> tuple[list[EncodedEvent], dict[str, Any]] | None:
        """Run the handler in isolation, on the progress that is being rebuilt. Return the events that it emits and the
        fields of the state that it changes.

        Return `None` if the run needs anything outside of itself, such as a step, a business document or a pause, or if
        the handler takes a resource; such a handler is not run at all. Raises `Unknowable` if the handler fails, or may
        return `Later`.
        """
        if request.handler.may_wait:
            raise Unknowable(f"{request.handler.name} may wait, and the log does not show when it continued")
        if any(parameter.role == "resource" for parameter in request.handler.parameters):
            return None
        intent = request.make_intent(state.loaded_progress)
        saga = await self.processor.runner.open(state, request, intent)
        self.documents.trying = True
        try:
            result = await self.processor.runner.call(saga)
        except NotIsolated:
            return None
        except Exception as why:
            raise Unknowable(
                f"{request.handler.name} fails on {request.action.message.type}: {saga.describe(why)}"
            ) from why
        else:
            return result.events, result.changed_state
        finally:
            self.documents.trying = False

    def published_by(self, handler: str, cause: str) -> list[Message]:
        """Return the events of a run that are in the log, in order."""
        service, published = self.service, list[Message]()
        types = [name_of(event) for event in service.handlers[handler].emits]
        for index in count():
            ids_ = [_event_id(service, type_, self.saga, handler, cause, index) for type_ in types]
            found = next((self.published[id_] for id_ in ids_ if id_ in self.published), None)
            if found is None:
                return published
            published.append(found)
        raise AssertionError("a count has no end")  # pragma: no cover

    def _build_messages(
        self, state: ProcessingState, request: RunRequest, events: Sequence[EncodedEvent]
    ) -> list[Message]:
        """Build the messages of the events that a handler returned, as they are published."""
        p, started = state.loaded_progress, state.loaded_progress.started or state.message.started
        return [
            Message(
                id=_event_id(self.service, type_, p.saga, request.handler.name, request.run[2], index),
                type=type_,
                schema=schema,
                saga=p.saga,
                source=self.service.name,
                time=iso(self.clock.now_ms()),
                value=value,
                started=started,
                trace=request.action.message.trace,
                principal=journal.determine_principal(p, state.message),
            )
            for index, (type_, schema, value) in enumerate(events)
        ]


class RebuildEnvironment(NamedTuple):
    """Limits of log and store, and the keys, because the content of a progress depends on them."""

    record_bytes_max: int
    """Largest record that the log accepts, in bytes."""
    document_bytes_max: int
    """Largest document that the store accepts, in bytes."""
    keys: Keys | None = None
    """Keys of encrypted values; `None` if nothing is encrypted."""


async def rebuild_progress(
    service: PreparedService,
    saga: str,
    received: Sequence[ReceivedMessage],
    published: Mapping[str, Message],
    now_ms: int,
    environment: RebuildEnvironment,
) -> RebuiltProgress | None:
    """Rebuild the progress of a saga from the messages that the service consumed, and the events that it emitted.

    Return `None` if the saga had no progress. The log has no order across topics, so three orders are tried. The result
    comes from the first order that leads to exactly the emitted events. If no order does, it comes from the first one
    that leads to all of them and to further events. Raises `Unknowable` if no order leads to all of them.
    """
    found, why = list[RebuiltProgress | None](), list[Unknowable]()
    for order in ORDERS:
        try:
            rebuilding = _begin_rebuilding(service, saga, published, now_ms, environment)
            rebuilt = await _rebuild_in_order(rebuilding, received, order)
        except Unknowable as refusal:
            why.append(refusal)
            continue
        if rebuilt is None or not rebuilt.unpublished:
            return rebuilt
        found.append(rebuilt)
    if found:
        return found[0]
    raise why[0]


def _begin_rebuilding(
    service: PreparedService, saga: str, published: Mapping[str, Message], now_ms: int, environment: RebuildEnvironment
) -> _Rebuilding:
    documents, clock = RecordedDocuments(environment.document_bytes_max), RecordedClock()
    ports = make_isolated_ports(service.name, documents, clock, environment.record_bytes_max, environment.keys)
    service = dataclasses.replace(service, is_all_at_once=True)
    return _Rebuilding(make_service_runtime(service, {}, ports), saga, documents, clock, published, now_ms)


async def _rebuild_in_order(
    rebuilding: _Rebuilding, received: Sequence[ReceivedMessage], order: Order
) -> RebuiltProgress | None:
    """Rebuild the progress from the messages in the given order."""
    documents, published = rebuilding.documents, rebuilding.published
    try:
        for each in _sort(rebuilding, received, order):
            await rebuilding.process(each)
    except TooLarge as why:
        raise Unknowable(str(why)) from why
    except NotIsolated as why:
        raise Unknowable("it makes calls outside of a run") from why
    lost = [f"{event.type} {event.id}" for event in published.values() if event.id not in rebuilding.emitted]
    if lost:
        raise Unknowable(
            f"the log has events that nothing here leads to: {', '.join(lost)}; another version emitted them, or the "
            "messages that led to them are gone, or were handled in another order"
        )
    if rebuilding.known is None:
        return None
    key = PROGRESS, next(iter(key for collection, key in documents.there if collection == PROGRESS))
    ordered = [at for at in documents.there if at != key] + [key]
    return RebuiltProgress(
        snapshot=decode_progress(documents.there[key][0].content),
        documents={at: (documents.there[at][0].content, documents.there[at][1]) for at in ordered},
        unpublished=[event for id_, event in rebuilding.emitted.items() if id_ not in published],
        left_to_service=rebuilding.left_to_service,
    )


def _sort(rebuilding: _Rebuilding, received: Sequence[ReceivedMessage], order: Order) -> list[ReceivedMessage]:
    """Return the messages in the given order. For each deadline that has run, a timer that makes it run is inserted."""
    timed: list[tuple[int, ReceivedMessage]] = []
    last: dict[tuple[str, int], int] = {}
    ended_ms = max([from_iso(event.time) for event in rebuilding.published.values()], default=0)
    for each in sorted(received, key=lambda t: (t.position.topic, t.position.partition, t.position.offset)):
        published = [
            event
            for role in rebuilding.service.roles.by_type.get(each.message.type, ())
            for event in rebuilding.published_by(role.name, each.message.id)
        ]
        at_ms = max([each.time_ms, *(from_iso(event.time) for event in published[:1] if order == "emitted")])
        if order == "silent last" and not published:
            at_ms = max(at_ms, ended_ms)
        place = each.position.topic, each.position.partition
        at_ms = last[place] = max(at_ms, last.get(place, 0))
        timed.append((at_ms, ReceivedMessage(each.message, each.position, at_ms)))
        for role in rebuilding.service.roles.opening.get(each.message.type, ()):
            ran = rebuilding.published_by(role.name, each.message.id)
            if ran:
                ran_ms = from_iso(ran[0].time)
                timed.append((ran_ms, ReceivedMessage(_make_timer(rebuilding, ran_ms), Position("", 0, 0), ran_ms)))
    return [each for _, each in sorted(timed, key=lambda each: (each[0], each[1].position))]


def _make_timer(rebuilding: _Rebuilding, due_ms: int) -> SagaTimer:
    return SagaTimer(
        id="rebuild",
        type=timers.TYPE,
        schema="",
        saga=rebuilding.saga,
        source=rebuilding.service.name,
        time=iso(due_ms),
        value=b"",
        due_ms=due_ms,
    )


def _make_request(service: PreparedService, action: RunHandler | Compensate) -> RunRequest:
    """Make the request for the run of an action, as `MessageProcessor` does."""
    if isinstance(action, Compensate):
        cause = action.result.event.id
        return RunRequest(action=action, handler=service.handlers[action.name], run=("undo", action.role.name, cause))
    name, parts = action.role.name, action.parts
    cause = parts[0].id if len(parts) == 1 else "+".join(sorted(part.id for part in parts))
    return RunRequest(action=action, handler=service.handlers[name], run=("do", name, cause))


def _event_id(service: PreparedService, type_: str, saga: str, handler: str, cause: str, index: int) -> str:
    """Return the id of the event that a run of a handler emitted. `index`: the event's place in the run."""
    return own_identity(
        service.name, ids.event_id(type_, service.name, saga, handler, cause, index), service.contracts[type_].owner
    )


def _check_same_events(
    request: RunRequest, built: Sequence[Message], published: Sequence[Message]
) -> Sequence[Message]:
    """Return the events of a repeated run: those in the log, followed by those that were never published.

    Raises `Unknowable` if the log has different ones.
    """
    same = len(published) <= len(built) and all(
        there.type == here.type and (there.schema != here.schema or there.value == here.value)
        for there, here in zip(published, built, strict=False)
    )
    if not same:
        raise Unknowable(
            f"{request.handler.name} emits other events than the log has of it: rebuild with the version that emitted "
            "those"
        )
    return [*published, *built[len(published) :]]


def _may_be_silent(handler: Reaction) -> bool:
    """Return True if the handler may return no event."""
    nothing: tuple[object, ...] = (None, [], ())
    assert handler.shape is not None
    return any(handler.shape.fit(returned) == () for returned in nothing)
