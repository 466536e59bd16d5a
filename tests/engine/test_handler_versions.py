"""Versions of handlers at real workers: a run keeps the one under which it began, whichever release resumes it;
and a release that has not got it leaves it alone."""

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from saga import DeclarationError, Later, Retry, Saga, Service
from saga.messages import Outgoing
from saga.messaging.operator_commands import CommandValue, StepAnswer, Wanted
from saga.messaging.operator_commands import command_to_record as commanded
from saga.ops.histories import compute_status
from saga.ops.sagas import describe_open_work
from saga.progress.document import CONTINUED, PLAIN, RELEASED, SagaProgress, Transition, encode
from saga.telemetry.events import Parked
from services.payment.events import OrderCancelled, OrderPlaced, PaymentReleased, PaymentReserved
from tests.engine.real_worker import Workplace, an_order, at_work, workplace

ONCE = Retry(attempts_max=1)
PATIENT = Retry(attempts_max=1000, in_place_s=0)


class Bank:
    """The outside: calls that are to fail do."""

    def __init__(self) -> None:
        self.asked, self.away = list[str](), {"reserve", "look"}

    async def call(self, what: str) -> str:
        self.asked.append(what)
        if what in self.away:
            raise OSError("away")
        return what


def release(version: int, *, keeps: bool = True, retry: Retry = PATIENT) -> Service[None]:
    """A release whose handler has this version: from 2 on it looks first. `keeps`: it has the way of before, too."""
    service = Service("payment", retry=retry)

    @service.resource
    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    @service.handler(version=version)
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved:
        if version >= 2 and (saga.version >= 2 or not keeps):  # the release before knows of no other way
            await saga.step(bank.call, "look")
        await saga.step(bank.call, "reserve")
        return PaymentReserved(order_id=order.order_id, charge_id=f"v{saga.version}", amount=order.total)

    @service.compensation(reserve, version=version)
    async def free(cancelled: OrderCancelled, reserved: PaymentReserved, bank: Bank, saga: Saga) -> PaymentReleased:
        await saga.step(bank.call, "free" if saga.version == 1 else "free better")
        return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)

    return service


async def begun(place: Workplace, service: Service[Any], bank: Bank, order: str = "order-1") -> SagaProgress:
    """Progress of a saga in which this release has begun, and parked, the handler."""
    async with at_work(place, service, use=[bank]):
        await place.publish(an_order(order))
        await place.until(lambda: bool(place.reported(Parked)))
        await place.clock.sleep(0.05)
    p = await place.progress(service, order)
    assert p is not None
    assert p.intents
    return p


async def outcomes(place: Workplace, service: Service[Any]) -> list[str]:
    return [entry.outcome for entry in await place.history(service)]


async def test_a_run_keeps_the_version_under_which_it_began_and_the_next_has_the_new_one(tmp_path: Path) -> None:
    bank, old, new = Bank(), release(1), release(2)
    async with workplace(tmp_path) as place:
        p = await begun(place, old, bank)
        assert (p.intents[0].handler_version, p.format) == (1, PLAIN)
        assert b"handler_version" not in encode(p)
        bank.away, bank.asked = set(), []
        async with at_work(place, new, use=[bank]):
            await place.until(lambda: bool(bank.asked))
            await place.at_rest(new)
            assert bank.asked == ["reserve"]
            await place.publish(an_order("order-2"))
            await place.at_rest(new)
        assert bank.asked == ["reserve", "look", "reserve"]
        assert (await outcomes(place, new))[-1] == "handled"


