"""Both sources of changes keep what `docs/guides/change-streams.md` promises: a store with its relay, and Couchbase's
connector by its documented records in each form; on the embedded broker, and with SAGA_TEST_CHANGES_ON_KAFKA=1 on
Kafka."""

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from saga.broker.embedded.broker import EmbeddedAdministration
from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.administration import KafkaAdministration
from saga.messages import Partition
from saga.service import Service
from saga.store.sqlite.store import SqliteStore
from saga.testing.conformance.broker_suite import Remove
from tests.broker.removal import removal_from
from tests.changes.change_conformance import Connect, PublishedChangesConformance
from tests.changes.change_sources import CLOCK, PARCELS, ChangePublisher, ConnectorChangePublisher, StoreChangePublisher
from tests.servers.plain_clients import started
from tests.testing.parcels import Seen, watcher, watching

NUMBERS = itertools.count()


class OnFiles(PublishedChangesConformance):
    @pytest.fixture
    def service(self) -> Service[Seen]:
        return watching

    @pytest.fixture
    def connect(self, tmp_path: Path) -> Connect:
        return lambda: EmbeddedAdministration(tmp_path / "broker.db", clock=CLOCK)

    @pytest.fixture
    def remove(self, tmp_path: Path) -> Remove:
        return removal_from(tmp_path / "broker.db")


class OnKafka(PublishedChangesConformance):
    @pytest.fixture
    def service(self) -> Service[Seen]:
        return watcher(f"watching-{os.getpid()}-{next(NUMBERS)}")

    @pytest.fixture
    def connect(self, kafka_address: str) -> Connect:
        settings = KafkaSettings(
            servers=(kafka_address,), replication_factor=1, min_insync_replicas=1, heartbeat_s=0.2, rebalance_s=10
        )
        return lambda: KafkaAdministration(settings, clock=CLOCK)

    @pytest.fixture
    def remove(self, kafka_address: str) -> Remove:
        return removal_on(kafka_address)


class FromStore:
    @pytest.fixture
    def publisher(self, service: Service[Seen], file: Path) -> ChangePublisher:
        return StoreChangePublisher(service, file)


class FromConnector:
    @pytest.fixture
    def publisher(self, service: Service[Seen]) -> ChangePublisher:
        return ConnectorChangePublisher(service)


class TestStoreOnFiles(FromStore, OnFiles):
    async def test_a_release_that_starts_continues_to_record_what_another_release_handles(
        self, service: Service[Seen], connect: Connect, file: Path
    ) -> None:
        name = service.declared.name
        async with SqliteStore(file, clock=CLOCK) as store:
            await store.watch(name, [PARCELS, "letters"], from_beginning=False)
        await self.shown(service, connect, file)
        async with SqliteStore(file, clock=CLOCK) as store:
            assert set(store.list_watched(name)) == {PARCELS, "letters"}
            await store.insert("letters", "a", b"{}")
            assert [each.changed.key for each in store.read_recorded(name, 10)] == ["a"]


class TestConnectorOnFiles(FromConnector, OnFiles):
    @pytest.fixture(params=["raw", "default", "default with schemas"])
    def publisher(self, service: Service[Seen], request: pytest.FixtureRequest) -> ChangePublisher:
        return ConnectorChangePublisher(service, request.param)


on_kafka = pytest.mark.skipif(
    not os.environ.get("SAGA_TEST_CHANGES_ON_KAFKA"), reason="SAGA_TEST_CHANGES_ON_KAFKA is not set"
)


@on_kafka
class TestStoreOnKafka(FromStore, OnKafka): ...


@on_kafka
class TestConnectorOnKafka(FromConnector, OnKafka): ...


def removal_on(kafka_address: str) -> Remove:
    """Way to remove records of a log on Kafka."""

    async def removed(before: Mapping[Partition, int]) -> None:
        async with started(AIOKafkaAdminClient(bootstrap_servers=kafka_address)) as admin:
            await admin.delete_records({TopicPartition(*p): RecordsToDelete(offset) for p, offset in before.items()})

    return removed
