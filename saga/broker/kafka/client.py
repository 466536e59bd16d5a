"""Private parts of aiokafka that the toolkit uses, and requests that aiokafka lacks. A test fails if a new version of
aiokafka changes these parts.

aiokafka's background tasks can die or hang unnoticed, and its `stop` can wait for a broker that never answers. So this
module checks these tasks, and cancels those that do not end.
"""

import asyncio
import inspect
import logging
import struct
import traceback
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from operator import attrgetter
from typing import Any, Never

import aiokafka
import aiokafka.client
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.consumer.fetcher import Fetcher, FetchResult
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import TopicPartitionState
from aiokafka.coordinator.protocol import ConsumerProtocol
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.protocol.admin import DescribeGroupsRequest, SaslAuthenticateRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.group import LeaveGroupRequest
from aiokafka.protocol.types import (
    AbstractType,
    Array,
    Boolean,
    CompactArray,
    CompactString,
    Int8,
    Int16,
    Int32,
    Schema,
    String,
    TaggedFields,
)
from aiokafka.structs import RecordMetadata

from saga.broker.kafka.access import ClientId, explain_refusal
from saga.broker.kafka.errors import GUESS, translate_error
from saga.broker.port import MemberIdentity, decode_identity
from saga.errors import BrokerError, BrokerUnavailable
from saga.messages import Partition, StalledPartition
from saga.support.clock import Clock

LOOKS, LOOK_S = 4, 0.15
"""Number of lookups of a topic, and the pause between them in seconds. A new topic is known to all brokers only after a
moment."""
END_S = 0.5
SESSION_PART = 0.85
"""Fraction of a SASL session's lifetime after which no new request is sent on its connection."""
ANSWERED_LOOK_S = 0.1
"""Pause between checks whether all requests on an expiring connection are answered, in seconds."""
FAILED = (KafkaError, OSError, TimeoutError, AssertionError, AttributeError)
"""Errors that aiokafka raises. `AssertionError` and `AttributeError` come from objects that are used after they were
closed."""

logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # everything that matters is raised as an exception, once


# -------------------------------------------------------------------- any client


def is_stray_cancellation(why: BaseException) -> bool:
    """Return whether an exception is a cancellation that was not requested for the current task.

    Such a cancellation comes from inside aiokafka. If it propagated, it would end the task silently, as if the task
    itself had been cancelled.
    """
    task = asyncio.current_task()
    return isinstance(why, asyncio.CancelledError) and task is not None and not task.cancelling()


def reraise_cancellation(why: BaseException) -> None:
    """Raise the error again if it is a requested cancellation of the current task."""
    if isinstance(why, asyncio.CancelledError) and not is_stray_cancellation(why):
        raise why


async def count_partitions(client: AIOKafkaClient, topic: str, clock: Clock) -> int:
    """Return a topic's number of partitions, and add the topic to the client. Raises `BrokerError` if there is no such
    topic.

    This requests the metadata of all topics, because a request for one missing topic would create the topic, unless the
    brokers forbid that. The topic is added because a client with a list of topics drops the metadata of all others.
    """
    for look in range(LOOKS):
        if look:
            await clock.sleep(LOOK_S)
        known = await fetch_topics(client)
        if topic in known:
            client.add_topic(topic)
            await client.force_metadata_update()
            found = client.cluster.partitions_for_topic(topic)
            if found and len(found) == known[topic]:
                return len(found)
    raise BrokerError(
        f"Kafka has no topic {topic!r}, or does not let us see it: create it, or have the user allowed Describe on it"
    )


async def fetch_topics(client: AIOKafkaClient) -> Mapping[str, int]:
    """Count the partitions of all topics. Raises `BrokerUnavailable`."""
    try:
        cluster = await client.fetch_all_metadata()
    except FAILED as why:
        raise BrokerUnavailable(f"Kafka does not say which topics it has: {why}") from why
    return {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in cluster.topics()}


def renew_password(client: AIOKafkaClient, password: str | None) -> None:
    """Use this password for all future connections."""
    client._sasl_plain_password = password


