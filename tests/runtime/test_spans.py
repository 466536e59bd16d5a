"""Times that do not go together are told at the start, all at once."""

from datetime import timedelta
from pathlib import Path

from saga import Retry, Service
from saga.observe.moments import Misfit, Started
from saga.runtime.spans import misfits, span_s
from services.order.events import OrderConfirmed, OrderPlaced
from tests.runtime.real_worker import at_work, workplace

HASTY = Retry(attempts_max=3)


def forgetful(memory: timedelta) -> Service[None]:
    order = Service("order", memory=memory)

    @order.handler(retry=Retry(attempts_max=49, delay_s_first=3600))
    async def confirm(placed: OrderPlaced) -> OrderConfirmed:
        return OrderConfirmed(order_id=placed.order_id)

    return order


def test_what_waits_or_is_kept_for_longer_than_the_memory_is_told_all_at_once() -> None:
    told = misfits(forgetful(timedelta(days=1)).declared)
    assert sorted(what.split(",")[0] for what in told) == [
        "the attempts of confirm take up to 2 days",
        "the topic orders keeps records for 7 days",
    ]


def test_a_memory_that_is_longer_than_all_of_it_is_told_of_nothing() -> None:
    assert misfits(forgetful(timedelta(days=8)).declared) == ()


def test_what_is_just_as_long_as_the_memory_is_told_of_a_wait_alone() -> None:
    assert misfits(forgetful(timedelta(days=7)).declared) == ()
    (told,) = [what for what in misfits(forgetful(timedelta(days=2)).declared) if "attempts" in what]
    assert "remembers a saga for 2 days" in told


def test_attempts_take_the_delays_between_them() -> None:
    assert span_s(HASTY) == HASTY.delay_s_first * 3


async def test_a_service_tells_it_before_it_has_started(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place, at_work(place, forgetful(timedelta(days=1))):
        await place.until(lambda: bool(place.told(Started)))
        kinds = [type(moment) for moment in place.moments]
        assert kinds[:3] == [Misfit, Misfit, Started]
