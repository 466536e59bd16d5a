"""Decide what follows from a failed attempt, and record it: the run is parked until its next attempt, or given up.

Pure functions.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from saga.encryption.sensitive_fields import hide_marked
from saga.messages import Message
from saga.messaging.operator_commands import OperatorCommand
from saga.policies.concurrency import spread_of
from saga.policies.retry import Blame, FailureRule, Retry, attempts_under, count_attempts, delay_s, parks, without_end
from saga.progress import ids, journal, suspended_runs
from saga.progress.actions import HandlerAction, ParkedRun, RunHandler
from saga.progress.decisions import find_intent, find_order_number, find_pending_compensation, find_run_intent
from saga.progress.document import (
    DeadLetterRecord,
    FailedAttempt,
    Intent,
    PendingMessage,
    SagaProgress,
    SuspendedRun,
    Transition,
    decode_transition,
    encode,
)
from saga.progress.journal import Commit, TransitionDetails, WriteContext
from saga.progress.timers import find_timed_runs
from saga.support.clock import from_iso
from saga.support.printable import shorten

READ_S_MIN = 5.0
"""Minimum seconds between two reads of the contracts, however many messages of unknown types or versions arrive."""
LOOK_S_MAX = 50.0
"""Maximum seconds between two checks whether a schema or a release is deployed. The contracts may have been read up to
`READ_S_MIN` before the check, so a deployment is noticed in less than a minute."""
SPREAD = 0.2
"""Fraction of `LOOK_S_MAX` by which checks are spread, so that runs parked at the same moment are not all checked at
once."""
HISTORY_MAX = 20
"""Maximum number of failed attempts that one transition records. Only the most recent are kept."""
STATE_BYTES_MAX = 2000
"""Largest number of bytes of the saga's state that a dead letter shows."""


class Failure(NamedTuple):
    """The error of a failed attempt, reduced to what the decision about the next attempt needs."""

    reason: str
    rule: FailureRule
    """Retry rule that applies to the error."""
    waits_for: Literal["schema", "key", "release"] | None
    """What has to be deployed or restored before an attempt can succeed."""
    is_final: bool
    """True if no attempt can succeed: the message is damaged, the run not deterministic, or the progress too large."""
    is_permanent: bool
    """True if the handler or its retry rules exclude a retry after this error."""


class FailureVerdict(NamedTuple):
    """The decision after a failed attempt: retry, park, or give up."""

    gives_up: bool
    """True if it was the last attempt: the message becomes a dead letter."""
    parks: bool
    """True if the run is parked until the next attempt; else it waits in memory."""
    wait_s: float
    """Seconds until the next attempt."""
    attempt: int
    attempts_max: int
    """Number of this attempt, and the maximum number of attempts, under the rule that applies."""
    attempts: int
    """Number of all failed attempts of the run."""
    under: dict[str, int]
    """Number of failed attempts under each named rule."""
    history: tuple[FailedAttempt, ...]
    """The attempts that failed while this message was processed."""
    is_recheck: bool = False
    """True if this was only a recheck and does not count as an attempt: the schema or release that the run waits for is
    still missing, and the journal already says so."""


class RunFailure(Struct, frozen=True, kw_only=True, gc=False):
    """Why a run was given up or parked, as the journal and the dead letter show it."""

    reason: str
    remedy: str
    attempts: int
    under: dict[str, int] = {}
    """Number of failed attempts under each named rule."""
    history: tuple[FailedAttempt, ...] = ()
    """Attempts that failed since the previous transition."""
    where: str | None = None
    """Place in the service's code at which the last attempt failed."""
    stack: tuple[str, ...] = ()
    """Places in the code that led to the failure, outermost first."""
    blame: Blame | None = None
    """Class of the failure: who can correct its cause."""
    put_off: bool = False
    """True if a pause, a limit or an open breaker postponed the run: nothing has failed."""
    undecodable: str | None = None
    """Reason why the message could not be decoded, if its schema may still be deployed or its run is postponed. Such a
    message does not wait for the other events of its handler."""
    disputed: tuple[tuple[str, int], ...] = ()
    """Steps and reads, by name and number, where the run's record and its code differ."""


