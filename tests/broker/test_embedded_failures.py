"""Failures of the embedded broker's file, its disk or another process, and what it does then."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from saga.broker.embedded.broker import EmbeddedBroker
from saga.broker.embedded.log import PURPOSE, RecordLog
from saga.broker.embedded.membership import Timing
from saga.broker.port import Membership, Subscription
from saga.errors import BrokerError, BrokerUnavailable, Fenced
from saga.messages import Outgoing, Partition, Topic
from saga.store.sqlite.connection import open_to_write
from saga.store.sqlite.state_file import WriteLock
from saga.support.clock import SystemClock
from saga.testing.conformance.broker import BrokerConformance
from saga.testing.conformance.broker_suite import RecordingListener, event, values

CLOCK = SystemClock()
conformance = BrokerConformance()
conformance.within_s = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.db"


@pytest.fixture
async def broker(path: Path) -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker(path, clock=CLOCK, lock_s=0.3) as broker:
        await broker.ensure_topics([Topic("orders", 4)])
        yield broker


async def refusal(path: Path) -> str:
    with pytest.raises(BrokerError) as refused:
        async with EmbeddedBroker(path, clock=CLOCK, lock_s=0.1):
            pytest.fail("it opened")
    return str(refused.value)


# ---------------------------------------------------------------- opening


async def test_a_file_of_a_newer_format_is_refused(path: Path) -> None:
    async with EmbeddedBroker(path, clock=CLOCK):
        pass
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {PURPOSE.format + 1}")
    connection.close()
    message = await refusal(path)
    assert f"is of format {PURPOSE.format + 1}, newer than {PURPOSE.format}" in message
    assert "run the version of saga that wrote it" in message


def test_another_programs_sqlite_file_is_refused_and_left_as_it_is(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    before = path.read_bytes()
    assert "is an SQLite file that something else made; point SAGA_BROKER" in asyncio.run(refusal(path))
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"to be or not to be, that is the question " * 100)
    assert "is not an SQLite file; point SAGA_BROKER" in asyncio.run(refusal(path))


def test_a_folder_that_cannot_be_made_is_refused(path: Path) -> None:
    path.write_bytes(b"")
    assert "make the folder writable, or point SAGA_BROKER elsewhere" in asyncio.run(refusal(path / "below.db"))


async def test_opening_gives_up_when_the_lock_is_taken(path: Path) -> None:
    lock = WriteLock(path.with_name(f"{path.name}.lock"))
    assert lock.try_acquire()
    assert "another process has held its lock" in await refusal(path)
    lock.close()
    async with EmbeddedBroker(path, clock=CLOCK):
        pass


async def test_publishing_outside_of_the_block_is_refused(path: Path) -> None:
    broker = EmbeddedBroker(path, clock=CLOCK)
    async with broker:
        await broker.ensure_topics([Topic("orders", 4)])
    with pytest.raises(BrokerError, match="inside its `async with`"):
        await broker.publish([event("orders", "k")])


# ---------------------------------------------------------------- writing


async def test_a_full_file_makes_the_broker_unavailable_until_there_is_room(path: Path) -> None:
    async with EmbeddedBroker(path, clock=CLOCK, bytes_max=200_000) as broker:
        await broker.ensure_topics([Topic("orders", 4)])
        accepted = 0

        async def fill() -> None:
            nonlocal accepted
            while accepted < 1000:
                await broker.publish([Outgoing("orders", b"k%d" % accepted, b"%d" % accepted + b" " * 1000, ())])
                accepted += 1

        with pytest.raises(BrokerUnavailable, match=r"broker.db is full .*; nothing was written: make room"):
            await fill()
        assert 20 < accepted < 200
        with pytest.raises(BrokerUnavailable):
            await broker.publish([Outgoing("orders", b"k", b" " * 10_000, ())])
        broker.connection.execute("PRAGMA max_page_count = 100000")
        await broker.publish([event("orders", "k", f"{accepted}")])
        records = [record async for record in broker.scan("orders")]
        assert sorted(int(text) for text in values(records)) == list(range(accepted + 1))
        for number in range(4):
            offsets = [r.offset for r in records if r.partition == number]
            assert offsets == list(range(len(offsets)))


async def test_a_full_file_keeps_the_members_and_what_they_read(path: Path) -> None:
    listener = RecordingListener()
    async with EmbeddedBroker(path, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic("orders", 4)])
        await broker.publish([event("orders", "k", "before")])
        async with broker.join(Subscription("payment", ["orders"]), listener) as membership:
            await conformance.complete(listener)
            (pages,) = broker.connection.execute("PRAGMA page_count").fetchone()
            broker.connection.execute(f"PRAGMA max_page_count = {pages}")
            with pytest.raises(BrokerUnavailable):
                await broker.publish([Outgoing("orders", b"k", b" " * 100_000, ())])
            assert values(await conformance.read(membership, 1, listener=listener)) == ["before"]
            broker.connection.execute("PRAGMA max_page_count = 100000")
            await broker.publish([event("orders", "k", "after")])
            assert values(await conformance.read(membership, 1, listener=listener)) == ["after"]
            assert not listener.partitions_of("lost")


async def test_a_read_only_file_makes_the_broker_unavailable_until_it_can_be_written(broker: EmbeddedBroker) -> None:
    broker.connection.execute("PRAGMA query_only = ON")
    with pytest.raises(BrokerUnavailable, match=r"cannot be written .*give this user write access"):
        await broker.publish([event("orders", "k", "refused")])
    broker.connection.execute("PRAGMA query_only = OFF")
    await broker.publish([event("orders", "k", "written")])
    assert values([record async for record in broker.scan("orders")]) == ["written"]


async def test_nothing_of_a_transaction_that_failed_halfway_is_there(broker: EmbeddedBroker) -> None:
    broker.connection.execute("CREATE TEMP TRIGGER failing BEFORE UPDATE ON logs BEGIN SELECT RAISE(FAIL, 'why'); END")
    with pytest.raises(BrokerError, match="SQLITE_CONSTRAINT"):
        await broker.publish([event("orders", "k", f"{n}") for n in range(3)])
    assert not broker.connection.in_transaction  # or reading, which shares the connection, would see it
    broker.connection.execute("DROP TRIGGER failing")
    await broker.publish([event("orders", "k", "whole")])
    assert [(r.offset, r.value) async for r in broker.scan("orders")] == [(0, b"whole")]


def test_writes_of_others_are_noticed_again_after_a_failed_transaction(path: Path) -> None:
    ours, theirs = (open_to_write(path, PURPOSE, sqlite3.Connection, None) for _ in range(2))
    log = RecordLog(lambda: ours, watched=lambda: ((), ["payment"]))
    assert log.catch_up()
    assert not log.catch_up()
    theirs.execute("INSERT INTO groups VALUES ('payment', 1, 1)")
    assert log.catch_up()
    log.forget_appended()
    assert log.catch_up()
    assert log.versions == {"payment": 1}
    ours.close()
    theirs.close()


async def test_a_process_that_holds_the_lock_for_long_makes_the_broker_unavailable_and_never_blocks_the_loop(
    broker: EmbeddedBroker, path: Path
) -> None:
    lock = WriteLock(path.with_name(f"{path.name}.lock"))
    assert lock.try_acquire()
    publishing = asyncio.gather(broker.publish([event("orders", "k")]), return_exceptions=True)
    turns = 0
    while not publishing.done():
        await CLOCK.sleep(0.001)
        turns += 1
    (outcome,) = await publishing
    assert isinstance(outcome, BrokerUnavailable)
    assert "resume or end it" in str(outcome)
    assert turns > 5, "a loop that is blocked has one or two"
    lock.release()
    await broker.publish([event("orders", "k", "after")])
    assert values([record async for record in broker.scan("orders")]) == ["after"]
    lock.close()


async def test_a_short_wait_for_the_lock_goes_unnoticed(broker: EmbeddedBroker, path: Path) -> None:
    lock = WriteLock(path.with_name(f"{path.name}.lock"))
    assert lock.try_acquire()
    publishing = asyncio.gather(*(broker.publish([event("orders", "k", f"{n}")]) for n in range(3)))
    await CLOCK.sleep(0.02)
    lock.close()
    await CLOCK.within(5, publishing)
    assert values([record async for record in broker.scan("orders")]) == ["0", "1", "2"]


async def test_another_program_inside_a_transaction_is_waited_for(broker: EmbeddedBroker, path: Path) -> None:
    shell = sqlite3.connect(path, isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    with pytest.raises(BrokerUnavailable):
        await broker.publish([event("orders", "k")])
    shell.execute("ROLLBACK")
    shell.close()
    await broker.publish([event("orders", "k", "after")])
    assert values([record async for record in broker.scan("orders")]) == ["after"]


async def test_records_published_together_are_one_transaction(broker: EmbeddedBroker) -> None:
    statements: list[str] = []
    broker.connection.set_trace_callback(statements.append)
    await asyncio.gather(*(broker.publish([event("orders", f"k{n}", f"{n}")]) for n in range(100)))
    broker.connection.set_trace_callback(None)
    assert statements.count("COMMIT") == 1


async def test_records_published_by_a_cancelled_caller_are_stored(broker: EmbeddedBroker) -> None:
    publishing = asyncio.gather(broker.publish([event("orders", "k", "kept")]))
    await CLOCK.sleep(0)
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    await broker.publish([event("orders", "k", "next")])
    assert values([record async for record in broker.scan("orders")]) == ["kept", "next"]


async def test_a_large_call_of_publish_keeps_its_order(broker: EmbeddedBroker) -> None:
    await broker.publish([event("orders", "k", f"{n}") for n in range(4500)])
    assert values([record async for record in broker.scan("orders")]) == [f"{n}" for n in range(4500)]


async def test_a_refused_commit_fails_alone(broker: EmbeddedBroker) -> None:
    listener = RecordingListener()
    async with broker.join(Subscription("payment", ["orders"]), listener) as membership:
        await conformance.complete(listener)
        broker.connection.execute("UPDATE positions SET granted = granted + 1 WHERE log = 1")
        outcomes = await asyncio.gather(
            broker.publish([event("orders", "k", "0")]),
            membership.commit({Partition("orders", 0): 1, Partition("orders", 1): 1}),
            membership.commit({Partition("orders", 2): 1}),
            broker.publish([event("orders", "k", "1")]),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [type(None), Fenced, type(None), type(None)]
        assert values([record async for record in broker.scan("orders")]) == ["0", "1"]
        positions = dict(broker.connection.execute("SELECT log, offset FROM positions"))
        assert positions == {1: 0, 2: 0, 3: 1, 4: 0}


async def fails_to_release(broker: EmbeddedBroker, listener: RecordingListener, membership: Membership) -> None:
    """Wait until the member has let its listener commit and could not write that it releases partitions."""

    async def fail() -> None:
        broker.connection.execute("PRAGMA query_only = ON")

    listener.before_letting_go = fail
    with pytest.raises(BrokerUnavailable):
        await conformance.read(membership, 1, listener=listener)
    listener.before_letting_go = None
    assert listener.partitions_of("revoked")


async def test_revoked_partitions_whose_release_failed_are_lost_once_they_are_released(
    broker: EmbeddedBroker, path: Path
) -> None:
    first, second = RecordingListener(), RecordingListener()
    async with (
        broker.join(Subscription("payment", ["orders"]), first) as membership,
        EmbeddedBroker(path, clock=CLOCK) as other,
    ):
        await conformance.complete(first)
        async with other.join(Subscription("payment", ["orders"]), second):
            await fails_to_release(broker, first, membership)
            assert not first.partitions_of("gone")
            broker.connection.execute("PRAGMA query_only = OFF")
            await conformance.until(lambda: len(second.has) == 2)
            assert first.partitions_of("gone") == second.has.keys()
            assert not first.partitions_of("lost")


async def test_revoked_partitions_whose_release_failed_are_lost_once_another_member_takes_them(path: Path) -> None:
    first, second, timing = RecordingListener(), RecordingListener(), Timing(drain_s=0.2)
    async with (
        EmbeddedBroker(path, clock=CLOCK, timing=timing) as broker,
        EmbeddedBroker(path, clock=CLOCK, timing=timing) as other,
    ):
        await broker.ensure_topics([Topic("orders", 4)])
        async with broker.join(Subscription("payment", ["orders"]), first) as membership:
            await conformance.complete(first)
            async with other.join(Subscription("payment", ["orders"]), second):
                await fails_to_release(broker, first, membership)
                await conformance.until(lambda: len(second.has) == 2)
                await conformance.until(lambda: first.partitions_of("gone") == second.has.keys())
                broker.connection.execute("PRAGMA query_only = OFF")


async def test_revoked_partitions_whose_release_failed_come_back_if_the_other_member_leaves(
    broker: EmbeddedBroker, path: Path
) -> None:
    first, second = RecordingListener(), RecordingListener()
    async with (
        broker.join(Subscription("payment", ["orders"]), first) as membership,
        EmbeddedBroker(path, clock=CLOCK) as other,
    ):
        await conformance.complete(first)
        async with other.join(Subscription("payment", ["orders"]), second):
            await fails_to_release(broker, first, membership)
        broker.connection.execute("PRAGMA query_only = OFF")
        await conformance.complete(first)
        await broker.publish([event("orders", "k", "after")])
        assert values(await conformance.read(membership, 1, listener=first)) == ["after"]
        assert not first.partitions_of("gone")
        assert not first.partitions_of("lost")


async def test_partitions_whose_ends_cannot_be_read_are_read_once_they_can(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.publish([event("orders", "k", "before")])
    read_ends, failures = RecordLog.read_ends, list[sqlite3.Error]()

    def fail_once(log: RecordLog, logs: Iterable[int]) -> Mapping[int, int]:
        if not failures and (logs := list(logs)):
            failures.append(why := sqlite3.OperationalError("disk I/O error"))
            why.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise why
        return read_ends(log, logs)

    monkeypatch.setattr(RecordLog, "read_ends", fail_once)
    listener = RecordingListener()
    async with broker.join(Subscription("payment", ["orders"]), listener) as membership:
        await conformance.complete(listener)
        assert failures
        assert values(await conformance.read(membership, 1, listener=listener)) == ["before"]


async def test_records_that_come_while_the_listener_is_assigned_their_partition_are_read(
    broker: EmbeddedBroker,
) -> None:
    class Publishing(RecordingListener):
        async def on_assigned(self, partitions: Mapping[Partition, int]) -> None:
            await broker.publish([event("orders", "k", "meanwhile")])
            await super().on_assigned(partitions)

    listener = Publishing()
    async with broker.join(Subscription("payment", ["orders"]), listener) as membership:
        assert values(await conformance.read(membership, 1, listener=listener)) == ["meanwhile"]


async def test_a_record_beyond_all_bounds_is_refused_before_it_is_queued(broker: EmbeddedBroker) -> None:
    with pytest.raises(BrokerError, match="1000000 bytes at most"):
        await broker.publish([Outgoing("orders", b"k", b"", (("many", bytes(1_000_000)),))])


async def test_a_write_of_another_process_during_opening_is_no_error(tmp_path: Path) -> None:
    async with EmbeddedBroker(tmp_path / "broker.db", clock=CLOCK) as first:

        class Meanwhile(SystemClock):
            """Clock of one that is opened: when it draws the log's id, another process has just written."""

            def chance(self) -> float:
                first.connection.execute("INSERT OR IGNORE INTO groups VALUES ('payment', 1, 1)")
                return super().chance()

        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        async with EmbeddedBroker(tmp_path / "broker.db", clock=Meanwhile()) as second:
            await second.ensure_topics([Topic("orders")])
        assert not errors
