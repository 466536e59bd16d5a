"""Fetch records so that a failure of one partition delays no other partition and loses nothing.

aiokafka's own fetcher drops records of healthy partitions when another one raises, skips a truncated batch, dies from a
malformed response, and swallows most errors that brokers report. The end of this module parses batches of records.
"""

import asyncio
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
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
"""First and longest pause before an unreadable partition is read again, in seconds. All other partitions continue
meanwhile."""
PATIENCE_S = 2.0
"""Time for which a failure must last before it is reported, in seconds. Most failures pass by themselves, such as a
change of leader."""
OF_TOPICS: tuple[type[KafkaError], ...] = (TopicAuthorizationFailedError, UnknownTopicOrPartitionError)
"""Errors that concern all partitions of a topic."""


@dataclass(slots=True)
class FetchFailure:
    """Reason why a partition cannot be read."""

    offset: int
    reason: str
    patience_s: float = 0.0
    of_topic: bool = False
    since_s: float = 0.0
    again_s: float = AGAIN_S_FIRST
    """Pause before the partition is read again, in seconds."""


class IsolatingFetcher(Fetcher):  # type: ignore[misc]  # aiokafka has no types
    """Fetcher that isolates failing partitions. It replaces the consumer's own fetcher."""

    def __init__(self, consumer: AIOKafkaConsumer, clock: Clock, on_change: Callable[[], None]) -> None:
        """Begin without partitions. `on_change`: function that is called when `stalled_partitions` may have changed."""
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
        """Partitions whose log does not contain the offset to read. They are not fetched until `resume_at` is
        called."""
        self.log_ids = LogIds(clock)
        """Ids of the logs that the fetcher reads."""
        self._clock, self._on_change = clock, on_change
        self._standstills: dict[TopicPartition, FetchFailure] = {}
        self._timers: dict[TopicPartition, asyncio.TimerHandle] = {}
        self._reported: list[StalledPartition] = []

    def begin(self) -> None:
        """Begin another assignment, and forget all failures of the previous one."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers, self._standstills, self.out_of_range = {}, {}, {}
        self._report_changes()  # otherwise a partition that stalls again would count as reported already

    def stalled_partitions(self) -> list[StalledPartition]:
        """Return the stalled partitions to report. A failure of a whole topic is one entry."""
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

    # ---------------------------------------------------------------- responses

    async def _proc_fetch_request(self, assignment: Assignment, node_id: int, request: FetchRequest) -> bool:
        """Send one fetch request to one broker. Return whether the response contained records."""
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
        requested = {
            TopicPartition(topic, number): offset
            for topic, partitions in request.topics
            for number, offset, _ in partitions
        }
        came = any(data for _, partitions in response.topics for *_, data in partitions)
        for topic, partitions in response.topics:
            for number, code, highwater, stable, *more, data in partitions:
                place = TopicPartition(topic, number)
                state = assignment.state_value(place)
                if not state.has_valid_position or state.position != requested[place] or state.paused:
                    continue  # the position was changed during the request
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
        def on_end(offset: int, why: Exception | None) -> None:
            if why is None:
                self._resume(place)
            else:
                self._stall(assignment, place, FetchFailure(offset, describe_unreadable(place, offset, why)))

        batches = RecordBatches(place, data, assignment.state_value(place).position, aborted, highwater, on_end)
        batches.log_id = self.log_ids.get(place.topic, "")
        return FetchResult(place, partition_records=batches, assignment=assignment, backoff=self._prefetch_backoff)

    # ---------------------------------------------------------------- failures

    def resume_at(self, place: TopicPartition, offset: int) -> None:
        """Read a partition from this offset on."""
        self.out_of_range.pop(place, None)
        self.seek_to(place, offset)
        self._subscriptions.subscription.assignment.state_value(place).resume()

    def _handle_error(self, assignment: Assignment, place: TopicPartition, offset: int, kind: type[KafkaError]) -> None:
        """Handle an error code that a broker returned for a partition."""
        if kind is OffsetOutOfRangeError:
            assignment.state_value(place).pause()
            self.out_of_range[place] = offset
            return
        self._client.force_metadata_update()  # another broker may lead the partition now
        passes = kind in AGAIN and kind is not CorruptRecordException
        doing = f"{place.topic}/{place.partition} is stalled at offset {offset}"
        trouble = translate_error(kind(place.topic), doing, "Read", waits=True)
        patience_s = PATIENCE_S if passes or kind is UnknownTopicOrPartitionError else 0.0
        self._stall(assignment, place, FetchFailure(offset, str(trouble), patience_s, kind in OF_TOPICS))

    def _handle_empty(
        self, assignment: Assignment, place: TopicPartition, offset: int, stable: int, *, alone: bool
    ) -> None:
        """Handle a response that has no records for a partition, although the partition has some.

        This happens to a healthy partition if other partitions fill the whole response. So the partition is paused only
        if the response had no records at all (`alone`).
        """
        reason = (
            f"{place.topic}/{place.partition} is stalled at offset {offset}: the brokers have records up to "
            f"{stable - 1} but return none of them, probably because their files are damaged: restore them, or skip "
            "the records with `saga offsets skip`"
        )
        self._stall(assignment, place, FetchFailure(offset, reason, PATIENCE_S), rests=alone)

    def _stall(self, assignment: Assignment, place: TopicPartition, new: FetchFailure, *, rests: bool = True) -> None:
        """Pause one partition for a while."""
        before, new.since_s = self._standstills.get(place), self._clock.monotonic_s()
        if before is not None and before.offset == new.offset:
            new.since_s, new.again_s = before.since_s, min(2 * before.again_s, AGAIN_S_MAX)
        self._standstills[place] = new
        if rests:
            state = assignment.state_value(place)
            state.pause()
            self._timers[place] = self._loop.call_later(new.again_s, state.resume)
        self._report_changes()

    def _resume(self, place: TopicPartition) -> None:
        if self._standstills.pop(place, None) is not None:
            self._report_changes()

    def _report_changes(self) -> None:
        """Report a change of the stalled partitions. A repeated failure of the same partition is not a change."""
        now = self.stalled_partitions()
        if now != self._reported:
            self._reported = now
            self._on_change()


def isolate_partitions(consumer: AIOKafkaConsumer, clock: Clock, on_change: Callable[[], None]) -> IsolatingFetcher:
    """Give an `IsolatingFetcher` to a consumer that has just started and has no partitions yet."""
    old = consumer._fetcher
    old._fetch_task.cancel()  # the replaced fetcher still waits for partitions
    consumer._fetcher = fetching = IsolatingFetcher(consumer, clock, on_change)
    return fetching


def describe_unreadable(place: TopicPartition, offset: int, why: Exception) -> str:
    """Describe for operators why the bytes at this offset cannot be read."""
    if isinstance(why, UnsupportedCodecError):
        return str(translate_error(why, f"{place.topic}/{place.partition} is stalled at offset {offset}"))
    cause = " ".join(str(part) for part in why.args) if isinstance(why, KafkaError) else f"{type(why).__name__}: {why}"
    return (
        f"{place.topic}/{place.partition} is stalled at offset {offset}, which cannot be read: {cause[:300]}; it is "
        "tried again: restore the topic's data, or skip the record with `saga offsets skip`"
    )


# ---------------------------------------------------------------- records fetched ahead


GET_MS = 100
"""Longest wait of one `getmany`, in milliseconds. Meanwhile another `getmany` may run for other partitions."""
REST_S = 1.0
"""Pause before reading a partition again after an unexpected exception of aiokafka, in seconds."""


class Prefetch:
    """Buffer of records between `getmany` and `poll`.

    aiokafka would regard a cancelled `getmany` as running for ever, and during a rebalance `getmany` waits without
    limit. So each call runs in a task of its own. There are never two calls for one partition, and none for a partition
    with buffered records, which limits the size of the buffer.

    A `getmany` that raises has dropped the records that it took from other partitions, and has moved their positions.
    So all its partitions are set back to the end of their buffered records, and are read one by one until the failing
    one is found.
    """

    def __init__(self, group: str, clock: Clock, on_change: Callable[[], None]) -> None:
        """Begin with an empty buffer. `on_change`: function that is called when `standstills` has changed."""
        self.news = asyncio.Event()
        """Event that is set when records arrived, a fetch failed, or partitions may be requested again."""
        self.failure: BrokerError | None = None
        """Last failure that `poll` has not raised yet."""
        self.standstills: dict[Partition, StalledPartition] = {}
        """Partitions for which aiokafka raises unexpected exceptions."""
        self._group, self._clock, self._on_change = group, clock, on_change
        self._consumer: AIOKafkaConsumer | None = None
        self._buffer: dict[Partition, list[Record]] = {}
        self._ends: dict[Partition, int] = {}
        """Offset after the last fetched record of each partition."""
        self._apart = False
        """True if each partition is fetched by a separate call."""
        self._requested: set[Partition] = set()
        self._gets: set[asyncio.Task[None]] = set()

    def begin(self, consumer: AIOKafkaConsumer) -> None:
        """Fetch from this consumer from now on, and drop results of the previous consumer."""
        self._consumer = consumer
        self._requested = set()

    def start(self, offsets: Mapping[Partition, int]) -> None:
        """Begin an assignment at these offsets.

        Records that a `getmany` of the previous assignment still returned are dropped. They are fetched again if their
        partition belongs to this member.
        """
        self.forget()
        self._ends = dict(offsets)
        self._apart = False
        self._set_standstills({})

    def resume_at(self, partition: Partition, offset: int) -> None:
        """Read a partition from this offset on.

        After this, a failed `getmany` does not set the position back to records that were removed.
        """
        self._buffer.pop(partition, None)
        self._ends[partition] = offset

    def forget(self) -> None:
        """Empty the buffer at the end of an assignment."""
        self._buffer.clear()

    async def end(self) -> None:
        """Cancel all running fetches. This must be called only after the consumer has stopped, so that no position is
        lost."""
        self._consumer = None
        self.forget()
        for get in self._gets:
            get.cancel()
        if self._gets:
            await asyncio.wait(self._gets)

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._buffer

    def list_buffered(self, partitions: Collection[Partition]) -> list[Partition]:
        """Return the partitions that have buffered records. The partition whose records have been buffered longest
        comes first."""
        return [partition for partition in self._buffer if partition in partitions]

    def take(self, partition: Partition, records_max: int) -> list[Record]:
        """Remove and return the next records of a partition."""
        queue = self._buffer.pop(partition)
        if len(queue) > records_max:
            self._buffer[partition] = queue[records_max:]
            return queue[:records_max]
        return queue

    def request(self, partitions: Iterable[Partition], records_max: int) -> None:
        """Start to fetch records of these partitions, unless they are buffered or being fetched."""
        wanted = [p for p in partitions if p not in self._requested and p not in self._buffer]
        consumer = self._consumer
        if not wanted or consumer is None:
            return
        self._requested.update(wanted)
        for batch in [[partition] for partition in wanted] if self._apart else [wanted]:
            get = asyncio.get_running_loop().create_task(self._get(consumer, batch, records_max))
            self._gets.add(get)
            get.add_done_callback(self._gets.discard)

    async def _get(self, consumer: AIOKafkaConsumer, partitions: Sequence[Partition], records_max: int) -> None:
        """Fetch once, and buffer the records.

        If the consumer was replaced meanwhile, its result is ignored. If only the assignment changed meanwhile,
        `getmany` returns records of the new assignment.
        """
        try:
            got = await consumer.getmany(
                *(TopicPartition(*partition) for partition in partitions), timeout_ms=GET_MS, max_records=records_max
            )
        except Exception as why:  # noqa: BLE001 - after any error the records have to be fetched again
            if consumer is self._consumer:
                self._seek_back(consumer, partitions)
                if isinstance(why, FAILED):
                    self.failure = to_broker_error(why, f"group {self._group!r}: reading", "Read", waits=True)
                elif len(partitions) > 1:
                    self._apart = True
                else:
                    await self._pause(partitions[0], why)
        else:
            if consumer is self._consumer:  # no task ran since `getmany` returned, so the order of records is kept
                for place, records in got.items():
                    partition = Partition(*place)
                    self._buffer.setdefault(partition, []).extend(records)
                    self._ends[partition] = records[-1].offset + 1
                if self._apart or self.standstills:
                    self._confirm(partitions)
        finally:
            if consumer is self._consumer:
                self._requested.difference_update(partitions)
            self.news.set()

    def _seek_back(self, consumer: AIOKafkaConsumer, partitions: Collection[Partition]) -> None:
        """Set aiokafka's positions back to the end of the buffered records."""
        ours = consumer.assignment()
        for partition in partitions:
            place = TopicPartition(*partition)
            if partition in self._ends and place in ours:
                consumer.seek(place, self._ends[partition])

    async def _pause(self, partition: Partition, why: Exception) -> None:
        """Mark a partition as stalled, because fetching it alone has failed, and pause."""
        at = self._ends.get(partition)
        if at is None:  # another member owns the partition now
            return
        what = f"{partition.topic}/{partition.number} cannot be read from offset {at} on: {type(why).__name__}: {why}"
        advice = "it is tried again: report it with this message; `saga offsets skip` may skip the record"
        self._set_standstills(
            self.standstills | {partition: StalledPartition(*partition, at, f"{what[:300]}: {advice}")}
        )
        self.news.set()
        await self._clock.sleep(REST_S)

    def _confirm(self, partitions: Collection[Partition]) -> None:
        """Fetch all partitions together again after each of them has worked alone."""
        self._set_standstills({other: each for other, each in self.standstills.items() if other not in partitions})
        self._apart = bool(self.standstills)

    def _set_standstills(self, standstills: dict[Partition, StalledPartition]) -> None:
        """Set the stalled partitions, and report it if they have changed."""
        if standstills != self.standstills:
            self.standstills = standstills
            self._on_change()


