"""Encode the events that a client publishes, and decode the events that it receives."""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

from saga.broker.port import RECORD_BYTES_MAX, value_bytes_max
from saga.contracts import codec
from saga.contracts.codegen import make_event_class
from saga.contracts.contract import Contract
from saga.contracts.encryption import decrypt_fields, encrypt_fields, find_unencryptable, key_names_in, subject_of_event
from saga.contracts.library import Library, binding_of, contract_of, find_library
from saga.contracts.sensitive_fields import has_sensitive
from saga.contracts.upcasters import find_missing_upcasters
from saga.encryption.port import Keys
from saga.errors import BadInput, Problems, SagaError
from saga.messages import Event, Message, Outgoing, Record, Topic, name_of
from saga.messaging import envelope
from saga.messaging.message_ids import CLIENT
from saga.ops.event_fields import decode_message, decode_value, recognize_record
from saga.progress import ids
from saga.support.clock import iso
from saga.support.printable import quote_text

EncryptValue: TypeAlias = Callable[[str, bytes], bytes]
"""Function that takes a saga id and an encoded event and returns the event with its sensitive fields encrypted."""

E = TypeVar("E", bound=Event)
_classes: dict[tuple[str, str], type[Event]] = {}


async def encryptor_of(event: Event, keys: Keys | None) -> EncryptValue | None:
    """Return the function that encrypts the sensitive fields of an event; `None` if the event has none, or no keys are
    configured.

    Raises:
        SagaError: The key of the event's subject was erased, the event may not be published, a field cannot be
            encrypted, or the keys cannot be read.
    """
    binding = binding_of(type(event))
    version = binding.version
    if keys is None or not has_sensitive(version.record):
        return None
    _check_sender(binding.contract)
    _encode(event, binding.contract)  # else its subject might have no name for a key, or a useless key would be created
    if problems := list(find_unencryptable(version.record)):
        raise SagaError(f"{version.name} was not published: {'; '.join(problems)}")
    key = await keys.get_or_create_key(subject_of_event(event))
    if key is None:
        raise SagaError(
            f"{version.name} was not published: the key of its {version.subject} was erased for good by saga keys "
            f"forget; use a new {version.subject}"
        )
    return lambda saga, value: encrypt_fields(value, version, saga, key)


def to_record(
    event: Event,
    now_ms: int,
    record_bytes_max: int = RECORD_BYTES_MAX,
    principal: str | None = None,
    encrypt: EncryptValue | None = None,
    trace: str | None = None,
) -> Outgoing:
    """Return the record with which a client publishes an event.

    Args:
        event: The event.
        now_ms: Current time, in milliseconds since 1970.
        record_bytes_max: Maximum size of a record in the log, in bytes (`Broker.record_bytes_max`).
        principal: Principal of the saga, if the event starts one.
        encrypt: Function that encrypts the sensitive fields; `None` if nothing is to be encrypted.
        trace: Trace context of the application, for the header `traceparent`.

    Raises:
        SagaError: A client may not publish the event, a field violates the contract, or the event is too large.
    """
    contract = binding_of(type(event)).contract
    _check_sender(contract)
    saga, value = to_value(event, contract, record_bytes_max, encrypt)
    time = iso(now_ms)
    message = Message(
        id=f"{contract.name}-{ids.digest(f'client|{contract.name}', saga, codec.content(type(event), value).hex())}",
        type=contract.name,
        schema=type(event).__contract__,
        saga=saga,
        source=CLIENT,
        time=time,
        value=value,
        started=time if contract.starts else None,
        principal=principal if contract.starts else None,
        trace=trace,
    )
    return envelope.to_record(message, contract)


def check_principal(principal: str | None) -> None:
    """Check that a principal may be used for new sagas; `None` is allowed. Raises `SagaError`."""
    if principal is None:
        return
    size = len(principal.encode("utf-8", "surrogatepass"))
    if not principal.strip() or size > envelope.PRINCIPAL_BYTES_MAX or not principal.isprintable():
        raise SagaError(
            f"nothing was published: the principal {quote_text(principal)} has to be printable text of at most "
            f"{envelope.PRINCIPAL_BYTES_MAX} bytes; it has {size}. Leave it out if there is no principal"
        )


