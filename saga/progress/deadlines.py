"""Deadlines: what opens and closes each, and when it may run. Pure.

A deadline is a handler whose message waits for a time. Whatever is written first about a message opens those that it
opens and closes those that it closes, so neither costs a write of its own where the message has a handler. One that is
closed stays closed, for what closes it may come before what opens it.
"""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from saga.clock import LATEST_MS, from_iso
from saga.messages import Message
from saga.progress import ids
from saga.progress.document import Kept, Snapshot
from saga.progress.formats import format_of
from saga.progress.roles import DEADLINE, Role, Roles


def is_new(p: Snapshot, roles: Roles, message: Message) -> bool:
    """True if the message opens or closes a deadline, is for nothing else, and has not done so yet."""
    return message.type in roles.noted and ids.entry(message.id, DEADLINE) not in p.inbox


def touched(p: Snapshot, roles: Roles, in_hand: Message, said: Iterable[Message]) -> Snapshot:
    """The progress with the deadlines that the message in hand, and what is `said` because of it, open and close; less
    those that have run, were given up, or never will run."""
    closed, opened = list(p.closed), list(p.deadlines)
    begun = {intent.handler for intent in p.intents}  # what has begun is brought to its end
    for message in (in_hand, *said):
        for role in roles.closing.get(message.type, ()):
            if role.name not in closed and role.name not in begun:
                closed.append(role.name)
    for message in (in_hand, *said):
        for role in roles.opening.get(message.type, ()):
            if role.name in closed or any(k.handler == role.name for k in opened) or _has_run(p, role, message):
                continue
            if p.outcome is not None or p.failed:
                closed.append(role.name)
            else:
                due_ms = min(from_iso(message.time) + role.within_ms, LATEST_MS)  # a sender may say any time
                opened.append(Kept(handler=role.name, message=message, n=p.n, due_ms=due_ms))
    given_up = {(k.handler, k.message.id) for k in p.queue if k.handler in roles.deadlines}
    left = tuple(
        [
            k
            for k in opened
            if k.handler not in closed
            and (k.handler, k.message.id) not in given_up
            and ids.entry(k.message.id, k.handler) not in p.inbox
        ]
    )
    if left == p.deadlines and len(closed) == len(p.closed):
        return p
    return replace(p, deadlines=left, closed=tuple(closed), format=format_of(p.pages, left, p.later, p.version))


def _has_run(p: Snapshot, role: Role, message: Message) -> bool:
    return (
        ids.entry(message.id, role.name) in p.inbox
        or any(r.handler == role.name for r in p.ran)
        or any(k.handler == role.name for k in p.queue)
    )


def due(p: Snapshot, roles: Roles, now_ms: int) -> Iterator[tuple[Role, Message]]:
    """Deadlines whose time has come, the earliest first."""
    for k in sorted(p.deadlines, key=lambda k: k.due_ms):
        if k.due_ms <= now_ms:
            yield roles.handlers[k.handler], k.message


def end_surely(p: Snapshot, roles: Roles) -> bool:
    """True if a deadline is open that ends the saga, whatever comes or never comes."""
    return any(roles.handlers[k.handler].ends_surely for k in p.deadlines)


def may_run(p: Snapshot, roles: Roles) -> bool:
    """True if a deadline may run now. Behind what is parked it runs, for that may take as long as it likes; not if what
    is parked has begun and may decide how the saga ends, nor behind a dead letter or another run that is under way."""
    if any(k.dead for k in (*p.queue, *p.compensating)):
        return False
    head = p.queue[0] if p.queue and p.queue[0].due_ms else None
    if head is None:
        return not p.intents and not p.queue
    begun = [i for i in p.intents if i.handler == head.handler and any(m.id == head.message.id for m in i.parts)]
    return len(begun) == len(p.intents) and not (begun and roles.handlers[head.handler].decides)
