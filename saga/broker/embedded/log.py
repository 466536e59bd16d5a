"""Log of the embedded broker: its tables, and functions that append, read and remove records."""

import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import add, is_, xor
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from saga.broker.port import FRAME_BYTES, RECORD_BYTES_MAX, partition_of, record_size
from saga.errors import BrokerBroken, BrokerError, BrokerUnavailable
from saga.messages import Headers, Outgoing, Partition, Record, Topic
from saga.messaging.names import is_timer_topic
from saga.store.sqlite.connection import as_blobs
from saga.store.sqlite.errors import Damage, OwnerErrors, StateFileSpec
from saga.store.sqlite.steady_time import SteadyTime, TimeNote, decode_note

DAY_MS = 86_400_000
TIMERS_KEPT_MS = DAY_MS
"""Age up to which a timer's record is kept although its service has already processed it, so that it can be
inspected."""
TRIMMED_MAX = 200
"""Largest number of records of one partition that one transaction of retention removes."""
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Headers).decode
_new_record: Callable[[type[Record], Iterable[object]], Record] = tuple.__new__
"""Constructor of a record from its fields. It skips the wrapper function of `Record(...)`, because it is called for
each record."""
NO_HEADERS = _pack(())
UNREADABLE = (msgspec.MsgspecError, TypeError, UnicodeDecodeError)
"""Errors of decoding a row that was not written by this log."""
Row: TypeAlias = tuple[int, bytes, bytes | None, bytes | None, int, int]
"""Row of a log: offset, key, value, packed headers, time, checksum. In a damaged row any of these may have another
type."""
Entry: TypeAlias = tuple[int, bytes, bytes | None, bytes | None]
"""Entry to append: log, key, value, packed headers."""
Ints: TypeAlias = Sequence[int]
Nulls: TypeAlias = Sequence[bytes | None]
"""A column of nullable bytes from many rows. `Ints` is such a column of integers."""


class TopicExtent(NamedTuple):
    """A topic in the file, with its logs and its retention."""

    first_log: int
    partitions: int
    retention_ms: int | None

    @property
    def logs(self) -> range:
        """Return the ids of the logs of its partitions, in order of the partitions."""
        return range(self.first_log, self.first_log + self.partitions)


_AS_WRITTEN = (
    "offset, CAST(key AS BLOB), CAST(value AS BLOB), CAST(headers AS BLOB), CAST(time_ms AS INTEGER),"
    " CAST(sum AS INTEGER)"
)
"""Columns of a record, as a part of a query.

The casts are needed for damaged rows. One changed bit may turn bytes into text, and text that is not UTF-8 would make
the whole query fail.
"""
_IDENTITY = "CREATE TABLE IF NOT EXISTS log_identity (id TEXT NOT NULL, sum INTEGER NOT NULL)"
"""Statement that creates the table with the id of the file's logs. It runs when the file is opened, because files of
earlier releases lack the table."""
_TIME = "CREATE TABLE IF NOT EXISTS time_note (id INTEGER PRIMARY KEY CHECK (id = 1), note BLOB, sum INTEGER)"
"""Statement that creates the table with the last process's `TimeNote`. It runs when the file is opened, for the same
reason."""
Watched: TypeAlias = tuple[Iterable[int], Iterable[str]]
"""Logs and groups that a process watches."""


def watch_nothing() -> Watched:
    """Return no logs and no groups: the default of `RecordLog`."""
    return (), ()


class Undecodable(Exception):
    """Error for a record that does not have the format of this log, because another program wrote it or the file is
    damaged."""

    def __init__(self, offset: int, why: Exception) -> None:
        super().__init__(str(why))
        self.offset = offset

    def describe(self, partition: Partition, path: Path) -> str:
        """Return a message for operators about the record and what they can do."""
        return (
            f"{partition.topic}/{partition.number} is stalled at offset {self.offset}, which cannot be read: its row "
            f"in {path} is damaged ({self}): restore a copy of the file, or skip the record with `saga offsets skip`"
        )


