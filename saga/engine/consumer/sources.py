"""Sources of records of a worker. The worker joins each as a member of a consumer group."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from saga.broker.port import Broker, Listener, Membership, Subscription
from saga.messages import Partition, StalledPartition


class TopicSource(Protocol):
    """Topics that a worker consumes. The membership polls, commits, and knows the offsets."""

    @property
    def topics(self) -> Sequence[str]:
        """Names of the topics. No two sources of a worker share a topic."""

    def join(self, listener: Listener) -> AbstractAsyncContextManager[Membership]:
        """Join the group for the duration of the block. Leaving the block revokes the partitions."""


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
class WorkerSources:
    """All sources of a worker."""

    sources: Sequence[TopicSource]
    joined: list[tuple[TopicSource, Membership]] = field(default_factory=list)
    """Sources that the worker has joined. They stay in this list after the worker has left them."""

    async def join(self, source: TopicSource, listener: Listener, groups: AsyncExitStack) -> Membership:
        """Join the group of a source until `groups` is closed."""
        membership = await groups.enter_async_context(source.join(listener))
        self.joined.append((source, membership))
        return membership

    def wake(self) -> None:
        """Make the current poll of each source return at once; if no poll is running, the next one."""
        for _, membership in self.joined:
            membership.wake()

    def log_id(self, partition: Partition) -> str:
        """Return the id of the log from which a partition is read."""
        return next((id_ for _, membership in self.joined if (id_ := membership.log_id(partition))), "")

    def lag(self) -> Mapping[Partition, int] | None:
        """Return the number of records not yet polled in each partition; `None` until every group has assigned its
        partitions."""
        lags = [membership.lag() for _, membership in self.joined]
        known = [lag for lag in lags if lag is not None]
        return {p: n for lag in known for p, n in lag.items()} if len(known) == len(self.sources) else None

    def polled_offsets(self) -> Mapping[Partition, int]:
        """Return, for each assigned partition, the offset below which everything was polled."""
        return {p: offset for _, membership in self.joined for p, offset in membership.polled_offsets().items()}

    async def fetch_ends(self) -> Mapping[Partition, int | None]:
        """Query the current end offsets of all partitions: see `saga.broker.port.Membership`."""
        return {p: end for _, membership in self.joined for p, end in (await membership.fetch_ends()).items()}

    async def fetch_positions(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """Query the committed offsets of these partitions, whichever member owns them."""
        found: dict[Partition, int] = {}
        for source, membership in self.joined:
            if ours := [partition for partition in partitions if partition.topic in source.topics]:
                found |= await membership.fetch_positions(ours)
        return found

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        """Return the partitions that cannot be read now."""
        return [each for _, membership in self.joined for each in membership.stalled_partitions()]
