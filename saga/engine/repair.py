"""Repair a saga: do what this version of a service would do, although no message triggers it; republish lost timers;
and rebuild lost progress from the log.

It is safe beside running workers, and may be stopped anywhere: its writes are compare-and-swaps like theirs, and a saga
counts as repaired only by the last write, when everything before it is published. Run again, it continues.
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
from saga.engine.execution.runs import EncodedEvent, RunRequest
from saga.engine.isolated_ports import NotIsolated, RecordedClock, RecordedDocuments, make_isolated_ports
from saga.engine.prepared_service import PreparedService
from saga.engine.processing_state import NOWHERE, Measurements, ProcessingState
from saga.engine.service_runtime import ServiceRuntime, make_service_runtime
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
from saga.progress.next_action import choose_next_action, record_decision, record_without_handler
from saga.progress.timers import find_earliest_ms, is_timer_too_late
from saga.support.clock import from_iso, iso

NOTHING_COMMITTED: Mapping[Partition, int] = MappingProxyType({})
UNKNOWN_LOGS: Mapping[str, str] = MappingProxyType({})


def may_act(
    assignment: WorkerAssignment,
    positions: Mapping[Partition, int] = NOTHING_COMMITTED,
    log_ids: Mapping[str, str] = UNKNOWN_LOGS,
) -> None:
    """Let a process outside of the consumer group process sagas that no message triggers.

    `positions`: committed offsets of the group, in the logs of these ids by topic: what was handled below is published.
    """
    for partition, offset in positions.items():
        assignment.trackers[partition] = OffsetTracker(offset, log_ids.get(partition.topic, ""))
    assignment.trackers[Partition(NOWHERE.topic, NOWHERE.partition)] = OffsetTracker(0)


async def republish_saga(
    service: ServiceRuntime, saga: str, triggers: Sequence[Message] = ()
) -> list[tuple[str, str, str | None]]:
    """Continue the saga until nothing is ready, and forward its timer. Returns handler, outcome and reason of each
    transition.

    `triggers`: messages that are processed again here, for what they began is kept only by its intent. Raises
    `SagaError` if this version cannot decide, and `Draining` when it is to stop.
    """
    stages, processor = Measurements(), MessageProcessor(service)
    for message in triggers:
        message = await value_codec.encrypt_message(service, message, NOWHERE)
        await processor.process(processor.begin(message, NOWHERE, None, stages).drop_progress())
    while True:
        turn = await processor.process(_without_message(service, saga, stages))
        if turn.progress is None or not takeover.is_takeover_due(turn.progress, service.roles):
            return stages.outcomes
        whole = replace(turn.loaded_progress, heard=service.roles.heard)
        try:
            await processor.repository.checkpoint(turn, Commit(whole))
        except Superseded:
            continue
        return stages.outcomes


async def republish_timer(service: ServiceRuntime, saga: str) -> None:
    """Publish the saga's current timer again, for the earliest time for which something waits. No handler runs here.

    The worker that reads it continues what is due by then. Raises `SagaError` as above.
    """
    processor = MessageProcessor(service)
    turn = await processor.repository.load(_without_message(service, saga, Measurements()))
    p = turn.loaded_progress
    due_ms = find_earliest_ms(p)
    if due_ms is None:  # it has gone on meanwhile
        return
    if p.wake is None or is_timer_too_late(p, service.ports.clock.now_ms()):
        await processor.process(turn)  # it gets one that is in time
    else:
        await processor.forward_timer(turn, ForwardTimer(due_ms))


def _without_message(service: ServiceRuntime, saga: str, stages: Measurements) -> ProcessingState:
    message = Message(
        id="", type="", schema="", saga=saga, source="", time=iso(service.ports.clock.now_ms()), value=b""
    )
    return ProcessingState(message=message, position=NOWHERE, measurements=stages)


# -------------------------------------------------------------------- rebuilding lost progress
#
# Nothing outside is called. The messages are taken again, in the order in which they were handled, by the same
# decisions. What a handler emitted is in the log, under ids made from its cause: so a run with an event in the log has
# ended, and is recorded with just that. A run without one is made again if it makes no call; otherwise it is left to
# the service, which makes it under the same keys, as after a crash. Where neither is sound, the rebuild is refused.


REASON = "made anew from the log"
UNASKED = "made anew from the log, without its steps"
LEFT = "made anew from the log: nothing says that this run has ended; it is made again, under the same keys"
STEPS_MAX = 1_000_000
"""Steps after which something is wrong."""


Order = Literal["said", "appended", "silent last"]
"""Order of messages between topics: as they were appended, but one that made the service say something at the time of
that; just as they were appended; or with those that made it say nothing behind all that it has said."""
ORDERS: tuple[Order, ...] = ("said", "appended", "silent last")


class Unknowable(SagaError):
    """Raised when the log does not say what the progress was."""


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message that the service took from the log."""

    message: Message
    position: Position
    time_ms: int
    """Time at which it was appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltProgress:
    """A rebuilt progress, and what has to be done with it."""

    snapshot: SagaProgress
    documents: Mapping[tuple[str, str], tuple[bytes, float | None]]
    """Contents and expiries by collection and key: archives and pages, and last the progress."""
    unsaid: Sequence[Message]
    """Events that the log does not have: they are to be published."""
    left: Sequence[str]
    """Handlers whose runs the service makes again."""


@dataclass
class _Rebuilding:
    """Rebuilds the progress of one saga."""

    service: ServiceRuntime
    saga: str
    documents: RecordedDocuments
    clock: RecordedClock
    said: Mapping[str, Message]
    """Events of this service in the log, by id."""
    now_ms: int
    """Time from which on the service makes what is left to it."""
    known: tuple[SagaProgress, int] | None = None
    emitted: dict[str, Message] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    processor: MessageProcessor = field(init=False)

    def __post_init__(self) -> None:
        self.processor = MessageProcessor(self.service)

    async def take(self, taken: ReceivedMessage) -> None:
        """Process a message to its end."""
        self.clock.at_ms = max(self.clock.at_ms, taken.time_ms)
        message = await value_codec.encrypt_message(self.service, taken.message, taken.position)
        turn: ProcessingState = self.processor.begin(message, taken.position, self.known)
        turn = replace(turn, is_current=turn.progress is not None)
        for _ in range(STEPS_MAX):
            if turn.is_complete:
                break
            turn = await self._step(turn)
        if turn.progress is not None and turn.cas:
            self.known = turn.progress, turn.cas

    async def _step(self, turn: ProcessingState) -> ProcessingState:
        """Carry out the next decision, as `MessageProcessor.advance` does, but for runs."""
        now = Now(self._looked_at_ms(turn.progress), self.service.retention_s)
        action = choose_next_action(
            self.processor.read_progress(turn, now.ms), self.service.roles, turn, now, turn.is_current
        )
        repository = self.processor.repository
        match action:
            case RunHandler() | Compensate():
                return await self._run(turn, action)
            case Complete() | ForwardTimer() | AwaitLog():
                return replace(turn, is_complete=True)
            case LoadProgress():
                return await repository.load(turn)
            case RecallOverflow():
                return await repository.overflow.recall(turn)
            case TouchDeadline() | RescheduleTimer():
                return await repository.commit(turn, record_without_handler, action)
            case RecordDecision():
                return await repository.commit(turn, record_decision, action)
            case Abort() | ApplyCommand():
                raise Unknowable("a person has decided about it, or it has calls that nobody can undo")

    def _looked_at_ms(self, p: SagaProgress | None) -> int:
        """Return the time of decisions: never after a deadline that has no event in the log.

        Whether such a deadline has run is unknown, so the service runs it.
        """
        open_ = () if p is None else [k.due_ms for k in p.deadlines if not self.said_by(k.handler, k.message.id)]
        return min([self.clock.now_ms(), *(due_ms - 1 for due_ms in open_)])

    async def _run(self, turn: ProcessingState, action: RunHandler | Compensate) -> ProcessingState:
        """Record a run as the log shows it; otherwise make it here, or leave it to the service."""
        ask = _ask(self.service, action)
        said = self.said_by(ask.handler.name, ask.run[2])
        tried = await self._tried(turn, ask)
        if tried is not None:
            events = _agreed(ask, self._messages(turn, ask, tried[0]), said)
            return await self._ended(turn, ask, events, tried[1], REASON)
        if said:
            if self.service.state is not None and any(p.role == "saga" for p in ask.handler.parameters):
                raise Unknowable(
                    f"{ask.handler.name} may have changed the state, and asks for the outside: nobody knows how"
                )
            return await self._ended(turn, ask, said, {}, UNASKED)
        if _may_be_silent(ask.handler):
            raise Unknowable(
                f"{ask.handler.name} asks for the outside, and may say nothing: nobody knows whether it ran"
            )
        self.left.append(ask.handler.name)
        failure = RunFailure(reason=LEFT, remedy="", attempts=1)
        return await self.processor.repository.commit(
            turn, failed_attempts.park, action, failure, None, due_ms=self.now_ms
        )

    async def _ended(
        self, turn: ProcessingState, ask: RunRequest, events: Sequence[Message], delta: dict[str, Any], reason: str
    ) -> ProcessingState:
        """Record the end of a run."""
        self.emitted |= {event.id: event for event in events}
        self.clock.at_ms = max([self.clock.at_ms, *(from_iso(e.time) for e in events if e.id in self.said)])
        action = ask.action
        ended = TransitionDetails(
            message=action.message, cause=ask.run[2], parts=action.parts, reason=reason, delta=delta, events=events
        )
        if isinstance(action, Compensate):
            return await self.processor.repository.commit(
                turn, complete_compensation, action.role, action.result, ended
            )
        return await self.processor.repository.commit(turn, journal.complete_run, action.role, ended)

    async def _tried(self, turn: ProcessingState, ask: RunRequest) -> tuple[list[EncodedEvent], dict[str, Any]] | None:
        """Return what the handler emits and changes, if it makes no call; otherwise `None`."""
        if ask.handler.may_wait:
            raise Unknowable(f"{ask.handler.name} may go on later, and the log does not say when it looked again")
        if any(parameter.role == "resource" for parameter in ask.handler.parameters):
            return None
        intent = ask.make_intent(turn.loaded_progress)
        saga = await self.processor.runner.open(turn, ask, intent)
        self.documents.trying = True
        try:
            result = await self.processor.runner.call(saga)
        except NotIsolated:
            return None
        except Exception as why:
            raise Unknowable(f"{ask.handler.name} fails on {ask.action.message.type}: {saga.describe(why)}") from why
        else:
            return result.events, result.changed_state
        finally:
            self.documents.trying = False

    def said_by(self, handler: str, cause: str) -> list[Message]:
        """Return the events of a run that the log has, in order."""
        service, said = self.service, list[Message]()
        types = [name_of(event) for event in service.handlers[handler].emits]
        for index in count():
            names = [_name(service, type_, self.saga, handler, cause, index) for type_ in types]
            found = next((self.said[name] for name in names if name in self.said), None)
            if found is None:
                return said
            said.append(found)
        raise AssertionError("a count has no end")  # pragma: no cover

    def _messages(self, turn: ProcessingState, ask: RunRequest, events: Sequence[EncodedEvent]) -> list[Message]:
        """Return the events that a handler returned, as they are published."""
        p, started = turn.loaded_progress, turn.loaded_progress.started or turn.message.started
        return [
            Message(
                id=_name(self.service, type_, p.saga, ask.handler.name, ask.run[2], index),
                type=type_,
                schema=schema,
                saga=p.saga,
                source=self.service.name,
                time=iso(self.clock.now_ms()),
                value=value,
                started=started,
                trace=ask.action.message.trace,
                principal=journal.determine_principal(p, turn.message),
            )
            for index, (type_, schema, value) in enumerate(events)
        ]


class Around(NamedTuple):
    """Log, store and keys of a service, as far as they matter to what it writes."""

    record_bytes_max: int
    """Bytes that the log takes as one record."""
    document_bytes_max: int
    """Bytes that the store takes as one document."""
    keys: Keys | None = None
    """Keys of sealed values; `None`: nothing is sealed."""


async def rebuild_progress(
    service: PreparedService,
    saga: str,
    taken: Sequence[ReceivedMessage],
    said: Mapping[str, Message],
    now_ms: int,
    around: Around,
) -> RebuiltProgress | None:
    """Rebuild the progress of a saga from the messages that the service took, and the events that it emitted.

    Returns `None` if it had none. Raises `Unknowable`. Between topics the log has no order. Three are tried, and the
    first one counts that leads to all emitted events and to nothing else; else the first one that leads to all of them.
    """
    found, why = list[RebuiltProgress | None](), list[Unknowable]()
    for order in ORDERS:
        try:
            one = _begin_rebuilding(service, saga, said, now_ms, around)
            rebuilt = await _rebuild_in_order(one, taken, order)
        except Unknowable as refusal:
            why.append(refusal)
            continue
        if rebuilt is None or not rebuilt.unsaid:
            return rebuilt
        found.append(rebuilt)
    if found:
        return found[0]
    raise why[0]


def _begin_rebuilding(
    service: PreparedService, saga: str, said: Mapping[str, Message], now_ms: int, around: Around
) -> _Rebuilding:
    documents, clock = RecordedDocuments(around.document_bytes_max), RecordedClock()
    ports = make_isolated_ports(service.name, documents, clock, around.record_bytes_max, around.keys)
    service = dataclasses.replace(service, is_all_at_once=True)
    return _Rebuilding(make_service_runtime(service, {}, ports), saga, documents, clock, said, now_ms)


async def _rebuild_in_order(one: _Rebuilding, taken: Sequence[ReceivedMessage], order: Order) -> RebuiltProgress | None:
    """Rebuild the progress from messages in one of the orders."""
    documents, said = one.documents, one.said
    try:
        for each in _in_order(one, taken, order):
            await one.take(each)
    except TooLarge as why:
        raise Unknowable(str(why)) from why
    except NotIsolated as why:
        raise Unknowable("it asks for the outside where no run does") from why
    lost = [f"{event.type} {event.id}" for event in said.values() if event.id not in one.emitted]
    if lost:
        raise Unknowable(
            f"the log has what nothing here leads to: {', '.join(lost)}; it was said by another version, because of "
            "messages that are gone, or handled in another order"
        )
    if one.known is None:
        return None
    key = PROGRESS, next(iter(key for collection, key in documents.there if collection == PROGRESS))
    ordered = [at for at in documents.there if at != key] + [key]
    return RebuiltProgress(
        snapshot=decode_progress(documents.there[key][0].content),
        documents={at: (documents.there[at][0].content, documents.there[at][1]) for at in ordered},
        unsaid=[event for id_, event in one.emitted.items() if id_ not in said],
        left=one.left,
    )


def _in_order(one: _Rebuilding, taken: Sequence[ReceivedMessage], order: Order) -> list[ReceivedMessage]:
    """Return the messages in one of the orders. A deadline that has run gets the timer that fired for it."""
    timed: list[tuple[int, ReceivedMessage]] = []
    last: dict[tuple[str, int], int] = {}
    ended_ms = max([from_iso(event.time) for event in one.said.values()], default=0)
    for each in sorted(taken, key=lambda t: (t.position.topic, t.position.partition, t.position.offset)):
        said = [
            event
            for role in one.service.roles.by_type.get(each.message.type, ())
            for event in one.said_by(role.name, each.message.id)
        ]
        at_ms = max([each.time_ms, *(from_iso(event.time) for event in said[:1] if order == "said")])
        if order == "silent last" and not said:
            at_ms = max(at_ms, ended_ms)
        place = each.position.topic, each.position.partition
        at_ms = last[place] = max(at_ms, last.get(place, 0))
        timed.append((at_ms, ReceivedMessage(each.message, each.position, at_ms)))
        for role in one.service.roles.opening.get(each.message.type, ()):
            ran = one.said_by(role.name, each.message.id)
            if ran:
                ran_ms = from_iso(ran[0].time)
                timed.append((ran_ms, ReceivedMessage(_wake(one, ran_ms), Position("", 0, 0), ran_ms)))
    return [each for _, each in sorted(timed, key=lambda one: (one[0], one[1].position))]


def _wake(one: _Rebuilding, due_ms: int) -> SagaTimer:
    return SagaTimer(
        id="rebuild",
        type=timers.TYPE,
        schema="",
        saga=one.saga,
        source=one.service.name,
        time=iso(due_ms),
        value=b"",
        due_ms=due_ms,
    )


def _ask(service: PreparedService, action: RunHandler | Compensate) -> RunRequest:
    """Return the run of an action, as `MessageProcessor` makes it."""
    if isinstance(action, Compensate):
        cause = action.result.event.id
        return RunRequest(action=action, handler=service.handlers[action.name], run=("undo", action.role.name, cause))
    name, parts = action.role.name, action.parts
    cause = parts[0].id if len(parts) == 1 else "+".join(sorted(part.id for part in parts))
    return RunRequest(action=action, handler=service.handlers[name], run=("do", name, cause))


def _name(service: PreparedService, type_: str, saga: str, handler: str, cause: str, index: int) -> str:
    """Return the id of an event that a handler emitted because of a cause."""
    return own_identity(
        service.name, ids.event_id(type_, service.name, saga, handler, cause, index), service.contracts[type_].owner
    )


def _agreed(ask: RunRequest, made: Sequence[Message], said: Sequence[Message]) -> Sequence[Message]:
    """Return the events of a run that was made again: as the log has them, then those that were never published.

    Raises `Unknowable` if the log has others.
    """
    same = len(said) <= len(made) and all(
        there.type == here.type and (there.schema != here.schema or there.value == here.value)
        for there, here in zip(said, made, strict=False)
    )
    if not same:
        raise Unknowable(
            f"{ask.handler.name} says something else than it has said: rebuild with the version that said it"
        )
    return [*said, *made[len(said) :]]


def _may_be_silent(handler: Reaction) -> bool:
    """Return True if the handler may return no event."""
    nothing: tuple[object, ...] = (None, [], ())
    assert handler.shape is not None
    return any(handler.shape.fit(returned) == () for returned in nothing)
