"""Encryption around a run: decrypt the values that the handler gets, and encrypt the values that it records and emits.

Each value is encrypted with the key of its subject. Without keys nothing is encrypted, and an encrypted value from
another process fails the attempt, which is retried later.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from saga.contracts import codec, encryption
from saga.contracts.codec import MARKER
from saga.contracts.contract import Contract
from saga.contracts.encryption import encrypt_json, subject_in_json
from saga.contracts.library import Library, binding_of
from saga.encryption.sensitive_fields import (
    ERASED,
    MARK,
    DecryptionFailed,
    WrongSecret,
    find_key_names,
    is_encrypted,
    key_name_of,
    recorded_place,
    replace_marked,
    replace_marked_at,
    unwrap_marked,
)
from saga.engine.foreign_values import WriterOf, decode_single_object
from saga.engine.persistence.outbox import retry_while_unavailable
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import EncodedEvent, ServiceRuntime
from saga.errors import BadInput, KeyMissing, Permanent
from saga.messages import Event, Message, Position, Record
from saga.messaging.envelope import type_of
from saga.messaging.operator_commands import OperatorCommand
from saga.progress.actions import AnswerStep, CommandDecision, RejectCommand
from saga.progress.document import AbortAction, Intent, RunKey, SagaProgress, StepRecord
from saga.progress.operator_commands import make_answered_record

if TYPE_CHECKING:
    from saga.encryption.keys import SubjectKey


_KEYED = "k"
"""Prefix of a digest that was made with a key. Digests without a key never start with it."""
_encoder = msgspec.json.Encoder(order="deterministic")


class ValueCodec:
    """Decrypts and encrypts the values of one run, with the keys of their subjects."""

    own: "SubjectKey | None" = None
    """Key of the run's subject; `None` if there are no keys, or if this key was erased."""
    trouble: KeyMissing | Permanent | None = None
    """Error for a value of the run that cannot be decrypted. The attempt raises it when it decrypts its messages."""

    older_state: Mapping[str, Any] = MappingProxyType({})
    """State of an older version, decrypted, which has to be migrated."""

    def __init__(
        self, service: ServiceRuntime, processing: ProcessingState, state: dict[str, Any] | None = None
    ) -> None:
        self._service, self._processing = service, processing
        self.state: dict[str, Any] = state or {}
        """State that the handler gets, decrypted."""
        self._known: dict[str, SubjectKey | None] = {}

    async def open(self, handler: str, intent: Intent, p: SagaProgress) -> None:
        """Decrypt the state for a run, and get the keys of its messages. Raises `KeyMissing` and `Permanent`."""
        service = self._service
        if service.ports.keys is not None or (service.is_private and _may_be_encrypted(intent)):
            await self.begin(handler, intent)
            self.state = await self.decrypt_state(intent.state, intent.version)
        if service.migrations and p.version != service.version:
            self.older_state = await self.decrypt_state(p.state, p.version)

    async def begin(self, handler: str, intent: Intent) -> None:
        """Get the keys for all values that a run gets.

        Raises `KeyMissing` if one is missing. This happens before a key is created for the run's subject, because a new
        key would replace the missing one.
        """
        library = self._service.schemas.library
        recorded = [msgspec.json.decode(call.value) for call in intent.calls if find_key_names(bytes(call.value))]
        await self._unlock(
            *(
                {key_name_of(found[1])}
                for part in intent.parts
                if (found := encryption.split_encrypted(part.value)) is not None
            ),
            _names_in([intent.state, *recorded]),
        )
        parts = [self._whole(part) for part in intent.parts]  # its sender may have encrypted fields in it
        writer_of = self._service.schemas.writers.get
        await self._unlock(
            *(encryption.key_names_in(_readable_value(part, library, writer_of), library) for part in parts)
        )
        if (keys := self._service.ports.keys) is not None:
            subject = self._subject_of(handler, parts)
            self.own = await self._ask_keys(keys.get_or_create_key, subject)

    def _whole(self, part: Message) -> Message:
        """Decrypt a message that was encrypted as a whole.

        Any other message, and one that cannot be decrypted, is returned unchanged.
        """
        with suppress(BadInput):  # the handler that is given it reports the error
            value = encryption.decrypt_value(part.value, part.type, part.saga, self._known.__getitem__)
            return part if value is part.value else replace(part, value=value)
        return part

    def _subject_of(self, handler: str, parts: Sequence[Message]) -> str:
        """Return the subject of the first message with sensitive fields; if there is none, the saga."""
        for part in parts:
            if part.type in self._service.sensitive:
                try:
                    return encryption.subject_of_event(self._service.decode(handler, part))
                except (BadInput, KeyError, KeyMissing):  # the run reports it, or the message replaces another one
                    break
        return self._processing.message.saga

    async def _unlock(self, *names: set[str]) -> None:
        """Get the keys with these names. Raises `KeyMissing`."""
        for name in sorted(set[str]().union(*names) - self._known.keys()):
            if (keys := self._service.ports.keys) is None:
                raise KeyMissing(encryption.NO_KEYS)
            self._known[name] = await self._ask_keys(keys.get_key, name)

    async def _ask_keys(self, ask: Any, what: str) -> "SubjectKey | None":
        found: SubjectKey | None = await retry_while_unavailable(
            self._service, self._processing.position, "get a key", ask, what
        )
        return found

    # ------------------------------------------------------------ messages

    def decrypt_parts(self, parts: Sequence[Message]) -> Sequence[Message]:
        """Decrypt the encrypted fields of messages. Raises `BadInput`, and `KeyMissing` if a key of the run is
        missing."""
        if self.trouble is not None:
            raise self.trouble
        return [self._open(part) for part in parts] if self._known else parts

    def _open(self, part: Message) -> Message:
        if not find_key_names(part.value):
            return part
        library, keys = self._service.schemas.library, self._known.__getitem__
        part = replace(part, value=encryption.decrypt_value(part.value, part.type, part.saga, keys))
        value = _readable_value(part, library, self._service.schemas.writers.get)
        if value[:2] == MARKER:
            value = encryption.decrypt_fields(value, library, part.saga, keys)
        return replace(part, value=value)

    async def encrypt_event(self, event: Event, type_: str, schema: str, value: bytes) -> EncodedEvent:
        """Encrypt an event for publishing. Raises `Permanent` if the encrypted event is too large."""
        keys = self._service.ports.keys
        if keys is not None and type_ in self._service.sensitive:
            key = await self._ask_keys(keys.get_or_create_key, encryption.subject_of_event(event))
            value = encryption.encrypt_fields(
                value, binding_of(type(event)).version, self._processing.message.saga, key
            )
            self._service.check_size(type_, value)
        return EncodedEvent(type_, schema, value)

    # ------------------------------------------------------------ digests

    def digest(self, plain: str) -> str:
        """Return the digest of arguments for the record. If it is made with a key, the arguments cannot be guessed from
        it."""
        if self.own is None:
            return plain
        return _KEYED + blake2b(plain.encode(), key=self.own.digest, digest_size=12).hexdigest()

    def may_be_same(self, plain: str, expected: str) -> bool:
        """Return whether a recorded digest may belong to the same arguments although it differs from the run's own
        digest of them.

        `plain`: digest of the arguments, made without a key. `expected`: the recorded digest. A recorded digest without
        a key is compared with `plain`. One with a key matches any arguments if this run has no key (no keys are
        configured, or the key was erased), because it can no longer be checked. If the run has a key, it does not
        match.
        """
        return self.own is None if expected.startswith(_KEYED) else plain == expected

    # ------------------------------------------------------------ what is recorded

    def encrypt(self, recorded: Any, what: str) -> Any:
        """Encrypt the sensitive parts of a recorded value, bound to their place. `what`: where the value is recorded,
        which is the state or a call."""
        if self._service.ports.keys is None:
            return recorded
        return replace_marked_at(recorded, lambda path, value: self._encrypt_text(value, self._place(what, path)))

    def _place(self, what: str, path: str) -> str:
        return recorded_place(self._service.name, self._processing.message.saga, what, path)

    def _encrypt_text(self, value: Any, place: str) -> Any:
        if is_encrypted(value) or self.own is None:
            return {MARK: value if is_encrypted(value) else ERASED}
        return {MARK: self.own.encrypt_recorded(_encoder.encode(value), place)}

    def decrypt(self, recorded: Any, what: str) -> Any:
        """Decrypt the sensitive parts of a recorded value. Erased parts become the text `erased`. `_unlock` has to be
        called before."""
        return replace_marked_at(recorded, lambda path, value: self._decrypt_text(value, self._place(what, path)))

    def _decrypt_text(self, value: Any, place: str) -> Any:
        if not is_encrypted(value):
            return {MARK: value}
        key = self._known[key_name_of(value)]
        if key is None:
            return {MARK: ERASED}
        before = f"{self._service.name}|{self._processing.message.saga}"
        try:
            return {MARK: msgspec.json.decode(key.decrypt_recorded(value, place, before))}
        except WrongSecret:
            raise KeyMissing(f"a recorded value: {encryption.OTHER_SECRET}") from None
        except DecryptionFailed:
            raise Permanent(
                "a recorded value was sealed for another place, saga or service, or changed since: restore the "
                "progress of this saga, or discard the run"
            ) from None

    def encrypt_raw(self, value: Raw, what: str) -> Raw:
        """Encrypt the sensitive parts of a recorded value that is given as JSON."""
        if self._service.ports.keys is None or f'"{MARK}"'.encode() not in bytes(value):
            return value
        return Raw(_encoder.encode(self.encrypt(msgspec.json.decode(value), what)))

    async def decrypt_raw(self, value: Raw, what: str) -> Raw:
        """Get the keys for a recorded value that is given as JSON, and decrypt it."""
        if not find_key_names(bytes(value)):
            return value
        recorded = msgspec.json.decode(value)
        await self._unlock(_names_in(recorded))
        return Raw(_encoder.encode(self.decrypt(recorded, what)))

    def encrypt_abort_call(self, handler: str, action: AbortAction) -> AbortAction:
        """Encrypt the sensitive arguments of an abort action."""
        args = [self.encrypt_raw(value, _argument(handler, action, n)) for n, value in enumerate(action.args)]
        named = {
            name: self.encrypt_raw(value, _argument(handler, action, name)) for name, value in action.named.items()
        }
        return replace(action, args=tuple(args), named=named)

    async def decrypt_call(self, run: RunKey, call: StepRecord) -> StepRecord:
        """Decrypt the answer to a call of a run."""
        value = await self.decrypt_raw(call.value, place_of_call(run, call))
        return call if value is call.value else replace(call, value=value)

    async def decrypt_abort_call(self, handler: str, action: AbortAction) -> AbortAction:
        """Decrypt the arguments of an abort action."""
        args = [await self.decrypt_raw(value, _argument(handler, action, n)) for n, value in enumerate(action.args)]
        named = {
            name: await self.decrypt_raw(value, _argument(handler, action, name))
            for name, value in action.named.items()
        }
        return replace(action, args=tuple(args), named=named)

    async def decrypt_state(self, fields: Mapping[str, Any], version: int) -> dict[str, Any]:
        """Decrypt the fields of a state of the given version. If an erased value does not fit a field's type, the field
        gets its default."""
        await self._unlock(_names_in(fields))  # the keys of a state to be migrated are not known yet
        if not self._known:
            return dict(fields)
        older = self._service.migrations[version - 1 : version]
        kind = older[0].takes if older else self._service.state
        shown: dict[str, Any] = self.decrypt(dict(fields), STATE)
        return {name: value for name, value in shown.items() if _fits(name, value, kind)}


