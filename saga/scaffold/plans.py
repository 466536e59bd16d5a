"""Plans of what is written: the files of a project with its first service, and those of one more service."""

import json
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from saga.contracts.codegen import generate
from saga.contracts.contract import Contract
from saga.contracts.library import Library
from saga.errors import ConfigurationError
from saga.messaging.names import OURS
from saga.scaffold.examples import HOMES, example_of, imported, imports_of, made
from saga.support.printable import quoted

PACKAGE: Final = "services"
"""Package of a project in which its services are."""
FIRST: Final = "order"
"""First service of a new project: it decides."""
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_NAME_MAX: Final = 40
_TAKEN: Final = {
    "client": "clients publish under that name",
    OURS: "the toolkit's own topics and documents are called so",
}


class _Text(Template):
    """Text with `~{name}` where something is put in: what it becomes has `$`, `@` and braces of its own."""

    delimiter = "~"


class Part(NamedTuple):
    """Names that a service has in the files."""

    name: str
    """Name of the service, of its topic and of what is its own: `stock-taking`."""

    @property
    def module(self) -> str:
        """Name of its module: `stock_taking`."""
        return self.name.replace("-", "_")

    @property
    def camel(self) -> str:
        """Beginning of the names of its events: `StockTaking`."""
        return "".join(part.capitalize() for part in self.name.split("-"))

    @property
    def done(self) -> str:
        """Event that says that it has done its part."""
        return f"{self.camel}Done"

    @property
    def back(self) -> str:
        """Event that says that it has taken that back."""
        return f"{self.camel}TakenBack"

    @property
    def title(self) -> str:
        """Name at the beginning of a sentence: `Stock taking`."""
        return self.name.replace("-", " ").capitalize()


def project(name: str) -> Mapping[str, str]:
    """Files of a project, with a service that decides how orders end. Raises `ConfigurationError` for a name that
    cannot be one."""
    _check("project", name)
    events = ("OrderPlaced", "OrderConfirmed", "OrderCancelled")
    texts = _texts("project", {"project": name, "package": PACKAGE, "first": FIRST, "saga_version": "0.1"})
    contracts = {path: text for path, text in texts.items() if path.startswith("contracts/")}
    with TemporaryDirectory() as folder:
        library = _library(Path(folder), contracts)
        return {**texts, f"{PACKAGE}/{FIRST}/events.py": generate(library, events)}


def service(name: str, root: Path, hears: str | None = None) -> Mapping[str, str]:
    """Files of one more service for the project at `root`, below that. `hears`: event that it reacts to, else the only
    one that begins a saga there. Raises `ConfigurationError` with all that keeps it from being written, `ContractError`
    for contracts that cannot be used."""
    part, problems = Part(name), list(_wrong("service", name))
    folder = root / "contracts"
    library = Library.load(folder) if folder.is_dir() else None
    if library is None or not (root / PACKAGE).is_dir():
        problems.append(
            f"{root} is no project: it has no folders contracts/ and {PACKAGE}/; saga new project makes one"
        )
    cause = _cause(library, hears, problems) if library is not None else None
    if library is not None and not problems:
        events = [f"{part.camel}Done", f"{part.camel}TakenBack"]
        problems += [
            f"a contract {event} is in {folder} already: choose another name"
            for event in events
            if event in library.contracts
        ]
        if name in library.topics:
            problems.append(f"a topic {name} is in {folder} already: choose another name")
    if problems or library is None or cause is None:
        raise ConfigurationError("nothing was written:", problems)
    return _service(part, library, cause)


def _service(part: Part, library: Library, cause: Contract) -> Mapping[str, str]:
    failures = sorted(c.name for c in library.contracts.values() if c.outcome == "failure" and c.key == cause.key)
    failure = library.contracts[failures[0]] if failures and cause.name not in failures else None
    own = {part.done: f"{part.title} has done its part."}
    if failure is not None:
        own[part.back] = f"{part.title} has taken back what it did."
    key = next(field for field in cause.newest.schema["fields"] if field["name"] == cause.key)
    contracts = {
        f"contracts/{part.name}/{event}.v1.avsc": _schema(event, part.name, key, doc) for event, doc in own.items()
    }
    with TemporaryDirectory() as folder:
        there = {f"contracts/{path.relative_to(library.folder)}": path.read_text("utf-8") for path in _all(library)}
        hears = [cause.name, *([failure.name] if failure is not None else [])]
        events = generate(_library(Path(folder), {**there, **contracts}), [*hears, *own])
    values, template = _values(part, cause, failure), "plain" if failure is None else "undone"
    return {
        **contracts,
        f"{PACKAGE}/{part.module}/__init__.py": _read(f"service/{template}.py.txt", values),
        f"{PACKAGE}/{part.module}/events.py": events,
        f"tests/test_{part.module}.py": _read(f"service/test_{template}.py.txt", values),
        f"docker-compose.{part.name}.yml": _read("service/docker-compose.yml.txt", values),
    }


