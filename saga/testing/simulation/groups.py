"""Consumer groups of a simulated broker: one object decides on each partition's owner, and members learn of it by
messages."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from saga.broker.port import MemberIdentity
from saga.errors import Fenced
from saga.messages import Partition

DRAIN_S = 5.0
"""Time that a partition waits for `Listener.on_revoked` of the member that is to lose it."""
SILENCE_S = 10.0
"""Silence after which a member is taken for dead."""


class GroupMember(Protocol):
    """Member of a group, as the broker sees it."""

    topics: list[str]
    identity: MemberIdentity | None

    def partitions_of(self, topic: str) -> int: ...

    def told(self) -> None: ...

    def has_news(self, partition: Partition) -> None: ...

    def wake(self) -> None: ...


@dataclass(slots=True)
class Group:
    """One group, as the broker knows it. Nothing here takes time: members and network do what does."""

    name: str
    members: dict[int, GroupMember] = field(default_factory=dict)
    """Members by id, in the order in which they joined."""
    owner: dict[Partition, int] = field(default_factory=dict)
    """Member that has a partition now. Without an entry nobody has it."""
    target: dict[Partition, int] = field(default_factory=dict)
    """Member that is to have a partition."""
    committed: dict[Partition, int] = field(default_factory=dict)
    committed_in: dict[Partition, str] = field(default_factory=dict)
    """Id of the log in which each position counts."""
    since_s: float = 0.0
    """Time at which the targets last changed."""
    rotation: int = 0
    grants: dict[Partition, int] = field(default_factory=dict)
    """Times that a partition was given to somebody: a commit that was sent under an earlier grant is refused."""
    in_hand: set[Partition] = field(default_factory=set)
    """Partitions whose messages may be in hand: noted by their owner, until it leaves them in good order."""
    _joined: int = 0

    def enter(self, member: GroupMember) -> int:
        """Take in another member; its id."""
        self._joined += 1
        self.members[self._joined] = member
        self.balance()
        return self._joined

    def leave(self, id_: int) -> None:
        """Remove a member, whether it knows or not."""
        if self.members.pop(id_, None) is not None:
            self.owner = {partition: owner for partition, owner in self.owner.items() if owner != id_}
            self.balance()

    def balance(self) -> None:
        """Share the partitions among the members: ranges, topic by topic, so that equal numbers go together."""
        target: dict[Partition, int] = {}
        ids = list(self.members)
        topics = dict.fromkeys(topic for member in self.members.values() for topic in member.topics)
        for index, topic in enumerate(topics):
            takers = [id_ for id_ in ids if topic in self.members[id_].topics]
            # After two moves partitions of equal number part, for as long: that they go together is only for speed.
            shift = (self.rotation + self.rotation // 2 * index) % len(takers)
            takers = takers[shift:] + takers[:shift]
            count = self.members[takers[0]].partitions_of(topic)
            for number in range(count):
                target[Partition(topic, number)] = takers[number * len(takers) // count]
        self.target, self.since_s = target, asyncio.get_running_loop().time()
        self.tell()

    def tell(self) -> None:
        """Tell each member to look: something has changed."""
        for member in self.members.values():
            member.told()

    def held_by(self, id_: int) -> set[Partition]:
        return {partition for partition, owner in self.owner.items() if owner == id_}

    def wanted_by(self, id_: int) -> list[Partition]:
        """Partitions that a member is to have, in the order of the topics."""
        return [partition for partition, target in self.target.items() if target == id_]

    def take(
        self, id_: int, partitions: Sequence[Partition], begins: Callable[[Partition], int]
    ) -> dict[Partition, int]:
        """Give the member its share of these partitions; each with the position from which on to read. `begins`: where
        the group begins in one in which it has none."""
        if id_ not in self.members:
            return {}
        taken = [p for p in partitions if self.target.get(p) == id_]
        for partition in taken:
            self.owner[partition] = id_
            self.grants[partition] = self.grants.get(partition, 0) + 1
        for partition in taken:
            if partition not in self.committed and (begin := begins(partition)):
                self.committed[partition] = begin
        return {partition: self.committed.get(partition, 0) for partition in taken}

    def release(self, id_: int, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            if self.owner.get(partition) == id_:
                del self.owner[partition]
        self.tell()

    def commit(
        self,
        id_: int,
        offsets: Mapping[Partition, int],
        grants: Mapping[Partition, int | None],
        log_ids: Mapping[Partition, str],
    ) -> None:
        """Move the positions, under the grants that the member had when it asked. Raises `Fenced`."""
        self._check(id_, offsets, grants)
        self.committed.update(offsets)
        self.committed_in.update(log_ids)

    def mark(
        self,
        id_: int,
        offsets: Mapping[Partition, int],
        grants: Mapping[Partition, int | None],
        log_ids: Mapping[Partition, str],
        *,
        in_hand: bool,
    ) -> None:
        """Commit these positions, and note whether something of the partitions may be in hand. Raises `Fenced`."""
        self.commit(id_, offsets, grants, log_ids)
        if in_hand:
            self.in_hand.update(offsets)
        else:
            self.in_hand.difference_update(offsets)

    def _check(self, id_: int, partitions: Iterable[Partition], grants: Mapping[Partition, int | None]) -> None:
        for partition in partitions:
            if self.owner.get(partition) != id_ or self.grants.get(partition) != grants[partition]:
                raise Fenced(
                    f"group {self.name!r}: {partition} is not this member's; what it did comes again elsewhere"
                )
