"""Record what was decided and done: each function returns the progress with one more transition. Pure functions."""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from saga.errors import TooLarge
from saga.messages import Message, Position
from saga.progress import ids, integrity, timers
from saga.progress.decisions import find_order_number
from saga.progress.document import (
    VERSIONED,
    AbortAction,
    CompensableResult,
    CompletedRun,
    DeadLetterRecord,
    EmittedEvent,
    FailedAttempt,
    Intent,
    Outcome,
    PendingMessage,
    SagaProgress,
    SelfConsumedEvent,
    StepRecord,
    SuspendedRun,
    Transition,
    compute_format,
    encode,
    is_covered,
)
from saga.progress.handlers import DEADLINE, HandlerRole, HandlerRoles, compensation_name
from saga.support.clock import from_iso, iso

INBOX_MAX = 64
"""With more inbox entries than this, the next write drops those older than the retention."""

REPLAY = "fix the cause, then retry it: saga dead replay"


class WriteContext(Struct, frozen=True, kw_only=True, gc=False):
    """Everything that a write depends on besides the progress: the message, its position, the time, the retention."""

    message: Message
    position: Position | None
    """Position of the message in the log; `None` if the progress knew the message before this write."""
    roles: HandlerRoles
    self_consumed_types: tuple[str, ...]
    """New value of `SagaProgress.self_consumed_types`: types of own events that the written progress stores for its
    handlers."""
    now_ms: int
    retention_s: int
    before: SagaProgress | None = None
    """The progress in the store. The transition records how the new progress differs from it."""
    transitions_published: int = 0
    """The transition events of all transitions below this number are published."""

    @property
    def time(self) -> str:
        return iso(self.now_ms)

    @property
    def entered_s(self) -> int:
        """Return the time of new inbox entries, in seconds since 1970: now, but not before the message's own time.

        Otherwise a clock that is behind by more than the retention would make entries that the next write drops.
        """
        return (self.now_ms if self.message.time <= self.time else from_iso(self.message.time)) // 1000

    @property
    def forgotten_s(self) -> int:
        """Return the time before which inbox entries may be dropped, in seconds since 1970: `certain_now_s` minus the
        retention."""
        return certain_now_s(self.message, self.now_ms) - self.retention_s


def certain_now_s(message: Message, now_ms: int) -> int:
    """Return the latest time, in seconds since 1970, that has passed even if this worker's clock is ahead: now or, if
    it is earlier, the message's own time.

    So a clock that is ahead by more than the retention does not drop entries too early.
    """
    return (now_ms if message.time >= iso(now_ms) else from_iso(message.time)) // 1000


class TransitionDetails(Struct, frozen=True, kw_only=True, gc=False):
    """What a transition records about a message that was processed."""

    message: Message
    cause: str = ""
    """Cause of the run; empty if nothing ran, or if the cause is the message."""
    parts: tuple[Message, ...] = ()
    """Messages that the run was given."""
    reason: str | None = None
    attempt: int = 1
    failures: tuple[FailedAttempt, ...] = ()
    """Attempts that failed since the previous transition."""
    delta: dict[str, Any] = {}
    """The fields of the state that changed."""
    events: Sequence[Message] = ()
    calls: tuple[StepRecord, ...] = ()
    shown: tuple[str, ...] = ()
    """Ids of the optional messages that the run was given, if its handler may return `Later`."""
    letters: tuple[DeadLetterRecord, ...] = ()


class Commit(Struct, frozen=True, gc=False):
    """A progress to write, with its new transition; `entry` is `None` if the write only records an intent."""

    snapshot: SagaProgress
    entry: Transition | None = None


def new_progress(service: str, saga: str, version: int) -> SagaProgress:
    """Return an empty progress for a saga that the service does not know yet. `version`: version of its initial
    state."""
    if version > 1:
        return SagaProgress(service=service, saga=saga, version=version, format=VERSIONED)
    return SagaProgress(service=service, saga=saga)


