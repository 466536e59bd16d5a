"""Evidence of a run, against which the invariants are checked: every version of each document, the log, and the
committed offsets.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from typing import Literal, NamedTuple

import msgspec
from msgspec import Raw, Struct

from saga.contracts import codec
from saga.contracts.contract import Contract
from saga.contracts.library import Library
from saga.encryption.port import Keys
from saga.engine.consumer.record_router import parse_change
from saga.engine.prepared_service import PreparedService
from saga.errors import BadInput, SagaError
from saga.messages import Event, Partition, Record, name_of, texts_of
from saga.messaging import envelope
from saga.messaging.message_ids import identity
from saga.messaging.names import dead_letter_topic
from saga.messaging.timers import SagaTimer, parse_timer, tiers_of
from saga.progress import history
from saga.progress.document import IntentKind, SagaProgress, StepRecord, Transition, decode_progress, decode_transition
from saga.progress.history import decode_archive, fold_state, verify_history
from saga.progress.overflow import is_archive, restore_all
from saga.support.clock import from_iso

Invariant = Literal[
    "one outcome",
    "compensated",
    "not early",
    "in time",
    "history",
    "nothing waits",
    "published as recorded",
    "in order",
    "once",
    "documents",
    "as annotated",
    "rerun",
]
"""Names of the kit's invariants. A violation contains the name of the invariant that it breaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceEvidence:
    """Evidence of one service."""

    service: PreparedService
    """The release of the service that ran last."""
    versions: Mapping[str, Sequence[bytes]]
    """Every content that the progress of each saga has had, oldest first. Expired progresses are included."""
    archives: Mapping[str, Sequence[tuple[str, bytes]]]
    """The archives and overflow segments of each saga, as pairs of key and content."""
    documents: Mapping[tuple[str, str], Sequence[bytes]]
    """Every content that each business document has had, oldest first, by collection and key. It is empty where the
    document was removed or has expired.
    """
    committed: Mapping[Partition, int]
    resources: Mapping[type, object] = field(default_factory=dict)
    """Resources by type, for handlers that are run again."""
    removed: frozenset[str] = frozenset()
    """Documents that an application has removed, as `collection/key`, if only the last contents are known."""
    keys: Keys | None = None
    """Keys with which values are encrypted; `None` if nothing is encrypted."""
    releases: Sequence[PreparedService] = ()
    """All releases that have run; empty if `service` was the only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence of all services, collected when nothing is in progress."""

    services: Mapping[str, ServiceEvidence]
    log: Sequence[Record]
    """All records of the services' topics, in the order in which they were appended. Dead letters and timers are
    included.
    """
    ends: Mapping[Partition, int]
    """The end of each partition: the offset of its next record."""
    spoiled: frozenset[str]
    """Sagas that got an unreadable message, or got a message again after the retention. Events in them may be forged or
    repeated.
    """
    wrong_ms: int = 0
    """Largest error of any process's clock, in milliseconds."""
    partial: bool = False
    """True if only the last content of each progress and document is known, because earlier ones were not recorded."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A fact that breaks an invariant, with the saga and service in which it was found."""

    invariant: Invariant
    saga: str | None
    service: str | None
    what: str
    """What is wrong, as a sentence."""

    def __str__(self) -> str:
        where = " ".join(f"{name} {value!r}" for name, value in (("saga", self.saga), ("in", self.service)) if value)
        return f"{self.invariant}: {where + ': ' if where else ''}{self.what}"


def is_completed_run(outcome: str, reason: str | None) -> bool:
    """Return True if a transition with this outcome and reason ended a run, or one turn of a suspended run, without a
    failure.
    """
    return outcome == "later" or (outcome in ("handled", "compensated") and reason is None)


# ---------------------------------------------------------------- the life of one progress


class RecordedIntent(Struct, frozen=True, gc=False):
    """The fields of an intent that identify its run, and the calls of that run."""

    handler: str
    kind: IntentKind
    cause: str
    begins: StepRecord | None = None
    calls: tuple[StepRecord, ...] = ()
    undo_with: tuple[Raw, ...] = ()


class VersionHead(Struct, frozen=True, gc=False):
    """The fields of a progress version that show its place in the history and what is in progress."""

    n: int = 0
    hash: str = ""
    published: int = 0
    first: int = 0
    intents: tuple[RecordedIntent, ...] = ()


_head = msgspec.json.Decoder(VersionHead)


@dataclass(frozen=True, slots=True)
class ProgressLife:
    """One life of a progress: everything known about it from its first write to its last. A saga that was forgotten and
    started again has several lives.
    """

    service: PreparedService
    p: SagaProgress
    """The last version of the progress."""
    raw_transitions: tuple[Raw, ...]
    """Every transition, including archived ones."""
    entries: tuple[Transition, ...]
    heads: tuple[VersionHead, ...]
    """The fields that the checks need of each version of the progress, oldest first."""

    @property
    def times(self) -> list[int]:
        """Times at which transitions and open intents were written."""
        return [from_iso(time) for time in (*(t.time for t in self.entries), *(i.time for i in self.p.intents)) if time]


