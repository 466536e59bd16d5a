"""Stand-ins for services: run a choreography from its manifests when the code of the services is elsewhere.

A stand-in takes, emits, waits and compensates as its manifest says, and does nothing else. Its handlers return one of
the alternatives that the manifest lists; a `Chooser` picks it. Its effects are entries in an `EffectBook`. Stand-ins
run on the real runtime: in a `World`, or message by message with `RuntimeReplay`.
"""

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import reduce
from hashlib import blake2b
from inspect import Parameter, Signature
from itertools import count
from operator import or_
from pathlib import Path
from types import GenericAlias, ModuleType
from typing import Any, Protocol

from saga.choreography.check.model import Alternative, ChoreographyModel, ReactionModel, build_choreography
from saga.choreography.manifest import DeclaredReaction, EmittedContract, Manifest
from saga.contracts.codegen import generate
from saga.contracts.library import Binding, Library, bind, compare_class
from saga.errors import SagaError
from saga.messages import Event
from saga.service import Service
from saga.view import Later, Saga

WAIT = timedelta(seconds=1)
"""Time after which a suspended run of a stand-in continues, or stops waiting for an event."""
RETENTION = timedelta(days=30)
_numbers = count(1)


class Chooser(Protocol):
    """Function that decides what a run of a stand-in returns."""

    def __call__(self, reaction: ReactionModel, run: str, /) -> tuple[tuple[str, ...], bool]:
        """Return the events that a run emits, and whether the run is then suspended.

        `run` identifies the run. The answer for the same run must always be the same.
        """


@dataclass(slots=True)
class EffectBook:
    """A fake external system that the steps of all stand-ins call. It records the effects, and removes those that are
    undone.
    """

    standing: set[tuple[str, str]] = field(default_factory=set)
    """The effects that have not been undone. Each is the label of its reaction, such as `payment.reserve`, with its
    saga.
    """

    async def do(self, label: str, saga: str) -> None:
        self.standing.add((label, saga))

    async def undo(self, label: str, saga: str) -> None:
        self.standing.discard((label, saga))

    def list_standing(self, saga: str) -> frozenset[str]:
        """Return the labels of the reactions whose effects in this saga have not been undone."""
        return frozenset(label for label, each in self.standing if each == saga)


@dataclass(frozen=True, slots=True)
class StandIns:
    """Stand-ins for the services of some manifests, with the classes of their events."""

    choreography: ChoreographyModel
    services: Mapping[str, Service[None]]
    events: Mapping[str, type[Event]]
    book: EffectBook

    def make_event(self, name: str, saga: str) -> Event:
        """Create an event of the contract `name` for a saga."""
        return self.events[name](**{self.choreography.kind: saga})


def choose_by_digest(seed: int) -> Chooser:
    """Return a chooser whose answers depend only on the seed, the reaction and the run."""

    def choose(reaction: ReactionModel, run: str, /) -> tuple[tuple[str, ...], bool]:
        digest = int.from_bytes(blake2b(f"{seed}|{reaction.label}|{run}".encode(), digest_size=8).digest())
        options = [(chosen, each.later) for each in reaction.alternatives for chosen in each.list_choices()]
        return options[digest % len(options)]

    return choose


def make_stand_ins(manifests: Iterable[Manifest], folder: Path, choose: Chooser) -> StandIns:
    """Make a stand-in for each service. Contracts and event classes are written into `folder`.

    Raises `SagaError` for manifests with several kinds of saga.
    """
    given = sorted(manifests, key=lambda each: each.service)
    kinds = {each.kind for each in given}
    if len(kinds) != 1:
        raise SagaError(f"stand-ins follow one kind of saga; these services have {', '.join(sorted(kinds)) or 'none'}")
    choreography = build_choreography(kinds.pop(), given)
    events = _make_events(choreography, folder)
    book = EffectBook()
    services = {each.service: _Builder(choreography, each, events, book, choose).make_service() for each in given}
    return StandIns(choreography, services, events, book)


# -------------------------------------------------------------------- events


def _make_events(choreography: ChoreographyModel, folder: Path) -> Mapping[str, type[Event]]:
    """Write a contract for each event of the choreography, generate the event classes, and return them by name."""
    owners = {
        choreography.contracts[name].topic: emitters[0].service
        for name, emitters in choreography.emitters.items()
        if emitters
    }
    for name, contract in choreography.contracts.items():
        owner = owners.get(contract.topic, next(iter(choreography.services)))
        path = folder / "contracts" / contract.topic / f"{name}.v1.avsc"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_make_schema(choreography.kind, contract, owner)), "utf-8")
    library = Library.load(folder / "contracts")
    text = generate(library, list(choreography.contracts))
    module = ModuleType(f"saga_stand_ins_{next(_numbers)}")
    sys.modules[module.__name__] = module  # dataclasses and annotations look their module up
    exec(compile(text, module.__name__, "exec"), vars(module))
    events: dict[str, type[Event]] = {name: vars(module)[name] for name in choreography.contracts}
    for name, event in events.items():
        version = library.contracts[name].newest
        classes, _ = compare_class(event, version)
        bind(event, Binding(library.contracts[name], version, library, classes))
    return events


def _make_schema(kind: str, contract: EmittedContract, owner: str) -> dict[str, object]:
    schema: dict[str, object] = {
        "type": "record",
        "name": contract.contract,
        "doc": f"Stands for {contract.contract}.",
        "topic": contract.topic,
        "key": kind,
        "owner": owner,
        "starts": contract.starts,
        "fields": [{"name": kind, "type": "string"}],
    }
    if contract.outcome is not None:
        schema["outcome"] = contract.outcome
    if contract.produced_externally:
        schema["produced_by"] = "external"
    if contract.consumed_externally:
        schema["consumed_by"] = "external"
    return schema


