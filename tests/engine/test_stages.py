"""Words for people about a message: how long it was where, exactly; and the trace that is handed on with its
consequences."""

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest

from saga import Retry, Saga, Service
from saga.broker.embedded.broker import EmbeddedBroker
from saga.errors import Permanent
from saga.messages import Outgoing
from saga.store.sqlite.store import SqliteStore
from saga.telemetry.events import Handled, StepDone
from services.payment.events import OrderCancelled, OrderPlaced, PaymentCaptured, PaymentReleased, PaymentReserved
from tests.engine.real_worker import SAGA, Impatient, Workplace, an_order, at_work

FIRST_S, HANDLER_S, STEP_S, STORE_S, BROKER_S = 7.0, 20.0, 50.0, 150.0, 400.0
"""Seconds that each stage takes: none is made of the others, all are much more than a machine needs for the rest, and
all of it ends before the service notes again that it works."""
REST_MS = 5000.0


def put_forward(clock: Impatient, seconds: float) -> None:
    """So much time has passed on the clock that is read, and nothing waited."""
    clock.ahead_ms += round(seconds * 1000)


class SlowStore(SqliteStore):
    clock_: Impatient

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        put_forward(self.clock_, STORE_S)
        return await super().insert(collection, key, content, expiry_s=expiry_s)

    async def replace(
        self,
        collection: str,
        key: str,
        content: bytes,
        *,
        cas: int,
        expiry_s: float | None = None,
        keep_expiry: bool = False,
    ) -> int:
        put_forward(self.clock_, STORE_S)
        return await super().replace(collection, key, content, cas=cas, expiry_s=expiry_s, keep_expiry=keep_expiry)


class SlowBroker(EmbeddedBroker):
    clock_: Impatient
    slow = False

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        if self.slow:
            put_forward(self.clock_, BROKER_S)
        await super().publish(messages)


class SlowPlace(Workplace):
    """A workplace where store and log take their time, as measured by its clock."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.slow = SlowBroker(folder / "broker.db", clock=self.clock)
        self.broker, store = self.slow, SlowStore(folder / "store.db", clock=self.clock)
        self.store, self.slow.clock_, store.clock_ = store, self.clock, self.clock


def near(seconds: float) -> object:
    return pytest.approx(seconds * 1000, abs=REST_MS)


async def test_each_stage_of_a_message_is_measured(tmp_path: Path) -> None:
    place, payment = SlowPlace(tmp_path), Service("payment")
    tried: list[str] = []

    async def ask() -> str:
        put_forward(place.clock, STEP_S)
        return "yes"

    @payment.handler(repeats=OrderPlaced, retry=Retry(attempts_max=2))
    async def reserve(order: OrderPlaced, saga: Saga) -> PaymentReserved:
        tried.append(order.sku)
        if len(tried) == 1:
            put_forward(place.clock, FIRST_S)
            raise OSError("not yet")
        put_forward(place.clock, HANDLER_S)
        if order.sku == "rum":
            await saga.step(ask)
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    async with place.opened():
        await place.publish(an_order(sku="tea"), an_order(sku="rum"))
        place.slow.slow = True
        async with at_work(place, payment):
            await place.at_rest(payment)
    first, second = place.reported(Handled)
    assert tried == ["tea", "tea", "rum"]
    assert (first.attempts, second.attempts) == (2, 1)

    assert first.queued_ms == near(0)
    assert first.handler_ms == near(FIRST_S + HANDLER_S)
    assert first.persisted_ms == near(STORE_S)
    assert first.published_ms == near(BROKER_S)
    whole_s = FIRST_S + HANDLER_S + STORE_S + BROKER_S
    assert first.total_ms == near(whole_s)

    assert second.queued_ms == near(whole_s)  # in the lane of its saga, behind the first
    assert second.handler_ms == near(HANDLER_S + STEP_S + STORE_S)  # what has to be durable before the step, too
    assert second.persisted_ms == near(STORE_S)
    assert second.published_ms == near(BROKER_S)
    assert second.total_ms == near(2 * whole_s - FIRST_S + STEP_S + STORE_S)
    (step,) = place.reported(StepDone)
    assert step.ms == near(STEP_S)


async def test_the_trace_of_a_message_continues_in_all_that_it_causes(tmp_path: Path) -> None:
    """In what a handler says, what an own event leads to, a compensation, a dead letter; and in nothing else."""
    place, payment = Workplace(tmp_path), Service("payment")
    one, other = (f"00-{letter * 32}-{letter * 16}-01".encode() for letter in "ab")

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        if order.order_id == "order-3":
            raise Permanent("it cannot be")
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.handler
    async def capture(reserved: PaymentReserved) -> PaymentCaptured:
        return PaymentCaptured(order_id=reserved.order_id, amount=reserved.amount)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> PaymentReleased:
        return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)

    cancelled = OrderCancelled(order_id=SAGA, reason="-")
    async with place.opened():
        for event, trace in (
            (an_order(), one),
            (cancelled, other),
            (an_order("order-2"), b""),
            (an_order("order-3"), one),
        ):
            record = place.record_of(event)
            headers = (*record.headers, *((("traceparent", trace),) if trace else ()))
            await place.broker.publish([record._replace(headers=headers)])
        async with at_work(place, payment):
            await place.at_rest(payment)
        published = [(r.key, dict(r.headers)) for r in await place.records("payments")]
        ((letter, _),) = await place.dead(payment)
    found = {
        (key, (headers["ce_id"] or b"").partition(b"-")[0]): headers.get("traceparent") for key, headers in published
    }
    assert found == {
        (b"order-1", b"PaymentReserved"): one,
        (b"order-1", b"PaymentCaptured"): one,
        (b"order-1", b"PaymentReleased"): other,
        (b"order-2", b"PaymentReserved"): None,
        (b"order-2", b"PaymentCaptured"): None,
    }
    assert (letter.key, dict(letter.headers)["traceparent"]) == (b"order-3", one)


async def test_a_pending_message_runs_with_its_own_trace(tmp_path: Path) -> None:
    """And not with that of the message that set it off."""
    place, payment = Workplace(tmp_path), Service("payment")
    kept, in_hand = (f"00-{letter * 32}-{letter * 16}-01".encode() for letter in "ab")

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.handler
    async def note(cancelled: OrderCancelled) -> PaymentReleased:
        return PaymentReleased(order_id=cancelled.order_id, charge_id="c")

    @payment.handler
    async def after(released: PaymentReleased) -> PaymentCaptured:
        return PaymentCaptured(order_id=released.order_id, amount=Decimal(1))

    early = place.record_of(OrderCancelled(order_id=SAGA, reason="-"), started=None)
    async with place.opened():
        for record, trace in ((early, kept), (place.record_of(an_order()), in_hand)):
            await place.broker.publish([record._replace(headers=(*record.headers, ("traceparent", trace)))])
            async with at_work(place, payment):
                await place.at_rest(payment)
        published = [dict(record.headers) for record in await place.records("payments")]
    assert {(headers["ce_type"], headers["traceparent"]) for headers in published} == {
        (b"PaymentReserved", in_hand),
        (b"PaymentReleased", kept),
        (b"PaymentCaptured", kept),
    }
