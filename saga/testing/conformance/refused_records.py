"""Records that a broker refuses to append: tests for `BrokerConformance`, which has their fixtures."""

import pytest

from saga.broker.port import Broker, record_size
from saga.errors import BrokerError, BrokerUnavailable, SagaError
from saga.messages import Outgoing
from saga.testing.conformance.listening import event


class RefusalsConformance:
    """One test per promise."""

    async def test_publishing_to_a_topic_that_is_not_there_is_refused(self, broker: Broker) -> None:
        with pytest.raises(SagaError, match="nowhere"):
            await broker.publish([event("nowhere", "k")])

    async def test_the_largest_record_is_taken_and_a_larger_one_refused_with_all_that_came_with_it(
        self, broker: Broker, topic: str
    ) -> None:
        beside = (("ce_id", b"1"), ("many", bytes(1000)))
        room = broker.record_bytes_max - record_size(Outgoing(topic, b"k", b"", beside))
        largest, larger = (Outgoing(topic, b"k", bytes(room + more), beside) for more in (0, 1))
        with pytest.raises(BrokerError, match=f"{broker.record_bytes_max}") as refused:
            await broker.publish([event(topic, "k", "with it"), larger])
        assert not isinstance(refused.value, BrokerUnavailable)
        await broker.publish([largest, event(topic, "k", "after")])
        assert [len(record.value or b"") async for record in broker.scan(topic)] == [room, len("after")]
