"""Repair: a turn on a saga that no message sets off, for what this version of a service would do and nothing asks for.

It is safe beside running workers, and may be stopped anywhere: what it writes are compare-and-swaps as theirs, and a
saga counts as repaired only by the last write, when all before it is published. Run again, it goes on.
"""

from msgspec.structs import replace

from saga.clock import iso
from saga.messages import Message, Partition, Position
from saga.progress import takeover
from saga.progress.record import Written
from saga.runtime import persistence
from saga.runtime.errors import Refused
from saga.runtime.offsets import Prefix
from saga.runtime.participant import Participant
from saga.runtime.turn import take_turn
from saga.runtime.turn_state import Stages, TurnState
from saga.runtime.worker_ports import WorkerAssignment

NOWHERE = Position("(repair)", 0, 0)
"""Position of a turn that no message set off."""


def may_act(assignment: WorkerAssignment) -> None:
    """Let whoever belongs to no group run turns that no message sets off."""
    assignment.prefixes[Partition(NOWHERE.topic, NOWHERE.partition)] = Prefix(0)


async def repaired(service: Participant, saga: str) -> list[tuple[str, str, str | None]]:
    """Go on with the saga until nothing is ready: handler, outcome and reason of each transition written.

    Raises `SagaError` where this version cannot decide, and `Draining` when it is to stop.
    """
    stages = Stages()
    while True:
        message = Message(
            id="", type="", schema="", saga=saga, source="", time=iso(service.ports.clock.now_ms()), value=b""
        )
        turn = await take_turn(service, TurnState(message=message, position=NOWHERE, stages=stages))
        if turn.progress is None or not takeover.is_due(turn.progress, service.roles):
            return stages.outcomes
        whole = replace(turn.known, heard=service.roles.heard)
        try:
            await persistence.save(service, turn, Written(whole))
        except Refused:
            continue
        return stages.outcomes
