"""Ends of sagas: one outcome, every result undone after a failure, nothing done too early."""

from collections.abc import Iterator

from saga.progress.document import Transition
from saga.progress.handlers import HandlerRole
from saga.testing.invariants import progress_checks
from saga.testing.invariants.evidence import Violation
from saga.testing.invariants.progress_lives import ProgressLife
from saga.testing.invariants.saga_cases import SagaCase


def one_outcome(case: SagaCase) -> Iterator[Violation]:
    """Check that every saga has one outcome, or stands still because of a dead letter, or because somebody outside is
    silent.

    Asked of sagas whose start is in the log, and of whose kind some service here may say an outcome.
    """
    outcomes = case.outcomes()
    if len(outcomes) > 1 and not case.again:
        said = ", ".join(f"{s.type} {s.id} by {s.source}" for s in outcomes.values())
        yield case.violation("one outcome", f"it has {len(outcomes)} outcomes: {said}")
    if outcomes or case.spoiled or case.letters:
        return
    contracts = case.frame.contracts
    changes = case.frame.changes  # a handler may answer a document with nothing: then no saga has begun
    kinds = {
        contracts[s.type].key
        for s in case.said
        if s.type in contracts and contracts[s.type].starts and s.record.topic not in changes
    }
    kinds &= case.frame.ending
    if kinds and not _awaited_from_outside(case, kinds):
        known = ", ".join(sorted(case.lives)) or "nobody"
        yield case.violation("one outcome", f"it has begun and has no outcome, and no dead letter; {known} knows of it")


def _awaited_from_outside(case: SagaCase, kinds: set[str]) -> bool:
    """True if an event that somebody outside may say, and that does not begin a saga, was not said."""
    contracts, said = case.frame.contracts, {s.type for s in case.said}
    return any(
        contracts[type_].produced_externally and not contracts[type_].starts and contracts[type_].key in kinds
        for type_ in case.frame.heard - said
    )


def undone(case: SagaCase) -> Iterator[Violation]:
    """Check that after a failure every result of a handler with a compensation is undone, unless a dead letter names
    the handler, and that the calls of such a handler before it died are told to a person; that after a success none was
    undone; that a result is there before it is undone, is undone once, and nothing runs on it any more."""
    for service, life in case.last_lives():
        wrong = progress_checks.undone_wrongly(service.roles, life.entries)
        if wrong is not None:
            yield case.violation("undone", wrong, service.name)
        for role in service.roles.handlers.values():
            for what in _never_shown(role, life):
                yield case.violation("undone", what, service.name)
    if case.spoiled or case.again:
        return
    contracts = case.frame.contracts
    outcomes = {s.type: contracts[s.type].outcome for s in case.outcomes().values()}
    if not outcomes:
        return
    failures = {type_ for type_, outcome in outcomes.items() if outcome == "failure"}
    for service, life in case.last_lives():
        if not failures and any(t.outcome == "compensated" for t in life.entries):
            names = sorted({t.handler for t in life.entries if t.outcome == "compensated"})
            yield case.violation("undone", f"it ended with {', '.join(outcomes)}, and {names} ran", service.name)
        for role in service.roles.handlers.values() if not case.is_forgotten(service.name) else ():
            if role.undo is not None and role.undo.outcomes & failures and not _told(role, life):
                for what in _never_undone(role, life):
                    yield case.violation("undone", what, service.name)


def _never_shown(role: HandlerRole, life: ProgressLife) -> Iterator[str]:
    """Calls of a dead run whose handler was closed since, and that no person was told of."""
    if role.name not in life.p.closed:
        return
    letters = [letter for t in life.entries for letter in t.letters]
    shown = {x.message.id for x in letters if x.what == "escalation" and x.handler == role.name}
    for t in life.entries:
        if t.outcome == "dead" and t.handler == role.name and t.message not in shown:
            for call in t.calls:
                if call.kind != "read" and call.answer is None:
                    yield f"{call.kind} {call.name} of {role.name} stands since transition {t.n}, and nobody was told"


