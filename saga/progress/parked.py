"""Runs that are parked: they have failed, or were put off, and wait for the time of their next attempt. Pure.

What waits by itself, a deadline before its time or a run that goes on later, is not parked: nothing has failed there.
"""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from saga.messages import Message
from saga.progress import ids
from saga.progress.document import Continuation, Kept, Snapshot
from saga.progress.timing import timed_turns


class Parked(Struct, frozen=True, kw_only=True, gc=False):
    """A run that waits for its next attempt."""

    id: str
    """Name of this wait: what is tried and parked again has another one."""
    handler: str
    message: Message
    attempts: int
    due_ms: int
    undoes: bool = False
    """True for a compensation."""
    put_off: bool = False
    """True if a pause, a limit or an open breaker holds it up: it is looked at each minute, from `due_ms` on."""


def parked(p: Snapshot) -> Iterator[Parked]:
    """All runs of a saga that are parked."""
    for k in p.queue:
        if _is_parked(k):
            yield _of(p, k)
    for k in p.compensating:
        if _is_parked(k):
            yield replace(_of(p, k), undoes=True)
    for k in p.deadlines:
        if k.attempts:
            yield _of(p, k)
    for c in timed_turns(p):
        if c.attempts:
            yield _run(p, c.handler, c.parts[0], c.attempts, c.due_ms)


def released(p: Snapshot, run: Parked, now_ms: int) -> Snapshot:
    """The progress in which the time of its next attempt has come. It keeps its place, and the attempts it has had."""

    def due(k: Kept) -> Kept:
        return replace(k, due_ms=now_ms) if _is_it(k, run) else k

    def goes_on(c: Continuation) -> Continuation:
        is_it = c.handler == run.handler and c.parts[0].id == run.message.id
        return replace(c, due_ms=now_ms) if is_it and c.attempts else c

    if run.undoes:
        return replace(p, compensating=tuple(map(due, p.compensating)))
    return replace(
        p,
        queue=tuple(map(due, p.queue)),
        deadlines=tuple(map(due, p.deadlines)),
        later=tuple(map(goes_on, p.later)),
    )


def _is_parked(k: Kept) -> bool:
    return k.dead is None and k.due_ms > 0


def _is_it(k: Kept, run: Parked) -> bool:
    return k.handler == run.handler and k.message.id == run.message.id and k.due_ms == run.due_ms


def _of(p: Snapshot, k: Kept) -> Parked:
    return replace(_run(p, k.handler, k.message, k.attempts, k.due_ms), put_off=k.put_off)


def _run(p: Snapshot, handler: str, message: Message, attempts: int, due_ms: int) -> Parked:
    id_ = ids.parked_id(p.service, p.saga, handler, message.id, attempts, due_ms)
    return Parked(id=id_, handler=handler, message=message, attempts=attempts, due_ms=due_ms)
