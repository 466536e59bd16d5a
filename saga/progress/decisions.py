"""Decide what happens to a message, and what is ready next: the decision table of the protocol, line by line.

The table is in docs/concepts/protocol.md. Pure functions.
"""

from collections.abc import Iterable, Iterator, Sequence

from saga.messages import Message
from saga.messaging.message_ids import is_removal
from saga.progress import ids, suspended_runs, timers
from saga.progress.actions import (
    Abort,
    AlreadyPending,
    AlreadyProcessed,
    BeginAbort,
    CloseHandler,
    Compensate,
    CompensationDecision,
    DelayCompensation,
    Enqueue,
    Ignore,
    KeepPending,
    MessageDecision,
    Now,
    Reject,
    RunHandler,
)
from saga.progress.document import (
    ABORT,
    CompensableResult,
    Intent,
    IntentKind,
    PendingMessage,
    RunKey,
    SagaProgress,
    SuspendedRun,
)
from saga.progress.handlers import HandlerRole, HandlerRoles, compensation_name
from saga.support.clock import LATEST_MS

HAD, LEFT = AlreadyProcessed(), AlreadyPending()
TOO_OLD = "older than the retention"
"""Beginning of a dead letter's reason: the service may have handled the message and forgotten it. Such a dead letter
does not block the saga."""
OTHER_CONTENT = "already handled with other content"
"""Beginning of a dead letter's reason: the handler has handled a message of this type with other content. Such a dead
letter does not block the saga."""
HANDLED_AS_NEW = "if it never was handled, have it handled as a new one: saga dead replay --older"


def decide(
    p: SagaProgress, role: HandlerRole, message: Message, *, now: Now | None = None, undecodable: str | None = None
) -> MessageDecision:
    """Decide what happens to a message for one handler, by the first applicable line of the decision table.

    Args:
        now: the time, for a message that has just arrived; `None` for a pending message, whose age does not matter.
        undecodable: why the handler cannot decode the message. Such a message does not wait for other events.
    """
    if p.inbox and ids.inbox_entry(message.id, role.name) in p.inbox:  # line 1
        return HAD
    if now is not None and (p.queue or p.waiting or p.suspended_runs) and is_pending(p, role.name, message):  # line 1a
        return LEFT
    begun = _resume_intent(p, role, message) if p.intents else None
    if begun is not None:  # line 2
        return begun
    ended = find_closing_reason(p, role)
    goes_on = suspended_runs.find_suspended_run(p, role.name, message.id) if p.suspended_runs else None
    if ended is not None:  # line 3
        awaits_abort = goes_on is not None and _awaits_abort(p, role)
        return Enqueue(role, message, ended) if awaits_abort else Ignore(role, message, ended)
    if goes_on is not None:
        return _decide_next_turn(p, role, goes_on)
    index = role.parameter_of(message.type)
    if index < 0 and undecodable is None:
        return _decide_optional(p, role, message)
    if index >= 0 and (p.completed_runs or p.waiting or p.self_consumed or p.suspended_runs):  # line 4
        repeated = _decide_repetition(p, role, index, message)
        if repeated is not None:
            return repeated
    if message.type in role.changes and not (role.many and index == 0) and is_removal(message.id):  # line 4a
        return Ignore(role, message, f"the document is gone, and {role.name} runs on one that is there")
    if p.started is None and message.started is None and undecodable is None:
        return KeepPending(role, message, "no message with the start of this saga has come yet")
    if role.many and index == 0 and now is not None and message.time < now.forgotten:
        return _reject_too_old(role, message)
    parts = (message,) if undecodable is not None or role.takes_one else collect_parts(p, role, message)
    if parts is None:  # line 5
        return KeepPending(role, message, f"for {describe_missing(p, role, message)}")
    if role.many and index == 0 and p.waiting and undecodable is None and is_other_message_first(p, role, message):
        return KeepPending(role, message, "earlier ones wait and go first")
    if is_blocked(p, role.name, message):  # line 6
        return Enqueue(role, message, explain_block(p, role.name), undecodable)
    return RunHandler(role, message, parts)  # line 7


