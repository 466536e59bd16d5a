"""Port of the broker: an ordered, replayable log of partitioned topics, read by groups of members.

Every adapter keeps these promises. Each has a test in `saga.testing.conformance.broker`:
- Records with the same key are in the same partition, in the order in which they were published. In topics with equal
  partition counts, a key belongs to partitions with the same number.
- `publish` returns when all records are durable. If it raises `BrokerUnavailable`, any of them may be in the log, now
  or later.
- A member receives every record of its partitions at least once, in order, from the group's committed position on. A
  group without a position begins at the oldest record, or where `Subscription.starts` says.
- A partition is assigned to at most one live member of the group. A member that was paused or disconnected may continue
  with its records for a while (a zombie); its commits are refused with `Fenced`.
- `Listener.on_revoked` is called before another member gets the partition. The other member waits, for a bounded time,
  until `on_revoked` returns. Then the partition is assigned to this member again, or lost. `on_revoked` need not wait
  for running handlers.
- `commit` moves the group's position. When it returns, the position is as durable as the log.
- The mark that `mark_in_progress` sets on a partition stays until `clear_in_progress`, or until an operator moves the
  position.
- Members with disagreeing identities do not work in one group. `join` raises `ConfigurationError` while the group has
  such a member; a member that finds one later reports it in `disagreeing_members`.
- `fetch_ends` and `fetch_positions` may be called by any member, and return values that are not older than the call.
- Records that were removed before the group received them are reported, per partition. Nothing else is lost.
- A position belongs to one log. A topic that is deleted and created again has a new log with a new id. Its members
  notice this within seconds, or when they start, and read the new log from its beginning. If they had read records of
  the new log before they noticed, these records are delivered again.
- A record that cannot be read stalls its own partition and nothing else. It is never skipped.

Not promised: that a record is delivered only once; an order between partitions; that a position never goes back.
"""

import struct
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self

import msgspec
from msgspec import Struct

from saga.errors import ConfigurationError
from saga.messages import Outgoing, Partition, Record, StalledPartition, Topic
from saga.support.printable import quote_text

RECORD_BYTES_MAX = 1_000_000
"""Default maximum size of a record, in bytes: what a Kafka topic accepts by default."""
RECORD_BYTES_LEAST, RECORD_BYTES_LIMIT = 100_000, 1 << 24
"""Smallest and largest value that the maximum size of a record may be set to, in bytes. A smaller maximum leaves no
room for a dead letter's headers. With a larger one, a single record would delay all others."""
BESIDE_BYTES = 1 << 15
"""Bytes reserved in a record for everything except the event's value: its key, its headers, and the headers of a dead
letter. Each of these has a limit of its own."""
FRAME_BYTES = 100
"""Largest number of bytes that a log adds to a record: the frame of the record, and of a batch that contains only this
record."""

FROM_THE_OLDEST: Mapping[str, int] = MappingProxyType({})
"""Default of `Subscription.starts`: the group begins at the oldest record of every topic."""


def record_size(message: Outgoing) -> int:
    """Return the size of a record, in bytes, as `Broker.record_bytes_max` counts it."""
    size = len(message.key) + len(message.value or b"") + FRAME_BYTES
    for name, content in message.headers:
        size += len(name.encode()) + len(content or b"") + 10
    return size


def value_bytes_max(record_bytes_max: int) -> int:
    """Return the maximum size of an event's value, in bytes. An event of this size still fits into a record when it
    becomes a dead letter, with all headers."""
    return record_bytes_max - BESIDE_BYTES


# ---------------------------------------------------------------- identities of members
#
# A group is found by its name alone. Two projects may have a service of the same name on one broker, or a process may
# be configured with another store than its peers. Then both join the same group, share partitions and positions, and
# each loses the messages that the other takes. So every member reports its identity in its subscription.


TEXT_MAX = 200
"""Longest text accepted in another member's identity, in characters."""


