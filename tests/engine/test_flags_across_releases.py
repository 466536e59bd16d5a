"""Flags in runs that one release began and another resumes: each run keeps the value with which it began."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from saga import Retry, Saga, Service
from saga.messaging.controls import Switch
from saga.messaging.controls import control_to_record as switched
from saga.telemetry.events import Retrying
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.real_worker import Workplace, an_order, at_work, workplace


class Bank:
    """The external system: it fails as often as it is asked to."""

    def __init__(self, fails: int) -> None:
        self.fails, self.asked = fails, list[str]()

    async def call(self, what: str) -> str:
        if self.fails == 0:
            self.asked.append(f"{what} answered")
            return what
        self.fails -= 1
        self.asked.append(what)
        raise OSError("away")


async def a_bank() -> AsyncIterator[Bank]:
    yield Bank(0)


def release(*ways: str) -> Service[None]:
    """A release whose handler does this: `step` and a name, or `flag` and a name, with `+` if it then makes a step."""
    service = Service("payment", retry=Retry(attempts_max=1000, in_place_s=1000))

    service.resource(a_bank)

    @service.handler
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved:
        for way in ways:
            what, name = way.split(" ")
            if what == "step":
                await saga.step(bank.call, name)
            elif await saga.flag(name):
                await saga.step(bank.call, f"way of {name}")
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    return service


async def resume_under_second_release(
    folder: Path, first: Service[Any], second: Service[Any], *, on: Sequence[str] = (), fails: int
) -> Any:
    """Calls of the outside that the second release makes in a run which the first one began, and whether it died."""
    bank = Bank(-1)
    async with workplace(folder) as place:
        async with at_work(place, first, use=[bank]):
            for name in on:
                await switch(place, first, name)
            bank.fails = fails
            await place.publish(an_order())
            await place.until(lambda: bank.fails < fails - 1 and bool(bank.asked))
        bank.fails, bank.asked = 0, []
        async with at_work(place, second, use=[bank]):
            await place.at_rest(second)
        return [each.removesuffix(" answered") for each in bank.asked], bool(await place.dead(second))


async def switch(place: Workplace, service: Service[Any], name: str) -> None:
    wish = Switch(flag=name, percent=100)
    await place.broker.publish(
        [switched(service.declared.name, wish, who="a test", why="to see", now_ms=place.clock.now_ms())]
    )
    await place.at_rest(service)


OLD, NEW = release("step a", "step b"), release("flag new", "step a", "step b")


@pytest.mark.parametrize(
    ("first", "second", "on", "asked", "died"),
    [
        (OLD, NEW, (), ["a", "b"], False),
        (NEW, OLD, (), ["a", "b"], False),
        (release("step a"), release("flag x", "step a", "flag y", "step b"), ("y",), ["a", "way of y", "b"], False),
        (release("flag x", "flag y", "step a"), release("flag y", "step a"), (), ["a"], False),
        (release("flag x", "step a"), release("flag y", "flag x", "step a"), ("y",), ["a"], False),
        (release("flag x", "step a"), release("step b"), (), [], True),
        (OLD, release("flag new", "step b"), (), [], True),
        (release("flag new", "step a"), OLD, ("new",), [], True),
    ],
)
async def test_a_run_goes_the_way_on_which_it_began(
    first: Service[Any], second: Service[Any], on: Sequence[str], asked: list[str], died: bool, tmp_path: Path
) -> None:
    assert await resume_under_second_release(tmp_path, first, second, on=on, fails=10**6) == (asked, died)


async def test_a_flag_that_was_the_last_that_a_run_asked_for_need_not_be_asked_for_again(tmp_path: Path) -> None:
    first, second = Service("payment", retry=Retry(attempts_max=1000, in_place_s=0)), release("step a")
    first.resource(a_bank)

    @first.handler
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved:
        await saga.step(bank.call, "a")
        await saga.flag("new")
        raise OSError("it fails behind it, and is parked with all that it has got")

    bank = Bank(0)
    async with workplace(tmp_path) as place:
        async with at_work(place, first, use=[bank]):
            await place.publish(an_order())
            await place.until(lambda: bool(place.reported(Retrying)))
            await place.clock.sleep(0.1)
        p = await place.progress(first)
        assert p is not None
        assert [call.name for call in p.intents[0].calls] == ["call", "flag new"]
        async with at_work(place, second, use=[bank]):
            await place.at_rest(second)
        assert [entry.outcome for entry in await place.history(second)][-1] == "handled"
    assert bank.asked == ["a answered"]
