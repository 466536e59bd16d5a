"""Fetching that isolates partitions: trouble with one of them delays no other and loses nothing.

aiokafka's own fetcher drops what it has taken of healthy partitions when another one raises, skips a truncated batch,
dies from a malformed response, and swallows most errors that brokers report. Batches are parsed at the end of this
module.
"""

import asyncio
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias, cast

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode
from aiokafka.consumer.fetcher import Fetcher, FetchResult
from aiokafka.consumer.subscription_state import Assignment
from aiokafka.errors import (
    CorruptRecordException,
    KafkaError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    UnsupportedCodecError,
    for_code,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import decode_varint

from saga.broker.kafka.client import FAILED, to_broker_error
from saga.broker.kafka.consumers import LogIds
from saga.broker.kafka.errors import AGAIN, translate_error
from saga.errors import BrokerError
from saga.messages import Partition, Record, StalledPartition
from saga.support.clock import Clock

AGAIN_S_FIRST, AGAIN_S_MAX = 0.1, 5.0
"""Pauses before a partition is read again that cannot be read. All others go on meanwhile."""
PATIENCE_S = 2.0
"""Seconds that trouble has to last before it is told: most passes by itself, as a change of leader."""
OF_TOPICS: tuple[type[KafkaError], ...] = (TopicAuthorizationFailedError, UnknownTopicOrPartitionError)
"""Errors that concern all partitions of a topic alike."""


@dataclass(slots=True)
class FetchFailure:
    """Why a partition cannot be read."""

    offset: int
    reason: str
    patience_s: float = 0.0
    of_topic: bool = False
    since_s: float = 0.0
    again_s: float = AGAIN_S_FIRST
    """Pause before it is read again."""


class IsolatingFetcher(Fetcher):  # type: ignore[misc]  # aiokafka has no types
    """A fetcher that replaces the consumer's own one while the consumer runs."""

    def __init__(self, consumer: AIOKafkaConsumer, clock: Clock, tell: Callable[[], None]) -> None:
        """Begin without partitions. `tell`: called when something that people are told of may have changed."""
        super().__init__(
            consumer._client,
            consumer._subscription,
            fetch_min_bytes=consumer._fetch_min_bytes,
            fetch_max_bytes=consumer._fetch_max_bytes,
            fetch_max_wait_ms=consumer._fetch_max_wait_ms,
            max_partition_fetch_bytes=consumer._max_partition_fetch_bytes,
            fetcher_timeout=consumer._consumer_timeout,
            retry_backoff_ms=consumer._retry_backoff_ms,
            auto_offset_reset=consumer._auto_offset_reset,
            isolation_level=consumer._isolation_level,
        )
        self.out_of_range: dict[TopicPartition, int] = {}
        """Partitions that have nothing at our offset: whoever reads has to say where to go on. Not asked for again."""
        self.log_ids = LogIds(clock)
        """Ids of the logs that are read, as whoever reads goes by them."""
        self._clock, self._tell = clock, tell
        self._standstills: dict[TopicPartition, FetchFailure] = {}
        self._timers: dict[TopicPartition, asyncio.TimerHandle] = {}
        self._told: list[StalledPartition] = []

    def begin(self) -> None:
        """Begin another assignment: nothing is known of its partitions."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers, self._standstills, self.out_of_range = {}, {}, {}
        self._tell_news()  # or what stands still again would be taken for told

    def stalled_partitions(self) -> list[StalledPartition]:
        """Standstills to be told to people; one for a whole topic."""
        now_s = self._clock.monotonic_s()
        found: dict[tuple[str, int | None], StalledPartition] = {}
        for (topic, number), each in self._standstills.items():
            if now_s - each.since_s >= each.patience_s:
                part = None if each.of_topic else number
                found[topic, part] = StalledPartition(topic, part, None if each.of_topic else each.offset, each.reason)
        return list(found.values())

    async def close(self) -> None:
        self.begin()
        await super().close()

    # ---------------------------------------------------------------- what comes

    async def _proc_fetch_request(self, assignment: Assignment, node_id: int, request: FetchRequest) -> bool:
        """Send one request to one broker; true if there is something to take."""
        try:
            response = await self._client.send(node_id, request)
        except KafkaError:
            with suppress(asyncio.CancelledError):
                await self._clock.sleep(self._retry_backoff)
            return False
        except asyncio.CancelledError:
            return False
        if not assignment.active:
            return False
        asked = {
            TopicPartition(topic, number): offset
            for topic, partitions in request.topics
            for number, offset, _ in partitions
        }
        came = any(data for _, partitions in response.topics for *_, data in partitions)
        for topic, partitions in response.topics:
            for number, code, highwater, stable, *more, data in partitions:
                place = TopicPartition(topic, number)
                state = assignment.state_value(place)
                if not state.has_valid_position or state.position != asked[place] or state.paused:
                    continue  # it has been moved meanwhile
                if code != 0:
                    self._handle_error(assignment, place, state.position, for_code(code))
                    continue
                state.highwater, state.lso = highwater, stable
                if data:
                    aborted = more[1] if response.API_VERSION >= 11 else more[-1]
                    self._records[place] = self._make_result(assignment, place, data, aborted or (), highwater)
                elif state.position < stable:
                    self._handle_empty(assignment, place, state.position, stable, alone=not came)
                else:
                    self._resume(place)
        return came

    def _make_result(
        self,
        assignment: Assignment,
        place: TopicPartition,
        data: bytes,
        aborted: Collection[tuple[int, int]],
        highwater: int,
    ) -> FetchResult:
        def tell(offset: int, why: Exception | None) -> None:
            if why is None:
                self._resume(place)
            else:
                self._stall(assignment, place, FetchFailure(offset, find_unreadable_range(place, offset, why)))

        batches = RecordBatches(place, data, assignment.state_value(place).position, aborted, highwater, tell)
        batches.log_id = self.log_ids.get(place.topic, "")
        return FetchResult(place, partition_records=batches, assignment=assignment, backoff=self._prefetch_backoff)

    # ---------------------------------------------------------------- what does not come

    def resume_at(self, place: TopicPartition, offset: int) -> None:
        """Read a partition from there on."""
        self.out_of_range.pop(place, None)
        self.seek_to(place, offset)
        self._subscriptions.subscription.assignment.state_value(place).resume()

    def _handle_error(self, assignment: Assignment, place: TopicPartition, offset: int, kind: type[KafkaError]) -> None:
        """Note why the broker says that nothing comes of a partition."""
        if kind is OffsetOutOfRangeError:
            assignment.state_value(place).pause()
            self.out_of_range[place] = offset
            return
        self._client.force_metadata_update()  # it may be elsewhere by now
        passes = kind in AGAIN and kind is not CorruptRecordException
        doing = f"{place.topic}/{place.partition} stands at offset {offset}"
        trouble = translate_error(kind(place.topic), doing, "Read", waits=True)
        patience_s = PATIENCE_S if passes or kind is UnknownTopicOrPartitionError else 0.0
        self._stall(assignment, place, FetchFailure(offset, str(trouble), patience_s, kind in OF_TOPICS))

    def _handle_empty(
        self, assignment: Assignment, place: TopicPartition, offset: int, stable: int, *, alone: bool
    ) -> None:
        """Note that nothing came of a partition, though there is something. That may be once, if others took all the
        room: so it is left alone only if they did not."""
        reason = (
            f"{place.topic}/{place.partition} stands at offset {offset}: the brokers have records up to {stable - 1}, "
            "and hand out none of them, as they do if what they have stored is damaged: have it restored, or step over "
            "it with `saga offsets skip`"
        )
        self._stall(assignment, place, FetchFailure(offset, reason, PATIENCE_S), rests=alone)

    def _stall(self, assignment: Assignment, place: TopicPartition, new: FetchFailure, *, rests: bool = True) -> None:
        """Leave a partition alone for a while, and nothing else."""
        before, new.since_s = self._standstills.get(place), self._clock.monotonic_s()
        if before is not None and before.offset == new.offset:
            new.since_s, new.again_s = before.since_s, min(2 * before.again_s, AGAIN_S_MAX)
        self._standstills[place] = new
        if rests:
            state = assignment.state_value(place)
            state.pause()
            self._timers[place] = self._loop.call_later(new.again_s, state.resume)
        self._tell_news()

    def _resume(self, place: TopicPartition) -> None:
        if self._standstills.pop(place, None) is not None:
            self._tell_news()

    def _tell_news(self) -> None:
        """Tell news, if there are any: a partition is tried again and again."""
        now = self.stalled_partitions()
        if now != self._told:
            self._told = now
            self._tell()


def isolate_partitions(consumer: AIOKafkaConsumer, clock: Clock, tell: Callable[[], None]) -> IsolatingFetcher:
    """Give a consumer a fetcher of this kind. To be called as soon as it has started, before it has partitions."""
    old = consumer._fetcher
    old._fetch_task.cancel()  # it has not begun to wait for anything but partitions
    consumer._fetcher = fetching = IsolatingFetcher(consumer, clock, tell)
    return fetching


def find_unreadable_range(place: TopicPartition, offset: int, why: Exception) -> str:
    """Text for people about bytes that cannot be read."""
    if isinstance(why, UnsupportedCodecError):
        return str(translate_error(why, f"{place.topic}/{place.partition} stands at offset {offset}"))
    said = " ".join(str(part) for part in why.args) if isinstance(why, KafkaError) else f"{type(why).__name__}: {why}"
    return (
        f"{place.topic}/{place.partition} stands at offset {offset}, which cannot be read: {said[:300]}; it is tried "
        "again: have the topic's data restored, or step over it with `saga offsets skip`"
    )


# ---------------------------------------------------------------- records fetched ahead


GET_MS = 100
"""Longest wait of one `getmany`; one for other partitions can go on beside it."""
REST_S = 1.0
"""Time for which a partition is left alone of which aiokafka makes nothing but exceptions."""


class Prefetch:
    """Buffer of records between `getmany` and `poll`.

    A cancelled `getmany` would count as running for ever, and during a rebalance `getmany` waits without limit. So each
    one runs in a task of its own. There are never two for one partition, and none for a partition with buffered
    records, which bounds the buffer.

    A `getmany` that raises has dropped what it had taken of the other partitions, whose positions have moved. So all
    its partitions are set back to the end of the buffer, and read one by one until the culprit is found."""

    def __init__(self, group: str, clock: Clock, tell: Callable[[], None]) -> None:
        """Begin with nothing fetched. `tell`: called when what stands still is different."""
        self.news = asyncio.Event()
        """Event that is set when something has come, or failed, or may be asked for again."""
        self.failure: BrokerError | None = None
        """Last failure; whoever tells it puts it away."""
        self.standstills: dict[Partition, StalledPartition] = {}
        """Partitions of which aiokafka makes nothing but exceptions."""
        self._group, self._clock, self._tell = group, clock, tell
        self._consumer: AIOKafkaConsumer | None = None
        self._buffer: dict[Partition, list[Record]] = {}
        self._ends: dict[Partition, int] = {}
        """Offset after what has come, of each partition."""
        self._apart = False
        """True if partitions are asked for one by one."""
        self._asked: set[Partition] = set()
        self._gets: set[asyncio.Task[None]] = set()

    def begin(self, consumer: AIOKafkaConsumer) -> None:
        """Take from this consumer from now on. What one before it may still give is dropped."""
        self._consumer = consumer
        self._asked = set()

    def start(self, offsets: Mapping[Partition, int]) -> None:
        """Begin an assignment, at these offsets. What a `getmany` has brought since all was forgotten is of the one
        before, and comes again if it is ours."""
        self.forget()
        self._ends = dict(offsets)
        self._apart = False
        self._set_standstills({})

    def resume_at(self, partition: Partition, offset: int) -> None:
        """Read it from there on: a `getmany` that fails must not go back to what is not there any more."""
        self._buffer.pop(partition, None)
        self._ends[partition] = offset

    def forget(self) -> None:
        """Give everything up: what comes from now on is of the next assignment."""
        self._buffer.clear()

    async def end(self) -> None:
        """End all that is under way. To be called when the consumer has stopped: then nobody minds what is
        cancelled."""
        self._consumer = None
        self.forget()
        for get in self._gets:
            get.cancel()
        if self._gets:
            await asyncio.wait(self._gets)

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._buffer

    def list_buffered(self, partitions: Collection[Partition]) -> list[Partition]:
        """Partitions of which something lies here, longest first."""
        return [partition for partition in self._buffer if partition in partitions]

    def take(self, partition: Partition, records_max: int) -> list[Record]:
        """Take the next records of a partition."""
        queue = self._buffer.pop(partition)
        if len(queue) > records_max:
            self._buffer[partition] = queue[records_max:]
            return queue[:records_max]
        return queue

    def request(self, partitions: Iterable[Partition], records_max: int) -> None:
        """Have records of these partitions fetched, where that is not under way."""
        wanted = [p for p in partitions if p not in self._asked and p not in self._buffer]
        consumer = self._consumer
        if not wanted or consumer is None:
            return
        self._asked.update(wanted)
        for asked in [[partition] for partition in wanted] if self._apart else [wanted]:
            get = asyncio.get_running_loop().create_task(self._get(consumer, asked, records_max))
            self._gets.add(get)
            get.add_done_callback(self._gets.discard)

    async def _get(self, consumer: AIOKafkaConsumer, partitions: Sequence[Partition], records_max: int) -> None:
        """Fetch once. It may be under way while an assignment ends and another begins; what it gets then is of the
        other one."""
        try:
            got = await consumer.getmany(
                *(TopicPartition(*partition) for partition in partitions), timeout_ms=GET_MS, max_records=records_max
            )
        except Exception as why:  # noqa: BLE001 - whatever it is: what was taken has to come again
            if consumer is self._consumer:
                self._seek_back(consumer, partitions)
                if isinstance(why, FAILED):
                    self.failure = to_broker_error(why, f"group {self._group!r}: reading", "Read", waits=True)
                elif len(partitions) > 1:
                    self._apart = True
                else:
                    await self._pause(partitions[0], why)
        else:
            if consumer is self._consumer:  # nothing has run since they were handed out: their order is kept
                for place, records in got.items():
                    partition = Partition(*place)
                    self._buffer.setdefault(partition, []).extend(records)
                    self._ends[partition] = records[-1].offset + 1
                if self._apart or self.standstills:
                    self._confirm(partitions)
        finally:
            if consumer is self._consumer:
                self._asked.difference_update(partitions)
            self.news.set()

    def _seek_back(self, consumer: AIOKafkaConsumer, partitions: Collection[Partition]) -> None:
        """Have aiokafka go on where it ends."""
        ours = consumer.assignment()
        for partition in partitions:
            place = TopicPartition(*partition)
            if partition in self._ends and place in ours:
                consumer.seek(place, self._ends[partition])

    async def _pause(self, partition: Partition, why: Exception) -> None:
        """Leave a partition alone for a while that has failed by itself."""
        at = self._ends.get(partition)
        if at is None:  # it is somebody else's by now
            return
        said = f"{partition.topic}/{partition.number} cannot be read from offset {at} on: {type(why).__name__}: {why}"
        advice = "it is tried again: report it with this message; `saga offsets skip` may step over what is there"
        self._set_standstills(
            self.standstills | {partition: StalledPartition(*partition, at, f"{said[:300]}: {advice}")}
        )
        self.news.set()
        await self._clock.sleep(REST_S)

    def _confirm(self, partitions: Collection[Partition]) -> None:
        """Ask for all together again, when each has been found to work."""
        self._set_standstills({other: each for other, each in self.standstills.items() if other not in partitions})
        self._apart = bool(self.standstills)

    def _set_standstills(self, standstills: dict[Partition, StalledPartition]) -> None:
        """Note the standstills there are from here on, and no others."""
        if standstills != self.standstills:
            self.standstills = standstills
            self._tell()


# ---------------------------------------------------------------- record batches
#
# Batches of one partition are read so that the first unreadable offset is known and nothing is skipped. Bytes come from
# disks and networks. The checksum of a batch covers its records, but neither its offset nor its length; and records may
# be garbage with a valid checksum if a program wrote them so. aiokafka's own parser can raise any exception, after
# which it is unknown how far it came.


HEADER = struct.Struct(">qiibIhiqqqhii")
"""Header of a batch: its first offset, length, and ten fields more; see the protocol guide of Apache Kafka."""
PLACE_BYTES = 12
"""Bytes of a batch's offset and length, which the length does not count."""
OFFSET_BYTES = 8
CODECS: dict[int, Callable[[bytes], bytes]] = {1: gzip_decode, 2: snappy_decode, 3: lz4_decode, 4: zstd_decode}
CODEC_MASK, APPEND_TIME = 0x07, 0x08

Tell: TypeAlias = Callable[[int, Exception | None], None]
"""Function that is told how far a fetch could be read, and what is wrong there; `None`: it was read to its end."""


class BatchRecord(NamedTuple):
    """Record of a batch, with the names that aiokafka gives to the fields."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class RecordBatches:
    """Batches that one fetch has brought of one partition, as an iterator of records that never raises.

    It has what aiokafka wants of its `PartitionRecords`. Records of aborted transactions are left out.
    """

    def __init__(
        self,
        place: TopicPartition,
        data: bytes,
        offset: int,
        aborted: Collection[tuple[int, int]],
        end: int,
        tell: Tell,
    ) -> None:
        """Begin to read. `offset`: what was asked for. `aborted`: producers, and where their transactions began. `end`:
        of the partition."""
        self.next_fetch_offset = offset
        """Offset below which all has been read, or is no record: where transactions ended, or what compaction
        removed."""
        self.log_id = ""
        """Id of the log in which the records lie."""
        self._place, self._data, self._end, self._tell = place, data, end, tell
        self._aborted = sorted(aborted, key=lambda each: each[1], reverse=True)
        self._aborting: set[int] = set()
        self._records = self._unpack()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        try:
            return next(self._records)
        except StopIteration:
            raise
        except Exception as why:  # bytes may be anything, and so may what decoding them raises
            self._tell(self.next_fetch_offset, why)
            raise StopIteration from why

    def _unpack(self) -> Iterator[Record]:
        batches = MemoryRecords(self._data)
        if self._data and not batches.has_next():  # a broker sends the first batch whole, however large
            raise CorruptRecordException("a batch is shorter than it says it is")
        topic, number = self._place
        first = True
        while batches.has_next():
            batch = batches.next_batch()
            if not batch.validate_crc():
                raise CorruptRecordException("the checksum of a batch is wrong")
            producer = batch.producer_id
            if producer is not None:  # else it is of a format without transactions and places of batches
                self._check_place(batch.base_offset, batch.next_offset, first=first)
                first = False
                self._begin_aborted(batch.base_offset)
                if batch.is_control_batch:
                    if ControlRecord.parse(next(batch).key) == ABORT_MARKER:
                        self._aborting.discard(producer)
                    self.next_fetch_offset = batch.next_offset
                    continue
                if batch.is_transactional and producer in self._aborting:
                    self.next_fetch_offset = batch.next_offset
                    continue
            try:
                for record in batch:
                    offset = record.offset
                    if offset >= self.next_fetch_offset:  # a batch is sent whole, from whichever of its records on
                        self.next_fetch_offset = offset + 1
                        yield Record(
                            *(topic, number, offset, record.key, record.value, tuple(record.headers)),
                            *(record.timestamp, None, self.log_id),
                        )
            except UnicodeDecodeError:
                for offset, timestamp, key, value, headers in parse_records(self._find_batch(batch.base_offset)):
                    if offset >= self.next_fetch_offset:
                        self.next_fetch_offset = offset + 1
                        yield Record(topic, number, offset, key, value, headers, timestamp, None, self.log_id)
            self.next_fetch_offset = batch.next_offset
        self._tell(self.next_fetch_offset, None)

    def _begin_aborted(self, offset: int) -> None:
        """Take note that from that offset on records of some producers are of transactions that were aborted."""
        while self._aborted and self._aborted[-1][1] <= offset:
            self._aborting.add(self._aborted.pop()[0])

    def _check_place(self, begin: int, after: int, *, first: bool) -> None:
        """Check that a batch can lie there: its offset is under no checksum. Raises `CorruptRecordException`."""
        at = self.next_fetch_offset
        if after <= at or (begin < at and not first):
            raise CorruptRecordException(f"a batch of offsets {begin} to {after - 1} cannot lie behind {at - 1}")
        if begin > at:  # compaction may have removed what was between: then the next batch lies behind this one
            following = self._find_next_offset(begin)
            if after > self._end or (following is not None and following < after):
                raise CorruptRecordException(f"a batch of offsets {begin} to {after - 1} lies where {at} has to be")

    def _find_next_offset(self, begin: int) -> int | None:
        """Offset of the batch after the one that begins there, as far as it has come."""
        at, length = next((at, length) for at, offset, length in iterate_batches(self._data) if offset == begin)
        after = self._data[at + length : at + length + OFFSET_BYTES]
        return int.from_bytes(after, signed=True) if len(after) == OFFSET_BYTES else None

    def _find_batch(self, begin: int) -> bytes:
        at, length = next((at, length) for at, offset, length in iterate_batches(self._data) if offset == begin)
        return self._data[at : at + length]


def iterate_batches(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Layout of the whole batches: of each where it lies in `data`, its first offset, and how many bytes it takes."""
    at = 0
    while at + PLACE_BYTES <= len(data):
        offset, length = struct.unpack_from(">qi", data, at)
        if length < 0 or at + PLACE_BYTES + length > len(data):
            return
        yield at, offset, PLACE_BYTES + length
        at += PLACE_BYTES + length


def parse_records(batch: bytes) -> Iterator[BatchRecord]:
    """Records of a batch, whatever its headers are called: what is not UTF-8 in a name is written as `\\xff`.

    Brokers take any bytes as a name, so such a record is not damaged. Slower than aiokafka's reading.
    """
    begin, _, _, _, _, attributes, _, first_ms, last_ms, _, _, _, count = HEADER.unpack_from(batch)
    data = batch[HEADER.size :]
    if codec := attributes & CODEC_MASK:
        data = CODECS[codec](data)
    reading = _ByteReader(data)
    for _ in range(count):
        end = reading.number() + reading.at
        reading.at += 1  # attributes that nobody uses
        timestamp = last_ms if attributes & APPEND_TIME else first_ms
        after_ms, after = reading.number(), reading.number()
        key, value = reading.content(), reading.content()
        headers = tuple((reading.name(), cast(bytes, reading.content())) for _ in range(reading.number()))  # or null
        if reading.at != end:
            raise CorruptRecordException(f"record {begin + after} is not as long as it says it is")
        if not attributes & APPEND_TIME:
            timestamp += after_ms
        yield BatchRecord(begin + after, timestamp, key, value, headers)


class _ByteReader:
    """Position in the bytes of a batch, and reading from there."""

    def __init__(self, data: bytes) -> None:
        self.at = 0
        self._data = bytearray(data)

    def number(self) -> int:
        value, self.at = decode_varint(self._data, self.at)
        return int(value)

    def content(self) -> bytes | None:
        length = self.number()
        return None if length < 0 else self._some(length)

    def name(self) -> str:
        return self._some(self.number()).decode("utf-8", "backslashreplace")

    def _some(self, length: int) -> bytes:
        if length < 0 or self.at + length > len(self._data):
            raise CorruptRecordException("a record is longer than its batch")
        self.at += length
        return bytes(self._data[self.at - length : self.at])
