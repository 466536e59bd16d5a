"""The embedded broker behind the port: opening and closing, publishing, joining, and learning what others wrote."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Self

from saga.broker.embedded import locks
from saga.broker.embedded.failures import translated
from saga.broker.embedded.file import open_file
from saga.broker.embedded.ground import Ground
from saga.broker.embedded.groups import Groups
from saga.broker.embedded.log import Log, Undecodable
from saga.broker.embedded.membership import Member, Shared, Timing
from saga.broker.embedded.writer import RECORDS_MAX, Writer
from saga.broker.port import RECORD_BYTES_MAX, Listener, Membership, Topic
from saga.clock import Clock
from saga.errors import BrokerBroken, BrokerError, BrokerUnavailable
from saga.messages import Outgoing, Partition, Record
from saga.statefile import left, make_folder

LOOK_S_FIRST, LOOK_S_MAX = 0.002, 0.02
"""How often to look whether another process wrote: at first and after it did, and when nothing happens for long."""
LOOK_GROWTH = 1.1
NAMES_EVERY_S = 0.25
"""How often to look whether the file is still the one of its name."""
TRIM_EVERY_S = 60.0
PAGE = 500
"""Records that `scan` reads at a time."""


class EmbeddedBroker:
    """See `saga.broker.port.Broker` for the promises. Linux and macOS; local disks only.

    One instance serves all services of a process, and any number of processes one file. What `publish` acknowledged
    survives the machine's power failure as far as the disk keeps what it has synced.
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
        """`path`: the file, made with its folder if missing. `lock_s`: how long to wait for another process that holds
        the write lock, before `BrokerUnavailable`. `bytes_max`: a bound on the file's size; reaching it is like a full
        disk."""
        self.path = path.absolute()
        self._clock, self._lock_s, self._bytes_max = clock, lock_s, bytes_max
        self.record_bytes_max = record_bytes_max
        self._timing = timing or Timing()
        self._members: list[Member] = []
        self._versions: dict[str, int] = {}
        self._closing = AsyncExitStack()
        self._shared: Shared | None = None
        self._ground: Ground | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opened:
            try:
                make_folder(self.path.parent)
                lock = locks.WriteLock(self.path.with_name(f"{self.path.name}.lock"))
            except OSError as why:
                raise BrokerUnavailable(
                    f"broker file {self.path}: {why.strerror}: check that its folder is there and may be written"
                ) from why
            opened.callback(lock.close)
            connection, log, ground = await self._connect(lock)
            opened.callback(_close, connection, ground)
            self._ground = ground
            writer = Writer(
                self.path,
                connection,
                lock,
                log,
                ground,
                clock=self._clock,
                lock_s=self._lock_s,
                caught_up=self._caught_up,
                appended=self._appended,
                broken=self._broken,
            )
            opened.push_async_callback(writer.close)
            self._shared = Shared(
                self.path, connection, writer, log, Groups(connection), self._clock, self._timing, self._group_changed
            )
            await opened.enter_async_context(_running(self._look(), self._trim_often()))
            self._closing = opened.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close. Raises `BrokerBroken` if the file was removed or replaced and nobody was told yet."""
        ground, self._ground = self._ground, None
        told = ground is None or ground.broken is not None
        await self._closing.aclose()
        self._shared = None
        if ground is not None and not told:
            ground.refuse()

    async def _connect(self, lock: locks.WriteLock) -> tuple[sqlite3.Connection, Log, Ground]:
        """Open the file while nobody writes to it, makes it or closes it."""
        deadline_s = self._clock.monotonic_s() + self._lock_s
        while not self._taken(lock):
            if self._clock.monotonic_s() >= deadline_s:
                raise BrokerUnavailable(
                    f"broker file {self.path}: another process has held its lock for {self._lock_s:g} s: "
                    f"{lock.holder()} has it: resume it or end it (a stopped process keeps its locks)"
                )
            await self._clock.sleep(LOOK_S_FIRST)
        try:
            if (said := left(self.path, lock.descriptor)) is not None:
                raise BrokerBroken(f"broker file {self.path} cannot be used yet: {said}")
            locks.sweep(self.path)
            connection = open_file(self.path, bytes_max=self._bytes_max)
            try:
                log = Log(connection, self.record_bytes_max)
                log.catch_up()
                return connection, log, Ground(self.path, lock.descriptor, connection, log, self._clock)
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as why:
            raise translated(why, self.path) from why
        except OSError as why:
            raise BrokerUnavailable(f"broker file {self.path}: {why}: see the system's log") from why
        finally:
            lock.release()

    def _taken(self, lock: locks.WriteLock) -> bool:
        try:
            return lock.taken()
        except OSError as why:
            raise BrokerUnavailable(
                f"broker file {self.path}: its lock failed ({why.strerror}): it has to lie on a local disk"
            ) from why

    @property
    def _open(self) -> Shared:
        if self._shared is None:
            raise BrokerError(f"broker file {self.path} is not open here: use it inside its `async with`")
        return self._shared

    # ---------------------------------------------------------------- the port

    async def ensure(self, topics: Sequence[Topic]) -> None:
        """As promised; retention follows whoever said it last."""
        log = self._open.log
        await self._open.writer.do(lambda: log.ensure(topics))

    async def partitions(self, topics: Collection[str]) -> Mapping[str, int]:
        log = self._open.log
        try:
            log.reload()
        except sqlite3.Error as why:
            raise translated(why, self.path) from why
        return {name: log.topics[name].partitions for name in topics if name in log.topics}

    async def forbidden(
        self, reads: Collection[str], writes: Collection[str], groups: Collection[str] = ()
    ) -> Sequence[str]:
        return ()

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        """As promised; what is handed over (at a time: 2,000 records) is appended even if the caller is cancelled."""
        writer = self._open.writer
        try:
            entries = self._open.log.entries(messages)
        except sqlite3.Error as why:
            raise translated(why, self.path) from why
        for at in range(0, len(entries), RECORDS_MAX):  # one after another: what follows a failure must not overtake
            await writer.append(entries[at : at + RECORDS_MAX])

    @asynccontextmanager
    async def join(self, group: str, topics: Sequence[str], listener: Listener) -> AsyncIterator[Membership]:
        """As promised. An error that the listener raises comes out of the next `poll` or `commit`."""
        shared = self._open
        try:
            seat = locks.Seat(self.path)
        except OSError as why:
            raise BrokerUnavailable(f"broker file {self.path}: no lock for a member: {why.strerror}") from why
        member = Member(group, topics, listener, seat, shared)
        try:
            await member.enter()
        except BaseException:
            seat.leave()
            raise
        self._members.append(member)
        try:
            async with _running(member.pulse()):  # it stirs while it drains
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
        try:
            log.reload()
        except sqlite3.Error as why:
            raise translated(why, self.path) from why
        kept = log.kept(topic)
        for number in range(kept.partitions):
            at, end = 0, log.heads[kept.first_log + number]
            while at < end:
                try:
                    records = log.read(kept.first_log + number, Partition(topic, number), at, PAGE)
                except sqlite3.Error as why:
                    raise translated(why, self.path) from why
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
        """What all goes through, for tests and for looking; never in the middle of a transaction."""
        return self._open.connection

    async def trim(self) -> None:
        """Remove what is past its topic's retention; done every minute anyhow. Raises `BrokerUnavailable`."""
        log, clock = self._open.log, self._clock
        while await self._open.writer.do(lambda: log.trim(clock.now_ms())):
            continue

    # ---------------------------------------------------------------- what changed

    def _appended(self, heads: Mapping[int, int]) -> None:
        for member in self._members:
            member.advanced(heads)

    def _caught_up(self) -> None:
        """Another process wrote, and what `log` knows is new."""
        log = self._open.log
        self._appended(log.heads)
        for member in self._members:
            if log.versions.get(member.group) != self._versions.get(member.group):
                member.changed.set()
        self._versions = dict(log.versions)

    def _broken(self, why: BrokerBroken) -> None:
        """Whoever polls is told, too."""
        for member in self._members:
            member.fail(why)

    def _group_changed(self, group: str) -> None:
        for member in self._members:
            if member.group == group:
                member.changed.set()

    async def _look(self) -> None:
        """Notice what other processes write. Our own writes tell by themselves."""
        pause_s, names_at_s = LOOK_S_FIRST, 0.0
        while True:
            await self._clock.sleep(pause_s)
            if not self._members:
                pause_s = LOOK_S_MAX
                continue
            if (now_s := self._clock.monotonic_s()) >= names_at_s:
                names_at_s = now_s + NAMES_EVERY_S
                self._check_names()
            try:
                others = self._open.log.catch_up()
            except sqlite3.Error:  # whoever polls or publishes is told; here it is tried again
                others = False
            if others:
                self._caught_up()
            pause_s = LOOK_S_FIRST if others else min(pause_s * LOOK_GROWTH, LOOK_S_MAX)

    def _check_names(self) -> None:
        """Somebody may have removed the file while nothing is written."""
        if self._ground is None:
            return
        try:
            self._ground.check_names()
        except BrokerBroken as why:
            self._broken(why)
        except OSError:  # whoever writes is told
            return

    async def _trim_often(self) -> None:
        while True:
            await self._clock.sleep(TRIM_EVERY_S)
            with suppress(BrokerUnavailable, BrokerBroken):  # whoever polls or publishes is told
                await self.trim()


def _close(connection: sqlite3.Connection, ground: Ground) -> None:
    """Raises `BrokerBroken` if the file has lost its name since anybody looked."""
    if ground.broken is not None:
        return  # to close it would remove the log of whatever lies there now
    try:
        with suppress(OSError):
            ground.check_names()
    finally:
        if ground.broken is None:
            connection.close()
            ground.closed()


@asynccontextmanager
async def _running(*work: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """The work goes on in the background inside the block, and has ended when the block has.

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
