"""Consumer groups and the assignment of partitions. Each step is one transaction on tables that all members share.

There is no coordinator. Each change of membership begins a new generation, in which every log (the records of one
partition) has a target member. A member releases the logs that now have another target, and takes the logs of which it
is the target. So in the file each log has at most one owner. A commit is accepted only from the owner, and only in the
generation in which it took the log.

File locks and heartbeats show which members are alive: see the end of this module.
"""

import errno
import fcntl
import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from glob import escape
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from saga.broker.embedded.log import (
    ABSENCES,
    POSITIONS,
    TopicExtent,
    read_log_bounds,
    row_checksum,
    verify_absences,
    verify_positions,
)
from saga.broker.port import FROM_THE_OLDEST, MemberIdentity, decode_identity, encode_identity, find_disagreeing
from saga.errors import Fenced
from saga.store.sqlite import state_file
from saga.support.clock import Clock


class AssignedLog(NamedTuple):
    """The assignment of one partition's log within a consumer group.

    `owner`: the member that reads it now. `target`: the member that should read it; `None` if there is none. `granted`:
    the generation in which the owner took it.
    """

    log: int
    owner: int | None
    granted: int | None
    target: int | None


class MemberView(NamedTuple):
    """A group as one of its members sees it."""

    alive: bool
    """True if the member is still in the group."""
    generation: int
    holdings: tuple[AssignedLog, ...]


class MemberRow(NamedTuple):
    """A member of a group."""

    id: int
    seat: str


class Newcomer(NamedTuple):
    """A member that is about to join a group."""

    seat: str
    topics: Sequence[str]
    identity: MemberIdentity | None = None
    starts: Mapping[str, int] = FROM_THE_OLDEST
    """For each topic in which the group has no committed position, the time at which it begins, in milliseconds since
    1970."""


class Grant(NamedTuple):
    """A log that a member has taken: the offset from which it reads, and the generation in which it took the log."""

    log: int
    granted: int
    offset: int
    was_in_progress: bool = False
    """True if the previous owner may have been processing messages of the log when it disappeared."""


_IN_HAND = "CREATE TABLE IF NOT EXISTS in_hand (grp TEXT, log INTEGER, PRIMARY KEY (grp, log)) WITHOUT ROWID"
"""Statement that creates the table of logs whose messages may be in progress. It is executed on first use, because
files of earlier releases lack the table; those releases ignore it."""
_IDENTITIES = "CREATE TABLE IF NOT EXISTS identities (member INTEGER PRIMARY KEY, identity BLOB)"
"""Statement that creates the table of the identities that members report. It is executed on first use, like the one
above."""


def assign_ranges(
    members: Sequence[int], topics: Mapping[int, Collection[str]], extents: Mapping[str, TopicExtent]
) -> dict[int, int]:
    """Return the target member of each log.

    Each member that reads a topic gets a range of its partitions. So in topics with equal partition counts, partitions
    with the same number go to the same member.

    >>> assign_ranges([7, 9], {7: ["a"], 9: ["a"]}, {"a": TopicExtent(1, 3, None)})
    {1: 7, 2: 7, 3: 9}
    """
    targets: dict[int, int] = {}
    for topic in sorted({topic for of_member in topics.values() for topic in of_member} & extents.keys()):
        readers = [member for member in sorted(members) if topic in topics[member]]
        first, partitions, _ = extents[topic]
        each, over = divmod(partitions, len(readers))
        number = 0
        for place, reader in enumerate(readers):
            for _ in range(each + (place < over)):
                targets[first + number] = reader
                number += 1
    return targets


LOOK_MS_MAX = 120_000
"""Longest part of the time between two checks of a group that counts as absence of the group, in milliseconds.

More is not counted, because the clock may have been wrong for a moment, or no process may have run. Neither is a
reason for retention to give up a group.
"""