class MemberIdentity(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Identity that a member of a group reports. All members of a group must have the same `service` and `store`."""

    service: str
    store: str
    """Random id of the store, created when the service first wrote to it."""
    worker: str = ""
    """Host and process id, as readable text."""

    def agrees_with(self, other: "MemberIdentity") -> bool:
        """Return whether both belong to the same service with the same store."""
        return (self.service, self.store) == (other.service, other.store)

    def __str__(self) -> str:
        where = f" in process {quote_text(self.worker)}" if self.worker else ""
        return f"service {quote_text(self.service)}{where} with store {quote_text(self.store)}"


def encode_identity(identity: MemberIdentity | None) -> bytes:
    """Encode an identity for the subscription; empty bytes for a member without an identity."""
    return b"" if identity is None else msgspec.json.encode(identity)


def decode_identity(content: bytes | None) -> MemberIdentity | None:
    """Return the identity that a member reports; `None` if it reports none, or one that cannot be decoded. Such a
    member is a client of an earlier release, or another program."""
    if not content:
        return None
    try:
        identity = msgspec.json.decode(content, type=MemberIdentity)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return identity if max(map(len, (identity.service, identity.store, identity.worker))) <= TEXT_MAX else None


def find_disagreeing(ours: MemberIdentity | None, members: Iterable[MemberIdentity | None]) -> tuple[str, ...]:
    """Return a line for each member whose identity disagrees with `ours`; none if `ours` is `None`.

    A member without an identity does not disagree, because it may be a client of an earlier release.
    """
    if ours is None:
        return ()
    return tuple(sorted({str(each) for each in members if each is not None and not each.agrees_with(ours)}))


def disagreement_error(group: str, ours: MemberIdentity | None, disagreeing: Iterable[str]) -> ConfigurationError:
    """Create the error for a member that must not join a group because other members have disagreeing identities."""
    return ConfigurationError(
        f"nothing was started: the group {group!r} belongs to another service or store. This is {ours}. Each of the "
        "two would lose the messages that the other takes. Check that SAGA_STORE is the same in all processes of this "
        "service. If the other is another project, give each its own broker. In the group:",
        list(disagreeing),
    )


# ---------------------------------------------------------------- the port


class Subscription(NamedTuple):
    """What a member subscribes to: the topics that its group reads, and where a new group begins."""

    group: str
    topics: Sequence[str]
    identity: MemberIdentity | None = None
    """Identity of this member, to be compared with the identities of the other members; `None` to skip the
    comparison."""
    starts: Mapping[str, int] = FROM_THE_OLDEST
    """For each topic, the time at which a group without a position begins, in milliseconds since 1970. The group begins
    at the first record that was appended at this time or later. With 0, or without an entry, it begins at the oldest
    record."""


class Listener(Protocol):
    """Callbacks with which a membership reports changes of its partitions."""

    async def on_assigned(self, partitions: Mapping[Partition, int]) -> None:
        """Start to process these partitions; each comes with the offset of its first uncommitted record."""

    async def on_revoked(self, partitions: Collection[Partition]) -> None:
        """Commit the finished records of these partitions, which may be assigned to another member next. Do not wait
        for running handlers.

        The group waits until this returns. Afterwards each partition is assigned again or lost, or this member leaves.
        """

    def on_lost(self, partitions: Collection[Partition]) -> None:
        """Forget these partitions, without committing: commits would be refused.

        Either another member gets them after `on_revoked`, or the group considered this member dead.
        """

    def on_expired(self, partition: Partition, first: int, after: int) -> None:
        """React to the loss of records that retention or an operator removed before this group received them.

        The removed offsets go from `first` up to, but not including, `after`, where reading continues. These records
        will not be delivered.
        """

    def on_replaced(self, partition: Partition, position: int) -> None:
        """React to a partition whose topic was deleted and created again. Records of the old log from `position` on are
        lost.

        The new log is read from its beginning: `on_assigned` follows. If the partition was assigned to this member,
        `on_lost` is called before that.
        """

    def on_partitions_added(self, topic: str, before: int, now: int) -> None:
        """React to a topic that has more partitions than before. The new partitions are assigned soon. From now on a
        key may belong to another partition."""


class Membership(Protocol):
    """A member of a group, from joining to leaving it."""

    async def poll(self, partitions: Collection[Partition], *, records_max: int, timeout_s: float) -> Sequence[Record]:
        """Return the next records of those of the given partitions that are assigned to this member; none if no record
        comes within `timeout_s`.

        A partition that is not given is paused, and none of its records is lost. Must not be called concurrently.
        Raises `BrokerUnavailable`.
        """

    def wake(self) -> None:
        """Make the running poll return at once, or the next one if none is running."""

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit these offsets: all records below them are processed. Raises `Fenced` if a partition no longer belongs
        to this member, and `BrokerUnavailable`."""

    async def mark_in_progress(self, offsets: Mapping[Partition, int]) -> Collection[Partition]:
        """Commit these offsets and mark their partitions as in progress. Return the partitions that were already
        marked.

        The previous owner of such a partition did not call `clear_in_progress`, so it may have died while it processed
        a message. A `commit` does not change the marks. Raises the same errors as `commit`.
        """

    async def clear_in_progress(self, offsets: Mapping[Partition, int]) -> None:
        """Commit these offsets and remove the marks of their partitions, because no message is in progress there.
        Raises the same errors as `commit`."""

    def log_id(self, partition: Partition) -> str:
        """Return the id of the partition's log; empty if the broker has no log ids. The id is known once `on_assigned`
        has been called, and does not change until the next `on_assigned`."""

    def lag(self) -> Mapping[Partition, int] | None:
        """Return, for each partition of this member, how many records `poll` has not returned yet, as last known. This
        makes no request.

        A partition with unknown lag is left out. Return `None` if nothing has been assigned yet.
        """

    def disagreeing_members(self) -> Sequence[str]:
        """Return a line for each member whose identity disagrees with this member's identity, as last seen."""

    def polled_offsets(self) -> Mapping[Partition, int]:
        """Return, for each partition of this member, the offset below which `poll` has returned every record.

        The offset also counts control records at the end, such as the ends of transactions. This makes no request.
        """

    async def fetch_ends(self) -> Mapping[Partition, int | None]:
        """Return the current end of every partition of the subscribed topics, whether assigned to this member or not:
        the offset after its last readable record.

        The end is `None` if it is unknown, because the partition has no leader or this user may not read it. A deleted
        topic is left out. Asks the broker; raises `BrokerUnavailable`.
        """

    async def fetch_positions(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """Return the group's committed positions of these partitions, whether assigned to this member or not. Unknown
        positions are left out. Asks the broker; raises `BrokerUnavailable`."""

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        """Return the partitions that cannot be read at present, and that are, or should be, assigned to this member.
        Reading them is retried. When this list changes, the current poll returns, or the next one if none is running.
        """


class Broker(Protocol):
    """A log of partitioned topics, to which services publish and which groups read."""

    record_bytes_max: int
    """Largest size of a record, in bytes, as computed by `record_size`. `publish` refuses a larger record with
    `BrokerError` before it sends anything. The limit of a topic may be lower: `saga doctor` compares the two."""
    creates_topics: bool
    """True if services and clients create missing topics. This is right for a broker that is a local file.

    On shared servers an operator creates topics with `saga topics apply`, with rights that no service needs. If
    services created them there, a wrong address would silently lead to new, empty topics.
    """

    async def __aenter__(self) -> Self:
        """Connect. Raises `SagaError` with reason and remedy if the broker cannot be used.

        The error is raised before `SAGA_OPEN_S` has passed. If the caller's timeout came first, its error could not
        name the reason.
        """

    async def __aexit__(self, *exc: object) -> None:
        """Wait until every `publish` has ended, then disconnect."""

    async def ensure_topics(self, topics: Sequence[Topic]) -> None:
        """Create the missing topics. Raises `SagaError` for an existing topic with another number of partitions."""

    async def count_partitions(self, topics: Collection[str]) -> Mapping[str, int]:
        """Return the number of partitions of these topics; missing topics are left out and not created. Raises
        `BrokerError`."""

    async def fetch_log_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return the log ids of the given topics, if the broker has log ids. Missing topics are left out.

        A topic that is deleted and created again gets a new id; ids are never reused. Raises `BrokerError`.
        """

    async def find_missing_rights(
        self, reads: Collection[str], writes: Collection[str], groups: Collection[str] = ()
    ) -> Sequence[str]:
        """Return a line for each right that this user lacks: to read and write these topics, and to join these groups.
        The line says what to allow.

        The result is empty on a broker without users, or if the broker cannot check rights beforehand. Missing topics
        are left out. Raises `BrokerError`.
        """

    def publish(self, messages: Sequence[Outgoing]) -> Coroutine[Any, Any, None]:
        """Append the messages. Messages with the same key keep their order.

        Raises `BrokerUnavailable` if it is unknown whether they were appended. Raises `BrokerError` for a record that
        is too large, with nothing appended, and for a missing topic; then messages for other topics may have been
        appended.
        """

    def join(self, subscription: Subscription, listener: Listener) -> AbstractAsyncContextManager[Membership]:
        """Join a group for the duration of the block; leaving the block revokes the member's partitions. Raises
        `ConfigurationError` if a member of the group has a disagreeing identity."""

    def scan(self, topic: str) -> AsyncIterator[Record]:
        """Yield all existing records of a topic, partition by partition. For tools only."""


# ---------------------------------------------------------------- topics that must be there


APPLY = "saga topics apply"
"""Command that creates topics on brokers on which services do not create them."""


async def find_topic_problems(
    topics: Sequence[Topic],
    broker: Broker,
    reads: Collection[str] = (),
    writes: Collection[str] = (),
) -> list[str]:
    """Return a line for each topic that is missing, or whose number of partitions differs from the contracts.

    If services create topics on this broker (`Broker.creates_topics`), missing topics are created instead, and
    `SagaError` is raised for a topic with another number of partitions.

    Args:
        topics: Topics as the contracts require them.
        broker: The broker.
        reads: Names of the topics that this user reads. A topic that seems to be missing may only be hidden from the
            user, for lack of rights.
        writes: Names of the topics that this user writes. They may be hidden, too.
    """
    if broker.creates_topics:
        await broker.ensure_topics(topics)
        return []
    found = await broker.count_partitions([topic.name for topic in topics])
    return [
        f"topic {topic.name} has {found[topic.name]} partitions, the contracts want {topic.partitions}"
        if topic.name in found
        else f"topic {topic.name} is missing, or hidden from this user" + _describe_rights(topic.name, reads, writes)
        for topic in topics
        if found.get(topic.name) != topic.partitions
    ]


def _describe_rights(topic: str, reads: Collection[str], writes: Collection[str]) -> str:
    rights = [right for right, wanted in (("Read", reads), ("Write", writes)) if topic in wanted]
    return f", who needs {' and '.join(rights)} on it" if rights else ""


# ---------------------------------------------------------------- partition of a key
#
# Every adapter puts a key into the same partition as Kafka's default partitioner.


_HASH_SEED = 0x9747B28C
_HASH_FACTOR = 0x5BD1E995
_UINT32_MASK = 0xFFFFFFFF
CACHED_KEYS_MAX = 16_384
"""Largest number of keys whose hash is cached. The cache saves time, because hashing takes microseconds and every
message of a saga has the same key."""


@lru_cache(maxsize=CACHED_KEYS_MAX)
def murmur2(key: bytes) -> int:
    """Return the 32-bit murmur2 hash of a key, unsigned, as Kafka computes it
    (`org.apache.kafka.common.utils.Utils.murmur2`).

    >>> murmur2(b"foobar") - 2**32
    -790332482
    """
    length = len(key)
    h = _HASH_SEED ^ length
    for k in struct.unpack_from(f"<{length >> 2}I", key):
        k = k * _HASH_FACTOR & _UINT32_MASK
        h = (h * _HASH_FACTOR ^ (k ^ k >> 24) * _HASH_FACTOR) & _UINT32_MASK
    if length & 3:
        h = (h ^ int.from_bytes(key[length & ~3 :], "little")) * _HASH_FACTOR & _UINT32_MASK
    h = (h ^ h >> 13) * _HASH_FACTOR & _UINT32_MASK
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Return the number of the key's partition, from 0.

    >>> partition_of(b"foobar", 12)
    6
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions
