"""Cache of a schema registry: ids and schemas, each requested once per process."""

from dataclasses import dataclass, field

from saga.contracts.codec import HEADER_SIZE, MARKER
from saga.contracts.contract import Contract, Version
from saga.contracts.foreign_values import frame, is_version, schema_id_of
from saga.errors import RegistryUnavailable
from saga.messages import Outgoing, Record, Writer
from saga.messaging.names import is_without_events
from saga.registry.port import SchemaIncomplete, SchemaRegistry
from saga.support.clock import Clock

MISSING_S = 30.0
"""Time after which a registry is asked again for an id that it did not have."""
IDS_MAX = 10_000
"""Ids that are remembered, at most: then all are forgotten, and asked for again."""


@dataclass(slots=True)
class RegistryCache:
    """Ids and schemas of a registry that were needed so far."""

    registry: SchemaRegistry
    clock: Clock
    _writers: dict[int, tuple[Writer, float | None]] = field(default_factory=dict)
    """By id; with the time until which it holds that there is none."""
    _ids: dict[tuple[str, bytes], int] = field(default_factory=dict)
    """Ids of what we publish, by subject and fingerprint."""
    _versions: dict[tuple[str, bytes], Version] = field(default_factory=dict)
    """All versions of the contracts that were asked for: what is published may be of an older one."""

    # ---------------------------------------------------------------- reading

    def wanted(self, record: Record) -> int | None:
        """Id that has to be asked for before a record can be taken; `None`: nothing has to be."""
        id_ = schema_id_of(record)
        if id_ is None or is_without_events(record.topic):
            return None
        return id_ if self._writer(id_) is None else None

    def resolved(self, record: Record) -> Record:
        """The record with the schema of its value, if that is in the wire format and nothing has to be asked."""
        id_ = schema_id_of(record)
        if id_ is None or is_without_events(record.topic):
            return record
        return record._replace(writer=self._writer(id_))

    async def learn(self, id_: int) -> None:
        """Ask for an id, unless it is known. Raises `RegistryUnavailable`."""
        if self._writer(id_) is None:
            await self.asked(id_)

    async def asked(self, id_: int) -> Writer:
        """Ask for an id. Raises `RegistryUnavailable`."""
        try:
            writer = Writer(id_, await self.registry.schema(id_), self.registry.address)
        except SchemaIncomplete as why:
            writer = Writer(id_, "", self.registry.address, str(why))
        until_s = None if writer.schema else self.clock.monotonic_s() + MISSING_S
        if len(self._writers) >= IDS_MAX:
            self._writers.clear()
        self._writers[id_] = writer, until_s
        return writer

    def _writer(self, id_: int) -> Writer | None:
        writer, until_s = self._writers.get(id_, (None, None))
        return None if until_s is not None and self.clock.monotonic_s() >= until_s else writer

    # ---------------------------------------------------------------- writing

    async def id_of(self, contract: Contract, version: Version) -> int | None:
        """Id of a version of ours; `None` if it is not registered. Raises `RegistryUnavailable`."""
        self._versions |= {(contract.subject, each.fingerprint): each for each in contract.versions}
        known = self._ids.get((contract.subject, version.fingerprint))
        return await self._found(contract.subject, version.fingerprint) if known is None else known

    async def in_wire_format(self, message: Outgoing) -> Outgoing:
        """The message as a registry's clients write it. Raises `RegistryUnavailable` while its id is not known, also
        because it is not registered: nothing is published in any other way."""
        value = message.value
        if not message.subject or value is None or not value.startswith(MARKER):
            return message
        fingerprint = value[len(MARKER) : HEADER_SIZE]
        id_ = self._ids.get((message.subject, fingerprint))
        if id_ is None:
            id_ = await self._found(message.subject, fingerprint)
        if id_ is None:
            raise RegistryUnavailable(
                f"the schema registry at {self.registry.address} does not have the schema with the fingerprint "
                f"{fingerprint.hex()} under {message.subject}: register it, by saga contracts register"
            )
        return message._replace(value=frame(id_, value))

    async def _found(self, subject: str, fingerprint: bytes) -> int | None:
        version = self._versions.get((subject, fingerprint))
        for number in reversed(await self.registry.versions(subject)):
            registered = await self.registry.version(subject, number)
            if is_version(registered.schema, fingerprint, version):
                self._ids[subject, fingerprint] = registered.id
                return registered.id
        return None
