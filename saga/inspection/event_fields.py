"""Fields of the events that a saga's transitions emitted, for `saga show --values`: sensitive ones are hidden."""

from msgspec import Struct

from saga.contracts import codec
from saga.contracts.codegen import event_class
from saga.contracts.hiding import hidden, with_marks_of
from saga.contracts.library import Library, Version, find
from saga.errors import BadInput, ContractError, DeclarationError
from saga.inspection.timeline import History
from saga.messages import Event


class Said(Struct, frozen=True, kw_only=True):
    """An event with its fields."""

    type: str
    id: str
    fields: dict[str, object] | None
    """Fields by name; `None`: they cannot be shown."""
    trouble: str | None = None
    """Reason that they cannot be shown."""


def values_of(history: History) -> dict[int, list[Said]]:
    """Events of each transition that emitted any. Without contracts no value is shown, not even in part: nobody could
    tell which ones are sensitive."""
    library: Library | None
    try:
        library, trouble = find(), ""
    except (DeclarationError, ContractError) as why:
        library, trouble = None, str(why)
    found = {}
    for entry in history.entries:
        if entry.events:
            found[entry.n] = [
                Said(type=e.type, id=e.id, fields=None, trouble=f"there are no contracts to read it by: {trouble}")
                if library is None
                else _said(e.type, e.id, e.value, library)
                for e in entry.events
            ]
    return found


def _said(type_: str, id_: str, value: bytes, library: Library) -> Said:
    try:
        version = codec.identify(value, library)
        versions = library.contracts[version.name].versions
        # What an upcaster reads is shown as it was written: upcasters are code of services, and tools have none.
        shown_as = version if version.number in versions[-1].upcasts else versions[-1]
        fields = codec.to_json(codec.decode(value, _class_of(shown_as, library), library))
        # A field counts as sensitive if it did when it was written, or does in any version.
        record = with_marks_of(shown_as.record, (each.record for each in versions))
        return Said(type=type_, id=id_, fields=hidden(fields, record))
    except BadInput as why:
        return Said(type=type_, id=id_, fields=None, trouble=str(why))


_classes: dict[tuple[str, str], type[Event]] = {}


def _class_of(version: Version, library: Library) -> type[Event]:
    where = (str(library.folder), version.path)
    if where not in _classes:
        _classes[where] = event_class(library.contracts[version.name], library, version.number)
    return _classes[where]
