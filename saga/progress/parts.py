"""Parts of a run: which messages are held for which parameter of a handler, and what is still missing. Pure."""

from collections.abc import Iterator

from saga.messages import Message
from saga.progress import continuations, ids
from saga.progress.document import Snapshot
from saga.progress.roles import Role


def held(p: Snapshot, role: Role, index: int) -> Iterator[tuple[int, Message]]:
    """The parts that are there for a parameter, each with the number of the transition since which it is there."""
    types = role.takes[index]
    for k in p.waiting:
        if k.handler == role.name and k.message.type in types:
            yield k.n, k.message
    if not p.own:
        return
    taken = continuations.parts_held(p, role) if p.later else ()
    for own in p.own:
        event = own.event
        if event.type not in types or not own.is_for(role.name) or event.id in taken:
            continue
        if ids.entry(event.id, role.name) not in p.inbox:
            yield own.n, event


def held_before(p: Snapshot, role: Role, index: int, message: Message) -> Iterator[Message]:
    """The parts held for a parameter that were there before `message`: all, if it is not held itself."""
    for c in p.later:
        if c.handler == role.name and not (role.many and index == 0):
            yield c.parts[index]
    for _, part in sorted(held(p, role, index), key=lambda there: there[0]):
        if part.id == message.id:
            return
        yield part


def parts_with(p: Snapshot, role: Role, message: Message) -> tuple[Message, ...] | None:
    """All parts of a run that `message` belongs to, in the order of the parameters, then those that it does not need;
    `None` if one that it needs is missing."""
    parts = []
    for index, types in enumerate(role.takes):
        if message.type in types:
            parts.append(message)
            continue
        part = next(held(p, role, index), None)
        if part is None:
            return None
        parts.append(part[1])
    return (*parts, *continuations.shown(p, role))


def missing(p: Snapshot, role: Role, message: Message) -> str:
    """The types that are not there yet, for people."""
    gaps = [
        " or ".join(sorted(types))
        for index, types in enumerate(role.takes)
        if message.type not in types and next(held(p, role, index), None) is None
    ]
    return ", ".join(gaps)


def place(p: Snapshot, handler: str, message: Message) -> int | None:
    """The number under which a message is kept for a handler; `None` if it is neither queued nor waits."""
    kept = (k.n for k in (*p.queue, *p.waiting) if k.handler == handler and k.message.id == message.id)
    return next(kept, None)


def waits_before(p: Snapshot, role: Role, message: Message) -> bool:
    """True if another message waits for the first parameter of a `many` handler, and is to be handled before this one:
    what they wait for may have come just now, at another worker. Whatever came behind one that is queued, because it
    has failed, waits behind it."""
    first = next((k for k in p.waiting if k.handler == role.name and k.message.type in role.takes[0]), None)
    if first is None or first.message.id == message.id:
        return False
    mine = place(p, role.name, message)
    return mine is None or mine > first.n
