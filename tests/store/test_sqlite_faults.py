"""Full files, failing writes and failing SQLite: callers get the error, and the store recovers."""

import asyncio
import os
import resource
import sqlite3
from pathlib import Path
from typing import Any, Self

import pytest

from saga.errors import Ambiguous, StoreBroken, StoreError, StoreUnavailable
from saga.store.port import Document
from saga.store.sqlite.store import SqliteStore
from tests.store.conftest import SettableClock

KIB = 1024


class FaultyCursor(sqlite3.Cursor):
    """Carries out, or fails, all statements of a connection."""

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        word = sql.split(maxsplit=1)[0] if sql.strip() else ""
        if (code := Faulty.before.pop(word, None)) is not None:
            raise failure(code)
        cursor = super().execute(sql, parameters)
        if (code := Faulty.after.pop(word, None)) is not None:
            raise failure(code)
        return cursor


class Faulty(sqlite3.Connection):
    """Fails where it is asked to, with an error of SQLite's own making as far as callers can tell."""

    before: dict[str, int]
    """First word of a statement -> the code it fails with, instead of being carried out."""
    after: dict[str, int]
    """The same, once it was carried out."""

    def cursor(self, factory: object = None) -> Any:
        return super().cursor(FaultyCursor)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        cursor: FaultyCursor = self.cursor()
        return cursor.execute(sql, parameters)


def failure(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(f"planted {code}")
    error.sqlite_errorcode = code
    return error


@pytest.fixture
def faulty() -> type[Faulty]:
    Faulty.before, Faulty.after = {}, {}
    return Faulty


# -------------------------------------------------------------------- full, read-only


async def test_a_full_store_refuses_and_takes_writes_again_once_there_is_room(path: Path, clock: SettableClock) -> None:
    async with SqliteStore(path, clock=clock, bytes_max=200 * KIB) as store:
        kept: dict[str, int] = {}

        async def fill() -> None:
            for n in range(100):
                kept[f"{n}"] = await store.insert("saga", f"{n}", b"x" * 8 * KIB)

        with pytest.raises(StoreUnavailable, match=r"payment.db is full .*; nothing was written: make room"):
            await fill()
        assert 10 < len(kept) < 25
        assert [key async for key, _ in store.scan("saga")] == sorted(kept)
        for key in ("0", "1"):
            await store.remove("saga", key, cas=kept[key])
        again = await store.insert("saga", "again", b"x" * 8 * KIB)
        assert await store.get("saga", "again") == Document(b"x" * 8 * KIB, again)


async def test_a_full_store_refuses_the_whole_transaction_and_keeps_nothing_of_it(
    path: Path, clock: SettableClock
) -> None:
    async with SqliteStore(path, clock=clock, bytes_max=200 * KIB) as store:
        writes = [store.insert("saga", f"{n}", b"x" * 8 * KIB) for n in range(100)]
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert {type(result) for result in results} == {StoreUnavailable}
        assert [key async for key, _ in store.scan("saga")] == []
        await store.insert("saga", "small", b"0")


async def test_a_full_store_is_found_when_it_is_opened(path: Path, clock: SettableClock) -> None:
    with pytest.raises(StoreUnavailable, match="is full"):
        await SqliteStore(path, clock=clock, bytes_max=7 * 4 * KIB).__aenter__()


async def test_a_full_disk_refuses_and_takes_writes_again(path: Path, clock: SettableClock) -> None:
    """The disk is full, to this process, above a limit of the operating system's; SQLite calls it an I/O error."""
    async with SqliteStore(path, clock=clock) as store:
        cas = await store.insert("saga", "a", b"0")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(f"{path}-wal").st_size + 8 * KIB, hard))
        try:
            with pytest.raises(StoreError) as refused:
                await store.replace("saga", "a", b"x" * 100 * KIB, cas=cas)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert isinstance(refused.value, Ambiguous | StoreUnavailable)
        assert await store.get("saga", "a") == Document(b"0", cas)
        await store.replace("saga", "a", b"1", cas=cas)


async def test_a_file_that_must_not_be_written_is_found_when_it_is_opened(
    path: Path, clock: SettableClock, faulty: type[Faulty]
) -> None:
    async with SqliteStore(path, clock=clock):
        pass
    faulty.before = {"BEGIN": sqlite3.SQLITE_READONLY}  # planted: permissions do not bind every user that runs tests
    with pytest.raises(StoreUnavailable, match=r"cannot be written .*give this user write access"):
        await SqliteStore(path, clock=clock, connection=faulty).__aenter__()


