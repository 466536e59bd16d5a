"""Intake of records: each is skipped, becomes a dead letter, or goes into a lane. Pure."""

from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from saga.contracts import codec
from saga.engine.consumer.document_changes import message_in
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


class Skip(Struct, frozen=True, gc=False):
    """Nothing for this service: finished at once."""

    reason: str
    why: Literal["tombstone", "unknown type"] | None = None
    """Kind of what is counted, for it may be meant for us; `None`: it is certainly not."""
    type: str = ""
    """Type of which no contract is, for people."""


class Letter(Struct, frozen=True, gc=False):
    """Bad input, of which not even the saga can be told: it becomes a dead letter."""

    reason: str


Received: TypeAlias = Skip | Letter | Message
"""All that a record can be. A message goes into a lane and sets off a turn."""

TYPE_BYTES_MAX = 100
"""Longest part of a type of somebody else's that people are shown."""
CONTROL = TYPE.rpartition(".")[2]
"""Type of a control, as it is looked at."""
UNTOUCHED = Skip("no change of the document: the toolkit's marks in it alone are others")
UNKNOWN = Skip("no handler here names its type")
TOMBSTONE = Skip("it has no value: the log may forget what has its key, and nobody says anything", "tombstone")
OWN = Skip("a copy of an own event: the progress has it")
FORGED = Letter(
    "its sender calls itself as this service does, which never makes such an id: it is no copy of an own event; have "
    "the sender use a name of its own"
)


def _of_another_kind(record: Record, service: PreparedService) -> Received:
    """A record of a topic of its own: a wake, the change of a document, or the wish of a person."""
    if record.topic in service.wakes:
        return wake_in(record)
    if record.topic in service.changes:
        return message_in(record, service.changes[record.topic]) or UNTOUCHED
    return _wished(record, service)


def _wished(record: Record, service: PreparedService) -> Message:
    """Wish of a person: about a dead letter, or about the service itself."""
    if envelope.type_of(record) != CONTROL:
        command = command_in(record)
        if command.original is not None and command.original.source == service.name:
            raise BadInput(FORGED.reason)  # it has own events in the progress, and never takes one for somebody's
        return command
    control = control_in(record)
    if control.saga != service.name:
        raise BadInput(f"the control's key is {control.saga!r}, and not the service")
    return control


def _unknown(type_: str) -> Skip:
    """A record of a type that no contract has: people are told of it, for its sender may mean one of ours."""
    shown = shortened(printable(type_), TYPE_BYTES_MAX)
    return Skip(f"no contract here is called {shown}", "unknown type", shown)


def received(record: Record, service: PreparedService) -> Received:
    """A record as this service takes it. Records are written by anybody: nothing that they hold raises."""
    schema, library = "", service.schemas.library
    try:
        if record.topic in service.set_apart:
            return _of_another_kind(record, service)
        value = record.value
        if value is None:
            return TOMBSTONE
        foreign = value[:2] != codec.MARKER
        if foreign:
            record = in_binary_mode(record)
        type_ = envelope.type_of(record)
        if foreign or type_ is None or type_ not in service.consumed:  # what it says of itself is not all there is
            version = library.by_fingerprint.get(value[2 : codec.HEADER_SIZE])
            if version is not None and version.name == type_ and type_ not in service.consumed:
                return UNKNOWN  # nearly always
            found = recognize(record, library)
            if found.name not in service.consumed:
                return UNKNOWN if found.name else _unknown(found.said)
            if found.doubt:
                return Letter(found.doubt)
            type_, schema = found.name, found.schema
        contract = service.contracts[type_]
        message = envelope.to_message(record, type_=type_, schema=schema, contract=contract)
        if foreign:
            message = taken(message, record.writer, library)
        if contract.id_field is not None:
            message = identify_message(message, record.topic, contract, library)
    except BadInput as why:
        return Letter(str(why))
    except Exception as why:  # noqa: BLE001 - see above: none of them ends a worker
        return Letter(f"it cannot be read as a message: {describe_exception(why)}")
    if message.source != service.name:
        return _note_foreign_time(message, service) if type_ in service.roles.opening else message
    return OWN if could_be_own(message.id, message.type) else FORGED


def _note_foreign_time(message: Message, service: PreparedService) -> Message:
    """An event that opens a deadline, with a note if its time says nothing of when it was published: a sender that is
    none of ours may write any, as that of an order which it exports days later."""
    is_ours = message.source == CLIENT or could_be_own(message.id, message.type)
    if is_ours or service.contracts[message.type].trusts_time:
        return message
    return replace(message, foreign_time=True)
