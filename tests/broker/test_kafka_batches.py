"""Whatever bytes come: what is read is what was written, in order, up to where reading stalls, and that is reported."""

import random  # noqa: TID251 - with fixed seeds
import struct
from collections.abc import Sequence

import pytest
from aiokafka import TopicPartition
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from saga.broker.kafka.fetching import HEADER, BatchFrame, RecordBatches, find_frame, parse_records
from saga.messages import Record

PLACE = TopicPartition("orders", 3)
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
TRIALS = 3000


def batch(begin: int, count: int, codec: int = 0, name: str = "ce_id") -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, 0, 7, 0, 0, 1 << 20)
    for number in range(count):
        headers = [(name, b"%d" % number), ("none", None), (name, b"")]
        builder.append(number, timestamp=1000 + number, key=b"k", value=b"value %d" % (begin + number), headers=headers)
    built = bytearray(builder.build())
    struct.pack_into(">q", built, 0, begin)
    return bytes(built)


def read(data: bytes, offset: int = 0, end: int = 9) -> tuple[list[Record], list[tuple[int, bool]]]:
    """The records, and the given end, and whether that was the end."""
    reports: list[tuple[int, bool]] = []
    batches = RecordBatches(PLACE, data, offset, (), end, lambda at, why: reports.append((at, why is None)))
    return list(batches), reports


WHOLE = batch(0, 3) + batch(3, 3) + batch(6, 3)
RECORDS, _ = read(WHOLE)