def _values(part: Part, cause: Contract, failure: Contract | None) -> Mapping[str, str]:
    """Values of a service's templates."""
    made_cause, called = example_of(cause, "CAUSE = ")
    made_failure, also = ("", set[str]()) if failure is None else example_of(failure, "FAILED = ")
    hears = [cause.name, *([failure.name, part.back] if failure is not None else [])]
    module, given = f"{PACKAGE}.{part.module}.events", {*called, *also, *hears, part.done} - HOMES.keys()
    heard = f"failed: {failure.name}" if failure is not None else ""
    standard = imports_of(called | also)
    return {
        "name": part.name,
        "module": part.module,
        "title": part.title,
        "package": PACKAGE,
        "key": cause.key,
        "done": part.done,
        "back": part.back,
        "work": made("", "async def work", [f"event: {cause.name}"], f" -> {part.done}:"),
        "take_back": made("", "async def take_back", [heard, f"done: {part.done}"], f" -> {part.back}:"),
        "import_events": imported(module, [*hears, part.done]),
        "import_given": imported(module, sorted(given)),
        "imports": standard and f"{standard}\n",
        "made_cause": made_cause,
        "made_failure": made_failure,
    }


def _cause(library: Library, hears: str | None, problems: list[str]) -> Contract | None:
    """Contract of what the service reacts to; what is wrong is added to the problems."""
    if hears is not None:
        if hears not in library.contracts:
            known = ", ".join(sorted(library.contracts)) or "none"
            problems.append(f"--hears {quoted(hears)}: there is no such contract; there are {known}")
        return library.contracts.get(hears)
    starts = sorted(name for name, contract in library.contracts.items() if contract.starts)
    if len(starts) != 1:
        problems.append(
            f"say what it reacts to, --hears EVENT: {', '.join(starts) or 'no contract'} begins a saga here"
        )
        return None
    return library.contracts[starts[0]]


def _wrong(what: str, name: str) -> Iterable[str]:
    """Problems of a name."""
    if not _NAME.fullmatch(name) or len(name) > _NAME_MAX:
        yield (
            f"{quoted(name)} cannot be a {what}: a name is at most {_NAME_MAX} lower case letters and digits, in parts "
            "with `-` between them, and begins with a letter"
        )
    elif name in _TAKEN:
        yield f"{quoted(name)} cannot be a {what}: {_TAKEN[name]}"
    elif keyword.iskeyword(name.replace("-", "_")):
        yield f"{quoted(name)} cannot be a {what}: it is a word of Python"


def _check(what: str, name: str) -> None:
    if problems := list(_wrong(what, name)):
        raise ConfigurationError("nothing was written:", problems)


def _schema(name: str, owner: str, key: Mapping[str, Any], doc: str) -> str:
    schema = {"type": "record", "name": name, "doc": doc, "topic": owner, "key": key["name"], "owner": owner}
    field = {"name": key["name"], "type": key["type"], "doc": key.get("doc", "The saga.")}
    return f"{json.dumps({**schema, 'consumed_by': 'external', 'fields': [field]}, indent=2)}\n"


# -------------------------------------------------------------------- templates


def _texts(template: str, values: Mapping[str, str]) -> dict[str, str]:
    """Texts of a template's files by the path that they get: `a__b.txt` becomes `a/b`."""
    found = {}
    for file in files("saga.scaffold").joinpath("templates", template).iterdir():
        path = file.name.removesuffix(".txt").replace("__dot__", ".").replace("--", "/")
        found[path] = _Text(file.read_text("utf-8")).substitute(values)
    return found


def _read(template: str, values: Mapping[str, str]) -> str:
    text = files("saga.scaffold").joinpath("templates", *template.split("/")).read_text("utf-8")
    return _Text(text).substitute(values)


def _library(folder: Path, contracts: Mapping[str, str]) -> Library:
    for path, text in contracts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, "utf-8")
    return Library.load(folder / "contracts")


def _all(library: Library) -> Sequence[Path]:
    """Files of a library."""
    return sorted(path for path in library.folder.rglob("*") if path.is_file())
