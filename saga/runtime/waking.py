"""A wake that is sent on: it came before its time, something else of its saga waits for a later one, or this store does
not know its saga."""

from msgspec.structs import replace

from saga.observe.moments import TimerKept
from saga.progress.actions import SendOn
from saga.runtime import persistence, publishing
from saga.runtime.participant import Participant
from saga.runtime.turn_state import TurnState


async def send_on(service: Participant, turn: TurnState, action: SendOn) -> TurnState:
    """Publish a wake again, for this time; then nothing is left to do."""
    p, due_ms, unknown_ms = turn.known, action.due_ms, action.unknown_ms
    wake = turn.message.id if p.wake is None else p.wake.id
    record = publishing.wake_record(service, p.saga, wake, due_ms, unknown_ms=unknown_ms)
    await persistence.send(service, turn.position, [record])
    if unknown_ms:
        wait_s = (due_ms - service.ports.clock.now_ms()) / 1000
        service.ports.watching.report(TimerKept(service=service.name, saga=p.saga, timer=wake, again_s=wait_s))
        turn.stages.outcomes.append(("", "kept", "this store knows no such saga"))
    return replace(turn, over=True)
