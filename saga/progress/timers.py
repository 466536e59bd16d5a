"""Timers: when work of a saga is due, and the one current timer that is published for it. Pure functions.

Timers are hints. The progress names the current timer, and all others are ignored. A worker that reads the progress
publishes the current timer again, unless that timer is the one being processed. So a timer that fires does not cause
another one, and a worker that buffers a timer finishes its copies at once.

While any work waits for a time, the current timer is in the log: it is forwarded before its offset is committed, and a
write that adds waiting work sets a new timer if the current one may fire too late. Work that waits for an operator has
no timer: see `find_timed_work`.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from saga.messages import Message
from saga.messaging.timers import SagaTimer
from saga.progress import ids
from saga.progress.actions import Now
from saga.progress.document import CurrentTimer, PendingMessage, SagaProgress, SuspendedRun, compute_format
from saga.progress.handlers import DEADLINE, HandlerRole, HandlerRoles
from saga.support.clock import LATEST_MS, from_iso, iso

AHEAD_MS = 10_000
"""Milliseconds by which clocks may differ. If work waits longer than its delay by more than this, its due time was set
by a clock that was ahead."""

AGAIN_MS_MIN, AGAIN_MS_MAX = 1000, 86_400_000
"""Shortest and longest pause before overdue work that cannot run yet is checked again. The pause is as long as the work
has been overdue. When a write unblocks the work, it runs at once, unless this worker's clock is behind, so that the
work is not due according to this clock."""


def find_timed_work(p: SagaProgress) -> frozenset[tuple[str, str, int]]:
    """Return all work that waits for a time: handler, message, and due time.

    Work that a dead letter blocks is left out: it waits for an operator, whose command sets a new timer.
    """
    if not p.queue and not p.compensating and not p.deadlines and not p.suspended_runs:
        return _NOTHING
    pending: Iterable[PendingMessage] = (*p.queue, *p.deadlines)
    later = find_timed_runs(p)
    if p.is_quarantined:
        free = _find_unblocked_runs(p)
        pending = [k for k in pending if (k.handler, k.message.id) in free]
        later = [c for c in later if (c.handler, c.parts[0].id) in free]
    waits = [(k.handler, k.message.id, k.due_ms) for k in (*pending, *p.compensating) if k.due_ms]
    return frozenset([*waits, *map(_of_turn, later)])


def _find_unblocked_runs(p: SagaProgress) -> set[tuple[str, str]]:
    """Return the runs that may continue in spite of a dead letter, as handler and message.

    These are the open runs. If there are none, it is the head of the queue, unless a compensation is a dead letter. See
    `saga.progress.decisions.is_blocked`.
    """
    begun = {(i.handler, m.id) for i in p.intents if i.kind == "do" for m in i.parts}
    if p.intents or any(k.dead for k in p.compensating):
        return begun
    return {(k.handler, k.message.id) for k in p.queue[:1]}


def find_timed_runs(p: SagaProgress) -> Iterable[SuspendedRun]:
    """Return the suspended runs that continue by themselves. A run that was given up is left out: it waits for an
    operator."""
    if not p.queue:
        return p.suspended_runs
    queued = {(k.handler, k.message.id) for k in p.queue}
    return [c for c in p.suspended_runs if (c.handler, c.parts[0].id) not in queued]


def _of_turn(c: SuspendedRun) -> tuple[str, str, int]:
    return c.handler, f"{c.parts[0].id}~{c.turn}", c.due_ms


_NOTHING: frozenset[tuple[str, str, int]] = frozenset()


def compute_next_check(p: SagaProgress, now_ms: int, before: SagaProgress | None = None) -> int | None:
    """Return the next time at which waiting work has to be checked; `None` if nothing waits.

    `before`: the progress before this write. Turns and deadlines that are new since then can only be blocked by the
    log, so they are checked at their due time even if it has passed.
    """
    waits = find_timed_work(p)
    times_ms = [compute_check(due_ms, now_ms) for _, _, due_ms in waits]
    if (p.suspended_runs or p.deadlines) and before is not None:
        at_once = {*map(_of_turn, p.suspended_runs), *[(k.handler, k.message.id, k.due_ms) for k in p.deadlines]}
        new = at_once & waits - find_timed_work(before)
        times_ms += [max(due_ms, now_ms) for _, _, due_ms in new]
    return min(times_ms, default=None)


def compute_check(due_ms: int, now_ms: int) -> int:
    """Return the next time at which work with this due time is checked.

    >>> compute_check(7000, 5000), compute_check(5000, 5000), compute_check(5000, 65_000)
    (7000, 6000, 125000)
    """
    if due_ms > now_ms:
        return due_ms
    return now_ms + min(max(now_ms - due_ms, AGAIN_MS_MIN), AGAIN_MS_MAX)


def check_unknown_saga(p: SagaProgress, message: Message, now_ms: int, retention_s: int) -> tuple[int, int] | None:
    """Return when the timer of an unknown saga fires again, and the time for which it was first published.

    `None` if the saga is known, or if the timer is older than the retention. Another store may know the saga: the store
    of a process with other settings, or of another project with a service of the same name. Each pause is as long as
    the timer has been due.
    """
    if not isinstance(message, SagaTimer) or p.n or p.intents:
        return None
    first_ms = message.unknown_ms or message.due_ms
    if now_ms - first_ms > retention_s * 1000:
        return None
    return compute_check(first_ms, now_ms), first_ms


def find_earliest_ms(p: SagaProgress) -> int | None:
    """Return the earliest time for which work of the saga waits, even if it has passed; `None` if no work waits for a
    time.

    This may be later than `p.timer.due_ms`. The timer keeps its entry in the progress when its work is done, and when
    it is forwarded to a later time.
    """
    return min((due_ms for _, _, due_ms in find_timed_work(p)), default=None)


def is_timer_too_late(p: SagaProgress, now_ms: int) -> bool:
    """Return True if the current timer fires after work is due, because it was set by a clock that is ahead."""
    at = compute_next_check(p, now_ms)
    return p.timer is not None and at is not None and p.timer.due_ms > at


def is_clock_behind(handled: Message, now_ms: int) -> bool:
    """Return True if this worker's clock is behind: by this clock, the message was published in the future."""
    return handled.time > iso((now_ms // 1000) * 1000 + AHEAD_MS)


def limit_delays(p: SagaProgress, roles: HandlerRoles, now_ms: int) -> SagaProgress:
    """Limit due times, so that no work waits longer from now than its own delay.

    A longer wait was set by a clock that was ahead, or this clock is behind: see `is_clock_behind`.
    """

    def limit(k: PendingMessage) -> PendingMessage:
        left_ms, delay_ms = k.due_ms - now_ms, k.delay_ms
        return replace(k, due_ms=now_ms + delay_ms) if delay_ms and left_ms > delay_ms + AHEAD_MS else k

    def limit_deadline(k: PendingMessage) -> PendingMessage:
        role = roles.handlers.get(k.handler)
        return (
            limit(k) if k.delay_ms or role is None else replace(limit(replace(k, delay_ms=role.within_ms)), delay_ms=0)
        )

    def limit_suspended(c: SuspendedRun) -> SuspendedRun:
        left_ms, delay_ms = c.due_ms - now_ms, c.delay_ms or c.due_ms - c.seen_ms
        return replace(c, due_ms=now_ms + delay_ms, delay_ms=delay_ms) if left_ms > delay_ms + AHEAD_MS else c

    queue, compensating = tuple(map(limit, p.queue)), tuple(map(limit, p.compensating))
    waits, later = tuple(map(limit_deadline, p.deadlines)), tuple(map(limit_suspended, p.suspended_runs))
    if (queue, compensating, waits, later) == (p.queue, p.compensating, p.deadlines, p.suspended_runs):
        return p
    return replace(p, queue=queue, compensating=compensating, deadlines=waits, suspended_runs=later)


def is_deadline_overdue(p: SagaProgress, now_ms: int) -> bool:
    """Return True if a deadline is due."""
    return any(k.due_ms <= now_ms for k in p.deadlines)


def set_timer(p: SagaProgress, before: SagaProgress | None, now_ms: int) -> tuple[SagaProgress, CurrentTimer | None]:
    """Return the progress with a new current timer, and that timer; if the current one suffices, return `p` and `None`.

    A new one is needed if there is none, if it fires too late, or if new work waits for a time. `before`: the stored
    progress.
    """
    due_ms = compute_next_check(p, now_ms, before)
    if due_ms is None:
        return (p if p.timer is None else replace(p, timer=None)), None
    known = _NOTHING if before is None else find_timed_work(before)
    if p.timer is not None and p.timer.due_ms <= due_ms and find_timed_work(p) <= known:
        return p, None
    timer = CurrentTimer(id=f"wake-{p.n}", due_ms=due_ms)
    return replace(p, timer=timer), timer


# -------------------------------------------------------------------- deadlines


def touches_deadline(p: SagaProgress, roles: HandlerRoles, message: Message) -> bool:
    """Return True if the message only opens or closes a deadline, and has not been recorded yet."""
    return message.type in roles.noted and ids.inbox_entry(message.id, DEADLINE) not in p.inbox


def touch_deadlines(p: SagaProgress, roles: HandlerRoles, messages: Sequence[Message], now_ms: int) -> SagaProgress:
    """Open and close deadlines because of messages that were handled or emitted.

    Deadlines that have run, were given up, or will never run are removed. `now_ms`: time at which the messages are
    first seen here.
    """
    closed, opened = list(p.closed), list(p.deadlines)
    begun = {intent.handler for intent in p.intents}  # an open run is finished
    for message in messages:
        for role in roles.closing.get(message.type, ()):
            if role.name not in closed and role.name not in begun:
                closed.append(role.name)
    for message in messages:
        for role in roles.opening.get(message.type, ()):
            if role.name in closed or any(k.handler == role.name for k in opened) or _has_run(p, role, message):
                continue
            if p.outcome is not None or p.failed:
                closed.append(role.name)
            else:
                due_ms = min(_counts_from_ms(message, now_ms) + role.within_ms, LATEST_MS)
                opened.append(PendingMessage(handler=role.name, message=message, n=p.n, due_ms=due_ms))
    given_up = {(k.handler, k.message.id) for k in p.queue if k.handler in roles.deadlines}
    left = tuple(
        [
            k
            for k in opened
            if k.handler not in closed
            and (k.handler, k.message.id) not in given_up
            and ids.inbox_entry(k.message.id, k.handler) not in p.inbox
        ]
    )
    if left == p.deadlines and len(closed) == len(p.closed):
        return p
    return replace(
        p, deadlines=left, closed=tuple(closed), format=compute_format(p.segments, left, p.suspended_runs, p.version)
    )


def _counts_from_ms(message: Message, now_ms: int) -> int:
    """Return the time from which a deadline counts: the event's time, or now if that lies in the future because a clock
    is wrong.

    If the event's time cannot be trusted, the deadline counts from the time at which the event is first seen.
    """
    return now_ms if message.foreign_time else min(from_iso(message.time), now_ms)


def _has_run(p: SagaProgress, role: HandlerRole, message: Message) -> bool:
    return (
        ids.inbox_entry(message.id, role.name) in p.inbox
        or any(r.handler == role.name for r in p.completed_runs)
        or any(k.handler == role.name for k in p.queue)
    )


def find_due_deadlines(
    p: SagaProgress, roles: HandlerRoles, now_ms: int, handled_ms: int
) -> Iterator[tuple[HandlerRole, Message]]:
    """Return the deadlines that are due and no longer have to wait for the log, earliest first."""
    for k in sorted(p.deadlines, key=lambda k: k.due_ms):
        role = roles.handlers[k.handler]
        if k.due_ms <= now_ms and not waits_for_log(k, role, now_ms, handled_ms):
            yield role, k.message


def waits_for_log(k: PendingMessage, role: HandlerRole, now_ms: int, handled_ms: int) -> bool:
    """Return True if the log has not been handled up to a deadline's due time, so it may still contain the event that
    closes the deadline.

    The wait ends after the deadline's grace, if one is declared.
    """
    return k.due_ms > handled_ms and (role.grace_ms is None or k.due_ms + role.grace_ms > now_ms)


def find_deadlines_behind_log(p: SagaProgress, roles: HandlerRoles, now: Now) -> list[PendingMessage]:
    """Return the deadlines that are due and only wait for the log."""
    if not is_deadline_overdue(p, now.ms) or not may_deadline_run(p, roles):
        return []
    return [
        k
        for k in sorted(p.deadlines, key=lambda k: k.due_ms)
        if k.due_ms <= now.ms and waits_for_log(k, roles.handlers[k.handler], now.ms, now.handled_ms)
    ]


def is_end_certain(p: SagaProgress, roles: HandlerRoles) -> bool:
    """Return True if an open deadline will end the saga, whatever else happens."""
    return any(roles.handlers[k.handler].ends_surely for k in p.deadlines)


def may_deadline_run(p: SagaProgress, roles: HandlerRoles) -> bool:
    """Return True if a deadline may run now.

    It may run although a failed run is parked, because that may take any time; but not if the parked run has begun and
    may emit an outcome. It waits for a dead letter, for another open run, and for a message that arrived in time and
    may close a deadline: one that was not tried yet, or that a pause, a limit or an open breaker postpones.
    """
    if p.is_quarantined:
        return False
    if any(_is_pending(k) and roles.handlers[k.handler].closes_deadlines for k in p.queue):
        return False
    if any(
        page.kind == "queue" and any(roles.handlers[h].closes_deadlines for h in page.handlers) for page in p.segments
    ):
        return False
    head = p.queue[0] if p.queue and p.queue[0].due_ms else None
    if head is None:
        return not p.intents and not p.queue
    begun = [i for i in p.intents if i.handler == head.handler and any(m.id == head.message.id for m in i.parts)]
    return len(begun) == len(p.intents) and not (begun and roles.handlers[head.handler].decides)


def _is_pending(k: PendingMessage) -> bool:
    """Return True for a queued message that has not failed, or that a pause, a limit or an open breaker postpones."""
    return k.put_off or not k.attempts
