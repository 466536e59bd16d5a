"""Records that wait for a schema registry: passed on in order, no more than asked for, and dropped with their
partition."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from saga.contracts.foreign_values import frame
from saga.errors import SagaError
from saga.messages import Partition, Record
from saga.registry.edge import BlockedPartitions, RegistryCache, RegistryListener
from saga.testing.conformance import broker_suite
from tests.registry.fake_registry import FakeRegistry
from tests.registry.shop import Standing

SALES, OTHER = Partition("sales", 0), Partition("sales", 1)


def record(offset: int, id_: int, partition: Partition = SALES) -> Record:
    return Record(*partition, offset, b"k", frame(id_, b""), (), 0)


@pytest.fixture
def known() -> RegistryCache:
    return RegistryCache(FakeRegistry(), Standing())


def offsets(records: object) -> list[int]:
    assert isinstance(records, list)
    return [each.offset for each in records]


async def test_pending_records_are_passed_on_in_order_up_to_the_limit(known: RegistryCache) -> None:
    held = BlockedPartitions(known, Standing())
    await known.learn(1)
    records = [record(0, 1), record(1, 2), record(2, 1), record(3, 2), record(4, 3), record(5, 1)]
    assert offsets(held.pass_ready([*records, record(7, 1, OTHER)])) == [0, 7]
    assert held.release_ready([SALES, OTHER], 10) == []
    await known.learn(2)
    assert held.release_ready([OTHER], 10) == [], "a partition that is left out is paused"
    assert offsets(held.release_ready([SALES], 2)) == [1, 2]
    assert offsets(held.pass_ready([record(6, 1)])) == [], "behind what is held"
    assert offsets(held.release_ready([SALES], 10)) == [3]
    await known.learn(3)
    assert offsets(held.release_ready([SALES], 10)) == [4, 5, 6]
    assert held.records == {}


async def assigned(listener: RegistryListener) -> None:
    await listener.on_assigned({SALES: 0})


async def revoked(listener: RegistryListener) -> None:
    await listener.on_revoked([SALES])


async def lost(listener: RegistryListener) -> None:
    listener.on_lost([SALES])


@pytest.mark.parametrize("goes", [assigned, revoked, lost])
async def test_pending_records_are_dropped_with_their_partition_and_read_again_by_its_next_owner(
    known: RegistryCache, goes: Callable[[RegistryListener], Awaitable[None]]
) -> None:
    held, inner = BlockedPartitions(known, Standing()), broker_suite.RecordingListener({SALES: 0})
    held.pass_ready([record(0, 1), record(0, 1, OTHER)])
    await goes(RegistryListener(inner, held))
    assert list(held.records) == [OTHER]
    assert inner.partitions_of(goes.__name__) == {SALES}


@pytest.mark.parametrize("id_", [1 << 31, (1 << 32) - 1])
async def test_an_id_that_no_registry_gives_is_missing_without_a_request(known: RegistryCache, id_: int) -> None:
    """Registries answer such a request as if the path did not exist, which is what a wrong address does, too."""
    held = BlockedPartitions(known, Standing())
    assert held.pass_ready([record(0, id_)]) == []
    await known.learn(id_)
    (passed,) = held.release_ready([SALES], 10)
    assert passed.writer is not None
    assert (passed.writer.id, passed.writer.schema) == (id_, "")
    assert known.registry.asked == []  # type: ignore[attr-defined]
    await known.learn((1 << 31) - 1)
    assert known.registry.asked == [f"schema {(1 << 31) - 1}"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "reason", "logged"),
    [
        (SagaError("it refuses"), "it refuses", 0),
        (ValueError("odd"), "asking for the schema with id 1 failed: ValueError: odd; it is tried again", 1),
    ],
)
async def test_requests_continue_after_an_answer_that_nobody_expected(
    known: RegistryCache,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    reason: str,
    logged: int,
) -> None:
    held, woken = BlockedPartitions(known, Standing()), asyncio.Event()
    ask_schema = known.registry.schema

    async def refuse(id_: int) -> str:
        raise error

    monkeypatch.setattr(known.registry, "schema", refuse)
    held.pass_ready([record(0, 1)])
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(held.ask(woken.set))
        await woken.wait()
        assert [each.reason for each in held.stalled_partitions()] == [reason]
        assert len([each for each in caplog.records if each.exc_info]) == logged
        woken.clear()
        monkeypatch.setattr(known.registry, "schema", ask_schema)
        await woken.wait()
        assert offsets(held.release_ready([SALES], 10)) == [0]
        assert held.stalled_partitions() == []
        asking.cancel()
