"""Run a handler or a compensation: check the controls, call it, and commit how it ended."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from datetime import timedelta
from functools import partial
from math import ceil
from typing import Any, TypeAlias

from msgspec.structs import replace

from saga.declarations.values import Parameter, Reaction
from saga.engine import recorded_values
from saga.engine.errors import Halted, Superseded, describe_exception, wrap_base_exception
from saga.engine.execution import control_log, failure_handling
from saga.engine.execution.failure_handling import (
    HISTORY_MAX,
    NotAdmitted,
    RunRequest,
    count_failures_before,
    find_intent,
    reusable_answers,
)
from saga.engine.execution.saga_context import RunningSaga
from saga.engine.execution.value_codec import STATE, ValueCodec
from saga.engine.limits import CallNotAdmitted
from saga.engine.persistence import progress_repository
from saga.engine.prepared_service import PreparedService
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import KeyMissing, NewerHandler, Permanent, TooLarge
from saga.messages import Event, Message, name_of
from saga.messaging import active_controls
from saga.messaging.controls import Noted
from saga.messaging.message_ids import identity_of_own
from saga.policies.turns import AWAY_S_MAX, STAYS_S
from saga.progress import failed_attempts, ids, journal
from saga.progress.actions import Compensate, RunHandler
from saga.progress.compensation import complete_compensation
from saga.progress.document import Intent, SagaProgress, SuspendedRun
from saga.progress.failed_attempts import RunFailure
from saga.progress.journal import Commit, TransitionDetails, WriteContext
from saga.progress.suspended_runs import compute_cause
from saga.support.clock import from_iso, iso

_MS = timedelta(milliseconds=1)
HandlerResult: TypeAlias = tuple[list[tuple[str, str, bytes]], dict[str, Any], SuspendedRun | None]
"""Result of a call of a handler: its events, encoded; what it changed of the state; its next turn, if there is one."""


def run(
    service: ServiceRuntime, turn: ProcessingState, action: RunHandler
) -> Coroutine[object, object, ProcessingState]:
    """Run a handler on its messages, or continue a run that has an intent."""
    intent, parts = action.intent, action.parts
    if intent is not None:
        action, cause = replace(action, message=intent.message), intent.cause
    else:
        cause = compute_cause(parts[: len(action.role.takes)], action.goes_on)
    name = action.role.name
    return admit(service, turn, RunRequest(action=action, handler=service.handlers[name], run=("do", name, cause)))


def compensate(
    service: ServiceRuntime, turn: ProcessingState, action: Compensate
) -> Coroutine[object, object, ProcessingState]:
    """Run a compensation on the result that it undoes."""
    handler, cause = service.handlers[action.name], action.result.event.id
    return admit(service, turn, RunRequest(action=action, handler=handler, run=("undo", action.role.name, cause)))


async def admit(service: ServiceRuntime, turn: ProcessingState, ask: RunRequest) -> ProcessingState:
    """Attempt a run once, unless a control that an operator has set stops it; a limit is held while it runs."""
    if turn.deaths:
        return await failure_handling.give_up_poisonous(service, turn, ask)
    clock, controls = service.ports.clock, service.controls
    if clock.monotonic_s() >= controls.until_s:
        await control_log.refresh(service, turn.position)
    if not controls.stops:
        return await attempt(service, turn, ask)
    stopped = await apply_controls(service, turn, ask)
    if stopped is not None:
        return stopped
    limiter = service.limiters.get(ask.action.name)
    if limiter is None or not limiter.is_needed:
        return await attempt(service, turn, ask)
    try:
        permit = await limiter.enter(turn.position, clock.monotonic_s() + STAYS_S)
    except CallNotAdmitted as refusal:
        return await wait_for_limit(service, turn, ask, refusal)
    try:
        return await attempt(service, turn, ask)
    finally:
        limiter.leave(permit, failed=False)


async def attempt(service: ServiceRuntime, turn: ProcessingState, ask: RunRequest) -> ProcessingState:
    """Call a handler once, up to the write that ends its run, or this attempt of it."""
    clock = service.ports.clock
    began = clock.monotonic_s()
    kind, name, cause = ask.run
    p = turn.loaded_progress
    intent = (find_intent(p, ask.run) if p.intents else None) or Intent(
        handler=name,
        kind=kind,
        name=ask.handler.name if kind == "undo" else "",
        cause=cause,
        message=ask.action.message,
        parts=ask.action.parts,
        state=p.state,
        version=p.version,
        handler_version=ask.version,
        time="",
    )
    if service.is_private or service.migrations or service.ports.keys is not None:
        saga = await open_saga(service, turn, ask, intent)
    else:  # nothing of it is sealed, or of an older version
        seals = ValueCodec(service, turn)
        goes_on, state = ask.action.goes_on, intent.state
        saga = RunningSaga(service, turn, ask.handler, ask.run, intent, goes_on, seals, state, began)
    try:
        try:
            spans, work = turn.measurements.spans, call_handler(service, ask, intent.parts, saga)
            gave = await (work if spans is None else spans.around("handler", ask.handler.name, work, intent.parts))
        except Exception as why:
            if saga.halt is why:
                raise
            if saga.halt is not None:
                raise saga.halt from why
            turn.measurements.handler_s += clock.monotonic_s() - began
            return await failure_handling.handle_failure(service, saga, ask, why)
        turn.measurements.handler_s += clock.monotonic_s() - began
        try:
            after = await progress_repository.commit(service, saga.turn, _complete, service, ask, gave, saga)
            return after.drop_carried(ask.run)
        except TooLarge as why:  # what it leaves behind, on top of what is there
            return await failure_handling.handle_failure(service, saga, ask, why)
    except Superseded:  # decided again; what is answered already is not asked for again
        return saga.turn.drop_progress().carry(ask.run, reusable_answers(saga), turn.attempts_of(ask.run))


async def open_saga(service: ServiceRuntime, turn: ProcessingState, ask: RunRequest, intent: Intent) -> RunningSaga:
    """The saga as this run sees it, with the keys of all that it is handed; without those it has failed already."""
    seals, state, p = ValueCodec(service, turn), intent.state, turn.loaded_progress
    older_state = None
    try:
        if service.is_private or service.ports.keys is not None:
            await seals.begin(ask.handler.name, intent)
            state = await seals.decrypt_state(intent.state, intent.version)
        if service.migrations and p.version != service.version:
            older_state = await seals.decrypt_state(p.state, p.version)
    except (KeyMissing, Permanent) as why:  # it fails the attempt, before anything is called
        state, intent, seals.trouble = {}, replace(intent, version=service.version), why
    began = service.ports.clock.monotonic_s()
    saga = RunningSaga(service, turn, ask.handler, ask.run, intent, ask.action.goes_on, seals, state, began)
    if older_state is not None:
        saga.older_state = older_state
    return saga


async def call_handler(
    service: ServiceRuntime, ask: RunRequest, parts: Sequence[Message], saga: RunningSaga
) -> HandlerResult:
    """Call the handler. Raises whatever fails the attempt."""
    handler, ports = ask.handler, service.ports
    try:
        if saga.version > handler.version and not saga.is_resolved:
            raise NewerHandler(handler.name, saga.version, handler.version)
        parts = saga.seals.open_parts(parts)
        saga.given = arguments = _arguments(service, ask, parts, saga)
        returned = await ports.clock.within(handler.timeout_s, handler.function(**arguments))
    except TimeoutError as why:
        if saga.failure is not None:
            raise saga.failure from why
        raise TimeoutError(f"{handler.name} took longer than its timeout_s={handler.timeout_s}, or: {why}") from why
    except asyncio.CancelledError as why:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            saga.left = True
            raise
        if saga.failure is not None:
            raise saga.failure from why
        # Nobody cancels this lane: something that the handler waited for was, and that is a failure as any other.
        raise RuntimeError(f"{handler.name} waited for something that was cancelled") from why
    except ExceptionGroup as why:  # of a task group: what a step of it raised says more, and may be in `retry.never`
        raise saga.failure or why from why
    except (Exception, Halted, GeneratorExit, KeyboardInterrupt):
        raise
    except BaseException as why:  # it would end the process, and the next one: the message comes again
        # A task group wraps what its steps raise, and how a turn is halted is no `Exception` either.
        raise saga.halt or saga.failure or wrap_base_exception(why, handler.name) from why
    finally:
        if saga.has_begun:
            await saga.settled()
        saga.ended = True
    if saga.halt is not None:
        raise saga.halt
    if saga.failure is not None:
        raise saga.failure
    saga.check_whole()
    events = handler.events_of(returned)
    if len(events) > 1:
        _check_one_outcome(service, handler, events)
    encoded = [service.encode(event, saga.turn.message.saga) for event in events]
    if service.ports.keys is not None:
        encoded = [await saga.seals.encrypt_event(event, *said) for event, said in zip(events, encoded, strict=True)]
    return encoded, saga.delta(), _wait(service, handler, returned, saga) if handler.may_wait else None


def _wait(service: ServiceRuntime, handler: Reaction, returned: object, saga: RunningSaga) -> SuspendedRun | None:
    """The next turn that the handler wants; `None` if it has come to its end. Raises `Permanent` for one too late."""
    later = handler.wait_of(returned)
    if later is None:
        return None
    until = () if later.until is None or not issubclass(later.until, Event) else (name_of(later.until),)
    c = saga.goes_on
    first_ms = saga.time_ms if c is None else c.first_ms
    due_ms = saga.time_ms + ceil(later.after / _MS)
    if due_ms - first_ms > service.retention_s * 1000:
        raise Permanent(
            f"{handler.name} returned {later!r}, and would have waited for {timedelta(milliseconds=due_ms - first_ms)} "
            f"then: no handler waits longer in all than the memory of {service.name!r}, "
            f"{timedelta(seconds=service.retention_s)}. Give the service a longer retention="
        )
    return SuspendedRun(
        handler=handler.name,
        parts=saga.intent.parts[: len(service.roles.handlers[handler.name].takes)],
        n=0,
        turn=1 if c is None else c.turn + 1,
        handler_version=saga.version,
        first_ms=first_ms,
        seen_ms=saga.time_ms,
        due_ms=due_ms,
        until=until,
        undo_with=saga.taken_back_with,
    )


def _check_one_outcome(service: PreparedService, handler: Reaction, events: Sequence[Event]) -> None:
    outcomes = [name for name in map(name_of, map(type, events)) if name in service.roles.outcomes]
    if len(outcomes) > 1:
        raise Permanent(f"{handler.name} returned {' and '.join(outcomes)}: a saga ends with one outcome; return one")


def _arguments(
    service: ServiceRuntime, ask: RunRequest, parts: Sequence[Message], saga: RunningSaga
) -> Mapping[str, object]:
    """The handler's arguments by name."""
    arguments: dict[str, object] = {}
    handler, classes = ask.handler, service.classes[ask.handler.name]
    for parameter in handler.parameters:
        if parameter.role == "event":
            if parameter.optional or len(parts) != 1:
                part = next((m for m in parts if classes.get(m.type) in parameter.events), None)
            else:
                part = parts[0]  # it, or one that can never be decoded: then nothing else is asked for
            if part is None and not parameter.optional:
                raise Permanent(_not_kept(handler, parameter))
            arguments[parameter.name] = None if part is None else service.given(handler.name, part)
        elif parameter.role == "saga":
            arguments[parameter.name] = saga
        else:
            assert parameter.gives is not None
            arguments[parameter.name] = service.resources[parameter.gives]
    return arguments


