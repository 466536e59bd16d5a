"""A turn at its beginning: the message in hand, and the progress, as this version of the service can read them."""

from collections.abc import Mapping

from msgspec.structs import replace

from saga.errors import BadInput
from saga.messages import Message, Position
from saga.progress import record
from saga.progress.actions import NOBODY
from saga.progress.document import Snapshot
from saga.progress.roles import Role
from saga.runtime import persistence
from saga.runtime.participant import Participant
from saga.runtime.prepared import Prepared
from saga.runtime.turn_state import Stages, TurnState


def begin(
    service: Participant,
    message: Message,
    position: Position,
    cached: tuple[Snapshot, int] | None,
    stages: Stages | None = None,
) -> TurnState:
    """The turn on what the cache has; for a message that starts a young saga on nothing known, without a read."""
    p, cas = cached or (None, 0)
    if (p is None or p.started is None) and persistence.is_older_than_memory(service, message):
        p, cas = None, 0
    elif p is None and service.contracts[message.type].starts:
        p = record.empty(service.name, message.saga)
    bad = _bad(service, message)
    return TurnState(message=message, position=position, bad=bad, progress=p, cas=cas, stages=stages or Stages())


def _bad(service: Prepared, message: Message) -> Mapping[str, str]:
    """Which handlers can never decode the message: for them it waits for nothing. Looked at only where it may have to
    wait."""
    roles = service.roles
    if message.started is not None and message.type not in roles.joined:
        return NOBODY
    waits = [r for r in roles.by_type.get(message.type, ()) if len(r.takes) > 1 or message.started is None]
    return {role.name: why for role in waits if (why := _undecodable(service, role, message)) is not None}


def _undecodable(service: Prepared, role: Role, message: Message) -> str | None:
    try:
        service.decode(role.name, message)
    except BadInput as why:
        return str(why)
    return None


def as_read(service: Prepared, turn: TurnState) -> Snapshot | None:
    """The progress as this version of the service reads it: what could not be decoded when it was queued is decoded
    anew, for this version may know its schema."""
    p = None if turn.progress is None else turn.known
    if p is None or not p.queue or p.queue[0].bad is None:
        return p
    head = p.queue[0]
    bad = _undecodable(service, service.roles.handlers[head.handler], head.message)
    return replace(p, queue=(replace(head, bad=bad), *p.queue[1:]))
