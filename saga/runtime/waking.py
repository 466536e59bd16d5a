"""A wake that is sent on: it came before its time, or something else of its saga waits for a later one."""

from msgspec.structs import replace

from saga.runtime import persistence, publishing
from saga.runtime.participant import Participant
from saga.runtime.turn_state import TurnState


async def send_on(service: Participant, turn: TurnState, due_ms: int) -> TurnState:
    """Publish the current wake again, for this time; then nothing is left to do."""
    p = turn.known
    assert p.wake is not None
    await persistence.send(service, turn.position, [publishing.wake_record(service, p.saga, p.wake.id, due_ms)])
    return replace(turn, over=True)
