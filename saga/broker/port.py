"""Port of the broker, as the runtime sees it: an ordered, replayable log of partitioned topics, read by groups of
members.

Promises, each shown by a test of `saga.testing.conformance.broker`:
- Records of one key lie in one partition, in the order in which they were published; equal keys of topics with equal
  partition counts lie in partitions of equal number.
- `publish` returns when all is durable; if it raises, any of it may be there, now or later.
- A member sees every record of its partitions from the group's committed position on, in order, at least once. A group
  without a position begins at the oldest record.
- At any time a partition is given to at most one member of the group that is alive and listening. A paused or cut-off
  member may go on for a while with what it has (a zombie): its commits are refused with `Fenced`.
- `Listener.revoked` comes before another member gets the partition, which waits for it to return, within bounds. Then
  the partition is assigned to this member again, or lost: whoever runs something of it need not wait to know.
- `commit` moves the group's position; when it returns, the position survives what the log survives.
- What is noted of a partition as it is begun is there until it is ended, or its position is moved by people.
- Members that state an identity and disagree do not work in one group: `join` raises `ConfigurationError` while such a
  member is there, and one that meets another later is told by `strangers`.
- `ends` and `positions` tell how the log and the group stand after the call began, to every member.
- Records that were removed before the group had them are told: of each partition which. The others lose nothing.
- A position belongs to one log. A topic that is deleted and created again has another log, with another id: its members
  notice within seconds, whether they were running or not, and read it from its beginning. What they had read of it
  before they noticed comes again.
- Records that cannot be read hold up those behind them in their partition, and nothing else; nothing is stepped over.
Not promised: that a record comes once; an order between partitions; that a position never goes back.
"""

from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self

from saga.broker.identity import MemberIdentity
from saga.messages import Outgoing, Partition, Record, Standstill, Topic

RECORD_BYTES_MAX = 1_000_000
"""Largest record, in bytes, unless a setting says otherwise: a topic of Kafka takes as much by default."""
RECORD_BYTES_LEAST, RECORD_BYTES_LIMIT = 100_000, 1 << 24
"""Bounds of that setting: less leaves no room beside an event for a dead letter's headers, more holds up everybody."""
BESIDE_BYTES = 1 << 15
"""Bytes kept free beside an event's value: for its key and headers, and for those that it gets as a dead letter, all of
which have bounds of their own."""
FRAME_BYTES = 100
"""Most bytes that a log adds to a record: the frames of the record and of a batch that holds it alone."""

FROM_THE_OLDEST: Mapping[str, int] = MappingProxyType({})
"""Starts of a group that begins in every topic at the oldest record."""


def size_of(message: Outgoing) -> int:
    """Bytes that count against `Broker.record_bytes_max`."""
    size = len(message.key) + len(message.value or b"") + FRAME_BYTES
    for name, content in message.headers:
        size += len(name.encode()) + len(content or b"") + 10
    return size


def value_bytes_max(record_bytes_max: int) -> int:
    """Largest value of an event, so that with headers it is a record, and one day a dead letter."""
    return record_bytes_max - BESIDE_BYTES


class Subscription(NamedTuple):
    """Subscription of a member to the topics that its group reads."""

    group: str
    topics: Sequence[str]
    identity: MemberIdentity | None = None
    """Identity of the member, which the group compares with those of the others; `None`: nobody is compared."""
    starts: Mapping[str, int] = FROM_THE_OLDEST
    """Time by topic, in milliseconds since 1970, at which a group without a position begins: at the first record
    appended then or later. 0, or no entry: at the oldest record."""


class Listener(Protocol):
    """Listener that a membership tells which partitions it has."""

    async def assigned(self, partitions: Mapping[Partition, int]) -> None:
        """Take on partitions that are ours from now on; each with the offset of the first record that is not
        committed."""

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """Let go of partitions that may go to another member: commit what is finished before returning, and wait for
        nothing that runs. The group stands still meanwhile. They are assigned again, or lost, or this member leaves."""

    def lost(self, partitions: Collection[Partition]) -> None:
        """Forget partitions that are gone: after `revoked`, because another member gets them; or without warning,
        because this one was taken for dead. Commits would be refused."""

    def expired(self, partition: Partition, first: int, after: int) -> None:
        """Take note of records of a partition of ours that were removed before this group had them, by retention or by
        people: those from offset `first` to before `after`, where reading goes on. They never come."""

    def replaced(self, partition: Partition, position: int) -> None:
        """Take note that a partition has another log than the one in which `position` was reached, because its topic
        was deleted and created again. What the old log held from there on is lost. The new one is read from its
        beginning: `assigned` follows, after `lost` if the partition was ours."""

    def raised(self, topic: str, before: int, now: int) -> None:
        """Take note that a topic has more partitions than before, which are assigned soon: a key may lie in another one
        from now on."""


