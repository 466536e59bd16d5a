"""Calls of runs: each is written down before it is made, and stays as it was until the run ends."""

from collections.abc import Iterator, Mapping

from saga.engine.errors import NotDeterministic, describe_exception
from saga.engine.execution.external_calls import REMEMBERED
from saga.engine.processing_state import RunKey
from saga.errors import BreakerOpen
from saga.progress.document import StepRecord, Transition
from saga.progress.handlers import HandlerRoles
from saga.testing.invariants.evidence import Violation
from saga.testing.invariants.progress_lives import Begun, ProgressLife
from saga.testing.invariants.saga_cases import SagaCase

_NOT_DETERMINISTIC = describe_exception(NotDeterministic(""))


def as_begun(case: SagaCase) -> Iterator[Violation]:
    """Check that each step and update was in an intent, with all answers before it, before it was made, and that what
    an intent holds neither changes nor is forgotten, to the transition that ends the run."""
    for life in case.every_life():
        wrong = _wrong(life)
        if wrong is not None:
            yield case.violation("history", wrong, life.service.name)


def asked_for_the_same(case: SagaCase) -> Iterator[Violation]:
    """Check that no handler was given up because its rerun asked for something else: with one that asks for the same in
    every rerun, whatever breaks, that cannot be."""
    for life in case.every_life():
        for t in life.entries:
            if t.outcome == "dead" and t.reason is not None and t.reason.startswith(_NOT_DETERMINISTIC):
                yield case.violation("rerun", f"{t.handler} in transition {t.n}: {t.reason}", life.service.name)


def _wrong(life: ProgressLife) -> str | None:
    """The first contradiction between the versions."""
    runs: dict[RunKey, Begun] = {}
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


def _run_of(intent: Begun) -> RunKey:
    """Key of the run that an intent is of; what is only put out of reach in lieu of a run has its calls."""
    kind = "do" if intent.kind == "lieu" and not intent.undo_with else intent.kind
    return kind, intent.handler, intent.cause


def _ended_otherwise(
    roles: HandlerRoles, entry: Transition, runs: Mapping[RunKey, Begun], begun: set[tuple[RunKey, str, int]]
) -> str | None:
    """The first call in the transition that ends a run which its intents do not have, or have otherwise."""
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
            return f"NEVER BEGUN {_in_words(call)} is in {where}, and was in no intent before it was made"
    return _changed(runs[run], entry.calls, where) if run in runs else None


def _changed(before: Begun, calls: tuple[StepRecord, ...], where: str) -> str | None:
    """The first call of an intent that a later word on its run has otherwise. `calls`: those of the later word, with
    the one that has begun. What a person answers is no call of the run any more, and stays until another one does."""
    said = {(call.name, call.number) for call in calls if call.by is not None}
    for known in before.calls:
        if known.by is not None and (known.name, known.number) not in said:
            return f"ANSWER FORGOTTEN {_in_words(known)} was given by {known.by}, and {where} does not have it"
    recorded = [call for call in before.calls if call.by is None and (call.name, call.number) not in said]
    calls = tuple(call for call in calls if call.by is None)
    for i, known in enumerate(recorded):
        if i >= len(calls) or calls[i] != known:
            now = _in_words(calls[i]) if i < len(calls) else "nothing"
            return f"CALL CHANGED {_in_words(known)} was recorded, and {where} has {now} in its place"
    begins, i = _open_call(before), len(recorded)
    if begins is not None and (begins.name, begins.number) in said:
        return None
    if begins is not None and (i >= len(calls) or _asked(calls[i]) != _asked(begins)):
        now = _in_words(calls[i]) if i < len(calls) else "nothing"
        return f"CALL CHANGED {_in_words(begins)} had begun, and {where} has {now} in its place"
    return None


def _open_call(intent: Begun) -> StepRecord | None:
    """The call that has begun and has no answer yet."""
    begins = intent.begins
    if begins is None or any((c.name, c.number) == (begins.name, begins.number) for c in intent.calls):
        return None
    return begins


def _asked(call: StepRecord) -> tuple[str, str, int, str, str | None]:
    return call.kind, call.name, call.number, call.input, call.document


def _in_words(call: StepRecord) -> str:
    answer = (
        f" -> {call.answer or ''}{bytes(call.value).decode()}" if call.answer or bytes(call.value) != b"null" else ""
    )
    return f"{call.kind} {call.name} (number {call.number}, input {call.input}){answer}"
