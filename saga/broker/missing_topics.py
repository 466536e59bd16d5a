"""Check that required topics exist before a service or client relies on them."""

from collections.abc import Collection, Sequence

from saga.broker.port import Broker
from saga.messages import Topic

APPLY = "saga topics apply"
"""Command that makes topics where nobody else does."""


async def find_topic_problems(
    topics: Sequence[Topic],
    broker: Broker,
    reads: Collection[str] = (),
    writes: Collection[str] = (),
) -> list[str]:
    """Problems of these topics, each in a line; none if they are as the contracts want them.

    Missing ones are made where the broker lets everybody make them: see `Broker.makes_topics`. Then one with other
    partitions raises `SagaError`. `reads`, `writes`: what is to be done with them, for one that is there and that we
    may not see.
    """
    if broker.makes_topics:
        await broker.ensure(topics)
        return []
    found = await broker.partitions([topic.name for topic in topics])
    return [
        f"topic {topic.name} has {found[topic.name]} partitions, the contracts want {topic.partitions}"
        if topic.name in found
        else f"topic {topic.name} is missing, or hidden from this user" + _needed(topic.name, reads, writes)
        for topic in topics
        if found.get(topic.name) != topic.partitions
    ]


def _needed(topic: str, reads: Collection[str], writes: Collection[str]) -> str:
    rights = [right for right, wanted in (("Read", reads), ("Write", writes)) if topic in wanted]
    return f", who needs {' and '.join(rights)} on it" if rights else ""