def open_intent(p: SagaProgress, context: WriteContext, intent: Intent) -> Commit:
    """Record an intent: a new one, or one with its next call. This adds no transition."""
    others = tuple(
        i for i in p.intents if not is_intent_of(i, intent.handler, intent.cause, undo=intent.kind == "undo")
    )
    return Commit(
        replace(
            p,
            intents=(*others, intent),
            published=p.n,
            started=p.started or context.message.started,
            principal=determine_principal(p, context.message),
            self_consumed_types=context.self_consumed_types,
        )
    )


def determine_principal(p: SagaProgress, message: Message) -> str | None:
    """Return the principal that began the saga: the one in the first message that carries the time of the saga's start.

    A later message cannot change it, even if that first message named no principal.
    """
    if p.principal is not None or p.started is not None or message.started is None:
        return p.principal
    return message.principal


def is_intent_of(intent: Intent, handler: str, cause: str, *, undo: bool) -> bool:
    """Return True if the intent belongs to this run, or to the abort that takes the run's place.

    A run and the compensation of a result can have the same cause, if the handler consumes its own event: `undo`
    distinguishes them.
    """
    return intent.handler == handler and intent.cause == cause and (intent.kind == "undo") == undo


def append_transition(
    p: SagaProgress, context: WriteContext, outcome: Outcome, handler: str, ended: TransitionDetails
) -> Commit:
    """Return the progress with one more transition. This is the last change before the write."""
    if len(p.inbox) > INBOX_MAX:
        p = replace(p, inbox=_trim_inbox(p, context))
    if p.segments and any(page.is_forgotten(certain_now_s(context.message, context.now_ms)) for page in p.segments):
        pages = tuple(
            page for page in p.segments if not page.is_forgotten(certain_now_s(context.message, context.now_ms))
        )
        p = replace(p, segments=pages, format=compute_format(pages, p.deadlines, p.suspended_runs, p.version))
    started, principal = p.started or context.message.started, determine_principal(p, context.message)
    message, before, position, wake = ended.message, context.before, context.position, None
    if context.roles.deadlines:
        # A worker may continue a run whose own message had no transition yet, only an intent.
        p = timers.touch_deadlines(p, context.roles, (context.message, message, *ended.events), context.now_ms)
    # In most sagas nothing waits for a time, and checking that is cheap.
    if p.deadlines or p.queue or p.compensating or p.suspended_runs or p.timer is not None:
        if not timers.is_clock_behind(context.message, context.now_ms):
            p = timers.limit_delays(p, context.roles, context.now_ms)
        p, wake = timers.set_timer(p, before, context.now_ms)
    entry = Transition(
        n=p.n,
        previous=p.hash or integrity.get_initial_hash(p.service, p.saga),
        time=context.time,
        outcome=outcome,
        handler=handler,
        message=message.id,
        type=message.type,
        source=message.source,
        cause="" if ended.cause == message.id else ended.cause,
        position=None if position is None else position[:3],
        log_id="" if position is None else position.log_id,
        reason=ended.reason,
        attempt=ended.attempt,
        failures=ended.failures,
        delta=ended.delta,
        version=p.version,
        changes=integrity.digest_changes(before, p, started, principal) if before is not None else {},
        # Made from a list, here and below: making a tuple from a generator takes half as long again.
        events=tuple([EmittedEvent(id=e.id, type=e.type, schema=e.schema, value=e.value) for e in ended.events]),
        calls=ended.calls,
        shown=ended.shown,
        letters=ended.letters,
        timer=wake,
        trace=message.trace,
    )
    raw = encode(entry)
    return Commit(
        replace(
            p,
            started=started,
            principal=principal,
            n=p.n + 1,
            published=p.n,
            transitions_published=context.transitions_published,
            hash=sha256(raw).hexdigest(),
            transitions=(*p.transitions, Raw(raw)),
            self_consumed_types=context.self_consumed_types,
        ),
        entry,
    )


