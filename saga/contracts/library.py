"""The library of all contracts in a folder, how that folder is found, and how event classes are bound to contract
versions."""

import dataclasses
import os
import re
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

from saga.contracts import schema
from saga.contracts.compatibility import list_changes
from saga.contracts.contract import URN, Contract, Version, versioned_name
from saga.contracts.conversion import PYTHON_TYPES, Classes, to_typed
from saga.contracts.event_classes import declared_contract
from saga.contracts.loading import load
from saga.errors import DeclarationError
from saga.messages import Event, Topic

_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[\x21-\x7e]*(?<=[/:])").fullmatch

__all__ = ["Binding", "Contract", "Library", "Version", "binding_of", "contract_of", "find_library"]


class MeantType(NamedTuple):
    """The contract to which the event type in a record header refers."""

    name: str
    is_exact: bool
    """True if the header contains the contract's name with the contract's own namespace, or without a namespace."""


@dataclass(frozen=True)
class Library:
    """All contracts of one folder, which was loaded without problems."""

    folder: Path
    contracts: Mapping[str, Contract] = dataclasses.field(repr=False)
    """Contracts by name."""
    topics: Mapping[str, Topic] = dataclasses.field(repr=False)
    """Topics by name."""
    by_path: Mapping[str, Version] = dataclasses.field(repr=False, compare=False)
    """Versions by path, such as `payments/PaymentReserved.v1`."""
    by_fingerprint: Mapping[bytes, Version] = dataclasses.field(repr=False, compare=False)
    """Versions by the fingerprint in a value's header. Several versions have the same fingerprint if they differ only
    in parts that Avro ignores; then the newest of them is here."""
    schemas: str = dataclasses.field(default=URN, repr=False, compare=False)
    """Prefix of the URIs of the folder's schemas."""
    readers: dict[tuple[type[Event], bytes], Callable[[bytes], Any]] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )
    """Cached readers for versions other than a class's own, by the class and the header of the value."""
    types: dict[bytes, "MeantType | None"] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """For each event type in record headers, the contract to which it refers, as a cache. See
    `saga.engine.consumer.record_router`."""

    @classmethod
    def load(cls, folder: Path, schemas: str = URN) -> Self:
        """Load a contracts folder. Raises `ContractError` with all problems, each with its file and the path in the
        file.

        Args:
            folder: the contracts folder.
            schemas: prefix of the URIs of the schemas.
        """
        contracts, topics = load(folder, schemas)
        versions = [version for contract in contracts.values() for version in contract.versions]
        by_path = {version.path: version for version in versions}
        by_fingerprint = {version.fingerprint: version for version in versions}
        return cls(folder, contracts, topics, by_path, by_fingerprint, schemas)

    def reload(self) -> "Library":
        """Load the folder again. Raises `ContractError` as `load` does.

        Contracts and versions that are no longer in the folder stay known, because their messages may still arrive. The
        folder may be incomplete for a moment, in the middle of a deployment.
        """
        now = Library.load(self.folder, self.schemas)
        lost = {
            name: contract
            for name, contract in self.contracts.items()
            if name not in now.contracts or len(now.contracts[name].versions) < len(contract.versions)
        }
        return replace(
            now,
            contracts=dict(sorted({**now.contracts, **lost}.items())),
            topics=dict(sorted({**self.topics, **now.topics}.items())),
            by_path={**self.by_path, **now.by_path},
            by_fingerprint={**self.by_fingerprint, **now.by_fingerprint},
        )


@dataclass(frozen=True)
class Binding:
    """An event class's contract, version and library, and the classes of its nested types."""

    contract: Contract
    version: Version
    library: Library
    classes: Classes
    """Classes of the event and of its nested types, by the type's name."""


def find_library(start: Path | None = None) -> Library:
    """Return the contracts of the folder in `SAGA_CONTRACTS`; if that is not set, of the nearest folder `contracts/`
    above `start` that contains schemas.

    A process loads each folder once. The prefix of the URIs of its schemas is `SAGA_SCHEMA_BASE`, or `urn:saga:` if
    that is not set.

    Args:
        start: the file or folder from which the search begins; `None` for the current folder.

    Raises:
        DeclarationError: there is no such folder, or one of the two environment variables is invalid.
        ContractError: the contracts in the folder have problems.
    """
    return _load_cached(find_folder(start), _schema_uri_prefix())


def find_folder(start: Path | None = None) -> Path:
    """Return the contracts folder that `find_library` would load. Raises `DeclarationError` if there is none."""
    if given := os.environ.get("SAGA_CONTRACTS", "").strip():
        folder = Path(given).resolve()
        if not folder.is_dir():
            raise DeclarationError(f"SAGA_CONTRACTS is {given!r}, which is no folder; name the folder of the schemas")
        return folder
    begin = (start or Path.cwd()).resolve()
    for above in (begin, *begin.parents):
        folder = above / "contracts"
        # A package or a folder of tests may also be called `contracts`, so it must contain schemas.
        if folder.is_dir() and next(folder.glob("*/*.avsc"), None) is not None:
            return folder
    raise DeclarationError(
        f"there is no folder contracts/ with schemas in it at or above {begin}; make one "
        "(contracts/<topic>/<Name>.v1.avsc), or set SAGA_CONTRACTS"
    )


