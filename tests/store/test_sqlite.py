"""The SQLite store keeps the promises of the port, and its own: group commit, purging, formats, reading for tools."""

import asyncio
import hashlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from saga.configuration.settings import Settings
from saga.declarations.values import Declared
from saga.engine.persistence.overflow_store import EXPIRY_S_MORE
from saga.errors import ConfigurationError, NoStore, NotAStore, StoreUnavailable, TooLarge
from saga.ops.doctor import diagnose
from saga.store.port import Document, NewestFirst
from saga.store.sqlite.adapter import files_of, sqlite_path
from saga.store.sqlite.connection import FREE_PAGES_MIN, PAGE_BYTES, shrink
from saga.store.sqlite.documents import EXPIRY_S_MAX, PURPOSE
from saga.store.sqlite.store import WRITES_MAX, SqliteStore
from saga.support.addresses import is_missing
from saga.testing.conformance.store import OpenStore, PassTime, StoreConformance
from tests.store.conftest import Held, SettableClock


class TestSqliteStore(StoreConformance):
    expiry_grain_s = 0.001

    @pytest.fixture
    def opens(self, path: Path, clock: SettableClock) -> OpenStore:
        return lambda: SqliteStore(path, clock=clock, document_bytes_max=1 << 20)

    @pytest.fixture
    def passes(self, clock: SettableClock) -> PassTime:
        async def pass_(seconds: float) -> None:
            clock.ahead_s += seconds

        return pass_


class Counting(sqlite3.Connection):
    """Counts transactions."""

    commits = 0

    def execute(self, sql: str, parameters: object = (), /) -> sqlite3.Cursor:
        Counting.commits += sql == "COMMIT"
        return super().execute(sql, parameters)  # type: ignore[arg-type]  # the stub's type of parameters is private


@pytest.fixture
def counting() -> type[Counting]:
    Counting.commits = 0
    return Counting


# -------------------------------------------------------------------- group commit


async def test_a_hundred_writes_at_once_share_one_commit(
    path: Path, clock: SettableClock, counting: type[Counting]
) -> None:
    async with SqliteStore(path, clock=clock, connection=counting) as store:
        versions = await asyncio.gather(*(store.insert("saga", f"{n}", b"0") for n in range(100)))
        before = counting.commits
        await asyncio.gather(*(store.replace("saga", f"{n}", b"1", cas=versions[n]) for n in range(100)))
        assert counting.commits - before == 1


async def test_a_transaction_is_not_larger_than_the_loop_can_bear(
    path: Path, clock: SettableClock, counting: type[Counting]
) -> None:
    async with SqliteStore(path, clock=clock, connection=counting) as store:
        before = counting.commits
        await asyncio.gather(*(store.insert("saga", f"{n}", b"0") for n in range(3 * WRITES_MAX)))
        assert counting.commits - before == 3