def judge_failure(
    p: SagaProgress,
    action: HandlerAction,
    failure: Failure,
    history: tuple[FailedAttempt, ...],
    moment: tuple[int, float],
    *,
    schemas_may_come: bool,
) -> FailureVerdict:
    """Decide what follows from a failed attempt: the next attempt, and when, or a dead letter.

    Args:
        history: attempts that failed while this message was processed, this one last.
        moment: the time in milliseconds since 1970, and a random number from 0 to 1 that spreads the delay.
        schemas_may_come: False if a schema that is still missing after all attempts will never be deployed.
    """
    (now_ms, chance), (rule, retry), waits_for = moment, failure.rule, failure.waits_for
    before, named = count_failures_before(p, action)
    attempts, named = before + len(history), count_attempts(named, [failed.rule for failed in history])
    attempt = attempts_under(rule, attempts, named)
    may_come = waits_for == "schema" and (schemas_may_come or attempt < retry.attempts_max)
    gives_up = not may_come and (
        failure.is_final or (isinstance(action, RunHandler) and (failure.is_permanent or attempt >= retry.attempts_max))
    )
    if action.undoes and attempt >= retry.attempts_max:  # a compensation is never given up
        retry = without_end(retry)
    is_recheck, wait_s = False, delay_s(retry, attempt, chance)
    if waits_for in ("schema", "release"):
        is_recheck = before > 0 and _is_recorded_wait(p, action.name, failure.reason, retry, attempt, now_ms)
        wait_s = look_wait_s(p, retry, attempt)
    elif waits_for is not None:
        wait_s = max(wait_s, READ_S_MIN)  # each attempt reads the keys again
    return FailureVerdict(
        gives_up=gives_up,
        # A deployment or a restored key takes longer than a wait in memory. An operator waits for a command's result.
        parks=(waits_for is not None or parks(retry, attempt)) and not isinstance(action.message, OperatorCommand),
        wait_s=wait_s,
        attempt=attempt,
        attempts_max=retry.attempts_max,
        attempts=attempts,
        under=named,
        history=history,
        is_recheck=is_recheck,
    )


def count_failures_before(p: SagaProgress, action: HandlerAction) -> tuple[int, Mapping[str, int]]:
    """Return how many attempts of the run failed before this message was processed: in total, and under each named
    rule."""
    if p.timer is None:  # what is parked has a timer
        return 0, {}
    name, message = action.role.name, action.message.id
    if action.undoes:
        pending = find_pending_compensation(p, name, action.message)
    else:
        pending = next((k for k in (*p.queue[:1], *p.deadlines) if k.handler == name and k.message.id == message), None)
    if pending is not None:
        return pending.attempts, pending.under
    c = suspended_runs.find_suspended_run(p, name, message) if p.suspended_runs else None
    return (0, {}) if c is None else (c.attempts, c.under)


def look_wait_s(p: SagaProgress, retry: Retry, attempt: int) -> float:
    """Return the seconds until the next check whether the schema or release is deployed. `attempt`: number of attempts
    so far."""
    spread = spread_of(p.saga, p.n)
    return min(max(delay_s(retry, attempt, spread), READ_S_MIN), LOOK_S_MAX * (1 - SPREAD * spread))


def _is_recorded_wait(p: SagaProgress, name: str, reason: str, retry: Retry, attempt: int, now_ms: int) -> bool:
    """Return True if the failed attempt was only a recheck: the journal already says that the run waits for this
    reason, and the next attempt is not due yet.

    `attempt`: number of the failed attempt.
    """
    if attempt < 2:
        return False
    last = next((e for e in map(decode_transition, reversed(p.transitions)) if _records_wait(e, name)), None)
    if (
        last is None or last.outcome == "released" or last.reason != reason
    ):  # an operator who released it waits for the attempt
        return False
    return now_ms - from_iso(last.time) < delay_s(retry, attempt - 1, spread_of(p.saga, last.n)) * 1000


def _records_wait(entry: Transition, name: str) -> bool:
    return entry.handler == name and entry.outcome in ("retrying", "released")


def give_up(
    p: SagaProgress, context: WriteContext, action: HandlerAction, failure: RunFailure, intent: Intent | None
) -> Commit:
    """Give up a run: its message becomes a dead letter that blocks the saga.

    `intent`: the run's intent with all answers so far, if the run has begun.
    """
    message = action.message
    letter = DeadLetterRecord(
        id=ids.dead_letter_id(p.service, p.saga, action.name, message.id, p.replays),
        kind="dead letter",
        handler=action.name,
        reason=failure.reason,
        remedy=failure.remedy,
        message=message,
        attempts=failure.attempts,
        where=failure.where,
        stack=failure.stack,
        blame=failure.blame,
        state=shorten(encode(hide_marked(p.state)).decode(), STATE_BYTES_MAX) if p.state else "",
    )
    p = _update_intent(p, intent)
    pending = PendingMessage(
        handler=action.role.name,
        message=message,
        n=_find_order_number(p, action),
        dead=letter.id,
        disputed=failure.disputed,
    )
    p = _quarantine(p, action, pending)
    return journal.append_transition(
        p, context, "dead", action.name, _make_details(message, failure, intent, (letter,))
    )


