"""Consumer groups and their partition assignment: each step is one transaction on tables that all members share.

There is no coordinator. A change of membership begins a new generation, which gives every log a target member. A member
releases the logs that are no longer its targets and takes those that are. So each log has at most one owner in the
file, and a commit is refused unless it comes from that owner in the generation in which it took the log.
"""

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from saga.broker.embedded import tables
from saga.broker.embedded.log import TopicExtent
from saga.broker.identity import MemberIdentity, decode_identity, encode_identity, find_disagreeing
from saga.broker.port import FROM_THE_OLDEST
from saga.errors import Fenced


class AssignedLog(NamedTuple):
    """A log that a member owns, or is to own."""

    log: int
    owner: int | None
    granted: int | None
    target: int | None


class MemberView(NamedTuple):
    """A group as one of its members sees it."""

    alive: bool
    """True if the member is still in."""
    generation: int
    holdings: tuple[AssignedLog, ...]


class GroupMember(NamedTuple):
    """A member of a group."""

    id: int
    seat: str


class Newcomer(NamedTuple):
    """A member that is about to enter a group."""

    seat: str
    topics: Sequence[str]
    identity: MemberIdentity | None = None
    starts: Mapping[str, int] = FROM_THE_OLDEST
    """Time, in milliseconds since 1970, at which the group begins in a topic in which it has no position."""


class Grant(NamedTuple):
    """A log that a member has taken: from which offset, and in which generation."""

    log: int
    granted: int
    offset: int
    left: bool = False
    """True if whoever had it may have had messages of it in hand when it went."""


_IN_HAND = "CREATE TABLE IF NOT EXISTS in_hand (grp TEXT, log INTEGER, PRIMARY KEY (grp, log)) WITHOUT ROWID"
"""Logs of which messages may be in hand. It is made when it is needed: files of before have none, and nobody who does
not know it is in its way."""
_IDENTITIES = "CREATE TABLE IF NOT EXISTS identities (member INTEGER PRIMARY KEY, identity BLOB)"
"""Identities that members state, made when it is needed, as the table above."""


def assign_ranges(
    members: Sequence[int], topics: Mapping[int, Collection[str]], kept: Mapping[str, TopicExtent]
) -> dict[int, int]:
    """Choose the member that shall have each log: of each topic a range of its partitions to each member that reads it,
    so that partitions of equal number of equally divided topics go to the same member.

    >>> assign_ranges([7, 9], {7: ["a"], 9: ["a"]}, {"a": TopicExtent(1, 3, None)})
    {1: 7, 2: 7, 3: 9}
    """
    targets: dict[int, int] = {}
    for topic in sorted({topic for of_member in topics.values() for topic in of_member} & kept.keys()):
        readers = [member for member in sorted(members) if topic in topics[member]]
        first, partitions, _ = kept[topic]
        each, over = divmod(partitions, len(readers))
        number = 0
        for place, reader in enumerate(readers):
            for _ in range(each + (place < over)):
                targets[first + number] = reader
                number += 1
    return targets


LOOK_MS_MAX = 120_000
"""Longest time between two looks that counts as absence: neither a clock that was ahead for a moment, nor time in which
no process ran at all, makes a group a lost one."""


