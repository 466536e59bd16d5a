"""The small services that are explored: handlers described in a line, made ready for the real runtime."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from typing import Any, Literal, Self

from saga.contracts.library import Contract
from saga.declarations.values import DocumentKind, Handler, Parameter
from saga.errors import BadInput
from saga.messages import Event, Message
from saga.policies.retry import Retry
from saga.progress.roles import Role, Roles, Undo
from saga.runtime.participant import Participant
from saga.testing.exploration.operations import Broken, ExploredPorts, call_outside
from saga.view import Saga

SAGA, SERVICE, ITEM = "s-1", "explored", "tea"


class Out(Exception):
    """Nothing is left: a refusal."""


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
    """As `take`, on a document that may be absent."""
    return (stock or Stock()).take()


def give_or_open(stock: Stock | None) -> Stock:
    """As `give`, on a document that may be absent."""
    return (stock or Stock()).give()


UPDATES: dict[str, Callable[..., Stock]] = {
    "take": Stock.take,
    "give": Stock.give,
    "take or open": take_or_open,
    "give or open": give_or_open,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reacts:
    """A handler: its event parameters (each with the types it takes), what it does in order, what it emits."""

    name: str
    to: tuple[tuple[str, ...], ...]
    does: tuple[str, ...] = ()
    """`step`, or a name of `UPDATES`."""
    emits: tuple[str, ...] = ()
    undo: tuple[str, ...] | None = None
    """What its compensation does, beside each of `does`."""
    many: bool = False
    needs: str | None = None
    """Raises unless this handler has run, as the state says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """A service to be explored."""

    handlers: tuple[Reacts, ...]
    outcomes: frozenset[str] = frozenset()
    failures: frozenset[str] = frozenset()
    starts: frozenset[str] = frozenset()
    attempts_max: int = 9
    patch: Callable[[], Any] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class ExploredEvent(Event):
    """What all explored events are: a text."""

    content: str


class ExploredParticipant(Participant):
    """Events are a text, so that the search spends its time on the protocol."""

    __slots__ = ()

    def decode(self, handler: str, message: Message) -> Event:
        fields = json.loads(message.value)
        if "bad" in fields:
            raise BadInput("it cannot be decoded")
        return self.classes[handler][message.type](**fields)

    def encode(self, event: Event, saga: str) -> tuple[str, str, bytes]:
        name = type(event).__name__
        return name, f"explored/{name}.v1", json.dumps(vars(event)).encode()


def message(id_: str, type_: str, content: str | None = None, *, bad: bool = False) -> Message:
    """A foreign message, as it lies in the log."""
    fields = {"bad": True} if bad else {"content": id_ if content is None else content}
    return Message(
        id=id_,
        type=type_,
        schema=f"explored/{type_}.v1",
        saga=SAGA,
        source="others",
        time="2027-01-15T08:00:00.000Z",
        started="2027-01-15T08:00:00.000Z",
        value=json.dumps(fields).encode(),
    )


def participant(explored: Explored, ports: ExploredPorts) -> Participant:
    """The service, ready to handle messages."""
    types = {t for h in explored.handlers for ts in (*h.to, h.emits) for t in ts}
    types |= explored.failures
    classes: dict[str, type[ExploredEvent]] = {}
    for name in sorted(types):
        contract = {"__contract__": f"explored/{name}.v1"}
        classes[name] = make_dataclass(
            name, [("content", str)], bases=(ExploredEvent,), frozen=True, namespace=contract
        )
    state = make_dataclass("State", [(h.name, bool, False) for h in explored.handlers], frozen=True)
    handlers: dict[str, Handler] = {}
    roles = []
    takes: dict[str, dict[str, type[ExploredEvent]]] = {}
    for h in explored.handlers:
        handlers[h.name] = _handler(h, classes, explored.attempts_max)
        takes[h.name] = {t: classes[t] for ts in h.to for t in ts}
        undo = None
        if h.undo is not None:
            undo = Undo(name=f"undo_{h.name}", outcomes=explored.failures, results=frozenset(h.emits))
            handlers[undo.name] = _compensation(h, classes, explored)
            takes[undo.name] = {t: classes[t] for t in (*explored.failures, *h.emits)}
        roles.append(
            Role(
                name=h.name,
                takes=tuple(map(frozenset, h.to)),
                many=h.many,
                decides=any(e in explored.outcomes for e in h.emits),
                undo=undo,
            )
        )
    emitted = frozenset(e for h in explored.handlers for e in h.emits)
    return ExploredParticipant(
        name=SERVICE,
        roles=Roles(SERVICE, roles, outcomes=explored.outcomes & emitted, emitted=emitted),
        handlers=handlers,
        classes=takes,
        contracts={name: _contract(name, explored) for name in sorted(types)},
        consumed=frozenset(types - emitted),
        library=None,  # type: ignore[arg-type] # decode and encode above do without
        state=state,
        memory_s=30 * 86400,
        documents={Stock: DocumentKind(kind=Stock, collection="stock", answers=(Out,))},
        resources={},
        timeouts={},
        answers=dict.fromkeys(handlers, ()),
        ports=ports,
    )