class RecordLog:
    """The records in the file, and cached values about them. No method waits for another process."""

    def __init__(
        self,
        connection: Callable[[], sqlite3.Connection],
        record_bytes_max: int = RECORD_BYTES_MAX,
        watched: Callable[[], Watched] = watch_nothing,
    ) -> None:
        """Start with an empty cache.

        `watched`: function that returns the logs and groups that this process watches. Only these are reloaded when
        other processes write, so the cost does not grow with the number of logs.
        """
        self._connection, self._record_bytes_max, self._watched = connection, record_bytes_max, watched
        self._seen = -1
        self.id = ""
        """Id of all logs of the file, set by `identify`. All logs share one id, because topics are never deleted."""
        self._newest = -1
        """Highest log number when the topics were last loaded."""
        self.topics: dict[str, TopicExtent] = {}
        self.heads: dict[int, int] = {}
        """Cached committed ends of logs. The cache is emptied when another process has written to the file."""
        self.versions: dict[str, int] = {}
        """Version of each watched group."""
        self._moved: dict[int, int] = {}
        self._checked: dict[int, tuple[int, int]] = {}
        """End and checksum of each log, as last verified."""

    def catch_up(self) -> bool:
        """Reload what other processes may have changed. Return whether another connection wrote to the file."""
        (seen,) = self._connection().execute("PRAGMA data_version").fetchone()
        if seen == self._seen:
            return False
        self.reload()
        self._seen = seen
        return True

    def reload(self) -> None:
        """Reload the watched ends and versions, and the topics if there are new logs."""
        execute = self._connection().execute
        (newest,) = execute("SELECT coalesce(max(id), 0) FROM logs").fetchone()
        if newest != self._newest:
            self.topics, self._newest = load_topics(self._connection()), newest
        self.heads = {}
        logs, groups = self._watched()
        self.read_ends(logs)
        found = [(name, execute("SELECT version FROM groups WHERE name = ?", (name,)).fetchone()) for name in groups]
        self.versions = {name: row[0] for name, row in found if row is not None}

    def read_end(self, log: int) -> int:
        """Return the offset that the next record of a log gets, as last committed. Raises `Damage`."""
        return self.heads[log] if log in self.heads else self.read_ends((log,))[log]

    def read_ends(self, logs: Iterable[int]) -> Mapping[int, int]:
        """Return the committed end of each of these logs. Raises `Damage`."""
        logs = list(logs)
        if unknown := sorted({*logs}.difference(self.heads)):
            statement = f"SELECT id, next, next_sum FROM logs WHERE id IN ({', '.join(map(str, unknown))})"
            for log, end, sum_ in self._connection().execute(statement):
                if self._checked.get(log) != (end, sum_):  # most ends are unchanged, even if another process wrote
                    check_end(log, end, sum_)
                    self._checked[log] = end, sum_
                self.heads[log] = end
        return dict(zip(logs, map(self.heads.__getitem__, logs), strict=True))

    def make_entries(self, messages: Sequence[Outgoing]) -> list[Entry]:
        """Encode messages for `append`, each with its log. Raises `BrokerError` for an unknown topic or a record that
        is too large."""
        made: list[Entry] = []
        for message in messages:
            topic, key, value, headers, _ = message
            extent = self.topics.get(topic) or self.find_topic(topic)
            packed = _pack(headers) if headers else b""
            # An upper bound of the size: each packed header has at least four bytes of overhead.
            if len(key) + len(value or b"") + 3 * len(packed) + FRAME_BYTES > self._record_bytes_max:
                self._check_size(message)
            made.append((extent.first_log + partition_of(key, extent.partitions), key, value, packed or None))
        return made

    def _check_size(self, message: Outgoing) -> None:
        size, limit = record_size(message), self._record_bytes_max
        if size > limit:
            raise BrokerError(f"a record of {size} bytes for {message.topic} is too large: {limit} bytes at most")

    def find_topic(self, topic: str) -> TopicExtent:
        """Return a topic. Raises `BrokerError` if it does not exist."""
        if topic not in self.topics:
            self.reload()  # another process may have created it
        if topic not in self.topics:
            raise BrokerError(f"there is no topic {topic!r}: `ensure` makes it, from the contracts; is its name right?")
        return self.topics[topic]

    def append(self, entries: Iterable[Entry], now_ms: int) -> None:
        """Append entries inside a transaction, with consecutive offsets. `confirm` or `forget_appended` must follow."""
        logs, keys, values, headers = zip(*entries, strict=True)
        moved: dict[int, int] = {}
        offsets: list[int] = []
        for log in logs:
            offsets.append(moved[log] if log in moved else self.read_end(log))
            moved[log] = offsets[-1] + 1
        times_ms = [now_ms] * len(offsets)
        sums_ = compute_checksums(offsets, keys, values, headers, times_ms)
        new = zip(offsets, as_blobs(keys), as_blobs(values), as_blobs(headers), times_ms, sums_, strict=True)
        by_log: defaultdict[int, list[tuple[object, ...]]] = defaultdict(list)
        for log, row in zip(logs, new, strict=True):
            by_log[log].append(row)
        connection = self._connection()
        for log, rows in by_log.items():
            connection.executemany(f"INSERT INTO log_{log} VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._moved = moved
        ends = [(end, row_checksum(log, end), log) for log, end in moved.items()]
        connection.executemany("UPDATE logs SET next = ?, next_sum = ? WHERE id = ?", ends)

    def confirm(self) -> Mapping[int, int]:
        """Return the new ends of the logs to which the committed transaction appended."""
        moved, self._moved = self._moved, {}
        self.heads.update(moved)
        return moved

    def forget_appended(self) -> None:
        """Forget the entries of a transaction that was rolled back, and the values that `catch_up` read inside it."""
        self._moved, self._seen = {}, -1

    def read(self, log: int, partition: Partition, offset: int, records_max: int) -> list[Record]:
        """Return the next records from `offset` on, up to the first one that cannot be read.

        Raises `Undecodable` if the first record cannot be read, and `Damage` if records are missing.
        """
        topic, number = partition
        rows = self._select(log, offset, records_max)
        if not rows or rows[0][0] != offset or rows[-1][0] - offset != len(rows) - 1:
            rows = self._read_behind_gap(log, offset, records_max)
        try:
            return _to_records(topic, number, rows, self.id) if rows else []
        except UNREADABLE:
            return _readable_records(topic, number, rows, self.id)

    def _select(self, log: int, offset: int, records_max: int) -> list[Row]:
        statement = f"SELECT {_AS_WRITTEN} FROM log_{log} WHERE offset >= ? ORDER BY offset LIMIT ?"
        return self._connection().execute(statement, (offset, records_max)).fetchall()

    def _read_behind_gap(self, log: int, offset: int, records_max: int) -> list[Row]:
        """Read the next rows again, and check that the records missing before them were removed by retention. Raises
        `Damage` if they were not.

        Rows and bounds are read in one transaction, because another process may be removing and appending records.
        """
        connection = self._connection()
        connection.execute("BEGIN")
        try:
            rows = self._select(log, offset, records_max)
            oldest, end = read_log_bounds(connection, log)
        finally:
            if connection.in_transaction:  # some errors have ended it
                connection.execute("ROLLBACK")
        first = max(offset, oldest)
        if [row[0] for row in rows] != list(range(first, first + len(rows))) or (not rows and first < end):
            raise Damage(f"records of log {log} from {first} on are missing")
        return rows

    # ---------------------------------------------------------------- topics and retention, inside a transaction

    def identify(self, new: str) -> None:
        """Load the id of the file's logs, or store `new` if the file has none. Raises `Damage`."""
        execute = self._connection().execute
        execute(_IDENTITY)
        found = execute("SELECT id, sum FROM log_identity").fetchone()
        if found is None:
            execute("INSERT INTO log_identity VALUES (?, ?)", (new, row_checksum("log_identity", new)))
            self.id = new
            return
        check_identity(*found)
        (self.id, _) = found

    def read_time_note(self) -> TimeNote | None:
        """Return the time that the last process has stored in the file; `None` in a new file, or if the note is
        damaged."""
        execute = self._connection().execute
        execute(_TIME)
        found = execute("SELECT CAST(note AS BLOB), sum FROM time_note").fetchone()
        return decode_note(found[0]) if found is not None and found[1] == zlib.crc32(found[0]) else None

    def write_time_note(self, note: bytes) -> None:
        self._connection().execute(_TIME)
        self._connection().execute("INSERT OR REPLACE INTO time_note VALUES (1, ?, ?)", (note, zlib.crc32(note)))

    def ensure_topics(self, topics: Sequence[Topic]) -> None:
        """Create missing topics, and extend the retention of existing topics if a longer one is requested. All topics
        are checked before anything is written.

        The retention is never shortened here, because another release of a service may need it. Operators shorten it
        with `set_retention`.
        """
        there = load_topics(self._connection())
        for topic in topics:
            extent = there.get(topic.name)
            if extent is not None and extent.partitions != topic.partitions:
                raise BrokerError(
                    f"topic {topic.name!r} has {extent.partitions} partitions, the contracts want {topic.partitions}: "
                    "keys would change their partition; put the number back, or begin with an empty broker file"
                )
            if topic.partitions < 1:
                raise BrokerError(f"topic {topic.name!r} has {topic.partitions} partitions: at least 1 is needed")
        for topic in topics:
            retention_ms = None if topic.retention_days is None else round(topic.retention_days * DAY_MS)
            extent = there.get(topic.name)
            if extent is None:
                there[topic.name] = self._create_topic(topic, retention_ms)
            elif extent.retention_ms is not None and (retention_ms is None or retention_ms > extent.retention_ms):
                self.set_retention(topic.name, extent, retention_ms)

    def set_retention(self, name: str, extent: TopicExtent, retention_ms: int | None) -> None:
        """Set the retention of a topic."""
        sum_ = row_checksum(name, extent.first_log, extent.partitions, retention_ms)
        self._connection().execute(
            "UPDATE topics SET retention_ms = ?, sum = ? WHERE name = ?", (retention_ms, sum_, name)
        )

    def _create_topic(self, topic: Topic, retention_ms: int | None) -> TopicExtent:
        (first,) = self._connection().execute("SELECT coalesce(max(id), 0) + 1 FROM logs").fetchone()
        for log in range(first, first + topic.partitions):
            sum_ = row_checksum(log, 0)
            self._connection().execute("INSERT INTO logs VALUES (?, 0, ?, 0, ?)", (log, sum_, sum_))
            self._connection().execute(create_log_table(log))
        extent = TopicExtent(first, topic.partitions, retention_ms)
        row = (topic.name, *extent, row_checksum(topic.name, *extent))
        self._connection().execute("INSERT INTO topics VALUES (?, ?, ?, ?, ?)", row)
        return extent

    def trim(self, now_ms: int, lost: Collection[str] = ()) -> bool:
        """Remove records that are older than their topic's retention and that all groups have committed. Each call
        removes a bounded number per partition. Return whether there may be more to remove.

        Timer topics have no retention. Their records are removed a day after they were appended, if their service has
        committed them. `lost`: groups that have been without members for too long. Their positions are ignored, except
        in timer topics.
        """
        more = False
        execute = self._connection().execute
        there = load_topics(self._connection()).items()
        trimmed = {name: topic for name, topic in there if topic.retention_ms is not None or is_timer_topic(name)}
        if not trimmed:
            return False
        ends = {log: (oldest, end) for log, oldest, end in verify_logs(execute(LOGS))}
        floors: dict[int, int] = {}
        timers = {log for name, topic in trimmed.items() if is_timer_topic(name) for log in topic.logs}
        for group, log, offset in verify_positions(execute(POSITIONS)):
            if group not in lost or log in timers:
                floors[log] = min(offset, floors.get(log, offset))
        for name, topic in trimmed.items():
            before_ms = now_ms - (TIMERS_KEPT_MS if topic.retention_ms is None else topic.retention_ms)
            for log in topic.logs:
                oldest, next_ = ends[log]
                floor = floors.get(log, oldest if is_timer_topic(name) else next_)
                more = self._trim_one(log, oldest, min(next_, floor, oldest + TRIMMED_MAX), before_ms) or more
        return more

    def _trim_one(self, log: int, oldest: int, end: int, before_ms: int) -> bool:
        """Remove the oldest records of one log that were appended before `before_ms`, at most up to `end`.

        Return whether there may be more.
        """
        if end <= oldest:
            return False
        execute = self._connection().execute
        (first_kept,) = execute(
            f"SELECT min(offset) FROM log_{log} WHERE offset >= ? AND offset < ? AND time_ms >= ?",
            (oldest, end, before_ms),
        ).fetchone()
        keep = end if first_kept is None else first_kept
        if keep > oldest:
            execute(f"DELETE FROM log_{log} WHERE offset < ?", (keep,))
            sum_ = row_checksum(log, keep)
            execute("UPDATE logs SET oldest = ?, oldest_sum = ? WHERE id = ?", (keep, sum_, log))
        return keep == oldest + TRIMMED_MAX


def _to_records(topic: str, number: int, rows: Sequence[Row], log_id: str) -> list[Record]:
    """Convert rows into records, all at once. Raises one of `UNREADABLE` if any row is damaged."""
    offsets, keys, values, headers, times_ms, sums_ = zip(*rows, strict=True)
    if [*compute_checksums(offsets, keys, values, headers, times_ms)] != [*sums_]:
        raise TypeError("its checksum is another")
    unpacked = map(_unpack, [packed or NO_HEADERS for packed in headers] if None in headers else headers)
    more = repeat(None), repeat(log_id)
    fields = zip(repeat(topic), repeat(number), offsets, keys, values, unpacked, times_ms, *more, strict=False)
    return list(map(_new_record, repeat(Record), fields))


def _readable_records(topic: str, number: int, rows: Sequence[Row], log_id: str) -> list[Record]:
    """Convert the rows before the first damaged one into records. Raises `Undecodable` if there are none."""
    records: list[Record] = []
    for row in rows:
        try:
            records += _to_records(topic, number, [row], log_id)
        except UNREADABLE as why:
            if not records:
                raise Undecodable(row[0], why) from why
            break
    return records


def load_topics(connection: sqlite3.Connection) -> dict[str, TopicExtent]:
    """Read the topics from the file. Raises `Damage`."""
    rows = verify_topics(connection.execute(TOPICS))
    return {
        name: TopicExtent(first_log, partitions, retention_ms) for name, first_log, partitions, retention_ms in rows
    }


def find_missing_write(connection: sqlite3.Connection, mark: bytes) -> str | None:
    """Describe the acknowledged write that is missing from the file; return `None` if none is missing. Raises `Damage`.

    `mark`: the log of the last acknowledged write, and the end of the log after that write.
    """
    log, end = (int(part) for part in mark.split())
    found = connection.execute("SELECT next, next_sum FROM logs WHERE id = ?", (log,)).fetchone()
    if found is not None:
        check_end(log, *found)
    return None if found is not None and found[0] >= end else f"record {end - 1} of log {log}"


def compute_checksums(
    offsets: Ints, keys: Sequence[bytes], values: Nulls, headers: Nulls, times_ms: Ints
) -> Iterable[int]:
    """Compute the checksums of records and their offsets. The arguments are columns, each with a value for every
    record.

    SQLite itself has no checksums. All loops run in C, because this is called twice for each record.
    """
    seeds = map(xor, map(add, offsets, offsets), times_ms)
    if None in values:  # null and empty bytes have different checksums
        seeds = map(xor, seeds, map(is_, values, repeat(None)))
    return map(
        zlib.crc32, map(b"".join, zip(keys, _without_nulls(values), _without_nulls(headers), strict=True)), seeds
    )


def _without_nulls(values: Sequence[Any]) -> Sequence[bytes]:
    return [value or b"" for value in values] if None in values else values


# ---------------------------------------------------------------- transactions


class Transaction:
    """Hooks with which group commits append records: see `saga.store.sqlite.writer.TransactionHooks`."""

    def __init__(
        self,
        log: RecordLog,
        time: SteadyTime,
        *,
        caught_up: Callable[[], None],
        appended: Callable[[Mapping[int, int]], None],
    ) -> None:
        """Start without entries.

        `caught_up`: function to call when other processes have written. `appended`: function to call with the new ends
        of the logs to which this process appended.
        """
        self._log, self._time = log, time
        self._caught_up, self._appended = caught_up, appended
        self._others = False
        self._entries: list[Entry] = []
        self._moved: Mapping[int, int] = {}

    def append(self, entries: list[Entry]) -> None:
        """Add entries to the current transaction. All entries of one log are written by one statement."""
        self._entries += entries

    def begin(self, connection: sqlite3.Connection) -> None:
        self._entries = []
        self._others = self._log.catch_up()

    def finish(self, changes: int) -> None:
        if self._entries:
            # The later time: records must not be old at once because the clock is behind for a moment.
            self._log.append(self._entries, self._time.look().latest_ms)
            if (note := self._time.make_note()) is not None:
                self._log.write_time_note(note)

    def on_commit(self) -> bytes | None:
        self._moved = moved = self._log.confirm()
        return b"%d %d" % next(iter(moved.items())) if moved else None

    def on_rollback(self) -> None:
        self._log.forget_appended()

    def announce(self) -> None:
        if self._others:
            self._caught_up()
        if self._moved:
            self._appended(self._moved)


# ---------------------------------------------------------------- tables


TABLES = (
    # The partitions of a topic are the logs first_log, first_log + 1, ... The records of each log have their own table
    # `log_<id>`: writes at the end of a table cost a third less than in one table for all, and fill pages completely.
    "CREATE TABLE topics (name TEXT PRIMARY KEY, first_log INTEGER NOT NULL, partitions INTEGER NOT NULL,"
    " retention_ms INTEGER, sum INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE logs (id INTEGER PRIMARY KEY, oldest INTEGER NOT NULL, oldest_sum INTEGER NOT NULL,"
    " next INTEGER NOT NULL, next_sum INTEGER NOT NULL)",
    # `version` grows whenever members must check the group: at a new generation, and when a partition becomes free.
    "CREATE TABLE groups (name TEXT PRIMARY KEY, generation INTEGER NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE members (id INTEGER PRIMARY KEY AUTOINCREMENT, grp TEXT NOT NULL, seat TEXT NOT NULL,"
    " topics TEXT NOT NULL)",
    # `target`: the member that gets the log in this generation; `owner`: who has it, since generation `granted`.
    "CREATE TABLE positions (grp TEXT NOT NULL, log INTEGER NOT NULL, offset INTEGER NOT NULL, sum INTEGER NOT NULL,"
    " owner INTEGER, granted INTEGER, target INTEGER, PRIMARY KEY (grp, log)) WITHOUT ROWID",
    # For each group without a live member: for how long this has been observed, and when it was last checked.
    "CREATE TABLE absences (grp TEXT PRIMARY KEY, away_ms INTEGER NOT NULL, looked_ms INTEGER NOT NULL,"
    " sum INTEGER NOT NULL) WITHOUT ROWID",
)


def create_log_table(log: int) -> str:
    """Return the statement that creates the table of one partition's records."""
    return (
        f"CREATE TABLE log_{log} (offset INTEGER PRIMARY KEY, key BLOB, value BLOB, headers BLOB, time_ms INTEGER,"
        " sum INTEGER)"
    )


def check_records(connection: sqlite3.Connection) -> None:
    """Check the consistency of the file: logs have no gaps, positions lie within the logs, and the checksums of topics,
    logs and positions match. Raises `Damage`."""
    for _ in (*verify_topics(connection.execute(TOPICS)), *verify_positions(connection.execute(POSITIONS))):
        pass
    for log, oldest, end in list(verify_logs(connection.execute(LOGS))):
        found = connection.execute(f"SELECT count(*), min(offset), max(offset) FROM log_{log}").fetchone()
        if found != ((end - oldest, oldest, end - 1) if end > oldest else (0, None, None)):
            raise Damage(f"log {log} is to hold the records from {oldest} to {end - 1}, and holds others")
    beyond = connection.execute(
        "SELECT p.grp, p.log FROM positions p LEFT JOIN logs l ON l.id = p.log WHERE l.id IS NULL OR p.offset > l.next"
        " OR p.offset < 0"
    ).fetchone()
    if beyond is not None:
        raise Damage(f"the position of group {beyond[0]!r} in log {beyond[1]} is none")


PURPOSE = StateFileSpec(
    name="broker file",
    setting="SAGA_BROKER",
    application=0x53414742,  # SAGB
    format=4,
    tables=TABLES,
    tables_are_all=False,  # each new topic adds tables
    check=check_records,
    errors=OwnerErrors(
        broken=BrokerBroken,
        unavailable=BrokerUnavailable,
        ambiguous=BrokerUnavailable,
        defect=BrokerError,
        too_large=BrokerError,
        unfit=BrokerError,
        foreign=BrokerError,
        closed_to_us=BrokerUnavailable,
    ),
)


# ---------------------------------------------------------------- checksums of rows
#
# SQLite has no checksums. Each column that changes by itself has one, which also covers what identifies the
# row, so that no write needs to know the other columns. The owner of a partition has none: it changes with each
# generation, and every commit is compared with it.


LOGS = "SELECT id, oldest, oldest_sum, next, next_sum FROM logs"
POSITIONS = "SELECT grp, log, offset, sum FROM positions"
ABSENCES = "SELECT grp, away_ms, looked_ms, sum FROM absences"
TOPICS = "SELECT name, first_log, partitions, retention_ms, sum FROM topics"


def row_checksum(*fields: str | int | None) -> int:
    """Return the checksum of these columns of a row.

    >>> row_checksum("orders", 1, 12, None) == row_checksum("orders", 1, 13, None)
    False
    """
    return zlib.crc32(_pack(fields))


def verify_topics(
    rows: Iterable[tuple[str, int, int, int | None, int]],
) -> Iterator[tuple[str, int, int, int | None]]:
    """Yield the rows of the query `TOPICS`, each after comparing it with its checksum. Raises `Damage`."""
    for name, first_log, partitions, retention_ms, sum_ in rows:
        _compare(f"topic {name!r}", sum_, name, first_log, partitions, retention_ms)
        yield name, first_log, partitions, retention_ms


def verify_logs(rows: Iterable[tuple[int, int, int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield the rows of the query `LOGS` as id, oldest offset and end, after comparing them with their checksums.
    Raises `Damage`."""
    for log, oldest, oldest_sum, end, end_sum in rows:
        _compare(f"the beginning of log {log}", oldest_sum, log, oldest)
        check_end(log, end, end_sum)
        yield log, oldest, end


def check_end(log: int, end: int, sum_: int) -> None:
    """Compare the end of a log with its checksum. Raises `Damage`."""
    if row_checksum(log, end) != sum_:  # does the same as `_compare`, without creating a string for each of many logs
        raise Damage(f"the end of log {log} is not what was written")


def check_identity(id_: str, sum_: int) -> None:
    """Compare the log id, which all logs in the file share, with its checksum. Raises `Damage`."""
    _compare("the id of its logs", sum_, "log_identity", id_)


def verify_positions(rows: Iterable[tuple[str, int, int, int]]) -> Iterator[tuple[str, int, int]]:
    """Yield the rows of the query `POSITIONS` as group, log and offset, after comparing them with their checksums.
    Raises `Damage`."""
    for group, log, offset, sum_ in rows:
        _compare(f"the position of group {group!r} in log {log}", sum_, group, log, offset)
        yield group, log, offset


def verify_absences(rows: Iterable[tuple[str, int, int, int]]) -> Iterator[tuple[str, int, int]]:
    """Yield the rows of the query `ABSENCES` as group, duration and time of the last check, after comparing them with
    their checksums. Raises `Damage`."""
    for group, away_ms, looked_ms, sum_ in rows:
        _compare(f"the absence of group {group!r}", sum_, group, away_ms, looked_ms)
        yield group, away_ms, looked_ms


def read_log_bounds(connection: sqlite3.Connection, log: int) -> tuple[int, int]:
    """Return the oldest offset and the end of a log. Raises `Damage`."""
    for _, oldest, end in verify_logs(connection.execute(f"{LOGS} WHERE id = ?", (log,))):
        return oldest, end
    raise Damage(f"log {log} is missing")


def _compare(what: str, sum_: int, *fields: str | int | None) -> None:
    if row_checksum(*fields) != sum_:
        raise Damage(f"{what} is not what was written")
