"""Traces of sagas as numbers: which trace a message is of, and which one is handed on. Pure, and without a driver.

One saga is one trace, whichever service says something about it: the trace goes from event to event in the header
`traceparent` of W3C. A saga that began without one has the trace that its id gives: all services come to the same.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from saga.messages import Message
from saga.messaging.message_ids import id_in

_PARENT = re.compile(r"00-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})").fullmatch
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
SAMPLED = 0x01


class Place(NamedTuple):
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


def place_in(header: str | None) -> Place | None:
    """Place that a header `traceparent` names; `None` for none, and for one that is not as W3C wants it.

    >>> place_in("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    Place(trace='0af7651916cd43dd8448eb211c80319c', span='b7ad6b7169203331', flags=1)
    >>> place_in("00-00000000000000000000000000000000-b7ad6b7169203331-01"), place_in("00-a-b-01"), place_in(None)
    (None, None, None)
    """
    found = _PARENT(header) if header else None
    if found is None or found["trace"] == _NO_TRACE or found["span"] == _NO_SPAN:
        return None
    return Place(found["trace"], found["span"], int(found["flags"], 16))


def place_of(message: Message) -> Place:
    """Place in the trace of a message's saga below which its handling is."""
    return place_in(message.trace) or Place(_digest(message.saga, 16), None, None)


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

    is_sampled: Callable[[Place], bool]
    """Sampler: it is asked for each message, and goes by the trace, so that all services decide the same."""
    process: str
    """Name of the process: two never give the same id to two spans."""

    def handed_on(self, event: Message) -> str:
        """Header of an event of ours as it is published: its receivers are below the span of its publishing. Made of
        the event alone, so that a repeat has the same bytes."""
        place = place_of(event)
        return place.header(span_of_event(event), self.is_sampled(place))