def collect_lives(
    service: PreparedService, contents: Sequence[bytes], archives: Sequence[tuple[str, bytes]]
) -> list[ProgressLife]:
    """Split a progress into its lives, oldest first. Raises `SagaError` or `msgspec.DecodeError` if a content is not a
    valid progress.
    """
    lives = []
    for heads, versions in split_lives(contents):
        p = restore_all(decode_progress(versions[-1]), dict(archives))
        raws = (*_collect_archived(p, archives), *p.transitions) if p.first else p.transitions
        lives.append(ProgressLife(service, p, raws, tuple(map(decode_transition, raws)), heads))
    return lives


def split_lives(contents: Sequence[bytes]) -> Iterator[tuple[tuple[VersionHead, ...], Sequence[bytes]]]:
    """Yield each life of a progress, as the heads and the contents of its versions.

    A new life begins where the number of transitions decreases, or stays the same with a different hash. Raises
    `msgspec.DecodeError` if a content is not a progress.
    """
    heads: list[VersionHead] = []
    first = 0
    for i, content in enumerate(contents):
        head = _head.decode(content)
        if heads and (head.n < heads[-1].n or (head.n == heads[-1].n and head.hash != heads[-1].hash)):
            yield tuple(heads), contents[first:i]
            heads, first = [], i
        heads.append(head)
    if heads:
        yield tuple(heads), contents[first:]


def _collect_archived(p: SagaProgress, archives: Sequence[tuple[str, bytes]]) -> list[Raw]:
    """Return the archived transitions, in order, up to the first missing archive."""
    there = {}
    for key, content in archives:
        if not is_archive(key):
            continue
        archive = decode_archive(content)
        if archive.first < p.first:
            there[archive.first] = archive.transitions
    found: list[Raw] = []
    while len(found) < p.first and (transitions := there.pop(len(found), ())):
        found += transitions
    return found


def find_broken_chain(life: ProgressLife) -> str | None:
    """Describe what is wrong with the history of a progress; `None` if nothing is.

    The chain of hashes must be valid, the state must follow from the transitions, and each older version must be a
    prefix of the history.
    """
    found = verify_history(life.raw_transitions, life.p)
    if found is not None:
        return f"HISTORY {found.what}"
    hashes = ("", *(entry.previous for entry in life.entries[1:]), life.p.hash)
    for head in life.heads:
        if head.n >= len(hashes) or hashes[head.n] != head.hash:
            return f"REWRITTEN: a version with {head.n} transitions is not a part of what followed"
    return None


def find_exceeded_bound(life: ProgressLife) -> str | None:
    """Describe a bound that some version of a progress exceeds; `None` if there is none.

    Before a writer appends a transition, it must have published all earlier ones and recorded this. It must archive
    transitions above the limit.
    """
    for head in life.heads:
        if head.n - head.published > 1:
            return f"OUT OF BOUNDS: a version with {head.n} transitions has only {head.published} marked as published"
        if head.n - head.first > history.TRANSITIONS_MAX:
            return f"OUT OF BOUNDS: {head.n - head.first} transitions were in one document"
    return None


def find_broken_chain_in_version(p: SagaProgress, entries: Sequence[Transition]) -> str | None:
    """Check a single version as `find_broken_chain` does. Its oldest transitions may be archived, and are then not
    checked.
    """
    if not p.first:
        found = verify_history(p.transitions, p)
        return f"HISTORY {found.what}" if found is not None else None
    for before, entry in zip(p.transitions, entries[1:], strict=False):
        if entry.previous != sha256(bytes(before)).hexdigest():
            return f"HISTORY transition {entry.n} does not follow what is before it"
    if p.transitions and sha256(bytes(p.transitions[-1])).hexdigest() != p.hash:
        return f"HISTORY transition {p.n - 1} was changed"
    different = [name for name, value in fold_state(entries).items() if p.state.get(name) != value]
    return f"HISTORY the transitions make other values of {different} of the state" if different else None


def find_overwritten_life(before: ProgressLife, after: ProgressLife) -> str | None:
    """Describe the problem if the life `after` has overwritten the life `before`, which cannot have expired yet; `None`
    if it may have expired.
    """
    if before.p.is_open:
        return f"WRITTEN OVER: {before.p.n} transitions with something open were replaced"
    gone_ms = min(after.times, default=0) - max(before.times, default=0)
    # Half of the retention, because the clocks of workers and store may differ. A mistaken overwrite happens at once.
    if gone_ms < before.service.retention_s * 500:
        return f"WRITTEN OVER: {before.p.n} transitions were replaced {gone_ms} ms after the last"
    return None


