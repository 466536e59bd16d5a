"""The broker's file removed, replaced, restored or damaged; locks that fail; seats of the dead and of the living."""

import errno
import fcntl
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from saga.broker.embedded import groups
from saga.broker.embedded.broker import EmbeddedBroker
from saga.broker.embedded.groups import MemberLock, is_dead, remove_dead_locks
from saga.broker.port import Subscription
from saga.errors import BrokerBroken, BrokerError, BrokerUnavailable
from saga.messages import Outgoing, Partition, Record, Topic
from saga.store.sqlite import integrity, state_file
from saga.store.sqlite.state_file import WriteLock
from saga.support.clock import SystemClock
from saga.testing.conformance.broker_suite import RecordingListener, event, values
from tests.broker.waiting import until

CLOCK = SystemClock()
COUNT = 20


@pytest.fixture(autouse=True)
def always_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests are faster than a person who removes files by hand."""
    monkeypatch.setattr(integrity, "CHECK_EVERY_S", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "broker.db"


def beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def removed(path: Path, ending: str) -> None:
    beside(path, ending).unlink()


def replaced(path: Path, ending: str) -> None:
    new = beside(path, ".new")
    shutil.copy(beside(path, ending), new)
    new.rename(beside(path, ending))


def put_back(path: Path) -> None:
    """Put the copy back, as the message says."""
    (copy,) = path.parent.glob(f"{path.name}.rescued-*")
    for ending in ("", "-wal", "-shm"):
        beside(path, ending).unlink(missing_ok=True)
    copy.rename(path)


async def opened(path: Path) -> EmbeddedBroker:
    broker = await EmbeddedBroker(path, clock=CLOCK).__aenter__()
    await broker.ensure_topics([Topic("orders", 4)])
    return broker


async def filled(broker: EmbeddedBroker) -> list[str]:
    for n in range(COUNT):
        await broker.publish([event("orders", f"k{n}", f"{n}")])
    return sorted(f"{n}" for n in range(COUNT))


async def has(listening: RecordingListener, count: int) -> list[Partition]:
    """Its partitions, once there are so many."""
    await until(lambda: len(listening.has) == count)
    return list(listening.has)


def members(broker: EmbeddedBroker) -> set[str]:
    """Seats of all members, as the file has them."""
    return {seat for (seat,) in broker.connection.execute("SELECT seat FROM members")}


async def held_in(path: Path) -> list[str]:
    async with EmbeddedBroker(path, clock=CLOCK) as broker:
        return sorted(values([record async for record in broker.scan("orders")]))


# -------------------------------------------------------------------- removed, replaced, restored


@pytest.mark.parametrize("ending", ["", "-wal", "-shm", ".lock"])
@pytest.mark.parametrize("happens", [removed, replaced])
async def test_a_file_that_lost_its_name_takes_no_record_and_nothing_acknowledged_is_lost(
    path: Path, happens: Callable[[Path, str], None], ending: str
) -> None:
    broker = await opened(path)
    acknowledged = await filled(broker)
    happens(path, ending)
    for _ in range(2):
        with pytest.raises(BrokerBroken, match=rf"broker.db{ending} was .* while it was in use.*is saved in"):
            await broker.publish([event("orders", "late")])
    await broker.__aexit__(None, None, None)
    with pytest.raises(BrokerBroken, match="put it in the place of"):
        await EmbeddedBroker(path, clock=CLOCK).__aenter__()
    put_back(path)
    assert await held_in(path) == acknowledged


async def test_a_member_that_only_waits_notices_it_within_moments(path: Path) -> None:
    broker = await opened(path)
    async with broker.join(Subscription("payment", ["orders"]), RecordingListener()) as member:
        await member.poll([], records_max=1, timeout_s=0.2)
        removed(path, "")
        with pytest.raises(BrokerBroken, match="was removed while it was in use"):
            await CLOCK.within(5, member.poll([], records_max=1, timeout_s=60))
    await broker.__aexit__(None, None, None)


async def test_a_member_that_only_waits_gets_the_error_that_another_process_has_found(path: Path) -> None:
    """It writes nothing, and its reads are of pages that it knows: alone it would not see that the file is another."""
    broker, other = await opened(path), await opened(path)
    async with broker.join(Subscription("payment", ["orders"]), RecordingListener()) as member:
        await member.poll([], records_max=1, timeout_s=0.2)
        with path.open("r+b") as file:
            file.write(b"to be or not to be " * 300)
        with pytest.raises(BrokerBroken, match="was overwritten while it was in use"):
            await other.publish([event("orders", "late")])
        with pytest.raises(BrokerBroken, match=r"was overwritten while it was in use.*restore the file"):
            await CLOCK.within(5, member.poll([], records_max=1, timeout_s=60))
    for each in (broker, other):
        await each.__aexit__(None, None, None)


async def test_a_broker_that_is_closed_after_its_file_was_removed_saves_it_and_reports_that(path: Path) -> None:
    broker = await opened(path)
    acknowledged = await filled(broker)
    removed(path, "")
    with pytest.raises(BrokerBroken, match="is saved in"):
        await broker.__aexit__(None, None, None)
    put_back(path)
    assert await held_in(path) == acknowledged


async def test_an_older_copy_over_the_open_file_is_detected(path: Path) -> None:
    broker = await opened(path)
    for n in range(3):
        for size in [900_000] * 5:  # more than SQLite's log holds before it is copied into the file
            await broker.publish([event("orders", f"k{n}", "x" * size)])
        if n == 0:
            older = path.read_bytes()  # noqa: ASYNC240
    await filled(broker)
    path.write_bytes(older)  # noqa: ASYNC240
    with pytest.raises(BrokerBroken, match="was overwritten while it was in use"):
        await broker.publish([event("orders", "late")])
    await broker.__aexit__(None, None, None)
    with pytest.raises(BrokerBroken, match=r"remove .*broker.db.lock"):
        await EmbeddedBroker(path, clock=CLOCK).__aenter__()


async def test_an_older_content_that_sqlite_itself_put_back_is_detected(path: Path) -> None:
    broker = await opened(path)
    with closing(sqlite3.connect(":memory:")) as copy:
        with closing(sqlite3.connect(path)) as live:
            live.backup(copy)
        await filled(broker)
        with closing(sqlite3.connect(path)) as live:
            copy.backup(live)
    with pytest.raises(BrokerBroken, match="lacks what was acknowledged last"):
        await broker.publish([event("orders", "late")])
    await broker.__aexit__(None, None, None)


async def test_a_log_that_is_cut_short_is_detected(path: Path) -> None:
    broker = await opened(path)
    await filled(broker)
    os.truncate(beside(path, "-wal"), 5000)
    with pytest.raises(BrokerBroken, match=r"broker.db-wal was overwritten or cut short"):
        await broker.publish([event("orders", "late")])
    await broker.__aexit__(None, None, None)


async def test_a_log_that_was_lost_after_a_crash_is_reported_until_an_operator_decides(
    path: Path, tmp_path: Path
) -> None:
    broker = await opened(path)
    await filled(broker)
    noted = beside(path, ".lock").read_bytes()
    before = path.read_bytes()  # noqa: ASYNC240
    await broker.__aexit__(None, None, None)
    path.write_bytes(before)  # noqa: ASYNC240 - as it was without what only the log had
    beside(path, ".lock").write_bytes(noted)
    for _ in range(2):
        with pytest.raises(BrokerBroken, match=r"lacks what was acknowledged last.*remove .*broker.db.lock"):
            await EmbeddedBroker(path, clock=CLOCK).__aenter__()
    removed(path, ".lock")
    await (await opened(path)).__aexit__(None, None, None)


# -------------------------------------------------------------------- damaged


async def test_a_record_that_is_not_what_was_written_stalls_its_partition_and_its_place_is_named(path: Path) -> None:
    broker = await opened(path)
    await broker.publish([event("orders", "k", "one")])
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        for log in range(1, 5):
            shell.execute(f"UPDATE log_{log} SET value = ?", (b"won",))
    async with broker.join(Subscription("payment", ["orders"]), listening := RecordingListener()) as member:
        assert await member.poll(await has(listening, 4), records_max=10, timeout_s=0.5) == []
        (standstill,) = member.stalled_partitions()
        assert str(path) in standstill.reason
    await broker.__aexit__(None, None, None)


async def test_a_record_without_a_value_is_not_one_with_an_empty_value(path: Path) -> None:
    broker = await opened(path)
    await broker.publish([Outgoing("orders", b"k", None, ())])
    assert [record.value async for record in broker.scan("orders")] == [None]
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        for log in range(1, 5):
            shell.execute(f"UPDATE log_{log} SET value = ?", (b"",))
    with pytest.raises(BrokerError, match="its checksum is another"):
        _ = [record async for record in broker.scan("orders")]
    await broker.__aexit__(None, None, None)


@pytest.mark.parametrize("column", ["key", "value", "headers", "time_ms", "sum"])
@pytest.mark.parametrize("into", ["CAST({} AS TEXT)", "CAST(x'ff' AS TEXT)", "NULL", "x'ff'", "7", "1e300", "-1", "''"])
async def test_a_changed_row_stalls_its_partition_or_reads_as_written_and_blocks_no_other(
    path: Path, column: str, into: str
) -> None:
    broker = await opened(path)
    await broker.publish([Outgoing("orders", b"k%d" % n, b"\xc3\x01\xff", (("h", b"\xff"),)) for n in range(COUNT)])
    stored = [record async for record in broker.scan("orders")]
    hurt = stored[0]
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        log = broker._open.log.topics["orders"].first_log + hurt.partition
        shell.execute(f"UPDATE log_{log} SET {column} = {into.format(column)} WHERE offset = ?", (hurt.offset,))
    others = [record for record in stored if record.partition != hurt.partition]
    async with broker.join(Subscription("payment", ["orders"]), listening := RecordingListener()) as member:
        partitions, found = await has(listening, 4), list[Record]()
        while len(found) < len(others):
            found += await member.poll(partitions, records_max=COUNT, timeout_s=1)
        found += await member.poll(partitions, records_max=COUNT, timeout_s=0.05)
        if member.stalled_partitions():
            assert sorted(found) == others
        else:
            assert sorted(found) == stored
    await broker.__aexit__(None, None, None)


async def test_records_that_are_missing_between_others_end_the_service_that_reads_them(path: Path) -> None:
    broker = await opened(path)
    for n in range(3):
        await broker.publish([event("orders", "k", f"{n}")])
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        for log in range(1, 5):
            shell.execute(f"DELETE FROM log_{log} WHERE offset = 1")
    with pytest.raises(BrokerBroken, match=r"broker.db is damaged.*are missing"):
        _ = [record async for record in broker.scan("orders")]
    await broker.__aexit__(None, None, None)
    with pytest.raises(BrokerBroken, match="and holds others"):
        await EmbeddedBroker(path, clock=CLOCK).__aenter__()


ROWS = [
    *(("topics", column, "topic 'orders'") for column in ("first_log", "partitions", "retention_ms")),
    ("logs", "oldest", "the beginning of log 1"),
    ("logs", "next", "the end of log 1"),
    ("positions", "offset", "the position of group 'payment' in log 1"),
]


async def asks_for(broker: EmbeddedBroker, table: str, column: str) -> None:
    """Something that goes by this row."""
    if table == "topics":
        await broker.ensure_topics([Topic("orders", 4, 8)])
    elif column == "next":
        await broker.publish([event("orders", f"k{n}") for n in range(100)])
    else:
        group = "payment" if table == "positions" else "another"
        async with broker.join(Subscription(group, ["orders"]), RecordingListener()) as member:
            await member.poll([], records_max=1, timeout_s=5)


@pytest.mark.parametrize(("table", "column", "what"), ROWS, ids=[f"{table}.{column}" for table, column, _ in ROWS])
@pytest.mark.parametrize("into", ["coalesce({}, 0) + 1", "CAST({} AS TEXT) || 'x'", "x'ff'"])
async def test_rows_that_locate_records_are_as_written_or_are_not_used(
    path: Path, table: str, column: str, what: str, into: str
) -> None:
    broker, other = await opened(path), await opened(path)
    await broker.ensure_topics([Topic("orders", 4, 7)])
    await broker.publish([event("orders", f"k{n}") for n in range(100)])
    async with broker.join(Subscription("payment", ["orders"]), listening := RecordingListener()) as member:
        await member.commit(dict.fromkeys(await has(listening, 4), 5))
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        where = {"topics": "name = 'orders'", "logs": "id = 1", "positions": "log = 1"}[table]
        shell.execute(f"UPDATE {table} SET {column} = {into.format(column)} WHERE {where}")
        before = shell.execute("SELECT grp, log, offset FROM positions").fetchall()
    pattern = f"broker.db is damaged.*{what} is not what was written"
    with pytest.raises(BrokerBroken, match=pattern):
        await asks_for(broker, table, column)
    with pytest.raises(BrokerBroken, match=pattern):
        await other.trim()
    for each in (broker, other):
        await each.__aexit__(None, None, None)
    with closing(sqlite3.connect(path)) as shell:
        assert shell.execute("SELECT grp, log, offset FROM positions WHERE grp = 'payment'").fetchall() == before
    with pytest.raises(BrokerBroken, match=pattern):
        await EmbeddedBroker(path, clock=CLOCK).__aenter__()


# -------------------------------------------------------------------- rights, locks


async def test_files_and_folders_are_for_their_user_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        broker = await opened(path)
        async with broker.join(Subscription("payment", ["orders"]), RecordingListener()):
            modes = {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
        await broker.__aexit__(None, None, None)
    finally:
        os.umask(before)
    assert modes == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


ODD = [errno.EIO, errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ESTALE]


@pytest.mark.parametrize("number", ODD)
async def test_a_lock_that_fails_in_any_way_is_reported_and_hangs_no_caller(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    broker = await opened(path)
    with monkeypatch.context() as planted:
        planted.setattr("saga.store.sqlite.state_file.fcntl.flock", fails)
        with pytest.raises(BrokerUnavailable, match=r"broker.db.lock cannot be taken"):
            await CLOCK.within(5, broker.publish([event("orders", "k", "lost")]))
        with pytest.raises(BrokerUnavailable):
            await CLOCK.within(5, EmbeddedBroker(path, clock=CLOCK).__aenter__())
    await CLOCK.within(5, broker.publish([event("orders", "k", "kept")]))
    await broker.__aexit__(None, None, None)
    assert await held_in(path) == ["kept"]


@pytest.mark.parametrize("number", ODD)
async def test_a_lock_that_fails_while_it_is_waited_for_is_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    broker = await opened(path)
    flock = fcntl.flock

    def fails(file: int, how: int) -> None:
        if how == fcntl.LOCK_EX:  # the thread waits
            raise OSError(number, os.strerror(number))
        flock(file, how)

    holds = WriteLock(beside(path, ".lock"))
    assert holds.try_acquire()
    monkeypatch.setattr("saga.store.sqlite.state_file.fcntl.flock", fails)
    with pytest.raises(BrokerUnavailable, match=r"broker.db.lock cannot be taken"):
        await CLOCK.within(5, broker.publish([event("orders", "k", "lost")]))
    monkeypatch.undo()
    holds.close()
    await CLOCK.within(5, broker.publish([event("orders", "k", "kept")]))
    await broker.__aexit__(None, None, None)
    assert await held_in(path) == ["kept"]


async def test_a_committed_write_succeeds_even_if_the_lock_cannot_be_released(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def keeps(file: int, how: int) -> None:
        if how == fcntl.LOCK_UN:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flock(file, how)

    broker, other = await opened(path), await opened(path)
    monkeypatch.setattr("saga.store.sqlite.state_file.fcntl.flock", keeps)
    await CLOCK.within(5, broker.publish([event("orders", "k", "1")]))
    await CLOCK.within(5, other.publish([event("orders", "k", "2")]))
    for each in (broker, other):
        await each.__aexit__(None, None, None)
    monkeypatch.undo()
    assert await held_in(path) == ["1", "2"]


async def test_an_error_about_a_taken_lock_names_the_process_that_has_it(path: Path) -> None:
    broker = await opened(path)
    held = WriteLock(beside(path, ".lock"))
    assert held.try_acquire()
    with pytest.raises(BrokerUnavailable, match=rf"process {os.getpid()} \(.*python.*\) has it"):
        async with EmbeddedBroker(path, clock=CLOCK, lock_s=0.1):
            pytest.fail("it opened")
    held.close()
    await broker.__aexit__(None, None, None)


def test_a_lock_with_an_unknown_owner_is_reported_with_a_command_to_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = f"another process (`lsof {tmp_path}/a.lock` tells which)"
    monkeypatch.setattr(state_file, "LOCKS", tmp_path / "none")
    assert state_file.describe_holder(tmp_path / "a.lock") == unknown
    (tmp_path / "a.lock").touch()
    there = (tmp_path / "a.lock").stat()
    disk = f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}"
    for of_another_disk_or_process in (
        f"1: FLOCK  ADVISORY  WRITE 1 ff:ff:{there.st_ino} 0 EOF",
        f"1: FLOCK  ADVISORY  WRITE 0 {disk}:{there.st_ino} 0 EOF",
        f"1: -> FLOCK  ADVISORY  WRITE 1 {disk}:{there.st_ino} 0 EOF",
    ):
        (tmp_path / "none").write_text(f"{of_another_disk_or_process}\n")
        assert state_file.describe_holder(tmp_path / "a.lock") == unknown
    (tmp_path / "none").write_text(f"1: FLOCK  ADVISORY  WRITE 1 {disk}:{there.st_ino} 0 EOF\n")
    assert state_file.describe_holder(tmp_path / "a.lock").startswith("process 1 (")


# -------------------------------------------------------------------- seats


@pytest.mark.parametrize("moment", ["before it is locked", "before it is removed"])
def test_sweeping_never_removes_the_seat_of_a_living_member(
    path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Another one sweeps meanwhile, and a new member takes a seat, under the very name that is being swept."""
    path.parent.mkdir()
    dead = beside(path, ".member-1-dead")
    seated: list[int] = []
    unlink, take = Path.unlink, state_file.try_lock

    def sits_down() -> None:
        file = os.open(dead, os.O_RDWR | os.O_CREAT)
        if take(file) and groups._is_same_file(file, dead):
            seated.append(file)

    def removing(self: Path, missing_ok: bool = False) -> None:
        sits_down()
        unlink(self, missing_ok=missing_ok)

    def taking(file: int, kind: int = fcntl.LOCK_EX) -> bool:
        unlink(dead)
        sits_down()
        return take(file, kind)

    if moment == "before it is removed":
        monkeypatch.setattr(Path, "unlink", removing)
    else:
        monkeypatch.setattr(state_file, "try_lock", taking)
    for _ in range(3):
        dead.touch()
        remove_dead_locks(path)
        for file in seated:
            assert groups._is_same_file(file, dead), "it lives, and its seat is gone"
            os.close(file)
        seated.clear()


