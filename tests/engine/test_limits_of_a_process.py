"""Limits are those of a process: the system that is called sees the process, however many services run in it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from saga import Saga, Service
from saga.configuration import wiring
from saga.declarations.resources import limited
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.lifecycle import ServiceOptions
from saga.telemetry.events import CallWaited
from services.payment.events import OrderPlaced
from tests.engine.real_worker import an_order, workplace


class Seen:
    """What the outside sees of calls."""

    def __init__(self) -> None:
        self.now = self.most = self.all = 0

    async def call(self) -> str:
        self.now, self.all = self.now + 1, self.all + 1
        self.most = max(self.most, self.now)
        for _ in range(20):  # long enough for all others to be on their way
            await asyncio.sleep(0)  # noqa: TID251 - no time is to pass
        self.now -= 1
        return "done"


class Bank:
    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    async def charge(self, order: str) -> str:
        return await self.seen.call()

    @limited(at_once_max=1)
    async def refund(self, order: str) -> str:
        return await self.seen.call()


def services_with(way: str, seen: Seen) -> list[Service[None]]:
    """Two services of one process, which call the same."""

    @limited(at_once_max=1)
    async def alone(order: str) -> str:
        return await seen.call()

    made = []
    for name in ("payment", "shipping"):
        service: Service[None] = Service(name)

        @service.resource(at_once_max=1 if way == "resource" else None)
        async def bank() -> AsyncIterator[Bank]:
            yield Bank(seen)

        @service.handler
        async def react(order: OrderPlaced, bank: Bank, saga: Saga) -> None:
            what = {"resource": bank.charge, "call": bank.refund, "function": alone}[way]
            await saga.step(what, order.order_id)

        made.append(service)
    return made


@pytest.mark.parametrize("way", ["resource", "call", "function"])
async def test_two_services_of_a_process_have_one_limit_together(way: str, tmp_path: Path) -> None:
    seen = Seen()
    services = services_with(way, seen)
    async with workplace(tmp_path) as place:
        stop = asyncio.Event()
        options = ServiceOptions(clock=place.clock, report=place.moments.append, limits=FlowLimits(), stop=stop)
        async with asyncio.TaskGroup() as tasks:
            declared = [service.declared for service in services]
            stores = {each.name: place.store for each in declared}
            tasks.create_task(wiring.serve_all(declared, place.broker, stores, options))
            await place.until(lambda: len([m for m in place.moments if type(m).__name__ == "Started"]) == 2)
            await place.publish(*(an_order(f"order-{n}") for n in range(12)))
            await place.until(lambda: seen.all == 24)
            for service in services:
                await place.at_rest(service)
            stop.set()
    assert seen.most == 1
    assert {moment.service for moment in place.reported(CallWaited)} == {"payment", "shipping"}
