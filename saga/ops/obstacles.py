"""Find what keeps a saga from finishing. Pure functions.

Everything that may hold up a saga is an `Obstacle`. One obstacle can explain others: if a service is down, a handler
that waits for one of its events needs no explanation of its own. So the obstacles are sorted, and those that explain
others come first. `KINDS` defines this order.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeAlias

from saga.choreography.manifest import DeclaredReaction, Manifest
from saga.errors import BreakerOpen, NewerHandler
from saga.messaging.controls import active_entries, describe_entry, describe_switch, find_pause
from saga.ops.histories import ParkedRunStatus, can_never_run, compute_status
from saga.ops.saga_situation import Happening, SagaRun, SagaSituation, list_outcomes, stored_name
from saga.progress.document import Intent, PendingMessage, SagaProgress, SuspendedRun
from saga.progress.timers import find_timed_runs
from saga.support.clock import LATEST_MS, from_iso, iso
from saga.support.printable import count_noun

Kind: TypeAlias = Literal[
    "dead_letter", "undeclared", "failing", "compensation_failing", "missing_schema", "missing_release", "paused",
    "breaker", "limited", "retrying", "down", "not_seen", "lagging", "working", "no_start", "overdue",
    "deadline_behind_log", "suspended", "missing_event", "deadline", "not_known",
    "no_event",
]  # fmt: skip
KINDS: Final[Mapping[Kind, str]] = {
    "dead_letter": "a dead letter blocks it until an operator decides",
    "undeclared": "the running release does not declare a handler that the progress needs",
    "failing": "a run is parked because the code of the service itself fails",
    "compensation_failing": "a compensation fails again and again",
    "missing_schema": "the schema of a message is not deployed",
    "missing_release": "a newer release began the run",
    "paused": "an operator has paused the handler or the service",
    "breaker": "the circuit breaker of a resource is open",
    "limited": "a limit postpones the run",
    "retrying": "a run has failed and is parked until its next attempt",
    "down": "no worker of the service runs",
    "not_seen": "the service has read past an event and does not know it",
    "deadline_behind_log": "a deadline is due, and the log is not handled up to its time",
    "lagging": "the service has not handled an event yet",
    "working": "a run has begun, or is ready",
    "no_start": "no message with the start of the saga has arrived",
    "overdue": "the time of a run has passed and nothing has happened",
    "suspended": "a run continues at a time or with an event",
    "missing_event": "an event has to come from outside of the services",
    "deadline": "a deadline is open and not due",
    "not_known": "the store of the service is not read here, or not readable, so it is unknown what the service did",
    "no_event": "everything has run, and no event came of it",
}
"""The kinds of obstacles with their descriptions. Kinds that explain others come first."""

OVERDUE_MS = 10_000
"""Time in milliseconds after its due time from which work counts as overdue."""
NEEDS_WORKER: Final[frozenset[Kind]] = frozenset(
    (
        "failing", "compensation_failing", "missing_schema", "missing_release", "paused", "breaker", "limited",
        "retrying", "working", "overdue", "deadline_behind_log", "suspended", "deadline",
    )
)  # fmt: skip
"""Kinds of obstacles that only a running worker of the service can end."""
SIGNED = "--who NAME --why REASON"


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Something that keeps a saga from finishing."""

    kind: Kind
    service: str
    """The service that has to act; empty if an event from outside the services is missing."""
    handler: str
    type: str
    """Type of the message that the handler is to handle; empty if there is none."""
    awaited: tuple[str, ...]
    """Event types. The saga waits for an event of any one of them. Empty if the handler emits no event."""
    what: str
    """What holds the saga up, as the second part of a sentence."""
    ends: str
    """What ends the obstacle, in one or more sentences."""
    since: str | None = None
    until: str | None = None
    """Time at which the saga continues by itself; `None` if it does not."""


def join_types(types: Iterable[str]) -> str:
    """Join alternative event types to a text for people."""
    return " or ".join(types) or "an event"


