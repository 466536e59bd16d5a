"""A broker behind a schema registry promises what every broker does, also when each record has to be asked for."""

import zlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from saga.broker.embedded.broker import EmbeddedBroker
from saga.broker.embedded.membership import Timing
from saga.broker.port import Broker, Listener, Membership, Subscription
from saga.messages import Outgoing, Partition, Record
from saga.registry.edge import RegistryBroker
from saga.support.clock import SystemClock
from saga.testing.conformance.broker import BrokerConformance
from saga.testing.conformance.broker_suite import Connect, Remove
from tests.registry.fake_registry import FakeRegistry

CLOCK = SystemClock()


class Framing:
    """Broker in whose log each value is in the wire format, with an id of its own for each key."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def __aenter__(self) -> "Framing":
        await self._broker.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._broker.__aexit__(*exc)

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        await self._broker.publish(
            [
                each
                if each.value is None
                else each._replace(value=b"\0" + zlib.crc32(each.key).to_bytes(4, "big") + each.value)
                for each in messages
            ]
        )


class Unframing(Framing):
    """Broker that takes away what `Framing` put before the values, which a schema has come for."""

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        await self._broker.publish(messages)

    @asynccontextmanager
    async def join(self, subscription: Subscription, listener: Listener) -> AsyncIterator[Membership]:
        async with self._broker.join(subscription, listener) as membership:
            yield Unframed(membership)

    async def scan(self, topic: str) -> AsyncIterator[Record]:
        async for record in self._broker.scan(topic):
            yield unframed(record)


class Unframed:
    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def __getattr__(self, name: str) -> Any:
        return getattr(self._membership, name)

    async def poll(self, partitions: Collection[Partition], *, records_max: int, timeout_s: float) -> Sequence[Record]:
        records = await self._membership.poll(partitions, records_max=records_max, timeout_s=timeout_s)
        assert len(records) <= records_max
        return [unframed(record) for record in records]

    def lag(self) -> Mapping[Partition, int] | None:
        return self._membership.lag()


def unframed(record: Record) -> Record:
    if record.value is None:
        return record
    assert record.writer is not None, "it came with what the registry says of it"
    return record._replace(value=record.value[5:], writer=None)


class TestBehindRegistry(BrokerConformance):
    drain_s = 0.5

    @pytest.fixture
    def remove(self) -> Remove:
        pytest.skip("what was removed is reported by the broker behind it, which has this test itself")

    async def test_the_largest_record_is_published_and_a_larger_one_refused_with_its_whole_batch(
        self, broker: Broker, topic: str
    ) -> None:
        pytest.skip("here values get longer on their way; the broker behind it decides how large one may be")

    async def test_each_record_of_other_producers_gets_its_verdict(
        self, broker: Broker, topic: str, tmp_path: Path
    ) -> None:
        pytest.skip("here each value gets a frame of this test's own; the broker behind it has this test itself")

    @pytest.fixture
    def connect(self, tmp_path: Path) -> Connect:
        def connected() -> Broker:
            inside: Any = Framing(
                EmbeddedBroker(tmp_path / "broker.db", clock=CLOCK, timing=Timing(drain_s=self.drain_s))
            )
            outside: Any = Unframing(RegistryBroker(inside, FakeRegistry(), CLOCK))
            broker: Broker = outside
            return broker

        return connected
