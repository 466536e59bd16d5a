"""Records on the topics `<service>.dead`: dead letters, escalations, how dead letters ended, and moves of offsets by
operators."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from saga.configuration.settings import Settings
from saga.errors import BadInput, SagaError
from saga.messages import Headers, Message, Record, texts_of
from saga.messaging import envelope
from saga.messaging.names import dead_letter_topic
from saga.ops.sources import missing_broker_file, open_administration
from saga.support.clock import Clock

RECORDS_MAX = 100_000
"""Maximum number of records that are returned. If there are more, only the newest are."""
ENDS = ("dropped", "replayed", "discarded", "resolved")
"""Kinds of records that report how a dead letter ended. The id of such a record consists of the dead letter's id, `-`
and the kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record on `<service>.dead`. Parked runs and what blocks a saga according to its progress are shown in the same
    form."""

    service: str
    id: str
    what: str
    """Kind of the record: `dead letter`, `escalation`, one of `ENDS`, or a move of offsets (see `saga.ops.offsets`).
    For parked runs see `saga.ops.attention`."""
    time: str
    reason: str
    remedy: str
    saga: str | None = None
    """Saga id; `None` if it is unknown."""
    type: str | None = None
    message: str | None = None
    handler: str | None = None
    attempts: int | None = None
    where: str | None = None
    """Place in the service's code where the last attempt failed."""
    stack: tuple[str, ...] = ()
    """The call stack of that place, outermost frame first."""
    blame: str | None = None
    """Who can fix the cause: `data`, `code` or `outside`; or `person`, if an operator's route sent the message here.
    `None` if no failure caused the dead letter, or if an earlier version of saga wrote it."""
    owner: str | None = None
    """The service that owns the contract of the message."""
    state: str | None = None
    """The saga's state before the run that failed, as JSON."""
    headers: tuple[tuple[str, str | None], ...] = ()
    """Headers of the original record. A name may occur several times."""
    whole: str | None = None
    """Topic, partition and offset of the original record, which is complete there."""
    undoes: str | None = None
    """For an escalation: id of the event that the failing compensation cannot undo. Otherwise `None`."""
    calls: tuple[str, ...] = ()
    """Calls to external systems that the run made and that were not undone."""

    @property
    def ends(self) -> str | None:
        """Id of the dead letter whose end this record reports; `None` for other records."""
        suffix = f"-{self.what}"
        return self.id.removesuffix(suffix) if self.what in ENDS and self.id.endswith(suffix) else None


class DeadLetterLog(NamedTuple):
    """The records that were read from `<service>.dead`."""

    letters: tuple[DeadLetter, ...]
    """The records, newest first. Of several records with the same id, only the last one is included."""
    problem: str | None
    """Reason why some records may be missing; `None` if all were read."""


async def read_dead_letters(services: Collection[str], settings: Settings, clock: Clock) -> DeadLetterLog:
    """Read the topics `<service>.dead` of these services from their beginning."""
    if (file := missing_broker_file(settings)) is not None:
        return DeadLetterLog((), f"no file {file}")
    by_id: dict[str, DeadLetter] = {}
    more, trouble = False, None
    try:
        async with open_administration(settings, clock) as broker:
            topics = {dead_letter_topic(service): service for service in services}
            there = await broker.count_partitions(topics)
            hidden = [] if broker.creates_topics else [topic for topic in topics if topic not in there]
            if hidden:  # the broker lists only topics that this user may read
                trouble = f"topic {', '.join(hidden)} is missing, or hidden from this user, who needs Read on it"
            for topic in there:
                async for record in broker.scan(topic):
                    letter = decode_dead_letter(topics[topic], record)
                    if letter is not None:
                        by_id[letter.id] = letter
                    if len(by_id) > 2 * RECORDS_MAX:
                        by_id, more = {letter.id: letter for letter in _sort_newest_first(by_id.values())}, True
    except SagaError as why:
        trouble = str(why)
    if more or len(by_id) > RECORDS_MAX:
        trouble = trouble or f"there are more than {RECORDS_MAX}, these are the newest"
    return DeadLetterLog(_sort_newest_first(by_id.values()), trouble)


