"""Write and read the manifest of a service: a JSON file that says what the service consumes, emits, compensates and
waits for. Other repositories can read it, too."""

import inspect
import re
import sys
from collections.abc import Collection, Iterable
from dataclasses import fields
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, get_type_hints

import msgspec
from msgspec import Struct, structs

from saga.choreography.fields_read import FieldsRead, find_calls, find_direct_calls, find_fields_read
from saga.contracts.library import Binding, binding_of, contract_of
from saga.contracts.upcasters import upcaster_of
from saga.declarations.annotations import (
    EitherShape,
    LaterReturned,
    OneEvent,
    ReturnShape,
    SequenceShape,
    TupleShape,
    spell,
)
from saga.declarations.changes import is_change, kind_of
from saga.declarations.migrations import check_chain
from saga.declarations.values import Declared, Reaction, ReactionKind
from saga.errors import ConfigurationError
from saga.messages import Event, name_of
from saga.support.clock import iso
from saga.support.printable import quote_text

FORMAT: Final = 2
"""Number of the format that is written. A manifest in a newer format, which a newer toolkit has written, is refused.
Format 1 lacks three things: which events a handler emits together, whether it has effects, and which events are
outcomes."""
LATER: Final = "@later"
"""Stands in `returns` for a `Later`: the run is suspended."""
ALTERNATIVES_MAX: Final = 64
"""Largest number of alternatives of one handler that a manifest lists."""
ALL: Final = "all"
_SERVICE = re.compile(r"[a-z][a-z0-9-]{0,63}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TEXTS = re.compile(r'\[\s+("[\w.*@]+"(?:,\s+"[\w.*@]+")*)\s+\]')
"""Pattern of a JSON list of names that is spread over several lines."""

Fields: TypeAlias = tuple[str, ...] | Literal["all"]
"""Fields that may be read, sorted. `address.street` is a field of a nested record; `address` stands for all of that
record."""


class EmittedContract(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event that a service may emit."""

    contract: str
    version: int
    """Version of the event class with which the event is emitted or read."""
    topic: str
    key: str
    outcome: Literal["success", "failure"] | None = None
    """Outcome with which the event ends a saga; `None` if it does not end one."""
    starts: bool = False
    """True if the event starts a saga."""
    produced_externally: bool = False
    """True if clients, and services other than the owner, may publish the event."""
    consumed_externally: bool = False
    """True if services outside of the known ones consume the event."""


class ConsumedContract(EmittedContract, frozen=True, kw_only=True, omit_defaults=True):
    """An event that a service handles, from the log or from its own progress, or that cancels a deadline."""

    fields: Fields
    because: str = ""
    """Why all fields count as read; empty if only some do."""
    upcasts: tuple[int, ...] = ()
    """Older versions that an upcaster of the service converts."""


class DeclaredReaction(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A handler, compensation or deadline as declared."""

    name: str
    kind: ReactionKind
    ids: str
    """Name of the reaction as it is used in event ids and idempotency keys. If it changes, the ids and keys change,
    too."""
    takes: tuple[tuple[str, ...], ...]
    """Contracts that each event parameter takes. The reaction needs one event for each parameter; several parameters
    are a fan-in."""
    optional: tuple[str, ...] = ()
    """Contracts that the handler does not wait for, so their parameters may be `None`."""
    later: bool = False
    """True if the handler may return `Later`."""
    until: tuple[str, ...] = ()
    """Contracts whose events the handler may wait for with `Later`."""
    within_s: float | None = None
    """Seconds after its event at which a deadline is due."""
    unless: tuple[str, ...] = ()
    """Contracts whose events cancel a deadline."""
    undoes: str | None = None
    """Name of the handler that a compensation undoes."""
    took: tuple[tuple[str, ...], ...] = ()
    """Contracts of the events of its handler that a compensation requires, one tuple for each parameter."""
    emits: tuple[str, ...] = ()
    returns: tuple[tuple[str, ...], ...] = ()
    """What one run, or one turn of a suspended run, emits together: one tuple for each alternative. For example, `A |
    tuple[B, C] | None` has the alternatives `A`, `B C` and nothing. `A*` stands for any number of events of the
    contract `A`, and `@later` for a `Later`. If a handler has more alternatives than `ALTERNATIVES_MAX`, there is only
    any number of events of each contract, without and with a `Later` if it may return one."""
    steps: tuple[str, ...] | None = ()
    """Calls of external systems in the code, as passed to `saga.step`; `None` if they cannot be determined."""
    updates: tuple[str, ...] | None = ()
    """Business documents that the code changes, as passed to `saga.update`; `None` if they cannot be determined."""
    direct: tuple[str, ...] = ()
    """Async calls of resources in the code that bypass `saga.step`, each with its place."""
    irreversible: bool = False
    """True if what the handler does cannot be undone."""
    repeats: tuple[str, ...] = ()
    """Contracts whose events may come several times in a saga; each event causes a run of its own."""
    version: int = 1
    """Version of the handler under which new runs begin."""
    keys: tuple[str, ...] | None = ()
    """Names that are passed to `saga.idempotency_key` as literals in the code; `None` if they cannot be determined."""
    resources: tuple[str, ...] = ()
    doc: str = ""

    @property
    def has_effects(self) -> bool:
        """Return whether the reaction may change something outside of its saga: a document or an external system."""
        return self.steps is None or self.updates is None or bool(self.steps or self.updates)

    @property
    def hears(self) -> tuple[str, ...]:
        """Return the contracts of all events that the reaction takes. For a deadline they include the contracts of
        events that cancel it."""
        return (*(name for part in (*self.takes, *self.took) for name in part), *self.optional, *self.unless)


class DeclaredState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state that a service keeps for each saga."""

    type: str
    version: int
    """Version of the state: one more than the number of migrations."""
    fields: dict[str, str]
    """Types of the state's fields by name, as annotated."""


class Manifest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Declarations of one service, for other services and tools to read."""

    format: int
    service: str
    was: str = ""
    """Name under which everything of the service is stored, if it differs from `service`. Contracts name the service as
    their owner by this name."""
    start: str = ""
    """Where the service begins to read a topic that it has never read: `beginning`, `now`, or a time; empty if not
    declared."""
    doc: str = ""
    kind: str
    """Name of the key field of all events of the service, which is also the kind of its sagas."""
    retention_s: float
    """Seconds for which a finished saga is kept after its last message."""
    consumes: tuple[ConsumedContract, ...]
    emits: tuple[EmittedContract, ...]
    reactions: tuple[DeclaredReaction, ...]
    state: DeclaredState | None = None
    resources: dict[str, str] = {}
    """Resources by name, each with the type that it yields."""
    documents: dict[str, str] = {}
    """Business documents by collection, each with its class name."""
    changes: dict[str, str] = {}
    """Collections whose document changes are consumed. The keys are the contract names under which reactions take the
    changes."""

    @property
    def stored(self) -> str:
        """Return the name under which everything of the service is stored."""
        return self.was or self.service

    def reaction(self, name: str) -> DeclaredReaction | None:
        """Return the reaction with this name; `None` if there is none."""
        return next((each for each in self.reactions if each.name == name), None)

    def find_consumed(self, contract: str) -> ConsumedContract | None:
        """Return how the service uses a contract; `None` if it does not consume it."""
        return next((each for each in self.consumes if each.contract == contract), None)

    @property
    def emitted(self) -> frozenset[str]:
        """Return the contracts whose events the service may emit."""
        return frozenset(each.contract for each in self.emits)


def format_manifest(manifest: Manifest) -> str:
    """Return a manifest as the text of its file: indented and in a fixed order, so that a change gives a small diff."""
    indented = msgspec.json.format(msgspec.json.encode(manifest, order="deterministic"), indent=2).decode()
    return _TEXTS.sub(lambda texts: f"[{' '.join(texts[1].split())}]", indented) + "\n"


def parse_manifest(text: str, place: str) -> Manifest:
    """Parse a manifest, which may come from an untrusted source. Raises `ConfigurationError` if it cannot be used.

    `place`: the file of the manifest, for error messages.
    """
    try:
        given: Any = msgspec.json.decode(text)
        number = given.get("format") if isinstance(given, dict) else None
        if type(number) is int and number > FORMAT:
            raise _unusable(place, [f"is of format {number}; this toolkit reads {FORMAT}: use a newer one"])
        manifest = msgspec.convert(given, Manifest)
    except (ValueError, RecursionError) as why:
        raise _unusable(place, [f"is no manifest: {why}; have `saga manifest --write` make it"]) from why
    if problems := _unusable_names(manifest):
        raise _unusable(place, problems)
    return manifest


def _unusable_names(manifest: Manifest) -> list[str]:
    """Return a problem for each invalid name in a manifest. Names are checked because they are used in pages and
    messages."""
    services = (manifest.service, manifest.stored)
    problems = [f"{quote_text(name)} is no name of a service" for name in services if not _SERVICE.fullmatch(name)]
    reactions = manifest.reactions
    events: tuple[EmittedContract, ...] = (*manifest.consumes, *manifest.emits)
    names = {
        *(each.contract for each in events),
        *(each.key for each in events),
        *(name for each in reactions for name in (*each.hears, *each.until, *each.emits)),
        *(name.rstrip("*") for each in reactions for part in each.returns for name in part if name != LATER),
        *(each.name for each in reactions),
        *(each.undoes for each in reactions if each.undoes is not None),
    }
    problems += [
        f"{quote_text(name)} is no name of an event, a field or a function"
        for name in sorted(names - _are_names(names))
    ]
    topics = {each.topic for each in events}
    problems += [
        f"{quote_text(topic)} is no name of a topic" for topic in sorted(topics) if not _TOPIC.fullmatch(topic)
    ]
    return problems


def _are_names(names: set[str]) -> set[str]:
    return {name for name in names if _NAME.fullmatch(name)}


def _unusable(place: str, problems: list[str]) -> ConfigurationError:
    return ConfigurationError(f"{place} cannot be used:", problems)


# -------------------------------------------------------------------- declared


def make_manifest(declared: Declared) -> Manifest:
    """Return the manifest of a service with at least one reaction. Raises `DeclarationError` if its migrations do not
    form a chain."""
    first = declared.reactions[0]
    changes = {event for reaction in declared.reactions for event in reaction.taken_events if is_change(event)}
    consumed = {event for reaction in declared.reactions for event in reaction.consumed_events} - changes
    emitted = {event for reaction in declared.reactions for event in reaction.emits}
    return Manifest(
        format=FORMAT,
        service=declared.title,
        was=declared.name if declared.renamed else "",
        start=_start(declared),
        doc=_first_paragraph(sys.modules[first.function.__module__].__doc__),
        kind=contract_of(first.taken_events[0]).key,
        retention_s=declared.retention.total_seconds(),
        consumes=tuple(_describe_consumed(declared, event) for event in _one_class_each(consumed)),
        emits=tuple(_describe_emitted(event) for event in _one_class_each(emitted)),
        reactions=tuple(
            _describe_reaction(declared, reaction) for reaction in sorted(declared.reactions, key=lambda r: r.name)
        ),
        state=_describe_state(declared),
        resources={each.name: spell(each.gives) for each in declared.resources},
        documents={each.collection: spell(each.kind) for each in declared.documents},
        changes={name_of(each): kind.collection for each in changes if (kind := kind_of(each)) is not None},
    )


def _start(declared: Declared) -> str:
    if isinstance(declared.start, datetime):
        return iso(round(declared.start.timestamp() * 1000))
    return declared.start or ""


def _describe_consumed(declared: Declared, event: type[Event]) -> ConsumedContract:
    """Return how all reactions of a service together use an event. The key field always counts as read, because it is
    the saga id."""
    bound, read = binding_of(event), FieldsRead()
    for reaction in declared.reactions:
        for parameter in reaction.parameters:
            for taken in parameter.events:
                if name_of(taken) == name_of(event):
                    read |= find_fields_read(reaction.function, parameter.name, parameter.events)[taken]
    return ConsumedContract(
        **structs.asdict(_describe_emitted(event)),
        fields=ALL if read.whole else tuple(sorted({*read.fields, bound.contract.key})),
        because=read.whole,
        upcasts=tuple(number for number in sorted(bound.version.upcasts) if upcaster_of(event, number) is not None),
    )


def _describe_emitted(event: type[Event]) -> EmittedContract:
    bound: Binding = binding_of(event)
    contract = bound.contract
    return EmittedContract(
        contract=contract.name,
        version=bound.version.number,
        topic=contract.topic,
        key=contract.key,
        outcome=contract.outcome,
        starts=contract.starts,
        produced_externally=contract.produced_externally,
        consumed_externally=contract.consumed_externally,
    )


def _describe_reaction(declared: Declared, reaction: Reaction) -> DeclaredReaction:
    assert reaction.shape is not None
    events = [each for each in reaction.parameters if each.role == "event"]
    originals = [each.events for each in events if each.of_original]
    by_type = {each.gives: each.name for each in declared.resources}
    calls = find_calls(reaction.function, frozenset(p.name for p in reaction.parameters if p.role == "saga"))
    return DeclaredReaction(
        name=reaction.name,
        kind=reaction.kind,
        ids=f"{declared.name}|{reaction.name}",
        takes=tuple(_names(each) for each in reaction.needed_events if each not in originals),
        optional=tuple(name for each in events if each.optional for name in _names(each.events)),
        later=reaction.may_wait,
        until=_names(reaction.shape.awaited_events),
        within_s=None if reaction.within is None else reaction.within.total_seconds(),
        unless=_names(reaction.unless),
        undoes=reaction.undoes,
        took=tuple(_names(each.events) for each in events if each.of_original and not each.optional),
        emits=_names(reaction.emits),
        returns=list_alternatives(reaction.shape),
        steps=None if calls is None else calls.steps,
        updates=None if calls is None else calls.updates,
        direct=find_direct_calls(
            reaction.function, {each.name: each.gives for each in reaction.parameters if each.gives is not None}
        ),
        irreversible=reaction.irreversible,
        repeats=_names(reaction.repeats),
        version=reaction.version,
        keys=None if calls is None else calls.keys,
        resources=tuple(by_type[each.gives] for each in reaction.parameters if each.gives is not None),
        doc=_first_paragraph(reaction.function.__doc__),
    )


def list_alternatives(shape: ReturnShape) -> tuple[tuple[str, ...], ...]:
    """Return what a handler with this return annotation may emit together, as in `DeclaredReaction.returns`."""
    found = tuple(dict.fromkeys(_alternatives(shape)))
    if len(found) <= ALTERNATIVES_MAX:
        return found
    return tuple(_any_number([*_names(shape.events), *([LATER] if shape.may_wait else [])]))


def _alternatives(shape: ReturnShape) -> list[tuple[str, ...]]:
    """Return the alternatives for a return annotation. If there are more than `ALTERNATIVES_MAX`, not all are
    returned."""
    if isinstance(shape, OneEvent):
        return [_names((shape.event,))]
    if isinstance(shape, LaterReturned):
        return [(LATER,)]
    inner = [_alternatives(part) for part in shape.parts]
    if isinstance(shape, EitherShape):
        return [each for part in inner for each in part]
    if isinstance(shape, SequenceShape):
        return _any_number({name.rstrip("*"): None for part in inner for each in part for name in each})
    found: list[tuple[str, ...]] = [()]  # `None`, and the empty beginning of a tuple
    for part in inner if isinstance(shape, TupleShape) else ():
        together = (tuple(sorted((*before, *each))) for before in found[: ALTERNATIVES_MAX + 1] for each in part)
        found = list(dict.fromkeys(together))
    return found


def _any_number(names: Collection[str]) -> list[tuple[str, ...]]:
    """Return the alternatives of a list of these events. `LATER` among the names may be in the list or not."""
    many = tuple(f"{name}*" for name in names if name != LATER)
    return [many, (*many, LATER)] if LATER in names else [many]


def _describe_state(declared: Declared) -> DeclaredState | None:
    if declared.state is None:
        return None
    hints = get_type_hints(declared.state)
    return DeclaredState(
        type=spell(declared.state),
        version=len(check_chain(declared)) + 1,
        fields={each.name: spell(hints[each.name]) for each in fields(declared.state)},
    )


def _one_class_each(events: Iterable[type[Event]]) -> list[type[Event]]:
    """Return one class for each contract, sorted by name. If there are several classes for a contract, choose the one
    with the oldest version."""
    classes = {name_of(each): each for each in sorted(events, key=lambda e: -binding_of(e).version.number)}
    return [classes[name] for name in sorted(classes)]


def _names(events: Iterable[type[Event]]) -> tuple[str, ...]:
    return tuple(map(name_of, events))


def _first_paragraph(doc: str | None) -> str:
    return " ".join(inspect.cleandoc(doc or "").partition("\n\n")[0].split())
