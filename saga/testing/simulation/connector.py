"""A simulated Kafka connector for Couchbase: a process that reads the changes of a service's store, and writes them to
the topics that the service consumes.

Like the real connector, it merges rapid writes of one document into the last of them. It saves its position only now
and then, so after a crash it delivers some changes again. Writes that were merged the first time stay merged then.
"""

import asyncio
from asyncio import Future
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

from saga.errors import BrokerUnavailable, StoreUnavailable
from saga.messages import Outgoing
from saga.messaging.names import ARCHIVES, PROGRESS, change_topic
from saga.support.clock import Clock
from saga.testing.fault_plans import PlannedFault
from saga.testing.simulation.broker import SimulatedBroker
from saga.testing.simulation.loop import BEGINNING_MS, Process
from saga.testing.simulation.network import Backend, Network
from saga.testing.simulation.store import Disk, Mutation, wake


class ConnectorRecord(Struct, frozen=True, kw_only=True):
    """One record that the connector publishes."""

    key: str
    cas: int
    """Version of the document: nanoseconds since 1970, different for each version."""
    number: int
    """Sequence number of the change in its vBucket."""
    revision: int
    """Number of this version of the document. Removals count as versions too."""
    content: bytes | None
    """JSON of the document; `None` if it was removed."""
    expired: bool = False

    def encode_raw(self) -> bytes:
        """Encode the record as `RawJsonWithMetadataSourceHandler` does."""
        value = self._metadata()
        if self.content is not None:
            value["content"] = Raw(self.content)
        return msgspec.json.encode(value)

    def encode_default(self, *, enveloped: bool) -> bytes:
        """Encode the record as `DefaultSchemaSourceHandler` does with `JsonConverter`.

        `enveloped`: True to include the schema in the JSON, as with `schemas.enable`.
        """
        value = self._metadata()
        value["content"] = None if self.content is None else b64encode(self.content).decode()
        if not enveloped:
            return msgspec.json.encode(value)
        return msgspec.json.encode({"schema": {"type": "struct", "name": "com.couchbase.DcpMessage"}, "payload": value})

    def _metadata(self) -> dict[str, object]:
        event = "mutation" if self.content is not None else "expiration" if self.expired else "deletion"
        there: dict[str, object] = {"expiration": 0, "flags": 33_554_432, "lockTime": 0}
        return {
            "event": event,
            "bucket": "shop",
            "partition": 17,
            "vBucketUuid": 77_000,
            "key": self.key,
            "cas": self.cas,
            "bySeqno": self.number,
            "revSeqno": self.revision,
            **(there if self.content is not None else {}),
        }


READ_MAX = 20
"""Maximum number of mutations that are read together."""
LAG_S_MAX = 2.0
"""Maximum time in seconds from a change until the connector reads it. Writes in between may be merged."""
AGAIN_S = 0.5
"""Pause in seconds after a failure."""
TAKEN_OVER_S = 6.0
"""Minimum time in seconds until another process takes over from a dead one. By then everything that the dead one sent
has arrived. Kafka Connect waits for minutes.
"""


class LoggedMutation(NamedTuple):
    """A change of a document, as the store keeps it until the connector reads it."""

    number: int
    revision: int
    """Number of this version of the document. Removals count as versions too."""
    time_s: float
    made: Mutation

    @property
    def where(self) -> tuple[str, str]:
        return self.made.collection, self.made.key


