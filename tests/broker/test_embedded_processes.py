"""Several processes share one broker file: what the death or the freezing of one does to the others."""

import asyncio
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from saga.broker.embedded.broker import EmbeddedBroker
from saga.broker.embedded.membership import Timing
from saga.broker.port import Subscription
from saga.messages import Partition
from saga.support.clock import SystemClock
from saga.testing.conformance.broker import BrokerConformance
from saga.testing.conformance.broker_suite import RecordingListener
from tests.broker.embedded_child import GROUP, TOPIC

CLOCK = SystemClock()
ROOT = Path(__file__).parents[2]
conformance = BrokerConformance()
conformance.within_s = 60.0


@dataclass
class Child:
    process: asyncio.subprocess.Process

    async def read_words(self) -> list[str]:
        assert self.process.stdout is not None
        return (await CLOCK.within(60, self.process.stdout.readline())).decode().split()

    async def read_until(self, what: str) -> list[str]:
        while (line := await self.read_words())[:1] != [what]:
            assert line, f"it ended before it printed {what}"
        return line[1:]

    def send_line(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())


@asynccontextmanager
async def child(*arguments: object) -> AsyncIterator[Child]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.broker.embedded_child",
        *map(str, arguments),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_two_processes_publish_to_one_file_and_a_third_reads_all_in_order(tmp_path: Path) -> None:
    path, listener, count = tmp_path / "broker.db", RecordingListener(), 150
    async with EmbeddedBroker(path, clock=CLOCK) as broker:
        await broker.ensure_topics([TOPIC])
        async with (
            broker.join(Subscription(GROUP, [TOPIC.name]), listener) as membership,
            child("publish", path, "a", count),
            child("publish", path, "b", count),
        ):
            await conformance.complete(listener)
            records = await conformance.read(membership, 2 * count, listener=listener)
    of_key = defaultdict[bytes, list[int]](list)
    for record in records:
        of_key[record.key or b""].append(int(record.value or b""))
    assert len(records) == 2 * count
    assert all(numbers == sorted(numbers) for numbers in of_key.values())
    offsets = sorted((r.partition, r.offset) for r in records)
    assert offsets == sorted({(p, o) for p, n in _counts(offsets).items() for o in range(n)})


def _counts(places: list[tuple[int, int]]) -> dict[int, int]:
    counts: dict[int, int] = defaultdict(int)
    for partition, _ in places:
        counts[partition] += 1
    return counts


async def test_records_acknowledged_before_a_kill_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    async with child("publish", path, "a", 100_000) as publisher:
        for _ in range(50):
            last = await publisher.read_words()
        publisher.process.kill()
        rest, _ = await publisher.process.communicate()
    acknowledged = max([int(last[1])] + [int(line.split()[1]) for line in rest.splitlines() if line.count(b" ")])
    async with EmbeddedBroker(path, clock=CLOCK) as broker:
        there = {int(record.value or b"") async for record in broker.scan(TOPIC.name)}
    assert there >= set(range(acknowledged + 1))


async def test_a_killed_members_partitions_move_at_once(tmp_path: Path) -> None:
    path, listener = tmp_path / "broker.db", RecordingListener()
    async with EmbeddedBroker(path, clock=CLOCK) as broker:
        await broker.ensure_topics([TOPIC])
        async with broker.join(Subscription(GROUP, [TOPIC.name]), listener), child("member", path, 60) as other:
            await other.read_until("assigned")
            await conformance.until(lambda: len(listener.has) == 2)
            other.process.kill()
            killed_s = CLOCK.monotonic_s()
            await conformance.complete(listener)
            assert CLOCK.monotonic_s() - killed_s < 30  # not by silence, which here takes a minute


async def test_a_frozen_member_is_a_zombie_whose_commit_is_fenced_and_which_joins_again(tmp_path: Path) -> None:
    path, listener, silence_s = tmp_path / "broker.db", RecordingListener(), 5.0
    async with EmbeddedBroker(path, clock=CLOCK, timing=Timing(silence_s=silence_s)) as broker:
        await broker.ensure_topics([TOPIC])
        async with (
            broker.join(Subscription(GROUP, [TOPIC.name]), listener) as membership,
            child("member", path, silence_s) as other,
        ):
            had = await other.read_until("assigned")
            other.send_line(f"commit {had[0]} 3")
            assert await other.read_words() == ["committed"]
            other.process.send_signal(signal.SIGSTOP)
            frozen_s = CLOCK.monotonic_s()
            await conformance.complete(listener)
            assert CLOCK.monotonic_s() - frozen_s > 0.7 * silence_s  # its lock is still held: only the silence shows it
            assert listener.has[Partition(TOPIC.name, int(had[0]))] == 3
            await membership.commit({Partition(TOPIC.name, int(had[0])): 7})
            other.send_line(f"commit {had[0]} 5")
            other.process.send_signal(signal.SIGCONT)
            heard = [await other.read_words() for _ in range(3)]
            assert ["fenced"] in heard
            assert ["lost", *had] in heard
            assert any(line[:1] == ["assigned"] for line in heard)
            assert len(listener.has) == 2
