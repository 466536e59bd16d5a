"""Partition of a key: the same one that Kafka's default partitioner chooses."""

import struct
from functools import lru_cache

SEED = 0x9747B28C
FACTOR = 0x5BD1E995
MASK = 0xFFFFFFFF
REMEMBERED = 16_384
"""Most keys whose hash is kept: a saga's key comes back with each of its messages, and hashing costs microseconds."""


@lru_cache(maxsize=REMEMBERED)
def murmur2(key: bytes) -> int:
    """Hash a key by Kafka's 32-bit murmur2, unsigned (`org.apache.kafka.common.utils.Utils.murmur2`).

    >>> murmur2(b"foobar") - 2**32
    -790332482
    """
    length = len(key)
    h = SEED ^ length
    for k in struct.unpack_from(f"<{length >> 2}I", key):
        k = k * FACTOR & MASK
        h = (h * FACTOR ^ (k ^ k >> 24) * FACTOR) & MASK
    if length & 3:
        h = (h ^ int.from_bytes(key[length & ~3 :], "little")) * FACTOR & MASK
    h = (h ^ h >> 13) * FACTOR & MASK
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Number of the partition, from 0.

    >>> partition_of(b"foobar", 12)
    6
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions
