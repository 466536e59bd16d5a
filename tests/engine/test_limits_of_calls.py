"""Limits that a call has of its own: its turn before that of its resource, no place lost, and nothing begun before."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from saga import Breaker, BreakerOpen, Retry, Saga, Service, limited
from saga.engine import limits
from saga.engine.limits import Limiter
from saga.engine.service_runtime import UsedResource
from saga.errors import Permanent
from saga.policies.concurrency import LASTS_S
from saga.telemetry.events import BreakerTurned, CallWaited, PutOff
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.events import OrderPlaced, PaymentDeclined, PaymentReserved
from tests.engine.driven_workers import At, Workers, place
from tests.engine.real_worker import SAGA, an_order
from tests.engine.test_parking import only, process_when_due, published_timers

LOOKS_MAX = 10_000
PARKS = Retry(in_place_s=0)


class Bank:
    """Answers once it may, and fails while it has to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.held: dict[str, asyncio.Event] = {}
        self.fails = False

    @limited(at_once_max=1)
    async def statement(self, order: str) -> str:
        return await self._answers(f"statement {order}")

    async def balance(self, order: str) -> str:
        return await self._answers(f"balance {order}")

    async def _answers(self, what: str) -> str:
        self.asked.append(what)
        if what in self.held:
            await self.held[what].wait()
        if self.fails:
            raise ConnectionError("away")
        return what

    @contextmanager
    def holds(self, what: str) -> Iterator[None]:
        """A call that gets no answer until the end."""
        self.held[what] = asyncio.Event()
        yield
        self.held.pop(what).set()


class Plan:
    """Names of the calls of the bank that a handler makes, by order; of the others it is a statement."""

    def __init__(self, **calls: str) -> None:
        self.calls = calls

    def of(self, order: str) -> list[str]:
        return self.calls.get(order.replace("-", "_"), "statement").split()


def served(
    bank: Bank,
    plan: Plan,
    *,
    breaker: Breaker | None = None,
    at_once_max: int | None = None,
    answers: tuple[type[Exception], ...] = (),
) -> Service:
    payment = Service("payment", retry=PARKS)

    @payment.resource(timeout_s=30, breaker=breaker, at_once_max=at_once_max, expected_errors=answers)
    async def the_bank() -> AsyncIterator[Bank]:
        yield bank

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved | PaymentDeclined:
        try:
            for call in plan.of(order.order_id):
                await saga.step(getattr(bank, call), order.order_id)
        except BreakerOpen:
            if not answers:
                raise
            return PaymentDeclined(order_id=order.order_id, reason="nobody answers")
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved, bank: Bank, saga: Saga) -> None:
        await saga.step(bank.statement, f"{cancelled.order_id} undone")

    return payment


@pytest.fixture
async def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Workers]:
    monkeypatch.setattr(limits, "LOOK_S", 0.01)
    async with place(tmp_path) as at:
        yield at


async def until(holds: Callable[[], bool]) -> None:
    """Return when it does, after as many turns of the loop as it takes: nothing here waits for time."""
    for _ in range(LOOKS_MAX):
        if holds():
            return
        await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
    raise AssertionError("it never does")


def waiting(worker: At, resource: str, count: int = 1) -> Callable[[], bool]:
    """Whether so many wait for a turn of this call, or of the bank."""
    return lambda: any(g._line.waiting == count for g in gates(worker) if g._resource.name == resource)


def gates(worker: At) -> list[Limiter]:
    return [*worker.participant.calls.values(), *(used.limiter for used in worker.participant.used_resources.values())]


def used_by(worker: At) -> list[UsedResource]:
    return list(worker.participant.used_resources.values())


def check_empty(worker: At) -> None:
    """Check that no call holds a place, or waits for one."""
    assert [(gate._line.running, gate._line.waiting) for gate in gates(worker)] == [(0, 0)] * len(gates(worker))


def begins(worker: At, order: str) -> "asyncio.Task[object]":
    return asyncio.get_running_loop().create_task(worker.takes(an_order(order)))


