"""A dead original half done: what it began and nobody can undo is put out of reach, and shown to a person."""

from saga.commands import Command
from saga.progress import compensate, ids, operators
from saga.progress.actions import CloseSealed
from saga.progress.document import Call, Intent
from saga.runtime import documents, persistence
from saga.runtime.participant import Participant
from saga.runtime.turn_state import TurnState


async def close_sealed(service: Participant, turn: TurnState, action: CloseSealed) -> TurnState:
    """Close its documents to the dead original, and write down what remains of it."""
    remains = []
    for call, sure in _begun_calls(action.intent):
        if call.kind == "step":
            remains.append(_describe(call, "ran" if sure else "may have happened"))
        elif call.kind == "update" and await _applied(service, turn, action.intent, call):
            remains.append(_describe(call, "was applied"))
    hand, command = persistence.in_hand(service, turn), action.message
    if isinstance(command, Command):
        kept = next(k for k in turn.known.queue if k.dead == command.dead)
        written = operators.discarded(turn.known, hand, command, kept, remains=remains)
        return await persistence.write(service, turn, written)
    written = compensate.closed_for_good(turn.known, hand, action.role, action.message, remains=remains)
    return await persistence.write(service, turn, written)


def _begun_calls(intent: Intent) -> list[tuple[Call, bool]]:
    """Calls that the original began, newest first; true for those whose answer is known."""
    calls = [(call, True) for call in intent.calls if call.answer is None]
    if intent.begins is not None and not any(
        (c.name, c.number) == (intent.begins.name, intent.begins.number) for c in intent.calls
    ):
        calls.append((intent.begins, False))
    return calls[::-1]


async def _applied(service: Participant, turn: TurnState, intent: Intent, call: Call) -> bool:
    """Return whether an update took effect; if not, it never will."""
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
