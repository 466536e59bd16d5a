"""Runs that are put off: a pause, a limit or an open breaker does not let them through. Pure.

Nothing has failed, so nothing but the first wait is written down: as long as the history says already that a run waits,
and why, whoever looks at it again sends its wake on. A wait of days would fill the history of its saga otherwise.
"""

from saga.clock import from_iso
from saga.progress import continuations
from saga.progress.actions import Act
from saga.progress.decide import kept_undo
from saga.progress.document import Snapshot, decode_entry


def has_wake(p: Snapshot, action: Act, *, has_begun: bool) -> bool:
    """True if the progress keeps the run for a time already, so that a wake comes for it. `has_begun`: it has an open
    intent."""
    name, message = action.role.name, action.message.id
    if action.undoes:
        kept = kept_undo(p, name, action.message)
        return kept is not None and kept.due_ms > 0
    if any(k.handler == name and k.message.id == message for k in p.deadlines):
        return True
    if any(k.handler == name and k.message.id == message for k in p.queue[:1]):
        return p.queue[0].due_ms > 0
    c = continuations.of(p, name, message) if p.later else None
    return c is not None and not has_begun and not continuations.is_awaited(p, action.role, c)


def told_ms(p: Snapshot, action: Act, attempts: int, reason: str) -> int | None:
    """Time since which the history says that the run waits for this reason, with so many attempts behind it; `None`: it
    does not say so. Two reasons that take turns are written down once each."""
    found = None
    for entry in map(decode_entry, reversed(p.transitions)):
        if (entry.handler, entry.message) != (action.name, action.message.id):
            continue
        if (entry.outcome, entry.attempt) != ("retrying", attempts):
            break
        if entry.reason == reason:
            found = from_iso(entry.time)
    return found
