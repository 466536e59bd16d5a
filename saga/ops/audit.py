"""Audit of a service: what people switched, replayed, discarded, resolved or moved in it, when and why, and what shows
that it is so.

A switch stands in the service's book, and what became of a command in the history of its saga: both are chains, which
can be checked. What lies in a topic alone is what somebody has said, who may write there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from saga.broker.administration import Administration
from saga.configuration.settings import Settings
from saga.errors import BadInput, SagaError
from saga.messages import Record
from saga.messaging import active_controls, controls, operator_commands
from saga.messaging.controls import Book, Control, Noted, Switch, control_in
from saga.messaging.names import ARCHIVES, commands_of, dead_letters_of
from saga.messaging.operator_commands import Command, command_in
from saga.ops.dead_letters import ENDS, DeadLetter, decode_dead_letter
from saga.ops.histories import UnreadableHistory, read_history
from saga.ops.offsets import MOVED, STAYED
from saga.ops.operator_commands import OUTCOMES
from saga.ops.selection import Deployment
from saga.ops.sources import ServiceStore, missing_broker_file, open_administration
from saga.progress.document import UNREADABLE, Transition, decode_transition
from saga.progress.history import verify_history
from saga.progress.operator_commands import describe_request
from saga.support.clock import Clock, from_iso
from saga.support.printable import counted

ACTS_MAX = 100_000
"""Acts of a kind that are kept in memory, at most: of more only the newest are."""
MOVES_MAX = 100
"""Positions of one move that are told, at most."""
Kind: TypeAlias = Literal["switch", "replay", "discard", "resolve", "release", "move"]
KINDS: tuple[Kind, ...] = ("switch", "replay", "discard", "resolve", "release", "move")
Shows: TypeAlias = Literal["book", "history", "topic"]
NOT_APPLIED_YET = "no trace of it yet: the service has not come to it, or knew nothing of the saga"
NOT_LOGGED = "not in the service's book: it has not come to it, or had no room"


class AuditEntry(Struct, frozen=True, kw_only=True):
    """One thing that a person has done to a service."""

    time: str
    kind: Kind
    who: str | None
    """Name that the person gave; `None`: nothing tells it any more."""
    why: str
    what: str
    became: str
    shown_by: Shows
    """Thing that tells it: the `book` or the `history` of the saga, both chains; or a `topic`, and nothing else."""
    saga: str | None = None
    entry: Noted | None = None
    """Entry of the book, of a switch that is in there."""


class Audit(NamedTuple):
    """All that people have done to a service."""

    entries: Sequence[AuditEntry]
    """Acts, oldest first."""
    book: Book
    wrong: Sequence[str]
    """Reasons for which this may not be all of it, or not as it was."""
    notes: Sequence[str]
    """Other things that people should know of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Acts that are asked for: those for which all that is given holds."""

    kinds: Sequence[str] = ()
    saga: str | None = None
    who: str | None = None
    since_ms: int = 0

    def matches(self, act: AuditEntry) -> bool:
        """True if the act is asked for."""
        return (
            (not self.kinds or act.kind in self.kinds)
            and self.saga in (None, act.saga)
            and self.who in (None, act.who)
            and (not self.since_ms or _parse_ms(act.time) >= self.since_ms)
        )


def _parse_ms(time: str) -> int:
    """Milliseconds since 1970 of a time that somebody has said; of one that is none the last there can be: it is
    shown."""
    try:
        return from_iso(time)
    except (ValueError, OverflowError):
        return 1 << 62


@dataclass(slots=True)
class _TopicRecords:
    """Records of a service's topics, as far as they tell of people."""

    commands: dict[str, Command] = field(default_factory=dict)
    controls: dict[str, Control] = field(default_factory=dict)
    ends: dict[str, DeadLetter] = field(default_factory=dict)
    moves: dict[str, AuditEntry] = field(default_factory=dict)
    others: int = 0
    """Records on the topic of commands that are none."""
    wrong: list[str] = field(default_factory=list)


