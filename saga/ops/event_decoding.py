"""Taking of events out of records, in whichever form services would take them: for tools, and clients that listen."""

from saga.contracts import codec, registered
from saga.contracts.library import Library
from saga.engine.consumer.event_recognition import Recognized, recognize
from saga.engine.foreign_values import identify_message, single_object, taken
from saga.errors import BadInput
from saga.messages import Message, Record, Writer
from saga.messaging import envelope
from saga.messaging.structured_mode import in_binary_mode


def recognize_record(record: Record, library: Library) -> tuple[Record, Recognized]:
    """A record in binary mode, and the contract that it is of. Raises `BadInput`: nobody can tell."""
    if record.value is None:
        raise BadInput("it has no value: a tombstone, which says nothing")
    if record.value[:2] != codec.MARKER:
        record = in_binary_mode(record)
    return record, recognize(record, library)


def message_in(record: Record, library: Library) -> Message:
    """Message in a record, of any contract of the library. `value_in` gives its value as it is decoded. Raises
    `BadInput`: it is none, or no contract is known of it."""
    record, found = recognize_record(record, library)
    if not found.name:
        raise BadInput(f"no contract {found.said} is in {library.folder}")
    if found.doubt:
        raise BadInput(found.doubt)
    contract = library.contracts[found.name]
    message = envelope.to_message(record, type_=found.name, schema=found.schema, contract=contract)
    return identify_message(taken(message, record.writer, library), record.topic, contract, library)


def value_in(message: Message, writer: Writer | None, library: Library) -> bytes:
    """Value of a message as a single object. `writer`: of its record. Raises `BadInput`."""
    return single_object(message, library, lambda id_: writer or registered.writer_without_registry(id_))