def test_all_is_read_from_whichever_record_on() -> None:
    for offset in range(9):
        sent = b"".join(batch(begin, 3) for begin in range(offset // 3 * 3, 9, 3))  # whole batches, as brokers do
        assert read(sent, offset) == (RECORDS[offset:], [(9, True)])


def test_one_damaged_byte_neither_hides_nor_invents_a_record() -> None:
    """Each byte in turn, changed in several ways; with the right checksum too, as a program with a defect writes it."""
    chance, stood = random.Random(1), 0
    for at in range(len(WHOLE)):
        for kind in ("flip", "any", "zero"):
            spoilt = bytearray(WHOLE)
            spoilt[at] = {"flip": spoilt[at] ^ 1 << chance.randrange(8), "any": chance.randrange(256), "zero": 0}[kind]
            stood += _holds(bytes(spoilt))
    assert stood > len(WHOLE)


def test_garbage_of_any_kind_is_reported_and_what_is_before_it_is_read() -> None:
    chance, stood = random.Random(2), 0
    for _ in range(TRIALS):
        spoilt = bytearray(WHOLE)
        begin = chance.randrange(len(WHOLE))
        kind = chance.choice(("cut", "noise", "moved", "twice"))
        if kind == "cut":
            del spoilt[begin:]
        elif kind == "noise":
            length = min(chance.randrange(1, 60), len(WHOLE) - begin)
            spoilt[begin : begin + length] = chance.randbytes(length)
        elif kind == "moved":
            del spoilt[begin : begin + chance.randrange(1, 40)]
        else:
            spoilt[begin:begin] = spoilt[begin : begin + chance.randrange(1, 40)]
        stood += _holds(bytes(spoilt))
    assert stood > TRIALS / 2


def _holds(data: bytes) -> bool:
    """True if the partition stands somewhere. A batch that is cut off at the end is asked for again."""
    records, reports = read(data)
    assert records == RECORDS[: len(records)]
    if not data:
        return False
    ((at, is_read),) = reports
    if at != 9:
        assert at == len(records)
    return not is_read


@pytest.mark.parametrize("seed", range(200))
def test_records_that_are_garbage_under_a_good_checksum_are_reported(seed: int) -> None:
    chance = random.Random(seed)
    spoilt = bytearray(batch(3, 3))
    at = chance.randrange(HEADER.size, len(spoilt))
    spoilt[at:] = chance.randbytes(len(spoilt) - at)
    struct.pack_into(">I", spoilt, 17, calc_crc32c(bytes(spoilt[21:])))
    records, reports = read(batch(0, 3) + bytes(spoilt) + batch(6, 3))
    assert records[:3] == RECORDS[:3]
    assert [record.offset for record in records] == sorted({record.offset for record in records})
    assert len(reports) == 1


@pytest.mark.parametrize("after", [None, 6, 9], ids=["the end of the log", "a batch", "a compacted gap"])
def test_the_end_of_a_damaged_batch_never_lies_in_the_next_one(after: int | None) -> None:
    """What is skipped up to that end is lost, so no damaged byte may move it too far."""
    whole, following = batch(3, 3), b"" if after is None else batch(after, 3)
    assert find_frame(whole + following, 3) == find_frame(whole + following, 5) == BatchFrame(3, 6, len(whole))
    for at in range(len(whole)):
        for bit in range(8):
            spoilt = bytearray(whole)
            spoilt[at] ^= 1 << bit
            for offset in (3, 4, 5):
                frame = find_frame(bytes(spoilt) + following, offset)
                assert frame is None or offset < frame.end <= (after or 6)


@pytest.mark.parametrize("codec", CODECS)
def test_names_that_are_no_text_are_read_in_batches_of_each_codec(codec: str) -> None:
    plain = batch(3, 3, 0, name="name")
    odd = _recoded(plain.replace(b"name", b"\xff\xfeme"), CODECS[codec])
    records, reports = read(batch(0, 3) + odd + batch(6, 3))
    assert reports == [(9, True)]
    assert [record.offset for record in records] == list(range(9))
    assert records[3].headers == (("\\xff\\xfeme", b"0"), ("none", None), ("\\xff\\xfeme", b""))
    assert _without_names(records) == _without_names(RECORDS)


@pytest.mark.parametrize("codec", CODECS)
def test_our_own_reading_of_records_gives_what_that_of_aiokafka_gives(codec: str) -> None:
    data = batch(5, 40, CODECS[codec])
    records, _ = read(data, 5, 45)
    assert [(e.offset, e.timestamp, e.key, e.value, e.headers) for e in parse_records(data)] == [
        (r.offset, r.time_ms, r.key, r.value, r.headers) for r in records
    ]


def test_a_batch_that_lies_where_another_one_has_to_be_is_reported() -> None:
    for begin in (0, 2, 4, 5, 100):
        records, reports = read(batch(0, 3) + struct.pack(">q", begin) + batch(3, 3)[8:] + batch(6, 3))
        assert (records, reports) == (RECORDS[:3], [(3, False)])


@pytest.mark.parametrize("bytes_left", [1, 11, 60, len(batch(0, 3)) - 1])
def test_an_incomplete_first_batch_is_reported(bytes_left: int) -> None:
    """Brokers send it whole, however large it is: to ask again would give the same, for ever and without a word."""
    assert read(WHOLE[:bytes_left]) == ([], [(0, False)])


def test_records_removed_by_compaction_are_no_damage() -> None:
    records, reports = read(batch(0, 3) + batch(6, 3))
    assert [record.offset for record in records] == [0, 1, 2, 6, 7, 8]
    assert reports == [(9, True)]


def _recoded(plain: bytes, codec: int) -> bytes:
    from aiokafka import codec as codecs

    packers = {1: codecs.gzip_encode, 2: codecs.snappy_encode, 3: codecs.lz4_encode, 4: codecs.zstd_encode}
    content = plain[HEADER.size :]
    made = bytearray(plain[: HEADER.size] + (packers[codec](content) if codec else content))
    struct.pack_into(">h", made, 21, codec)
    struct.pack_into(">i", made, 8, len(made) - 12)
    struct.pack_into(">I", made, 17, calc_crc32c(bytes(made[21:])))
    return bytes(made)


def _without_names(records: Sequence[Record]) -> list[object]:
    return [(r.offset, r.key, r.value, r.time_ms, [value for _, value in r.headers]) for r in records]
