"""Embedded broker for tools: queries on its tables, and the changes that operators make, each in one transaction."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from saga.broker.administration import (
    NO_IDS,
    GroupDescription,
    InactiveGroup,
    OffsetBounds,
    PartitionReader,
    TopicDescription,
    UnreadableRange,
)
from saga.broker.embedded import tables
from saga.broker.embedded.broker import EmbeddedBroker
from saga.broker.embedded.groups import GroupMember
from saga.broker.embedded.liveness import is_dead
from saga.broker.embedded.log import TopicExtent, Undecodable, load_topics
from saga.broker.embedded.reader import EmbeddedReader
from saga.broker.identity import MemberIdentity
from saga.errors import BrokerError
from saga.messages import Partition


class EmbeddedAdministration(EmbeddedBroker):
    """The embedded broker with the port for tools. See `saga.broker.administration.Administration` for the promises."""

    can_grow = False
    """False: a topic's partitions are neighbours in the file."""

    async def topics(self) -> Collection[str]:
        return list(self._kept())

    async def found(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        kept = self._kept()
        return {
            name: TopicDescription(kept[name].partitions, kept[name].retention_ms) for name in topics if name in kept
        }

    async def server_settings(self) -> Mapping[str, Mapping[str, str]]:
        return {}

    async def retain(self, topic: str, retention_ms: int | None) -> None:
        kept, log = self._one(topic), self._open.log
        await self._open.writer.do(lambda: log.retain(topic, kept, retention_ms))

    async def date_by_log(self, topic: str) -> None:
        """Do nothing: this log dates all records, as does every process that writes it, by the machine's clock."""
        self._one(topic)

    async def grow(self, topic: str, partitions: int) -> None:
        """Refuse: keys would change their partition, and there is no room beside those that are there."""
        raise BrokerError(
            f"topic {topic!r} of the embedded broker keeps its {self._one(topic).partitions} partitions: to have "
            f"{partitions}, let the services handle what is there, then begin with another file"
        )

    async def group(self, name: str) -> GroupDescription:
        members, positions = self._members_of(name), self._positions_of(name)
        # Who joins begins at a position, so each topic that is read has one.
        reads = frozenset({p.topic for p in positions} if members else ())
        return GroupDescription(members, positions, reads, self._identities_of(name))

    async def readers(self, topic: str) -> Mapping[str, GroupDescription]:
        self._one(topic)
        names = [name for (name,) in self._rows("SELECT name FROM groups ORDER BY name")]
        groups = {name: await self.group(name) for name in names}
        return {name: group for name, group in groups.items() if any(p.topic == topic for p in group.positions)}

    async def bounds(self, topics: Collection[str]) -> Mapping[Partition, OffsetBounds]:
        with self._open.file.telling():
            logs = {
                log: OffsetBounds(oldest, end)
                for log, oldest, end in tables.verified_logs(self.connection.execute(tables.LOGS))
            }
        return {
            Partition(topic, number): logs[kept.first_log + number]
            for topic, kept in self._kept().items()
            for number in range(kept.partitions if topic in topics else 0)
        }

    async def since(self, topic: str, time_ms: int) -> Mapping[Partition, int]:
        kept, found = self._one(topic), dict[Partition, int]()
        for partition, bounds in (await self.bounds([topic])).items():
            statement = f"SELECT min(offset) FROM log_{kept.first_log + partition.number} WHERE time_ms >= ?"
            [(first,)] = self._rows(statement, (time_ms,))
            found[partition] = bounds.end if first is None else first
        return found

    @asynccontextmanager
    async def read(
        self, positions: Mapping[Partition, int], log_ids: Mapping[str, str] = NO_IDS
    ) -> AsyncIterator[PartitionReader]:
        shared = self._open
        with shared.file.telling():
            shared.log.reload()
        here = shared.log.id  # a position of another file counts for nothing
        reader = EmbeddedReader(
            {p: at if log_ids.get(p.topic, here) == here else 0 for p, at in positions.items()}, shared
        )
        self._readers.append(reader)
        try:
            yield reader
        finally:
            self._readers.remove(reader)

    async def unreadable(self, partition: Partition, offset: int) -> UnreadableRange | None:
        kept = self._one(partition.topic)
        try:
            with self._open.file.telling():
                self._open.log.read(kept.first_log + partition.number, partition, offset, 1)
        except Undecodable as why:
            return UnreadableRange(why.offset, why.offset + 1, None, str(why))
        return None

    async def move(self, group: str, positions: Mapping[Partition, int]) -> None:
        places = [(self._one(topic).first_log + number, at) for (topic, number), at in positions.items()]
        rows = [(group, log, at, tables.row_checksum(group, log, at)) for log, at in places]
        await self._open.writer.do(lambda: self._move(group, rows))

    def _move(self, group: str, rows: list[tuple[str, int, int, int]]) -> None:
        """Move positions inside a transaction: nobody joins meanwhile."""
        if members := self._members_of(group):
            raise BrokerError(f"group {group!r} has members ({', '.join(members)}): stop the service first")
        self.connection.executemany(
            "INSERT INTO positions (grp, log, offset, sum) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (grp, log) DO UPDATE SET offset = excluded.offset, sum = excluded.sum",
            rows,
        )
        self.connection.execute("UPDATE groups SET version = version + 1 WHERE name = ?", (group,))

    async def away(self) -> Sequence[InactiveGroup]:
        with self._open.file.telling():
            away_ms, lost = self._open.groups.away_ms(), self._lost()
            ends = {log: end for log, _, end in tables.verified_logs(self.connection.execute(tables.LOGS))}
            behind = dict.fromkeys(away_ms, 0)
            for group, log, offset in tables.verified_positions(self.connection.execute(tables.POSITIONS)):
                if group in behind:
                    behind[group] += ends[log] - offset
        return [InactiveGroup(group, ms, behind[group], group in lost) for group, ms in sorted(away_ms.items())]

    async def forget(self, group: str) -> None:
        await self._open.writer.do(lambda: self._forget(group))

    def _forget(self, group: str) -> None:
        """Forget a group inside a transaction: nobody joins meanwhile."""
        if members := self._members_of(group):
            raise BrokerError(f"group {group!r} has members ({', '.join(members)}): stop the service first")
        self._open.groups.forget(group)

    async def stamp(self) -> int | None:
        await self._open.writer.do(lambda: None)  # a transaction: the file can be written
        return None

    # ---------------------------------------------------------------- what the tables say

    def _kept(self) -> Mapping[str, TopicExtent]:
        """Topics as the file has them, not as the log remembers them: another process may have changed a topic's
        retention."""
        with self._open.file.telling():
            return dict(sorted(load_topics(self.connection).items()))

    def _one(self, topic: str) -> TopicExtent:
        kept = self._kept()
        if topic not in kept:
            raise BrokerError(f"there is no topic {topic!r} in {self.path}: is its name right?")
        return kept[topic]

    def _members_of(self, group: str) -> tuple[str, ...]:
        """Members that may be alive: a frozen one holds its seat, a dead one does not, and is in nobody's way."""
        return tuple(fellow.seat for fellow in self._living(group))

    def _identities_of(self, group: str) -> frozenset[MemberIdentity]:
        with self._open.file.telling():
            stated = self._open.groups.identities(group)
        living = [stated.get(fellow.id) for fellow in self._living(group)]
        return frozenset(identity for identity in living if identity is not None)

    def _living(self, group: str) -> list[GroupMember]:
        fellows = self._open.groups.fellows(group)
        return [fellow for fellow in fellows if not is_dead(self.path.parent / fellow.seat)]

    def _positions_of(self, group: str) -> Mapping[Partition, int]:
        with self._open.file.telling():
            rows = self.connection.execute(f"{tables.POSITIONS} WHERE grp = ?", (group,))
            places = {log: at for _, log, at in tables.verified_positions(rows)}
        return {
            Partition(topic, number): places[kept.first_log + number]
            for topic, kept in self._kept().items()
            for number in range(kept.partitions)
            if kept.first_log + number in places
        }

    def _rows(self, statement: str, given: tuple[object, ...] = ()) -> list[Any]:
        """Rows that SQLite finds."""
        with self._open.file.telling():
            return self.connection.execute(statement, given).fetchall()
