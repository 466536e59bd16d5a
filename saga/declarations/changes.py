"""Support document changes in declarations. For each collection, a contract and an event class are generated in memory,
so that the engine handles changes in the same way as events."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import make_dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin

import msgspec

from saga.change import Change, Delete, Expiry, Insert, Update
from saga.contracts import library
from saga.contracts.library import Binding, Contract, compare_class
from saga.contracts.loading import make_version
from saga.declarations.annotations import spell, split_union
from saga.declarations.values import Declared, DocumentKind, Parameter, Reaction
from saga.errors import BadInput, DeclarationError
from saga.messages import Event, Topic
from saga.messaging.names import change_topic

OWNER = "client"
"""Owner in the generated contracts. It stands for the external writers of the documents; no service can have this
name."""
KEY, KIND, BEFORE, AFTER = "change_key", "change_kind", "change_before", "change_after"
Word: TypeAlias = Literal["insert", "update", "delete", "expiry", "change"]
_KINDS: dict[Word, type[Change[Any]]] = {
    "insert": Insert,
    "update": Update,
    "delete": Delete,
    "expiry": Expiry,
    "change": Change,
}

_made: dict[tuple[str, DocumentKind, str], type[Event]] = {}


def is_change(event: type[Event]) -> bool:
    """Return whether this class represents changes of a collection."""
    return kind_of(event) is not None


def kind_of(event: type[Event]) -> DocumentKind | None:
    """Return the kind of document whose changes this class represents; `None` for a class of ordinary events."""
    kind = getattr(event, "__document__", None)
    return kind if isinstance(kind, DocumentKind) else None


def library_of(event: type[Event]) -> library.Library:
    """Return the library of an event's contracts folder, without the contracts generated for document changes."""
    beside = getattr(event, "__beside__", None)
    return beside if isinstance(beside, library.Library) else library.library_at_import(event)


def document_class_in(annotation: object) -> type | None:
    """Return the class of the document in the annotation `Change[D]`; `None` for any other annotation."""
    option = split_union(annotation)[0]
    origin = get_origin(option) or option
    if not (isinstance(origin, type) and issubclass(origin, Change)):
        return None
    inside = get_args(option)
    return inside[0] if inside and isinstance(inside[0], type) else type(None)


def make_change_parameter(
    declared: Declared, function: Callable[..., object], named: Iterable[object], given: tuple[str, object]
) -> Parameter | None:
    """Make the parameter that receives the changes of a document; return `None` if the annotation is not a `Change`.

    Args:
        declared: the declarations of the service so far.
        function: the handler.
        named: the types that the handler's annotations name. An event among them shows which contracts folder the
            service uses.
        given: the name and the annotation of the parameter.

    Raises `DeclarationError` if the annotation or its document cannot be used.
    """
    name, annotation = given
    if document_class_in(annotation) is None:
        return None
    known = (event for reaction in declared.reactions for event in (*reaction.taken_events, *reaction.emits))
    events = (o for o in named if isinstance(o, type) and issubclass(o, Event) and o is not Event)
    beside = next(iter((*known, *events)), None)
    where = f"{declared.name}.{function.__name__}, parameter {name}"
    file = getattr(sys.modules.get(function.__module__), "__file__", None)
    return Parameter(name=name, role="event", events=(_change_event_of(declared, annotation, beside, file, where),))


def check_changes(reaction: Reaction, where: str) -> None:
    """Check that no compensation or deadline takes document changes: only handlers may. Raises `DeclarationError`."""
    if reaction.kind != "handler" and any(map(is_change, reaction.taken_events)):
        raise DeclarationError(
            f"{where} takes a Change: only a handler may; let it return an event, and react to that with a "
            f"{reaction.kind}"
        )


def _change_event_of(
    declared: Declared, annotation: object, beside: type[Event] | None, file: str | None, where: str
) -> type[Event]:
    """Return the event class that represents the changes which a parameter takes.

    Args:
        declared: the declarations of the service so far.
        annotation: the annotation of the parameter.
        beside: any event of the service, from which the contracts folder and the key are found; `None` if it has named
            no event yet.
        file: path of the service's module, from which the contracts folder is searched if there is no such event.
        where: beginning of error messages.

    Raises `DeclarationError` if the annotation or its document cannot be used.
    """
    if [get_origin(option) for option in split_union(annotation)] != [Change]:
        raise DeclarationError(
            f"{where}: it is {spell(annotation)}: write Change[TheDocument], and ask the change what it is "
            "(Insert, Update, Delete, Expiry): a burst of changes may come as its last, so none can be left out"
        )
    wanted = document_class_in(annotation)
    kind = next((each for each in declared.documents if each.kind is wanted), None)
    if kind is None:
        raise DeclarationError(
            f"{where}: {declared.name!r} declares no document {spell(wanted)}: name its collection above, "
            f'{declared.name.replace("-", "_")}.document({spell(wanted)}, "...")'
        )
    others = (
        library.find_library(None if file is None else Path(file).parent)
        if beside is None
        else _library_beside(beside, where)
    )
    field = kind.saga if beside is None else library.contract_at_import(beside).key
    if field is None:
        raise DeclarationError(
            f"{where}: nothing says yet which sagas {declared.name!r} follows: declare it below a handler that takes "
            f'or returns an event, or name the field of {spell(wanted)} that has the saga id: document(..., saga="...")'
        )
    if field in (KEY, KIND, BEFORE, AFTER):
        raise DeclarationError(f"{where}: sagas cannot be known by {field!r} where documents change: rename the key")
    return _make_change_class(declared, kind, field, others)