def find_obstacles(situation: SagaSituation) -> list[Obstacle]:
    """Return everything that keeps the saga from finishing. Obstacles that explain others come first."""
    found: list[Obstacle] = []
    for service, p in situation.progresses.items():
        here = _Service(situation, service, p)
        for find in (
            _find_undeclared, _find_dead, _find_parked, _find_begun, _find_unstarted, _find_suspended, _find_deadlines
        ):  # fmt: skip
            found += find(here)
    found += _find_unreadable(situation)
    found += _find_reported(situation)
    explained = {(each.service, each.handler) for each in found}
    found += [each for each in _find_undelivered(situation) if (each.service, each.handler) not in explained]
    found = [_consider_workers(situation, each) for each in found]
    found += _find_missing(situation, found)
    order = list(KINDS)
    return sorted(found, key=lambda each: (order.index(each.kind), each.since or "~", each.service, each.handler))


class _Service(NamedTuple):
    """The saga's progress in one service, together with everything else that is known about the saga."""

    situation: SagaSituation
    name: str
    p: SagaProgress

    def emitted_by(self, handler: str, *, undo: bool = False) -> tuple[str, ...]:
        """Return the types of events that a handler may emit. `undo`: those of its compensation instead."""
        find = self.situation.find_compensation if undo else self.situation.get_reaction
        reaction = find(self.name, handler)
        return () if reaction is None else reaction.emits

    def command(self, verb: str) -> str:
        return f"`saga dead {verb} {self.name} --saga {self.p.saga} {SIGNED}`"


def _consider_workers(situation: SagaSituation, each: Obstacle) -> Obstacle:
    """Return the obstacle. If only a worker of the service can end it, and none runs, change its kind to `down`."""
    if each.kind not in NEEDS_WORKER or not situation.is_down(each.service):
        return each
    return replace(
        each,
        kind="down",
        what=f"no worker of {each.service} runs; {each.what}",
        ends=f"Start {each.service}: `saga run` with its module. {each.ends}",
    )


def _find_undeclared(here: _Service) -> Iterator[Obstacle]:
    """Find work in the progress whose handler the service's manifest does not declare."""
    manifest, p = here.situation.manifests.get(here.name), here.p
    if manifest is None:
        return
    needed = {k.handler: k.message.type for k in (*p.queue, *p.deadlines)}
    needed |= {i.handler: i.message.type for i in p.intents} | {c.handler: c.parts[0].type for c in p.suspended_runs}
    needed |= {r.handler: r.event.type for r in p.results}
    for handler, type_ in sorted(needed.items()):
        if here.situation.get_reaction(here.name, handler) is None:
            yield Obstacle(
                kind="undeclared",
                service=here.name,
                handler=handler,
                type=type_,
                awaited=(),
                what=f"the progress needs {handler}, and the manifest of {here.name} does not declare it, so a worker "
                "of that release decides nothing about this saga",
                ends=f"Deploy a release of {here.name} that declares {handler}, and check that no other service has "
                "the same name.",
            )


def _find_dead(here: _Service) -> Iterator[Obstacle]:
    """Find dead letters that block the saga."""
    letters = {letter.id: letter for letter in here.situation.facts.letters}
    for k, undo in [*((k, False) for k in here.p.queue), *((k, True) for k in here.p.compensating)]:
        if k.dead is None:
            continue
        letter = letters.get(k.dead)
        behind = len(here.p.queue) - 1
        queued = f"; {count_noun(behind, 'message')} queued behind it" if behind > 0 and not undo else ""
        reason = f": {letter.reason}" if letter is not None else ""
        remedy = f" ({letter.remedy})" if letter is not None and letter.remedy else ""
        yield Obstacle(
            kind="dead_letter",
            service=here.name,
            handler=k.handler,
            type=k.message.type,
            awaited=here.emitted_by(k.handler, undo=undo),
            what=f"dead letter {k.dead} blocks it{reason}{queued}",
            ends=f"Remove the cause{remedy}, then run it again with {here.command('replay')}; or give the message up "
            f"with {here.command('discard')}.",
            since=letter.time if letter is not None else None,
        )


