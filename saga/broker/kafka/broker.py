"""Broker on Kafka: it connects, creates topics, publishes, joins groups, and renews credentials that have changed."""

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Self, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import create_conn
from aiokafka.errors import (
    BrokerNotAvailableError,
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAlreadyExistsError,
    for_code,
)
from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.protocol.metadata import MetadataRequest

from saga.broker.acls import AclRight, grant_command
from saga.broker.adapter import ClientOptions
from saga.broker.administration import BY_LOG, DATED_BY, DAY_MS
from saga.broker.kafka.access import KafkaAccess, explain_refusal
from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.client import (
    FAILED,
    LOOK_S,
    LOOKS,
    READ,
    UNKNOWN,
    WRITE,
    Topics,
    close_connections,
    closing_on_failure,
    count_partitions,
    fetch_bounds,
    fetch_topics,
    to_broker_error,
)
from saga.broker.kafka.consumers import UNKNOWN_THERE, ask_any_broker, fetch_log_ids, open_reading_consumer
from saga.broker.kafka.errors import translate_error
from saga.broker.kafka.fetching import IsolatingFetcher, isolate_partitions
from saga.broker.kafka.membership import KafkaMember
from saga.broker.kafka.producer import Publisher
from saga.broker.port import Listener, Membership, Subscription
from saga.errors import BrokerError, BrokerUnavailable
from saga.messages import Outgoing, Record, Topic
from saga.support.clock import Clock

T = TypeVar("T")
ASKED_S_MAX = 10.0
"""Longest wait for an answer about topics and rights, in seconds."""
RENEW_S = 5.0
"""Pause between checks for changed secrets and certificates, in seconds. Only new connections use the new ones."""


