"""Compensations that name what their original took: it is kept with the result, as long as that can be undone."""

from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from saga import DeclarationError, Later, Saga, Service
from saga.progress.document import PLAIN, RELEASED, encode
from saga.telemetry.events import Parked, Retrying
from saga.testing import check_idempotent, trial
from services.payment.events import (
    OrderCancelled,
    OrderConfirmed,
    OrderPlaced,
    PaymentCaptured,
    PaymentReleased,
    PaymentReserved,
)
from tests.engine.real_worker import an_order, at_work, workplace

CANCELLED = OrderCancelled(order_id="order-1", reason="no")


class Bank:
    """The outside: it notes what it is asked."""

    def __init__(self) -> None:
        self.asked, self.away = list[str](), False

    async def call(self, what: str) -> str:
        self.asked.append(what)
        if self.away:
            raise OSError("away")
        return what


def payment(takes: str) -> Service[None]:
    """A release whose compensation takes nothing, the order, or perhaps the order."""
    service = Service("payment")

    @service.resource
    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    @service.handler
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved:
        await saga.step(bank.call, "reserve")
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    async def free(
        order: OrderPlaced, cancelled: OrderCancelled, reserved: PaymentReserved, bank: Bank, saga: Saga
    ) -> PaymentReleased:
        await saga.step(bank.call, f"free {order.card}")
        return PaymentReleased(order_id=order.order_id, charge_id=reserved.charge_id)

    async def free_perhaps(
        cancelled: OrderCancelled, order: OrderPlaced | None, reserved: PaymentReserved, bank: Bank, saga: Saga
    ) -> PaymentReleased:
        await saga.step(bank.call, f"free {order.card if order else 'without'}")
        return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)

    async def free_alone(
        cancelled: OrderCancelled, reserved: PaymentReserved, bank: Bank, saga: Saga
    ) -> PaymentReleased:
        await saga.step(bank.call, "free alone")
        return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)

    undo = {"order": free, "perhaps": free_perhaps, "nothing": free_alone}[takes]
    undo.__name__ = "free"
    service.compensation(reserve)(undo)  # type: ignore[type-var] # one of three signatures
    return service


@pytest.mark.parametrize("takes", ["order", "perhaps"])
async def test_a_compensation_is_handed_what_its_original_took(takes: str) -> None:
    bank = Bank()
    seen = await trial(payment(takes), an_order(), CANCELLED, use=[bank])
    assert bank.asked == ["reserve", "free visa-1"]
    assert [type(event) for event in seen.emitted] == [PaymentReserved, PaymentReleased]
    await check_idempotent(payment(takes), use=[Bank()])


async def test_compensation_inputs_are_stored_with_the_result_only_if_named(tmp_path: Path) -> None:
    for number, takes in enumerate(("order", "nothing")):
        folder, service = tmp_path / str(number), payment(takes)
        folder.mkdir()
        async with workplace(folder) as place, at_work(place, service, use=[Bank()]):
            await place.publish(an_order())
            await place.at_rest(service)
            p = await place.progress(service)
            assert p is not None
            (result,) = p.results
            assert [m.type for m in result.consumed] == (["OrderPlaced"] if takes == "order" else [])
            assert p.format == (RELEASED if takes == "order" else PLAIN)
            assert (b'"took"' in encode(p)) == (takes == "order")
            await place.publish(CANCELLED)
            await place.at_rest(service)
            p = await place.progress(service)
            assert p is not None
            assert (p.results, p.format) == ((), PLAIN)


async def test_results_from_before_an_input_was_named_are_compensated_without_it(tmp_path: Path) -> None:
    bank, before, after = Bank(), payment("nothing"), payment("perhaps")
    async with workplace(tmp_path) as place:
        async with at_work(place, before, use=[bank]):
            await place.publish(an_order())
            await place.at_rest(before)
        async with at_work(place, after, use=[bank]):
            await place.publish(CANCELLED)
            await place.at_rest(after)
    assert bank.asked == ["reserve", "free without"]


async def test_a_compensation_without_its_required_input_is_retried_until_a_release_accepts_none(
    tmp_path: Path,
) -> None:
    bank, before, after = Bank(), payment("nothing"), payment("order")
    async with workplace(tmp_path) as place:
        async with at_work(place, before, use=[bank]):
            await place.publish(an_order())
            await place.at_rest(before)
        async with at_work(place, after, use=[bank]):
            await place.publish(CANCELLED)
            await place.until(lambda: bool(place.reported(Parked)))
            await place.clock.sleep(0.05)
        assert bank.asked == ["reserve"]
        assert "free takes OrderPlaced, which reserve took, and that is not kept" in place.reported(Parked)[0].error
        async with at_work(place, before, use=[bank]):
            await place.until(lambda: "free alone" in bank.asked)
            await place.at_rest(before)
        p = await place.progress(before)
        assert p is not None
        assert p.results == ()


async def test_a_release_that_does_not_name_it_leaves_it_for_the_one_that_does(tmp_path: Path) -> None:
    bank, before, after = Bank(), payment("nothing"), payment("order")
    bank.away = False
    async with workplace(tmp_path) as place:
        async with at_work(place, after, use=[bank]):
            await place.publish(an_order())
            await place.at_rest(after)
        async with at_work(place, before, use=[bank]):
            bank.away = True
            await place.publish(CANCELLED)
            await place.until(lambda: bool(place.reported(Retrying)) or bool(place.reported(Parked)))
            await place.clock.sleep(0.05)
        p = await place.progress(after)
        assert p is not None
        assert [m.type for m in p.results[0].consumed] == ["OrderPlaced"]


async def test_a_compensation_gets_the_named_events_of_several_turns() -> None:
    service, asked = Service("payment"), list[tuple[str, str, str]]()

    @service.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @service.handler
    async def capture(
        confirmed: OrderConfirmed, reserved: PaymentReserved, saga: Saga
    ) -> tuple[PaymentCaptured, Later] | PaymentCaptured:
        turn = PaymentCaptured(order_id=confirmed.order_id, amount=Decimal(saga.elapsed.days))
        return turn if saga.elapsed else (turn, Later(after=timedelta(days=1)))

    @service.compensation(capture)
    async def give_back(cancelled: OrderCancelled, captured: PaymentCaptured, reserved: PaymentReserved) -> None:
        asked.append((cancelled.reason, str(captured.amount), reserved.charge_id))

    await trial(service, an_order(), OrderConfirmed(order_id="order-1"), timedelta(days=2), CANCELLED)
    assert asked == [("no", "1.00", "c"), ("no", "0.00", "c")]


def test_a_compensation_may_name_only_events_of_its_original_its_outcome_and_its_result() -> None:
    service = Service("payment")

    @service.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved | None: ...

    async def another(cancelled: OrderCancelled, reserved: PaymentReserved, taken: PaymentCaptured) -> None: ...
    async def absent(cancelled: OrderCancelled, reserved: PaymentReserved | None, order: OrderPlaced) -> None: ...
    async def either(
        cancelled: OrderCancelled, reserved: PaymentReserved, order: OrderPlaced | OrderConfirmed
    ) -> None: ...

    for wrong, message in (
        (another, r"has 3 event parameters: .*may take the events that it took; no other events"),
        (either, r"has 3 event parameters: .*no other events"),
        (absent, r"takes PaymentReserved \| None: outcome and result are always there; only what reserve took"),
    ):
        with pytest.raises(DeclarationError, match=message):
            service.compensation(reserve)(wrong)
