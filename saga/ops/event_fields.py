"""Fields of the events that a saga's transitions emitted, for `saga show --values`: sensitive ones are hidden."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from saga.contracts import codec
from saga.contracts.codegen import event_class
from saga.contracts.hiding import hidden
from saga.contracts.library import Library, Version, find
from saga.contracts.sealing import opened
from saga.encryption.port import Keys
from saga.encryption.text import names_in
from saga.errors import BadInput, ContractError, DeclarationError, KeyMissing
from saga.messages import Event
from saga.ops.timeline import History
from saga.progress.document import Emitted

if TYPE_CHECKING:
    from saga.encryption.keys import SubjectKey


class Said(Struct, frozen=True, kw_only=True):
    """An event with its fields."""

    type: str
    id: str
    fields: dict[str, object] | None
    """Fields by name; `None`: they cannot be shown."""
    trouble: str | None = None
    """Reason that they cannot be shown."""


Opened: TypeAlias = Callable[[str, bytes, Library], bytes]
"""Function that opens the sealed fields of an event of a saga."""


async def opener_of(histories: Iterable[History], keys: Keys) -> Opened:
    """Opener of all events of these histories: for who is to see what is sensitive. Raises `KeysUnavailable`."""
    names = names_in(*(event.value for history in histories for entry in history.entries for event in entry.events))
    known: dict[str, SubjectKey | KeyMissing | None] = {}
    for name in names:
        try:
            known[name] = await keys.named(name)
        except KeyMissing as why:
            known[name] = why

    def key(name: str) -> "SubjectKey | None":
        found = known[name]
        if isinstance(found, KeyMissing):
            raise found
        return found

    return lambda saga, value, library: opened(value, library, saga, key)


def values_of(history: History, opens: Opened | None = None) -> dict[int, list[Said]]:
    """Events of each transition that emitted any. Without contracts no value is shown, not even in part: nobody could
    tell which ones are sensitive. `opens`: shows those, too."""
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
                else _said(e, history.snapshot.saga, library, opens)
                for e in entry.events
            ]
    return found


def _said(event: Emitted, saga: str, library: Library, opens: Opened | None) -> Said:
    try:
        value = event.value if opens is None else opens(saga, event.value, library)
        return Said(type=event.type, id=event.id, fields=fields_in(value, library, hides=opens is None))
    except (BadInput, KeyMissing) as why:
        return Said(type=event.type, id=event.id, fields=None, trouble=str(why))


def fields_in(value: bytes, library: Library, *, hides: bool = True) -> dict[str, object]:
    """Fields of an event, of whichever version. `hides`: sensitive ones. Raises `BadInput`."""
    version = codec.identify(value, library)
    versions = library.contracts[version.name].versions
    # What an upcaster reads is shown as it was written: upcasters are code of services, and tools have none.
    shown_as = version if version.number in versions[-1].upcasts else versions[-1]
    fields = codec.to_json(codec.decode(value, _class_of(shown_as, library), library))
    return hidden(fields, shown_as.record) if hides else fields


_classes: dict[tuple[str, str], type[Event]] = {}


def _class_of(version: Version, library: Library) -> type[Event]:
    where = (str(library.folder), version.path)
    if where not in _classes:
        _classes[where] = event_class(library.contracts[version.name], library, version.number)
    return _classes[where]
