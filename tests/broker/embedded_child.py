"""A process at a broker file: `python -m tests.broker.embedded_child member|publish FILE ...`, observed by its output.

A member prints what its listener hears, as lines like `assigned 0 1 2`, and commits when it is asked to by a line
on its input: `commit PARTITION OFFSET` is answered with `committed` or `fenced`.
"""

import asyncio
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from saga.broker.embedded.broker import EmbeddedBroker
from saga.broker.embedded.membership import Timing
from saga.broker.port import Membership, Subscription
from saga.errors import Fenced
from saga.messages import Outgoing, Partition, Topic
from saga.support.clock import SystemClock

TOPIC = Topic("orders", 4)
GROUP = "payment"
CLOCK = SystemClock()


def print_line(what: str, *details: object) -> None:
    sys.stdout.write(" ".join([what, *map(str, details)]) + "\n")
    sys.stdout.flush()


class Telling:
    async def on_assigned(self, partitions: Mapping[Partition, int]) -> None:
        print_line("assigned", *sorted(p.number for p in partitions))

    async def on_revoked(self, partitions: Collection[Partition]) -> None:
        print_line("revoked", *sorted(p.number for p in partitions))

    def on_lost(self, partitions: Collection[Partition]) -> None:
        print_line("lost", *sorted(p.number for p in partitions))

    def on_expired(self, partition: Partition, first: int, after: int) -> None:
        print_line("expired", partition.number, first, after)

    def on_replaced(self, partition: Partition, position: int) -> None:
        raise AssertionError(f"{partition}: its topic was created again")

    def on_partitions_added(self, topic: str, before: int, now: int) -> None:
        print_line("raised", before, now)


async def member(path: Path, silence_s: float) -> None:
    async with EmbeddedBroker(path, clock=CLOCK, timing=Timing(silence_s=silence_s)) as broker:
        await broker.ensure_topics([TOPIC])
        async with broker.join(Subscription(GROUP, [TOPIC.name]), Telling()) as membership:
            reader = asyncio.StreamReader()
            loop = asyncio.get_running_loop()
            await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
            while line := await reader.readline():
                await commit(membership, *line.decode().split()[1:])


async def commit(membership: Membership, number: str, offset: str) -> None:
    try:
        await membership.commit({Partition(TOPIC.name, int(number)): int(offset)})
    except Fenced:
        print_line("fenced")
    else:
        print_line("committed")


async def publish(path: Path, name: str, count: int) -> None:
    async with EmbeddedBroker(path, clock=CLOCK) as broker:
        await broker.ensure_topics([TOPIC])
        for number in range(count):
            await broker.publish([Outgoing(TOPIC.name, f"{name} {number % 7}".encode(), f"{number}".encode(), ())])
            print_line("published", number)


if __name__ == "__main__":
    role, file, *rest = sys.argv[1:]
    if role == "member":
        asyncio.run(member(Path(file), float(rest[0])))
    else:
        asyncio.run(publish(Path(file), rest[0], int(rest[1])))
