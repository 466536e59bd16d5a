"""Create aiokafka consumers with the toolkit's settings, track the ids of the logs that they read, and commit
positions.

The consumers read committed transactions only.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.client import AIOKafkaClient
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, NoBrokersAvailable
from aiokafka.protocol.api import Request

from saga.broker.kafka import client
from saga.broker.kafka.access import KafkaAccess
from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.client import FAILED, Ids, closing_on_failure, end_consumer, run_to_end, to_broker_error
from saga.broker.port import MemberIdentity, decode_identity, encode_identity
from saga.errors import BrokerUnavailable, Fenced
from saga.messages import Partition
from saga.support.clock import Clock

FETCH_BYTES = 1 << 23
"""Maximum number of bytes in one response of a broker. At most an eighth of them are for one partition."""
END_S = 2.0
FOREVER_MS = (1 << 31) - 1


# ---------------------------------------------------------------- assignment


IDENTITIES_MAX = 16
"""Largest number of identities that are sent with an assignment: one for each pair of service and store. A healthy
group has a single one."""


class IdentityAssignor(RangePartitionAssignor):  # type: ignore[misc]  # aiokafka has no types
    """Assignor that assigns partitions as aiokafka's range assignor does, and sends each member the identities of all
    members.

    Kafka shows the subscriptions of all members only to the group's leader. So the leader adds the identities in these
    subscriptions to the assignment of each member.

    aiokafka expects a class here, but an object works as well. Each consumer has its own object, because several
    services may run in one process.
    """

    def __init__(self, identity: MemberIdentity | None) -> None:
        self._identity = identity
        self.members: Sequence[MemberIdentity] = ()
        """Distinct member identities in the group at the last assignment: one for each pair of service and store, at
        most `IDENTITIES_MAX`."""

    def metadata(self, topics: Iterable[str]) -> Any:
        return ConsumerProtocolMemberMetadata(self.version, list(topics), encode_identity(self._identity))

    def assign(self, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
        assigned = RangePartitionAssignor.assign(cluster, members)
        identities = _encode_members(decode_identity(member.user_data) for member in members.values())
        return {
            id_: ConsumerProtocolMemberAssignment(each.version, each.assignment, identities)
            for id_, each in assigned.items()
        }

    def on_assignment(self, assignment: Any) -> None:
        self.members = _decode_members(assignment.user_data)


def _encode_members(identities: Iterable[MemberIdentity | None]) -> bytes:
    known = {(each.service, each.store): each for each in identities if each is not None}
    return (
        msgspec.json.encode([encode_identity(each) for each in list(known.values())[:IDENTITIES_MAX]]) if known else b""
    )


def _decode_members(data: bytes | None) -> list[MemberIdentity]:
    """Decode the identities that the leader sent; none if the leader is of an earlier release or another program."""
    if not data:
        return []
    try:
        encoded = msgspec.json.decode(data, type=list[bytes])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    return [identity for each in encoded if (identity := decode_identity(each)) is not None]


def create_group_consumer(
    group: str, topics: Sequence[str], settings: KafkaSettings, access: KafkaAccess, assignor: IdentityAssignor
) -> AIOKafkaConsumer:
    """Create a consumer for a group that reads these topics. Raises `BrokerUnavailable` if the password is missing."""
    return _create_consumer(
        access,
        group_id=group,
        group_instance_id=settings.instance_for(topics),
        auto_offset_reset="earliest",
        partition_assignment_strategy=(assignor,),
        session_timeout_ms=int(settings.session_s * 1000),
        heartbeat_interval_ms=int(settings.heartbeat_s * 1000),
        rebalance_timeout_ms=int(settings.rebalance_s * 1000),
        max_poll_interval_ms=FOREVER_MS,  # a member that waits for its store must keep its partitions
        request_timeout_ms=int(settings.request_s * 1000),
        metadata_max_age_ms=int(settings.metadata_s * 1000),
        fetch_max_wait_ms=int(settings.fetch_wait_s * 1000),
        fetch_max_bytes=FETCH_BYTES,
        max_partition_fetch_bytes=FETCH_BYTES // 8,
    )


@asynccontextmanager
async def open_reading_consumer(
    settings: KafkaSettings, access: KafkaAccess, clock: Clock, request_s: float
) -> AsyncIterator[AIOKafkaConsumer]:
    """Open a consumer without a group, for tools; the caller sets its positions.

    Raises `BrokerError` if it cannot connect.
    """
    consumer = _create_consumer(
        access,
        group_id=None,
        auto_offset_reset="none",
        request_timeout_ms=int(request_s * 1000),
        fetch_max_wait_ms=int(settings.fetch_wait_s * 1000),
    )
    try:
        try:
            with closing_on_failure(consumer._client):
                await clock.within(request_s, consumer.start())
        except FAILED as why:
            raise access.explain(to_broker_error(why, "connecting to Kafka, to read", "Read")) from why
        yield consumer
    finally:
        await run_to_end(end_consumer(consumer, clock, END_S))


def _create_consumer(access: KafkaAccess, **options: Any) -> AIOKafkaConsumer:
    try:
        known = access.options
    except KafkaError as why:
        raise to_broker_error(why, "connecting to Kafka") from why
    return AIOKafkaConsumer(**known, isolation_level="read_committed", enable_auto_commit=False, **options)


class Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Listener that passes revoked and assigned partitions on to two functions, together with the consumer."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        given_up: Callable[[AIOKafkaConsumer], Awaitable[None]],
        given: Callable[[AIOKafkaConsumer, Collection[TopicPartition]], Awaitable[None]],
    ) -> None:
        self._consumer, self._given_up, self._given = consumer, given_up, given

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        await self._given_up(self._consumer)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        await self._given(self._consumer, assigned)


# ---------------------------------------------------------------- ids of logs
#
# A position belongs to one log. Fetches and commits use the names of topics, so a topic that was deleted and created
# again looks the same to them: a consumer at offset 50 would continue at offset 50 of the new log and miss all records
# before it. So each client checks the log ids from time to time, and commits them with its positions.


LOOK_EVERY_S = 5.0
"""Pause between two checks of the log ids of the topics that a client reads, in seconds."""
UNKNOWN_THERE = (NotImplementedError, IncompatibleBrokerVersion)
"""Errors for requests that the broker does not support."""


async def ask_any_broker(request: Request, client: AIOKafkaClient) -> Any:
    """Send a request to the known brokers in turn until one answers, because some may be down. Return the answer.

    Raises one of `UNKNOWN_THERE` at once if a broker does not support the request, and one of `FAILED` if no broker
    answers.
    """
    trouble: Exception = NoBrokersAvailable()
    for broker in client.cluster.brokers():
        try:
            return await client.send(broker.nodeId, request)
        except UNKNOWN_THERE:
            raise
        except FAILED as why:
            trouble = why
    raise trouble


async def fetch_log_ids(topics: Collection[str], client: AIOKafkaClient) -> Mapping[str, str]:
    """Fetch the log ids of these topics; missing and hidden topics are left out. Raises one of `FAILED`.

    Brokers before Kafka 2.8 have no ids, so the result is empty.
    """
    if not topics:
        return {}
    try:
        answer = await ask_any_broker(Ids(sorted(topics)), client)
    except UNKNOWN_THERE:
        return {}
    return {topic: id_ for code, topic, id_, *_ in answer.topics if code == 0 and id_}


class LogIds(dict[str, str]):
    """Ids of the logs that a client reads, by topic.

    An id that was replaced is never accepted again, because a broker that does not know the new topic yet still returns
    the old id.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock, self._gone, self._look_s = clock, set[str](), 0.0

    async def learn(self, topics: Collection[str], client: AIOKafkaClient) -> list[str]:
        """Fetch the log ids. Return the topics whose log was replaced. Raises one of `FAILED`."""
        self._look_s = self._clock.monotonic_s() + LOOK_EVERY_S
        replaced = []
        for topic, id_ in (await fetch_log_ids(topics, client)).items():
            known = self.get(topic)
            if id_ == known or id_ in self._gone:
                continue
            if known is not None:
                self._gone.add(known)
                replaced.append(topic)
            self[topic] = id_
        return replaced

    def is_due(self) -> bool:
        """Return whether it is time to check the log ids again."""
        return self._clock.monotonic_s() >= self._look_s


