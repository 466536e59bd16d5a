"""A member of a group on the embedded broker: which partitions it owns and reads, and how it notices changes by other
members."""

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from saga.broker.embedded.groups import Groups, Liveness, MemberLock, MemberView, Newcomer, is_dead
from saga.broker.embedded.log import RecordLog, Transaction, Undecodable
from saga.broker.port import Listener, MemberIdentity, Subscription, disagreement_error, find_disagreeing
from saga.errors import BrokerError, BrokerUnavailable, Fenced
from saga.messages import Partition, Record, StalledPartition
from saga.store.sqlite.errors import FileOperation
from saga.store.sqlite.state_file import StateFile
from saga.store.sqlite.writer import GroupCommitter
from saga.support.clock import Clock

AGAIN_S = 0.1
"""Pause before retrying a step that failed because the file could not be used, in seconds."""
UNDECODABLE_S = 1.0
"""Pause before another attempt to read an unreadable record, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Time limits for the members of a group."""

    silence_s: float = 10
    """Time without heartbeats after which a member counts as a zombie and loses its partitions, in seconds."""
    drain_s: float = 5
    """Longest time that `Listener.on_revoked` of a member may take when it loses a partition, in seconds. After that
    the next owner takes the partition anyway."""
    watch_s: float = 0.1
    """Pause between checks whether other members are alive, in seconds."""
    away_s_max: float = 30 * 86_400.0
    """Longest time for which retention keeps records for a group without members, in seconds."""


@dataclass(slots=True)
class EmbeddedPartition:
    """A partition that this member owns."""

    log: int
    granted: int
    """Generation in which the member took the partition."""
    position: int
    """Offset to read next."""
    was_in_progress: bool = False
    """True if the previous owner may have been processing messages of it when it disappeared."""


@dataclass(frozen=True, slots=True)
class BrokerFile:
    """The open broker file, which all members of one process share."""

    file: StateFile
    writer: GroupCommitter
    transaction: Transaction
    log: RecordLog
    groups: Groups
    clock: Clock
    timing: Timing
    notify_group: Callable[[str], None]
    """Function to call after a change of a group, so that the group's members in this process check it."""

    def partition_of(self, log: int) -> Partition | None:
        for topic, (first, partitions, _) in self.log.topics.items():
            if first <= log < first + partitions:
                return Partition(topic, log - first)
        return None


