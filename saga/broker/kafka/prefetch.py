"""Records that a consumer has fetched and nobody has taken yet: asked for side by side, kept in order, never
cancelled."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition

from saga.broker.kafka.client import FAILED, failed
from saga.errors import BrokerError
from saga.messages import Partition, Record, Standstill
from saga.support.clock import Clock

GET_MS = 100
"""Longest wait of one `getmany`; one for other partitions can go on beside it."""
REST_S = 1.0
"""Time for which a partition is left alone of which aiokafka makes nothing but exceptions."""


class Prefetch:
    """Buffer of records between `getmany` and `poll`.

    A `getmany` that is cancelled would count as under way for ever, and while the group is rebalanced it waits without
    limit. So each runs in a task of its own. There are never two for one partition, and none for a partition of which
    something lies here: so there is never much more than was asked for.

    A `getmany` that raises has dropped what it had taken of the other partitions, and their positions have moved: so
    all that it asked for goes back to where it ends, and is asked for one by one until the culprit has shown.
    """

    def __init__(self, group: str, clock: Clock, tell: Callable[[], None]) -> None:
        """Begin with nothing fetched. `tell`: called when what stands still is different."""
        self.news = asyncio.Event()
        """Event that is set when something has come, or failed, or may be asked for again."""
        self.failure: BrokerError | None = None
        """Last failure; whoever tells it puts it away."""
        self.standstills: dict[Partition, Standstill] = {}
        """Partitions of which aiokafka makes nothing but exceptions."""
        self._group, self._clock, self._tell = group, clock, tell
        self._consumer: AIOKafkaConsumer | None = None
        self._buffer: dict[Partition, list[Record]] = {}
        self._ends: dict[Partition, int] = {}
        """Offset after what has come, of each partition."""
        self._apart = False
        """True if partitions are asked for one by one."""
        self._asked: set[Partition] = set()
        self._gets: set[asyncio.Task[None]] = set()

    def begin(self, consumer: AIOKafkaConsumer) -> None:
        """Take from this consumer from now on. What one before it may still give is dropped."""
        self._consumer = consumer
        self._asked = set()

    def start(self, offsets: Mapping[Partition, int]) -> None:
        """Begin an assignment, at these offsets. What a `getmany` has brought since all was forgotten is of the one
        before, and comes again if it is ours."""
        self.forget()
        self._ends = dict(offsets)
        self._apart = False
        self._set_standstills({})

    def go_on_at(self, partition: Partition, offset: int) -> None:
        """Read it from there on: a `getmany` that fails must not go back to what is not there any more."""
        self._buffer.pop(partition, None)
        self._ends[partition] = offset

    def forget(self) -> None:
        """Give everything up: what comes from now on is of the next assignment."""
        self._buffer.clear()

    async def end(self) -> None:
        """End all that is under way. To be called when the consumer has stopped: then nobody minds what is
        cancelled."""
        self._consumer = None
        self.forget()
        for get in self._gets:
            get.cancel()
        if self._gets:
            await asyncio.wait(self._gets)

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._buffer

    def waiting(self, partitions: Collection[Partition]) -> list[Partition]:
        """Partitions of which something lies here, longest first."""
        return [partition for partition in self._buffer if partition in partitions]

    def take(self, partition: Partition, records_max: int) -> list[Record]:
        """Take the next records of a partition."""
        queue = self._buffer.pop(partition)
        if len(queue) > records_max:
            self._buffer[partition] = queue[records_max:]
            return queue[:records_max]
        return queue

    def ask(self, partitions: Iterable[Partition], records_max: int) -> None:
        """Have records of these partitions fetched, where that is not under way."""
        wanted = [p for p in partitions if p not in self._asked and p not in self._buffer]
        consumer = self._consumer
        if not wanted or consumer is None:
            return
        self._asked.update(wanted)
        for asked in [[partition] for partition in wanted] if self._apart else [wanted]:
            get = asyncio.get_running_loop().create_task(self._get(consumer, asked, records_max))
            self._gets.add(get)
            get.add_done_callback(self._gets.discard)

    async def _get(self, consumer: AIOKafkaConsumer, partitions: Sequence[Partition], records_max: int) -> None:
        """Fetch once. It may be under way while an assignment ends and another begins; what it gets then is of the
        other one."""
        try:
            got = await consumer.getmany(
                *(TopicPartition(*partition) for partition in partitions), timeout_ms=GET_MS, max_records=records_max
            )
        except Exception as why:  # noqa: BLE001 - whatever it is: what was taken has to come again
            if consumer is self._consumer:
                self._back(consumer, partitions)
                if isinstance(why, FAILED):
                    self.failure = failed(why, f"group {self._group!r}: reading", "Read", waits=True)
                elif len(partitions) > 1:
                    self._apart = True
                else:
                    await self._rests(partitions[0], why)
        else:
            if consumer is self._consumer:  # nothing has run since they were handed out: their order is kept
                for place, records in got.items():
                    partition = Partition(*place)
                    self._buffer.setdefault(partition, []).extend(records)
                    self._ends[partition] = records[-1].offset + 1
                if self._apart or self.standstills:
                    self._works(partitions)
        finally:
            if consumer is self._consumer:
                self._asked.difference_update(partitions)
            self.news.set()

    def _back(self, consumer: AIOKafkaConsumer, partitions: Collection[Partition]) -> None:
        """Have aiokafka go on where it ends."""
        ours = consumer.assignment()
        for partition in partitions:
            place = TopicPartition(*partition)
            if partition in self._ends and place in ours:
                consumer.seek(place, self._ends[partition])

    async def _rests(self, partition: Partition, why: Exception) -> None:
        """Leave a partition alone for a while that has failed by itself."""
        at = self._ends.get(partition)
        if at is None:  # it is somebody else's by now
            return
        said = f"{partition.topic}/{partition.number} cannot be read from offset {at} on: {type(why).__name__}: {why}"
        advice = "it is tried again: report it with this message; `saga positions skip` may step over what is there"
        self._set_standstills(self.standstills | {partition: Standstill(*partition, at, f"{said[:300]}: {advice}")})
        self.news.set()
        await self._clock.sleep(REST_S)

    def _works(self, partitions: Collection[Partition]) -> None:
        """Ask for all together again, when each has been found to work."""
        self._set_standstills({other: each for other, each in self.standstills.items() if other not in partitions})
        self._apart = bool(self.standstills)

    def _set_standstills(self, standstills: dict[Partition, Standstill]) -> None:
        """Note the standstills there are from here on, and no others."""
        if standstills != self.standstills:
            self.standstills = standstills
            self._tell()
