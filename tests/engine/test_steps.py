"""Steps at a real worker: what fails an attempt, what is recorded, what a rerun sees, and that none overlap."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import pytest

from saga import Retry, Saga, Service
from saga.messaging.names import PROGRESS
from saga.telemetry.events import Retrying, Stuck
from services.payment.events import OrderPlaced, PaymentDeclined, PaymentReserved
from tests.engine.real_worker import Workplace, an_order, at_work, workplace

Reaction = PaymentReserved | PaymentDeclined


class Declined(Exception):
    """An answer."""


class CardDeclined(Declined):
    """One that says more."""


class NeverHeard(Exception):
    """No answer that anybody declared."""


@dataclass
class Bank:
    """Answers as scripted, and remembers each call."""

    calls: list[tuple[str, ...]] = field(default_factory=list)
    fails: list[BaseException] = field(default_factory=list)
    """Raised by the next calls, one each."""
    inside: int = 0
    inside_most: int = 0

    async def charge(self, key: str, amount: Decimal | None = None) -> str:
        self.calls.append(("charge", key))
        if self.fails:
            raise self.fails.pop(0)
        return f"charge of {key}"

    async def slowly(self, key: str) -> str:
        self.inside += 1
        self.inside_most = max(self.inside_most, self.inside)
        await asyncio.sleep(0.005)  # noqa: TID251 - there is time to overlap
        self.inside -= 1
        self.calls.append(("slowly", key))
        return key

    async def never(self, key: str) -> str:
        self.calls.append(("never", key))
        await asyncio.Event().wait()
        return key

    async def hides(self, key: str) -> str:
        self.calls.append(("hides", key))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionResetError("the connection is closed") from None
        return key

    async def hides_twice(self, key: str) -> str:
        try:
            return await self.hides(key)
        except ConnectionResetError:  # as a client that is built on another one
            raise ConnectionError("the bank cannot be reached") from None

    async def limits(self, key: str) -> str:
        self.calls.append(("limits", key))
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
        return key

    async def odd(self) -> object:
        self.calls.append(("odd",))
        return {"when": object()}

    async def endless(self) -> list[object]:
        self.calls.append(("endless",))
        return endless()

    async def half(self) -> str:
        self.calls.append(("half",))
        return "\udcff"

    async def mute(self, key: str):  # type: ignore[no-untyped-def]
        self.calls.append(("mute", key))

    async def lies(self) -> int:
        self.calls.append(("lies",))
        return "no number"  # type: ignore[return-value] # no checker has seen it


def endless() -> list[object]:
    """A list that holds itself."""
    one = list[object]()
    one.append(one)
    return one


Body = Callable[[OrderPlaced, Bank, Saga], Awaitable[Reaction]]


def served(
    body: Body,
    retry: Retry | None = None,
    timeout_s: float = 60,
    step_s: float = 10,
    answers: tuple[type[Exception], ...] = (Declined,),
) -> tuple[Service, Bank]:
    """A service whose one handler does this."""
    payment, bank = Service("payment"), Bank()

    @payment.resource(timeout_s=step_s, expected_errors=answers)
    async def opened() -> AsyncIterator[Bank]:
        yield bank

    @payment.handler(retry=retry or Retry(attempts_max=2), timeout_s=timeout_s)
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved | PaymentDeclined:
        return await body(order, bank, saga)

    return payment, bank


def reserved(order: OrderPlaced, charge: str) -> PaymentReserved:
    return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)


def declined(order: OrderPlaced, reason: str) -> PaymentDeclined:
    return PaymentDeclined(order_id=order.order_id, reason=reason)


async def reason_of(place: Workplace, payment: Service) -> str:
    """Reason of the one dead letter, once there is nothing left to do."""
    await place.publish(an_order())
    await place.at_rest(payment)
    ((_, headers),) = await place.dead(payment)
    assert not await place.records("payments")
    return headers["dead_reason"]


async def test_a_step_that_gives_no_answer_in_time_has_failed_and_is_asked_again_with_the_same_key(
    tmp_path: Path,
) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        return reserved(order, await saga.step(bank.never, saga.idempotency_key("charge")))

    payment, bank = served(body, step_s=0.01)
    async with workplace(tmp_path) as place, at_work(place, payment):
        assert await reason_of(place, payment) == "TimeoutError: step never gave no answer within 0.01 s"
        assert len(bank.calls) == 2
        assert len(set(bank.calls)) == 1


@pytest.mark.parametrize(
    ("name", "answer", "reason"),
    [
        ("never", OSError, "TimeoutError: step never gave no answer within 0.01 s"),
        ("never", TimeoutError, "TimeoutError: step never gave no answer within 0.01 s"),
        ("hides", OSError, "ConnectionResetError: the connection is closed"),
        ("hides_twice", OSError, "ConnectionError: the bank cannot be reached"),
    ],
)
async def test_a_call_that_the_time_limit_interrupts_has_no_answer(
    tmp_path: Path, name: str, answer: type[Exception], reason: str
) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        try:
            return reserved(order, await saga.step(getattr(bank, name), saga.idempotency_key("charge")))
        except OSError:
            return declined(order, "the bank refused it")  # although it may have taken the money

    payment, bank = served(body, step_s=0.01, answers=(answer,))
    async with workplace(tmp_path) as place, at_work(place, payment):
        assert await reason_of(place, payment) == reason
        assert len(bank.calls) == 2


async def test_a_time_limit_of_the_client_itself_may_be_an_answer(tmp_path: Path) -> None:
    """`asyncio.timeout` raises its error from the cancellation that it has requested itself."""

    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        try:
            return reserved(order, await saga.step(bank.limits, saga.idempotency_key("charge")))
        except TimeoutError:
            return declined(order, "the bank took too long")

    payment, bank = served(body, answers=(TimeoutError,))
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        assert [entry.outcome for entry in await place.history(payment)] == ["handled"]
        assert len(bank.calls) == 1


async def test_a_timeout_that_the_client_of_a_system_raises_may_be_an_answer(tmp_path: Path) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        try:
            return reserved(order, await saga.step(bank.charge, saga.idempotency_key("charge")))
        except TimeoutError as why:
            return declined(order, str(why))

    payment, bank = served(body, answers=(TimeoutError,))
    bank.fails.append(TimeoutError("the customer did not confirm it"))
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        (record,) = await place.records("payments")
        assert record.value is not None
        assert record.value.endswith(b"the customer did not confirm it")
        assert len(bank.calls) == 1


@pytest.mark.parametrize("answers", [(Declined, CardDeclined), (CardDeclined, Declined)])
async def test_a_handler_gets_the_nearest_of_the_declared_answers(
    tmp_path: Path, answers: tuple[type[Exception], ...]
) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        try:
            return reserved(order, await saga.step(bank.charge, saga.idempotency_key("charge")))
        except CardDeclined as why:
            return declined(order, f"another card: {why}")
        except Declined as why:
            return declined(order, f"no order: {why}")

    payment, bank = served(body, answers=answers)
    bank.fails.append(CardDeclined("it has expired"))
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        (record,) = await place.records("payments")
        assert record.value is not None
        assert record.value.endswith(b"another card: it has expired")


async def test_an_undeclared_exception_fails_the_attempt_even_if_the_handler_catches_it(tmp_path: Path) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        try:
            return reserved(order, await saga.step(bank.charge, saga.idempotency_key("charge")))
        except NeverHeard:
            return declined(order, "as if it had said no")

    payment, bank = served(body)
    bank.fails = [NeverHeard("?")]
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        assert [r.error for r in place.reported(Retrying)] == ["NeverHeard: ?"]
        (entry,) = await place.history(payment)
        assert [e.type for e in entry.events] == ["PaymentReserved"]
        assert len(bank.calls) == 2


@pytest.mark.parametrize("end", [TimeoutError("mine"), asyncio.CancelledError()])
async def test_a_timeout_that_the_handler_catches_fails_the_attempt_too(tmp_path: Path, end: BaseException) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        try:
            return reserved(order, await saga.step(bank.charge, saga.idempotency_key("charge")))
        except (TimeoutError, asyncio.CancelledError):
            return declined(order, "as if it had said no")

    payment, bank = served(body)
    bank.fails = [end]
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        (entry,) = await place.history(payment)
        assert [e.type for e in entry.events] == ["PaymentReserved"]


async def test_an_answer_is_recorded_and_raised_again_in_a_rerun(tmp_path: Path) -> None:
    seen: list[str] = []

    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        try:
            await saga.step(bank.charge, saga.idempotency_key("first"))
        except Declined as why:
            seen.append(f"{why.args}")
        return reserved(order, await saga.step(bank.charge, saga.idempotency_key("second")))

    payment, bank = served(body, Retry(attempts_max=3))
    bank.fails = [Declined("limit", 7), NeverHeard("?"), NeverHeard("?")]
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        assert seen == ["('limit', 7)"] * 3
        assert [key.partition("-")[0] for _, key in bank.calls] == ["first", "second", "second", "second"]
        (entry,) = await place.history(payment)
        assert [(c.name, c.number, c.answer) for c in entry.calls] == [("charge", 1, "Declined"), ("charge", 2, None)]


async def test_after_a_failure_that_the_handler_catches_no_other_step_begins(tmp_path: Path) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        try:
            return reserved(order, await saga.step(bank.charge, "k"))
        except NeverHeard:
            return reserved(order, await saga.step(bank.slowly, "instead"))

    payment, bank = served(body)
    bank.fails = [NeverHeard("?")]
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        assert [name for name, _ in bank.calls] == ["charge", "charge"]


async def test_a_function_that_is_not_async_runs_once_and_its_message_is_a_dead_letter(tmp_path: Path) -> None:
    calls: list[str] = []

    def mail(key: str) -> str:
        calls.append(key)
        return key

    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        return reserved(order, await saga.step(mail, "k"))  # type: ignore[arg-type] # no checker has seen it

    payment, _ = served(body)
    async with workplace(tmp_path) as place, at_work(place, payment):
        assert await reason_of(place, payment) == (
            "NotAsync: 'mail' is no `async def`, and has run already: make it one, or wrap it in one"
        )
        assert calls == ["k"]
        assert [letter.blame for letter in place.reported_dead_letters()] == ["code"]


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        ("Nowhere", "name 'Nowhere' is not defined"),
        ("asyncio.Nowhere", "module 'asyncio' has no attribute 'Nowhere'"),
        ("str |", "Forward reference must be an expression"),
    ],
)
async def test_a_step_whose_annotations_cannot_be_read_is_a_dead_letter(
    tmp_path: Path, annotation: str, why: str
) -> None:
    async def vague(key: str) -> str:
        raise AssertionError

    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        return reserved(order, await saga.step(vague, "k"))

    vague.__annotations__["key"] = annotation
    payment, _ = served(body)
    async with workplace(tmp_path) as place, at_work(place, payment):
        reason = await reason_of(place, payment)
        assert reason.startswith("Permanent: the annotations of ")
        assert f"vague cannot be read: {why}" in reason


class FakeBank(Bank):
    """In the place of the bank."""


async def test_a_fake_has_the_time_of_the_resource_in_whose_place_it_is(tmp_path: Path) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        return reserved(order, await saga.step(bank.never, "k"))

    payment, _ = served(body, Retry(attempts_max=1), timeout_s=5, step_s=0.01)
    async with workplace(tmp_path) as place, at_work(place, payment, use=[FakeBank()]):
        assert await reason_of(place, payment) == "TimeoutError: step never gave no answer within 0.01 s"


async def test_an_answer_that_was_got_is_not_asked_for_again_when_the_handler_fails_after_it(tmp_path: Path) -> None:
    runs: list[str] = []

    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        runs.append(await saga.step(bank.charge, "k1"))
        if len(runs) == 1:
            raise NeverHeard("on the way")
        charge = await saga.step(bank.charge, "k2")
        if len(runs) == 2:
            raise NeverHeard("on the way home")
        return reserved(order, charge)

    payment, bank = served(body, Retry(attempts_max=3))
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        assert runs == ["charge of k1"] * 3
        assert bank.calls == [("charge", "k1"), ("charge", "k2")]


async def test_the_answer_of_a_subclass_comes_back_as_what_was_declared(tmp_path: Path) -> None:
    class Limit(Declined):
        pass

    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        try:
            await saga.step(bank.charge, "k")
        except Declined as why:
            return declined(order, f"{type(why).__name__}{why.args}")
        raise AssertionError

    payment, bank = served(body)
    bank.fails = [Limit("l")]
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        ((entry),) = await place.history(payment)
        assert b"Declined('l',)" in entry.events[0].value


async def other_step(order: OrderPlaced, bank: Bank, saga: Saga, reruns: int) -> Reaction:
    if reruns:
        await saga.step(bank.slowly, "k")
    return reserved(order, await saga.step(bank.charge, "k"))


async def other_arguments(order: OrderPlaced, bank: Bank, saga: Saga, reruns: int) -> Reaction:
    return reserved(order, await saga.step(bank.charge, f"k{reruns}"))


async def one_step_less(order: OrderPlaced, bank: Bank, saga: Saga, reruns: int) -> Reaction:
    if not reruns:
        await saga.step(bank.slowly, "k")
    return reserved(order, await saga.step(bank.charge, "k"))


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (other_step, "recorded step 'charge' (number 1) and its rerun asks for step 'slowly' (number 1)"),
        (
            other_arguments,
            "recorded step 'charge' (number 1) and its rerun asks for step 'charge' (number 1) with other arguments",
        ),
        (one_step_less, "recorded step 'slowly' (number 1) and its rerun asks for step 'charge' (number 1)"),
    ],
)
async def test_a_rerun_that_asks_for_something_else_is_a_dead_letter(
    tmp_path: Path, way: Callable[[OrderPlaced, Bank, Saga, int], Awaitable[Reaction]], reason: str
) -> None:
    runs: list[int] = []

    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        runs.append(len(runs))
        return await way(order, bank, saga, runs[-1])

    payment, bank = served(body)
    bank.fails = [NeverHeard("?")]
    async with workplace(tmp_path) as place, at_work(place, payment):
        assert await reason_of(place, payment) == f"NotDeterministic: not deterministic: reserve {reason}"
        ((_, headers),) = await place.dead(payment)
        assert headers["dead_remedy"] == (
            "let the handler make the same steps, in the same order, with the same arguments in every rerun, as the "
            "version that began it does, and replay it; or find out what the external system did, and enter it: "
            "saga dead resolve"
        )


@pytest.mark.parametrize("is_answered", [True, False])
async def test_the_end_of_a_rerun_that_skips_what_it_had_recorded_is_a_dead_letter(
    tmp_path: Path, is_answered: bool
) -> None:
    runs: list[int] = []

    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        runs.append(1)
        if len(runs) == 1:
            if is_answered:
                await saga.step(bank.slowly, "k")
            await saga.step(bank.charge, "k")
        return declined(order, "no step at all")

    payment, bank = served(body)
    bank.fails = [NeverHeard("?")]
    async with workplace(tmp_path) as place, at_work(place, payment):
        assert await reason_of(place, payment) == (
            f"NotDeterministic: not deterministic: reserve recorded step {'slowly' if is_answered else 'charge'!r} "
            "(number 1) and its rerun has ended without asking for it"
        )


async def odd_result(saga: Saga, bank: Bank) -> object:
    return await saga.step(bank.odd)  # type: ignore[type-var] # what the runtime says to code that no checker has seen


async def endless_result(saga: Saga, bank: Bank) -> object:
    return await saga.step(bank.endless)  # type: ignore[type-var] # what the runtime says to code that no checker has seen


async def half_a_text(saga: Saga, bank: Bank) -> object:
    return await saga.step(bank.half)


async def odd_argument(saga: Saga, bank: Bank) -> object:
    return await saga.step(bank.charge, object())  # type: ignore[arg-type] # no checker has seen it


async def endless_argument(saga: Saga, bank: Bank) -> object:
    return await saga.step(bank.charge, endless())  # type: ignore[arg-type] # no checker has seen it


async def no_annotation(saga: Saga, bank: Bank) -> object:
    return await saga.step(bank.mute, "k")


async def other_than_annotated(saga: Saga, bank: Bank) -> object:
    return await saga.step(bank.lies)


@pytest.mark.parametrize(
    ("way", "reason", "called"),
    [
        (odd_result, "what it returned by 'odd' cannot be recorded: ", True),
        (endless_result, "what it returned by 'endless' cannot be recorded: ", True),
        (half_a_text, "what it returned by 'half' cannot be recorded: ", True),
        (odd_argument, "argument 1 of 'charge' cannot be recorded: ", False),
        (endless_argument, "argument 1 of 'charge' cannot be recorded: ", False),
        (no_annotation, "Bank.mute has no return annotation: its result could not be read back; annotate it", False),
        (other_than_annotated, "the recorded result of 'lies' cannot be given back as <class 'int'>: ", True),
    ],
)
@pytest.mark.parametrize("caught", [False, True])
async def test_an_unrecordable_step_result_is_a_dead_letter_even_if_the_handler_catches_the_error(
    tmp_path: Path, way: Callable[[Saga, Bank], Awaitable[object]], reason: str, called: bool, caught: bool
) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        try:
            await way(saga, bank)
        except Exception:
            if not caught:
                raise
        return declined(order, "whatever")

    payment, bank = served(body)
    async with workplace(tmp_path) as place, at_work(place, payment):
        assert (await reason_of(place, payment)).startswith(f"Permanent: {reason}")
        assert bool(bank.calls) == called
        assert not place.reported(Stuck)


async def test_steps_that_are_gathered_never_overlap_and_are_recorded_in_order(tmp_path: Path) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        keys = await asyncio.gather(*(saga.step(bank.slowly, f"k{n}") for n in range(5)))
        return reserved(order, "".join(keys))

    payment, bank = served(body)
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        assert bank.inside_most == 1
        (entry,) = await place.history(payment)
        assert [(bytes(c.value), c.number) for c in entry.calls] == [(b'"k%d"' % n, n + 1) for n in range(5)]
        assert b"k0k1k2k3k4" in entry.events[0].value


async def test_a_step_left_behind_by_a_handler_that_ended_is_over_before_the_handlers_end_is_recorded(
    tmp_path: Path,
) -> None:
    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        try:
            await asyncio.gather(
                saga.step(bank.charge, "k"), saga.step(bank.slowly, "left"), saga.step(bank.slowly, "never begun")
            )
        except Declined:
            return declined(order, "no")
        raise AssertionError

    payment, bank = served(body)
    bank.fails = [Declined("no")]
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        (entry,) = await place.history(payment)
        recorded = [call.name for call in entry.calls]
        assert recorded == [name for name, *_ in bank.calls] == ["charge", "slowly"]
        assert bank.inside == 0


async def test_a_handlers_timeout_never_abandons_a_write_to_the_store(tmp_path: Path) -> None:
    began, ended = list[int](), list[int]()

    async def body(order: OrderPlaced, bank: Bank, saga: Saga) -> Reaction:
        return reserved(order, await saga.step(bank.charge, saga.idempotency_key("k")))

    payment, bank = served(body, timeout_s=0.05, retry=Retry(attempts_max=3))
    async with workplace(tmp_path) as place:
        insert = place.store.insert

        async def slow(collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
            if collection != PROGRESS:
                return await insert(collection, key, content, expiry_s=expiry_s)
            began.append(1)
            await place.clock.sleep(0.2)
            cas = await insert(collection, key, content, expiry_s=expiry_s)
            ended.append(1)
            return cas

        place.store.insert = slow  # type: ignore[method-assign] # a slow disk
        async with at_work(place, payment):
            await place.publish(an_order())
            await place.at_rest(payment)
            assert (len(began), len(ended)) == (1, 1)
            (entry,) = await place.history(payment)
            assert entry.outcome == "handled"
            assert len(bank.calls) == 1