class Membership(Protocol):
    """Member of a group, while it is joined."""

    async def poll(self, partitions: Collection[Partition], *, records_max: int, timeout_s: float) -> Sequence[Record]:
        """Wait for the next records of those of `partitions` that are ours; empty after `timeout_s`. A partition that
        is left out is paused, and nothing of it is lost. Never called concurrently. Raises `BrokerUnavailable`."""

    def wake(self) -> None:
        """Have the poll that is under way, or else the next one, return at once."""

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit that everything below these offsets is done. Raises `Fenced`, `BrokerUnavailable`."""

    async def begin(self, offsets: Mapping[Partition, int]) -> Collection[Partition]:
        """Note with the group's positions, which are these, that messages of the partitions may be in hand from now on.
        Gives those of which that was noted already: whoever had them did not `end`. Raises as `commit`, which leaves
        the note as it is."""

    async def end(self, offsets: Mapping[Partition, int]) -> None:
        """Commit these offsets, and take the note away: nothing of the partitions is in hand. Raises as `commit`."""

    def log_id(self, partition: Partition) -> str:
        """Return the id of the log in which the partition is read; empty where the broker does not say. It is known
        from `assigned` on, and stays the same until the next `assigned`."""

    def lag(self) -> Mapping[Partition, int] | None:
        """Count the records of each of our partitions that lie behind what `poll` has given: as last heard, for nobody
        is asked; a partition of which nothing was heard yet is left out. `None`: the group has not said yet what is
        ours, which may be nothing."""

    def strangers(self) -> Sequence[str]:
        """List the members of the group whose identity disagrees with ours, as last seen; each in a line."""

    def read_to(self) -> Mapping[Partition, int]:
        """Give for each of our partitions the offset below which `poll` has handed out every record, transactions that
        have ended behind the last one included. Nobody is asked."""

    async def ends(self) -> Mapping[Partition, int | None]:
        """Ask for the end of every partition of our topics as it is now, whoever has the partition: the offset after
        its last record that can be read. `None`: it cannot be told now, for nobody leads the partition or we may not
        read it; of a topic that is gone there is nothing. Raises `BrokerUnavailable` if nobody answers."""

    async def positions(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """Ask for the group's committed position of these partitions, whoever has them; those of which it cannot be
        told now are left out. Raises `BrokerUnavailable`."""

    def standstills(self) -> Sequence[Standstill]:
        """Parts of what is ours, or ought to be, that cannot be read now. They are tried again; and whenever they
        become different, the poll under way, or else the next one, returns."""


class Broker(Protocol):
    """Log of partitioned topics."""

    record_bytes_max: int
    """Largest record, by `size_of`: `publish` refuses a larger one with a `BrokerError` before anything is sent. A
    topic may take less, where somebody has configured it so: `saga doctor` compares."""
    makes_topics: bool
    """True if those who run services or publish make the topics that they miss. So it is where the log is theirs alone:
    a file. On servers that others use as well, people make them, by `saga topics apply`, with rights that no service
    needs: else a wrong address would give new, empty topics, and nobody would notice that it is the wrong log."""

    async def __aenter__(self) -> Self:
        """Connect. Raises `SagaError`, saying why and what to do, if it cannot be reached or used: before
        `SAGA_OPEN_S` has passed, for whoever waits cannot tell why."""

    async def __aexit__(self, *exc: object) -> None:
        """Disconnect after everything handed to `publish` has come to its end."""

    async def ensure(self, topics: Sequence[Topic]) -> None:
        """Create the topics that are missing. Raises `SagaError` for one that is there with other partitions."""

    async def partitions(self, topics: Collection[str]) -> Mapping[str, int]:
        """Count the partitions of each of these topics; those that are not there are left out. Asking makes none.
        Raises `BrokerError`."""

    async def log_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return the id of the log of each of these topics that is there, if the broker tells it. A topic that is
        deleted and created again gets another id, which no topic ever had. Raises `BrokerError`."""

    async def forbidden(
        self, reads: Collection[str], writes: Collection[str], groups: Collection[str] = ()
    ) -> Sequence[str]:
        """Say what we may not do of this, each in a line with what to allow: read these topics, write those, join these
        groups. Nothing where nobody asks who we are, or where it cannot be known beforehand; nor of a topic that is not
        there. Raises `BrokerError`."""

    def publish(self, messages: Sequence[Outgoing]) -> Coroutine[Any, Any, None]:
        """Append all messages, in this order per key. Raises `BrokerUnavailable`; `BrokerError` for a topic that is not
        there, a record that is too large: then nothing was appended."""

    def join(self, subscription: Subscription, listener: Listener) -> AbstractAsyncContextManager[Membership]:
        """Be a member of a group inside the block. Leaving it revokes what the member has. Raises `ConfigurationError`
        if the group has a member with another identity of the service."""

    def scan(self, topic: str) -> AsyncIterator[Record]:
        """Read all records of a topic that are there now, partition by partition. For tools only."""
