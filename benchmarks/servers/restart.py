"""Measure how many messages are handled again after a worker was killed, and what that costs."""

import asyncio

from benchmarks.parts import Figure
from benchmarks.servers.ground import Ground, Work, child
from benchmarks.servers.messages import publish
from benchmarks.servers.ours import serve
from saga.configuration import adapters
from saga.messages import Partition
from saga.support.clock import SystemClock

MESSAGES, KILLED_AFTER = 10_000, 5_000
GROUP, TOPIC = "echo", "pings"
clock = SystemClock()


def restart(ground: Ground) -> list[Figure]:
    """(f) Kill a worker at full load, and count the messages that the next worker handles again"""
    asyncio.run(publish(ground, "f", MESSAGES))
    with child(serve, Work(killed_after=KILLED_AFTER), ground, GROUP) as dying:
        dying.killed()
    left = asyncio.run(_left(ground))
    with child(serve, Work(left), ground, GROUP) as process:
        again = process.spent().repeated
    asyncio.run(_moved_back(ground))
    with child(serve, Work(MESSAGES), ground, GROUP) as process:  # all messages, for the cost of one
        all_again = process.spent()
    assert all_again.repeated == MESSAGES, f"{all_again.repeated} of {MESSAGES} were known"
    each_us = all_again.wall_s / MESSAGES * 1e6
    return [
        Figure("f messages in flight or not committed at the kill", again, "messages"),
        Figure("f one of them again", each_us, "us"),
        Figure("f all of them again", again * each_us / 1e3, "ms"),
    ]


async def _left(ground: Ground) -> int:
    """Return the number of messages that the group has not committed."""
    async with adapters.administration_at(ground.settings, clock) as broker:
        positions, bounds = (await broker.describe_group(GROUP)).positions, await broker.fetch_bounds([TOPIC])
        return sum(end - positions.get(partition, begin) for partition, (begin, end) in bounds.items())


async def _moved_back(ground: Ground) -> None:
    async with adapters.administration_at(ground.settings, clock) as broker:
        begins: dict[Partition, int] = {p: begin for p, (begin, _) in (await broker.fetch_bounds([TOPIC])).items()}
        await broker.move_positions(GROUP, begins)
