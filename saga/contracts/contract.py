"""Contracts, their versions, and the fingerprint by which a reader knows which version encoded a message."""

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final, Literal, TypeAlias, cast

from fastavro.schema import fingerprint

from saga.contracts.schema import RecordType

URN = "urn:saga:"
"""Default prefix of a schema's URI, followed by the schema's path; `SAGA_SCHEMA_BASE` replaces it."""

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
"""Compatibility modes that a version may declare. `backward`: it can read messages of the previous version; `forward`:
the previous version can read its messages; `full`: both. The transitive modes promise this for all earlier versions,
not only the previous one."""
DEFAULT_MODE: Final[Mode] = "full_transitive"
"""Mode of a version that declares none. It is the strictest because topics, queues and archives keep messages of all
versions, and services are deployed and rolled back independently of each other."""

_ALGORITHM = "CRC-64-AVRO"


def versioned_name(name: str, number: int) -> str:
    """Return the class name of a version that is requested by its number.

    >>> versioned_name("OrderPlaced", 1)
    'OrderPlacedV1'
    """
    return f"{name}V{number}"


@dataclass(frozen=True, kw_only=True)
class Version:
    """One version of a contract's schema, read from one file."""

    name: str
    """Name of the record, without namespace: `PaymentReserved`."""
    number: int
    path: str
    """Path of the version's file relative to the contracts folder, without `.avsc`: `payments/PaymentReserved.v1`."""
    schema: dict[str, Any] = field(hash=False, repr=False)
    """JSON of the schema, as in the file."""
    fingerprint: bytes
    """CRC-64-AVRO of the parsing canonical form: 8 bytes, little-endian, as in the header of a single object."""
    record: RecordType = field(hash=False, repr=False)
    """Parsed record. A field in it is sensitive if any version of the contract marks the field."""
    written: RecordType = field(hash=False, repr=False)
    """Parsed record. A field in it is sensitive only if this version's file marks the field."""
    upcasts: frozenset[int] = frozenset()
    """Numbers of the older versions whose events an upcaster converts to this version, because schema resolution
    cannot."""

    @property
    def compatible(self) -> Mode:
        """Compatibility mode in which this version is checked against the versions before it."""
        return cast("Mode", self.schema.get("compatible", DEFAULT_MODE))

    @property
    def subject(self) -> str:
        """Name of the field that identifies the subject of an event, whose key encrypts the event's sensitive
        fields."""
        return cast(str, self.schema.get("subject", self.schema["key"]))


@dataclass(frozen=True, kw_only=True)
class Contract:
    """Agreement between services about one kind of event.

    Topic, key, owner, start, outcome, external producers and consumers, and namespace are the same in all versions. The
    newest version determines the description, the header or field of the message id, `principal_header` and
    `trusts_time`.
    """

    name: str
    topic: str
    key: str
    """Name of the field that contains the saga id. This name also identifies the kind of the saga."""
    owner: str
    """Name of the only service that may emit the event, unless it is `produced_externally`."""
    starts: bool
    """True if the event starts a saga."""
    outcome: Literal["success", "failure"] | None
    """Outcome with which the event ends a saga; `None` if it does not end one."""
    produced_externally: bool
    """True if Clients, and services other than the owner, may publish the event."""
    consumed_externally: bool
    """True if others than the known services may consume the event."""
    doc: str
    """Description of the event, from the newest version."""
    namespace: str = ""
    """Namespace of the contract's record; empty if the record has none."""
    schemas: str = URN
    """Prefix of the absolute URIs of the contract's schemas."""
    wire: str = "single-object"
    """Wire format in which the events are published, as configured for the topic: see `Topic.wire`."""
    id_header: str | None = None
    """Header that contains the message id, for senders that write no `ce_id`. The newest version or the topic declares
    it."""
    id_field: str | None = None
    """Field that contains the message id, for senders that write no `ce_id`. At most one of `id_header` and `id_field`
    is set."""
    versions: tuple[Version, ...] = field(repr=False)
    """All versions, oldest first."""

    @cached_property
    def full_name(self) -> str:
        """Record name with its namespace: `shop.payments.PaymentReserved`."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name

    @cached_property
    def subject(self) -> str:
        """Subject under which a schema registry has the contract's versions: the topic and the record's full name.

        Registry clients call this naming `TopicRecordNameStrategy`. Empty if the contract is not published in the wire
        format of a registry.
        """
        return f"{self.topic}-{self.full_name}" if self.wire == "registry" else ""

    @property
    def newest(self) -> Version:
        """The newest version, from which the event class without a version number is generated."""
        return self.versions[-1]

    @cached_property
    def principal_header(self) -> str | None:
        """Header in which an external sender names the principal who starts the saga, as declared by the newest
        version."""
        return cast("str | None", self.newest.schema.get("principal"))

    @cached_property
    def trusts_time(self) -> bool:
        """True if deadlines count from the time that the event states, even if its publisher is external. The newest
        version declares it."""
        return bool(self.newest.schema.get("trusted_time", False))

    @property
    def compatible(self) -> Mode:
        """Compatibility mode of the newest version."""
        return self.newest.compatible


# -------------------------------------------------------------------- fingerprints


@lru_cache(maxsize=4096)
def fingerprint_of(canonical: str) -> bytes:
    """Return the CRC-64-AVRO fingerprint of a schema in parsing canonical form, in the byte order of the header.

    Results are cached: fastavro computes a fingerprint byte by byte in Python, which takes three quarters of the time
    to load a contracts folder, and a worker that waits for an unknown schema loads the folder repeatedly.
    """
    return bytes.fromhex(fingerprint(canonical, _ALGORITHM))