# ---------------------------------------------------------------- record batches
#
# Batches of one partition are read so that the first unreadable offset is known and nothing is skipped. Bytes come from
# disks and networks. The checksum of a batch covers its records, but neither its offset nor its length; and a program
# may have written garbage with a valid checksum. aiokafka's own parser can raise any exception, and then it is unknown
# how many records it had read.


HEADER = struct.Struct(">qiibIhiqqqhii")
"""Header of a batch: its first offset, its length and eleven more fields; see the protocol guide of Apache Kafka."""
PLACE_BYTES = 12
"""Size of the offset and the length at the beginning of a batch, in bytes. The length does not count these two
fields."""
OFFSET_BYTES = 8
MAGIC = 2
"""Format of batches that the header above describes."""
CODECS: dict[int, Callable[[bytes], bytes]] = {1: gzip_decode, 2: snappy_decode, 3: lz4_decode, 4: zstd_decode}
CODEC_MASK, APPEND_TIME = 0x07, 0x08

OnEnd: TypeAlias = Callable[[int, Exception | None], None]
"""Callback that receives the offset up to which the fetched bytes were read, and the error at that offset. The error is
`None` if all bytes were read."""


class BatchRecord(NamedTuple):
    """A record of a batch, with the same field names as aiokafka's record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class RecordBatches:
    """Iterator over the records in the batches that one fetch returned for one partition. It never raises an error.

    It has the interface of aiokafka's `PartitionRecords`. Records of aborted transactions are left out.
    """

    def __init__(
        self,
        place: TopicPartition,
        data: bytes,
        offset: int,
        aborted: Collection[tuple[int, int]],
        end: int,
        on_end: OnEnd,
    ) -> None:
        """Begin to read.

        Args:
            place: The partition.
            data: The fetched bytes.
            offset: The requested offset.
            aborted: Producers of aborted transactions, and the first offset of each of these transactions.
            end: The end of the partition.
            on_end: Called once, when no more records can be read.
        """
        self.next_fetch_offset = offset
        """Offset below which all records have been read. Offsets below it that returned no record belong to transaction
        markers, or to records that compaction has removed."""
        self.log_id = ""
        """Id of the log that contains the records."""
        self._place, self._data, self._end, self._on_end = place, data, end, on_end
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
        except Exception as why:  # the bytes may be anything, so decoding them may raise anything
            self._on_end(self.next_fetch_offset, why)
            raise StopIteration from why

    def _unpack(self) -> Iterator[Record]:
        batches = MemoryRecords(self._data)
        if self._data and not batches.has_next():  # a broker sends the first batch completely, however large it is
            raise CorruptRecordException("a batch is shorter than its length field")
        topic, number = self._place
        first = True
        while batches.has_next():
            batch = batches.next_batch()
            if not batch.validate_crc():
                raise CorruptRecordException("the checksum of a batch is wrong")
            producer = batch.producer_id
            if producer is not None:  # older formats of batches have no transactions
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
                    if offset >= self.next_fetch_offset:  # a whole batch is sent, even for its last record
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
        self._on_end(self.next_fetch_offset, None)

    def _begin_aborted(self, offset: int) -> None:
        """Record which producers have an aborted transaction that begins at or before this offset. Their records are
        left out."""
        while self._aborted and self._aborted[-1][1] <= offset:
            self._aborting.add(self._aborted.pop()[0])

    def _check_place(self, begin: int, after: int, *, first: bool) -> None:
        """Check a batch's offsets, which no checksum covers. Raises `CorruptRecordException`."""
        at = self.next_fetch_offset
        if after <= at or (begin < at and not first):
            raise CorruptRecordException(f"a batch of offsets {begin} to {after - 1} cannot follow offset {at - 1}")
        if begin > at:  # a gap is valid after a compaction: the next batch then follows this one directly
            following = self._find_next_offset(begin)
            if after > self._end or (following is not None and following < after):
                raise CorruptRecordException(f"a batch of offsets {begin} to {after - 1} is in the place of {at}")

    def _find_next_offset(self, begin: int) -> int | None:
        """Return the offset of the batch after the one that begins at `begin`, if that next batch was fetched, too."""
        at, length = next((at, length) for at, offset, length in iterate_batches(self._data) if offset == begin)
        after = self._data[at + length : at + length + OFFSET_BYTES]
        return int.from_bytes(after, signed=True) if len(after) == OFFSET_BYTES else None

    def _find_batch(self, begin: int) -> bytes:
        at, length = next((at, length) for at, offset, length in iterate_batches(self._data) if offset == begin)
        return self._data[at : at + length]


