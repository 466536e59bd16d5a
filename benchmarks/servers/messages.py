"""Measure messages per second, CPU and memory. The toolkit and the plain clients answer the same messages in turn."""

import asyncio
import statistics
from collections.abc import Callable, Sequence
from decimal import Decimal

from benchmarks.events import Pinged
from benchmarks.parts import Figure
from benchmarks.servers import raw
from benchmarks.servers.ground import Ground, Spent, Work, child, rounds
from benchmarks.servers.ours import CAST, serve
from saga.clients.events import to_record
from saga.configuration import adapters
from saga.engine.prepared_service import topics_of
from saga.messages import Outgoing
from saga.support.clock import SystemClock

MESSAGES, ROUNDS, MANY, MISSES, TEXT = 10_000, 5, 200_000, 30_000, "x" * 100
PUBLISHED_AT_ONCE = 500
clock = SystemClock()


def pinged(saga: str) -> Outgoing:
    """Return one message."""
    return to_record(Pinged(order_id=saga, text=TEXT, amount=Decimal("9.80")), clock.now_ms())


async def publish(ground: Ground, name: str, count: int) -> None:
    """Publish this number of messages for the echo service."""
    async with adapters.broker_at(ground.settings, clock) as broker:
        await broker.ensure_topics(topics_of(CAST["echo"][0]))
        for begin in range(0, count, PUBLISHED_AT_ONCE):
            await broker.publish([pinged(f"{name}-{n:06}") for n in range(begin, begin + PUBLISHED_AT_ONCE)])


def _ours(ground: Ground, count: int, marks: tuple[int, ...] = (), cast: str = "echo") -> Spent:
    with child(serve, Work(count, marks), ground, cast) as process:
        return process.spent()


def _raw(ground: Ground, count: int) -> Spent:
    with child(raw.loop, Work(count), ground) as process:
        return process.spent()


def _as_it_comes(ground: Ground, count: int) -> Spent:
    with child(raw.loop, Work(count), ground, as_it_comes=True) as process:
        return process.spent()


def messages(ground: Ground) -> list[Figure]:
    """(a) Measure one service, one write and one event per message, beside plain clients on the same messages"""
    turns: list[tuple[Callable[[Ground, int], Spent], list[Spent]]] = [(_ours, []), (_raw, []), (_as_it_comes, [])]
    (_, ours), (_, limit), (_, usual) = turns
    for number in rounds(ROUNDS + 1, at_least=2):
        asyncio.run(publish(ground, f"a{number}", MESSAGES))
        for run, spent in turns if number % 2 else turns[::-1]:
            spent.append(run(ground, MESSAGES))
    del ours[0], limit[0], usual[0]  # the servers were not warm
    return [
        Figure("a messages handled", _per_s(ours), "messages/s"),
        Figure("a CPU of it", _cpu_us(ours), "us/message"),
        Figure("a plain clients", _per_s(limit), "messages/s"),
        Figure("a CPU of the plain clients", _cpu_us(limit), "us/message"),
        Figure("a of the plain clients' rate, median of rounds", _ratio(ours, limit), "ratio"),
        Figure("a plain clients, the SDK as it comes", _per_s(usual), "messages/s"),
        Figure("a CPU of them", _cpu_us(usual), "us/message"),
        Figure("a of their rate, median of rounds", _ratio(ours, usual), "ratio"),
    ]


def memory(ground: Ground, many: int = MANY) -> list[Figure]:
    """(b) Measure the peak memory of the service after a tenth of the messages and after all"""
    asyncio.run(publish(ground, "b", many))
    tenth, whole = _ours(ground, many, (many // 10, many)).peaks_mb
    return [
        Figure(f"b peak memory after {many // 10:,} messages", tenth, "MB"),
        Figure(f"b peak memory after {many:,} messages", whole, "MB"),
        Figure("b growth", whole / tenth, "ratio"),
    ]


def missing(ground: Ground, many: int = MISSES) -> list[Figure]:
    """(h) Measure the peak memory of a service that reads a missing document per message, after a tenth and all"""
    asyncio.run(publish(ground, "h", many))
    tenth, whole = _ours(ground, many, (many // 10, many), "reader").peaks_mb
    return [
        Figure(f"h peak memory after {many // 10:,} messages that miss", tenth, "MB"),
        Figure(f"h peak memory after {many:,} messages that miss", whole, "MB"),
        Figure("h left by each", (whole - tenth) * 1e3 / (many - many // 10), "KB"),
    ]


def _ratio(ours: Sequence[Spent], theirs: Sequence[Spent]) -> float:
    return statistics.median(their.wall_s / our.wall_s for our, their in zip(ours, theirs, strict=True))


def _per_s(runs: Sequence[Spent]) -> float:
    return statistics.median(MESSAGES / spent.wall_s for spent in runs)


def _cpu_us(runs: Sequence[Spent]) -> float:
    return statistics.median(spent.cpu_s / MESSAGES * 1e6 for spent in runs)
