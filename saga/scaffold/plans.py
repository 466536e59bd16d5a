"""Plan and write the files for a new project with its first service, or for another service of a project."""

import json
import keyword
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from saga.contracts.codegen import LINE_LENGTH, generate
from saga.contracts.contract import Contract
from saga.contracts.library import Library
from saga.contracts.schema import (
    MISSING,
    ArrayType,
    DecimalType,
    EnumType,
    MapType,
    OptionalType,
    RecordType,
    ScalarKind,
    ScalarType,
    Type,
)
from saga.errors import ConfigurationError, SagaError
from saga.messaging.names import OURS
from saga.support.printable import quote_text

PACKAGE: Final = "services"
"""Name of a project's package that contains its services."""
FIRST: Final = "order"
"""Name of the first service of a new project. It decides the outcome."""
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_NAME_MAX: Final = 40
_TAKEN: Final = {
    "client": "clients publish under that name",
    OURS: "the toolkit's own topics and documents are called so",
}

HOMES: Final = {"date": "datetime", "datetime": "datetime", "Decimal": "decimal", "UUID": "uuid"}
"""Names that generated examples import from the standard library, each with its module."""
_USED: Final = {"work", "take_back", "trial", "check_idempotent", "result", "list", *HOMES}
"""Names that the generated code and test of a new service use. A service cannot have one of them as its module's
name.
"""
_CONTAINERS: Final = {"kafka", "topics", "couchbase", "couchbase-init", "monitor"}
"""Names of containers in the compose files of projects. A service cannot have one of them as its name: Compose would
merge the two containers.
"""
_SCALARS: Final[Mapping[ScalarKind, str]] = {
    "string": '"one"',
    "boolean": "True",
    "int": "1",
    "long": "1",
    "float": "1.0",
    "double": "1.0",
    "bytes": 'b"one"',
    "uuid": "UUID(int=1)",
    "date": "date(2026, 1, 1)",
    "timestamp-millis": "datetime(2026, 1, 1, tzinfo=UTC)",
    "timestamp-micros": "datetime(2026, 1, 1, tzinfo=UTC)",
}


class _Text(Template):
    """A template text. Placeholders have the form `~{name}`, because the generated files contain `$`, `@` and braces
    themselves.
    """

    delimiter = "~"


class NewService(NamedTuple):
    """The forms of a new service's name that its files use."""

    name: str
    """Name of the service, of its topic and of its contracts' folder: `stock-taking`."""

    @property
    def module(self) -> str:
        """Return the name of the service's module: `stock_taking`."""
        return self.name.replace("-", "_")

    @property
    def camel(self) -> str:
        """Return the prefix of the names of the service's events: `StockTaking`."""
        return "".join(part.capitalize() for part in self.name.split("-"))

    @property
    def done(self) -> str:
        """Return the name of the event with which the service reports that it has done its part."""
        return f"{self.camel}Done"

    @property
    def back(self) -> str:
        """Return the name of the event with which the service reports that it has undone its part."""
        return f"{self.camel}TakenBack"

    @property
    def title(self) -> str:
        """Return the service's name for the beginning of a sentence: `Stock taking`."""
        return self.name.replace("-", " ").capitalize()


_GENERATED: Final = """\
- **An event**: a file in `contracts/`, then `saga contracts generate services/order/events.py OrderPlaced ...` for
  each service that uses it. `make check` says where classes and contracts differ."""
_DECLARED: Final = """\
- **An event**: a class decorated with `@event` in `services/order/events.py`, then `saga contracts write`. It never
  changes a contract that is released (`saga contracts release`). `make check` says where classes and contracts
  differ."""
_ON_KAFKA: Final = "- **On Kafka**: `make up` builds an image and runs each service in a container of its own."
_ON_SERVERS: Final = """\
- **On Kafka and Couchbase**: `make up` builds an image and runs each service in a container of its own. The monitor's
  page is at http://localhost:8642. `docker compose exec order saga sagas list` is how commands are called there.
- **Tests on Kafka and Couchbase**: `tests/test_servers.py` runs where Docker, or Java and Maven are installed, and is
  skipped elsewhere. `python -m pytest --saga-world=servers` runs the tests in worlds there, too. At addresses of your
  own (`SAGA_TEST_KAFKA`, `SAGA_TEST_COUCHBASE`) give each test run new servers: topics stay."""