class Narrow(sqlite3.Connection):
    """An SQLite that takes rows of 100,000 bytes."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # as they come
        self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)


async def test_a_document_that_sqlite_finds_too_large_is_refused_alone(path: Path, clock: SettableClock) -> None:
    async with SqliteStore(path, clock=clock, connection=Narrow) as store:
        before, large, after = await asyncio.gather(
            store.insert("saga", "before", b"0"),
            store.insert("saga", "large", b"x" * 100_001),
            store.insert("saga", "after", b"0"),
            return_exceptions=True,
        )
        assert [type(before), type(large), type(after)] == [int, TooLarge, int]
        assert "nothing was written" in str(large)
        assert [key async for key, _ in store.scan("saga")] == ["after", "before"]


async def test_a_value_that_sqlite_cannot_take_fails_alone(path: Path, clock: SettableClock) -> None:
    async with SqliteStore(path, clock=clock) as store:
        good, bad = await asyncio.gather(
            store.insert("saga", "good", b"0"), store.insert("saga", "\ud800", b"0"), return_exceptions=True
        )
        assert isinstance(bad, UnicodeEncodeError)
        assert await store.get("saga", "good") == Document(b"0", good)  # type: ignore[arg-type]  # an int, as it says


async def cancelled(held: Held, writes: Sequence[asyncio.Task[int]]) -> None:
    """Cancel the first caller while its write waits for the lock; then let the writes go on."""
    await asyncio.wait(writes, timeout=0.01)
    writes[0].cancel()
    await asyncio.wait(writes[:1])
    assert writes[0].cancelled()
    held.release()


async def test_a_write_whose_caller_was_cancelled_lands(path: Path, clock: SettableClock) -> None:
    async with SqliteStore(path, clock=clock) as store:
        async with asyncio.TaskGroup() as tasks:
            held = Held(path)
            await cancelled(held, [tasks.create_task(store.insert("saga", "a", b"0"))])
        await store.insert("saga", "b", b"0")
        assert await store.get("saga", "a") is not None


async def test_the_other_writes_of_a_transaction_are_answered_when_one_caller_is_gone(
    path: Path, clock: SettableClock
) -> None:
    async with SqliteStore(path, clock=clock) as store:
        async with asyncio.TaskGroup() as tasks:
            held = Held(path)
            writes = [tasks.create_task(store.insert("saga", f"{n}", b"0")) for n in range(3)]
            await cancelled(held, writes)
        assert all(isinstance(write.result(), int) for write in writes[1:])


async def test_closing_waits_for_writes_whose_callers_were_cancelled(path: Path, clock: SettableClock) -> None:
    async with SqliteStore(path, clock=clock) as store, asyncio.TaskGroup() as tasks:
        held = Held(path)
        await cancelled(held, [tasks.create_task(store.insert("saga", "a", b"0"))])
    async with SqliteStore(path, clock=clock, readonly=True) as store:
        assert await store.get("saga", "a") is not None


async def test_a_commit_reaches_the_medium_before_it_is_answered(path: Path, clock: SettableClock) -> None:
    """A power cut cannot be had in a test; that SQLite is set to sync its log at each commit can be seen."""
    made: list[sqlite3.Connection] = []

    class Kept(sqlite3.Connection):
        def __init__(self, *arguments: str, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[arg-type]  # handed on as they came
            made.append(self)

    async with SqliteStore(path, clock=clock, connection=Kept):
        pragmas = {name: made[-1].execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")}
    full = 2
    assert pragmas == {"synchronous": full, "journal_mode": "wal"}


# -------------------------------------------------------------------- expired documents


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        count: int = connection.execute("SELECT count(*) FROM documents WHERE collection = 'saga'").fetchone()[0]
    return count


async def test_expired_documents_are_purged_by_later_writes(path: Path, clock: SettableClock) -> None:
    async with SqliteStore(path, clock=clock) as store:
        await asyncio.gather(*(store.insert("saga", f"old {n}", b"0", expiry_s=60) for n in range(30)))
        await store.insert("saga", "kept", b"0")
        clock.ahead_s += 2 * 3600
        for n in range(20):  # two are purged for each that is written
            await store.insert("saga", f"new {n}", b"0", expiry_s=60)
        assert rows(path) == 1 + 20
        assert await store.get("saga", "kept") is not None


async def test_a_file_shrinks_when_most_of_it_has_expired(path: Path, clock: SettableClock) -> None:
    async with SqliteStore(path, clock=clock) as store:
        await asyncio.gather(*(store.insert("saga", f"old {n}", b"0" * 100_000, expiry_s=60) for n in range(200)))
        clock.ahead_s = 7300
        for n in range(400):
            await store.insert("saga", f"new {n}", b"0", expiry_s=60)
        assert [key async for key, _ in store.scan("saga", "old")] == []
    assert size_of(path) < FREE_PAGES_MIN * PAGE_BYTES + 1_000_000, "it had twenty megabytes"
    async with SqliteStore(path, clock=clock) as store:
        assert len([key async for key, _ in store.scan("saga", "new")]) == 400


def size_of(path: Path) -> int:
    return path.stat().st_size


def test_a_file_that_cannot_shrink_is_left_as_it_is(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "old.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (content BLOB)")
        connection.execute(f"INSERT INTO t VALUES (zeroblob({2 * FREE_PAGES_MIN * PAGE_BYTES}))")
        connection.execute("DELETE FROM t")
        assert not shrink(connection)


async def test_a_version_does_not_come_again_after_its_document_was_purged(path: Path, clock: SettableClock) -> None:
    async with SqliteStore(path, clock=clock) as store:
        cas = await store.insert("saga", "a", b"0", expiry_s=60)
        for _ in range(5):
            cas = await store.replace("saga", "a", b"0", cas=cas, expiry_s=60)
        clock.ahead_s += 2 * 3600
        await store.insert("saga", "b", b"0")
        assert rows(path) == 1
        assert await store.insert("saga", "a", b"0") > cas


# -------------------------------------------------------------------- what kind of file


def digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def write_nonsense(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("once upon a time " * 100)


async def test_missing_folders_are_made(tmp_path: Path, clock: SettableClock) -> None:
    async with SqliteStore(tmp_path / "a" / "b" / "payment.db", clock=clock) as store:
        await store.insert("saga", "a", b"0")
    assert (tmp_path / "a" / "b" / "payment.db").is_file()


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize(
    ("other", "says"),
    [(PURPOSE.format + 1, "newer"), (PURPOSE.format - 1, "older")],
)
async def test_another_format_is_refused(
    path: Path, clock: SettableClock, readonly: bool, other: int, says: str
) -> None:
    async with SqliteStore(path, clock=clock):
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {other}")
    pattern = rf"payment.db is of format {other}, {says} than {PURPOSE.format}.*run the version of saga that wrote it"
    with pytest.raises(ConfigurationError, match=pattern):
        await SqliteStore(path, clock=clock, readonly=readonly).__aenter__()


@pytest.mark.parametrize("readonly", [False, True])
async def test_a_file_of_something_else_is_refused_and_left_alone(
    path: Path, clock: SettableClock, readonly: bool
) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
    before = digest(path)
    with pytest.raises(NotAStore, match="something else made; point SAGA_STORE to a file of its own"):
        await SqliteStore(path, clock=clock, readonly=readonly).__aenter__()
    assert digest(path) == before


@pytest.mark.parametrize("readonly", [False, True])
async def test_a_file_that_is_not_a_database_is_refused(path: Path, clock: SettableClock, readonly: bool) -> None:
    write_nonsense(path)
    with pytest.raises(NotAStore, match="is not an SQLite file; point SAGA_STORE"):
        await SqliteStore(path, clock=clock, readonly=readonly).__aenter__()


async def test_a_folder_that_cannot_be_made_is_named_in_the_error(tmp_path: Path, clock: SettableClock) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError, match="make the folder writable, or point SAGA_STORE elsewhere"):
        await SqliteStore(tmp_path / "file" / "payment.db", clock=clock).__aenter__()


# -------------------------------------------------------------------- reading for tools


@contextmanager
def locked_by_sqlite(path: Path) -> Iterator[None]:
    """Hold SQLite's own lock, as a service does while it makes its file or recovers it after a crash."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        yield


