"""The heart: what a service does with one message. docs/protocol.md gives the reason for each line.

| dies | then |
|---|---|
| before the write | redelivered; steps and updates that finished are not repeated, their results are recorded |
| after the write, before publishing | redelivered; its events are published then, or before the saga's next write |
| after publishing, before the commit | redelivered; found in the inbox; receivers drop repeats by id |
| two workers own the partition | the second write is refused, and decided again by whoever owns it now |
| the write's answer is lost | never written again blindly: reload and decide again |
| the publish's answer is lost | publish again; same ids |
"""

from msgspec.structs import replace

from saga.engine.errors import Superseded
from saga.engine.execution import abort, handler_runner, timer_endings
from saga.engine.execution.beginning import as_read, judged
from saga.engine.execution.value_codec import seal_answer
from saga.engine.persistence import overflow_store, oversized, progress_repository
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import SchemaUnasked, TooLarge
from saga.progress.actions import (
    Abort,
    Action,
    ApplyCommand,
    AwaitLog,
    Compensate,
    Complete,
    ForwardTimer,
    HandlerAction,
    LoadProgress,
    RecallOverflow,
    RecordDecision,
    RescheduleTimer,
    RunHandler,
    TouchDeadline,
)
from saga.progress.next_action import (
    RELOAD,
    choose_next_action,
    is_message_complete,
    record_decision,
    record_without_handler,
)
from saga.progress.operator_commands import heeded
from saga.progress.timers import is_overdue


async def take_turn(service: ServiceRuntime, turn: ProcessingState) -> ProcessingState:
    """Handle one message to its end. When this returns nothing is left to do, and its offset may be committed."""
    while not turn.is_complete:
        turn = await advance(service, turn)
    return turn


async def advance(service: ServiceRuntime, turn: ProcessingState) -> ProcessingState:
    """Do what is next, up to a read or a write. What is refused is decided again, on the progress as it is by then."""
    action: Action = RELOAD
    try:
        if turn.bad:
            turn = judged(service, turn)
        if turn.progress is not None:  # else nothing can be decided, and most messages are the first of their saga here
            now = progress_repository.now(service)
            if turn.progress.deadlines:
                now = await timer_endings.with_log(service, turn, now)
            action = choose_next_action(as_read(service, turn, now.ms), service.roles, turn, now, turn.is_current)
        match action:
            case RunHandler():
                turn = await handler_runner.run(service, turn, action)
            case Complete() | ForwardTimer() | AwaitLog():
                return await timer_endings.rests(service, turn, action)
            case LoadProgress():
                return await progress_repository.load(service, turn)
            case RecallOverflow():
                return await overflow_store.recalled(service, turn)
            case Compensate():
                turn = await handler_runner.undo(service, turn, action)
            case Abort():
                turn = await abort.close_sealed(service, turn, action)
            case ApplyCommand():
                service.schemas.doubt()
                heeds = await seal_answer(service, turn, action)
                written = heeded(turn.loaded_progress, progress_repository.in_hand(service, turn), heeds)
                turn = await progress_repository.write(service, turn, written)
            case TouchDeadline() | RescheduleTimer():
                written = record_without_handler(
                    turn.loaded_progress, progress_repository.in_hand(service, turn), action
                )
                turn = await progress_repository.write(service, turn, written)
            case RecordDecision():
                written = record_decision(turn.loaded_progress, progress_repository.in_hand(service, turn), action)
                turn = await progress_repository.write(service, turn, written)
    except (Superseded, SchemaUnasked) as why:
        return await _again(service, turn, why)
    except TooLarge as why:
        return await _too_large(service, turn, action, why)
    return replace(turn, is_complete=True) if _ends(service, turn) else turn


async def _again(service: ServiceRuntime, turn: ProcessingState, why: Superseded | SchemaUnasked) -> ProcessingState:
    """The turn from which it is decided again: on the progress as it is by then, or with what the registry says."""
    if isinstance(why, Superseded):
        return turn.drop_progress()
    await service.schemas.ask(why.id, service.ports.ask_registry)
    return turn


async def _too_large(service: ServiceRuntime, turn: ProcessingState, action: Action, why: TooLarge) -> ProcessingState:
    """Give up what the store does not take. Raises the error for what nobody can give up."""
    if isinstance(action, ApplyCommand):
        return await oversized.unheeded(service, turn, action.command, why)
    if not isinstance(action, HandlerAction):
        raise why
    return await oversized.given_up(service, turn, action, why)


def _ends(service: ServiceRuntime, turn: ProcessingState) -> bool:
    """Return whether nothing is left to do, where that is cheap to see. What became due meanwhile is done now."""
    p = turn.progress
    if p is None or not turn.is_current or not is_message_complete(p, service.roles, turn):
        return False
    return not p.deadlines or not is_overdue(p, service.ports.clock.now_ms())
