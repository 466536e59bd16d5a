"""Letters on the topics `<service>.dead`, for people: dead letters, escalations, ends, and what was done by hand."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from saga.configuration.settings import Settings
from saga.errors import BadInput, SagaError
from saga.messages import Headers, Message, Record, texts_of
from saga.messaging import envelope
from saga.messaging.names import dead_letters_of
from saga.ops.sources import missing_broker_file, open_administration
from saga.support.clock import Clock

RECORDS_MAX = 100_000
"""Letters that are kept in memory, at most: of more only the newest are."""
ENDS = ("dropped", "replayed", "discarded", "resolved")
"""Kinds of letters that tell of the end of a dead letter: their ids are its id and this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One thing that people have to see."""

    service: str
    id: str
    what: str
    """Kind: `dead letter`, `escalation`, `dropped`, `replayed`, `discarded`, `resolved`, or what was done by hand."""
    time: str
    reason: str
    remedy: str
    saga: str | None = None
    """Saga id; `None`: nobody can tell."""
    type: str | None = None
    message: str | None = None
    handler: str | None = None
    attempts: int | None = None
    where: str | None = None
    """Place in the service's code at which the last attempt failed."""
    stack: tuple[str, ...] = ()
    """Places that led there, outermost first."""
    blame: str | None = None
    """Class: `data`, `code`, `outside`; `None`: nobody is to blame, or an earlier version wrote it."""
    owner: str | None = None
    """Service that owns the contract of the message."""
    state: str | None = None
    """The saga's state before the run that failed, as JSON."""
    headers: tuple[tuple[str, str | None], ...] = ()
    """Headers of the original, as they came; one may be there several times."""
    whole: str | None = None
    """Place of the whole original."""
    undoes: str | None = None
    """Id of the event that a failing compensation cannot undo; else `None`."""
    calls: tuple[str, ...] = ()

    @property
    def ends(self) -> str | None:
        """Id of the dead letter whose end this is."""
        suffix = f"-{self.what}"
        return self.id.removesuffix(suffix) if self.what in ENDS and self.id.endswith(suffix) else None


class DeadLetterLog(NamedTuple):
    """Letters that a log has."""

    letters: tuple[DeadLetter, ...]
    """Letters newest first; each once, as it was said last."""
    problem: str | None
    """Reason that there may be more."""


async def read_dead_letters(services: Collection[str], settings: Settings, clock: Clock) -> DeadLetterLog:
    """Letters that these services have written to their topics. It reads each of them from its beginning."""
    if (file := missing_broker_file(settings)) is not None:
        return DeadLetterLog((), f"no file {file}")
    known: dict[str, DeadLetter] = {}
    more, trouble = False, None
    try:
        async with open_administration(settings, clock) as broker:
            topics = {dead_letters_of(service): service for service in services}
            there = await broker.count_partitions(topics)
            hidden = [] if broker.creates_topics else [topic for topic in topics if topic not in there]
            if hidden:  # a topic that we may not read looks like one that is missing
                trouble = f"topic {', '.join(hidden)} is missing, or hidden from this user, who needs Read on it"
            for topic in there:
                async for record in broker.scan(topic):
                    letter = decode_dead_letter(topics[topic], record)
                    if letter is not None:
                        known[letter.id] = letter
                    if len(known) > 2 * RECORDS_MAX:
                        known, more = {letter.id: letter for letter in _sort_newest_first(known.values())}, True
    except SagaError as why:
        trouble = str(why)
    if more or len(known) > RECORDS_MAX:
        trouble = trouble or f"there are more than {RECORDS_MAX}, these are the newest"
    return DeadLetterLog(_sort_newest_first(known.values()), trouble)


async def read_originals(
    service: str, ids: Collection[str], settings: Settings, clock: Clock
) -> Mapping[str, Message | BadInput]:
    """Messages of these letters, from the topic alone, by the letter's id; or why one is not whole there. Raises
    `SagaError`: the broker cannot be used."""
    found: dict[str, Message | BadInput] = {}
    topic = dead_letters_of(service)
    async with open_administration(settings, clock) as broker:
        if topic in await broker.count_partitions([topic]):
            async for record in broker.scan(topic):
                letter = decode_dead_letter(service, record)
                if letter is not None and letter.id in ids:
                    found[letter.id] = _decode_original(record)
    return found


def _decode_original(record: Record) -> Message | BadInput:
    theirs, ours = _split_headers(record.headers)
    said = texts_of(ours)
    if "dead_cut" in said:
        return BadInput(f"its original is not whole in the dead letter: it lies at {said.get('dead_whole', '?')}")
    type_ = texts_of(theirs).get("ce_type", "").rpartition(".")[2]
    try:
        message = envelope.to_message(record._replace(headers=theirs), type_=type_, schema="", contract=None)
    except BadInput as why:
        return why
    return replace(message, id=said.get("dead_message") or message.id)


def _sort_newest_first(letters: Iterable[DeadLetter]) -> tuple[DeadLetter, ...]:
    return tuple(sorted(letters, key=lambda letter: (letter.time, letter.id), reverse=True)[:RECORDS_MAX])


def decode_dead_letter(service: str, record: Record) -> DeadLetter | None:
    """Letter in a record; `None` if it is none: anybody may write to a topic."""
    theirs, ours = _split_headers(record.headers)
    said = texts_of(ours)
    if not said.get("dead_id") or not said.get("dead_what"):
        return None
    of_theirs = texts_of(theirs)
    attempts = said.get("dead_attempts", "")
    key = None if record.key is None else record.key.decode("utf-8", "backslashreplace")
    return DeadLetter(
        service=service,
        id=said["dead_id"],
        what=said["dead_what"],
        time=said.get("dead_time", ""),
        reason=said.get("dead_reason", ""),
        remedy=said.get("dead_remedy", ""),
        saga=key or None,
        type=of_theirs.get("ce_type", "").rpartition(".")[2] or None,
        message=said.get("dead_message") or of_theirs.get("ce_id"),
        handler=said.get("dead_handler"),
        attempts=int(attempts) if attempts.isascii() and attempts.isdigit() and len(attempts) < 10 else None,
        where=said.get("dead_where"),
        stack=_decode_header(ours, "dead_stack"),
        blame=said.get("dead_class"),
        owner=said.get("dead_owner"),
        state=said.get("dead_state"),
        headers=decode_headers_as_text(theirs),
        whole=said.get("dead_whole") or said.get("dead_position"),
        undoes=said.get("dead_undoes"),
        calls=_decode_header(ours, "dead_call"),
    )


def decode_headers_as_text(headers: Headers) -> tuple[tuple[str, str | None], ...]:
    """Headers as people read them, whatever their bytes."""
    return tuple(
        (name, None if value is None else value.decode("utf-8", "backslashreplace")) for name, value in headers
    )


def _decode_header(headers: Headers, name: str) -> tuple[str, ...]:
    """All headers of one name."""
    return tuple(value or "" for said, value in decode_headers_as_text(headers) if said == name)


def _split_headers(headers: Headers) -> tuple[Headers, Headers]:
    """Headers of the original, and ours behind them: the original may have any, and names like ours among them."""
    first = max((i for i, (name, _) in enumerate(headers) if name == "dead_id"), default=len(headers))
    return headers[:first], headers[first:]
