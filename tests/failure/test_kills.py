"""Effects once, for real: four processes, orders of which a tenth comes twice, and `kill -9` in between."""

from pathlib import Path
from random import Random  # noqa: TID251 - seeded
from typing import NamedTuple

import pytest

from saga import Client
from saga.configuration import wiring
from saga.contracts.library import find_library
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from services.audit.books import SERVICES, read_books
from services.audit.checks import audit
from services.demo.__main__ import ORDERS, read_orders
from services.demo.fleet import ROOT, Fleet
from services.demo.watch import TOPICS, Watch, unsettled
from services.inventory.seed import seed
from services.order.events import OrderPlaced

SEED = 20261121
ORDERS_MAX = 180
TWICE = 18
KILLS = 12
LOOK_S_MAX = 0.08
"""Longest time that orders are under way when a service dies: about the time in which half of them end."""
ENDED_S_MAX, SETTLED_S_MAX = 60.0, 60.0


def with_repetitions(orders: list[OrderPlaced], chance: Random) -> list[OrderPlaced]:
    """Each order, and a tenth of them once more, somewhere behind."""
    published = list(orders)
    for again in chance.sample(orders, TWICE):
        published.insert(chance.randint(published.index(again) + 1, len(published)), again)
    return published


class Kill(NamedTuple):
    service: str
    under_way: int
    """Number of orders that had not ended."""


async def killed_at_random(fleet: Fleet, orders: list[OrderPlaced], watch: Watch, chance: Random) -> list[Kill]:
    """Place orders, and kill a service whenever a random number of them is under way; what was killed."""
    kills, placed = list[Kill](), set[str]()
    async with Client(fleet.broker) as client:
        for number in range(KILLS):
            # All are at work again before the next dies: else most kills would hit processes that are still starting.
            await until_ended(watch, len(placed), fleet)
            batch = orders[len(orders) * number // KILLS : len(orders) * (number + 1) // KILLS]
            cut = chance.randrange(len(batch)) + 1
            await client.publish(*batch[:cut])
            placed |= {order.order_id for order in batch}
            await watch.look(chance.uniform(0, LOOK_S_MAX))
            victim = chance.choice(SERVICES)
            fleet.kill(victim)
            kills.append(Kill(victim, len({order.order_id for order in batch[:cut]} - watch.known)))
            await client.publish(*batch[cut:])
            fleet.start(victim)
    return kills


async def until_ended(watch: Watch, count: int, fleet: Fleet) -> None:
    """Return as soon as so many orders have ended."""
    clock = SystemClock()
    until_s = clock.monotonic_s() + ENDED_S_MAX
    while watch.count < count:
        await watch.look(0.1)
        fleet.check()
        assert clock.monotonic_s() < until_s, f"{watch.count} of {count} orders have ended after {ENDED_S_MAX} s"


@pytest.mark.timeout(300)
async def test_every_effect_happens_once_though_services_are_killed_at_random_moments(tmp_path: Path) -> None:
    clock, chance = SystemClock(), Random(SEED)
    orders = list(read_orders(ORDERS))[:ORDERS_MAX]
    ids = frozenset(order.order_id for order in orders)
    assert len(ids) == ORDERS_MAX
    published = with_repetitions(orders, chance)
    assert len(published) == ORDERS_MAX + TWICE
    async with SqliteStore(tmp_path / "inventory.db", clock=clock) as store:
        await seed(store)
    with Fleet(tmp_path, clock) as fleet:
        fleet.start_all()
        async with wiring.open_broker(fleet.broker, clock) as broker:
            await broker.ensure_topics([find_library(ROOT).topics[topic] for topic in TOPICS])
            async with Watch().on(broker) as watch:
                kills = await killed_at_random(fleet, published, watch, chance)
                await until_ended(watch, ORDERS_MAX, fleet)
        until_s = clock.monotonic_s() + SETTLED_S_MAX
        while left := await unsettled(tmp_path, ids, clock):
            fleet.check()
            assert clock.monotonic_s() < until_s, f"not settled: {left}"
            await clock.sleep(0.1)
        await fleet.stop()
    assert sum(kill.under_way > 0 for kill in kills) >= 6, kills
    assert {kill.service for kill in kills} == set(SERVICES)
    checks = audit(await read_books(tmp_path, ids))
    assert {check.name: check.differences for check in checks if check.differences} == {}
    assert [check.figures for check in checks if check.name == "nothing is left to do"] == [
        f"{ORDERS_MAX} of {ORDERS_MAX} orders at rest in all services"
    ]
