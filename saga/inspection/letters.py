"""Letters on the topics `<service>.dead`, for people: dead letters, escalations, ends, and what was done by hand."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from saga.clock import Clock
from saga.config import Settings
from saga.errors import SagaError
from saga.inspection.sources import administration_of, unmade
from saga.messages import Headers, Record, texts_of
from saga.names import dead_letters_of

LETTERS_MAX = 100_000
"""Letters that are kept in memory, at most: of more only the newest are."""
ENDS = ("dropped", "replayed", "discarded")
"""Kinds of letters that tell of the end of a dead letter: their ids are its id and this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One thing that people have to see."""

    service: str
    id: str
    what: str
    """Kind: `dead letter`, `escalation`, `dropped`, `replayed`, `discarded`, or what was done by hand."""
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


class Found(NamedTuple):
    """Letters that a log has."""

    letters: tuple[Letter, ...]
    """Letters newest first; each once, as it was said last."""
    trouble: str | None
    """Reason that there may be more."""


async def letters_of(services: Collection[str], settings: Settings, clock: Clock) -> Found:
    """Letters that these services have written to their topics. It reads each of them from its beginning."""
    if (file := unmade(settings)) is not None:
        return Found((), f"no file {file}")
    known: dict[str, Letter] = {}
    more, trouble = False, None
    try:
        async with administration_of(settings, clock) as broker:
            topics = {dead_letters_of(service): service for service in services}
            for topic in await broker.partitions(topics):
                async for record in broker.scan(topic):
                    letter = letter_in(topics[topic], record)
                    if letter is not None:
                        known[letter.id] = letter
                    if len(known) > 2 * LETTERS_MAX:
                        known, more = {letter.id: letter for letter in _newest(known.values())}, True
    except SagaError as why:
        trouble = str(why)
    if more or len(known) > LETTERS_MAX:
        trouble = trouble or f"there are more than {LETTERS_MAX}, these are the newest"
    return Found(_newest(known.values()), trouble)


def _newest(letters: Iterable[Letter]) -> tuple[Letter, ...]:
    return tuple(sorted(letters, key=lambda letter: (letter.time, letter.id), reverse=True)[:LETTERS_MAX])


def letter_in(service: str, record: Record) -> Letter | None:
    """Letter in a record; `None` if it is none: anybody may write to a topic."""
    theirs, ours = _parted(record.headers)
    said = texts_of(ours)
    if not said.get("dead_id") or not said.get("dead_what"):
        return None
    of_theirs = texts_of(theirs)
    attempts = said.get("dead_attempts", "")
    key = None if record.key is None else record.key.decode("utf-8", "backslashreplace")
    return Letter(
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
        whole=said.get("dead_whole") or said.get("dead_position"),
        undoes=said.get("dead_undoes"),
        calls=tuple((value or b"").decode("utf-8", "backslashreplace") for name, value in ours if name == "dead_call"),
    )


def _parted(headers: Headers) -> tuple[Headers, Headers]:
    """Headers of the original, and ours behind them: the original may have any, and names like ours among them."""
    first = max((i for i, (name, _) in enumerate(headers) if name == "dead_id"), default=len(headers))
    return headers[:first], headers[first:]
