"""Wishes about a service, at a real worker: each is in the book once, whatever the store says, and flags follow it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest

from saga import Saga, Service
from saga.engine.execution import control_log
from saga.errors import Ambiguous, Conflict
from saga.messages import Outgoing, Position, Record
from saga.messaging import controls
from saga.messaging.controls import Switch
from saga.messaging.names import ARCHIVES
from saga.store.port import Document
from saga.telemetry.events import ControlTurned
from services.payment.events import OrderPlaced
from tests.engine import driven_workers
from tests.engine.real_worker import Workplace, an_order, at_work, workplace

AT = Position("payment.commands", 0, 0)
PAUSE = Switch(kind="pause")
KEY = controls.control_log_key("payment")


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Workplace]:
    async with workplace(tmp_path) as place:
        yield place


def service_of(seen: list[bool]) -> Service[Any]:
    payment = Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced, saga: Saga) -> None:
        seen.append(await saga.flag("new"))

    return payment


def wish(place: Workplace, percent: float, n: int = 0) -> Outgoing:
    switch = Switch(flag="new", percent=percent)
    return controls.control_to_record("payment", switch, who="ada", why="to see", now_ms=place.clock.now_ms() + n)


async def shares(place: Workplace) -> list[float]:
    there = await place.store.get(ARCHIVES, KEY)
    book = controls.decode_control_log("payment", None if there is None else there.content)
    assert controls.verify_control_log(book) is None
    return [entry.switch.percent for entry in controls.entries_of(book)]


async def test_a_flag_that_is_set_is_on_and_the_answer_is_in_the_history(place: Workplace) -> None:
    seen = list[bool]()
    service = service_of(seen)
    async with at_work(place, service):
        await place.publish(an_order())
        await place.at_rest(service)
        set_ = wish(place, 100)
        await place.broker.publish([set_, set_, wish(place, 100, 1)])
        await place.at_rest(service)
        assert await shares(place) == [100, 100], "each once"
        await place.publish(an_order("order-2"))
        await place.at_rest(service)
        (entry,) = await place.history(service, "order-2")
        assert [(call.kind, call.document, bytes(call.value)) for call in entry.calls] == [
            ("read", "flag/new", b"true")
        ]
    assert (seen[0], seen[-1]) == (False, True)


async def test_a_book_that_another_worker_wrote_is_read_after_some_seconds(place: Workplace) -> None:
    seen = list[bool]()
    service = service_of(seen)
    async with at_work(place, service):
        await place.publish(an_order())
        await place.at_rest(service)
        book = controls.append_control(
            controls.ControlLog(service="payment"), controls.parse_control(_lies(wish(place, 100)))
        )
        assert book is not None
        await place.store.insert(ARCHIVES, KEY, controls.encode(book))
        await place.publish(an_order("order-2"))
        await place.at_rest(service)
        await place.clock.sleep(6)
        await place.publish(an_order("order-3"))
        await place.at_rest(service)
    assert (seen[0], seen[-1]) == (False, True)


def _lies(record: Outgoing) -> Record:
    return Record(record.topic, 0, 0, record.key, record.value, record.headers, 0)


@pytest.mark.parametrize("why", [Ambiguous("no answer"), Conflict("somebody was faster")])
async def test_a_control_log_write_that_fails_is_read_and_repeated(
    place: Workplace, why: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, replaced, refusals = service_of([]), place.store.replace, [why]

    async def refusing(collection: str, key: str, content: bytes, **more: Any) -> int:
        if key == KEY and refusals:
            if isinstance(why, Ambiguous):  # it has landed
                await replaced(collection, key, content, **more)
            raise refusals.pop()
        return await replaced(collection, key, content, **more)

    async with at_work(place, service):
        await place.broker.publish([wish(place, 10)])
        await place.at_rest(service)
        monkeypatch.setattr(place.store, "replace", refusing)
        await place.broker.publish([wish(place, 20, 1)])
        await place.at_rest(service)
        assert await shares(place) == [10, 20]


async def test_a_control_without_space_or_for_another_service_is_a_dead_letter(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controls, "ENTRIES_MAX", 1)
    service = service_of([])
    async with at_work(place, service):
        other = controls.control_to_record("shipping", Switch(flag="new", percent=1), who="a", why="b", now_ms=0)
        await place.broker.publish([wish(place, 10), wish(place, 20, 1), other._replace(topic="payment.commands")])
        await place.at_rest(service)
        await place.until(lambda: bool(place.reported_dead_letters()))
        assert await shares(place) == [10]
        reasons = sorted(headers["dead_reason"] for _, headers in await place.dead(service))
        assert reasons == [
            "the control log is full: it has 1 entries",
            "the control's key is 'shipping', and not the service",
        ]


class NotedLock(asyncio.Lock):
    """Lock that says when somebody has to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_awaited = asyncio.Event()

    async def acquire(self) -> Literal[True]:
        if self.locked():
            self.is_awaited.set()
        return await super().acquire()


async def test_a_control_that_is_set_stays_in_force_although_the_book_was_just_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with driven_workers.place(tmp_path) as workers:
        worker = await workers.worker(service_of([]))
        service, get, is_read, may_answer = worker.participant, workers.watched.get, asyncio.Event(), asyncio.Event()
        gate = service.controls.gate = NotedLock()

        async def answers_late(collection: str, key: str) -> Document | None:
            there = await get(collection, key)
            if not is_read.is_set():
                is_read.set()
                await may_answer.wait()
            return there

        monkeypatch.setattr(workers.watched, "get", answers_late)
        control = controls.parse_control(
            _lies(controls.control_to_record("payment", PAUSE, who="ada", why="to see", now_ms=workers.clock.now_ms()))
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(control_log.refresh(service, AT))
            await is_read.wait()
            writing = tasks.create_task(control_log.write_control(service, AT, control))
            waiting = tasks.create_task(gate.is_awaited.wait())
            await asyncio.wait({writing, waiting}, return_when=asyncio.FIRST_COMPLETED)
            may_answer.set()
            await writing
            waiting.cancel()
        assert [moment.is_on for moment in worker.moments if isinstance(moment, ControlTurned)] == [True]
        assert service.controls.stops