class EmbeddedMember:
    """Member of a group in the broker's file. See `saga.broker.port.Membership` for the promises."""

    def __init__(self, subscription: Subscription, listener: Listener, seat: MemberLock, shared: BrokerFile) -> None:
        self.group, self._subscription = subscription.group, subscription
        self.changed = asyncio.Event()
        """Event that is set when the group may have changed."""
        self._listener, self._seat, self._shared = listener, seat, shared
        self._id = 0
        self._owned: dict[Partition, EmbeddedPartition] = {}
        self._revoked: dict[Partition, EmbeddedPartition] = {}
        """Partitions that the listener has given up, but that the file still assigns to this member. They are lost when
        they are released, unless this member takes them back."""
        self._by_log: dict[int, Partition] = {}
        """Partitions that may be read, by log. A partition that is being revoked is missing here, although this member
        still owns it."""
        self._behind: dict[Partition, EmbeddedPartition] = {}
        """Partitions that have records to read, in the order of reading: the one that was read least recently comes
        first."""
        self._standstills: dict[Partition, tuple[float, StalledPartition]] = {}
        """Stalled partitions, each with the time of the last attempt to read it."""
        self._news = asyncio.Event()
        self._generation, self._since_s = 0, 0.0
        self._broken: BaseException | None = None
        self._woken = False
        self._strangers: tuple[str, ...] = ()
        self._placed = False
        """True once this member has taken all logs that it can take after joining. There may be none."""
        self._obstacle: BrokerUnavailable | None = None
        """Error of the last attempt to take or release partitions; `None` if it succeeded."""

    # ---------------------------------------------------------------- the port

    async def poll(self, partitions: Collection[Partition], *, records_max: int, timeout_s: float) -> Sequence[Record]:
        clock = self._shared.clock
        deadline_s = clock.monotonic_s() + timeout_s
        while True:
            self._raise_if_broken()
            self._news.clear()
            if self._woken:
                self._woken = False
                return []
            if self._behind:
                await clock.sleep(0)  # a reader that always finds records would never let other tasks run
                if records := self._read(partitions, records_max):
                    return records
            if self._obstacle is not None:  # nothing may come because partitions cannot be taken
                raise BrokerUnavailable(str(self._obstacle))
            left_s = deadline_s - clock.monotonic_s()
            if left_s <= 0:
                return []
            try:
                await clock.within(left_s, self._news.wait())
            except TimeoutError:
                return []

    def wake(self) -> None:
        self._woken = True
        self._news.set()

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        rows, groups, member = self._prepare_offsets(offsets), self._shared.groups, self._id
        if rows:
            await self._shared.writer.do(lambda: groups.commit(self.group, member, rows))

    async def mark_in_progress(self, offsets: Mapping[Partition, int]) -> Collection[Partition]:
        rows, groups, member = self._prepare_offsets(offsets), self._shared.groups, self._id
        left = [partition for partition in offsets if self._owned[partition].was_in_progress]
        if rows:
            await self._shared.writer.do(lambda: groups.mark_in_progress(self.group, member, rows))
        return left

    async def clear_in_progress(self, offsets: Mapping[Partition, int]) -> None:
        rows, groups, member = self._prepare_offsets(offsets), self._shared.groups, self._id
        if rows:
            await self._shared.writer.do(lambda: groups.clear_in_progress(self.group, member, rows))

    def _prepare_offsets(self, offsets: Mapping[Partition, int]) -> list[tuple[int, int, int]]:
        """Return the log, the generation and the offset to commit for each partition. Raises `Fenced`."""
        self._raise_if_broken()
        rows: list[tuple[int, int, int]] = []
        for partition, offset in offsets.items():
            owned = self._owned.get(partition)
            if owned is None:
                raise Fenced(
                    f"group {self.group!r}: {partition} is not this member's; what it did comes again elsewhere"
                )
            rows.append((owned.log, owned.granted, offset))
        return rows

    def log_id(self, partition: Partition) -> str:
        return self._shared.log.id

    def lag(self) -> Mapping[Partition, int] | None:
        if not self._placed:
            return None
        heads = self._shared.log.heads
        return {p: max(0, heads.get(owned.log, 0) - owned.position) for p, owned in self._owned.items()}

    def disagreeing_members(self) -> Sequence[str]:
        return self._strangers

    def polled_offsets(self) -> Mapping[Partition, int]:
        return {partition: self._owned[partition].position for partition in self._by_log.values()}

    async def fetch_ends(self) -> Mapping[Partition, int | None]:
        self._raise_if_broken()
        shared, logs = self._shared, dict[int, Partition]()
        try:
            with shared.file.translate_errors():
                shared.log.reload()  # another process may have appended since the ends were last read
                for topic in [topic for topic in self._subscription.topics if topic in shared.log.topics]:
                    first, partitions, _ = shared.log.topics[topic]
                    logs |= {first + number: Partition(topic, number) for number in range(partitions)}
                ends = shared.log.read_ends(logs)
        except sqlite3.Error as why:
            raise shared.file.make_error(why, FileOperation.READ) from why
        return {partition: ends[log] for log, partition in logs.items()}

    async def fetch_positions(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        self._raise_if_broken()
        topics = self._shared.log.topics
        logs = {topics[p.topic].first_log + p.number: p for p in partitions if p.topic in topics}
        try:
            with self._shared.file.translate_errors():
                found = self._shared.groups.read_positions(self.group)
        except sqlite3.Error as why:
            raise self._shared.file.make_error(why, FileOperation.READ) from why
        return {partition: found[log] for log, partition in logs.items() if log in found}

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        return [standstill for _, standstill in self._standstills.values()]

    def _read(self, partitions: Collection[Partition], records_max: int) -> list[Record]:
        wanted, log = set(partitions), self._shared.log
        records: list[Record] = []
        partition: Partition | None = None
        try:
            for partition in list(self._behind):
                if partition not in wanted:
                    continue
                owned = self._behind.pop(partition)
                end = log.read_end(owned.log)
                try:
                    read = log.read(owned.log, partition, owned.position, records_max - len(records))
                except Undecodable as why:
                    self._stall(partition, why)
                    continue
                follows = read[0].offset if read else end
                if follows > owned.position:  # a log has no gaps, so records in between were removed by retention
                    self._listener.on_expired(partition, owned.position, follows)
                    owned.position = follows
                if read:
                    if self._standstills and self._standstills.pop(partition, None) is not None:
                        self.wake()
                    owned.position = read[-1].offset + 1
                    records += read
                if owned.position < end:
                    self._behind[partition] = owned  # move it to the end, so that the others come first
                if len(records) >= records_max:
                    break
        except sqlite3.Error as why:
            if partition is not None and partition in self._owned:
                self._behind[partition] = self._owned[partition]
            if not records:
                raise self._shared.file.make_error(why, FileOperation.READ) from why
        return records

    def _stall(self, partition: Partition, why: Undecodable) -> None:
        """Record that a partition is stalled at an unreadable record. Other partitions continue."""
        previous = self._standstills.get(partition)
        standstill = StalledPartition(*partition, why.offset, why.describe(partition, self._shared.file.path))
        self._standstills[partition] = self._shared.clock.monotonic_s(), standstill
        if previous is None:
            self.wake()

    # ---------------------------------------------------------------- notifications

    @property
    def logs(self) -> Collection[int]:
        """Return the logs that this member owns."""
        return [owned.log for owned in self._owned.values()]

    def update_heads(self, heads: Mapping[int, int]) -> None:
        """Update which partitions have records to read, given the new ends of their logs."""
        found = False
        for log in self._by_log.keys() & heads.keys():
            partition = self._by_log[log]
            owned = self._owned[partition]
            if heads[log] > owned.position and partition not in self._behind and partition not in self._standstills:
                self._behind[partition] = owned
                found = True
        if found:
            self._news.set()

    # ---------------------------------------------------------------- lifetime

    async def join(self) -> None:
        """Join the group. Raises `BrokerError` for a missing topic, and `ConfigurationError` if a member has a
        disagreeing identity."""
        log, groups, folder = self._shared.log, self._shared.groups, self._shared.file.path.parent
        try:
            with self._shared.file.translate_errors():
                for topic in self._subscription.topics:
                    log.find_topic(topic)
                self._seat.renew()
                dead = [fellow for fellow in groups.list_members(self.group) if is_dead(folder / fellow.seat)]
        except OSError as why:
            raise BrokerUnavailable(f"broker file {self._shared.file.path}: a member's lock failed: {why}") from why
        _, topics, identity, starts = self._subscription
        newcomer = Newcomer(self._seat.path.name, topics, identity, starts)
        self._id, strangers = await self._shared.writer.do(
            lambda: groups.enter(self.group, newcomer, log.topics, instead_of=dead)
        )
        if strangers:
            raise disagreement_error(self.group, identity, strangers)
        self._shared.notify_group(self.group)

    async def follow_group(self) -> None:
        """Take and release partitions as the group changes, until cancelled."""
        try:
            while True:
                self.changed.clear()
                try:
                    wait_s = await self._follow_once()
                    self._placed, self._obstacle = self._placed or wait_s != 0, None
                except BrokerUnavailable as why:
                    wait_s = self._wait_after(why)
                except sqlite3.Error as why:
                    error = self._shared.file.make_error(why, FileOperation.READ)
                    if not isinstance(error, BrokerUnavailable):
                        raise
                    wait_s = self._wait_after(error)
                if wait_s is None:
                    await self.changed.wait()
                    continue
                try:
                    await self._shared.clock.within(wait_s, self.changed.wait())
                except TimeoutError:
                    continue
        except Exception as why:  # noqa: BLE001 - a listener's error is raised by `poll` and `commit`
            self.fail(why)

    def _wait_after(self, why: BrokerUnavailable) -> float:
        """Let `poll` raise the reason why partitions cannot be taken or released. Return the seconds until the next
        attempt."""
        self._obstacle = why
        self._news.set()
        return AGAIN_S

    async def send_heartbeats(self) -> None:
        """Send heartbeats, until cancelled.

        This never waits for the broker's file, so a process that holds the lock of the file does not stop the
        heartbeats of others.
        """
        while True:
            with suppress(OSError):  # without heartbeats the member loses its partitions, and then notices it
                self._seat.send_heartbeat()
            await self._shared.clock.sleep(self._shared.timing.silence_s / 5)

    async def watch_members(self) -> None:
        """Detect members that send no heartbeats, until cancelled."""
        try:
            shared = self._shared
            others = Liveness(shared.file.path.parent, shared.clock, shared.timing.silence_s)
            while True:
                await self._shared.clock.sleep(self._shared.timing.watch_s)
                try:
                    await self._check_members(others)
                except (BrokerUnavailable, sqlite3.Error, OSError):
                    continue  # tried again soon
        except Exception as why:  # noqa: BLE001 - as above
            self.fail(why)

    def fail(self, why: BaseException) -> None:
        """Make every poll and commit raise this error from now on."""
        self._broken = self._broken or why
        self._news.set()

    async def drain(self) -> None:
        """Revoke all partitions of this member, because it leaves."""
        await self._revoke(list(self._owned))

    async def leave(self) -> None:
        """Leave the group. If the file cannot be written, other members notice that the lock is released."""
        groups, log, member = self._shared.groups, self._shared.log, self._id
        self._lose(list(self._owned))
        try:
            await self._shared.writer.do(lambda: groups.leave(self.group, member, log.topics))
        except BrokerError:
            pass  # others notice the released lock
        finally:
            self._seat.release()
            self._shared.notify_group(self.group)

    def _raise_if_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    # ---------------------------------------------------------------- steps of `follow_group`

    async def _follow_once(self) -> float | None:
        """Take the next step towards the assignment in the file: release or take partitions.

        Return the seconds until the next check; `None` if it is enough to wait for a change.
        """
        shared, now_s = self._shared, self._shared.clock.monotonic_s()
        view = shared.groups.read_view(self.group, self._id)
        if not view.alive:
            self._lose([*self._owned, *self._revoked])
            await self.join()
            return 0
        if view.generation != self._generation:
            self._generation, self._since_s = view.generation, now_s
            self._compare_identities(shared.groups.read_identities(self.group).values())
        granted = {h.log: h.granted for h in view.holdings if h.owner == self._id}
        held = self._owned | self._revoked
        self._lose([p for p, partition in held.items() if granted.get(partition.log) != partition.granted])
        if leaving := [h.log for h in view.holdings if h.owner == self._id and h.target != self._id]:
            await self._revoke([p for p, owned in self._owned.items() if owned.log in leaving])
            await shared.writer.do(lambda: shared.groups.release(self.group, self._id, leaving))
            shared.notify_group(self.group)
            self._lose([p for p, revoked in self._revoked.items() if revoked.log in leaving])
            return 0
        # Two checks longer than `drain_s`, because the draining member may have noticed the change that much later.
        patience_s = self._since_s + shared.timing.drain_s + 2 * shared.timing.watch_s - now_s
        ours = {owned.log for owned in self._owned.values()}
        wanted = [h for h in view.holdings if h.target == self._id and h.log not in ours]
        ready = [h.log for h in wanted if patience_s <= 0 or h.owner is None or h.owner == self._id]
        if ready:
            await self._claim(view, ready)
            return 0
        return patience_s if wanted else None

    def _compare_identities(self, members: Collection[MemberIdentity | None]) -> None:
        """Record the members whose identity disagrees with the identity of this member.

        They may have joined while this member was considered dead, or without a check of identities.
        """
        strangers = find_disagreeing(self._subscription.identity, members)
        if strangers != self._strangers:
            self._strangers = strangers
            self.wake()

    async def _claim(self, view: MemberView, logs: list[int]) -> None:
        shared, member = self._shared, self._id
        grants = await shared.writer.do(lambda: shared.groups.claim(self.group, member, view.generation, logs))
        shared.notify_group(self.group)
        taken = {partition: g for g in grants if (partition := shared.partition_of(g.log)) is not None}
        if not taken:
            return
        with shared.file.translate_errors():  # before anything is taken: after an error all of this is repeated
            ends = shared.log.read_ends(grant.log for grant in taken.values())
        for partition, grant in taken.items():  # we may commit from here on, and read once the listener knows
            self._owned[partition] = EmbeddedPartition(grant.log, grant.granted, grant.offset, grant.was_in_progress)
            self._revoked.pop(partition, None)
        await self._listener.on_assigned({partition: grant.offset for partition, grant in taken.items()})
        self._by_log.update({grant.log: partition for partition, grant in taken.items()})
        self.update_heads({**ends, **shared.log.heads})  # records may have come while the listener was called

    async def _revoke(self, partitions: Collection[Partition]) -> None:
        """Stop reading these partitions, and let the listener commit and give them up."""
        if not partitions:
            return
        for partition in partitions:
            self._by_log.pop(self._owned[partition].log, None)
            self._behind.pop(partition, None)
            self._standstills.pop(partition, None)
        with suppress(TimeoutError):  # the partitions are taken from this member anyway
            await self._shared.clock.within(self._shared.timing.drain_s, self._listener.on_revoked(partitions))
        for partition in partitions:
            self._revoked[partition] = self._owned.pop(partition)

    def _lose(self, partitions: Collection[Partition]) -> None:
        """Forget partitions that no longer belong to this member, without calling `on_revoked`."""
        if not partitions:
            return
        for partition in partitions:
            self._revoked.pop(partition, None)
            if (owned := self._owned.pop(partition, None)) is not None:
                self._by_log.pop(owned.log, None)
            self._behind.pop(partition, None)
            self._standstills.pop(partition, None)
        self._listener.on_lost(partitions)

    # ---------------------------------------------------------------- steps of `watch_members`

    async def _check_members(self, others: Liveness) -> None:
        shared, member = self._shared, self._id
        for partition, (since_s, _) in self._standstills.items():
            if shared.clock.monotonic_s() - since_s > UNDECODABLE_S:
                self._behind[partition] = self._owned[partition]
                self._news.set()
        fellows = shared.groups.list_members(self.group)
        if member not in [fellow.id for fellow in fellows]:
            self.changed.set()  # this member was considered dead: `follow_group` reports it and joins again
            return
        if gone := others.find_silent(fellows, but=member):
            await shared.writer.do(
                lambda: shared.groups.evict(self.group, others.filter_silent(gone), shared.log.topics)
            )
            shared.notify_group(self.group)
