"""Limits that people set: fewer or more places than declared, for those that wait as well, and back; and what else a
process takes note of."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import Raw

from saga import Service
from saga.errors import StoreUnavailable
from saga.messages import Message
from saga.messaging import controls
from saga.messaging.controls import Control, ControlLog, Switch, encode
from saga.messaging.names import ARCHIVES
from saga.telemetry.events import ControlTurned, ControlUnknown, PutOff, Stuck, Unavailable
from services.payment.events import OrderPlaced
from tests.engine.real_worker import Workplace, an_order, at_work, workplace
from tests.engine.test_limiting import Gate, a_moment

KEY = controls.control_log_key("payment")


def at_once(count: int) -> Switch:
    return Switch(kind="limit", resource="bank", at_once_max=count)


async def test_more_places_are_for_those_that_wait() -> None:
    gate = Gate(at_once_max=1)
    running = [await gate.enter("a")]
    waiting = [gate.waits(name) for name in "bcd"]
    await a_moment()
    gate.limiter.limit(at_once(3))
    await a_moment()
    assert gate.order == list("abc")
    gate.limiter.limit(Switch(kind="limit", resource="bank", rate_per_s=1000.0))
    await a_moment()
    assert gate.order == list("abc"), "what is not given is as declared: one at once"
    for call in (*running, *[await task for task in waiting[:2]]):
        gate.limiter.leave(call, failed=False)
    gate.limiter.leave(await waiting[2], failed=False)
    gate.check_empty()


async def test_fewer_places_are_not_handed_on() -> None:
    gate = Gate(at_once_max=3)
    running = [await gate.enter(name) for name in "abc"]
    waiting = gate.waits("d")
    await a_moment()
    gate.limiter.limit(at_once(1))
    for call in running[:2]:
        gate.limiter.leave(call, failed=False)
        await a_moment()
        assert gate.order == list("abc")
    gate.limiter.leave(running[2], failed=False)
    gate.limiter.leave(await waiting, failed=False)
    gate.check_empty()


async def test_a_resource_without_limits_has_those_that_people_set_until_they_are_ended() -> None:
    gate = Gate()
    needed = [gate.limiter.is_needed]
    gate.limiter.limit(at_once(1))
    needed.append(gate.limiter.is_needed)
    first, second = await gate.enter("a"), gate.waits("b")
    await a_moment()
    gate.limiter.limit(None)
    assert [*needed, gate.limiter.is_needed] == [False, True, False]
    gate.limiter.leave(await second, failed=False)
    gate.limiter.leave(first, failed=False)
    gate.check_empty()


# -------------------------------------------------------------------- what a process takes note of


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Workplace]:
    async with workplace(tmp_path) as place:
        yield place


def paying(ran: list[str]) -> "Service[None]":
    payment: Service[None] = Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced) -> None:
        ran.append(order.order_id)

    return payment


def book_with(*switches: Switch) -> ControlLog:
    book = ControlLog(service="payment")
    for n, switch in enumerate(switches):
        message = Message(id=f"c{n}", type=controls.TYPE, schema="", saga="payment", source="", time="", value=b"")
        fields = {name: getattr(message, name) for name in message.__struct_fields__}
        book = controls.append_control(book, Control(**fields, switch=switch, who="ada", why="to see")) or book
    return book


async def test_the_control_log_is_read_once_before_the_first_run_and_controls_are_reported_when_they_begin_and_end(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, reads, get = list[str](), list[str](), place.store.get

    async def counted(collection: str, key: str) -> object:
        reads.append(key)
        await place.clock.sleep(0.01 if key == KEY else 0)  # others come meanwhile
        return await get(collection, key)

    monkeypatch.setattr(place.store, "get", counted)
    service = paying(ran)
    later = Raw(controls.encode({"id": "z", "time": "", "who": "b", "why": "c", "previous": "",
                                 "switch": {"flag": "", "percent": 0, "kind": "drain"}}))  # fmt: skip
    book = book_with(Switch(kind="pause", handler="reserve"))
    await place.store.insert(
        ARCHIVES, KEY, controls.encode(ControlLog(service="payment", entries=(*book.entries, later)))
    )
    async with at_work(place, service):
        await place.publish(*(an_order(f"order-{n}") for n in range(20)))
        await place.until(lambda: sum(isinstance(moment, PutOff) for moment in place.moments) >= 20)
        assert (ran, reads.count(KEY)) == ([], 1)
        unknown = [moment for moment in place.moments if isinstance(moment, ControlUnknown)]
        assert [moment.kind for moment in unknown] == ["drain"]
        wish = controls.control_to_record(
            "payment", Switch(kind="pause", handler="reserve", off=True), who="eve", why="enough", now_ms=1
        )
        await place.broker.publish([wish])
        await place.until(lambda: len(ran) == 20)
        moments = [(m.control, m.name, m.is_on, m.who) for m in place.moments if isinstance(m, ControlTurned)]
        assert moments == [("pause", "reserve", True, "ada"), ("pause", "reserve", False, "ada")]


@pytest.mark.parametrize("how", ["damaged", "away"])
async def test_nothing_runs_while_it_is_unknown_what_is_paused(
    place: Workplace, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    ran, is_there, get = list[str](), False, place.store.get

    async def away(collection: str, key: str) -> object:
        if key == KEY and not is_there and how == "away":
            raise StoreUnavailable("planted")
        found = await get(collection, key)
        return found._replace(content=b"{") if key == KEY and not is_there and found is not None else found

    monkeypatch.setattr(place.store, "get", away)
    await place.store.insert(ARCHIVES, KEY, controls.encode(ControlLog(service="payment")))
    service = paying(ran)
    async with at_work(place, service):
        await place.publish(an_order())
        await place.until(lambda: any(isinstance(m, Unavailable if how == "away" else Stuck) for m in place.moments))
        assert ran == []
        is_there = True
        await place.until(lambda: bool(ran))


async def test_a_handler_runs_no_more_often_at_once_than_an_operator_allows(tmp_path: Path) -> None:
    running, most = 0, 0
    async with workplace(tmp_path) as place:
        payment = Service("payment")

        @payment.handler
        async def reserve(order: OrderPlaced) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await place.clock.sleep(0.02)
            running -= 1

        await place.store.insert(
            ARCHIVES, KEY, encode(book_with(Switch(kind="limit", handler="reserve", at_once_max=1)))
        )
        async with at_work(place, payment):
            await place.publish(*(an_order(f"order-{n}") for n in range(12)))
            await place.at_rest(payment)
    assert most == 1
