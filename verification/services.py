"""The small services that are explored, prepared for the real runtime."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any, Literal, cast

from saga import Service
from saga.contracts.library import Contract, Library, Version
from saga.declarations.values import Declared, DocumentKind, Reaction
from saga.engine.isolated_ports import FixedClock, StaticAssignment
from saga.engine.known_schemas import KnownSchemas
from saga.engine.outage_watch import OutageWatch
from saga.engine.ports import Ports
from saga.engine.progress_cache import OverflowCache
from saga.engine.service_runtime import EncodedEvent, KnownControls, ServiceRuntime
from saga.errors import BadInput, UnknownSchema
from saga.messages import Event, Message
from saga.messaging.message_ids import identity, identity_of_declared
from saga.messaging.names import command_topic
from saga.messaging.timers import tiers_of
from saga.policies.retry import Retry
from saga.progress.handlers import CompensationRole, HandlerRole, HandlerRoles
from saga.progress.overflow import BOUNDS, OverflowBounds
from saga.store.port import Store
from saga.support.clock import from_iso, iso
from verification.handlers import (
    SAGA,
    SERVICE,
    ExploredEvent,
    Out,
    Reacts,
    Stock,
    compensation_of,
    handler_of,
    migration,
    state_class,
)
from verification.operations import AGE_MS, NOW_MS, TICK_MS, ExploredLog, ExploredStore, OtherLane, PlainRun

MEMORY_S = 30 * 86400
BAD = "it cannot be decoded"
NEWER = b"newer..."
"""Fingerprint of the schemas that only a later release knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """Description of a service to explore."""

    handlers: tuple[Reacts, ...]
    outcomes: frozenset[str] = frozenset()
    failures: frozenset[str] = frozenset()
    starts: frozenset[str] = frozenset()
    attempts_max: int = 9
    parks: bool = False
    """True if a failed run is parked; false if it is retried at once."""
    added: tuple[Reacts, ...] = ()
    """Handlers that only a later release has. Each worker is updated to that release at some time."""
    sent_by_others: frozenset[str] = frozenset()
    """Self-consumed events that other senders may publish, too."""
    tight: bool = False
    """True if the bounds of inbox and journal are so small that a scenario reaches them."""
    migrates: bool = False
    """True if a later release has the same handlers, and another version of the state with a migration."""
    improves: bool = False
    """True if a later release has version 2 of the same handlers, which also make the acts with the condition `new`."""
    renamed: bool = False
    """True if a later release has the same handlers under another name of the service, and declares the first name."""
    learns: bool = False
    """True if a later release has the same handlers and knows additional schemas."""
    bounds: OverflowBounds = BOUNDS
    """Bounds above which data go to overflow segments."""

    @property
    def releases(self) -> tuple[tuple[Reacts, ...], ...]:
        """Return the handlers of each release, oldest first."""
        later = self.added or self.learns or self.migrates or self.improves or self.renamed
        return (self.handlers, (*self.handlers, *self.added)) if later else (self.handlers,)


def declared_by(explored: Explored, release: int) -> Declared:
    """Return the declaration of the service in a release, without its handlers."""
    memory = timedelta(seconds=MEMORY_S)
    if explored.renamed and release:
        return Service("renamed", was=SERVICE, retention=memory).declared
    return Service(SERVICE, retention=memory).declared


class LooksEachTime(KnownControls):
    """Controls without a cache: each run reads the control log again, so a run depends on the content of the store
    alone."""

    __slots__ = ()

    @property
    def until_s(self) -> float:
        return -inf

    @until_s.setter
    def until_s(self, until_s: float) -> None:
        """Ignore the time, so that the next run reads the control log again."""


class ExploredService(ServiceRuntime):
    """A service whose events are strings, so that the search spends no time on Avro."""

    __slots__ = ()

    def decode(self, handler: str, message: Message) -> Event:
        fields = json.loads(message.value)
        if "content" not in fields or handler in fields.get("bad", ()):
            raise BadInput(BAD)
        if "newer" in fields and NEWER not in self.schemas.library.by_fingerprint:
            raise UnknownSchema(NEWER, "its schema is not deployed here")
        class_: type[Any] = self.classes[handler][message.type]
        event: Event = class_(content=fields["content"])
        return event

    def encode(self, event: Event, saga: str) -> EncodedEvent:
        name = type(event).__name__
        return EncodedEvent(name, f"explored/{name}.v1", json.dumps(vars(event)).encode())


