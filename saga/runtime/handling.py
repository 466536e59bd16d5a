"""One run of a handler: call it, and write down how it ended. A failed attempt is tried again in place."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from math import ceil
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from saga.clock import iso
from saga.declarations.values import Reaction
from saga.errors import BadInput, Permanent, TooLarge
from saga.identity import identity_of_own
from saga.messages import Event, Message, name_of
from saga.observe.moments import Parked, Retrying
from saga.policies.retry import delay_s, parks
from saga.progress import giving_up, ids, record
from saga.progress.actions import Run, Undo
from saga.progress.compensate import undone
from saga.progress.decide import kept_undo
from saga.progress.document import Attempt, Call, Intent, Snapshot
from saga.progress.giving_up import Failure
from saga.progress.record import Ended, Written
from saga.runtime import escalating, oversized, persistence
from saga.runtime.errors import Halted, NotDeterministic, Refused, raised_at, said_by, unexpected
from saga.runtime.participant import Participant
from saga.runtime.prepared import Prepared
from saga.runtime.saga import RunningSaga
from saga.runtime.turn_state import RunKey, TurnState

HISTORY_MAX = 20
"""Attempts of which a transition tells, at most: the last ones."""
PAUSE_S_MAX = 30.0
"""Longest pause in place: whatever the rules say, a saga that waits in memory is looked at again."""
REASON_MAX = 200
"""Characters of what it says of each."""


class Ask(Struct, frozen=True, kw_only=True, gc=False):
    """A run to be made: of a handler on its parts, or of a compensation on an outcome and the result it undoes."""

    action: Run | Undo
    handler: Reaction
    run: RunKey


def run(service: Participant, turn: TurnState, action: Run) -> Coroutine[object, object, TurnState]:
    """Run a handler on a message, from its start or from its intent."""
    intent, parts = action.intent, action.parts
    if intent is not None:
        action, cause = replace(action, message=intent.message), intent.cause
    else:
        cause = parts[0].id if len(parts) == 1 else "+".join(sorted(m.id for m in parts))
    name = action.role.name
    return perform(service, turn, Ask(action=action, handler=service.handlers[name], run=("do", name, cause)))


def undo(service: Participant, turn: TurnState, action: Undo) -> Coroutine[object, object, TurnState]:
    """Run a compensation on the result that it undoes."""
    handler, cause = service.handlers[action.name], action.result.event.id
    return perform(service, turn, Ask(action=action, handler=handler, run=("undo", action.role.name, cause)))


async def perform(service: Participant, turn: TurnState, ask: Ask) -> TurnState:
    """Call it once, up to the write that ends it or its attempt."""
    kind, name, cause = ask.run
    p = turn.known
    intent = _open(p, ask.run) or Intent(
        handler=name,
        kind=kind,
        name=ask.handler.name if kind == "undo" else "",
        cause=cause,
        message=ask.action.message,
        parts=ask.action.parts,
        state=p.state,
        time="",
    )
    saga = RunningSaga(service, turn, ask.handler, ask.run, intent)
    clock, began = service.ports.clock, service.ports.clock.monotonic_s()
    try:
        try:
            events, delta = await _called(service, ask, intent.parts, saga)
        except Exception as why:
            if saga.halt is why:
                raise
            if saga.halt is not None:
                raise saga.halt from why
            turn.stages.handler_s += clock.monotonic_s() - began
            return await _failed(service, saga, ask, why)
        turn.stages.handler_s += clock.monotonic_s() - began
        written = _ended(service, saga.turn, ask, events, delta, saga)
        try:
            return (await persistence.write(service, saga.turn, written)).forgetting(ask.run)
        except TooLarge as why:  # what it leaves behind, on top of what is there
            return await _failed(service, saga, ask, why)
    except Refused:  # decided again; what is answered already is not asked for again
        return saga.turn.unread().carrying(ask.run, _answered(saga), turn.attempts_of(ask.run))


def _answered(saga: RunningSaga) -> tuple[Call, ...]:
    """Answers that a rerun need not ask for. Without a written intent nothing is promised to it: it reads documents
    anew, and another worker's state may lead it another way."""
    return tuple(saga.calls) if saga.intent.begins is not None else ()


