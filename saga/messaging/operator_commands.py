"""Commands: what a person wants done with a dead letter, an escalation or a parked run, as a message and as a record.

Nobody but the service writes its progress. So a tool says what is wanted, who wants it and why, and the service does it
in the saga's own lane: the history has all three.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from saga.errors import BadInput
from saga.messages import Message, Outgoing, Record
from saga.messaging import envelope
from saga.messaging.names import OURS, command_topic
from saga.support.clock import iso

Wanted: TypeAlias = Literal["replay", "discard", "resolve", "release"]
WANTED: tuple[Wanted, ...] = ("replay", "discard", "resolve", "release")
OPERATOR = "operator"
"""Source of every command."""
TEXT_MAX = 500
"""Most characters of who and of why: both are kept in the progress."""
ANSWER_BYTES_MAX = 1 << 16
"""Largest answer that a person may give in the place of the outside: it is kept in the progress."""


class StepAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Answer of a person, who knows what the outside did, to one step of a run."""

    step: str
    """Name of the function that the handler hands to `saga.step`."""
    number: int = 1
    """Number of the call among those of this name in the run, from 1."""
    value: str = "null"
    """Value that it gave, as JSON; with `raised` the exception's arguments, as a list."""
    raised: str | None = None
    """Class name of the declared exception by which it answered."""

    def place(self, dead: str) -> str:
        """Place of the value in the log, for which it is sealed there. `dead`: id of the dead letter."""
        return repr(("answered", dead, self.step, self.number))


class OperatorCommand(Message, frozen=True, kw_only=True, gc=False):
    """Wish of a person about a dead letter, an escalation or a parked run of one saga."""

    wanted: Wanted
    dead: str
    """Id of the dead letter, or of the escalation; or of the wait that is to end: see `saga.progress.failed_attempts`.
    A message that is replayed and dies again, or tried and parked again, has another one."""
    who: str
    why: str
    answered: StepAnswer | None = None
    """Answer with which a dead letter is resolved; without one an escalation is."""
    original: Message | None = None
    """Message that is to be handled as a new one: the service keeps nothing of it."""


class _CommandValue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Value of the record."""

    dead: str
    who: str
    why: str
    answered: StepAnswer | None = None
    original: Message | None = None


def type_of(wanted: Wanted) -> str:
    """Type of the message: no contract's name has a dot.

    >>> type_of("replay")
    'saga.replay'
    """
    return f"{OURS}.{wanted}"


TYPES = frozenset(map(type_of, WANTED))
_BY_TYPE: Mapping[bytes, Wanted] = {type_of(wanted).encode(): wanted for wanted in WANTED}


def command_to_record(  # all that a command says
    service: str,
    saga: str,
    *,
    wanted: Wanted,
    dead: str,
    who: str,
    why: str,
    now_ms: int,
    answered: StepAnswer | None = None,
    original: Message | None = None,
) -> Outgoing:
    """Record of a command. Said again at another time it is another command. Raises `BadInput` for a text that is empty
    or too long, and for an answer that cannot be one."""
    said = _CommandValue(dead=dead, who=who, why=why, answered=answered, original=original)
    _check(said, wanted, saga)
    value, time = msgspec.json.encode(said), iso(now_ms)
    digest = blake2b(f"{wanted}|{time}|{len(saga)}|{saga}".encode() + value, digest_size=16).hexdigest()
    headers = envelope.headers_of_ours(type_of(wanted), f"{wanted}-{digest}", OPERATOR, time, saga)
    return Outgoing(command_topic(service), saga.encode(), value, headers)


def parse_command(record: Record) -> OperatorCommand:
    """Command in a record. Raises `BadInput`: anybody may write to the topic."""
    name = next((value for header, value in record.headers if header == "ce_type"), None) or b""
    wanted = _BY_TYPE.get(name)
    if wanted is None:
        raise BadInput(f"it is no command: its ce_type is none of {', '.join(sorted(TYPES))}")
    message = envelope.to_message(record, type_=type_of(wanted), schema="", contract=None)
    try:
        said = msgspec.json.decode(message.value, type=_CommandValue)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise BadInput(f"it is no command: its value is not JSON with `dead`, `who` and `why`: {why}") from why
    _check(said, wanted, message.saga)
    return OperatorCommand(
        id=message.id,
        type=message.type,
        schema="",
        saga=message.saga,
        source=message.source,
        time=message.time,
        value=b"",
        trace=message.trace,
        wanted=wanted,
        dead=said.dead,
        who=said.who,
        why=said.why,
        answered=said.answered,
        original=said.original,
    )


def _check(said: _CommandValue, wanted: Wanted, saga: str) -> None:
    for name in ("dead", "who", "why"):
        text: str = getattr(said, name)
        if not text.strip():
            raise BadInput(f"the command does not say {name!r}: it may not be empty")
        if len(text) > TEXT_MAX:
            raise BadInput(f"the command's {name!r} has {len(text)} characters, and may have {TEXT_MAX}")
    original, answered = said.original, said.answered
    if original is not None and (wanted != "replay" or original.saga != saga or not original.value):
        raise BadInput(f"the command holds a message that is none of saga {saga!r}, or that cannot be replayed")
    if original is not None:
        envelope.check_message(original)
    if answered is None:
        return
    if wanted != "resolve":
        raise BadInput(f"the command gives an answer, and is to {wanted}: only `resolve` does")
    if not answered.step.strip() or len(answered.step) > TEXT_MAX or answered.number < 1:
        raise BadInput(
            f"the command's answer names no step: its name is a text of at most {TEXT_MAX} characters, its number 1 or "
            "more"
        )
    size = len(answered.value.encode("utf-8", "backslashreplace"))
    if size > ANSWER_BYTES_MAX:
        raise BadInput(f"the command's answer has {size} bytes, and may have {ANSWER_BYTES_MAX}")
    try:
        value = msgspec.json.decode(answered.value)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as why:
        raise BadInput(f"the command's answer is no JSON: {why}") from why
    if answered.raised is not None and not isinstance(value, list):
        raise BadInput("the command's answer is an exception, and its value is no list of arguments")
