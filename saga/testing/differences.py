"""Comparison of two runs on the same events: each difference between what they made, in words for the author."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import zip_longest
from typing import NamedTuple, TypeAlias
from uuid import UUID

from saga.messages import Event
from saga.progress.document import EmittedEvent, StepRecord

Difference: TypeAlias = tuple[str, str, str]
"""Place of the difference, the value of the first run, the value of this run."""
NOTHING = "nothing"
_PLAIN = (str, bytes, int, float, complex, Decimal, date, time, timedelta, UUID, Enum)


class Asked(NamedTuple):
    """Identity of a call among all of one saga; the same call with other arguments is another one."""

    handler: str
    name: str
    number: int
    input: str


BEGUN = "begun"
"""Outcome of a run that has written an intent and no transition yet."""
_RAN = (BEGUN, "handled", "compensated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Content of one write in comparable parts: an intent, a transition, or a document."""

    handler: str
    """Handler in whose run it was made."""
    outcome: str
    """Outcome of the transition; for a document its collection and key."""
    reason: str | None = None
    calls: tuple[StepRecord, ...] = ()
    delta: Mapping[str, object] = field(default_factory=dict)
    events: tuple[EmittedEvent, ...] = ()
    document: Mapping[str, object] = field(default_factory=dict)
    """Fields of the document, without those that the toolkit keeps in it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of a write with the same write in a rerun."""

    arguments: Mapping[Asked, Mapping[str, object]]
    """Arguments by name of each step that was called."""
    event_of: Callable[[str, bytes], Event]
    """Function that makes the event of its type and the bytes that were emitted."""

    def of(self, one: Made | None, other: Made | None) -> Iterator[Difference]:
        """All differences between the two writes."""
        if one is None or other is None:
            if one is not other:
                yield "transition", _described(one), _described(other)
            return
        ran = one.handler == other.handler and {one.outcome, other.outcome} <= set(_RAN)
        if not ran and (one.handler, one.outcome) != (other.handler, other.outcome):
            yield "transition", _described(one), _described(other)
            return
        for call, repeated in zip_longest(one.calls, other.calls):
            yield from self._call(one.handler, call, repeated)
        yield from _values("saga.state", one.delta, other.delta)
        for event, repetition in zip_longest(one.events, other.events):
            yield from self._event(event, repetition)
        yield from _values(one.outcome, one.document, other.document)

    def _call(self, handler: str, one: StepRecord | None, other: StepRecord | None) -> Iterator[Difference]:
        if one is None or other is None or _shown(one) != _shown(other):
            yield "call", _shown(one), _shown(other)
        elif one.input != other.input:
            asked, repeated = (self.arguments.get(Asked(handler, c.name, c.number, c.input), {}) for c in (one, other))
            found = list(_values(_shown(one), asked, repeated)) if asked and repeated else []
            yield from found or [(f"arguments of {_shown(one)}", f"of digest {one.input}", f"of digest {other.input}")]
        elif _given(one) != _given(other):
            yield f"what {_shown(one)} gave", _given(one), _given(other)

    def _event(self, one: EmittedEvent | None, other: EmittedEvent | None) -> Iterator[Difference]:
        if one is None or other is None or one.id != other.id:
            yield "event", one.type if one else NOTHING, other.type if other else NOTHING
        elif one.value != other.value:
            first, then = (_fields(self.event_of(e.type, e.value)) for e in (one, other))
            yield from list(_values(one.type, first, then)) or [(one.type, one.value.hex(), other.value.hex())]


def picture(value: object, seen: set[int] | None = None) -> object:
    """Copy of a value with all its parts, to be compared with a later one; of an object of the standard library only
    its type."""
    seen = set() if seen is None else seen
    kind = type(value).__name__
    if value is None or isinstance(value, _PLAIN):
        return kind, repr(value)
    if id(value) in seen:
        return kind
    seen.add(id(value))
    match value:
        case Mapping():
            return kind, [(picture(name, seen), picture(part, seen)) for name, part in value.items()]
        case Set():
            return kind, sorted(map(repr, value))
        case Sequence():
            return kind, [picture(part, seen) for part in value]
        case _ if callable(value) or type(value).__module__.partition(".")[0] in sys.stdlib_module_names:
            return kind
        case _:
            names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
            return kind, [(name, picture(getattr(value, name, None), seen)) for name in names]


def _values(what: str, one: Mapping[str, object], other: Mapping[str, object]) -> Iterator[Difference]:
    for name in [*one, *(name for name in other if name not in one)]:
        first, then = (repr(side[name]) if name in side else NOTHING for side in (one, other))
        if first != then:
            yield f"{what}, {name}", first, then


def _fields(event: Event) -> Mapping[str, object]:
    return {part.name: getattr(event, part.name) for part in fields(event)}  # type: ignore[arg-type] # all events are


def _described(made: Made | None) -> str:
    if made is None:
        return NOTHING
    return f"{made.handler} {made.outcome}" + (f": {made.reason}" if made.reason else "")


def _shown(call: StepRecord | None) -> str:
    """The call in words, without its arguments."""
    if call is None:
        return NOTHING
    document = f" of {call.document}" if call.kind == "update" else ""
    return f"{call.kind} {call.name}{document}" + (f", number {call.number}" if call.number > 1 else "")


def _given(call: StepRecord) -> str:
    return f"{call.answer or ''}{call.claim or bytes(call.value).decode()}"
