"""Names that are in use: a service that is renamed, a new one beside its history, and two of one name on one broker."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from saga import Saga, Service
from saga.configuration.wiring import serve_all
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.lifecycle import ServiceOptions
from saga.engine.outage_watch import OutageWatch
from saga.engine.persistence.service_record import ensure_record
from saga.errors import ConfigurationError
from saga.messaging.names import timer_topic
from saga.messaging.timers import TIERS, timer_to_record
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from saga.telemetry.events import Handled, TimerKept
from services.order.events import OrderPlaced
from tests.engine.real_worker import Workplace, an_order, workplace


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Workplace]:
    async with workplace(tmp_path) as place:
        yield place


class Mails:
    """The outside: each mail with the idempotency key under which it was asked for."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    async def send(self, key: str, order: str) -> str:
        self.sent.append((order, key))
        return "sent"


def a_mailer(mails: Mails, name: str, **options: Any) -> Service[Any]:
    service: Service[Any] = Service(name, **options)

    @service.handler
    async def tell(placed: OrderPlaced, saga: Saga) -> None:
        await saga.step(mails.send, saga.idempotency_key("mail"), placed.order_id)

    return service


@asynccontextmanager
async def running(place: Workplace, service: Service[Any], store: SqliteStore) -> AsyncIterator["asyncio.Task[None]"]:
    """The service runs inside the block as `saga run` has it, on this store."""
    stop = asyncio.Event()
    options = ServiceOptions(
        clock=place.clock, report=place.moments.append, limits=FlowLimits(), stop=stop, worker="here:1"
    )
    work = asyncio.get_running_loop().create_task(
        serve_all([service.declared], place.broker, {service.declared.name: store}, options)
    )
    try:
        yield work
    finally:
        stop.set()
        await asyncio.wait([work])


def handled(place: Workplace) -> Sequence[Handled]:
    return [each for each in place.reported(Handled) if each.type == "OrderPlaced"]


async def test_a_renamed_service_repeats_nothing_and_continues_under_its_keys(place: Workplace) -> None:
    mails = Mails()
    async with running(place, a_mailer(mails, "mailer"), place.store):
        await place.publish(an_order("order-1"))
        await place.until(lambda: len(handled(place)) == 1)
    async with running(place, a_mailer(mails, "mailman", was="mailer"), place.store):
        await place.publish(an_order("order-1"), an_order("order-2"))
        await place.until(lambda: len(handled(place)) == 3)
    assert [order for order, _ in mails.sent] == ["order-1", "order-2"]
    groups = place.broker.connection.execute("SELECT name FROM groups").fetchall()
    assert groups == [("mailer",)], "the group keeps its name"
    async with running(place, a_mailer(mails, "mailman"), place.store) as work:
        await asyncio.wait([work])
        with pytest.raises(ConfigurationError, match=r'Service."mailman", was="mailer"'):
            work.result()
    async with running(place, a_mailer(mails, "mailman", start="beginning"), place.store):
        await place.until(lambda: len(mails.sent) == 4)
    assert sorted(order for order, _ in mails.sent[2:]) == ["order-1", "order-2"], "without `was` it is a new service"
    assert not {key for _, key in mails.sent[:2]} & {key for _, key in mails.sent[2:]}


async def test_a_new_service_begins_where_it_declares(place: Workplace) -> None:
    await place.publish(*(an_order(f"order-{n}") for n in range(5)))
    everything, nothing = Mails(), Mails()
    async with (
        running(place, a_mailer(everything, "archive"), place.store),
        running(place, a_mailer(nothing, "mailer", start="now"), place.store),
    ):
        await place.until(lambda: len(everything.sent) == 5)
        await place.until(lambda: any(type(each).__name__ == "Assigned" for each in place.moments))
        await place.publish(an_order("order-5"))
        await place.until(lambda: len(everything.sent) == 6 and len(nothing.sent) == 1)
    assert [order for order, _ in nothing.sent] == ["order-5"]
    async with running(place, a_mailer(nothing, "mailer", start="now"), place.store):
        await place.publish(an_order("order-6"))
        await place.until(lambda: len(nothing.sent) == 2)
    assert [order for order, _ in nothing.sent] == ["order-5", "order-6"], "what is committed stays so"


async def test_a_second_service_of_the_same_name_is_refused_and_consumes_nothing(
    place: Workplace, tmp_path: Path
) -> None:
    ours, theirs = Mails(), Mails()
    async with SqliteStore(tmp_path / "other.db", clock=place.clock) as other:
        watching = OutageWatch("mailer", place.clock, place.moments.append)
        await ensure_record(a_mailer(theirs, "mailer").declared, other, SystemClock(), watching)
        async with running(place, a_mailer(ours, "mailer"), place.store):
            await place.publish(an_order("order-1"))
            await place.until(lambda: len(ours.sent) == 1)
            async with running(place, a_mailer(theirs, "mailer"), other) as work:
                await asyncio.wait([work])
                with pytest.raises(ConfigurationError, match="group 'mailer' belongs to another service or store"):
                    work.result()
            await place.publish(an_order("order-2"))
            await place.until(lambda: len(ours.sent) == 2)
    assert not theirs.sent


async def test_a_timer_of_a_saga_that_is_in_another_store_is_kept_for_it(place: Workplace) -> None:
    mails, now_ms = Mails(), place.clock.now_ms()
    await place.broker.ensure_topics([tier.topic("mailer") for tier in TIERS])
    await place.broker.publish([timer_to_record("mailer", "order-9", "wake-3", now_ms - 500, now_ms)])
    async with running(place, a_mailer(mails, "mailer"), place.store):
        await place.until(lambda: len(place.reported(TimerKept)) == 2)
    assert {(each.saga, each.timer) for each in place.reported(TimerKept)} == {("order-9", "wake-3")}
    kept = [each for each in place.reported(Handled) if each.type == "saga.wake"]
    assert {outcome for each in kept for _, outcome, _ in each.outcomes} == {"kept"}
    lying = [record async for record in place.broker.scan(timer_topic("mailer", "now"))]
    assert len(lying) == len(kept) + 1, "it still lies there"