class _SessionConnection(AIOKafkaConnection):  # type: ignore[misc]  # aiokafka has no types
    """A connection that knows how long its SASL session lasts, and closes itself once the broker has hung up, or does
    not answer.

    Brokers may limit the session of a client that has authenticated by SASL. When aiokafka's own client finds, by
    `connected`, that the broker has hung up, it forgets the connection without closing it. After a request without an
    answer it closes the connection that new requests use by then, or raises `KeyError` if there is none.
    """

    session_s = 0.0
    """Lifetime of the session in seconds; 0 if it is not limited."""
    is_ready = False
    """True once connecting has succeeded."""

    def connected(self) -> bool:
        is_connected = bool(super().connected())
        if not is_connected and not self._loop.is_closed():
            self.close()
        return is_connected

    def send(self, request: Request[Any], expect_response: bool = True) -> Awaitable[Any]:
        answer: Awaitable[Any] = super().send(request, expect_response)
        if self.is_ready:
            return self._await_answer(answer)
        return self._note_session(answer) if isinstance(request, SaslAuthenticateRequest) else answer

    async def _await_answer(self, answer: Awaitable[Any]) -> object:
        try:
            return await answer
        except TimeoutError as why:
            self.close(reason=CloseReason.CONNECTION_TIMEOUT)
            raise RequestTimedOutError from why

    async def _note_session(self, answer: Awaitable[Any]) -> object:
        response = await answer
        self.session_s = getattr(response, "session_lifetime_ms", 0) / 1000
        return response


async def _connect(host: str, port: int, *, client_id: str, **options: Any) -> _SessionConnection:
    """Connect, and record the reason for a failure, because aiokafka itself reports only that there is no
    connection."""
    connection = _SessionConnection(host, port, client_id=client_id, **options)
    access = client_id.access if isinstance(client_id, ClientId) else None
    server, reason = f"{host}:{port}", ""
    try:
        await connection.connect()
    except (OSError, KafkaError, asyncio.CancelledError) as why:
        if access is not None:
            known = TimeoutError() if isinstance(why, asyncio.CancelledError) else why
            reason = str(explain_refusal(known, server, access.settings))
        raise
    finally:
        if access is not None:
            access.record_refusal(server, reason)
    connection.is_ready = True
    return connection


aiokafka.client.create_conn = _connect


class _Connections(dict[Any, _SessionConnection]):
    """The connections of a client, when their sessions may end.

    When the session of a connection is about to end, new requests use another connection. Otherwise the broker would
    close the connection during a request, which looks like an outage.

    A request may still be connecting when its client is closed. aiokafka would leave the new connection open for ever.
    """

    is_closed = False

    def close(self) -> None:
        """Close all connections, and each one that is added later."""
        self.is_closed = True
        for connection in list(self.values()):
            connection.close()

    def __setitem__(self, name: object, connection: _SessionConnection) -> None:
        super().__setitem__(name, connection)
        if self.is_closed:
            connection.close()
            return
        if session_s := getattr(
            connection, "session_s", 0.0
        ):  # missing on connections that were not made by `_connect`
            asyncio.get_running_loop().call_later(session_s * SESSION_PART, self._put_aside, name)

    def _put_aside(self, name: object) -> None:
        if (connection := self.pop(name, None)) is not None:
            super().__setitem__(aside := object(), connection)  # closing the client closes it, too
            self._close_when_answered(aside)

    def _close_when_answered(self, aside: object) -> None:
        if (connection := self.get(aside)) is None:
            return
        if all(answer.done() for *_, answer in connection._requests):
            self.pop(aside).close()
        else:
            asyncio.get_running_loop().call_later(ANSWERED_LOOK_S, self._close_when_answered, aside)