async def encrypt_answer(service: ServiceRuntime, state: ProcessingState, action: CommandDecision) -> CommandDecision:
    """Encrypt an operator's answer to a step with the key of the run's subject, as the step's own answer would be
    encrypted.

    The whole answer is encrypted, because the name of a step does not show which parts are sensitive. The arguments of
    an exception stay plain, like those of any exception that an external system raises.
    """
    if not isinstance(action, AnswerStep):
        return action
    command, intent = action.command, action.intent
    given = command.answered
    assert given is not None
    if given.raised is not None or (service.ports.keys is None and not find_key_names(given.value.encode())):
        return action
    run: RunKey = (intent.kind, intent.handler, intent.cause)
    seals, call = ValueCodec(service, state), make_answered_record(intent, given)
    try:
        await seals.begin(intent.name or intent.handler, intent)
        value = unwrap_marked(
            msgspec.json.decode(await seals.decrypt_raw(Raw(given.value.encode()), given.place(command.dead)))
        )
    except (KeyMissing, Permanent) as why:
        return RejectCommand(command, str(why))
    closed = bytes(seals.encrypt_raw(Raw(_encoder.encode({MARK: value})), place_of_call(run, call)))
    return replace(action, command=replace(command, answered=replace(given, value=closed.decode())))


STATE = "state"
"""Place of a saga's state. Encrypted values in the state are bound to it."""