def message(  # the parts of a message
    id_: str,
    type_: str,
    content: str | None = None,
    *,
    bad: bool | Sequence[str] = False,
    version: int = 1,
    newer: bool = False,
    source: str = "others",
    started: bool = True,
    after: int = 0,
    at: int | None = None,
) -> Message:
    """Make a message as another service publishes it.

    `bad`: it cannot be decoded, or not by these handlers. `version`: version of its schema, which changes the bytes and
    not the content. `newer`: only a later release knows its schema. `started`: it contains the time at which its saga
    began. `after`: number of times that `AGE_MS` had passed when it was published. `at`: offset of a message without
    source and `ce_id`, whose id is in the place that its contract declares.
    """
    fields: dict[str, object] = {"content": id_ if content is None else content}
    if bad is True:
        fields = {}
    elif bad:
        fields["bad"] = list(bad)
    if newer:
        fields["newer"] = True
    if version > 1:
        fields["version"] = version
    return Message(
        id=identity(source, id_, type_, SERVICE) if at is None else name_of_relayed(type_, id_, at),
        type=type_,
        schema=f"explored/{type_}.v{version}",
        saga=SAGA,
        source=source,
        time=time_after(after),
        started=iso(NOW_MS) if started else None,
        value=json.dumps(fields).encode(),
    )


def name_of_relayed(type_: str, id_: str, offset: int) -> str:
    """Return the id of a message that a relay has published."""
    return identity_of_declared("explored", type_, id_)


def time_after(ages: int) -> str:
    """Return the time after `AGE_MS` has passed this number of times."""
    return iso(ms_after(ages))


def ms_after(ages: int) -> int:
    """Return the time in milliseconds after `AGE_MS` has passed this number of times."""
    return NOW_MS + ages * AGE_MS


def now_ms(ages: int, ticks: int) -> int:
    """Return the time in milliseconds since 1970 after `AGE_MS` and `TICK_MS` have passed these numbers of times."""
    return ms_after(ages) + ticks * TICK_MS


def ages_at(time: str) -> int:
    """Return how many times `AGE_MS` has passed at a time."""
    return (from_iso(time) - NOW_MS) // AGE_MS


def explored_ports(store: ExploredStore, clock: FixedClock, other: OtherLane) -> Ports:
    """Return the ports with which a worker processes one message in an exploration.

    Whenever the processing awaits one of these ports, it yields an operation (see `verification.operations`), and the
    exploration chooses how to continue: the operation succeeds, fails, loses its answer, or the worker dies.
    """
    return Ports(
        store=cast(Store, store),
        publisher=ExploredLog(),
        clock=clock,
        outage_watch=OutageWatch(SERVICE, clock, lambda moment: None),
        assignment=StaticAssignment(
            is_committed=lambda position: position in store.committed,
            is_of_current_log=lambda position: (position.topic, position.log_id) in store.logs,
            handled=lambda due_ms: store.handled_ms,
        ),
        batch=other.together,
        overflow_cache=OverflowCache(bytes_max=0),
        make_run_scope=PlainRun,
        reload_contracts=_nothing_new,
    )


def _role_of(h: Reacts, explored: Explored, undo: CompensationRole | None, known: frozenset[str]) -> HandlerRole:
    """Return what decisions need to know about a handler. `known`: the outcomes that the service knows."""
    ends = explored.outcomes | explored.failures
    return HandlerRole(
        name=h.name,
        takes=tuple(map(frozenset, h.to)),
        optional=(frozenset(h.until),) if h.until else (),
        many=h.many,
        changes=frozenset().union(*h.to) if h.changes else frozenset(),
        decides=any(e in explored.outcomes for e in h.types),
        closes=any(e in other.unless for other in explored.handlers for e in h.types),
        after_outcome=any(t in ends for ts in h.to for t in ts),
        undo=undo,
        within_ms=TICK_MS * h.within,
        unless=known | set(h.unless) if h.within else frozenset(),
        ends_surely=bool(h.within and not h.unless and h.emits and all(e in ends for e in h.types)),
    )


