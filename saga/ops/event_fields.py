"""Decode events for display. Sensitive fields are redacted unless the reader may decrypt them."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from saga.contracts import codec, foreign_values
from saga.contracts.codegen import make_event_class
from saga.contracts.encryption import decrypt_fields
from saga.contracts.library import Library, Version, find_library
from saga.contracts.sensitive_fields import redact_fields
from saga.encryption.port import Keys
from saga.encryption.sensitive_fields import find_key_names
from saga.engine.consumer.record_router import Recognition, recognize
from saga.engine.foreign_values import decode_single_object, identify_message, to_single_object
from saga.errors import BadInput, ContractError, DeclarationError, KeyMissing
from saga.messages import Event, Message, Record, Writer
from saga.messaging import envelope
from saga.messaging.envelope import to_binary_mode
from saga.progress.document import EmittedEvent

if TYPE_CHECKING:
    from saga.ops.histories import SagaHistory

if TYPE_CHECKING:
    from saga.encryption.keys import SubjectKey


class EventFields(Struct, frozen=True, kw_only=True):
    """An event with its decoded fields."""

    type: str
    id: str
    fields: dict[str, object] | None
    """Fields by name; `None` if they cannot be shown."""
    problem: str | None = None
    """Reason why the fields cannot be shown."""


EventDecoder: TypeAlias = Callable[[str, bytes, Library], bytes]
"""Function that decrypts the encrypted fields of an event. It takes the saga id, the event's value and the contract
library, and returns the decrypted value."""


async def make_decoder(histories: Iterable["SagaHistory"], keys: Keys) -> EventDecoder:
    """Make a decoder that decrypts the events of these histories. All their keys are fetched here. Raises
    `KeysUnavailable` if keys cannot be read."""
    names = find_key_names(
        *(event.value for history in histories for entry in history.entries for event in entry.events)
    )
    known: dict[str, SubjectKey | KeyMissing | None] = {}
    for name in names:
        try:
            known[name] = await keys.get_key(name)
        except KeyMissing as why:
            known[name] = why

    def key(name: str) -> "SubjectKey | None":
        found = known[name]
        if isinstance(found, KeyMissing):
            raise found
        return found

    return lambda saga, value, library: decrypt_fields(value, library, saga, key)


def read_event_fields(history: "SagaHistory", opens: EventDecoder | None = None) -> dict[int, list[EventFields]]:
    """Return the emitted events of a history, by the number of the transition that emitted them.

    Without contracts no fields are shown, because it is not known which ones are sensitive. Sensitive fields are
    redacted unless `opens` is given, which decrypts them.
    """
    library: Library | None
    try:
        library, trouble = find_library(), ""
    except (DeclarationError, ContractError) as why:
        library, trouble = None, str(why)
    found = {}
    for entry in history.entries:
        if entry.events:
            found[entry.n] = [
                EventFields(
                    type=e.type, id=e.id, fields=None, problem=f"there are no contracts to read it by: {trouble}"
                )
                if library is None
                else _decode_event(e, history.progress.saga, library, opens)
                for e in entry.events
            ]
    return found


def _decode_event(event: EmittedEvent, saga: str, library: Library, opens: EventDecoder | None) -> EventFields:
    try:
        value = event.value if opens is None else opens(saga, event.value, library)
        return EventFields(type=event.type, id=event.id, fields=decode_fields(value, library, hides=opens is None))
    except (BadInput, KeyMissing) as why:
        return EventFields(type=event.type, id=event.id, fields=None, problem=str(why))


def decode_fields(value: bytes, library: Library, *, hides: bool = True) -> dict[str, object]:
    """Decode the fields of an event, whatever its version is. Raises `BadInput` if that is not possible.

    `hides`: True to redact sensitive fields.
    """
    version = codec.identify(value, library)
    versions = library.contracts[version.name].versions
    # A version with an upcaster is shown as it was written, because tools do not have the services' upcasters.
    shown_as = version if version.number in versions[-1].upcasts else versions[-1]
    fields = codec.to_json(codec.decode(value, _get_class(shown_as, library), library))
    return redact_fields(fields, shown_as.record) if hides else fields


_classes: dict[tuple[str, str], type[Event]] = {}


def _get_class(version: Version, library: Library) -> type[Event]:
    where = (str(library.folder), version.path)
    if where not in _classes:
        _classes[where] = make_event_class(library.contracts[version.name], library, version.number)
    return _classes[where]


# -------------------------------------------------------------------- event decoding


def recognize_record(record: Record, library: Library) -> tuple[Record, Recognition]:
    """Convert a record to binary mode, and find its contract. Raises `BadInput` if the record is a tombstone, or if its
    contract cannot be determined."""
    if record.value is None:
        raise BadInput("it is a tombstone: it has no value")
    if record.value[:2] != codec.MARKER:
        record = to_binary_mode(record)
    return record, recognize(record, library)


def decode_message(record: Record, library: Library) -> Message:
    """Decode the message in a record. Its value is decoded later, by `decode_value`.

    Raises `BadInput` if the record is not a message, or if no contract is known for it.
    """
    record, found = recognize_record(record, library)
    if not found.name:
        raise BadInput(f"no contract {found.unknown_type} is in {library.folder}")
    if found.doubt:
        raise BadInput(found.doubt)
    contract = library.contracts[found.name]
    message = envelope.to_message(record, type_=found.name, schema=found.schema, contract=contract)
    return identify_message(to_single_object(message, record.writer, library), record.topic, contract, library)


def decode_value(message: Message, writer: Writer | None, library: Library) -> bytes:
    """Convert the value of a message to Avro's single-object encoding. Raises `BadInput` if that is not possible.

    `writer`: the schema with which the producer wrote the record, if it is known.
    """
    return decode_single_object(message, library, lambda id_: writer or foreign_values.writer_without_registry(id_))
