"""Route records: each is skipped, becomes a dead letter, or becomes a message for its saga. Pure."""

from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from saga.contracts import codec
from saga.engine.consumer.document_changes import parse_change
from saga.engine.consumer.event_recognition import recognize
from saga.engine.errors import describe_exception
from saga.engine.foreign_values import identify_message, taken
from saga.engine.prepared_service import PreparedService
from saga.errors import BadInput
from saga.messages import Message, Record
from saga.messaging import envelope
from saga.messaging.controls import TYPE, control_in
from saga.messaging.message_ids import CLIENT, could_be_own
from saga.messaging.operator_commands import command_in
from saga.messaging.structured_mode import in_binary_mode
from saga.messaging.timers import wake_in
from saga.support.printable import printable, shortened


class SkippedRecord(Struct, frozen=True, gc=False):
    """A record that does not concern this service: finished at once."""

    reason: str
    why: Literal["tombstone", "unknown type"] | None = None
    """Kind of a record that may have been meant for us and is counted; `None`: it certainly was not."""
    type: str = ""
    """Type that no contract has, for reports."""


class BadRecord(Struct, frozen=True, gc=False):
    """Bad input whose saga may not even be known: it becomes a dead letter."""

    reason: str


RoutedRecord: TypeAlias = SkippedRecord | BadRecord | Message
"""What becomes of a record. A message goes to the executor."""

TYPE_BYTES_MAX = 100
"""Maximum size of an unknown type in reports."""
CONTROL = TYPE.rpartition(".")[2]
"""Type header of a control, without its namespace."""
UNTOUCHED = SkippedRecord("no change of the document: the toolkit's marks in it alone are others")
UNKNOWN = SkippedRecord("no handler here names its type")
TOMBSTONE = SkippedRecord("it has no value: the log may forget what has its key, and nobody says anything", "tombstone")
OWN = SkippedRecord("a copy of an own event: the progress has it")
FORGED = BadRecord(
    "its sender calls itself as this service does, which never makes such an id: it is no copy of an own event; have "
    "the sender use a name of its own"
)


def _route_special_record(record: Record, service: PreparedService) -> RoutedRecord:
    """Route a record of a timer topic, a change topic or the command topic."""
    if record.topic in service.wakes:
        return wake_in(record)
    if record.topic in service.changes:
        return parse_change(record, service.changes[record.topic]) or UNTOUCHED
    return _parse_command(record, service)


def _parse_command(record: Record, service: PreparedService) -> Message:
    """Parse an operator command: about a dead letter, or a control of the service itself."""
    if envelope.type_of(record) != CONTROL:
        command = command_in(record)
        if command.original is not None and command.original.source == service.name:
            raise BadInput(FORGED.reason)  # the service's own events are in the progress already
        return command
    control = control_in(record)
    if control.saga != service.name:
        raise BadInput(f"the control's key is {control.saga!r}, and not the service")
    return control


def _skip_unknown_type(type_: str) -> SkippedRecord:
    """Skip a record of an unknown type. It is reported, because its sender may mean one of our types."""
    shown = shortened(printable(type_), TYPE_BYTES_MAX)
    return SkippedRecord(f"no contract here is called {shown}", "unknown type", shown)


def route_record(record: Record, service: PreparedService) -> RoutedRecord:
    """Route one record. Any program may have written it, so no content makes this raise."""
    schema, library = "", service.schemas.library
    try:
        if record.topic in service.set_apart:
            return _route_special_record(record, service)
        value = record.value
        if value is None:
            return TOMBSTONE
        foreign = value[:2] != codec.MARKER
        if foreign:
            record = in_binary_mode(record)
        type_ = envelope.type_of(record)
        if foreign or type_ is None or type_ not in service.consumed:  # the type header alone does not decide
            version = library.by_fingerprint.get(value[2 : codec.HEADER_SIZE])
            if version is not None and version.name == type_ and type_ not in service.consumed:
                return UNKNOWN  # the usual case
            found = recognize(record, library)
            if found.name not in service.consumed:
                return UNKNOWN if found.name else _skip_unknown_type(found.unknown_type)
            if found.doubt:
                return BadRecord(found.doubt)
            type_, schema = found.name, found.schema
        contract = service.contracts[type_]
        message = envelope.to_message(record, type_=type_, schema=schema, contract=contract)
        if foreign:
            message = taken(message, record.writer, library)
        if contract.id_field is not None:
            message = identify_message(message, record.topic, contract, library)
    except BadInput as why:
        return BadRecord(str(why))
    except Exception as why:  # noqa: BLE001 - no record may end a worker
        return BadRecord(f"it cannot be read as a message: {describe_exception(why)}")
    if message.source != service.name:
        return _mark_foreign_time(message, service) if type_ in service.roles.opening else message
    return OWN if could_be_own(message.id, message.type) else FORGED


def _mark_foreign_time(message: Message, service: PreparedService) -> Message:
    """Mark an event that opens a deadline if its time cannot be trusted as the time of publication.

    A foreign sender may write any time, such as that of an order which it exports days later.
    """
    is_ours = message.source == CLIENT or could_be_own(message.id, message.type)
    if is_ours or service.contracts[message.type].trusts_time:
        return message
    return replace(message, foreign_time=True)
