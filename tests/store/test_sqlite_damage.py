"""The store's file removed, replaced, restored or damaged: reported at once, and no acknowledged write is lost."""

import asyncio
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest

from saga.errors import StoreBroken, StoreUnavailable
from saga.store.port import Document
from saga.store.sqlite import integrity
from saga.store.sqlite.connection import CHECKPOINT_PAGES
from saga.store.sqlite.store import LOOK_EVERY_S, WRITES_MAX, SqliteStore
from tests.store.conftest import SettableClock

COUNT = 5


@pytest.fixture(autouse=True)
def always_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests are faster than a person who removes files by hand."""
    monkeypatch.setattr(integrity, "CHECK_EVERY_S", 0.0)


def beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def removed(path: Path, ending: str) -> None:
    beside(path, ending).unlink()


def replaced(path: Path, ending: str) -> None:
    new = beside(path, ".new")
    shutil.copy(beside(path, ending), new)
    new.rename(beside(path, ending))


def moved(path: Path, ending: str) -> None:
    beside(path, ending).rename(beside(path, f"{ending}.old"))


def all_removed(path: Path, ending: str) -> None:
    shutil.rmtree(path.parent)


async def filled(store: SqliteStore) -> dict[str, int]:
    return {f"{n}": await store.insert("saga", f"{n}", b"%d" % n) for n in range(COUNT)}


def put_back(path: Path) -> None:
    """Put the file back, as the message says."""
    (copy,) = path.parent.glob(f"{path.name}.rescued-*")
    for ending in ("", "-wal", "-shm"):
        beside(path, ending).unlink(missing_ok=True)
    copy.rename(path)


# -------------------------------------------------------------------- removed, replaced


@pytest.mark.parametrize("ending", ["", "-wal", "-shm", ".lock"])
@pytest.mark.parametrize("happens", [removed, replaced, moved, all_removed])
async def test_a_file_that_lost_its_name_takes_no_write_and_nothing_acknowledged_is_lost(
    path: Path, clock: SettableClock, happens: Callable[[Path, str], None], ending: str
) -> None:
    store = SqliteStore(path, clock=clock)
    await store.__aenter__()
    versions = await filled(store)
    happens(path, ending)
    with pytest.raises(StoreBroken) as raised:
        await store.insert("saga", "late", b"0")
    assert f"{path.name}{'' if happens is all_removed else ending}" in str(raised.value)
    assert "while it was in use" in str(raised.value)
    for again in (store.get("saga", "0"), store.insert("saga", "later", b"0")):
        with pytest.raises(StoreBroken, match="is saved in"):
            await again
    await store.__aexit__(None, None, None)
    with pytest.raises(StoreBroken, match="put it in the place of"):
        await SqliteStore(path, clock=clock).__aenter__()
    put_back(path)
    async with SqliteStore(path, clock=clock) as store:
        assert {key: document.cas async for key, document in store.scan("saga")} == versions


async def test_a_rescue_copy_is_found_whatever_the_name_of_the_file(path: Path, clock: SettableClock) -> None:
    path = path.with_name("payment[1]*.db")
    store = await SqliteStore(path, clock=clock).__aenter__()
    await filled(store)
    removed(path, "")
    with pytest.raises(StoreBroken, match="is saved in"):
        await store.insert("saga", "late", b"0")
    await store.__aexit__(None, None, None)
    with pytest.raises(StoreBroken, match="put it in the place of"):
        await SqliteStore(path, clock=clock).__aenter__()


async def test_a_copy_that_could_not_be_finished_is_not_said_to_hold_everything(
    path: Path, clock: SettableClock
) -> None:
    """Put in the place of the file, it would be an empty store."""

    class Full(sqlite3.Connection):
        def execute(self, sql: str, parameters: object = (), /) -> sqlite3.Cursor:
            if sql.startswith("VACUUM INTO"):
                raise sqlite3.OperationalError("database or disk is full")
            return super().execute(sql, parameters)  # type: ignore[arg-type]  # the stub's type of parameters is private

    store = await SqliteStore(path, clock=clock, connection=Full).__aenter__()
    await filled(store)
    removed(path, "")
    with pytest.raises(StoreBroken, match=r"could not be saved \(database or disk is full\)"):
        await store.insert("saga", "late", b"0")
    await store.__aexit__(None, None, None)
    (part,) = path.parent.glob("*.rescued-*")
    part.with_name(f"{part.name}-journal").touch()  # SQLite's own, where the process died while it wrote
    with pytest.raises(StoreBroken, match="is only a part of it") as raised:
        await SqliteStore(path, clock=clock).__aenter__()
    assert "put it in the place of" not in str(raised.value)
    for each in (*path.parent.glob("*.rescued-*"), beside(path, "-wal"), beside(path, "-shm")):
        each.unlink()
    async with SqliteStore(path, clock=clock) as store:
        await filled(store)


@pytest.mark.parametrize("happens", [removed, replaced])
async def test_more_writes_than_one_transaction_takes_all_fail_alike_and_one_copy_is_saved(
    path: Path, clock: SettableClock, happens: Callable[[Path, str], None]
) -> None:
    store = await SqliteStore(path, clock=clock).__aenter__()
    versions = await filled(store)
    happens(path, "")
    writes = (store.insert("saga", f"late {n}", b"0") for n in range(2 * WRITES_MAX + 1))
    messages = {str(why) for why in await asyncio.gather(*writes, return_exceptions=True)}
    assert len(messages) == 1
    with pytest.raises(StoreBroken):
        [found async for found in store.scan("saga")]
    with pytest.raises(StoreBroken):
        [found async for found in store.scan_newest("saga")]
    await store.__aexit__(None, None, None)
    assert len(list(path.parent.glob("*.rescued-*"))) == 1
    assert bool(list(path.parent.glob(path.name))) is (happens is replaced), "and none is made"
    put_back(path)
    async with SqliteStore(path, clock=clock) as store:
        assert {key: document.cas async for key, document in store.scan("saga")} == versions


async def test_an_idle_store_notices_it_at_the_next_read_after_a_second(path: Path, clock: SettableClock) -> None:
    async with SqliteStore(path, clock=clock) as store:
        await filled(store)
        assert await store.get("saga", "0") is not None
        removed(path, "")
        clock.ahead_s += LOOK_EVERY_S + 0.1
        with pytest.raises(StoreBroken, match="was removed while it was in use"):
            await store.get("saga", "0")


async def test_a_store_that_is_closed_after_its_file_was_removed_saves_it_and_reports_that(
    path: Path, clock: SettableClock
) -> None:
    store = await SqliteStore(path, clock=clock).__aenter__()
    versions = await filled(store)
    removed(path, "")
    with pytest.raises(StoreBroken, match="is saved in"):
        await store.__aexit__(None, None, None)
    put_back(path)
    async with SqliteStore(path, clock=clock) as store:
        assert {key: document.cas async for key, document in store.scan("saga")} == versions


async def test_another_file_of_that_name_keeps_its_log(path: Path, clock: SettableClock) -> None:
    """SQLite removes the log by name when it closes: it would be the log of the file that lies there now."""
    store = SqliteStore(path, clock=clock)
    await store.__aenter__()
    await filled(store)
    for ending in ("", "-wal", "-shm"):
        removed(path, ending)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("CREATE TABLE theirs (a)")
        with pytest.raises(StoreBroken):
            await store.insert("saga", "late", b"0")
        await store.__aexit__(None, None, None)
        assert beside(path, "-wal").exists()
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT count(*) FROM theirs").fetchone() == (0,)


@pytest.mark.parametrize("first", [0, 1], ids=["opened first", "opened last"])
async def test_another_connection_of_this_process_that_closes_the_file_releases_no_lock(
    path: Path, clock: SettableClock, first: int
) -> None:
    stores = [SqliteStore(path, clock=clock), SqliteStore(path, clock=clock)]
    async with AsyncExitStack() as stays, AsyncExitStack() as goes:
        for store in stores:
            await (goes if store is stores[first] else stays).enter_async_context(store)
            await store.insert("saga", f"{stores.index(store)}", b"1")
        await goes.aclose()
        for n in range(2, COUNT):
            await stores[1 - first].insert("saga", f"{n}", b"1")


async def test_a_link_to_the_file_may_be_used(path: Path, tmp_path: Path, clock: SettableClock) -> None:
    link = tmp_path / "link.db"
    async with SqliteStore(path, clock=clock):
        link.symlink_to(path)
    async with SqliteStore(link, clock=clock) as store:
        await filled(store)
        link.unlink()
        shutil.copy(path, link)
        with pytest.raises(StoreBroken, match=r"link.db was replaced"):
            await store.insert("saga", "late", b"0")


# -------------------------------------------------------------------- restored in place


async def log_is_copied(store: SqliteStore) -> None:
    """Write until SQLite copies its log into the file, and a little more."""
    for n in range(3):
        await store.insert("saga", f"filler-{os.urandom(4).hex()}", b"x" * 4096 * (CHECKPOINT_PAGES // (2 - n % 2)))


def restored(path: Path, content: bytes) -> None:
    """Restore as `cp` does."""
    path.write_bytes(content)


def copied(path: Path) -> bytes:
    return path.read_bytes()


def backed_up(path: Path) -> bytes:
    """Back up as `.backup` of SQLite's shell does."""
    to = beside(path, ".copy")
    with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(to)) as copy:
        live.backup(copy)
    return to.read_bytes()