def _not_kept(handler: Reaction, parameter: Parameter) -> str:
    """Reason that a compensation cannot be given what its original took."""
    names = " | ".join(event.__name__ for event in parameter.events)
    return (
        f"{handler.name} takes {names}, which {handler.undoes} took, and that is not kept with what it did: the "
        f"release that did it did not name it. Let {handler.name} take {names} | None, or roll back until it is undone"
    )


def _complete(
    p: SagaProgress,
    hand: WriteContext,
    service: ServiceRuntime,
    ask: RunRequest,
    gave: HandlerResult,
    saga: RunningSaga,
) -> Commit:
    """Record a run that came to its end, or that goes on later."""
    events, delta, next_turn = gave
    turn, cause = saga.turn, saga.intent.cause
    failed = turn.attempts_of(ask.run)
    if service.migrations and ask.ends is None:
        p, delta = recorded_values.migrate_progress(
            service, p, delta, saga.older_state, partial(saga.seals.encrypt, what=STATE)
        )
    if ask.handler.may_wait and not saga.intent.time:  # nothing else says how long it saw itself waiting
        hand = replace(hand, now_ms=saga.time_ms)
    emitted = [
        Message(
            id=identity_of_own(
                service.name,
                ids.event_id(type_, service.name, p.saga, ask.handler.name, cause, index),
                service.contracts[type_].owner,
            ),
            type=type_,
            schema=schema,
            saga=p.saga,
            source=service.name,
            time=hand.time,
            value=value,
            started=p.started or turn.message.started,
            trace=ask.action.message.trace,
            principal=journal.determine_principal(p, turn.message),
        )
        for index, (type_, schema, value) in enumerate(events)
    ]
    ended = TransitionDetails(
        message=ask.action.message,
        cause=cause,
        parts=saga.intent.parts,
        attempt=count_failures_before(p, ask)[0] + len(failed) + 1,
        failures=failed[-HISTORY_MAX:],
        delta=delta,
        events=emitted,
        calls=saga.answers,
    )
    if ask.ends is not None:
        return ask.ends(p, hand, ended.calls)
    if isinstance(ask.action, Compensate):
        return complete_compensation(p, hand, ask.action.role, ask.action.result, ended)
    if ask.handler.may_wait:
        ended = replace(ended, shown=tuple(m.id for m in ended.parts[len(ask.action.role.takes) :]))
    if next_turn is not None:
        ended = replace(ended, reason=_describe_suspension(next_turn))
        return journal.suspend_run(p, hand, ask.action.role, ended, next_turn)
    return journal.complete_run(p, hand, ask.action.role, ended)