def park(
    p: SagaProgress,
    context: WriteContext,
    action: HandlerAction,
    failure: RunFailure,
    intent: Intent | None,
    *,
    due_ms: int,
) -> Commit:
    """Park a run until `due_ms`. It keeps its position: the saga's other messages queue behind it.

    `intent`: the run's intent with all answers so far, if the run has begun.
    """
    p, message = _update_intent(p, intent), action.message
    pending = PendingMessage(
        handler=action.role.name,
        message=message,
        n=_find_order_number(p, action),
        attempts=failure.attempts,
        under=failure.under,
        undecodable=failure.undecodable,
        due_ms=due_ms,
        delay_ms=max(0, due_ms - context.now_ms),
        put_off=failure.put_off,
    )
    c = (
        suspended_runs.find_suspended_run(p, action.role.name, message.id)
        if p.suspended_runs and not action.undoes
        else None
    )
    if c is not None and not _waits_in_place(p, action, pending, c):
        p = _move_to_head(p, pending)
    elif c is not None and not any(_is_same(k, pending) for k in p.queue):  # blocks no message: only its time changes
        moved = replace(c, attempts=pending.attempts, under=pending.under, due_ms=due_ms, delay_ms=pending.delay_ms)
        p = replace(p, suspended_runs=tuple(moved if other is c else other for other in p.suspended_runs))
    elif any(_is_same(k, pending) for k in p.deadlines):  # a deadline does not block either, unless it is replayed
        p = replace(p, deadlines=tuple(replace(pending, n=k.n) if _is_same(k, pending) else k for k in p.deadlines))
    elif not action.undoes:
        p = _move_to_head(p, pending)
    elif any(_is_same(k, pending) for k in p.compensating):
        p = replace(
            p, compensating=tuple(replace(pending, n=k.n) if _is_same(k, pending) else k for k in p.compensating)
        )
    else:
        p = replace(p, compensating=(*p.compensating, pending))
    ended = _make_details(message, failure, None, ())  # the answers that it received stay in its intent
    return journal.append_transition(p, context, "retrying", action.name, ended)


def _waits_in_place(p: SagaProgress, action: HandlerAction, pending: PendingMessage, c: SuspendedRun) -> bool:
    """Return True if a suspended run stays among the suspended runs, because only its due time decides when it
    continues.

    A run that was postponed without a failed attempt may continue before its due time, if it has an open intent, or if
    an awaited event has arrived.
    """
    return bool(pending.attempts) or not (
        find_intent(p, action.role.name, action.message) or suspended_runs.is_awaited_event_here(p, action.role, c)
    )


def _make_details(
    message: Message, failure: RunFailure, intent: Intent | None, letters: tuple[DeadLetterRecord, ...]
) -> TransitionDetails:
    """Make the transition details of a failed attempt, with the answers that it received."""
    return TransitionDetails(
        message=message,
        reason=failure.reason,
        attempt=failure.attempts,
        failures=failure.history,
        calls=intent.calls if intent else (),
        letters=letters,
    )


def _update_intent(p: SagaProgress, intent: Intent | None) -> SagaProgress:
    """Return the progress with the run's open intent replaced by its current version."""
    if intent is None:
        return p
    known = find_run_intent(p, (intent.kind, intent.handler, intent.cause))
    return replace(p, intents=tuple(intent if i is known else i for i in p.intents))


def _is_same(a: PendingMessage, b: PendingMessage) -> bool:
    return a.handler == b.handler and a.message.id == b.message.id


def _find_order_number(p: SagaProgress, action: HandlerAction) -> int:
    """Return the position number of a message that moves to the head of the queue, or to the end of the compensations.

    Queued and pending messages keep their order behind it.
    """
    if action.undoes:
        return p.n
    before = find_order_number(p, action.role.name, action.message)
    return min([p.n if before is None else before, *[k.n for k in p.queue[:1]]])


def give_up_without_content(
    p: SagaProgress, context: WriteContext, action: HandlerAction, *, letter: str, reason: str
) -> Commit:
    """Record a dead letter whose message is too large for the progress: the saga is blocked, and only the dead letter's
    own record has the message's bytes."""
    message = replace(action.message, value=b"")
    p = _quarantine(
        p,
        action,
        PendingMessage(
            handler=action.role.name, message=message, n=_find_order_number(p, action), dead=letter, undecodable=reason
        ),
    )
    return journal.append_transition(
        p, context, "dead", action.name, TransitionDetails(message=action.message, reason=reason)
    )


