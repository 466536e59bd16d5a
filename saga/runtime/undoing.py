"""Compensation: what a failure outcome does here, for each handler that can be undone."""

from saga.progress import compensate as written_down
from saga.progress import ids
from saga.progress.decide import WAITING, Undoing, Work, is_undone, kept_undo, undo_step
from saga.progress.document import Call, Intent, Snapshot
from saga.progress.record import begun
from saga.runtime import documents, persistence
from saga.runtime.handling import Ask, perform
from saga.runtime.participant import Participant
from saga.runtime.standing import Turn


def is_done(p: Snapshot, work: Work) -> bool:
    """Whether this compensation has come to its end."""
    return is_undone(p, work.role, work.message)


def is_kept_waiting(p: Snapshot, work: Work) -> bool:
    """True if it can do nothing yet, and that is written down."""
    kept = kept_undo(p, work.role.name, work.message)
    return kept is not None and (kept.dead is not None or undo_step(p, work.role.name, work.message) in WAITING)


async def compensate(service: Participant, turn: Turn, work: Work) -> Turn:
    """To the next write of the compensation of one handler."""
    p, role, outcome = turn.known, work.role, work.message
    hand = persistence.in_hand(service, turn)
    step = undo_step(p, role.name, outcome)
    match step:
        case Undoing.UNKNOWN | Undoing.WAIT:
            written = written_down.undo_waits(p, hand, role, outcome, known=step is Undoing.WAIT)
        case Undoing.UNDO:
            return await _undo(service, turn, work)
        case Undoing.LIEU:
            return await _in_lieu(service, turn, work)
        case Undoing.CLOSE:
            written = written_down.closed(p, hand, role, outcome)
    return await persistence.write(service, turn, written)


async def _undo(service: Participant, turn: Turn, work: Work) -> Turn:
    """Undo the newest result; its event is handed to the compensation beside the outcome."""
    role, undo = work.role, work.role.undo
    assert undo is not None
    result = written_down.newest(turn.known, role.name)
    ask = Ask(
        role=role,
        handler=service.handlers[undo.name],
        run=("undo", role.name, result.event.id),
        message=work.message,
        parts=(work.message, result.event),
        result=result,
    )
    return await perform(service, turn, ask)


async def _in_lieu(service: Participant, turn: Turn, work: Work) -> Turn:
    """The original is a dead letter half done: close its documents to it, and show a person what stands."""
    p, role = turn.known, work.role
    intent = next((i for i in p.intents if i.handler == role.name and i.kind == "lieu"), None)
    if intent is None:
        hand = persistence.in_hand(service, turn)
        return await persistence.save(service, turn, begun(p, hand, written_down.lieu(p, role)))
    stands = []
    for call, sure in _begun_calls(intent):
        if call.kind == "step":
            stands.append(_describe(call, "ran" if sure else "may have happened"))
        elif call.kind == "update" and await _applied(service, turn, intent, call):
            stands.append(_describe(call, "was applied"))
    hand = persistence.in_hand(service, turn)
    return await persistence.write(service, turn, written_down.in_lieu(p, hand, role, work.message, stands=stands))


def _begun_calls(intent: Intent) -> list[tuple[Call, bool]]:
    """What the original began, newest first; whether its answer is known."""
    calls = [(call, True) for call in intent.calls if call.answer is None]
    if intent.begins is not None and not any(
        (c.name, c.number) == (intent.begins.name, intent.begins.number) for c in intent.calls
    ):
        calls.append((intent.begins, False))
    return calls[::-1]


async def _applied(service: Participant, turn: Turn, intent: Intent, call: Call) -> bool:
    """Whether an update took effect; if not, it never will."""
    assert call.document is not None
    saga = turn.message.saga
    collection, _, key = call.document.partition("/")
    marker = ids.update_id(service.name, saga, intent.handler, intent.cause, call.name, call.number)
    mark = documents.Marker(saga=saga, handler=intent.handler, kind="do", cause=intent.cause, never=True)
    found = await documents.never(service, turn.position, collection, key, marker, mark)
    return not found.never and found.answer is None


def _describe(call: Call, what: str) -> str:
    where = f" on {call.document}" if call.document else ""
    return f"{call.kind} {call.name}{where} {what}"