# -------------------------------------------------------------------- parked runs


def _find_parked(here: _Service) -> Iterator[Obstacle]:
    """Find runs that wait for their next attempt."""
    p = here.p
    pending = [*((k, False) for k in p.queue), *((k, True) for k in p.compensating)]
    parked = [(k, undo) for k, undo in pending if k.due_ms and not k.dead]
    for (k, undo), status in zip(parked, compute_status(p).retries, strict=True):
        kind = _classify_parked(here, k, status, undo)
        attempts = f"{count_noun(k.attempts, 'attempt')} failed, " if k.attempts else ""
        again = "it is checked each minute" if k.put_off else f"the next one is at {status.next}"
        behind = len(p.queue) - 1 if not undo else 0
        queued = f"; {count_noun(behind, 'message')} queued behind it" if behind > 0 else ""
        ends = _describe_way_out(here, kind, status)
        if not k.put_off and _is_late(here, k.due_ms):
            kind, ends = ("overdue" if kind == "retrying" else kind), f"{_describe_late(here, status.next)} {ends}"
        yield Obstacle(
            kind=kind,
            service=here.name,
            handler=status.handler,
            type=k.message.type,
            awaited=here.emitted_by(k.handler, undo=undo),
            what=f"{_describe_parked(here, kind, status)}; {attempts}{again}{queued}",
            ends=ends,
            since=status.since,
            until=None if k.put_off else status.next,
        )


def _classify_parked(here: _Service, k: PendingMessage, status: ParkedRunStatus, undo: bool) -> Kind:
    if k.undecodable is not None:
        return "missing_schema"
    if k.put_off:
        if _find_pause(here, status.handler) is not None:
            return "paused"
        return "breaker" if (status.error or "").startswith(BreakerOpen.__name__) else "limited"
    if undo:
        return "compensation_failing"
    if status.is_code:
        return "failing"
    return "missing_release" if (status.error or "").startswith(NewerHandler.__name__) else "retrying"


def _find_pause(here: _Service, handler: str) -> str | None:
    """Describe the active pause of a handler or of its service; `None` if there is none."""
    return _describe_pause(here.situation, here.name, handler)


def _describe_pause(situation: SagaSituation, service: str, handler: str) -> str | None:
    controls = situation.facts.controls.get(service)
    if controls is None:
        return None
    pause = find_pause(controls, service, handler, situation.facts.now_ms)
    return None if pause is None else describe_entry(service, pause)


def _describe_parked(here: _Service, kind: Kind, status: ParkedRunStatus) -> str:
    """Describe why a run is parked."""
    error = status.error or "the reason is archived"
    if kind == "paused":
        return _find_pause(here, status.handler) or error
    if kind in ("breaker", "limited"):
        return f"{KINDS[kind]}: {error}"
    if status.undoes is not None:
        return f"{status.handler} cannot undo what {status.undoes} did: {error}"
    return f"{KINDS[kind]}: {error}"


def _describe_way_out(here: _Service, kind: Kind, status: ParkedRunStatus) -> str:
    """Describe what makes a parked run continue."""
    release = f"{here.command('release')} tries it at once"
    due = f"It is tried again at {status.next}"
    match kind:
        case "missing_schema":
            return f"Deploy the schema, or the release that reads it, where {here.name} runs; then {release}."
        case "missing_release":
            return f"Deploy the newer release of {here.name} again; then {release}."
        case "paused":
            return _describe_resume(here.situation, here.name, status.handler)
        case "breaker":
            return f"It continues when the called system answers again; check that system. Then {release}."
        case "limited":
            return f"It continues when the limit admits it; {_describe_limits(here.situation, here.name)}."
        case "failing":
            return f"Deploy a release of {here.name} that fixes {status.handler}, or roll back; then {release}."
        case "compensation_failing":
            return f"{due}, without end: repair what {status.handler} calls; {release}."
        case _:
            return f"{due}; {release}."