# ---------------------------------------------------------------- the evidence of one saga


class LoggedEvent(NamedTuple):
    """An event in the log."""

    saga: str
    id: str
    type: str
    source: str
    started: str | None
    record: Record


class LoggedDeadLetter(NamedTuple):
    """A record on `<service>.dead`."""

    id: str
    service: str
    handler: str | None
    """Handler that the dead letter is about. It is `None` if no progress records the dead letter, for example because
    the service had already forgotten the saga.
    """
    message: str
    position: str | None
    """Position of a record whose saga cannot be determined; `None` for all others."""
    is_escalation: bool
    """True if the record only reports that a compensation fails and is being retried. Such a report does not excuse
    work that is still open at the end.
    """
    record: Record


@dataclass(frozen=True, slots=True)
class ServiceDeclarations:
    """The combined declarations of all services of a run."""

    services: Mapping[str, PreparedService]
    contracts: Mapping[str, Contract]
    """Contracts of all events that any service of the run consumes or emits, by record name."""
    ending: frozenset[str]
    """Key fields of the kinds of sagas for which some service of the run can emit an outcome."""
    consumed: frozenset[str]
    """Types of events that some service of the run consumes."""
    spoiled: frozenset[bytes]
    """Keys of the sagas in which events may be forged. Forged events may name a service of the run as their source."""
    wrong_ms: int = 0
    """Largest error of any process's clock, in milliseconds."""

    @property
    def changes(self) -> Mapping[str, type[Event]]:
        """Event classes of document changes, by topic."""
        return {topic: event for service in self.services.values() for topic, event in service.changes.items()}

    @property
    def library(self) -> Library | None:
        return next((service.schemas.library for service in self.services.values()), None)


@dataclass(slots=True)
class SagaCase:
    """Evidence of one saga."""

    declarations: ServiceDeclarations
    saga: str
    spoiled: bool
    events: list[LoggedEvent] = field(default_factory=list)
    """Events in the order of the log."""
    dead_letters: list[LoggedDeadLetter] = field(default_factory=list)
    timers: set[tuple[str, str]] = field(default_factory=set)
    """The timers in the log, as pairs of service and id."""
    lives: dict[str, list[ProgressLife]] = field(default_factory=dict)
    """The lives of the saga's progress in each service that knows the saga, oldest first."""

    @property
    def started_again(self) -> bool:
        """True if some service forgot the saga and started it again."""
        return any(len(lives) > 1 for lives in self.lives.values())

    def outcomes(self) -> dict[str, LoggedEvent]:
        """Return the outcomes in the log, by id.

        In a spoiled saga (see `Evidence.spoiled`) outcomes may be forged, so only those that a service has recorded
        count.
        """
        found = {
            s.id: s
            for s in self.events
            if s.type in self.declarations.contracts and self.declarations.contracts[s.type].outcome
        }
        if found and self.spoiled:
            known = {e.id for life in self.every_life() for t in life.entries for e in t.events}
            return {id_: event for id_, event in found.items() if id_ in known}
        return found

    def every_life(self) -> Iterator[ProgressLife]:
        return chain.from_iterable(self.lives.values())

    def last_lives(self) -> Iterator[tuple[PreparedService, ProgressLife]]:
        """Return the last life of the progress for each service that knows the saga."""
        return ((lives[-1].service, lives[-1]) for lives in self.lives.values())

    def is_forgotten(self, service: str) -> bool:
        """Return True if a message arrived at a service that had already forgotten the saga."""
        return any(letter.service == service and letter.handler is None for letter in self.dead_letters)

    def violation(self, invariant: Invariant, what: str, service: str | None = None) -> Violation:
        return Violation(invariant, self.saga, service, what)


@dataclass(frozen=True, slots=True)
class SagaCases:
    """Evidence of a run, grouped by saga."""

    cases: Mapping[str, SagaCase]
    unreadable: Sequence[tuple[Record, str | None]]
    """Records whose saga cannot be determined, each with its type if the type is known."""
    dead_letters: Sequence[LoggedDeadLetter]
    """All dead letters, including those that belong to no saga."""
    broken: Sequence[Violation]
    """Violations for progress documents that cannot be decoded."""


def collect_declarations(evidence: Evidence) -> ServiceDeclarations:
    """Combine the declarations of all services."""
    services = {name: witnessed.service for name, witnessed in evidence.services.items()}
    contracts = {name: contract for service in services.values() for name, contract in service.contracts.items()}
    ending = {contracts[name].key for service in services.values() for name in service.roles.outcomes}
    consumed = frozenset[str]().union(*(service.consumed for service in services.values()))
    spoiled = frozenset(saga.encode() for saga in evidence.spoiled)
    return ServiceDeclarations(services, contracts, frozenset(ending), consumed, spoiled, evidence.wrong_ms)


