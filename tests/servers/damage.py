"""Damage to what Kafka has stored: the bytes of one batch are changed in the file of its partition, while it runs."""

import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

from aiokafka.record.util import calc_crc32c

from saga.broker.kafka.fetching import HEADER, iterate_batches
from saga.messages import Record

LENGTH, MAGIC, CRC, ATTRIBUTES, COUNT = 8, 16, 17, 21, 57
"""Places of these fields in a batch."""


def _put(form: str, at: int, value: int, *, checked: bool = False) -> Callable[[bytes], bytes]:
    """Something else in that place; `checked`: with a checksum that is right again."""

    def changed(batch: bytes) -> bytes:
        spoilt = bytearray(batch)
        struct.pack_into(form, spoilt, at, value)
        return _checked(spoilt) if checked else bytes(spoilt)

    return changed


def _checked(batch: bytearray) -> bytes:
    struct.pack_into(">I", batch, CRC, calc_crc32c(bytes(batch[ATTRIBUTES:])))
    return bytes(batch)


def _flipped(batch: bytes) -> bytes:
    spoilt = bytearray(batch)
    spoilt[-2] ^= 0x10
    return bytes(spoilt)


def _garbage(batch: bytes) -> bytes:
    spoilt = bytearray(batch)
    spoilt[HEADER.size : HEADER.size + 12] = b"\xff" * 12
    return _checked(spoilt)


def _shifted(batch: bytes) -> bytes:
    (offset,) = struct.unpack_from(">q", batch)
    return struct.pack(">q", offset + 3) + batch[8:]


def _torn(batch: bytes) -> bytes:
    return batch[: len(batch) // 2] + bytes(len(batch) - len(batch) // 2)


WAYS: Mapping[str, Callable[[bytes], bytes]] = {
    "a value": _flipped,
    "the checksum": _put(">I", CRC, 0),
    "a length that is too large": _put(">i", LENGTH, 1 << 20),
    "a length that is too small": _put(">i", LENGTH, 20),
    "a length below zero": _put(">i", LENGTH, -7),
    "a length of zero": _put(">i", LENGTH, 0),
    "half of it": _torn,
    "its place": _shifted,
    "an unknown codec": _put(">h", ATTRIBUTES, 7, checked=True),
    "gzip that is none": _put(">h", ATTRIBUTES, 1, checked=True),
    "lz4 that is none": _put(">h", ATTRIBUTES, 3, checked=True),
    "zstd that is none": _put(">h", ATTRIBUTES, 4, checked=True),
    "numbers in a record": _garbage,
    "no records": _put(">i", COUNT, 0, checked=True),
    "fewer records than none": _put(">i", COUNT, -2, checked=True),
}
NAMES: Mapping[str, Callable[[bytes], bytes]] = {
    "names of headers": lambda batch: _checked(bytearray(batch.replace(b"name", b"\xff\xfeme")))
}
"""Not damage, for brokers take any name, but no text."""
HARMLESS: Mapping[str, Callable[[bytes], bytes]] = {
    "the format": _put(">b", MAGIC, 9),
    "an old format": _put(">b", MAGIC, 1),
    "more records than there are": _put(">i", COUNT, 1000, checked=True),
}
"""All of it can be read in spite of this."""


def spoil(data: Path, record: Record, way: str) -> Callable[[], None]:
    """Change the batch of that record in one of these `WAYS`. Gives what puts back what was there."""
    segment = data / f"{record.topic}-{record.partition}" / f"{0:020}.log"
    stored = segment.read_bytes()
    *_, (at, length) = ((at, length) for at, begin, length in iterate_batches(stored) if begin <= record.offset)
    batch = stored[at : at + length]
    _write(segment, at, {**WAYS, **NAMES, **HARMLESS}[way](batch))
    return lambda: _write(segment, at, batch)


def _write(segment: Path, at: int, data: bytes) -> None:
    with segment.open("r+b") as file:
        os.pwrite(file.fileno(), data, at)
