"""Taking of events out of records, in whichever form services would take them: for tools, and clients that listen."""

from saga import envelope
from saga.contracts import codec, registered
from saga.contracts.library import Library
from saga.errors import BadInput
from saga.messages import Message, Record
from saga.runtime.foreign import taken
from saga.structured import in_binary_mode


def message_in(record: Record, library: Library) -> Message:
    """Message in a record, of any contract of the library. `saga.runtime.foreign.single_object` gives its value as it
    is decoded. Raises `BadInput`: it is none, or no contract is known of it."""
    foreign = record.value is not None and record.value[:2] != codec.MARKER
    if foreign:
        record = in_binary_mode(record)
    type_, schema = envelope.type_of(record), ""
    if type_ is None and foreign:
        type_ = registered.name_in(record.value, record.writer, library)
    if type_ is None:  # its sender knows nothing of our headers: the bytes say it
        version = codec.identify(record.value, library)
        type_, schema = version.name, version.path
    contract = library.contracts.get(type_)
    if contract is None:
        raise BadInput(f"no contract {type_} is in {library.folder}")
    message = envelope.to_message(record, type_=type_, schema=schema, contract=contract)
    return taken(message, record.writer, library) if foreign else message