def _describe_resume(situation: SagaSituation, service: str, handler: str) -> str:
    """Describe how to end the active pause of a handler or of its service."""
    active = active_entries(situation.facts.controls[service], situation.facts.now_ms)
    name = f" --handler {handler}" if ("pause", "handler", handler) in active else ""
    entry = active["pause", "handler", handler] if name else active["pause", "service", service]
    by_itself = "" if entry.switch.until is None else f"It ends by itself at {entry.switch.until}; to end it now: "
    return f"{by_itself}`saga control resume {service}{name} {SIGNED}`."


def _describe_limits(situation: SagaSituation, service: str) -> str:
    """Describe the limits that an operator has set in a service, and how to change them."""
    controls = situation.facts.controls.get(service)
    active = {} if controls is None else active_entries(controls, situation.facts.now_ms)
    limits = [
        f"{describe_switch(e.switch)} by {e.who}: {e.why}" for target, e in active.items() if target[0] == "limit"
    ]
    if not limits:
        return f"`saga control limit {service}` sets another one"
    return f"{'; '.join(limits)}. `saga control limit {service} ... --none {SIGNED}` applies the declared ones"


# -------------------------------------------------------------------- work that has begun or waits for a time


def _find_begun(here: _Service) -> Iterator[Obstacle]:
    """Find runs that have begun, and work that is ready.

    Work is left out if the progress already records why it waits: for a later attempt, for an operator, or as a
    suspended run.
    """
    p = here.p
    waits = {(k.handler, k.message.id) for k in (*p.queue, *p.compensating, *p.deadlines) if k.due_ms or k.dead}
    waits |= {(c.handler, c.parts[0].id) for c in p.suspended_runs}
    for i in p.intents:
        if (i.handler, i.message.id) not in waits and not p.is_quarantined:
            yield _describe_intent(here, i)
    if p.is_quarantined or p.started is None or any(k.due_ms for k in (*p.queue, *p.compensating)):
        return
    begun = {i.handler for i in p.intents}
    for k, undo in [*((k, False) for k in p.queue), *((k, True) for k in p.compensating)]:
        if k.handler not in begun:
            verb = f"the compensation of {k.handler}" if undo else k.handler
            yield Obstacle(
                kind="working",
                service=here.name,
                handler=k.handler,
                type=k.message.type,
                awaited=here.emitted_by(k.handler, undo=undo),
                what=f"{verb} is ready to run",
                ends=_describe_repair(here),
            )


def _describe_intent(here: _Service, i: Intent) -> Obstacle:
    """Describe a run that has begun."""
    error = here.situation.facts.failing.get(i.cause) if i.kind == "undo" else None
    name = i.name or (f"the compensation of {i.handler}" if i.kind == "undo" else i.handler)
    call = "" if i.open_call is None else f", and {i.open_call.description} has no answer"
    ends = _describe_repair(here)
    if error is not None:
        ends = f"It is retried without limit: repair what {name} calls."
    return Obstacle(
        kind="working" if error is None else "compensation_failing",
        service=here.name,
        handler=name,
        type=i.message.type,
        awaited=here.emitted_by(i.handler, undo=i.kind == "undo"),
        what=f"{name} has begun{call}" + ("" if error is None else f", and fails: {error}"),
        ends=ends,
        since=i.time,
    )


def _describe_repair(here: _Service) -> str:
    return (
        f"It continues by itself while {here.name} runs. If it does not: `saga sagas repair MODULE --saga "
        f"{here.p.saga}` with the module of {here.name}."
    )