async def read_originals(
    service: str, ids: Collection[str], settings: Settings, clock: Clock
) -> Mapping[str, Message | BadInput]:
    """Read the original messages of these dead letters from `<service>.dead`.

    Returns:
        For each dead letter that was found: its message, or the reason why the message cannot be restored.

    Raises:
        SagaError: The broker cannot be used.
    """
    found: dict[str, Message | BadInput] = {}
    topic = dead_letter_topic(service)
    async with open_administration(settings, clock) as broker:
        if topic in await broker.count_partitions([topic]):
            async for record in broker.scan(topic):
                letter = decode_dead_letter(service, record)
                if letter is not None and letter.id in ids:
                    found[letter.id] = _decode_original(record)
    return found


def _decode_original(record: Record) -> Message | BadInput:
    theirs, ours = _split_headers(record.headers)
    added = texts_of(ours)
    if "dead_cut" in added:
        return BadInput(f"the dead letter has only a part of the original, which is at {added.get('dead_whole', '?')}")
    type_ = texts_of(theirs).get("ce_type", "").rpartition(".")[2]
    try:
        message = envelope.to_message(record._replace(headers=theirs), type_=type_, schema="", contract=None)
    except BadInput as why:
        return why
    return replace(message, id=added.get("dead_message") or message.id)


def _sort_newest_first(letters: Iterable[DeadLetter]) -> tuple[DeadLetter, ...]:
    return tuple(sorted(letters, key=lambda letter: (letter.time, letter.id), reverse=True)[:RECORDS_MAX])


def decode_dead_letter(service: str, record: Record) -> DeadLetter | None:
    """Decode a record of `<service>.dead`. Return `None` if it has another form, because other clients may write to the
    topic, too."""
    theirs, ours = _split_headers(record.headers)
    added = texts_of(ours)
    if not added.get("dead_id") or not added.get("dead_what"):
        return None
    of_theirs = texts_of(theirs)
    attempts = added.get("dead_attempts", "")
    key = None if record.key is None else record.key.decode("utf-8", "backslashreplace")
    return DeadLetter(
        service=service,
        id=added["dead_id"],
        what=added["dead_what"],
        time=added.get("dead_time", ""),
        reason=added.get("dead_reason", ""),
        remedy=added.get("dead_remedy", ""),
        saga=key or None,
        type=of_theirs.get("ce_type", "").rpartition(".")[2] or None,
        message=added.get("dead_message") or of_theirs.get("ce_id"),
        handler=added.get("dead_handler"),
        attempts=int(attempts) if attempts.isascii() and attempts.isdigit() and len(attempts) < 10 else None,
        where=added.get("dead_where"),
        stack=_decode_header(ours, "dead_stack"),
        blame=added.get("dead_class"),
        owner=added.get("dead_owner"),
        state=added.get("dead_state"),
        headers=decode_headers_as_text(theirs),
        whole=added.get("dead_whole") or added.get("dead_position"),
        undoes=added.get("dead_undoes"),
        calls=_decode_header(ours, "dead_call"),
    )


def decode_headers_as_text(headers: Headers) -> tuple[tuple[str, str | None], ...]:
    """Decode headers for display. Bytes that are not UTF-8 are shown as escapes."""
    return tuple(
        (name, None if value is None else value.decode("utf-8", "backslashreplace")) for name, value in headers
    )


def _decode_header(headers: Headers, name: str) -> tuple[str, ...]:
    """Return the values of all headers with this name."""
    return tuple(value or "" for each, value in decode_headers_as_text(headers) if each == name)


def _split_headers(headers: Headers) -> tuple[Headers, Headers]:
    """Split the headers of a dead letter into those of the original record and those that the service appended.

    The original may have headers with the same names. So the last `dead_id` header marks where the appended ones begin.
    """
    first = max((i for i, (name, _) in enumerate(headers) if name == "dead_id"), default=len(headers))
    return headers[:first], headers[first:]