async def in_vain(at: Workers, task: "asyncio.Task[object]") -> None:
    """Let pass what a handler may wait for a turn, of its 60 s 50: twice, for a run on a progress that may be old does
    not count."""
    for _ in range(LOOKS_MAX // 100):
        await at.clock.sleep(50.5)
        if (await asyncio.wait([task], timeout=0.05))[0]:
            return
    raise AssertionError("it waits for longer than there is time")


def put_off(worker: At) -> list[str]:
    return [moment.error for moment in worker.moments if isinstance(moment, PutOff)]


async def test_a_limited_call_waits_for_its_own_turn_and_others_of_its_resource_do_not(at: Workers) -> None:
    bank = Bank()
    worker = await at.worker(served(bank, Plan(order_3="balance")))
    with bank.holds("statement order-1"):
        first = begins(worker, "order-1")
        await until(lambda: bank.asked == ["statement order-1"])
        second = begins(worker, "order-2")
        await until(waiting(worker, "the_bank.statement"))
        await worker.takes(an_order("order-3"))
        assert bank.asked == ["statement order-1", "balance order-3"]
        assert (await worker.progress("order-2")).intents == (), "nothing is written before"
    await asyncio.gather(first, second)
    assert bank.asked[2:] == ["statement order-2"]
    waited = [moment.resource for moment in worker.moments if isinstance(moment, CallWaited)]
    assert waited == ["the_bank.statement"]
    check_empty(worker)


async def test_a_call_waiting_for_its_own_limit_uses_no_turn_of_the_resource(at: Workers) -> None:
    bank = Bank()
    worker = await at.worker(served(bank, Plan(order_3="balance"), at_once_max=2))
    with bank.holds("statement order-1"):
        tasks = [begins(worker, "order-1")]
        await until(lambda: bank.asked == ["statement order-1"])
        tasks.append(begins(worker, "order-2"))
        await until(waiting(worker, "the_bank.statement"))
        await worker.takes(an_order("order-3"))
        assert bank.asked[1:] == ["balance order-3"]
    await asyncio.gather(*tasks)
    check_empty(worker)


async def test_a_limited_call_passes_the_limits_of_its_resource_too(at: Workers) -> None:
    bank = Bank()
    worker = await at.worker(served(bank, Plan(order_1="balance"), at_once_max=1))
    with bank.holds("balance order-1"):
        first = begins(worker, "order-1")
        await until(lambda: bank.asked == ["balance order-1"])
        second = begins(worker, "order-2")
        await until(waiting(worker, "the_bank"))
        third = begins(worker, "order-3")
        await until(waiting(worker, "the_bank.statement"))
    await asyncio.gather(first, second, third)
    assert bank.asked == ["balance order-1", "statement order-2", "statement order-3"]
    waited = [moment.resource for moment in worker.moments if isinstance(moment, CallWaited)]
    assert sorted(waited) == ["the_bank", "the_bank.statement"]
    check_empty(worker)


async def test_a_call_waits_for_the_resource_no_longer_than_its_timeout(
    at: Workers,
) -> None:
    bank = Bank()
    worker = await at.worker(served(bank, Plan(order_1="balance"), at_once_max=1))
    with bank.holds("balance order-1"):
        first = begins(worker, "order-1")
        await until(lambda: bank.asked == ["balance order-1"])
        second = begins(worker, SAGA + "0")
        await until(waiting(worker, "the_bank"))
        await in_vain(at, second)
        p = await worker.progress(SAGA + "0")
        assert (only(p.queue).attempts, p.intents) == (0, ())
        assert put_off(worker) == ["TooManyCalls: the_bank has no turn in time: other calls come first"]
        [own] = worker.participant.calls.values()
        assert own._line.running == 0, "its place is given back"
        assert own._line.lasts_s == LASTS_S, "which says nothing about how long a call lasts"
    await first
    check_empty(worker)


async def test_a_call_that_has_no_turn_of_its_own_in_time_is_no_attempt_and_comes_again(at: Workers) -> None:
    bank = Bank()
    worker = await at.worker(served(bank, Plan()))
    with bank.holds("statement order-2"):
        first = begins(worker, "order-2")
        await until(lambda: bool(bank.asked))
        second = begins(worker, SAGA)
        await until(waiting(worker, "the_bank.statement"))
        await in_vain(at, second)
        p = await worker.progress()
        assert (only(p.queue).attempts, only(p.queue).dead, p.intents) == (0, None, ())
        assert put_off(worker) == ["TooManyCalls: the_bank.statement has no turn in time: other calls come first"]
    await first
    await process_when_due(at, worker, published_timers(worker)[-1])
    assert [(e.outcome, e.attempt) for e in await worker.history()] == [("retrying", 0), ("handled", 1)]
    check_empty(worker)


RULES = Breaker(failures=1, part=0, within_s=60, open_s=20)


async def test_a_call_refused_by_an_open_breaker_uses_no_turn_of_its_own_limit(at: Workers) -> None:
    bank = Bank()
    worker = await at.worker(served(bank, Plan(order_2="balance"), breaker=RULES))
    with bank.holds("statement order-1"):
        first = begins(worker, "order-1")
        await until(lambda: bool(bank.asked))
        bank.fails = True
        await worker.takes(an_order("order-2"))
        await worker.takes(an_order("order-3"))
        assert not first.done(), "it did not wait for that"
        assert put_off(worker) == ["BreakerOpen: the breaker of the_bank is open: calls to it failed"]
    await first
    check_empty(worker)


async def test_a_breaker_that_opens_while_a_call_waits_for_its_own_turn_refuses_it_and_no_place_is_lost(
    at: Workers,
) -> None:
    bank = Bank()
    worker = await at.worker(served(bank, Plan(), breaker=RULES))
    with bank.holds("statement order-1"):
        first = begins(worker, "order-1")
        await until(lambda: bool(bank.asked))
        second = begins(worker, "order-2")
        await until(waiting(worker, "the_bank.statement"))
        bank.fails = True
    await asyncio.gather(first, second)
    assert [moment.state for moment in worker.moments if isinstance(moment, BreakerTurned)] == ["open"]
    assert put_off(worker) == ["BreakerOpen: the breaker of the_bank is open: calls to it failed"]
    assert bank.asked == ["statement order-1"]
    check_empty(worker)
    bank.fails = False
    await at.clock.sleep(RULES.open_s)
    for wake in published_timers(worker):
        await process_when_due(at, worker, wake)
    assert sorted(bank.asked[1:]) == ["statement order-1", "statement order-2"]


async def test_an_open_breaker_is_an_answer_to_a_limited_call_as_to_any_other(at: Workers) -> None:
    bank = Bank()
    bank.fails = True
    worker = await at.worker(served(bank, Plan(), breaker=RULES, answers=(BreakerOpen,)))
    await worker.takes(an_order("order-2"))
    await worker.takes(an_order())
    [entry] = await worker.history()
    assert ([event.type for event in entry.events], len(bank.asked)) == (["PaymentDeclined"], 1)


async def test_calls_that_fail_tell_how_long_calls_last(at: Workers) -> None:
    bank, payment = Bank(), Service("payment", retry=PARKS)
    bank.fails = True

    @payment.handler
    async def reserve(order: OrderPlaced, saga: Saga) -> None:
        await saga.step(bank.statement, order.order_id)

    worker = await at.worker(payment)
    with bank.holds("statement order-1"):
        failing = begins(worker, "order-1")
        await until(lambda: bool(bank.asked))
        await at.clock.sleep(50)
    await failing
    [own] = worker.participant.calls.values()
    assert own._line.lasts_s > 5, "it was a function alone, and no resource has failed"


async def test_a_recorded_answer_needs_no_turn(at: Workers) -> None:
    bank = Bank()
    worker = await at.worker(served(bank, Plan(order_1="statement balance")))
    with bank.holds("balance order-1"):
        first = begins(worker, "order-1")
        await until(lambda: len(bank.asked) == 2)
        bank.fails = True
    await first
    bank.fails = False
    with bank.holds("statement order-2"):
        other = begins(worker, "order-2")
        await until(lambda: len(bank.asked) == 3)
        await process_when_due(at, worker, published_timers(worker)[-1])
        assert (await worker.outcomes())[-1] == ("reserve", "handled")
    await other
    assert bank.asked == ["statement order-1", "balance order-1", "statement order-2", "balance order-1"]


async def test_a_compensation_waits_as_well(at: Workers) -> None:
    bank = Bank()
    worker = await at.worker(served(bank, Plan()))
    await worker.takes(an_order())
    with bank.holds("statement order-2"):
        other = begins(worker, "order-2")
        await until(lambda: len(bank.asked) == 2)
        undoing = asyncio.get_running_loop().create_task(worker.takes(OrderCancelled(order_id=SAGA, reason="-")))
        await until(waiting(worker, "the_bank.statement"))
        assert len(bank.asked) == 2
    await asyncio.gather(other, undoing)
    assert (await worker.outcomes())[-1] == ("release", "compensated")
    check_empty(worker)


async def test_calls_of_an_abort_wait_for_limits_too(at: Workers) -> None:
    payment, bank = Service("payment", retry=PARKS), Bank()

    @payment.resource
    async def the_bank() -> AsyncIterator[Bank]:
        yield bank

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved:
        await saga.step(bank.balance, order.order_id)
        saga.on_abort(bank.statement, f"{order.order_id} undone")
        await saga.step(bank.balance, "all")
        raise Permanent("half done")

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    @payment.handler(repeats=OrderConfirmed)
    async def look(confirmed: OrderConfirmed, bank: Bank, saga: Saga) -> None:
        await saga.step(bank.statement, confirmed.order_id)

    worker = await at.worker(payment)
    await worker.takes(an_order())
    await worker.takes(an_order("order-2"))
    with bank.holds("statement order-3"):
        other = asyncio.get_running_loop().create_task(worker.takes(OrderConfirmed(order_id="order-3")))
        await until(lambda: bank.asked[-1] == "statement order-3")
        undoing = asyncio.get_running_loop().create_task(worker.takes(OrderCancelled(order_id=SAGA, reason="-")))
        await until(waiting(worker, "the_bank.statement"))
        assert bank.asked[-1] == "statement order-3"
    await asyncio.gather(other, undoing)
    assert bank.asked[-1] == "statement order-1 undone"
    check_empty(worker)


async def test_a_call_cancelled_while_waiting_for_the_resource_returns_its_own_turn(at: Workers) -> None:
    bank = Bank()
    worker = await at.worker(served(bank, Plan(order_1="balance"), at_once_max=1))
    with bank.holds("balance order-1"):
        first = begins(worker, "order-1")
        await until(lambda: bool(bank.asked))
        second = begins(worker, "order-2")
        await until(waiting(worker, "the_bank"))
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        [own] = worker.participant.calls.values()
        assert own._line.running == 0
    await first
    check_empty(worker)


# -------------------------------------------------------------------- time, and who shares the limits


async def slow(name: str) -> str:
    await asyncio.sleep(0.05)  # noqa: TID251 - longer than the short times here, and shorter than the long ones
    return name


class Slow:
    """Each call takes a twentieth of a second."""

    @limited(timeout_s=0.01)
    async def hasty(self) -> str:
        return await slow("hasty")

    @limited(timeout_s=30)
    async def patient(self) -> str:
        return await slow("patient")

    async def neither(self) -> str:
        return await slow("neither")


@limited(timeout_s=0.01)
async def hasty() -> str:
    return await slow("alone")


@pytest.mark.parametrize(
    ("call", "timeout_s", "gave_up_s"),
    [(Slow.hasty, 30, 0.01), (Slow.patient, 0.01, None), (Slow.neither, 0.01, 0.01), (hasty, 30, 0.01)],
)
async def test_the_time_of_a_call_is_its_own_or_that_of_its_resource_or_handler(
    at: Workers, call: Callable[..., object], timeout_s: float, gave_up_s: float | None
) -> None:
    payment, outside = Service("payment", retry=PARKS), Slow()

    @payment.resource(timeout_s=timeout_s, breaker=RULES)
    async def the_bank() -> AsyncIterator[Slow]:
        yield outside

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Slow, saga: Saga) -> None:
        await saga.step(getattr(bank, call.__name__) if call is not hasty else hasty)

    worker = await at.worker(payment)
    await worker.takes(an_order())
    [entry] = await worker.history()
    name = call.__name__
    assert entry.reason == (f"TimeoutError: step {name} gave no answer within {gave_up_s} s" if gave_up_s else None)
    opened = [moment.resource for moment in worker.moments if isinstance(moment, BreakerTurned)]
    assert opened == (["the_bank"] if gave_up_s and call is not hasty else []), "a timeout is its resource's failure"