class OpensLater(SettableClock):
    """Ends the lock when a tool has waited for the third time."""

    def __init__(self, held: ExitStack) -> None:
        super().__init__()
        self.held, self.sleeps = held, 0

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        if self.sleeps == 3:
            self.held.close()


class Hurried(SettableClock):
    """Lets the time pass that is slept."""

    async def sleep(self, seconds: float) -> None:
        self.ahead_s += 100 * seconds


async def test_a_tool_waits_for_a_service_that_is_just_opening_its_file(path: Path, clock: SettableClock) -> None:
    async with SqliteStore(path, clock=clock) as store:
        await store.insert("saga", "a", b"0")
    with ExitStack() as held:
        held.enter_context(locked_by_sqlite(path))
        later = OpensLater(held)
        async with SqliteStore(path, clock=later, readonly=True) as tool:
            assert await tool.get("saga", "a") is not None
        assert later.sleeps == 3


async def test_a_tool_names_a_lock_that_is_not_released(path: Path, clock: SettableClock) -> None:
    async with SqliteStore(path, clock=clock) as store:
        await store.insert("saga", "a", b"0")
    with locked_by_sqlite(path), pytest.raises(StoreUnavailable, match="is held by another program"):
        await SqliteStore(path, clock=Hurried(), readonly=True).__aenter__()


async def test_a_reader_sees_what_a_service_writes_meanwhile(path: Path, clock: SettableClock) -> None:
    async with SqliteStore(path, clock=clock) as store:
        cas = await store.insert("saga", "a", b"0")
        async with SqliteStore(path, clock=clock, readonly=True) as tool:
            cas = await store.replace("saga", "a", b"1", cas=cas)
            assert await tool.get("saga", "a") == Document(b"1", cas)
            assert [key async for key, _ in tool.scan("saga")] == ["a"]


async def test_a_reader_writes_nothing(path: Path, clock: SettableClock) -> None:
    async with SqliteStore(path, clock=clock) as store:
        cas = await store.insert("saga", "a", b"0", expiry_s=1)
    before = digest(path)
    clock.ahead_s += 2 * 3600
    async with SqliteStore(path, clock=clock, readonly=True) as tool:
        assert await tool.get("saga", "a") is None
        with pytest.raises(StoreUnavailable, match="open for reading only; nothing was written"):
            await tool.insert("saga", "b", b"0")
        with pytest.raises(StoreUnavailable, match="open for reading only"):
            await tool.remove("saga", "a", cas=cas)
    assert digest(path) == before


