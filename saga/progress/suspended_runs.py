"""Continuations: runs that go on another time, when it has come or an event is here for which they wait. Pure.

A continuation holds the event that set the run off, and blocks nobody. Each turn of it is a run with a cause of its
own: so its steps and events have other ids than those of the turns before. What one turn was shown no later one sees.
"""

from collections.abc import Iterator

from saga.messages import Message
from saga.progress import ids
from saga.progress.document import SagaProgress, SuspendedRun
from saga.progress.handlers import HandlerRole, HandlerRoles


def find_suspended_run(p: SagaProgress, handler: str, message: str) -> SuspendedRun | None:
    """The continuation of a handler's run on a message."""
    for c in p.later:
        if c.handler == handler and any(m.id == message for m in c.parts):
            return c
    return None


def has_uncovered_calls(p: SagaProgress, handler: str) -> bool:
    """True if turns that are over did what no result covers: it is taken back, or told, when the run is closed."""
    return any(c.handler == handler and (c.calls or c.undo_with) for c in p.later)


def compute_cause(parts: tuple[Message, ...], c: SuspendedRun | None) -> str:
    """Cause of a run on these parts, less those that may be absent; of a later turn, the turn's own."""
    cause = parts[0].id if len(parts) == 1 else "+".join(sorted([m.id for m in parts]))
    return cause if c is None else f"{cause}~{c.turn}"


def find_consumed_ids(p: SagaProgress, role: HandlerRole) -> frozenset[str]:
    """Ids of the messages on which runs of this handler go on: they are nobody else's."""
    return frozenset([m.id for c in p.later if c.handler == role.name for m in (c.parts[:1] if role.many else c.parts)])


def find_optional_messages(p: SagaProgress, role: HandlerRole) -> tuple[Message, ...]:
    """Messages that the next turn is shown beside those that it needs: for each parameter that may be absent the first
    that is here and that no turn was shown."""
    found = []
    for types in role.optional:
        here = [(k.n, k.message) for k in p.waiting if k.handler == role.name and k.message.type in types]
        here += [
            (o.n, o.event)
            for o in p.own
            if o.event.type in types and o.is_for(role.name) and ids.inbox_entry(o.event.id, role.name) not in p.inbox
        ]
        if here:
            found.append(min(here, key=lambda there: there[0])[1])
    return tuple(found)


def collect_run_parts(p: SagaProgress, role: HandlerRole, c: SuspendedRun) -> tuple[Message, ...]:
    """Parts that the next turn is given."""
    return (*c.parts, *find_optional_messages(p, role)) if role.optional else c.parts


def is_awaited_event_here(p: SagaProgress, role: HandlerRole, c: SuspendedRun) -> bool:
    """True if an event is here for which it waits."""
    return bool(c.until) and any(message.type in c.until for message in find_optional_messages(p, role))


def find_ready_runs(
    p: SagaProgress, roles: HandlerRoles, now_ms: int, in_hand: str | None
) -> Iterator[tuple[HandlerRole, SuspendedRun]]:
    """Continuations that may go on: first those whose event is here, then those whose time has come, the earliest
    first. One that was made under the message in hand waits for its wake, so that what else there is of the saga comes
    in between; `None`: whatever is in hand."""
    timed = []
    for c in p.later:
        role = roles.handlers[c.handler]
        if not c.attempts and is_awaited_event_here(p, role, c):
            yield role, c
        elif c.due_ms <= now_ms and c.by != in_hand:
            timed.append((role, c))
    yield from sorted(timed, key=lambda found: found[1].due_ms)