def _resume_intent(p: SagaProgress, role: HandlerRole, message: Message) -> AlreadyPending | RunHandler | None:
    """Return the action that continues the open run of this message; `None` if it has none (line 2)."""
    if find_intent(p, role.name, message, ABORT) is not None:
        return LEFT
    intent = find_intent(p, role.name, message)
    if intent is None:
        return None
    return RunHandler(role, message, intent.parts, intent, suspended_runs.find_suspended_run(p, role.name, message.id))


def _decide_next_turn(p: SagaProgress, role: HandlerRole, goes_on: SuspendedRun) -> Enqueue | RunHandler:
    """Decide on the message that started a suspended run: continue the run, or queue the message if the saga is
    blocked."""
    message = goes_on.parts[0]
    if is_blocked(p, role.name, message):
        return Enqueue(role, message, explain_block(p, role.name))
    return RunHandler(role, message, suspended_runs.collect_run_parts(p, role, goes_on), goes_on=goes_on)


def _decide_optional(p: SagaProgress, role: HandlerRole, message: Message) -> Ignore | KeepPending:
    """Decide on a message for an optional parameter: keep it for the handler's next run, or ignore it if the handler
    has run."""
    if _has_run(p, role.name):
        return Ignore(role, message, f"{role.name} has run in this saga already")
    return KeepPending(role, message, f"until {role.name} runs, and is shown it")


def _reject_too_old(role: HandlerRole, message: Message) -> Reject:
    return Reject(
        role,
        message,
        f"{TOO_OLD}: it is of {message.time}, and may have been handled then",
        "look why it comes so late, or whether this worker's clock is ahead; a longer retention= would know it; "
        + HANDLED_AS_NEW,
    )


def find_closing_reason(p: SagaProgress, role: HandlerRole) -> str | None:
    """Return why the handler never runs again in this saga (line 3); `None` if it may run."""
    if role.name in p.closed:
        return "an event has closed this deadline" if role.is_deadline else "its compensation has closed this handler"
    if role.undo is not None and not role.undo.outcomes.isdisjoint(_find_failures(p, role)):
        return (
            f"the saga has failed, so {role.name} would never be undone"  # processed by a version without this handler
        )
    if role.decides and p.outcome is not None:
        return f"the saga has ended here with {p.outcome}"
    return None


def _awaits_abort(p: SagaProgress, role: HandlerRole) -> bool:
    """Return True if the handler's compensation still has to undo calls of its suspended runs. Until then none of these
    runs is ignored, even though the saga has failed, because the compensation finds the calls in the suspended run."""
    return role.undo is not None and role.name not in p.closed and suspended_runs.has_uncovered_calls(p, role.name)


def _find_failures(p: SagaProgress, role: HandlerRole) -> Iterable[str | None]:
    """Return the failure outcomes, received or emitted, after which the handler must not run.

    Outcomes that still wait for compensations count, too, unless the handler's own compensation waits.
    """
    if not p.compensating or any(k.handler == role.name for k in p.compensating):
        return (*p.failed, p.outcome)
    return (*p.failed, p.outcome, *(k.message.type for k in p.compensating))


def is_pending(p: SagaProgress, handler: str, message: Message) -> bool:
    """Return True if the message is queued or pending for this handler, or belongs to a suspended run of it."""
    if any(k.handler == handler and k.message.id == message.id for k in (*p.queue, *p.waiting)):
        return True
    return bool(p.suspended_runs) and suspended_runs.find_suspended_run(p, handler, message.id) is not None


