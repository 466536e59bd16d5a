"""Invariants of a saga: one outcome, every result compensated after a failure, nothing run too early; recorded calls
and documents agree.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

from saga.engine.errors import NotDeterministic, describe_exception
from saga.engine.execution import document_updates as business
from saga.engine.execution.document_updates import Marker
from saga.engine.execution.saga_context import REMEMBERED
from saga.errors import BreakerOpen
from saga.progress import ids
from saga.progress.document import RunKey, StepRecord, Transition
from saga.progress.handlers import HandlerRole, HandlerRoles
from saga.testing.invariants import progress_checks
from saga.testing.invariants.evidence import Evidence, ProgressLife, RecordedIntent, SagaCase, SagaCases, Violation


def one_outcome(case: SagaCase) -> Iterator[Violation]:
    """Check that every saga has one outcome, unless a dead letter blocks it or an external event is missing.

    Applies to sagas whose start is in the log, and of whose kind some service here can emit an outcome.
    """
    outcomes = case.outcomes()
    if len(outcomes) > 1 and not case.again:
        said = ", ".join(f"{s.type} {s.id} by {s.source}" for s in outcomes.values())
        yield case.violation("one outcome", f"it has {len(outcomes)} outcomes: {said}")
    if outcomes or case.spoiled or case.letters:
        return
    contracts = case.frame.contracts
    changes = case.frame.changes  # a handler may emit nothing for a document change: then no saga has started
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
    """Return True if an event of an external producer that does not start a saga is missing from the log."""
    contracts, said = case.frame.contracts, {s.type for s in case.said}
    return any(
        contracts[type_].produced_externally and not contracts[type_].starts and contracts[type_].key in kinds
        for type_ in case.frame.heard - said
    )


def undone(case: SagaCase) -> Iterator[Violation]:
    """Check compensations.

    After a failure every result of a handler with a compensation is compensated, unless a dead letter names the
    handler, and calls that such a handler made before it died are reported to an operator. After a success nothing is
    compensated. A result exists before it is compensated, is compensated once, and no handler runs on it afterwards.
    """
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
    """Yield the calls of a dead run, whose handler was closed since, that were never reported to an operator."""
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
    """Return True if this handler, or its compensation, was reported to an operator."""
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
    """Check that a handler of a success ran only if that success is in the log, and a compensation only if one of the
    failures that it reacts to is.
    """
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
    """Return True if a success that is in the log is among the messages that the handler ran on."""
    ran_on = set(progress_checks.causes(entry))
    return any(s.id in ran_on and s.type in successes for s in case.said)


NEAR_MS = 1000
"""Milliseconds before the due time of a deadline within which it cannot be known from outside what the log contained
then.
"""


def in_time(case: SagaCase) -> Iterator[Violation]:
    """Check that a deadline ran only if no event that closes it had come in time: the log is handled up to the due time
    before the deadline runs.
    """
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
    """Return True if the message became a dead letter that no progress knows."""
    return any(letter.service == service and letter.message == message for letter in case.letters)


# ---------------------------------------------------------------- calls

_NOT_DETERMINISTIC = describe_exception(NotDeterministic(""))


def as_begun(case: SagaCase) -> Iterator[Violation]:
    """Check that each step and update was in an intent, with all answers before it, before it was made, and that what
    an intent holds is neither changed nor lost up to the transition that ends the run.
    """
    for life in case.every_life():
        wrong = _find_contradiction(life)
        if wrong is not None:
            yield case.violation("history", wrong, life.service.name)


def asked_for_the_same(case: SagaCase) -> Iterator[Violation]:
    """Check that no run was given up because its rerun made different calls. A handler that makes the same calls in
    every rerun cannot cause that, whatever fails.
    """
    for life in case.every_life():
        for t in life.entries:
            if t.outcome == "dead" and t.reason is not None and t.reason.startswith(_NOT_DETERMINISTIC):
                yield case.violation("rerun", f"{t.handler} in transition {t.n}: {t.reason}", life.service.name)


def _find_contradiction(life: ProgressLife) -> str | None:
    """Return the first contradiction between the versions."""
    runs: dict[RunKey, RecordedIntent] = {}
    begun: set[tuple[RunKey, str, int]] = set()
    n = 0
    for head in life.heads:
        if head.n == n + 1:
            wrong = _ended_otherwise(life.service.roles, life.entries[n], runs, begun)
            if wrong is not None:
                return wrong
        n = head.n
        for intent in head.intents:
            run = _run_of(intent)
            before = runs.get(run)
            if before is not None:
                asked = (*intent.calls, intent.begins) if intent.begins is not None else intent.calls
                wrong = _changed(before, asked, f"the intent of {intent.handler} with {n} transitions")
                if wrong is not None:
                    return wrong
            runs[run] = intent
            if (opened := _open_call(intent)) is not None:
                begun.add((run, opened.name, opened.number))
    return None


def _run_of(intent: RecordedIntent) -> RunKey:
    """Return the key of the run that an intent belongs to. An intent `lieu` that runs no abort has the calls of the run
    itself.
    """
    kind = "do" if intent.kind == "lieu" and not intent.undo_with else intent.kind
    return kind, intent.handler, intent.cause


def _ended_otherwise(
    roles: HandlerRoles, entry: Transition, runs: Mapping[RunKey, RecordedIntent], begun: set[tuple[RunKey, str, int]]
) -> str | None:
    """Return the first call in the transition that ends a run that is missing from its intents, or
    differs from them.
    """
    if entry.ran:
        run: RunKey = ("do", entry.handler, entry.cause or entry.message)
    elif entry.outcome == "compensated" and entry.cause:
        run = (
            "undo",
            next(r.name for r in roles.handlers.values() if r.undo and r.undo.name == entry.handler),
            entry.cause,
        )
    else:
        return None
    where = f"transition {entry.n} of {entry.handler}"
    for call in entry.calls:
        is_refused = call.answer == BreakerOpen.__name__ or call.instead == REMEMBERED
        was_made = call.kind != "read" and call.by is None and not is_refused
        if was_made and (run, call.name, call.number) not in begun:
            return f"NEVER BEGUN {_describe_call(call)} is in {where}, and was in no intent before it was made"
    return _changed(runs[run], entry.calls, where) if run in runs else None


def _changed(before: RecordedIntent, calls: tuple[StepRecord, ...], where: str) -> str | None:
    """Return the first call of an intent that a later record of its run contradicts.

    `calls`: the calls of the later record, including the one that has begun. An answer that an operator gave is no call
    of the run any more, and remains until the operator replaces it.
    """
    said = {(call.name, call.number) for call in calls if call.by is not None}
    for known in before.calls:
        if known.by is not None and (known.name, known.number) not in said:
            return f"ANSWER FORGOTTEN {_describe_call(known)} was given by {known.by}, and {where} does not have it"
    recorded = [call for call in before.calls if call.by is None and (call.name, call.number) not in said]
    calls = tuple(call for call in calls if call.by is None)
    for i, known in enumerate(recorded):
        if i >= len(calls) or calls[i] != known:
            now = _describe_call(calls[i]) if i < len(calls) else "nothing"
            return f"CALL CHANGED {_describe_call(known)} was recorded, and {where} has {now} in its place"
    begins, i = _open_call(before), len(recorded)
    if begins is not None and (begins.name, begins.number) in said:
        return None
    if begins is not None and (i >= len(calls) or _identify_call(calls[i]) != _identify_call(begins)):
        now = _describe_call(calls[i]) if i < len(calls) else "nothing"
        return f"CALL CHANGED {_describe_call(begins)} had begun, and {where} has {now} in its place"
    return None


def _open_call(intent: RecordedIntent) -> StepRecord | None:
    """Return the call that has begun and has no answer yet."""
    begins = intent.begins
    if begins is None or any((c.name, c.number) == (begins.name, begins.number) for c in intent.calls):
        return None
    return begins


def _identify_call(call: StepRecord) -> tuple[str, str, int, str, str | None]:
    return call.kind, call.name, call.number, call.input, call.document


def _describe_call(call: StepRecord) -> str:
    answer = (
        f" -> {call.answer or ''}{bytes(call.value).decode()}" if call.answer or bytes(call.value) != b"null" else ""
    )
    return f"{call.kind} {call.name} (number {call.number}, input {call.input}){answer}"


# ---------------------------------------------------------------- documents


class FoundMarker(NamedTuple):
    """A marker found in a document: the proof of an update."""

    document: str
    marker: Marker


class _MarkerHeader(Struct, frozen=True):
    markers: dict[str, Raw] = {}


class _MarkedDocument(Struct):
    head: _MarkerHeader = msgspec.field(name="_saga", default=_MarkerHeader())


_headed = msgspec.json.Decoder(_MarkedDocument)
_marker = msgspec.json.Decoder(Marker)


def documents(evidence: Evidence, cases: SagaCases) -> Iterator[Violation]:
    """Check that markers and recorded updates agree.

    No marker occurs twice, changes, or disappears before there are many. Recorded updates have a marker. An update that
    took effect is recorded, or a dead letter names its handler. Does not apply to sagas that started again after the
    retention, because their ids repeat. In partial evidence a marker may be missing from a document with many updates.
    """
    for name, witnessed in evidence.services.items():
        pruned = _may_be_pruned(name, cases) if evidence.partial else frozenset()
        proofs: dict[str, FoundMarker] = {}
        for (collection, key), contents in witnessed.documents.items():
            for wrong, saga in _collect(f"{collection}/{key}", contents, proofs):
                if saga is None or saga not in cases.cases or not cases.cases[saga].again:
                    yield Violation("documents", saga, name, wrong)
        known: set[str] = set()
        for case in cases.cases.values():
            if name in case.lives and not case.again:
                life = case.lives[name][-1]
                yield from (
                    case.violation("documents", wrong, name) for wrong in _contradicted(life, proofs, known, pruned)
                )
        for id_, proof in proofs.items():
            if id_ not in known and proof.marker.answer is None and not proof.marker.never:
                yield from _unrecorded(name, id_, proof, cases.cases)


def _collect(
    document: str, contents: Sequence[bytes], proofs: dict[str, FoundMarker]
) -> Iterator[tuple[str, str | None]]:
    """Collect every marker that a document ever held into `proofs`; yield contradictions among them."""
    before: Mapping[str, Raw] = {}
    for content in contents:
        try:
            markers = _headed.decode(content).head.markers
            new = {id_: FoundMarker(document, _marker.decode(raw)) for id_, raw in markers.items() if id_ not in before}
        except msgspec.DecodeError as why:
            yield f"{document} is no document as the toolkit writes it: {why}", None
            continue
        for id_, proof in new.items():
            if id_ in proofs:
                what = f"UPDATE TWICE the marker {id_} of {proof.marker.handler} came again in {document}"
                yield what, proof.marker.saga
            proofs[id_] = proof
        for id_ in before:
            if id_ not in markers:
                if len(before) <= business.PRUNE_FROM:
                    marker = proofs[id_].marker
                    yield (
                        f"WRITTEN OVER: of {len(before)} markers in {document} that of {marker.handler} went",
                        marker.saga,
                    )
            elif markers[id_] != before[id_]:
                yield f"the marker {id_} in {document} was changed", proofs[id_].marker.saga
        before = markers


def _may_be_pruned(service: str, cases: SagaCases) -> frozenset[str]:
    """Return the documents that may have held so many markers at once that some were removed. Each update leaves one
    marker, and so does each update that a compensation prevents.
    """
    lives = [life for case in cases.cases.values() for life in case.lives.get(service, ())]
    asked = Counter(call.document for life in lives for t in life.entries for call in t.calls if call.kind == "update")
    return frozenset(document for document, count in asked.items() if document and 2 * count > business.PRUNE_FROM)


def _contradicted(
    life: ProgressLife, proofs: Mapping[str, FoundMarker], known: set[str], pruned: Collection[str]
) -> Iterator[str]:
    """Yield the updates for which transitions and documents disagree. Adds all recorded or begun updates to `known`."""
    service, saga = life.service.name, life.p.saga
    for t, call, id_ in progress_checks.updates(service, saga, life.entries):
        known.add(id_)
        proof = proofs.get(id_)
        update = f"update {call.name} of {call.document} by {t.handler} in transition {t.n}"
        if proof is None:
            if call.document not in pruned:
                yield f"RECORD AND DOCUMENT DIFFER {update} is recorded, and no document has its marker"
        elif proof.document != call.document:
            yield f"RECORD AND DOCUMENT DIFFER {update}: its marker is in {proof.document}"
        elif proof.marker.never or proof.marker.answer != call.answer or proof.marker.value != call.value:
            yield (
                f"RECORD AND DOCUMENT DIFFER {update}: recorded {_describe_answer(call)}, "
                f"the document says {_describe_answer(proof.marker)}"
            )
    undo = {role.name: role.undo.name for role in life.service.roles.handlers.values() if role.undo is not None}
    for intent in life.p.intents:
        handler = undo[intent.handler] if intent.kind == "undo" else intent.handler
        for begun in (*intent.calls, *([intent.begins] if intent.begins else [])):
            if begun.kind == "update":
                known.add(ids.update_id(service, saga, handler, intent.cause, begun.name, begun.number))


def _unrecorded(service: str, id_: str, proof: FoundMarker, cases: Mapping[str, SagaCase]) -> Iterator[Violation]:
    """Yield a violation for an update that took effect and that no transition records."""
    marker = proof.marker
    case = cases.get(marker.saga)
    if case is not None:
        if case.again:
            return
        lives = case.lives.get(service, [])
        names = {marker.handler, *_undoing(lives, marker.handler)}
        if any(letter.handler in names for life in lives for t in life.entries for letter in t.letters):
            return
    what = (
        f"an update of {proof.document} by {marker.handler} because of {marker.cause} took effect and is not recorded"
    )
    yield Violation("documents", marker.saga, service, what)


def _undoing(lives: list[ProgressLife], handler: str) -> list[str]:
    roles = (life.service.roles.handlers.get(handler) for life in lives)
    return [role.undo.name for role in roles if role is not None and role.undo is not None]


def _describe_answer(answer: Marker | StepRecord) -> str:
    if isinstance(answer, Marker) and answer.never:
        return "that it never will be made"
    return f"{answer.answer or 'applied'} {bytes(answer.value).decode()}"