async def _called(
    service: Participant, ask: Ask, parts: Sequence[Message], saga: RunningSaga
) -> tuple[list[tuple[str, str, bytes]], dict[str, Any]]:
    """Call the handler: what it emits, encoded, and what it changed of the state. Raises whatever fails the attempt."""
    handler, ports = ask.handler, service.ports
    try:
        arguments = _arguments(service, ask, parts, saga)
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
        raise saga.halt or saga.failure or unexpected(why, handler.name) from why
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
    return [service.encode(event, saga.turn.message.saga) for event in events], saga.delta()


def _check_one_outcome(service: Prepared, handler: Reaction, events: Sequence[Event]) -> None:
    outcomes = [name for name in map(name_of, map(type, events)) if name in service.roles.outcomes]
    if len(outcomes) > 1:
        raise Permanent(f"{handler.name} returned {' and '.join(outcomes)}: a saga ends with one outcome; return one")


def _arguments(service: Participant, ask: Ask, parts: Sequence[Message], saga: RunningSaga) -> Mapping[str, object]:
    """The handler's arguments by name."""
    arguments: dict[str, object] = {}
    handler, classes = ask.handler, service.classes[ask.handler.name]
    for parameter in handler.parameters:
        if parameter.role == "event":
            part = parts[0] if len(parts) == 1 else next(m for m in parts if classes.get(m.type) in parameter.events)
            arguments[parameter.name] = service.decode(handler.name, part)
        elif parameter.role == "saga":
            arguments[parameter.name] = saga
        else:
            assert parameter.gives is not None
            arguments[parameter.name] = service.resources[parameter.gives]
    return arguments


def _ended(
    service: Participant,
    turn: TurnState,
    ask: Ask,
    events: Sequence[tuple[str, str, bytes]],
    delta: dict[str, Any],
    saga: RunningSaga,
) -> Written:
    """The transition of a run that came to its end."""
    hand = persistence.in_hand(service, turn)
    p, cause, failed = turn.known, saga.intent.cause, turn.attempts_of(ask.run)
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
        )
        for index, (type_, schema, value) in enumerate(events)
    ]
    ended = Ended(
        message=ask.action.message,
        cause=cause,
        parts=saga.intent.parts,
        attempt=(_before(p, ask) if p.wake is not None else 0) + len(failed) + 1,  # what is parked has a wake
        failures=failed[-HISTORY_MAX:],
        delta=delta,
        events=emitted,
        calls=tuple(saga.calls),
    )
    if isinstance(ask.action, Undo):
        return undone(p, hand, ask.action.role, ask.action.result, ended)
    return record.handled(p, hand, ask.action.role, ended)


