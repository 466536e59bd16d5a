"""A real schema registry goes away in the middle of everything, and comes back: the books balance.

By default it is cut off; with `SAGA_TEST_REGISTRY_KILLED=1` one of its own is killed, too.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from saga.configuration.settings import Settings
from saga.contracts.library import binding_of
from saga.messages import texts_of
from saga.ops.schema_registration import find_registrable, register
from saga.registry import http
from saga.registry.http import HttpRegistry
from saga.registry.port import RegistryOptions
from saga.telemetry.events import DeadLettered, GoesOn, StandsStill, Unavailable
from saga.testing.servers.proxy import Proxy
from saga.testing.servers.server import free_ports
from tests.engine.real_worker import Workplace, at_work
from tests.registry.shop import Edge, Shop, as_they_lie
from tests.servers.registry import CONFLUENT, RegistryServer

EACH = 30
WAYS = ("cut off", "killed") if os.environ.get("SAGA_TEST_REGISTRY_KILLED") else ("cut off",)


@dataclass
class Trouble:
    """A registry, and how it goes away and comes back. `direct`: the way on which it is always there."""

    url: str
    direct: str
    begin: Callable[[], None]
    end: Callable[[], None]


@pytest.fixture(params=WAYS)
def trouble(
    request: pytest.FixtureRequest,
    schema_registry: RegistryServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Trouble]:
    def answers_late(begin: Callable[[], None]) -> Callable[[], None]:
        """Do not wait long for a registry that is away. One that is there may take its time on a busy machine."""

        def begun() -> None:
            monkeypatch.setattr(http, "ANSWER_S_MAX", 0.5)
            begin()

        return begun

    if request.param == "killed":
        server = RegistryServer.start(tmp_path / "registry")
        yield Trouble(server.url, server.url, answers_late(server.kill), server.restart)
        server.kill()
        return
    with ExitStack() as stack:
        (port,) = free_ports(1)
        target = urlsplit(schema_registry.url).port
        assert target is not None
        proxy = stack.enter_context(Proxy(port, target))

        def cut_off() -> None:
            proxy.hold()
            proxy.cut()

        yield Trouble(f"http://127.0.0.1:{port}{CONFLUENT}", schema_registry.url, answers_late(cut_off), proxy.let_go)


def registry_at(url: str) -> HttpRegistry:
    return HttpRegistry(RegistryOptions(registry=url))


@pytest.mark.timeout(180)
async def test_the_books_balance_after_the_registry_was_away(tmp_path: Path, trouble: Trouble) -> None:
    mark = "".join(each for each in tmp_path.parent.name if each.isalnum())
    shop = Shop(tmp_path / "shop", sales=f"sales-{mark}", money=f"money-{mark}")
    sales, money = shop.topics
    library = binding_of(shop.placed).library
    assert all(
        each.id is not None
        for each in await register(
            find_registrable(library), Settings.read({"SAGA_REGISTRY": trouble.direct}), shop.clock
        )
    )
    place = Workplace(tmp_path)
    log: Any = place.broker
    async with place.broker, place.store, registry_at(trouble.direct) as clients, registry_at(trouble.url) as first:
        await log.ensure_topics([library.topics[sales], library.topics[money]])
        published = Edge(log, clients, place.clock)

        async def publish(*numbers: int) -> None:
            await published.publish([place.record_of(shop.an_order(f"order-{number}")) for number in numbers])

        place.broker = Edge(log, first, place.clock)  # type: ignore[assignment]
        async with at_work(place, shop.service):
            await publish(*range(EACH))
            await place.at_rest(shop.service)
            trouble.begin()
            await publish(*range(EACH, 2 * EACH))
            await place.at_rest(shop.service)
            assert len(await as_they_lie(place, money)) == 2 * EACH, "what was met is known while the registry is away"
        assert not place.reported(StandsStill)
        async with registry_at(trouble.url) as second:
            place.broker = Edge(log, second, place.clock)  # type: ignore[assignment]
            async with at_work(place, shop.service):
                await publish(*range(2 * EACH, 3 * EACH))
                await place.until(lambda: len(place.reported(StandsStill)) > 0)
                assert f"the schema registry at {trouble.url} cannot be used: " in place.reported(StandsStill)[0].error
                assert len(await as_they_lie(place, money)) == 2 * EACH, "a restarted one knows no id yet"
                await asyncio.to_thread(trouble.end)
                await place.at_rest(shop.service)
                assert place.reported(GoesOn)
            paid = Counter(texts_of(record.headers)["ce_subject"] for record in await as_they_lie(place, money))
            assert paid == {f"order-{number}": 1 for number in range(3 * EACH)}
            assert {(record.value or b"")[0] for record in await as_they_lie(place, money)} == {0}
            for number in range(3 * EACH):
                history = await place.history(shop.service, f"order-{number}")
                assert [(each.outcome, each.attempt) for each in history] == [("handled", 1)]
            assert not place.reported(DeadLettered)
            assert {each.what for each in place.reported(Unavailable)} <= {"registry"}