def _trim_inbox(p: SagaProgress, context: WriteContext) -> dict[str, int]:
    """Return the inbox without entries older than the retention.

    Entries of messages that are still stored for another handler stay; otherwise those messages would later be taken
    for new ones.
    """
    oldest = context.forgotten_s
    if all(at >= oldest for at in p.inbox.values()):
        return p.inbox
    needed = {
        ids.inbox_entry(message.id, name)
        for message in iterate_messages(p)
        for name in context.roles.names.get(message.type, ())
    }
    return {key: at for key, at in p.inbox.items() if at >= oldest or key in needed}


def iterate_messages(p: SagaProgress) -> Iterator[Message]:
    """Yield every message that is stored in the progress, for whatever purpose."""
    yield from (pending.message for pending in (*p.queue, *p.waiting, *p.compensating, *p.deadlines))
    yield from (own.event for own in p.self_consumed)
    yield from (part for intent in p.intents for part in intent.parts)
    yield from (part for c in p.suspended_runs for part in c.parts)


def add_to_inbox(p: SagaProgress, context: WriteContext, handler: str, messages: Iterable[str]) -> dict[str, int]:
    """Return the inbox with entries of these messages for the handler."""
    inbox, at = dict(p.inbox), context.entered_s
    for message in messages:
        inbox[ids.inbox_entry(message, handler)] = at
    return inbox


def remove_messages(
    pending: tuple[PendingMessage, ...], handler: str, messages: Iterable[str]
) -> tuple[PendingMessage, ...]:
    """Return `pending` without these messages of this handler."""
    if not pending:
        return pending
    gone = set(messages)
    return tuple(k for k in pending if not (k.handler == handler and k.message.id in gone))


def ignore_message(p: SagaProgress, context: WriteContext, role: HandlerRole, message: Message, reason: str) -> Commit:
    """Record that the message is ignored, with the reason."""
    p = _finish_messages(p, context, role, [message.id])
    return append_transition(p, context, "ignored", role.name, TransitionDetails(message=message, reason=reason))


def reject_message(
    p: SagaProgress, context: WriteContext, role: HandlerRole, message: Message, reason: str, remedy: str
) -> Commit:
    """Record a dead letter that does not block the saga, because its message need not be handled."""
    letter = DeadLetterRecord(
        id=ids.dead_letter_id(p.service, p.saga, role.name, message.id, p.replays),
        kind="dead letter",
        handler=role.name,
        reason=reason,
        remedy=remedy,
        message=message,
        blame="data",
    )
    p = _finish_messages(p, context, role, [message.id])
    return append_transition(
        p, context, "dead", role.name, TransitionDetails(message=message, reason=reason, letters=(letter,))
    )


def keep_pending(p: SagaProgress, context: WriteContext, role: HandlerRole, message: Message, reason: str) -> Commit:
    """Record that the message is pending, with the reason."""
    before = find_order_number(p, role.name, message)
    pending = PendingMessage(
        handler=role.name, message=message, n=p.n if before is None else before, decides=role.decides
    )
    waiting = (*remove_messages(p.waiting, role.name, [message.id]), pending)
    p = replace(
        p,
        queue=remove_messages(p.queue, role.name, [message.id]),
        waiting=waiting if before is None else tuple(sorted(waiting, key=lambda k: k.n)),
    )
    return append_transition(p, context, "waiting", role.name, TransitionDetails(message=message, reason=reason))


def enqueue_message(
    p: SagaProgress, context: WriteContext, role: HandlerRole, message: Message, reason: str, undecodable: str | None
) -> Commit:
    """Record that the message is queued, in order, behind the run or dead letter that blocks the saga."""
    pending = PendingMessage(handler=role.name, message=message, n=p.n, undecodable=undecodable)
    p = replace(
        p,
        queue=(*remove_messages(p.queue, role.name, [message.id]), pending),
        waiting=remove_messages(p.waiting, role.name, [message.id]),
    )
    return append_transition(p, context, "queued", role.name, TransitionDetails(message=message, reason=reason))