class Shared:
    """What two resources inherit."""

    def __init__(self, asked: list[str], goes_on: asyncio.Event) -> None:
        self.asked, self.goes_on = asked, goes_on

    @limited(at_once_max=1)
    async def statement(self, order: str) -> str:
        self.asked.append(f"{type(self).__name__} {order}")
        await self.goes_on.wait()
        return order


class First(Shared): ...


class Second(Shared): ...


async def test_each_resource_has_the_limits_of_a_call_that_two_share_for_itself(at: Workers) -> None:
    payment, asked, goes_on = Service("payment"), list[str](), asyncio.Event()

    @payment.resource
    async def one() -> AsyncIterator[First]:
        yield First(asked, goes_on)

    @payment.resource
    async def other() -> AsyncIterator[Second]:
        yield Second(asked, goes_on)

    @payment.handler
    async def reserve(order: OrderPlaced, first: First, second: Second, saga: Saga) -> None:
        await saga.step((second if order.order_id == "order-2" else first).statement, order.order_id)

    worker = await at.worker(payment)
    tasks = [begins(worker, f"order-{number}") for number in (1, 2, 3)]
    await until(waiting(worker, "one.statement"))
    await until(lambda: len(asked) == 2)
    assert asked == ["First order-1", "Second order-2"]
    goes_on.set()
    await asyncio.gather(*tasks)
    check_empty(worker)


