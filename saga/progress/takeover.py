"""Find what other versions of the service left in a progress for this version to take over.

A service does not read its own events from the log: the progress stores the ones that its handlers consume. If this
version consumes a type of own event that the version before did not, earlier events of that type are only in the
journal: `take_over` adds them to the progress. `find_undeclared` finds the opposite: handlers and compensations that
the progress still needs, and that this version does not declare. All functions are pure.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from saga.messages import Message
from saga.progress import ids
from saga.progress.actions import Now
from saga.progress.document import SagaProgress, SelfConsumedEvent, Transition, build_messages
from saga.progress.handlers import HandlerRoles


def is_takeover_due(p: SagaProgress, roles: HandlerRoles) -> bool:
    """Return True if this version consumes own events that the version which wrote the progress did not consume."""
    return (
        p.self_consumed_types != roles.self_consumed_types
        and bool(p.n)
        and not set(roles.self_consumed_types) <= set(p.self_consumed_types)
    )


def take_over(p: SagaProgress, roles: HandlerRoles, entries: Sequence[Transition], now: Now) -> SagaProgress:
    """Return the progress with the newly consumed events of these transitions, unless they were withdrawn or processed.

    `entries`: all transitions, oldest first. An event older than the retention is not taken over for a handler with
    `repeats`: the handler may have processed it, and the inbox entry may have expired.
    """
    types = set(roles.self_consumed_types) - set(p.self_consumed_types)
    undone = {entry.cause for entry in entries if entry.outcome == "compensated" and entry.cause}
    there = {own.event.id for own in p.self_consumed}
    found: list[SelfConsumedEvent] = []
    inbox, results = p.inbox, p.results
    for entry in entries:
        if not any(e.type in types for e in entry.events) or _is_undone(p, entry, undone):
            continue
        cause = entry.cause or entry.message
        for event in build_messages(p, entry):
            if event.type not in types or event.id in there or event.id in undone:
                continue
            if event.time < now.forgotten:
                inbox = {**inbox, **_mark_processed(event, roles, inbox)}
            found.append(SelfConsumedEvent(event=event, n=entry.n))
            results = tuple(
                [
                    replace(r, self_consumed_ids=(*r.self_consumed_ids, event.id))
                    if (r.handler, r.cause) == (entry.handler, cause)
                    else r
                    for r in results
                ]
            )
    own = sorted((*p.self_consumed, *found), key=lambda part: part.n)
    return replace(
        p,
        self_consumed=tuple(
            [
                o
                for o in own
                if any(
                    o.is_for(r.name) and ids.inbox_entry(o.event.id, r.name) not in inbox
                    for r in roles.by_type.get(o.event.type, ())
                )
            ]
        ),
        inbox=inbox,
        results=results,
    )


def _is_undone(p: SagaProgress, entry: Transition, undone: set[str]) -> bool:
    """Return True if all results of the run that this transition ended are undone, so that its other events are
    withdrawn."""
    cause = entry.cause or entry.message
    left = any((r.handler, r.cause) == (entry.handler, cause) for r in p.results)
    return not left and any(e.id in undone for e in entry.events)


def _mark_processed(event: Message, roles: HandlerRoles, inbox: dict[str, int]) -> dict[str, int]:
    """Return inbox entries that mark an old event as processed by all handlers with `repeats` that take it.

    The event is older than the retention, so these handlers may have processed it, and their entries may have expired.
    Entries that are still in `inbox` are left out.
    """
    return {
        key: 0 for r in roles.by_type[event.type] if r.many and (key := ids.inbox_entry(event.id, r.name)) not in inbox
    }


def find_undeclared(p: SagaProgress, roles: HandlerRoles) -> tuple[str, ...]:
    """Return the handlers and compensations that the progress needs and this version does not declare, each with its
    kind.

    A worker that finds any makes no decision for the saga, because it would lose their work.
    """
    if not (p.is_open or p.results):
        return ()
    known, pending = roles.handlers, (*p.queue, *p.compensating, *p.deadlines)
    if p.started is None:  # otherwise these are parts of a fan-in, which keep nothing open
        pending += p.waiting
    open_ = {k.handler for k in pending} | {i.handler for i in p.intents} | {c.handler for c in p.suspended_runs}
    of = ("queue", "waiting") if p.started is None else ("queue",)
    open_ |= {name for page in p.segments if page.kind in of for name in page.handlers}
    missing = {f"handler {name}" for name in open_ - known.keys()}
    for handler in {result.handler for result in p.results}:
        if handler not in known:
            missing.add(f"handler {handler}")
        elif known[handler].undo is None:
            missing.add(f"compensation of {handler}")
    return tuple(sorted(missing))