class Groups:
    """Statements on groups. `view`, `fellows` and `positions` only read; all others are called inside a transaction."""

    def __init__(self, connection: Callable[[], sqlite3.Connection]) -> None:
        self._connection = connection

    def view(self, group: str, member: int) -> MemberView:
        """Read what concerns `member`."""
        found = self._connection().execute("SELECT generation FROM groups WHERE name = ?", (group,)).fetchone()
        alive = self._connection().execute("SELECT 1 FROM members WHERE id = ?", (member,)).fetchone()
        rows = self._connection().execute(
            "SELECT log, owner, granted, target FROM positions WHERE grp = ? AND (owner = ? OR target = ?)",
            (group, member, member),
        )
        return MemberView(alive is not None, found[0] if found else 0, tuple(AssignedLog(*row) for row in rows))

    def fellows(self, group: str) -> list[GroupMember]:
        """Read all members, oneself among them."""
        rows = self._connection().execute("SELECT id, seat FROM members WHERE grp = ? ORDER BY id", (group,))
        return [GroupMember(*row) for row in rows]

    def identities(self, group: str) -> dict[int, MemberIdentity | None]:
        """Read what each member states of itself, by its id."""
        if not self._connection().execute("SELECT 1 FROM sqlite_master WHERE name = 'identities'").fetchone():
            return {}
        rows = self._connection().execute(
            "SELECT id, CAST(identity AS BLOB) FROM identities JOIN members ON id = member WHERE grp = ?", (group,)
        )
        return {member: decode_identity(identity) for member, identity in rows}

    def positions(self, group: str) -> dict[int, int]:
        """Read the committed position in each log. Raises `Damage`."""
        rows = self._connection().execute(f"{tables.POSITIONS} WHERE grp = ?", (group,))
        return {log: offset for _, log, offset in tables.verified_positions(rows)}

    def enter(
        self,
        group: str,
        newcomer: Newcomer,
        kept: Mapping[str, TopicExtent],
        *,
        instead_of: Collection[GroupMember] = (),
    ) -> tuple[int, tuple[str, ...]]:
        """Take in a new member, and put those dead ones out, in a new generation; its id, which never comes back. If
        members that live disagree with its identity nothing is changed, and these are given instead."""
        connection = self._connection()
        if newcomer.identity is not None:
            dead = {fellow.id for fellow in instead_of}
            living = [identity for member, identity in self.identities(group).items() if member not in dead]
            if strangers := find_disagreeing(newcomer.identity, living):
                return 0, strangers
        connection.executemany("DELETE FROM members WHERE id = ?", [(fellow.id,) for fellow in instead_of])
        cursor = connection.execute(
            "INSERT INTO members (grp, seat, topics) VALUES (?, ?, ?)",
            (group, newcomer.seat, json.dumps(newcomer.topics)),
        )
        self._is_back(group)
        member = cursor.lastrowid
        assert member is not None  # an INSERT of one row has one
        if newcomer.identity is not None:
            connection.execute(_IDENTITIES)
            connection.execute("DELETE FROM identities WHERE member NOT IN (SELECT id FROM members)")
            connection.execute("INSERT INTO identities VALUES (?, ?)", (member, encode_identity(newcomer.identity)))
        self._regroup(group, kept, newcomer.starts)
        return member, ()

    def evict(self, group: str, fellows: Collection[GroupMember], kept: Mapping[str, TopicExtent]) -> None:
        """Put these members out as dead, unless they are gone."""
        cursor = self._connection().executemany("DELETE FROM members WHERE id = ?", [(each.id,) for each in fellows])
        if cursor.rowcount > 0:
            self._regroup(group, kept)

    def leave(self, group: str, member: int, kept: Mapping[str, TopicExtent]) -> None:
        """Give up everything, in a new generation."""
        if self._connection().execute("DELETE FROM members WHERE id = ?", (member,)).rowcount:
            self._regroup(group, kept)

    def release(self, group: str, member: int, logs: Collection[int]) -> None:
        """Release logs that are brought to an end here: they are free for their targets."""
        self._connection().executemany(
            "UPDATE positions SET owner = NULL, granted = NULL"
            " WHERE grp = ? AND log = ? AND owner = ? AND target IS NOT owner",
            [(group, log, member) for log in logs],
        )
        self._connection().execute("UPDATE groups SET version = version + 1 WHERE name = ?", (group,))

    def take(self, group: str, member: int, generation: int, logs: Collection[int]) -> list[Grant]:
        """Take those of `logs` that are the member's target in `generation`, whoever had them: all, or none if it is
        over. Whoever had them sees it at once, and has its commits refused."""
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
            rows = execute(f"{tables.POSITIONS} WHERE grp = ? AND log = ? AND owner = ?", (group, log, member))
            taken += [Grant(log, generation, offset) for _, _, offset in tables.verified_positions(rows)]
        if taken:
            execute(_IN_HAND)
            rows = execute("SELECT log FROM in_hand WHERE grp = ?", (group,))
            in_hand = {log for (log,) in rows}
            taken = [grant._replace(left=grant.log in in_hand) for grant in taken]
        if taken:
            execute("UPDATE groups SET version = version + 1 WHERE name = ?", (group,))
        return taken

    def commit(self, group: str, member: int, offsets: Sequence[tuple[int, int, int]]) -> None:
        """Commit offsets, each with its log and the generation of its grant. Raises `Fenced`, with nothing moved, if
        any is not the member's."""
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
            [(offset, tables.row_checksum(group, log, offset), group, log) for log, _, offset in offsets],
        )

    def begin(self, group: str, member: int, offsets: Sequence[tuple[int, int, int]]) -> None:
        """Note that messages of these logs may be in hand. Raises `Fenced` as `commit`."""
        self.commit(group, member, offsets)
        self._connection().execute(_IN_HAND)
        self._connection().executemany(
            "INSERT OR IGNORE INTO in_hand (grp, log) VALUES (?, ?)", [(group, log) for log, _, _ in offsets]
        )

    def end(self, group: str, member: int, offsets: Sequence[tuple[int, int, int]]) -> None:
        """Commit, and note that nothing of these logs is in hand. Raises `Fenced` as `commit`."""
        self.commit(group, member, offsets)
        self._connection().execute(_IN_HAND)
        self._connection().executemany(
            "DELETE FROM in_hand WHERE grp = ? AND log = ?", [(group, log) for log, _, _ in offsets]
        )

    # ---------------------------------------------------------------- absence

    def note_absences(self, now_ms: int, lives: Callable[[str], bool]) -> None:
        """Note for how long the groups without a living member have been away. `lives`: whether somebody sits on a
        seat."""
        execute = self._connection().execute
        known = {group: (away_ms, looked_ms) for group, away_ms, looked_ms in self._absences()}
        seats: dict[str, list[str]] = {group: [] for (group,) in execute("SELECT DISTINCT grp FROM positions")}
        for group, seat in execute("SELECT grp, seat FROM members"):
            seats.setdefault(group, []).append(seat)
        for group, of_members in seats.items():
            if any(map(lives, of_members)):
                self._is_back(group)
                continue
            away_ms, looked_ms = known.get(group, (0, now_ms))
            away_ms += min(max(0, now_ms - looked_ms), LOOK_MS_MAX)
            sum_ = tables.row_checksum(group, away_ms, now_ms)
            execute("INSERT OR REPLACE INTO absences VALUES (?, ?, ?, ?)", (group, away_ms, now_ms, sum_))

    def away_ms(self) -> Mapping[str, int]:
        """Milliseconds for which each group that is away has been away, as far as anybody looked. Raises `Damage`."""
        return {group: away_ms for group, away_ms, _ in self._absences()}

    def forget(self, group: str) -> None:
        """Forget a group, and how far it came."""
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
        return tables.verified_absences(self._connection().execute(tables.ABSENCES).fetchall())

    def _is_back(self, group: str) -> None:
        self._connection().execute("DELETE FROM absences WHERE grp = ?", (group,))

    def _regroup(
        self, group: str, kept: Mapping[str, TopicExtent], starts: Mapping[str, int] = FROM_THE_OLDEST
    ) -> None:
        """Begin a new generation: targets for all logs, and those of members that are gone are free.

        A log gets its position here, at the oldest record or where the group starts, before anybody reads it: from now
        on retention spares what the group has not committed.
        """
        execute, executemany = self._connection().execute, self._connection().executemany
        rows = execute("SELECT id, topics FROM members WHERE grp = ?", (group,))
        topics: dict[int, list[str]] = {member: json.loads(text) for member, text in rows}
        targets = assign_ranges(sorted(topics), topics, kept)
        known = {log for (log,) in execute("SELECT log FROM positions WHERE grp = ?", (group,))}
        times = {
            first + number: starts[topic]
            for topic, (first, partitions, _) in kept.items()
            for number in range(partitions if topic in starts else 0)
        }
        begins = {log: self._begin_of(log, times.get(log, 0)) for log in targets.keys() - known}
        executemany(
            "INSERT INTO positions (grp, log, offset, sum) VALUES (?, ?, ?, ?)",
            [(group, log, offset, tables.row_checksum(group, log, offset)) for log, offset in begins.items()],
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

    def _begin_of(self, log: int, start_ms: int) -> int:
        """Offset of the first record of a log that was appended at that time or later; 0: of the oldest one."""
        oldest, end = tables.read_log_bounds(self._connection(), log)
        if not start_ms:
            return oldest
        statement = f"SELECT min(offset) FROM log_{log} WHERE time_ms >= ?"
        (first,) = self._connection().execute(statement, (start_ms,)).fetchone()
        return end if first is None else int(first)
