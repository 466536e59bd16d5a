"""Evidence of a run, to be judged: every document as it ever was, the log, and how far it was committed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from saga.encryption.port import Keys
from saga.engine.prepared_service import PreparedService
from saga.messages import Partition, Record

Invariant = Literal[
    "one outcome",
    "undone",
    "not early",
    "in time",
    "history",
    "nothing waits",
    "said as recorded",
    "in order",
    "once",
    "documents",
    "rerun",
]
"""The invariants of the kit; the functions of this package that look at one name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnessed:
    """Evidence of one service."""

    service: PreparedService
    """The release that runs at the end."""
    versions: Mapping[str, Sequence[bytes]]
    """Saga -> every content of its progress that ever took effect, oldest first; also where it has expired since."""
    archives: Mapping[str, Sequence[tuple[str, bytes]]]
    """Saga -> its archives and pages: key and content."""
    documents: Mapping[tuple[str, str], Sequence[bytes]]
    """Collection and key of a business document -> every content that ever took effect, oldest first."""
    committed: Mapping[Partition, int]
    resources: Mapping[type, object] = field(default_factory=dict)
    """Resources that its handlers can be given when they run again, by type."""
    keys: Keys | None = None
    """Keys of what is sealed."""
    releases: Sequence[PreparedService] = ()
    """All releases that have run, where there was more than this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence of all services, once nothing is under way any more."""

    services: Mapping[str, Witnessed]
    log: Sequence[Record]
    """All that was ever appended, in the order of appending: topics of contracts, and `<service>.dead`."""
    ends: Mapping[Partition, int]
    """End of each partition: the offset that the next record would get."""
    spoiled: frozenset[str]
    """Sagas that got a message which cannot be read, or of which a message came again after the memory."""
    wrong_ms: int = 0
    """Most milliseconds by which the clock of any process was ever wrong."""
    partial: bool = False
    """True if only the last content of each progress and document is known: nobody watched what was there before."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold."""

    invariant: Invariant
    saga: str | None
    service: str | None
    what: str
    """The facts, as a sentence."""

    def __str__(self) -> str:
        where = " ".join(f"{name} {value!r}" for name, value in (("saga", self.saga), ("in", self.service)) if value)
        return f"{self.invariant}: {where + ': ' if where else ''}{self.what}"