@contextmanager
def closing_on_failure(of: AIOKafkaClient) -> Iterator[None]:
    """Close the connections that a client opens inside the block, if its start fails or is cancelled.

    If aiokafka's `bootstrap` is cancelled while it requests the cluster's metadata, it leaks that connection; only the
    frame in the traceback still refers to it.
    """
    of._conns = _Connections(of._conns)
    try:
        yield
    except BaseException as why:
        left: BaseException | None = why
        while left is not None:
            for frame, _ in traceback.walk_tb(left.__traceback__):
                if frame.f_code is AIOKafkaClient.bootstrap.__code__ and "bootstrap_conn" in frame.f_locals:
                    frame.f_locals["bootstrap_conn"].close()
            left = left.__cause__ or left.__context__
        raise


async def _end_tasks(tasks: Iterable[asyncio.Task[object] | None], client: AIOKafkaClient) -> None:
    """Cancel a client's tasks. They are cancelled twice, because some treat the first cancellation as a request to
    finish their work."""
    pending = {task for task in (*tasks, client._sync_task) if task is not None and not task.done()}
    for _ in range(2):
        if pending:
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=END_S)
    close_connections(client)


def close_connections(client: AIOKafkaClient) -> None:
    """Close a client's connections, and each one that a request in progress still opens.

    The task that fetches the client's metadata has ended, so callers that wait for metadata would wait for ever. Those
    that wait now get `False`, and later ones an error.
    """
    client._conns = connections = _Connections(client._conns)
    connections.close()
    pending, client._md_update_fut = client._md_update_fut, client._loop.create_future()
    if pending is not None and not pending.done():
        pending.set_result(False)
    client._md_update_fut.set_exception(KafkaConnectionError("the client is closed"))
    client._md_update_fut.exception()  # marks the exception as retrieved, because often nothing awaits it


async def run_to_end(cleanup: Coroutine[Any, Any, None]) -> None:
    """Run a cleanup in a task of its own, which a cancellation of the caller does not end.

    A caller that is cancelled still waits for the end of the cleanup, because the event loop may be closed next. If it
    is cancelled again, as some frameworks do at each wait, it stops waiting and the cleanup continues.
    """
    task = asyncio.get_running_loop().create_task(cleanup)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


# -------------------------------------------------------------------- producers


def is_dead(producer: AIOKafkaProducer) -> bool:
    """Return whether the producer can no longer send anything, because a background task has ended."""
    task = producer._sender.sender_task
    return task is None or task.done() or _has_ended(producer.client._sync_task)


def enqueue_record(
    producer: AIOKafkaProducer,
    place: TopicPartition,
    key: bytes,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
) -> asyncio.Future[RecordMetadata] | None:
    """Enqueue a record of a known topic without waiting. Return the future of its acknowledgement; `None`, with nothing
    enqueued, if a full batch has to be sent first.

    aiokafka's own `send` looks up the topic and its partitions each time, which takes longer than everything else that
    it does.
    """
    adding = producer._message_accumulator.add_message(place, key, value, 0.0, headers=headers)
    try:
        adding.send(None)
    except StopIteration as added:
        future: asyncio.Future[RecordMetadata] = added.value
        return future
    adding.close()
    return None


async def end_producer(producer: AIOKafkaProducer, clock: Clock, seconds: float) -> None:
    """Let a producer send its pending records for up to `seconds`, then stop it.

    Records that are still unsent fail with `KafkaTimeoutError`. A cancelled caller leaves nothing behind either.
    """
    ended: BaseException = TimeoutError()
    if seconds > 0:
        try:
            await clock.within(seconds, producer.stop())
        except (*FAILED, asyncio.CancelledError) as why:
            ended = why
        else:
            close_connections(producer.client)
            return
    await run_to_end(_abandon_producer(producer))
    reraise_cancellation(ended)


async def _abandon_producer(producer: AIOKafkaProducer) -> None:
    """Cancel everything that a producer still does. Its unsent records fail."""
    producer._closed = True  # otherwise aiokafka warns that the producer was not stopped
    accumulator = producer._message_accumulator
    batches = {*accumulator._pending_batches, *(batch for queue in accumulator._batches.values() for batch in queue)}
    accumulator._pending_batches = _Batches(accumulator._pending_batches)
    accumulator.reenqueue = _cancel_batch
    await _end_tasks([producer._sender.sender_task], producer.client)
    accumulator.fail_all(KafkaTimeoutError("given up"))
    for batch in batches:
        if batch._drain_waiter.done() and not batch._drain_waiter.cancelled():
            batch._drain_waiter.exception()  # marks the exception as retrieved, because nothing awaits it