def group_by_saga(evidence: Evidence, declarations: ServiceDeclarations) -> SagaCases:
    """Group the log and the documents by saga."""
    cases: dict[str, SagaCase] = {}
    unreadable: list[tuple[Record, str | None]] = []
    letters: list[LoggedDeadLetter] = []
    dead = {dead_letter_topic(name): name for name in declarations.services}
    timers = {topic: name for name in declarations.services for topic in tiers_of(name)}

    changes = declarations.changes

    def case(saga: str) -> SagaCase:
        if saga not in cases:
            cases[saga] = SagaCase(declarations, saga, saga in evidence.spoiled)
        return cases[saga]

    for record in evidence.log:
        if record.topic in dead:
            letter = _read_dead_letter(dead[record.topic], record)
            letters.append(letter)
            if record.key and letter.position is None and not letter.is_escalation:
                case(record.key.decode()).dead_letters.append(letter)
            continue
        if record.topic in timers and (timer := _read_timer(record)) is not None:
            case(timer.saga).timers.add((timers[record.topic], timer.id))
            continue
        if record.topic in changes:
            try:
                change = parse_change(record, changes[record.topic])
            except BadInput:
                unreadable.append((record, name_of(changes[record.topic])))
                continue
            if change is not None:  # otherwise only the toolkit's markers have changed
                logged = LoggedEvent(change.saga, change.id, change.type, change.source, change.started, record)
                case(change.saga).events.append(logged)
            continue
        type_, schema = _identify(record, declarations)
        event = None if type_ is None else _read_event(record, type_, schema, declarations)
        if event is None:
            unreadable.append((record, type_))
        else:
            case(event.saga).events.append(event)
    broken = []
    for name, witnessed in evidence.services.items():
        for saga, contents in witnessed.versions.items():
            try:
                lives = collect_lives(witnessed.service, contents, witnessed.archives.get(saga, ()))
            except (SagaError, msgspec.DecodeError) as why:
                broken.append(Violation("history", saga, name, str(why)))
                lives = []
            case(saga).lives[name] = lives
    for one in cases.values():
        one.lives = {name: lives for name, lives in one.lives.items() if lives}
    return SagaCases(cases, unreadable, letters, broken)


def _identify(record: Record, declarations: ServiceDeclarations) -> tuple[str | None, str]:
    """Determine type and schema of a record as a worker would. The type is `None` if it cannot be determined."""
    type_ = envelope.type_of(record)
    if type_ is not None or declarations.library is None:
        return type_, ""
    try:
        version = codec.identify(record.value, declarations.library)
    except BadInput:
        return None, ""
    return version.name, version.path


def _read_event(record: Record, type_: str, schema: str, declarations: ServiceDeclarations) -> LoggedEvent | None:
    """Read the event in a record; `None` if a worker cannot decode it as a message."""
    try:
        return _read_event_of_service(record, type_, declarations) or _read_any_event(
            record, type_, schema, declarations
        )
    except (BadInput, UnicodeDecodeError):
        return None


def _read_event_of_service(record: Record, type_: str, declarations: ServiceDeclarations) -> LoggedEvent | None:
    """Read the event if a service of the run published it; `None` for any other record.

    Most records are of this kind. To save time, their values are not decoded.
    """
    if not record.value or not record.key or record.key in declarations.spoiled:
        return None
    headers = {name: (value or b"").decode() for name, value in record.headers}
    source, id_, contract = headers.get("ce_source", ""), headers.get("ce_id"), declarations.contracts.get(type_)
    if (
        source not in declarations.services
        or contract is None
        or not id_
        or record.key.decode() != headers.get("ce_subject")
    ):
        return None
    name = identity(source, id_, type_, contract.owner)
    return LoggedEvent(headers["ce_subject"], name, type_, source, headers.get("ce_sagastart"), record)


def _read_any_event(record: Record, type_: str, schema: str, declarations: ServiceDeclarations) -> LoggedEvent:
    contract = declarations.contracts.get(type_)
    message = envelope.to_message(record, type_=type_, schema=schema, contract=contract)
    return LoggedEvent(message.saga, message.id, message.type, message.source, message.started, record)


def _read_timer(record: Record) -> SagaTimer | None:
    """Read the timer in a record; `None` if a worker could not decode it."""
    try:
        return parse_timer(record)
    except BadInput:
        return None


def _read_dead_letter(service: str, record: Record) -> LoggedDeadLetter:
    given = texts_of(record.headers)
    return LoggedDeadLetter(
        id=given.get("dead_id", ""),
        service=service,
        handler=given.get("dead_handler"),
        message=given.get("dead_message", ""),
        position=given.get("dead_position"),
        is_escalation="dead_undoes" in given,
        record=record,
    )
