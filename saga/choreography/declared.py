"""Manifest of a service out of its declarations."""

import inspect
import sys
from collections.abc import Iterable
from dataclasses import fields
from datetime import datetime
from typing import get_type_hints

from saga.choreography.fields_read import Read, fields_read, keys_named
from saga.choreography.manifest import ALL, FORMAT, Consumed, Emitted, Manifest, State, Told
from saga.contracts.library import Binding, binding_of, contract_of
from saga.contracts.upcasters import upcaster_of
from saga.declarations.annotations import spelt
from saga.declarations.changes import is_change, kind_of
from saga.declarations.migrations import whole_chain
from saga.declarations.values import Declared, Reaction
from saga.messages import Event, name_of
from saga.support.clock import iso


def manifest_of(declared: Declared) -> Manifest:
    """Manifest of a service that reacts to something. Raises `DeclarationError` for migrations that are no chain."""
    first = declared.reactions[0]
    changes = {event for reaction in declared.reactions for event in reaction.takes if is_change(event)}
    heard = {event for reaction in declared.reactions for event in reaction.hears} - changes
    said = {event for reaction in declared.reactions for event in reaction.emits}
    return Manifest(
        format=FORMAT,
        service=declared.title,
        was=declared.name if declared.renamed else "",
        start=_start(declared),
        doc=_first_paragraph(sys.modules[first.function.__module__].__doc__),
        kind=contract_of(first.takes[0]).key,
        retention_s=declared.retention.total_seconds(),
        consumes=tuple(_consumed(declared, event) for event in _one_class_each(heard)),
        emits=tuple(_emitted(event) for event in _one_class_each(said)),
        reactions=tuple(_told(declared, reaction) for reaction in sorted(declared.reactions, key=lambda r: r.name)),
        state=_state(declared),
        resources={each.name: spelt(each.gives) for each in declared.resources},
        documents={each.collection: spelt(each.kind) for each in declared.documents},
        changes={name_of(each): kind.collection for each in changes if (kind := kind_of(each)) is not None},
    )


def _start(declared: Declared) -> str:
    if isinstance(declared.start, datetime):
        return iso(round(declared.start.timestamp() * 1000))
    return declared.start or ""


def _consumed(declared: Declared, event: type[Event]) -> Consumed:
    """Use of an event by all reactions together; the key is always read, for it is the saga id."""
    bound, read = binding_of(event), Read()
    for reaction in declared.reactions:
        for parameter in reaction.parameters:
            for taken in parameter.events:
                if name_of(taken) == name_of(event):
                    read |= fields_read(reaction.function, parameter.name, parameter.events)[taken]
    told = _emitted(event)
    return Consumed(
        contract=told.contract,
        version=told.version,
        topic=told.topic,
        key=told.key,
        fields=ALL if read.whole else tuple(sorted({*read.fields, bound.contract.key})),
        because=read.whole,
        upcasts=tuple(number for number in sorted(bound.version.upcasts) if upcaster_of(event, number) is not None),
    )


def _emitted(event: type[Event]) -> Emitted:
    bound: Binding = binding_of(event)
    contract = bound.contract
    return Emitted(contract=contract.name, version=bound.version.number, topic=contract.topic, key=contract.key)


def _told(declared: Declared, reaction: Reaction) -> Told:
    assert reaction.shape is not None
    events = [each for each in reaction.parameters if each.role == "event"]
    originals = [each.events for each in events if each.of_original]
    by_type = {each.gives: each.name for each in declared.resources}
    return Told(
        name=reaction.name,
        kind=reaction.kind,
        ids=f"{declared.name}|{reaction.name}",
        takes=tuple(_names(each) for each in reaction.needed_events if each not in originals),
        optional=tuple(name for each in events if each.optional for name in _names(each.events)),
        later=reaction.may_wait,
        until=_names(reaction.shape.awaited),
        within_s=None if reaction.within is None else reaction.within.total_seconds(),
        unless=_names(reaction.unless),
        undoes=reaction.undoes,
        took=tuple(_names(each.events) for each in events if each.of_original and not each.optional),
        emits=_names(reaction.emits),
        repeats=_names(reaction.repeats),
        version=reaction.version,
        keys=keys_named(reaction.function),
        resources=tuple(by_type[each.gives] for each in reaction.parameters if each.gives is not None),
        doc=_first_paragraph(reaction.function.__doc__),
    )


def _state(declared: Declared) -> State | None:
    if declared.state is None:
        return None
    hints = get_type_hints(declared.state)
    return State(
        type=spelt(declared.state),
        version=len(whole_chain(declared)) + 1,
        fields={each.name: spelt(hints[each.name]) for each in fields(declared.state)},
    )


def _one_class_each(events: Iterable[type[Event]]) -> list[type[Event]]:
    """One class for each contract, sorted by its name; of several that of the oldest version."""
    classes = {name_of(each): each for each in sorted(events, key=lambda e: -binding_of(e).version.number)}
    return [classes[name] for name in sorted(classes)]


def _names(events: Iterable[type[Event]]) -> tuple[str, ...]:
    return tuple(map(name_of, events))


def _first_paragraph(doc: str | None) -> str:
    return " ".join(inspect.cleandoc(doc or "").partition("\n\n")[0].split())
