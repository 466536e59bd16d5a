"""All invariants of the kit, applied to one run.

- Invariants of messages: the log and the progresses contain the same events, once each and in the same order, and every
  event is handled.
- Invariants of sagas: each saga has one outcome, every result is compensated after a failure, and nothing runs too
  early.
- Invariants of calls and documents: see `call_checks`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, pairwise

import msgspec

from saga.engine.prepared_service import PreparedService
from saga.errors import BadInput, SagaError
from saga.messages import Partition, Record
from saga.messaging.names import is_timer_topic
from saga.messaging.timers import parse_timer
from saga.progress.decisions import find_closing_reason
from saga.progress.document import PendingMessage, Transition, decode_progress, decode_transition
from saga.progress.handlers import HandlerRole
from saga.testing.invariants import call_checks, evidence, progress_checks
from saga.testing.invariants.evidence import (
    Evidence,
    LoggedEvent,
    ProgressLife,
    SagaCase,
    SagaCases,
    ServiceEvidence,
    Violation,
    collect_declarations,
    group_by_saga,
)


def check_history(case: SagaCase) -> Iterator[Violation]:
    """Check that the chain of hashes is valid, that the state follows from the transitions, that no life of a progress
    was overwritten, and that no version exceeded its bounds.
    """
    for name, several in case.lives.items():
        for i, life in enumerate(several):
            if life.p.first and i < len(several) - 1:
                continue  # the next life may have overwritten its archives
            wrong = evidence.find_exceeded_bound(life) or evidence.find_broken_chain(life)
            if wrong is not None:
                yield case.violation("history", wrong, name)
        for before, after in pairwise(several):
            wrong = evidence.find_overwritten_life(before, after)
            if wrong is not None:
                yield case.violation("history", wrong, name)


def check_once(case: SagaCase) -> Iterator[Violation]:
    """Check that each id is recorded once, that each handler has run once (with `repeats`: once for each cause), and
    that each service emits at most one outcome.
    """
    for life in case.every_life():
        wrong = progress_checks.find_double_record(life.service.roles, life.entries)
        if wrong is not None:
            yield case.violation("once", wrong, life.service.name)


def check_published_as_recorded(case: SagaCase) -> Iterator[Violation]:
    """Check that each recorded event is in the log with the same bytes, and that each event that a service published is
    recorded.

    In a spoiled saga (see `Evidence.spoiled`) only recorded events are looked up, because events in the log may be
    forged.
    """
    published, letters = {e.id for e in case.events}, {letter.id for letter in case.dead_letters}
    for life in case.every_life():
        for t in life.entries:
            for event in t.events:
                if event.id not in published:
                    what = f"LOST EVENT {event.type} {event.id} of transition {t.n} of {t.handler} is not in the log"
                    yield case.violation("published as recorded", what, life.service.name)
            for letter in t.letters:
                if letter.id not in letters:
                    what = f"LOST DEAD LETTER {letter.id} of transition {t.n} of {t.handler} is not in the log"
                    yield case.violation("published as recorded", what, life.service.name)
    if not case.spoiled:
        yield from _check_recorded_as_published(case)
        yield from _check_timers(case)


def _check_timers(case: SagaCase) -> Iterator[Violation]:
    """Check that each timer in the log was set by a transition, and that the current timer of each progress is in the
    log.
    """
    recorded = {
        (life.service.name, t.timer.id) for life in case.every_life() for t in life.entries if t.timer is not None
    }
    for service, id_ in case.timers - recorded:
        yield case.violation("published as recorded", f"{id_} is in the log, and no transition has set it", service)
    for service_, life in case.last_lives():
        if life.p.timer is not None and (service_.name, life.p.timer.id) not in case.timers:
            what = f"LOST TIMER {life.p.timer.id} is the current one, and is not in the log"
            yield case.violation("published as recorded", what, service_.name)


def _check_recorded_as_published(case: SagaCase) -> Iterator[Violation]:
    values: dict[tuple[str, str], list[bytes]] = {}  # several if a saga started again, because ids repeat
    for life in case.every_life():
        for event in (e for t in life.entries for e in t.events):
            values.setdefault((life.service.name, event.id), []).append(event.value)
    first: dict[tuple[str, str], Record] = {}
    for logged in case.events:
        if logged.source not in case.declarations.services:
            continue
        key = (logged.source, logged.id)
        if key not in values:
            what = f"{logged.type} {logged.id} is in the log and in no transition"
            yield case.violation("published as recorded", what, logged.source)
        elif logged.record.value not in values[key]:
            what = f"{logged.type} {logged.id} is in the log with other bytes than in its transition"
            yield case.violation("published as recorded", what, logged.source)
        elif not case.started_again and first.setdefault(key, logged.record)[3:6] != logged.record[3:6]:
            what = f"{logged.type} {logged.id} is in the log twice, with different bytes or headers"
            yield case.violation("published as recorded", what, logged.source)
    known = {(life.service.name, letter.id) for life in case.every_life() for t in life.entries for letter in t.letters}
    for letter in case.dead_letters:
        if letter.handler is not None and (letter.service, letter.id) not in known:
            what = f"the dead letter {letter.id} of {letter.handler} is in the log and in no transition"
            yield case.violation("published as recorded", what, letter.service)


def check_order(case: SagaCase) -> Iterator[Violation]:
    """Check the order of events and handlers.

    In each partition, events first appear in the order in which they are recorded. Handlers of a single event run on
    messages in the order in which these first appear. Nothing overtakes a dead letter. In spoiled sagas only dead
    letters are checked.
    """
    for life in case.every_life():
        wrong = progress_checks.find_run_behind_dead_letter(life.service.roles, life.entries)
        if wrong is not None:
            yield case.violation("in order", wrong, life.service.name)
    if case.spoiled or case.started_again:
        return
    first: dict[tuple[str, int], dict[str, int]] = {}
    appeared: set[tuple[str, str]] = set()
    for s in case.events:  # a copy may be in another partition
        if (s.record.topic, s.id) not in appeared:
            appeared.add((s.record.topic, s.id))
            places = first.setdefault((s.record.topic, s.record.partition), {})
            places[s.id] = len(places)
    # An event without its saga's start time may have to wait for an event that has it. It delays only its own handler.
    apart = any(s.started is None for s in case.events)
    for service, life in case.last_lives():
        order = progress_checks.list_recorded_ids(life.entries)
        known = set(order)
        for places in first.values():
            wrong = progress_checks.find_wrong_publish_order(order, [id_ for id_ in places if id_ in known])
            if wrong is None:
                wrong = progress_checks.find_wrong_log_order(service.roles, life.entries, places, apart=apart)
            if wrong is not None:
                yield case.violation("in order", wrong, service.name)


# ---------------------------------------------------------------- nothing waits


def check_all_committed(evidence: Evidence) -> Iterator[Violation]:
    """Check that each service has committed all records of its topics. A timer counts only if its saga waits for it,
    because the timer of a closed deadline stays in the log until it is due.
    """
    for name, witnessed in evidence.services.items():
        topics = witnessed.service.topics
        for partition, end in evidence.ends.items():
            done = witnessed.committed.get(Partition(*partition), 0)
            if is_timer_topic(partition.topic) and not _is_awaited(evidence, witnessed, partition, done):
                continue
            if partition.topic in topics and done != end:
                what = f"{partition.topic}/{partition.number} is committed up to {done}, and it ends at {end}"
                yield Violation("nothing waits", None, name, what)


def _is_awaited(evidence: Evidence, witnessed: ServiceEvidence, partition: Partition, done: int) -> bool:
    """Return True if a timer at or after the committed offset is the current timer of its saga."""
    for record in evidence.log:
        if (record.topic, record.partition) == partition and record.offset >= done:
            with suppress(BadInput):  # the topic may contain records that other programs wrote
                timer = parse_timer(record)
                contents = witnessed.versions.get(timer.saga)
                current = None if not contents else decode_progress(contents[-1]).timer
                if current is not None and current.id == timer.id:
                    return True
    return False


def check_unreadable_reported(evidence: Evidence, cases: SagaCases) -> Iterator[Violation]:
    """Check that a record whose saga cannot be determined is reported as a dead letter by each service that may consume
    it.
    """
    reported = {(letter.service, letter.position) for letter in cases.dead_letters}
    for record, type_ in cases.unreadable:
        where = f"{record.topic}/{record.partition}/{record.offset}"
        for name, witnessed in evidence.services.items():
            service = witnessed.service
            reads = record.topic in service.topics
            if reads and (type_ is None or type_ in service.consumed) and (name, where) not in reported:
                yield Violation(
                    "nothing waits", None, name, f"the record at {where} cannot be read, and is no dead letter"
                )


def check_nothing_waits(case: SagaCase) -> Iterator[Violation]:
    """Check that nothing is left open, unless a dead letter blocks it.

    Every message is in the inbox, pending, or reported to an operator. A message may be pending only if another event
    that its handler needs was never published. Every self-consumed event is handled.
    """
    for service, life in case.last_lives():
        wrong = progress_checks.find_stranded(life.p, service.roles)
        if wrong is not None:
            yield case.violation("nothing waits", wrong, service.name)
        if not case.spoiled and not case.started_again:
            own = _find_self_consumed(life)
            for pending in life.p.waiting:
                role = service.roles.handlers.get(pending.handler)
                if (
                    role is not None
                    and _is_due(role, pending.message.type)
                    and _could_run(case, life, role, own.values())
                ):
                    yield case.violation("nothing waits", _describe_waiting(pending), service.name)
            for id_, role in _find_unhandled(case, life, own):
                what = f"{own[id_]} {id_} was emitted here, {role.name} has all its events, and has not run on it"
                yield case.violation("nothing waits", what, service.name)
    changes = case.declarations.changes
    for event in case.events:
        for service in case.declarations.services.values():
            if event.record.topic in changes and event.record.topic not in service.changes:
                continue  # changes of another service's documents of the same name
            if event.type in service.consumed and event.source != service.name:
                lost = _find_loss(case, service.name, event)
                if lost is not None:
                    yield case.violation("nothing waits", lost, service.name)


def _describe_waiting(pending: PendingMessage) -> str:
    message = pending.message
    return f"{message.type} {message.id} waits for {pending.handler}, and all events that it waits for were published"


def _find_self_consumed(life: ProgressLife) -> dict[str, str]:
    """Return the types of the self-consumed events in the service's transitions, by event id, without the events of
    runs whose results are all compensated.
    """
    roles = life.service.roles
    own: dict[str, str] = {}
    undone = {t.cause for t in life.entries if t.outcome == "compensated"}
    for t in life.entries:
        role = roles.handlers.get(t.handler) if t.ran and undone else None
        results = {e.id for e in t.events if e.type in role.undo.results} if role is not None and role.undo else set()
        if not results or not results <= undone:
            own |= {e.id: e.type for e in t.events if e.type in roles.by_type}
    return own


def _find_unhandled(case: SagaCase, life: ProgressLife, own: Mapping[str, str]) -> Iterator[tuple[str, HandlerRole]]:
    """Yield each self-consumed event on which a handler should have run but did not, with that handler."""
    if not own:
        return
    ran = {(t.handler, cause) for t in life.entries if t.ran for cause in progress_checks.list_causes(t)}
    for id_, type_ in own.items():
        for role in life.service.roles.by_type[type_]:
            if _is_due(role, type_) and (role.name, id_) not in ran and _could_run(case, life, role, own.values()):
                yield id_, role


def _is_due(role: HandlerRole, type_: str) -> bool:
    """Return True if an event of this type makes the handler run. A handler with `repeats` runs only for events of its
    first parameter. Events of its other parameters must have arrived, but do not make it run.
    """
    return not role.many or type_ in role.takes[0]


def _could_run(case: SagaCase, life: ProgressLife, role: HandlerRole, own: Collection[str]) -> bool:
    """Return True if all events of a handler have arrived and the handler may still run.

    `own`: types of self-consumed events.
    """
    p = life.p
    if p.started is None or find_closing_reason(p, role) is not None:
        return False
    if p.is_quarantined:
        return False
    if not role.many and any(t.handler == role.name and t.ran for t in life.entries):
        return False
    dead = {letter.message for letter in case.dead_letters if letter.service == life.service.name}
    there = {s.type for s in case.events if s.source != life.service.name and s.id not in dead}
    there.update(own)
    return all(types & there for types in role.takes)


def _find_loss(case: SagaCase, service: str, event: LoggedEvent) -> str | None:
    """Describe a message that is lost although a handler should have processed it; `None` if the service has accounted
    for it.
    """
    lives = case.lives.get(service, [])
    missing: str | None = "any handler: the service knows nothing of the saga"
    for life in lives:
        missing = progress_checks.find_unaccounted_handler(life.p, life.service.roles, event.type, event.id)
        if missing is None:
            return None
    if any(letter.service == service and letter.message == event.id for letter in case.dead_letters):
        return None
    # An inbox with many entries drops those older than the retention; the transitions still have them.
    if any(
        event.id in (t.message, *progress_checks.list_causes(t))
        for t in chain.from_iterable(life.entries for life in lives)
    ):
        return None
    where = "/".join(map(str, event.record[:3]))
    return f"LOST MESSAGE {event.type} {event.id} at {where} for {missing}"


# ---------------------------------------------------------------- outcomes, compensations and time


def check_one_outcome(case: SagaCase) -> Iterator[Violation]:
    """Check that every saga has exactly one outcome. It may have none if it has a dead letter, or if an external event
    is missing.

    A saga without an outcome is reported only if its start is in the log and some service of this run can end it.
    """
    outcomes = case.outcomes()
    if len(outcomes) > 1 and not case.started_again:
        names = ", ".join(f"{s.type} {s.id} by {s.source}" for s in outcomes.values())
        yield case.violation("one outcome", f"it has {len(outcomes)} outcomes: {names}")
    if outcomes or case.spoiled or case.dead_letters:
        return
    contracts = case.declarations.contracts
    changes = case.declarations.changes  # a handler may emit nothing for a document change: then no saga has started
    kinds = {
        contracts[s.type].key
        for s in case.events
        if s.type in contracts and contracts[s.type].starts and s.record.topic not in changes
    }
    kinds &= case.declarations.ending
    if kinds and not _awaits_external_event(case, kinds):
        known = ", ".join(sorted(case.lives)) or "no service"
        yield case.violation("one outcome", f"it has begun and has no outcome, and no dead letter; {known} knows of it")


def _awaits_external_event(case: SagaCase, kinds: set[str]) -> bool:
    """Return True if a service consumes an event of an external producer that does not start a saga and is not in the
    log.
    """
    contracts, published = case.declarations.contracts, {s.type for s in case.events}
    return any(
        contracts[type_].produced_externally and not contracts[type_].starts and contracts[type_].key in kinds
        for type_ in case.declarations.consumed - published
    )


def check_compensations(case: SagaCase) -> Iterator[Violation]:
    """Check compensations.

    After a failure, every result of a handler with a compensation is compensated, unless a dead letter names the
    handler. If a run of such a handler ended as a dead letter, the calls that it had made are reported to an operator.
    After a success, nothing is compensated. A result is compensated once, after it was recorded, and no handler runs on
    it afterwards.
    """
    for service, life in case.last_lives():
        wrong = progress_checks.find_wrong_compensation(service.roles, life.entries)
        if wrong is not None:
            yield case.violation("compensated", wrong, service.name)
        for role in service.roles.handlers.values():
            for what in _find_unreported_calls(role, life):
                yield case.violation("compensated", what, service.name)
    if case.spoiled or case.started_again:
        return
    contracts = case.declarations.contracts
    outcomes = {s.type: contracts[s.type].outcome for s in case.outcomes().values()}
    if not outcomes:
        return
    failures = {type_ for type_, outcome in outcomes.items() if outcome == "failure"}
    for service, life in case.last_lives():
        if not failures and any(t.outcome == "compensated" for t in life.entries):
            names = sorted({t.handler for t in life.entries if t.outcome == "compensated"})
            yield case.violation("compensated", f"it ended with {', '.join(outcomes)}, and {names} ran", service.name)
        for role in service.roles.handlers.values() if not case.is_forgotten(service.name) else ():
            if role.undo is not None and role.undo.outcomes & failures and not _is_reported(role, life):
                for what in _find_uncompensated(role, life):
                    yield case.violation("compensated", what, service.name)


def _find_unreported_calls(role: HandlerRole, life: ProgressLife) -> Iterator[str]:
    """Yield descriptions of calls that were never reported to an operator although their run ended as a dead letter.
    Only handlers that are closed are checked.
    """
    if role.name not in life.p.closed:
        return
    letters = [letter for t in life.entries for letter in t.letters]
    shown = {x.message.id for x in letters if x.kind == "escalation" and x.handler == role.name}
    for t in life.entries:
        if t.outcome == "dead" and t.handler == role.name and t.message not in shown:
            for call in t.calls:
                if call.kind != "read" and call.answer is None:
                    what = f"{call.kind} {call.name} of {role.name} is in effect since transition {t.n}"
                    yield f"{what}, and was not reported to an operator"


def _is_reported(role: HandlerRole, life: ProgressLife) -> bool:
    """Return True if this handler, or its compensation, was reported to an operator."""
    names = {role.name, role.undo.name if role.undo else role.name}
    if any(k.dead and k.handler == role.name for k in (*life.p.queue, *life.p.compensating)):
        return True
    return any(letter.handler in names for t in life.entries for letter in t.letters)


def _find_uncompensated(role: HandlerRole, life: ProgressLife) -> Iterator[str]:
    assert role.undo is not None
    gone = {t.cause for t in life.entries if t.outcome == "compensated"}
    for t in life.entries:
        if t.ran and t.handler == role.name:
            for event in t.events:
                if event.type in role.undo.results and event.id not in gone:
                    yield f"it failed, and {event.type} {event.id} of {role.name} was never compensated"
    if any(result.handler == role.name for result in life.p.results):
        yield f"it failed, and {role.name} still has a result to compensate"
    if any(intent.handler == role.name for intent in life.p.intents):
        yield f"it failed, and {role.name} has begun and has not ended"
    if role.name not in life.p.closed:
        yield f"it failed, and {role.name} is not closed: it may still run"


def check_not_early(case: SagaCase) -> Iterator[Violation]:
    """Check that nothing ran before the outcome that it reacts to: a handler of a success ran only if that success is
    in the log, and a compensation only if one of its failures is in the log.
    """
    if case.spoiled:
        return
    contracts = case.declarations.contracts
    outcomes = {s.type for s in case.outcomes().values()}
    successes = {type_ for type_, contract in contracts.items() if contract.outcome == "success"}
    for life in case.every_life():
        roles = life.service.roles
        undoes = {role.undo.name: role.undo.outcomes for role in roles.handlers.values() if role.undo is not None}
        last = {name for name, role in roles.handlers.items() if any(types <= successes for types in role.takes)}
        for t in life.entries:
            if t.outcome == "compensated" and not undoes[t.handler] & outcomes:
                what = f"{t.handler} ran in transition {t.n}, and none of {sorted(undoes[t.handler])} was published"
                yield case.violation("not early", what, life.service.name)
            if t.ran and t.handler in last and not _ran_on_success(t, case, successes):
                what = f"{t.handler} ran in transition {t.n}, because of {t.message}: no success was published by then"
                yield case.violation("not early", what, life.service.name)
        for intent in life.p.intents:
            if intent.handler in last and not outcomes & successes:
                what = f"{intent.handler} has begun, and no success was published"
                yield case.violation("not early", what, life.service.name)


def _ran_on_success(entry: Transition, case: SagaCase, successes: set[str]) -> bool:
    """Return True if the handler ran on a success outcome, and this outcome is in the log."""
    ran_on = set(progress_checks.list_causes(entry))
    return any(s.id in ran_on and s.type in successes for s in case.events)


NEAR_MS = 1000
"""Events that arrived less than this time (in milliseconds) before a deadline was due are not checked. The evidence
does not show whether such an event was already in the log when the deadline ran.
"""


def check_deadlines(case: SagaCase) -> Iterator[Violation]:
    """Check that no deadline ran although an event that closes it had arrived in time. Before a deadline runs, the
    service must have handled the log up to its due time.
    """
    if case.spoiled or case.started_again:
        return
    events = {s.id: s for s in case.events}
    near_ms = NEAR_MS + 2 * case.declarations.wrong_ms
    for service, life in case.last_lives():
        for role in service.roles.deadlines.values():
            ran = next((t for t in life.entries if t.handler == role.name and t.ran), None)
            opener = None if ran is None else events.get(ran.message)
            if ran is None or opener is None or role.grace_ms is not None:
                continue
            due_ms = opener.record.time_ms + role.within_ms - near_ms
            known = {t.message for t in life.entries if t.n < ran.n}
            for s in case.events:
                if s.source == service.name or s.id in known or s.record.time_ms > due_ms:
                    continue
                closes = any(taker.closes_deadlines for taker in service.roles.by_type.get(s.type, ()))
                if (closes or s.type in role.unless) and not _is_dead_letter(case, service.name, s.id):
                    what = f"{role.name} ran in transition {ran.n}, and {s.type} {s.id} had come in time"
                    yield case.violation("in time", what, service.name)


def _is_dead_letter(case: SagaCase, service: str, message: str) -> bool:
    """Return True if the message became a dead letter in this service."""
    return any(letter.service == service and letter.message == message for letter in case.dead_letters)


# ---------------------------------------------------------------- all of them


OF_A_SAGA = (
    call_checks.check_same_calls,
    call_checks.check_intents,
    check_once,
    check_one_outcome,
    check_compensations,
    check_not_early,
    check_deadlines,
    check_published_as_recorded,
    check_order,
    check_nothing_waits,
)
"""Invariants that are checked for each saga with a valid history. An invariant whose violation can cause other
violations comes before these.
"""

OF_ALL_VERSIONS = (call_checks.check_intents,)
"""Invariants that need every version of a progress, so they are not checked in partial evidence."""
UNSEEN_IN_PARTIAL = (
    "calls made before they were written down",
    "older versions of progresses and documents",
    "reruns",
)
"""What partial evidence cannot show. Because of it, the invariants `history`, `documents` and `rerun` are checked only
in part.
"""


def find_violations(evidence: Evidence) -> list[Violation]:
    """Return every violation. Call this function when nothing is in progress. In partial evidence `UNSEEN_IN_PARTIAL`
    is not checked.

    The reruns of `saga.testing.invariants.rerun` are not included, because they run handlers again and take longer.
    """
    cases = group_by_saga(evidence, collect_declarations(evidence))
    asked = [check for check in OF_A_SAGA if not (evidence.partial and check in OF_ALL_VERSIONS)]
    found = list(cases.broken)
    for case in cases.cases.values():
        broken = list(check_history(case))
        found += broken
        for check in asked if not broken else ():  # an invalid history would cause false violations
            found += check(case)
    found += call_checks.check_documents(evidence, cases)
    found += check_unreadable_reported(evidence, cases)
    found += check_all_committed(evidence)
    return found


def find_progress_problem(service: PreparedService, contents: Sequence[bytes]) -> str | None:
    """Describe a problem in the last of these versions of a progress; `None` if there is none."""
    try:
        p = decode_progress(contents[-1])
        entries = tuple(map(decode_transition, p.transitions))
    except (SagaError, msgspec.DecodeError) as why:
        return str(why)
    return progress_checks.find_problem(service.roles, p, entries)
