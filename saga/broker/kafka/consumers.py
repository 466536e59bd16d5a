"""Consumers of aiokafka with our settings (only committed transactions are read), their assignor and rebalance
listener."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import KafkaError

from saga.broker.identity import MemberIdentity, decode_identity, encode_identity
from saga.broker.kafka.client import FAILED, closing_on_failure, end_consumer, to_broker_error
from saga.broker.kafka.settings import KafkaAccess, KafkaSettings
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
    return _consumer(
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
    consumer = _consumer(
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
            raise access.explained(to_broker_error(why, "connecting to Kafka, to read", "Read")) from why
        yield consumer
    finally:
        await asyncio.shield(end_consumer(consumer, clock, END_S))


def _consumer(access: KafkaAccess, **options: Any) -> AIOKafkaConsumer:
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
