"""Ports of a worker: how often people hear of an outage, and what may not begin any more."""

import asyncio

import pytest

from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.consumer.worker_ports import WorkerAssignment
from saga.engine.errors import Draining
from saga.engine.outage_watch import OutageWatch
from saga.errors import BrokerUnavailable, StoreUnavailable
from saga.messages import Partition, Position
from saga.support.clock import Clock
from saga.telemetry.events import Recovered, TelemetryEvent, Unavailable
from saga.testing.trials import TrialClock
from tests.engine.real_worker import Impatient

HERE, THERE = Position("orders", 0, 5), Position("orders", 1, 5)


def assigned(clock: Clock) -> WorkerAssignment:
    """The first of two partitions is committed up to 5, the other one up to 9."""
    assignment = WorkerAssignment(OutageWatch("payment", clock, lambda moment: None))
    assignment.trackers |= {Partition("orders", 0): OffsetTracker(5), Partition("orders", 1): OffsetTracker(9)}
    return assignment


async def test_people_hear_of_an_outage_once_a_minute_and_when_it_is_over() -> None:
    moments, clock = list[TelemetryEvent](), TrialClock()
    watching = OutageWatch("payment", clock, moments.append)
    for _ in range(150):
        watching.unavailable("write", StoreUnavailable("full"))
        await clock.sleep(1)
    watching.unavailable("publish", BrokerUnavailable("gone"))
    assert [(m.what, m.since_s) for m in moments if isinstance(m, Unavailable)] == [
        ("store", 0),
        ("store", 60),
        ("store", 120),
        ("broker", 0),
    ]
    watching.answered("store")
    watching.answered("store")
    assert [(m.what, m.away_s) for m in moments if isinstance(m, Recovered)] == [("store", 150)]
    watching.unavailable("write", StoreUnavailable("full again"))
    watching.recovered(StoreUnavailable("full again"))
    assert len(moments) == 5, "a minute has not passed since the last report"


async def test_a_run_continues_until_its_partition_is_lost() -> None:
    assignment = assigned(TrialClock())
    assignment.let_go([Partition("orders", 0)])
    del assignment.trackers[Partition("orders", 0)]
    assignment.check_running(HERE)
    assignment.lose([Partition("orders", 0)])
    with pytest.raises(Draining):
        assignment.check_running(HERE)
    assignment.check_running(THERE)
    with pytest.raises(Draining):
        assignment.check_running(Position("orders", 2, 0))
    assignment.stop()
    with pytest.raises(Draining):
        assignment.check_running(THERE)


async def test_a_pause_ends_by_itself_or_at_once_when_nothing_may_begin_any_more() -> None:
    assignment = assigned(Impatient())
    await assignment.pause(0.05, HERE)
    async with asyncio.TaskGroup() as tasks:
        pause = tasks.create_task(_drained(assignment, HERE))
        await asyncio.sleep(0)  # noqa: TID251 - let it begin
        assignment.lose([Partition("orders", 0)])
    assert pause.result()


async def _drained(assignment: WorkerAssignment, position: Position) -> bool:
    try:
        await assignment.pause(1_000_000, position)
    except Draining:
        return True
    return False


async def test_committed_offsets_are_known_for_assigned_partitions() -> None:
    assignment = assigned(TrialClock())
    assert not assignment.is_committed(HERE)
    assert assignment.is_committed(THERE)
    assert not assignment.is_committed(Position("orders", 2, 0))


async def test_the_log_of_a_topic_is_known_by_any_partition_of_it_that_is_ours() -> None:
    assignment = assigned(TrialClock())
    assignment.trackers[Partition("orders", 0)] = OffsetTracker(9, "new")
    assert assignment.is_of_current_log(Position("orders", 7, 5, "new"))
    assert not assignment.is_of_current_log(Position("orders", 0, 5, "old"))
    assert not assignment.is_of_current_log(Position("payments", 0, 5, "new"))


async def test_an_offset_of_another_log_is_committed_nowhere() -> None:
    assignment = assigned(TrialClock())
    assignment.trackers |= {Partition("orders", 0): OffsetTracker(9, "new"), Partition("orders", 1): OffsetTracker(9)}
    assert assignment.is_committed(Position("orders", 0, 5, "new"))
    assert not assignment.is_committed(Position("orders", 0, 5, "old"))
    assert not assignment.is_committed(Position("orders", 0, 5))
    assert assignment.is_committed(Position("orders", 1, 5))