def _describe_suspension(c: SuspendedRun) -> str:
    """Describe when a suspended run continues, or which event continues it."""
    return f"it goes on at {iso(c.due_ms)}{', or with ' if c.until else ''}{' or '.join(c.until)}"


# -------------------------------------------------------------------- admission


async def apply_controls(service: ServiceRuntime, turn: ProcessingState, ask: RunRequest) -> ProcessingState | None:
    """Stop a run that an operator has paused or diverted. Returns `None` if it may begin."""
    controls, now_ms = service.controls.in_force, service.ports.clock.now_ms()
    entry = active_controls.pause_of(controls, service.name, ask.action.name, now_ms)
    if entry is not None:
        return await _wait_for_pause(service, turn, ask, entry)
    if not _is_new(turn.loaded_progress, ask):
        return None
    entry = active_controls.route_of(controls, ask.action.name, {m.type for m in ask.action.parts}, now_ms)
    return None if entry is None else await _divert(service, turn, ask, entry)


def _is_new(p: SagaProgress, ask: RunRequest) -> bool:
    """Return True if nothing of the run has begun, so that it may be diverted to the dead letters.

    A run with an intent may have had effects, and a compensation or a deadline must not be lost.
    """
    action = ask.action
    return (
        isinstance(action, RunHandler)
        and action.goes_on is None
        and not action.role.is_deadline
        and failure_handling.find_intent(p, ask.run) is None
    )