def _quarantine(p: SagaProgress, action: HandlerAction, pending: PendingMessage) -> SagaProgress:
    """Keep a dead letter until an operator decides: at the head of the queue, or with the compensations."""
    if action.undoes:
        return replace(
            p, compensating=(*journal.remove_messages(p.compensating, pending.handler, [pending.message.id]), pending)
        )
    return _move_to_head(p, pending)


def _move_to_head(p: SagaProgress, pending: PendingMessage) -> SagaProgress:
    name, gone = pending.handler, [pending.message.id]
    return replace(
        p,
        queue=(pending, *journal.remove_messages(p.queue, name, gone)),
        waiting=journal.remove_messages(p.waiting, name, gone),
    )


# -------------------------------------------------------------------- put off


def has_timer(p: SagaProgress, action: HandlerAction, *, has_begun: bool) -> bool:
    """Return whether the run is already parked, so a timer will resume it. `has_begun`: whether the run has an open
    intent."""
    name, message = action.role.name, action.message.id
    if action.undoes:
        pending = find_pending_compensation(p, name, action.message)
        return pending is not None and pending.due_ms > 0
    if any(k.handler == name and k.message.id == message for k in p.deadlines):
        return True
    if any(k.handler == name and k.message.id == message for k in p.queue[:1]):
        return p.queue[0].due_ms > 0
    c = suspended_runs.find_suspended_run(p, name, message) if p.suspended_runs else None
    return c is not None and not has_begun and not suspended_runs.is_awaited_event_here(p, action.role, c)


def find_postponed_since_ms(p: SagaProgress, action: HandlerAction, attempts: int, reason: str) -> int | None:
    """Return the time since which the run has been postponed for this reason, after this number of attempts.

    The journal determines this time; `None` if the run is not postponed. Two reasons that alternate are recorded once
    each.
    """
    found = None
    for entry in map(decode_transition, reversed(p.transitions)):
        if (entry.handler, entry.message) != (action.name, action.message.id):
            continue
        if (entry.outcome, entry.attempt) != ("retrying", attempts):
            break
        if entry.reason == reason:
            found = from_iso(entry.time)
    return found


# -------------------------------------------------------------------- parked


def find_parked_runs(p: SagaProgress) -> Iterator[ParkedRun]:
    """Yield all parked runs of a saga."""
    for k in p.queue:
        if _is_parked(k):
            yield _of(p, k)
    for k in p.compensating:
        if _is_parked(k):
            yield replace(_of(p, k), undoes=True)
    for k in p.deadlines:
        if k.attempts:
            yield _of(p, k)
    for c in find_timed_runs(p):
        if c.attempts:
            yield _run(p, c.handler, c.parts[0], c.attempts, c.due_ms)


def release_run(p: SagaProgress, run: ParkedRun, now_ms: int) -> SagaProgress:
    """Return the progress with the run's next attempt due now. The run keeps its position and its number of
    attempts."""

    def due(k: PendingMessage) -> PendingMessage:
        return replace(k, due_ms=now_ms) if _is_it(k, run) else k

    def goes_on(c: SuspendedRun) -> SuspendedRun:
        is_it = c.handler == run.handler and c.parts[0].id == run.message.id
        return replace(c, due_ms=now_ms) if is_it and c.attempts else c

    if run.undoes:
        return replace(p, compensating=tuple(map(due, p.compensating)))
    return replace(
        p,
        queue=tuple(map(due, p.queue)),
        deadlines=tuple(map(due, p.deadlines)),
        suspended_runs=tuple(map(goes_on, p.suspended_runs)),
    )


def _is_parked(k: PendingMessage) -> bool:
    return k.dead is None and k.due_ms > 0


def _is_it(k: PendingMessage, run: ParkedRun) -> bool:
    return k.handler == run.handler and k.message.id == run.message.id and k.due_ms == run.due_ms


def _of(p: SagaProgress, k: PendingMessage) -> ParkedRun:
    return replace(_run(p, k.handler, k.message, k.attempts, k.due_ms), put_off=k.put_off)


def _run(p: SagaProgress, handler: str, message: Message, attempts: int, due_ms: int) -> ParkedRun:
    id_ = ids.parked_id(p.service, p.saga, handler, message.id, attempts, due_ms)
    return ParkedRun(id=id_, handler=handler, message=message, attempts=attempts, due_ms=due_ms)
