"""A compensation that fails again and again: told as a moment, and said on `<service>.dead`, where people look for it.

It is tried without end, so it is no dead letter, and no transition tells of it. The record's id is made of what is
undone and of the count of attempts: a worker that begins to count anew says the same again, not something else.
"""

from msgspec.structs import replace

from saga.engine.persistence import dead_letters
from saga.engine.persistence.progress_repository import OFFERING, REFUSED, offer
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import SagaError
from saga.messages import Message, Outgoing
from saga.progress import ids
from saga.progress.document import DeadLetterRecord, StepRecord
from saga.support.clock import iso
from saga.telemetry.events import Escalated

REMEDY = "put right what it calls, or mend it: it is tried without end, and goes on as soon as it can"


def failing(
    turn: ProcessingState, handler: str, outcome: Message, undoes: Message, attempt: int, error: str
) -> DeadLetterRecord:
    """Tidings of `handler`, which is to undo what `undoes` says because of `outcome`."""
    p = turn.loaded_progress
    return DeadLetterRecord(
        id=ids.dead_id(p.service, p.saga, f"{handler}|failing|{attempt}", undoes.id, p.replays),
        what="escalation",
        handler=handler,
        reason=f"{attempt} attempts failed, the last with {error}",
        remedy=REMEDY,
        message=outcome,
        attempts=attempt,
    )


def left(handler: str, attempt: int, error: str) -> SagaError:
    """Error with which a repair leaves a saga whose compensation fails."""
    return SagaError(
        f"{handler} failed {attempt} times, the last with {error}; "
        "put right what it calls, or mend it, and repair it again"
    )


def escalated(
    service: ServiceRuntime,
    turn: ProcessingState,
    letter: DeadLetterRecord,
    undoes: Message,
    *,
    rounds: int,
    calls: tuple[StepRecord, ...],
) -> Outgoing | None:
    """Tell people at once. The record is due after 1, 2, 4, 8 ... `rounds` of attempts: what fails for days says little
    new. `calls`: what ran already."""
    ports, saga = service.ports, turn.loaded_progress.saga
    is_due = not rounds & (rounds - 1)
    ports.outage_watch.report(
        Escalated(
            service=service.name,
            saga=saga,
            handler=letter.handler,
            reason=letter.reason,
            steps=(),
            id=letter.id if is_due else None,
        )
    )
    if not is_due:
        return None
    whole = f"event {undoes.id} of {service.name} in saga {saga}"
    return dead_letters.failing(
        service.name,
        replace(letter, calls=tuple(f"{call.in_words} ran" for call in calls)),
        iso(ports.clock.now_ms()),
        undoes.id,
        whole,
        service.contracts.get(letter.message.type),
    )


async def say(service: ServiceRuntime, turn: ProcessingState, due: Outgoing | None) -> ProcessingState:
    """Offer the log the record that is due, or the last one that it has refused. While it refuses it people are told,
    and it is offered again after the next attempt: attempts do not wait for it."""
    ports, letter = service.ports, due or turn.unsent_escalation
    if letter is None:
        return turn
    refusal = await offer(service, letter, lambda form: ports.publisher.publish([form]))
    if refusal is not None:
        ports.outage_watch.unavailable(OFFERING, refusal)
        return replace(turn, unsent_escalation=letter)
    if turn.unsent_escalation is not None:
        ports.outage_watch.recovered(REFUSED)
    return replace(turn, unsent_escalation=None)