def check_saga(saga: str) -> None:
    """Check that a saga id can be encoded as the key of a record. Raises `BadInput`."""
    try:
        saga.encode()
    except UnicodeEncodeError as why:
        raise BadInput(
            f"{quote_text(saga)} is no saga id: its character {why.start} is half of a surrogate pair, which cannot be "
            "encoded as UTF-8. No saga has such an id: decode what the sender sent without `surrogateescape`"
        ) from None


def to_value(
    event: Event, contract: Contract, record_bytes_max: int, encrypt: EncryptValue | None = None
) -> tuple[str, bytes]:
    """Return the saga id and the encoded value of an event. Raises `SagaError` if a field violates the contract, the
    saga id is empty or too long, or the value is too large."""
    saga, value = _encode(event, contract)
    if encrypt is not None:
        value = encrypt(saga, value)
    bytes_max = value_bytes_max(record_bytes_max)
    if len(value) > bytes_max:
        raise SagaError(
            f"{contract.name} was not published: it has {len(value)} bytes, and may have {bytes_max}: publish a "
            "reference to what is large, or raise SAGA_RECORD_BYTES_MAX and what its topic takes"
        )
    return saga, value


def _check_sender(contract: Contract) -> None:
    """Check that clients may publish the events of a contract. Raises `SagaError`."""
    if not contract.produced_externally:
        raise SagaError(
            f'only {contract.owner!r} may say {contract.name}; its contract has no "produced_by": "external", with '
            "which clients could"
        )


def _encode(event: Event, contract: Contract) -> tuple[str, bytes]:
    """Return the saga id and the encoded, not encrypted value of an event. Raises `SagaError` if a field violates the
    contract, or the saga id is empty or too long."""
    try:
        value = codec.encode(event)
    except BadInput as why:
        raise SagaError(f"{contract.name} was not published: {why}") from why
    saga = str(getattr(event, contract.key))
    if not saga:
        raise SagaError(f"{contract.name} was not published: its {contract.key} is empty, and it is the saga id")
    if len(saga.encode()) > envelope.SAGA_BYTES_MAX:
        raise SagaError(
            f"{contract.name} was not published: its {contract.key} has {len(saga.encode())} bytes, and a saga id has "
            f"at most {envelope.SAGA_BYTES_MAX}"
        )
    return saga, value


# -------------------------------------------------------------------- event reader


class EventReader(Generic[E]):
    """Decoder of the records that a client receives, for some event classes of one contracts folder."""

    def __init__(self, events: Sequence[type[E]], keys: Keys | None) -> None:
        """Look up the contracts of the classes. Raises `SagaError` if there is no class, if two classes belong to one
        contract, or if the contracts are in two folders."""
        if not events:
            raise SagaError("there is no event to receive: name the classes of the events")
        self._classes = {name_of(event): event for event in events}
        self.classes = frozenset(events)
        bindings = [binding_of(event) for event in events]
        if len(self._classes) < len(events):
            raise SagaError("two classes belong to one contract: name only one of them")
        self.library = bindings[0].library
        if any(binding.library is not self.library for binding in bindings):
            raise SagaError("the classes belong to two folders of contracts: subscribe to each folder on its own")
        self.contracts: Mapping[str, Contract] = {binding.contract.name: binding.contract for binding in bindings}
        names = sorted({contract.topic for contract in self.contracts.values()})
        self.topics: Mapping[str, Topic] = {name: self.library.topics[name] for name in names}
        self._keys = keys

    def is_one(self, record: Record) -> bool:
        """Return whether a record probably contains one of these events, judging by its headers and its first bytes."""
        if envelope.type_of(record) in self._classes:
            return record.value is not None
        try:
            return recognize_record(record, self.library)[1].name in self._classes
        except BadInput:
            return False

    async def event_in(self, record: Record) -> E | None:
        """Return the event in a record, with encrypted values decrypted if keys are configured. Return `None` if the
        record does not contain one of these events.

        Raises:
            BadInput: The record claims to be one of these events, but cannot be read.
            KeysUnavailable: The keys cannot be read.
            KeyMissing: A key is missing.
        """
        if not self.is_one(record):
            return None
        message = decode_message(record, self.library)
        to = self._classes[message.type]
        value = decode_value(message, record.writer, self.library)
        if self._keys is not None and (names := key_names_in(value, self.library)):
            known = {name: await self._keys.get_key(name) for name in names}
            value = decrypt_fields(value, self.library, message.saga, known.__getitem__)
        event = codec.decode(value, to, self.library)
        assert isinstance(event, to)
        return event


