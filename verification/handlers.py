"""Make handlers for exploration from short descriptions.

An act is `step`, `read`, `look` (a call outside of a step, which may fail) or a name in `UPDATES`. It may have a
condition: `step if note` depends on the field `note` of the state, which is set when the handler `note` has run; `take
unless left` depends on the stock that the run has read; `step if new` depends on the version under which the run began.
Emitted events may have conditions, too: `R if left`.
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
from verification.operations import LOOK, TICK_MS, Broken, call_outside

SAGA, SERVICE, ITEM = "s-1", "explored", "tea"
BEGINS, NEW, MOVED = "begins", "v2_", "moved"
"""For state classes: the attribute that holds the prefix of the field names, the prefix in version 2, and the field
that counts migrations."""
TURNS, SHOWN = "_turns", "late"
"""For handlers with several turns: the suffix of the state's field that counts them, and the name of the parameter for
the event that a turn waits for."""
TICK = timedelta(milliseconds=TICK_MS)
MISPLACED = "WRONG PART"
"""Beginning of the error text of a handler that got a message of the wrong parameter."""


class Out(Exception):
    """Raised to refuse an update: nothing is left."""


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
    """Take one item from a document that may be absent."""
    return (stock or Stock()).take()


def give_or_open(stock: Stock | None) -> Stock:
    """Give one item to a document that may be absent."""
    return (stock or Stock()).give()


UPDATES: dict[str, Callable[..., Stock]] = {
    "take": Stock.take,
    "give": Stock.give,
    "take or open": take_or_open,
    "give or open": give_or_open,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reacts:
    """Description of a handler: its event parameters, each with the event types that it takes; its acts in order; the
    events that it emits.

    If it has several results, undoing one of them undoes its share of the acts: the first result stands for the first
    act, and so on; the last result stands for all remaining acts.
    """

    name: str
    to: tuple[tuple[str, ...], ...]
    does: tuple[str, ...] = ()
    """Acts in order, as described in the module's docstring."""
    emits: tuple[str, ...] = ()
    """Types of the emitted events; a type that is listed twice is emitted twice."""
    undo: tuple[str, ...] | None = None
    """Acts of its compensation, one for each act in `does`; `None` if it has no compensation."""
    keeps: bool = False
    """True if the compensation also takes the events that the handler took."""
    many: bool = False
    changes: bool = False
    """True if the handler takes document changes."""
    within: int = 0
    """Number of ticks after its event at which a deadline runs; 0 if it is not a deadline."""
    unless: tuple[str, ...] = ()
    """Types of events that cancel a deadline, besides outcomes."""
    until: tuple[str, ...] = ()
    """Types of events for which a turn waits. The turn that gets such an event is the last one, and so is a turn that
    waited too long."""
    turns: int = 0
    """Minimum number of turns before the last one."""
    after: int = 0
    """Number of ticks between two turns, or until a turn has waited too long."""
    says: tuple[str, ...] = ()
    """Types of the events that each turn before the last one emits."""
    takes_back: bool = False
    """True if the handler registers an abort action after each step and each `nothing`. The one after `nothing` is a
    call outside of a step, which may fail."""
    needs: str | None = None
    """Handler that must have run before, according to the state; otherwise this handler raises."""

    @property
    def types(self) -> tuple[str, ...]:
        """Return the event types that it may emit, without repetitions."""
        return tuple(dict.fromkeys(e.split(" ")[0] for e in (*self.emits, *self.says)))

    @property
    def goes_on(self) -> bool:
        """Return whether it may have several turns."""
        return bool(self.until or self.turns)


@dataclass(frozen=True)
class ExploredEvent(Event):
    """Base class of all explored events. Their content is a string."""

    content: str


Classes = Mapping[str, type[ExploredEvent]]