async def test_a_release_without_the_version_leaves_the_run_alone_and_everything_else_continues(tmp_path: Path) -> None:
    bank, old, new = Bank(), release(1, retry=ONCE), release(2)
    async with workplace(tmp_path) as place:
        p = await begun(place, new, bank)
        assert (p.intents[0].handler_version, p.format) == (2, RELEASED)
        assert any(line.startswith("reserve has begun on OrderPlaced (under version 2)") for line in open_lines(p))
        bank.away, bank.asked = set(), []
        place.moments.clear()
        async with at_work(place, old, use=[bank]):
            await place.until(lambda: len(place.reported(Parked)) > 2)
            await place.publish(an_order("order-2"))
            await place.until(lambda: bool(bank.asked))
            await place.clock.sleep(0.05)
        assert bank.asked == ["reserve"], "the other order, under the version of the old release"
        parked = place.reported(Parked)[0]
        assert parked.error.startswith(
            "NewerHandler: reserve began under its version 2, and this release of the service"
        )
        assert min(moment.delay_s for moment in place.reported(Parked)) >= 5
        p = await place.progress(new) or p
        assert (p.intents[0].handler_version, p.format) == (2, RELEASED)
        bank.asked = []
        async with at_work(place, new, use=[bank]):
            await place.until(lambda: "reserve" in bank.asked)
            await place.at_rest(new)
        assert bank.asked == ["look", "reserve"]
        p = await place.progress(new) or p
        assert (p.intents, p.format) == ((), PLAIN)


def open_lines(p: SagaProgress) -> list[str]:
    return describe_open_work(p, compute_status(p), {})


async def test_in_the_end_it_is_a_dead_letter_that_names_both_versions_and_resumes_under_the_newer_one(
    tmp_path: Path,
) -> None:
    bank, old, new = Bank(), release(1), release(2)
    async with workplace(tmp_path) as place:
        await begun(place, new, bank)
        bank.away, bank.asked = set(), []
        place.clock.faster = 1e6
        async with at_work(place, old, use=[bank]):
            await place.until(lambda: bool(place.reported_dead_letters()))
            await place.clock.sleep(0.05)
        assert bank.asked == []
        ((_, dead),) = await place.dead(old)
        assert dead["dead_reason"].startswith("NewerHandler: reserve began under its version 2")
        assert dead["dead_remedy"].startswith("deploy the release that began it")
        async with at_work(place, new, use=[bank]):
            await place.broker.publish([wish(place, "replay", dead)])
            await place.until(lambda: "reserve" in bank.asked)
            await place.at_rest(new)
        assert bank.asked == ["look", "reserve"]
        assert (await outcomes(place, new))[-1] == "handled"


def wish(place: Workplace, wanted: Wanted, dead: Mapping[str, str], answered: StepAnswer | None = None) -> Outgoing:
    """Wish of a person about a dead letter."""
    return commanded(
        "payment",
        "order-1",
        wanted,
        CommandValue(dead=dead["dead_id"], who="ada", why="a test", answered=answered),
        place.clock.now_ms(),
    )


async def test_after_a_rollback_an_operator_enters_the_answer_of_the_external_system_and_the_older_release_resumes(
    tmp_path: Path,
) -> None:
    bank, old, new = Bank(), release(1), release(2)
    async with workplace(tmp_path) as place:
        await begun(place, new, bank)
        bank.away, bank.asked = set(), []
        place.clock.faster = 1e6
        async with at_work(place, old, use=[bank]):
            await place.until(lambda: bool(place.reported_dead_letters()))
            ((_, dead),) = await place.dead(old)
            answer = StepAnswer(step="call", number=1, value='"reserve"')
            await place.broker.publish([wish(place, "resolve", dead, answer)])
            await place.at_rest(old)
        assert bank.asked == [], "the step that was answered is the one that the way of before makes"
        assert (await outcomes(place, old))[-1] == "handled"


async def test_a_run_that_cannot_resume_names_the_version_under_which_it_began(tmp_path: Path) -> None:
    bank, old, new = Bank(), release(1), release(2, keeps=False)
    async with workplace(tmp_path) as place:
        await begun(place, old, bank)
        bank.away, bank.asked = set(), []
        async with at_work(place, new, use=[bank]):
            await place.until(lambda: bool(place.reported_dead_letters()))
        ((_, dead),) = await place.dead(new)
        assert dead["dead_reason"].endswith("it began under version 1 of reserve, and this release has version 2")
        assert dead["dead_remedy"].startswith("keep the way of version 1 in reserve, for `saga.version == 1`; or let")


