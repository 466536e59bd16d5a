"""Resources of a service: what happens if one does not open, catches the error of another, or opens too slowly."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Never

import pytest

from saga import Service
from saga.configuration.wiring import serve_all
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.lifecycle import ServiceOptions, serve
from saga.engine.prepared_service import prepare, topics_of
from saga.errors import ConfigurationError, SagaError, StoreUnavailable
from saga.store.port import Document
from saga.telemetry.events import Started, StoppedBeforeStart, Unavailable
from services.payment.events import OrderPlaced
from tests.engine.real_worker import Workplace, workplace

SLOW_S = 20
"""Seconds until a test fails that would hang otherwise."""


class Bank:
    """Client of an external system."""


class Post:
    """Another one."""


class Printer:
    """And another one, which is never opened."""


class AwayStore:
    """Store that is never available."""

    async def check_expiry(self, *_: object) -> None:
        pass

    async def get(self, collection: str, key: str) -> Document | None:
        raise StoreUnavailable("no route to host")


async def refuse() -> None:
    raise ConnectionError("no route to host")


async def run(place: Workplace, service: Service[Any], stop: asyncio.Event, store: Any = None) -> None:
    """Run a service until `stop` is set."""
    await place.broker.ensure_topics(topics_of(service.declared))
    await serve(
        prepare(service.declared), store=store or place.store, broker=place.broker, options=options(place, stop)
    )


def options(place: Workplace, stop: asyncio.Event) -> ServiceOptions:
    return ServiceOptions(
        clock=place.clock, report=place.moments.append, limits=FlowLimits(), stop=stop, compares_logs=False
    )


async def test_a_service_that_is_stopped_while_a_resource_opens_closes_the_others_and_ends(tmp_path: Path) -> None:
    payment, stop, closed = Service("payment"), asyncio.Event(), list[str]()

    @payment.resource
    async def bank() -> AsyncIterator[Bank]:
        yield Bank()
        closed.append("bank")

    @payment.resource
    async def post() -> AsyncIterator[Post]:
        stop.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("given up") from None
        yield Post()

    @payment.resource
    async def printer() -> AsyncIterator[Printer]:
        closed.append("printer, which was opened after the stop")
        yield Printer()

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bank, post: Post, printer: Printer) -> None: ...

    async with workplace(tmp_path) as place:
        await run(place, payment, stop)
        assert closed == ["bank"]
        assert len(place.reported(StoppedBeforeStart)) == 1
        assert not place.reported(Started)


async def test_a_service_that_is_stopped_while_it_waits_for_its_store_ends(tmp_path: Path) -> None:
    payment, stop = Service("payment"), asyncio.Event()

    @payment.handler
    async def reserve(order: OrderPlaced) -> None: ...

    async with workplace(tmp_path) as place, asyncio.timeout(SLOW_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(run(place, payment, stop, AwayStore()))
        await place.until(lambda: bool(place.reported(Unavailable)))
        stop.set()


async def test_a_process_that_is_stopped_while_it_looks_at_topics_starts_no_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payment, stop = Service("payment"), asyncio.Event()

    @payment.handler
    async def reserve(order: OrderPlaced) -> None: ...

    async def never(*_: object) -> Never:
        stop.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with workplace(tmp_path) as place, asyncio.timeout(SLOW_S):
        monkeypatch.setattr(place.broker, "find_missing_rights", never)
        await place.broker.ensure_topics(topics_of(payment.declared))
        await serve_all([payment.declared], place.broker, {"payment": place.store}, options(place, stop))
        assert len(place.reported(StoppedBeforeStart)) == 1


async def test_a_resource_that_catches_errors_does_not_hide_why_its_service_ends(tmp_path: Path) -> None:
    payment, caught = Service("payment"), list[SagaError]()

    @payment.resource
    async def bank() -> AsyncIterator[Bank]:
        try:
            yield Bank()
        except SagaError as why:
            caught.append(why)

    @payment.resource
    async def post() -> AsyncIterator[Post]:
        await refuse()
        yield Post()

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bank, post: Post) -> None: ...

    async with workplace(tmp_path) as place:
        with pytest.raises(ConfigurationError, match="resource post does not open: ConnectionError: no route to host"):
            await run(place, payment, asyncio.Event())
    assert len(caught) == 1


async def test_a_driver_that_cancels_itself_is_a_resource_that_does_not_open(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.resource
    async def bank() -> AsyncIterator[Bank]:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel("reader is closed")
        await gone
        yield Bank()

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bank) -> None: ...

    async with workplace(tmp_path) as place:
        with pytest.raises(ConfigurationError, match="bank does not open: CancelledError: reader is closed"):
            await run(place, payment, asyncio.Event())