class SimulatedConnector:
    """The connector of one service, with the state that survives a crash of the connector's process."""

    def __init__(self, service: str, disk: Disk, network: Network, now_s: Callable[[], float]) -> None:
        self._service, self._network, self._now_s = service, network, now_s
        self.collections: set[str] = set()
        """Collections whose changes the connector delivers."""
        self._backend = Backend(f"{service}'s store", StoreUnavailable, StoreUnavailable)
        self._own = Backend("broker", BrokerUnavailable, BrokerUnavailable)
        self._mutations: list[LoggedMutation] = []
        self._revisions: dict[tuple[str, str], int] = {}
        self._number = self._saved = 0
        self._waiting: list[Future[None]] = []
        for (collection, key), there in disk.documents.items():
            self._log_mutation(Mutation("insert", collection, key, there.cas, None, there.content))
        disk.listeners.append(self._log_mutation)

    def _log_mutation(self, made: Mutation) -> None:
        if made.collection in (PROGRESS, ARCHIVES):
            return
        where = (made.collection, made.key)
        self._number += 1
        self._revisions[where] = self._revisions.get(where, 0) + 1
        self._mutations.append(LoggedMutation(self._number, self._revisions[where], self._now_s(), made))
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            wake(each)

    # ---------------------------------------------------------------- its process

    async def run(self, process: Process, broker: SimulatedBroker, clock: Clock, stop: asyncio.Event) -> None:
        """Deliver changes, starting after the saved position, until `stop` is set."""
        position = self._saved
        while await self._has_news(position, stop):
            await clock.sleep(LAG_S_MAX * clock.chance() ** 4)
            try:
                records, position = await self._read(process, position)
            except StoreUnavailable:
                await clock.sleep(AGAIN_S)
                continue
            while records:
                try:
                    await broker.publish(records)
                except (
                    BrokerUnavailable
                ):  # retry the same records: reading again could merge changes of which some may already be published
                    await clock.sleep(AGAIN_S)
                    continue
                break
            if clock.chance() < 0.5:
                with suppress(BrokerUnavailable):
                    await self._save(process, position)

    async def _has_news(self, position: int, stop: asyncio.Event) -> bool:
        """Wait for a change to deliver. Return True when there is one, and False if the process must stop."""
        while not stop.is_set() and not (self._mutations and self._mutations[-1].number > position):
            loop = asyncio.get_running_loop()
            waiting: Future[None] = loop.create_future()
            self._waiting.append(waiting)
            stopping = loop.create_task(stop.wait(), name=f"{self._service} connector stops")
            stopping.add_done_callback(partial(_wake_on_stop, waiting))
            await waiting
            stopping.cancel()
        return not stop.is_set()

    async def _read(self, process: Process, position: int) -> tuple[list[Outgoing], int]:
        """Read changes after a position. Return the records to publish for them, and the position of the last
        change.
        """

        def land(planned: PlannedFault | None, draws: tuple[float, float, float, float]) -> tuple[list[Outgoing], int]:
            after = position
            if planned is not None and planned.kind == "gap":
                last = {each.where: each for each in self._mutations}
                after, self._mutations = 0, [each for each in last.values() if each.made.after is not None]
                self._mutations.sort(key=lambda each: each.number)
            ahead = [each for each in self._mutations if each.number > after][:READ_MAX]
            if not ahead:
                return [], self._number
            end = ahead[int(len(ahead) * draws[2])].number
            newest = {each.where: each for each in ahead if each.number <= end}
            self._mutations = [e for e in self._mutations if not after < e.number <= end or newest[e.where] is e]
            mutations = sorted(newest.values(), key=lambda each: each.number)
            return [self._record(each) for each in mutations if each.made.collection in self.collections], end

        topics = tuple(change_topic(self._service, collection) for collection in sorted(self.collections))
        where = f"changes of {self._service}"
        read: tuple[list[Outgoing], int] = await self._network.ask(
            process, self._backend, "changes", where, topics, land
        )
        return read

    async def _save(self, process: Process, position: int) -> None:
        def land(*_: object) -> None:
            self._saved = position

        await self._network.ask(process, self._own, "commit", f"position of {process.name}", (), land)

    def _record(self, mutation: LoggedMutation) -> Outgoing:
        made = mutation.made
        topic = change_topic(self._service, made.collection)
        record = ConnectorRecord(
            key=made.key,
            cas=(BEGINNING_MS + int(mutation.time_s * 1000)) * 1_000_000 + mutation.number,
            number=mutation.number,
            revision=mutation.revision,
            content=made.after,
            expired=made.kind == "expiry",
        )
        return Outgoing(topic, made.key.encode(), record.encode_raw(), ())


def _wake_on_stop(waiting: "Future[None]", stopping: object) -> None:
    wake(waiting)
