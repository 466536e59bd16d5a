"""Commits: what is finished is committed where it came from, once, and again when it could not be."""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from saga.broker.port import Listener, Membership
from saga.engine.consumer.committer import Committer
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.consumer.sources import WorkerSources
from saga.engine.consumer.worker_ports import WorkerAssignment
from saga.engine.outage_watch import OutageWatch
from saga.errors import BrokerUnavailable, Fenced
from saga.messages import Partition
from saga.support.clock import SystemClock
from saga.telemetry.events import TelemetryEvent, Unavailable

ORDER, BILL = Partition("orders", 0), Partition("bills", 0)


class Naps(SystemClock):
    """Sleeps take no time, and are counted."""

    naps = 0

    async def sleep(self, seconds: float) -> None:
        self.naps += 1
        await super().sleep(0)


class Group:
    """A source of one topic and its membership, that commits or fails as scripted."""

    def __init__(self, topic: str, *failures: Exception) -> None:
        self.topics = [topic]
        self.failures = list(failures)
        self.committed: list[Mapping[Partition, int]] = []

    def join(self, listener: Listener) -> AbstractAsyncContextManager[Membership]:
        raise AssertionError("commits join nothing")

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.committed.append(offsets)

    async def mark_in_progress(self, offsets: Mapping[Partition, int]) -> Collection[Partition]:
        await self.commit(offsets)
        return offsets


def commits_of(*groups: Group) -> tuple[Committer, list[TelemetryEvent]]:
    """Commits of a worker with one message of each partition, which is finished."""
    moments: list[TelemetryEvent] = []
    assignment = WorkerAssignment(OutageWatch("billing", Naps(), moments.append))
    for partition in (ORDER, BILL):
        prefix = assignment.trackers[partition] = OffsetTracker(0)
        prefix.begin(0)
        prefix.finish(0)
    joined: Any = [(group, group) for group in groups]
    return Committer(assignment, WorkerSources(groups, joined), asyncio.Event()), moments


async def test_finished_messages_are_committed_once_to_their_source() -> None:
    orders, bills = Group("orders"), Group("bills")
    commits, _ = commits_of(orders, bills)
    await commits.commit()
    await commits.commit()
    assert (orders.committed, bills.committed) == ([{ORDER: 1}], [{BILL: 1}])


async def test_a_commit_does_not_end_an_outage_of_another_operation() -> None:
    commits, moments = commits_of(Group("orders"), Group("bills"))
    watching = commits.assignment.outage_watch
    watching.unavailable("publish", BrokerUnavailable("too few replicas of payments"))
    await commits.commit()
    assert "broker" in watching.away(), "it takes offsets, and rejects events"
    assert [type(moment) for moment in moments] == [Unavailable]


async def test_a_group_that_cannot_be_reached_holds_up_no_other_and_is_tried_again() -> None:
    orders, bills = Group("orders", BrokerUnavailable("gone")), Group("bills")
    commits, moments = commits_of(orders, bills)
    await commits.commit()
    assert (orders.committed, bills.committed) == ([], [{BILL: 1}])
    assert isinstance(moments[0], Unavailable)
    assert commits.due.is_set()
    await commits.commit()
    assert orders.committed == [{ORDER: 1}]


async def test_a_group_that_is_fenced_holds_up_no_other_and_counts_as_nothing_committed() -> None:
    orders, bills = Group("orders", Fenced("somebody else's")), Group("bills")
    commits, moments = commits_of(orders, bills)
    await commits.commit()
    assert bills.committed == [{BILL: 1}]
    assert not commits.assignment.trackers[ORDER].is_committed(0)
    assert not moments
    assert not commits.due.is_set(), "`lost` says what becomes of it"


async def test_the_beginning_of_a_log_that_was_replaced_while_the_broker_was_away_is_not_noted_in_the_new_one() -> None:
    orders, bills = Group("orders", BrokerUnavailable("gone")), Group("bills")
    commits, _ = commits_of(orders, bills)
    left = await commits.open_partitions(
        {ORDER: 7, BILL: 5}, lambda partition: partition == BILL or bool(orders.failures)
    )
    assert (orders.committed, bills.committed) == ([], [{BILL: 5}])
    assert left == {BILL}


async def test_a_log_that_is_replaced_while_another_group_is_asked_is_not_noted_either() -> None:
    orders, bills = Group("orders"), Group("bills")
    commits, _ = commits_of(orders, bills)
    await commits.open_partitions({ORDER: 7, BILL: 5}, lambda partition: partition == ORDER or not orders.committed)
    assert (orders.committed, bills.committed) == ([{ORDER: 7}], [])


async def test_commits_wait_for_something_to_be_finished() -> None:
    orders = Group("orders")
    commits, _ = commits_of(orders)
    clock = commits.assignment.outage_watch.clock
    assert isinstance(clock, Naps)
    running = asyncio.get_running_loop().create_task(commits.run())
    for round_ in (0, 1):
        for _ in range(10):
            await SystemClock().sleep(0)
        assert (clock.naps, len(orders.committed)) == (round_, round_)
        commits.due.set()
    running.cancel()
    await asyncio.wait([running])