def contract_of(event: type[Event]) -> Contract:
    """Return the contract of a generated class. The contracts folder is searched from the file of the class's module.

    Raises `DeclarationError` if the class has no contract, the contract is unknown, or the fields of the class differ
    from the schema.
    """
    return binding_of(event).contract


def contract_at_import(event: type[Event]) -> Contract:
    """Return the contract against which declarations are checked while a service is imported.

    For a class decorated with `@event`, it is the contract that the class itself declares, so a service can be imported
    before its contract files are written. When the service starts, the class is compared with these files. For any
    other class it is the result of `contract_of`. Raises `DeclarationError` as `contract_of` does.
    """
    return declared_contract(event) or binding_of(event).contract


def version_at_import(event: type[Event]) -> Version:
    """Return the version against which declarations are checked while a service is imported: see
    `contract_at_import`."""
    declared = declared_contract(event)
    return binding_of(event).version if declared is None else declared.newest


def library_at_import(event: type[Event]) -> Library:
    """Return the library of contracts to which an event belongs, while a service is imported. For a class with
    `@event`, the library is empty if no contracts folder is found, because it may not have been written yet. Raises
    `DeclarationError` as `contract_of` does."""
    if declared_contract(event) is None:
        return binding_of(event).library
    try:
        return find_library(_find_start(event))
    except DeclarationError:
        return Library(Path("contracts"), {}, {}, {}, {})


_bindings: dict[type[Event], Binding] = {}


def binding_of(event: type[Event]) -> Binding:
    """Return the binding of an event class, from which its codec is made.

    Raises `DeclarationError` as `contract_of` does.
    """
    binding = _bindings.get(event)
    if binding is None:
        binding = _bindings[event] = _bind(event)
    return binding


def bind(event: type[Event], binding: Binding) -> None:
    """Register the binding of a class that the toolkit has made in memory, and for which no schema file exists."""
    _bindings[event] = binding


def _bind(event: type[Event]) -> Binding:
    where = f"{event.__module__}.{event.__qualname__}"
    path = getattr(event, "__contract__", None)
    if not isinstance(path, str):
        raise DeclarationError(
            f"{where} has no contract: declare it with @event above the class, or write "
            f"contracts/<topic>/{event.__name__}.v1.avsc and run saga contracts generate"
        )
    declared = declared_contract(event)
    try:
        library = find_library(_find_start(event))
    except DeclarationError as why:
        remedy = "" if declared is None else f"; saga contracts write makes {path}.avsc from {where}"
        raise DeclarationError(f"{why}{remedy}") from why
    version = library.by_path.get(path)
    if declared is not None and (differences := compare_declared(version, declared.newest)):
        raise DeclarationError(
            f"{where} and {library.folder / path}.avsc differ: {'; '.join(differences)}; run saga contracts write"
        )
    if version is None:
        raise DeclarationError(
            f"{where} is of {path}, but there is no {library.folder / path}.avsc; correct the path, or run "
            "saga contracts generate with the names the module needs"
        )
    if event.__name__ not in (version.name, versioned_name(version.name, version.number)):
        raise DeclarationError(f"{where} is of {path}: call the class {version.name}; run saga contracts generate")
    classes, differences = compare_class(event, version)
    if differences:
        raise DeclarationError(
            f"{where} is not what {path} says: {'; '.join(differences)}; run saga contracts generate"
        )
    return Binding(library.contracts[version.name], version, library, classes)


def _find_start(event: type[Event]) -> Path | None:
    """Return the folder of the class's module, from which the search for its contracts folder begins; `None` if the
    module has no file."""
    file = getattr(sys.modules.get(event.__module__), "__file__", None)
    return None if file is None else Path(file).parent


@cache
def _load_cached(folder: Path, schemas: str) -> Library:
    return Library.load(folder, schemas)


def _schema_uri_prefix() -> str:
    """Return the prefix of schema URIs in `SAGA_SCHEMA_BASE`, or the default.

    Raises `DeclarationError` if it is not an absolute URI, because CloudEvents SDKs refuse other values.
    """
    given = os.environ.get("SAGA_SCHEMA_BASE", "").strip()
    if not given:
        return URN
    if "@" in given:
        raise DeclarationError(
            "SAGA_SCHEMA_BASE has a user or a password before an `@`, and is not shown here: leave them out, because "
            "every event would contain them"
        )
    if not _ABSOLUTE(given):
        raise DeclarationError(
            f"SAGA_SCHEMA_BASE is {given!r}; it is an absolute URI that ends in / or :, as "
            "https://schemas.example.org/contracts/"
        )
    return given


# -------------------------------------------------------------------- binding


