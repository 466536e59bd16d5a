"""Broker on Kafka behind the port: connecting, publishing, joining, and secrets that change."""

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Self, TypeVar

from saga.broker.kafka import connecting
from saga.broker.kafka import topics as kafka_topics
from saga.broker.kafka.client import FAILED, failed
from saga.broker.kafka.connecting import check
from saga.broker.kafka.log_ids import log_ids
from saga.broker.kafka.membership import Member
from saga.broker.kafka.producing import Publisher
from saga.broker.kafka.settings import Access, KafkaSettings
from saga.broker.port import Listener, Membership, Subscription
from saga.errors import BrokerError
from saga.messages import Outgoing, Record, Topic
from saga.support.clock import Clock

T = TypeVar("T")

ASKED_S_MAX = 10.0
"""Longest wait for an answer about topics and rights."""
RENEW_S = 5.0
"""Pause before secrets and certificates are looked at again. Only new connections use them."""


class KafkaBroker:
    """Broker on Kafka; one instance serves all services of a process. See `saga.broker.port.Broker` for the
    promises."""

    makes_topics = False

    def __init__(self, settings: KafkaSettings, *, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self.record_bytes_max = settings.record_bytes_max
        self._members: set[Member] = set()
        self._closing = AsyncExitStack()
        self._opened: tuple[Publisher, Access] | None = None

    async def __aenter__(self) -> Self:
        settings = self._settings
        async with AsyncExitStack() as opened:
            access = Access(settings)
            publisher = Publisher(settings, access, self._clock)
            try:
                await self._clock.within(settings.connect_s, self._connected(publisher, access))
            except FAILED as why:
                raise access.explained(failed(why, f"Kafka at {', '.join(settings.servers)}")) from why
            opened.push_async_callback(publisher.close)
            renewing = asyncio.get_running_loop().create_task(self._renew_often(publisher, access))
            opened.push_async_callback(_end, renewing)
            self._opened = publisher, access
            self._closing = opened.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._closing.aclose()
        self._opened = None

    async def _connected(self, publisher: Publisher, access: Access) -> None:
        await check(self._settings, access, self._clock)
        await publisher.open()

    @property
    def _open(self) -> tuple[Publisher, Access]:
        if self._opened is None:
            raise BrokerError("Kafka is not connected here: use the broker inside its `async with`")
        return self._opened

    # ---------------------------------------------------------------- the port

    async def ensure(self, topics: Sequence[Topic]) -> None:
        """Create topics as promised; what is there stays as it is, its retention too."""
        publisher, access = self._open
        with access.explaining():
            await kafka_topics.ensure(topics, publisher.producer.client, self._settings, access, self._clock)

    async def partitions(self, topics: Collection[str]) -> Mapping[str, int]:
        publisher, access = self._open
        with access.explaining():
            return await self._ask_about_topics(kafka_topics.partitions(topics, publisher.producer.client, self._clock))

    async def log_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        try:
            return await log_ids(topics, self._open[0].producer.client)
        except FAILED as why:
            raise failed(why, "asking for the ids of topics") from why

    async def forbidden(
        self, reads: Collection[str], writes: Collection[str], groups: Collection[str] = ()
    ) -> Sequence[str]:
        publisher, access = self._open
        with access.explaining():
            return await self._ask_about_topics(connecting.forbidden(reads, writes, groups, publisher.producer.client))

    async def _ask_about_topics(self, answer: Coroutine[Any, Any, T]) -> T:
        """Wait for an answer about topics. Raises `BrokerUnavailable` if none comes."""
        try:
            return await self._clock.within(ASKED_S_MAX, answer)
        except TimeoutError as why:
            raise failed(why, "asking Kafka for its topics") from why

    def publish(self, messages: Sequence[Outgoing]) -> Coroutine[Any, Any, None]:
        """Publish as promised. Raises `BrokerError` for a record that is too large, or a topic that is not there."""
        return self._open[0].publish(messages)

    @asynccontextmanager
    async def join(self, subscription: Subscription, listener: Listener) -> AsyncIterator[Membership]:
        """Join as promised. An error that the listener raises comes out of the next `poll` or `commit`."""
        _, access = self._open
        member = Member(subscription, listener, self._settings, access, self._clock)
        await member.enter()
        self._members.add(member)
        try:
            yield member
        finally:
            self._members.discard(member)
            await member.leave()

    def scan(self, topic: str) -> AsyncIterator[Record]:
        _, access = self._open
        return kafka_topics.scan(topic, self._settings, access, self._clock)

    # ---------------------------------------------------------------- what changes meanwhile

    async def _renew_often(self, publisher: Publisher, access: Access) -> None:
        while True:
            await self._clock.sleep(RENEW_S)
            with suppress(Exception):  # a file that is just being written: what we have is good for as long as it is
                access.renew()
                publisher.renew_password()
                for member in self._members:
                    member.renew_password()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
