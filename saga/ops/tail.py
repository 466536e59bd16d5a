"""Tail the log: yield the records of a topic, or of one saga in all topics, decoded for display."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from saga.broker.administration import Administration, PartitionReader
from saga.contracts.json_form import read_json
from saga.contracts.library import Library, find_library
from saga.errors import BadInput, ConfigurationError, ContractError, DeclarationError
from saga.messages import Partition, Record, StalledPartition, texts_of
from saga.messaging.names import OURS, is_dead_letter_topic, is_without_events
from saga.ops.dead_letters import decode_dead_letter
from saga.ops.event_fields import decode_fields, decode_message, decode_value, recognize_record
from saga.ops.sources import Warn
from saga.support.clock import iso
from saga.support.printable import shorten

POLL_S = 0.5
"""Maximum time in seconds to wait for records, before it is checked whether the end was reached and which partitions
are stalled."""
RECORDS_MAX = 500
"""Maximum number of records in one poll."""
TEXT_BYTES_MAX = 1024
"""Maximum number of bytes that are shown of a key or a header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailedRecord:
    """A record, decoded for display."""

    topic: str
    partition: int
    offset: int
    time: str
    """Time at which the broker appended the record."""
    key: str | None
    """Key of the record. In events and in records of saga's own topics, this is the saga id."""
    type: str | None = None
    id: str | None = None
    source: str | None = None
    fields: Mapping[str, object] | None = None
    """Fields by name; sensitive ones are redacted. `None` if the fields cannot be shown."""
    problem: str | None = None
    """Reason why the fields cannot be shown, or something unusual about the record. For a dead letter, its kind and
    reason."""


class TailTarget(NamedTuple):
    """The records to show: all records of some topics, or only those of one saga in these topics."""

    topics: tuple[str, ...]
    saga: str | None = None


async def resolve_target(
    name: str, broker: Administration, library: Library | None, *, as_saga: bool = False
) -> TailTarget:
    """Find out what a name means: the topic of this name if there is one, otherwise a saga in the topics of all
    contracts.

    Args:
        as_saga: Take the name as a saga id, even if there is a topic of this name.

    Raises:
        ConfigurationError: There is no topic of this name, and no topic in which such a saga could be.
    """
    if not as_saga and await broker.count_partitions([name]):
        return TailTarget((name,))
    if library is None:
        problem = f"there is no topic {name}, and no contracts/ folder with the topics in which a saga {name} could be"
        raise ConfigurationError("nothing to tail:", [problem])
    there = await broker.count_partitions(list(library.topics))
    if not there:
        topics = ", ".join(sorted(library.topics))
        problem = f"there is no topic {name}, and no topic of the contracts in {library.folder} exists: {topics}"
        raise ConfigurationError("nothing to tail:", [problem])
    return TailTarget(tuple(sorted(there)), name)


async def tail(
    what: TailTarget, broker: Administration, library: Library | None, warn: Warn, *, since_ms: int | None, follow: bool
) -> AsyncIterator[TailedRecord]:
    """Yield the target's records. Those of one partition come in order.

    A stalled partition is reported to `warn` once, and reading continues in the others.

    Args:
        since_ms: Begin with records that were appended at this time or later. `None` means now.
        follow: Continue with new records. Otherwise stop at the ends that the topics have now.
    """
    ends = {partition: bounds.end for partition, bounds in (await broker.fetch_bounds(what.topics)).items()}
    begins = dict(ends)
    for topic in what.topics if since_ms is not None else ():
        found = await broker.find_offsets(topic, since_ms or 0)
        begins |= {partition: at for partition, at in found.items() if partition in ends}
    reported: set[StalledPartition] = set()
    async with broker.open_reader(begins) as reading:
        while follow or not is_at_end(reading, ends):
            records = await reading.poll(records_max=RECORDS_MAX, timeout_s=POLL_S)
            for record in sorted(
                records, key=lambda each: each.time_ms
            ):  # a stable sort keeps the order within a partition
                is_meant = what.saga is None or record.key == what.saga.encode()
                if is_meant and (follow or record.offset < ends[Partition(*record[:2])]):
                    yield describe_record(record, library)
            for standstill in reading.stalled_partitions():
                if standstill not in reported:
                    reported.add(standstill)
                    warn(standstill.reason)