def _find_unstarted(here: _Service) -> Iterator[Obstacle]:
    """Find messages that wait because no message with the start of the saga has arrived."""
    p = here.p
    if p.started is not None:
        return
    overview = here.situation.facts.overview
    starts = tuple(name for name, contract in overview.contracts.items() if contract.starts)
    manifest = here.situation.manifests.get(here.name)
    if manifest is not None:
        starts = tuple(name for name in starts if manifest.find_consumed(name) is not None) or starts
    for k in (*p.waiting, *p.compensating):
        if not can_never_run(p, k):
            yield Obstacle(
                kind="no_start",
                service="",
                handler=k.handler,
                type=k.message.type,
                awaited=starts,
                what=f"{here.name} keeps {k.message.type} for {k.handler}, and no message with the start of the saga "
                "has come, so it cannot know whether it has already forgotten this saga",
                ends=f"It continues with a message that carries the start of the saga, such as {join_types(starts)}; "
                "without one it waits for ever. Check why that event is missing: `saga offsets show "
                f"{here.name}` shows what is not handled yet.",
                since=k.message.time,
            )


def _find_suspended(here: _Service) -> Iterator[Obstacle]:
    """Find suspended runs, which are runs that returned `Later`."""
    if here.p.is_quarantined:
        return
    for c in find_timed_runs(here.p):
        yield _describe_suspended(here, c)


def _describe_suspended(here: _Service, c: SuspendedRun) -> Obstacle:
    due = iso(min(c.due_ms, LATEST_MS))
    event = f" or with {join_types(c.awaited_types)}" if c.awaited_types else ""
    error = f" after {count_noun(c.attempts, 'failed attempt')}" if c.attempts else ""
    is_late = _is_late(here, c.due_ms)
    return Obstacle(
        kind="overdue" if is_late else "suspended",
        service=here.name,
        handler=c.handler,
        type=c.parts[0].type,
        awaited=c.awaited_types or here.emitted_by(c.handler),
        what=f"{c.handler} has suspended its run for {c.parts[0].type} until {due}{event}{error}",
        ends=_describe_late(here, due) if is_late else f"It continues by itself at {due}{event}.",
        since=iso(c.seen_ms),
        until=due,
    )


def _is_late(here: _Service, due_ms: int) -> bool:
    """Return whether work is overdue although the service runs and has handled the whole log, as far as is known."""
    situation = here.situation
    return (
        due_ms + OVERDUE_MS < situation.facts.now_ms
        and not situation.is_down(here.name)
        and not situation.count_behind(here.name)
    )


def _describe_late(here: _Service, due: str) -> str:
    return (
        f"It was due at {due}, so its timer is lost, or {here.name} does not run: "
        f"`saga sagas repair MODULE --saga {here.p.saga}`, with the module of {here.name}, sends the timer again."
    )


def _find_deadlines(here: _Service) -> Iterator[Obstacle]:
    """Find open deadlines."""
    situation = here.situation
    for k in () if here.p.is_quarantined else here.p.deadlines:
        due, behind = iso(min(k.due_ms, LATEST_MS)), situation.count_behind(here.name)
        is_due = k.due_ms <= situation.facts.now_ms
        emits = here.emitted_by(k.handler)
        reaction = situation.get_reaction(here.name, k.handler)
        then = f" and emits {join_types(emits)}" if emits else ""
        kind: Kind = "deadline"
        what = f"deadline {k.handler}, opened by {k.message.type}, is due at {due}"
        ends = f"At {due} the deadline {k.handler} runs{then}, unless {_describe_closing(reaction)} comes before."
        if k.attempts:
            kind, what = "retrying", f"deadline {k.handler} has failed {count_noun(k.attempts, 'time')}"
            ends = f"It is tried again at {due}."
        elif k.put_off and (pause := _find_pause(here, k.handler)) is not None:
            kind, what, ends = "paused", pause, _describe_resume(situation, here.name, k.handler)
        elif is_due and behind:
            kind = "deadline_behind_log"
            lag = count_noun(behind, "record")
            what = f"deadline {k.handler} was due at {due}, and {here.name} is {lag} behind in partitions of this saga"
            ends = (
                f"It runs{then} once {here.name} has handled the log up to {due}, because an event in it may close "
                f"the deadline; `saga offsets show {here.name}` shows how far it is."
            )
        elif is_due and _is_late(here, k.due_ms):
            kind, ends = "overdue", _describe_late(here, due)
        yield Obstacle(
            kind=kind,
            service=here.name,
            handler=k.handler,
            type=k.message.type,
            awaited=emits,
            what=what,
            ends=ends,
            since=k.message.time,
            until=due,
        )


