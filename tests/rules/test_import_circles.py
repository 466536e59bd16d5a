"""No modules import each other in a circle, not even for type checkers: there is always one to read first."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("saga", "services", "verification")
KNOWN = {
    frozenset({"saga.engine.persistence.progress_repository", "saga.engine.persistence.overflow_store"}),
}
"""Circles that there may be: a write that needs pages, which are written."""


def name_of(module: Path) -> str:
    return ".".join(module.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_by(module: Path) -> Iterator[str]:
    """Names that a module imports anywhere in it, with those of functions and modules alike."""
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def circles(imports: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """Groups of modules that lead back to themselves."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        seen, open_ = set[str](), [start]
        while open_:
            new = imports[open_.pop()] - seen
            seen |= new
            open_ += new
        reached[start] = seen
    return {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in imports
        if name in reached[name]
    }


def imports_of_all() -> dict[str, set[str]]:
    """Imports of each module among ours; a package is imported with its modules, which is no import of ours."""
    modules = {name_of(path): path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    packages = {name for name, path in modules.items() if path.name == "__init__.py"}
    imports = {}
    for name, path in modules.items():
        above = {package for package in packages if name.startswith(f"{package}.")}
        imports[name] = {other for other in imported_by(path) if other in modules} - above - {name}
    return imports


def test_there_are_no_import_cycles_except_known_ones() -> None:
    assert circles(imports_of_all()) - KNOWN == set()


def test_a_circle_is_found_however_long_and_what_leads_to_it_is_no_part() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str](), "e": {"f"}, "f": {"g"}, "g": {"e"}}
    assert circles(imports) == {frozenset("bc"), frozenset("efg")}