def _contract(name: str, explored: Explored) -> Contract:
    outcome: Literal["failure", "success"] | None = None
    if name in explored.outcomes:
        outcome = "failure" if name in explored.failures else "success"
    return Contract(
        name=name,
        topic="explored",
        key="content",
        owner=SERVICE,
        starts=name in explored.starts,
        outcome=outcome,
        said_outside=False,
        heard_outside=False,
        doc="",
        versions=(),
    )


async def _act(saga: Saga[Any], does: Sequence[str], who: str, given: str) -> list[str]:
    """The steps and updates, in order; what each gave."""
    results = []
    for number, what in enumerate(does):
        if what == "step":
            await saga.step(call_outside, saga.key(f"k{number}"), given, f"{who}:{number}")
            results.append("ok")
        elif what == "nothing":
            results.append("ok")
        else:
            try:
                await saga.update(Stock, ITEM, UPDATES[what])
                results.append("applied")
            except Out:
                results.append("refused")
    return results


def _handler(h: Reacts, classes: dict[str, type[ExploredEvent]], attempts_max: int) -> Handler:
    async def function(saga: Saga[Any], **events: Any) -> tuple[Event, ...]:
        parts = [events[f"p{i}"] for i in range(len(h.to))]
        if h.needs is not None and not getattr(saga.state, h.needs):
            raise Broken(f"{h.name} needs {h.needs}")
        contents = "+".join(sorted(p.content for p in parts))
        given = f"{saga.state}|{[type(p).__name__ + p.content for p in parts]}"
        results = await _act(saga, h.does, f"do:{h.name}:{contents}", given)
        saga.state = replace(saga.state, **{h.name: True})
        return tuple(classes[e](content=f"{contents}/{','.join(results)}") for e in h.emits)

    return _declared(
        h.name,
        function,
        tuple(tuple(classes[t] for t in ts) for ts in h.to),
        h.emits,
        classes,
        attempts_max,
        h.many,
        None,
    )


def _compensation(h: Reacts, classes: dict[str, type[ExploredEvent]], explored: Explored) -> Handler:
    async def function(saga: Saga[Any], **events: Any) -> tuple[Event, ...]:
        content, _, results = events["p1"].content.rpartition("/")
        did = results.split(",")
        does = tuple("nothing" if did[i] == "refused" else what for i, what in enumerate(h.undo or ()))
        await _act(saga, does, f"undo:{h.name}:{content}", events["p1"].content)
        saga.state = replace(saga.state, **{h.name: False})
        return ()

    events = (tuple(classes[t] for t in sorted(explored.failures)), tuple(classes[t] for t in h.emits))
    return _declared(f"undo_{h.name}", function, events, (), classes, explored.attempts_max, False, h.name)


def _declared(
    name: str,
    function: Callable[..., Any],
    events: tuple[tuple[type[ExploredEvent], ...], ...],
    emits: tuple[str, ...],
    classes: dict[str, type[ExploredEvent]],
    attempts_max: int,
    many: bool,
    undoes: str | None,
) -> Handler:
    parameters = [Parameter(name=f"p{i}", role="event", events=types, gives=None) for i, types in enumerate(events)]
    return Handler(
        service=SERVICE,
        name=name,
        function=function,
        parameters=(*parameters, Parameter(name="saga", role="saga", events=(), gives=None)),
        emits=tuple(classes[e] for e in emits),
        many=many,
        retry=Retry(attempts_max=attempts_max),
        timeout_s=60,
        undoes=undoes,
    )
