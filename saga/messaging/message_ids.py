"""Message ids: how the toolkit identifies messages, and trace ids derived from them.

A message id combines the sender's source and the sender's id, because two senders may use the same id.

- An event that is emitted by its contract's owner keeps its id (`saga.progress.ids.event_id`), because no other sender
  makes such ids.
- Every other message with source and id is identified by `source|id`, in which `%`, `|`, `+` and everything except
  visible ASCII is percent-encoded.
- A message with an id but without a source is identified by a digest of its content and its id. If its contract has
  sensitive fields, topic and type replace the digest, because sensitive values could be guessed from a digest.
- If the sender writes no `ce_id`, the id is taken from where the contract says. If there is no source either, the
  message is identified by topic, type and that id.
- A message without any id is identified by its position, `|topic/partition/offset@log`. The log id is needed because a
  topic that was deleted and created again has other records at the same offsets.

So no two senders share an id, the ids of the parts of a fan-in can be joined with `+`, and every id can be printed. The
headers of published messages hold source and id as their sender wrote them.
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
"""Source of events that a `Client` publishes."""
_DIGITS = frozenset("0123456789abcdef")
_is_plain = re.compile(r"[A-Za-z_-][A-Za-z0-9_-]*").fullmatch
_SAFE = "".join(c for c in map(chr, range(33, 127)) if c not in "%|+")

_PARENT = re.compile(r"00-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})").fullmatch
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
SAMPLED = 0x01


def identity(source: str, id_: str, type_: str, owner: str) -> str:
    """Return the message id for a message with this `id_` from this `source`. `owner`: the service that owns the
    contract.

    >>> identity("payment", "PaymentReserved-0a1b", "PaymentReserved", "payment")
    'PaymentReserved-0a1b'
    >>> identity("client", "OrderPlaced-0a1b", "OrderPlaced", "order")
    'client|OrderPlaced-0a1b'
    >>> identity("https://shop.example/a+b", "17|3", "OrderPlaced", "order")
    'https://shop.example/a%2Bb|17%7C3'
    """
    if _is_plain(id_):  # nothing to encode; encoding takes longer than the rest of this function
        if source == owner and id_.startswith(f"{type_}-"):
            return id_
        if source.isascii() and source.isalnum():
            return f"{source}|{id_}"
    return f"{quote(source, _SAFE)}|{quote(id_, _SAFE)}"


def identity_without_source(id_: str, value: bytes) -> str:
    """Return the message id for a message with this `id_` from an unknown sender.

    The id includes a digest of the content. Two senders may use one id for different messages, but a sender that
    repeats a message repeats its bytes.

    >>> identity_without_source("17", b"...")
    'unknown/ed8afa03a2db846a|17'
    """
    return f"unknown/{blake2b(value, digest_size=8).hexdigest()}|{quote(id_, _SAFE)}"


def identity_of_declared(topic: str, type_: str, id_: str) -> str:
    """Return the message id for a message without a source, made of its topic, its type and its id.

    It is used if the contract says where the id is, or if the contract has sensitive fields. The result begins with
    `|`, because no source is empty.

    >>> identity_of_declared("accounts", "Topped", "uuid-17")
    '|accounts/Topped#uuid-17'
    """
    return f"|{topic}/{type_}#{quote(id_, _SAFE)}"


def has_no_id(identity_: str) -> bool:
    """Return whether a message is identified by its position because it has no id.

    >>> has_no_id("|orders/3/17"), has_no_id("|accounts/Topped#uuid-17"), has_no_id("shop|17")
    (True, False, False)
    """
    return identity_.startswith("|") and "#" not in identity_


def own_identity(service: str, id_: str, owner: str) -> str:
    """Return the message id for an event that `service` emits. `owner`: the service that owns the contract.

    `id_` needs no encoding, because the toolkit made it.

    >>> own_identity("payment", "PaymentReserved-0a1b", "payment")
    'PaymentReserved-0a1b'
    >>> own_identity("payment", "CardBlocked-0a1b", "cards")
    'payment|CardBlocked-0a1b'
    """
    return id_ if service == owner else f"{quote(service, _SAFE)}|{id_}"


def could_be_own(identity_: str, type_: str) -> bool:
    """Return whether a service could have made this id for an event of this type, as far as the id itself shows.

    >>> could_be_own("PaymentReserved-8c69b241c603b6c09313b5993635b204", "PaymentReserved")
    True
    >>> could_be_own("PaymentReserved-17", "PaymentReserved"), could_be_own("payment|17", "PaymentReserved")
    (False, False)
    """
    made = identity_.rpartition("|")[2]
    return len(made) == len(type_) + 33 and made.startswith(f"{type_}-") and _DIGITS.issuperset(made[-32:])


def identity_of_place(topic: str, partition: int, offset: int, log_id: str = "") -> str:
    """Return the message id for a message without an id. `log_id`: id of the topic's log; empty if the broker does not
    report one.

    >>> identity_of_place("orders", 3, 17)
    '|orders/3/17'
    >>> identity_of_place("orders", 3, 17, "yEZ0Vx2vQSGf3cGn1bY4Kw")
    '|orders/3/17@yEZ0Vx2vQSGf3cGn1bY4Kw'
    """
    return f"|{quote(topic, _SAFE)}/{partition}/{offset}{f'@{log_id}' if log_id else ''}"


def id_of_change(key: str, version: int, *, is_gone: bool) -> str:
    """Return the sender's id for a change of a document.

    The id of a removal has an ending of its own, because SQLite reports a removal with the version of the document's
    last write.

    >>> id_of_change("order-17", 4, is_gone=False), id_of_change("order-17", 4, is_gone=True)
    ('order-17@4', 'order-17@4-gone')
    """
    return f"{key}@{version}{_GONE if is_gone else ''}"


def is_removal(identity_: str) -> bool:
    """Return whether the change with this id is the removal, or the expiry, of its document.

    >>> is_removal("documents/orders|order-17@4-gone"), is_removal("documents/orders|order-gone@4")
    (True, False)
    """
    return identity_.endswith(_GONE)


def id_in(identity: str) -> str:
    """Return the sender's part of a message id, as the sender wrote it.

    >>> id_in("https://shop.example/a%2Bb|17%7C3")
    '17|3'
    >>> id_in("PaymentReserved-0a1b")
    'PaymentReserved-0a1b'
    """
    return unquote(identity.partition("|")[2]) if "|" in identity else identity


# -------------------------------------------------------------------- trace context


class TracePosition(NamedTuple):
    """A position in a trace: the parent of the spans that follow."""

    trace: str
    """The trace's id: 32 hexadecimal digits."""
    span: str | None
    """The parent span's id, 16 hexadecimal digits; `None` if the trace begins here."""
    flags: int | None
    """The flags of the `traceparent` header; `None` if it has not been decided yet whether the trace is sampled."""

    def header(self, span: str, is_sampled: bool) -> str:
        """Return the `traceparent` header for children of `span` in this trace."""
        flags = (self.flags or 0) & ~SAMPLED | (SAMPLED if is_sampled else 0)
        return f"00-{self.trace}-{span}-{flags:02x}"