# ---------------------------------------------------------------- commits
#
# A commit ends with the assignment in which it began; aiokafka's own would continue in the next one.


@dataclass(slots=True)
class OwnedPartition:
    """A partition that this member owns during one assignment; the next assignment creates new objects."""

    next: int
    """Offset after the last record that `poll` returned."""
    committed: int
    over: asyncio.Future[None]
    """Future that is done when the assignment has ended."""
    was_in_progress: bool = False
    """True if the previous owner did not release the partition cleanly, so it may have been processing messages of the
    partition."""
    note: str = ""
    """Note that was committed last with the position. Later commits repeat it."""
    log_id: str = ""
    """Id of the log to which the position belongs. It is committed together with the position."""


IN_PROGRESS, CLEAN = "in hand", "clean"
"""Notes that are committed with a position. `IN_PROGRESS`: messages may be in progress. `CLEAN`: the partition was
released cleanly."""


def to_metadata(note: str, log_id: str) -> str:
    """Encode the metadata of a commit.

    >>> to_metadata("in hand", "yEZ0Vx2vQSGf3cGn1bY4Kw"), to_metadata("clean", "")
    ('in hand@yEZ0Vx2vQSGf3cGn1bY4Kw', 'clean')
    """
    return f"{note}@{log_id}" if log_id else note


