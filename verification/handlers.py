"""Explored handlers: described in a line, made into functions that do just that.

An act is `step`, `read`, `look` (a call that is no step: it may fail) or a name of `UPDATES`, and may depend on what is
so: `step if note` on the field `note` of the state, which says that the handler `note` has run; `take unless left` on
what the run has read of the document; `step if new` on the version under which the run began. So may what is emitted:
`R if left`.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, make_dataclass, replace
from datetime import timedelta
from typing import Any, Self

from saga.declarations.annotations import EitherShape, LaterReturned, OneEvent, SequenceShape
from saga.declarations.values import Migration, Parameter, Reaction
from saga.messages import Event
from saga.policies.retry import Retry
from saga.view import Later, Saga
from verification.operations import TICK_MS, Broken, call_outside

SAGA, SERVICE, ITEM = "s-1", "explored", "tea"
BEGINS, NEW, MOVED = "begins", "v2_", "moved"
"""Beginning of the names of a state's fields, which in version 2 is this, and the field that tells how often it was
migrated."""
TURNS, SHOWN = "_turns", "late"
"""End of the name of the field that counts a handler's turns, and the parameter for what it waits for."""
TICK = timedelta(milliseconds=TICK_MS)
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
    keeps: bool = False
    """True if its compensation takes what it took itself."""
    many: bool = False
    changes: bool = False
    """True if what `to` takes are changes of documents."""
    within: int = 0
    """Times that `TICK_MS` passes after what `to` takes until a deadline runs; 0: it is none."""
    unless: tuple[str, ...] = ()
    """Types that close a deadline, besides outcomes."""
    until: tuple[str, ...] = ()
    """Types for which a turn waits: one that is shown one of them is the last, and so is one that comes too late."""
    turns: int = 0
    """Turns before the last one, at least."""
    after: int = 0
    """Times that `TICK_MS` passes between its turns, or until it is too late."""
    says: tuple[str, ...] = ()
    """Types of the events that each turn before the last one emits."""
    takes_back: bool = False
    """True if it says after each step how to take it back."""
    needs: str | None = None
    """Handler that must have run, as the state says; else it raises."""

    @property
    def types(self) -> tuple[str, ...]:
        """Types that it may emit, each once."""
        return tuple(dict.fromkeys(e.split(" ")[0] for e in (*self.emits, *self.says)))

    @property
    def goes_on(self) -> bool:
        """True if it may have several turns."""
        return bool(self.until or self.turns)


@dataclass(frozen=True)
class ExploredEvent(Event):
    """Base of all explored events: its content is a text."""

    content: str


Classes = Mapping[str, type[ExploredEvent]]


def handler_of(h: Reacts, classes: Classes, retry: Retry, version: int = 1) -> Reaction:
    """The handler as the runtime wants it, in a version: the first one knows of nothing new."""

    async def function(saga: Saga[Any], **events: ExploredEvent) -> tuple[Event | Later[Event | None], ...]:
        parts = [events[f"p{i}"] for i in range(len(h.to))]
        turn = _field(saga.state, h.name + TURNS) if h.goes_on else 0
        shown = events.get(SHOWN)
        is_last = turn >= h.turns
        if h.until:
            is_last = (is_last and shown is not None) or saga.elapsed >= h.after * TICK
        for part, types in zip(parts, h.to, strict=True):
            if type(part).__name__ not in types:
                raise Broken(f"{MISPLACED} {h.name} was given {type(part).__name__} for {' or '.join(types)}")
        if h.needs is not None and not _field(saga.state, h.needs):
            raise Broken(f"{h.name} needs {h.needs}")
        contents = "+".join(sorted(p.content for p in parts))
        if h.many:  # two messages of one content are two effects
            contents += saga.idempotency_key("")[-4:]
        if turn:
            contents += f"~{turn}"
        given = [type(p).__name__ + p.content for p in (*parts, *([shown] if shown else ()))]
        run = _Run(saga, f"do:{h.name}:{contents}", f"{_so_far(saga)}|{turn}|{is_last}|{given}")
        run.is_new = version > 1 and saga.version > 1
        did = []
        for number, act in enumerate(h.does):
            did.append(await run.act(number, act))
            if h.takes_back:
                what = f"undo:{h.name}:{contents}:{number}"
                saga.on_abort(call_outside, saga.idempotency_key(f"b{number}"), run.given, what)
        saga.state = _with(saga.state, **({h.name: True} if is_last else {h.name + TURNS: turn + 1}))
        emitted = [e.split(" ")[0] for e in (h.emits if is_last else h.says) if run.holds(e)]
        last = len(emitted) - 1
        shares = [did[i:] if i == last else did[i : i + 1] for i in range(len(emitted))]
        first = [i if i < len(did) else len(did) for i in range(len(emitted))]
        returned = tuple(
            classes[e](content=f"{contents}/{first[i]}{json.dumps(shares[i])}") for i, e in enumerate(emitted)
        )
        if is_last:
            return returned
        until = [classes[name] for name in h.until]
        return (*returned, Later(until=until[0], within=h.after * TICK) if until else Later(after=h.after * TICK))

    events = tuple(tuple(classes[t] for t in ts) for ts in h.to)
    declared = _declared(h.name, function, events, h.types, classes, retry, h.many, None)
    declared = replace(declared, version=version)
    if not h.goes_on:
        return declared
    optional = tuple(classes[name] for name in h.until)
    late = (Parameter(name=SHOWN, role="event", events=optional, optional=True),) if optional else ()
    options = (*(OneEvent(event=event) for event in declared.emits), LaterReturned(until=optional))
    return replace(declared, parameters=(*declared.parameters, *late), shape=SequenceShape((EitherShape(options),)))


