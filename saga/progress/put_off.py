"""Runs that are put off by a pause, a limit or an open breaker. Pure.

No attempt has failed, so the first wait alone is recorded, with its reason. While the history has that, each later
check sends the wake on and writes nothing: else a wait of days would fill the history of its saga.
"""

from saga.progress import continuations
from saga.progress.actions import Act
from saga.progress.decide import kept_undo
from saga.progress.document import Snapshot, decode_entry
from saga.support.clock import from_iso


def has_wake(p: Snapshot, action: Act, *, has_begun: bool) -> bool:
    """Return whether the run is parked already, so that a wake comes for it. `has_begun`: it has an open intent."""
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


def waits_since_ms(p: Snapshot, action: Act, attempts: int, reason: str) -> int | None:
    """Return the time from which on, by the history, the run has been put off for this reason, after so many attempts;
    `None` if the history does not have it. Two reasons that alternate are recorded once each."""
    found = None
    for entry in map(decode_entry, reversed(p.transitions)):
        if (entry.handler, entry.message) != (action.name, action.message.id):
            continue
        if (entry.outcome, entry.attempt) != ("retrying", attempts):
            break
        if entry.reason == reason:
            found = from_iso(entry.time)
    return found