class _Batches(set[object]):
    """Set of batches that may be asked to remove a batch that it does not contain.

    In a callback, aiokafka removes each batch that fails, even one that waits for a retry and so is not in the set.
    asyncio would log the error.
    """

    def remove(self, batch: object) -> None:
        self.discard(batch)


def _cancel_batch(batch: object) -> Never:
    """Cancel the task that would send a batch again. This function replaces `reenqueue` in a producer that is being
    stopped."""
    raise asyncio.CancelledError


# -------------------------------------------------------------------- consumers


def raise_if_broken(consumer: AIOKafkaConsumer) -> None:
    """Raise the error that ended a background task of the consumer, if one has ended.

    aiokafka itself raises such errors only from `getmany`, and not always.
    """
    coordinator = consumer._coordinator
    _check(coordinator._coordination_task, consumer._fetcher.error_future, consumer._client._sync_task)
    coordinator.check_errors()


def raise_if_reader_broken(consumer: AIOKafkaConsumer) -> None:
    """Raise the error that ended a background task of a consumer without a group, if one has ended."""
    _check(consumer._fetcher.error_future, consumer._client._sync_task)


def _check(*tasks: asyncio.Task[object] | None) -> None:
    for task in tasks:
        if task is not None and _has_ended(task):
            why = "cancelled" if task.cancelled() else repr(task.exception())
            raise KafkaError(f"a background task of aiokafka has ended: {why}")


def lacks_coordinator(consumer: AIOKafkaConsumer) -> bool:
    """Return whether the consumer has no group coordinator, so that it cannot commit."""
    return consumer._coordinator.coordinator_id is None


def is_unknown_to_group(consumer: AIOKafkaConsumer) -> bool:
    """Return whether the group has removed this consumer. Other members may already own its partitions."""
    return bool(consumer._coordinator.generation < 0)


def find_invisible_topics(consumer: AIOKafkaConsumer, topics: Iterable[str]) -> list[str]:
    """Return the topics that are missing, or hidden from this user. If there are any, request the metadata again.

    Without this, aiokafka would wait for minutes, and meanwhile the member would silently have none of their
    partitions.
    """
    found = [topic for topic in topics if not consumer._client.cluster.partitions_for_topic(topic)]
    if found:
        consumer._client.force_metadata_update()
    return found


def count_cached_partitions(client: AIOKafkaClient, topics: Iterable[str]) -> Mapping[str, int]:
    """Count the partitions of these topics in the cached metadata. Unknown topics are left out."""
    found = {topic: len(client.cluster.partitions_for_topic(topic) or ()) for topic in topics}
    return {topic: count for topic, count in found.items() if count}


def report_invisible_topics(topics: Iterable[str]) -> list[StalledPartition]:
    """Return a stalled partition for each topic that `find_invisible_topics` has found."""
    reason = "is missing or hidden: check that it exists, and that the user is allowed to Read it"
    return [StalledPartition(topic, None, None, f"topic {topic} {reason}") for topic in topics]


def find_refused_topics(why: BaseException) -> frozenset[str]:
    """Return the topics for which a commit was refused for lack of permission. The commit took effect for all other
    topics."""
    cause = why.__cause__
    if cause is None or not isinstance(cause, TopicAuthorizationFailedError):
        return frozenset()
    return frozenset(str(topic) for part in cause.args for topic in ([part] if isinstance(part, str) else part))


def read_position(consumer: AIOKafkaConsumer, partition: Partition) -> int | None:
    """Return the offset that the consumer reads next; `None` if it does not own the partition or has no offset yet."""
    subscription = consumer._subscription.subscription
    place = TopicPartition(*partition)
    if subscription is None or subscription.assignment is None or place not in subscription.assignment.tps:
        return None
    found: int | None = subscription.assignment.state_value(place)._position
    return found


