"""Invariants of calls: each call is written in an intent before it is made, and recorded updates agree with the markers
in documents.
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
from saga.progress.document import ABORT, RunKey, StepRecord, Transition
from saga.progress.handlers import HandlerRoles
from saga.testing.invariants import progress_checks
from saga.testing.invariants.evidence import Evidence, ProgressLife, RecordedIntent, SagaCase, SagaCases, Violation

_NOT_DETERMINISTIC = describe_exception(NotDeterministic(""))


def check_intents(case: SagaCase) -> Iterator[Violation]:
    """Check that each step and update was written in an intent before it was made, together with all earlier answers.
    Also check that the calls in an intent stay unchanged until the transition that ends the run.
    """
    for life in case.every_life():
        wrong = _find_contradiction(life)
        if wrong is not None:
            yield case.violation("history", wrong, life.service.name)


def check_same_calls(case: SagaCase) -> Iterator[Violation]:
    """Check that no run was given up because its rerun made different calls. This never happens to a handler that makes
    the same calls in every rerun, whatever fails.
    """
    for life in case.every_life():
        for t in life.entries:
            if t.outcome == "dead" and t.reason is not None and t.reason.startswith(_NOT_DETERMINISTIC):
                yield case.violation("rerun", f"{t.handler} in transition {t.n}: {t.reason}", life.service.name)


def _find_contradiction(life: ProgressLife) -> str | None:
    """Describe the first contradiction between the calls in successive versions of a progress; `None` if there is
    none.
    """
    runs: dict[RunKey, RecordedIntent] = {}
    begun: set[tuple[RunKey, str, int]] = set()
    n = 0
    for head in life.heads:
        if head.n == n + 1:
            wrong = _find_unrecorded_call(life.service.roles, life.entries[n], runs, begun)
            if wrong is not None:
                return wrong
        n = head.n
        for intent in head.intents:
            run = _key_of_run(intent)
            before = runs.get(run)
            if before is not None:
                asked = (*intent.calls, intent.begins) if intent.begins is not None else intent.calls
                wrong = _find_changed_call(before, asked, f"the intent of {intent.handler} with {n} transitions")
                if wrong is not None:
                    return wrong
            runs[run] = intent
            if (opened := _find_open_call(intent)) is not None:
                begun.add((run, opened.name, opened.number))
    return None


def _key_of_run(intent: RecordedIntent) -> RunKey:
    """Return the key of the run that an intent belongs to.

    An intent of kind `ABORT` belongs to a compensation that replaces an original that can never finish. It has the key
    of the original run if it repeats the calls of that run, and a key of its own if it executes the calls given to
    `saga.on_abort`.
    """
    kind = "do" if intent.kind == ABORT and not intent.undo_with else intent.kind
    return kind, intent.handler, intent.cause


def _find_unrecorded_call(
    roles: HandlerRoles, entry: Transition, runs: Mapping[RunKey, RecordedIntent], begun: set[tuple[RunKey, str, int]]
) -> str | None:
    """Describe the first call in a transition that is missing from the intents of its run, or differs from them; `None`
    if there is no such call, or if the transition does not end a run.
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
    return _find_changed_call(runs[run], entry.calls, where) if run in runs else None


def _find_changed_call(before: RecordedIntent, calls: tuple[StepRecord, ...], where: str) -> str | None:
    """Describe the first call of an intent that a later record of the same run contradicts; `None` if there is none.

    An answer that an operator supplied does not count as a call of the run, but later records must contain it until the
    operator replaces it.

    `calls`: the calls of the later record, including the call that has begun.
    """
    answered = {(call.name, call.number) for call in calls if call.by is not None}
    for known in before.calls:
        if known.by is not None and (known.name, known.number) not in answered:
            return f"ANSWER FORGOTTEN {_describe_call(known)} was given by {known.by}, and {where} does not have it"
    recorded = [call for call in before.calls if call.by is None and (call.name, call.number) not in answered]
    calls = tuple(call for call in calls if call.by is None)
    for i, known in enumerate(recorded):
        if i >= len(calls) or calls[i] != known:
            now = _describe_call(calls[i]) if i < len(calls) else "nothing"
            return f"CALL CHANGED {_describe_call(known)} was recorded, and {where} has {now} in its place"
    begins, i = _find_open_call(before), len(recorded)
    if begins is not None and (begins.name, begins.number) in answered:
        return None
    if begins is not None and (i >= len(calls) or _identify_call(calls[i]) != _identify_call(begins)):
        now = _describe_call(calls[i]) if i < len(calls) else "nothing"
        return f"CALL CHANGED {_describe_call(begins)} had begun, and {where} has {now} in its place"
    return None


