"""An event with a field of most kinds, its contract, and where its messages are."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

from saga import Event
from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.broker import KafkaBroker
from saga.clients import events as client_events
from saga.configuration.settings import Settings
from saga.contracts.library import Library, binding_of
from saga.messages import Record
from saga.ops.schema_registration import find_registrable, register
from saga.registry.edge import RegistryBroker
from saga.registry.http import HttpRegistry
from saga.registry.port import RegistryOptions
from saga.support.clock import SystemClock, from_iso
from tests.contracts.folders import decimal, generated, put, write
from tests.contracts.folders import field as field_

CLOCK = SystemClock()
PARTITIONS = 2
TIME = "2026-11-21T14:06:40.500Z"
SOLD: dict[str, Any] = {
    "type": "record",
    "name": "Sold",
    "namespace": "org.example",
    "doc": "Something was sold.",
    "key": "order_id",
    "owner": "shop",
    "starts": True,
    "produced_by": "external",
    "fields": [
        {"name": "order_id", "type": "string"},
        field_("total", decimal()),
        field_("at", {"type": "long", "logicalType": "timestamp-millis"}),
        field_("note", ["null", "string"], default=None, sensitive=True),
        field_("kind", {"type": "enum", "name": "Kind", "symbols": ["PLAIN", "GIFT"]}),
        field_(
            "lines",
            {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
                },
            },
        ),
        field_("weights", {"type": "map", "values": "double"}),
    ],
}


@dataclass(frozen=True)
class Sales:
    """Contracts of two topics that are published in the two forms, and the servers."""

    folder: Path
    kafka: str
    registry: str
    single: str
    """Topic of single objects."""
    framed: str
    """Topic in the wire format of the registry."""
    theirs: str
    """Topic on which others publish."""
    modules: dict[str, ModuleType] = field(default_factory=dict)

    @property
    def schema_file(self) -> Path:
        """Schema as others are given it."""
        return self.folder / "framed" / "contracts" / self.framed / "Sold.v1.avsc"

    def event(self, topic: str) -> type[Event]:
        made: type[Event] = self.modules[topic].Sold
        return made

    def sold(self, topic: str, saga: str) -> Event:
        """The event that everybody says."""
        module = self.modules[topic]
        made: Event = module.Sold(
            order_id=saga,
            total=Decimal("9.80"),
            at=datetime(2026, 11, 21, 14, 6, 40, 500_000, UTC),
            kind=module.Kind.GIFT,
            lines=(module.Line(sku="tea", count=2),),
            weights={"tea": 0.25},
        )
        return made

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[RegistryBroker]:
        """Kafka behind the registry."""
        settings = KafkaSettings(servers=(self.kafka,), replication_factor=1, min_insync_replicas=1)
        registry = HttpRegistry(RegistryOptions(registry=self.registry))
        async with RegistryBroker(KafkaBroker(settings, clock=CLOCK), registry, CLOCK) as broker:
            yield broker

    async def as_they_lie(self, topic: str) -> list[Record]:
        """Records as a consumer gets them that knows nothing of us."""
        settings = KafkaSettings(servers=(self.kafka,), replication_factor=1, min_insync_replicas=1)
        async with KafkaBroker(settings, clock=CLOCK) as broker:
            return [record async for record in broker.scan(topic)]

    async def prepare(self, sagas: Sequence[str]) -> None:
        """Register the contract, make the topics, and publish an event of each saga in both forms."""
        for place, topic in (("single", self.single), ("framed", self.framed), ("theirs", self.theirs)):
            folder = self.folder / place
            write(folder, {**SOLD, "topic": topic})
            wire = "registry" if place == "framed" else "single-object"
            put(folder / "contracts" / topic / "topic.json", json.dumps({"partitions": PARTITIONS, "wire": wire}))
            self.modules[topic] = generated(folder, "Sold")
        library = Library.load(self.folder / "framed" / "contracts")
        (done,) = await register(find_registrable(library), Settings.read({"SAGA_REGISTRY": self.registry}), CLOCK)
        assert done.id is not None
        async with self.broker() as broker:
            for topic in (self.single, self.framed, self.theirs):
                await broker.ensure_topics([binding_of(self.event(topic)).library.topics[topic]])
            for topic in (self.single, self.framed):
                events = [self.sold(topic, saga) for saga in sagas]
                await broker.publish([client_events.to_record(event, from_iso(TIME)) for event in events])

    async def schema_id(self) -> int:
        """Id of the contract in the registry."""
        binding = binding_of(self.event(self.framed))
        async with HttpRegistry(RegistryOptions(registry=self.registry)) as registry:
            (found,) = [
                (await registry.version(binding.contract.subject, number)).id
                for number in await registry.versions(binding.contract.subject)
            ]
        return found
