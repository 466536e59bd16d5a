"""Library of a folder's contracts: finding the folder, looking things up in it, and telling whether a class fits."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from saga.contracts.binding import classes_of
from saga.contracts.contract import URN, Contract, Version, called
from saga.contracts.convert import Classes
from saga.contracts.loading import load
from saga.errors import DeclarationError
from saga.messages import Event, Topic

_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[\x21-\x7e]*(?<=[/:])").fullmatch

__all__ = ["Binding", "Contract", "Library", "Version", "binding_of", "contract_of", "find"]


class MeantType(NamedTuple):
    """Contract that a type in a header means."""

    name: str
    is_exact: bool
    """True if the header has its name, and no other namespace than its own."""


@dataclass(frozen=True)
class Library:
    """Contracts of one folder, without a problem in them."""

    folder: Path
    contracts: Mapping[str, Contract] = field(repr=False)
    """Contracts by name."""
    topics: Mapping[str, Topic] = field(repr=False)
    """Topics by name."""
    by_path: Mapping[str, Version] = field(repr=False, compare=False)
    """Versions by path, `payments/PaymentReserved.v1`."""
    by_fingerprint: Mapping[bytes, Version] = field(repr=False, compare=False)
    """Versions by the 8 bytes in a value's header; the newest, if versions differ only in what Avro ignores."""
    schemas: str = field(default=URN, repr=False, compare=False)
    """Prefix of the URIs of its schemas."""
    readers: dict[tuple[type[Event], bytes], Callable[[bytes], Any]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Readers of other versions than a class's own, by class and header: one for each that was met."""
    types: dict[bytes, "MeantType | None"] = field(default_factory=dict, repr=False, compare=False)
    """Types that records had in their headers, with the contract that each means: see
    `saga.engine.consumer.record_router`."""

    @classmethod
    def load(cls, folder: Path, schemas: str = URN) -> Self:
        """Read the folder. `schemas`: prefix of the URIs of its schemas. Raises `ContractError` with all its problems,
        each with file and path inside."""
        contracts, topics = load(folder, schemas)
        versions = [version for contract in contracts.values() for version in contract.versions]
        by_path = {version.path: version for version in versions}
        by_fingerprint = {version.fingerprint: version for version in versions}
        return cls(folder, contracts, topics, by_path, by_fingerprint, schemas)

    def anew(self) -> "Library":
        """Read the folder as it is by now. Versions that it had and has no more stay known: what they wrote is on its
        way. Raises `ContractError` as `load`."""
        now = Library.load(self.folder, self.schemas)
        return replace(
            now,
            by_path={**self.by_path, **now.by_path},
            by_fingerprint={**self.by_fingerprint, **now.by_fingerprint},
        )


@dataclass(frozen=True)
class Binding:
    """Class of an event with the version it was generated from."""

    contract: Contract
    version: Version
    library: Library
    classes: Classes
    """Classes of its nested types."""


def find(start: Path | None = None) -> Library:
    """Find the library at `SAGA_CONTRACTS`, else at the nearest `contracts/` above `start` that holds schemas.

    `start`: a file or folder; `None`: the current folder. A folder is read once in the life of a process. What the URIs
    of its schemas begin with is `SAGA_SCHEMA_BASE`, else `urn:saga:`. Raises `DeclarationError` if there is none,
    `ContractError` if it cannot be used.
    """
    return _loaded(folder_above(start), _schemas())


def folder_above(start: Path | None = None) -> Path:
    """Folder of contracts, found as `find` does. Raises `DeclarationError` if there is none."""
    if given := os.environ.get("SAGA_CONTRACTS", "").strip():
        folder = Path(given).resolve()
        if not folder.is_dir():
            raise DeclarationError(f"SAGA_CONTRACTS is {given!r}, which is no folder; name the folder of the schemas")
        return folder
    begin = (start or Path.cwd()).resolve()
    for above in (begin, *begin.parents):
        folder = above / "contracts"
        # A package or a folder of tests may be called so too; only schemas make it one of ours.
        if folder.is_dir() and next(folder.glob("*/*.avsc"), None) is not None:
            return folder
    raise DeclarationError(
        f"there is no folder contracts/ with schemas in it at or above {begin}; make one "
        "(contracts/<topic>/<Name>.v1.avsc), or set SAGA_CONTRACTS"
    )


def contract_of(event: type[Event]) -> Contract:
    """Contract of a generated class, found from the file of its module.

    Raises `DeclarationError`: no contract, none that is known, or fields that are no longer those of the schema.
    """
    return binding_of(event).contract


_bindings: dict[type[Event], Binding] = {}


def binding_of(event: type[Event]) -> Binding:
    """Contract of a generated class, as `contract_of` finds it, with the version and the nested classes: a codec is
    made of it."""
    binding = _bindings.get(event)
    if binding is None:
        binding = _bindings[event] = _bind(event)
    return binding


def bind(event: type[Event], binding: Binding) -> None:
    """Bind a class that the toolkit has made itself: no file has its schema."""
    _bindings[event] = binding


def _bind(event: type[Event]) -> Binding:
    where = f"{event.__module__}.{event.__qualname__}"
    path = getattr(event, "__contract__", None)
    if not isinstance(path, str):
        raise DeclarationError(
            f"{where} has no contract: write contracts/<topic>/{event.__name__}.v1.avsc and run "
            "saga contracts generate; events are not subclassed by hand"
        )
    file = getattr(sys.modules.get(event.__module__), "__file__", None)
    library = find(None if file is None else Path(file).parent)
    version = library.by_path.get(path)
    if version is None:
        raise DeclarationError(
            f"{where} is of {path}, but there is no {library.folder / path}.avsc; correct the path, or run "
            "saga contracts generate with the names the module needs"
        )
    if event.__name__ not in (version.name, called(version.name, version.number)):
        raise DeclarationError(f"{where} is of {path}: call the class {version.name}; run saga contracts generate")
    classes, differences = classes_of(event, version)
    if differences:
        raise DeclarationError(
            f"{where} is not what {path} says: {'; '.join(differences)}; run saga contracts generate"
        )
    return Binding(library.contracts[version.name], version, library, classes)


@cache
def _loaded(folder: Path, schemas: str) -> Library:
    return Library.load(folder, schemas)


def _schemas() -> str:
    """Prefix of the URIs of schemas. SDKs for CloudEvents refuse one that is not absolute."""
    given = os.environ.get("SAGA_SCHEMA_BASE", "").strip()
    if not given:
        return URN
    if "@" in given:
        raise DeclarationError(
            "SAGA_SCHEMA_BASE has a user or a password before an `@`, and is not shown here: leave them out, for every "
            "event would tell them"
        )
    if not _ABSOLUTE(given):
        raise DeclarationError(
            f"SAGA_SCHEMA_BASE is {given!r}; it is an absolute URI that ends in / or :, as "
            "https://schemas.example.org/contracts/"
        )
    return given
