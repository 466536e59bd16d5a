"""Checks of one service's progress of a saga, alone or together with the log. Both the exhaustive exploration and the
simulation use them.

Each check returns a description of the first problem, or `None` if there is none.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from saga.progress import ids, suspended_runs
from saga.progress.decisions import find_next_ready
from saga.progress.document import Intent, PendingMessage, SagaProgress, StepRecord, SuspendedRun, Transition
from saga.progress.handlers import HandlerRoles, compensation_name
from saga.testing.invariants import evidence

ENDS = ("dropped", "replayed", "discarded", "resolved")
"""Kinds of records on `<service>.dead` that report that a dead letter is settled. The id of such a record ends with its
kind.
"""
TURN = re.compile(r"~\d+$")
"""Suffix of the cause of a suspended run's later turns."""
AT_LAST_MS = 1 << 62
"""A time at which all timed work is due."""


def find_problem(roles: HandlerRoles, p: SagaProgress, entries: Sequence[Transition]) -> str | None:
    """Describe the first problem in a version of a progress that can be found without other evidence.

    `entries`: the decoded transitions of the version.
    """
    return (
        evidence.find_broken_chain_in_version(p, entries)
        or find_double_record(roles, entries)
        or find_run_behind_dead_letter(roles, entries)
        or find_run_of_closed_deadline(roles, entries)
        or (
            None if p.first else find_wrong_compensation(roles, entries)
        )  # the transitions that were compensated may be archived
    )


def list_recorded_ids(entries: Sequence[Transition]) -> list[str]:
    """Return the ids of all events and dead letters that the transitions publish, in order."""
    return [i for t in entries for i in (*(e.id for e in t.events), *(letter.id for letter in t.letters))]


def list_causes(entry: Transition) -> list[str]:
    """Return the ids of all messages that a handler ran on. They include `shown`: messages that the handler received
    although they did not cause its run.
    """
    return [*TURN.sub("", entry.cause or entry.message).split("+"), *entry.shown]


def find_double_record(roles: HandlerRoles, entries: Sequence[Transition]) -> str | None:
    """Check that each handler ran once (with `repeats`: once for each cause), that each published id is recorded once,
    and that there is at most one outcome.
    """
    ids_ = list_recorded_ids(entries)
    if len(set(ids_)) != len(ids_):
        return f"ONE ID TWICE among what is recorded: {ids_}"
    outcomes = [e.type for t in entries for e in t.events if e.type in roles.outcomes]
    if len(outcomes) > 1:
        return f"TWO OUTCOMES {outcomes}"
    handled = [(t.handler, t.cause or t.message) for t in entries if t.ran]
    many = {name for name, role in roles.handlers.items() if role.many}
    known = roles.handlers.keys() - many  # a handler that only an earlier release had is unknown
    once = [t.handler for t in entries if t.outcome == "handled" and t.handler in known]
    if len(set(once)) != len(once):
        return f"HANDLER TWICE {next(name for name in once if once.count(name) > 1)}"
    if len(set(handled)) != len(handled):
        return f"RECORDED TWICE {handled}"
    shown = [(t.handler, message) for t in entries for message in t.shown]
    if len(set(shown)) != len(shown):
        return f"SHOWN TWICE {shown}"
    return None


def find_wrong_compensation(roles: HandlerRoles, entries: Sequence[Transition]) -> str | None:
    """Check that each result is compensated once, after it was recorded, and that results of one handler are
    compensated newest first. Also check that no handler runs on a compensated event, or after its own compensation.
    """
    results: set[str] = set()
    gone: set[str] = set()
    suspended: set[tuple[str, str]] = set()
    undoable: dict[str, list[str]] = {}
    for t in entries:
        if t.ran:
            role = roles.handlers.get(t.handler)
            undo = None if role is None else role.undo
            results.update(e.id for e in t.events)
            if undo is not None:
                undoable.setdefault(undo.name, []).extend(e.id for e in t.events if e.type in undo.results)
            run = t.handler, TURN.sub("", t.cause or t.message)
            parts = t.shown if run in suspended else list_causes(t)  # a run that began before an undo may finish
            if gone.intersection(parts) and not t.calls:
                return f"RAN ON A WITHDRAWN PART {t.handler} on {t.cause or t.message}"
            if t.outcome == "later":
                suspended.add(run)
        elif t.outcome == "compensated" and t.cause:
            if t.cause in gone:
                return f"UNDONE TWICE {t.cause} by {t.handler}"
            if t.cause not in results:
                return f"UNDONE WHAT NEVER WAS {t.cause} by {t.handler}"
            newest = undoable[t.handler].pop() if undoable.get(t.handler) else t.cause
            if t.cause != newest:
                return f"UNDONE OUT OF ORDER {t.cause} by {t.handler}, and {newest} is newer"
            gone.add(t.cause)
    return (
        _find_run_after_compensation(roles, entries)
        if gone or any(t.outcome == "compensated" for t in entries)
        else None
    )


def _find_run_after_compensation(roles: HandlerRoles, entries: Sequence[Transition]) -> str | None:
    for role in roles.handlers.values():
        if role.undo is None:
            continue
        undone = [t.n for t in entries if t.outcome == "compensated" and t.handler == role.undo.name]
        ran = [t.n for t in entries if t.ran and t.handler == role.name]
        if undone and ran and ran[-1] > undone[-1]:
            return f"RAN WHEN CLOSED {role.name}, in transition {ran[-1]} after {undone[-1]}"
    return None