class Groups:
    """Statements on the tables of groups. Methods that begin with `read` or `list` only read. All others must be called
    inside a transaction."""

    def __init__(self, connection: Callable[[], sqlite3.Connection]) -> None:
        self._connection = connection

    def read_view(self, group: str, member: int) -> MemberView:
        """Return the state of the group as this member needs it."""
        found = self._connection().execute("SELECT generation FROM groups WHERE name = ?", (group,)).fetchone()
        alive = self._connection().execute("SELECT 1 FROM members WHERE id = ?", (member,)).fetchone()
        rows = self._connection().execute(
            "SELECT log, owner, granted, target FROM positions WHERE grp = ? AND (owner = ? OR target = ?)",
            (group, member, member),
        )
        return MemberView(alive is not None, found[0] if found else 0, tuple(AssignedLog(*row) for row in rows))

    def list_members(self, group: str) -> list[MemberRow]:
        """Return all members of the group, including the caller."""
        rows = self._connection().execute("SELECT id, seat FROM members WHERE grp = ? ORDER BY id", (group,))
        return [MemberRow(*row) for row in rows]

    def read_identities(self, group: str) -> dict[int, MemberIdentity | None]:
        """Return the identity that each member reports, by member id."""
        if not self._connection().execute("SELECT 1 FROM sqlite_master WHERE name = 'identities'").fetchone():
            return {}
        rows = self._connection().execute(
            "SELECT id, CAST(identity AS BLOB) FROM identities JOIN members ON id = member WHERE grp = ?", (group,)
        )
        return {member: decode_identity(identity) for member, identity in rows}

    def read_positions(self, group: str) -> dict[int, int]:
        """Return the committed position in each log, by log. Raises `Damage`."""
        rows = self._connection().execute(f"{POSITIONS} WHERE grp = ?", (group,))
        return {log: offset for _, log, offset in verify_positions(rows)}

    def enter(
        self,
        group: str,
        newcomer: Newcomer,
        extents: Mapping[str, TopicExtent],
        *,
        instead_of: Collection[MemberRow] = (),
    ) -> tuple[int, tuple[str, ...]]:
        """Add a member to the group, and begin a new generation. Remove the members `instead_of`, which are dead.
        Return the id of the new member, which is never reused.

        If live members have disagreeing identities, change nothing, and return descriptions of these members.
        """
        connection = self._connection()
        if newcomer.identity is not None:
            dead = {fellow.id for fellow in instead_of}
            living = [identity for member, identity in self.read_identities(group).items() if member not in dead]
            if strangers := find_disagreeing(newcomer.identity, living):
                return 0, strangers
        connection.executemany("DELETE FROM members WHERE id = ?", [(fellow.id,) for fellow in instead_of])
        cursor = connection.execute(
            "INSERT INTO members (grp, seat, topics) VALUES (?, ?, ?)",
            (group, newcomer.seat, json.dumps(newcomer.topics)),
        )
        self._end_absence(group)
        member = cursor.lastrowid
        assert member is not None  # an INSERT of one row returns its id
        if newcomer.identity is not None:
            connection.execute(_IDENTITIES)
            connection.execute("DELETE FROM identities WHERE member NOT IN (SELECT id FROM members)")
            connection.execute("INSERT INTO identities VALUES (?, ?)", (member, encode_identity(newcomer.identity)))
        self._begin_generation(group, extents, newcomer.starts)
        return member, ()

    def evict(self, group: str, fellows: Collection[MemberRow], extents: Mapping[str, TopicExtent]) -> None:
        """Remove these members, which are considered dead, unless they have already left."""
        cursor = self._connection().executemany("DELETE FROM members WHERE id = ?", [(each.id,) for each in fellows])
        if cursor.rowcount > 0:
            self._begin_generation(group, extents)

    def leave(self, group: str, member: int, extents: Mapping[str, TopicExtent]) -> None:
        """Remove a member and begin a new generation."""
        if self._connection().execute("DELETE FROM members WHERE id = ?", (member,)).rowcount:
            self._begin_generation(group, extents)

    def release(self, group: str, member: int, logs: Collection[int]) -> None:
        """Release logs that the member no longer processes, so that their target members can take them."""
        self._connection().executemany(
            "UPDATE positions SET owner = NULL, granted = NULL"
            " WHERE grp = ? AND log = ? AND owner = ? AND target IS NOT owner",
            [(group, log, member) for log in logs],
        )
        self._connection().execute("UPDATE groups SET version = version + 1 WHERE name = ?", (group,))

    def claim(self, group: str, member: int, generation: int, logs: Collection[int]) -> list[Grant]:
        """Take the logs whose target in `generation` is this member, even if they have another owner.

        Nothing is taken if the generation is over. The previous owner notices at once, and its commits are refused.
        """
        execute = self._connection().execute
        (current,) = execute("SELECT generation FROM groups WHERE name = ?", (group,)).fetchone()
        if current != generation:
            return []
        taken: list[Grant] = []
        for log in logs:
            execute(
                "UPDATE positions SET owner = ?, granted = ? WHERE grp = ? AND log = ? AND target = ?",
                (member, generation, group, log, member),
            )
            rows = execute(f"{POSITIONS} WHERE grp = ? AND log = ? AND owner = ?", (group, log, member))
            taken += [Grant(log, generation, offset) for _, _, offset in verify_positions(rows)]
        if taken:
            execute(_IN_HAND)
            rows = execute("SELECT log FROM in_hand WHERE grp = ?", (group,))
            in_hand = {log for (log,) in rows}
            taken = [grant._replace(was_in_progress=grant.log in in_hand) for grant in taken]
        if taken:
            execute("UPDATE groups SET version = version + 1 WHERE name = ?", (group,))
        return taken

    def commit(self, group: str, member: int, offsets: Sequence[tuple[int, int, int]]) -> None:
        """Commit offsets, each with its log and the generation of its grant.

        Raises `Fenced`, and commits nothing, if the member does not own all of these logs.
        """
        rows = self._connection().execute(
            "SELECT log, granted FROM positions WHERE grp = ? AND owner = ?", (group, member)
        )
        ours: dict[int, int] = dict(rows)
        if fenced := [log for log, granted, _ in offsets if ours.get(log) != granted]:
            raise Fenced(
                f"group {group!r}: {len(fenced)} of {len(offsets)} partitions to commit have gone to another member; "
                "nothing was committed: what of them is not committed comes again, there"
            )
        self._connection().executemany(
            "UPDATE positions SET offset = ?, sum = ? WHERE grp = ? AND log = ?",
            [(offset, row_checksum(group, log, offset), group, log) for log, _, offset in offsets],
        )

    def mark_in_progress(self, group: str, member: int, offsets: Sequence[tuple[int, int, int]]) -> None:
        """Commit offsets and mark their logs as in progress. Raises `Fenced`, as `commit` does."""
        self.commit(group, member, offsets)
        self._connection().execute(_IN_HAND)
        self._connection().executemany(
            "INSERT OR IGNORE INTO in_hand (grp, log) VALUES (?, ?)", [(group, log) for log, _, _ in offsets]
        )

    def clear_in_progress(self, group: str, member: int, offsets: Sequence[tuple[int, int, int]]) -> None:
        """Commit offsets and remove the marks of their logs, because none of their messages is in progress. Raises
        `Fenced`, as `commit` does."""
        self.commit(group, member, offsets)
        self._connection().execute(_IN_HAND)
        self._connection().executemany(
            "DELETE FROM in_hand WHERE grp = ? AND log = ?", [(group, log) for log, _, _ in offsets]
        )

    # ---------------------------------------------------------------- absence

    def record_absences(self, now_ms: int, lives: Callable[[str], bool]) -> None:
        """Record for how long groups have been without a live member.

        `lives`: function that returns whether the member with this lock file is alive.
        """
        execute = self._connection().execute
        known = {group: (away_ms, looked_ms) for group, away_ms, looked_ms in self._absences()}
        seats: dict[str, list[str]] = {group: [] for (group,) in execute("SELECT DISTINCT grp FROM positions")}
        for group, seat in execute("SELECT grp, seat FROM members"):
            seats.setdefault(group, []).append(seat)
        for group, of_members in seats.items():
            if any(map(lives, of_members)):
                self._end_absence(group)
                continue
            away_ms, looked_ms = known.get(group, (0, now_ms))
            away_ms += min(max(0, now_ms - looked_ms), LOOK_MS_MAX)
            sum_ = row_checksum(group, away_ms, now_ms)
            execute("INSERT OR REPLACE INTO absences VALUES (?, ?, ?, ?)", (group, away_ms, now_ms, sum_))

    def read_absences(self) -> Mapping[str, int]:
        """Return, for each absent group, for how many milliseconds it was observed without a live member. Raises
        `Damage`."""
        return {group: away_ms for group, away_ms, _ in self._absences()}

    def forget(self, group: str) -> None:
        """Remove a group and its positions."""
        for table, column in (
            ("positions", "grp"),
            ("members", "grp"),
            ("absences", "grp"),
            ("groups", "name"),
        ):
            self._connection().execute(f"DELETE FROM {table} WHERE {column} = ?", (group,))
        self._connection().execute(_IN_HAND)
        self._connection().execute("DELETE FROM in_hand WHERE grp = ?", (group,))

    def _absences(self) -> Iterator[tuple[str, int, int]]:
        return verify_absences(self._connection().execute(ABSENCES).fetchall())

    def _end_absence(self, group: str) -> None:
        self._connection().execute("DELETE FROM absences WHERE grp = ?", (group,))

    def _begin_generation(
        self, group: str, extents: Mapping[str, TopicExtent], starts: Mapping[str, int] = FROM_THE_OLDEST
    ) -> None:
        """Begin a new generation: choose a target member for each log, and release the logs of removed members.

        A log without a position gets one here, at the oldest record or at the group's start time, before a member reads
        it. From then on retention keeps the records that the group has not committed.
        """
        execute, executemany = self._connection().execute, self._connection().executemany
        rows = execute("SELECT id, topics FROM members WHERE grp = ?", (group,))
        topics: dict[int, list[str]] = {member: json.loads(text) for member, text in rows}
        targets = assign_ranges(sorted(topics), topics, extents)
        known = {log for (log,) in execute("SELECT log FROM positions WHERE grp = ?", (group,))}
        times = {
            first + number: starts[topic]
            for topic, (first, partitions, _) in extents.items()
            for number in range(partitions if topic in starts else 0)
        }
        begins = {log: self._find_start(log, times.get(log, 0)) for log in targets.keys() - known}
        executemany(
            "INSERT INTO positions (grp, log, offset, sum) VALUES (?, ?, ?, ?)",
            [(group, log, offset, row_checksum(group, log, offset)) for log, offset in begins.items()],
        )
        execute("UPDATE positions SET target = NULL WHERE grp = ?", (group,))
        execute(
            "UPDATE positions SET owner = NULL, granted = NULL"
            " WHERE grp = ? AND owner IS NOT NULL AND owner NOT IN (SELECT id FROM members WHERE grp = ?)",
            (group, group),
        )
        executemany(
            "UPDATE positions SET target = ? WHERE grp = ? AND log = ?",
            [(member, group, log) for log, member in targets.items()],
        )
        execute(
            "INSERT INTO groups VALUES (?, 1, 1)"
            " ON CONFLICT (name) DO UPDATE SET generation = generation + 1, version = version + 1",
            (group,),
        )

    def _find_start(self, log: int, start_ms: int) -> int:
        """Return the offset of the first record that was appended at this time or later; the oldest offset if the time
        is 0."""
        oldest, end = read_log_bounds(self._connection(), log)
        if not start_ms:
            return oldest
        statement = f"SELECT min(offset) FROM log_{log} WHERE time_ms >= ?"
        (first,) = self._connection().execute(statement, (start_ms,)).fetchone()
        return end if first is None else int(first)


