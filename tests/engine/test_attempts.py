"""Attempts that fail: made again in place, with the declared delays, until the last one; compensations without end."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from saga import Retry, Saga, Service
from saga.engine.consumer.delivery import MessageDelivery
from saga.engine.consumer.keyed_executor import WorkItem
from saga.errors import Permanent, StoreUnavailable
from saga.support.clock import SystemClock
from saga.telemetry.events import DeadLettered, Escalated, Failed, Handled, Retrying, Stuck
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.events import OrderPlaced, PaymentDeclined, PaymentReserved
from tests.engine.real_worker import SAGA, Workplace, an_order, at_work, workplace

REPLAY = "fix the cause, then retry it: saga dead replay"


def failing(why: Callable[[int], Exception | None], retry: Retry) -> tuple[Service, list[int]]:
    """A service whose handler fails at the given attempts; and the attempts it made."""
    payment, attempts = Service("payment"), list[int]()

    @payment.handler(retry=retry)
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        attempts.append(len(attempts) + 1)
        error = why(attempts[-1])
        if error is not None:
            raise error
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.handler
    async def note(confirmed: OrderConfirmed) -> None: ...

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    return payment, attempts


async def test_an_attempt_is_made_again_in_place_with_delays_that_double(tmp_path: Path) -> None:
    retry = Retry(delay_s_first=2, delay_s_max=10, in_place_s=60)
    payment, attempts = failing(lambda n: OSError("away") if n < 6 else None, retry)
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        assert attempts == [1, 2, 3, 4, 5, 6]
        retrying = place.reported(Retrying)
        assert [(r.attempt, r.delay_s) for r in retrying] == [(1, 2), (2, 4), (3, 8), (4, 10), (5, 10)]
        assert place.clock.pauses == [2, 4, 8, 10, 10]
        assert {(r.handler, r.attempts_max, r.error) for r in retrying} == {("reserve", 17, "OSError: away")}
        (entry,) = await place.history(payment)
        assert (entry.outcome, entry.attempt) == ("handled", 6)
        (handled,) = place.reported(Handled)
        assert handled.attempts == 6


async def test_a_delay_in_place_is_as_long_as_the_rules_say_however_long(tmp_path: Path) -> None:
    """It was cut at half a minute: attempts that were to outlive an hour were used up in minutes."""
    payment, _ = failing(lambda n: OSError("away") if n < 5 else None, Retry(delay_s_first=20, in_place_s=3600))
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        assert place.clock.pauses == [20, 40, 80, 160]


async def test_each_failed_attempt_is_reported_with_its_class_the_last_one_too(tmp_path: Path) -> None:
    payment, _ = failing(
        lambda n: ConnectionResetError("it hung up") if n < 4 else KeyError("no"), Retry(attempts_max=4)
    )
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        failed = [(m.handler, m.kind, m.blame) for m in place.reported(Failed)]
        assert failed == [*[("reserve", "ConnectionResetError", "outside")] * 3, *[("reserve", "KeyError", "code")]]


async def test_a_message_is_a_dead_letter_after_the_last_attempt(tmp_path: Path) -> None:
    payment, attempts = failing(lambda n: OSError("away"), Retry(attempts_max=3, delay_s_first=0.5))
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order(), an_order("order-2"))
        await place.at_rest(payment)
        assert len(attempts) == 2 * 3
        dead = [headers for _, headers in await place.dead(payment)]
        assert sorted(h["ce_subject"] for h in dead) == ["order-1", "order-2"]
        for headers in dead:
            assert headers["dead_reason"] == "OSError: away"
            assert headers["dead_attempts"] == "3"
            assert headers["dead_remedy"] == f"look why 3 attempts failed; {REPLAY}"
            assert headers["dead_handler"] == "reserve"
            assert headers["dead_what"] == "dead letter"
        assert sorted(place.clock.pauses) == [0.5, 0.5, 1, 1]
        (entry,) = await place.history(payment)
        assert (entry.outcome, entry.attempt, entry.reason) == ("dead", 3, "OSError: away")
        assert sorted(d.saga or "" for d in place.reported(DeadLettered)) == ["order-1", "order-2"]


async def test_an_exception_in_never_is_not_tried_again(tmp_path: Path) -> None:
    payment, attempts = failing(lambda n: LookupError("nobody"), Retry(never=(LookupError,)))
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        ((_, headers),) = await place.dead(payment)
        assert (headers["dead_reason"], headers["dead_attempts"]) == ("LookupError: nobody", "1")
        assert (len(attempts), place.clock.pauses, place.reported(Retrying)) == (1, [], [])


async def test_the_only_exception_in_a_group_counts_as_raised_by_the_handler(tmp_path: Path) -> None:
    def nested(n: int) -> ExceptionGroup[Exception]:
        why = LookupError("nobody")
        why.__cause__ = KeyError("card")
        return ExceptionGroup("in a group", [ExceptionGroup("in another", [why])])

    payment, attempts = failing(nested, Retry(never=(LookupError,)))
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        ((record, headers),) = await place.dead(payment)
        assert (headers["dead_reason"], len(attempts)) == ("LookupError: nobody", 1)
        assert ("dead_stack", b"from KeyError: 'card'") in record.headers


async def test_a_group_of_a_class_of_its_own_stays_that_class(tmp_path: Path) -> None:
    class Refusals(ExceptionGroup[Exception]):
        """All that a handler found wrong."""

    payment, attempts = failing(lambda n: Refusals("refused", [KeyError("card")]), Retry(never=(Refusals,)))
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        ((_, headers),) = await place.dead(payment)
        assert (headers["dead_reason"], len(attempts)) == ("Refusals: refused (1 sub-exception)", 1)


async def test_several_exceptions_in_a_group_stay_a_group(tmp_path: Path) -> None:
    payment, _ = failing(lambda n: ExceptionGroup("both", [OSError(), KeyError()]), Retry(attempts_max=2))
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        ((_, headers),) = await place.dead(payment)
        assert headers["dead_reason"] == "ExceptionGroup: both (2 sub-exceptions)"


async def test_an_exception_whose_text_is_no_unicode_is_a_dead_letter_as_any_other(tmp_path: Path) -> None:
    payment, _ = failing(lambda n: Permanent("no file a\udcff.txt"), Retry())
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        ((_, headers),) = await place.dead(payment)
        assert headers["dead_reason"] == "Permanent: no file a\\udcff.txt"
        assert not place.reported(Stuck)


async def test_an_exception_that_cannot_be_shown_is_a_dead_letter_as_any_other(tmp_path: Path) -> None:
    class Shy(Permanent):
        def __str__(self) -> str:
            raise RuntimeError("no")

    payment, _ = failing(lambda n: Shy(), Retry())
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        ((_, headers),) = await place.dead(payment)
        assert headers["dead_reason"] == "Shy: (its text raises RuntimeError)"
        assert not place.reported(Stuck)


async def test_a_handler_that_waits_for_something_cancelled_has_failed_and_is_tried_again(tmp_path: Path) -> None:
    payment, attempts = Service("payment"), list[int]()

    @payment.handler
    async def reserve(order: OrderPlaced) -> None:
        attempts.append(1)
        if len(attempts) < 2:
            gone = asyncio.get_running_loop().create_future()
            gone.cancel()
            await gone

    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        assert [r.error for r in place.reported(Retrying)] == [
            "RuntimeError: reserve waited for something that was cancelled"
        ]
        assert [e.outcome for e in await place.history(payment)] == ["handled"]


async def fail() -> None:
    await asyncio.sleep(0)  # noqa: TID251 - its group waits for it then
    raise OSError("away")


async def in_a_group() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fail())


async def cancelled_for_a_moment() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # noqa: TID251 - the cancellation arrives
    await fail()


@pytest.mark.parametrize("way", [in_a_group, cancelled_for_a_moment])
async def test_a_cancellation_that_a_handler_survived_does_not_end_the_next_pause(
    tmp_path: Path, way: Callable[[], Awaitable[None]]
) -> None:
    payment, attempts = Service("payment"), list[int]()

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentDeclined:
        task = asyncio.current_task()
        assert task is not None
        attempts.append(task.cancelling())
        if len(attempts) < 3:
            await way()
        if len(attempts) == 3:
            raise asyncio.CancelledError
        return PaymentDeclined(order_id=order.order_id, reason="-")

    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        assert [entry.outcome for entry in await place.history(payment)][-1] == "handled"
        assert attempts == [0] * 4, "no attempt counts a cancellation of the one before"


async def test_a_handler_that_survived_a_cancellation_times_out_as_any_other(tmp_path: Path) -> None:
    payment, attempts = Service("payment"), list[int]()

    @payment.handler(timeout_s=0.05)
    async def reserve(order: OrderPlaced) -> PaymentDeclined:
        attempts.append(1)
        if len(attempts) < 2:
            with suppress(Exception):
                await in_a_group()
            with suppress(Exception):
                await cancelled_for_a_moment()
            await asyncio.Event().wait()  # its time is over before
        return PaymentDeclined(order_id=order.order_id, reason="-")

    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        assert [r.error for r in place.reported(Retrying)] == [
            "TimeoutError: reserve took longer than its timeout_s=0.05, or: "
        ]
        assert [entry.outcome for entry in await place.history(payment)] == ["handled"]


async def test_a_handler_that_survives_the_end_of_its_service_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payment, attempts, begun = Service("payment"), list[str](), asyncio.Event()
    deliver = MessageDelivery.deliver

    async def deliver_or_fail(self: MessageDelivery, item: WorkItem) -> bool:
        if item.message.saga == SAGA:
            return await deliver(self, item)
        await begun.wait()
        raise ZeroDivisionError("a defect, which ends the service")

    monkeypatch.setattr(MessageDelivery, "deliver", deliver_or_fail)

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentDeclined:
        attempts.append(order.order_id)
        if len(attempts) < 2:
            begun.set()
            try:
                await asyncio.Event().wait()  # it is cancelled before
            except asyncio.CancelledError:  # as some drivers do
                raise OSError("connection closed") from None
        return PaymentDeclined(order_id=order.order_id, reason="-")

    async def serve(place: Workplace) -> None:
        async with at_work(place, payment):
            await place.publish(an_order(), an_order("order-2"))
            await asyncio.get_running_loop().create_future()

    async with workplace(tmp_path) as place:
        with pytest.raises(ExceptionGroup) as raised:
            await serve(place)
        assert raised.group_contains(ZeroDivisionError)
        assert attempts == [SAGA]


@pytest.mark.parametrize("way", [in_a_group, cancelled_for_a_moment])
async def test_a_handler_that_survived_a_cancellation_and_waits_for_something_cancelled_has_failed(
    tmp_path: Path, way: Callable[[], Awaitable[None]]
) -> None:
    payment, attempts = Service("payment"), list[int]()

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentDeclined:
        attempts.append(1)
        if len(attempts) < 2:
            with suppress(OSError, ExceptionGroup):
                await way()
            gone = asyncio.get_running_loop().create_future()
            gone.cancel()
            await gone
        return PaymentDeclined(order_id=order.order_id, reason="-")

    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        assert [r.error for r in place.reported(Retrying)] == [
            "RuntimeError: reserve waited for something that was cancelled"
        ]
        assert [entry.outcome for entry in await place.history(payment)] == ["handled"]


async def test_an_endless_reason_is_cut(tmp_path: Path) -> None:
    payment, _ = failing(lambda n: Permanent("x" * 1_000_000), Retry())
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        ((_, headers),) = await place.dead(payment)
        assert headers["dead_reason"].startswith("Permanent: xxx")
        assert len(headers["dead_reason"]) < 5_000


async def test_later_messages_queue_behind_a_dead_letter_and_the_outcome_passes(tmp_path: Path) -> None:
    payment, _ = failing(lambda n: Permanent("never"), Retry())
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order(), OrderConfirmed(order_id=SAGA))
        await place.at_rest(payment)
        assert [(e.handler, e.outcome) for e in await place.history(payment)] == [
            ("reserve", "dead"),
            ("note", "queued"),
        ]
        await place.publish(OrderCancelled(order_id=SAGA, reason="-"))
        await place.at_rest(payment)
        assert [(e.handler, e.outcome) for e in (await place.history(payment))[2:]] == [
            ("release", "compensated"),
            ("note", "handled"),
        ]
        assert [headers["dead_what"] for _, headers in await place.dead(payment)] == ["dead letter", "dropped"]


async def test_a_compensation_that_fails_is_retried_without_end_and_reported(tmp_path: Path) -> None:
    payment, attempts = Service("payment"), list[int]()

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None:
        attempts.append(len(attempts) + 1)
        if len(attempts) < 53:
            raise Permanent("not even this makes it a dead letter")

    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order(), OrderCancelled(order_id=SAGA, reason="-"))
        await place.at_rest(payment)
        moments = place.reported(Escalated)
        assert [e.reason for e in moments] == [
            f"{n} attempts failed, the last with Permanent: not even this makes it a dead letter" for n in (17, 34, 51)
        ]
        assert {(e.saga, e.handler) for e in moments} == {(SAGA, "release")}
        escalations = [headers for _, headers in await place.dead(payment)]
        assert [(h["dead_what"], h["dead_handler"], h["dead_attempts"]) for h in escalations] == [
            ("escalation", "release", "17"),
            ("escalation", "release", "34"),
        ], "what fails for long is reported less and less often"
        assert [h["dead_reason"] for h in escalations] == [e.reason for e in moments[:2]]
        history = await place.history(payment)
        assert {h["dead_undoes"] for h in escalations} == {history[0].events[0].id}
        assert history[-1].outcome == "compensated"
        assert place.clock.pauses == [0.2, 0.4, 0.8], "then no other message waits for it"
        assert [entry.attempt for entry in history if entry.outcome == "retrying"] == list(range(4, 53))
        p = await place.progress(payment)
        assert p is not None
        assert (p.results, p.compensating, p.closed) == ((), (), ("reserve",))


async def test_a_compensation_whose_rules_have_no_delay_is_tried_less_and_less_often_after_its_attempts(
    tmp_path: Path,
) -> None:
    """Else it would be tried without a pause for ever, with all that it has tried in memory."""
    payment, attempts = Service("payment", retry=Retry(attempts_max=3, delay_s_first=0)), list[int]()

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None:
        attempts.append(len(attempts) + 1)
        if len(attempts) < 9:
            raise ConnectionError("away")

    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order(), OrderCancelled(order_id=SAGA, reason="-"))
        await place.at_rest(payment)
        waits = [(moment.attempt, moment.delay_s) for moment in place.reported(Retrying)]
        assert waits == [(1, 0), (2, 0), (3, 4), (4, 8), (5, 16), (6, 32), (7, 64), (8, 128)]
        assert [entry.outcome for entry in await place.history(payment)][1:] == ["retrying"] * 6 + ["compensated"]


async def test_an_event_that_breaks_the_declaration_is_a_dead_letter_at_once(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return None  # type: ignore[return-value] # what the runtime says to code that no checker has seen

    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        ((_, headers),) = await place.dead(payment)
        assert headers["dead_reason"].startswith(
            "ReturnNotAllowed: payment.reserve returned None, which its return annotation"
        )
        assert (headers["dead_remedy"], headers["dead_attempts"]) == ("fix the handler", "1")


async def test_an_event_of_another_saga_is_not_emitted(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id="order-2", charge_id="c", amount=order.total)

    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        ((_, headers),) = await place.dead(payment)
        assert headers["dead_reason"] == (
            "Permanent: PaymentReserved has order_id='order-2', but this is saga 'order-1': emit its own id"
        )
        assert not await place.records("payments")


async def test_a_handler_that_takes_too_long_has_failed(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.handler(timeout_s=0.01, retry=Retry(attempts_max=2))
    async def reserve(order: OrderPlaced) -> None:
        await place.clock.sleep(60)

    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        ((_, headers),) = await place.dead(payment)
        assert headers["dead_reason"].startswith("TimeoutError: reserve took longer than its timeout_s=0.01")
        assert headers["dead_attempts"] == "2"


async def test_a_handler_whose_time_runs_out_while_the_store_is_away_has_not_failed(tmp_path: Path) -> None:
    payment, began = Service("payment"), list[int]()

    async def ask() -> str:
        return "-"

    @payment.handler(timeout_s=0.1, retry=Retry(attempts_max=1))
    async def reserve(order: OrderPlaced, saga: Saga[None]) -> None:
        began.append(len(began) + 1)
        await saga.step(ask)

    async with workplace(tmp_path) as place:
        insert, clock = place.store.insert, SystemClock()
        until_s = clock.monotonic_s() + 1

        async def inserted(collection: str, key: str, content: bytes, **how: object) -> int:
            if began and clock.monotonic_s() < until_s:
                raise StoreUnavailable("away")
            return await insert(collection, key, content, **how)  # type: ignore[arg-type] # as it was asked

        place.store.insert = inserted  # type: ignore[method-assign] # a store with an outage
        async with at_work(place, payment):
            await place.publish(an_order())
            await place.at_rest(payment)
            (entry,) = await place.history(payment)
            assert (entry.outcome, entry.attempt, began) == ("handled", 1, [1, 2])


async def test_a_transition_records_the_last_twenty_attempts_of_however_many(tmp_path: Path) -> None:
    payment, attempts = failing(lambda n: OSError(f"for the {n}. time"), Retry(attempts_max=30, delay_s_first=0))
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        (entry,) = await place.history(payment)
        assert (entry.outcome, entry.attempt, len(attempts)) == ("dead", 30, 30)
        assert [failed.reason for failed in entry.failures] == [f"OSError: for the {n}. time" for n in range(11, 31)]
