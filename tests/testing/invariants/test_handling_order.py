"""Order of handling: own events are handled, the newest result is undone first, and nothing overtakes a dead letter."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace as with_

from saga import Service
from saga.messaging import envelope
from saga.progress.document import Outcome, PendingMessage, Transition
from saga.progress.handlers import HandlerRole, HandlerRoles
from saga.testing.invariants import progress_checks
from saga.testing.invariants.checks import find_progress_problem, find_violations
from saga.testing.invariants.evidence import Evidence
from services.inventory.events import (
    InventoryHandedOut,
    InventoryPutBack,
    InventoryReserved,
    OrderCancelled,
    OrderPlaced,
)
from services.payment import payment
from tests.services.waiting_order import order
from tests.testing.invariants.order_runs import Shop, an_order, entries_of, with_last, with_transitions
from tests.testing.invariants.test_check import a_message, as_it_is, confirmed, dead, found, kinds, refused, with_record

depot = Service("inventory")


@depot.handler
async def set_aside(order: OrderPlaced) -> list[InventoryReserved]:
    return [InventoryReserved(order_id=order.order_id, sku=sku, quantity=1) for sku in ("tea", "pot")]


@depot.handler(repeats=InventoryReserved)
async def label(reserved: InventoryReserved) -> InventoryHandedOut:
    return InventoryHandedOut(order_id=reserved.order_id, sku=reserved.sku, quantity=1)


@depot.compensation(set_aside)
async def put_back(cancelled: OrderCancelled, reserved: InventoryReserved) -> InventoryPutBack:
    return InventoryPutBack(order_id=cancelled.order_id, sku=reserved.sku, quantity=1)


async def labelled(card: str = "declined") -> Evidence:
    """An order of which two things are set aside, labelled, and put back if it is cancelled."""
    shop = Shop(services=(order, payment, depot))
    shop.publish(an_order(card=card))
    await shop.run()
    return shop.evidence()


async def test_no_violation_is_found_in_self_consumed_events_and_two_results() -> None:
    evidence = await labelled()
    assert find_violations(evidence) == []
    outcomes = [(e.handler, e.outcome) for e in entries_of(evidence, "inventory")]
    assert outcomes == [("set_aside", "handled"), *2 * [("label", "handled")], *2 * [("put_back", "compensated")]]


# -------------------------------------------------------------------- own events


def without(message: str) -> Callable[[Transition], Transition | None]:
    return lambda entry: None if entry.message == message else entry


async def test_a_self_consumed_event_that_was_not_handled_is_found() -> None:
    run = await labelled("visa")
    for event in entries_of(run, "inventory")[0].events:
        id_ = event.id
        evidence = with_transitions(run, "inventory", without(id_))
        evidence = with_last(evidence, "inventory", lambda p: with_(p, self_consumed=()))
        found(
            evidence, "nothing waits", f"InventoryReserved {id_} was emitted here, label has all", service="inventory"
        )


async def test_a_self_consumed_event_that_was_withdrawn_need_not_be_handled() -> None:
    evidence = with_transitions(await labelled(), "inventory", lambda e: None if e.handler == "label" else e)
    assert "nothing waits" not in kinds(evidence)


async def test_an_own_event_behind_a_dead_letter_may_wait() -> None:
    run = await labelled("visa")
    evidence = with_transitions(run, "inventory", lambda e: None if e.handler == "label" else e)
    kept = PendingMessage(handler="set_aside", message=a_message(run), n=0, dead="d")
    evidence = with_last(evidence, "inventory", lambda p: with_(p, queue=(kept,)))
    assert not [v for v in find_violations(evidence) if "was emitted here" in v.what]


async def test_a_message_pending_for_a_lost_self_consumed_event_is_found() -> None:
    run = await confirmed()
    kept = PendingMessage(handler="capture", message=a_message(run, "OrderConfirmed"), n=1)
    evidence = with_transitions(run, "payment", lambda e: None if e.handler == "capture" else e)
    evidence = with_last(
        evidence,
        "payment",
        lambda p: with_(
            p,
            self_consumed=(),
            waiting=(kept,),
            completed_runs=tuple(r for r in p.completed_runs if r.handler != "capture"),
        ),
    )
    found(evidence, "nothing waits", "OrderConfirmed", "waits for capture, and all", service="payment")


# -------------------------------------------------------------------- newest first


async def test_a_result_that_was_undone_before_a_newer_one_is_found() -> None:
    run = await labelled()
    first, second = (e.id for e in entries_of(run, "inventory")[0].events)
    other = {first: second, second: first}
    evidence = with_transitions(
        run, "inventory", lambda e: with_(e, cause=other[e.cause]) if e.outcome == "compensated" else e
    )
    found(
        evidence, "compensated", f"UNDONE OUT OF ORDER {first} by put_back, and {second} is newer", service="inventory"
    )
    assert (
        find_progress_problem(evidence.services["inventory"].service, evidence.services["inventory"].versions["o-1"])
        is not None
    )


# -------------------------------------------------------------------- in the order of the log


async def test_a_message_without_a_start_does_not_excuse_a_wrong_order() -> None:
    run = await refused()
    (cancel,) = entries_of(run, "order")
    refusal = next(r for r in run.log if envelope.type_of(r) == "ShipmentRefused")
    silent = tuple((n, b"later" if n == "ce_id" else v) for n, v in refusal.headers if n != "ce_sagastart")
    later = with_record(run, "ShipmentRefused", lambda record: record._replace(headers=silent))
    evidence = with_transitions(later, "order", lambda e: with_(e, message="shipping|later"), cancel)
    found(evidence, "in order", "OUT OF LOG ORDER", service="order")


def entry(n: int, handler: str, message: str, *others: str, outcome: Outcome = "handled") -> Transition:
    cause = "+".join(sorted((message, *others))) if others else ""
    type_ = message.partition("-")[0]
    return Transition(
        n=n, previous="", time="", outcome=outcome, handler=handler, message=message, type=type_, source="", cause=cause
    )


@pytest.mark.parametrize("later", [False, True])
def test_a_handler_of_many_takes_those_that_wait_in_the_order_of_the_log_and_the_other_part_wherever_it_lies(
    later: bool,
) -> None:
    note, place = (
        HandlerRole(name=name, takes=tuple(frozenset([t]) for t in takes), many=True)
        for name, takes in (("note", ["Left"]), ("place", ["Left", "Hall"]))
    )
    roles = HandlerRoles("hall", [note, place], outcomes=frozenset(), emitted=frozenset())
    first, second = ("Left-2", "Left-1") if later else ("Left-1", "Left-2")
    entries = [
        entry(0, "note", "Left-1"),
        entry(1, "place", "Left-1", outcome="waiting"),
        entry(2, "note", "Left-2"),
        entry(3, "place", first, "Hall-1"),
        entry(4, "place", "Hall-1", outcome="waiting"),
        entry(5, "place", second, "Hall-1"),
    ]
    wrong = progress_checks.find_wrong_log_order(roles, entries, {"Left-1": 0, "Hall-1": 1, "Left-2": 2})
    assert (wrong is not None) is later


# -------------------------------------------------------------------- behind a dead letter


async def test_a_message_handled_behind_a_dead_letter_is_found() -> None:
    run = await dead()
    (book,) = [e for e in entries_of(run, "shipping") if e.outcome == "dead"]
    evidence = with_transitions(run, "shipping", as_it_is, with_(book, outcome="handled", letters=(), calls=()))
    found(evidence, "in order", "RAN BEHIND A DEAD LETTER book", book.letters[0].id, service="shipping")
    assert find_progress_problem(evidence.services["shipping"].service, evidence.services["shipping"].versions["o-1"])


async def test_after_a_dead_letter_is_dropped_the_saga_continues() -> None:
    run = await dead()
    (book,) = [e for e in entries_of(run, "shipping") if e.outcome == "dead"]
    letter = book.letters[0]
    dropped = with_(letter, id=f"{letter.id}-dropped", kind="dropped", attempts=0)
    evidence = with_transitions(
        run,
        "shipping",
        as_it_is,
        with_(book, outcome="ignored", letters=(dropped,), calls=()),
        with_(book, outcome="handled", letters=(), calls=()),
    )
    assert "in order" not in kinds(evidence)


async def test_a_run_begun_before_a_compensation_died_is_finished() -> None:
    run = await dead()
    (book,) = [e for e in entries_of(run, "shipping") if e.outcome == "dead"]
    name = next(r.undo.name for r in run.services["shipping"].service.roles.handlers.values() if r.undo)
    undoing = with_(book.letters[0], handler=name)
    (begun,) = [e.calls for e in entries_of(await confirmed(), "shipping") if e.handler == "book" and e.calls]
    for calls, right in (((), False), (begun, True)):
        evidence = with_transitions(
            run,
            "shipping",
            lambda e: with_(e, letters=(undoing,)) if e.outcome == "dead" else e,
            with_(book, outcome="handled", letters=(), calls=calls),
        )
        assert right is not any("RAN BEHIND" in v.what for v in find_violations(evidence))
