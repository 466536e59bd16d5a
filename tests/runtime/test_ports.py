"""Ports of a worker: how often people hear of an outage, and what may not begin any more."""

import asyncio
from pathlib import Path

import pytest

from saga.broker.embedded.broker import EmbeddedBroker
from saga.errors import BrokerUnavailable, StoreUnavailable
from saga.messages import Partition, Position
from saga.observe.moments import Moment, Recovered, Unavailable
from saga.runtime.errors import Draining
from saga.runtime.offsets import Prefix
from saga.runtime.ports import RunningPorts
from saga.store.sqlite import SqliteStore
from saga.testing.trials import TrialClock
from tests.runtime.real_worker import Impatient

HERE, THERE = Position("orders", 0, 5), Position("orders", 1, 5)


def ports_of(folder: Path, moments: list[Moment], clock: TrialClock | Impatient) -> RunningPorts:
    store, broker = SqliteStore(folder / "s.db", clock=clock), EmbeddedBroker(folder / "b.db", clock=clock)
    ports = RunningPorts("payment", store, broker, clock, moments.append)
    ports.prefixes[Partition("orders", 0)] = Prefix(5)
    ports.prefixes[Partition("orders", 1)] = Prefix(9)
    return ports


async def test_people_hear_of_an_outage_once_a_minute_and_when_it_is_over(tmp_path: Path) -> None:
    moments, clock = list[Moment](), TrialClock()
    ports = ports_of(tmp_path, moments, clock)
    for _ in range(150):
        ports.unavailable("write", StoreUnavailable("full"))
        await clock.sleep(1)
    ports.unavailable("publish", BrokerUnavailable("gone"))
    assert [(m.what, m.since_s) for m in moments if isinstance(m, Unavailable)] == [
        ("store", 0),
        ("store", 60),
        ("store", 120),
        ("broker", 0),
    ]
    ports.answered("store")
    ports.answered("store")
    assert [(m.what, m.away_s) for m in moments if isinstance(m, Recovered)] == [("store", 150)]
    ports.unavailable("write", StoreUnavailable("full again"))
    ports.recovered(StoreUnavailable("full again"))
    assert len(moments) == 5, "a minute has not passed since people were last told"


async def test_nothing_of_a_partition_that_leaves_begins_and_of_others_it_does(tmp_path: Path) -> None:
    ports = ports_of(tmp_path, [], TrialClock())
    ports.leave([Partition("orders", 0)])
    with pytest.raises(Draining):
        ports.check_running(HERE)
    ports.check_running(THERE)
    with pytest.raises(Draining):
        ports.check_running(Position("orders", 2, 0))
    ports.stop()
    with pytest.raises(Draining):
        ports.check_running(THERE)


async def test_a_pause_ends_by_itself_or_at_once_when_nothing_may_begin_any_more(tmp_path: Path) -> None:
    ports = ports_of(tmp_path, [], Impatient())
    await ports.pause(0.05, HERE)
    async with asyncio.TaskGroup() as tasks:
        pause = tasks.create_task(_drained(ports, HERE))
        await asyncio.sleep(0)  # noqa: TID251 - let it begin
        ports.leave([Partition("orders", 0)])
    assert pause.result()


async def _drained(ports: RunningPorts, position: Position) -> bool:
    try:
        await ports.pause(1_000_000, position)
    except Draining:
        return True
    return False


async def test_what_is_committed_is_known_of_the_partitions_that_are_ours(tmp_path: Path) -> None:
    ports = ports_of(tmp_path, [], TrialClock())
    assert not ports.is_committed(HERE)
    assert ports.is_committed(THERE)
    assert not ports.is_committed(Position("orders", 2, 0))