def participant(explored: Explored, ports: Ports, release: int = 0, *, controlled: bool = False) -> ServiceRuntime:
    """Make the service runtime that handles messages in one release. `controlled`: each run reads the control log;
    otherwise none does."""
    reacts, declared = explored.releases[release], declared_by(explored, release)
    name = declared.name
    delay_s = TICK_MS / 1000
    retry = Retry(
        attempts_max=explored.attempts_max,
        delay_s_first=delay_s,
        delay_s_max=delay_s,
        in_place_s=0 if explored.parks else 1e9,
    )
    types = {t for h in reacts for ts in (*h.to, h.types, h.unless, h.until) for t in ts}
    types |= explored.failures
    classes: dict[str, type[ExploredEvent]] = {}
    for type_ in sorted(types):
        contract = {"__contract__": f"explored/{type_}.v1"}
        classes[type_] = make_dataclass(
            type_, [("content", str)], bases=(ExploredEvent,), frozen=True, namespace=contract
        )
    state = state_class(reacts, version := 2 if explored.migrates and release else 1)
    handlers: dict[str, Reaction] = {}
    roles = []
    takes: dict[str, dict[str, type[ExploredEvent]]] = {}
    for h in reacts:
        handlers[h.name] = handler_of(h, classes, retry, 2 if explored.improves and release else 1)
        takes[h.name] = {t: classes[t] for ts in (*h.to, h.until) for t in ts}
        undo = None
        if h.undo is not None:
            took = frozenset(t for ts in h.to for t in ts) if h.keeps else frozenset()
            undo = CompensationRole(
                name=f"undo_{h.name}", outcomes=explored.failures, results=frozenset(h.types), took=took
            )
            handlers[undo.name] = compensation_of(h, classes, retry, explored.failures)
            takes[undo.name] = {t: classes[t] for t in (*sorted(explored.failures), *h.types, *took)}
        roles.append(_role_of(h, explored, undo, explored.outcomes & types))
    emitted = frozenset(e for h in reacts for e in h.types)
    return ExploredService(
        declared=declared,
        name=name,
        commands=command_topic(name),
        wakes=tiers_of(name),
        changes={},
        set_apart=frozenset((command_topic(name), *tiers_of(name))),
        roles=HandlerRoles(name, roles, outcomes=explored.outcomes & emitted, emitted=emitted),
        handlers=handlers,
        classes=takes,
        contracts={type_: _contract(type_, explored) for type_ in sorted(types)},
        consumed=frozenset(
            types
            - (emitted - explored.sent_by_others)
            - (explored.failures if all(h.undo is None for h in reacts) else set())
        ),
        starts=explored.starts,
        schemas=KnownSchemas(_library(knows_newer=release > 0)),
        state=state,
        migrations=(migration(reacts, state),) if version > 1 else (),
        version=version,
        retention_s=MEMORY_S,
        documents={Stock: DocumentKind(kind=Stock, collection="stock", expected_errors=(Out,))},
        resources={},
        used_resources={},
        expected_errors=dict.fromkeys(handlers, ()),
        ports=ports,
        controls=LooksEachTime() if controlled else KnownControls(until_s=inf),
        bounds=explored.bounds,
    )


def _library(*, knows_newer: bool) -> Library:
    """Return the contracts library of a release. It has no contracts, and is only asked which schemas are known."""
    known: dict[bytes, Version] = {NEWER: cast(Version, None)} if knows_newer else {}
    return Library(Path(), {}, {}, {}, known)


async def _nothing_new(library: Library) -> Library:
    """Return the library unchanged, because new schemas only come with a release: see `Explored.learns`."""
    return library


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
        produced_externally=False,
        consumed_externally=False,
        doc="",
        versions=(),
    )