def find_intent(p: SagaProgress, handler: str, message: Message, kind: IntentKind = "do") -> Intent | None:
    """Return the open intent of `handler` to which `message` belongs; `None` if there is none of this kind."""
    for intent in p.intents:
        if intent.kind == kind and intent.handler == handler and any(m.id == message.id for m in intent.parts):
            return intent
    return None


def find_run_intent(p: SagaProgress, run: RunKey) -> Intent | None:
    """Return the open intent of a run; `None` if the run has not begun."""
    return next((intent for intent in p.intents if (intent.kind, intent.handler, intent.cause) == run), None)


def _decide_repetition(p: SagaProgress, role: HandlerRole, index: int, message: Message) -> Ignore | Reject | None:
    """Decide on a message for a parameter for which another message was handled or stored before; `None` if this is the
    first one (line 4)."""
    if role.many and index == 0:
        return None
    earlier = [
        (r.type, r.schema, r.content)
        for r in p.completed_runs
        if r.handler == role.name and r.parameter == index and r.message != message.id
    ]
    if p.waiting or p.self_consumed or p.suspended_runs:
        earlier += [
            (m.type, m.schema, ids.content_digest(m.value)) for m in find_earlier_parts(p, role, index, message)
        ]
    if earlier:
        mine = ids.content_digest(message.value)
        for type_, schema, content in earlier:
            # Values of two schema versions cannot be compared by bytes: such a repetition counts as equal.
            is_another = type_ == message.type and schema == message.schema and content != mine
            if is_another and type_ not in role.changes:
                return Reject(
                    role,
                    message,
                    f"{OTHER_CONTENT}: {role.name} has taken another {message.type} in this saga already",
                    "look why two differ; the first one counts",
                )
        return Ignore(role, message, f"{role.name} has taken a message for this already")
    if not role.many and _has_run(p, role.name):
        return Ignore(role, message, f"{role.name} has run in this saga already")
    return None


def is_blocked(p: SagaProgress, handler: str, message: Message) -> bool:
    """Return True if the handler must not begin a run for this message now (line 6).

    That is so if a dead letter blocks the saga, another run is open, what the handler did is being compensated, or an
    earlier message is in the queue.
    """
    if p.intents or any(k.dead or k.handler == handler for k in p.compensating):
        return True
    if not p.queue:
        return False
    head = p.queue[0]
    return head.dead is not None or not (head.handler == handler and head.message.id == message.id)


def explain_block(p: SagaProgress, handler: str) -> str:
    """Describe why a run is blocked, as readable text."""
    dead = next((k for k in (*p.queue, *p.compensating) if k.dead), None)
    if dead is not None:
        return f"the saga is quarantined: {dead.message.type} for {dead.handler} is a dead letter"
    if p.queue and p.queue[0].due_ms:
        return f"{p.queue[0].handler} has failed and is tried again"
    if p.intents:
        return f"{p.intents[0].handler} has begun and is not at its end"
    undoing = next((k for k in p.compensating if k.handler == handler), None)
    if undoing is not None:
        return f"what {handler} did is undone because of {undoing.message.type}"
    return "others are queued before it"


def find_compensations(p: SagaProgress, roles: HandlerRoles, outcome: str) -> Sequence[HandlerRole]:
    """Return the handlers that a failure outcome undoes, the one with the newest result first."""
    undone = roles.undone_by.get(outcome)
    if not undone:
        return ()
    latest = {result.handler: i for i, result in enumerate(p.results)}
    return sorted(undone, key=lambda role: -latest.get(role.name, -1))


