"""Consumers of aiokafka with our settings, ids of the logs that they read, and commits of positions in them.

They read only committed transactions.
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
from saga.broker.kafka.client import FAILED, Ids, closing_on_failure, end_consumer, to_broker_error
from saga.broker.kafka.settings import KafkaAccess, KafkaSettings
from saga.broker.port import MemberIdentity, decode_identity, encode_identity
from saga.errors import BrokerUnavailable, Fenced
from saga.messages import Partition
from saga.support.clock import Clock

FETCH_BYTES = 1 << 23
"""Most bytes that one broker sends at once; of one partition an eighth of it."""
END_S = 2.0
FOREVER_MS = (1 << 31) - 1


# ---------------------------------------------------------------- assignment


TOLD_MAX = 16
"""Most identities that are told: of each service and store one, and a group with so many of them is in no order."""


class IdentityAssignor(RangePartitionAssignor):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's range assignor, which also tells each member the identities of all members.

    Kafka shows the subscriptions of all members only to the leader. So the leader puts the identities that it finds
    there beside each member's partitions. aiokafka expects a class here, and an object works as well: each consumer has
    its own, because several services may run in one process."""

    def __init__(self, identity: MemberIdentity | None) -> None:
        self._identity = identity
        self.members: Sequence[MemberIdentity] = ()
        """Identities in the group, one of each service and store, as of the last assignment."""

    def metadata(self, topics: Iterable[str]) -> Any:
        return ConsumerProtocolMemberMetadata(self.version, list(topics), encode_identity(self._identity))

    def assign(self, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
        assigned = RangePartitionAssignor.assign(cluster, members)
        told = _encode_members(decode_identity(member.user_data) for member in members.values())
        return {
            id_: ConsumerProtocolMemberAssignment(each.version, each.assignment, told) for id_, each in assigned.items()
        }

    def on_assignment(self, assignment: Any) -> None:
        self.members = _decode_members(assignment.user_data)


def _encode_members(identities: Iterable[MemberIdentity | None]) -> bytes:
    known = {(each.service, each.store): each for each in identities if each is not None}
    return msgspec.json.encode([encode_identity(each) for each in list(known.values())[:TOLD_MAX]]) if known else b""


def _decode_members(told: bytes | None) -> list[MemberIdentity]:
    """Identities that a leader told; none where it is of an earlier release, or another program."""
    if not told:
        return []
    try:
        encoded = msgspec.json.decode(told, type=list[bytes])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    return [identity for each in encoded if (identity := decode_identity(each)) is not None]


def create_group_consumer(
    group: str, topics: Sequence[str], settings: KafkaSettings, access: KafkaAccess, assignor: IdentityAssignor
) -> AIOKafkaConsumer:
    """Make a consumer that is to be a member of a group that reads these topics. Raises `BrokerUnavailable` without a
    password."""
    return _create_consumer(
        access,
        group_id=group,
        group_instance_id=settings.instance_for(topics),
        auto_offset_reset="earliest",
        partition_assignment_strategy=(assignor,),
        session_timeout_ms=int(settings.session_s * 1000),
        heartbeat_interval_ms=int(settings.heartbeat_s * 1000),
        rebalance_timeout_ms=int(settings.rebalance_s * 1000),
        max_poll_interval_ms=FOREVER_MS,  # who cannot go on for want of a store shall not lose partitions for it
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
    """Open a consumer for tools inside the block: it has no positions but those that it is told. Raises `BrokerError`:
    it cannot connect."""
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
        await asyncio.shield(end_consumer(consumer, clock, END_S))


def _create_consumer(access: KafkaAccess, **options: Any) -> AIOKafkaConsumer:
    try:
        known = access.options
    except KafkaError as why:
        raise to_broker_error(why, "connecting to Kafka") from why
    return AIOKafkaConsumer(**known, isolation_level="read_committed", enable_auto_commit=False, **options)


class Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Rebalance listener that passes on what the group has decided, together with the consumer."""

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
# A position belongs to one log. Fetches and commits use the names of topics, so a topic that is deleted and created
# again looks the same to them: a consumer at offset 50 would go on at offset 50 of the new log, past all records before
# it. So each client checks the log ids from time to time, and stores them with its positions.


LOOK_EVERY_S = 5.0
"""Pause between two looks at the ids of the topics that a client reads."""
UNKNOWN_THERE = (NotImplementedError, IncompatibleBrokerVersion)
"""Errors of brokers that do not know the request."""


async def ask_any_broker(request: Request, client: AIOKafkaClient) -> Any:
    """Ask the first broker that answers: one of them may be down. The answer's fields only aiokafka knows. Raises one
    of `FAILED`, or of `UNKNOWN_THERE`."""
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
    """Ask for the ids of these topics; those that are not there, or hidden, are left out, and all of them by brokers
    before Kafka 2.8. Raises one of `FAILED`."""
    if not topics:
        return {}
    try:
        answer = await ask_any_broker(Ids(sorted(topics)), client)
    except UNKNOWN_THERE:
        return {}
    return {topic: id_ for code, topic, id_, *_ in answer.topics if code == 0 and id_}


class LogIds(dict[str, str]):
    """Ids of the logs that a client reads, by topic. An id that was replaced never comes back: a broker that has not
    heard of the new topic yet still tells the old id."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock, self._gone, self._look_s = clock, set[str](), 0.0

    async def learn(self, topics: Collection[str], client: AIOKafkaClient) -> list[str]:
        """Ask for the ids; return the topics whose log is another than the one that was known. Raises one of
        `FAILED`."""
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
        """Return whether it is time to look at them again."""
        return self._clock.monotonic_s() >= self._look_s


# ---------------------------------------------------------------- commits
#
# A commit ends with the assignment in which it began: aiokafka's own would go on in the next one.


@dataclass(slots=True)
class OwnedPartition:
    """Partition that is ours in this assignment; the next assignment makes another one."""

    next: int
    """Offset after the last record that was handed out."""
    committed: int
    over: asyncio.Future[None]
    """Future that is done when the assignment is over."""
    was_in_progress: bool = False
    """True if whoever had it may have had messages of it in hand when it went."""
    note: str = ""
    """Note that goes with its position: what the last commit said stays so."""
    log_id: str = ""
    """Id of the log in which the position counts; it goes with it as well."""


IN_HAND, CLEAN = "in hand", "clean"
"""Notes with a position: messages of the partition may be in hand; none is, for it was left in good order."""


def to_metadata(note: str, log_id: str) -> str:
    """Write what goes with a position.

    >>> to_metadata("in hand", "yEZ0Vx2vQSGf3cGn1bY4Kw"), to_metadata("clean", "")
    ('in hand@yEZ0Vx2vQSGf3cGn1bY4Kw', 'clean')
    """
    return f"{note}@{log_id}" if log_id else note


def from_metadata(metadata: str) -> tuple[str, str]:
    """Read note and log id of a position. Who moves positions with other tools writes neither.

    >>> from_metadata("in hand@yEZ0Vx2vQSGf3cGn1bY4Kw"), from_metadata("")
    (('in hand', 'yEZ0Vx2vQSGf3cGn1bY4Kw'), ('', ''))
    """
    note, _, log_id = metadata.partition("@")
    return note, log_id


def is_of_another_log(metadata: str | None, log_id: str | None) -> bool:
    """Return whether a position counts in another log than the one of this id; false where either is not known.

    >>> is_of_another_log("clean@old", "new"), is_of_another_log("clean@new", "new"), is_of_another_log("", "new")
    (True, False, False)
    """
    of = from_metadata(metadata or "")[1]
    return bool(of and log_id) and of != log_id


async def commit(
    consumer: AIOKafkaConsumer, moved: Mapping[Partition, tuple[OwnedPartition, int]], doing: str, commit_s: float
) -> None:
    """Commit these offsets, all of one assignment, and note them in what is owned. Raises `Fenced` once the assignment
    is over, `BrokerError` if none of them was taken: topics without our rights do not hold up the others.
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
            raise  # else the brokers have taken those of the other topics
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
    """Wait for a commit until the assignment is over. aiokafka would go on until it succeeds: under the next one, when
    partitions may be somebody else's, and the broker would not object."""
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
