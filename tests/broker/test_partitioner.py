"""Keys lie where Kafka would put them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saga.broker.port import murmur2, partition_of

KAFKAS = {  # org.apache.kafka.common.utils.UtilsTest
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", KAFKAS)
def test_the_hash_is_kafkas(key: bytes) -> None:
    assert murmur2(key) == KAFKAS[key] % 2**32


def test_a_negative_hash_loses_its_sign_as_in_kafka() -> None:
    assert partition_of(b"foobar", 1000) == (KAFKAS[b"foobar"] & 0x7FFFFFFF) % 1000


@given(st.binary(max_size=40), st.integers(1, 100))
def test_every_key_has_a_partition(key: bytes, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions
