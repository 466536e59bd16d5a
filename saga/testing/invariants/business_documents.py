"""Business documents: every update took effect once, and their markers agree with the transitions."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

from saga.engine.execution import document_updates as business
from saga.engine.execution.document_updates import Marker
from saga.progress import ids
from saga.progress.document import StepRecord
from saga.testing.invariants import progress_checks
from saga.testing.invariants.evidence import Evidence, Violation
from saga.testing.invariants.progress_lives import ProgressLife
from saga.testing.invariants.saga_cases import SagaCase, SagaCases


class Proof(NamedTuple):
    """A marker found in a document: proof of an update."""

    document: str
    marker: Marker


class _Head(Struct, frozen=True):
    markers: dict[str, Raw] = {}


class _Headed(Struct):
    head: _Head = msgspec.field(name="_saga", default=_Head())


_headed = msgspec.json.Decoder(_Headed)
_marker = msgspec.json.Decoder(Marker)


def documents(evidence: Evidence, cases: SagaCases) -> Iterator[Violation]:
    """Check that no marker comes twice, changes, or goes before there are many; that recorded updates have theirs; and
    that an update that took effect is recorded, or a dead letter names its handler. Not asked of sagas that began anew
    after the memory: their ids come again. In partial evidence a marker may be gone from a document with many
    updates."""
    for name, witnessed in evidence.services.items():
        pruned = _may_be_pruned(name, cases) if evidence.partial else frozenset()
        proofs: dict[str, Proof] = {}
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


def _collect(document: str, contents: Sequence[bytes], proofs: dict[str, Proof]) -> Iterator[tuple[str, str | None]]:
    """Collect every marker that a document ever held into `proofs`; gives contradictions among them."""
    before: Mapping[str, Raw] = {}
    for content in contents:
        try:
            markers = _headed.decode(content).head.markers
            new = {id_: Proof(document, _marker.decode(raw)) for id_, raw in markers.items() if id_ not in before}
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
    """Documents that may have held so many markers at once that some were taken out: each update leaves one, and so
    does each that a compensation forbids."""
    lives = [life for case in cases.cases.values() for life in case.lives.get(service, ())]
    asked = Counter(call.document for life in lives for t in life.entries for call in t.calls if call.kind == "update")
    return frozenset(document for document, count in asked.items() if document and 2 * count > business.PRUNE_FROM)


def _contradicted(
    life: ProgressLife, proofs: Mapping[str, Proof], known: set[str], pruned: Collection[str]
) -> Iterator[str]:
    """Updates that transitions record otherwise than the documents. All that are recorded or begun go into `known`."""
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
                f"RECORD AND DOCUMENT DIFFER {update}: recorded {_in_words(call)}, "
                f"the document says {_in_words(proof.marker)}"
            )
    undo = {role.name: role.undo.name for role in life.service.roles.handlers.values() if role.undo is not None}
    for intent in life.p.intents:
        handler = undo[intent.handler] if intent.kind == "undo" else intent.handler
        for begun in (*intent.calls, *([intent.begins] if intent.begins else [])):
            if begun.kind == "update":
                known.add(ids.update_id(service, saga, handler, intent.cause, begun.name, begun.number))


def _unrecorded(service: str, id_: str, proof: Proof, cases: Mapping[str, SagaCase]) -> Iterator[Violation]:
    """Violation: an update took effect, and no transition knows of it."""
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


def _in_words(answer: Marker | StepRecord) -> str:
    if isinstance(answer, Marker) and answer.never:
        return "that it never will be made"
    return f"{answer.answer or 'applied'} {bytes(answer.value).decode()}"