async def _failed(service: Participant, saga: RunningSaga, ask: Ask, why: Exception) -> TurnState:
    """An attempt has failed: again, with what it has got so far, now or later; or a dead letter after the last one."""
    turn, retry, ports = saga.turn, ask.handler.retry, service.ports
    calls = _answered(saga)
    held_up = (
        isinstance(why, TimeoutError) and ports.watching.outages > saga.outages
    )  # its time went by while the lane waited
    if held_up or not turn.certain:  # on an old progress anything may fail: it counts after a rerun on a certain one
        return turn.unread().carrying(ask.run, calls, turn.attempts_of(ask.run))
    history = (*turn.attempts_of(ask.run), _attempt(service, saga, why))
    attempt = _before(turn.known, ask) + len(history)
    hopeless = isinstance(why, BadInput | NotDeterministic | TooLarge) or (
        isinstance(ask.action, Run) and (isinstance(why, (Permanent, *retry.never)) or attempt >= retry.attempts_max)
    )
    if hopeless:
        written = giving_up.dead(
            turn.known,
            persistence.in_hand(service, turn),
            ask.action,
            _failure(why, attempt, history, _remedy(why, retry.attempts_max)),
            None if isinstance(why, TooLarge) else _with_calls(turn, ask, saga),  # there is no room for those
        )
        return (await persistence.write(service, turn, written)).forgetting(ask.run)
    wait_s = delay_s(retry, attempt, ports.clock.chance())
    kind = Parked if parks(retry, attempt) else Retrying
    ports.watching.report(
        kind(
            service=service.name,
            saga=turn.message.saga,
            handler=ask.handler.name,
            message=ask.action.message.id,
            attempt=attempt,
            attempts_max=retry.attempts_max,
            delay_s=wait_s,
            error=said_by(why),
            where=raised_at(why),
        )
    )
    if isinstance(ask.action, Undo):  # it is tried without end, and people are told
        due = None
        if attempt % retry.attempts_max == 0:
            undoes, rounds = ask.action.result.event, attempt // retry.attempts_max
            letter = escalating.failing(turn, ask.handler.name, ask.action.message, undoes, attempt, said_by(why))
            due = escalating.escalated(service, turn, letter, undoes, rounds=rounds, calls=calls)
        turn = await escalating.say(service, turn, due)
    if kind is Parked and turn.unsaid is None:  # else what people have to be told would be forgotten
        written = giving_up.parked(
            turn.known,
            persistence.in_hand(service, turn),
            ask.action,
            _failure(why, attempt, history),
            _with_calls(turn, ask, saga),
            due_ms=ports.clock.now_ms() + ceil(wait_s * 1000),
        )
        return (await persistence.write(service, turn, written)).forgetting(ask.run)
    if not turn.message.type and attempt >= retry.attempts_max:  # of a repair, which has other sagas before it
        raise escalating.left(ask.handler.name, attempt, said_by(why))
    await ports.assignment.pause(min(wait_s, PAUSE_S_MAX), turn.position)
    return turn.unread().carrying(ask.run, calls, history)


def _before(p: Snapshot, ask: Ask) -> int:
    """Number of attempts that had failed before this turn: the progress knows."""
    name, message = ask.action.role.name, ask.action.message.id
    if isinstance(ask.action, Undo):
        kept = kept_undo(p, name, ask.action.message)
    else:
        kept = next((k for k in (*p.queue[:1], *p.deadlines) if k.handler == name and k.message.id == message), None)
    return 0 if kept is None else kept.attempts


def _attempt(service: Participant, saga: RunningSaga, why: Exception) -> Attempt:
    clock = service.ports.clock
    return Attempt(
        time=iso(clock.now_ms()),
        ms=round((clock.monotonic_s() - saga.begun_s) * 1000),
        reason=said_by(why)[:REASON_MAX],
        worker=service.ports.worker,
    )


def _failure(why: Exception, attempt: int, history: tuple[Attempt, ...], remedy: str = "") -> Failure:
    return Failure(
        reason=said_by(why), where=raised_at(why), remedy=remedy, attempts=attempt, history=history[-HISTORY_MAX:]
    )


def _open(p: Snapshot, run: RunKey) -> Intent | None:
    return next((i for i in p.intents if (i.kind, i.handler, i.cause) == run), None) if p.intents else None


def _with_calls(turn: TurnState, ask: Ask, saga: RunningSaga) -> Intent | None:
    """The open intent with the last results; `None` if the run had not begun anything."""
    open_ = _open(turn.known, ask.run)
    return None if open_ is None else replace(open_, calls=tuple(saga.calls))


def _remedy(why: Exception, attempts_max: int) -> str:
    if isinstance(why, NotDeterministic):
        return "let the handler make the same steps, in the same order, with the same arguments in every rerun"
    if isinstance(why, BadInput):
        return "mend its sender; this dead letter has the original, or says where it is"
    if isinstance(why, TooLarge):
        return oversized.REMEDY
    if isinstance(why, Permanent):
        return "mend the handler"
    return f"look why {attempts_max} attempts failed; " + record.REPLAY