def _told(role: HandlerRole, life: ProgressLife) -> bool:
    """True if a person was told of this handler, or of its compensation."""
    names = {role.name, role.undo.name if role.undo else role.name}
    if any(k.dead and k.handler == role.name for k in (*life.p.queue, *life.p.compensating)):
        return True
    return any(letter.handler in names for t in life.entries for letter in t.letters)


def _never_undone(role: HandlerRole, life: ProgressLife) -> Iterator[str]:
    assert role.undo is not None
    gone = {t.cause for t in life.entries if t.outcome == "compensated"}
    for t in life.entries:
        if t.ran and t.handler == role.name:
            for event in t.events:
                if event.type in role.undo.results and event.id not in gone:
                    yield f"it failed, and {event.type} {event.id} of {role.name} was never undone"
    if any(result.handler == role.name for result in life.p.results):
        yield f"it failed, and {role.name} still has a result to be undone"
    if any(intent.handler == role.name for intent in life.p.intents):
        yield f"it failed, and {role.name} has begun and is not at its end"
    if role.name not in life.p.closed:
        yield f"it failed, and {role.name} is not closed: it may still run"


def not_early(case: SagaCase) -> Iterator[Violation]:
    """Check that a handler that takes a success ran only where that success is in the log, and a compensation only
    where a failure is that it acts on."""
    if case.spoiled:
        return
    contracts = case.frame.contracts
    said = {s.type for s in case.outcomes().values()}
    successes = {type_ for type_, contract in contracts.items() if contract.outcome == "success"}
    for life in case.every_life():
        roles = life.service.roles
        undoes = {role.undo.name: role.undo.outcomes for role in roles.handlers.values() if role.undo is not None}
        last = {name for name, role in roles.handlers.items() if any(types <= successes for types in role.takes)}
        for t in life.entries:
            if t.outcome == "compensated" and not undoes[t.handler] & said:
                what = f"{t.handler} ran in transition {t.n}, and none of {sorted(undoes[t.handler])} was said"
                yield case.violation("not early", what, life.service.name)
            if t.ran and t.handler in last and not _because_of(t, case, successes):
                what = f"{t.handler} ran in transition {t.n}, because of {t.message}: no success was said by then"
                yield case.violation("not early", what, life.service.name)
        for intent in life.p.intents:
            if intent.handler in last and not said & successes:
                what = f"{intent.handler} has begun, and no success was said"
                yield case.violation("not early", what, life.service.name)


def _because_of(entry: Transition, case: SagaCase, successes: set[str]) -> bool:
    """True if a success that is in the log is among the messages that the handler ran on."""
    ran_on = set(progress_checks.causes(entry))
    return any(s.id in ran_on and s.type in successes for s in case.said)


NEAR_MS = 1000
"""Milliseconds before a deadline's due time of which nobody can tell from outside what the log held then."""


def in_time(case: SagaCase) -> Iterator[Violation]:
    """Check that a deadline ran only where nothing had come in time that closes it: what the log held when it was due
    came to its place before."""
    if case.spoiled or case.again:
        return
    said = {s.id: s for s in case.said}
    near_ms = NEAR_MS + 2 * case.frame.wrong_ms
    for service, life in case.last_lives():
        for role in service.roles.deadlines.values():
            ran = next((t for t in life.entries if t.handler == role.name and t.ran), None)
            opener = None if ran is None else said.get(ran.message)
            if ran is None or opener is None or role.grace_ms is not None:
                continue
            due_ms = opener.record.time_ms + role.within_ms - near_ms
            known = {t.message for t in life.entries if t.n < ran.n}
            for s in case.said:
                if s.source == service.name or s.id in known or s.record.time_ms > due_ms:
                    continue
                closes = any(taker.closes_deadlines for taker in service.roles.by_type.get(s.type, ()))
                if (closes or s.type in role.unless) and not _is_told(case, service.name, s.id):
                    what = f"{role.name} ran in transition {ran.n}, and {s.type} {s.id} had come in time"
                    yield case.violation("in time", what, service.name)


def _is_told(case: SagaCase, service: str, message: str) -> bool:
    """True if the message became a dead letter that no progress knows."""
    return any(letter.service == service and letter.message == message for letter in case.letters)