async def read_audit(service: str, deployment: Deployment, asked: AuditFilter) -> Audit:
    """Find what people have done to a service, as far as it is asked for. Raises `SagaError` if there is no store of
    it, or its book cannot be read."""
    said = await read_topic_records(service, deployment.broker_settings, deployment.clock)
    async with deployment.open_stores((service,)) as sources:
        source = next((source for source in sources if source.service == service), None)
        if source is None:
            raise SagaError(
                f"there is no store of {service!r}: name it with --store, or see whether the service ever ran"
            )
        there = await source.store.get(ARCHIVES, controls.book_key(service))
        book = controls.decode(service, None if there is None else there.content)
        acts = [*_audit_controls(book, said), *said.moves.values()]
        histories: dict[str, Mapping[str, Transition]] = {}
        meant = [command for command in said.commands.values() if asked.saga in (None, command.saga)]
        acts += [await _audit_command(command, source, histories, said) for command in meant]
    orphans = list(_applied_without_command(said))
    if orphans:
        said.wrong.append(
            f"{counted(len(orphans), 'end')} of dead letters on {dead_letters_of(service)} whose command is not on "
            f"{commands_of(service)}: it was removed, or somebody has written the end"
        )
    if (broken := controls.verify(book)) is not None:
        said.wrong.append(broken)
    notes = [f"{counted(said.others, 'record')} on {commands_of(service)} that nobody heeds"] if said.others else []
    found = sorted((act for act in (*acts, *orphans) if asked.matches(act)), key=lambda act: act.time)
    return Audit(found, book, said.wrong, notes)


# -------------------------------------------------------------------- what the topics have


async def read_topic_records(service: str, settings: Settings, clock: Clock) -> _TopicRecords:
    """Records of both topics. What cannot be read is told as a reason that something may lack."""
    said = _TopicRecords()
    if (file := missing_broker_file(settings)) is not None:
        said.wrong.append(f"commands and moves cannot be told, for there is no file {file}: name the broker")
        return said
    topics = dead_letters_of(service), commands_of(service)  # so: each end has its command there by then
    try:
        async with open_administration(settings, clock) as broker:
            found = await broker.count_partitions(topics)
            for topic in topics:
                if topic in found:
                    await _read_topic(service, topic, broker, said)
                elif not broker.creates_topics:  # a topic that we may not read looks like one that is missing
                    said.wrong.append(f"topic {topic} is missing, or hidden from this user, who needs Read on it")
    except SagaError as why:
        said.wrong.append(f"not all commands and moves can be told: {why}")
    return said


async def _read_topic(service: str, topic: str, broker: Administration, said: _TopicRecords) -> None:
    for partition, bounds in (await broker.fetch_bounds([topic])).items():
        if bounds.begin:
            said.wrong.append(
                f"{topic}/{partition.number} begins at offset {bounds.begin}: what was before is gone, and ought to be "
                "kept for ever"
            )
    kept: tuple[dict[str, Command] | dict[str, Control] | dict[str, DeadLetter] | dict[str, AuditEntry], ...]
    kept, was_full = (said.commands, said.controls, said.ends, said.moves), False
    async for record in broker.scan(topic):
        if topic == commands_of(service):
            _add_command(service, record, said)
        else:
            _add_record(service, record, said)
        for each in kept:
            if len(each) > ACTS_MAX:
                del each[next(iter(each))]
                was_full = True
    if was_full:
        said.wrong.append(f"{topic} has more than {ACTS_MAX} of a kind: these are the newest")


def _add_command(service: str, record: Record, said: _TopicRecords) -> None:
    try:
        if any(name == "ce_type" and value == controls.TYPE.encode() for name, value in record.headers):
            control = control_in(record)
            if control.saga != service:
                raise BadInput("it is for another service")
            said.controls.setdefault(control.id, control)
        else:
            command = command_in(record)
            said.commands.setdefault(command.id, command)
    except BadInput:
        said.others += 1


def _add_record(service: str, record: Record, said: _TopicRecords) -> None:
    letter = decode_dead_letter(service, record)
    if letter is None:
        return
    if letter.what in (MOVED, STAYED):
        said.moves[letter.id] = _audit_move(record, letter)
    elif letter.what in ENDS and letter.what != "dropped":  # an outcome drops one, no person
        said.ends[letter.id] = letter


class _MovedTo(Struct, frozen=True):
    topic: str
    partition: int
    to: int
    from_: int | None = msgspec.field(name="from")


class _MovesRecord(Struct, frozen=True):
    """Value of the record of a move."""

    who: str
    why: str
    moves: tuple[_MovedTo, ...]


def _audit_move(record: Record, letter: DeadLetter) -> AuditEntry:
    became = "moved" if letter.what == MOVED else "not moved"
    try:
        said = msgspec.json.decode(record.value or b"", type=_MovesRecord)
    except UNREADABLE:
        what = "a move of positions, which cannot be read"
        return AuditEntry(
            time=letter.time, kind="move", who=None, why=letter.reason, what=what, became=became, shown_by="topic"
        )
    moves = [
        f"{m.topic}/{m.partition} {'the beginning' if m.from_ is None else m.from_} -> {m.to}"
        for m in said.moves[:MOVES_MAX]
    ]
    more = [f"and {len(said.moves) - MOVES_MAX} more"] if len(said.moves) > MOVES_MAX else []
    what = f"move of {', '.join(moves + more)}"
    return AuditEntry(
        time=letter.time, kind="move", who=said.who, why=said.why, what=what, became=became, shown_by="topic"
    )