# -------------------------------------------------------------------- services


@dataclass(frozen=True, slots=True)
class _Builder:
    """Builds the stand-in for one service."""

    choreography: ChoreographyModel
    manifest: Manifest
    events: Mapping[str, type[Event]]
    book: EffectBook
    choose: Chooser

    def make_service(self) -> Service[None]:
        service = Service(self.manifest.service, retention=RETENTION)
        book = self.book

        reactions = self.choreography.services[self.manifest.service].reactions.values()
        if any(each.has_effects or each.irreversible for each in reactions):

            async def effects():  # type: ignore[no-untyped-def] # annotated below, with a class of this module
                yield book

            effects.__annotations__["return"] = AsyncIterator[EffectBook]
            service.resource(effects)
        handlers: dict[str, Callable[..., Awaitable[object]]] = {}
        order = {"handler": 0, "deadline": 1, "compensation": 2}
        for each in sorted(self.manifest.reactions, key=lambda each: order[each.kind]):
            function = self._make_function(each)
            handlers[each.name] = function
            self._declare(service, each, function, handlers)
        return service

    def _declare(
        self,
        service: Service[None],
        declared: DeclaredReaction,
        function: Callable[..., Awaitable[Any]],
        handlers: Mapping[str, Callable[..., Awaitable[Any]]],
    ) -> None:
        if declared.kind == "compensation":
            service.compensation(handlers[declared.undoes or ""])(function)
        elif declared.kind == "deadline":
            unless = tuple(self.events[name] for name in declared.unless)
            within = timedelta(seconds=declared.within_s or 1)
            service.deadline(within=within, unless=unless)(function)
        elif declared.repeats:
            repeats = _join_types([self.events[name] for name in declared.repeats])
            service.handler(repeats=repeats, irreversible=declared.irreversible)(function)
        else:
            service.handler(irreversible=declared.irreversible)(function)

    def _make_function(self, declared: DeclaredReaction) -> Callable[..., Awaitable[Any]]:
        """Return a function with the signature of a reaction. It returns what the chooser picks."""
        reaction = self.choreography.services[self.manifest.service].reactions[declared.name]
        hints: dict[str, object] = {
            f"event_{number}": _join_types([self.events[name] for name in names])
            for number, names in enumerate((*declared.takes, *declared.took))
        }
        optional = {f"maybe_{number}": self.events[name] | None for number, name in enumerate(declared.optional)}
        hints |= {**optional, "saga": Saga}
        has_effects = reaction.has_effects or reaction.irreversible
        if has_effects:
            hints["effects"] = EffectBook
        label = f"{reaction.service}.{reaction.undoes}" if reaction.undoes else reaction.label

        async def stand_in(**given: Any) -> object:
            saga: Saga = given["saga"]
            emitted, later = self.choose(reaction, saga.idempotency_key("choice"))
            key = getattr(given["event_0"], self.choreography.kind)
            if has_effects and reaction.kind == "compensation":
                await saga.step(self.book.undo, label, key)
            elif has_effects and self._has_effect(reaction, emitted):
                await saga.step(self.book.do, label, key)
            return self._make_result(declared, emitted, later, key)

        stand_in.__name__ = stand_in.__qualname__ = declared.name
        stand_in.__annotations__ = {**hints, "return": self._make_return_type(declared, reaction)}
        parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=hints[name]) for name in hints]
        vars(stand_in)["__signature__"] = Signature(parameters)
        return stand_in

    def _has_effect(self, reaction: ReactionModel, emitted: Sequence[str]) -> bool:
        """Return True if a run that emits these events has an effect: always for a reaction without a compensation;
        otherwise if one of the events is a result that the compensation undoes.
        """
        compensation = self.choreography.compensation_of(reaction)
        return compensation is None or bool(self.choreography.results_of(compensation) & {*emitted})

    def _make_return_type(self, declared: DeclaredReaction, reaction: ReactionModel) -> object:
        until = [self.events[name] for name in declared.until]
        later: Any = Later[_join_types(until)] if until else Later  # type: ignore[misc] # made at run time
        found = []
        for each in reaction.alternatives:
            parts: list[Any] = [self.events[name] for name in each.once]
            parts += [GenericAlias(list, self.events[name]) for name in each.many]
            parts += [later] if each.later else []
            found.append(None if not parts else parts[0] if len(parts) == 1 else GenericAlias(tuple, tuple(parts)))
        return _join_types(found)

    def _make_result(self, declared: DeclaredReaction, emitted: Sequence[str], later: bool, key: str) -> object:
        """Return what the handler must return to emit these events and, if `later` is True, to be suspended."""
        reaction = self.choreography.services[self.manifest.service].reactions[declared.name]
        each = _find_alternative(reaction, emitted, later)
        kind = self.choreography.kind
        parts: list[object] = [self.events[name](**{kind: key}) for name in each.once]
        parts += [[self.events[name](**{kind: key})] * emitted.count(name) for name in each.many]
        if later:
            until = next((self.events[name] for name in declared.until), None)
            parts.append(Later(after=WAIT) if until is None else Later(until=until, within=WAIT))
        return None if not parts else parts[0] if len(parts) == 1 else tuple(parts)


def _find_alternative(reaction: ReactionModel, emitted: Sequence[str], later: bool) -> Alternative:
    for each in reaction.alternatives:
        if each.later == later and any(sorted(chosen) == sorted(emitted) for chosen in each.list_choices()):
            return each
    raise SagaError(f"{reaction.label} cannot return {' and '.join(emitted) or 'nothing'}: its manifest says otherwise")


def _join_types(types: Sequence[Any]) -> Any:
    """Return the union of these types, which may include `None`."""
    return reduce(or_, dict.fromkeys(types))
