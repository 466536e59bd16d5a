"""Beginning of a turn: the message in hand and the progress, as this version of the service can read them."""

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
    """State of a new turn, on what the cache has; for a message that starts a young saga, without a read."""
    p, cas = cached or (None, 0)
    if p is None:
        if message.type in service.starts and not persistence.is_older_than_memory(service, message):
            p = record.empty(service.name, message.saga)
    elif p.started is None and persistence.is_older_than_memory(service, message):
        p, cas = None, 0
    # Looked at only where the message may have to wait: it waits for nothing if it can never be decoded.
    bad = NOBODY if message.started is not None and message.type not in service.roles.joined else _bad(service, message)
    return TurnState(message=message, position=position, bad=bad, progress=p, cas=cas, stages=stages or Stages())


def _bad(service: Prepared, message: Message) -> Mapping[str, str]:
    """Handlers that would have the message wait and can never decode it, each with the reason."""
    takers = service.roles.by_type.get(message.type, ())
    waits = [role for role in takers if len(role.takes) > 1 or message.started is None]
    return {role.name: why for role in waits if (why := _undecodable(service, role, message)) is not None}


def _undecodable(service: Prepared, role: Role, message: Message) -> str | None:
    try:
        service.decode(role.name, message)
    except BadInput as why:
        return str(why)
    return None


def as_read(service: Prepared, turn: TurnState) -> Snapshot | None:
    """Progress as this version of the service reads it: the first message in the queue, if it could not be decoded when
    it came, is decoded anew, for this version may know its schema."""
    p = None if turn.progress is None else turn.known
    if p is None or not p.queue or p.queue[0].bad is None:
        return p
    head = p.queue[0]
    bad = _undecodable(service, service.roles.handlers[head.handler], head.message)
    return replace(p, queue=(replace(head, bad=bad), *p.queue[1:]))