def _describe_closing(reaction: DeclaredReaction | None) -> str:
    return join_types((*(() if reaction is None else reaction.unless), "the outcome of the saga"))


# -------------------------------------------------------------------- events that are not handled


class _Undelivered(NamedTuple):
    """An event that exists, and a handler or compensation that needs it and has not handled it."""

    service: str
    reaction: DeclaredReaction
    event: Happening


def _find_undelivered(situation: SagaSituation) -> Iterator[Obstacle]:
    """Find handlers and compensations that have not run although all of their events exist."""
    for service, manifest in situation.manifests.items():
        if service in situation.facts.unreadable or _is_forgotten(situation, manifest):
            continue
        for reaction in manifest.reactions:
            event = _find_unhandled_event(situation, service, reaction)
            if event is not None:
                yield _classify_undelivered(situation, manifest, _Undelivered(service, reaction, event))


def _is_forgotten(situation: SagaSituation, manifest: Manifest) -> bool:
    """Return whether the service has no progress of the saga, and may have had one that has expired since the saga
    ended."""
    ended = situation.outcome
    if ended is None or manifest.stored in situation.progresses:
        return False
    return from_iso(ended.time) + manifest.retention_s * 1000 < situation.facts.now_ms


def _find_unhandled_event(situation: SagaSituation, service: str, reaction: DeclaredReaction) -> Happening | None:
    """Return the event for which this handler or compensation should have run by now.

    Return `None` if it has run, if it does not have to, or if its own progress says what it waits for.
    """
    if reaction.kind == "deadline" or situation.has_processed(service, reaction):
        return None
    if reaction.kind == "compensation":
        return _find_failure(situation, service, reaction)
    if situation.outcome is not None and any(map(situation.result_of, reaction.emits)):
        return None  # the saga has ended: this handler, which ends sagas, does not run any more
    found = [[situation.happened[t] for t in part if t in situation.happened] for part in reaction.takes]
    if not found or not all(found):
        return None
    events = [min(part, key=lambda each: each.time) for part in found]
    unknown = [each for each in events if not situation.knows(service, each.type)]
    if not unknown and situation.is_pending(service, reaction):
        return None  # its own progress says what it waits for
    return max(unknown or events, key=lambda each: each.time)


def _find_failure(situation: SagaSituation, service: str, compensation: DeclaredReaction) -> Happening | None:
    """Return the failure outcome to which a compensation has not reacted yet.

    Return `None` if the compensation has nothing to undo, or if the progress says what it waits for.
    """
    p, undone = situation.progresses.get(service), compensation.undoes or ""
    original = situation.get_reaction(service, undone)
    names = {undone, *(() if original is None else (original.name, stored_name(original)))}
    if p is None or not any(result.handler in names for result in p.results):
        return None
    if any(k.handler in names for k in p.compensating) or any(
        i.handler in names for i in p.intents if i.kind == "undo"
    ):
        return None  # its own progress says what it waits for
    failures = [t for t in compensation.hears if t in situation.happened and situation.result_of(t) == "failure"]
    return next((situation.happened[t] for t in failures), None)


