"""Sources of a worker: all that it takes from, each as a member of a group."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from saga.broker.port import Broker, Listener, Membership, Subscription
from saga.messages import Partition, Standstill


class Source(Protocol):
    """Topics that a worker takes from. Once it has joined, the membership polls, commits, and tells how far it is."""

    @property
    def topics(self) -> Sequence[str]:
        """Names of the topics: no two sources of a worker share one."""

    def join(self, listener: Listener) -> AbstractAsyncContextManager[Membership]:
        """Be a member inside the block. Leaving it revokes what the member has."""


class EventTopics(NamedTuple):
    """Topics of the events that a service consumes."""

    broker: Broker
    subscription: Subscription

    @property
    def topics(self) -> Sequence[str]:
        return self.subscription.topics

    def join(self, listener: Listener) -> AbstractAsyncContextManager[Membership]:
        return self.broker.join(self.subscription, listener)


@dataclass(slots=True)
class Sources:
    """All that a worker takes from."""

    all: Sequence[Source]
    joined: list[tuple[Source, Membership]] = field(default_factory=list)
    """Sources that the worker has joined, also after it has left them."""

    async def join(self, source: Source, listener: Listener, groups: AsyncExitStack) -> Membership:
        """Be a member of its group until `groups` are left."""
        membership = await groups.enter_async_context(source.join(listener))
        self.joined.append((source, membership))
        return membership

    def wake(self) -> None:
        """Have each poll that is under way, or else the next one, return at once."""
        for _, membership in self.joined:
            membership.wake()

    def log_id(self, partition: Partition) -> str:
        """Id of the log in which a partition is read."""
        return next((id_ for _, membership in self.joined if (id_ := membership.log_id(partition))), "")

    def lag(self) -> Mapping[Partition, int] | None:
        """Records that lie behind those taken, by partition; `None`: a group has not said yet what is ours."""
        lags = [membership.lag() for _, membership in self.joined]
        known = [lag for lag in lags if lag is not None]
        return {p: n for lag in known for p, n in lag.items()} if len(known) == len(self.all) else None

    def read_to(self) -> Mapping[Partition, int]:
        """Offset of each of our partitions below which everything has come out of a poll."""
        return {p: offset for _, membership in self.joined for p, offset in membership.read_to().items()}

    async def ends(self) -> Mapping[Partition, int | None]:
        """Ask for the ends of all that lies in the topics, as they are now: see `saga.broker.port.Membership`."""
        return {p: end for _, membership in self.joined for p, end in (await membership.ends()).items()}

    async def positions(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """Ask for the committed positions of these partitions, whoever has them."""
        found: dict[Partition, int] = {}
        for source, membership in self.joined:
            if ours := [partition for partition in partitions if partition.topic in source.topics]:
                found |= await membership.positions(ours)
        return found

    def standstills(self) -> Sequence[Standstill]:
        """Parts of the log that cannot be read now."""
        return [each for _, membership in self.joined for each in membership.standstills()]
