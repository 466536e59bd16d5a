"""Sources of changes as an application and a service have them: a SQLite store with its relay, and the connector of
Couchbase by the records that it documents."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from saga.broker.port import Broker
from saga.change import RecordedChange
from saga.configuration.settings import Settings
from saga.engine.consumer.change_relay import ChangeRelay
from saga.engine.outage_watch import OutageWatch
from saga.messages import Outgoing
from saga.messaging.names import change_topic
from saga.ops.connectors import make_connector
from saga.service import Service
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from saga.testing.simulation.connector import ConnectorRecord
from tests.testing.parcels import Seen

CLOCK = SystemClock()
PARCELS = "parcels"
SETTINGS = Settings(store="couchbase://db/shop/{service}", broker="kafka://k1:9092")
OVER_S = 0.02
INSERT = "INSERT INTO business_documents (collection, key, content) VALUES ('parcels', ?, ?)"
UPDATE = "UPDATE business_documents SET content = ? WHERE collection = 'parcels' AND key = ?"
DELETE = "DELETE FROM business_documents WHERE collection = 'parcels' AND key = ?"


class ChangePublisher(Protocol):
    """Documents that an application writes, and the publisher of their changes on the service's topic."""

    merges: ClassVar[bool]
    """True if quick writes of one document come as the last."""
    publishes_before: ClassVar[bool]
    """True if it publishes what was there before."""
    publishes_new_after_removal: ClassVar[bool]
    """True if a document that was gone, and is written again, is published as new."""

    async def write(self, key: str, content: str, *, expires: bool = False) -> None:
        """Write a document, as an application does. `expires`: its time is over at once."""

    async def remove(self, key: str) -> None:
        """Remove a document, as an application does."""

    async def begin(self, *, changes_from: Literal["beginning", "now"]) -> None:
        """Begin to publish, as `SAGA_CHANGES_FROM` says."""

    async def publish(self, broker: Broker, *, twice: bool = False) -> None:
        """Publish all changes since the last call. `twice`: it dies before it has noted that, and resumes."""


@dataclass
class StoreChangePublisher:
    """SQLite store of a service, to which an application writes with SQL alone, and the relay beside it."""

    service: Service[Seen]
    file: Path
    merges: ClassVar[bool] = False
    publishes_before: ClassVar[bool] = True
    publishes_new_after_removal: ClassVar[bool] = True

    async def write(self, key: str, content: str, *, expires: bool = False) -> None:
        async with SqliteStore(self.file, clock=CLOCK) as store:
            there = await store.get(PARCELS, key)
            if expires:  # plain SQL says no time: this is what `saga.store` is for
                await store.insert(PARCELS, key, content.encode(), expiry_s=0)
                await CLOCK.sleep(OVER_S)
                return
        if there is None:
            self._program(INSERT, key, content)
        else:
            self._program(UPDATE, content, key)

    async def remove(self, key: str) -> None:
        self._program(DELETE, key)

    def _program(self, statement: str, *values: str) -> None:
        with closing(sqlite3.connect(self.file, timeout=30)) as connection, connection:
            connection.execute(statement, values)

    async def begin(self, *, changes_from: Literal["beginning", "now"]) -> None:
        async with SqliteStore(self.file, clock=CLOCK) as store:
            await store.watch(self.service.declared.name, [PARCELS], from_beginning=changes_from == "beginning")

    async def publish(self, broker: Broker, *, twice: bool = False) -> None:
        name = self.service.declared.name
        watching = OutageWatch(name, CLOCK, lambda moment: None)
        async with SqliteStore(self.file, clock=CLOCK) as store:
            if twice:
                await ChangeRelay(name, Forgetful(store), broker, CLOCK, watching).relay_once()
            while await ChangeRelay(name, store, broker, CLOCK, watching).relay_once():
                pass


@dataclass
class Forgetful:
    """Store whose process dies before it forgets what was published."""

    store: SqliteStore

    def __post_init__(self) -> None:
        self.watch, self.pause, self.leads = self.store.watch, self.store.pause, self.store.leads
        self.list_watched, self.unwatch = self.store.list_watched, self.store.unwatch

    def read_recorded(self, service: str, count_max: int, *, before_ms: int | None = None) -> Sequence[RecordedChange]:
        return self.store.read_recorded(service, count_max, before_ms=before_ms)

    async def forget(self, service: str, number: int) -> None: ...


@dataclass
class ConnectorChangePublisher:
    """Couchbase's connector, by the records that its documentation shows, configured as `saga changes connector`
    says."""

    service: Service[Seen]
    form: Literal["raw", "default", "default with schemas"] = "raw"
    kept: list[ConnectorRecord] = field(default_factory=list)
    """Every version, oldest first."""
    position: int = 0
    """Number of the last version that was published, as the connector has saved it."""
    merges: ClassVar[bool] = True
    publishes_before: ClassVar[bool] = False
    publishes_new_after_removal: ClassVar[bool] = False

    async def write(self, key: str, content: str, *, expires: bool = False) -> None:
        self._keep(key, content.encode())
        if expires:
            self._keep(key, None, expired=True)

    async def remove(self, key: str) -> None:
        self._keep(key, None)

    def _keep(self, key: str, content: bytes | None, *, expired: bool = False) -> None:
        number, revision = len(self.kept) + 1, 1 + sum(record.key == key for record in self.kept)
        cas = CLOCK.now_ms() * 1_000_000 + number  # Couchbase's has the time in it
        self.kept.append(
            ConnectorRecord(key=key, cas=cas, number=number, revision=revision, content=content, expired=expired)
        )

    async def begin(self, *, changes_from: Literal["beginning", "now"]) -> None:
        settings = Settings(store=SETTINGS.store, broker=SETTINGS.broker, changes_from=changes_from)
        begins = make_connector(self.service.declared, settings).config["couchbase.stream.from"]
        self.position = {"SAVED_OFFSET_OR_BEGINNING": 0, "SAVED_OFFSET_OR_NOW": len(self.kept)}[begins]

    async def publish(self, broker: Broker, *, twice: bool = False) -> None:
        topic = change_topic(self.service.declared.name, PARCELS)
        newest = {record.key: record for record in self.kept if record.number > self.position}
        records = sorted(newest.values(), key=lambda record: record.number)
        for _ in range(1 + twice):
            await broker.publish([Outgoing(topic, record.key.encode(), self._value(record), ()) for record in records])
        self.position = len(self.kept)

    def _value(self, record: ConnectorRecord) -> bytes:
        if self.form == "raw":
            return record.encode_raw()
        return record.encode_default(enveloped=self.form == "default with schemas")
