"""A contract, its versions, and the fingerprint that says which version wrote a message."""

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final, Literal, TypeAlias, cast

from fastavro.schema import fingerprint

from saga.contracts.schema import RecordType

URN = "urn:saga:"
"""Prefix of a schema's URI, before its path, unless something else was set."""

Mode: TypeAlias = Literal[
    "none", "backward", "forward", "full", "backward_transitive", "forward_transitive", "full_transitive"
]
MODES: Final[tuple[Mode, ...]] = (
    "none",
    "backward",
    "forward",
    "full",
    "backward_transitive",
    "forward_transitive",
    "full_transitive",
)
"""Promises that a version may make about messages of earlier ones: `backward`, it reads them; `forward`, they read what
is written with it; `full`, both. Transitive: not of the version before alone, but of all."""
DEFAULT_MODE: Final[Mode] = "full_transitive"
"""Mode of a version that declares none: topics, queues and archives keep messages of all versions, and services are
deployed, and rolled back, independently of each other."""

_ALGORITHM = "CRC-64-AVRO"


def versioned_name(name: str, number: int) -> str:
    """Name of the class of a version that is asked for by its number.

    >>> versioned_name("OrderPlaced", 1)
    'OrderPlacedV1'
    """
    return f"{name}V{number}"


@dataclass(frozen=True, kw_only=True)
class Version:
    """Version of a contract's schema: one file."""

    name: str
    """Name of the record, without namespace: `PaymentReserved`."""
    number: int
    path: str
    """Path below the folder, without `.avsc`: `payments/PaymentReserved.v1`."""
    schema: dict[str, Any] = field(hash=False, repr=False)
    """Schema as it is in the file."""
    fingerprint: bytes
    """CRC-64-AVRO of the canonical form, little-endian: 8 bytes, as in the header of a single object."""
    record: RecordType = field(hash=False, repr=False)
    """Fields, each sensitive if any version of the contract marks it."""
    written: RecordType = field(hash=False, repr=False)
    """The same with the marks that are in the file."""
    upcasts: frozenset[int] = frozenset()
    """Numbers of the older versions that are read as this one by an upcaster, for resolution cannot."""

    @property
    def compatible(self) -> Mode:
        """Mode in which it is checked against the versions before it."""
        return cast("Mode", self.schema.get("compatible", DEFAULT_MODE))

    @property
    def subject(self) -> str:
        """Field that says whom an event is about: with that one's key its sensitive fields are sealed."""
        return cast(str, self.schema.get("subject", self.schema["key"]))


@dataclass(frozen=True, kw_only=True)
class Contract:
    """Agreement of services about one kind of event. Everything but `doc` is the same in all versions."""

    name: str
    topic: str
    key: str
    """Field that holds the saga id; its name is the saga's kind."""
    owner: str
    """Only service that may emit it, unless it is `produced_externally`."""
    starts: bool
    """True if it begins a saga."""
    outcome: Literal["success", "failure"] | None
    """Outcome with which it ends a saga; `None` if it does not."""
    produced_externally: bool
    """True if Clients, and services that do not own it, may publish it."""
    consumed_externally: bool
    """True if somebody we do not know consumes it."""
    doc: str
    """Description in the newest version."""
    namespace: str = ""
    """Namespace of its records; empty if they have none."""
    schemas: str = URN
    """Prefix of the absolute URI of each of its schemas."""
    wire: str = "single-object"
    """Form of what is published, as its topic wants it: see `Topic.wire`."""
    id_header: str | None = None
    """Header in which senders that write no `ce_id` have the id of a message, as its newest version declares, or its
    topic."""
    id_field: str | None = None
    """Field in which they have it."""
    versions: tuple[Version, ...] = field(repr=False)
    """All versions, number 1 first."""

    @cached_property
    def full_name(self) -> str:
        """Name of the record with its namespace: `shop.payments.PaymentReserved`."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name

    @cached_property
    def subject(self) -> str:
        """Subject under which a schema registry has its versions: the topic and the record's full name, as clients of
        registries call `TopicRecordNameStrategy`. Empty if it is not published in the wire format of one."""
        return f"{self.topic}-{self.full_name}" if self.wire == "registry" else ""

    @property
    def newest(self) -> Version:
        """Version that new classes are made of."""
        return self.versions[-1]

    @cached_property
    def principal_header(self) -> str | None:
        """Header in which senders that know nothing of ours say who begins the saga, as its newest version declares."""
        return cast("str | None", self.newest.schema.get("principal"))

    @cached_property
    def trusts_time(self) -> bool:
        """True if a deadline counts from the event's own time, whoever published it, as its newest version declares."""
        return bool(self.newest.schema.get("trusted_time", False))

    @property
    def compatible(self) -> Mode:
        """Mode that its newest version declares."""
        return self.newest.compatible


# -------------------------------------------------------------------- fingerprints


@lru_cache(maxsize=4096)
def fingerprint_of(canonical: str) -> bytes:
    """Fingerprint of a schema in its parsing canonical form, as bytes in the order of the header.

    Each text is computed once: fastavro goes over it byte by byte in Python, which takes three quarters of the reading
    of a folder of contracts, and a worker that waits for a schema reads the folder again and again.
    """
    return bytes.fromhex(fingerprint(canonical, _ALGORITHM))
