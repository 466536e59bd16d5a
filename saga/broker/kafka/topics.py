"""Topics on Kafka: made as contracts want them, looked for, and read from end to end by tools."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import TopicAlreadyExistsError, for_code

from saga.broker.administration import BY_LOG, DATED_BY, DAY_MS
from saga.broker.kafka.client import FAILED, LOOK_S, LOOKS, bounds, failed, partitions_of, starting, topics_of
from saga.broker.kafka.consumers import of_nobody
from saga.broker.kafka.errors import translated
from saga.broker.kafka.fetching import Fetching, keep_apart
from saga.broker.kafka.settings import Access, KafkaSettings
from saga.errors import BrokerError, BrokerUnavailable
from saga.messages import Record, Topic
from saga.support.clock import Clock

MESSAGE_BYTES = 1_048_588
"""Largest record that brokers take unless told otherwise."""
CREATE_S = 15.0
PAGE_S = 0.5


async def ensure(
    topics: Sequence[Topic], client: AIOKafkaClient, settings: KafkaSettings, access: Access, clock: Clock
) -> None:
    """Create the topics that are missing, and return when all brokers that we ask know them. Raises `BrokerError`."""
    known = await topics_of(client)
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
        await clock.within(CREATE_S, _visible(missing, client, clock))
    except FAILED as why:
        raise failed(why, f"creating topics {', '.join(topic.name for topic in missing)}") from why


async def partitions(topics: Collection[str], client: AIOKafkaClient, clock: Clock) -> Mapping[str, int]:
    """Count the partitions of each topic that is there and that we may see. Raises `BrokerUnavailable`."""
    found: Mapping[str, int] = {}
    for look in range(LOOKS):
        if look:
            await clock.sleep(LOOK_S)
        known = await topics_of(client)
        found = {name: known[name] for name in topics if name in known}
        if len(found) == len(set(topics)):
            break
    return found


async def _create(topics: Sequence[Topic], settings: KafkaSettings, access: Access) -> None:
    admin = AIOKafkaAdminClient(**access.options, request_timeout_ms=int(CREATE_S * 1000))
    try:
        with starting(admin._client):
            await admin.start()
        answer = await admin.create_topics([_wanted(topic, settings) for topic in topics])
    finally:
        await admin.close()
    for name, code, *words in answer.topic_errors:
        kind = for_code(code)
        if code != 0 and kind is not TopicAlreadyExistsError:  # somebody else was faster
            raise translated(kind(*(word for word in words if word)), f"creating topic {name}", "Create")


def _wanted(topic: Topic, settings: KafkaSettings) -> NewTopic:
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
            DATED_BY: BY_LOG,  # a record's time is the broker's: see `Record.time_ms`
            "max.message.bytes": str(max(MESSAGE_BYTES, settings.record_bytes_max)),
        },
    )


async def _visible(topics: Sequence[Topic], client: AIOKafkaClient, clock: Clock) -> None:
    while True:
        known = await topics_of(client)
        found = {topic.name: known.get(topic.name) for topic in topics}
        if all(found[topic.name] == topic.partitions for topic in topics):
            return
        other = [topic for topic in topics if found[topic.name] not in (None, topic.partitions)]
        if other:
            raise BrokerError(f"topic {other[0].name} has just been created with other partitions by somebody else")
        await clock.sleep(LOOK_S)


async def scan(topic: str, settings: KafkaSettings, access: Access, clock: Clock) -> AsyncIterator[Record]:
    """Read all records that are there now, partition by partition. Raises `BrokerError`, also for a record that cannot
    be read."""
    try:
        async with of_nobody(settings, access, clock, settings.connect_s) as consumer:
            fetching = keep_apart(consumer, clock, lambda: None)
            count = await partitions_of(consumer._client, topic, clock)
            await fetching.log_ids.learn([topic], consumer._client)
            there = await bounds(consumer, [TopicPartition(topic, number) for number in range(count)])
            for place, offsets in there.items():
                async for record in _read(consumer, fetching, place, range(*offsets), settings, clock):
                    yield record
    except FAILED as why:
        raise access.explained(failed(why, f"reading topic {topic}", "Read")) from why


async def _read(
    consumer: AIOKafkaConsumer,
    fetching: Fetching,
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
    while at < offsets.stop:  # the last offsets need not be records
        for records in (await consumer.getmany(place, timeout_ms=int(PAGE_S * 1000))).values():
            for record in records:
                if record.offset in offsets:
                    yield record
        reached = await consumer.position(place)
        if reached > at:
            moved_s, at = clock.monotonic_s(), reached
        elif standstills := fetching.standstills():
            raise BrokerError(standstills[0].reason)
        elif fetching.out_of_range:
            fetching.go_on_at(place, at := (await bounds(consumer, [place]))[place][0])  # removed in this very moment
        elif clock.monotonic_s() - moved_s > settings.connect_s:
            raise BrokerUnavailable(f"Kafka: nothing of {place.topic}/{place.partition} comes any more")