def from_metadata(metadata: str) -> tuple[str, str]:
    """Decode the note and the log id from the metadata of a commit. Both are empty if another tool committed the
    position.

    >>> from_metadata("in hand@yEZ0Vx2vQSGf3cGn1bY4Kw"), from_metadata("")
    (('in hand', 'yEZ0Vx2vQSGf3cGn1bY4Kw'), ('', ''))
    """
    note, _, log_id = metadata.partition("@")
    return note, log_id


def is_of_another_log(metadata: str | None, log_id: str | None) -> bool:
    """Return whether a position was committed for another log than the one with this id. Return False if either id is
    unknown.

    >>> is_of_another_log("clean@old", "new"), is_of_another_log("clean@new", "new"), is_of_another_log("", "new")
    (True, False, False)
    """
    of = from_metadata(metadata or "")[1]
    return bool(of and log_id) and of != log_id


async def commit(
    consumer: AIOKafkaConsumer, moved: Mapping[Partition, tuple[OwnedPartition, int]], doing: str, commit_s: float
) -> None:
    """Commit these offsets, which all belong to one assignment, and record them in the owned partitions.

    If this user may not commit in one topic, the commits in other topics still succeed. Raises `Fenced` if the
    assignment has ended, and `BrokerError` if no offset was committed.
    """
    over = next(iter(moved.values()))[0].over
    refused: frozenset[str] = frozenset()
    try:
        await _commit_within_assignment(
            consumer,
            {place: (at, to_metadata(owned.note, owned.log_id)) for place, (owned, at) in moved.items()},
            over,
            doing,
            commit_s,
        )
    except BrokerUnavailable as why:
        refused = client.find_refused_topics(why)
        if not refused or not {topic for topic, _ in moved} - refused:
            raise  # otherwise the brokers have committed the offsets of the other topics
    for (topic, _), (owned, offset) in moved.items():
        if topic not in refused:
            owned.committed = max(owned.committed, offset)


async def _commit_within_assignment(
    consumer: AIOKafkaConsumer,
    offsets: Mapping[Partition, tuple[int, str]],
    over: asyncio.Future[None],
    doing: str,
    commit_s: float,
) -> None:
    """Commit offsets, and stop waiting when the assignment ends.

    aiokafka would retry until it succeeds, even in the next assignment. Another member may then own the partitions, and
    the broker would not refuse the commit.
    """
    positions = {TopicPartition(*partition): offset for partition, offset in offsets.items()}
    task = asyncio.get_running_loop().create_task(consumer.commit(positions))
    try:
        await asyncio.wait({task, over}, timeout=commit_s, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        elif over.done():
            raise Fenced(f"{doing}: the assignment was over before it was acknowledged")
        else:
            raise BrokerUnavailable(f"{doing}: not acknowledged within {commit_s:g} s")
    except (*FAILED, asyncio.CancelledError) as why:
        client.reraise_cancellation(why)
        raise to_broker_error(why, doing, "Read", waits=True) from why
    finally:
        task.cancel()
