"""Measure the time from a message to its answer at a low rate, for the toolkit and the plain clients in turn."""

import asyncio
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from benchmarks.parts import Figure
from benchmarks.servers import raw
from benchmarks.servers.ground import Child, Ground, Work, child, rounds
from benchmarks.servers.messages import pinged, publish
from benchmarks.servers.ours import serve
from saga.broker.port import partition_of

PER_S, SECONDS, ROUNDS = 100, 4, 4
WARMS = 3_000
WARM = 100
"""Number of messages that are sent before the measured ones."""


def latency(ground: Ground) -> list[Figure]:
    """(c) Measure the time from publishing a message to reading its answer, at 100 messages/s"""
    turns: list[tuple[Callable[[], AbstractContextManager[Child]], list[list[float]]]] = [
        (lambda: child(serve, Work(), ground, "echo"), []),
        (lambda: child(raw.loop, Work(), ground), []),
    ]
    (_, ours), (_, limit) = turns
    asyncio.run(publish(ground, "warm", WARMS))  # the servers compile frequently used code
    for number in rounds(ROUNDS):
        for who, (process, took) in enumerate(turns):
            with process() as running:  # it first reads the messages for the other one; the measurement starts later
                took.append(statistics.quantiles(asyncio.run(_asked(ground, f"c{number}-{who}")), n=100))
                running.stopped()
    # The best round of each, in which other processes disturbed least.
    (p50, p99), (limit_p50, limit_p99) = ((_best(took, 50), _best(took, 99)) for took in (ours, limit))
    return [
        Figure("c p50, best round", p50, "ms"),
        Figure("c p99, best round", p99, "ms"),
        Figure("c p50 of the plain clients, best round", limit_p50, "ms"),
        Figure("c p99 of the plain clients, best round", limit_p99, "ms"),
        Figure("c added at p50", p50 - limit_p50, "ms"),
        Figure("c added at p99", p99 - limit_p99, "ms"),
    ]


def _best(took: list[list[float]], percent: int) -> float:
    return min(of_round[percent - 1] for of_round in took)


async def _asked(ground: Ground, name: str) -> list[float]:
    """Publish messages, and wait for their answers. Return the time that each took, in milliseconds."""
    waiting: dict[bytes, tuple[float, asyncio.Future[float]]] = {}
    producer = AIOKafkaProducer(bootstrap_servers=ground.kafka, acks="all", linger_ms=0)
    consumer = AIOKafkaConsumer(bootstrap_servers=ground.kafka, group_id=None, fetch_max_wait_ms=100)
    async with producer, consumer:
        await at_the_end(consumer, ["pongs"])
        partitions = len(await producer.partitions_for("pings"))

        async def hear() -> None:
            async for record in consumer:
                if record.key in waiting:
                    began, answered = waiting.pop(record.key)
                    answered.set_result((time.perf_counter() - began) * 1e3)

        hearing = asyncio.create_task(hear())
        answers = []
        due = time.perf_counter()
        for number in range(WARM + PER_S * SECONDS):
            topic, key, value, headers, _ = pinged(f"{name}-{number:06}")
            due += 1 / PER_S
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            answered = asyncio.get_running_loop().create_future()
            waiting[key] = time.perf_counter(), answered
            answers.append(answered)
            await producer.send(topic, value, key, partition_of(key, partitions), headers=list(headers))
        took = await asyncio.wait_for(asyncio.gather(*answers), 20)
        hearing.cancel()
        await asyncio.wait([hearing])
    return took[WARM:]


async def at_the_end(consumer: AIOKafkaConsumer, topics: list[str]) -> None:
    """Assign all partitions to a consumer without a group, at their ends, so that it reads only new records."""
    places = []
    for topic in topics:
        while not (numbers := consumer.partitions_for_topic(topic)):
            await consumer._client.force_metadata_update()
            await consumer.topics()
        places += [TopicPartition(topic, number) for number in numbers]
    consumer.assign(places)
    await consumer.seek_to_end(*places)
    for place in places:
        await consumer.position(place)
