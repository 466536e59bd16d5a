"""Commands: what a person wants done with a dead letter, as a message and as a record on `<service>.commands`.

Nobody but the service writes its progress. So a tool says what is wanted, who wants it and why, and the service does it
in the saga's own lane: the history has all three.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from saga import envelope
from saga.clock import iso
from saga.errors import BadInput
from saga.messages import Message, Outgoing, Record
from saga.names import OURS, commands_of

Wanted: TypeAlias = Literal["replay", "discard"]
WANTED: tuple[Wanted, ...] = ("replay", "discard")
OPERATOR = "operator"
"""Source of every command."""
TEXT_MAX = 500
"""Most characters of who and of why: both are kept in the progress."""


class Command(Message, frozen=True, kw_only=True, gc=False):
    """Wish of a person about a dead letter of one saga."""

    wanted: Wanted
    dead: str
    """Id of the dead letter. A message that is replayed and dies again has another one."""
    who: str
    why: str


class _Said(Struct, frozen=True, kw_only=True):
    """Value of the record."""

    dead: str
    who: str
    why: str


def type_of(wanted: Wanted) -> str:
    """Type of the message: no contract's name has a dot.

    >>> type_of("replay")
    'saga.replay'
    """
    return f"{OURS}.{wanted}"


TYPES = frozenset(map(type_of, WANTED))
_BY_TYPE: Mapping[bytes, Wanted] = {type_of(wanted).encode(): wanted for wanted in WANTED}


def to_record(  # all that a command says
    service: str, saga: str, *, wanted: Wanted, dead: str, who: str, why: str, now_ms: int
) -> Outgoing:
    """Record of a command. Said again at another time it is another command. Raises `BadInput` for a text that is empty
    or too long."""
    said = _Said(dead=dead, who=who, why=why)
    _check(said)
    value, time = msgspec.json.encode(said), iso(now_ms)
    digest = blake2b(f"{wanted}|{time}|{len(saga)}|{saga}".encode() + value, digest_size=16).hexdigest()
    headers = envelope.headers_of_ours(type_of(wanted), f"{wanted}-{digest}", OPERATOR, time, saga)
    return Outgoing(commands_of(service), saga.encode(), value, headers)


def command_in(record: Record) -> Command:
    """Command in a record. Raises `BadInput`: anybody may write to the topic."""
    name = next((value for header, value in record.headers if header == "ce_type"), None) or b""
    wanted = _BY_TYPE.get(name)
    if wanted is None:
        raise BadInput(f"it is no command: its ce_type is none of {', '.join(sorted(TYPES))}")
    message = envelope.to_message(record, type_=type_of(wanted), schema="", contract=None)
    try:
        said = msgspec.json.decode(message.value, type=_Said)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise BadInput(f"it is no command: its value is not JSON with `dead`, `who` and `why`: {why}") from why
    _check(said)
    return Command(
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
    )


def _check(said: _Said) -> None:
    for name in ("dead", "who", "why"):
        text: str = getattr(said, name)
        if not text.strip():
            raise BadInput(f"the command does not say {name!r}: it may not be empty")
        if len(text) > TEXT_MAX:
            raise BadInput(f"the command's {name!r} has {len(text)} characters, and may have {TEXT_MAX}")