def find_next_ready(
    p: SagaProgress, roles: HandlerRoles, now_ms: int, current: str | None = None, handled_ms: int = LATEST_MS
) -> Ignore | Reject | KeepPending | RunHandler | CompensationDecision | None:
    """Return the next action that is ready without a new message; `None` if there is none.

    Work is considered in this order: open runs whose message is stored, compensations whose handler has no open run,
    the head of the queue, complete fan-ins while the queue is empty, suspended runs, deadlines. A parked run is not
    ready before its due time.

    Args:
        current: id of the message that is being processed; `None` for any.
        handled_ms: time up to which the log has been handled.
    """
    if p.intents:
        for intent in p.intents:
            run = _find_resumable(p, roles, intent, now_ms)
            if run is not None:
                return run
    if p.compensating:
        latest = {result.handler: i for i, result in enumerate(p.results)}
        for k in sorted(p.compensating, key=lambda k: -latest.get(k.handler, -1)):
            is_due = k.dead is None and k.due_ms <= now_ms
            step = decide_compensation(p, roles.handlers[k.handler], k.message) if is_due else None
            if step is not None and not isinstance(step, DelayCompensation):
                return step
    if p.queue:
        k = p.queue[0]
        if k.dead is None and k.due_ms <= now_ms:
            decision = decide(p, roles.handlers[k.handler], k.message, undecodable=k.undecodable)
            if not isinstance(decision, (Enqueue, AlreadyPending, AlreadyProcessed)):
                return decision
        ready = None
    else:
        ready = _find_complete_join(p, roles) if p.self_consumed or p.waiting else None
    if ready is None and p.suspended_runs:
        ready = _find_ready_suspended_run(p, roles, now_ms, current)
    if ready is None and p.waiting and roles.lookers:
        ready = _find_unused_optional(p, roles)
    return _find_ready_deadline(p, roles, now_ms, handled_ms) if ready is None and p.deadlines else ready


def _find_ready_suspended_run(
    p: SagaProgress, roles: HandlerRoles, now_ms: int, current: str | None
) -> Ignore | RunHandler | None:
    """Return an action that continues the first ready suspended run, or one that ignores a run which will never
    continue."""
    for c in p.suspended_runs:
        role = roles.handlers[c.handler]
        ended = find_closing_reason(p, role)
        if ended is not None and find_intent(p, c.handler, c.parts[0]) is None and not _awaits_abort(p, role):
            return Ignore(role, c.parts[0], ended)
    for role, c in suspended_runs.find_ready_runs(p, roles, now_ms, current):
        if find_closing_reason(p, role) is not None and find_intent(p, c.handler, c.parts[0]) is None:
            continue  # its compensation aborts it
        if not p.queue and not is_blocked(p, role.name, c.parts[0]):
            return RunHandler(role, c.parts[0], suspended_runs.collect_run_parts(p, role, c), goes_on=c)
    return None


def _find_unused_optional(p: SagaProgress, roles: HandlerRoles) -> Ignore | None:
    """Return an action that ignores an optional message, because its handler will not run again."""
    for role in roles.lookers:
        for k in p.waiting:
            if k.handler == role.name and role.may_do_without(k.message.type):
                decision = decide(p, role, k.message)
                if isinstance(decision, Ignore):
                    return decision
    return None


def _find_ready_deadline(
    p: SagaProgress, roles: HandlerRoles, now_ms: int, handled_ms: int
) -> Ignore | RunHandler | None:
    """Return an action that runs the first due deadline, or one that ignores a deadline which will never run."""
    for role, message in timers.find_due_deadlines(p, roles, now_ms, handled_ms):
        ended = find_closing_reason(p, role)
        if ended is not None:
            return Ignore(role, message, ended)
        if timers.may_deadline_run(p, roles):
            return RunHandler(role, message, (message,))
    return None


