"""Handlers of which a progress has open or undoable work, and which this version does not declare. Pure."""

from saga.progress.document import Snapshot
from saga.progress.roles import Roles


def undeclared(p: Snapshot, roles: Roles) -> tuple[str, ...]:
    """Names, each with its kind. Whoever finds any decides nothing: it would lose what they have begun."""
    if not (p.is_open or p.results):
        return ()
    known, kept = roles.handlers, (*p.queue, *p.compensating)
    if p.started is None:  # else these are parts of a fan-in, which keep nothing open
        kept += p.waiting
    open_ = {k.handler for k in kept} | {intent.handler for intent in p.intents}
    of = ("queue", "waiting") if p.started is None else ("queue",)
    open_ |= {name for page in p.pages if page.of in of for name in page.handlers}
    missing = {f"handler {name}" for name in open_ - known.keys()}
    for handler in {result.handler for result in p.results}:
        if handler not in known:
            missing.add(f"handler {handler}")
        elif known[handler].undo is None:
            missing.add(f"compensation of {handler}")
    return tuple(sorted(missing))
