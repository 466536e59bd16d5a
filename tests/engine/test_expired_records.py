"""Records that the log has lost before a service had them are reported once, and the service continues after them."""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from saga import Saga, Service
from saga.broker.embedded.log import row_checksum
from saga.broker.embedded.membership import EmbeddedMember
from saga.engine.consumer.timers import LostTimers
from saga.messages import Partition
from saga.messaging.timers import timer_to_record
from saga.telemetry.events import Expired, Handled, TimersLost
from services.payment.events import OrderPlaced
from tests.engine.real_worker import Workplace, an_order, at_work, workplace

ORDERS_MAX = 24


def a_service() -> Service[None]:
    payment = Service("payment")

    @payment.handler
    async def note(placed: OrderPlaced, saga: Saga) -> None:
        pass

    return payment


def removed(place: Workplace, below: dict[Partition, int]) -> None:
    execute = place.broker.connection.execute
    for (topic, number), offset in below.items():
        ((first,),) = execute("SELECT first_log FROM topics WHERE name = ?", (topic,)).fetchall()
        execute(f"DELETE FROM log_{first + number} WHERE offset < ?", (offset,))
        log = first + number
        execute("UPDATE logs SET oldest = ?, oldest_sum = ? WHERE id = ?", (offset, row_checksum(log, offset), log))


async def test_expired_records_are_reported_by_partition_and_once(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        service = a_service()
        async with at_work(place, service):
            await place.publish(an_order("first"))
            await place.at_rest(service)
        await place.publish(*(an_order(f"order-{n}") for n in range(ORDERS_MAX)))
        lost = [record for record in await place.records("orders") if record.offset >= 1][::3]
        ends = {Partition("orders", record.partition): record.offset + 1 for record in lost}
        begins = {partition: place.committed(service, partition) for partition in ends}
        gone = {p: end - begins[p] for p, end in ends.items() if end > begins[p]}
        assert len(gone) > 1
        removed(place, ends)
        place.moments.clear()
        async with at_work(place, service):
            await place.at_rest(service)
        reported = {Partition(m.topic, m.partition): (m.first, m.last, m.count) for m in place.reported(Expired)}
        assert reported == {p: (begins[p], ends[p] - 1, count) for p, count in gone.items()}
        assert len(place.reported(Expired)) == len(gone)
        assert len(place.reported(Handled)) == ORDERS_MAX - sum(gone.values())
        place.moments.clear()
        async with at_work(place, service):
            await place.publish(an_order("last"))
            await place.at_rest(service)
        assert place.reported(Expired) == []


async def test_a_position_moves_behind_what_expired_although_nothing_else_comes(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        service = a_service()
        async with at_work(place, service):
            await place.publish(an_order())
            await place.at_rest(service)
        await place.publish(an_order())
        ((partition, end),) = {(r.partition, r.offset + 1) for r in await place.records("orders") if r.offset == 1}
        removed(place, {Partition("orders", partition): end})
        async with at_work(place, service):
            await place.at_rest(service)
        assert place.committed(service, Partition("orders", partition)) == end
        assert [m.count for m in place.reported(Expired)] == [1]


async def test_no_position_moves_behind_lost_timers_that_are_not_sent_again_if_they_are_missed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's member fetches beside what a worker does, and may find the gap while it opens the partition."""
    timers, may_be_sent = Partition("payment.wake.1m", 0), asyncio.Event()
    mark, send_all = EmbeddedMember.mark_in_progress, LostTimers._republish_all

    async def finds_gap(self: EmbeddedMember, offsets: Mapping[Partition, int]) -> Collection[Partition]:
        if timers in offsets:
            self._listener.on_expired(timers, 0, 1)
            self._owned[timers].position = 1
        return await mark(self, offsets)

    async def sends_later(self: LostTimers) -> int:
        await may_be_sent.wait()
        return await send_all(self)

    async with workplace(tmp_path) as place:
        service, now_ms = a_service(), place.clock.now_ms()
        place.leaps = False
        async with at_work(place, service):  # which makes the topics
            await place.at_rest(service)
        await place.broker.publish(
            [timer_to_record("payment", f"order-{n}", "t", now_ms + 120_000, now_ms) for n in (1, 2)]
        )
        removed(place, {timers: 1})
        monkeypatch.setattr(EmbeddedMember, "mark_in_progress", finds_gap)
        monkeypatch.setattr(LostTimers, "_republish_all", sends_later)
        async with at_work(place, service):
            await place.publish(an_order())
            ((orders, end),) = {(r.partition, r.offset + 1) for r in await place.records("orders")}
            await place.until(lambda: place.committed(service, Partition("orders", orders)) == end)
            assert place.committed(service, timers) == 0
            may_be_sent.set()
            await place.until(lambda: place.committed(service, timers) == 1)
            assert [m.topics for m in place.reported(TimersLost)] == [("payment.wake.1m",)]
            assert [(m.first, m.last) for m in place.reported(Expired)] == [(0, 0)]