def place_of_call(run: RunKey, call: StepRecord) -> str:
    """Return the place of the answer to a call. The encrypted answer is bound to it, so it cannot be used for another
    run or call."""
    return repr((*run, call.kind, call.name, call.number))


def _may_be_encrypted(intent: Intent) -> bool:
    """Return True if a run may get an encrypted value, judging by the bytes of its messages."""
    return bool(intent.state or intent.calls) or any(find_key_names(part.value) for part in intent.parts)


def _argument(handler: str, action: AbortAction, place: int | str) -> str:
    """Return the place of an argument of an abort action. It is the same in all turns of a run, and in its abort."""
    return repr(("undo_with", handler, action.call, place))


def _readable_value(part: Message, library: Library, writer_of: WriterOf) -> bytes:
    """Return the value of a message in Avro's single-object encoding, or unchanged if no known schema can read it."""
    try:
        return decode_single_object(part, library, writer_of)
    except BadInput:
        return part.value


def _names_in(recorded: Any) -> set[str]:
    """Return the names of the keys that a recorded value needs. Only marked values count, even if others look
    encrypted."""
    names = set[str]()
    replace_marked(recorded, lambda value: names.add(key_name_of(value)) if is_encrypted(value) else None)
    return names


def _fits(name: str, value: Any, kind: Any) -> bool:
    """Return True if this field has a valid value for the state, with the other fields at their defaults."""
    try:
        msgspec.convert({name: unwrap_marked(value)}, kind, strict=False)
    except msgspec.ValidationError:
        return False
    return True


