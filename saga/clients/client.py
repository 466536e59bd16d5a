"""`Client`: with it, an application that is not a service publishes events, asks for outcomes, and listens to events.

`OutcomeReader` answers all questions of a client about the outcomes of one kind of saga. It reads each partition once
and remembers at which offsets the outcomes are (`OffsetIndex`), so that later questions need no second search.
"""

import asyncio
import weakref
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from hashlib import blake2b
from typing import Any, Final, Generic, Self, TypeVar, overload
from weakref import WeakSet

from saga.broker.administration import Administration, OffsetBounds, PartitionReader
from saga.broker.port import APPLY, find_topic_problems, partition_of
from saga.clients.events import (
    EventReader,
    check_consumable,
    check_outcomes,
    check_principal,
    check_saga,
    encryptor_of,
    find_outcomes,
    to_record,
)
from saga.clients.subscription import (
    Begin,
    EventSubscription,
    GroupReader,
    UngroupedReader,
    check_group,
    close_source,
)
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.contracts.library import Binding, binding_of
from saga.errors import BrokerError, BrokerUnavailable, ConfigurationError, SagaError
from saga.messages import Event, Partition, Record, Topic
from saga.ops.sources import open_administration
from saga.registry.edge import problems_of
from saga.support.clock import Clock, SystemClock

E = TypeVar("E", bound=Event)
A = TypeVar("A", bound=Event)
B = TypeVar("B", bound=Event)
C = TypeVar("C", bound=Event)

ACKNOWLEDGED_S_MAX = 30.0
"""Longest time that `publish` waits for the broker's acknowledgement, in seconds."""

SAMPLE = 100
"""Number of a topic's oldest records that are read to detect whether its number of partitions was raised."""
REMEMBERED_MAX: Final = 1_000_000
"""Largest number of outcomes whose offsets are remembered, over all partitions of one kind of saga."""
CHUNK: Final = 4096
"""Number of outcomes in a sorted chunk of the index. The newest outcomes, fewer than this, are unsorted and searched
one by one."""
FOUND_S_MAX: Final = 60.0
"""Longest time for which one question waits until the existing records have been read, in seconds. If they take longer,
the question fails, and the next question continues where the search stopped. Also the longest time for which the broker
may send nothing while a question reads an outcome again."""
POLL_S, AGAIN_S = 0.1, 0.5
"""Longest wait for records before pending questions are checked again, and pause before a retry while the broker is
unavailable, in seconds."""
RECORDS_MAX = 2000
CLOSED = "the client was closed while it was asked"


