"""Sealing of messages as they arrive: what their sender left in the clear lies sealed in progresses and dead letters.

A sender may know nothing of keys, or write another form than ours. So what is kept of a message, or sent on, is sealed
by whoever takes it: with the key of its subject, or, where that one is lost, with that of its saga.
"""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from saga.contracts import codec, sealing
from saga.contracts.contract import Contract
from saga.contracts.sealing_json import sealed_json, subject_in
from saga.encryption.text import ERASED, is_sealed
from saga.engine.persistence.progress_repository import patiently
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import BadInput, KeyMissing
from saga.messages import Message, Position, Record
from saga.messaging.envelope import type_of
from saga.messaging.operator_commands import Command

if TYPE_CHECKING:
    from saga.encryption.keys import SubjectKey


async def sealed(service: ServiceRuntime, message: Message, position: Position) -> Message:
    """Message as it may be kept. Waits while the keys cannot be had. Raises `Draining`."""
    if service.ports.keys is None:
        return message
    if isinstance(message, Command):
        if message.original is None:
            return message
        return replace(message, original=await sealed(service, message.original, position))
    contract = service.contracts.get(message.type)
    if contract is None:
        return message
    value = await _seal_value(service, position, message.value, contract, message.saga)
    return message if value is message.value else replace(message, value=value)


async def seal_record(service: ServiceRuntime, record: Record) -> Record:
    """Record of which not even the saga can be told, as its dead letter may have it. Raises `Draining`."""
    named = service.contracts.get(type_of(record) or "")
    of_topic = [contract for contract in service.contracts.values() if contract.topic == record.topic]
    contracts = sorted(of_topic if named is None else [named], key=lambda each: each.name not in service.sensitive)
    if service.ports.keys is None or not contracts or not record.value:
        return record
    position = Position(*record[:3], record.log_id)
    saga = (record.key or b"").decode("utf-8", "backslashreplace") or position.place
    value = await _seal_value(service, position, record.value, contracts[0], saga)
    return record._replace(value=value)


async def _seal_value(
    service: ServiceRuntime, position: Position, value: bytes, contract: Contract, saga: str
) -> bytes:
    """Value with all that is in the clear sealed.

    Nobody here can tell apart the fields of a value of an unknown schema, nor whom it is about, and a newer version may
    mark what no version here marks. It is sealed as a whole, with the key of its saga. Its header stays as it came: by
    that it is read once its schema is deployed, or a registry gives it.
    """
    library = service.schemas.library
    if sealing.split_whole(value) is not None:
        return value
    if header := sealing.header_of_unknown(value, library):
        try:
            key = await _key_of(service, position, saga, saga)
        except KeyMissing:
            return value
        return sealing.seal_whole(value, header, contract.name, saga, key)
    if contract.name not in service.sensitive:
        return value
    try:
        version = codec.identify(value, library)
    except BadInput:
        return await _seal_foreign(service, position, value, contract, saga)
    if not sealing.is_whole(value, version):
        return await _seal_foreign(service, position, value, contract, saga)
    subject = sealing.subject_in_the_clear(value, version)
    if subject is None:
        return value
    try:
        key = await _key_of(service, position, subject, saga)
    except KeyMissing:  # both are lost: a run that needs them is parked, and says so
        return value
    return sealing.sealed(value, version, saga, key, arrived=True)


async def _seal_foreign(
    service: ServiceRuntime, position: Position, value: bytes, contract: Contract, saga: str
) -> bytes:
    """The same for a value that is no single object: JSON that was refused, part by part, and anything else whole."""
    newest = contract.newest
    try:
        key = await _key_of(service, position, subject_in(value, newest.subject) or saga, saga)
    except KeyMissing:
        return value

    def seal(path: str, plain: bytes) -> str:
        text = plain.decode("ascii", "replace")
        if is_sealed(text) or key is None:
            return text if is_sealed(text) else ERASED
        return key.seal(plain, f"{newest.name}|{path}|{saga}")

    return sealed_json(value, newest.record, seal) or sealing.seal_whole(value, b"", newest.name, saga, key)


async def _key_of(service: ServiceRuntime, position: Position, subject: str, saga: str) -> "SubjectKey | None":
    """Key of a subject, or of the saga, if that of the subject is lost. Raises `KeyMissing` if both are."""
    keys = service.ports.keys
    assert keys is not None
    found: SubjectKey | None
    try:
        found = await patiently(service, position, "get a key", keys.of_subject, subject)
    except KeyMissing:
        found = await patiently(service, position, "get a key", keys.of_subject, saga)
    return found
