"""Reader of partitions on Kafka that is in no group, for tools."""

from collections.abc import Mapping, Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition

from saga.broker.kafka.client import FAILED, bounds, check_reader, failed, position
from saga.broker.kafka.fetching import keep_apart
from saga.messages import Partition, Record, Standstill
from saga.support.clock import Clock

BOUNDS_S = 10.0
"""Longest wait for the bounds of a partition of which nothing is left at our offset."""
SLICE_S = 0.5
"""Time after which it is looked whether a partition has anything left at our offset."""


class Reader:
    """Reader with a consumer of its own. See `saga.broker.administration.Reading` for the promises."""

    def __init__(
        self, consumer: AIOKafkaConsumer, positions: Mapping[Partition, int], log_ids: Mapping[str, str], clock: Clock
    ) -> None:
        self._consumer, self._clock = consumer, clock
        self._begun = dict(positions)
        self._fetching = keep_apart(consumer, clock, lambda: None)
        self._fetching.log_ids.update(log_ids)
        consumer.assign([TopicPartition(*partition) for partition in positions])
        self._fetching.begin()
        for partition, offset in positions.items():
            consumer.seek(TopicPartition(*partition), offset)

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[Record]:
        deadline_s = self._clock.monotonic_s() + timeout_s
        try:
            while True:
                if self._fetching.log_ids.is_due():
                    await self._look_at_logs()
                left_s = max(0.0, deadline_s - self._clock.monotonic_s())
                check_reader(self._consumer)
                wait_ms = int(min(left_s, SLICE_S) * 1000)
                got = await self._consumer.getmany(timeout_ms=wait_ms, max_records=records_max)
                if records := [record for some in got.values() for record in some]:
                    return records
                await self._go_on()
                if self._clock.monotonic_s() >= deadline_s:
                    return []
        except FAILED as why:
            raise failed(why, "reading", "Read") from why

    def positions(self) -> Mapping[Partition, int]:
        reached = {partition: position(self._consumer, partition) for partition in self._begun}
        return {
            partition: begun if (at := reached[partition]) is None else at for partition, begun in self._begun.items()
        }

    def log_ids(self) -> Mapping[str, str]:
        return dict(self._fetching.log_ids)

    def standstills(self) -> Sequence[Standstill]:
        return self._fetching.standstills()

    async def _look_at_logs(self) -> None:
        """Begin anew with topics that were deleted and created again."""
        topics = {partition.topic for partition in self._begun}
        replaced = await self._fetching.log_ids.learn(topics, self._consumer._client)
        places = [TopicPartition(*partition) for partition in self._begun if partition.topic in replaced]
        if places:
            for place, (begin, _) in (await self._clock.within(BOUNDS_S, bounds(self._consumer, places))).items():
                self._fetching.go_on_at(place, begin)

    async def _go_on(self) -> None:
        """Go on where there is something: in front of it all was removed, or the log has lost what was read."""
        for place, offset in list(self._fetching.out_of_range.items()):
            begin, end = (await self._clock.within(BOUNDS_S, bounds(self._consumer, [place])))[place]
            self._fetching.go_on_at(place, offset if begin <= offset <= end else begin)
