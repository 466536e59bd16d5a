"""Subscriptions of clients to events: from now on, from the oldest events on, or as a member of a consumer group."""

import logging
import re
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from typing import Generic, Literal, Self, TypeAlias, TypeVar

from saga.broker.administration import Administration, PartitionReader
from saga.broker.port import Membership, Subscription
from saga.clients.events import EventReader
from saga.errors import BadInput, BrokerUnavailable, Fenced, KeyMissing, SagaError, UnknownSchema, UpcasterFailed
from saga.messages import Event, Partition, Record, StalledPartition
from saga.messaging.names import CLIENTS
from saga.support.clock import Clock
from saga.support.printable import printable, quote_text

log = logging.getLogger("saga.client")
E = TypeVar("E", bound=Event)
_IS_GROUP = re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch

Begin: TypeAlias = Literal["now", "beginning"]
POLL_S, AGAIN_S = 0.5, 0.5
"""Longest wait for records, and pause before a retry while the broker is unavailable, in seconds."""
LOOK_S = 10.0
"""Pause between checks whether the topics of a client without a group have more partitions, in seconds."""
RECORDS_MAX = 500
"""Largest number of records that one poll returns."""
COMMIT_EVERY_S = 1.0
"""Shortest time between two commits while the events of one poll are being received, in seconds. The next poll commits
in any case."""


def check_group(group: str, begin: Begin = "now") -> str:
    """Return the name of a group after checking it. Raises `SagaError` if the name is invalid, or if `begin` was also
    given."""
    if begin != "now":
        raise SagaError(
            "begin= and group= exclude each other: a group begins at the oldest event, then goes on where it was"
        )
    if not _IS_GROUP(group):
        raise SagaError(f"{quote_text(group)} cannot be a group: it is at most 64 letters, digits, `-`, `_` and `.`")
    return group


class Backlog:
    """Records that were polled and do not count as received yet."""

    def __init__(self) -> None:
        self.waiting: deque[Record] = deque()
        self.given: Record | None = None
        """Record of the event that was returned last. It counts as received when the next event is requested."""

    def drop(self, partition: Partition) -> None:
        """Drop the records of a partition."""
        self.waiting = deque(record for record in self.waiting if record[:2] != partition)
        if self.given is not None and self.given[:2] == partition:
            self.given = None


class UngroupedReader:
    """Reader of all partitions, for a subscription without a group. Its position is not stored."""

    def __init__(self, broker: Administration, topics: Collection[str], begin: Begin, clock: Clock) -> None:
        self._broker, self._topics, self._begin, self._clock = broker, sorted(topics), begin, clock
        self._at: Mapping[Partition, int] | None = None
        self._log_ids: Mapping[str, str] = {}
        self._reading: PartitionReader | None = None
        self._look_s = 0.0
        """Time of the next check whether the topics have more partitions."""
        self.backlog = Backlog()
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        """Begin to read, or continue where reading stopped. Raises `BrokerError`."""
        if self._at is None:
            self._log_ids = await self._broker.fetch_log_ids(self._topics)
            bounds = await self._broker.fetch_bounds(self._topics)
            self._at = {p: found.end if self._begin == "now" else found.begin for p, found in bounds.items()}
            self._look_s = self._clock.monotonic_s() + LOOK_S
        if self._reading is None:
            self._reading = await self._stack.enter_async_context(self._broker.open_reader(self._at, self._log_ids))

    async def poll(self) -> list[Record]:
        """Return the next records; none if none have come after a short wait. Raises `BrokerError`. The reader is
        closed after `BrokerUnavailable`."""
        await self.open()
        reading = self._reading
        assert reading is not None
        try:
            if self._clock.monotonic_s() >= self._look_s and await self._find_added_partitions():
                await self.close()  # the next poll opens a reader of all partitions
                return []
            records = await reading.poll(records_max=RECORDS_MAX, timeout_s=POLL_S)
            self._at, self._log_ids = reading.positions(), reading.log_ids()
        except BrokerUnavailable:
            await self.close()
            raise
        return list(records)

    async def _find_added_partitions(self) -> bool:
        """Return whether the topics have more partitions than are read. Added ones are read from their beginning,
        because they were empty when this client began. Raises `BrokerError`."""
        assert self._at is not None, "it was opened"
        before = Counter(topic for topic, _ in self._at)
        counts = await self._broker.count_partitions(self._topics)
        more = {topic: count for topic, count in counts.items() if count > before[topic]}
        found = (await self._broker.fetch_bounds(more)) if more else {}
        self._at = {**{partition: bounds.begin for partition, bounds in found.items()}, **self._at}
        self._look_s = self._clock.monotonic_s() + LOOK_S
        for topic, now in more.items():
            log_added_partitions(topic, before[topic], now)
        return bool(more)

    def has(self, record: Record) -> bool:
        """Return True, because without a group the client reads all partitions."""
        return True

    async def mark_received(self, record: Record) -> None:
        """Do nothing, because there is no group whose offsets could be committed."""

    def stalled_partitions(self) -> Collection[StalledPartition]:
        """Return the partitions that cannot be read now."""
        return () if self._reading is None else self._reading.stalled_partitions()

    async def close(self) -> None:
        """Close the reader; `open` continues from here."""
        self._reading = None
        await self._stack.aclose()