async def fetch_bounds(
    consumer: AIOKafkaConsumer, places: Collection[TopicPartition]
) -> Mapping[TopicPartition, tuple[int, int]]:
    """Return, for each partition, the offset of its oldest record and the offset after its last committed record.
    Retries until the brokers answer."""
    begins, ends = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
    return {place: (int(begins[place]), int(ends[place])) for place in places}


async def fetch_identities(client: AIOKafkaClient, group: str, clock: Clock) -> list[MemberIdentity | None]:
    """Fetch the identity that each member of a group reports; none if this user may not see the group.

    Retries until the brokers answer, because the coordinator of a new group is known only after a moment.
    """
    while True:
        try:
            node = await client.coordinator_lookup(0, group)
            answer = await client.send(node, DescribeGroupsRequest([group]))
            ((code, _, _, _, _, members, *_),) = answer.groups
            if not (code and for_code(code).retriable):
                return [read_identity(member[3]) for member in members]
        except KafkaError as why:
            if not why.retriable:
                raise
        await clock.sleep(LOOK_S)


def read_identity(subscription: bytes) -> MemberIdentity | None:
    """Decode the identity that a member reports in its subscription."""
    return decode_identity(decode_subscription(subscription)[1])


def decode_subscription(subscription: bytes) -> tuple[Sequence[str], bytes | None]:
    """Decode the topics of a member's subscription, and its user data.

    Both are empty while the member is joining, and for a subscription that cannot be decoded: brokers accept any bytes
    from another program.
    """
    try:
        decoded = ConsumerProtocol.METADATA.decode(subscription or b"")
    except (ValueError, struct.error):
        return (), None
    return decoded.subscription or (), decoded.user_data


async def fetch_ends(
    consumer: AIOKafkaConsumer, places: Sequence[TopicPartition], clock: Clock, limit_s: float
) -> Mapping[Partition, int | None]:
    """Fetch the offset after the last committed record of each partition; `None` for one that is unknown at present.

    Raises `BrokerUnavailable` if no end is known.
    """
    ends = await ask_for_each(consumer.end_offsets, places, clock, limit_s)
    failures = [end for end in ends.values() if isinstance(end, BaseException)]
    if places and len(failures) == len(ends):
        raise to_broker_error(failures[0], "asking for the ends of the log", "Read", waits=True) from failures[0]
    return {Partition(*place): None if isinstance(end, BaseException) else int(end) for place, end in ends.items()}


async def ask_for_each(
    ask: Callable[[Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]],
    places: Sequence[TopicPartition],
    clock: Clock,
    limit_s: float,
) -> Mapping[TopicPartition, int | BaseException]:
    """Request an offset of each partition. Return the offset for each partition, or an error if it is unknown at
    present.

    All offsets are requested together. If that fails, each one is requested separately, because a single partition
    without a leader delays the answers for all others. The joint request and the separate ones may each take `limit_s`.
    """
    try:
        return await clock.within(limit_s, ask(places)) if places else {}
    except FAILED as why:
        if len(places) == 1:
            return {places[0]: why}
    found = await asyncio.gather(*(clock.within(limit_s, ask([place])) for place in places), return_exceptions=True)
    return {
        place: each if isinstance(each, BaseException) else each[place]
        for place, each in zip(places, found, strict=True)
    }


async def fetch_committed(
    consumer: AIOKafkaConsumer, places: Sequence[TopicPartition]
) -> Mapping[TopicPartition, tuple[int, str]]:
    """Fetch the committed position and its metadata for each partition that has one. Retries until the group's
    coordinator answers."""
    committed = await consumer._coordinator.fetch_committed_offsets(places) if places else {}
    return {place: (position.offset, position.metadata or "") for place, position in committed.items()}


