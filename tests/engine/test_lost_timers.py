"""Logs that a service has published to are noted in its record, and timers are sent again after their log was lost."""

from pathlib import Path

import pytest

from saga import Service
from saga.engine.consumer import timers
from saga.engine.lifecycle import check_log
from saga.engine.outage_watch import OutageWatch
from saga.engine.persistence.service_record import ensure_record, known_logs, note_logs, record_key, replaced_logs
from saga.errors import ConfigurationError, StoreUnavailable
from saga.messaging.names import ARCHIVES
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from saga.telemetry.events import PublishedLost, TimersLost
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.real_worker import Workplace, at_work, workplace

WITHIN_S = 20.0
payment = Service("payment")


@payment.handler
async def reserve(order: OrderPlaced) -> PaymentReserved:
    return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)


async def test_recorded_topics_are_known_and_added_to_earlier_ones(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "s.db", clock=SystemClock()) as store:
        await note_logs(store, "payment", {"orders": "a"})
        assert await known_logs(store, "payment") == {}, "it never ran here"
        clock = SystemClock()
        record = await ensure_record(payment.declared, store, clock, OutageWatch("payment", clock, print))
        await note_logs(store, "payment", {"orders": "a", "payments": "b"})
        await note_logs(store, "payment", {"orders": "x", "payments": "y", "new": "n"}, but=["payments"])
        assert await known_logs(store, "payment") == {"orders": "x", "payments": "b", "new": "n"}
        before = await store.get(ARCHIVES, record_key("payment"))
        await note_logs(store, "payment", {"orders": "x"})
        assert await store.get(ARCHIVES, record_key("payment")) == before, "nothing is new"
        assert await known_logs(store, "order") == {}
        after = await ensure_record(payment.declared, store, clock, OutageWatch("payment", clock, print))
        assert (after.store, after.starts) == (record.store, record.starts)


def test_only_what_is_known_and_there_can_be_replaced() -> None:
    assert replaced_logs({}, {"orders": "a"}) == []
    assert replaced_logs({"orders": "a"}, {}) == []
    assert replaced_logs({"orders": "a", "b": "b"}, {"orders": "x", "b": "b"}) == ["orders"]


async def noted(place: Workplace) -> None:
    """Return when the service has noted its logs."""

    async def is_noted() -> None:
        while not await known_logs(place.store, "payment"):
            await SystemClock().sleep(0.01)

    await SystemClock().within(WITHIN_S, is_noted())


async def knows(place: Workplace, **log_ids: str) -> None:
    """Have the store know other logs than there are."""
    known = await known_logs(place.store, "payment")
    await note_logs(place.store, "payment", {**known, **log_ids})


async def test_a_service_notes_the_logs_that_it_publishes_to(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.at_rest(payment)
        await noted(place)
        known = await known_logs(place.store, "payment")
        assert {"payments", "payment.dead", "payment.wake.now", "payment.wake.1d"} <= known.keys()
        assert dict(await place.broker.fetch_log_ids(known)) == known


async def test_timers_lost_with_a_deleted_log_are_reported_and_stay_known(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        async with at_work(place, payment):
            await place.at_rest(payment)
            await noted(place)
        await knows(place, payments="another")
        async with at_work(place, payment):
            await place.until(lambda: bool(place.reported(PublishedLost)))
            assert [moment.topic for moment in place.reported(PublishedLost)] == ["payments"]
        assert (await known_logs(place.store, "payment"))["payments"] == "another", "until an operator has repaired it"


async def test_timers_of_a_log_that_is_gone_are_sent_again_once(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        async with at_work(place, payment):
            await place.at_rest(payment)
            await noted(place)
        await knows(place, **{"payment.wake.1h": "another"})
        for _ in range(2):
            async with at_work(place, payment):
                await place.at_rest(payment)
                await place.until(lambda: bool(place.reported(TimersLost)))
        assert [(moment.topics, moment.error) for moment in place.reported(TimersLost)] == [
            (("payment.wake.1h",), None)
        ]


@pytest.mark.parametrize("failing", [1, 3])
async def test_a_store_that_is_away_is_waited_for(
    tmp_path: Path, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "AGAIN_S_FIRST", 0.01)
    compare, left = timers.LostTimers._compare, [failing]

    async def fails(self: timers.LostTimers) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise StoreUnavailable("away")
        await compare(self)

    monkeypatch.setattr(timers.LostTimers, "_compare", fails)
    async with workplace(tmp_path) as place, at_work(place, payment):
        await noted(place)


async def test_a_service_whose_whole_log_is_another_does_not_start(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        async with at_work(place, payment):
            await place.at_rest(payment)
            await noted(place)
        await knows(place, **dict.fromkeys(await known_logs(place.store, "payment"), "another"))
        with pytest.raises(ConfigurationError, match="its log is new, and its store is not"):
            await check_log(payment.declared, place.store, place.broker)
        await knows(place, payments=(await place.broker.fetch_log_ids(["payments"]))["payments"])
        await check_log(payment.declared, place.store, place.broker)  # one that goes on is enough
