"""Probes of one partition, read here and there, to see what of it can be read at all."""

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.protocol.fetch import FetchRequest

from saga.broker.kafka.batches import PLACE_BYTES
from saga.broker.kafka.client import bounds
from saga.broker.kafka.consumers import FETCH_BYTES
from saga.broker.kafka.fetching import Fetching, keep_apart
from saga.clock import Clock
from saga.errors import BrokerUnavailable

GET_MS = 100
TRIAL_S = 8.0
"""Longest time of one place: a broker that hands out nothing is asked several times."""


class Probe:
    """Probe: a consumer of no group, and the partition that it tries."""

    def __init__(self, consumer: AIOKafkaConsumer, place: TopicPartition, clock: Clock) -> None:
        self._consumer, self._place, self._clock = consumer, place, clock
        self._fetching: Fetching = keep_apart(consumer, clock, lambda: None)

    async def at(self, offset: int) -> int | str:
        """Offset of the first record from there on, or of the end; or why it cannot be read. Raises
        `BrokerUnavailable`."""
        _, end = (await bounds(self._consumer, [self._place]))[self._place]
        self._consumer.assign([self._place])
        self._fetching.begin()
        self._consumer.seek(self._place, offset)
        deadline_s = self._clock.monotonic_s() + TRIAL_S
        while self._clock.monotonic_s() < deadline_s:
            got = await self._consumer.getmany(self._place, timeout_ms=GET_MS, max_records=1)
            for (record,) in got.values():
                return int(record.offset)
            if standstills := self._fetching.standstills():
                return standstills[0].reason
            if (position := await self._consumer.position(self._place)) >= end:
                return int(position)
        raise BrokerUnavailable(f"Kafka: nothing of {self._place.topic}/{self._place.partition} comes from {offset} on")

    async def size(self, offset: int) -> int | None:
        """Size of the batch that lies there, as it says itself, if the broker hands it out."""
        client, (topic, number) = self._consumer._client, self._place
        request = FetchRequest(GET_MS, 1, FETCH_BYTES, 0, [(topic, [(number, offset, FETCH_BYTES)])])
        response = await client.send(client.cluster.leader_for_partition(self._place), request)
        [(_, [(*_, data)])] = response.topics
        if not data or len(data) < PLACE_BYTES:
            return None
        said = PLACE_BYTES + int.from_bytes(data[8:PLACE_BYTES], signed=True)
        return said if PLACE_BYTES <= said <= len(data) else None
