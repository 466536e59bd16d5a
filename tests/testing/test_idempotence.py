"""`check_idempotent`: what handlers do wrong that have to run again, and how it is shown."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from threading import Lock
from typing import Any, ClassVar
from uuid import uuid4  # noqa: TID251 - the mistake that is to be found

import pytest

from examples.loan.events import LoanDeclined, LoanRequested, ReviewDecided, ReviewReminded, ReviewRequested
from saga import Change, Event, Insert, Saga, Service
from saga.errors import Problems, SagaError
from saga.testing.idempotence import check_idempotent
from services.intake import OrderDocument, intake
from services.inventory import inventory
from services.inventory.events import InventoryRejected, InventoryReserved
from services.inventory.stock import OutOfStock, Stock
from services.order import order
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment import payment
from services.payment.bank import Bank
from services.payment.events import OrderPlaced, PaymentDeclined, PaymentReleased, PaymentReserved
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.engine.real_worker import an_order


@dataclass(frozen=True)
class Notes:
    charge: str = ""
    tries: int = 0


class Till:
    """A fake that gives another answer each time, and counts all its calls."""

    calls: ClassVar[int] = 0

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.away = 0

    async def take(self, key: str) -> str:
        Till.calls += 1
        self.asked.append(key)
        if self.away:
            self.away -= 1
            raise OSError("away")
        return f"charge-{Till.calls}"


def a_service(*, answers: tuple[type[Exception], ...] = ()) -> Service[Notes]:
    service = Service("payment", state=Notes)
    service.document(Stock, "stock", expected_errors=(OutOfStock,))

    @service.resource(expected_errors=answers)
    async def till() -> AsyncIterator[Till]:
        raise AssertionError("never opened: a fake stands in its place")
        yield Till()  # type: ignore[unreachable] # what makes it a generator

    return service


def reserved(order: OrderPlaced, charge: str) -> PaymentReserved:
    return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)


async def shown(service: Service[Any], *events: Event, **more: Any) -> str:
    """Report about a service that is not idempotent."""
    with pytest.raises(AssertionError) as found:
        await check_idempotent(service, *events, **more)
    return str(found.value)


@pytest.mark.parametrize(
    ("service", "more"),
    [
        (order, {}),
        (payment, {"use": [Bank()]}),
        (shipping, {"use": [Carrier()]}),
        (inventory, {"documents": {"sku-1": Stock(left=5)}}),
    ],
    ids=["order", "payment", "shipping", "inventory"],
)
async def test_the_services_of_the_example_do_the_same_again(service: Service[Any], more: dict[str, Any]) -> None:
    await check_idempotent(service, **more)


async def test_a_handler_runs_again_after_each_of_its_writes_and_a_step_is_called_once() -> None:
    service, runs = a_service(), count()

    @service.handler
    async def reserve(order: OrderPlaced, till: Till, saga: Saga[Notes]) -> PaymentReserved:
        next(runs)
        charge = await saga.step(till.take, saga.idempotency_key("charge"))
        await saga.update(Stock, order.sku, Stock.set_aside, order.quantity)
        saga.state = replace(saga.state, charge=charge)
        return reserved(order, charge)

    Till.calls = 0
    await check_idempotent(service, use=[Till()], documents={"sku-1": Stock(left=5)})
    assert Till.calls == 1, "what was asked before is answered from the record"
    # Two intents, the document, the transition are made again. The contract starts a saga, so the worker that takes
    # over supposes that nothing is known, and is refused once where an intent is there: one more run each. The last run
    # is that of the message that comes once more.
    assert next(runs) == 1 + (1 + 2 + 2 + 2) + 1


@pytest.mark.parametrize("is_right", [True, False])
async def test_a_handler_whose_steps_give_very_much_runs_again_with_all_of_it(is_right: bool) -> None:
    service, given = a_service(), list[int]()

    class Scanner(Till):
        async def take(self, key: str) -> str:
            await super().take(key)
            return key[-1] * 100_000

    @service.handler
    async def reserve(order: OrderPlaced, till: Till, saga: Saga[Notes]) -> PaymentReserved:
        first = await saga.step(till.take, saga.idempotency_key("first"))
        second = await saga.step(till.take, saga.idempotency_key("second") + first[:3])
        given.append(len(first + second))
        return reserved(order, first[0] + second[0] + ("" if is_right else uuid4().hex))

    if is_right:
        await check_idempotent(service, use=[Scanner()])
    else:
        assert "PaymentReserved, charge_id" in await shown(service, use=[Scanner()])
    assert set(given) == {200_000}


async def test_a_deadline_runs_again_as_handlers_do() -> None:
    service, runs = Service("order"), count()

    @service.deadline(within=timedelta(hours=1))
    async def expire(placed: OrderPlaced) -> OrderCancelled:
        return OrderCancelled(order_id=placed.order_id, reason=f"run {next(runs)}")

    with pytest.raises(AssertionError, match=r"order.expire did something else after its process died before write 1"):
        await check_idempotent(service)


async def test_a_deadline_that_is_closed_when_its_event_comes_has_not_run() -> None:
    service = Service("order")

    @service.handler
    async def refuse(placed: OrderPlaced) -> OrderCancelled:
        return OrderCancelled(order_id=placed.order_id, reason="never")

    @service.deadline(within=timedelta(hours=1))
    async def expire(placed: OrderPlaced) -> OrderCancelled:
        return OrderCancelled(order_id=placed.order_id, reason="nobody answered")

    with pytest.raises(Problems, match="did not run"):
        await check_idempotent(service)


async def test_a_compensation_of_which_a_deadline_gives_the_failure_runs_when_the_time_has_passed() -> None:
    service, runs = Service("approval"), count()

    @service.handler
    async def ask(requested: LoanRequested) -> ReviewRequested:
        return ReviewRequested(loan_id=requested.loan_id, applicant=requested.applicant, score=500)

    @service.compensation(ask)
    async def take_back(declined: LoanDeclined, asked: ReviewRequested) -> ReviewReminded:
        return ReviewReminded(loan_id=declined.loan_id, number=next(runs))

    @service.deadline(within=timedelta(days=7))
    async def expire(requested: LoanRequested) -> LoanDeclined:
        return LoanDeclined(loan_id=requested.loan_id, reason="nobody answered")

    text = await shown(service)
    assert text.startswith(
        "approval.take_back did something else after its process died before write 1 of 1 of its run "
        "(events: LoanRequested, the deadline expire):\n  ReviewReminded, number"
    )


async def test_the_time_of_a_deadline_passes_before_the_event_that_would_cancel_it() -> None:
    service, runs = Service("approval"), count(1)

    @service.deadline(within=timedelta(days=1), unless=(ReviewDecided,))
    async def remind(requested: LoanRequested) -> ReviewReminded:
        return ReviewReminded(loan_id=requested.loan_id, number=1)

    @service.handler
    async def answer_late(decided: ReviewDecided, reminded: ReviewReminded) -> LoanDeclined:
        return LoanDeclined(loan_id=decided.loan_id, reason=f"run {next(runs)}")

    text = await shown(service)
    assert text.startswith("approval.answer_late did something else after its process died before write 1 of 1")
    assert "(events: LoanRequested, the deadline remind, ReviewDecided)" in text


async def test_an_id_that_is_drawn_is_shown_with_both_values() -> None:
    service = Service("payment")

    @service.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return reserved(order, f"charge {uuid4()}")

    text = await shown(service)
    assert text.startswith(
        "payment.reserve did something else after its process died before write 1 of 1 of its run "
        "(events: OrderPlaced):\n  PaymentReserved, charge_id\n    first: 'charge "
    )
    assert text.count("charge_id") == text.count("again: 'charge ") == 1
    assert "Make ids with saga.idempotency_key(...)" in text.splitlines()[-1]


async def test_a_time_that_a_handler_reads_is_shown() -> None:
    service = Service("payment")

    @service.handler
    async def decline(order: OrderPlaced) -> PaymentDeclined:
        return PaymentDeclined(order_id=order.order_id, reason=f"{datetime.now(UTC):%H:%M:%S.%f}"[:-3])

    assert "PaymentDeclined, reason" in await shown(service)


async def test_an_argument_that_is_drawn_is_shown_beside_its_step() -> None:
    service = a_service()

    @service.handler
    async def reserve(order: OrderPlaced, till: Till, saga: Saga[Notes]) -> PaymentReserved:
        return reserved(order, await saga.step(till.take, f"key {uuid4()}"))

    Till.calls = 0
    text = await shown(service, use=[Till()])
    assert Till.calls == 1, "no fake is asked for something else"
    assert "before write 1 of 2 of its run" in text
    assert "  step take, argument 1\n    first: 'key " in text


async def test_an_argument_of_an_update_that_is_counted_is_shown() -> None:
    service, numbers = a_service(), count(1)

    @service.handler
    async def set_aside(order: OrderPlaced, saga: Saga[Notes]) -> None:
        await saga.update(Stock, order.sku, Stock.set_aside, next(numbers))

    text = await shown(service, use=[Till()], documents={"sku-1": Stock(left=50)})
    assert "arguments of update set_aside of stock/sku-1\n    first: of digest " in text


async def test_an_update_that_makes_another_document_the_second_time_is_shown() -> None:
    service, numbers = a_service(), count(1)

    def counted(stock: Stock) -> Stock:
        return Stock(left=next(numbers))

    @service.handler
    async def set_aside(order: OrderPlaced, saga: Saga[Notes]) -> None:
        await saga.update(Stock, order.sku, counted)

    text = await shown(service, use=[Till()], documents={"sku-1": Stock(left=50)})
    assert "before write 2 of 3" in text
    assert "  stock/sku-1, left\n    first: 1\n    again: 3" in text


async def test_steps_of_which_one_is_left_out_the_second_time_are_shown() -> None:
    service, known = a_service(), set[str]()

    @service.handler
    async def reserve(order: OrderPlaced, till: Till, saga: Saga[Notes]) -> None:
        if order.order_id not in known:
            known.add(order.order_id)
            await saga.step(till.take, saga.idempotency_key("charge"))

    assert "  call\n    first: step take\n    again: nothing" in await shown(service, use=[Till()])


async def test_a_rerun_that_the_runtime_refuses_is_shown_as_the_dead_letter_that_it_is() -> None:
    service, runs = a_service(), count(1)
    first_from_its_intent = 4
    """One run once; one for the first write again; one on what the successor of the second supposes."""

    @service.handler
    async def reserve(order: OrderPlaced, till: Till, saga: Saga[Notes]) -> None:
        await saga.step(till.take, "other" if next(runs) == first_from_its_intent else "key")

    text = await shown(service, use=[Till()])
    assert "before write 2 of 2" in text
    assert (
        "first: reserve handled\n    again: reserve dead: NotDeterministic: not deterministic: reserve recorded" in text
    )


async def test_a_state_that_counts_runs_is_shown_with_the_handler_that_changed_it() -> None:
    service, runs = Service("payment", state=Notes), count(1)

    @service.handler
    async def look(order: OrderPlaced, reserved: PaymentReserved) -> None: ...

    @service.handler
    async def reserve(order: OrderPlaced, saga: Saga[Notes]) -> PaymentReserved:
        saga.state = replace(saga.state, tries=next(runs))
        return reserved(order, "charge")

    text = await shown(service)
    assert text.startswith("payment.reserve did something else")
    assert "  saga.state, tries\n    first: 2\n    again: 3" in text


async def test_another_kind_of_event_is_shown() -> None:
    service, runs = Service("payment"), count()

    @service.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved | PaymentDeclined:
        if next(runs):
            return PaymentDeclined(order_id=order.order_id, reason="no")
        return reserved(order, "charge")

    assert "  event\n    first: PaymentReserved\n    again: PaymentDeclined" in await shown(service)


async def test_a_fake_that_is_called_without_a_step_is_named() -> None:
    service = a_service()

    @service.handler
    async def reserve(order: OrderPlaced, till: Till, saga: Saga[Notes]) -> None:
        await till.take(saga.idempotency_key("charge"))

    assert "  Till was changed by a call outside of saga.step" in await shown(service, use=[Till()])


async def test_a_fake_that_another_handler_calls_in_vain_is_no_difference() -> None:
    service, till = a_service(), Till()
    till.away = 1000

    @service.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return reserved(order, "charge")

    @service.handler
    async def take(order: OrderPlaced, _: PaymentReserved, till: Till, saga: Saga[Notes]) -> None:
        await saga.step(till.take, saga.idempotency_key("charge"))

    with pytest.raises(Problems) as found:
        await check_idempotent(service, use=[till])
    (problem,) = found.value.problems
    assert problem.startswith("take: take dead: OSError: away")


async def test_an_event_of_the_service_itself_is_brought_about_first() -> None:
    service = Service("payment")

    @service.handler
    async def capture(confirmed: OrderConfirmed, reserved: PaymentReserved) -> PaymentDeclined:
        return PaymentDeclined(order_id=confirmed.order_id, reason=str(uuid4()))

    @service.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return reserved(order, "charge")

    text = await shown(service)
    assert text.startswith("payment.capture did something else")
    assert "(events: OrderPlaced, OrderConfirmed)" in text


async def test_a_compensation_is_looked_at_too() -> None:
    service = Service("payment")

    @service.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return reserved(order, "charge")

    @service.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> PaymentReleased:
        return PaymentReleased(order_id=cancelled.order_id, charge_id=str(uuid4()))

    text = await shown(service)
    assert text.startswith("payment.release did something else")
    assert "(events: OrderPlaced, OrderCancelled)" in text


async def test_an_effect_only_on_a_stale_progress_is_found() -> None:
    service, notices = Service("payment", state=Notes), list[str]()

    @service.handler
    async def reserve(order: OrderPlaced, saga: Saga[Notes]) -> PaymentReserved:
        saga.state = replace(saga.state, charge="charge-1")
        return reserved(order, "charge-1")

    @service.handler
    async def note(cancelled: OrderCancelled, saga: Saga[Notes]) -> None:
        if saga.state.charge:
            saga.state = replace(saga.state, tries=len(notices) + 1)
        else:
            notices.append("nothing to give back")

    @service.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    text = await shown(service)
    assert "when OrderCancelled came to a worker with an old progress in its cache" in text
    assert "saga.state, tries" in text


async def test_an_effect_of_a_stale_progress_on_another_handler_is_found() -> None:
    service, notices = Service("payment", state=Notes), list[str]()

    @service.handler
    async def reserve(order: OrderPlaced, saga: Saga[Notes]) -> PaymentReserved:
        saga.state = replace(saga.state, charge="charge-1")
        return reserved(order, "charge-1")

    @service.handler
    async def look(cancelled: OrderCancelled, saga: Saga[Notes]) -> None:
        if not saga.state.charge:
            notices.append("nothing to give back")

    @service.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> PaymentReleased:
        return PaymentReleased(order_id=cancelled.order_id, charge_id=f"charge-{len(notices)}")

    text = await shown(service)
    assert text.startswith("payment.release did something else when OrderCancelled came to a worker with an old progre")
    assert "PaymentReleased, charge_id" in text


async def test_answers_and_failed_attempts_are_the_same_again() -> None:
    service = a_service(answers=(KeyError,))

    class Closed(Till):
        async def take(self, key: str) -> str:
            await super().take(key)
            raise KeyError("closed")

    @service.handler
    async def reserve(order: OrderPlaced, till: Till, saga: Saga[Notes]) -> PaymentReserved | PaymentDeclined:
        try:
            return reserved(order, await saga.step(till.take, saga.idempotency_key("charge")))
        except KeyError as why:
            return PaymentDeclined(order_id=order.order_id, reason=f"{why} {Till.calls}")

    for till in (Till(), Closed()):
        till.away, Till.calls = 3, 0
        await check_idempotent(service, use=[till])
        assert Till.calls == 4
        assert till.asked == [], "fakes are copied: those that are handed over stay as they are"


async def test_a_fake_that_cannot_be_copied_is_used_as_it_is() -> None:
    service, till = a_service(), Till()
    till.lock = Lock()  # type: ignore[attr-defined] # what cannot be copied

    @service.handler
    async def reserve(order: OrderPlaced, till: Till, saga: Saga[Notes]) -> None:
        await saga.step(till.take, saga.idempotency_key("charge"))

    await check_idempotent(service, use=[till])
    assert len(till.asked) == 1


async def test_the_events_that_are_given_are_taken_one_after_the_other() -> None:
    service, cards, reasons = Service("payment"), set[str](), set[str]()

    @service.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved | PaymentDeclined:
        cards.add(order.card)
        if order.card == "visa-2":
            return PaymentDeclined(order_id=order.order_id, reason=str(uuid4()))
        return reserved(order, "charge")

    @service.handler
    async def stop(cancelled: OrderCancelled) -> None:
        reasons.add(cancelled.reason)

    await check_idempotent(service, an_order(card="visa-1"))
    assert (cards, reasons) == ({"visa-1"}, {"reason-1"})
    assert "PaymentDeclined, reason" in await shown(service, an_order(card="visa-1"), an_order(card="visa-2"))
    assert cards == {"visa-1", "visa-2"}


async def test_each_event_that_a_handler_may_take_comes_to_it() -> None:
    service, taken = Service("order"), set[str]()

    @service.handler
    async def either(one: InventoryRejected | PaymentDeclined, goods: InventoryReserved) -> None:
        taken.add(type(one).__name__)

    await check_idempotent(service)
    assert taken == {"InventoryRejected", "PaymentDeclined"}


async def test_handlers_that_did_not_run_are_named_with_their_reasons() -> None:
    with pytest.raises(Problems) as found:
        await check_idempotent(inventory, an_order(sku="tea"))
    assert "these handlers of 'inventory' were not tested" in found.value.heading
    assert [problem.partition(":")[0] for problem in found.value.problems] == ["set_aside", "hand_out", "put_back"]
    for problem in found.value.problems:
        assert "set_aside dead: Permanent: there is no document 'tea' in 'stock'" in problem

    with pytest.raises(Problems, match=r"capture: capture waiting: for PaymentReserved .*emitted: PaymentDeclined"):
        await check_idempotent(payment, an_order(card="declined"), use=[Bank()])


async def test_a_handler_that_runs_on_one_of_the_events_given_is_known() -> None:
    await check_idempotent(payment, an_order(card="declined"), an_order(), use=[Bank()])


WRITTEN = Insert(
    key="order-1",
    document=OrderDocument(customer_id="c", sku="tea", quantity=1, total=Decimal(1), card="4242", address="Kiel"),
)


@pytest.mark.parametrize("is_caught", [False, True])
async def test_a_check_that_fails_in_a_fake_fails_though_the_handler_runs_on_another_event(is_caught: bool) -> None:
    class Checking(Till):
        async def take(self, key: str) -> str:
            assert self.asked, "nothing was asked before"
            return "charge-1"

    service = a_service()

    @service.handler
    async def pay(order: OrderPlaced, till: Till, saga: Saga[Notes]) -> PaymentReserved:
        if order.quantity == 1:
            return reserved(order, "free")
        try:
            return reserved(order, await saga.step(till.take, saga.idempotency_key("charge")))
        except AssertionError:
            if not is_caught:
                raise
            return reserved(order, "none")

    with pytest.raises(AssertionError, match="nothing was asked before"):
        await check_idempotent(
            service, replace(an_order(), quantity=1), replace(an_order(), quantity=2), use=[Checking()]
        )


async def test_a_handler_of_document_changes_runs_on_a_change_that_is_given() -> None:
    await check_idempotent(intake, WRITTEN)
    with pytest.raises(Problems, match=r"place: it waits for a change of a document, .*: give the change, Insert"):
        await check_idempotent(intake)


async def test_a_change_that_is_given_is_not_asked_for() -> None:
    mixed = Service("inventory")
    mixed.document(OrderDocument, "orders")

    @mixed.handler
    async def wait(reserved: InventoryReserved, rejected: InventoryRejected) -> InventoryReserved | None: ...

    @mixed.handler
    async def note(change: Change[OrderDocument]) -> None: ...

    with pytest.raises(Problems, match="wait: it waits for an event of this service that no other handler here emits"):
        await check_idempotent(mixed, WRITTEN)


async def test_a_handler_of_document_changes_that_does_something_else_the_second_time_is_found() -> None:
    numbers, forgetful = count(1), Service("intake")
    forgetful.document(OrderDocument, "orders")

    @forgetful.handler
    async def place(change: Change[OrderDocument]) -> OrderPlaced:
        return replace(an_order(), order_id=change.key, quantity=next(numbers))

    with pytest.raises(AssertionError, match="OrderPlaced, quantity\n    first: 1\n    again: 2"):
        await check_idempotent(forgetful, WRITTEN)


async def test_a_handler_that_waits_for_an_event_that_never_comes_is_named() -> None:
    service = Service("payment")

    @service.handler
    async def again(reserved: PaymentReserved) -> PaymentReserved:
        return reserved

    with pytest.raises(Problems, match="again: it waits for an event of this service that no other handler here emits"):
        await check_idempotent(service)


async def test_events_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SagaError, match=r"of several sagas, \['order-1', 'order-2'\]"):
        await check_idempotent(payment, an_order(), an_order("order-2"), use=[Bank()])
    with pytest.raises(SagaError, match="a PaymentReserved never arrives at 'payment'"):
        await check_idempotent(payment, reserved(an_order(), "charge"), use=[Bank()])
    with pytest.raises(SagaError, match="'payment' declares no document Stock"):
        await check_idempotent(payment, use=[Bank()], documents={"tea": Stock(left=1)})