class ProjectTemplate(NamedTuple):
    """Template of a new project: its events, and the parts in which its files differ from those of other templates."""

    events: Mapping[str, Sequence[str]]
    """The event classes of each service."""
    start: str = "saga publish OrderPlaced --example | saga publish OrderPlaced"
    """Command that starts a first saga, with the id `order-1`."""
    servers: str = "kafka"
    """Extras of the toolkit that are needed for the servers in the containers."""
    install: str = "dev"
    """Extras of the project that its tests need."""
    event: str = _GENERATED
    """Line of the project's README that says how an event is added."""
    up: str = _ON_KAFKA
    """Line of the project's README that says what `make up` does."""

    @property
    def texts(self) -> Mapping[str, str]:
        """Values of the placeholders in the files of the project."""
        values = self._asdict()
        return {name: values[name] for name in ("start", "servers", "install", "event", "up")}


_OF_ORDER = ("OrderPlaced", "OrderConfirmed", "OrderCancelled")
_OF_PAYMENT = ("PaymentTaken", "PaymentRefused")
PLAIN: Final = "one-service"
TEMPLATES: Final[Mapping[str, ProjectTemplate]] = {
    PLAIN: ProjectTemplate({FIRST: _OF_ORDER}),
    "classes": ProjectTemplate({FIRST: _OF_ORDER}, event=_DECLARED),
    "compensation": ProjectTemplate(
        {
            FIRST: (*_OF_ORDER, *_OF_PAYMENT),
            "payment": ("OrderPlaced", "OrderCancelled", *_OF_PAYMENT, "PaymentReturned"),
        }
    ),
    "documents": ProjectTemplate(
        {FIRST: _OF_ORDER, "intake": ("OrderPlaced",)}, start="python write_order.py order-1 tea 2"
    ),
    "servers": ProjectTemplate(
        {FIRST: _OF_ORDER}, servers="couchbase,kafka,monitor", install="dev,servers", up=_ON_SERVERS
    ),
}
"""Templates of projects. Each template except the first has a folder of files, which are added to those of the first
template or replace them.
"""


def plan_project(name: str, template: str = PLAIN) -> Mapping[str, str]:
    """Return the texts of a new project's files, by path. Raises `ConfigurationError` for an invalid name.

    Args:
        name: name of the project.
        template: one of `TEMPLATES`.
    """
    _check("project", name)
    chosen = TEMPLATES[template]
    values = {"project": name, "package": PACKAGE, "first": FIRST, **chosen.texts}
    texts = _texts("project", values)
    if template != PLAIN:
        texts |= _texts(template, values)
    contracts = {path: text for path, text in texts.items() if path.startswith("contracts/")}
    with TemporaryDirectory() as folder:
        library = _library(Path(folder), contracts)
        for service, events in chosen.events.items():
            texts.setdefault(f"{PACKAGE}/{service}/events.py", generate(library, events))
    for service in chosen.events.keys() - {FIRST}:
        own = {"name": service, "module": service, "package": PACKAGE}
        texts[f"docker-compose.{service}.yml"] = _read("service/docker-compose.yml.txt", own)
    return texts