def handler_of(h: Reacts, classes: Classes, retry: Retry, version: int = 1) -> Reaction:
    """Build the given version of the handler that `h` describes. A run makes the acts and emits the events with the
    condition `new` only if it began under version 2; so version 1 leaves them out."""

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
        if h.many:  # two messages with the same content have two effects
            contents += saga.idempotency_key("")[-4:]
        if turn:
            contents += f"~{turn}"
        given = [type(p).__name__ + p.content for p in (*parts, *([shown] if shown else ()))]
        run = _Run(saga, f"do:{h.name}:{contents}", f"{_so_far(saga)}|{turn}|{is_last}|{given}")
        run.is_new = version > 1 and saga.version > 1
        did = []
        for number, act in enumerate(h.does):
            did.append(await run.act(number, act))
            what = f"undo:{h.name}:{contents}:{number}"
            if h.takes_back and act == "nothing":
                saga.on_abort(look_outside, saga, what)
            elif h.takes_back and did[-1] == "ok":
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
    """Make the handler's compensation, which undoes the share of acts that belongs to the result it gets."""

    async def function(saga: Saga[Any], **events: ExploredEvent) -> tuple[Event, ...]:
        result = events["p1"].content
        contents, _, share = result.rpartition("/")
        taken = [events[f"p{number + 2}"].content for number in range(len(h.to) if h.keeps else 0)]
        if any(content not in contents for content in taken):  # then the check finds effects that are not undone
            contents = f"{MISPLACED} {contents}"
        first, _, did = share.partition("[")
        base, _, turn = contents.rpartition("~") if h.goes_on else (contents, "", "")
        base, turn = (base, turn) if turn.isdigit() else (contents, "")  # another `~` is of an event that it took
        turns = range(int(turn)) if turn and not h.says else ()  # earlier turns without events are undone here, too
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


async def look_outside(saga: Saga[Any], what: str) -> None:
    """Make a call that is not a step, so nothing is recorded."""
    await call_outside(LOOK + what, "", LOOK + what)


class _Run:
    """One run of an explored handler: what it has read, and the identity under which it makes calls."""

    is_new = False
    """True if the run began under version 2 of its handler."""

    def __init__(self, saga: Saga[Any], who: str, given: str, keys: int = 0) -> None:
        """`keys`: number with which its idempotency keys begin."""
        self._saga, self._who, self.given, self._keys = saga, who, given, keys
        self._left = 0

    def holds(self, what: str) -> bool:
        """Return whether the condition of an act or of an emitted event is fulfilled."""
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
        """Perform an act, if its condition is fulfilled. Return a word for its result."""
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
        if what == "look":  # not a step, so nothing is recorded
            await look_outside(self._saga, self._who)
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
    """Return the handlers that have run, according to the state. The result does not depend on the state's version."""
    begins = getattr(saga.state, BEGINS)
    return sorted(name.removeprefix(begins) for name, value in vars(saga.state).items() if value and name != MOVED)


def _field(state: Any, name: str) -> Any:
    """Return a field of a state of any version."""
    return getattr(state, getattr(state, BEGINS) + name)


def _with(state: Any, **fields: object) -> Any:
    """Return a state of any version with other values in these fields."""
    return replace(state, **{getattr(state, BEGINS) + name: value for name, value in fields.items()})


def state_class(reacts: Iterable[Reacts], version: int) -> type[Any]:
    """Make the state class of a version. Each version has its own field names. A field counts how often the state was
    migrated."""
    begins = "" if version == 1 else NEW
    fields: list[tuple[str, type, Any]] = [(MOVED, int, version)]
    for h in reacts:
        fields += [(begins + h.name, bool, False), *([(begins + h.name + TURNS, int, 0)] if h.goes_on else ())]
    return make_dataclass("State", fields, frozen=True, namespace={BEGINS: begins})


def migration(reacts: Iterable[Reacts], new: type[Any]) -> Migration:
    """Make the migration of a state from version 1. If a state were migrated twice, the count in the result would show
    it."""
    old = state_class(reacts, 1)

    def move(state: Any) -> Any:
        had = {getattr(new, BEGINS) + name: value for name, value in vars(state).items() if name != MOVED}
        return new(**had, **{MOVED: getattr(state, MOVED) + 1})

    return Migration(name="move", version=1, function=move, takes=old, gives=new)


def _declared(  # the parts of a handler
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
