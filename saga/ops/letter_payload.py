"""Show the message of a dead letter: its fields, decoded with its contract. Sensitive fields are redacted."""

from saga.contracts import codec
from saga.contracts.library import Library
from saga.errors import BadInput, SagaError
from saga.messages import Message
from saga.ops.dead_letters import DeadLetter, read_originals
from saga.ops.event_fields import EventFields, decode_fields, decode_value
from saga.ops.histories import UnreadableHistory, decode_progress, read_document
from saga.ops.selection import Deployment
from saga.ops.tail import find_contracts


async def read_payload(letter: DeadLetter, deployment: Deployment, *, searches: bool = False) -> EventFields | None:
    """Read the message of a dead letter. Return `None` if the message was not found.

    While the dead letter blocks its saga, the progress of the saga contains the message. Without a contract no fields
    are shown, because it is not known which ones are sensitive.

    Args:
        searches: True to search `<service>.dead` from its beginning if the progress does not have the message.

    Raises:
        SagaError: The topic cannot be read.
    """
    library, problem = find_contracts()
    shown = EventFields(type=letter.type or "", id=letter.message or "", fields=None)
    if library is None:
        return _with(shown, problem=f"there are no contracts to read it by: {problem}")
    message = await _find_message(letter, deployment, searches)
    if message is None:
        return None
    if isinstance(message, BadInput):
        return _with(shown, problem=str(message))
    return _decode(message, shown, library)


async def _find_message(letter: DeadLetter, deployment: Deployment, searches: bool) -> Message | BadInput | None:
    if letter.saga:
        try:
            async with deployment.open_stores((letter.service,)) as sources:
                for source in sources:
                    document = await read_document(source, letter.saga)
                    p = None if document is None else decode_progress(source, letter.saga, document)
                    for pending in () if p is None else (*p.queue, *p.compensating):
                        if pending.dead == letter.id:
                            return pending.message
        except (UnreadableHistory, SagaError) as why:
            deployment.warn(why)
    if not searches:
        return None
    found = await read_originals(letter.service, {letter.id}, deployment.broker_settings, deployment.clock)
    return found.get(letter.id)


def _decode(message: Message, shown: EventFields, library: Library) -> EventFields:
    try:
        value = message.value if message.value[:2] == codec.MARKER else decode_value(message, None, library)
        return _with(shown, fields=decode_fields(value, library))
    except BadInput as why:
        return _with(shown, problem=str(why))
    except Exception as why:  # noqa: BLE001 - any client may have written it. The text of the error may quote a value
        return _with(shown, problem=f"it cannot be read as a message: {type(why).__name__}")


def _with(shown: EventFields, fields: dict[str, object] | None = None, problem: str | None = None) -> EventFields:
    return EventFields(type=shown.type, id=shown.id, fields=fields, problem=problem)
