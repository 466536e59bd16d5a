"""The embedded broker: publish, join groups, and notice what other processes write. `EmbeddedAdministration` is the
same broker for tools."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from saga.broker.administration import (
    NO_IDS,
    GroupDescription,
    InactiveGroup,
    OffsetBounds,
    PartitionReader,
    TopicDescription,
    UnreadableRange,
)
from saga.broker.embedded.groups import Groups, MemberLock, MemberRow, is_dead, remove_dead_locks
from saga.broker.embedded.log import (
    LOGS,
    POSITIONS,
    PURPOSE,
    RecordLog,
    TopicExtent,
    Transaction,
    Undecodable,
    Watched,
    find_missing_write,
    load_topics,
    row_checksum,
    verify_logs,
    verify_positions,
)
from saga.broker.embedded.membership import BrokerFile, EmbeddedMember, Timing
from saga.broker.port import RECORD_BYTES_MAX, Listener, MemberIdentity, Membership, Subscription
from saga.errors import Broken, BrokerError, BrokerUnavailable
from saga.messages import Outgoing, Partition, Record, StalledPartition, Topic
from saga.store.sqlite.connection import shrink
from saga.store.sqlite.errors import FileOperation
from saga.store.sqlite.state_file import StateFile
from saga.store.sqlite.steady_time import SteadyTime
from saga.store.sqlite.writer import GroupCommitter
from saga.support.clock import Clock

RECORDS_MAX = 2000
"""Largest number of records in one transaction."""
LOOK_S_FIRST, LOOK_S_MAX = 0.002, 0.02
"""Shortest and longest pause between checks for writes of other processes, in seconds. The first check, and the first
one after such a write, comes after the shortest pause. While nothing is written, the pause grows."""
LOOK_GROWTH = 1.1
NAMES_EVERY_S = 0.25
"""Pause between checks that the path still leads to the open file, in seconds."""
TRIM_EVERY_S = 60.0
PAGE = 500
"""Number of records that `scan` reads at a time."""


class EmbeddedBroker:
    """Broker on one SQLite file, on a local disk of Linux or macOS. See `saga.broker.port.Broker` for the promises.

    One instance serves all services of a process, and any number of processes use one file. What `publish` acknowledged
    survives a power failure, if the disk really stores what it has synced.
    """

    creates_topics = True

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        timing: Timing | None = None,
        lock_s: float = 10,
        bytes_max: int | None = None,
        record_bytes_max: int = RECORD_BYTES_MAX,
    ) -> None:
        """Store the parameters; nothing is opened yet.

        `path`: the file, which is created with its folder if it is missing. `lock_s`: longest wait for the write lock
        of another process, after which `BrokerUnavailable` is raised. `bytes_max`: maximum size of the file; reaching
        it has the effect of a full disk.
        """
        self.path = path.absolute()
        self._clock, self._lock_s, self._bytes_max = clock, lock_s, bytes_max
        self.record_bytes_max = record_bytes_max
        self._timing = timing or Timing()
        self._members: list[EmbeddedMember] = []
        self._readers: list[EmbeddedReader] = []
        """Readers outside of groups."""
        self._versions: dict[str, int] = {}
        self._closing = AsyncExitStack()
        self._shared: BrokerFile | None = None
        self._time = SteadyTime(clock)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opened:
            clock, time = self._clock, SteadyTime(self._clock)
            file = StateFile(self.path, PURPOSE, clock=clock, lock_s=self._lock_s, bytes_max=self._bytes_max)
            log = RecordLog(file.connection, self.record_bytes_max, self._list_watched)
            await file.open(find_missing_write)
            opened.callback(file.close)
            remove_dead_locks(self.path)
            with file.translate_errors():
                log.catch_up()
            transaction = Transaction(log, time, caught_up=self._announce_others, appended=self._announce_heads)
            writer = GroupCommitter(file, transaction, room=RECORDS_MAX, broken=self._fail_members)
            opened.push_async_callback(writer.close)
            self._shared = BrokerFile(
                file, writer, transaction, log, Groups(file.connection), clock, self._timing, self._notify_group
            )
            new_id = "".join(f"{int(clock.chance() * 2**48):012x}" for _ in range(2))
            await writer.do(lambda: log.identify(new_id))
            time.resume(await writer.do(log.read_time_note))
            self._time = time
            await opened.enter_async_context(_run_in_background(self._watch_file(), self._trim_regularly()))
            self._closing = opened.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the file. Raises `BrokerBroken` if the file was removed or replaced, unless a caller has received that
        error already."""
        try:
            await self._closing.aclose()
        finally:
            self._shared = None

    @property
    def _open(self) -> BrokerFile:
        if self._shared is None:
            raise BrokerError(f"broker file {self.path} is not open here: use it inside its `async with`")
        return self._shared

    # ---------------------------------------------------------------- the port

    async def ensure_topics(self, topics: Sequence[Topic]) -> None:
        """Create missing topics as the port promises.

        The retention of an existing topic is extended if a longer one is requested, and never shortened.
        """
        log = self._open.log
        await self._open.writer.do(lambda: log.ensure_topics(topics))

    async def count_partitions(self, topics: Collection[str]) -> Mapping[str, int]:
        log = self._open.log
        with self._open.file.translate_errors():
            log.reload()
        return {name: log.topics[name].partitions for name in topics if name in log.topics}

    async def fetch_log_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        return dict.fromkeys(await self.count_partitions(topics), self._open.log.id)

    async def find_missing_rights(
        self, reads: Collection[str], writes: Collection[str], groups: Collection[str] = ()
    ) -> Sequence[str]:
        return ()

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        """Publish as the port promises.

        Once a batch of up to 2,000 records is queued, it is appended even if the caller is cancelled.
        """
        shared = self._open
        try:
            entries = shared.log.make_entries(messages)
        except sqlite3.Error as why:
            raise shared.file.make_error(why, FileOperation.READ) from why
        while (
            len(entries) > RECORDS_MAX
        ):  # one after another: later records must not be appended if earlier ones failed
            some, entries = entries[:RECORDS_MAX], entries[RECORDS_MAX:]
            await shared.writer.do(partial(shared.transaction.append, some), len(some))
        if entries:
            await shared.writer.do(partial(shared.transaction.append, entries), len(entries))

    @asynccontextmanager
    async def join(self, subscription: Subscription, listener: Listener) -> AsyncIterator[Membership]:
        """Join a group as the port promises. An error raised by the listener is raised again by the next `poll` or
        `commit`."""
        shared = self._open
        try:
            seat = MemberLock(self.path)
        except OSError as why:
            raise BrokerUnavailable(f"broker file {self.path}: no lock for a member: {why.strerror}") from why
        member = EmbeddedMember(subscription, listener, seat, shared)
        try:
            await member.join()
        except BaseException:  # a member that is cancelled while it joins must release its lock, too
            seat.release()
            raise
        self._members.append(member)
        try:
            async with _run_in_background(
                member.send_heartbeats(), member.watch_members()
            ):  # heartbeats continue while the member drains
                try:
                    async with _run_in_background(member.follow_group()):
                        yield member
                finally:
                    await member.drain()
        finally:
            self._members.remove(member)
            await member.leave()

    async def scan(self, topic: str) -> AsyncIterator[Record]:
        log = self._open.log
        with self._open.file.translate_errors():
            log.reload()
            extent = log.find_topic(topic)
            ends = log.read_ends(range(extent.first_log, extent.first_log + extent.partitions))
        for number in range(extent.partitions):
            at, end = 0, ends[extent.first_log + number]
            while at < end:
                try:
                    with self._open.file.translate_errors():
                        records = log.read(extent.first_log + number, Partition(topic, number), at, PAGE)
                except Undecodable as why:
                    raise BrokerError(why.describe(Partition(topic, number), self.path)) from why
                for record in records:
                    if record.offset < end:
                        yield record
                at = records[-1].offset + 1 if records else end
                await self._clock.sleep(0)

    # ---------------------------------------------------------------- beyond the port

    @property
    def connection(self) -> sqlite3.Connection:
        """Return the SQLite connection on which this broker runs all its statements. It is public for tests and
        inspection, and must not be used inside a transaction."""
        return self._open.file.connection()

    async def trim(self) -> None:
        """Remove records that are older than the retention of their topic, and shrink the file. Raises
        `BrokerUnavailable`.

        The broker also does this by itself every minute.
        """
        log, groups, clock, writer, time = self._open.log, self._open.groups, self._clock, self._open.writer, self._time
        await writer.do(lambda: groups.record_absences(clock.now_ms(), self._is_alive))
        while await writer.do(lambda: log.trim(time.look().earliest_ms, self._find_lost_groups())):
            continue
        while await writer.do(lambda: shrink(self.connection)):
            continue

    def _find_lost_groups(self) -> Collection[str]:
        """Return the groups that have been without members for so long that retention no longer keeps records for
        them."""
        away_ms = self._open.groups.read_absences()
        return {group for group, ms in away_ms.items() if ms > self._timing.away_s_max * 1000}

    def _is_alive(self, seat: str) -> bool:
        return not is_dead(self.path.parent / seat)

    # ---------------------------------------------------------------- notifications

    def _list_watched(self) -> Watched:
        logs = {log for member in self._members for log in member.logs}
        return logs.union(*(reader.logs for reader in self._readers)), {member.group for member in self._members}

    def _announce_heads(self, heads: Mapping[int, int]) -> None:
        for member in self._members:
            member.update_heads(heads)
        for reader in self._readers:
            reader.update_heads(heads)

    def _announce_others(self) -> None:
        """Notify members and readers of changes that other processes have written. `log` must have been reloaded
        before."""
        if self._shared is None:  # still opening: there are no members yet, and the log is read again
            return
        log = self._shared.log
        self._announce_heads(log.heads)
        for member in self._members:
            if log.versions.get(member.group) != self._versions.get(member.group):
                member.changed.set()
        self._versions = dict(log.versions)

    def _fail_members(self, why: Broken) -> None:
        """Make all polls raise this error, because the file is broken."""
        for member in self._members:
            member.fail(why)
        for reader in self._readers:
            reader.fail(why)

    def _notify_group(self, group: str) -> None:
        for member in self._members:
            if member.group == group:
                member.changed.set()

    async def _watch_file(self) -> None:
        """Detect writes of other processes. Writes of this process notify members directly."""
        pause_s, names_at_s = LOOK_S_FIRST, 0.0
        while True:
            await self._clock.sleep(pause_s)
            if not self._members and not self._readers:
                pause_s = LOOK_S_MAX
                continue
            if (now_s := self._clock.monotonic_s()) >= names_at_s:
                names_at_s = now_s + NAMES_EVERY_S
                self._check_names()
            try:
                others = self._open.log.catch_up()
            except (sqlite3.Error, Broken):  # reported by `poll` and `publish`; retried here
                others = False
            if others:
                self._announce_others()
            pause_s = LOOK_S_FIRST if others else min(pause_s * LOOK_GROWTH, LOOK_S_MAX)

    def _check_names(self) -> None:
        """Check that the path still leads to the open file, because the file may be removed while nothing is written,
        and so nothing else would notice."""
        try:
            self._open.file.check_names()
        except Broken as why:
            self._fail_members(why)
        except BrokerUnavailable:  # reported by the next write
            return

    async def _trim_regularly(self) -> None:
        while True:
            await self._clock.sleep(TRIM_EVERY_S)
            with suppress(BrokerUnavailable, Broken):  # reported by `poll` and `publish`
                await self.trim()


