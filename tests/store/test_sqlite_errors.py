"""Meaning of SQLite's errors, for a store and for a broker file: one table, and each owner's own errors."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from saga.broker.embedded.log import PURPOSE as BROKER
from saga.errors import (
    Ambiguous,
    Broken,
    BrokerBroken,
    BrokerError,
    BrokerUnavailable,
    StoreBroken,
    StoreUnavailable,
    TooLarge,
)
from saga.store.sqlite.documents import PURPOSE as STORE
from saga.store.sqlite.errors import (
    BROKEN,
    MEANINGS,
    FileOperation,
    StateFileSpec,
    is_busy,
    primary_code,
    to_owner_error,
)

PATH = Path("payment.db")
DEFECTS = {
    getattr(sqlite3, f"SQLITE_{name}")
    for name in (
        "SCHEMA CONSTRAINT ABORT MISMATCH RANGE EMPTY ERROR INTERNAL MISUSE NOTFOUND NOTICE WARNING".split()  # noqa: SIM905 - as below
    )
}


def failure(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("planted")
    error.sqlite_errorcode = code
    error.sqlite_errorname = f"SQLITE_{code}"
    return error


@pytest.mark.parametrize("purpose", [STORE, BROKER], ids=["store", "broker"])
@pytest.mark.parametrize("code", sorted(MEANINGS))
def test_damage_is_an_error_of_its_own_and_only_a_commit_can_be_ambiguous(code: int, purpose: StateFileSpec) -> None:
    errors = purpose.errors
    translated = {doing: to_owner_error(failure(code), doing, PATH, purpose) for doing in FileOperation}
    kinds = {doing: type(why) for doing, why in translated.items()}
    for why in translated.values():
        assert f"the {purpose.name} {PATH} {MEANINGS[code].what} (SQLITE_{code}: planted)" in str(why)
        assert MEANINGS[code].remedy in str(why), "what to do"
    if code in BROKEN:
        assert set(kinds.values()) == {errors.broken}
        assert issubclass(kinds[FileOperation.READ], Broken)
        return
    waits = errors.defect if code in DEFECTS else errors.unavailable
    assert kinds[FileOperation.READ] is waits
    assert kinds[FileOperation.WRITE] is (errors.too_large if code == sqlite3.SQLITE_TOOBIG else waits)
    assert kinds[FileOperation.COMMIT] is (waits if MEANINGS[code].undone else errors.ambiguous)
    assert "nothing was written" in str(translated[FileOperation.WRITE])
    assert ("nothing was written" in str(translated[FileOperation.COMMIT])) == MEANINGS[code].undone


def test_each_owner_has_its_own_errors() -> None:
    store, broker = STORE.errors, BROKER.errors
    assert (store.broken, broker.broken) == (StoreBroken, BrokerBroken)
    assert (store.unavailable, broker.unavailable) == (StoreUnavailable, BrokerUnavailable)
    assert (store.ambiguous, broker.ambiguous) == (Ambiguous, BrokerUnavailable)
    assert (store.defect, broker.defect) == (StoreUnavailable, BrokerError)
    assert (store.too_large, broker.too_large) == (TooLarge, BrokerError)


@pytest.mark.parametrize("code", sorted(MEANINGS))
def test_only_another_program_at_work_is_waited_for(code: int) -> None:
    assert is_busy(failure(code)) == (code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL))


def test_only_errors_that_sqlite_raises_before_the_commit_frame_count_as_undone() -> None:
    undone = {code for code, known in MEANINGS.items() if known.undone}
    names = ("BUSY", "LOCKED", "PROTOCOL", "FULL", "READONLY", "PERM")
    assert undone == {getattr(sqlite3, f"SQLITE_{name}") for name in names}


def test_an_extended_code_means_what_its_primary_code_means() -> None:
    assert primary_code(failure(sqlite3.SQLITE_IOERR_FSYNC)) == sqlite3.SQLITE_IOERR
    assert isinstance(
        to_owner_error(failure(sqlite3.SQLITE_CORRUPT_VTAB), FileOperation.READ, PATH, BROKER), BrokerBroken
    )


def test_text_that_is_none_is_damage() -> None:
    why = sqlite3.OperationalError("Could not decode to UTF-8 column 'name'")
    assert isinstance(to_owner_error(why, FileOperation.READ, PATH, STORE), StoreBroken)


def test_an_error_without_code_is_ambiguous_at_commit() -> None:
    assert isinstance(to_owner_error(sqlite3.ProgrammingError("closed"), FileOperation.COMMIT, PATH, STORE), Ambiguous)


AUTHORIZER = """DENY IGNORE ANALYZE ATTACH DELETE DETACH FUNCTION INSERT PRAGMA READ RECURSIVE REINDEX SAVEPOINT SELECT
TRANSACTION UPDATE""".split()  # noqa: SIM905 - a list of sixteen strings is no easier to read
NOT_ERRORS: tuple[Callable[[str], bool], ...] = (
    lambda name: name in ("SQLITE_OK", "SQLITE_DONE", "SQLITE_ROW") or name.startswith("SQLITE_OK_"),
    lambda name: name.startswith(("SQLITE_LIMIT_", "SQLITE_DBCONFIG_")),
    # What an authorizer is asked about, and answers.
    lambda name: name.startswith(("SQLITE_CREATE_", "SQLITE_DROP_", "SQLITE_ALTER_")),
    lambda name: name in {f"SQLITE_{word}" for word in AUTHORIZER},
)


def test_every_error_that_sqlite_knows_has_a_meaning() -> None:
    codes = {
        name: getattr(sqlite3, name)
        for name in dir(sqlite3)
        if name.startswith("SQLITE_") and not any(is_none(name) for is_none in NOT_ERRORS)
    }
    assert len(codes) > 25
    assert {name for name, code in codes.items() if code & 0xFF not in MEANINGS} == set()


def test_every_error_class_of_the_module_is_known() -> None:
    def below(kind: type[sqlite3.Error]) -> set[type[sqlite3.Error]]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    names = {kind.__name__ for kind in below(sqlite3.Error) if kind.__module__ == "sqlite3"}
    assert names == {
        "Error",
        "DatabaseError",
        "DataError",
        "IntegrityError",
        "InterfaceError",
        "InternalError",
        "NotSupportedError",
        "OperationalError",
        "ProgrammingError",
    }
