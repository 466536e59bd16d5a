"""The simulated store and the simulated broker keep the promises of their ports."""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from saga.messages import Partition, Record
from saga.support.clock import SystemClock
from saga.testing.conformance.broker import BrokerConformance, Damage
from saga.testing.conformance.broker_suite import Connect, Recreate, Remove
from saga.testing.conformance.store import ChangesConformance, OpenChangeStore, OpenStore, PassTime, StoreConformance
from saga.testing.fault_plans import Chance
from saga.testing.simulation.broker import SimulatedBroker
from saga.testing.simulation.cluster import Cluster
from saga.testing.simulation.loop import Process
from saga.testing.simulation.network import Network, Trace
from saga.testing.simulation.store import ChangeRecordingStore, Disk, RecordedChanges, SimulatedStore


@pytest.fixture
def network() -> Network:
    return Network(Chance(0), None, Trace())


class TestSimulatedStore(StoreConformance):
    @pytest.fixture
    def disk(self) -> Disk:
        return Disk()

    @pytest.fixture
    def opens(self, disk: Disk, network: Network) -> OpenStore:
        return lambda: SimulatedStore(disk, Process("test", "test"), network)

    @pytest.fixture
    def passes(self, disk: Disk) -> PassTime:
        async def passes(seconds: float) -> None:
            """The loop's time is the real one here, so the documents come nearer to their end instead."""
            for key, kept in disk.documents.items():
                if kept.expires_s is not None:
                    disk.documents[key] = kept._replace(expires_s=kept.expires_s - seconds)

        return passes


class TestSimulatedChanges(ChangesConformance):
    @pytest.fixture
    async def opens(self, network: Network) -> OpenChangeStore:
        disk = Disk()
        notes = RecordedChanges(disk, asyncio.get_running_loop().time)
        return lambda: ChangeRecordingStore(disk, Process("test", "test"), network, notes)


class TestSimulatedBroker(BrokerConformance):
    @pytest.fixture
    async def cluster(self, network: Network) -> Cluster:
        began_ms = SystemClock().now_ms() - round(asyncio.get_running_loop().time() * 1000)
        return Cluster(network, began_ms)

    @pytest.fixture
    def remove(self, cluster: Cluster) -> Remove:
        async def removed(before: Mapping[Partition, int]) -> None:
            cluster.remove(before)

        return removed

    @pytest.fixture
    def recreate(self, cluster: Cluster) -> Recreate:
        async def recreated(topic: str, partitions: int) -> None:
            cluster.recreate(topic, republish=False)

        return recreated

    @pytest.fixture
    def damage(self, cluster: Cluster) -> Damage:
        def damage(record: Record) -> Callable[[], None]:
            partition = Partition(record.topic, record.partition)
            cluster.broken[partition] = record.offset
            return lambda: cluster.repair(partition)

        return damage

    @pytest.fixture
    def connect(self, cluster: Cluster, network: Network) -> Connect:
        return lambda: SimulatedBroker(cluster, Process("test", "test"), network)