def complete_run(p: SagaProgress, context: WriteContext, role: HandlerRole, ended: TransitionDetails) -> Commit:
    """Record the end of a handler's run: state, inbox, events and results in one transition."""
    parts, delta = ended.parts, ended.delta
    ids_of_ended = [m.id for m in (parts[:1] if role.many else parts)]
    ran = p.completed_runs
    if not role.many:
        ran += tuple(
            [
                CompletedRun(
                    handler=role.name,
                    parameter=i,
                    type=m.type,
                    schema=m.schema,
                    content=ids.content_digest(m.value),
                    message=m.id,
                )
                for i, m in enumerate(parts[: len(role.takes)])
            ]
        )
    p = replace(
        p,
        inbox=add_to_inbox(p, context, role.name, ids_of_ended),
        queue=p.queue and remove_messages(p.queue, role.name, ids_of_ended),
        waiting=p.waiting and remove_messages(p.waiting, role.name, ids_of_ended),
        intents=remove_intent(p, role, ended),
        completed_runs=ran,
        results=add_results(p, context, role, ended),
        state={**p.state, **delta} if delta else p.state,
    )
    if p.suspended_runs:
        p = remove_suspended_runs(p, role.name, ids_of_ended)
    return append_transition(apply_emitted_events(p, context.roles, ended.events), context, "handled", role.name, ended)


def remove_intent(p: SagaProgress, role: HandlerRole, ended: TransitionDetails) -> tuple[Intent, ...]:
    """Return the open intents without the one of this run."""
    if not p.intents:
        return ()
    return tuple(i for i in p.intents if not is_intent_of(i, role.name, ended.cause, undo=False))


def add_results(
    p: SagaProgress, context: WriteContext, role: HandlerRole, ended: TransitionDetails
) -> tuple[CompensableResult, ...]:
    """Return the saga's results and, after them, the events of this run that the handler's compensation can undo."""
    if role.undo is None:
        return p.results
    own, undo = tuple([e.id for e in ended.events if e.type in context.roles.by_type]), role.undo
    took = tuple([m for m in ended.parts if m.type in undo.took]) if undo.took else ()
    new = [
        CompensableResult(handler=role.name, cause=ended.cause, event=e, consumed=took, self_consumed_ids=own, n=p.n)
        for e in ended.events
        if e.type in undo.results
    ]
    return (*p.results, *new)


def remove_suspended_runs(p: SagaProgress, handler: str, messages: Iterable[str]) -> SagaProgress:
    """Return the progress without the suspended runs of this handler that were started by one of these messages."""
    gone = set(messages)
    later = tuple(c for c in p.suspended_runs if c.handler != handler or c.parts[0].id not in gone)
    return (
        p
        if later == p.suspended_runs
        else replace(p, suspended_runs=later, format=compute_format(p.segments, p.deadlines, later, p.version))
    )


def find_suspended_ids(p: SagaProgress, handler: str, messages: Iterable[str]) -> list[str]:
    """Return the ids of all messages of the handler's suspended runs that were started by one of these messages."""
    wanted = set(messages)
    return [m.id for c in p.suspended_runs if c.handler == handler and c.parts[0].id in wanted for m in c.parts]


def apply_emitted_events(p: SagaProgress, roles: HandlerRoles, events: Sequence[Message]) -> SagaProgress:
    """Return the progress with the effects of emitted events: new self-consumed events, the outcome, and compensations
    that begin."""
    if not p.self_consumed and roles.affecting.isdisjoint([e.type for e in events]):
        return p
    own = [o for o in p.self_consumed if any(True for _ in find_remaining_consumers(p, roles, o))]
    outcome, compensating = p.outcome, p.compensating
    for e in events:
        if e.type in roles.by_type:
            own.append(SelfConsumedEvent(event=e, n=p.n))
        if e.type in roles.outcomes:
            outcome = outcome or e.type
        if e.type in roles.undone_by:
            compensating += tuple([PendingMessage(handler=r.name, message=e, n=p.n) for r in roles.undone_by[e.type]])
    return replace(p, self_consumed=tuple(own) if own else (), outcome=outcome, compensating=compensating)


def reschedule_timer(p: SagaProgress, context: WriteContext) -> Commit:
    """Record a new timer, because the current one would fire too late or there is none."""
    reason = "a wake is due earlier than the one that was to come"
    return append_transition(
        replace(p, timer=None), context, "waiting", "", TransitionDetails(message=context.message, reason=reason)
    )