def vacuumed(path: Path) -> bytes:
    to = beside(path, ".copy")
    with closing(sqlite3.connect(path)) as live:
        live.execute("VACUUM INTO ?", (str(to),))
    return to.read_bytes()


@pytest.mark.parametrize("copy", [copied, backed_up, vacuumed])
async def test_an_older_copy_over_the_open_file_is_detected(
    path: Path, clock: SettableClock, copy: Callable[[Path], bytes]
) -> None:
    store = SqliteStore(path, clock=clock)
    await store.__aenter__()
    versions = await filled(store)
    await log_is_copied(store)
    older = copy(path)
    for key, cas in versions.items():
        await store.replace("saga", key, b"new", cas=cas)
    await log_is_copied(store)
    restored(path, older)
    with pytest.raises(StoreBroken, match=r"was overwritten while it was in use.*restore the file from a copy"):
        await store.insert("saga", "late", b"0")
    await store.__aexit__(None, None, None)
    with pytest.raises(StoreBroken, match=r"remove .*payment.db.lock"):
        await SqliteStore(path, clock=clock).__aenter__()
    again = path.with_name("again.db")  # in another process it might be the same file
    restored(again, older)
    async with SqliteStore(again, clock=clock) as store:
        assert await store.get("saga", "0") == Document(b"0", versions["0"])


