"""A service that was away for longer than its memory: what began meanwhile is handled, and not taken for a saga that is
forgotten; what it may have handled before is a dead letter still."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saga import Saga, Service
from saga.engine.persistence.service_record import ABSENCES_MAX, ServiceRecord, WorkTimes, record_work, times_of_writes
from saga.progress.actions import Now
from saga.support.clock import iso
from services.payment.events import OrderPlaced
from tests.engine.real_worker import Workplace, an_order, at_work, workplace

DAY_MS = 86_400_000
MEMORY_S = 2 * 86_400


def a_service(handled: list[str], *, many: bool = False) -> Service[Any]:
    payment: Service[Any] = Service("payment", retention=timedelta(seconds=MEMORY_S))

    @payment.handler(repeats=OrderPlaced if many else None)
    async def note(placed: OrderPlaced, saga: Saga) -> None:
        handled.append(placed.order_id)

    return payment


async def at_rest(place: Workplace, service: Service[Any]) -> None:
    """Have one process of the service handle all that there is, and stop."""
    async with at_work(place, service):
        await place.at_rest(service)


def pass_days(place: Workplace, days: float) -> None:
    place.clock.ahead_ms += round(days * DAY_MS)


@pytest.mark.parametrize("many", [False, True])
async def test_sagas_begun_while_the_service_was_down_are_handled_at_any_age(tmp_path: Path, many: bool) -> None:
    handled: list[str] = []
    service = a_service(handled, many=many)
    async with workplace(tmp_path) as place:
        await place.publish(an_order("before"))
        await at_rest(place, service)
        pass_days(place, 1)
        await place.publish(an_order("meanwhile"))
        late = place.record_of(an_order("before", quantity=2))
        pass_days(place, 2.5)
        await at_rest(place, service)
        assert handled == ["before", "meanwhile"]
        assert await place.dead(service) == []
        pass_days(place, 1)  # the same after another start, for as long as its memory
        await place.broker.publish([late])
        await at_rest(place, service)
        assert handled == ["before", "meanwhile", "before"], "it began meanwhile, and its progress is expired"


@pytest.mark.parametrize("works_days", [0, 1, 5])
async def test_a_message_that_may_have_been_handled_and_forgotten_is_a_dead_letter(
    tmp_path: Path, works_days: float
) -> None:
    handled: list[str] = []
    service = a_service(handled)
    async with workplace(tmp_path) as place:
        async with at_work(place, service):
            await place.publish(an_order("first"))
            await place.at_rest(service)
            pass_days(place, works_days)
            again = place.record_of(an_order("handled"))
            await place.broker.publish([again])
            await place.at_rest(service)
        pass_days(place, 3.5)
        await place.broker.publish([again])
        await at_rest(place, service)
        assert handled == ["first", "handled"]
        ((_, headers),) = await place.dead(service)
        assert headers["dead_reason"].startswith("older than the retention: ")


async def test_a_service_that_has_been_idle_has_been_away(tmp_path: Path) -> None:
    handled: list[str] = []
    service = a_service(handled)
    async with workplace(tmp_path) as place, at_work(place, service):
        await place.publish(an_order("first"))
        await place.at_rest(service)
        pass_days(place, 1)
        late = place.record_of(an_order("late"))
        pass_days(place, 2.5)
        await place.broker.publish([late])
        await place.at_rest(service)
        assert handled == ["first", "late"]


# ---------------------------------------------------------------- the rule

HOURS = st.integers(1, 200)


def at_work_at(hours: Sequence[int]) -> tuple[ServiceRecord, list[int]]:
    """Record of a service that has written something at these distances of time, with the times."""
    record, now_ms, times = ServiceRecord(service="payment", store="one", starts={}), 10**12, []
    for distance in hours:
        now_ms += distance * 3_600_000
        record = record_work(record, now_ms, MEMORY_S)
        times.append(now_ms)
    return record, times


def forgotten(record: ServiceRecord, now_ms: int) -> str:
    return Now(now_ms, MEMORY_S, absences=record.absences).forgotten


@given(st.lists(HOURS, min_size=1, max_size=40), st.integers(0, 300))
def test_messages_older_than_the_retention_never_count_as_new(hours: list[int], later: int) -> None:
    record, times = at_work_at(hours)
    now_ms = times[-1] + later * 3_600_000
    for at_ms in times:
        if at_ms < now_ms - MEMORY_S * 1000:  # its progress may be expired; it began then, at the latest
            assert iso(at_ms) <= forgotten(record, now_ms)


@given(st.lists(HOURS, min_size=2, max_size=40))
def test_sagas_begun_during_a_long_absence_are_kept_for_a_whole_retention(hours: list[int]) -> None:
    record, times = at_work_at(hours)
    last, now_ms = times[-2:]
    if now_ms - last > MEMORY_S * 1000:
        assert forgotten(record, now_ms) <= iso(last + 2 * 3_600_000)


def test_few_absences_are_kept() -> None:
    record, _ = at_work_at([5] * 1000)
    assert 0 < len(record.absences) <= ABSENCES_MAX


def test_a_clock_that_was_ahead_hides_no_work() -> None:
    record, (last,) = at_work_at([1])
    ahead = record_work(record, last + 30 * DAY_MS, MEMORY_S)
    right = record_work(ahead, last + DAY_MS, MEMORY_S)
    worked_ms = last + 2 * DAY_MS
    assert forgotten(right, worked_ms + MEMORY_S * 1000 + 1000) >= iso(worked_ms)
    first, until = times_of_writes(ahead, MEMORY_S)
    assert first == last + 30 * DAY_MS, "a worker whose clock is right writes only once it has noted that"
    assert times_of_writes(right, MEMORY_S) == (last + DAY_MS, until)


async def test_a_worker_writes_only_within_the_times_that_are_noted(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        now_ms = place.clock.now_ms()
        for absences, until_ms, expected in (
            ((), now_ms + DAY_MS, True),
            ((), now_ms, False),
            (((now_ms, now_ms + DAY_MS),), now_ms + 2 * DAY_MS, False),
        ):
            record = ServiceRecord(
                service="payment", store="one", starts={}, works_until_ms=until_ms, absences=absences
            )
            times = WorkTimes(record, MEMORY_S, place.store, place.clock)
            assert times.is_recent() is expected
            await times.record()
            assert times.is_recent()