def iterate_batches(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield each complete batch as its position in `data`, its first offset and its size in bytes."""
    at = 0
    while at + PLACE_BYTES <= len(data):
        offset, length = struct.unpack_from(">qi", data, at)
        if length < 0 or at + PLACE_BYTES + length > len(data):
            return
        yield at, offset, PLACE_BYTES + length
        at += PLACE_BYTES + length


class BatchFrame(NamedTuple):
    """Offsets and size of a batch, according to its header."""

    begin: int
    end: int
    """Offset after its last record, or a smaller one if fields contradict each other."""
    size: int


def find_frame(data: bytes, offset: int) -> BatchFrame | None:
    """Return the frame of the batch at the beginning of `data`, which the broker returned for `offset`; `None` if the
    frame is damaged.

    No checksum shows which of its fields are damaged. So of all ends that the header and the next batch suggest, the
    nearest one is taken: then a single damaged field never makes the frame include a record of the next batch.
    """
    frames = [frame for frame in islice(iterate_batches(data), 2) if frame[2] >= HEADER.size]
    if not frames or frames[0][0] != 0:
        return None
    ends = list[int]()
    for at, begin, _ in frames:
        _, _, _, magic, _, _, delta, *_, count = HEADER.unpack_from(data, at)
        if magic != MAGIC:  # older formats have these fields in other places
            continue
        if at:
            ends.append(begin)
        elif begin <= offset:
            ends += [begin + delta + 1, begin + count]
    end = min((end for end in ends if end > offset), default=None)
    return None if end is None else BatchFrame(frames[0][1], end, frames[0][2])


def parse_records(batch: bytes) -> Iterator[BatchRecord]:
    """Yield the records of a batch in which names of headers are not UTF-8. Invalid bytes become escapes such as
    `\\xff`.

    Brokers accept any bytes as a name, so such a record is not damaged. This is slower than aiokafka's parser.
    """
    begin, _, _, _, _, attributes, _, first_ms, last_ms, _, _, _, count = HEADER.unpack_from(batch)
    data = batch[HEADER.size :]
    if codec := attributes & CODEC_MASK:
        data = CODECS[codec](data)
    reading = _ByteReader(data)
    for _ in range(count):
        end = reading.number() + reading.at
        reading.at += 1  # attributes, which are not used
        timestamp = last_ms if attributes & APPEND_TIME else first_ms
        after_ms, after = reading.number(), reading.number()
        key, value = reading.content(), reading.content()
        headers = tuple((reading.name(), cast(bytes, reading.content())) for _ in range(reading.number()))  # or null
        if reading.at != end:
            raise CorruptRecordException(f"record {begin + after} does not have the length that it states")
        if not attributes & APPEND_TIME:
            timestamp += after_ms
        yield BatchRecord(begin + after, timestamp, key, value, headers)


class _ByteReader:
    """Reader of values from the bytes of a batch, one after the other."""

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