@pytest.mark.parametrize("copy", [backed_up, vacuumed])
async def test_a_copy_of_the_same_generation_over_the_open_file_is_detected(
    path: Path, clock: SettableClock, copy: Callable[[Path], bytes]
) -> None:
    """Made between two copyings of the log, and put over the file after the second."""
    store = await SqliteStore(path, clock=clock).__aenter__()
    versions = await filled(store)
    older = copy(path)
    await store.replace("saga", "0", b"new", cas=versions["0"])
    with closing(sqlite3.connect(path)) as shell:
        shell.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    restored(path, older)
    with pytest.raises(StoreBroken, match=r"in use, with a copy|lacks what was acknowledged last"):
        await store.insert("saga", "late", b"0")
    await store.__aexit__(None, None, None)


async def test_a_copy_over_the_open_file_that_loses_nothing_may_go_unnoticed_and_loses_nothing(
    path: Path, clock: SettableClock
) -> None:
    async with SqliteStore(path, clock=clock) as store:
        await filled(store)
        await log_is_copied(store)
        same = copied(path)
        cas = await store.insert("saga", "in the log", b"0")
        restored(path, same)
        await log_is_copied(store)
    async with SqliteStore(path, clock=clock) as store:
        assert await store.get("saga", "in the log") == Document(b"0", cas)


async def test_an_older_content_that_sqlite_itself_put_back_is_detected(path: Path, clock: SettableClock) -> None:
    """Restore as `.restore` of SQLite's shell does, which does not take our lock."""
    store = SqliteStore(path, clock=clock)
    await store.__aenter__()
    cas = await store.insert("saga", "a", b"0")
    with closing(sqlite3.connect(":memory:")) as copy:
        with closing(sqlite3.connect(path)) as live:
            live.backup(copy)
        await store.replace("saga", "a", b"1", cas=cas)
        with closing(sqlite3.connect(path)) as live:
            copy.backup(live)
    with pytest.raises(StoreBroken, match="lacks what was acknowledged last"):
        await store.insert("saga", "late", b"0")
    await store.__aexit__(None, None, None)


@pytest.mark.parametrize("bytes_left", [0, 10, 4000, -1])
async def test_a_log_that_is_cut_short_or_overwritten_is_detected(
    path: Path, clock: SettableClock, bytes_left: int
) -> None:
    store = SqliteStore(path, clock=clock)
    await store.__aenter__()
    await filled(store)
    log = beside(path, "-wal")
    if bytes_left < 0:
        with log.open("r+b") as file:
            file.write(b"\0" * log.stat().st_size)
    else:
        os.truncate(log, bytes_left)
    with pytest.raises(StoreBroken, match=r"payment.db-wal was overwritten or cut short"):
        await store.insert("saga", "late", b"0")
    await store.__aexit__(None, None, None)


async def test_other_processes_and_their_copying_of_the_log_are_no_older_content(
    path: Path, clock: SettableClock
) -> None:
    async with SqliteStore(path, clock=clock) as store, SqliteStore(path, clock=clock) as other:
        for n in range(6):
            await store.insert("saga", f"ours-{n}", b"0")
            await other.insert("saga", f"theirs-{n}", b"0")
            await log_is_copied((store, other)[n % 2])
            with closing(sqlite3.connect(path)) as shell:
                shell.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        await store.remove("saga", "ours-0", cas=1)
        await other.insert("saga", "last", b"0")


