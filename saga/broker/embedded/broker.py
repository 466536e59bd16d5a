"""Embedded broker: open and close the file, publish, join groups, and notice what other processes wrote."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self

from saga.broker.embedded.groups import Groups
from saga.broker.embedded.liveness import MemberLock, is_dead, remove_dead_locks
from saga.broker.embedded.log import RecordLog, Transaction, Undecodable, Watched, find_missing_write
from saga.broker.embedded.membership import BrokerFile, EmbeddedMember, Timing
from saga.broker.embedded.reader import EmbeddedReader
from saga.broker.embedded.tables import PURPOSE
from saga.broker.port import RECORD_BYTES_MAX, Listener, Membership, Subscription
from saga.errors import Broken, BrokerError, BrokerUnavailable
from saga.messages import Outgoing, Partition, Record, Topic
from saga.store.sqlite.connection import shrink
from saga.store.sqlite.errors import FileOperation
from saga.store.sqlite.state_file import StateFile
from saga.store.sqlite.writer import GroupCommitter
from saga.support.clock import Clock

RECORDS_MAX = 2000
"""Most records that one transaction takes."""
LOOK_S_FIRST, LOOK_S_MAX = 0.002, 0.02
"""Pauses before looking again whether another process wrote: at first and after it did, and when nothing happens for
long."""
LOOK_GROWTH = 1.1
NAMES_EVERY_S = 0.25
"""Pause before looking again whether the file is still the one of its name."""
TRIM_EVERY_S = 60.0
PAGE = 500
"""Records that `scan` reads at a time."""


class EmbeddedBroker:
    """Broker on one SQLite file, on a local disk of Linux or macOS. See `saga.broker.port.Broker` for the promises.

    One instance serves all services of a process, and any number of processes use one file. What `publish` acknowledged
    survives a power failure, as far as the disk keeps what it has synced.
    """

    makes_topics = True

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
        """Note the file; nothing is opened yet. `path`: the file, made with its folder if missing. `lock_s`: how long
        to wait for another process that holds the write lock, before `BrokerUnavailable`. `bytes_max`: a bound on the
        file's size; reaching it is like a full disk."""
        self.path = path.absolute()
        self._clock, self._lock_s, self._bytes_max = clock, lock_s, bytes_max
        self.record_bytes_max = record_bytes_max
        self._timing = timing or Timing()
        self._members: list[EmbeddedMember] = []
        self._readers: list[EmbeddedReader] = []
        """Readers in no group."""
        self._versions: dict[str, int] = {}
        self._closing = AsyncExitStack()
        self._shared: BrokerFile | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opened:
            clock = self._clock
            file = StateFile(self.path, PURPOSE, clock=clock, lock_s=self._lock_s, bytes_max=self._bytes_max)
            log = RecordLog(file.connection, self.record_bytes_max, self._watched)
            await file.open(find_missing_write)
            opened.callback(file.close)
            remove_dead_locks(self.path)
            with file.telling():
                log.catch_up()
            transaction = Transaction(log, clock, caught_up=self._caught_up, appended=self._appended)
            writer = GroupCommitter(file, transaction, room=RECORDS_MAX, broken=self._broken)
            opened.push_async_callback(writer.close)
            self._shared = BrokerFile(
                file, writer, transaction, log, Groups(file.connection), clock, self._timing, self._group_changed
            )
            new_id = "".join(f"{int(clock.chance() * 2**48):012x}" for _ in range(2))
            await writer.do(lambda: log.identify(new_id))
            await opened.enter_async_context(_running(self._look(), self._trim_often()))
            self._closing = opened.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close. Raises `BrokerBroken` if the file was removed or replaced and nobody was told yet."""
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

    async def ensure(self, topics: Sequence[Topic]) -> None:
        """Create topics as promised; records are kept for as long as whoever wants them for longest."""
        log = self._open.log
        await self._open.writer.do(lambda: log.ensure(topics))

    async def partitions(self, topics: Collection[str]) -> Mapping[str, int]:
        log = self._open.log
        with self._open.file.telling():
            log.reload()
        return {name: log.topics[name].partitions for name in topics if name in log.topics}

    async def log_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        return dict.fromkeys(await self.partitions(topics), self._open.log.id)

    async def forbidden(
        self, reads: Collection[str], writes: Collection[str], groups: Collection[str] = ()
    ) -> Sequence[str]:
        return ()

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        """Publish as promised; what is handed over (at a time: 2,000 records) is appended even if the caller is
        cancelled."""
        shared = self._open
        try:
            entries = shared.log.entries(messages)
        except sqlite3.Error as why:
            raise shared.file.error(why, FileOperation.READ) from why
        while len(entries) > RECORDS_MAX:  # one after another: what follows a failure must not overtake
            some, entries = entries[:RECORDS_MAX], entries[RECORDS_MAX:]
            await shared.writer.do(partial(shared.transaction.append, some), len(some))
        if entries:
            await shared.writer.do(partial(shared.transaction.append, entries), len(entries))

    @asynccontextmanager
    async def join(self, subscription: Subscription, listener: Listener) -> AsyncIterator[Membership]:
        """Join as promised. An error that the listener raises comes out of the next `poll` or `commit`."""
        shared = self._open
        try:
            seat = MemberLock(self.path)
        except OSError as why:
            raise BrokerUnavailable(f"broker file {self.path}: no lock for a member: {why.strerror}") from why
        member = EmbeddedMember(subscription, listener, seat, shared)
        try:
            await member.enter()
        except BaseException:  # who is cancelled while he joins, too, leaves his seat
            seat.leave()
            raise
        self._members.append(member)
        try:
            async with _running(member.stir(), member.pulse()):  # it stirs while it drains
                try:
                    async with _running(member.follow()):
                        yield member
                finally:
                    await member.drain()
        finally:
            self._members.remove(member)
            await member.leave()

    async def scan(self, topic: str) -> AsyncIterator[Record]:
        log = self._open.log
        with self._open.file.telling():
            log.reload()
            kept = log.kept(topic)
            ends = log.ends(range(kept.first_log, kept.first_log + kept.partitions))
        for number in range(kept.partitions):
            at, end = 0, ends[kept.first_log + number]
            while at < end:
                try:
                    with self._open.file.telling():
                        records = log.read(kept.first_log + number, Partition(topic, number), at, PAGE)
                except Undecodable as why:
                    raise BrokerError(why.told(Partition(topic, number), self.path)) from why
                for record in records:
                    if record.offset < end:
                        yield record
                at = records[-1].offset + 1 if records else end
                await self._clock.sleep(0)

    # ---------------------------------------------------------------- beyond the port

    @property
    def connection(self) -> sqlite3.Connection:
        """Connection that all goes through, for tests and for looking; never in the middle of a transaction."""
        return self._open.file.connection()

    async def trim(self) -> None:
        """Remove what is past its topic's retention, and give back the room; done every minute anyhow. Raises
        `BrokerUnavailable`."""
        log, groups, clock, writer = self._open.log, self._open.groups, self._clock, self._open.writer
        await writer.do(lambda: groups.note_absences(clock.now_ms(), self._lives))
        while await writer.do(lambda: log.trim(clock.now_ms(), self._lost())):
            continue
        while await writer.do(lambda: shrink(self.connection)):
            continue

    def _lost(self) -> Collection[str]:
        """Groups for which retention does not wait any more."""
        away_ms = self._open.groups.away_ms()
        return {group for group, ms in away_ms.items() if ms > self._timing.away_s_max * 1000}

    def _lives(self, seat: str) -> bool:
        return not is_dead(self.path.parent / seat)

    # ---------------------------------------------------------------- what changed

    def _watched(self) -> Watched:
        logs = {log for member in self._members for log in member.logs}
        return logs.union(*(reader.logs for reader in self._readers)), {member.group for member in self._members}

    def _appended(self, heads: Mapping[int, int]) -> None:
        for member in self._members:
            member.advanced(heads)
        for reader in self._readers:
            reader.advanced(heads)

    def _caught_up(self) -> None:
        """Tell members that another process wrote, and that what `log` knows is new."""
        if self._shared is None:  # it is being opened: nobody is a member yet, and its log is read once more
            return
        log = self._shared.log
        self._appended(log.heads)
        for member in self._members:
            if log.versions.get(member.group) != self._versions.get(member.group):
                member.changed.set()
        self._versions = dict(log.versions)

    def _broken(self, why: Broken) -> None:
        """Tell whoever polls that the file is broken."""
        for member in self._members:
            member.fail(why)
        for reader in self._readers:
            reader.fail(why)

    def _group_changed(self, group: str) -> None:
        for member in self._members:
            if member.group == group:
                member.changed.set()

    async def _look(self) -> None:
        """Notice what other processes write. Our own writes tell by themselves."""
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
            except (sqlite3.Error, Broken):  # whoever polls or publishes is told; here it is tried again
                others = False
            if others:
                self._caught_up()
            pause_s = LOOK_S_FIRST if others else min(pause_s * LOOK_GROWTH, LOOK_S_MAX)

    def _check_names(self) -> None:
        """Check the file's name: somebody may have removed the file while nothing is written."""
        try:
            self._open.file.check_names()
        except Broken as why:
            self._broken(why)
        except BrokerUnavailable:  # whoever writes is told
            return

    async def _trim_often(self) -> None:
        while True:
            await self._clock.sleep(TRIM_EVERY_S)
            with suppress(BrokerUnavailable, Broken):  # whoever polls or publishes is told
                await self.trim()


@asynccontextmanager
async def _running(*work: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """Run the work in the background inside the block; it has ended when the block has.

    No TaskGroup: it would wrap the block's own exceptions, and it would cancel the task that entered, which for a
    fixture is not the one that leaves.
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