class GroupReader:
    """Reader of the partitions that a consumer group has assigned to this client, for a subscription in a group."""

    def __init__(self, broker: Administration, topics: Collection[str], group: str, clock: Clock) -> None:
        self._broker, self._topics, self._group, self._clock = broker, sorted(topics), group, clock
        self._membership: Membership | None = None
        self.backlog = Backlog()
        self._has: dict[Partition, int] = {}
        """Assigned partitions, each with the offset of its first record that has not been received."""
        self._uncommitted: set[Partition] = set()
        self._committed_s = clock.monotonic_s()
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        """Join the group. Raises `BrokerError`."""
        if self._membership is None:
            joining = self._broker.join(Subscription(f"{CLIENTS}{self._group}", self._topics), self)
            self._membership = await self._stack.enter_async_context(joining)

    async def poll(self) -> list[Record]:
        """Commit the positions of received records, then return the next records; none if none have come after a short
        wait. Raises `BrokerError`."""
        await self.open()
        assert self._membership is not None
        await self._commit(self._uncommitted)
        return list(await self._membership.poll(list(self._has), records_max=RECORDS_MAX, timeout_s=POLL_S))

    def has(self, record: Record) -> bool:
        """Return whether the application should still receive a record: it has not been received yet, its partition is
        still assigned to this client, and its topic was not deleted and created again."""
        partition = Partition(*record[:2])
        log_id = "" if self._membership is None else self._membership.log_id(partition)
        if record.log_id and log_id and record.log_id != log_id:
            return False
        return record.offset >= self._has.get(partition, record.offset + 1)

    async def mark_received(self, record: Record) -> None:
        """Record that the application has received a record, and commit positions if the last commit is old enough.

        A record that is no longer this client's changes nothing: its offset has no meaning in a new log, and another
        member of the group may have received more of the partition in the meantime.
        """
        if self.has(record):
            partition = Partition(*record[:2])
            self._has[partition] = record.offset + 1
            self._uncommitted.add(partition)
            if self._clock.monotonic_s() - self._committed_s >= COMMIT_EVERY_S:
                await self._commit(self._uncommitted)

    async def _commit(self, partitions: Collection[Partition]) -> None:
        """Commit the positions of received records in these partitions.

        If the broker is unavailable, the positions are committed later. If a partition now belongs to another member,
        that member receives the uncommitted records again.
        """
        offsets = {partition: self._has[partition] for partition in partitions if partition in self._has}
        if self._membership is None or not offsets:
            return
        self._committed_s = self._clock.monotonic_s()
        try:
            await self._membership.commit(offsets)
        except Fenced:
            # Nothing was committed. `on_lost` drops the partitions that are gone, and the next poll commits the others.
            log.info(
                "group %s: the partition was reassigned; another member receives the last events again", self._group
            )
            return
        except BrokerUnavailable as why:
            log.info(
                "group %s: the offsets of received events are not committed yet: %s", self._group, printable(str(why))
            )
            return
        self._uncommitted = {p for p in self._uncommitted if self._has.get(p) != offsets.get(p)}

    def stalled_partitions(self) -> Collection[StalledPartition]:
        """Return the partitions that cannot be read now."""
        return () if self._membership is None else self._membership.stalled_partitions()

    async def close(self) -> None:
        """Leave the group, after committing the positions of received records."""
        await self._stack.aclose()
        self._membership = None

    # ---------------------------------------------------------------- callbacks of the membership

    async def on_assigned(self, partitions: Mapping[Partition, int]) -> None:
        self._has.update(partitions)

    async def on_revoked(self, partitions: Collection[Partition]) -> None:
        await self._commit(self._uncommitted & set(partitions))
        self.on_lost(partitions)

    def on_lost(self, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            self._has.pop(partition, None)
            self._uncommitted.discard(partition)

    def on_expired(self, partition: Partition, first: int, after: int) -> None:
        log.warning("%s/%d: records %d to %d were removed before they were received", *partition, first, after - 1)

    def on_replaced(self, partition: Partition, position: int) -> None:
        self.backlog.drop(partition)  # even if the log has the same id, or none, and has lost records
        log.warning(
            "%s/%d: the topic was deleted and created again: its old records from offset %d on were not received",
            *(*partition, position),
        )

    def on_partitions_added(self, topic: str, before: int, now: int) -> None:
        log_added_partitions(topic, before, now)


def log_added_partitions(topic: str, before: int, now: int) -> None:
    """Log that a topic has more partitions than before."""
    log.warning("%s has %d partitions instead of %d: a key may lie in another one from now on", topic, now, before)


async def close_source(source: UngroupedReader | GroupReader) -> None:
    """Close the reader of a subscription that has ended. If the broker is unavailable, log that instead of raising."""
    try:
        await source.close()
    except BrokerUnavailable as why:
        log.warning("the broker was away when listening ended: %s", printable(str(why)))


class EventSubscription(Generic[E]):
    """Subscription to events, to be iterated: `async for event in client.listen(OrderConfirmed)`. See
    `Client.listen`."""

    def __init__(
        self,
        reader: EventReader[E],
        source: UngroupedReader | GroupReader,
        clock: Clock,
        ready: Callable[[], Awaitable[None]],
        closed: Callable[[UngroupedReader | GroupReader], None],
    ) -> None:
        """Create a subscription. Nothing is read yet.

        `ready`: function that checks that the topics exist, before the first read. `closed`: function that is called
        with `source` when the subscription ends.

        Only the application may hold a strong reference to a subscription, because `Client.listen` closes `source` when
        the subscription is garbage-collected.
        """
        self._reader, self._source, self._clock, self._ready, self._closed = reader, source, clock, ready, closed
        self._backlog = source.backlog
        self._is_open, self._begun = True, False
        self._unread: Record | None = None
        """Record with the event that the last request could not read. It is tried again at the next request."""
        self._logged: set[StalledPartition] = set()
        self._trouble = ""

    async def __aenter__(self) -> Self:
        """Begin to listen now, instead of when the first event is requested. Raises `SagaError`."""
        try:
            await self._begin()
        finally:
            await self._close_if_ended()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop listening, as `aclose` does."""
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        """Wait for the next event, and return it. During an outage of the broker this waits, and logs the outage once.

        Raises `UnknownSchema` for an event of a version that is not in `contracts/` here, `UpcasterFailed` for one that
        its upcaster fails to convert, `KeyMissing` for one whose encryption key is missing, and `KeysUnavailable` while
        the keys cannot be read. After each of these errors the next request tries the same event again, unless the
        application calls `skip`.
        """
        backlog, self._unread = self._backlog, None
        if backlog.given is not None:
            given, backlog.given = backlog.given, None
            await self._source.mark_received(given)
        while self._is_open:
            while backlog.waiting:
                record = backlog.waiting[0]
                event = await self._event_in(record) if self._source.has(record) else None
                if not backlog.waiting or backlog.waiting[0] is not record:  # dropped while its keys were read
                    continue
                backlog.waiting.popleft()
                if event is not None:
                    backlog.given = record
                    return event
                await self._source.mark_received(record)
            await self._take()
        raise StopAsyncIteration

    async def skip(self) -> None:
        """Leave out the event that the last request could not read, and log which one. In a group it counts as
        received.

        Use it for an event that no later release will be able to read, for example one that was encrypted with a key
        that does not exist. Raises `SagaError` unless the last request raised `UnknownSchema`, `UpcasterFailed` or
        `KeyMissing`. In particular, an outage cannot be skipped.
        """
        record, self._unread = self._unread, None
        if record is None:
            raise SagaError("no event can be skipped: the last request raised no error about its event")
        if self._backlog.waiting and self._backlog.waiting[0] is record:  # else its partition was taken away
            self._backlog.waiting.popleft()
            log.warning("%s/%d/%d is left out: the application skips it", *record[:3])
            await self._source.mark_received(record)

    async def aclose(self) -> None:
        """Stop listening. The last returned event does not count as received, so the group delivers it again."""
        if self._is_open:
            self._is_open = False
            self._closed(self._source)
            await close_source(self._source)

    async def _begin(self) -> None:
        await self._ready()
        await self._source.open()
        self._begun = True

    async def _close_if_ended(self) -> None:
        """Close the source again if `aclose` was called while it was being opened. Otherwise it would stay open, and
        its group would keep partitions for it."""
        if not self._is_open:
            await close_source(self._source)

    async def _event_in(self, record: Record) -> E | None:
        """Return the event in a record; `None` if it is not one of the subscribed events. A record that claims to be
        one of them, and can never be read, is logged and also gives `None`.

        Raises `UnknownSchema`, `UpcasterFailed` and `KeyMissing`, because another release of the application may be
        able to read the event. `skip` then applies to this record.
        """
        try:
            return await self._reader.event_in(record)
        except (UnknownSchema, UpcasterFailed, KeyMissing):
            self._unread = record
            raise
        except BadInput as why:
            log.warning("%s/%d/%d is left out: %s", *record[:3], printable(str(why)))
            return None

    async def _take(self) -> None:
        """Add the next polled records to the backlog. Before the first poll, open the reader. During an outage of the
        broker, log it once and wait before the next try."""
        try:
            if not self._begun:
                await self._begin()
            records = await self._source.poll()
            self._backlog.waiting.extend(records)
            self._trouble = ""
        except BrokerUnavailable as why:
            if not self._is_open:  # the subscription was closed meanwhile
                return
            if not self._trouble:
                log.warning("no events can be received, will retry: %s", printable(str(why)))
            self._trouble = str(why)
            await self._clock.sleep(AGAIN_S)
        finally:
            await self._close_if_ended()
        still = set(self._source.stalled_partitions())
        for standstill in still - self._logged:
            log.warning("%s", printable(standstill.reason))
        self._logged = still