# -------------------------------------------------------------------- after a crash


async def crashed(path: Path, clock: SettableClock) -> dict[str, int]:
    """A store whose process died: its files as they lay there."""
    there = path.with_name("crashing")
    there.mkdir(parents=True)
    async with SqliteStore(there / path.name, clock=clock) as store:
        versions = await filled(store)
        await store.remove("saga", "0", cas=versions.pop("0"))
        for ending in ("-wal", "-shm"):
            shutil.copy(beside(there / path.name, ending), beside(path, ending))
        log, main, lock = (beside(there / path.name, ending).read_bytes() for ending in ("-wal", "", ".lock"))
    # The same inode, which the lock file names, with what was in it before it was closed.
    (there / path.name).write_bytes(main)
    beside(there / path.name, ".lock").write_bytes(lock)
    for ending in ("", ".lock"):
        beside(there / path.name, ending).rename(beside(path, ending))
    beside(path, "-wal").write_bytes(log)
    return versions


async def test_after_a_crash_all_is_there(path: Path, clock: SettableClock) -> None:
    versions = await crashed(path, clock)
    async with SqliteStore(path, clock=clock) as store:
        assert {key: document.cas async for key, document in store.scan("saga")} == versions


@pytest.mark.parametrize("happens", ["removed", "cut", "damaged"])
async def test_a_log_that_was_lost_after_a_crash_is_reported_until_an_operator_decides(
    path: Path, clock: SettableClock, happens: str
) -> None:
    await crashed(path, clock)
    log = beside(path, "-wal")
    if happens == "removed":
        log.unlink()
        beside(path, "-shm").unlink()
    elif happens == "cut":
        os.truncate(log, log.stat().st_size - 5000)
    else:
        with log.open("r+b") as file:
            file.seek(log.stat().st_size - 100)
            file.write(b"damage")
    for _ in range(2):
        with pytest.raises(StoreBroken, match=r"lacks what was acknowledged last.*remove .*payment.db.lock"):
            await SqliteStore(path, clock=clock).__aenter__()
    removed(path, ".lock")
    async with SqliteStore(path, clock=clock) as store:
        await store.insert("saga", "new", b"0")


async def test_a_file_that_was_put_there_while_no_worker_ran_is_accepted(path: Path, clock: SettableClock) -> None:
    async with SqliteStore(path, clock=clock) as store:
        await filled(store)
    older = copied(path)
    async with SqliteStore(path, clock=clock) as store:
        await store.insert("saga", "later", b"0")
    removed(path, "")
    restored(path, older)
    async with SqliteStore(path, clock=clock) as store:
        assert [key async for key, _ in store.scan("saga")] == [f"{n}" for n in range(COUNT)]


# -------------------------------------------------------------------- rights, locks


async def test_files_and_folders_are_for_their_user_alone(tmp_path: Path, clock: SettableClock) -> None:
    path = tmp_path / "made" / "deep" / "payment.db"
    before = os.umask(0)
    try:
        async with SqliteStore(path, clock=clock) as store:
            await filled(store)
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == {f"payment.db{ending}": 0o600 for ending in ("", "-wal", "-shm", ".lock")}
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path.parent, path.parent.parent)] == [0o700, 0o700]


@pytest.mark.parametrize("errno", [5, 9, 22, 37, 116])
async def test_a_lock_that_fails_in_any_way_is_reported_and_hangs_no_caller(
    path: Path, clock: SettableClock, monkeypatch: pytest.MonkeyPatch, errno: int
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno, os.strerror(errno))

    async with SqliteStore(path, clock=clock) as store:
        with monkeypatch.context() as planted:
            planted.setattr("saga.store.sqlite.state_file.fcntl.flock", fails)
            with pytest.raises(StoreUnavailable, match=r"payment.db.lock cannot be taken"):
                await clock.within(5, store.insert("saga", "a", b"0"))
            with pytest.raises(StoreUnavailable, match=r"payment.db.lock cannot be taken"):
                await clock.within(5, SqliteStore(path, clock=clock).__aenter__())
        await clock.within(5, store.insert("saga", "a", b"0"))


async def test_a_lock_that_cannot_be_released_locks_no_other_out(
    path: Path, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    flock = fcntl.flock

    def keeps(file: int, how: int) -> None:
        if how == fcntl.LOCK_UN:
            raise OSError(5, os.strerror(5))
        flock(file, how)

    async with SqliteStore(path, clock=clock) as store, SqliteStore(path, clock=clock) as other:
        monkeypatch.setattr("saga.store.sqlite.state_file.fcntl.flock", keeps)
        cas = await clock.within(5, store.insert("saga", "a", b"0"))
        await clock.within(5, other.replace("saga", "a", b"1", cas=cas))