async def fetch_starts(
    consumer: AIOKafkaConsumer, places: Sequence[TopicPartition], times: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, int]:
    """Return the offset at which a group without a position begins in each partition: the first one at or after the
    time in `times`, or the oldest one for a partition without a time. Retries until the brokers answer."""
    begins = await consumer.beginning_offsets(places)
    at_times = await fetch_offsets_at(consumer, {place: times[place] for place in places if place in times})
    return {**begins, **at_times}


def has_leader(consumer: AIOKafkaConsumer, place: TopicPartition) -> bool:
    """Return whether a partition has a leader, as far as is known, and refresh the metadata if not."""
    found = consumer._client.cluster.leader_for_partition(place) not in (None, -1)
    if not found:
        consumer._client.force_metadata_update()
    return found


async def fetch_offsets_at(
    consumer: AIOKafkaConsumer, times: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, int]:
    """Return each partition's first offset at or after a time, in milliseconds since 1970, or its end if there is
    none."""
    if not times:
        return {}
    ends = await consumer.end_offsets(list(times))  # first: records that arrive in between are later than the time
    firsts = await consumer.offsets_for_times(times)
    return {place: int(ends[place] if firsts[place] is None else firsts[place].offset) for place in times}


async def end_consumer(consumer: AIOKafkaConsumer, clock: Clock, seconds: float) -> None:
    """Leave the group, unless the member is static, and disconnect. Everything that has not ended after `seconds` is
    cancelled.

    If the caller is cancelled, everything is cancelled at once: otherwise the consumer would keep sending heartbeats,
    and the group would keep waiting for it.
    """
    try:
        await clock.within(seconds, consumer.stop())
    except (*FAILED, asyncio.CancelledError) as why:  # a fetch that waits for its retry ends with a stray cancellation
        ended = why
    else:
        close_connections(consumer._client)
        return
    await run_to_end(_abandon_consumer(consumer, clock))
    reraise_cancellation(ended)


async def _abandon_consumer(consumer: AIOKafkaConsumer, clock: Clock) -> None:
    """Leave the group, unless the member is static, and cancel everything that the consumer still does."""
    tasks: list[asyncio.Task[object] | None] = []
    coordinator, fetcher = consumer._coordinator, consumer._fetcher
    if isinstance(coordinator, GroupCoordinator):
        await _leave(coordinator, consumer._client, clock)
        tasks += [coordinator._coordination_task, coordinator._heartbeat_task, coordinator._commit_refresh_task]
    elif coordinator is not None:  # the consumer has no group
        tasks.append(coordinator._reset_committed_task)
    if fetcher is not None:
        tasks += [fetcher._fetch_task, *fetcher._pending_tasks]
    await _end_tasks(tasks, consumer._client)


async def _leave(coordinator: GroupCoordinator, client: AIOKafkaClient, clock: Clock) -> None:
    """Leave the group on a separate connection, because on the consumer's own connection a pending join may wait for
    all other members."""
    keeps_its_place = coordinator._group_instance_id is not None
    if keeps_its_place or coordinator.coordinator_id is None or not coordinator.member_id:
        return
    request = LeaveGroupRequest(coordinator.group_id, coordinator.member_id)
    with suppress(*FAILED):
        await clock.within(END_S, client.send(coordinator.coordinator_id, request))


def _has_ended(task: asyncio.Task[object] | None) -> bool:
    return task is not None and task.done()


def to_broker_error(
    why: BaseException, doing: str, right: str = "Read, Write or Create", *, waits: bool = False
) -> BrokerError:
    """Convert any exception that aiokafka raised to an error of the toolkit. For `right` and `waits` see
    `translate_error`."""
    if isinstance(why, KafkaError):
        return translate_error(why, doing, right, waits=waits)
    reason = "no answer in time" if isinstance(why, TimeoutError) else repr(why)
    return BrokerUnavailable(f"{doing}: {reason}: it is tried again; {GUESS}")


# ---------------------------------------------------------------- private names of aiokafka
#
# They are checked when a client has started. Otherwise a release of aiokafka that renames one would look like an
# endless outage of the brokers: aiokafka also raises `AttributeError` when something is used after it was closed.