class Letters(Protocol):
    async def send(self, text: str) -> str: ...


class Parcels(Protocol):
    async def pack(self, text: str) -> str: ...


class Post:
    """One class of clients for two resources."""

    async def send(self, text: str) -> str:
        return text

    async def pack(self, text: str) -> str:
        return text


@pytest.mark.parametrize("is_first", [True, False])
async def test_resources_whose_clients_have_one_class_have_limits_of_their_own(at: Workers, is_first: bool) -> None:
    payment = Service("payment", retry=Retry(in_place_s=0))

    async def letters() -> AsyncIterator[Letters]:
        yield Post()

    async def parcels() -> AsyncIterator[Parcels]:
        yield Post()

    limits = [(letters, 1.0), (parcels, 1000.0)]
    for opener, rate_per_s in limits if is_first else limits[::-1]:
        payment.resource(rate_per_s=rate_per_s)(opener)

    @payment.handler
    async def reserve(order: OrderPlaced, letters: Letters, parcels: Parcels, saga: Saga) -> None:
        await saga.step(parcels.pack, order.order_id)
        await saga.step(letters.send, order.order_id)

    worker = await at.worker(payment)
    await worker.takes(an_order())
    assert {used.resource.name: used.limiter._own.free_s - at.clock.monotonic_s() for used in used_by(worker)} == {
        "letters": pytest.approx(1.0, abs=0.01),
        "parcels": pytest.approx(0.001, abs=0.01),
    }