async def test_a_compensation_keeps_its_own_version(tmp_path: Path) -> None:
    bank, old, new = Bank(), release(1), release(2)
    bank.away = {"free better", "free"}
    async with workplace(tmp_path) as place:
        async with at_work(place, new, use=[bank]):
            await place.publish(an_order(), OrderCancelled(order_id="order-1", reason="no"))
            await place.until(lambda: bool(place.reported(Parked)))
            await place.clock.sleep(0.05)
        bank.away, bank.asked = set(), []
        async with at_work(place, old, use=[bank]):
            place.moments.clear()
            await place.until(lambda: bool(place.reported(Parked)))
        assert bank.asked == []
        async with at_work(place, new, use=[bank]):
            await place.until(lambda: bool(bank.asked))
            await place.at_rest(new)
        assert bank.asked == ["free better"]
        assert (await outcomes(place, new))[-1] == "compensated"


def going_on(version: int) -> Service[None]:
    """A release whose handler asks three times, a day apart."""
    service = Service("payment")

    @service.resource
    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    @service.handler(version=version)
    async def remind(order: OrderPlaced, bank: Bank, saga: Saga) -> Later | None:
        await saga.step(bank.call, f"v{saga.version}")
        return Later(after=timedelta(days=1)) if saga.elapsed < timedelta(days=2) else None

    return service


async def turns_of(place: Workplace, service: Service[Any], count: int, *, more: int) -> list[Transition]:
    """History once so many more turns are over."""
    while len(done := [e for e in await place.history(service) if e.ran]) < count + more:
        await place.clock.sleep(0.01)
    return done


async def test_all_turns_of_a_suspended_run_have_the_version_of_its_first(tmp_path: Path) -> None:
    bank, old, new = Bank(), going_on(1), going_on(2)
    async with workplace(tmp_path) as place:
        place.leaps = False
        async with at_work(place, old, use=[bank]):
            await place.publish(an_order())
            await turns_of(place, old, 0, more=1)
        place.leaps = True
        async with at_work(place, new, use=[bank]):
            await turns_of(place, new, 1, more=2)
        assert bank.asked == ["v1", "v1", "v1"]


async def test_a_suspended_run_waits_for_a_release_that_has_its_version(tmp_path: Path) -> None:
    bank, old, new = Bank(), going_on(1), going_on(2)
    async with workplace(tmp_path) as place:
        place.leaps = False
        async with at_work(place, new, use=[bank]):
            await place.publish(an_order())
            await turns_of(place, new, 0, more=1)
        p = await place.progress(new)
        assert p is not None
        assert (p.suspended_runs[0].handler_version, p.format) == (2, RELEASED)
        assert any("remind goes on with OrderPlaced at" in s and "(under version 2)" in s for s in open_lines(p))
        place.leaps = True
        async with at_work(place, old, use=[bank]):
            await place.until(lambda: bool(place.reported(Parked)))
        assert bank.asked == ["v2"]
        async with at_work(place, new, use=[bank]):
            await turns_of(place, new, 1, more=2)
        assert bank.asked == ["v2", "v2", "v2"]
        p = await place.progress(new)
        assert p is not None
        assert (p.suspended_runs, p.format) == ((), PLAIN)


async def test_a_suspended_run_of_the_first_version_keeps_the_earlier_format(tmp_path: Path) -> None:
    bank, old = Bank(), going_on(1)
    async with workplace(tmp_path) as place:
        place.leaps = False
        async with at_work(place, old, use=[bank]):
            await place.publish(an_order())
            await turns_of(place, old, 0, more=1)
        p = await place.progress(old)
        assert p is not None
        assert p.format == CONTINUED
        assert b"handler_version" not in encode(p)


@pytest.mark.parametrize("version", [0, -1, 1.0, True, "2", None])
def test_a_version_is_a_whole_number_from_1_on(version: Any) -> None:
    service = Service("payment")

    async def reserve(order: OrderPlaced) -> None: ...

    with pytest.raises(
        DeclarationError, match=r"payment\.reserve: version=.*: give a whole number, 1 for what had none"
    ):
        service.handler(version=version)(reserve)
