"""What waits for time, and the one wake that is to come for it. Pure.

Wakes are hints. The progress names the current one, and all others are dropped: so they never multiply, however often
they are published again. Another worker may have used the current one up already: so whatever adds something that waits
for time names a new one.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from saga.messages import Message
from saga.progress.document import Snapshot, Timer


def waits_for_time(p: Snapshot) -> frozenset[tuple[str, str, int]]:
    """All that waits for a time: handler, message, and when it is due."""
    if not p.queue and not p.compensating:
        return _NOTHING
    return frozenset([(k.handler, k.message.id, k.due_ms) for k in (*p.queue, *p.compensating) if k.due_ms])


_NOTHING: frozenset[tuple[str, str, int]] = frozenset()


def next_due(p: Snapshot, now_ms: int) -> int | None:
    """Earliest time to come for which something waits; `None`: nothing does."""
    return _earliest(waits_for_time(p), now_ms)


def woken(p: Snapshot, before: Snapshot | None, in_hand: Message, now_ms: int) -> tuple[Snapshot, Timer | None]:
    """The progress with a new current wake, and that wake, where the one before does not do: there is none, it comes
    too late, it is in hand, or something waits for time that did not. `before`: the progress as the store has it."""
    waits = waits_for_time(p)
    at = _earliest(waits, now_ms)
    if at is None:
        return (p if waits or p.wake is None else replace(p, wake=None)), None
    now, current = _NOTHING if before is None else waits_for_time(before), p.wake
    if current is not None and current.due_ms <= at and current.id != in_hand.id and waits <= now:
        return p, None
    timer = Timer(id=f"wake-{p.n}", due_ms=at)
    return replace(p, wake=timer), timer


def _earliest(waits: Iterable[tuple[str, str, int]], now_ms: int) -> int | None:
    return min([due for _, _, due in waits if due > now_ms], default=None)