def record_deadline_event(p: SagaProgress, context: WriteContext, message: Message) -> Commit:
    """Record that the message opened or closed a deadline; no handler consumes it."""
    p = replace(p, inbox=add_to_inbox(p, context, DEADLINE, [message.id]))
    return append_transition(p, context, "noted", "", TransitionDetails(message=message))


def _finish_messages(
    p: SagaProgress, context: WriteContext, role: HandlerRole, messages: Sequence[str]
) -> SagaProgress:
    """Move these messages of this handler from the queue and the pending messages to the inbox."""
    if p.suspended_runs:
        messages = [*messages, *([] if role.many else find_suspended_ids(p, role.name, messages))]
        p = remove_suspended_runs(p, role.name, messages)
    return replace(
        p,
        inbox=add_to_inbox(p, context, role.name, messages),
        queue=remove_messages(p.queue, role.name, messages),
        waiting=remove_messages(p.waiting, role.name, messages),
    )


def find_remaining_consumers(p: SagaProgress, roles: HandlerRoles, own: SelfConsumedEvent) -> Iterator[HandlerRole]:
    """Yield the handlers that may still consume this self-consumed event."""
    for role in roles.by_type.get(own.event.type, ()):
        had = not own.is_for(role.name) or ids.inbox_entry(own.event.id, role.name) in p.inbox
        if not had and (role.many or not any(ran.handler == role.name for ran in p.completed_runs)):
            yield role


def close_inbox(p: SagaProgress, context: WriteContext, role: HandlerRole, outcome: Message) -> dict[str, int]:
    """Return the inbox after the compensation of `role` has ended: with entries of the outcome, and of the stored
    messages that the handler will never handle."""
    dropped = [k.message.id for k in (*p.queue, *p.waiting) if k.handler == role.name]
    dropped += [m.id for c in p.suspended_runs if c.handler == role.name for m in c.parts]
    return {
        **add_to_inbox(p, context, role.name, dropped),
        **add_to_inbox(p, context, compensation_name(role.name), [outcome.id]),
    }


# -------------------------------------------------------------------- suspended runs


CALLS_MAX = 64
"""Maximum number of calls from earlier turns that a suspended run lists: a job may have a hundred thousand turns."""


def suspend_run(
    p: SagaProgress, context: WriteContext, role: HandlerRole, ended: TransitionDetails, next_turn: SuspendedRun
) -> Commit:
    """Record that a run is suspended until a time or an event. The messages that it needs stay stored.

    `next_turn`: the suspended run, without the calls of its earlier turns.
    """
    needed = ended.parts[: len(role.takes)]
    gone = [m.id for m in (needed[:1] if role.many else needed)] + list(ended.shown)
    shared = _keep_shared_parts(p, role, needed)
    results = add_results(p, context, role, ended)
    calls: tuple[StepRecord, ...] = ()
    undo_with: tuple[AbortAction, ...] = ()
    if role.undo is not None and len(results) == len(
        p.results
    ):  # otherwise the compensation of a result covers all calls
        abort_actions = next_turn.undo_with
        earlier = [c for c in p.suspended_runs if c.handler == role.name and c.parts[0].id == needed[0].id]
        # Without arguments: the digests of a history count these calls, and an older toolkit would leave them out.
        here = [replace(call, arguments="") for call in find_uncovered_calls(ended.calls, abort_actions)]
        calls = keep_newest_calls((*[call for c in earlier if not abort_actions for call in c.calls], *here))
        undo_with = tuple([each for c in earlier for each in c.undo_with]) + tuple(
            [replace(e, after=0) for e in abort_actions]
        )
    p = replace(
        remove_suspended_runs(p, role.name, gone),
        inbox=add_to_inbox(p, context, role.name, ended.shown),
        queue=remove_messages(p.queue, role.name, [*gone, *[k.message.id for k in shared]]),
        waiting=tuple(sorted((*remove_messages(p.waiting, role.name, gone), *shared), key=lambda k: k.n)),
        intents=remove_intent(p, role, ended),
        results=results,
        state={**p.state, **ended.delta} if ended.delta else p.state,
    )
    later = (
        *p.suspended_runs,
        replace(next_turn, n=p.n, last_message=context.message.id, calls=calls, undo_with=undo_with),
    )
    p = replace(p, suspended_runs=later, format=compute_format(p.segments, p.deadlines, later, p.version))
    return append_transition(apply_emitted_events(p, context.roles, ended.events), context, "later", role.name, ended)


