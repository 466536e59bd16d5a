"""Record batches of one partition, read so that the first unreadable offset is known and nothing is skipped.

Bytes come from disks and networks. The checksum of a batch covers its records, but neither its offset nor its length;
and records may be garbage with a valid checksum if a program wrote them so. aiokafka's own parser can raise any
exception, after which it is unknown how far it came.
"""

import struct
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, Self, TypeAlias, cast

from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode
from aiokafka.errors import CorruptRecordException
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import decode_varint
from aiokafka.structs import TopicPartition

from saga.messages import Record

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
        self._records = self._unpacked()

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

    def _unpacked(self) -> Iterator[Record]:
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
                for offset, timestamp, key, value, headers in parse_records(self._raw(batch.base_offset)):
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
            following = self._following(begin)
            if after > self._end or (following is not None and following < after):
                raise CorruptRecordException(f"a batch of offsets {begin} to {after - 1} lies where {at} has to be")

    def _following(self, begin: int) -> int | None:
        """Offset of the batch after the one that begins there, as far as it has come."""
        at, length = next((at, length) for at, offset, length in iterate_batches(self._data) if offset == begin)
        after = self._data[at + length : at + length + OFFSET_BYTES]
        return int.from_bytes(after, signed=True) if len(after) == OFFSET_BYTES else None

    def _raw(self, begin: int) -> bytes:
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