async def wait_for_limit(
    service: ServiceRuntime, turn: ProcessingState, ask: RunRequest, refusal: CallNotAdmitted
) -> ProcessingState:
    """Postpone a run that would exceed the limit that an operator has set for its handler."""
    return await failure_handling.put_off(
        service, turn, ask, NotAdmitted(describe_exception(refusal.why), refusal.left_s), _intent(turn, ask)
    )


async def _wait_for_pause(
    service: ServiceRuntime, turn: ProcessingState, ask: RunRequest, entry: Noted
) -> ProcessingState:
    """Postpone a run until its pause is over, or until the pause has to be looked at again."""
    clock = service.ports.clock
    left_s = AWAY_S_MAX / 2  # with what spreads it: who ends a pause waits for what comes of it
    if entry.switch.until is not None:
        left_s = min(left_s, max(0.0, (from_iso(entry.switch.until) - clock.now_ms()) / 1000))
    reason = active_controls.words_of(service.name, entry)
    return await failure_handling.put_off(service, turn, ask, NotAdmitted(reason, left_s), _intent(turn, ask))


def _intent(turn: ProcessingState, ask: RunRequest) -> Intent | None:
    """Return the open intent with the answers received since, or `None` if nothing has begun."""
    intent, calls = failure_handling.find_intent(turn.loaded_progress, ask.run), turn.results_of(ask.run)
    return intent if intent is None or len(calls) <= len(intent.calls) else replace(intent, calls=calls)


async def _divert(service: ServiceRuntime, turn: ProcessingState, ask: RunRequest, entry: Noted) -> ProcessingState:
    """Make a dead letter of a message that an operator diverts."""
    p = turn.loaded_progress
    failure = RunFailure(
        reason=active_controls.words_of(service.name, entry),
        remedy=f"end the route, then replay it: saga control route {service.name} ... --off; saga dead replay",
        attempts=failure_handling.count_failures_before(p, ask)[0] + len(turn.attempts_of(ask.run)),
        blame="person",
    )
    turn = await progress_repository.commit(service, turn, failed_attempts.give_up, ask.action, failure, None)
    return turn.drop_carried(ask.run)
