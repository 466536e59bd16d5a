"""Find the modules that declare events with `@event`, and compare their classes with the files in `contracts/`.

`saga contracts write` writes the files that differ; `saga contracts check` reports them. The file of a released version
is never changed. If the class of a released version differs from the file, the comparison names the number for the next
version.
"""

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from saga.contracts.checks import version_digest
from saga.contracts.codegen import find_modules
from saga.contracts.contract import Contract
from saga.contracts.library import compare_declared
from saga.contracts.loading import read_version
from saga.contracts.schema_parser import format_schema
from saga.errors import ContractError


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassDrift:
    """A class that differs from its file in `contracts/`."""

    file: Path
    text: str
    """Text that the file would have if it were written from the class."""
    differences: tuple[str, ...]
    """Differences that affect programs; empty if only descriptions or the layout differ."""
    refusal: str = ""
    """Reason why the file must not be written, and what to do instead; empty if it may be written."""


def find_event_modules(folder: Path) -> dict[Path, dict[str, int]]:
    """Return the modules in a folder that declare events. Each has the line numbers of its event classes, by the name
    of the class."""
    found = {path: lines for path in find_modules(folder) if (lines := find_event_lines(path))}
    return dict(sorted(found.items()))


def find_event_lines(module: Path) -> dict[str, int]:
    """Return the line number of each class decorated with `@event` in a module, by the name of the class. The result is
    empty for a file that is not valid Python."""
    source = module.read_text("utf-8", "replace")
    if "event" not in source or "saga" not in source:  # most modules need not be parsed
        return {}
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return {}
    names: set[str] = set()
    for node in body:
        match node:
            case ast.ImportFrom(module="saga", names=imported):
                names |= {each.asname or each.name for each in imported if each.name == "event"}
            case ast.Import(names=imported):
                names |= {f"{each.asname or each.name}.event" for each in imported if each.name == "saga"}
            case _:
                continue
    return {
        node.name: node.lineno
        for node in body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(each, ast.Call) and ast.unparse(each.func) in names for each in node.decorator_list)
    }


def dotted_name(module: Path) -> str:
    """Return the dotted name under which Python imports a module. The name is relative to the current folder or to a
    folder in `sys.path`: the innermost one that contains the module."""
    path = module.resolve()
    roots = [Path(each).resolve() for each in (".", *sys.path)]
    above = max((root for root in roots if path.is_relative_to(root)), key=lambda root: len(root.parts), default=None)
    parts = path.with_suffix("").relative_to(above or path.parent).parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def compare_with_file(declared: Contract, folder: Path, released: Mapping[str, str] | None) -> ClassDrift | None:
    """Compare a class with its file. Return `None` if they agree.

    Args:
        declared: the contract of the class.
        folder: the contracts folder.
        released: the digests of released versions, by path; `None` if the folder has no file of released versions.
    """
    version = declared.newest
    file, text = folder / f"{version.path}.avsc", format_schema(version.schema)
    number, newest = version.number, _newest_number(declared, folder)
    refusal = ""
    if number < newest:
        refusal = f"{folder.name}/ has version {newest} already: set version={newest}"
    elif number > newest + 1:
        refusal = f"the newest version in {folder.name}/ is {newest}: set version={newest + 1}"
    elif newest and number == newest + 1 and released is not None and _path(declared, newest) not in released:
        refusal = f"version {newest} is not released: set version={newest}, and its file is written again"
    if refusal or not file.exists():
        return ClassDrift(file=file, text=text, differences=("there is no such file yet",), refusal=refusal)
    if file.read_text("utf-8", "replace") == text:
        return None
    try:
        written = read_version(file)
    except ContractError as why:
        return ClassDrift(file=file, text=text, differences=why.problems)
    differences = tuple(compare_declared(written, version))
    if version.path in (released or {}) and version_digest(written) != version_digest(version):
        if not differences:  # equivalent: the released digest is the digest of the file
            return None
        refusal = (
            f"version {number} is released: make the change in the next one, with version={number + 1}, or take it back"
        )
    return ClassDrift(file=file, text=text, differences=differences, refusal=refusal)


def _newest_number(declared: Contract, folder: Path) -> int:
    """Return the number of the newest version that has a file; 0 if none has one."""
    numbers = [path.stem.rpartition(".v")[2] for path in (folder / declared.topic).glob(f"{declared.name}.v*.avsc")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def _path(declared: Contract, number: int) -> str:
    return f"{declared.topic}/{declared.name}.v{number}"
