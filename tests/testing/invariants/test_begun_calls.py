"""Versions of a progress and of a document, one after another: a call that was never begun, an answer that changed, a
progress that only grows, a marker that went."""

from collections.abc import Callable

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace as with_

from saga.engine.execution import document_updates
from saga.errors import BreakerOpen
from saga.progress.document import SagaProgress, StepRecord, Transition, decode_progress, encode
from saga.progress.history import TRANSITIONS_MAX
from saga.testing.invariants.checks import find_violations
from saga.testing.invariants.evidence import Evidence
from tests.testing.invariants.order_runs import (
    a_run,
    an_order,
    at_the_end,
    entries_of,
    rewritten,
    with_service,
    with_transitions,
    with_versions,
)
from tests.testing.invariants.test_check import confirmed, dead, found, kinds


def changed(evidence: Evidence, name: str, change: Callable[[SagaProgress], SagaProgress]) -> Evidence:
    """With every version of a progress changed."""
    versions = evidence.services[name].versions["o-1"]
    return with_versions(evidence, name, "o-1", [encode(change(decode_progress(v))) for v in versions])


# -------------------------------------------------------------------- what a run began


async def test_a_step_that_stood_in_no_intent_is_found() -> None:
    run = await confirmed()
    without = [v for v in run.services["payment"].versions["o-1"] if not decode_progress(v).intents]
    evidence = with_versions(run, "payment", "o-1", without)
    found(
        evidence,
        "history",
        "NEVER BEGUN step reserve (number 1",
        "transition 0 of reserve",
        service="payment",
        unseen=True,
    )


async def test_a_step_that_an_open_breaker_has_answered_was_never_made_and_has_not_begun() -> None:
    def refused(entry: Transition) -> Transition:
        return with_(entry, calls=tuple(with_(call, answer=BreakerOpen.__name__) for call in entry.calls))

    run = await confirmed()
    without = [
        rewritten(p, refused) for v in run.services["payment"].versions["o-1"] if not (p := decode_progress(v)).intents
    ]
    evidence = with_versions(run, "payment", "o-1", [encode(p) for p in without])
    assert not [v for v in find_violations(evidence) if "NEVER BEGUN" in v.what and v.service == "payment"]


async def test_a_step_that_began_before_the_answer_of_the_last_was_durable_is_found() -> None:
    run = await confirmed()

    def with_a_second(p: SagaProgress) -> SagaProgress:
        """The same transition with one call more, which no intent has begun."""
        return rewritten(p, lambda e: with_(e, calls=(*e.calls, with_(e.calls[0], number=2))) if e.calls else e)

    found(
        changed(run, "shipping", with_a_second),
        "history",
        "NEVER BEGUN step book (number 2",
        service="shipping",
        unseen=True,
    )


async def test_a_call_that_went_out_with_two_inputs_is_found() -> None:
    def other(entry: Transition) -> Transition:
        return with_(entry, calls=tuple(with_(c, input="another") if c.name == "reserve" else c for c in entry.calls))

    evidence = changed(await confirmed(), "payment", lambda p: rewritten(p, other))
    found(
        evidence,
        "history",
        "CALL CHANGED step reserve (number 1",
        "had begun",
        "another",
        service="payment",
        unseen=True,
    )


async def test_an_answer_that_was_recorded_and_became_another_is_found() -> None:
    evidence = with_an_intent_after(await confirmed(), lambda call: with_(call, value=Raw(b'"another"')))
    found(evidence, "history", "CALL CHANGED", "was recorded", '"another"', service="payment", unseen=True)


async def test_an_answer_that_was_recorded_and_is_forgotten_is_found() -> None:
    evidence = with_an_intent_after(await confirmed(), lambda call: None)
    found(
        evidence, "history", "CALL CHANGED", "was recorded", "has nothing in its place", service="payment", unseen=True
    )


def with_an_intent_after(run: Evidence, change: Callable[[StepRecord], StepRecord | None]) -> Evidence:
    """After the first intent of a run one with its answer, then one of which the answers are changed."""
    versions = run.services["payment"].versions["o-1"]
    (call,) = entries_of(run, "payment")[0].calls
    p = decode_progress(versions[0])
    (intent,) = p.intents
    answered, later = (
        encode(with_(p, intents=(with_(intent, begins=None, calls=calls),)))
        for calls in ((call,), tuple(c for c in (change(call),) if c is not None))
    )
    return with_versions(run, "payment", "o-1", [versions[0], answered, later, *versions[1:]])


async def test_a_begun_call_that_a_later_intent_does_not_know_is_found() -> None:
    run = await dead()
    versions = run.services["shipping"].versions["o-1"]
    p = decode_progress(versions[-1])
    assert p.intents
    forgetful = encode(with_(p, intents=tuple(with_(i, begins=None) for i in p.intents)))
    evidence = with_versions(run, "shipping", "o-1", [*versions, forgetful])
    found(evidence, "history", "CALL CHANGED", "had begun", "has nothing in its place", service="shipping", unseen=True)


async def test_a_handler_that_was_given_up_for_asking_for_something_else_is_found() -> None:
    reason = "NotDeterministic: not deterministic: book recorded step 'book' (number 1) and its rerun asks for 'weigh'"
    evidence = with_transitions(
        await dead(), "shipping", lambda e: with_(e, reason=reason) if e.outcome == "dead" else e
    )
    found(evidence, "rerun", "book in transition", "its rerun asks for 'weigh'", service="shipping")


# -------------------------------------------------------------------- what grows


async def test_a_version_that_does_not_say_what_is_published_is_found() -> None:
    evidence = changed(await confirmed(), "shipping", lambda p: with_(p, published=0))
    found(evidence, "history", "OUT OF BOUNDS", "2 transitions has only 0 marked", service="shipping", unseen=True)


@pytest.mark.parametrize("too_many", [False, True])
async def test_a_document_with_more_transitions_than_there_may_be_is_found(too_many: bool) -> None:
    run = await confirmed()
    (entry,) = entries_of(run, "order")
    count = TRANSITIONS_MAX + too_many
    more = [with_(entry, message=f"m-{i}", outcome="ignored", events=()) for i in range(count - 1)]
    evidence = with_transitions(run, "order", lambda e: e, *more)
    if too_many:
        found(evidence, "history", "OUT OF BOUNDS", f"{count} transitions were in one document", service="order")
    else:
        assert "history" not in kinds(evidence)


# -------------------------------------------------------------------- what is written over


async def test_a_document_that_was_written_over_is_found() -> None:
    run = await a_run(an_order("o-1"), an_order("o-2"))
    ((where, versions),) = run.services["inventory"].documents.items()
    last = msgspec.json.decode(versions[-1])
    del last["_saga"]["markers"][next(iter(last["_saga"]["markers"]))]
    evidence = with_service(run, "inventory", documents={where: (*versions[:-1], msgspec.json.encode(last))})
    found(
        evidence,
        "documents",
        "WRITTEN OVER",
        "markers in stock/tea that of set_aside went",
        service="inventory",
        unseen=True,
    )


async def test_markers_may_be_pruned_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_updates, "PRUNE_FROM", 2)
    run = await a_run(an_order("o-1"), an_order("o-2"))
    ((*_, last),) = run.services["inventory"].documents.values()
    assert len(msgspec.json.decode(last)["_saga"]["markers"]) < 4
    assert find_violations(run) == find_violations(at_the_end(run)) == []
    monkeypatch.undo()
    found(at_the_end(run), "documents", "no document has its marker", service="inventory")