def find_run_behind_dead_letter(roles: HandlerRoles, entries: Sequence[Transition]) -> str | None:
    """Check that no later message of the saga is handled while a dead letter blocks it. Only compensations may run."""
    undoing = {role.undo.name for role in roles.handlers.values() if role.undo is not None}
    dead: dict[str, str] = {}
    for t in entries:
        # A run that began before another handler's compensation became dead is allowed to finish.
        if t.ran and (set(dead.values()) - undoing or (dead and not t.calls)):
            return f"RAN BEHIND A DEAD LETTER {t.handler} in transition {t.n}, behind {' and '.join(dead)}"
        for letter in t.letters:
            if letter.kind == "dead letter" and letter.attempts:  # a dead letter without an attempt blocks nothing
                dead[letter.id] = letter.handler
            elif letter.kind in ENDS:
                dead.pop(letter.id.removesuffix(f"-{letter.kind}"), None)
    return None


def find_run_of_closed_deadline(roles: HandlerRoles, entries: Sequence[Transition]) -> str | None:
    """Check that no deadline handler begins after the service received or emitted an event that closes it, such as an
    outcome.
    """
    closed: set[str] = set()
    for t in entries:
        if t.ran and t.handler in closed and not t.calls:  # a run with calls may have begun before the event
            return f"RAN THOUGH CLOSED {t.handler} in transition {t.n}"
        for type_ in (t.type, *(e.type for e in t.events)):
            closed |= {role.name for role in roles.closing.get(type_, ())}
    return None


def find_stranded(p: SagaProgress, roles: HandlerRoles) -> str | None:
    """Check that nothing is left to do at the end: no run is begun, queued, suspended or due for compensation unless a
    dead letter blocks it, and nothing is ready to run.

    While the start of a saga is unknown, its failure outcome and the messages queued behind it may stay pending.
    """
    dead = p.is_quarantined
    unknown = p.started is None and bool(p.compensating)
    if not dead and (((p.queue or p.compensating or p.deadlines or p.suspended_runs) and not unknown) or p.intents):
        left: Mapping[str, tuple[Intent | PendingMessage | SuspendedRun, ...]]
        left = {"begun": p.intents, "queued": p.queue, "to be undone": p.compensating, "open": p.deadlines}
        left = {**left, "going on": p.suspended_runs}
        unfinished = (f"{what} ({', '.join(item.handler for item in items)})" for what, items in left.items() if items)
        return f"STRANDED {', '.join(unfinished)}"
    ready = find_next_ready(p, roles, AT_LAST_MS)
    return f"READY AND NOT DONE {ready}" if ready is not None else None


def find_unaccounted_handler(p: SagaProgress, roles: HandlerRoles, type_: str, message: str) -> str | None:
    """Return the name of a handler that should have processed a message although the progress shows no trace of that;
    `None` if there is none. A compensation is reported by the name of the handler that it undoes.
    """
    for role in roles.by_type.get(type_, ()):
        if (
            ids.inbox_entry(message, role.name) not in p.inbox
            and not any(k.handler == role.name and k.message.id == message for k in (*p.queue, *p.waiting))
            and suspended_runs.find_suspended_run(p, role.name, message) is None
        ):
            return role.name
    for role in roles.undone_by.get(type_, ()):
        if ids.inbox_entry(message, compensation_name(role.name)) not in p.inbox and not any(
            k.handler == role.name and k.message.id == message for k in p.compensating
        ):
            return role.name
    return None


def find_wrong_log_order(
    roles: HandlerRoles, entries: Sequence[Transition], places: Mapping[str, int], *, apart: bool = False
) -> str | None:
    """Check that handlers ran on messages in the order of a log.

    By default, all handlers of a single event are checked together. `apart`: True to check each of them separately.
    Handlers of several events with `repeats` are always checked separately, because their messages wait for each other.
    `places`: place of each message in one log.
    """
    own = {
        e.id for t in entries for e in t.events
    }  # self-consumed events: handled when they are recorded, not when they are read
    types = {t.message: t.type for t in entries}  # every cause of a handler is the message of some transition
    seen: dict[str, list[str]] = {}
    for t in (t for t in entries if t.ran):
        role = roles.handlers.get(t.handler)
        if role is None or role.is_deadline or TURN.search(t.cause):  # these run at their own time
            continue
        if len(role.takes) == 1:
            seen.setdefault(t.handler if apart else "", []).append(t.message)
        elif role.many:  # the order of its other messages does not matter
            seen.setdefault(t.handler, []).extend(
                cause for cause in list_causes(t) if types.get(cause) in role.takes[0]
            )
    for messages in seen.values():
        there = [message for message in messages if message in places and message not in own]
        order = [places[message] for message in there]
        if order != sorted(order):
            return f"OUT OF LOG ORDER {there}"
    return None


def find_wrong_publish_order(order: Sequence[str], published: Iterable[str]) -> str | None:
    """Check that every published event or dead letter is recorded, and that their first publications have the order of
    the records.
    """
    published = tuple(published)
    if published == tuple(order[: len(published)]):  # fast path: the exploration checks every state
        return None
    places = {id_: place for place, id_ in enumerate(order)}
    strange = [id_ for id_ in published if id_ not in places]
    if strange:
        return f"PUBLISHED BUT NOT RECORDED {strange}"
    came = [places[id_] for id_ in published]
    return f"ORDER: published {published}, recorded {order}" if came != sorted(came) else None


def list_updates(
    service: str, saga: str, entries: Sequence[Transition]
) -> Iterator[tuple[Transition, StepRecord, str]]:
    """Yield each document update that the transitions record as made or rejected, with its transition and the id of its
    marker.
    """
    for t in entries:
        for call in t.calls:
            if call.kind == "update" and t.outcome != "dead":
                cause = t.cause or t.message
                yield t, call, ids.update_id(service, saga, t.handler, cause, call.name, call.number)