def _find_resumable(p: SagaProgress, roles: HandlerRoles, intent: Intent, now_ms: int) -> RunHandler | None:
    """Return the action that continues an open run which no redelivery will finish, because its message is stored or is
    a self-consumed event."""
    if intent.kind != "do":
        return None
    parts = {m.id for m in intent.parts}
    role = roles.handlers[intent.handler]
    if role.is_deadline:
        opened = next((k for k in p.deadlines if k.handler == role.name), None)
        if opened is not None:
            return RunHandler(role, opened.message, intent.parts, intent) if opened.due_ms <= now_ms else None
    goes_on = suspended_runs.find_suspended_run(p, intent.handler, intent.message.id) if p.suspended_runs else None
    queued = next((k for k in p.queue if k.handler == intent.handler and k.message.id in parts), None)
    if queued is not None:
        if queued.dead is not None or queued.due_ms > now_ms:
            return None
        return RunHandler(role, queued.message, intent.parts, intent, goes_on)
    if goes_on is not None:
        is_parked = goes_on.attempts and goes_on.due_ms > now_ms
        return None if is_parked else RunHandler(role, goes_on.parts[0], intent.parts, intent, goes_on)
    waits = any(k.handler == intent.handler and k.message.id in parts for k in p.waiting)
    if waits or intent.message.source == p.service:
        return RunHandler(roles.handlers[intent.handler], intent.message, intent.parts, intent)
    return None


def _find_complete_join(p: SagaProgress, roles: HandlerRoles) -> Ignore | Reject | RunHandler | None:
    """Return the action for the fan-in that was completed first, with the message that completed it."""
    found: list[tuple[int, HandlerRole, Message]] = []
    waiting_alone = {k.handler for k in p.waiting} if p.started is not None else set()
    types = {*[k.message.type for k in p.waiting], *[own.event.type for own in p.self_consumed]}
    for role in roles.handlers.values():
        if any(map(types.isdisjoint, role.takes)):  # usually a part is missing, and checking that is cheap
            continue
        if role.name not in roles.ready_from_kept and role.name not in waiting_alone:
            continue
        if not role.many and (_has_run(p, role.name) or any(c.handler == role.name for c in p.suspended_runs)):
            continue
        parts = [next(find_parts(p, role, index), None) for index in range(len(role.takes))]
        there = [part for part in parts if part is not None]
        if len(there) == len(parts):
            _, last = there[0] if role.many else max(there, key=lambda part: part[0])
            found.append((max(n for n, _ in there), role, last))
    for _, role, message in sorted(found, key=lambda f: f[0]):
        decision = decide(p, role, message)
        if not isinstance(decision, (Enqueue, AlreadyPending, KeepPending, AlreadyProcessed)):
            return decision
    return None


def _has_run(p: SagaProgress, handler: str) -> bool:
    return any(r.handler == handler for r in p.completed_runs)


def decide_compensation(p: SagaProgress, role: HandlerRole, outcome: Message) -> CompensationDecision:
    """Decide the next step of a handler's compensation after a failure outcome."""
    if p.started is None and outcome.started is None:
        return DelayCompensation(role, outcome, known=False)
    originals = [i for i in p.intents if i.handler == role.name and i.kind == "do"]
    if any(not is_dead_letter(p, i) for i in originals):
        return DelayCompensation(role, outcome, known=True)
    if any(result.handler == role.name for result in p.results):  # first: the end of an abort closes the handler
        return Compensate(role, outcome, find_newest_result(p, role.name))
    abort_intent = next((i for i in p.intents if i.handler == role.name and i.kind == ABORT), None)
    if abort_intent is not None:
        return Abort(role, outcome, abort_intent)
    unfinished = originals or suspended_runs.has_uncovered_calls(p, role.name)
    return BeginAbort(role, outcome) if unfinished else CloseHandler(role, outcome)


def find_newest_result(p: SagaProgress, handler: str) -> CompensableResult:
    """Return the handler's newest result, which is undone next."""
    return next(result for result in reversed(p.results) if result.handler == handler)


def is_dead_letter(p: SagaProgress, intent: Intent) -> bool:
    """Return True if the message of an open intent is a dead letter."""
    parts = {m.id for m in intent.parts}
    return any(k.dead and k.handler == intent.handler and k.message.id in parts for k in p.queue)


