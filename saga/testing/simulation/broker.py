"""A broker in memory, behind a network: one for each process, on the cluster that all share."""

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from saga.broker.port import RECORD_BYTES_MAX, Listener, Subscription, disagreement_error
from saga.errors import BrokerError, BrokerUnavailable, SagaError
from saga.messages import Outgoing, Partition, Record, Topic
from saga.messaging.envelope import type_of
from saga.messaging.names import is_wakes
from saga.testing.simulation.cluster import LOOK_S, Cluster
from saga.testing.simulation.groups import DRAIN_S
from saga.testing.simulation.members import SimulatedMember
from saga.testing.simulation.network import Backend, Effect, Network
from saga.testing.simulation.plan import Planned, What
from saga.testing.simulation.processes import Process
from saga.testing.simulation.spoiled_messages import spoiled

LAG_S_MAX = 3600.0
"""Longest time by which readers of a partition are behind."""
DELIVERED_S = 0.002
"""Longest time from appending to readers, without faults."""


class SimulatedBroker:
    """See `saga.broker.port.Broker` for the promises. One for each process; all have one cluster."""

    record_bytes_max = RECORD_BYTES_MAX
    creates_topics = True

    def __init__(
        self, cluster: Cluster, process: Process, network: Network, retention_s: float = 30 * 86_400.0
    ) -> None:
        """`retention_s`: time after which the services have forgotten a saga."""
        self.cluster, self.process, self.network = cluster, process, network
        self.members: list[SimulatedMember] = []
        self._retention_s = retention_s
        self._backend = Backend("broker", BrokerUnavailable, BrokerUnavailable)
        self._open = False
        self._publishing: list[Future[Any]] = []

    async def __aenter__(self) -> Self:
        self._open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        if under_way := [publish for publish in self._publishing if not publish.done()]:
            await asyncio.wait(under_way)
        self._open = False

    async def ensure_topics(self, topics: Sequence[Topic]) -> None:
        self.cluster.ensure(topics)

    async def count_partitions(self, topics: Collection[str]) -> Mapping[str, int]:
        return {name: len(self.cluster.topics[name]) for name in topics if name in self.cluster.topics}

    async def fetch_log_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        return {name: self.cluster.log_id(name) for name in topics if name in self.cluster.topics}

    async def find_missing_rights(
        self, reads: Collection[str], writes: Collection[str], groups: Collection[str] = ()
    ) -> Sequence[str]:
        return ()

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        self.cluster.check(messages)
        batch = list(messages)
        topics = tuple(dict.fromkeys(message.topic for message in batch))
        where = ", ".join(f"{_type_of(message)} of {message.key.decode(errors='replace')}" for message in batch)
        self._publishing = [publish for publish in self._publishing if not publish.done()]
        asked = self.asks("publish", where, topics, lambda planned, draws: self._appended(batch, planned, draws))
        self._publishing.append(asked)
        await asyncio.shield(asked)  # whoever is cancelled here does not take back what is on its way

    @asynccontextmanager
    async def join(self, subscription: Subscription, listener: Listener) -> AsyncIterator[SimulatedMember]:
        member = SimulatedMember(self, subscription, listener)
        if strangers := member.disagreeing_members():
            raise disagreement_error(subscription.group, subscription.identity, strangers)
        self.members.append(member)
        member.enter()
        # No TaskGroup: it would wrap the block's own exceptions.
        following = asyncio.get_running_loop().create_task(member.follow(), name=f"{subscription.group} follows")
        try:
            yield member
        finally:
            following.cancel()
            await asyncio.wait([following])
            await member.leave()
            self.members.remove(member)

    async def scan(self, topic: str) -> AsyncIterator[Record]:
        for record in [record for log in self.cluster.topics.get(topic, ()) for record in log.records]:
            if self.cluster.broken.get(Partition(topic, record.partition)) == record.offset:
                raise BrokerError(f"planted: {topic}/{record.partition} stands at offset {record.offset}")
            yield record

    def asks(self, what: What, where: str, names: tuple[str, ...], effect: Effect) -> "Future[Any]":
        """Ask the cluster. Raises `SagaError` when this is not open."""
        if not self._open:
            raise SagaError("the broker is not open: use it inside `async with`")
        return self.network.ask(self.process, self._backend, what, where, names, effect)

    def _appended(
        self, batch: Sequence[Outgoing], planned: Planned | None, draws: tuple[float, float, float, float]
    ) -> None:
        """Append the batch, with its fault: the effect of a publish that lands."""
        delay_s, beside = DELIVERED_S * draws[2], 0
        if planned is None:
            for message in batch:
                self.cluster.append(message, delay_s)
            return
        landing, later = batch, self.network.later
        chosen = batch[int(draws[3] * len(batch))]
        match planned.kind:
            case "lost answer" | "crash":
                landing = batch[: int(draws[2] * (len(batch) + 1))] if len(batch) > 1 else batch
            case "delay":
                delay_s = 10 * draws[3] ** 2
            case "lag":
                delay_s = 60 + LAG_S_MAX * draws[3] ** 2
            case "duplicate":
                later(60 * draws[2] ** 4, lambda: self.cluster.append(chosen, delay_s))
            case "expiry":
                self.cluster.spoiled.add(chosen.key.decode())
                forgotten_s = self._retention_s * (1.01 + draws[2])
                later(forgotten_s, self.network.disruptions.anew)
                later(forgotten_s + DRAIN_S, lambda: self.cluster.append(chosen, delay_s))
            case "recreated topic":
                later(LOOK_S * draws[2], lambda: self.cluster.recreate(chosen.topic, kept=not is_wakes(chosen.topic)))
            case "newer schema" | "poison":
                self.cluster.spoiled.add(chosen.key.decode())
                self.cluster.append(spoiled(chosen, planned, draws[2]), delay_s)
            case "other partitioner":
                beside = 1 + int(draws[2] * (self.cluster.partitions_of(chosen.topic) - 1))
            case _:
                pass
        for message in landing:
            self.cluster.append(message, delay_s, beside)


def _type_of(message: Outgoing) -> str:
    return type_of(message) or "record"
