"""Suspended runs: handlers that returned `Later` and continue at a time, or when an event arrives. Pure functions.

A suspended run keeps the event that started it, and does not block the saga. Each turn is a run with its own cause, so
the ids of its steps and events differ from those of other turns. An optional event is given to one turn only.
"""

from collections.abc import Collection, Iterator

from saga.messages import Message
from saga.progress import ids
from saga.progress.document import SagaProgress, SuspendedRun
from saga.progress.handlers import HandlerRole, HandlerRoles


def find_suspended_run(p: SagaProgress, handler: str, message: str) -> SuspendedRun | None:
    """Return the handler's suspended run that a message started."""
    for c in p.suspended_runs:
        if c.handler == handler and any(m.id == message for m in c.parts):
            return c
    return None


def has_uncovered_calls(p: SagaProgress, handler: str) -> bool:
    """Return True if earlier turns of the handler made calls that no result covers. Closing the handler undoes or
    reports them."""
    return any(c.handler == handler and (c.calls or c.undo_with) for c in p.suspended_runs)


def compute_cause(parts: tuple[Message, ...], c: SuspendedRun | None) -> str:
    """Return the cause of a run on these required events. Each later turn of a suspended run has its own cause."""
    cause = parts[0].id if len(parts) == 1 else "+".join(sorted([m.id for m in parts]))
    return cause if c is None else f"{cause}~{c.turn}"


def find_consumed_ids(p: SagaProgress, role: HandlerRole) -> frozenset[str]:
    """Return the ids of the messages that belong to suspended runs of this handler: no other run gets them."""
    return frozenset(
        [m.id for c in p.suspended_runs if c.handler == role.name for m in (c.parts[:1] if role.many else c.parts)]
    )


def find_optional_messages(p: SagaProgress, role: HandlerRole, awaited: Collection[str] = ()) -> tuple[Message, ...]:
    """Return the optional events for the next turn: for each optional parameter, the first that no turn has been given.

    Events of the types `awaited` come before others. Otherwise an earlier event of the same parameter `E | F | None`
    would hide the one that ends the wait.
    """
    found = []
    for types in role.optional:
        here = [(k.n, k.message) for k in p.waiting if k.handler == role.name and k.message.type in types]
        here += [
            (o.n, o.event)
            for o in p.self_consumed
            if o.event.type in types and o.is_for(role.name) and ids.inbox_entry(o.event.id, role.name) not in p.inbox
        ]
        if here:
            found.append(min(here, key=lambda there: (there[1].type not in awaited, there[0]))[1])
    return tuple(found)


def collect_run_parts(p: SagaProgress, role: HandlerRole, c: SuspendedRun) -> tuple[Message, ...]:
    """Return all events that the next turn is given."""
    return (*c.parts, *find_optional_messages(p, role, c.awaited_types)) if role.optional else c.parts


def is_awaited_event_here(p: SagaProgress, role: HandlerRole, c: SuspendedRun) -> bool:
    """Return True if an event that the suspended run waits for has arrived."""
    return bool(c.awaited_types) and any(
        message.type in c.awaited_types for message in find_optional_messages(p, role, c.awaited_types)
    )


def find_ready_runs(
    p: SagaProgress, roles: HandlerRoles, now_ms: int, current: str | None
) -> Iterator[tuple[HandlerRole, SuspendedRun]]:
    """Yield the suspended runs that may continue: first those whose event has arrived, then those whose time has come.

    A run that was suspended while the message `current` is processed waits for its timer, so that other work of the
    saga comes in between. `None` for `current` means any message.
    """
    timed = []
    for c in p.suspended_runs:
        role = roles.handlers[c.handler]
        if not c.attempts and is_awaited_event_here(p, role, c):
            yield role, c
        elif c.due_ms <= now_ms and c.last_message != current:
            timed.append((role, c))
    yield from sorted(timed, key=lambda found: found[1].due_ms)