async def test_a_reader_makes_no_file(path: Path, clock: SettableClock) -> None:
    with pytest.raises(ConfigurationError, match="there is no such file; has the service ever run"):
        await SqliteStore(path, clock=clock, readonly=True).__aenter__()
    assert not path.parent.exists()


async def test_a_folder_is_no_store_and_no_damaged_disk(path: Path, clock: SettableClock) -> None:
    path.parent.mkdir()
    with pytest.raises(ConfigurationError, match="there is no such file"):
        await SqliteStore(path.parent, clock=clock, readonly=True).__aenter__()


async def test_a_file_that_the_system_does_not_show_is_not_said_to_be_missing(path: Path, clock: SettableClock) -> None:
    """As in a folder of another user; root, who runs some tests, may look into each."""
    path.parent.mkdir()
    hidden = path.parent / ("x" * 300)
    with pytest.raises(StoreUnavailable, match=r"cannot be opened .*; see that file and folder are there, and"):
        await SqliteStore(hidden, clock=clock, readonly=True).__aenter__()
    assert (is_missing(path), is_missing(hidden)) == (True, False)
    with pytest.raises(NoStore, match="cannot be listed"):
        files_of(f"sqlite:///{hidden}/{{service}}.db")
    with pytest.raises(NoStore, match="no file matches"):
        files_of(f"sqlite:///{path.parent}/{{service}}.db")


async def test_a_long_scan_continues_while_documents_change(path: Path, clock: SettableClock) -> None:
    async with SqliteStore(path, clock=clock) as store:
        versions = await asyncio.gather(*(store.insert("saga", f"{n:04}", b"0") for n in range(500)))
        seen = []
        async for key, _ in store.scan("saga"):
            seen.append(key)
            if len(seen) == 100:
                await store.remove("saga", "0450", cas=versions[450])
                await store.insert("saga", "0000 new", b"0")
        assert seen == [f"{n:04}" for n in range(500) if n != 450]


async def test_nothing_is_left_open_when_opening_fails(path: Path, clock: SettableClock) -> None:
    write_nonsense(path)
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(NotAStore):
        await SqliteStore(path, clock=clock).__aenter__()
    with pytest.raises(NotAStore):
        await SqliteStore(path, clock=clock, readonly=True).__aenter__()
    assert len(os.listdir("/dev/fd")) == before


# ---------------------------------------------------------------- the newest, for tools


async def test_the_newest_come_first_of_one_collection_and_prefix_and_what_expired_is_not_there(
    path: Path, clock: SettableClock
) -> None:
    async with SqliteStore(path, clock=clock) as store:
        for i in range(150):
            await store.insert("saga", f"a::{(i * 7) % 150:03}", b"%d" % i, expiry_s=100 if i % 2 else None)
            await store.insert("saga", f"b::{i:03}", b"{}")
            await store.insert("other", f"a::{i:03}", b"{}")
        first = await store.get("saga", "a::000")
        assert first is not None
        await store.replace("saga", "a::000", b"changed", cas=first.cas)
        found = [(key, document.content) async for key, document in store.scan_newest("saga", "a::")]
        expected = [(f"a::{(i * 7) % 150:03}", b"%d" % i if i else b"changed") for i in reversed(range(150))]
        assert found == expected
        assert isinstance(store, NewestFirst)
        kept = [key async for key, _ in store.scan_newest("saga", "a::", kept=True)]
        assert kept == [key for i, (key, _) in enumerate(expected) if i % 2]
        clock.ahead_s += 101
        assert [key async for key, _ in store.scan_newest("saga", "a::")] == kept
        assert [key async for key, _ in store.scan_newest("saga", "c::")] == []


async def test_the_doctor_asks_for_as_long_as_a_service_that_starts(tmp_path: Path, clock: SettableClock) -> None:
    """Pages stay for a day more than the memory."""
    asked = Settings(broker=f"embedded:///{tmp_path}/broker.db", store=f"sqlite:///{tmp_path}/{{service}}.db")
    for too_long_s in (0, 1):
        memory = timedelta(seconds=EXPIRY_S_MAX - EXPIRY_S_MORE + too_long_s)
        async with SqliteStore(sqlite_path(asked.store, "payment"), clock=clock):
            diagnosis = await diagnose([Declared(name="payment", state=None, retention=memory)], asked, clock)
        problems = [each.what for each in diagnosis.findings if each.severity == "error"]
        assert len(problems) == too_long_s
        assert all("choose a shorter retention=" in what for what in problems)