def parse_traceparent(header: str | None) -> TracePosition | None:
    """Return the trace position in a `traceparent` header. Return `None` if there is no header, or if it is not valid
    by the W3C standard.

    >>> parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    TracePosition(trace='0af7651916cd43dd8448eb211c80319c', span='b7ad6b7169203331', flags=1)
    >>> parse_traceparent("00-00000000000000000000000000000000-b7ad6b7169203331-01")
    >>> parse_traceparent("00-a-b-01"), parse_traceparent(None)
    (None, None)
    """
    found = _PARENT(header) if header else None
    if found is None or found["trace"] == _NO_TRACE or found["span"] == _NO_SPAN:
        return None
    return TracePosition(found["trace"], found["span"], int(found["flags"], 16))


def trace_position(message: Message) -> TracePosition:
    """Return the trace position under which a message is handled: the position in the message's trace context or,
    without a context, one derived from its saga id."""
    return parse_traceparent(message.trace) or TracePosition(_digest(message.saga, 16), None, None)


def span_of(id_: str) -> str:
    """Return the span id derived from an id. So an event has the same span id however often it is published.

    >>> span_of("PaymentReserved-0a1b") == span_of("PaymentReserved-0a1b") != span_of("PaymentReserved-0a1c")
    True
    """
    return _digest(id_, 8)


def span_of_event(event: Message) -> str:
    """Return the id of the span in which an event is published."""
    return span_of(id_in(event.id))


def _digest(text: str, bytes_: int) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=bytes_, person=b"saga trace").hexdigest()


@dataclass(frozen=True, slots=True)
class Tracing:
    """The tracing settings of this process."""

    is_sampled: Callable[[TracePosition], bool]
    """Sampler, called for each message. It looks at the trace alone, so that all services decide the same."""
    process: str
    """Name of the process. Span ids are derived from it, so that two processes never give the same id to two spans."""

    def outgoing_header(self, event: Message) -> str:
        """Return the `traceparent` header with which an event is published: the spans of its receivers are children of
        the span that publishes it.

        The header depends on the event alone, so that publishing the event again writes the same bytes.
        """
        place = trace_position(event)
        return place.header(span_of_event(event), self.is_sampled(place))