def compensation_of(h: Reacts, classes: Classes, retry: Retry, failures: Iterable[str]) -> Reaction:
    """The handler's compensation, which undoes the share of the result that it is handed."""

    async def function(saga: Saga[Any], **events: ExploredEvent) -> tuple[Event, ...]:
        result = events["p1"].content
        contents, _, share = result.rpartition("/")
        taken = [events[f"p{number + 2}"].content for number in range(len(h.to) if h.keeps else 0)]
        if any(content not in contents for content in taken):  # so what stands is not undone
            contents = f"{MISPLACED} {contents}"
        first, _, did = share.partition("[")
        base, _, turn = contents.partition("~")
        turns = range(int(turn)) if turn and not h.says else ()  # of the turns that emitted nothing, too
        for earlier in turns:
            run = _Run(saga, f"undo:{h.name}:{base}{f'~{earlier}' if earlier else ''}", result, 10 * (earlier + 1))
            for number, act in enumerate(h.undo or ()):
                await run.act(number, act)
        run = _Run(saga, f"undo:{h.name}:{contents}", result)
        for number, how in enumerate(json.loads(f"[{did}"), int(first)):
            if how in ("ok", "applied"):
                await run.act(number, (h.undo or ())[number])
        saga.state = _with(saga.state, **{h.name: False})
        return ()

    types = (tuple(sorted(failures)), h.types, *(h.to if h.keeps else ()))
    events = tuple(tuple(classes[t] for t in each) for each in types)
    return _declared(f"undo_{h.name}", function, events, (), classes, retry, False, h.name)


class _Run:
    """One run of an explored handler: what it has read, and whose effects its calls are."""

    is_new = False
    """True if it began under version 2 of its handler."""

    def __init__(self, saga: Saga[Any], who: str, given: str, keys: int = 0) -> None:
        """`keys`: number of its first key."""
        self._saga, self._who, self.given, self._keys = saga, who, given, keys
        self._left = 0

    def holds(self, what: str) -> bool:
        """True if the condition of an act, or of an emitted event, holds."""
        for word, wanted in ((" if ", True), (" unless ", False)):
            _, found, condition = what.partition(word)
            if found:
                return self._is_so(condition) is wanted
        return True

    def _is_so(self, condition: str) -> bool:
        if condition == "new":
            return self.is_new
        return self._left > 0 if condition == "left" else bool(_field(self._saga.state, condition))

    async def act(self, number: int, act: str) -> str:
        """Do an act; its result in a word."""
        if not self.holds(act):
            return "left out"
        what = act.partition(" if ")[0].partition(" unless ")[0]
        if what == "nothing":
            return "nothing"
        if what == "step":
            given = f"{self.given}|{self._left}"
            return await self._saga.step(
                call_outside, self._saga.idempotency_key(f"k{self._keys + number}"), given, f"{self._who}:{number}"
            )
        if what == "look":  # no step: nothing of it is recorded
            looked = f"look {self._who}"
            await call_outside(looked, "", looked)
            return "looked"
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
    begins = getattr(saga.state, BEGINS)
    return sorted(name.removeprefix(begins) for name, value in vars(saga.state).items() if value and name != MOVED)


def _field(state: Any, name: str) -> Any:
    """Field of a state, in whichever version."""
    return getattr(state, getattr(state, BEGINS) + name)


def _with(state: Any, **fields: object) -> Any:
    """A state with other values of these fields, in whichever version."""
    return replace(state, **{getattr(state, BEGINS) + name: value for name, value in fields.items()})


def state_class(reacts: Iterable[Reacts], version: int) -> type[Any]:
    """Class of the state in a version: each gives its fields other names, and all count how often it was migrated."""
    begins = "" if version == 1 else NEW
    fields: list[tuple[str, type, Any]] = [(MOVED, int, version)]
    for h in reacts:
        fields += [(begins + h.name, bool, False), *([(begins + h.name + TURNS, int, 0)] if h.goes_on else ())]
    return make_dataclass("State", fields, frozen=True, namespace={BEGINS: begins})


def migration(reacts: Iterable[Reacts], new: type[Any]) -> Migration:
    """Migration of a state of version 1. Made again, it makes another state of what it has made."""
    old = state_class(reacts, 1)

    def move(state: Any) -> Any:
        had = {getattr(new, BEGINS) + name: value for name, value in vars(state).items() if name != MOVED}
        return new(**had, **{MOVED: getattr(state, MOVED) + 1})

    return Migration(name="move", version=1, function=move, takes=old, gives=new)


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
        repeats=events[0] if many else (),
        retry=retry,
        timeout_s=60,
        undoes=undoes,
    )
