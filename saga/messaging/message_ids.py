"""Ids by which the toolkit tells messages apart: source and id together, for two senders may use one id.

What a contract's owner says under its own name has an id that nobody else makes (`saga.progress.ids.event_id`), and
keeps it. Every other message goes by `source|id`, in which `%`, `|`, `+` and all that is not visible ASCII is
percent-encoded. One that names no source goes by its content, too; one whose id is where its contract says, by topic
and type with that id; one that has no id by its place, `|topic/partition/offset@log`: a topic that is created
again has other records at the same offsets. So no two senders share one, the ids of a
fan-in's parts, joined with `+`, say which parts they are, and each can be printed. The headers of whatever is published
hold source and id as their sender wrote them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import quote, unquote

from saga.messages import Message

_GONE = "-gone"
CLIENT = "client"
"""Source of what a `Client` publishes."""
_DIGITS = frozenset("0123456789abcdef")
_is_plain = re.compile(r"[A-Za-z_-][A-Za-z0-9_-]*").fullmatch
_SAFE = "".join(c for c in map(chr, range(33, 127)) if c not in "%|+")

_PARENT = re.compile(r"00-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})").fullmatch
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
SAMPLED = 0x01


def identity(source: str, id_: str, type_: str, owner: str) -> str:
    """Name in the toolkit of the message with this `id_` from this `source`. `owner`: of its contract.

    >>> identity("payment", "PaymentReserved-0a1b", "PaymentReserved", "payment")
    'PaymentReserved-0a1b'
    >>> identity("client", "OrderPlaced-0a1b", "OrderPlaced", "order")
    'client|OrderPlaced-0a1b'
    >>> identity("https://shop.example/a+b", "17|3", "OrderPlaced", "order")
    'https://shop.example/a%2Bb|17%7C3'
    """
    if _is_plain(id_):  # nothing to encode, which takes longer than all the rest
        if source == owner and id_.startswith(f"{type_}-"):
            return id_
        if source.isascii() and source.isalnum():
            return f"{source}|{id_}"
    return f"{quote(source, _SAFE)}|{quote(id_, _SAFE)}"


def identity_without_source(id_: str, value: bytes) -> str:
    """Name of a message with this `id_` from nobody knows whom: two senders may use one id for two things, and one who
    repeats something repeats its bytes.

    >>> identity_without_source("17", b"...")
    'unknown/ed8afa03a2db846a|17'
    """
    return f"unknown/{blake2b(value, digest_size=8).hexdigest()}|{quote(id_, _SAFE)}"


def identity_of_declared(topic: str, type_: str, id_: str) -> str:
    """Name of a message that names no source, and has its id where its contract says: no source is empty.

    >>> identity_of_declared("accounts", "Topped", "uuid-17")
    '|accounts/Topped#uuid-17'
    """
    return f"|{topic}/{type_}#{quote(id_, _SAFE)}"


def has_no_id(identity_: str) -> bool:
    """True if a message goes by its place, for it has no id.

    >>> has_no_id("|orders/3/17"), has_no_id("|accounts/Topped#uuid-17"), has_no_id("shop|17")
    (True, False, False)
    """
    return identity_.startswith("|") and "#" not in identity_


def own_identity(service: str, id_: str, owner: str) -> str:
    """Name of an event that this service emits: an id that the toolkit makes needs no look at each of its characters.

    >>> identity_of_own("payment", "PaymentReserved-0a1b", "payment")
    'PaymentReserved-0a1b'
    >>> identity_of_own("payment", "CardBlocked-0a1b", "cards")
    'payment|CardBlocked-0a1b'
    """
    return id_ if service == owner else f"{quote(service, _SAFE)}|{id_}"


def could_be_own(identity_: str, type_: str) -> bool:
    """True if services make such names for events of this type, as far as can be seen without the progress.

    >>> could_be_own("PaymentReserved-8c69b241c603b6c09313b5993635b204", "PaymentReserved")
    True
    >>> could_be_own("PaymentReserved-17", "PaymentReserved"), could_be_own("payment|17", "PaymentReserved")
    (False, False)
    """
    made = identity_.rpartition("|")[2]
    return len(made) == len(type_) + 33 and made.startswith(f"{type_}-") and _DIGITS.issuperset(made[-32:])


def identity_of_place(topic: str, partition: int, offset: int, log_id: str = "") -> str:
    """Name of a message without an id: no source is empty. `log_id`: id of the topic's log, where the broker tells it.

    >>> identity_of_place("orders", 3, 17)
    '|orders/3/17'
    >>> identity_of_place("orders", 3, 17, "yEZ0Vx2vQSGf3cGn1bY4Kw")
    '|orders/3/17@yEZ0Vx2vQSGf3cGn1bY4Kw'
    """
    return f"|{quote(topic, _SAFE)}/{partition}/{offset}{f'@{log_id}' if log_id else ''}"


def id_of_change(key: str, version: int, *, is_gone: bool) -> str:
    """Id of a change of a document. SQLite tells a removal with the version that was removed, which the write before it
    has had.

    >>> id_of_change("order-17", 4, is_gone=False), id_of_change("order-17", 4, is_gone=True)
    ('order-17@4', 'order-17@4-gone')
    """
    return f"{key}@{version}{_GONE if is_gone else ''}"


def is_removal(identity_: str) -> bool:
    """True if a change of this name is the removal, or the expiry, of its document.

    >>> is_removal("documents/orders|order-17@4-gone"), is_removal("documents/orders|order-gone@4")
    (True, False)
    """
    return identity_.endswith(_GONE)


def id_in(identity: str) -> str:
    """The id as its sender wrote it.

    >>> id_in("https://shop.example/a%2Bb|17%7C3")
    '17|3'
    >>> id_in("PaymentReserved-0a1b")
    'PaymentReserved-0a1b'
    """
    return unquote(identity.partition("|")[2]) if "|" in identity else identity


# -------------------------------------------------------------------- trace context


class TracePosition(NamedTuple):
    """Place in a trace: what is next is below it."""

    trace: str
    """Id of the trace, 32 hexadecimal digits."""
    span: str | None
    """Id of the span above, 16 hexadecimal digits; `None`: the trace begins here."""
    flags: int | None
    """Flags as the header said them; `None`: nobody has decided yet whether it is sampled."""

    def header(self, span: str, is_sampled: bool) -> str:
        """Text of `traceparent` for what is below `span` of this trace."""
        flags = (self.flags or 0) & ~SAMPLED | (SAMPLED if is_sampled else 0)
        return f"00-{self.trace}-{span}-{flags:02x}"


def parse_traceparent(header: str | None) -> TracePosition | None:
    """Place that a header `traceparent` names; `None` for none, and for one that is not as W3C wants it.

    >>> place_in("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    Place(trace='0af7651916cd43dd8448eb211c80319c', span='b7ad6b7169203331', flags=1)
    >>> place_in("00-00000000000000000000000000000000-b7ad6b7169203331-01"), place_in("00-a-b-01"), place_in(None)
    (None, None, None)
    """
    found = _PARENT(header) if header else None
    if found is None or found["trace"] == _NO_TRACE or found["span"] == _NO_SPAN:
        return None
    return TracePosition(found["trace"], found["span"], int(found["flags"], 16))


def trace_position(message: Message) -> TracePosition:
    """Place in the trace of a message's saga below which its handling is."""
    return parse_traceparent(message.trace) or TracePosition(_digest(message.saga, 16), None, None)


def span_of(id_: str) -> str:
    """Id of the span of what has this id: the same for an event, however often it is published.

    >>> span_of("PaymentReserved-0a1b") == span_of("PaymentReserved-0a1b") != span_of("PaymentReserved-0a1c")
    True
    """
    return _digest(id_, 8)


def span_of_event(event: Message) -> str:
    """Id of the span of an event's publishing."""
    return span_of(id_in(event.id))


def _digest(text: str, bytes_: int) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=bytes_, person=b"saga trace").hexdigest()


@dataclass(frozen=True, slots=True)
class Tracing:
    """Choice of what is traced in this process."""

    is_sampled: Callable[[TracePosition], bool]
    """Sampler: it is asked for each message, and goes by the trace, so that all services decide the same."""
    process: str
    """Name of the process: two never give the same id to two spans."""

    def outgoing_header(self, event: Message) -> str:
        """Header of an event of ours as it is published: its receivers are below the span of its publishing. Made of
        the event alone, so that a repeat has the same bytes."""
        place = trace_position(event)
        return place.header(span_of_event(event), self.is_sampled(place))
