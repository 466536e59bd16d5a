"""The values of a contracts folder: contracts with their versions, and topics."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from saga.contracts.schema import RecordType

URN = "urn:saga:"
"""The URI of a schema is its path behind this, unless something else was set."""


class Topic(NamedTuple):
    """A topic, as the contracts' folder of its name wants it."""

    name: str
    partitions: int = 12
    retention_days: float | None = 7
    """How long records are kept; `None`: for ever."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """One file: one version of a contract's schema."""

    name: str
    """The record's name, without namespace: `PaymentReserved`."""
    number: int
    path: str
    """`payments/PaymentReserved.v1`: below the folder, without `.avsc`."""
    schema: dict[str, Any] = field(hash=False, repr=False)
    """As in the file."""
    fingerprint: bytes
    """CRC-64-AVRO of the canonical form, little-endian: 8 bytes, as in the header of a single object."""
    record: RecordType = field(hash=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Contract:
    """What services agreed on about one kind of event. Everything but `doc` is the same in all versions."""

    name: str
    topic: str
    key: str
    """The field that holds the saga id; its name is the saga's kind."""
    owner: str
    """The only service that may emit it, unless it is `said_outside`."""
    starts: bool
    """It begins a saga."""
    outcome: Literal["success", "failure"] | None
    """It ends a saga."""
    said_outside: bool
    """Clients, and services that do not own it, may publish it."""
    heard_outside: bool
    """Somebody we do not know consumes it."""
    doc: str
    """Of the newest version."""
    namespace: str = ""
    """Namespace of its records; empty if they have none."""
    schemas: str = URN
    """Prefix of the absolute URI of each of its schemas."""
    versions: tuple[Version, ...] = field(repr=False)
    """All of them, number 1 first."""

    @cached_property
    def full_name(self) -> str:
        """The record's name with its namespace: `shop.payments.PaymentReserved`."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name

    @property
    def newest(self) -> Version:
        """The version that new classes are made of."""
        return self.versions[-1]