CLIENT = (
    *("_conns", "_loop", "_md_update_fut", "_sasl_plain_password", "_sync_task", "_metadata_max_age_ms", "add_topic"),
    *("cluster", "coordinator_lookup", "fetch_all_metadata", "force_metadata_update", "get_random_node", "send"),
)
PRODUCER = (
    *("client", "_closed", "_sender.sender_task", "_sender._sender_task"),
    *("_message_accumulator.fail_all", "_message_accumulator.reenqueue", "_message_accumulator.add_message"),
    *("_message_accumulator._batches", "_message_accumulator._pending_batches"),
)
CONSUMER = (
    *("_client", "_coordinator", "_fetcher._fetch_task", "_fetcher._pending_tasks", "_fetcher._records"),
    *("_fetcher._client", "_fetcher._loop", "_fetcher._subscriptions", "_fetcher._prefetch_backoff"),
    *("_fetcher._retry_backoff", "_fetcher.error_future", "_fetcher.seek_to", "_subscription.subscription"),
    *("_fetch_min_bytes", "_fetch_max_bytes", "_fetch_max_wait_ms", "_max_partition_fetch_bytes"),
    *("_consumer_timeout", "_retry_backoff_ms", "_auto_offset_reset", "_isolation_level"),
)
OF_A_GROUP = (
    *("_coordinator._coordination_task", "_coordinator._heartbeat_task", "_coordinator._commit_refresh_task"),
    *("_coordinator._group_instance_id", "_coordinator.check_errors", "_coordinator.coordinator_id"),
    *("_coordinator.fetch_committed_offsets", "_coordinator.generation", "_coordinator.group_id"),
    "_coordinator.member_id",
)
OF_NO_GROUP = ("_coordinator._reset_committed_task",)
TAKES: tuple[tuple[Callable[..., object], tuple[str, ...]], ...] = (
    (AIOKafkaConnection.connected, ("self",)),
    (AIOKafkaConnection.send, ("self", "request", "expect_response")),
    (Fetcher._proc_fetch_request, ("self", "assignment", "node_id", "request")),
    (FetchResult.__init__, ("self", "tp", "assignment", "partition_records", "backoff")),
    (TopicPartitionState.pause, ("self",)),
    (TopicPartitionState.resume, ("self",)),
)
"""Private functions that this module overrides or calls, each with the names of its parameters, for the check against
the installed version of aiokafka."""


def check_producer(producer: AIOKafkaProducer) -> None:
    """Check that a producer and its client have the private names that this module uses. Raises `BrokerError`."""
    _check_names([*_find_missing_names(producer, PRODUCER), *_find_missing_names(producer.client, CLIENT)])


def check_consumer(consumer: AIOKafkaConsumer) -> None:
    """Check that a consumer has the private names that this module uses. Raises `BrokerError`."""
    others = [
        f"{of.__qualname__}({', '.join(names)})"
        for of, names in TAKES
        if tuple(inspect.signature(of).parameters) != names
    ]
    of_its_kind = OF_A_GROUP if isinstance(consumer._coordinator, GroupCoordinator) else OF_NO_GROUP
    _check_names([*_find_missing_names(consumer, (*CONSUMER, *of_its_kind)), *others])


def _find_missing_names(root: object, names: Iterable[str]) -> Iterable[str]:
    for name in names:
        try:
            attrgetter(name)(root)
        except AttributeError:
            yield f"{type(root).__name__}.{name}"


def _check_names(missing: list[str]) -> None:
    if missing:
        raise BrokerError(
            f"aiokafka {aiokafka.__version__} no longer has {', '.join(missing)}, which this release of saga needs: "
            "install an aiokafka that fits with pip install 'saga-choreography[kafka]'"
        )


# ---------------------------------------------------------------- requests that aiokafka lacks
#
# They change one setting of a topic, and fetch our permissions on topics and topic ids. aiokafka can only replace all
# settings of a topic at once, which would revert concurrent changes.