# -------------------------------------------------------------------- arrival encryption


async def encrypt_message(service: ServiceRuntime, message: Message, position: Position) -> Message:
    """Encrypt a message when it arrives, so that it can be stored. Retries while the keys are unavailable. Raises
    `Draining`."""
    if service.ports.keys is None:
        return message
    if isinstance(message, OperatorCommand):
        if message.original is None:
            return message
        return replace(message, original=await encrypt_message(service, message.original, position))
    contract = service.contracts.get(message.type)
    if contract is None:
        return message
    value = await _encrypt_value(service, position, message.value, contract, message.saga)
    return message if value is message.value else replace(message, value=value)


async def encrypt_record(service: ServiceRuntime, record: Record) -> Record:
    """Encrypt the value of an unreadable record, so that it can be stored in a dead letter. Its key stands for the saga
    id, or its position if it has no key. Raises `Draining`.
    """
    named = service.contracts.get(type_of(record) or "")
    of_topic = [contract for contract in service.contracts.values() if contract.topic == record.topic]
    contracts = sorted(of_topic if named is None else [named], key=lambda each: each.name not in service.sensitive)
    if service.ports.keys is None or not contracts or not record.value:
        return record
    position = Position(*record[:3], record.log_id)
    saga = (record.key or b"").decode("utf-8", "backslashreplace") or position.place
    value = await _encrypt_value(service, position, record.value, contracts[0], saga)
    return record._replace(value=value)


async def _encrypt_value(
    service: ServiceRuntime, position: Position, value: bytes, contract: Contract, saga: str
) -> bytes:
    """Encrypt every part of a value that should be encrypted and is not.

    If the schema is unknown, the fields and the subject are unknown, too, and a newer version may mark more fields as
    sensitive. So the value is encrypted as a whole, with the key of its saga. Its header stays plain, so that the value
    can be read once its schema is deployed or known to a registry.
    """
    library = service.schemas.library
    if encryption.split_encrypted(value) is not None:
        return value
    if header := encryption.unknown_header(value, library):
        try:
            key = await _key_of(service, position, saga, saga)
        except KeyMissing:
            return value
        return encryption.encrypt_value(value, header, contract.name, saga, key)
    if contract.name not in service.sensitive:
        return value
    try:
        version = codec.identify(value, library)
    except BadInput:
        return await _encrypt_foreign(service, position, value, contract, saga)
    if not encryption.is_encoded_event(value, version):
        return await _encrypt_foreign(service, position, value, contract, saga)
    subject = encryption.unencrypted_subject(value, version)
    if subject is None:
        return value
    try:
        key = await _key_of(service, position, subject, saga)
    except KeyMissing:  # both are lost: a run that needs them is parked, with this reason
        return value
    return encryption.encrypt_fields(value, version, saga, key, arrived=True)


async def _encrypt_foreign(
    service: ServiceRuntime, position: Position, value: bytes, contract: Contract, saga: str
) -> bytes:
    """Encrypt a value that is not in single-object encoding: rejected JSON is encrypted field by field, anything else
    as a whole."""
    newest = contract.newest
    try:
        key = await _key_of(service, position, subject_in_json(value, newest) or saga, saga)
    except KeyMissing:
        return value

    def seal(path: str, plain: bytes) -> str:
        text = plain.decode("ascii", "replace")
        if is_encrypted(text) or key is None:
            return text if is_encrypted(text) else ERASED
        return key.encrypt(plain, f"{newest.name}|{path}|{saga}")

    return encrypt_json(value, newest.record, seal) or encryption.encrypt_value(value, b"", newest.name, saga, key)


async def _key_of(service: ServiceRuntime, position: Position, subject: str, saga: str) -> "SubjectKey | None":
    """Return the key of a subject or, if that key is lost, the key of the saga. Raises `KeyMissing` if both are
    lost."""
    keys = service.ports.keys
    assert keys is not None
    found: SubjectKey | None
    try:
        found = await retry_while_unavailable(service, position, "get a key", keys.get_or_create_key, subject)
    except KeyMissing:
        found = await retry_while_unavailable(service, position, "get a key", keys.get_or_create_key, saga)
    return found
