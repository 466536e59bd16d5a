"""Audit of a service: what operators did, when and why, and what proves it.

Operators set controls, send commands and move offsets. Controls are recorded in the control log of the service, and the
results of commands in the history of their saga. Both are hash chains that can be verified. An entry that is only on a
topic proves no more than that some client wrote it there.
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
from saga.messaging import controls, operator_commands
from saga.messaging.controls import Control, ControlEntry, ControlLog, Switch, parse_control
from saga.messaging.names import ARCHIVES, command_topic, dead_letter_topic
from saga.messaging.operator_commands import OperatorCommand, parse_command
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
from saga.support.printable import count_noun

ACTS_MAX = 100_000
"""Maximum number of entries of one kind that are kept in memory. If there are more, only the newest are kept."""
MOVES_MAX = 100
"""Maximum number of partitions of one move that are listed."""
Kind: TypeAlias = Literal["switch", "replay", "discard", "resolve", "release", "move"]
KINDS: tuple[Kind, ...] = ("switch", "replay", "discard", "resolve", "release", "move")
Shows: TypeAlias = Literal["book", "history", "topic"]
NOT_APPLIED_YET = "no trace of it yet: the service has not come to it, or knew nothing of the saga"
NOT_LOGGED = "not in the service's book: it has not come to it, or had no room"


class AuditEntry(Struct, frozen=True, kw_only=True):
    """One action of an operator."""

    time: str
    kind: Kind
    who: str | None
    """Name that the operator gave; `None` if it is not known."""
    why: str
    what: str
    became: str
    shown_by: Shows
    """Where the action is recorded: in `book` (the control log) or `history` (the history of the saga), which are hash
    chains and prove it, or only on a `topic`."""
    saga: str | None = None
    entry: ControlEntry | None = None
    """The entry of the control log, if the action is a control that was recorded there."""


class Audit(NamedTuple):
    """All actions of operators on a service."""

    entries: Sequence[AuditEntry]
    """Actions, oldest first."""
    control_log: ControlLog
    """Control log of the service."""
    wrong: Sequence[str]
    """Reasons why entries may be missing or forged."""
    notes: Sequence[str]
    """Other remarks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Selection of audit entries: an entry has to match every field that is set."""

    kinds: Sequence[str] = ()
    saga: str | None = None
    who: str | None = None
    since_ms: int = 0

    def matches(self, act: AuditEntry) -> bool:
        """True if the entry is selected."""
        return (
            (not self.kinds or act.kind in self.kinds)
            and self.saga in (None, act.saga)
            and self.who in (None, act.who)
            and (not self.since_ms or _parse_ms(act.time) >= self.since_ms)
        )


def _parse_ms(time: str) -> int:
    """Convert a time from a record to milliseconds since 1970. A malformed time counts as later than any other, so that
    its entry is shown."""
    try:
        return from_iso(time)
    except (ValueError, OverflowError):
        return 1 << 62


@dataclass(slots=True)
class _TopicRecords:
    """Actions of operators that are recorded on the topics of a service, by id."""

    commands: dict[str, OperatorCommand] = field(default_factory=dict)
    controls: dict[str, Control] = field(default_factory=dict)
    ends: dict[str, DeadLetter] = field(default_factory=dict)
    moves: dict[str, AuditEntry] = field(default_factory=dict)
    others: int = 0
    """Number of records on the command topic that are not valid commands."""
    wrong: list[str] = field(default_factory=list)


async def read_audit(service: str, deployment: Deployment, asked: AuditFilter) -> Audit:
    """Read the selected actions of operators on a service. Raises `SagaError` if the service has no store, or if its
    control log cannot be read."""
    records = await read_topic_records(service, deployment.broker_settings, deployment.clock)
    async with deployment.open_stores((service,)) as sources:
        source = next((source for source in sources if source.service == service), None)
        if source is None:
            raise SagaError(
                f"there is no store of {service!r}: name it with --store, or see whether the service ever ran"
            )
        there = await source.store.get(ARCHIVES, controls.control_log_key(service))
        control_log = controls.decode_control_log(service, None if there is None else there.content)
        acts = [*_audit_controls(control_log, records), *records.moves.values()]
        histories: dict[str, Mapping[str, Transition]] = {}
        meant = [command for command in records.commands.values() if asked.saga in (None, command.saga)]
        acts += [await _audit_command(command, source, histories, records) for command in meant]
    orphans = list(_applied_without_command(records))
    if orphans:
        records.wrong.append(
            f"{count_noun(len(orphans), 'end')} of dead letters on {dead_letter_topic(service)} whose command is not "
            f"on {command_topic(service)}: the command was removed, or the end was forged"
        )
    if (broken := controls.verify_control_log(control_log)) is not None:
        records.wrong.append(broken)
    notes = (
        [f"{count_noun(records.others, 'record')} on {command_topic(service)} that are no commands, and ignored"]
        if records.others
        else []
    )
    found = sorted((act for act in (*acts, *orphans) if asked.matches(act)), key=lambda act: act.time)
    return Audit(found, control_log, records.wrong, notes)


# -------------------------------------------------------------------- records on topics


async def read_topic_records(service: str, settings: Settings, clock: Clock) -> _TopicRecords:
    """Read the topics of commands and of dead letters of a service. If a part of them cannot be read, `wrong` of the
    result says so."""
    records = _TopicRecords()
    if (file := missing_broker_file(settings)) is not None:
        records.wrong.append(f"commands and moves of offsets are unknown, as there is no file {file}: name the broker")
        return records
    # In this order, so that the command of each end is read, too.
    topics = (dead_letter_topic(service), command_topic(service))
    try:
        async with open_administration(settings, clock) as broker:
            found = await broker.count_partitions(topics)
            for topic in topics:
                if topic in found:
                    await _read_topic(service, topic, broker, records)
                elif not broker.creates_topics:  # the broker lists only topics that this user may read
                    records.wrong.append(f"topic {topic} is missing, or hidden from this user, who needs Read on it")
    except SagaError as why:
        records.wrong.append(f"not all commands and moves of offsets could be read: {why}")
    return records


async def _read_topic(service: str, topic: str, broker: Administration, records: _TopicRecords) -> None:
    for partition, bounds in (await broker.fetch_bounds([topic])).items():
        if bounds.begin:
            records.wrong.append(
                f"{topic}/{partition.number} begins at offset {bounds.begin}: earlier records were removed, though "
                "this topic should be kept for ever"
            )
    collected: tuple[
        dict[str, OperatorCommand] | dict[str, Control] | dict[str, DeadLetter] | dict[str, AuditEntry], ...
    ]
    collected, was_full = (records.commands, records.controls, records.ends, records.moves), False
    async for record in broker.scan(topic):
        if topic == command_topic(service):
            _add_command(service, record, records)
        else:
            _add_record(service, record, records)
        for each in collected:
            if len(each) > ACTS_MAX:
                del each[next(iter(each))]
                was_full = True
    if was_full:
        records.wrong.append(f"{topic} has more than {ACTS_MAX} of a kind: these are the newest")


def _add_command(service: str, record: Record, records: _TopicRecords) -> None:
    try:
        if any(name == "ce_type" and value == controls.TYPE.encode() for name, value in record.headers):
            control = parse_control(record)
            if control.saga != service:
                raise BadInput("it is for another service")
            records.controls.setdefault(control.id, control)
        else:
            command = parse_command(record)
            records.commands.setdefault(command.id, command)
    except BadInput:
        records.others += 1


def _add_record(service: str, record: Record, records: _TopicRecords) -> None:
    letter = decode_dead_letter(service, record)
    if letter is None:
        return
    if letter.what in (MOVED, STAYED):
        records.moves[letter.id] = _audit_move(record, letter)
    elif letter.what in ENDS and letter.what != "dropped":  # dropped by an outcome, not by an operator
        records.ends[letter.id] = letter


class _MovedTo(Struct, frozen=True):
    topic: str
    partition: int
    to: int
    from_: int | None = msgspec.field(name="from")


class _MovesRecord(Struct, frozen=True):
    """The decoded value of a record about moved offsets."""

    who: str
    why: str
    moves: tuple[_MovedTo, ...]


def _audit_move(record: Record, letter: DeadLetter) -> AuditEntry:
    became = "moved" if letter.what == MOVED else "not moved"
    try:
        move = msgspec.json.decode(record.value or b"", type=_MovesRecord)
    except UNREADABLE:
        what = "a move of offsets, which cannot be decoded"
        return AuditEntry(
            time=letter.time, kind="move", who=None, why=letter.reason, what=what, became=became, shown_by="topic"
        )
    moves = [
        f"{m.topic}/{m.partition} {'the beginning' if m.from_ is None else m.from_} -> {m.to}"
        for m in move.moves[:MOVES_MAX]
    ]
    more = [f"and {len(move.moves) - MOVES_MAX} more"] if len(move.moves) > MOVES_MAX else []
    what = f"move of {', '.join(moves + more)}"
    return AuditEntry(
        time=letter.time, kind="move", who=move.who, why=move.why, what=what, became=became, shown_by="topic"
    )


# -------------------------------------------------------------------- results


def _audit_controls(control_log: ControlLog, records: _TopicRecords) -> Iterator[AuditEntry]:
    """Yield the controls that are in the control log, then those that were requested but are not in it."""
    logged = set[str]()
    for entry in controls.entries_of(control_log):
        logged.add(entry.id)
        became = "switched" if entry.refused is None else f"refused: {entry.refused}"
        yield _audit_switch(entry.time, entry.who, entry.why, entry.switch, became, entry)
    for control in records.controls.values():
        if control.id not in logged:
            yield _audit_switch(control.time, control.who, control.why, control.switch, NOT_LOGGED, None)


def _audit_switch(time: str, who: str, why: str, switch: Switch, became: str, entry: ControlEntry | None) -> AuditEntry:
    return AuditEntry(
        time=time,
        kind="switch",
        who=who,
        why=why,
        what=controls.describe_switch(switch),
        became=became,
        shown_by="topic" if entry is None else "book",
        saga=switch.saga,
        entry=entry,
    )


async def _audit_command(
    command: OperatorCommand,
    source: ServiceStore,
    histories: dict[str, Mapping[str, Transition]],
    records: _TopicRecords,
) -> AuditEntry:
    """Return a command with its result. The result comes from the saga's history or, if it is not there, from the topic
    of dead letters."""
    saga = command.saga
    if saga not in histories:
        histories[saga] = await _read_entries(source, saga, records)
    entry = histories[saga].get(command.id)
    end = records.ends.get(f"{command.dead}-{OUTCOMES[command.wanted]}")
    became = NOT_APPLIED_YET
    if entry is not None:
        became = _describe_outcome(entry)
        if entry.reason is not None and describe_request(command) not in entry.reason:
            records.wrong.append(
                f"{_describe_command(command)}: the saga's history says {entry.reason!r}, and "
                f"{command_topic(source.service)} says {describe_request(command)}"
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


async def _read_entries(source: ServiceStore, saga: str, records: _TopicRecords) -> Mapping[str, Transition]:
    """Read and verify a saga's history. Return the last transition of each command, by the command's id.

    The result is empty if the service no longer has a progress of the saga, or if the history cannot be read.
    """
    try:
        history = await read_history(source, saga)
        if history is None:
            return {}
        entries = [decode_transition(raw) for raw in history.transitions]
    except (UnreadableHistory, *UNREADABLE) as why:
        records.wrong.append(f"the history of saga {saga} cannot be read: {why}")
        return {}
    if (broken := verify_history(history.transitions, history.progress)) is not None:
        records.wrong.append(f"the history of saga {saga} was changed: {broken.what}")
    return {entry.message: entry for entry in entries if entry.type in operator_commands.TYPES}


def _applied_without_command(records: _TopicRecords) -> Iterator[AuditEntry]:
    """Yield an audit entry for each dead letter that was replayed, discarded or resolved although the command topic
    contains no such command."""
    wanted = {(c.saga, f"{c.dead}-{OUTCOMES[c.wanted]}") for c in records.commands.values()}
    kinds: Mapping[str, Kind] = {"replayed": "replay", "discarded": "discard", "resolved": "resolve"}
    for letter in records.ends.values():
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


def _describe_command(command: OperatorCommand) -> str:
    """Describe a command. If it answers a step, the answer itself is left out, because it may be sensitive. It is in
    the saga's history."""
    given = command.answered
    how = ""
    if given is not None:
        number = "" if given.number == 1 else f" {given.number}"
        how = f" by step {given.step}{number}, " + (f"raised {given.raised}" if given.raised else "answered")
    new = " as new" if command.original is not None else ""
    return f"{command.wanted} of {command.dead}{new} in {command.saga}{how}"