TOPIC, SET = 2, 0
"""Protocol codes: resource type topic, operation set."""
READ, WRITE = 1 << 3, 1 << 4
"""Bits of the permissions to read and to write a topic."""
UNKNOWN = -(1 << 31)
"""Value of the permissions if they were not requested."""

_TEXT, _COMPACT = String("utf-8"), CompactString("utf-8")
_TAGS = ("tags", TaggedFields)
NO_ID = bytes(16)
"""Encoded id of a topic without an id."""


class ChangedResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    """IncrementalAlterConfigs response: an error code for each topic."""

    API_KEY = 44
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "resources",
            Array(("error_code", Int16), ("error_message", _TEXT), ("resource_type", Int8), ("resource_name", _TEXT)),
        ),
    )


class ChangeStruct(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    """Wire format of the request IncrementalAlterConfigs."""

    API_KEY = 44
    API_VERSION = 0
    RESPONSE_TYPE = ChangedResponse
    SCHEMA = Schema(
        (
            "resources",
            Array(
                ("resource_type", Int8),
                ("resource_name", _TEXT),
                ("configs", Array(("name", _TEXT), ("operation", Int8), ("value", _TEXT))),
            ),
        ),
        ("validate_only", Boolean),
    )


class ChangeConfigs(Request[ChangeStruct]):  # type: ignore[misc]  # aiokafka has no types
    """Request that changes one setting of a topic and leaves all others unchanged."""

    API_KEY = 44

    def __init__(self, topic: str, name: str, value: str) -> None:
        self._topic, self._name, self._value = topic, name, value

    def build(self, request_struct_class: type[ChangeStruct]) -> ChangeStruct:
        return request_struct_class([(TOPIC, self._topic, [(self._name, SET, self._value)])], False)


class TopicsResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    """Metadata response with all topics and the permissions of this user on each."""

    API_KEY = 3
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", Array(("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT))),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", _TEXT),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
                ("allowed", Int32),
            ),
        ),
        ("allowed", Int32),
    )


class TopicsStruct(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    """Wire format of the request Metadata with permissions."""

    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = TopicsResponse
    SCHEMA = Schema(
        ("topics", Array(_TEXT)),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class Topics(Request[TopicsStruct]):  # type: ignore[misc]  # aiokafka has no types
    """Request for the metadata of topics, by default of all topics. It never creates a topic."""

    API_KEY = 3

    def __init__(self, topics: Sequence[str] | None = None) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[TopicsStruct]) -> TopicsStruct:
        return request_struct_class(self._topics, False, False, True)


class Uuid(AbstractType[str]):  # type: ignore[misc]  # aiokafka has no types
    """Topic id as Kafka's own tools print it, 22 characters; empty for none."""

    @classmethod
    def encode(cls, value: str) -> bytes:
        """Encode no id, because topics are requested by name."""
        return NO_ID

    @classmethod
    def decode(cls, data: BytesIO) -> str:
        read = data.read(len(NO_ID))
        return "" if read == NO_ID else urlsafe_b64encode(read).decode().rstrip("=")


class IdsResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    """Metadata response that contains topic ids (version 10)."""

    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(("node_id", Int32), ("host", _COMPACT), ("port", Int32), ("rack", _COMPACT), _TAGS)),
        ("cluster_id", _COMPACT),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", _COMPACT),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        _TAGS,
                    ),
                ),
                ("allowed", Int32),
                _TAGS,
            ),
        ),
        ("allowed", Int32),
        _TAGS,
    )


class IdsStruct(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    """Wire format of the first version of the request Metadata that has ids."""

    API_KEY = 3
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = IdsResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", Uuid), ("topic", _COMPACT), _TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        _TAGS,
    )


class Ids(Request[IdsStruct]):  # type: ignore[misc]  # aiokafka has no types
    """Request for the ids of topics. It never creates a topic. Supported since Kafka 2.8."""

    API_KEY = 3

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[IdsStruct]) -> IdsStruct:
        return request_struct_class([("", topic, {}) for topic in self._topics], False, False, False, {})
