"""View of a running worker for those who look at it."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from saga import Saga, Service
from saga.engine.consumer import timers
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.lifecycle import ServiceOptions, serve
from saga.engine.outage_watch import QUIET_S, OutageWatch
from saga.engine.prepared_service import prepare, topics_of
from saga.engine.worker import Worker
from saga.errors import BrokerUnavailable, SagaError, StoreUnavailable
from saga.messages import Outgoing, Partition
from saga.messaging.timers import timer_to_record
from saga.store.port import Document
from saga.telemetry.events import Recovered, TelemetryEvent, Unavailable
from saga.telemetry.health import WorkerView
from saga.telemetry.metrics import Metrics
from services.order.events import OrderPlaced
from tests.engine.real_worker import Workplace, an_order, workplace
from tests.telemetry.workers import SetClock

GONE: SagaError = StoreUnavailable("nobody is there")


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Workplace]:
    async with workplace(tmp_path) as place:
        yield place


def service_that_waits_for(may_end: asyncio.Event) -> Service:
    payment = Service("payment")

    @payment.handler
    async def note(event: OrderPlaced, saga: Saga) -> None:
        await may_end.wait()

    return payment


@asynccontextmanager
async def watched(place: Workplace, service: Service) -> AsyncIterator[WorkerView]:
    """The service runs inside the block; what is given is what those see who watch it."""
    seen: asyncio.Future[WorkerView] = asyncio.get_running_loop().create_future()
    ended, stop = asyncio.Event(), asyncio.Event()

    @contextmanager
    def watch(worker: WorkerView) -> Iterator[None]:
        seen.set_result(worker)
        yield
        ended.set()

    await place.broker.ensure_topics(topics_of(service.declared))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(
            serve(
                prepare(service.declared),
                store=place.store,
                broker=place.broker,
                options=ServiceOptions(
                    clock=place.clock,
                    report=place.moments.append,
                    limits=FlowLimits(inflight_max=400, inflight_min=400),
                    stop=stop,
                    watch=watch,
                ),
            )
        )
        try:
            yield await seen
        finally:
            stop.set()
    assert ended.is_set()


async def test_a_worker_reports_what_is_in_flight_and_how_far_it_is_behind(place: Workplace) -> None:
    may_end = asyncio.Event()
    service = service_that_waits_for(may_end)
    async with watched(place, service) as worker:
        assert (worker.name, sorted(worker.types), list(worker.handlers)) == ("payment", ["OrderPlaced"], ["note"])
        await place.until(lambda: worker.partitions == 31)
        events = {Partition("orders", number): 0 for number in range(12)}
        assert worker.lag() == {**events, Partition("payment.commands", 0): 0}
        assert (worker.inflight, worker.inflight_max, worker.away()) == (0, 400, {})
        await place.publish(*(an_order(f"order-{number}") for number in range(3)))
        await place.until(lambda: worker.inflight == 3)
        may_end.set()
        await place.until(lambda: worker.inflight == 0)


async def test_an_unreadable_record_is_in_flight_until_its_dead_letter_is_durable(place: Workplace) -> None:
    may_end, publish = asyncio.Event(), place.broker.publish

    async def slowly(messages: Sequence[Outgoing]) -> None:
        if messages[0].topic == "payment.dead":
            await may_end.wait()
        await publish(messages)

    place.broker.publish = slowly  # type: ignore[method-assign] # a slow disk
    service = service_that_waits_for(may_end)
    async with watched(place, service) as worker:
        await publish([Outgoing("orders", b"order-1", b"", ())] * 3)
        await place.until(lambda: worker.inflight == 3)
        may_end.set()
        await place.at_rest(service)
        await place.until(lambda: worker.inflight == 0)
    assert len(await place.dead(service)) == 3


async def test_records_that_a_full_worker_does_not_read_are_its_lag(place: Workplace) -> None:
    may_end = asyncio.Event()
    await place.publish(*(an_order(quantity=number + 1) for number in range(250)))
    async with watched(place, service_that_waits_for(may_end)) as worker:
        await place.until(lambda: worker.inflight == 100)  # one partition has its share
        assert sum((worker.lag() or {}).values()) == 150
        may_end.set()
        await place.until(lambda: not sum((worker.lag() or {}).values()))


async def test_wakes_that_lie_in_the_log_until_their_time_are_no_lag(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "WAITING_MAX", 1)
    place.leaps = False
    now_ms = place.clock.now_ms()
    wakes = [timer_to_record("payment", f"order-{n}", "wake-0", now_ms + 900_000, now_ms) for n in range(5)]
    async with watched(place, service_that_waits_for(asyncio.Event())) as worker:
        await place.until(lambda: worker.lag() is not None)
        assert isinstance(worker, Worker)
        await place.broker.publish(wakes[:1])
        await place.until(lambda: bool(worker.timers.full))
        await place.broker.publish(wakes[1:])
        await place.until(lambda: sum((worker.sources.lag() or {}).values()) == 4)
        assert sum((worker.lag() or {}).values()) == 0


async def test_a_worker_has_recovered_once_all_that_was_there_is_handled(place: Workplace) -> None:
    may_end, service = asyncio.Event(), "payment"
    await place.broker.ensure_topics(topics_of(service_that_waits_for(may_end).declared))
    await place.publish(an_order())
    async with watched(place, service_that_waits_for(may_end)) as worker:
        metrics = Metrics({service: worker}, place.clock)
        metrics.begins(worker)

        def has_recovered() -> bool:
            metrics.look()
            samples = {family.name: family.samples for family in metrics.collect()}
            return bool(samples["saga_recovery_seconds"])

        await place.until(lambda: worker.inflight == 1)
        assert worker.reach() is not None
        assert not has_recovered(), "it is read, and not handled"
        may_end.set()
        await place.until(has_recovered)


class Broken:
    """The store of a place, which cannot be reached while this is."""

    def __init__(self, place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_broken = True
        reads, inserts = place.store.get, place.store.insert

        async def get(collection: str, key: str) -> Document | None:
            if self.is_broken:
                raise GONE
            return await reads(collection, key)

        async def insert(collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
            if self.is_broken:
                raise GONE
            return await inserts(collection, key, content, expiry_s=expiry_s)

        monkeypatch.setattr(place.store, "get", get)
        monkeypatch.setattr(place.store, "insert", insert)


async def test_a_worker_that_has_nothing_to_do_notices_that_the_store_is_away_by_looking(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(place, service_that_waits_for(asyncio.Event())) as worker:
        broken = Broken(place, monkeypatch)
        await worker.look()
        assert worker.away().keys() == {"store"}
        assert [moment.what for moment in place.reported(Unavailable)] == ["store"]
        broken.is_broken = False
        await worker.look()
        assert not worker.away()
        assert [moment.what for moment in place.reported(Recovered)] == ["store"]


async def test_a_store_that_gives_but_does_not_take_is_still_away(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = asyncio.Event()
    may_end.set()
    async with watched(place, service_that_waits_for(may_end)) as worker:
        broken = Broken(place, monkeypatch)
        await place.publish(an_order())
        await place.until(lambda: bool(worker.away()))
        with monkeypatch.context() as readable:  # a full disk can be read
            readable.setattr(place.store, "get", type(place.store).get.__get__(place.store))
            await worker.look()
            assert worker.away().keys() == {"store"}
        broken.is_broken = False
        await place.until(lambda: not worker.away())


@pytest.mark.parametrize("why", [StoreUnavailable("gone"), BrokerUnavailable("gone")])
def test_an_outage_ends_when_no_call_fails_any_more(why: SagaError) -> None:
    clock, moments = SetClock(), list[TelemetryEvent]()
    watching = OutageWatch("payment", clock, moments.append)
    watching.unavailable("write", why)
    clock.at_s += QUIET_S - 1
    watching.unavailable("write", why)
    clock.at_s += QUIET_S - 1
    watching.forget_failures()
    (away_s,) = watching.away().values()
    assert away_s == 2 * QUIET_S - 2
    clock.at_s += 2
    watching.forget_failures()
    assert not watching.away()
    assert isinstance(moments[-1], Recovered)
