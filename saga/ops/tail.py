"""Tailing of the log for people: the records of a topic, or of one saga in all topics, as they come."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from saga.broker.administration import Administration, PartitionReader
from saga.contracts.json_form import read_json
from saga.contracts.library import Library, find_library
from saga.errors import BadInput, ConfigurationError, ContractError, DeclarationError
from saga.messages import Partition, Record, StalledPartition, texts_of
from saga.messaging.names import OURS, is_dead_letters, is_without_events
from saga.ops.dead_letters import decode_dead_letter
from saga.ops.event_fields import decode_fields, decode_message, decode_value, recognize_record
from saga.ops.sources import Warn
from saga.support.clock import iso
from saga.support.printable import shortened

POLL_S = 0.5
"""Time after which it is looked whether the end is reached, or something stands still."""
RECORDS_MAX = 500
"""Records that are read at once."""
TEXT_BYTES_MAX = 1024
"""Most bytes that are shown of a key or a header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailedRecord:
    """Record as people see it."""

    topic: str
    partition: int
    offset: int
    time: str
    """Time at which the log took it."""
    key: str | None
    """Key: the saga id, of events and of what is the toolkit's."""
    type: str | None = None
    id: str | None = None
    source: str | None = None
    fields: Mapping[str, object] | None = None
    """Fields by name, sensitive ones hidden; `None`: they cannot be shown."""
    problem: str | None = None
    """Reason that they cannot be shown, or what is odd about them; of a letter, what it says."""


class TailTarget(NamedTuple):
    """Records that are meant: those of some topics, or only those of one saga in them."""

    topics: tuple[str, ...]
    saga: str | None = None


async def resolve_target(
    name: str, broker: Administration, library: Library | None, *, as_saga: bool = False
) -> TailTarget:
    """Records that a name means: a topic's, if there is one, else those of the saga with this id in the topics of all
    contracts. `as_saga`: it is a saga's id, whatever topics there are. Raises `ConfigurationError`: it is neither."""
    if not as_saga and await broker.count_partitions([name]):
        return TailTarget((name,))
    if library is None:
        problem = f"there is no topic {name}, and no contracts/ that says in which topics a saga {name} could be"
        raise ConfigurationError("nothing to tail:", [problem])
    there = await broker.count_partitions(list(library.topics))
    if not there:
        known = ", ".join(sorted(library.topics))
        problem = f"there is no topic {name}, and none of those of the contracts in {library.folder}: {known}"
        raise ConfigurationError("nothing to tail:", [problem])
    return TailTarget(tuple(sorted(there)), name)


async def tail(
    what: TailTarget, broker: Administration, library: Library | None, warn: Warn, *, since_ms: int | None, follow: bool
) -> AsyncIterator[TailedRecord]:
    """Records that are meant, those of each partition in their order.

    `since_ms`: what the log took then or later; `None`: what comes from now on. `follow`: goes on with what comes; else
    it ends where the topics end now. What cannot be read is told to `warn`, once, and other partitions go on.
    """
    ends = {partition: bounds.end for partition, bounds in (await broker.fetch_bounds(what.topics)).items()}
    begins = dict(ends)
    for topic in what.topics if since_ms is not None else ():
        found = await broker.find_offsets(topic, since_ms or 0)
        begins |= {partition: at for partition, at in found.items() if partition in ends}
    told: set[StalledPartition] = set()
    async with broker.open_reader(begins) as reading:
        while follow or not is_at_end(reading, ends):
            records = await reading.poll(records_max=RECORDS_MAX, timeout_s=POLL_S)
            for record in sorted(records, key=lambda each: each.time_ms):  # stable: the order of a partition stays
                is_meant = what.saga is None or record.key == what.saga.encode()
                if is_meant and (follow or record.offset < ends[Partition(*record[:2])]):
                    yield describe_record(record, library)
            for standstill in reading.stalled_partitions():
                if standstill not in told:
                    told.add(standstill)
                    warn(standstill.reason)


def is_at_end(reading: PartitionReader, ends: Mapping[Partition, int]) -> bool:
    """True if all that was there has been read, but for what stands still."""
    still = {(each.topic, each.partition) for each in reading.stalled_partitions()}
    return all(
        at >= ends[partition] or partition in still or (partition.topic, None) in still
        for partition, at in reading.positions().items()
    )


def find_contracts() -> tuple[Library | None, str]:
    """Contracts to read by, or the reason that there are none."""
    try:
        return find_library(), ""
    except (DeclarationError, ContractError) as why:
        return None, str(why)


# -------------------------------------------------------------------- one record


def describe_record(record: Record, library: Library | None) -> TailedRecord:
    """Record as people see it. Anybody may have written it: nothing that it holds raises. Of what no contract knows no
    value is shown, for nobody could tell what is sensitive in it."""
    told = _describe_place(record)
    try:
        if is_dead_letters(record.topic):
            return _describe_dead_letter(record, told)
        if is_without_events(record.topic) or record.topic.startswith(f"{OURS}."):
            return replace(told, fields=_decode_json(record))
        return _describe_event(record, told, library)
    except BadInput as why:
        return replace(told, problem=str(why))
    except Exception as why:  # noqa: BLE001 - see above; its text may quote a value, and that sensitive
        return replace(told, problem=f"it cannot be read as a message: {type(why).__name__}")


def _describe_place(record: Record) -> TailedRecord:
    """Place of a record, and what its headers say of it."""
    try:
        time = iso(record.time_ms)
    except (ValueError, OverflowError):
        time = f"{record.time_ms} ms"
    said = {name: shortened(text, TEXT_BYTES_MAX) for name, text in texts_of(record.headers).items() if text}
    key = None if record.key is None else shortened(record.key.decode("utf-8", "backslashreplace"), TEXT_BYTES_MAX)
    return TailedRecord(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        time=time,
        key=key,
        type=said.get("ce_type", "").rpartition(".")[2] or None,
        id=said.get("ce_id"),
        source=said.get("ce_source"),
    )


def _describe_dead_letter(record: Record, told: TailedRecord) -> TailedRecord:
    letter = decode_dead_letter(record.topic.rpartition(".")[0], record)
    if letter is None:
        raise BadInput("it is no letter of a service")
    return replace(
        told, type=letter.type, id=letter.id, source=letter.service, problem=f"{letter.what}: {letter.reason}"
    )


def _decode_json(record: Record) -> Mapping[str, object]:
    """JSON object of the toolkit's own. Raises `BadInput`."""
    try:
        found, _ = read_json(record.value or b"")
    except (ValueError, RecursionError):
        raise BadInput("its value is no JSON") from None
    if not isinstance(found, dict):
        raise BadInput("its value is no JSON object")
    return found


def _describe_event(record: Record, told: TailedRecord, library: Library | None) -> TailedRecord:
    """Event in a record, in whichever form services would take it. Raises `BadInput`."""
    if library is None:
        raise BadInput("there is no contracts/ to read it by")
    message = decode_message(record, library)
    remark = recognize_record(record, library)[1].remark or None
    told = replace(told, type=message.type, id=message.id, source=message.source, problem=remark)
    try:
        return replace(told, fields=decode_fields(decode_value(message, record.writer, library), library))
    except BadInput as why:
        return replace(told, problem=str(why))
