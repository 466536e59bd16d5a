"""Events that a client hears: records of the log, made instances of the classes that it names."""

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from saga.contracts import codec
from saga.contracts.codegen import make_event_class
from saga.contracts.contract import Contract
from saga.contracts.encryption import decrypt_fields, key_names_in
from saga.contracts.library import Library, binding_of, contract_of, find_library
from saga.encryption.port import Keys
from saga.errors import BadInput, Problems, SagaError
from saga.messages import Event, Record, Topic, name_of
from saga.messaging import envelope
from saga.ops.event_fields import decode_message, decode_value, recognize_record

E = TypeVar("E", bound=Event)


class Hearing(Generic[E]):
    """Classes of which a client hears, with the contracts behind them."""

    def __init__(self, events: Sequence[type[E]], keys: Keys | None) -> None:
        """Find the contracts. Raises `SagaError`: no class, two of one contract, or contracts of two folders."""
        if not events:
            raise SagaError("nothing is to be heard: name the classes of the events")
        self._classes = {name_of(event): event for event in events}
        self.classes = frozenset(events)
        bindings = [binding_of(event) for event in events]
        if len(self._classes) < len(events):
            raise SagaError("two classes are of one contract: name one of each")
        self.library = bindings[0].library
        if any(binding.library is not self.library for binding in bindings):
            raise SagaError("the classes are of two folders of contracts: ask for them one after the other")
        self.contracts: Mapping[str, Contract] = {binding.contract.name: binding.contract for binding in bindings}
        names = sorted({contract.topic for contract in self.contracts.values()})
        self.topics: Mapping[str, Topic] = {name: self.library.topics[name] for name in names}
        self._keys = keys

    def is_one(self, record: Record) -> bool:
        """Return whether a record is one of these events, as far as its headers and bytes tell."""
        if envelope.type_of(record) in self._classes:
            return record.value is not None
        try:
            return recognize_record(record, self.library)[1].name in self._classes
        except BadInput:
            return False

    async def event_in(self, record: Record) -> E | None:
        """Event in a record; `None`: it is another one. Sealed values are opened, if there are keys. Raises `BadInput`:
        it says that it is one of these, and cannot be read; `KeysUnavailable` and `KeyMissing`."""
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


def check_heard(events: Sequence[type[E]]) -> Sequence[type[E]]:
    """Check that clients may read these events. Raises `SagaError` for all whose contracts do not say so."""
    contracts = [contract_of(event) for event in events]
    if hidden := [contract for contract in contracts if not contract.consumed_externally]:
        raise Problems(
            "nothing is heard:",
            [
                f'{contract.name} is for services: its contract has no "consumed_by": "external", with which '
                f"{contract.owner!r} would promise it to others"
                for contract in hidden
            ],
        )
    return events


def check_outcomes(events: Sequence[type[E]]) -> Sequence[type[E]]:
    """Check that these are all outcomes of one kind of saga. Raises `SagaError` with all that is wrong."""
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
        every = _outcomes_in(binding_of(events[0]).library)[kinds[0]]
        problems += [
            f"{name} is an outcome, too, by its key {kinds[0]}: name it, or a saga that ends so is never answered"
            for name in sorted(every.keys() - contracts.keys())
        ]
    if problems:
        raise Problems("nobody can be asked so:", problems)
    return events


def outcomes_here() -> Sequence[type[Event]]:
    """Classes of all outcomes in `contracts/`, made as they would be generated. Raises `SagaError`: there are none, or
    those of several kinds of sagas."""
    library = find_library()
    kinds = _outcomes_in(library)
    if len(kinds) != 1:
        those = "; ".join(f"{kind}: {', '.join(sorted(each))}" for kind, each in sorted(kinds.items()))
        said = f"outcomes of several kinds of sagas ({those})" if kinds else "no outcome"
        raise SagaError(f"name the classes of the outcomes: {library.folder} has {said}")
    (contracts,) = kinds.values()
    return [_class_of(contract, library) for _, contract in sorted(contracts.items())]


def _outcomes_in(library: Library) -> Mapping[str, Mapping[str, Contract]]:
    """Contracts of outcomes by the kind of saga, which is their key's name, and by their own."""
    found: dict[str, dict[str, Contract]] = {}
    for name, contract in library.contracts.items():
        if contract.outcome is not None:
            found.setdefault(contract.key, {})[name] = contract
    return found


_classes: dict[tuple[str, str], type[Event]] = {}


def _class_of(contract: Contract, library: Library) -> type[Event]:
    path = (str(library.folder), contract.newest.path)
    if path not in _classes:
        _classes[path] = make_event_class(contract, library)
    return _classes[path]
