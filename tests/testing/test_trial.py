"""`trial`: what the author of a service learns about a run, and what is refused."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from saga import Breaker, BreakerOpen, Saga, Service, limited
from saga.errors import ConfigurationError, DeclarationError, SagaError, StoreUnavailable
from saga.store.sqlite.store import SqliteStore
from saga.testing.idempotence import check_idempotent
from saga.testing.trials import trial
from services.inventory.events import InventoryReserved
from services.inventory.stock import OutOfStock, Stock
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.events import OrderPlaced, PaymentDeclined, PaymentReserved
from tests.engine.real_worker import SAGA, an_order
from tests.engine.test_attempts import cancelled_for_a_moment, in_a_group
from tests.service.events import TripBooked


class Bank:
    """Bank that the service uses; never opened in a trial."""

    async def reserve(self, key: str) -> str:
        raise AssertionError


class FakeBank(Bank):
    def __init__(self) -> None:
        self.keys: list[str] = []
        self.away = 0

    async def reserve(self, key: str) -> str:
        self.keys.append(key)
        if self.away:
            self.away -= 1
            raise OSError("away")
        return f"charge-{len(self.keys)}"


@dataclass(frozen=True)
class Notes:
    charge: str = ""
    confirmed: bool = False


payment = Service("payment", state=Notes)
opened: list[str] = []


@payment.resource
async def bank() -> AsyncIterator[Bank]:
    opened.append("bank")
    yield Bank()


@payment.handler
async def reserve(order: OrderPlaced, bank: Bank, saga: Saga[Notes]) -> PaymentReserved:
    charge = await saga.step(bank.reserve, saga.idempotency_key("charge"))
    saga.state = replace(saga.state, charge=charge)
    return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)


@payment.handler
async def confirm(confirmed: OrderConfirmed, saga: Saga[Notes]) -> None:
    saga.state = replace(saga.state, confirmed=True)


@payment.compensation(reserve)
async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...


inventory = Service("inventory")
inventory.document(Stock, "stock", expected_errors=(OutOfStock,))


@inventory.handler
async def set_aside(order: OrderPlaced, saga: Saga) -> InventoryReserved:
    await saga.update(Stock, order.sku, Stock.set_aside, order.quantity)
    return InventoryReserved(order_id=order.order_id, sku=order.sku, quantity=order.quantity)


async def test_emitted_events_state_and_progress_are_shown() -> None:
    order = an_order()
    done = await trial(payment, order, OrderConfirmed(order_id=SAGA), use=[FakeBank()])
    assert done.emitted == [PaymentReserved(order_id=SAGA, charge_id="charge-1", amount=order.total)]
    assert done.state == Notes(charge="charge-1", confirmed=True)
    assert (done.progress.service, done.progress.saga_id) == ("payment", SAGA)
    assert [(t.handler, t.outcome) for t in done.progress.transitions] == [
        ("reserve", "handled"),
        ("confirm", "handled"),
    ]
    assert opened == [], "a fake stands in the place of what would be opened"


async def test_a_message_that_comes_again_changes_nothing() -> None:
    fake = FakeBank()
    done = await trial(payment, an_order(), an_order(), use=[fake])
    assert len(done.emitted) == len(fake.keys) == 1
    assert [t.outcome for t in done.progress.transitions] == ["handled"]


async def test_failed_attempts_take_no_time_and_ask_with_one_key() -> None:
    fake = FakeBank()
    fake.away = 7
    done = await trial(payment, an_order(), use=[fake])
    assert done.state.charge == "charge-8"
    assert len(set(fake.keys)) == 1


async def test_a_dead_letter_is_a_transition_and_no_event() -> None:
    fake = FakeBank()
    fake.away = 100
    done = await trial(payment, an_order(), use=[fake])
    assert done.emitted == []
    assert [(t.outcome, t.reason) for t in done.progress.transitions] == [("dead", "OSError: away")]


async def test_a_document_that_the_service_does_not_declare_is_refused_and_not_absent() -> None:
    done = await trial(payment, an_order(), use=[FakeBank()])
    with pytest.raises(SagaError, match="'payment' declares no document Stock"):
        done.read(Stock, "tea")


async def test_a_negative_time_is_refused() -> None:
    with pytest.raises(SagaError, match="-5 s: time does not go back"):
        await trial(payment, an_order(), timedelta(seconds=-5), use=[FakeBank()])


def check_by_assert(key: str) -> None:
    assert key == "another key"


def check_by_pytest(key: str) -> None:
    pytest.fail(f"{key}, and not another key")


@pytest.mark.parametrize("check", [check_by_assert, check_by_pytest])
async def test_a_check_that_fails_in_a_fake_fails_the_trial(check: Callable[[str], None]) -> None:
    class Checking(FakeBank):
        async def reserve(self, key: str) -> str:
            check(key)
            return "charge-1"

    with pytest.raises((AssertionError, pytest.fail.Exception), match="another key"):
        await trial(payment, an_order(), use=[Checking()])


async def test_a_late_original_is_ignored_after_its_compensation() -> None:
    fake = FakeBank()
    done = await trial(payment, OrderCancelled(order_id=SAGA, reason="-"), an_order(), use=[fake])
    assert fake.keys == []
    assert [(t.handler, t.outcome, t.reason) for t in done.progress.transitions] == [
        ("release", "compensated", "nothing of reserve to undo; it is closed"),
        ("reserve", "ignored", "its compensation has closed this handler"),
    ]


async def test_documents_are_there_from_the_beginning_and_shown_at_the_end() -> None:
    done = await trial(inventory, an_order(quantity=2), documents={"tea": Stock(left=5), "rum": Stock(left=1)})
    assert done.read(Stock, "tea") == Stock(left=3, aside=2)
    assert done.read(Stock, "rum") == Stock(left=1)
    assert done.read(Stock, "gin") is None


async def test_an_event_that_the_service_does_not_know_is_none_of_its_business() -> None:
    done = await trial(inventory, OrderConfirmed(order_id=SAGA))
    assert (list(done.emitted), done.progress.transitions) == ([], ())


async def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(SagaError, match=r"a trial is of one saga, the script is of \['order-1', 'order-2'\]"):
        await trial(payment, an_order(), an_order("order-2"), use=[FakeBank()])
    with pytest.raises(SagaError, match="the script is of"):
        await trial(payment, an_order(), TripBooked(trip_id="trip-1"), use=[FakeBank()])
    with pytest.raises(DeclarationError, match="no resource of 'inventory' is what the fake FakeBank stands for"):
        await trial(inventory, an_order(), use=[FakeBank()])
    with pytest.raises(SagaError, match="'payment' declares no document Stock"):
        await trial(payment, an_order(), use=[FakeBank()], documents={"tea": Stock(left=1)})


async def test_a_compensation_that_never_succeeds_ends_the_trial_with_an_error() -> None:
    stubborn = Service("payment")

    @stubborn.handler
    async def charge(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @stubborn.compensation(charge)
    async def give_back(cancelled: OrderCancelled, reserved: PaymentReserved) -> None:
        raise OSError("away for ever")

    with pytest.raises(
        SagaError, match=r"the trial does not come to an end: 1000 attempts failed, the last: .*away for"
    ):
        await trial(stubborn, an_order(), OrderCancelled(order_id=SAGA, reason="-"))


async def test_a_store_that_cannot_be_used_ends_the_trial_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object, **__: object) -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(SqliteStore, "insert", full)
    with pytest.raises(SagaError, match=r"^the store of the trial cannot be used: the disk is full$"):
        await trial(payment, an_order(), use=[FakeBank()])


@pytest.mark.parametrize("why", [OSError("no connection"), TimeoutError(110, "Connection timed out")])
async def test_a_resource_without_a_fake_that_does_not_open_is_reported(why: OSError) -> None:
    shut = Service("payment")

    @shut.resource
    async def bank() -> AsyncIterator[Bank]:
        raise why
        yield Bank()  # type: ignore[unreachable] # what makes it a generator

    @shut.handler
    async def note(order: OrderPlaced, bank: Bank) -> None: ...

    with pytest.raises(ConfigurationError) as refused:
        await trial(shut, an_order(), real=[Bank])
    assert f"resource bank does not open: {type(why).__name__}: {why}" in str(refused.value)


async def test_a_resource_that_yields_none_is_reported_before_anything_is_handled() -> None:
    empty = Service("payment")

    @empty.resource
    async def bank() -> AsyncIterator[Bank]:
        yield  # type: ignore[misc] # no checker has seen it

    @empty.handler
    async def note(order: OrderPlaced, bank: Bank) -> None: ...

    with pytest.raises(ConfigurationError, match="resource bank yields None: yield a Bank"):
        await trial(empty, an_order(), real=[Bank])


async def test_a_resource_is_opened_as_it_is_only_where_that_is_asked_for_by_name() -> None:
    opened, shop = [], Service("payment")

    @shop.resource
    async def bank() -> AsyncIterator[Bank]:
        opened.append("bank")
        yield Bank()

    @shop.handler
    async def note(order: OrderPlaced, bank: Bank) -> None: ...

    refused = (
        "payment.bank gives a Bank, and nothing in use=[...] stands for it: give a fake, an instance of a subclass of "
        "Bank; or real=[Bank], to have bank opened as it is"
    )
    with pytest.raises(DeclarationError, match=re.escape(refused)):
        await trial(shop, an_order())
    with pytest.raises(DeclarationError, match=re.escape(refused)):
        await check_idempotent(shop, an_order())
    assert not opened
    await trial(shop, an_order(), real=[Bank])
    assert opened == ["bank"]
    with pytest.raises(
        DeclarationError, match=r"^Bank is in real=\[...\], and use=\[...\] has a fake for it: keep one"
    ):
        await trial(shop, an_order(), use=[FakeBank()], real=[Bank])
    with pytest.raises(DeclarationError, match=r"^no resource of 'payment' gives a FakeBank, which is in real="):
        await trial(shop, an_order(), real=[Bank, FakeBank])
    assert opened == ["bank"]


async def test_a_document_that_was_refused_while_it_was_absent_reads_as_absent() -> None:
    empty = Service("inventory")
    empty.document(Stock, "stock", expected_errors=(OutOfStock,))

    def take(stock: Stock | None, quantity: int) -> Stock:
        if stock is None:
            raise OutOfStock("none")
        return stock.set_aside(quantity)

    @empty.handler
    async def set_aside(order: OrderPlaced, saga: Saga) -> InventoryReserved | None:
        try:
            await saga.update(Stock, order.sku, take, order.quantity)
        except OutOfStock:
            return None
        return InventoryReserved(order_id=order.order_id, sku=order.sku, quantity=order.quantity)

    done = await trial(empty, an_order())
    assert done.emitted == []
    assert done.read(Stock, an_order().sku) is None


@limited(rate_per_s=0.001)
async def tell(who: str) -> None: ...


async def test_limits_hold_back_nothing_and_a_fake_may_say_that_a_breaker_is_open() -> None:
    charging = Service("payment")

    @charging.resource(breaker=Breaker(failures=1, open_s=3600), rate_per_s=0.001, expected_errors=(BreakerOpen,))
    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    @charging.handler
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved:
        try:
            charge = await saga.step(bank.reserve, saga.idempotency_key("charge"))
            for who in ("customer", "shop"):
                await saga.step(tell, who)
        except BreakerOpen as why:
            charge = why.resource
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    class ClosedBank(FakeBank):
        async def reserve(self, key: str) -> str:
            raise BreakerOpen("the bank")

    failing = FakeBank()
    failing.away = 3
    seen = await trial(charging, an_order(), use=[failing])
    assert [type(event).__name__ for event in seen.emitted] == ["PaymentReserved"]
    assert len(failing.keys) == 4, "asked again, though it failed"
    result = await trial(charging, an_order(), use=[ClosedBank()])
    [reserved] = result.emitted
    assert isinstance(reserved, PaymentReserved)
    assert reserved.charge_id == "the bank"


async def test_a_service_without_a_handler_is_refused_by_name() -> None:
    with pytest.raises(DeclarationError, match="'lonely' has no handler"):
        await trial(Service("lonely"), an_order())


async def test_a_handler_that_survived_a_cancellation_times_out_in_a_trial() -> None:
    payment, attempts = Service("payment"), list[int]()

    @payment.handler(timeout_s=0.05)
    async def reserve(order: OrderPlaced) -> PaymentDeclined:
        attempts.append(1)
        if len(attempts) < 2:
            with suppress(OSError):
                await cancelled_for_a_moment()
            await asyncio.Event().wait()  # its time is over before
        return PaymentDeclined(order_id=order.order_id, reason="-")

    done = await trial(payment, an_order())
    assert (len(attempts), len(done.emitted)) == (2, 1)


async def wait_for_something_cancelled() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def leave() -> None:
    raise SystemExit("enough")


@pytest.mark.parametrize("way", [in_a_group, cancelled_for_a_moment])
@pytest.mark.parametrize("end", [wait_for_something_cancelled, leave])
async def test_a_handler_that_survived_a_cancellation_fails_in_a_trial_as_in_a_worker(
    way: Callable[[], Awaitable[None]], end: Callable[[], Awaitable[None]]
) -> None:
    payment, attempts = Service("payment"), list[int]()

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentDeclined:
        attempts.append(1)
        if len(attempts) < 3:
            with suppress(OSError, ExceptionGroup):
                await way()
            await end()
        return PaymentDeclined(order_id=order.order_id, reason="-")

    done = await trial(payment, an_order())
    assert (len(attempts), len(done.emitted)) == (3, 1)


async def test_a_trial_that_is_cancelled_ends_although_its_handler_raises_another_error() -> None:
    payment, begun = Service("payment"), asyncio.Event()

    @payment.handler
    async def reserve(order: OrderPlaced) -> None:
        if begun.is_set():
            return
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("the client was interrupted") from None

    running = asyncio.get_running_loop().create_task(trial(payment, an_order()))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
