"""A saga whose progress the store cannot take: a permanent failure of that saga, told by name; nobody else notices.

What a run adds has to leave room (`saga.progress.room`): then the dead letter that ends the run, and the quarantine
behind it, can be written as always. Where not even those have room, the message goes to `<service>.dead` whole, and the
progress keeps, if it can, only that it is dead.
"""

from msgspec.structs import replace

from saga.errors import TooLarge
from saga.observe.moments import DeadLettered
from saga.progress import ids, record
from saga.progress.actions import Act
from saga.progress.document import DeadLetter
from saga.runtime import deadletters, persistence
from saga.runtime.errors import Refused
from saga.runtime.participant import Participant
from saga.runtime.turn_state import TurnState

REMEDY = (
    "let the service keep less of a saga (its state, results of steps, events that can be undone), or split the saga; "
    "this one stays quarantined"
)


async def given_up(service: Participant, turn: TurnState, action: Act, why: TooLarge) -> TurnState:
    """The message is a dead letter with all it said, durable before anything else."""
    saga, message, name = turn.message.saga, action.message, action.name
    id_ = ids.dead_id(service.name, saga, name, message.id, turn.known.replays)
    dead = DeadLetter(
        id=id_,
        what="dead letter",
        handler=name,
        reason=f"{deadletters.TOO_LARGE}: {why}",
        remedy=REMEDY,
        message=message,
    )
    in_hand = message.id == turn.message.id
    whole = "/".join(map(str, turn.position)) if in_hand else f"the progress of saga {saga} in {service.name}"
    contract = service.contracts.get(message.type)
    letter = deadletters.letter(service.name, dead, message.time, whole, contract)
    await persistence.send_letter(service, turn.position, letter)
    if service.ports.watching.is_news(f"too large {saga}"):
        service.ports.watching.report(
            DeadLettered(
                service=service.name,
                saga=saga,
                message=message.id,
                type=message.type,
                handler=name,
                reason=dead.reason,
                remedy=REMEDY,
            )
        )
    p = turn.known
    if any(k.dead for k in (*p.queue, *p.compensating)):
        return replace(turn, over=True)
    hand = persistence.in_hand(service, turn)
    try:
        written = record.stripped(p, hand, action, letter=id_, reason=deadletters.TOO_LARGE)
        return await persistence.write(service, turn, written)
    except TooLarge:
        return replace(turn, over=True)
    except Refused:
        return turn.unread()