async def test_a_file_that_becomes_read_only_refuses_and_recovers(path: Path, clock: SettableClock) -> None:
    class Closable(sqlite3.Connection):
        query_only = False

        def execute(self, sql: str, parameters: object = (), /) -> sqlite3.Cursor:
            if sql.startswith("BEGIN"):
                super().execute(f"PRAGMA query_only = {int(Closable.query_only)}")
            return super().execute(sql, parameters)  # type: ignore[arg-type]  # the stub's type of it is private

    async with SqliteStore(path, clock=clock, connection=Closable) as store:
        cas = await store.insert("saga", "a", b"0")
        Closable.query_only = True
        with pytest.raises(StoreUnavailable, match=r"cannot be written .*; nothing was written"):
            await store.replace("saga", "a", b"1", cas=cas)
        Closable.query_only = False
        await store.replace("saga", "a", b"2", cas=cas)


# -------------------------------------------------------------------- errors of SQLite


async def test_a_commit_whose_answer_is_lost_is_ambiguous(
    path: Path, clock: SettableClock, faulty: type[Faulty]
) -> None:
    async with SqliteStore(path, clock=clock, connection=faulty) as store:
        cas = await store.insert("saga", "a", b"0")
        faulty.after = {"COMMIT": sqlite3.SQLITE_IOERR_FSYNC}
        with pytest.raises(Ambiguous, match="whether this was written is not known"):
            await store.replace("saga", "a", b"1", cas=cas)
        document = await store.get("saga", "a")
        assert document is not None
        assert document.content == b"1"
        await store.replace("saga", "a", b"2", cas=document.cas)


async def test_a_commit_that_was_not_done_can_be_ambiguous_too(
    path: Path, clock: SettableClock, faulty: type[Faulty]
) -> None:
    async with SqliteStore(path, clock=clock, connection=faulty) as store:
        cas = await store.insert("saga", "a", b"0")
        faulty.before = {"COMMIT": sqlite3.SQLITE_IOERR}
        with pytest.raises(Ambiguous):
            await store.replace("saga", "a", b"1", cas=cas)
        assert await store.get("saga", "a") == Document(b"0", cas)
        await store.replace("saga", "a", b"2", cas=cas)


async def test_a_commit_that_did_not_fit_was_not_written(
    path: Path, clock: SettableClock, faulty: type[Faulty]
) -> None:
    async with SqliteStore(path, clock=clock, connection=faulty) as store:
        faulty.before = {"COMMIT": sqlite3.SQLITE_FULL}
        with pytest.raises(StoreUnavailable, match="is full"):
            await store.insert("saga", "a", b"0")
        assert await store.get("saga", "a") is None


async def test_a_connection_beyond_use_is_replaced(path: Path, clock: SettableClock, faulty: type[Faulty]) -> None:
    async with SqliteStore(path, clock=clock, connection=faulty) as store:
        cas = await store.insert("saga", "a", b"0")
        faulty.before = {"UPDATE": sqlite3.SQLITE_IOERR, "ROLLBACK": sqlite3.SQLITE_IOERR}
        with pytest.raises(StoreUnavailable, match="nothing was written"):
            await store.replace("saga", "a", b"1", cas=cas)
        assert await store.get("saga", "a") == Document(b"0", cas)
        await store.replace("saga", "a", b"2", cas=cas)


async def test_a_store_that_cannot_connect_again_is_unavailable_until_it_can(
    path: Path, clock: SettableClock, faulty: type[Faulty]
) -> None:
    async with SqliteStore(path, clock=clock, connection=faulty) as store:
        cas = await store.insert("saga", "a", b"0")
        faulty.before = {"UPDATE": sqlite3.SQLITE_IOERR, "ROLLBACK": sqlite3.SQLITE_IOERR}
        with pytest.raises(StoreUnavailable):
            await store.replace("saga", "a", b"1", cas=cas)
        faulty.before = {"PRAGMA": sqlite3.SQLITE_CANTOPEN}
        with pytest.raises(StoreUnavailable, match="cannot be opened"):
            await store.replace("saga", "a", b"1", cas=cas)
        await store.replace("saga", "a", b"2", cas=cas)


async def test_a_read_that_fails_is_unavailable(path: Path, clock: SettableClock, faulty: type[Faulty]) -> None:
    async with SqliteStore(path, clock=clock, connection=faulty) as store:
        faulty.before = {"SELECT": sqlite3.SQLITE_IOERR}
        with pytest.raises(StoreUnavailable, match="look at the disk"):
            await store.get("saga", "a")
        faulty.before = {"SELECT": sqlite3.SQLITE_CORRUPT}
        with pytest.raises(StoreBroken, match="is damaged"):
            _ = [found async for found in store.scan("saga")]
