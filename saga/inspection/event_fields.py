"""Fields of the events that a saga's transitions emitted, for `saga show --values`: sensitive ones are hidden."""

from msgspec import Struct

from saga.contracts import codec
from saga.contracts.codegen import event_class
from saga.contracts.hiding import hidden, renamed
from saga.contracts.library import Library, find
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
        made = _class_of(version.name, library)
        fields = codec.to_json(codec.decode(value, made, library))
        newest = library.contracts[version.name].newest.record
        # A field counts as sensitive if it did when it was written, or does now.
        shown = hidden(hidden(fields, renamed(version.record, newest)), newest)
        return Said(type=type_, id=id_, fields=shown)
    except BadInput as why:
        return Said(type=type_, id=id_, fields=None, trouble=str(why))


_classes: dict[tuple[str, str], type[Event]] = {}


def _class_of(name: str, library: Library) -> type[Event]:
    where = (str(library.folder), name)
    if where not in _classes:
        _classes[where] = event_class(library.contracts[name], library)
    return _classes[where]