class KafkaBroker:
    """Broker on Kafka; one instance serves all services of a process. See `saga.broker.port.Broker` for the
    promises."""

    creates_topics = False

    def __init__(self, settings: KafkaSettings, *, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self.record_bytes_max = settings.record_bytes_max
        self._members: set[KafkaMember] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        """Tasks in which members leave their groups."""
        self._closing = AsyncExitStack()
        self._opened: tuple[Publisher, KafkaAccess] | None = None

    async def __aenter__(self) -> Self:
        settings = self._settings
        async with AsyncExitStack() as opened:
            access = KafkaAccess(settings)
            publisher = Publisher(settings, access, self._clock)
            try:
                await self._clock.within(settings.connect_s, self._connect(publisher, access))
            except FAILED as why:
                raise access.explain(to_broker_error(why, f"Kafka at {', '.join(settings.servers)}")) from why
            opened.push_async_callback(publisher.close)
            renewing = asyncio.get_running_loop().create_task(self._renew_regularly(publisher, access))
            opened.push_async_callback(_end, renewing)
            self._opened = publisher, access
            self._closing = opened.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            if self._leaving:
                await asyncio.wait(self._leaving)
        finally:
            try:
                await self._closing.aclose()
            finally:
                self._opened = None

    async def _connect(self, publisher: Publisher, access: KafkaAccess) -> None:
        await check_connection(self._settings, access, self._clock)
        await publisher.open()

    @property
    def _open(self) -> tuple[Publisher, KafkaAccess]:
        if self._opened is None:
            raise BrokerError("Kafka is not connected here: use the broker inside its `async with`")
        return self._opened

    # ---------------------------------------------------------------- the port

    async def ensure_topics(self, topics: Sequence[Topic]) -> None:
        """Create missing topics as the port promises. Existing topics, and their retention, are not changed."""
        publisher, access = self._open
        with access.explaining():
            await ensure_topics(topics, publisher.producer.client, self._settings, access, self._clock)

    async def count_partitions(self, topics: Collection[str]) -> Mapping[str, int]:
        publisher, access = self._open
        with access.explaining():
            return await self._ask_about_topics(count_known_partitions(topics, publisher.producer.client, self._clock))

    async def fetch_log_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        try:
            return await fetch_log_ids(topics, self._open[0].producer.client)
        except FAILED as why:
            raise to_broker_error(why, "asking for the ids of topics") from why

    async def find_missing_rights(
        self, reads: Collection[str], writes: Collection[str], groups: Collection[str] = ()
    ) -> Sequence[str]:
        publisher, access = self._open
        with access.explaining():
            return await self._ask_about_topics(find_missing_rights(reads, writes, groups, publisher.producer.client))

    async def _ask_about_topics(self, answer: Coroutine[Any, Any, T]) -> T:
        """Return the answer to a request about topics. Raises `BrokerUnavailable` if there is none in time."""
        try:
            return await self._clock.within(ASKED_S_MAX, answer)
        except TimeoutError as why:
            raise to_broker_error(why, "asking Kafka for its topics") from why

    def publish(self, messages: Sequence[Outgoing]) -> Coroutine[Any, Any, None]:
        """Publish as the port promises. Raises `BrokerError` for a record that is too large, and for a topic that does
        not exist."""
        return self._open[0].publish(messages)

    @asynccontextmanager
    async def join(self, subscription: Subscription, listener: Listener) -> AsyncIterator[Membership]:
        """Join a group as the port promises. An error raised by the listener is raised again by the next `poll` or
        `commit`."""
        _, access = self._open
        member = KafkaMember(subscription, listener, self._settings, access, self._clock)
        await member.join()
        self._members.add(member)
        try:
            yield member
        finally:
            self._members.discard(member)
            await self._leave(member)

    async def _leave(self, member: KafkaMember) -> None:
        """Let a member leave its group, even if the caller is cancelled meanwhile: a member that has half left would
        keep its partitions by heartbeats. Some frameworks cancel a task again at each of its waits."""
        task = asyncio.get_running_loop().create_task(member.leave(), name="leave a group")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        await asyncio.shield(task)

    def scan(self, topic: str) -> AsyncIterator[Record]:
        _, access = self._open
        return scan(topic, self._settings, access, self._clock)

    # ---------------------------------------------------------------- what changes meanwhile

    async def _renew_regularly(self, publisher: Publisher, access: KafkaAccess) -> None:
        while True:
            await self._clock.sleep(RENEW_S)
            with suppress(Exception):  # a file may be incomplete at the moment; the current credentials stay in use
                access.renew()
                publisher.renew_password()
                for member in self._members:
                    member.renew_password()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


# ---------------------------------------------------------------- topics


MESSAGE_BYTES = 1_048_588
"""Kafka's default of `max.message.bytes`."""
CREATE_S = 15.0
PAGE_S = 0.5


async def ensure_topics(
    topics: Sequence[Topic], client: AIOKafkaClient, settings: KafkaSettings, access: KafkaAccess, clock: Clock
) -> None:
    """Create missing topics. Return when all requested brokers know them. Raises `BrokerError`."""
    known = await fetch_topics(client)
    for topic in topics:
        if topic.name in known and known[topic.name] != topic.partitions:
            raise BrokerError(
                f"topic {topic.name} has {known[topic.name]} partitions, not {topic.partitions}: which partition a key "
                "belongs to depends on their number, so it cannot be changed while anything of it is still needed"
            )
    missing = [topic for topic in topics if topic.name not in known]
    if not missing:
        return
    try:
        await clock.within(CREATE_S, _create(missing, settings, access))
        await clock.within(CREATE_S, _wait_until_visible(missing, client, clock))
    except FAILED as why:
        raise to_broker_error(why, f"creating topics {', '.join(topic.name for topic in missing)}") from why


async def count_known_partitions(topics: Collection[str], client: AIOKafkaClient, clock: Clock) -> Mapping[str, int]:
    """Count the partitions of each topic that exists and that this user may see. Raises `BrokerUnavailable`."""
    found: Mapping[str, int] = {}
    for look in range(LOOKS):
        if look:
            await clock.sleep(LOOK_S)
        known = await fetch_topics(client)
        found = {name: known[name] for name in topics if name in known}
        if len(found) == len(set(topics)):
            break
    return found


async def _create(topics: Sequence[Topic], settings: KafkaSettings, access: KafkaAccess) -> None:
    admin = AIOKafkaAdminClient(**access.options, request_timeout_ms=int(CREATE_S * 1000))
    try:
        with closing_on_failure(admin._client):
            await admin.start()
        answer = await admin.create_topics([_new_topic(topic, settings) for topic in topics])
    finally:
        try:
            await admin.close()
        finally:
            close_connections(admin._client)
    for name, code, *words in answer.topic_errors:
        kind = for_code(code)
        if code != 0 and kind is not TopicAlreadyExistsError:  # another process has created the topic first
            raise translate_error(kind(*(word for word in words if word)), f"creating topic {name}", "Create")


def _new_topic(topic: Topic, settings: KafkaSettings) -> NewTopic:
    retention_ms = -1 if topic.retention_days is None else int(topic.retention_days * DAY_MS)
    return NewTopic(
        topic.name,
        topic.partitions,
        settings.replication_factor,
        topic_configs={
            "cleanup.policy": "delete",
            "retention.ms": str(retention_ms),
            "retention.bytes": "-1",
            "min.insync.replicas": str(settings.min_insync_replicas),
            "unclean.leader.election.enable": "false",
            DATED_BY: BY_LOG,  # the broker assigns the time of a record: see `Record.time_ms`
            "max.message.bytes": str(max(MESSAGE_BYTES, settings.record_bytes_max)),
        },
    )


async def _wait_until_visible(topics: Sequence[Topic], client: AIOKafkaClient, clock: Clock) -> None:
    while True:
        known = await fetch_topics(client)
        found = {topic.name: known.get(topic.name) for topic in topics}
        if all(found[topic.name] == topic.partitions for topic in topics):
            return
        other = [topic for topic in topics if found[topic.name] not in (None, topic.partitions)]
        if other:
            raise BrokerError(
                f"topic {other[0].name} was created with another number of partitions by another client just now"
            )
        await clock.sleep(LOOK_S)


async def scan(topic: str, settings: KafkaSettings, access: KafkaAccess, clock: Clock) -> AsyncIterator[Record]:
    """Yield all existing records of a topic, partition by partition. Raises `BrokerError`, even for a single record
    that cannot be read."""
    try:
        async with open_reading_consumer(settings, access, clock, settings.connect_s) as consumer:
            fetching = isolate_partitions(consumer, clock, lambda: None)
            count = await count_partitions(consumer._client, topic, clock)
            await fetching.log_ids.learn([topic], consumer._client)
            there = await fetch_bounds(consumer, [TopicPartition(topic, number) for number in range(count)])
            for place, offsets in there.items():
                async for record in _read(consumer, fetching, place, range(*offsets), settings, clock):
                    yield record
    except FAILED as why:
        raise access.explain(to_broker_error(why, f"reading topic {topic}", "Read")) from why


async def _read(
    consumer: AIOKafkaConsumer,
    fetching: IsolatingFetcher,
    place: TopicPartition,
    offsets: range,
    settings: KafkaSettings,
    clock: Clock,
) -> AsyncIterator[Record]:
    if not offsets:
        return
    consumer.assign([place])
    fetching.begin()
    consumer.seek(place, offsets.start)
    moved_s, at = clock.monotonic_s(), offsets.start
    while at < offsets.stop:  # the last offsets may belong to no record
        for records in (await consumer.getmany(place, timeout_ms=int(PAGE_S * 1000))).values():
            for record in records:
                if record.offset in offsets:
                    yield record
        reached = await consumer.position(place)
        if reached > at:
            moved_s, at = clock.monotonic_s(), reached
        elif standstills := fetching.stalled_partitions():
            raise BrokerError(standstills[0].reason)
        elif fetching.out_of_range:
            fetching.resume_at(
                place, at := (await fetch_bounds(consumer, [place]))[place][0]
            )  # the records were removed just now
        elif clock.monotonic_s() - moved_s > settings.connect_s:
            raise BrokerUnavailable(f"Kafka: nothing of {place.topic}/{place.partition} comes any more")


# ---------------------------------------------------------------- checks when it opens
#
# Errors say whether Kafka can be reached, accepts our credentials and grants our rights. aiokafka itself reports a
# wrong password and a wrong address in the same way.


GREET_AGAIN_S = 0.1
"""Pause before another request to a server that knows no running broker, in seconds."""


async def check_connection(settings: KafkaSettings, access: KafkaAccess, clock: Clock) -> None:
    """Wait until one of the servers accepts a connection. Raises `BrokerError` with the problem of each server if none
    does."""
    options = access.options
    share_s = settings.connect_s / (len(settings.servers) + 1)
    troubles: list[BrokerError] = []
    for server in settings.servers:
        try:
            await clock.within(share_s, _greet(server, options, share_s, clock))
        except (OSError, KafkaError) as why:
            if access.trouble:
                raise BrokerUnavailable(f"Kafka at {server}: {access.trouble}") from why
            troubles.append(explain_refusal(why, server, settings))
        else:
            return
    for trouble in troubles:
        if not isinstance(trouble, BrokerUnavailable):
            raise trouble  # other servers would refuse this process, too
    raise BrokerUnavailable("; ".join(str(trouble) for trouble in troubles))


async def _greet(server: str, options: ClientOptions, seconds: float, clock: Clock) -> None:
    """Wait until the server accepts a connection and knows a running broker.

    If the only broker of a cluster was frozen for longer than its session, the cluster knows no broker for about 30 ms
    afterwards.
    """
    end_s = clock.monotonic_s() + seconds - GREET_AGAIN_S
    host, _, port = server.rpartition(":")
    connection = await create_conn(
        host.strip("[]"),
        int(port),
        request_timeout_ms=int(seconds * 1000),
        **{name: value for name, value in options.items() if name != "bootstrap_servers"},
    )
    try:
        # A bad token is refused only at the first request.
        while not (await connection.send(MetadataRequest([]))).brokers:
            if clock.monotonic_s() >= end_s:
                raise BrokerNotAvailableError("it knows of no broker that is up")
            await clock.sleep(GREET_AGAIN_S)
    finally:
        await connection.close()


async def find_missing_rights(
    reads: Collection[str], writes: Collection[str], groups: Collection[str], client: AIOKafkaClient
) -> list[str]:
    """Return a line for each missing permission, with the command that grants it. Raises `BrokerError`."""
    try:
        return [
            *await _find_missing_topic_rights(reads, writes, client),
            *await _find_missing_group_rights(groups, client),
        ]
    except FAILED as why:
        raise to_broker_error(why, "asking what this user may do") from why


async def _find_missing_topic_rights(
    reads: Collection[str], writes: Collection[str], client: AIOKafkaClient
) -> list[str]:
    try:
        answer = await ask_any_broker(Topics(sorted({*reads, *writes})), client)
    except UNKNOWN_THERE:  # not supported before Kafka 2.3: there the first request fails instead
        return []
    return [
        f"topic {name}: this user may not {right.lower()} it: {grant_command(AclRight(right, 'topic', name))}"
        for name, allowed in sorted((name, allowed) for code, name, *_, allowed in answer.topics if code == 0)
        for right, bit, wanted in (("Read", READ, reads), ("Write", WRITE, writes))
        if name in wanted and allowed != UNKNOWN and not allowed & bit
    ]


async def _find_missing_group_rights(groups: Collection[str], client: AIOKafkaClient) -> list[str]:
    """Return the missing permissions on groups.

    Each check sends a heartbeat of an unknown member, because brokers check permissions before anything else.
    """
    problems = []
    for group in sorted(groups):
        answer = await ask_any_broker(HeartbeatRequest(group, -1, ""), client)
        if answer.error_code == GroupAuthorizationFailedError.errno:
            problems.append(
                f"group {group}: this user may not join it: {grant_command(AclRight('Read', 'group', group))}"
            )
    return problems
