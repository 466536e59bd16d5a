"""Alive: no service has ended by itself. Ready: each has joined its group, and store and broker answer."""

import asyncio

import pytest

from saga.messages import StalledPartition
from saga.telemetry.health import AWAY_S_MAX, Health
from tests.telemetry.workers import P0, WatchedWorker

JOINED = {P0: 3}


def reasons(health: Health) -> list[tuple[str, str]]:
    return [(reason.service, reason.reason.partition(":")[0]) for reason in health.not_ready()]


@pytest.fixture
def stop() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def health(stop: asyncio.Event) -> Health:
    return Health(["payment"], stop)


def test_before_its_worker_begins_a_process_is_alive_and_not_ready(health: Health) -> None:
    assert not health.not_alive()
    assert reasons(health) == [("payment", "starting")]


def test_a_worker_that_has_not_joined_its_group_is_not_ready(health: Health) -> None:
    worker = WatchedWorker(behind=None)
    with health.watch(worker):
        assert reasons(health) == [("payment", "starting")]
        worker.behind = JOINED
        assert not reasons(health)


def test_a_member_without_a_partition_is_ready(health: Health) -> None:
    with health.watch(WatchedWorker(behind={})):
        assert not reasons(health)


def test_a_rebalance_makes_no_worker_less_ready(health: Health) -> None:
    worker = WatchedWorker(behind=JOINED)
    with health.watch(worker):
        assert not reasons(health)
        worker.behind = None
        assert not reasons(health)


@pytest.mark.parametrize("what", ["store", "broker"])
def test_a_long_outage_makes_a_service_not_ready_until_it_ends(health: Health, what: str) -> None:
    worker = WatchedWorker(behind=JOINED)
    with health.watch(worker):
        worker.gone = {what: AWAY_S_MAX - 1}
        assert not reasons(health)
        worker.gone = {what: AWAY_S_MAX + 1}
        assert reasons(health) == [("payment", f"the {what} has not answered for 11 s")]
        worker.gone = {}
        assert not reasons(health)
        assert not health.not_alive()


def test_every_service_of_the_process_has_to_be_ready(stop: asyncio.Event) -> None:
    health = Health(["payment", "order"], stop)
    with health.watch(WatchedWorker(name="payment", behind=JOINED)):
        assert reasons(health) == [("order", "starting")]
        with health.watch(WatchedWorker(name="order", behind=JOINED, gone={"store": 60.0, "broker": 60.0})):
            assert [service for service, _ in reasons(health)] == ["order", "order"]


def test_a_process_that_drains_is_alive_and_not_ready(health: Health, stop: asyncio.Event) -> None:
    with health.watch(WatchedWorker(behind=JOINED)):
        stop.set()
        assert reasons(health) == [("payment", "draining")]
        assert not health.not_alive()
    assert reasons(health) == [("payment", "stopped")]
    assert not health.not_alive()


def test_a_worker_that_ends_by_itself_leaves_a_process_that_is_not_alive(health: Health) -> None:
    with pytest.raises(RuntimeError), health.watch(WatchedWorker(behind=JOINED)):
        raise RuntimeError("a defect")
    assert health.not_alive() == [("payment", "its worker has ended")]
    assert reasons(health) == [("payment", "its worker has ended")]


def test_a_partition_that_cannot_be_read_is_a_reason_as_long_as_it_stands(health: Health) -> None:
    worker = WatchedWorker(
        behind=JOINED, stands=[StalledPartition("orders", 0, 7, "orders/0 is stalled at offset 7: why")]
    )
    with health.watch(worker):
        assert reasons(health) == [("payment", "orders/0 is stalled at offset 7")]
        worker.stands = ()
        assert not reasons(health)