def check_consumable(events: Sequence[type[E]]) -> Sequence[type[E]]:
    """Return the classes after checking that clients may consume their events and can read all older versions. Raises
    `SagaError` with every event whose contract does not allow it, and every missing upcaster."""
    contracts = [contract_of(event) for event in events]
    problems = [
        f'{contract.name} is for services: its contract has no "consumed_by": "external", with which '
        f"{contract.owner!r} would promise it to others"
        for contract in contracts
        if not contract.consumed_externally
    ]
    problems += [problem for event in events for problem in find_missing_upcasters(event)]
    if problems:
        raise Problems("these events cannot be received:", problems)
    return events


def check_outcomes(events: Sequence[type[E]]) -> Sequence[type[E]]:
    """Return the classes after checking that they are all the outcomes of one kind of saga. Raises `SagaError` with all
    problems."""
    contracts = {name_of(event): contract_of(event) for event in events}
    problems = [
        f'{name} is no outcome: its contract has no "outcome"'
        for name, contract in contracts.items()
        if contract.outcome is None
    ]
    kinds = sorted({contract.key for contract in contracts.values() if contract.outcome is not None})
    if len(kinds) > 1:
        problems.append(f"the outcomes are of several kinds of sagas, {', '.join(kinds)}: ask for each of them")
    elif kinds:
        every = _outcomes_by_kind(binding_of(events[0]).library)[kinds[0]]
        problems += [
            f"{name} is an outcome, too, by its key {kinds[0]}: name it, or a saga that ends so is never answered"
            for name in sorted(every.keys() - contracts.keys())
        ]
    if problems:
        raise Problems("these events are not the outcomes of one kind of saga:", problems)
    return events


def find_outcomes() -> Sequence[type[Event]]:
    """Return classes of all outcomes in `contracts/`, made as `saga contracts generate` would write them. Raises
    `SagaError` if there are none, or if they belong to several kinds of saga."""
    library = find_library()
    kinds = _outcomes_by_kind(library)
    if len(kinds) != 1:
        those = "; ".join(f"{kind}: {', '.join(sorted(each))}" for kind, each in sorted(kinds.items()))
        found = f"outcomes of several kinds of sagas ({those})" if kinds else "no outcome"
        raise SagaError(f"name the classes of the outcomes: {library.folder} has {found}")
    (contracts,) = kinds.values()
    return [_class_of(contract, library) for _, contract in sorted(contracts.items())]


def _outcomes_by_kind(library: Library) -> Mapping[str, Mapping[str, Contract]]:
    """Return the contracts of outcomes, by kind of saga (the name of the key field) and by name."""
    found: dict[str, dict[str, Contract]] = {}
    for name, contract in library.contracts.items():
        if contract.outcome is not None:
            found.setdefault(contract.key, {})[name] = contract
    return found


def _class_of(contract: Contract, library: Library) -> type[Event]:
    path = (str(library.folder), contract.newest.path)
    if path not in _classes:
        _classes[path] = make_event_class(contract, library)
    return _classes[path]
