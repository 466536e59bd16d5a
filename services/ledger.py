"""The ledger of a simulated external system, a bank or a carrier: an SQLite file with one row for each call.

It gives callers the guarantees of a good external system. If a call is repeated with the same key, it has no effect and
gets the same answer. The row is on disk before the caller gets the answer. Several processes may share a file.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, Self, TypeAlias, TypeVar

from saga.support.clock import SystemClock

T = TypeVar("T")

BUSY_S_MAX = 4.0
"""Longest time for which a call waits while other processes write, in seconds. It is shorter than the 5 s after which
the caller gives up."""
BUSY_S_PAUSE = 0.005

_clock = SystemClock()
_TABLE = """
CREATE TABLE IF NOT EXISTS calls (
    number INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    operation TEXT NOT NULL,
    subject TEXT NOT NULL,
    arguments TEXT NOT NULL,
    answer TEXT NOT NULL,
    refused INTEGER NOT NULL,
    time TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
CREATE INDEX IF NOT EXISTS calls_by_subject ON calls (subject);
"""
_ROWS = "SELECT key, operation, subject, arguments, answer, refused, time FROM calls"
_ABOUT = f"{_ROWS} WHERE key = ? OR (subject = ? AND NOT refused) ORDER BY number"
_ADD = "INSERT INTO calls (key, operation, subject, arguments, answer, refused) VALUES (?, ?, ?, ?, ?, ?)"


class Contradiction(Exception):
    """Raised for a call that no correct client makes, such as a key that is used again for another call, or a charge
    that is captured after its release."""


class Call(NamedTuple):
    """A request of a client."""

    operation: str
    subject: str
    """Id of the charge or booking that the call is about."""
    arguments: tuple[str, ...] = ()


class Answer(NamedTuple):
    """The answer of the external system to a call."""

    text: str
    refused: bool = False


class Row(NamedTuple):
    """One call, as the ledger stores it."""

    key: str
    call: Call
    answer: Answer
    time: str
    """Time of the call: RFC 3339 in UTC, in milliseconds."""


Rule: TypeAlias = Callable[[Sequence[str]], Answer]
"""Function that answers a new call. Its argument lists the earlier operations on the same subject, in order. It may
raise `Contradiction`; then nothing is written."""


def was_made(calls: Mapping[str, Call], key: str, call: Call) -> bool:
    """Return whether the same call was made before. Raises `Contradiction` if its key was used for another call."""
    before = calls.get(key, call)
    if before != call:
        raise Contradiction(f"key {key!r} was used for {before} and is now used for {call}: a new call needs a new key")
    return key in calls


class Ledger:
    """The file of the ledger, which `async with` opens.

    SQL statements run on the event loop's thread, where each takes a third of a millisecond. In a thread of their own
    they would compete with a busy event loop for the interpreter's lock, and a call would take 27 ms. A call waits only
    while another process writes.
    """

    def __init__(self, path: Path, *, latency_s: float = 0.0) -> None:
        """Store the parameters. `latency_s`: delay of each answer in seconds, as over a network."""
        self._path, self._latency_s = path, latency_s

    async def __aenter__(self) -> Self:
        self._file = await _when_free(lambda: _open(self._path))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._file.close()

    async def once(self, key: str, call: Call, rule: Rule) -> Answer:
        """Return the answer that an earlier call with this key got. If there was none, call `rule`, write its answer to
        disk, and return it.

        Raises `Contradiction`, or `sqlite3.OperationalError` if the file cannot be written. In both cases nothing was
        written.
        """
        answer = await _when_free(lambda: _once(self._file, key, call, rule))
        if self._latency_s:
            await _clock.sleep(self._latency_s)
        return answer


async def _when_free(act: Callable[[], T]) -> T:
    """Call `act` and return its result. While another process has locked the file, try again."""
    until_s = _clock.monotonic_s() + BUSY_S_MAX
    while True:
        try:
            return act()
        except sqlite3.OperationalError as why:
            if why.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or _clock.monotonic_s() > until_s:
                raise
        await _clock.sleep(BUSY_S_PAUSE * _clock.chance())


def read(path: Path) -> list[Row]:
    """Return all calls, in the order in which they were made. Raises `FileNotFoundError`."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no ledger {path}: it is made by the first call")
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as file:
        return [_row(*values) for values in file.execute(f"{_ROWS} ORDER BY number")]


def _open(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = sqlite3.connect(path, timeout=0, isolation_level=None)
    file.execute("PRAGMA journal_mode = WAL")
    file.execute("PRAGMA synchronous = FULL")
    file.executescript(_TABLE)
    return file


def _once(file: sqlite3.Connection, key: str, call: Call, rule: Rule) -> Answer:
    with file:  # commits, or rolls back if anything is raised
        file.execute("BEGIN IMMEDIATE")  # before the read, so that no other process writes in between
        rows = {row.key: row for row in (_row(*values) for values in file.execute(_ABOUT, (key, call.subject)))}
        if was_made({row.key: row.call for row in rows.values()}, key, call):
            return rows[key].answer
        answer = rule([row.call.operation for row in rows.values()])
        file.execute(_ADD, (key, call.operation, call.subject, json.dumps(call.arguments), *answer))
        return answer


def _row(  # one parameter for each column
    key: str, operation: str, subject: str, arguments: str, answer: str, refused: int, time: str
) -> Row:
    return Row(key, Call(operation, subject, tuple(json.loads(arguments))), Answer(answer, bool(refused)), time)