# -------------------------------------------------------------------- what became of it


def _audit_controls(book: Book, said: _TopicRecords) -> Iterator[AuditEntry]:
    """Switches in the book, and those that were wished and are not in there."""
    noted = set[str]()
    for entry in controls.entries_of(book):
        noted.add(entry.id)
        became = "switched" if entry.refused is None else f"refused: {entry.refused}"
        yield _audit_switch(entry.time, entry.who, entry.why, entry.switch, became, entry)
    for control in said.controls.values():
        if control.id not in noted:
            yield _audit_switch(control.time, control.who, control.why, control.switch, NOT_LOGGED, None)


def _audit_switch(time: str, who: str, why: str, switch: Switch, became: str, entry: Noted | None) -> AuditEntry:
    return AuditEntry(
        time=time,
        kind="switch",
        who=who,
        why=why,
        what=active_controls.in_words(switch),
        became=became,
        shown_by="topic" if entry is None else "book",
        saga=switch.saga,
        entry=entry,
    )


async def _audit_command(
    command: Command, source: ServiceStore, histories: dict[str, Mapping[str, Transition]], said: _TopicRecords
) -> AuditEntry:
    """A command, with what its saga's history says of it; else with what the topic of dead letters says."""
    saga = command.saga
    if saga not in histories:
        histories[saga] = await _read_entries(source, saga, said)
    entry = histories[saga].get(command.id)
    end = said.ends.get(f"{command.dead}-{OUTCOMES[command.wanted]}")
    became = NOT_APPLIED_YET
    if entry is not None:
        became = _describe_outcome(entry)
        if entry.reason is not None and describe_request(command) not in entry.reason:
            said.wrong.append(
                f"{_describe_command(command)}: the saga's history says {entry.reason!r}, and "
                f"{commands_of(source.service)} says {describe_request(command)}"
            )
    elif end is not None and end.saga == saga:
        became = end.what
    return AuditEntry(
        time=command.time,
        kind=command.wanted,
        who=command.who,
        why=command.why,
        what=_describe_command(command),
        became=became,
        shown_by="topic" if entry is None else "history",
        saga=saga,
    )


def _describe_outcome(entry: Transition) -> str:
    if entry.outcome == "ignored":
        return f"refused: {entry.reason}"
    return "under way" if entry.outcome == "noted" else entry.outcome


async def _read_entries(source: ServiceStore, saga: str, said: _TopicRecords) -> Mapping[str, Transition]:
    """Last transition of each command in a saga's history, which is checked; none if the service does not know the saga
    any more."""
    try:
        history = await read_history(source, saga)
        if history is None:
            return {}
        entries = [decode_transition(raw) for raw in history.transitions]
    except (UnreadableHistory, *UNREADABLE) as why:
        said.wrong.append(f"the history of saga {saga} cannot be read: {why}")
        return {}
    if (broken := verify_history(history.transitions, history.progress)) is not None:
        said.wrong.append(f"the history of saga {saga} is not as it was written: {broken.what}")
    return {entry.message: entry for entry in entries if entry.type in operator_commands.TYPES}


def _applied_without_command(said: _TopicRecords) -> Iterator[AuditEntry]:
    """Ends of dead letters that people must have wanted, and no command tells of."""
    wanted = {(c.saga, f"{c.dead}-{OUTCOMES[c.wanted]}") for c in said.commands.values()}
    kinds: Mapping[str, Kind] = {"replayed": "replay", "discarded": "discard", "resolved": "resolve"}
    for letter in said.ends.values():
        if (letter.saga, letter.id) not in wanted:
            yield AuditEntry(
                time=letter.time,
                kind=kinds[letter.what],
                who=None,
                why=letter.reason,
                what=f"{kinds[letter.what]} of {letter.ends or letter.id} in {letter.saga}",
                became=letter.what,
                shown_by="topic",
                saga=letter.saga,
            )


def _describe_command(command: Command) -> str:
    """A command in words: what a step is said to have answered may be sensitive, and is in the saga's history."""
    given = command.answered
    how = ""
    if given is not None:
        number = "" if given.number == 1 else f" {given.number}"
        how = f" by step {given.step}{number}, " + (f"raised {given.raised}" if given.raised else "answered")
    new = " as new" if command.original is not None else ""
    return f"{command.wanted} of {command.dead}{new} in {command.saga}{how}"
