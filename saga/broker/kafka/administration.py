"""Kafka for tools: topics with their settings and rights, groups, positions, and the few changes that operators make.

Requests go directly to a broker, because aiokafka's admin client hides some refusals. For example, if the right to read
a group is missing, that client reports that the group has no positions.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.admin import (
    CreatePartitionsRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from aiokafka.protocol.api import Request
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.fetch import FetchRequest

from saga.broker.administration import (
    BY_LOG,
    DATED_BY,
    NO_IDS,
    GroupDescription,
    InactiveGroup,
    OffsetBounds,
    PartitionReader,
    TopicDescription,
    UnreadableRange,
)
from saga.broker.kafka.broker import KafkaBroker
from saga.broker.kafka.client import (
    FAILED,
    READ,
    TOPIC,
    UNKNOWN,
    WRITE,
    ChangeConfigs,
    Topics,
    count_partitions,
    decode_subscription,
    fetch_bounds,
    fetch_offsets_at,
    fetch_topics,
    raise_if_reader_broken,
    read_identity,
    read_position,
    to_broker_error,
)
from saga.broker.kafka.consumers import (
    FETCH_BYTES,
    fetch_log_ids,
    is_of_another_log,
    open_reading_consumer,
    to_metadata,
)
from saga.broker.kafka.errors import translate_error
from saga.broker.kafka.fetching import IsolatingFetcher, find_frame, isolate_partitions
from saga.errors import BrokerError, BrokerUnavailable
from saga.messages import Partition, Record, StalledPartition, Topic
from saga.messaging.names import PROBED
from saga.support.clock import Clock

TOPICS_NAMED_MAX = 10
"""Maximum number of topics that an error names."""
T = TypeVar("T")
GROUPS_AT_ONCE = 20
"""Maximum number of groups about which the brokers are asked at the same time."""
ASK_S = 10.0
"""Timeout of each operation, with all its requests."""
BROKER = 4
"""Protocol code of the resource type broker; see `TOPIC`."""
SEARCH_S = 180.0
"""Longest search for the first readable record after an unreadable one, in seconds. Then the range ends at the offset
that the search has reached."""
HIDDEN = frozenset({TopicAuthorizationFailedError.errno, ClusterAuthorizationFailedError.errno})
"""Error codes of brokers that do not let this user see settings."""
NOT_THERE = UnknownTopicOrPartitionError.errno
"""Error code for a topic that the broker does not know."""
LOOK_S, AGAIN_S = 0.1, 0.2
PROBE = Topic(PROBED, partitions=1, retention_days=1)
"""Topic to which `append_probe` writes."""


class KafkaAdministration(KafkaBroker):
    """The Kafka broker, with the additional operations that operators' tools need. It connects in the same way as
    services.

    See `saga.broker.administration.Administration` for the guarantees.
    """

    can_add_partitions = True

    async def list_topics(self) -> Collection[str]:
        answer = await self._retry(lambda: self._send(Topics()), "asking for topics")
        return [name for _, name, *_ in answer.topics]

    async def describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        return await self._retry(lambda: self._describe_topics(topics), "asking for topics")

    async def _describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        there = [answer for answer in (await self._send(Topics())).topics if answer[1] in topics]
        settings = await self._fetch_settings(TOPIC, [name for _, name, *_ in there])
        return {
            name: _describe_topic(partitions, allowed, settings.get(name)) for _, name, _, partitions, allowed in there
        }

    async def fetch_server_settings(self) -> Mapping[str, Mapping[str, str]]:
        return await self._retry(self._server_settings, "asking for the brokers' settings")

    async def _server_settings(self) -> Mapping[str, Mapping[str, str]]:
        names = [str(broker[0]) for broker in (await self._send(Topics([]))).brokers]
        found: dict[str, Mapping[str, str]] = {}
        for name in names:  # only a broker itself knows its own settings
            found |= await self._fetch_settings(BROKER, [name], int(name))
        if len(found) < len(names):
            raise BrokerError("Kafka does not let this user see the brokers' settings: DescribeConfigs on the cluster")
        return found

    async def set_retention(self, topic: str, retention_ms: int | None) -> None:
        await self._set(topic, "retention.ms", str(-1 if retention_ms is None else retention_ms))

    async def use_log_append_time(self, topic: str) -> None:
        await self._set(topic, DATED_BY, BY_LOG)

    async def _set(self, topic: str, name: str, value: str) -> None:
        """Set one setting of a topic."""
        doing, change = f"topic {topic}: {name}", ChangeConfigs(topic, name, value)
        answer = await self._retry(lambda: self._send(change, self._controller()), doing)
        _check(((code, words) for code, words, *_ in answer.resources), doing)
        await self._retry(
            lambda: self._wait_until_visible(topic, lambda f: f.hidden or f.settings.get(name) == value), doing
        )

    async def add_partitions(self, topic: str, partitions: int) -> None:
        doing = f"topic {topic}: {partitions} partitions"
        request = CreatePartitionsRequest([(topic, (partitions, None))], int(ASK_S * 1000), False)
        answer = await self._retry(lambda: self._send(request, self._controller()), doing, again=False)
        _check(((code, words) for _, code, words in answer.topic_errors), doing)
        await self._retry(lambda: self._wait_until_visible(topic, lambda found: found.partitions == partitions), doing)

    async def _wait_until_visible(self, topic: str, is_changed: Callable[[TopicDescription], bool]) -> None:
        """Wait until all other brokers know a change that the controller has acknowledged."""
        while (found := (await self._describe_topics([topic])).get(topic)) is None or not is_changed(found):
            await self._clock.sleep(LOOK_S)

    # ---------------------------------------------------------------- groups and positions

    async def describe_group(self, name: str) -> GroupDescription:
        return (await self.describe_groups([name]))[name]

    async def describe_groups(self, names: Collection[str]) -> Mapping[str, GroupDescription]:
        found: dict[str, GroupDescription] = {}
        wanted = list(dict.fromkeys(names))
        for begin in range(0, len(wanted), GROUPS_AT_ONCE):
            some = wanted[begin : begin + GROUPS_AT_ONCE]
            doing = f"group {some[0]!r}" + (f" and {len(some) - 1} others" if len(some) > 1 else "")
            found |= await self._retry(partial(self._describe_groups, some), doing)
        return found

    async def find_readers(self, topic: str) -> Mapping[str, GroupDescription]:
        groups = await self.describe_groups(await self._retry(self._list_groups, "asking for groups"))
        return {
            name: group
            for name, group in groups.items()
            if topic in group.reads or any(p.topic == topic for p in group.positions)
        }

    async def _list_groups(self) -> Collection[str]:
        names: set[str] = set()
        for node, *_ in (await self._send(Topics([]))).brokers:
            answer = await self._send(ListGroupsRequest(), node)
            _check([(answer.error_code, "")], "listing groups")
            names |= {name for name, kind, *_ in answer.groups if kind in ("consumer", "")}
        return sorted(names)

    async def _describe_groups(self, names: Sequence[str]) -> Mapping[str, GroupDescription]:
        """Describe groups, by name. All requests of one kind are sent concurrently.

        Each request is about one group, because aiokafka decodes only a single group of an answer correctly.
        """
        nodes = await _gather(self._client.coordinator_lookup(0, name) for name in names)
        pairs = [*zip(names, nodes, strict=True)]
        described = await _gather(self._send(DescribeGroupsRequest([name]), node) for name, node in pairs)
        fetched = await _gather(self._send(OffsetFetchRequest(name, None), node) for name, node in pairs)
        ids = await fetch_log_ids({topic for each in fetched for topic, _ in each.topics}, self._client)
        answers = zip(names, described, fetched, strict=True)
        return {name: _describe_group(members.groups[0], offsets, ids) for name, members, offsets in answers}

    async def fetch_bounds(self, topics: Collection[str]) -> Mapping[Partition, OffsetBounds]:
        doing = f"asking where {', '.join([*topics][:TOPICS_NAMED_MAX])} begin and end"
        return await self._retry(lambda: self._fetch_bounds(topics), doing)

    async def _fetch_bounds(self, topics: Collection[str]) -> Mapping[Partition, OffsetBounds]:
        known = await self._fetch_topic_names()
        there = [topic for topic in topics if topic in known]
        async with self._open_consumer() as consumer:
            places = [place for topic in there for place in await self._list_partitions(consumer, topic)]
            return {
                Partition(*place): OffsetBounds(*found)
                for place, found in (await fetch_bounds(consumer, places)).items()
            }

    async def find_offsets(self, topic: str, time_ms: int) -> Mapping[Partition, int]:
        return await self._retry(lambda: self._find_offsets(topic, time_ms), f"asking topic {topic} for a time")

    async def _find_offsets(self, topic: str, time_ms: int) -> Mapping[Partition, int]:
        async with self._open_consumer() as consumer:
            places = await self._list_partitions(consumer, topic)
            found = await fetch_offsets_at(consumer, dict.fromkeys(places, max(0, time_ms)))
        return {Partition(*place): offset for place, offset in found.items()}

    @asynccontextmanager
    async def open_reader(
        self, positions: Mapping[Partition, int], log_ids: Mapping[str, str] = NO_IDS
    ) -> AsyncIterator[PartitionReader]:
        async with self._open_consumer() as consumer:
            yield KafkaReader(consumer, positions, log_ids, self._clock)

    async def find_unreadable(self, partition: Partition, offset: int) -> UnreadableRange | None:
        """Return the unreadable range at an offset, as found by `Probe.find_unreadable`."""
        try:
            return await self._clock.within(SEARCH_S + 2 * TRIAL_S, self._find_unreadable(partition, offset))
        except FAILED as why:
            raise to_broker_error(why, f"reading {partition.topic}/{partition.number} at {offset}", "Read") from why

    async def _find_unreadable(self, partition: Partition, offset: int) -> UnreadableRange | None:
        async with self._open_consumer() as consumer:
            await self._list_partitions(consumer, partition.topic)
            return await Probe(consumer, TopicPartition(*partition), self._clock).find_unreadable(offset)

    async def move_positions(self, group: str, positions: Mapping[Partition, int]) -> None:
        """Set positions as the port promises. Kafka accepts them from a client outside the group only while the group
        has no members."""
        await self._retry(lambda: self._move(group, positions), f"group {group!r}: moving positions")

    async def _move(self, group: str, positions: Mapping[Partition, int]) -> None:
        ids = await fetch_log_ids({topic for topic, _ in positions}, self._client)
        by_topic: dict[str, list[tuple[int, int, str]]] = {}
        for (topic, number), at in positions.items():
            by_topic.setdefault(topic, []).append((number, at, to_metadata("", ids.get(topic, ""))))
        node = await self._client.coordinator_lookup(0, group)
        answer = await self._send(OffsetCommitRequest(group, -1, "", -1, list(by_topic.items())), node)
        codes = {code for _, partitions in answer.topics for _, code in partitions}
        if codes - {0} and (members := (await self._describe_groups([group]))[group].members):
            raise BrokerError(f"group {group!r} has members ({', '.join(members)}): stop the service first")
        _check(((code, "") for code in codes), f"group {group!r}: moving positions in {', '.join(by_topic)}")

    async def list_inactive_groups(self) -> Sequence[InactiveGroup]:
        return ()

    async def forget_group(self, group: str) -> None:
        raise BrokerError(
            f"group {group!r}: Kafka forgets a group without members by itself, after offsets.retention.minutes; at "
            f"once: kafka-consumer-groups --bootstrap-server ... --delete --group {group}"
        )

    # ---------------------------------------------------------------- a record of our own

    async def append_probe(self) -> int | None:
        if PROBE.name not in await self._retry(self._fetch_topic_names, "asking for topics"):
            await self.ensure_topics([PROBE])
        return await self._retry(self._append_probe, f"writing to {PROBE.name} and reading it")

    async def _append_probe(self) -> int:
        publisher, _ = self._open
        async with self._open_consumer() as consumer:
            [place] = await self._list_partitions(consumer, PROBE.name)
            written = await publisher.producer.send_and_wait(PROBE.name, b"saga doctor", partition=0)
            consumer.assign([place])
            consumer.seek(place, written.offset)
            record = await consumer.getone(place)
        if record.offset != written.offset:
            raise BrokerError(f"topic {PROBE.name}: what was acknowledged at {written.offset} is not there")
        return int(record.timestamp)

    # ---------------------------------------------------------------- asking

    @property
    def _client(self) -> AIOKafkaClient:
        return self._open[0].producer.client

    def _controller(self) -> int | None:
        controller = self._client.cluster.controller
        return None if controller is None else int(controller.nodeId)

    async def _retry(self, ask: Callable[[], Awaitable[T]], doing: str, *, again: bool = True) -> T:
        """Repeat a request until there is an answer, unless `again` is False. For example, a new cluster has no group
        coordinator yet."""
        deadline_s = self._clock.monotonic_s() + ASK_S
        while True:
            try:
                return await self._clock.within(max(0.0, deadline_s - self._clock.monotonic_s()), ask())
            except (*FAILED, BrokerUnavailable) as why:
                trouble = why if isinstance(why, BrokerError) else to_broker_error(why, doing)
                over = self._clock.monotonic_s() + AGAIN_S >= deadline_s
                if over or not again or not isinstance(trouble, BrokerUnavailable):
                    raise self._open[1].explain(trouble) from why
            await self._clock.sleep(AGAIN_S)

    async def _send(self, request: Request, node: int | None = None) -> Any:
        """Send a request to a broker; by default to any broker."""
        client = self._client
        try:
            return await client.send(client.get_random_node() if node is None else node, request)
        except NotImplementedError as why:  # aiokafka knows no version of the request that the broker knows
            raise BrokerError(f"Kafka: {why}; the brokers are too old or too new: tools need Kafka 2.3 to 4.3") from why

    async def _fetch_topic_names(self) -> frozenset[str]:
        return frozenset(name for _, name, *_ in (await self._send(Topics())).topics)

    async def _fetch_settings(
        self, kind: int, names: Collection[str], node: int | None = None
    ) -> Mapping[str, Mapping[str, str]]:
        """Fetch settings, without those that this user may not see.

        Raises `BrokerUnavailable` for a topic that this broker does not know because it has just been created or
        deleted.
        """
        if not names:
            return {}
        answer = await self._send(DescribeConfigsRequest([(kind, name, None) for name in names], False), node)
        if unknown := [name for code, _, _, name, _ in answer.resources if code == NOT_THERE]:
            raise BrokerUnavailable(f"Kafka: not all brokers know of {', '.join(sorted(unknown))}")
        seen = [resource for resource in answer.resources if resource[0] not in HIDDEN]
        _check(((code, words) for code, words, *_ in seen), "asking for settings")
        return {
            name: {entry[0]: entry[1] for entry in entries if entry[1] is not None} for _, _, _, name, entries in seen
        }

    async def _list_partitions(self, consumer: AIOKafkaConsumer, topic: str) -> list[TopicPartition]:
        count = await count_partitions(consumer._client, topic, self._clock)
        return [TopicPartition(topic, number) for number in range(count)]

    def _open_consumer(self) -> AbstractAsyncContextManager[AIOKafkaConsumer]:
        return open_reading_consumer(self._settings, self._open[1], self._clock, ASK_S)


def _describe_topic(
    partitions: Collection[tuple[Any, ...]], allowed: int, settings: Mapping[str, str] | None
) -> TopicDescription:
    kept_ms = int((settings or {}).get("retention.ms", -1))
    rights = {"read": READ, "write": WRITE}
    return TopicDescription(
        partitions=len(partitions),
        retention_ms=None if kept_ms < 0 else kept_ms,
        replicas=min((len(partition[4]) for partition in partitions), default=0),
        in_sync=min((len(partition[5]) for partition in partitions), default=0),
        settings=settings or {},
        hidden=settings is None,
        may=None if allowed == UNKNOWN else frozenset(right for right, bit in rights.items() if allowed & bit),
    )


def _describe_group(described: tuple[Any, ...], fetched: Any, ids: Mapping[str, str]) -> GroupDescription:
    """Describe a group, given the answers about its members and its positions.

    Args:
        ids: Current log ids of the topics.
    """
    code, name, _, _, _, members, *_ = described
    codes = {code, fetched.error_code, *(each[3] for _, partitions in fetched.topics for each in partitions)}
    _check([(each, "") for each in codes], f"group {name!r}")
    positions = {
        Partition(topic, number): at
        for topic, partitions in fetched.topics
        for number, at, metadata, _ in partitions
        if at >= 0 and not is_of_another_log(metadata, ids.get(topic))
    }
    reads = frozenset(topic for _, _, _, subscription, *_ in members for topic in decode_subscription(subscription)[0])
    names_of = tuple(_describe_member(client, host) for _, client, host, *_ in members)
    stated = [read_identity(subscription) for _, _, _, subscription, *_ in members]
    return GroupDescription(names_of, positions, reads, frozenset(each for each in stated if each is not None))


async def _gather(requests: Iterable[Awaitable[Any]]) -> Sequence[Any]:
    """Send requests concurrently, and return their answers. If some fail, wait for all, then raise the first
    failure."""
    found = await asyncio.gather(*requests, return_exceptions=True)
    if failures := [each for each in found if isinstance(each, BaseException)]:
        raise failures[0]
    return found


def _describe_member(client: str, host: str) -> str:
    return f"{client} at {host.lstrip('/')}"


def _check(answers: Iterable[tuple[int, str | None]], doing: str) -> None:
    for code, words in answers:
        if code != 0:
            raise translate_error(for_code(code)(*([words] if words else [])), doing)


GET_MS = 100
TRIAL_S = 8.0
"""Longest attempt to read at one offset, in seconds. Until then a fetch that returns no records is repeated."""


class Probe:
    """Reader for a search in one partition. It reads at any offset, with a consumer without a group."""

    def __init__(self, consumer: AIOKafkaConsumer, place: TopicPartition, clock: Clock) -> None:
        self._consumer, self._place, self._clock = consumer, place, clock
        self._fetching: IsolatingFetcher = isolate_partitions(consumer, clock, lambda: None)

    async def find_record(self, offset: int) -> int | str:
        """Return the offset of the first record at or after `offset`, or the end of the partition if there is none. If
        that record cannot be read, return the reason.

        Raises `BrokerUnavailable`.
        """
        _, end = (await fetch_bounds(self._consumer, [self._place]))[self._place]
        self._consumer.assign([self._place])
        self._fetching.begin()
        self._consumer.seek(self._place, offset)
        deadline_s = self._clock.monotonic_s() + TRIAL_S
        while self._clock.monotonic_s() < deadline_s:
            got = await self._consumer.getmany(self._place, timeout_ms=GET_MS, max_records=1)
            for (record,) in got.values():
                return int(record.offset)
            if standstills := self._fetching.stalled_partitions():
                return standstills[0].reason
            if await self._consumer.position(self._place) >= end:
                return int(end)
        raise BrokerUnavailable(f"Kafka: nothing of {self._place.topic}/{self._place.partition} comes from {offset} on")

    async def find_unreadable(self, offset: int) -> UnreadableRange | None:
        """Return the unreadable range at this offset; `None` if there is no record at the offset, or it can be read.

        The search goes from batch to batch, or from offset to offset where a batch's header is damaged, and stops at
        the first readable record. Larger steps could miss readable records between unreadable ones.

        Raises `BrokerUnavailable`.
        """
        found = reason = await self.find_record(offset)
        if isinstance(reason, int):
            return None
        end, sizes, deadline_s = offset, dict[int, int | None](), self._clock.monotonic_s() + SEARCH_S
        while isinstance(found, str) and self._clock.monotonic_s() < deadline_s:
            frame = find_frame(await self._fetch_bytes(end), end)
            if frame is None:
                sizes[end], end = None, end + 1
            else:
                sizes[frame.begin], end = frame.size, frame.end
            found = await self.find_record(end)
        known = [size for size in sizes.values() if size is not None]
        size = sum(known) if len(known) == len(sizes) else None
        return UnreadableRange(offset, found if isinstance(found, int) else end, size, reason)

    async def _fetch_bytes(self, offset: int) -> bytes:
        """Return the bytes from the batch at this offset on; none if the broker returns none."""
        client, (topic, number) = self._consumer._client, self._place
        request = FetchRequest(GET_MS, 1, FETCH_BYTES, 0, [(topic, [(number, offset, FETCH_BYTES)])])
        response = await client.send(client.cluster.leader_for_partition(self._place), request)
        [(_, [(*_, data)])] = response.topics
        return data or b""


# ---------------------------------------------------------------- reading outside of groups


BOUNDS_S = 10.0
"""Longest wait for the bounds of a partition whose log does not contain the offset to read, in seconds."""
SLICE_S = 0.5
"""Pause between checks for partitions whose log does not contain the offset to read, in seconds."""


class KafkaReader:
    """Reader with a Kafka consumer of its own. See `saga.broker.administration.PartitionReader` for the promises."""

    def __init__(
        self, consumer: AIOKafkaConsumer, positions: Mapping[Partition, int], log_ids: Mapping[str, str], clock: Clock
    ) -> None:
        self._consumer, self._clock = consumer, clock
        self._begun = dict(positions)
        self._replaced: set[str] = set()
        """Topics whose log was replaced, and that have not been set back to their beginning yet."""
        self._fetching = isolate_partitions(consumer, clock, lambda: None)
        self._fetching.log_ids.update(log_ids)
        consumer.assign([TopicPartition(*partition) for partition in positions])
        self._fetching.begin()
        for partition, offset in positions.items():
            consumer.seek(TopicPartition(*partition), offset)

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[Record]:
        deadline_s = self._clock.monotonic_s() + timeout_s
        try:
            while True:
                if self._replaced or self._fetching.log_ids.is_due():
                    await self._look_at_logs()
                await self._go_on()  # before each read: other partitions may have records all the time
                left_s = max(0.0, deadline_s - self._clock.monotonic_s())
                raise_if_reader_broken(self._consumer)
                wait_ms = int(min(left_s, SLICE_S) * 1000)
                got = await self._consumer.getmany(timeout_ms=wait_ms, max_records=records_max)
                if records := [record for some in got.values() for record in some]:
                    return records
                if self._clock.monotonic_s() >= deadline_s:
                    return []
        except FAILED as why:
            raise to_broker_error(why, "reading", "Read") from why

    def positions(self) -> Mapping[Partition, int]:
        reached = {partition: read_position(self._consumer, partition) for partition in self._begun}
        return {
            partition: begun if (at := reached[partition]) is None else at for partition, begun in self._begun.items()
        }

    def log_ids(self) -> Mapping[str, str]:
        # A reader that continues from these positions must find out again that a log was replaced.
        return {topic: id_ for topic, id_ in self._fetching.log_ids.items() if topic not in self._replaced}

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        return self._fetching.stalled_partitions()

    async def _look_at_logs(self) -> None:
        """Set the reader back to the beginning of topics that were deleted and created again."""
        topics, client = {partition.topic for partition in self._begun}, self._consumer._client
        self._replaced.update(await self._fetching.log_ids.learn(topics, client))
        if not self._replaced:
            return
        counts = await fetch_topics(client)
        places = [TopicPartition(*partition) for partition in self._begun if partition.topic in self._replaced]
        there = [place for place in places if place.partition < counts.get(place.topic, 0)]
        bounds = await self._clock.within(BOUNDS_S, fetch_bounds(self._consumer, there))
        for place in places:  # a partition that is missing now is read from offset 0 on if it is added later
            self._fetching.resume_at(place, bounds[place][0] if place in bounds else 0)
        self._replaced.clear()

    async def _go_on(self) -> None:
        """Continue at the oldest record in partitions whose log does not contain the offset to read.

        Either records expired before they were read, or the log has lost records that had been read.
        """
        for place, offset in list(self._fetching.out_of_range.items()):
            begin, end = (await self._clock.within(BOUNDS_S, fetch_bounds(self._consumer, [place])))[place]
            self._fetching.resume_at(place, offset if begin <= offset <= end else begin)
