"""Times that do not go together are reported at the start, all at once."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from saga import Retry, Service
from saga.engine.prepared_service import find_conflicting_times, retry_span_s
from saga.telemetry.events import Misfit, Started
from services.order.events import OrderConfirmed, OrderPlaced
from tests.engine.real_worker import at_work, workplace

HASTY = Retry(attempts_max=3)
DAYS = Retry(attempts_max=11, delay_s_first=86_400, delay_s_max=86_400)
"""Rules with ten days between the first and the last attempt."""


def forgetful(memory: timedelta) -> Service[None]:
    order = Service("order", retention=memory)

    @order.handler(retry=Retry(attempts_max=49, delay_s_first=3600))
    async def confirm(placed: OrderPlaced) -> OrderConfirmed:
        return OrderConfirmed(order_id=placed.order_id)

    return order


def test_all_waits_and_topics_that_are_longer_than_the_retention_are_reported_together() -> None:
    conflicts = find_conflicting_times(forgetful(timedelta(days=1)).declared)
    assert sorted(what.split(",")[0] for what in conflicts) == [
        "the attempts of confirm take up to 2 days",
        "the topic orders keeps records for 7 days",
    ]


def test_a_retention_that_is_longer_than_all_of_them_reports_nothing() -> None:
    assert find_conflicting_times(forgetful(timedelta(days=8)).declared) == ()


def test_what_is_exactly_as_long_as_the_retention_is_reported_for_a_wait_alone() -> None:
    assert find_conflicting_times(forgetful(timedelta(days=7)).declared) == ()
    (conflict,) = [what for what in find_conflicting_times(forgetful(timedelta(days=2)).declared) if "attempts" in what]
    assert "remembers a saga for 2 days" in conflict


class Bank:
    """Resource that a handler takes."""


class Mail:
    """Resource that it does not take."""


def spared(own: Retry | None = None, service: Retry | None = None, bank: Retry | None = None) -> list[str]:
    """What is reported about the attempts of a service with a bank, and with mail that takes for ever."""
    order = Service("order", retention=timedelta(days=8), retry=service)

    @order.resource(timeout_s=5, retry=bank)
    async def its_bank() -> AsyncIterator[Bank]:
        yield Bank()

    @order.resource(timeout_s=5, retry=DAYS)
    async def its_mail() -> AsyncIterator[Mail]:
        yield Mail()

    @order.handler(retry=own)
    async def confirm(placed: OrderPlaced, bank: Bank) -> OrderConfirmed:
        return OrderConfirmed(order_id=placed.order_id)

    return [
        conflict.partition(", and")[0].removeprefix("the attempts of confirm take up to ")
        for conflict in find_conflicting_times(order.declared)
    ]


def test_the_rules_of_a_resource_that_a_handler_takes_hold_for_its_attempts() -> None:
    assert spared() == []
    assert spared(bank=DAYS, service=HASTY) == ["10 days, 0:00:00.600000"]
    assert spared(bank=DAYS, own=HASTY) == [], "its own rules hold in their place"


@pytest.mark.parametrize("whose", ["own", "service", "bank"])
def test_the_rules_for_a_kind_of_failure_are_seen_wherever_they_are_set(whose: str) -> None:
    (conflict,) = spared(**{whose: Retry(attempts_max=1, by={ConnectionError: DAYS})})
    assert conflict.startswith("10 days")


def test_attempts_under_several_rules_follow_one_another() -> None:
    half = Retry(attempts_max=6, delay_s_first=86_400, delay_s_max=86_400)
    assert spared(service=half, bank=Retry(attempts_max=1)) == []
    assert spared(service=half, bank=half) == ["10 days, 0:00:00"]


def test_attempts_take_the_delays_between_them() -> None:
    assert retry_span_s(HASTY) == HASTY.delay_s_first * 3


async def test_a_service_reports_it_before_it_has_started(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place, at_work(place, forgetful(timedelta(days=1))):
        await place.until(lambda: bool(place.reported(Started)))
        kinds = [type(moment) for moment in place.moments]
        assert kinds[:3] == [Misfit, Misfit, Started]