# ---------------------------------------------------------------- which members are alive
#
# Each member holds a file lock that ends with its process, and writes heartbeats in time. A heartbeat is a number in
# the member's own lock file and not a row of the broker's file, because even a small change of the broker's file makes
# all processes read it again.


_BEATS = Struct(">Q")
TRIES_MAX = 100
"""Largest number of attempts to create a lock file, before an error is raised."""


class MemberLock:
    """Lock that a member holds while its process lives: a lock on a file of its own, next to the broker's file.

    The name of the file is never reused. If the name were only the process id, a new process could get the name of a
    dead member. Then the dead member would seem alive, or removing its file would remove the file of the new process.

    A child process made by `fork` without `exec` inherits the lock. In that case only missing heartbeats reveal the
    death.
    """

    def __init__(self, broker: Path) -> None:
        self._broker, self._beats = broker, 0
        self._acquire()

    def send_heartbeat(self) -> None:
        """Write a heartbeat. Raises `OSError`."""
        self._beats += 1
        os.pwrite(self._file, _BEATS.pack(self._beats), 0)

    def _acquire(self) -> None:
        for _ in range(TRIES_MAX):
            path = self._broker.with_name(f"{self._broker.name}.member-{os.getpid()}-{os.urandom(6).hex()}")
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                # Otherwise another process checked or removed the file in between.
                is_ours = state_file.try_lock(file) and _is_same_file(file, path)
            except OSError:
                os.close(file)
                path.unlink(missing_ok=True)
                raise
            if is_ours:
                self._file, self.path = file, path
                return
            os.close(file)
        raise OSError(errno.EAGAIN, f"no seat beside {self._broker} could be kept: does something remove its files?")

    def renew(self) -> None:
        """Create another lock file if the current one was removed, for example by a person. Raises `OSError`, and then
        keeps the current one."""
        if not _is_same_file(self._file, self.path):
            old = self._file
            self._acquire()
            os.close(old)

    def release(self) -> None:
        """Remove the file and release the lock. From now on others consider this member dead."""
        self.path.unlink(missing_ok=True)
        os.close(self._file)


