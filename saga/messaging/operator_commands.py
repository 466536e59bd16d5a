"""Operator commands: requests of operators about a dead letter, an escalation or a parked run. This module converts
them to records and back.

Only the service itself writes its progress. So a tool does not change the progress, but sends a command with the
operator's name and the reason. The service carries the command out in order with the other messages of the saga, and
records it in the journal with name and reason.
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
"""Source of every operator command."""
TEXT_MAX = 500
"""Maximum length in characters of `dead`, `who` and `why`. It is limited because the progress stores them."""
ANSWER_BYTES_MAX = 1 << 16
"""Maximum size in bytes of an answer that an operator gives in place of an external system. It is limited because the
progress stores it."""


class StepAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The answer to one step of a run, given by an operator who knows what the external system did."""

    step: str
    """Name of the function that the handler passed to `saga.step`."""
    number: int = 1
    """Which call of this function in the run is answered, counted from 1."""
    value: str = "null"
    """The call's result as JSON. If `raised` is set, this is a JSON list: the arguments of the exception."""
    raised: str | None = None
    """Class name of the expected error that the call raised; `None` if the call returned."""

    def place(self, dead: str) -> str:
        """Return the place to which the encryption of the value is bound, so that the ciphertext cannot be copied
        elsewhere. `dead`: id of the dead letter."""
        return repr(("answered", dead, self.step, self.number))


class OperatorCommand(Message, frozen=True, kw_only=True, gc=False):
    """An operator's command about a dead letter, an escalation or a parked run of one saga."""

    wanted: Wanted
    dead: str
    """Id of the dead letter, of the escalation, or of the wait of a parked run that an operator wants to end (see
    `saga.progress.failed_attempts`). A message gets a new id when it becomes a dead letter again after a replay, or is
    parked again after an attempt."""
    who: str
    why: str
    answered: StepAnswer | None = None
    """The answer with which `resolve` resolves a dead letter; `None` for all other commands, and if an escalation is
    resolved."""
    original: Message | None = None
    """For `replay`: the message itself, if the service no longer stores it. The service handles it as a new message."""


class CommandValue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The value of a command's record. Its fields mean the same as in `OperatorCommand`."""

    dead: str
    who: str
    why: str
    answered: StepAnswer | None = None
    original: Message | None = None


def type_of(wanted: Wanted) -> str:
    """Return the message type of a command. No event has this type, because the names of contracts contain no dot.

    >>> type_of("replay")
    'saga.replay'
    """
    return f"{OURS}.{wanted}"


TYPES = frozenset(map(type_of, WANTED))
_BY_TYPE: Mapping[bytes, Wanted] = {type_of(wanted).encode(): wanted for wanted in WANTED}


def command_to_record(service: str, saga: str, wanted: Wanted, command: CommandValue, now_ms: int) -> Outgoing:
    """Return the record of a command. The same command at another time gets another id.

    Raises:
        BadInput: A string is empty or too long, or the answer or the original message is invalid.
    """
    _check(command, wanted, saga)
    value, time = msgspec.json.encode(command), iso(now_ms)
    digest = blake2b(f"{wanted}|{time}|{len(saga)}|{saga}".encode() + value, digest_size=16).hexdigest()
    headers = envelope.headers_of_ours(type_of(wanted), f"{wanted}-{digest}", OPERATOR, time, saga)
    return Outgoing(command_topic(service), saga.encode(), value, headers)


def parse_command(record: Record) -> OperatorCommand:
    """Return the command in a record. Raises `BadInput` if the record is not a valid command, because anyone may write
    to the topic."""
    name = next((value for header, value in record.headers if header == "ce_type"), None) or b""
    wanted = _BY_TYPE.get(name)
    if wanted is None:
        raise BadInput(f"it is no command: its ce_type is none of {', '.join(sorted(TYPES))}")
    message = envelope.to_message(record, type_=type_of(wanted), schema="", contract=None)
    try:
        command = msgspec.json.decode(message.value, type=CommandValue)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise BadInput(f"it is no command: its value is not JSON with `dead`, `who` and `why`: {why}") from why
    _check(command, wanted, message.saga)
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
        dead=command.dead,
        who=command.who,
        why=command.why,
        answered=command.answered,
        original=command.original,
    )


def _check(command: CommandValue, wanted: Wanted, saga: str) -> None:
    for name in ("dead", "who", "why"):
        text: str = getattr(command, name)
        if not text.strip():
            raise BadInput(f"the command does not say {name!r}: it may not be empty")
        if len(text) > TEXT_MAX:
            raise BadInput(f"the command's {name!r} has {len(text)} characters, and may have {TEXT_MAX}")
    original, answered = command.original, command.answered
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
            f"the command's answer names no step: its name is a string of at most {TEXT_MAX} characters, its number 1 "
            "or more"
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
