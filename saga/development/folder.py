"""Folder in which services are written: which services are in it, and what of it has changed."""

import ast
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from saga.errors import ConfigurationError

Seen: TypeAlias = Mapping[Path, tuple[int, int]]
"""Files, each with the time at which it was written and its size: another look finds what has changed."""
FILES_MAX = 20_000
"""Files that are looked at, at most: of more, some may change unseen."""
_ENDINGS = (".py", ".avsc", ".json", ".toml")
_LEFT_OUT = frozenset({"__pycache__", "tests", "node_modules", "build", "dist", "site"})


class Found(NamedTuple):
    """Services of a folder."""

    modules: tuple[str, ...]
    """Modules that declare one, as Python calls them: `services.payment`."""
    broken: Mapping[str, str]
    """Modules that cannot be read as Python, each with the reason and its place."""


def services_in(folder: Path, root: Path) -> Found:
    """Modules and packages directly in a folder that declare a service: they say `name = Service(...)`. Nothing is
    imported. `root`: folder from which they are imported. Raises `ConfigurationError`: it is no folder below there."""
    try:
        package = folder.resolve().relative_to(root.resolve()).parts
    except ValueError:
        package = ("..",)
    if not folder.is_dir() or not all(part.isidentifier() for part in package):
        problem = f"{folder} is no package of the folder {root}: call it where `import services` finds the services"
        raise ConfigurationError("nothing was started:", [problem])
    modules, broken = list[str](), dict[str, str]()
    for path in sorted(folder.iterdir()):
        source = path / "__init__.py" if path.is_dir() else path
        if not path.stem.isidentifier() or source.suffix != ".py" or not source.is_file() or path.name == "__init__.py":
            continue
        name = ".".join((*package, path.stem))
        try:
            if _declares(source):
                modules.append(name)
        except (SyntaxError, ValueError) as why:  # a ValueError for null bytes and for text that is no UTF-8
            at = f":{why.lineno}" if isinstance(why, SyntaxError) else ""
            broken[name] = f"{source}{at}: {why.msg if isinstance(why, SyntaxError) else why}"
    return Found(tuple(modules), broken)


def _declares(source: Path) -> bool:
    """True if a module assigns a service. Raises `SyntaxError`, `ValueError`."""
    for node in ast.parse(source.read_bytes(), str(source)).body:
        match node:
            case ast.Assign(value=ast.Call(func=called)) | ast.AnnAssign(value=ast.Call(func=called)):
                if isinstance(called, ast.Name) and called.id == "Service":
                    return True
                if isinstance(called, ast.Attribute) and called.attr == "Service":
                    return True
            case _:
                pass
    return False


def look(root: Path, contracts: Path | None = None) -> Seen:
    """Look at all files that services are made of, below a folder; and at the contracts, if they lie elsewhere. Hidden
    folders, virtual environments and tests are left out."""
    seen: dict[Path, tuple[int, int]] = {}
    for above in (root, *([contracts] if contracts is not None else [])):
        for path in _files_below(above):
            if len(seen) >= FILES_MAX:
                return seen
            try:
                found = path.stat()
            except OSError:
                continue  # it has just gone
            seen[path] = found.st_mtime_ns, found.st_size
    return seen


def _files_below(root: Path) -> Iterator[Path]:
    for above, folders, files in os.walk(root):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _LEFT_OUT)
        yield from (Path(above, name) for name in sorted(files) if name.endswith(_ENDINGS))


def changed(before: Seen, now: Seen) -> frozenset[Path]:
    """Files that were written, made or removed between two looks."""
    return frozenset(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))


def concerned(paths: Collection[Path], modules: Collection[str], root: Path) -> tuple[str, ...]:
    """Modules that a change concerns: those in whose package or file it is; all of them, if any of it is elsewhere, for
    contracts and shared code are everybody's."""
    found = set[str]()
    for path in paths:
        of = {module for module in modules if _is_in(path, root.joinpath(*module.split(".")))}
        if not of:
            return tuple(modules)
        found |= of
    return tuple(module for module in modules if module in found)


def _is_in(path: Path, module: Path) -> bool:
    return module in path.parents or path == module.with_name(f"{module.name}.py")
