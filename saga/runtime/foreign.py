"""Values that came in another form than ours, as JSON or in the wire format of a schema registry: made single objects
as they are taken in, so that all behind it, what is kept too, knows one form."""

from msgspec.structs import replace

from saga.contracts import plain, registered
from saga.contracts.codec import MARKER
from saga.contracts.library import Library
from saga.envelope import FOREIGN
from saga.errors import BadInput, UnknownSchema
from saga.messages import Message, Writer
from saga.printable import shortened
from saga.sealing.text import is_sealed
from saga.structured import is_json, media_type

REFUSED = f"{FOREIGN}refused"
"""Header in which a message keeps the reason that its value could not be taken: what a registry said of it then is not
known any more when it is decoded. No sender can write it: their headers with such names get another."""
REASON_BYTES_MAX = 1000


def taken(message: Message, writer: Writer | None, library: Library) -> Message:
    """The message with a single object as its value. One that cannot be made such stays as it came: `single_object`
    then says why. `writer`: schema that a registry has for it."""
    if message.value[:2] == MARKER:
        return message
    try:
        return replace(message, value=_translated(message, writer, library))
    except UnknownSchema:
        return message
    except BadInput as why:
        reason = shortened(str(why), REASON_BYTES_MAX).encode()
        return replace(message, foreign=(*message.foreign, (REFUSED, reason)))


def single_object(message: Message, library: Library) -> bytes:
    """Value of a message that was taken in, as `codec.decode` takes it. JSON that could not be taken is tried again: by
    now there may be a version that fits. Raises `BadInput`, and `UnknownSchema` for JSON of a version that is not
    deployed here yet."""
    if message.value[:2] == MARKER:
        return message.value
    if is_sealed(message.value.decode("ascii", "replace")):
        raise BadInput("the value was no event when it came, and is kept encrypted")
    if registered.id_in(message.value) is not None:
        for name, reason in message.foreign:
            if name == REFUSED and reason:
                raise BadInput(reason.decode())
    return _translated(message, None, library)


def _translated(message: Message, writer: Writer | None, library: Library) -> bytes:
    if registered.id_in(message.value) is not None:
        return registered.single_object(message.value, writer, message.type, library)
    if _content_type(message) is None:
        return message.value  # whatever it is: `codec.decode` says so
    contract = library.contracts[message.type]
    version = next((each for each in contract.versions if each.path == message.schema), contract.newest)
    try:
        return MARKER + version.fingerprint + plain.from_json(message.value, version)
    except BadInput as why:
        name, _, number = message.schema.rpartition(".v")
        is_ours = name == contract.newest.path.rpartition(".v")[0] and number.isascii() and number.isdigit()
        if is_ours and int(number) > contract.newest.number:
            raise UnknownSchema(
                b"", f"{why}; it says that it is of {message.schema}, which is not in {library.folder}"
            ) from None
        raise


def _content_type(message: Message) -> str | None:
    """Content type of JSON that the sender named; `None` if it named none, or another one."""
    for name, value in message.foreign:
        if name.lower() in ("content-type", f"{FOREIGN}content-type") and is_json(said := media_type(value or b"")):
            return said
    return None