def is_at_end(reading: PartitionReader, ends: Mapping[Partition, int]) -> bool:
    """Return whether all partitions have been read up to these ends. Stalled partitions are ignored."""
    still = {(each.topic, each.partition) for each in reading.stalled_partitions()}
    return all(
        at >= ends[partition] or partition in still or (partition.topic, None) in still
        for partition, at in reading.positions().items()
    )


def find_contracts() -> tuple[Library | None, str]:
    """Find the contracts with which records are decoded. If there are none, return `None` and the reason."""
    try:
        return find_library(), ""
    except (DeclarationError, ContractError) as why:
        return None, str(why)


# -------------------------------------------------------------------- one record


def describe_record(record: Record, library: Library | None) -> TailedRecord:
    """Decode a record for display. This never raises an exception, whatever the record contains, because any client may
    have written it.

    Without a contract no value is shown, because it is not known which fields are sensitive.
    """
    shown = _describe_place(record)
    try:
        if is_dead_letter_topic(record.topic):
            return _describe_dead_letter(record, shown)
        if is_without_events(record.topic) or record.topic.startswith(f"{OURS}."):
            return replace(shown, fields=_decode_json(record))
        return _describe_event(record, shown, library)
    except BadInput as why:
        return replace(shown, problem=str(why))
    except Exception as why:  # noqa: BLE001 - see above. The text of the error is not shown: it may quote a sensitive value
        return replace(shown, problem=f"it cannot be read as a message: {type(why).__name__}")


def _describe_place(record: Record) -> TailedRecord:
    """Return the position of a record, and the type, id and source from its headers."""
    try:
        time = iso(record.time_ms)
    except (ValueError, OverflowError):
        time = f"{record.time_ms} ms"
    headers = {name: shorten(text, TEXT_BYTES_MAX) for name, text in texts_of(record.headers).items() if text}
    key = None if record.key is None else shorten(record.key.decode("utf-8", "backslashreplace"), TEXT_BYTES_MAX)
    return TailedRecord(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        time=time,
        key=key,
        type=headers.get("ce_type", "").rpartition(".")[2] or None,
        id=headers.get("ce_id"),
        source=headers.get("ce_source"),
    )


def _describe_dead_letter(record: Record, shown: TailedRecord) -> TailedRecord:
    letter = decode_dead_letter(record.topic.rpartition(".")[0], record)
    if letter is None:
        raise BadInput("it is no dead letter or other record of a service")
    return replace(
        shown, type=letter.type, id=letter.id, source=letter.service, problem=f"{letter.what}: {letter.reason}"
    )


def _decode_json(record: Record) -> Mapping[str, object]:
    """Decode the JSON object in a record of one of saga's own topics. Raises `BadInput` if the value is something
    else."""
    try:
        found, _ = read_json(record.value or b"")
    except (ValueError, RecursionError):
        raise BadInput("its value is not JSON") from None
    if not isinstance(found, dict):
        raise BadInput("its value is not a JSON object")
    return found


def _describe_event(record: Record, shown: TailedRecord, library: Library | None) -> TailedRecord:
    """Decode an event in any format that services accept. Raises `BadInput` if the record is not such an event."""
    if library is None:
        raise BadInput("there is no contracts/ folder to decode it by")
    message = decode_message(record, library)
    remark = recognize_record(record, library)[1].remark or None
    shown = replace(shown, type=message.type, id=message.id, source=message.source, problem=remark)
    try:
        return replace(shown, fields=decode_fields(decode_value(message, record.writer, library), library))
    except BadInput as why:
        return replace(shown, problem=str(why))