class Client:
    """A client for an application that is not a service: it publishes events, asks for outcomes, and listens to events.

    `async with Client() as client: await client.publish(OrderPlaced(...))`
    """

    def __init__(self, broker: str | None = None, *, principal: str | None = None) -> None:
        """Create a client. It connects in `async with`.

        Args:
            broker: Address of the broker (`embedded:///path`); by default the setting `SAGA_BROKER`, as for services.
            principal: Principal of the sagas that the published events start, such as "user:4711", at most 256 bytes;
                see `publish`.

        Raises:
            SagaError: The principal is invalid.
        """
        check_principal(principal)
        self._address, self._principal = broker, principal
        self._clock: Clock = SystemClock()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Connect to the broker. Raises `SagaError` with reason and remedy if the broker refuses the connection, or
        cannot be reached within `SAGA_OPEN_S`."""
        settings = Settings.from_environment(broker=self._address)
        self._keys = wiring.open_keys(settings, self._clock)
        self._trace = wiring.current_trace(settings)
        self._broker = await self._stack.enter_async_context(open_administration(settings, self._clock))
        self._looking = asyncio.Lock()
        self._known: set[tuple[str, bool]] = set()
        """Topics that have been checked, as (topic, writes): `writes` is true if the right to write was checked,
        false if the right to read was checked."""
        self._outcomes: dict[frozenset[type[Event]], OutcomeReader[Any]] = {}
        self._loop = asyncio.get_running_loop()
        self._listening = WeakSet[EventSubscription[Any]]()
        self._sources: set[UngroupedReader | GroupReader] = set()
        """Readers of all open subscriptions, including those to which the application no longer refers."""
        self._closing: set[asyncio.Task[None]] = set()
        """Tasks that close the readers of dropped subscriptions."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Disconnect. No published event is lost, because events are durable when `publish` returns. Pending questions
        and subscriptions end with an error."""
        async with AsyncExitStack() as ending:  # if one of these ends with an error, the others end, too
            ending.push_async_callback(self._stack.aclose)
            ending.push_async_callback(self._close_all_dropped)
            for listening in self._listening:
                ending.push_async_callback(listening.aclose)
            for outcomes in self._outcomes.values():
                ending.push_async_callback(outcomes.close)

    async def publish(self, *events: Event, principal: str | None = None) -> None:
        """Publish events in this order. Return when all are durable.

        Guarantees:
        - The id of an event is computed from its contract, saga id and content. So publishing an equal event again has
          no further effect. This holds after an error, a timeout or a crash, even in another process.
        - An event that differs in one field is another event. So create an event once and publish that object again: a
          new timestamp would make it a different event. Two events that must both be handled must differ in a field.

        `principal`: the principal of the saga that an event starts, instead of the client's principal. It is added to
        events that start a saga, and passed on from there to every event, progress and handler of the saga
        (`saga.principal`). Other events ignore it. It is not part of the content: of two equal events, the principal of
        the first one is used.

        Raises `SagaError`. Nothing was published if clients may not publish an event, a field value violates the
        contract, an event is too large for `SAGA_RECORD_BYTES_MAX`, the principal is invalid, a sensitive field cannot
        be encrypted, or a topic, a right or a registered schema is missing (`ConfigurationError`). If the broker did
        not acknowledge in time, any of the events may have been published: publish them again.
        """
        check_principal(principal)
        who, bytes_max = principal or self._principal, self._broker.record_bytes_max
        encryptors, now_ms = [await encryptor_of(event, self._keys) for event in events], self._clock.now_ms()
        trace = None if self._trace is None else self._trace()
        records = [
            to_record(e, now_ms, bytes_max, who, encrypt, trace) for e, encrypt in zip(events, encryptors, strict=True)
        ]
        bindings = [binding_of(kind) for kind in {type(event) for event in events}]
        await self._with_topics({b.contract.topic: b.library.topics[b.contract.topic] for b in bindings}, writes=True)
        if any(binding.contract.subject for binding in bindings):
            await self._with_schemas(bindings)
        try:
            await self._clock.within(ACKNOWLEDGED_S_MAX, self._broker.publish(records))
        except (TimeoutError, BrokerUnavailable) as why:
            reason = f"within {ACKNOWLEDGED_S_MAX:.0f} s" if isinstance(why, TimeoutError) else f"({why})"
            raise SagaError(
                f"the broker did not acknowledge {reason}: any of the {len(events)} "
                "events may have been published; publish them again, an equal event is the same event"
            ) from why

    @overload
    async def outcome(self, saga: str, *, within: timedelta) -> Event | None: ...
    @overload
    async def outcome(self, saga: str, a: type[A], /, *, within: timedelta) -> A | None: ...
    @overload
    async def outcome(self, saga: str, a: type[A], b: type[B], /, *, within: timedelta) -> A | B | None: ...
    @overload
    async def outcome(
        self, saga: str, a: type[A], b: type[B], c: type[C], /, *, within: timedelta
    ) -> A | B | C | None: ...
    @overload
    async def outcome(self, saga: str, *events: type[E], within: timedelta) -> E | None: ...
    async def outcome(self, saga: str, *events: type[Event], within: timedelta) -> Event | None:
        """Return the outcome of a saga: the event with which a service ended it.

        The outcome may already have been published, or may be published within `within`. Return `None` if it has not
        been published by then.

        `events`: the classes of all outcomes of this kind of saga. If none are given, the outcomes in `contracts/` are
        used, provided that they belong to one kind of saga. Their classes are then made as `saga contracts generate`
        would write them.

        Guarantees:
        - `None` means that no outcome had been published by then, or that retention has already removed it.
        - A client reads each part of a topic only once, for the first question that needs it. The time `within` begins
          when the existing records have been read.
        - Any number of questions may be asked concurrently. The memory for remembered outcomes is bounded.

        Raises `SagaError`: a saga id that cannot be encoded as UTF-8; a class that is not an outcome; an outcome
        class that is missing, or belongs to another kind of saga; a missing topic; an outcome that cannot be read; a
        broker that is unavailable, or contains more records than can be read in a minute (ask again: the search
        continues where it stopped).
        """
        check_saga(saga)
        reader = EventReader(check_outcomes(events or find_outcomes()), self._keys)
        await self._with_topics(reader.topics, writes=False)
        asked = self._outcomes.setdefault(reader.classes, OutcomeReader(reader, self._broker, self._clock))
        return await asked.of(saga, within.total_seconds())

    @overload
    def listen(self, a: type[A], /, *, begin: Begin = ..., group: str | None = ...) -> EventSubscription[A]: ...
    @overload
    def listen(
        self, a: type[A], b: type[B], /, *, begin: Begin = ..., group: str | None = ...
    ) -> EventSubscription[A | B]: ...
    @overload
    def listen(
        self, a: type[A], b: type[B], c: type[C], /, *, begin: Begin = ..., group: str | None = ...
    ) -> EventSubscription[A | B | C]: ...
    @overload
    def listen(self, *events: type[E], begin: Begin = ..., group: str | None = ...) -> EventSubscription[E]: ...
    def listen(self, *events: type[Event], begin: Begin = "now", group: str | None = None) -> EventSubscription[Any]:
        """Subscribe to events of these classes, for use with `async for`. Their contracts must contain `"consumed_by":
        "external"`.

        `begin`: where to start. `"now"`: with events that are published after the subscription is opened, which is in
        `async with`, or else when the first event is requested. `"beginning"`: with the oldest events in the topics.

        `group`: name under which the broker stores the position up to which events were received, even while no client
        listens. A new group starts at the oldest events, and later continues at its position. Clients that listen in
        one group share its partitions. An event counts as received when the next one is requested, so each event is
        delivered to the group at least once.

        A subscription ends, and leaves its group, at the end of `async with`, with `aclose`, when the client is closed,
        or when nothing refers to it any more: after a `break`, a `return` or an exception in `async for event in
        client.listen(...)`.

        Guarantees:
        - Events come in order for each saga and topic.
        - A record that claims to be one of these events, and can never be read, is skipped and logged to `saga.client`.
        - During an outage of the broker the subscription waits, and logs the outage to `saga.client`.

        Raises `SagaError`: a contract that is not `"consumed_by": "external"`, an older version whose upcaster is not
        declared (`saga.upcast`), an invalid group name, or both `begin` and `group`. While listening: a missing topic,
        an event of a version that is not in `contracts/` yet, an event that its upcaster fails to convert, and an event
        whose encryption key is missing. Such an event is tried again when the next one is requested, unless
        `EventSubscription.skip` leaves it out.
        """
        reader = EventReader(check_consumable(events), self._keys)
        source: UngroupedReader | GroupReader
        if group is None:
            source = UngroupedReader(self._broker, reader.topics, begin, self._clock)
        else:
            source = GroupReader(self._broker, reader.topics, check_group(group, begin), self._clock)
        ready = partial(self._with_topics, reader.topics, writes=False)
        listening = EventSubscription(reader, source, self._clock, ready, self._sources.discard)
        self._listening.add(listening)
        self._sources.add(source)
        weakref.finalize(listening, self._on_dropped, source).atexit = False
        return listening

    def _on_dropped(self, source: UngroupedReader | GroupReader) -> None:
        """Close the reader of a subscription to which the application no longer refers. The garbage collector may call
        this in any thread."""
        if source in self._sources:
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._close_dropped, source)

    async def _close_all_dropped(self) -> None:
        for source in list(self._sources):
            self._close_dropped(source)
        if self._closing:
            await asyncio.wait(self._closing)

    def _close_dropped(self, source: UngroupedReader | GroupReader) -> None:
        if source in self._sources:
            self._sources.discard(source)
            task = self._loop.create_task(close_source(source), name="close a dropped subscription")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _with_topics(self, topics: Mapping[str, Topic], *, writes: bool) -> None:
        """Check that these topics exist, and that this user may write or read them. Raises `ConfigurationError` if an
        operator has to act."""
        if self._known.issuperset((topic, writes) for topic in topics):
            return
        async with self._looking:  # one at a time: the second one nearly always finds that the first has checked
            if not self._known.issuperset((topic, writes) for topic in topics):
                await self._check_topics(topics, writes=writes)
                self._known |= {(topic, writes) for topic in topics}

    async def _check_topics(self, topics: Mapping[str, Topic], *, writes: bool) -> None:
        nothing = "nothing was published" if writes else "nothing can be received"
        reads, written = ((), topics) if writes else (topics, ())
        problems = await find_topic_problems(list(topics.values()), self._broker, reads, written)
        if problems:
            raise ConfigurationError(
                f"{nothing}: the operator of the services has to make the topics as the contracts want them: "
                f"{APPLY} MODULES",
                problems,
            )
        if forbidden := await self._broker.find_missing_rights(reads, written):
            raise ConfigurationError(
                f"{nothing}: have this user allowed to {'publish' if writes else 'listen'}:", forbidden
            )

    async def _with_schemas(self, bindings: Sequence[Binding]) -> None:
        """Check that these events can be published in the wire formats of their topics. Raises `ConfigurationError` if
        an operator has to act."""
        versions = [(binding.contract, binding.version) for binding in bindings]
        if problems := await problems_of(self._broker, versions):
            raise ConfigurationError(
                "nothing was published: the schemas of what is published have to be there:", problems
            )


# -------------------------------------------------------------------- outcomes


class OffsetIndex:
    """Index of a partition's outcomes from the offset `begin` on. It finds the offset at which a saga's outcome may
    be."""

    def __init__(self, begin: int) -> None:
        """Create an empty index of the records from this offset on."""
        self.begin = begin
        """Offset from which on the index contains all outcomes."""
        self._chunks: deque[tuple[array[int], array[int]]] = deque()
        """Sorted hashes of keys with their offsets, one pair of arrays for each chunk."""
        self._newest: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return CHUNK * len(self._chunks) + len(self._newest)

    def add(self, key: bytes, offset: int) -> None:
        """Add the offset of an outcome."""
        self._newest.append((_hash(key), offset))
        if len(self._newest) == CHUNK:
            hashes, offsets = zip(*sorted(self._newest), strict=True)
            self._chunks.append((array("Q", hashes), array("Q", offsets)))
            self._newest = []

    def of(self, key: bytes) -> list[int]:
        """Return the offsets at which the outcome of a saga may be, in ascending order. There is rarely more than one,
        because only keys with the same hash share an entry."""
        wanted = _hash(key)
        found = [offset for hash_, offset in self._newest if hash_ == wanted]
        for hashes, offsets in self._chunks:
            at = bisect_left(hashes, wanted)
            while at < len(hashes) and hashes[at] == wanted:
                found.append(offsets[at])
                at += 1
        return sorted(found)

    def forget_oldest(self) -> None:
        """Drop the oldest chunk, if there is one."""
        if self._chunks:
            _, offsets = self._chunks.popleft()
            self.begin = max(offsets) + 1


def _hash(key: bytes) -> int:
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


@dataclass(eq=False)
class OutcomePartition:
    """A partition of an outcome topic, and how far it has been read."""

    places: OffsetIndex
    next: int


@dataclass(eq=False)
class OutcomeQuery:
    """A pending question about the outcome of one saga."""

    key: bytes
    partitions: tuple[Partition, ...]
    ends: Mapping[Partition, OffsetBounds] | None = None
    """Bounds of the partitions at about the time of the question; `None` if they have not been looked up yet."""
    caught_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Event that is set when all records that existed at the time of the question have been read, or when the question
    has been answered or has failed."""
    answer: asyncio.Future[Record] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Future for the record of an outcome that was published while the question was pending."""


async def _poll(reading: PartitionReader) -> Sequence[Record]:
    return await reading.poll(records_max=RECORDS_MAX, timeout_s=POLL_S)


class OutcomeReader(Generic[E]):
    """Reader that answers all questions of one client about the outcomes of one kind of saga."""

    def __init__(self, events: EventReader[E], broker: Administration, clock: Clock) -> None:
        self._events, self._broker, self._clock = events, broker, clock
        self._strands: dict[Partition, OutcomePartition] = {}
        self._log_ids: dict[str, str] = {}
        """Ids of the logs to which the offsets of the partitions belong."""
        self._askers: set[OutcomeQuery] = set()
        self._reader: asyncio.Task[None] | None = None
        self._counting: asyncio.Task[Mapping[str, int]] | None = None
        self._news = asyncio.Event()
        """Event that is set when a question was added."""
        self._trouble = ""
        """Reason why nothing can be read at present; empty if there is none."""
        self._counts: Mapping[str, int] = {}
        """Number of partitions of each topic, as of the last lookup."""
        self._sampled: set[str] = set()
        self._scattered = {c.topic for c in events.contracts.values() if c.produced_externally}
        """Topics in which an outcome may be in any partition, because other senders use an unknown partitioner or the
        number of partitions was raised."""

    async def of(self, saga: str, within_s: float) -> E | None:
        """Return the outcome of a saga; `None` if there is none within `within_s` seconds after all existing records
        have been read.

        Raises:
            BrokerUnavailable: The log could not be read.
            BadInput: The outcome cannot be decoded.
        """
        key = saga.encode()
        self._counts = await self._count_partitions()
        asker = OutcomeQuery(key, self._places_of(key))
        self._askers.add(asker)
        self._news.set()
        if self._reader is None or self._reader.done():
            self._reader = asyncio.get_running_loop().create_task(self._read(), name="outcomes")
            self._reader.add_done_callback(self._end_reading)
        try:
            if (record := await self._find_existing(asker)) is None:
                record = await self._clock.within(within_s, asyncio.shield(asker.answer))
        except TimeoutError:
            return None
        finally:
            self._askers.discard(asker)
            if not asker.answer.cancel() and not asker.answer.cancelled():
                asker.answer.exception()  # mark as retrieved, so that asyncio does not log it
        return await self._events.event_in(record)

    def _places_of(self, key: bytes) -> tuple[Partition, ...]:
        """Return the partitions in which the outcome of a saga may be."""
        return tuple(
            Partition(topic, number)
            for topic, count in self._counts.items()
            for number in (range(count) if topic in self._scattered else (partition_of(key, count),))
        )

    def _check_partitioner(self, records: Iterable[Record]) -> None:
        """Detect records that another partitioner has placed, and search all partitions of their topics from now on.

        The sender may use another partitioner, or the topic may have had fewer partitions when the record was written.
        """
        for record in records:
            topic, number, _, key = record[:4]
            count = self._counts.get(topic, 0)
            if topic in self._scattered or not key or number >= count or partition_of(key, count) == number:
                continue
            self._scattered.add(topic)
            for asker in self._askers:
                asker.partitions, asker.ends = self._places_of(asker.key), None
                if not asker.answer.done():
                    asker.caught_up.clear()  # together with `ends`: see `_find_existing`

    async def _sample(self, bounds: Mapping[Partition, OffsetBounds]) -> None:
        """Read the oldest records of partition 0 of each topic that this reader did not know before. A key in the wrong
        partition shows that the sender uses another partitioner, or that the number of partitions was raised; then all
        partitions of the topic are searched."""
        for topic in {partition.topic for partition in bounds} - self._sampled - self._scattered:
            oldest = Partition(topic, 0)
            if bounds[oldest].begin == bounds[oldest].end:
                continue
            async with self._broker.open_reader({oldest: bounds[oldest].begin}) as reading:
                self._check_partitioner(await reading.poll(records_max=SAMPLE, timeout_s=POLL_S))
            self._sampled.add(topic)

    async def _count_partitions(self) -> Mapping[str, int]:
        """Return the number of partitions of each topic. Concurrent callers share one request, because Kafka answers it
        for all topics."""
        if self._counting is None:
            self._counting = asyncio.get_running_loop().create_task(self._look())
            self._counting.add_done_callback(lambda look: look.cancelled() or look.exception())  # retrieved
        counting, caller = self._counting, asyncio.current_task()
        try:
            return await asyncio.shield(counting)
        except asyncio.CancelledError:
            if counting.cancelled() and caller is not None and not caller.cancelling():
                raise BrokerError(CLOSED) from None  # the caller must not count as cancelled
            raise

    async def _look(self) -> Mapping[str, int]:
        try:
            return await self._broker.count_partitions(self._events.topics)
        finally:
            self._counting = None

    async def close(self) -> None:
        """Stop reading; pending questions end with an error."""
        for task in (self._reader, self._counting):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    # ---------------------------------------------------------------- search in what the log holds

    async def _find_existing(self, asker: OutcomeQuery) -> Record | None:
        """Wait until the existing records have been read. Return the saga's outcome if it has been published by now,
        else `None`."""
        while True:
            try:
                await self._clock.within(FOUND_S_MAX, asker.caught_up.wait())
            except TimeoutError:
                raise BrokerUnavailable(
                    f"what the broker has could not be looked through within {FOUND_S_MAX:.0f} s: "
                    f"{self._trouble or 'there is much of it'}; ask again, it goes on where it is"
                ) from None
            if asker.answer.done():
                return asker.answer.result()
            if (ends := asker.ends) is None:
                continue  # another partitioner was noticed just now: the outcome may be in other partitions, too
            record = await self._search_all(asker.key, ends)
            if record is not None or ends is asker.ends:  # else it was noticed during the search
                return record

    async def _search_all(self, key: bytes, ends: Mapping[Partition, OffsetBounds]) -> Record | None:
        """Return the outcome of a saga in partitions that have been read; `None` if there is none."""
        for partition in ends:
            for at in self._strands[partition].places.of(key):
                if (record := await self._search(partition, key, range(at, at + 1))) is not None:
                    return record
        for partition, bounds in ends.items():  # the index does not reach back to the beginning of the log
            before = range(bounds.begin, self._strands[partition].places.begin)
            if before and (record := await self._search(partition, key, before)) is not None:
                return record
        return None

    async def _search(self, partition: Partition, key: bytes, offsets: range) -> Record | None:
        """Return the first record at one of these offsets that is an outcome of the saga; `None` if there is none.

        Raises `BrokerUnavailable` if the broker sends nothing for `FOUND_S_MAX` seconds. Kafka's client does not report
        that no broker answers, and waits for ever for an offset that a log has lost.
        """
        reached, since_s = offsets.start, self._clock.monotonic_s()
        async with self._broker.open_reader({partition: offsets.start}) as reading:
            while (at := reading.positions()[partition]) < offsets.stop:
                if at != reached:
                    reached, since_s = at, self._clock.monotonic_s()
                elif self._clock.monotonic_s() - since_s >= FOUND_S_MAX:
                    raise BrokerUnavailable(
                        f"the broker has sent no record of {partition.topic}/{partition.number} from offset {at} on "
                        f"for {FOUND_S_MAX:.0f} s: ask again"
                    )
                for record in await reading.poll(records_max=min(len(offsets), RECORDS_MAX), timeout_s=POLL_S):
                    if record.offset in offsets and record.key == key and self._is_outcome(record):
                        return record
                if any(each.topic == partition.topic for each in reading.stalled_partitions()):
                    raise BrokerUnavailable("; ".join(each.reason for each in reading.stalled_partitions()))
        return None

    # ---------------------------------------------------------------- new records

    def _end_reading(self, reader: asyncio.Task[None]) -> None:
        """Make all pending questions fail with the error that ended the reading task, unless a newer task answers
        them."""
        if reader is not self._reader:
            return
        trouble = None if reader.cancelled() else reader.exception()
        for asker in self._askers:
            if not asker.answer.done():
                asker.answer.set_exception(trouble or BrokerError(CLOSED))
            asker.caught_up.set()

    async def _read(self) -> None:
        """Read and index new records while there are pending questions."""
        while self._askers:
            try:
                await self._read_on()
                self._trouble = ""
            except BrokerUnavailable as why:
                self._trouble = str(why)
                await self._clock.sleep(AGAIN_S)

    async def _read_on(self) -> None:
        """Read the partitions of all pending questions. Return when no question is pending, or when one needs a
        partition that is not read yet."""
        await self._look_up()
        wanted = {partition for asker in self._askers for partition in asker.ends or ()}
        begins = {partition: self._strands[partition].next for partition in wanted}
        async with self._broker.open_reader(begins, self._log_ids) as reading:
            polling: asyncio.Task[Sequence[Record]] | None = None
            try:
                while True:
                    # No `await` until the positions are stored: index and positions belong together.
                    if polling is not None and polling.done():
                        self._forget_replaced(reading.log_ids())
                        for record in polling.result():
                            self._remember(record)
                        # After `_remember`, because this makes questions look up their partitions again, and such
                        # questions are not answered by `_remember`. Only one record of each partition is checked,
                        # because hashing all keys takes as long as reading them.
                        self._check_partitioner({record[:2]: record for record in polling.result()}.values())
                        self._trouble, polling = "; ".join(each.reason for each in reading.stalled_partitions()), None
                    for partition, position in reading.positions().items():
                        self._strands[partition].next = position
                    self._answer_caught_up()
                    if not self._askers or any(not wanted.issuperset(asker.ends or ()) for asker in self._askers):
                        return
                    if polling is None:
                        polling = asyncio.get_running_loop().create_task(_poll(reading))
                    await self._wait_for_records(polling)
                    await self._look_up()
            finally:
                if polling is not None:
                    polling.cancel()
                    await asyncio.wait([polling])
                    if not polling.cancelled():
                        polling.exception()  # mark as retrieved, so that asyncio does not log it

    def _forget_replaced(self, log_ids: Mapping[str, str]) -> None:
        """Drop the index of topics that were deleted and created again, because they are read from the beginning."""
        replaced = {topic for topic, id_ in log_ids.items() if self._log_ids.get(topic, id_) != id_}
        self._log_ids.update(log_ids)
        for partition, strand in self._strands.items():
            if partition.topic in replaced:
                strand.places = OffsetIndex(0)
        for asker in self._askers:
            if not asker.caught_up.is_set() and any(partition.topic in replaced for partition in asker.partitions):
                asker.ends = None

    async def _wait_for_records(self, polling: asyncio.Task[Sequence[Record]]) -> None:
        """Wait until the poll has returned, with or without records, or until a question was added."""
        news = asyncio.get_running_loop().create_task(self._news.wait())
        await asyncio.wait([polling, news], return_when=asyncio.FIRST_COMPLETED)
        news.cancel()
        self._news.clear()

    async def _look_up(self) -> None:
        """Look up the ends of the partitions for new questions, and start to read partitions that were not read
        before."""
        new = [asker for asker in self._askers if asker.ends is None]
        if not new:
            return
        bounds = await self._broker.fetch_bounds(sorted({p.topic for asker in new for p in asker.partitions}))
        await self._sample(bounds)  # first: it may show that an outcome may be in any partition
        if unknown := {partition for asker in new for partition in asker.partitions} - bounds.keys():
            topics = ", ".join(sorted({partition.topic for partition in unknown}))
            raise BrokerUnavailable(f"the broker does not know all partitions of {topics} yet: it is tried again")
        for asker in new:
            asker.ends = {partition: bounds[partition] for partition in asker.partitions}
            for partition, found in asker.ends.items():
                if partition not in self._strands:
                    self._strands[partition] = OutcomePartition(OffsetIndex(found.begin), found.begin)

    def _answer_caught_up(self) -> None:
        for asker in self._askers:
            if asker.ends is not None and all(self._strands[p].next >= b.end for p, b in asker.ends.items()):
                asker.caught_up.set()

    def _remember(self, record: Record) -> None:
        """Add an outcome to the index, and complete the pending questions about its saga."""
        strand = self._strands[Partition(*record[:2])]
        if record.key is None or not self._is_outcome(record):
            return
        strand.places.add(record.key, record.offset)
        if sum(len(each.places) for each in self._strands.values()) > REMEMBERED_MAX:
            max(self._strands.values(), key=lambda each: len(each.places)).places.forget_oldest()
        for asker in self._askers:
            if asker.key == record.key and asker.ends is not None and not asker.answer.done():
                asker.answer.set_result(record)
                asker.caught_up.set()

    def _is_outcome(self, record: Record) -> bool:
        return self._events.is_one(record)