def _find_open_call(intent: RecordedIntent) -> StepRecord | None:
    """Return the call that has begun but has no answer yet; `None` if there is none."""
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
    """A marker found in a document. It proves that an update took effect."""

    document: str
    marker: Marker


class _MarkerHeader(Struct, frozen=True):
    markers: dict[str, Raw] = {}


class _MarkedDocument(Struct):
    head: _MarkerHeader = msgspec.field(name="_saga", default=_MarkerHeader())


_headed = msgspec.json.Decoder(_MarkedDocument)
_marker = msgspec.json.Decoder(Marker)


def check_documents(evidence: Evidence, cases: SagaCases) -> Iterator[Violation]:
    """Check that markers and recorded updates agree.

    No marker occurs twice or changes. No marker disappears, except from a document with so many that old ones are
    removed, or together with the document. Each recorded update has a marker. Each update that took effect is recorded,
    or a dead letter names its handler.

    Sagas that started again after the retention are not checked, because their ids repeat. In partial evidence a
    document with many updates may lack markers.
    """
    for name, witnessed in evidence.services.items():
        pruned = _may_be_pruned(name, cases) | witnessed.removed if evidence.partial else frozenset()
        proofs: dict[str, FoundMarker] = {}
        for (collection, key), contents in witnessed.documents.items():
            for wrong, saga in _collect_markers(f"{collection}/{key}", contents, proofs):
                if saga is None or saga not in cases.cases or not cases.cases[saga].started_again:
                    yield Violation("documents", saga, name, wrong)
        known: set[str] = set()
        for case in cases.cases.values():
            if name in case.lives and not case.started_again:
                life = case.lives[name][-1]
                yield from (
                    case.violation("documents", wrong, name)
                    for wrong in _find_contradicting_updates(life, proofs, known, pruned)
                )
        for id_, proof in proofs.items():
            if id_ not in known and proof.marker.answer is None and not proof.marker.never:
                yield from _find_unrecorded_update(name, id_, proof, cases.cases)


def _collect_markers(
    document: str, contents: Sequence[bytes], proofs: dict[str, FoundMarker]
) -> Iterator[tuple[str, str | None]]:
    """Add every marker that a document ever contained to `proofs`. Yield descriptions of contradictions among them,
    each with its saga if that is known.
    """
    before: Mapping[str, Raw] = {}
    for content in contents:
        if not content:  # the document was removed, and its markers with it
            before = {}
            continue
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
    """Return the documents with so many updates that old markers may have been removed. An update leaves one marker,
    and so does an update that a compensation prevents.
    """
    lives = [life for case in cases.cases.values() for life in case.lives.get(service, ())]
    asked = Counter(call.document for life in lives for t in life.entries for call in t.calls if call.kind == "update")
    return frozenset(document for document, count in asked.items() if document and 2 * count > business.PRUNE_FROM)


def _find_contradicting_updates(
    life: ProgressLife, proofs: Mapping[str, FoundMarker], known: set[str], pruned: Collection[str]
) -> Iterator[str]:
    """Yield descriptions of updates about which transitions and documents disagree. Add the ids of all updates that are
    recorded or have begun to `known`.
    """
    service, saga = life.service.name, life.p.saga
    for t, call, id_ in progress_checks.list_updates(service, saga, life.entries):
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


def _find_unrecorded_update(
    service: str, id_: str, proof: FoundMarker, cases: Mapping[str, SagaCase]
) -> Iterator[Violation]:
    """Yield a violation for an update that took effect, unless a dead letter explains why no transition records it."""
    marker = proof.marker
    case = cases.get(marker.saga)
    if case is not None:
        if case.started_again:
            return
        lives = case.lives.get(service, [])
        names = {marker.handler, *_find_compensations(lives, marker.handler)}
        if any(letter.handler in names for life in lives for t in life.entries for letter in t.letters):
            return
    what = (
        f"an update of {proof.document} by {marker.handler} because of {marker.cause} took effect and is not recorded"
    )
    yield Violation("documents", marker.saga, service, what)


def _find_compensations(lives: list[ProgressLife], handler: str) -> list[str]:
    roles = (life.service.roles.handlers.get(handler) for life in lives)
    return [role.undo.name for role in roles if role is not None and role.undo is not None]


def _describe_answer(answer: Marker | StepRecord) -> str:
    if isinstance(answer, Marker) and answer.never:
        return "that it never will be made"
    return f"{answer.answer or 'applied'} {bytes(answer.value).decode()}"
