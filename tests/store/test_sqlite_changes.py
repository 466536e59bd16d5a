"""The SQLite store notes changes as its port promises, and lets other programs write documents with SQL alone."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from saga.clock import SystemClock
from saga.store.sqlite import SqliteStore
from saga.testing.conformance.changes import OVER_S, ChangesConformance, OpensNoting, changes

INSERT = "INSERT INTO business_documents (collection, key, content) VALUES (?, ?, ?)"
UPDATE = "UPDATE business_documents SET content = ? WHERE collection = ? AND key = ?"
DELETE = "DELETE FROM business_documents WHERE collection = ? AND key = ?"


class TestSqliteChanges(ChangesConformance):
    @pytest.fixture
    def opens(self, tmp_path: Path) -> OpensNoting:
        return lambda: SqliteStore(tmp_path / "store.db", clock=SystemClock())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(file, clock=SystemClock()) as store:
        await store.watch("s", ["orders"], from_beginning=False)
        yield store


def program(file: Path, statement: str, *values: object) -> int:
    """Another program with its own driver: no library of ours."""
    with closing(sqlite3.connect(file, timeout=30)) as connection, connection:
        return connection.execute(statement, values).rowcount


async def test_another_program_writes_documents_with_sql_and_each_is_a_change(store: SqliteStore, file: Path) -> None:
    program(file, INSERT, "orders", "o-1", '{"n":1}')
    program(file, UPDATE, '{"n":2}', "orders", "o-1")
    found = await store.get("orders", "o-1")
    assert found is not None
    assert found.content == b'{"n":2}'
    program(file, DELETE, "orders", "o-1")
    program(file, INSERT, "orders", "o-1", '{"n":3}')
    assert [(c.kind, c.before, c.after) for c in changes(store)] == [
        ("insert", None, b'{"n":1}'),
        ("update", b'{"n":1}', b'{"n":2}'),
        ("delete", b'{"n":2}', None),
        ("insert", None, b'{"n":3}'),
    ]
    versions = [c.version for c in changes(store)]
    assert versions == sorted(versions)
    assert len(set(versions)) == 3, "a removal has the version that it removes"


async def test_a_program_and_the_store_see_each_others_versions(store: SqliteStore, file: Path) -> None:
    cas = await store.insert("orders", "o-1", b'{"n":1}')
    program(file, UPDATE, '{"n":2}', "orders", "o-1")
    found = await store.get("orders", "o-1")
    assert found is not None
    assert found.cas == cas + 1
    await store.replace("orders", "o-1", b'{"n":3}', cas=found.cas)
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT * FROM business_documents").fetchall() == [("orders", "o-1", '{"n":3}')]


async def test_what_a_program_rolls_back_is_no_change(store: SqliteStore, file: Path) -> None:
    with closing(sqlite3.connect(file, timeout=30)) as connection:
        connection.execute(INSERT, ("orders", "o-1", "{}"))
        connection.rollback()
    assert changes(store) == []


async def test_the_toolkits_marks_stay_and_are_not_seen(store: SqliteStore, file: Path) -> None:
    await store.insert("orders", "o-1", b'{"n":1,"_saga":{"updates":{"u":1}}}')
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT content FROM business_documents").fetchall() == [('{"n":1}',)]
    program(file, UPDATE, '{"n":2}', "orders", "o-1")
    found = await store.get("orders", "o-1")
    assert found is not None
    assert found.content == b'{"n":2,"_saga":{"updates":{"u":1}}}'


async def test_a_document_that_has_expired_is_not_there_and_makes_room(store: SqliteStore, file: Path) -> None:
    await store.insert("orders", "o-1", b'{"n":1}', expiry_s=0)
    await SystemClock().sleep(OVER_S)
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT * FROM business_documents").fetchall() == []
    program(file, INSERT, "orders", "o-1", '{"n":2}')
    assert [c.kind for c in changes(store)] == ["insert", "expiry", "insert"]
    assert len({c.version for c in changes(store)}) == 2


async def test_documents_of_the_toolkit_are_not_seen(store: SqliteStore, file: Path) -> None:
    await store.insert("saga", "order::o-1", b"{}")
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT * FROM business_documents").fetchall() == []


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (("saga", "k", "{}"), "collection is none of the toolkit's"),
        (("saga-archive", "k", "{}"), "collection is none of the toolkit's"),
        (("", "k", "{}"), "texts that are not empty"),
        (("orders", None, "{}"), "texts that are not empty"),
        (("orders", "k", "[1]"), "content is the text of a JSON object"),
        (("orders", "k", "{"), "content is the text of a JSON object"),
        (("orders", "k", None), "content is the text of a JSON object"),
        (("orders", "taken", "{}"), "UNIQUE constraint failed"),
    ],
)
async def test_what_is_no_document_is_refused(
    store: SqliteStore, file: Path, values: tuple[object, ...], told: str
) -> None:
    program(file, INSERT, "orders", "taken", "{}")
    with pytest.raises(sqlite3.IntegrityError, match=told):
        program(file, INSERT, *values)
    with pytest.raises(sqlite3.IntegrityError, match="content is the text of a JSON object"):
        program(file, UPDATE, "7", "orders", "taken")
    with pytest.raises(sqlite3.IntegrityError, match="a document stay as they are: delete it"):
        program(file, "UPDATE business_documents SET key = 'other'")
    assert len(changes(store)) == 1


async def test_a_damaged_document_is_still_found(store: SqliteStore, file: Path) -> None:
    await store.insert("orders", "ours", b'{"n":1}')
    program(file, "UPDATE documents SET content = CAST('{\"n\":9}' AS BLOB) WHERE key = ?", "ours")
    with pytest.raises(Exception, match="'ours' in 'orders' is not what was written"):
        await store.get("orders", "ours")