def compare_declared(written: Version | None, declared: Version) -> list[str]:
    """Return the differences between the file of a version and the class that declares it, apart from descriptions.

    Args:
        written: the version in the file; `None` if there is no file.
        declared: the version that the class declares.
    """
    if written is None:
        return ["there is no such file yet"]
    changes = [change for change in list_changes(written, declared) if change.kind != "doc"]
    differences = [f"{change.path}: {change.says}" if change.path else change.says for change in changes]
    if not differences and written.fingerprint != declared.fingerprint:
        differences.append("an optional field without a default has null behind its type in the file")
    return differences


def compare_class(event: type[Any], version: Version) -> tuple[Classes, list[str]]:
    """Compare an event class with the schema of its version.

    Return the classes of the record and of its nested types, and all differences. The classes are complete only if
    there are no differences. The name of a class must be the name of its type, with or without the version's number
    appended.
    """
    record, comparison = version.record, _ClassComparison(version.number)
    comparison.record(record, event, "")
    return comparison.classes, comparison.differences


class _ClassComparison:
    """Comparison of a class with a schema. It collects the nested classes and all differences."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.classes: dict[str, type[Any]] = {}
        self.differences: list[str] = []

    def differs(self, at: str, difference: str) -> None:
        self.differences.append(f"{at}: {difference}" if at else difference)

    def record(self, record: schema.RecordType, cls: Any, at: str) -> None:
        if not self.is_new(record.name, cls, at):
            return
        if not dataclasses.is_dataclass(cls):
            return self.differs(at, f"{cls!r} is no dataclass")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        try:
            hints = get_type_hints(cls)
        except NameError as why:
            return self.differs(at, f"an annotation cannot be understood: {why}")
        wanted = [field.name for field in record.fields]
        for name in fields.keys() - set(wanted):
            self.differs(_join(at, name), "is not in the schema")
        for field in record.fields:
            if field.name not in fields:
                self.differs(_join(at, field.name), "is missing in the class")
                continue
            before = len(self.differences)
            self.type_(field.type, hints[field.name], _join(at, field.name))
            if len(self.differences) == before:
                self.default(field, fields[field.name], _join(at, field.name))
        if not self.differences and list(fields) != wanted:
            self.differs(at, f"its fields stand in another order: {', '.join(wanted)}")

    def type_(self, type_: schema.Type, hint: Any, at: str) -> None:
        origin, arguments = get_origin(hint), get_args(hint)
        match type_:
            case schema.ScalarType(kind) if hint is PYTHON_TYPES[kind]:
                return
            case schema.DecimalType() if hint is Decimal:
                return
            case schema.EnumType():
                return self.enum(type_, hint, at)
            case schema.ArrayType(items) if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
                return self.type_(items, arguments[0], f"{at}[]")
            case schema.MapType(values) if origin is Mapping and arguments[0] is str:
                return self.type_(values, arguments[1], f"{at}{{}}")
            case schema.OptionalType(inner) if origin in (Union, types.UnionType) and type(None) in arguments:
                rest = [argument for argument in arguments if argument is not type(None)]
                if len(rest) == 1:
                    return self.type_(inner, rest[0], at)
            case schema.RecordType() if isinstance(hint, type):
                return self.record(type_, hint, at)
            case _:
                pass
        self.differs(
            at, f"is {getattr(hint, '__name__', hint)} in the class, {schema.describe_type(type_)} in the schema"
        )

    def enum(self, type_: schema.EnumType, hint: Any, at: str) -> None:
        if not isinstance(hint, type) or not issubclass(hint, StrEnum):
            return self.differs(at, f"is {getattr(hint, '__name__', hint)}, not a StrEnum")
        if self.is_new(type_.name, hint, at) and tuple(hint) != type_.symbols:
            self.differs(at, f"the words of {type_.name} are {', '.join(type_.symbols)} in the schema")

    def default(self, field: schema.Field, found: "dataclasses.Field[Any]", at: str) -> None:
        given: Any = found.default
        if found.default_factory is not dataclasses.MISSING:
            given = found.default_factory()
        if field.default is schema.MISSING:
            if given is not dataclasses.MISSING:
                self.differs(at, "has a default in the class, none in the schema")
            return
        wanted = to_typed(field.type, field.default, self.classes)
        if given is dataclasses.MISSING or type(given) is not type(wanted) or given != wanted:
            self.differs(at, f"its default is {wanted!r} in the schema")

    def is_new(self, name: str, cls: Any, at: str) -> bool:
        """Return whether this named type occurs for the first time.

        Report a class with a wrong name, and a class that differs from the one that was used for the same type before.
        """
        if getattr(cls, "__name__", None) not in (name, versioned_name(name, self.number)):
            self.differs(at, f"is {getattr(cls, '__name__', cls)}, not {name}")
            return False
        if name not in self.classes:
            self.classes[name] = cls
            return True
        if self.classes[name] is not cls:
            self.differs(at, f"is another class {name} than elsewhere in the event")
        return False


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name