def plan_service(name: str, root: Path, hears: str | None = None) -> Mapping[str, str]:
    """Return the files of another service for the project at `root`, by path below it.

    Args:
        hears: Event that the service reacts to; by default the only event that starts a saga in the project.

    Raises:
        ConfigurationError: The service cannot be added. The error lists all problems.
        ContractError: The contracts of the project cannot be used.
    """
    part, problems = NewService(name), list(_find_name_problems("service", name))
    if part.module in _USED:
        problems.append(
            f"{quote_text(name)} cannot be a service: its generated code uses {part.module} for another thing"
        )
    if name in _CONTAINERS:
        problems.append(f"{quote_text(name)} cannot be a service: a container of the compose files is called so")
    folder = root / "contracts"
    library = Library.load(folder) if folder.is_dir() else None
    if library is None or not (root / PACKAGE).is_dir():
        problems.append(
            f"{root} is no project: it has no folders contracts/ and {PACKAGE}/; saga new project creates one"
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


def _service(part: NewService, library: Library, cause: Contract) -> Mapping[str, str]:
    failing = sorted(c.name for c in library.contracts.values() if c.outcome == "failure" and c.key == cause.key)
    failures = [library.contracts[name] for name in failing if cause.outcome is None]
    own = {part.done: f"{part.title} has done its part."}
    if failures:
        own[part.back] = f"{part.title} has taken back what it did."
    key = next(field for field in cause.newest.schema["fields"] if field["name"] == cause.key)
    contracts = {
        f"contracts/{part.name}/{event}.v1.avsc": _schema(event, part.name, key, doc) for event, doc in own.items()
    }
    with TemporaryDirectory() as folder:
        there = {f"contracts/{path.relative_to(library.folder)}": path.read_text("utf-8") for path in _all(library)}
        hears = [cause.name, *(each.name for each in failures)]
        events = generate(_library(Path(folder), {**there, **contracts}), [*hears, *own])
    values, template = _values(part, cause, failures), "undone" if failures else "plain"
    return {
        **contracts,
        f"{PACKAGE}/{part.module}/__init__.py": _read(f"service/{template}.py.txt", values),
        f"{PACKAGE}/{part.module}/events.py": events,
        f"tests/test_{part.module}.py": _read(f"service/test_{template}.py.txt", values),
        f"docker-compose.{part.name}.yml": _read("service/docker-compose.yml.txt", values),
    }


def _values(part: NewService, cause: Contract, failures: Sequence[Contract]) -> Mapping[str, str]:
    """Return the values for the placeholders of a service's templates. The test fails the saga with the first one of
    `failures`."""
    made_cause, called = example_of(cause, "CAUSE = ")
    made_failure, also = example_of(failures[0], "FAILED = ") if failures else ("", set[str]())
    names = [each.name for each in failures]
    own = [part.done, *([part.back] if failures else [])]
    module, given = f"{PACKAGE}.{part.module}.events", {*called, *also, *own} - HOMES.keys()
    failure_parameter = f"failed: {' | '.join(names)}"
    standard = imports_of(called | also)
    return {
        "name": part.name,
        "module": part.module,
        "title": part.title,
        "package": PACKAGE,
        "key": cause.key,
        "done": part.done,
        "back": part.back,
        "work": format_call("", "async def work", [f"event: {cause.name}"], f" -> {part.done}:"),
        "take_back": format_call(
            "", "async def take_back", [failure_parameter, f"done: {part.done}"], f" -> {part.back}:"
        ),
        "import_events": format_import(module, [cause.name, *names, *own]),
        "import_given": format_import(module, sorted(given)),
        "imports": standard and f"{standard}\n",
        "made_cause": made_cause,
        "made_failure": made_failure,
    }


def _cause(library: Library, hears: str | None, problems: list[str]) -> Contract | None:
    """Return the contract of the event that the service reacts to. If there is a problem, add it to `problems` and
    return `None`.
    """
    if hears is not None:
        if hears not in library.contracts:
            known = ", ".join(sorted(library.contracts)) or "none"
            problems.append(f"--hears {quote_text(hears)}: there is no such contract; there are {known}")
        return library.contracts.get(hears)
    starts = sorted(name for name, contract in library.contracts.items() if contract.starts)
    if len(starts) != 1:
        problems.append(
            f"give the event that it reacts to, --hears EVENT: {', '.join(starts) or 'no contract'} starts a saga here"
        )
        return None
    return library.contracts[starts[0]]


def _find_name_problems(what: str, name: str) -> Iterable[str]:
    """Yield the problems of a name."""
    if not _NAME.fullmatch(name) or len(name) > _NAME_MAX:
        yield (
            f"{quote_text(name)} cannot be a {what}: a name is at most {_NAME_MAX} lower case letters and digits, in "
            "parts "
            "with `-` between them, and begins with a letter"
        )
    elif name in _TAKEN:
        yield f"{quote_text(name)} cannot be a {what}: {_TAKEN[name]}"
    elif keyword.iskeyword(name.replace("-", "_")):
        yield f"{quote_text(name)} cannot be a {what}: it is a word of Python"


def _check(what: str, name: str) -> None:
    if problems := list(_find_name_problems(what, name)):
        raise ConfigurationError("nothing was written:", problems)


def _schema(name: str, owner: str, key: Mapping[str, Any], doc: str) -> str:
    schema = {"type": "record", "name": name, "doc": doc, "topic": owner, "key": key["name"], "owner": owner}
    field = {"name": key["name"], "type": key["type"], "doc": key.get("doc", "The saga.")}
    return f"{json.dumps({**schema, 'consumed_by': 'external', 'fields': [field]}, indent=2)}\n"


# -------------------------------------------------------------------- templates


def _texts(template: str, values: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of a template's files, by the path of each new file.

    In the name of a template file, `--` stands for `/` and `__dot__` for a leading dot.
    """
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
    """Return the paths of all files in a library's folder that belong to the library. There may be others, even ones
    that are not text: those of an editor or of the system.
    """
    return sorted(path for pattern in ("*.avsc", "topic.json") for path in library.folder.rglob(pattern))


# -------------------------------------------------------------------- examples


def example_of(contract: Contract, before: str) -> tuple[str, set[str]]:
    """Return the source of a call that creates an event of a contract, and the names that this source uses.

    The call passes a value for each field without a default. `before`: the text before the call on its line; it counts
    when deciding whether the call must be split over several lines.
    """
    called: set[str] = set()
    return format_call(before, contract.name, _arguments(contract.newest.record, called), ""), {contract.name, *called}


def _arguments(record: RecordType, called: set[str]) -> list[str]:
    return [f"{field.name}={_value(field.type, called)}" for field in record.fields if field.default is MISSING]


def _value(type_: Type, called: set[str]) -> str:
    match type_:
        case ScalarType(kind):
            text = _SCALARS[kind]
            called.update({text.partition("(")[0]} & HOMES.keys())
            return text
        case DecimalType(precision, scale):
            called.add("Decimal")
            return 'Decimal("1")' if precision > scale else f'Decimal("0.{"1".rjust(scale, "0")}")'
        case EnumType(name=name, symbols=symbols):
            called.add(name)
            return f'{name}("{symbols[0]}")'
        case ArrayType():
            return "()"
        case MapType():
            return "{}"
        case OptionalType():
            return "None"
        case RecordType(name=name):
            called.add(name)
            return f"{name}({', '.join(_arguments(type_, called))})"


def imports_of(called: Collection[str]) -> str:
    """Return import statements for those of the given names that come from the standard library, one line per module.

    >>> imports_of({"date", "datetime", "Order"})
    'from datetime import UTC, date, datetime\\n'
    """
    found: dict[str, list[str]] = {}
    for name, home in HOMES.items():
        if name in called:
            found.setdefault(home, []).extend(["UTC", name] if name == "datetime" else [name])
    return "".join(f"from {home} import {', '.join(sorted(names))}\n" for home, names in found.items())


def format_import(module: str, names: Sequence[str]) -> str:
    """Return an import statement, split over several lines if it is long.

    >>> format_import("a.events", ["B", "A"])
    'from a.events import A, B'
    """
    line = f"from {module} import {', '.join(sorted(names))}"
    if len(line) <= LINE_LENGTH:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in sorted(names)), ")"])


def format_call(before: str, name: str, arguments: Sequence[str], after: str) -> str:
    """Return the source of a call or of a function's head, split over several lines if it is long.

    `before`, `after`: the text before the call on its first line, and after the call on its last line.

    >>> format_call("x = ", "A", ["b=1", "c=2"], "")
    'A(b=1, c=2)'
    """
    whole = ", ".join(arguments)
    if len(f"{before}{name}({whole}){after}") <= LINE_LENGTH:
        return f"{name}({whole}){after}"
    if len(whole) + 4 <= LINE_LENGTH:
        return f"{name}(\n    {whole}\n){after}"
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), f"){after}"])


# -------------------------------------------------------------------- writing


def write_files(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write new files, each with its text, below a folder, and return their paths.

    Raises:
        ConfigurationError: Some files exist already. All of them are listed, and nothing was written.
        SagaError: A file cannot be written. The files that were written before are removed again.
    """
    there = [name for name in sorted(files) if (folder / name).exists() or (folder / name).is_symlink()]
    if there:
        raise ConfigurationError(
            "nothing was written, because files are never overwritten: remove these, or choose another name:",
            [f"{folder / name} exists already" for name in there],
        )
    written: list[Path] = []
    made: list[Path] = []
    try:
        for name, text in sorted(files.items()):
            path = folder / name
            made += [above for above in reversed(path.parents) if not above.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except OSError as why:
        for path in written:
            with suppress(OSError):
                path.unlink()
        for above in reversed(made):
            with suppress(OSError):
                above.rmdir()
        raise SagaError(f"nothing was written: {why.filename or folder}: {why.strerror or why}") from why
    return written