def is_message_known(p: SagaProgress, roles: HandlerRoles, message: Message) -> bool:
    """Return True if the message is in the inbox or stored in the progress."""
    if not p.n:
        return False
    if not p.inbox.keys().isdisjoint([ids.inbox_entry(message.id, name) for name in roles.names.get(message.type, ())]):
        return True
    pending = p.queue + p.waiting + p.compensating + p.deadlines
    if pending and message.id in [k.message.id for k in pending]:
        return True
    return bool(p.suspended_runs) and message.id in [m.id for c in p.suspended_runs for m in c.parts]


def is_compensated(p: SagaProgress, role: HandlerRole, message: Message) -> bool:
    """Return True if the compensation of `role` has ended for this outcome."""
    return ids.inbox_entry(message.id, compensation_name(role.name)) in p.inbox


def find_pending_compensation(p: SagaProgress, handler: str, message: Message) -> PendingMessage | None:
    """Return the stored failure outcome that waits for the compensation of `handler`."""
    return next((k for k in p.compensating if k.handler == handler and k.message.id == message.id), None)


# -------------------------------------------------------------------- parts


def find_parts(p: SagaProgress, role: HandlerRole, index: int) -> Iterator[tuple[int, Message]]:
    """Return the available events for a parameter, each with the number of the transition that stored it."""
    types = role.takes[index]
    for k in p.waiting:
        if k.handler == role.name and k.message.type in types:
            yield k.n, k.message
    if not p.self_consumed:
        return
    taken = suspended_runs.find_consumed_ids(p, role) if p.suspended_runs else ()
    for own in p.self_consumed:
        event = own.event
        if event.type not in types or not own.is_for(role.name) or event.id in taken:
            continue
        if ids.inbox_entry(event.id, role.name) not in p.inbox:
            yield own.n, event


def find_earlier_parts(p: SagaProgress, role: HandlerRole, index: int, message: Message) -> Iterator[Message]:
    """Return the available events for a parameter that were stored before `message`; all if `message` itself is not
    stored."""
    for c in p.suspended_runs:
        if c.handler == role.name and not (role.many and index == 0):
            yield c.parts[index]
    for _, part in sorted(find_parts(p, role, index), key=lambda there: there[0]):
        if part.id == message.id:
            return
        yield part


def collect_parts(p: SagaProgress, role: HandlerRole, message: Message) -> tuple[Message, ...] | None:
    """Return all events of the run that `message` belongs to; `None` if a required one is missing.

    They are in the order of the parameters, optional ones last.
    """
    parts = []
    for index, types in enumerate(role.takes):
        if message.type in types:
            parts.append(message)
            continue
        part = next(find_parts(p, role, index), None)
        if part is None:
            return None
        parts.append(part[1])
    return (*parts, *suspended_runs.find_optional_messages(p, role))


def describe_missing(p: SagaProgress, role: HandlerRole, message: Message) -> str:
    """Describe which event types are still missing, as readable text."""
    gaps = [
        " or ".join(sorted(types))
        for index, types in enumerate(role.takes)
        if message.type not in types and next(find_parts(p, role, index), None) is None
    ]
    return ", ".join(gaps)


def find_order_number(p: SagaProgress, handler: str, message: Message) -> int | None:
    """Return the number of the transition that first stored a message for a handler; `None` if it is neither queued nor
    pending."""
    numbers = (k.n for k in (*p.queue, *p.waiting) if k.handler == handler and k.message.id == message.id)
    return next(numbers, None)


def is_other_message_first(p: SagaProgress, role: HandlerRole, message: Message) -> bool:
    """Return True if a handler with `repeats` has to handle an earlier pending message first.

    The events that the earlier message needs may have just arrived at another worker. If the earlier message has
    failed, this one waits, too.
    """
    first = next((k for k in p.waiting if k.handler == role.name and k.message.type in role.takes[0]), None)
    if first is None or first.message.id == message.id:
        return False
    mine = find_order_number(p, role.name, message)
    return mine is None or mine > first.n