def _classify_undelivered(situation: SagaSituation, manifest: Manifest, each: _Undelivered) -> Obstacle:
    """Return the obstacle that says why a service has not handled an event."""
    service, reaction, event = each
    consumed = manifest.find_consumed(event.type)
    topic = None if consumed is None else consumed.topic
    behind = situation.count_behind(service, topic)
    records = count_noun(behind, "record")
    published = f"{event.type} exists since {event.time}"
    offsets = situation.facts.offsets.get(service)
    kind: Kind = "lagging"
    what = f"{published}, and {service} has not handled it; whether it runs is not known"
    ends = f"It continues when {service} handles {event.type}: check that it runs: `saga offsets show {service}`."
    pause = _describe_pause(situation, service, reaction.name)
    if not situation.is_visible(service):
        kind = "not_known"
        what = f"{published}, and the store of {service} is not read here, so what it did is not known"
        ends = f"Name its store with --store, or its monitor with --monitor, and check `saga offsets show {service}`."
    elif situation.is_down(service):
        kind = "down"
        has_read = any(at.topic == topic for at in situation.facts.offsets[service].states)
        lag = f"its lag in {topic} is {records}" if has_read else f"it has never read {topic}"
        what = f"no worker of {service} runs; {published}, and {lag}"
        ends = f"Start {service}: `saga run` with its module."
    elif pause is not None:
        kind, what, ends = "paused", pause, _describe_resume(situation, service, reaction.name)
    elif behind:
        what = f"{published}, and {service} is {records} behind in the partition of this saga in {topic}"
        ends = (
            f"It continues by itself when {service} has caught up; if the number grows, see what keeps it busy: "
            f"`saga offsets show {service}`, `saga monitor rates`."
        )
    elif offsets is not None and situation.is_down(event.service):
        kind = "down"
        what = f"{event.service} recorded {event.type} and no worker of it runs, so it may not be published"
        ends = f"Start {event.service}: `saga run` with its module; it publishes what it recorded."
    elif offsets is not None and from_iso(event.time) + OVERDUE_MS < situation.facts.now_ms:
        kind = "not_seen"
        what = f"{published}, and {service} has handled the partition of this saga in {topic} without it"
        move = f"saga offsets reset {service} --topic {topic} --to {event.time} --module MODULE --why REASON"
        ends = (
            f"If the progress of {service} was lost, `saga sagas rebuild MODULE --saga {situation.facts.saga} "
            f"--dry-run` with its module rebuilds it; if {service} began to read {topic} later than that, "
            f"`{move}` moves it back."
        )
    return Obstacle(
        kind=kind,
        service=service,
        handler=reaction.name,
        type=event.type,
        awaited=reaction.emits,
        what=what,
        ends=ends,
        since=event.time,
    )


def _find_unreadable(situation: SagaSituation) -> Iterator[Obstacle]:
    """Find services whose progress of the saga is damaged, so that nobody can tell what they still have to do."""
    for service in sorted(situation.facts.unreadable):
        yield Obstacle(
            kind="not_known",
            service=service,
            handler="",
            type="",
            awaited=(),
            what=f"the progress of {service} cannot be read, so what it did and still has to do is not known",
            ends="Restore the document from a backup, or read it with the version of saga that wrote it: `saga sagas "
            f"verify {situation.facts.saga}` names it.",
        )


def _find_reported(situation: SagaSituation) -> Iterator[Obstacle]:
    """For services whose stores are not read here, find what they wait for, as they reported it to the monitor."""
    for wait in situation.facts.reports.waits:
        if wait.service in situation.progresses:
            continue
        reaction = situation.get_reaction(wait.service, wait.handler)
        until = "" if wait.until is None else f" until {wait.until}"
        yield Obstacle(
            kind="suspended" if wait.until is not None else "dead_letter" if not wait.types else "missing_event",
            service=wait.service,
            handler=wait.handler,
            type="",
            awaited=wait.types or (() if reaction is None else reaction.emits),
            what=f"{wait.handler or 'a run'} waits{until}, as {wait.service} has reported to the monitor; its store is "
            "not read here",
            ends=f"It ends with: {wait.ends}.",
            since=wait.since,
            until=wait.until,
        )


# -------------------------------------------------------------------- events that are missing


