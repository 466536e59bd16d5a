"""Explored handlers: described in a line, made into functions that do just that.

An act is `step`, `read` or a name of `UPDATES`, and may depend on what is so: `step if note` on the field `note` of the
state, which says that the handler `note` has run; `take unless left` on what the run has read of the document. So may
what is emitted: `R if left`.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from saga.declarations.values import Parameter, Reaction
from saga.messages import Event
from saga.policies.retry import Retry
from saga.view import Saga
from verification.operations import Broken, call_outside

SAGA, SERVICE, ITEM = "s-1", "explored", "tea"
MISPLACED = "WRONG PART"
"""Beginning of the failure of a handler that was given a message in another one's place."""


class Out(Exception):
    """Refusal of an update: nothing is left."""


@dataclass(frozen=True)
class Stock:
    """The business document of the explored services."""

    left: int = 0

    def take(self) -> Self:
        if self.left <= 0:
            raise Out("nothing left")
        return replace(self, left=self.left - 1)

    def give(self) -> Self:
        return replace(self, left=self.left + 1)


def take_or_open(stock: Stock | None) -> Stock:
    """Take one, of a document that may be absent."""
    return (stock or Stock()).take()


def give_or_open(stock: Stock | None) -> Stock:
    """Give one, to a document that may be absent."""
    return (stock or Stock()).give()


UPDATES: dict[str, Callable[..., Stock]] = {
    "take": Stock.take,
    "give": Stock.give,
    "take or open": take_or_open,
    "give or open": give_or_open,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reacts:
    """A handler: its event parameters (each with the types it takes), its acts in order, the events it emits.

    With several results each undoes its own share of the effects: the first one the first act, and so on, the last one
    all that is left.
    """

    name: str
    to: tuple[tuple[str, ...], ...]
    does: tuple[str, ...] = ()
    """Acts in order: see the module."""
    emits: tuple[str, ...] = ()
    """Types of events; one that is named twice is emitted twice."""
    undo: tuple[str, ...] | None = None
    """Acts of its compensation, one beside each of `does`."""
    many: bool = False
    within: int = 0
    """Times that `TICK_MS` passes after what `to` takes until a deadline runs; 0: it is none."""
    unless: tuple[str, ...] = ()
    """Types that close a deadline, besides outcomes."""
    needs: str | None = None
    """Handler that must have run, as the state says; else it raises."""

    @property
    def types(self) -> tuple[str, ...]:
        """Types that it may emit, each once."""
        return tuple(dict.fromkeys(e.split(" ")[0] for e in self.emits))


@dataclass(frozen=True)
class ExploredEvent(Event):
    """Base of all explored events: its content is a text."""

    content: str


Classes = Mapping[str, type[ExploredEvent]]


def handler_of(h: Reacts, classes: Classes, retry: Retry) -> Reaction:
    """The handler as the runtime wants it."""

    async def function(saga: Saga[Any], **events: ExploredEvent) -> tuple[Event, ...]:
        parts = [events[f"p{i}"] for i in range(len(h.to))]
        for part, types in zip(parts, h.to, strict=True):
            if type(part).__name__ not in types:
                raise Broken(f"{MISPLACED} {h.name} was given {type(part).__name__} for {' or '.join(types)}")
        if h.needs is not None and not getattr(saga.state, h.needs):
            raise Broken(f"{h.name} needs {h.needs}")
        contents = "+".join(sorted(p.content for p in parts))
        if h.many:  # two messages of one content are two effects
            contents += saga.key("")[-4:]
        run = _Run(saga, f"do:{h.name}:{contents}", f"{_so_far(saga)}|{[type(p).__name__ + p.content for p in parts]}")
        did = [await run.act(number, act) for number, act in enumerate(h.does)]
        saga.state = replace(saga.state, **{h.name: True})
        emitted = [e.split(" ")[0] for e in h.emits if run.holds(e)]
        last = len(emitted) - 1
        shares = [did[i:] if i == last else did[i : i + 1] for i in range(len(emitted))]
        first = [i if i < len(did) else len(did) for i in range(len(emitted))]
        return tuple(classes[e](content=f"{contents}/{first[i]}{json.dumps(shares[i])}") for i, e in enumerate(emitted))

    events = tuple(tuple(classes[t] for t in ts) for ts in h.to)
    return _declared(h.name, function, events, h.types, classes, retry, h.many, None)


def compensation_of(h: Reacts, classes: Classes, retry: Retry, failures: Iterable[str]) -> Reaction:
    """The handler's compensation, which undoes the share of the result that it is handed."""

    async def function(saga: Saga[Any], **events: ExploredEvent) -> tuple[Event, ...]:
        result = events["p1"].content
        contents, _, share = result.rpartition("/")
        first, _, did = share.partition("[")
        run = _Run(saga, f"undo:{h.name}:{contents}", result)
        for number, how in enumerate(json.loads(f"[{did}"), int(first)):
            if how in ("ok", "applied"):
                await run.act(number, (h.undo or ())[number])
        saga.state = replace(saga.state, **{h.name: False})
        return ()

    events = (tuple(classes[t] for t in sorted(failures)), tuple(classes[t] for t in h.types))
    return _declared(f"undo_{h.name}", function, events, (), classes, retry, False, h.name)


class _Run:
    """One run of an explored handler: what it has read, and whose effects its calls are."""

    def __init__(self, saga: Saga[Any], who: str, given: str) -> None:
        self._saga, self._who, self._given = saga, who, given
        self._left = 0

    def holds(self, what: str) -> bool:
        """True if the condition of an act, or of an emitted event, holds."""
        for word, wanted in ((" if ", True), (" unless ", False)):
            _, found, condition = what.partition(word)
            if found:
                return (self._left > 0 if condition == "left" else bool(getattr(self._saga.state, condition))) is wanted
        return True

    async def act(self, number: int, act: str) -> str:
        """Do an act; its result in a word."""
        if not self.holds(act):
            return "left out"
        what = act.partition(" if ")[0].partition(" unless ")[0]
        if what == "nothing":
            return "nothing"
        if what == "step":
            given = f"{self._given}|{self._left}"
            await self._saga.step(call_outside, self._saga.key(f"k{number}"), given, f"{self._who}:{number}")
            return "ok"
        if what == "read":
            found = await self._saga.read(Stock, ITEM)
            self._left = 0 if found is None else found.left
            return "read"
        try:
            await self._saga.update(Stock, ITEM, UPDATES[what])
        except Out:
            return "refused"
        return "applied"


def _so_far(saga: Saga[Any]) -> list[str]:
    """Handlers that have run, as the state says: the same with the fields of each release."""
    return [name for name, value in vars(saga.state).items() if value]


def _declared(  # what a handler consists of
    name: str,
    function: Callable[..., Any],
    events: tuple[tuple[type[ExploredEvent], ...], ...],
    emits: tuple[str, ...],
    classes: Classes,
    retry: Retry,
    many: bool,
    undoes: str | None,
) -> Reaction:
    parameters = [Parameter(name=f"p{i}", role="event", events=types, gives=None) for i, types in enumerate(events)]
    return Reaction(
        kind="handler" if undoes is None else "compensation",
        service=SERVICE,
        name=name,
        function=function,
        parameters=(*parameters, Parameter(name="saga", role="saga", events=(), gives=None)),
        emits=tuple(classes[e] for e in emits),
        many=many,
        retry=retry,
        timeout_s=60,
        undoes=undoes,
    )
