"""Evidence put together by saga: events that were said in it, its dead letters, and its lives in each service."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import msgspec

from saga.contracts import codec
from saga.contracts.contract import Contract
from saga.contracts.library import Library
from saga.engine.consumer.record_router import parse_change
from saga.engine.prepared_service import PreparedService
from saga.errors import BadInput, SagaError
from saga.messages import Event, Record, name_of, texts_of
from saga.messaging import envelope
from saga.messaging.message_ids import identity
from saga.messaging.names import dead_letters_of
from saga.messaging.timers import Wake, tiers_of, wake_in
from saga.testing.invariants.evidence import Evidence, Invariant, Violation
from saga.testing.invariants.progress_lives import ProgressLife, lives_of


class Said(NamedTuple):
    """An event in the log."""

    saga: str
    id: str
    type: str
    source: str
    started: str | None
    record: Record


class Letter(NamedTuple):
    """A record on `<service>.dead`."""

    id: str
    service: str
    handler: str | None
    """Handler that the letter is for; `None`: the progress knows nothing of it."""
    message: str
    position: str | None
    """Position of a record of which not even the saga could be told; `None` for all others."""
    goes_on: bool
    """True if it tells of a compensation that fails and is tried again: that explains nothing that is left at rest."""
    record: Record


@dataclass(frozen=True, slots=True)
class Frame:
    """Declarations that all sagas of a run have in common."""

    services: Mapping[str, PreparedService]
    contracts: Mapping[str, Contract]
    """Contracts of all events that any of the services consumes or emits, by record name."""
    ending: frozenset[str]
    """Kinds of saga that some service here may end."""
    heard: frozenset[str]
    """Types that some service here consumes."""
    spoiled: frozenset[bytes]
    """Keys of sagas in which anybody may have said anything, in the name of a service too."""
    wrong_ms: int = 0
    """Most milliseconds by which the clock of any process was ever wrong."""

    @property
    def changes(self) -> Mapping[str, type[Event]]:
        """Topics of changes of documents, each with the class that stands for them."""
        return {topic: event for service in self.services.values() for topic, event in service.changes.items()}

    @property
    def library(self) -> Library | None:
        return next((service.schemas.library for service in self.services.values()), None)


@dataclass(slots=True)
class SagaCase:
    """Evidence of one saga."""

    frame: Frame
    saga: str
    spoiled: bool
    said: list[Said] = field(default_factory=list)
    """Events in the order of the log."""
    letters: list[Letter] = field(default_factory=list)
    wakes: set[tuple[str, str]] = field(default_factory=set)
    """Service and id of each wake in the log."""
    lives: dict[str, list[ProgressLife]] = field(default_factory=dict)
    """Lives in each service that knows the saga, oldest first."""

    @property
    def again(self) -> bool:
        """True if some service forgot the saga and began it anew."""
        return any(len(lives) > 1 for lives in self.lives.values())

    def outcomes(self) -> dict[str, Said]:
        """Outcomes in the log, by id. In a spoiled saga only those that a service has recorded: anybody may say
        something that cannot be read."""
        found = {s.id: s for s in self.said if s.type in self.frame.contracts and self.frame.contracts[s.type].outcome}
        if found and self.spoiled:
            known = {e.id for life in self.every_life() for t in life.entries for e in t.events}
            return {id_: said for id_, said in found.items() if id_ in known}
        return found

    def every_life(self) -> Iterator[ProgressLife]:
        return chain.from_iterable(self.lives.values())

    def last_lives(self) -> Iterator[tuple[PreparedService, ProgressLife]]:
        """Last life in each service that knows the saga."""
        return ((lives[-1].service, lives[-1]) for lives in self.lives.values())

    def is_forgotten(self, service: str) -> bool:
        """True if a message came to a service that knew nothing of the saga any more."""
        return any(letter.service == service and letter.handler is None for letter in self.letters)

    def violation(self, invariant: Invariant, what: str, service: str | None = None) -> Violation:
        return Violation(invariant, self.saga, service, what)


@dataclass(frozen=True, slots=True)
class SagaCases:
    """Evidence of all sagas of a run."""

    cases: Mapping[str, SagaCase]
    unreadable: Sequence[tuple[Record, str | None]]
    """Records of which not even the saga can be told; with their type where that can."""
    letters: Sequence[Letter]
    """All dead letters, also those of no saga."""
    broken: Sequence[Violation]
    """Documents that are no progress."""


def frame_of(evidence: Evidence) -> Frame:
    """Declarations of all services together."""
    services = {name: witnessed.service for name, witnessed in evidence.services.items()}
    contracts = {name: contract for service in services.values() for name, contract in service.contracts.items()}
    ending = {contracts[name].key for service in services.values() for name in service.roles.outcomes}
    heard = frozenset[str]().union(*(service.consumed for service in services.values()))
    spoiled = frozenset(saga.encode() for saga in evidence.spoiled)
    return Frame(services, contracts, frozenset(ending), heard, spoiled, evidence.wrong_ms)


def cases_of(evidence: Evidence, frame: Frame) -> SagaCases:
    """Log and documents, put together by saga."""
    cases: dict[str, SagaCase] = {}
    unreadable: list[tuple[Record, str | None]] = []
    letters: list[Letter] = []
    dead = {dead_letters_of(name): name for name in frame.services}
    wakes = {topic: name for name in frame.services for topic in tiers_of(name)}

    changes = frame.changes

    def case(saga: str) -> SagaCase:
        if saga not in cases:
            cases[saga] = SagaCase(frame, saga, saga in evidence.spoiled)
        return cases[saga]

    for record in evidence.log:
        if record.topic in dead:
            letter = _letter(dead[record.topic], record)
            letters.append(letter)
            if record.key and letter.position is None and not letter.goes_on:
                case(record.key.decode()).letters.append(letter)
            continue
        if record.topic in wakes and (wake := _wake(record)) is not None:
            case(wake.saga).wakes.add((wakes[record.topic], wake.id))
            continue
        if record.topic in changes:
            try:
                change = parse_change(record, changes[record.topic])
            except BadInput:
                unreadable.append((record, name_of(changes[record.topic])))
                continue
            if change is not None:  # else the toolkit's marks alone are others
                told = Said(change.saga, change.id, change.type, change.source, change.started, record)
                case(change.saga).said.append(told)
            continue
        type_, schema = _identified(record, frame)
        said = None if type_ is None else _said(record, type_, schema, frame)
        if said is None:
            unreadable.append((record, type_))
        else:
            case(said.saga).said.append(said)
    broken = []
    for name, witnessed in evidence.services.items():
        for saga, contents in witnessed.versions.items():
            try:
                lives = lives_of(witnessed.service, contents, witnessed.archives.get(saga, ()))
            except (SagaError, msgspec.DecodeError) as why:
                broken.append(Violation("history", saga, name, str(why)))
                lives = []
            case(saga).lives[name] = lives
    for one in cases.values():
        one.lives = {name: lives for name, lives in one.lives.items() if lives}
    return SagaCases(cases, unreadable, letters, broken)


def _identified(record: Record, frame: Frame) -> tuple[str | None, str]:
    """Type and schema, as a worker tells them; no type if it cannot be told."""
    type_ = envelope.type_of(record)
    if type_ is not None or frame.library is None:
        return type_, ""
    try:
        version = codec.identify(record.value, frame.library)
    except BadInput:
        return None, ""
    return version.name, version.path


def _said(record: Record, type_: str, schema: str, frame: Frame) -> Said | None:
    """The event in a record; `None` if a worker cannot make a message of it."""
    try:
        return _said_by_service(record, type_, frame) or _said_by_anybody(record, type_, schema, frame)
    except (BadInput, UnicodeDecodeError):
        return None


def _said_by_service(record: Record, type_: str, frame: Frame) -> Said | None:
    """The event of one of the services: it is whole and needs no second look, as most of a log."""
    if not record.value or not record.key or record.key in frame.spoiled:
        return None
    headers = {name: (value or b"").decode() for name, value in record.headers}
    source, id_, contract = headers.get("ce_source", ""), headers.get("ce_id"), frame.contracts.get(type_)
    if source not in frame.services or contract is None or not id_ or record.key.decode() != headers.get("ce_subject"):
        return None
    name = identity(source, id_, type_, contract.owner)
    return Said(headers["ce_subject"], name, type_, source, headers.get("ce_sagastart"), record)


def _said_by_anybody(record: Record, type_: str, schema: str, frame: Frame) -> Said:
    contract = frame.contracts.get(type_)
    message = envelope.to_message(record, type_=type_, schema=schema, contract=contract)
    return Said(message.saga, message.id, message.type, message.source, message.started, record)


def _wake(record: Record) -> Wake | None:
    """The wake in a record; `None` if a worker cannot make one of it."""
    try:
        return wake_in(record)
    except BadInput:
        return None


def _letter(service: str, record: Record) -> Letter:
    given = texts_of(record.headers)
    return Letter(
        id=given.get("dead_id", ""),
        service=service,
        handler=given.get("dead_handler"),
        message=given.get("dead_message", ""),
        position=given.get("dead_position"),
        goes_on="dead_undoes" in given,
        record=record,
    )