@asynccontextmanager
async def _run_in_background(*work: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """Run coroutines in the background while the block runs. All have ended when the block ends.

    This is not a TaskGroup, because a TaskGroup would wrap the block's own exceptions, and would cancel the task that
    entered the block. Another task may leave the block, for example in a test fixture.
    """
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and (why := task.exception()) is not None:
                raise why


# ---------------------------------------------------------------- the port for tools
#
# Queries on the tables, and the changes that operators make, each in one transaction.


class EmbeddedAdministration(EmbeddedBroker):
    """The embedded broker with the interface for tools. See `saga.broker.administration.Administration` for the
    promises."""

    can_add_partitions = False
    """False, because the logs of a topic's partitions have consecutive numbers in the file."""

    async def list_topics(self) -> Collection[str]:
        return list(self._read_topics())

    async def describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        extents = self._read_topics()
        return {
            name: TopicDescription(extents[name].partitions, extents[name].retention_ms)
            for name in topics
            if name in extents
        }

    async def fetch_server_settings(self) -> Mapping[str, Mapping[str, str]]:
        return {}

    async def set_retention(self, topic: str, retention_ms: int | None) -> None:
        extent, log = self._find_topic(topic), self._open.log
        await self._open.writer.do(lambda: log.set_retention(topic, extent, retention_ms))

    async def use_log_append_time(self, topic: str) -> None:
        """Do nothing, because this log always assigns all timestamps itself, by the machine's clock."""
        self._find_topic(topic)

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise `BrokerError`, because a topic of the embedded broker cannot get more partitions.

        Keys would move to other partitions, and the numbers after those of the existing logs belong to other topics.
        """
        raise BrokerError(
            f"topic {topic!r} of the embedded broker keeps its {self._find_topic(topic).partitions} partitions: to "
            f"have {partitions}, let the services handle what is there, then begin with another file"
        )

    async def describe_group(self, name: str) -> GroupDescription:
        members, positions = self._list_live_members(name), self._read_positions(name)
        # A member gets a position in each topic when it joins, so each topic that is read has one.
        reads = frozenset({p.topic for p in positions} if members else ())
        return GroupDescription(members, positions, reads, self._read_identities(name))

    async def describe_groups(self, names: Collection[str]) -> Mapping[str, GroupDescription]:
        return {name: await self.describe_group(name) for name in names}

    async def find_readers(self, topic: str) -> Mapping[str, GroupDescription]:
        self._find_topic(topic)
        groups = await self.describe_groups([name for (name,) in self._query("SELECT name FROM groups ORDER BY name")])
        return {name: group for name, group in groups.items() if any(p.topic == topic for p in group.positions)}

    async def fetch_bounds(self, topics: Collection[str]) -> Mapping[Partition, OffsetBounds]:
        with self._open.file.translate_errors():
            logs = {log: OffsetBounds(oldest, end) for log, oldest, end in verify_logs(self.connection.execute(LOGS))}
        return {
            Partition(topic, number): logs[extent.first_log + number]
            for topic, extent in self._read_topics().items()
            for number in range(extent.partitions if topic in topics else 0)
        }

    async def find_offsets(self, topic: str, time_ms: int) -> Mapping[Partition, int]:
        extent, found = self._find_topic(topic), dict[Partition, int]()
        for partition, bounds in (await self.fetch_bounds([topic])).items():
            statement = f"SELECT min(offset) FROM log_{extent.first_log + partition.number} WHERE time_ms >= ?"
            [(first,)] = self._query(statement, (time_ms,))
            found[partition] = bounds.end if first is None else first
        return found

    @asynccontextmanager
    async def open_reader(
        self, positions: Mapping[Partition, int], log_ids: Mapping[str, str] = NO_IDS
    ) -> AsyncIterator[PartitionReader]:
        shared = self._open
        with shared.file.translate_errors():
            shared.log.reload()
        here = shared.log.id  # a position in another file is meaningless here
        reader = EmbeddedReader(
            {p: at if log_ids.get(p.topic, here) == here else 0 for p, at in positions.items()}, shared
        )
        self._readers.append(reader)
        try:
            yield reader
        finally:
            self._readers.remove(reader)

    async def find_unreadable(self, partition: Partition, offset: int) -> UnreadableRange | None:
        extent = self._find_topic(partition.topic)
        try:
            with self._open.file.translate_errors():
                self._open.log.read(extent.first_log + partition.number, partition, offset, 1)
        except Undecodable as why:
            return UnreadableRange(why.offset, why.offset + 1, None, str(why))
        return None

    async def move_positions(self, group: str, positions: Mapping[Partition, int]) -> None:
        places = [(self._find_topic(topic).first_log + number, at) for (topic, number), at in positions.items()]
        rows = [(group, log, at, row_checksum(group, log, at)) for log, at in places]
        await self._open.writer.do(lambda: self._move(group, rows))

    def _move(self, group: str, rows: list[tuple[str, int, int, int]]) -> None:
        """Move positions inside a transaction, so that no member can join meanwhile."""
        if members := self._list_live_members(group):
            raise BrokerError(f"group {group!r} has members ({', '.join(members)}): stop the service first")
        self.connection.executemany(
            "INSERT INTO positions (grp, log, offset, sum) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (grp, log) DO UPDATE SET offset = excluded.offset, sum = excluded.sum",
            rows,
        )
        self.connection.execute("UPDATE groups SET version = version + 1 WHERE name = ?", (group,))

    async def list_inactive_groups(self) -> Sequence[InactiveGroup]:
        with self._open.file.translate_errors():
            away_ms, lost = self._open.groups.read_absences(), self._find_lost_groups()
            ends = {log: end for log, _, end in verify_logs(self.connection.execute(LOGS))}
            behind = dict.fromkeys(away_ms, 0)
            for group, log, offset in verify_positions(self.connection.execute(POSITIONS)):
                if group in behind:
                    behind[group] += ends[log] - offset
        return [InactiveGroup(group, ms, behind[group], group in lost) for group, ms in sorted(away_ms.items())]

    async def forget_group(self, group: str) -> None:
        await self._open.writer.do(lambda: self._forget(group))

    def _forget(self, group: str) -> None:
        """Remove a group inside a transaction, so that no member can join meanwhile."""
        if members := self._list_live_members(group):
            raise BrokerError(f"group {group!r} has members ({', '.join(members)}): stop the service first")
        self._open.groups.forget(group)

    async def append_probe(self) -> int | None:
        await self._open.writer.do(lambda: None)  # a transaction: the file can be written
        return None

    # ---------------------------------------------------------------- queries

    def _read_topics(self) -> Mapping[str, TopicExtent]:
        """Read the topics from the file, because the cached copy in `log` may be outdated if another process has
        changed a retention."""
        with self._open.file.translate_errors():
            return dict(sorted(load_topics(self.connection).items()))

    def _find_topic(self, topic: str) -> TopicExtent:
        extents = self._read_topics()
        if topic not in extents:
            raise BrokerError(f"there is no topic {topic!r} in {self.path}: is its name right?")
        return extents[topic]

    def _list_live_members(self, group: str) -> tuple[str, ...]:
        """Return the members that may be alive.

        A live process holds the lock file of its member, even while it is frozen. Members of dead processes do not
        prevent changes of the group.
        """
        return tuple(fellow.seat for fellow in self._find_live_members(group))

    def _read_identities(self, group: str) -> frozenset[MemberIdentity]:
        with self._open.file.translate_errors():
            stated = self._open.groups.read_identities(group)
        living = [stated.get(fellow.id) for fellow in self._find_live_members(group)]
        return frozenset(identity for identity in living if identity is not None)

    def _find_live_members(self, group: str) -> list[MemberRow]:
        fellows = self._open.groups.list_members(group)
        return [fellow for fellow in fellows if not is_dead(self.path.parent / fellow.seat)]

    def _read_positions(self, group: str) -> Mapping[Partition, int]:
        with self._open.file.translate_errors():
            rows = self.connection.execute(f"{POSITIONS} WHERE grp = ?", (group,))
            places = {log: at for _, log, at in verify_positions(rows)}
        return {
            Partition(topic, number): places[extent.first_log + number]
            for topic, extent in self._read_topics().items()
            for number in range(extent.partitions)
            if extent.first_log + number in places
        }

    def _query(self, statement: str, given: tuple[object, ...] = ()) -> list[Any]:
        """Run a query and return its rows."""
        with self._open.file.translate_errors():
            return self.connection.execute(statement, given).fetchall()


# ---------------------------------------------------------------- reading outside of groups


class EmbeddedReader:
    """Reader of the broker's file. See `saga.broker.administration.PartitionReader` for the promises."""

    def __init__(self, positions: Mapping[Partition, int], shared: BrokerFile) -> None:
        """Start at these positions. Raises `BrokerError` for a partition that does not exist."""
        self._shared, self._positions = shared, dict(positions)
        self._logs: dict[Partition, int] = {}
        for partition in positions:
            extent = shared.log.find_topic(partition.topic)
            if not 0 <= partition.number < extent.partitions:
                raise BrokerError(f"topic {partition.topic} has {extent.partitions} partitions: none is {partition}")
            self._logs[partition] = extent.first_log + partition.number
        self._order = list(positions)
        """Partitions in the order in which they are read: the one that was read least recently comes first."""
        self._standstills: dict[Partition, StalledPartition] = {}
        self._news = asyncio.Event()
        self._broken: BaseException | None = None

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[Record]:
        clock = self._shared.clock
        deadline_s = clock.monotonic_s() + timeout_s
        while True:
            if self._broken is not None:
                raise self._broken
            self._news.clear()
            await clock.sleep(0)  # a reader that always finds records would never let other tasks run
            try:
                if records := self._read(records_max):
                    return records
            except sqlite3.Error as why:
                raise self._shared.file.make_error(why, FileOperation.READ) from why
            try:
                await clock.within(max(0.0, deadline_s - clock.monotonic_s()), self._news.wait())
            except TimeoutError:
                return []

    @property
    def logs(self) -> Collection[int]:
        """Return the logs that this reader reads."""
        return self._logs.values()

    def positions(self) -> Mapping[Partition, int]:
        return dict(self._positions)

    def log_ids(self) -> Mapping[str, str]:
        return dict.fromkeys((partition.topic for partition in self._positions), self._shared.log.id)

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        return list(self._standstills.values())

    def update_heads(self, heads: Mapping[int, int]) -> None:
        """Wake the poll, because some logs have got new records."""
        self._news.set()

    def fail(self, why: BaseException) -> None:
        """Make every poll raise this error from now on."""
        self._broken = self._broken or why
        self._news.set()

    def _read(self, records_max: int) -> list[Record]:
        log, records = self._shared.log, list[Record]()
        ends = log.read_ends(self._logs.values())
        for partition in list(self._order):
            number, position = self._logs[partition], self._positions[partition]
            if position >= ends[number]:
                continue
            self._order.remove(partition)
            self._order.append(partition)
            try:
                read = log.read(number, partition, position, records_max - len(records))
            except Undecodable as why:
                stalled = StalledPartition(*partition, why.offset, why.describe(partition, self._shared.file.path))
                self._standstills[partition] = stalled
                continue
            self._standstills.pop(partition, None)
            # A log has no gaps, so records in between were removed by retention.
            self._positions[partition] = read[-1].offset + 1 if read else ends[number]
            records += read
            if len(records) >= records_max:
                break
        return records
