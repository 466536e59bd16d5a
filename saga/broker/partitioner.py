"""Partition of a key: the same one that Kafka's default partitioner chooses."""

import struct
from functools import lru_cache

SEED = 0x9747B28C
FACTOR = 0x5BD1E995
MASK = 0xFFFFFFFF
REMEMBERED = 16_384
"""Largest number of keys whose hash is cached. A saga's key occurs in each of its messages, and hashing takes
microseconds."""


@lru_cache(maxsize=REMEMBERED)
def murmur2(key: bytes) -> int:
    """Return the 32-bit murmur2 hash of a key, unsigned, as Kafka computes it
    (`org.apache.kafka.common.utils.Utils.murmur2`).

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
    """Return the number of the key's partition, from 0.

    >>> partition_of(b"foobar", 12)
    6
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions
