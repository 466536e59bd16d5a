"""A compensation that fails again and again: told as a moment, and said on `<service>.dead`, where people look for it.

It is tried without end, so it is no dead letter, and no transition tells of it. The record's id is made of what is
undone and of the count of attempts: a worker that begins to count anew says the same again, not something else.
"""

from msgspec.structs import replace

from saga.clock import iso
from saga.messages import Message
from saga.observe.moments import Escalated
from saga.progress import ids
from saga.progress.document import Call, DeadLetter
from saga.runtime import deadletters
from saga.runtime.participant import Participant
from saga.runtime.persistence import send_letter
from saga.runtime.turn_state import TurnState

REMEDY = "put right what it calls, or mend it: it is tried without end, and goes on as soon as it can"


def failing(turn: TurnState, handler: str, outcome: Message, undoes: Message, attempt: int, error: str) -> DeadLetter:
    """What there is to tell of `handler`, which is to undo what `undoes` says because of `outcome`."""
    p = turn.known
    return DeadLetter(
        id=ids.dead_id(p.service, p.saga, f"{handler}|failing|{attempt}", undoes.id, p.replays),
        what="escalation",
        handler=handler,
        reason=f"{attempt} attempts failed, the last with {error}",
        remedy=REMEDY,
        message=outcome,
        attempts=attempt,
    )


async def escalate(
    service: Participant, turn: TurnState, letter: DeadLetter, undoes: Message, *, rounds: int, calls: tuple[Call, ...]
) -> None:
    """Tell people. The record follows after 1, 2, 4, 8 ... `rounds` of attempts: what fails for days says little new.
    `calls`: what ran already."""
    ports, saga = service.ports, turn.known.saga
    ports.report(Escalated(service=service.name, saga=saga, handler=letter.handler, reason=letter.reason, steps=()))
    if rounds & (rounds - 1):
        return
    whole = f"event {undoes.id} of {service.name} in saga {saga}"
    said = deadletters.failing(
        service.name,
        replace(letter, calls=tuple(f"{call.kind} {call.name} ran" for call in calls)),
        iso(ports.clock.now_ms()),
        undoes.id,
        whole,
        service.contracts.get(letter.message.type),
    )
    await send_letter(service, turn.position, said)
