"""Convert values in other formats, JSON or the wire format of a schema registry, to Avro's single-object encoding.

Messages are converted when they arrive, so that all later code, and every stored message, uses one format.
"""

from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import TypeAlias

from msgspec.structs import replace

from saga.contracts import foreign_values
from saga.contracts.codec import MARKER, identify
from saga.contracts.contract import Contract, Version
from saga.contracts.encryption import split_encrypted
from saga.contracts.foreign_values import read_declared_id
from saga.contracts.library import Library
from saga.errors import BadInput, SchemaUnasked, UnknownSchema
from saga.messages import Message, Writer
from saga.messaging.envelope import (
    FOREIGN,
    HEADER_BYTES_MAX,
    UNKNOWN_SOURCE,
    declared_identity,
    is_json,
    is_sensitive,
    media_type,
)
from saga.messaging.message_ids import has_no_id

WriterOf: TypeAlias = Callable[[int], Writer | None]
"""Function that returns the registry's answer for a schema id; `None` if the registry has not been asked."""


def to_single_object(message: Message, writer: Writer | None, library: Library) -> Message:
    """Return the message with its value in single-object encoding, or unchanged if it cannot be converted.

    The reason is not stored. It is determined again whenever the message is examined, because registry, schemas and
    keys may have changed by then. `writer`: the schema that a registry has for the message.
    """
    if message.value[:2] == MARKER:
        return message
    try:
        return replace(message, value=decode_single_object(message, library, lambda _: writer))
    except (BadInput, SchemaUnasked):
        return message


def identify_message(message: Message, topic: str, contract: Contract, library: Library) -> Message:
    """Return the message with an id from the field that its contract names, if it has no other id.

    If that field has no usable id, the id is a digest of the value's bytes, unless the contract has sensitive fields.
    `topic`: topic of the message.
    """
    if contract.id_field is None or not has_no_id(message.id):
        return message
    id_ = read_declared_id(message.value, contract, library)
    if id_ is not None and len(id_.encode()) > HEADER_BYTES_MAX:  # the progress stores it
        id_ = None
    if id_ is None and is_sensitive(contract):  # from the digest of a sensitive value, the value could be guessed
        return message
    id_ = id_ or f"bytes-{blake2b(message.value, digest_size=16).hexdigest()}"
    source = None if message.source == UNKNOWN_SOURCE else message.source
    return replace(message, id=declared_identity(topic, message.type, source, id_))


def decode_single_object(message: Message, library: Library, writer_of: WriterOf) -> bytes:
    """Return the value of an accepted message in single-object encoding.

    `writer_of`: function that returns the registry's answer for a schema id. Raises `BadInput` for an invalid value;
    `UnknownSchema` if a version that is not deployed here may be able to read it; `SchemaUnasked` if the registry has
    to be asked first.
    """
    if message.value[:2] == MARKER:
        return message.value
    if split_encrypted(message.value) is not None:
        raise BadInput("the value was no event when it came, and is kept encrypted")
    id_ = foreign_values.schema_id_in(message.value)
    if (why := foreign_values.why_id_elsewhere(message.foreign)) is not None:
        raise BadInput(why)
    if id_ is not None:
        writer = writer_of(id_)
        if writer is None:
            raise SchemaUnasked(id_)
        return foreign_values.to_single_object(message.value, writer, message.type, library)
    if _content_type(message) is None:
        return message.value  # `codec.decode` reports what is wrong with it
    return _from_json(message, library)


def check_schema(header: bytes, library: Library, writer_of: WriterOf) -> None:
    """Check that the schema in the header of an encrypted value is known. Raises the errors of
    `decode_single_object`."""
    if header[:2] == MARKER:
        identify(header, library)
    elif (id_ := foreign_values.schema_id_in(header)) is not None:
        writer = writer_of(id_)
        if writer is None:
            raise SchemaUnasked(id_)
        if why := foreign_values.why_unreadable(header, writer):
            raise BadInput(why)


def _from_json(message: Message, library: Library) -> bytes:
    """Convert JSON to single-object encoding, in the version that the message names, or else in the newest version.

    Raises `BadInput` and `UnknownSchema`.
    """
    contract = library.contracts[message.type]
    newest = contract.newest
    name, _, number = message.schema.rpartition(".v")
    is_ours = name == newest.path.rpartition(".v")[0] and number.isascii() and number.isdigit()
    if is_ours and int(number) > newest.number:
        try:
            return _as_version(message.value, newest)
        except BadInput as why:
            claim = f"it says that it is of {message.schema}, which is not in {library.folder}"
            raise UnknownSchema(b"", f"{why}; {claim}") from None
    said_version = next((each for each in contract.versions if each.path == message.schema), newest)
    with suppress(foreign_values.MoreFields):  # a sender may add a field and still name the previous version
        return _as_version(message.value, said_version)
    try:
        return _as_version(message.value, newest)
    except foreign_values.MoreFields as why:
        raise UnknownSchema(
            b"", f"{why}; a version newer than {newest.path} may have them, and none is deployed here"
        ) from None


def _as_version(value: bytes, version: Version) -> bytes:
    return MARKER + version.fingerprint + foreign_values.from_foreign_json(value, version)


def _content_type(message: Message) -> str | None:
    """Return the JSON content type that the sender named; `None` if it named none or another one."""
    for name, value in message.foreign:
        if name.lower() in ("content-type", f"{FOREIGN}content-type") and is_json(type_ := media_type(value or b"")):
            return type_
    return None