async def test_a_function_that_each_run_defines_again_is_one_call(at: Workers) -> None:
    payment, asked, goes_on = Service("payment"), list[str](), asyncio.Event()

    @payment.handler
    async def reserve(order: OrderPlaced, saga: Saga) -> None:
        @limited(at_once_max=1)
        async def notify(order: str) -> str:
            asked.append(order)
            await goes_on.wait()
            return order

        await saga.step(notify, order.order_id)

    worker = await at.worker(payment)
    tasks = [begins(worker, f"order-{number}") for number in (1, 2)]
    await until(waiting(worker, "notify"))
    await until(lambda: bool(asked))
    assert (asked, len(worker.participant.calls)) == (["order-1"], 1)
    goes_on.set()
    await asyncio.gather(*tasks)


@limited(rate_per_s=0.25)
async def send_mail(order: str) -> str:
    return order


async def test_calls_of_a_function_alone_begin_as_often_as_its_rate_allows_and_the_others_come_again(
    at: Workers,
) -> None:
    payment = Service("payment")

    @payment.handler(timeout_s=20)
    async def reserve(order: OrderPlaced, saga: Saga) -> None:
        await saga.step(send_mail, order.order_id)

    worker = await at.worker(payment)
    began_ms = at.clock.now_ms()
    for number in (1, 2, 3):
        await worker.takes(an_order(f"order-{number}"))
    assert at.clock.now_ms() - began_ms == 8_000, "the trial's clock advances while a call waits"
    at.clock.set_to(began_ms)
    await worker.takes(an_order("order-4"))
    assert put_off(worker) == ["TooManyCalls: send_mail has no turn in time: other calls come first"]
    assert (await worker.progress("order-4")).intents == ()