def read_heartbeat(seat: Path) -> int | None:
    """Return the number of heartbeats in a member's lock file; `None` if the member is dead. Raises `OSError`."""
    try:
        file = os.open(seat, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if state_file.try_lock(
            file, fcntl.LOCK_SH
        ):  # shared, so that two processes that check at the same time do not mistake each other for the member
            return None
        content = os.pread(file, _BEATS.size, 0)
        return _BEATS.unpack(content)[0] if len(content) == _BEATS.size else 0
    finally:
        os.close(file)


def is_dead(seat: Path) -> bool:
    """Return whether the member with this lock file is dead."""
    return read_heartbeat(seat) is None


def remove_dead_locks(broker: Path) -> None:
    """Remove the lock files of dead processes. Each file is locked while it is removed, so that no new member can use
    it meanwhile."""
    for seat in broker.parent.glob(f"{escape(broker.name)}.member-*"):
        try:
            file = os.open(seat, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # it is gone, or belongs to another user
            continue
        try:
            if state_file.try_lock(file) and _is_same_file(file, seat):
                seat.unlink(missing_ok=True)
        except OSError:
            continue  # the next clean-up tries again
        finally:
            os.close(file)


def _is_same_file(file: int, path: Path) -> bool:
    """Return whether the path still leads to the open file. Someone may have removed the file after it was opened."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(file)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


class SilentMember(NamedTuple):
    """A member that seems to be dead, with the number of heartbeats that it had sent when this was noticed."""

    member: MemberRow
    beats: int | None


class Liveness:
    """What one member knows about the others. A member without a lock is dead; a member without heartbeats for too long
    is a zombie.

    The time without heartbeats is measured by this process's monotonic clock, and only while this process checks
    regularly. If it was frozen, or waited for a frozen process, it cannot know whether others sent heartbeats
    meanwhile. Then it starts to measure again.
    """

    def __init__(self, folder: Path, clock: Clock, silence_s: float) -> None:
        """Start without observations. `folder`: folder of the broker's file and of the lock files."""
        self._folder, self._clock, self._silence_s = folder, clock, silence_s
        self._looked_s = self._clock.monotonic_s()
        self._seen: dict[int, tuple[int, float]] = {}
        """Number of heartbeats of each member, and the time when this number last changed."""

    def find_silent(self, fellows: Sequence[MemberRow], *, but: int) -> list[SilentMember]:
        """Record the members' heartbeats, and return the members that count as dead. The member `but`, which is the
        caller, is never returned."""
        now_s = self._clock.monotonic_s()
        seen = self._seen if now_s - self._looked_s <= self._silence_s / 2 else {}
        self._looked_s, self._seen = now_s, {}
        gone: list[SilentMember] = []
        for fellow in fellows:
            if fellow.id == but:
                continue
            now = read_heartbeat(self._folder / fellow.seat)
            beats, since_s = seen.get(fellow.id, (-1, now_s))
            if now is not None and beats != now:
                since_s = now_s
            self._seen[fellow.id] = now or 0, since_s
            if now is None or now_s - since_s >= self._silence_s:
                gone.append(SilentMember(fellow, now))
        return gone

    def filter_silent(self, gone: Sequence[SilentMember]) -> list[MemberRow]:
        """Return the members in `gone` that have sent no heartbeat since they were noticed."""
        return [each.member for each in gone if read_heartbeat(self._folder / each.member.seat) in (None, each.beats)]