def _find_missing(situation: SagaSituation, found: Sequence[Obstacle]) -> Iterator[Obstacle]:
    """Find missing events that must come from outside, and handlers that ran without emitting an event that the saga
    needs."""
    if situation.outcome is not None:
        return
    held_up = {(each.service, each.handler) for each in found if each.kind != "deadline"}
    outcomes = list_outcomes(situation, "success") or list_outcomes(situation)
    wanted = [*_list_awaited_parts(situation), *((type_,) for type_ in outcomes)]
    trace = _MissingEvents(situation, held_up)
    roots = [root for part in wanted for root in trace.find_roots(part)]
    yield from dict.fromkeys(roots)


def _list_awaited_parts(situation: SagaSituation) -> list[tuple[str, ...]]:
    """List the fan-in parameters for which no event exists yet. Each is given as the event types that it accepts."""
    found = list[tuple[str, ...]]()
    for service, p in situation.progresses.items():
        for k in p.waiting:
            reaction = situation.get_reaction(service, k.handler)
            if reaction is not None and not can_never_run(p, k):
                found += [part for part in reaction.takes if not any(t in situation.happened for t in part)]
    return list(dict.fromkeys(found))


class _MissingEvents:
    """Searches backwards, from a missing event to the reason why no service will emit it."""

    def __init__(self, situation: SagaSituation, held_up: set[tuple[str, str]]) -> None:
        self._situation, self._held_up = situation, held_up
        self._seen: set[tuple[str, ...]] = set()

    def find_roots(self, part: tuple[str, ...]) -> list[Obstacle]:
        """Return the reasons why no event of one of the types in `part` will be emitted. One such event would be
        enough."""
        if part in self._seen:
            return []
        self._seen.add(part)
        emitters = [
            (service, reaction)
            for service, manifest in self._situation.manifests.items()
            for reaction in manifest.reactions
            if reaction.kind == "handler" and any(type_ in reaction.emits for type_ in part)
        ]
        contracts = self._situation.facts.overview.contracts
        outside = [t for t in part if t in contracts and contracts[t].produced_externally]
        if outside or not emitters:
            return [self._from_outside(part)]
        return [root for service, reaction in emitters for root in self._look_at(service, reaction, part)]

    def _look_at(self, service: str, reaction: DeclaredReaction, part: tuple[str, ...]) -> list[Obstacle]:
        names = {reaction.name, stored_name(reaction)}
        if any((service, name) in self._held_up for name in names):
            return []  # another obstacle explains it
        missing = [p for p in reaction.takes if not any(t in self._situation.happened for t in p)]
        if missing:
            return [root for each in missing for root in self.find_roots(each)]
        runs = [run for run in self._situation.runs if run.service == service and run.handler in names]
        if not runs:
            return []
        last = max(runs, key=lambda run: run.time)
        return [self._without_event(reaction, last, part)]

    def _from_outside(self, part: tuple[str, ...]) -> Obstacle:
        waiting = [
            (service, k.handler, k.message.time)
            for service, p in self._situation.progresses.items()
            for k in p.waiting
            if (r := self._situation.get_reaction(service, k.handler)) is not None and part in r.takes
        ]
        who = "; ".join(f"{service} keeps events for {handler}" for service, handler, _ in dict.fromkeys(waiting))
        types = join_types(part)
        return Obstacle(
            kind="missing_event",
            service="",
            handler="",
            type="",
            awaited=part,
            what=f"it has to come from outside: no service emits {types} here" + (f"; {who}" if who else ""),
            ends=f"It continues when {types} is published: `saga publish {part[0]}` for a client that cannot.",
            since=min((time for _, _, time in waiting), default=None),
        )

    def _without_event(self, reaction: DeclaredReaction, last: SagaRun, part: tuple[str, ...]) -> Obstacle:
        return Obstacle(
            kind="no_event",
            service=last.service,
            handler=reaction.name,
            type=last.type,
            awaited=part,
            what=f"{reaction.name} has run (`{last.outcome}` for {last.type}) and emitted nothing that leads to an "
            "outcome",
            ends=f"No event ends it. Read what {reaction.name} did: `saga sagas show {self._situation.facts.saga} "
            f"--service {last.service} --steps`.",
            since=last.time,
        )
