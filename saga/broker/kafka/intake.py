"""What a consumer has fetched and nobody has taken yet: asked for side by side, kept in order, never cancelled."""

import asyncio
from collections.abc import Collection, Iterable, Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import ConsumerRecord

from saga.broker.kafka.client import FAILED, failed
from saga.errors import BrokerError
from saga.messages import Partition

GET_MS = 100
"""How long one `getmany` waits; one for other partitions can go on beside it."""


class Intake:
    """Between `getmany` and `poll`.

    A `getmany` that is cancelled would count as under way for ever, and while the group is rebalanced it waits without
    limit. So each runs in a task of its own. There are never two for one partition, and none for a partition of which
    something lies here: so there is never much more than was asked for.
    """

    def __init__(self, group: str) -> None:
        self.news = asyncio.Event()
        """Set when something has come, or failed, or may be asked for again."""
        self.failure: BrokerError | None = None
        """The last one; whoever tells it puts it away."""
        self._group = group
        self._consumer: AIOKafkaConsumer | None = None
        self._buffer: dict[Partition, list[ConsumerRecord]] = {}
        self._asked: set[Partition] = set()
        self._gets: set[asyncio.Task[None]] = set()

    def begin(self, consumer: AIOKafkaConsumer) -> None:
        """Take from this one from now on. What one before it may still give is dropped."""
        self._consumer = consumer
        self._asked = set()

    def forget(self) -> None:
        """Everything is given up: what comes from now on is of the next assignment."""
        self._buffer.clear()

    async def end(self) -> None:
        """To be called when the consumer has stopped: then nobody minds what is cancelled."""
        self._consumer = None
        self.forget()
        for get in self._gets:
            get.cancel()
        if self._gets:
            await asyncio.wait(self._gets)

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._buffer

    def first(self, partition: Partition) -> int:
        """The offset of what comes next of it."""
        offset: int = self._buffer[partition][0].offset
        return offset

    def waiting(self, partitions: Collection[Partition]) -> list[Partition]:
        """Those of which something lies here, longest first."""
        return [partition for partition in self._buffer if partition in partitions]

    def take(self, partition: Partition, records_max: int) -> list[ConsumerRecord]:
        """The next records of it."""
        queue = self._buffer.pop(partition)
        if len(queue) > records_max:
            self._buffer[partition] = queue[records_max:]
            return queue[:records_max]
        return queue

    def ask(self, partitions: Iterable[Partition], records_max: int) -> None:
        """Have records of these fetched, where that is not under way."""
        wanted = [p for p in partitions if p not in self._asked and p not in self._buffer]
        if wanted and self._consumer is not None:
            self._asked.update(wanted)
            get = asyncio.get_running_loop().create_task(self._get(self._consumer, wanted, records_max))
            self._gets.add(get)
            get.add_done_callback(self._gets.discard)

    async def _get(self, consumer: AIOKafkaConsumer, partitions: Sequence[Partition], records_max: int) -> None:
        """It may be under way while an assignment ends and another begins; what it gets then is of the other one."""
        try:
            got = await consumer.getmany(
                *(TopicPartition(*partition) for partition in partitions), timeout_ms=GET_MS, max_records=records_max
            )
        except FAILED as why:
            if consumer is self._consumer:
                self.failure = failed(why, f"group {self._group!r}: reading", "Read", waits=True)
        else:
            if consumer is self._consumer:  # nothing has run since they were handed out: their order is kept
                for partition, records in got.items():
                    self._buffer.setdefault(Partition(*partition), []).extend(records)
        finally:
            if consumer is self._consumer:
                self._asked.difference_update(partitions)
            self.news.set()
