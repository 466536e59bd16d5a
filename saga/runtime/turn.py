"""The heart: what a service does with one message. docs/protocol.md gives the reason for each line.

| dies | then |
|---|---|
| before the write | redelivered; steps and updates that finished are not repeated, their results are recorded |
| after the write, before publishing | redelivered; whoever reads the progress publishes what may not be |
| after publishing, before the commit | redelivered; found in the inbox; receivers drop repeats by id |
| two workers own the partition | the second write is refused, reloads, decides again |
| the write's answer is lost | never written again blindly: reload and decide again |
| the publish's answer is lost | publish again; same ids |
"""

from collections.abc import Mapping

from msgspec.structs import replace

from saga.errors import BadInput, TooLarge
from saga.messages import Message, Position
from saga.progress import record
from saga.progress.actions import NOBODY, Act, CloseSealed, Done, Recall, Reload, Run, Undo, Write
from saga.progress.document import Snapshot
from saga.progress.roles import Role
from saga.progress.step import is_all, next_action, next_snapshot
from saga.runtime import handling, oversized, persistence, sealing, spilling
from saga.runtime.participant import Participant, Refused
from saga.runtime.standing import Stages, Turn


async def take_turn(service: Participant, turn: Turn) -> Turn:
    """Handle one message to its end. When this returns nothing is left to do, and its offset may be committed."""
    while not turn.over:
        turn = await advance(service, turn)
    return turn


async def advance(service: Participant, turn: Turn) -> Turn:
    """Do what is next, up to a read or a write. What is refused is decided again, on the progress as it is by then."""
    action = next_action(_as_read(service, turn), service.roles, turn, persistence.now(service), turn.certain)
    try:
        match action:
            case Run():
                turn = await handling.run(service, turn, action)
            case Done():
                return replace(turn, over=True)
            case Reload():
                return await persistence.load(service, turn)
            case Recall():
                return await spilling.recalled(service, turn)
            case Undo():
                turn = await handling.undo(service, turn, action)
            case CloseSealed():
                turn = await sealing.close_sealed(service, turn, action)
            case Write():
                written = next_snapshot(turn.known, persistence.in_hand(service, turn), action)
                turn = await persistence.write(service, turn, written)
    except Refused:
        return turn.unread()
    except TooLarge as why:
        if not isinstance(action, Act):
            raise
        return await oversized.given_up(service, turn, action, why)
    ends = turn.certain and turn.progress is not None and is_all(turn.progress, service.roles, turn)
    return replace(turn, over=True) if ends else turn


def _as_read(service: Participant, turn: Turn) -> Snapshot | None:
    """The progress as this version of the service reads it: what could not be decoded when it was queued is decoded
    anew, for this version may know its schema."""
    p = None if turn.progress is None else turn.known
    if p is None or not p.queue or p.queue[0].bad is None:
        return p
    head = p.queue[0]
    bad = _undecodable(service, service.roles.handlers[head.handler], head.message)
    return replace(p, queue=(replace(head, bad=bad), *p.queue[1:]))


def begin(
    service: Participant,
    message: Message,
    position: Position,
    cached: tuple[Snapshot, int] | None,
    stages: Stages | None = None,
) -> Turn:
    """The turn on what the cache has; for a message that starts a young saga on nothing known, without a read."""
    p, cas = cached or (None, 0)
    if (p is None or p.started is None) and persistence.is_older_than_memory(service, message):
        p, cas = None, 0
    elif p is None and service.contracts[message.type].starts:
        p = record.empty(service.name, message.saga)
    bad = _bad(service, message)
    return Turn(message=message, position=position, bad=bad, progress=p, cas=cas, stages=stages or Stages())


def _bad(service: Participant, message: Message) -> Mapping[str, str]:
    """Which handlers can never decode the message: for them it waits for nothing. Looked at only where it may have to
    wait."""
    roles = service.roles
    if message.started is not None and message.type not in roles.joined:
        return NOBODY
    waits = [r for r in roles.by_type.get(message.type, ()) if len(r.takes) > 1 or message.started is None]
    return {role.name: why for role in waits if (why := _undecodable(service, role, message)) is not None}


def _undecodable(service: Participant, role: Role, message: Message) -> str | None:
    try:
        service.decode(role.name, message)
    except BadInput as why:
        return str(why)
    return None