def _keep_shared_parts(p: SagaProgress, role: HandlerRole, parts: Sequence[Message]) -> tuple[PendingMessage, ...]:
    """Return the other events of a handler with `repeats` that are not pending yet, because they have just arrived or
    are at the head of the queue. Later runs need them, too, so they must not end with this run."""
    if not role.many:
        return ()
    pending = {k.message.id for k in p.waiting if k.handler == role.name}
    rest = [m for m in parts[1:] if m.id not in pending and m.source != p.service]
    numbers = [find_order_number(p, role.name, m) for m in rest]
    return tuple(
        PendingMessage(handler=role.name, message=m, n=p.n if n is None else n, decides=role.decides)
        for m, n in zip(rest, numbers, strict=True)
    )


def keep_newest_calls(calls: tuple[StepRecord, ...]) -> tuple[StepRecord, ...]:
    """Return the newest `CALLS_MAX` calls.

    If older ones are omitted, a call without a name comes first, and its number says how many they are. The transitions
    contain all calls.
    """
    counted = calls[0].number if calls and not calls[0].name else 0
    named = calls[1:] if counted else calls
    over = len(named) - CALLS_MAX
    if over <= 0:
        return calls
    return (StepRecord(kind="step", name="", number=counted + over, input=""), *named[over:])


def find_uncovered_calls(
    calls: tuple[StepRecord, ...], abort_actions: tuple[AbortAction, ...]
) -> tuple[StepRecord, ...]:
    """Return the calls of a turn that had an effect and that no abort action undoes, without their results."""
    return tuple(
        [
            replace(call, value=Raw(b"null"), claim="")
            for i, call in enumerate(calls)
            if _has_side_effect(call) and not is_covered(abort_actions, i)
        ]
    )


def _has_side_effect(call: StepRecord) -> bool:
    """Return True for a call that changed something."""
    return call.kind != "read" and call.answer is None


# -------------------------------------------------------------------- room


FREE = 4
"""Runs leave 1/`FREE` of the store's maximum document size free, for dead letters and queued messages."""
_GROWING = (
    "state", "inbox", "results", "self_consumed", "intents", "queue", "waiting", "compensating", "suspended_runs",
    "transitions",
)  # fmt: skip


def check_room(written: Commit, p: SagaProgress, content_bytes: int, bytes_max: int) -> None:
    """Raise `TooLarge` for a run that would leave too little room in the progress, and name the largest fields.

    `p`: the progress to be written, which has `content_bytes` bytes; `bytes_max`: the largest document that the store
    accepts.
    """
    if content_bytes <= bytes_max - bytes_max // FREE or not _is_written_by_handler(written):
        return
    raise TooLarge(
        f"the progress of saga {p.saga!r} in {p.service!r} would have {content_bytes} bytes, and the store takes "
        f"{bytes_max}, of which one part in {FREE} stays free: {_describe_largest(p)}"
    )


def _is_written_by_handler(written: Commit) -> bool:
    """Return True if a handler causes this write. A compensation may use the room that handlers leave free."""
    if written.entry is None:
        return bool(written.snapshot.intents) and written.snapshot.intents[-1].kind == "do"
    return written.entry.outcome in ("handled", "later")


def _describe_largest(p: SagaProgress) -> str:
    """Describe the fields that take the most room, as readable text."""
    sizes = sorted(((len(encode(getattr(p, name))), name) for name in _GROWING), reverse=True)
    return ", ".join(f"{name} {size} bytes" for size, name in sizes[:3])
