"""The SQLite store notes changes as its port promises, and lets other programs write documents with SQL alone."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from saga.errors import Conflict, StoreError
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from saga.testing.conformance.store import OVER_S, ChangesConformance, OpenChangeStore, list_changes

INSERT = "INSERT INTO business_documents (collection, key, content) VALUES (?, ?, ?)"
UPDATE = "UPDATE business_documents SET content = ? WHERE collection = ? AND key = ?"
DELETE = "DELETE FROM business_documents WHERE collection = ? AND key = ?"


class TestSqliteChanges(ChangesConformance):
    @pytest.fixture
    def opens(self, tmp_path: Path) -> OpenChangeStore:
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
    assert [(c.kind, c.before, c.after) for c in list_changes(store)] == [
        ("insert", None, b'{"n":1}'),
        ("update", b'{"n":1}', b'{"n":2}'),
        ("delete", b'{"n":2}', None),
        ("insert", None, b'{"n":3}'),
    ]
    versions = [c.version for c in list_changes(store)]
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


async def test_a_rolled_back_statement_records_no_change(store: SqliteStore, file: Path) -> None:
    with closing(sqlite3.connect(file, timeout=30)) as connection:
        connection.execute(INSERT, ("orders", "o-1", "{}"))
        connection.rollback()
    assert list_changes(store) == []


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
    assert [c.kind for c in list_changes(store)] == ["insert", "expiry", "insert"]
    assert len({c.version for c in list_changes(store)}) == 2


async def test_documents_of_the_toolkit_are_not_seen(store: SqliteStore, file: Path) -> None:
    await store.insert("saga", "order::o-1", b"{}")
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT * FROM business_documents").fetchall() == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("saga", "k", "{}"), "collection is none of the toolkit's"),
        (("saga-archive", "k", "{}"), "collection is none of the toolkit's"),
        (("", "k", "{}"), "texts that are not empty"),
        (("orders", None, "{}"), "texts that are not empty"),
        (("orders", b"k", "{}"), "texts that are not empty"),
        ((b"orders", "k", "{}"), "texts that are not empty"),
        (("orders", "k" * 1025, "{}"), "have 1024 bytes at most"),
        (("orders", "\u00fc" * 513, "{}"), "have 1024 bytes at most"),
        (("o" * 1025, "k", "{}"), "have 1024 bytes at most"),
        (("orders", "k", "[1]"), "content is the text of a JSON object"),
        (("orders", "k", "{"), "content is the text of a JSON object"),
        (("orders", "k", None), "content is the text of a JSON object"),
        (("orders", "taken", "{}"), "UNIQUE constraint failed: existing_documents.key"),
    ],
)
async def test_a_row_that_is_no_document_is_refused(
    store: SqliteStore, file: Path, values: tuple[object, ...], message: str
) -> None:
    program(file, INSERT, "orders", "taken", "{}")
    with pytest.raises(sqlite3.IntegrityError, match=message):
        program(file, INSERT, *values)
    with pytest.raises(sqlite3.IntegrityError, match="content is the text of a JSON object"):
        program(file, UPDATE, "7", "orders", "taken")
    with pytest.raises(sqlite3.IntegrityError, match="a document stay as they are: delete it"):
        program(file, "UPDATE business_documents SET key = 'other'")
    assert len(list_changes(store)) == 1


@pytest.mark.parametrize("collection", ["saga", "saga-archive"])
async def test_a_document_of_the_toolkit_without_a_checksum_is_not_what_was_written(
    store: SqliteStore, file: Path, collection: str
) -> None:
    await store.insert(collection, "ours", b'{"n":1}')
    program(file, "UPDATE documents SET sum = -1, content = CAST('{\"n\":9}' AS BLOB) WHERE key = ?", "ours")
    with pytest.raises(StoreError, match=f"'ours' in '{collection}' is not what was written"):
        await store.get(collection, "ours")


async def test_a_damaged_document_is_still_found(store: SqliteStore, file: Path) -> None:
    await store.insert("orders", "ours", b'{"n":1}')
    program(file, "UPDATE documents SET content = CAST('{\"n\":9}' AS BLOB) WHERE key = ?", "ours")
    with pytest.raises(Exception, match="'ours' in 'orders' is not what was written"):
        await store.get("orders", "ours")


NO_UTF8 = ("ff41", "80", "6180", "c080", "e282", "e28261", "61eda080", "f4908080", "f8888080", "61ff62")


@pytest.mark.parametrize("raw", NO_UTF8)
async def test_a_text_that_is_not_utf8_is_no_key_and_no_collection(store: SqliteStore, file: Path, raw: str) -> None:
    text = f"CAST(X'{raw}' AS TEXT)"
    for collection, key in ((text, "'k'"), ("'orders'", text)):
        with pytest.raises(sqlite3.IntegrityError, match="collection and key are texts in UTF-8"):
            program(
                file, f"INSERT INTO business_documents (collection, key, content) VALUES ({collection}, {key}, '{{}}')"
            )


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30))
@example("\ufffe\uffff\ufffd")
@example("\U0010ffff\u0800\u07ff\x7f\x80")
async def test_any_text_is_a_key(store: SqliteStore, file: Path, key: str) -> None:
    program(file, "INSERT OR REPLACE INTO business_documents (collection, key, content) VALUES ('x', ?, '{}')", key)
    assert await store.get("x", key) is not None


INTO = " INTO business_documents (collection, key, content) VALUES ('orders', 'o-1', ?)"
SET = " business_documents SET content = ? WHERE collection = 'orders' AND key = 'o-1'"
WAYS = {
    "INSERT": INTO,
    "INSERT OR IGNORE": INTO,
    "INSERT OR REPLACE": INTO,
    "REPLACE": INTO,
    "UPDATE": SET,
    "UPDATE OR REPLACE": SET,
    "UPDATE OR IGNORE": SET,
    "DELETE": " FROM business_documents WHERE key = 'o-1' AND content <> ?",
}
"""Statements with which a program may write a document."""
MARKS = '"_saga":{"updates":{"u":1}}'


@settings(max_examples=60)
@given(ways=st.lists(st.sampled_from(sorted(WAYS)), max_size=12), recursive=st.booleans())
@example(ways=["INSERT", "INSERT OR REPLACE", "REPLACE"], recursive=False)
@example(ways=["DELETE", "REPLACE", "REPLACE"], recursive=True)
def test_every_kind_of_statement_records_each_change_once_with_its_own_version(
    ways: list[str], recursive: bool
) -> None:
    async def play(folder: Path) -> None:
        file, expected = folder / "store.db", [("insert", f'{{"n":0,{MARKS}}}')]
        async with SqliteStore(file, clock=SystemClock()) as store:
            await store.watch("s", ["orders"], from_beginning=False)
            await store.insert("orders", "o-1", f'{{"n":0,{MARKS}}}'.encode())
            now: str | None = expected[0][1]
            for n, way in enumerate(ways, 1):
                refused = written(file, f"{way}{WAYS[way]}", f'{{"n":{n}}}', recursive=recursive)
                assert refused == (way == "INSERT" and now is not None)
                if now is None and way.startswith(("INSERT", "REPLACE")):
                    now = f'{{"n":{n}}}'
                    expected.append(("insert", now))
                elif now is not None and way == "DELETE":
                    now = None
                    expected.append(("delete", ""))
                elif now is not None and way not in ("INSERT", "INSERT OR IGNORE"):
                    now = f'{{"n":{n},{MARKS}}}' if MARKS in now else f'{{"n":{n}}}'
                    expected.append(("update", now))
                found = await store.get("orders", "o-1")
                assert (found and found.content.decode()) == now
            noted = list_changes(store)
            assert [(c.kind, (c.after or b"").decode()) for c in noted] == expected
            versions = [(c.version, c.kind == "delete") for c in noted]
            assert versions == sorted(set(versions)), "they only grow"
        async with SqliteStore(file, clock=SystemClock()):
            pass  # it is as new as what was acknowledged last

    with TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))


def written(file: Path, statement: str, content: str, *, recursive: bool) -> bool:
    """Write as another program does; true if the statement was refused."""
    with closing(sqlite3.connect(file, timeout=30)) as connection, connection:
        connection.execute(f"PRAGMA recursive_triggers = {recursive:d}")
        try:
            connection.execute(statement, (content,))
        except sqlite3.IntegrityError as why:
            return "UNIQUE constraint failed: existing_documents.key" in str(why)
    return False


async def test_a_compare_and_swap_sees_what_a_program_replaced(store: SqliteStore, file: Path) -> None:
    cas = await store.insert("orders", "o-1", f'{{"n":0,{MARKS}}}'.encode())
    program(file, "REPLACE INTO business_documents (collection, key, content) VALUES ('orders', 'o-1', '{\"n\":2}')")
    with pytest.raises(Conflict):
        await store.replace("orders", "o-1", b'{"n":3}', cas=cas)
    found = await store.get("orders", "o-1")
    assert found is not None
    assert found.content == b'{"n":2,"_saga":{"updates":{"u":1}}}'


async def test_a_replaced_document_that_has_expired_is_a_new_one(store: SqliteStore, file: Path) -> None:
    await store.insert("orders", "o-1", b'{"n":1}', expiry_s=0)
    await SystemClock().sleep(OVER_S)
    program(file, "REPLACE INTO business_documents (collection, key, content) VALUES ('orders', 'o-1', '{\"n\":2}')")
    assert [c.kind for c in list_changes(store)] == ["insert", "expiry", "insert"]
