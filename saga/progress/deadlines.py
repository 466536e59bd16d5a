"""Deadlines: what opens and closes each, and when it may run. Pure.

A deadline is a handler whose message waits for a time. Whatever is written first about a message opens those that it
opens and closes those that it closes, so neither costs a write of its own where the message has a handler. One that is
closed stays closed, for what closes it may come before what opens it.
"""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from saga.messages import Message
from saga.progress import ids
from saga.progress.actions import Now
from saga.progress.document import Kept, Snapshot
from saga.progress.formats import format_of
from saga.progress.roles import DEADLINE, Role, Roles
from saga.progress.timing import is_overdue
from saga.support.clock import LATEST_MS, from_iso


def is_new(p: Snapshot, roles: Roles, message: Message) -> bool:
    """True if the message opens or closes a deadline, is for nothing else, and has not done so yet."""
    return message.type in roles.noted and ids.entry(message.id, DEADLINE) not in p.inbox


def touched(p: Snapshot, roles: Roles, in_hand: Message, said: Iterable[Message], now_ms: int) -> Snapshot:
    """The progress with the deadlines that the message in hand, and what is `said` because of it, open and close; less
    those that have run, were given up, or never will run. `now_ms`: time at which the message is first seen here."""
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
                due_ms = min(_counts_from_ms(message, now_ms) + role.within_ms, LATEST_MS)
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


def _counts_from_ms(message: Message, now_ms: int) -> int:
    """Time from which a deadline counts: the event's own, but never one to come, which only says that a clock is
    wrong; and that of the first look at it where its own says nothing."""
    return now_ms if message.foreign_time else min(from_iso(message.time), now_ms)


def _has_run(p: Snapshot, role: Role, message: Message) -> bool:
    return (
        ids.entry(message.id, role.name) in p.inbox
        or any(r.handler == role.name for r in p.ran)
        or any(k.handler == role.name for k in p.queue)
    )


def due(p: Snapshot, roles: Roles, now_ms: int, handled_ms: int) -> Iterator[tuple[Role, Message]]:
    """Deadlines whose time has come and that nothing in the log may close any more, the earliest first."""
    for k in sorted(p.deadlines, key=lambda k: k.due_ms):
        role = roles.handlers[k.handler]
        if k.due_ms <= now_ms and not waits_for_log(k, role, now_ms, handled_ms):
            yield role, k.message


def waits_for_log(k: Kept, role: Role, now_ms: int, handled_ms: int) -> bool:
    """True if what the log held at a deadline's due time has not all been handled: what closes it may be there. Its
    grace, if it declares one, ends the wait."""
    return k.due_ms > handled_ms and (role.grace_ms is None or k.due_ms + role.grace_ms > now_ms)


def behind(p: Snapshot, roles: Roles, now: Now) -> list[Kept]:
    """Deadlines that are due, and that wait for nothing but the log."""
    if not is_overdue(p, now.ms) or not may_run(p, roles):
        return []
    return [
        k
        for k in sorted(p.deadlines, key=lambda k: k.due_ms)
        if k.due_ms <= now.ms and waits_for_log(k, roles.handlers[k.handler], now.ms, now.handled_ms)
    ]


def end_surely(p: Snapshot, roles: Roles) -> bool:
    """True if a deadline is open that ends the saga, whatever comes or never comes."""
    return any(roles.handlers[k.handler].ends_surely for k in p.deadlines)


def may_run(p: Snapshot, roles: Roles) -> bool:
    """True if a deadline may run now. Behind what has failed and is parked it runs, for that may take as long as it
    likes; not if what is parked has begun and may decide how the saga ends, nor behind a dead letter or another run
    that is under way, nor while a message is pending that came in time and may decide: one that has not been tried, or
    that a pause, a limit or an open breaker holds up."""
    if p.is_quarantined:
        return False
    if any(_is_pending(k) and roles.handlers[k.handler].closes_deadlines for k in p.queue):
        return False
    if any(page.of == "queue" and any(roles.handlers[h].closes_deadlines for h in page.handlers) for page in p.pages):
        return False
    head = p.queue[0] if p.queue and p.queue[0].due_ms else None
    if head is None:
        return not p.intents and not p.queue
    begun = [i for i in p.intents if i.handler == head.handler and any(m.id == head.message.id for m in i.parts)]
    return len(begun) == len(p.intents) and not (begun and roles.handlers[head.handler].decides)


def _is_pending(k: Kept) -> bool:
    """True for a queued message that has not failed, or that is held up by what is not its own failure."""
    return k.put_off or not k.attempts
