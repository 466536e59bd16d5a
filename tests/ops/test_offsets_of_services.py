"""Reading the offsets of many services: all groups, and the ends of all topics, are asked for once."""

from collections.abc import Collection, Mapping
from typing import cast

from saga.broker.administration import Administration, GroupDescription, OffsetBounds
from saga.messages import Partition
from saga.ops.offsets import read_offsets_of


class CountingAdministration:
    """Groups `a`, `b` and `c`, each of which reads a topic of its own and one that all read."""

    def __init__(self) -> None:
        self.asked: list[Collection[str]] = []

    async def describe_groups(self, names: Collection[str]) -> Mapping[str, GroupDescription]:
        self.asked.append(names)
        shared = Partition("shared", 0)
        return {name: GroupDescription(positions={Partition(f"of-{name}", 0): 2, shared: 1}) for name in names}

    async def fetch_bounds(self, topics: Collection[str]) -> Mapping[Partition, OffsetBounds]:
        self.asked.append(topics)
        return {Partition(topic, 0): OffsetBounds(0, 5) for topic in topics}


async def test_groups_and_the_ends_of_all_topics_are_asked_for_once_and_each_service_has_its_own() -> None:
    broker = CountingAdministration()
    found = await read_offsets_of(["a", "b", "c"], cast(Administration, broker))
    assert broker.asked == [["a", "b", "c"], ["of-a", "of-b", "of-c", "shared"]]
    assert [each.service for each in found] == ["a", "b", "c"]
    assert [each.lag for each in found] == [3 + 4] * 3