def test_the_seats_of_dead_members_are_swept_whatever_the_name_of_the_file(tmp_path: Path) -> None:
    dead = tmp_path / "broker[1].db.member-1"
    dead.touch()
    remove_dead_locks(tmp_path / "broker[1].db")
    assert not dead.exists()


def test_a_seat_that_is_swept_before_it_is_locked_is_not_sat_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member with this seat would look dead to all others, and be expelled again and again."""
    path.parent.mkdir()
    take, swept = state_file.try_lock, list[str]()

    def taking(file: int, kind: int = fcntl.LOCK_EX) -> bool:
        if not swept:
            swept.append("by another process")
            remove_dead_locks(path)
        return take(file, kind)

    monkeypatch.setattr(state_file, "try_lock", taking)
    seat = MemberLock(path)
    assert not is_dead(seat.path)
    seat.release()


def test_two_who_look_at_an_empty_seat_do_not_take_each_other_for_its_member(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.mkdir()
    dead = beside(path, ".member-1-dead")
    dead.touch()
    take, seen = state_file.try_lock, list[bool]()

    def taking(file: int, kind: int = fcntl.LOCK_EX) -> bool:
        taken = take(file, kind)
        if not seen:
            seen.append(taken)
            seen.append(is_dead(dead))
        return taken

    monkeypatch.setattr(state_file, "try_lock", taking)
    assert is_dead(dead)
    assert seen == [True, True]


def test_no_two_seats_ever_have_one_name(path: Path) -> None:
    path.parent.mkdir()
    names = set()
    for _ in range(50):
        seat = MemberLock(path)
        names.add(seat.path.name)
        seat.release()
    assert len(names) == 50


async def test_a_member_whose_seat_is_removed_by_hand_takes_another_and_continues(path: Path) -> None:
    broker = await opened(path)
    async with (
        broker.join(Subscription("payment", ["orders"]), first := RecordingListener()) as member,
        broker.join(Subscription("payment", ["orders"]), RecordingListener()),
    ):
        await has(first, 2)
        seats = set(path.parent.glob("*.member-*"))
        for seat in seats:
            seat.unlink()
        old = {seat.name for seat in seats}
        await until(lambda: len(among := members(broker)) == 2 and not among & old)
        version = broker.connection.execute("SELECT generation FROM groups").fetchone()
        await CLOCK.sleep(0.5)  # each has looked at the other's seat
        assert broker.connection.execute("SELECT generation FROM groups").fetchone() == version, "evicted again"
        assert await member.poll([], records_max=1, timeout_s=0) == []
    await broker.__aexit__(None, None, None)


def test_a_removed_seat_that_cannot_be_replaced_is_kept_and_replaced_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat must not be written to another file that got the number of the closed one."""

    def fails(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    path.parent.mkdir()
    seat, other = MemberLock(path), path.with_name("other")
    seat.path.unlink()
    with monkeypatch.context() as planted:
        planted.setattr("saga.store.sqlite.state_file.fcntl.flock", fails)
        with pytest.raises(OSError, match=os.strerror(errno.ENOLCK)):
            seat.renew()
    with other.open("wb"):
        seat.send_heartbeat()
    assert other.read_bytes() == b""
    assert list(path.parent.iterdir()) == [other]
    seat.renew()
    assert not is_dead(seat.path)
    seat.release()


async def test_a_seat_whose_lock_fails_makes_joining_unavailable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await opened(path)

    def fails(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as planted:
        planted.setattr("saga.store.sqlite.state_file.fcntl.flock", fails)
        with pytest.raises(BrokerError, match="no lock for a member"):
            async with broker.join(Subscription("payment", ["orders"]), RecordingListener()):
                pytest.fail("it joined")
    await broker.__aexit__(None, None, None)


def test_a_seat_without_a_member_is_vacant(path: Path) -> None:
    path.parent.mkdir()
    seat = MemberLock(path)
    assert not is_dead(seat.path)
    seat.release()
    assert is_dead(seat.path)