def make_change(event: Event, kind: DocumentKind) -> Change[Any]:
    """Convert an event of a generated class to the change that a handler receives. Raises `BadInput` if a document does
    not fit its class."""
    key: str = getattr(event, KEY)
    before, after = (_decode_document(getattr(event, name), kind, key) for name in (BEFORE, AFTER))
    made = _KINDS[getattr(event, KIND)]
    if issubclass(made, Delete):
        return made(key=key, before=before)
    if made is Insert:
        return made(key=key, document=after)
    return made(key=key, document=after, before=before)


def describe_change(change: Change[Any]) -> Word:
    """Return the word for what happened to the document, such as `insert`."""
    return next(word for word, kind in _KINDS.items() if kind is type(change))


def _decode_document(content: bytes | None, kind: DocumentKind, key: str) -> Any:
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=kind.kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise BadInput(f"the document {key!r} of {kind.collection!r} is no {kind.kind.__name__}: {why}") from None


def _make_change_class(declared: Declared, kind: DocumentKind, field: str, others: library.Library) -> type[Event]:
    """Make the event class for changes of a collection, with its contract. Repeated calls return the same class."""
    known = _made.get((declared.name, kind, field))
    if known is not None:
        return known
    name, topic = _contract_name(kind.collection), change_topic(declared.name, kind.collection)
    optional_bytes = {"type": ["null", "bytes"], "default": None, "sensitive": True}
    schema = {
        "type": "record",
        "name": name,
        "doc": f"A document of {kind.collection} was changed.",
        "topic": topic,
        "key": field,
        "owner": OWNER,
        "starts": True,
        "produced_by": "external",
        "fields": [
            {"name": field, "type": "string"},
            {"name": KEY, "type": "string"},
            {"name": KIND, "type": "string"},
            {"name": BEFORE, **optional_bytes},
            {"name": AFTER, **optional_bytes},
        ],
    }
    version = make_version(schema, f"{topic}/{name}.v1", name, 1)
    made = make_dataclass(
        name,
        [(field, str), (KEY, str), (KIND, str), (BEFORE, bytes | None, None), (AFTER, bytes | None, None)],
        bases=(Event,),
        frozen=True,
        kw_only=True,
        namespace={
            "__contract__": version.path,
            "__document__": kind,
            "__beside__": others,
            "__doc__": schema["doc"],
        },
    )
    classes, differences = compare_class(made, version)
    assert not differences, differences
    contract = Contract(
        name=name,
        topic=topic,
        key=field,
        owner=OWNER,
        starts=True,
        outcome=None,
        produced_externally=True,
        consumed_externally=False,
        doc=version.record.doc,
        schemas=others.schemas,
        versions=(version,),
    )
    beside = replace(
        others,
        contracts={**others.contracts, name: contract},
        topics={**others.topics, topic: Topic(topic)},
        by_path={**others.by_path, version.path: version},
        by_fingerprint={**others.by_fingerprint, version.fingerprint: version},
    )
    library.bind(made, Binding(contract, version, beside, classes))
    _made[declared.name, kind, field] = made
    return made


def _library_beside(event: type[Event], where: str) -> library.Library:
    """Return the library of an event of the service. Raises `DeclarationError` with a message that begins with
    `where`."""
    try:
        return library_of(event)
    except DeclarationError as why:
        raise DeclarationError(f"{where}: {why}") from why


def _contract_name(collection: str) -> str:
    """Return the name of a collection's generated contract. Characters other than letters and digits are escaped,
    because Avro does not allow them in names.

    >>> _contract_name("web-orders"), _contract_name("orders")
    ('ChangeOf_web_2dorders', 'ChangeOf_orders')
    """
    return "ChangeOf_" + "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):02x}" for c in collection)
