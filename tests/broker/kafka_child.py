"""A member in a process of its own: `python -m tests.broker.kafka_child ADDRESS GROUP TOPIC [SESSION_S]`, driven by
its output.

It reads what comes and says so, `read PARTITION OFFSET`; says what its listener hears; and commits when it is asked to
by a line on its input: `commit PARTITION OFFSET` is answered with `committed` or `fenced`.
"""

import asyncio
import sys
from collections.abc import Collection, Mapping

from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.broker import KafkaBroker
from saga.broker.port import Membership, Subscription
from saga.errors import Fenced
from saga.messages import Partition
from saga.support.clock import SystemClock

CLOCK = SystemClock()


def print_line(what: str, *details: object) -> None:
    sys.stdout.write(" ".join([what, *map(str, details)]) + "\n")
    sys.stdout.flush()


class Telling:
    def __init__(self) -> None:
        self.has: list[Partition] = []

    async def on_assigned(self, partitions: Mapping[Partition, int]) -> None:
        self.has += partitions
        print_line("assigned", *sorted(p.number for p in partitions))

    async def on_revoked(self, partitions: Collection[Partition]) -> None:
        self.has = []
        print_line("revoked", *sorted(p.number for p in partitions))

    def on_lost(self, partitions: Collection[Partition]) -> None:
        self.has = [partition for partition in self.has if partition not in partitions]
        print_line("lost", *sorted(p.number for p in partitions))

    def on_expired(self, partition: Partition, first: int, after: int) -> None:
        print_line("expired", partition.number, first, after)

    def on_replaced(self, partition: Partition, position: int) -> None:
        print_line("replaced", partition.number, position)

    def on_partitions_added(self, topic: str, before: int, now: int) -> None:
        print_line("raised", before, now)


async def read(membership: Membership, listener: Telling) -> None:
    while True:
        for record in await membership.poll(listener.has, records_max=100, timeout_s=0.1):
            print_line("read", record.partition, record.offset)


async def main(address: str, group: str, topic: str, session_s: str = "2") -> None:
    settings = KafkaSettings(
        servers=(address,),
        replication_factor=1,
        min_insync_replicas=1,
        session_s=float(session_s),
        heartbeat_s=0.2,
        rebalance_s=6,
    )
    listener = Telling()
    async with (
        KafkaBroker(settings, clock=CLOCK) as broker,
        broker.join(Subscription(group, [topic]), listener) as membership,
    ):
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        reading = loop.create_task(read(membership, listener))
        while line := await reader.readline():
            _, number, offset = line.decode().split()
            try:
                await membership.commit({Partition(topic, int(number)): int(offset)})
            except Fenced:
                print_line("fenced")
            else:
                print_line("committed")
        reading.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
