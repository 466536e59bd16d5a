"""Publish with one idempotent producer for the whole process, and replace the producer when it has failed.

A producer numbers its records in each partition. If a batch fails for good, its numbers are missing, and brokers refuse
all later records of that producer. So after such a failure a new producer is started, and callers publish again.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError
from aiokafka.structs import RecordMetadata

from saga.broker.kafka import client
from saga.broker.kafka.access import KafkaAccess
from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.client import FAILED, enqueue_record, to_broker_error
from saga.broker.kafka.errors import GUESS
from saga.broker.port import partition_of, record_size
from saga.errors import BrokerError, BrokerUnavailable
from saga.messages import Outgoing
from saga.support.clock import Clock

BATCH_BYTES = 1 << 17
"""Maximum size of a batch for a partition, in bytes. It is smaller than the limit of any topic, so a batch that a topic
refuses as too large contains a single record."""
AGAIN_S = 0.2
REFUSED_S = 1.0
"""Pause before another attempt to write to a topic without permission, in seconds."""
LOOK_S = 0.2
"""Pause between checks for calls that have timed out, in seconds. A timer for each call would cost as much as the
call."""
END_S = 5.0


@dataclass(slots=True, eq=False)
class Sending:
    """A running call of `publish`."""

    messages: Sequence[Outgoing]
    due_s: float
    """Time at which the call times out."""
    producer: AIOKafkaProducer | None = None
    acknowledged: list[asyncio.Future[RecordMetadata]] = field(default_factory=list)


class Publisher:
    """Publisher that appends records to the log, as `Broker.publish` of `saga.broker.port` promises."""

    def __init__(self, settings: KafkaSettings, access: KafkaAccess, clock: Clock) -> None:
        self._settings, self._access, self._clock = settings, access, clock
        self._producer: AIOKafkaProducer | None = None
        self._partitions: dict[str, int] = {}
        """Number of partitions of each topic that the producer knows."""
        self._lookups: dict[str, asyncio.Task[int]] = {}
        """Running lookups of topics for the current producer, by topic."""
        self._asking: set[asyncio.Task[int]] = set()
        """All running lookups, including those for earlier producers, whose results are no longer awaited."""
        self._seen: set[str] = set()
        """Topics that existed when they were looked up. If one of them is missing or hidden later, callers get
        `BrokerUnavailable`, and try again."""
        self._refused: dict[str, tuple[float, BrokerUnavailable]] = {}
        """Topics without write permission, each with the time of the next attempt and the error. The pause is needed
        because each failed attempt makes a producer unusable."""
        self._trouble: BrokerError | None = None
        """Reason why there is no producer at present."""
        self._ready = asyncio.Event()
        self._replacing: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._under_way: dict[Sending, None] = {}
        """Running calls, in the order in which they time out."""
        self._idle = asyncio.Event()
        self._idle.set()

    async def open(self) -> None:
        """Connect. Raises `BrokerError`."""
        try:
            self._producer = await self._start_producer()
        except FAILED as why:
            raise self._access.explain(to_broker_error(why, "Kafka does not let us publish")) from why
        self._ready.set()
        self._looking = asyncio.get_running_loop().create_task(self._watch_deadlines())

    async def close(self) -> None:
        """Wait for all running calls of `publish`, then stop the producer. If the caller is cancelled meanwhile, the
        calls fail."""
        flush_s = 0.0
        try:
            await self._idle.wait()  # each call has its own timeout
            flush_s = END_S
        finally:
            await client.run_to_end(self._end(flush_s))

    async def _end(self, flush_s: float) -> None:
        producer, self._producer = self._producer, None  # first: a call that fails now must not replace the producer
        self._ready.set()  # calls that wait for a producer fail now: there will be none
        ending = {*self._replacing, *self._asking, *(task for task in (self._looking,) if task is not None)}
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        if producer is not None:
            await client.end_producer(producer, self._clock, flush_s)

    @property
    def producer(self) -> AIOKafkaProducer:
        """Return the current producer. Raises `BrokerUnavailable` while there is none."""
        if self._producer is None:
            raise BrokerUnavailable("Kafka: not connected at the moment")
        return self._producer

    def renew_password(self) -> None:
        """Use the current password for new connections."""
        if self._producer is not None:
            client.renew_password(self._producer.client, self._access.password)

    # ---------------------------------------------------------------- publishing

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        """Publish as the port promises."""
        self._check_sizes(messages)
        if self._refused:
            self._check_refused(messages)
        sending = Sending(messages, self._clock.monotonic_s() + self._settings.publish_s)
        self._under_way[sending] = None
        self._idle.clear()
        try:
            if self._try_enqueue(sending):
                await _wait_for_all(sending.acknowledged)
            else:
                await self._clock.within(self._settings.publish_s, self._send_rest(sending))
        except BaseException as why:  # even if the caller was cancelled, no more acknowledgements are read
            _ignore_results(sending.acknowledged)
            if isinstance(why, BrokerUnavailable):
                raise self._access.explain(why) from why
            if not (isinstance(why, FAILED) or client.is_stray_cancellation(why)):
                raise
            self._replace_if_broken(sending, why)
            raise self._make_error(sending, why) from why
        finally:
            del self._under_way[sending]
            if not self._under_way:
                self._idle.set()

    def _try_enqueue(self, sending: Sending) -> bool:
        """Enqueue as many records as possible without waiting. Return whether all records were enqueued.

        If so, `_watch_deadlines` enforces the timeout.
        """
        producer, known = self._producer, self._partitions
        if producer is None:
            return False
        sending.producer = producer
        for topic, key, value, headers, _ in sending.messages:
            partitions = known.get(topic)
            if partitions is None:
                return False
            place = TopicPartition(topic, partition_of(key, partitions))
            future = enqueue_record(producer, place, key, value, list(headers))
            if future is None:
                return False
            sending.acknowledged.append(future)
        return True

    async def _send_rest(self, sending: Sending) -> None:
        """Enqueue the remaining records, and wait for all acknowledgements.

        If two messages have the same key, the second may go into a later batch only after the first has been
        acknowledged. Otherwise the first batch might fail alone, for example because the partition has no known leader
        for too long, and the second batch would overtake it. Records that are enqueued without waiting are in one batch
        for each partition.
        """
        while sending.producer is None:
            await self._ready.wait()
            if self._ready.is_set():  # otherwise the new producer has failed already
                sending.producer = self.producer
        producer, known = sending.producer, self._partitions
        before = {(m.topic, m.key): future for m, future in zip(sending.messages, sending.acknowledged, strict=False)}
        for topic, key, value, headers, _ in sending.messages[len(sending.acknowledged) :]:
            if (earlier := before.get((topic, key))) is not None:
                await earlier
            partitions = known.get(topic)
            if partitions is None:
                partitions = known[topic] = await self._count_partitions(producer, topic)
            future = await producer.send(topic, value, key, partition_of(key, partitions), headers=list(headers))
            before[topic, key] = future
            sending.acknowledged.append(future)
        await _wait_for_all(sending.acknowledged)

    async def _watch_deadlines(self) -> None:
        """Make calls fail that have timed out, and start to use partitions that have been added to topics."""
        while True:
            await self._clock.sleep(LOOK_S)
            if self._producer is not None:
                self._partitions.update(client.count_cached_partitions(self._producer.client, self._partitions))
            now_s = self._clock.monotonic_s()
            for sending in self._under_way:
                if sending.due_s > now_s:
                    break
                for future in sending.acknowledged:
                    if not future.done():
                        future.set_exception(TimeoutError())

    async def _count_partitions(self, producer: AIOKafkaProducer, topic: str) -> int:
        """Return a topic's number of partitions, with a single lookup for all concurrent callers."""
        lookup = self._lookups.get(topic)
        if lookup is None:
            lookups = self._lookups
            lookup = asyncio.get_running_loop().create_task(
                client.count_partitions(producer.client, topic, self._clock)
            )
            lookups[topic] = lookup
            lookup.add_done_callback(lambda _: lookups.pop(topic))
            self._asking.add(lookup)
            lookup.add_done_callback(self._asking.discard)
            lookup.add_done_callback(_ignore_result)  # the caller may have given up
        try:
            partitions = await asyncio.shield(lookup)
        except BrokerUnavailable:
            raise
        except BrokerError as why:
            if topic not in self._seen:
                raise
            raise BrokerUnavailable(f"{why}; until then it is tried again") from why
        self._seen.add(topic)
        return partitions

    def _make_error(self, sending: Sending, why: BaseException) -> BrokerError:
        """Create the error for a failure. A missing permission counts as an outage here, so callers wait until it is
        granted."""
        doing = f"publishing to {_topics(sending.messages)}"
        if isinstance(why, TopicAuthorizationFailedError):
            trouble = to_broker_error(why, doing, "Write", waits=True)
            assert isinstance(trouble, BrokerUnavailable)
            until_s = self._clock.monotonic_s() + REFUSED_S
            self._refused |= dict.fromkeys(map(str, why.args), (until_s, trouble))
            return trouble
        if isinstance(why, TimeoutError) and sending.producer is None and self._trouble is not None:
            return BrokerUnavailable(f"{doing}: {self._trouble}: until then it is tried again")
        if isinstance(why, TimeoutError):
            unacknowledged = BrokerUnavailable(
                f"{doing}: not acknowledged within {self._settings.publish_s:g} s: it is tried again; {GUESS}; or "
                "whether enough of them are in sync"
            )
            return self._access.explain(unacknowledged)
        return self._access.explain(to_broker_error(why, doing, "Write", waits=True))

    def _check_refused(self, messages: Sequence[Outgoing]) -> None:
        for topic in {message.topic for message in messages} & self._refused.keys():
            until_s, trouble = self._refused[topic]
            if self._clock.monotonic_s() < until_s:
                raise BrokerUnavailable(str(trouble))
            del self._refused[topic]

    def _check_sizes(self, messages: Sequence[Outgoing]) -> None:
        limit = self._settings.record_bytes_max
        for message in messages:
            if (size := record_size(message)) > limit:
                raise BrokerError(f"a record of {size} bytes for {message.topic} is too large: {limit} bytes at most")

    # ---------------------------------------------------------------- replacing the producer

    def _replace_if_broken(self, sending: Sending, why: BaseException) -> None:
        """Replace a producer that has failed. After a timeout the old producer is stopped immediately."""
        producer = sending.producer
        if producer is None or producer is not self._producer:
            return
        timed_out = isinstance(why, TimeoutError)
        if timed_out or client.is_dead(producer) or any(_has_failed(future) for future in sending.acknowledged):
            self._producer = None
            self._partitions, self._lookups = {}, {}
            self._ready.clear()
            task = asyncio.get_running_loop().create_task(self._replace(producer, 0 if timed_out else END_S))
            self._replacing.add(task)
            task.add_done_callback(self._replacing.discard)

    async def _replace(self, old: AIOKafkaProducer, flush_s: float) -> None:
        """Start another producer. The old one may continue to send its pending records for up to `flush_s`."""
        try:
            if not flush_s:
                await client.end_producer(old, self._clock, 0)
            while self._producer is None:
                try:
                    self._producer = await self._start_producer()
                except Exception as why:  # noqa: BLE001 - whatever it is: without a producer nothing could ever be published
                    # Callers of `publish` get the error when they time out.
                    self._trouble = self._access.explain(to_broker_error(why, "connecting"))
                    await self._clock.sleep(AGAIN_S)
            self._trouble = None
            self._ready.set()
        finally:
            if flush_s:
                await client.end_producer(old, self._clock, flush_s)

    async def _start_producer(self) -> AIOKafkaProducer:
        settings = self._settings
        producer = AIOKafkaProducer(
            **self._access.options,
            acks="all",
            enable_idempotence=True,
            linger_ms=int(settings.linger_s * 1000),
            metadata_max_age_ms=int(settings.metadata_s * 1000),
            max_batch_size=BATCH_BYTES,
            max_request_size=2 * settings.record_bytes_max,
            compression_type=settings.compression,
            request_timeout_ms=int(settings.publish_s * 1000 / 2),
        )
        try:
            with client.closing_on_failure(producer.client):
                await self._clock.within(settings.connect_s, producer.start())
        except BaseException as why:  # even a cancelled start must leave no producer behind
            await client.end_producer(producer, self._clock, 0)
            if client.is_stray_cancellation(why):
                raise KafkaConnectionError("given up while it started") from why
            raise
        try:
            client.check_producer(producer)
        except BrokerError:
            await producer.stop()
            raise
        return producer


def _ignore_results(acknowledged: Collection[asyncio.Future[RecordMetadata]]) -> None:
    """Mark the results of acknowledgements that are not awaited as retrieved, because asyncio would log their errors
    otherwise."""
    for future in acknowledged:
        if future.done():
            _ignore_result(future)
        else:
            future.add_done_callback(_ignore_result)


async def _wait_for_all(acknowledged: Collection[asyncio.Future[RecordMetadata]]) -> None:
    for future in acknowledged:
        await future


def _has_failed(future: asyncio.Future[RecordMetadata]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is not None


def _ignore_result(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _topics(messages: Collection[Outgoing]) -> str:
    return ", ".join(sorted({message.topic for message in messages}))
