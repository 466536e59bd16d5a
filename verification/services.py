"""Small services that are explored: their handlers, made ready for the real runtime."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from datetime import timedelta
from typing import Any, Literal, cast

from saga.clock import from_iso, iso
from saga.contracts.library import Contract
from saga.declarations.values import Declared, DocumentKind, Reaction
from saga.errors import BadInput
from saga.identity import identity
from saga.messages import Event, Message
from saga.names import commands_of
from saga.policies.retry import Retry
from saga.progress.roles import Role, Roles, Undo
from saga.progress.spill import BOUNDS, Bounds
from saga.runtime.cache import KnownPages
from saga.runtime.participant import Participant
from saga.runtime.ports import Ports
from saga.runtime.watching import Watching
from saga.store.port import Store
from saga.testing.single_turns import SetClock, Undisturbed
from saga.wakes import tiers_of
from verification.handlers import (
    SAGA,
    SERVICE,
    ExploredEvent,
    Out,
    Reacts,
    Stock,
    compensation_of,
    handler_of,
)
from verification.operations import AGE_MS, NOW_MS, TICK_MS, ExploredLog, ExploredStore, OtherLane, PlainRun

MEMORY_S = 30 * 86400
BAD = "it cannot be decoded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """A service to be explored."""

    handlers: tuple[Reacts, ...]
    outcomes: frozenset[str] = frozenset()
    failures: frozenset[str] = frozenset()
    starts: frozenset[str] = frozenset()
    attempts_max: int = 9
    parks: bool = False
    """True if a failed run is parked; else it is tried again in place."""
    added: tuple[Reacts, ...] = ()
    """Handlers that a later release has besides: each worker becomes one of that release at some time."""
    said: frozenset[str] = frozenset()
    """Own events that others may say too."""
    tight: bool = False
    """True if inbox and history are so bounded that they are trimmed within a scenario."""
    bounds: Bounds = BOUNDS
    """Bounds beyond which something goes to pages."""

    @property
    def releases(self) -> tuple[tuple[Reacts, ...], ...]:
        """The handlers of each release, oldest first."""
        return (self.handlers, (*self.handlers, *self.added)) if self.added else (self.handlers,)


class ExploredParticipant(Participant):
    """Participant whose events are texts, so that the search spends its time on the protocol."""

    __slots__ = ()

    def decode(self, handler: str, message: Message) -> Event:
        fields = json.loads(message.value)
        if "content" not in fields or handler in fields.get("bad", ()):
            raise BadInput(BAD)
        class_: type[Any] = self.classes[handler][message.type]
        event: Event = class_(content=fields["content"])
        return event

    def encode(self, event: Event, saga: str) -> tuple[str, str, bytes]:
        name = type(event).__name__
        return name, f"explored/{name}.v1", json.dumps(vars(event)).encode()


def message(  # what a message consists of
    id_: str,
    type_: str,
    content: str | None = None,
    *,
    bad: bool | Sequence[str] = False,
    version: int = 1,
    source: str = "others",
    started: bool = True,
    after: int = 0,
) -> Message:
    """A foreign message, as it lies in the log. `bad`: nobody, or none of these handlers, can decode it. `version`: of
    its schema, which gives the same content other bytes. `started`: it says when its saga began. `after`: times that
    `AGE_MS` had passed when it was said."""
    fields: dict[str, object] = {"content": id_ if content is None else content}
    if bad is True:
        fields = {}
    elif bad:
        fields["bad"] = list(bad)
    if version > 1:
        fields["version"] = version
    return Message(
        id=identity(source, id_, type_, SERVICE),
        type=type_,
        schema=f"explored/{type_}.v{version}",
        saga=SAGA,
        source=source,
        time=time_after(after),
        started=iso(NOW_MS) if started else None,
        value=json.dumps(fields).encode(),
    )


def time_after(ages: int) -> str:
    """Time at which `AGE_MS` has passed so often."""
    return iso(ms_after(ages))


def ms_after(ages: int) -> int:
    """The same time, in milliseconds."""
    return NOW_MS + ages * AGE_MS


def now_ms(ages: int, ticks: int) -> int:
    """Time at which `AGE_MS` and `TICK_MS` have passed so often, in milliseconds since 1970."""
    return ms_after(ages) + ticks * TICK_MS


def ages_at(time: str) -> int:
    """Times that `AGE_MS` has passed at that time."""
    return (from_iso(time) - NOW_MS) // AGE_MS


def explored_ports(store: ExploredStore, clock: SetClock, other: OtherLane) -> Ports:
    """The ports of a turn, each await a choice point."""
    return Ports(
        store=cast(Store, store),
        log=ExploredLog(),
        clock=clock,
        watching=Watching(SERVICE, clock, lambda moment: None),
        assignment=Undisturbed(is_committed=lambda position: position in store.committed),
        together=other.together,
        pages=KnownPages(bytes_max=0),
        one_run=PlainRun,
    )


def participant(explored: Explored, ports: Ports, release: int = 0) -> Participant:
    """The service, ready to handle messages."""
    reacts = explored.releases[release]
    delay_s = TICK_MS / 1000
    retry = Retry(
        attempts_max=explored.attempts_max,
        delay_s_first=delay_s,
        delay_s_max=delay_s,
        in_place_s=0 if explored.parks else 1e9,
    )
    types = {t for h in reacts for ts in (*h.to, h.types, h.unless) for t in ts}
    types |= explored.failures
    classes: dict[str, type[ExploredEvent]] = {}
    for name in sorted(types):
        contract = {"__contract__": f"explored/{name}.v1"}
        classes[name] = make_dataclass(
            name, [("content", str)], bases=(ExploredEvent,), frozen=True, namespace=contract
        )
    state = make_dataclass("State", [(h.name, bool, False) for h in reacts], frozen=True)
    handlers: dict[str, Reaction] = {}
    roles = []
    takes: dict[str, dict[str, type[ExploredEvent]]] = {}
    for h in reacts:
        handlers[h.name] = handler_of(h, classes, retry)
        takes[h.name] = {t: classes[t] for ts in h.to for t in ts}
        undo = None
        if h.undo is not None:
            undo = Undo(name=f"undo_{h.name}", outcomes=explored.failures, results=frozenset(h.types))
            handlers[undo.name] = compensation_of(h, classes, retry, explored.failures)
            takes[undo.name] = {t: classes[t] for t in (*sorted(explored.failures), *h.types)}
        roles.append(
            Role(
                name=h.name,
                takes=tuple(map(frozenset, h.to)),
                many=h.many,
                decides=any(e in explored.outcomes for e in h.types),
                after_outcome=any(t in explored.outcomes | explored.failures for ts in h.to for t in ts),
                undo=undo,
                within_ms=TICK_MS * h.within,
                unless=(explored.outcomes & types) | set(h.unless) if h.within else frozenset(),
            )
        )
    emitted = frozenset(e for h in reacts for e in h.types)
    return ExploredParticipant(
        declared=Declared(name=SERVICE, state=None, memory=timedelta(seconds=MEMORY_S)),
        name=SERVICE,
        commands=commands_of(SERVICE),
        wakes=tiers_of(SERVICE),
        roles=Roles(SERVICE, roles, outcomes=explored.outcomes & emitted, emitted=emitted),
        handlers=handlers,
        classes=takes,
        contracts={name: _contract(name, explored) for name in sorted(types)},
        consumed=frozenset(
            types - (emitted - explored.said) - (explored.failures if all(h.undo is None for h in reacts) else set())
        ),
        starts=explored.starts,
        library=None,  # type: ignore[arg-type] # decode and encode above do without
        state=state,
        memory_s=MEMORY_S,
        documents={Stock: DocumentKind(kind=Stock, collection="stock", answers=(Out,))},
        resources={},
        timeouts={},
        answers=dict.fromkeys(handlers, ()),
        ports=ports,
        bounds=explored.bounds,
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
