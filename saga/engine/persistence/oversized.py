"""A saga whose progress the store cannot take: a permanent failure of that saga, told by name; nobody else notices.

What a run adds has to leave room (`saga.progress.journal`): then the dead letter that ends the run, and the quarantine
behind it, can be written as always. Where not even those have room, the message goes to `<service>.dead` whole, and the
progress keeps, if it can, only that it is dead.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from saga.engine.errors import Superseded
from saga.engine.persistence import dead_letters, progress_repository
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import TooLarge
from saga.messages import Message
from saga.messaging.operator_commands import Command
from saga.progress import failed_attempts, ids
from saga.progress.actions import AlreadyPending, AlreadyProcessed, HandlerAction, Ignore
from saga.progress.decisions import decide, is_undone, kept_undo
from saga.progress.document import DeadLetterRecord
from saga.progress.handlers import COMMAND

REMEDY = (
    "let the service keep less of a saga (its state, results of steps, events that can be undone), or split the saga; "
    "this one stays quarantined"
)


async def given_up(
    service: ServiceRuntime, turn: ProcessingState, action: HandlerAction, why: TooLarge
) -> ProcessingState:
    """Make the message a dead letter with all it said, durable before anything else."""
    id_ = await _said(service, turn, action.message, action.name, why)
    p = turn.loaded_progress
    try:
        if not p.is_quarantined:
            hand = progress_repository.in_hand(service, turn)
            written = failed_attempts.give_up_without_content(
                p, hand, action, letter=id_, reason=dead_letters.TOO_LARGE
            )
            return await progress_repository.write(service, turn, written)
    except TooLarge:
        pass
    except Superseded:
        return turn.drop_progress()
    for name in _others(service, turn, action):  # nothing can be written of them either
        await _said(service, turn, turn.message, name, why)
    return replace(turn, is_complete=True)


async def unheeded(service: ServiceRuntime, turn: ProcessingState, command: Command, why: TooLarge) -> ProcessingState:
    """Say that what a person commanded cannot be written down, and so is not done."""
    await _said(service, turn, command, COMMAND, why)
    return replace(turn, is_complete=True)


async def _said(service: ServiceRuntime, turn: ProcessingState, message: Message, name: str, why: TooLarge) -> str:
    """Say the message whole on `<service>.dead`, for this handler; id of the dead letter."""
    saga = message.saga
    dead = DeadLetterRecord(
        id=ids.dead_id(service.name, saga, name, message.id, turn.loaded_progress.replays),
        what="dead letter",
        handler=name,
        reason=f"{dead_letters.TOO_LARGE}: {why}",
        remedy=REMEDY,
        message=message,
        blame="code",
    )
    in_hand = message.id == turn.message.id
    whole = turn.position.place if in_hand else f"the progress of saga {saga} in {service.name}"
    letter = dead_letters.letter(service.name, dead, message.time, whole, service.contracts.get(message.type))
    await progress_repository.send_letter(service, turn.position, letter)
    if service.ports.outage_watch.is_news(f"too large {saga} {name}"):
        progress_repository.tell(service, saga, dead)
    return dead.id


def _others(service: ServiceRuntime, turn: ProcessingState, action: HandlerAction) -> Iterator[str]:
    """Names of the other handlers and compensations that the message in hand is for, and that nothing is kept for."""
    p, roles, message = turn.loaded_progress, service.roles, turn.message
    for role in roles.by_type.get(message.type, ()):
        if role.name != action.name and role.name not in (turn.paged or ()):
            decision = decide(p, role, message, now=progress_repository.now(service), bad=turn.bad.get(role.name))
            if not isinstance(decision, AlreadyProcessed | AlreadyPending | Ignore):
                yield role.name
    for role in roles.undone_by.get(message.type, ()):
        name = role.undo.name if role.undo else role.name
        if name != action.name and not is_undone(p, role, message) and kept_undo(p, role.name, message) is None:
            yield name
