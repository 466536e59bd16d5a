"""`saga contracts`: create, change, compare, check, release and register contracts, and generate event classes from
them.
"""

import asyncio
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import click

from saga.choreography.releases import FOLDER, AffectedConsumer, find_affected, read_manifests
from saga.cli.options import find_docs
from saga.cli.printing import print_json, print_lines
from saga.configuration.settings import Settings
from saga.configuration.wiring import ImportFailure, import_modules
from saga.contracts.checks import (
    CHECK_RULES,
    REASON,
    RELEASED_FILE,
    ContractProblem,
    check_released,
    describe_modes,
    find_incompatible,
    find_line,
    lint,
    lint_version,
    problems_to_json,
    problems_to_sarif,
    read_released,
)
from saga.contracts.checks import LINT_RULES as LINT_RULES
from saga.contracts.checks import release as write_released
from saga.contracts.codegen import find_generated, generate, is_generated, list_classes, why_unknown
from saga.contracts.compatibility import (
    CompatibilityFinding,
    SchemaChange,
    list_changes,
    promised_directions,
    suggest_remedy,
)
from saga.contracts.contract import MODES, Version
from saga.contracts.drafts import FieldTexts, draft_fields, make_first_version
from saga.contracts.event_classes import declared_contract, iterate_declared
from saga.contracts.event_modules import (
    ClassDrift,
    compare_with_file,
    dotted_name,
    find_event_lines,
    find_event_modules,
)
from saga.contracts.library import Library, find_folder, find_library
from saga.contracts.loading import make_version, read_version
from saga.contracts.schema_parser import KINDS, format_schema
from saga.errors import ContractError, DeclarationError
from saga.ops.schema_registration import Registration, find_registrable, register
from saga.support.clock import SystemClock
from saga.support.documentation import link_page
from saga.support.printable import count_noun

PROMISES = (
    'What a version promises is its "compatible", by default full_transitive: it reads messages of all earlier '
    f"versions, and they read its messages, because {REASON}. docs/guides/evolving-contracts.md says which change is "
    "safe, in which order."
)


_WRITE = "run saga contracts write"

F = TypeVar("F", bound=Callable[..., Any])


def format_options(command: F) -> F:
    """Add the options `--json` and `--sarif` to a command."""
    sarif = click.option("--sarif", "form", flag_value="sarif", help="Print SARIF 2.1.0, for code review tools.")
    return click.option("--json", "form", flag_value="json", help="Print JSON.")(sarif(command))


@click.group()
def contracts() -> None:
    """Check contracts, write event classes, register schemas.

    The contracts are the Avro schemas at contracts/<topic>/<Name>.v<N>.avsc, in the nearest folder contracts/ above a
    module, or in the folder that SAGA_CONTRACTS names.
    """


@contracts.command("generate")
@click.argument("module", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.argument("names", nargs=-1)
@click.option("--add", "is_added", is_flag=True, help="Keep the classes that the module has, and add the named ones.")
def generate_(module: Path | None, names: tuple[str, ...], is_added: bool) -> None:
    """Write event classes for contracts: their newest versions, or the named ones.

    \b
    saga contracts generate services/payment/events.py OrderPlaced PaymentReserved
        write this module with these classes, in this order
    saga contracts generate services/payment/events.py OrderPlaced OrderPlaced.v1
        the same, with version 1 as the class OrderPlacedV1, for an upcaster
    saga contracts generate --add services/payment/events.py OrderCancelled
        add this class to those that the module has
    saga contracts generate services/payment/events.py
        write it again with the classes it has
    saga contracts generate
        write every generated module below the current folder again
    """
    modules = _find_generated(module)
    if module is not None and not module.exists() and not names:
        raise click.UsageError(f"{module} does not exist yet; name its classes")
    if is_added and not names:
        raise click.UsageError("--add: name the module and the classes to add: MODULE OrderCancelled")
    if names and module is not None:
        wrong = [why for name in names if (why := why_unknown(_load_library_of(module), name)) is not None]
        if wrong:
            raise click.UsageError("; ".join(wrong))
    problems = []
    for path in modules:
        try:
            source = generate(_load_library_of(path), _classes_to_write(path, names, is_added))
        except (ContractError, SyntaxError) as why:
            problems.append(f"{path}: {why}")
            continue
        if path.exists() and path.read_text("utf-8") == source:
            print_lines(f"{path} is up to date")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, "utf-8")
        print_lines(f"{path} written")
    _exit_with(problems)


def _classes_to_write(module: Path, names: tuple[str, ...], is_added: bool) -> list[str]:
    """Return the names of the classes to write: those named, those in the module, or both. Raises `SyntaxError` if the
    module is not valid Python."""
    if names and not is_added:
        return [*names]
    there = list_classes(module.read_text("utf-8")) if module.exists() else []
    return [*there, *(name for name in names if name not in there)]


@contracts.command("write")
@click.argument("modules", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def write_contracts(modules: tuple[Path, ...]) -> None:
    """Write the contracts of classes decorated with @event: contracts/<topic>/<Name>.v<N>.avsc.

    It imports the named modules, or all below the current folder that declare events. A version that is not released
    (`saga contracts release`) is overwritten. A released version is not: its class needs version=2 (or the next number)
    at @event, so that the change becomes a new version. If any contract cannot be written, none is.

    \b
    saga contracts write services/payment/events.py

    \b
    Exit code 0: all contracts agree with their classes.
    Exit code 1: nothing was written; standard error says what to do.
    """
    found = modules or tuple(path.relative_to(Path.cwd()) for path in find_event_modules(Path.cwd()))
    without = [str(module) for module in modules if not find_event_lines(module)]
    if without or not found:
        where = f"in {', '.join(without)}" if without else "below the current folder"
        page = link_page("guides/contracts", template=find_docs())
        raise click.UsageError(f"there is no class decorated with @event {where}; {page} has one")
    drifts, problems, count = _compare_classes(found)
    problems += [problem for problem, drift in drifts.items() if drift.refusal]
    _exit_with([str(problem) for problem in problems])
    try:
        _write_files({drift.file: drift.text for drift in drifts.values()})
    except ContractError as why:
        _exit_with([f"{why}\nno contract was written: correct that, and call saga contracts write again"])
    generate_too = "saga contracts generate, " if find_generated(Path.cwd()) else ""
    done = f"next: {generate_too}saga contracts check" if drifts else "all contracts are up to date"
    print_lines(
        *(f"{_to_relative(drift.file)} written" for drift in drifts.values()),
        f"{count} event class{'' if count == 1 else 'es'}; {done}",
    )


def _compare_classes(modules: Iterable[Path]) -> tuple[dict[ContractProblem, ClassDrift], list[ContractProblem], int]:
    """Compare the event classes of these modules with their contract files.

    Return a problem for each class that differs from its file, with the difference. Also return all other problems
    (modules that cannot be imported, contracts that two classes declare), and the number of classes.
    """
    drifts: dict[ContractProblem, ClassDrift] = {}
    problems: list[ContractProblem] = []
    homes: dict[tuple[Path, str], str] = {}
    for module in modules:
        file, lines, failures = module.as_posix(), find_event_lines(module), list[ImportFailure]()
        for _, imported in import_modules([dotted_name(module)], failures):
            folder = _find_folder(module.parent)
            for cls in iterate_declared(imported):
                contract = declared_contract(cls)
                assert contract is not None
                line = lines.get(cls.__name__, 1)
                other = homes.setdefault((folder, contract.name), file)
                if other != file:
                    says = f"{cls.__name__} is declared in {other}, too; import the class from one of the two"
                    problems.append(ContractProblem(rule="class", file=file, line=line, says=says))
                elif drift := compare_with_file(contract, folder, read_released(folder)):
                    problem = _describe_drift(cls.__name__, drift, file, line)
                    drifts[problem] = drift
        problems += [_describe_import_failure(failure, file) for failure in failures]
    return drifts, problems, len(homes)


def _describe_import_failure(failure: ImportFailure, module: str) -> ContractProblem:
    """Return the problem of a module that cannot be imported. It names the file that has to be corrected."""
    file = module if failure.file is None else _to_relative(Path(failure.file))
    return ContractProblem(rule="class", file=str(file), line=failure.line, says=f"{failure.module}: {failure.says}")


def _describe_drift(name: str, drift: ClassDrift, file: str, line: int) -> ContractProblem:
    """Return the problem of a class that differs from its contract file."""
    differences = "; ".join(drift.differences) or "a description, a lint rule or the layout of the file"
    says = f"{name} and {_to_relative(drift.file)} differ: {differences}"
    return ContractProblem(rule="class", file=file, line=line, says=says, remedy=drift.refusal or _WRITE)


def _write_files(texts: Mapping[Path, str]) -> None:
    """Write contract files. If one cannot be written, or a folder of contracts is invalid with them, restore the old
    files and raise `ContractError`."""
    before = {file: _read_if_exists(file) for file in texts}
    file: Path | None = None
    try:
        for file, text in texts.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
        for folder in {file.parent.parent for file in texts}:
            Library.load(folder)
    except (ContractError, OSError) as why:
        lost = [f"{each}: its old content is lost: restore it from version control" for each in _restore(before)]
        if isinstance(why, OSError):
            problem = (
                f"{why.filename or file}: it cannot be written: {why.strerror or why}"  # a full disk names no file
            )
            raise ContractError("some contracts cannot be written:", [problem, *lost]) from why
        if lost:
            raise ContractError(str(why), lost) from why
        raise


def _restore(before: Mapping[Path, bytes | None]) -> Iterable[Path]:
    """Give files their old contents, and remove new ones. Yield the files for which that fails."""
    for file, content in before.items():
        try:
            if _read_if_exists(file) == content:
                continue
            if content is None:
                file.unlink()
            else:
                file.write_bytes(content)
        except OSError:
            yield file


def _read_if_exists(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


@contracts.command()
@click.argument("module", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@format_options
def check(module: Path | None, form: str | None) -> None:
    """Check that versions of contracts are compatible, and that classes and generated modules agree with them.

    The field "compatible" of a version says what it promises. backward: it reads messages of the previous version.
    forward: the previous version reads its messages. full: both. With _transitive the promise covers all earlier
    versions. The default is full_transitive, because topics, queues and archives keep messages of all versions, and
    services are deployed, and rolled back, independently of each other. Versions that are listed in "upcasts" are read
    by upcasters.

    Without a module it checks the contracts of the current folder, every generated module below it, and every class
    decorated with @event; it imports the modules of these classes. It exits with 1 and prints the problems if a version
    breaks its promise, if a module differs from what `saga contracts generate` would write, if a class differs from its
    contract (`saga contracts write`), if contracts are invalid, or if a released version (`saga contracts release`) has
    changed.
    """
    problems: list[ContractProblem] = []
    if module is not None:
        declaring = [module] if find_event_lines(module) else []
        modules = [] if declaring else _find_generated(module)
        library = None
    else:
        declaring = [path.relative_to(Path.cwd()) for path in find_event_modules(Path.cwd())]
        modules = [path.relative_to(Path.cwd()) for path in find_generated(Path.cwd())]
        library, problems = try_load_contracts(Path.cwd() / "any.py")
    good, bad, versions = [], [], 0
    if library is not None:
        found, versions = library.contracts.values(), len(library.by_path)
        breaks = find_incompatible(found)
        problems += locate_problems(library.folder, [*breaks, *find_broken_releases(library)])
        good += [
            f"{count_noun(len(found), 'contract')} in {count_noun(versions, 'version')}: all are compatible",
            *describe_modes(found),
        ]
        bad += [PROMISES] if breaks else []
    # An unreadable contracts folder is reported once, not for each of its modules.
    problems += [drift for path in modules if not problems or library is not None for drift in _find_drift(path)]
    drifts, unusable, classes = _compare_classes(declaring)
    problems += [*drifts, *unusable]
    good.append(f"{len(modules)} generated module{'s are' if len(modules) != 1 else ' is'} up to date")
    if classes:
        good.append(f"{classes} event class{'es say' if classes != 1 else ' says'} what contracts/ has")
    counts = {"versions": versions, "modules": len(modules), "classes": classes}
    print_problems_and_exit(problems, form, rules=CHECK_RULES, good=good, bad=bad, **counts)


@contracts.command("lint")
@format_options
def lint_(form: str | None) -> None:
    """Check the style of contracts: names, descriptions, key, sensitive fields, units of numbers.

    It checks the newest version of each contract; older ones cannot change. "lint": ["unit"] in the schema exempts a
    field, or a record with everything in it, from a rule. It exits with 1 if there are problems, each with its rule.
    """
    library, problems = try_load_contracts(Path.cwd() / "any.py")
    found = () if library is None else library.contracts.values()
    if library is not None:
        problems += locate_problems(library.folder, lint(found))
    good = [f"{count_noun(len(found), 'contract')}: no problems"]
    bad = ['"lint": ["RULE"] in a field or a record exempts it from a rule']
    if find_event_modules(Path.cwd()):
        bad.append(
            'in a class decorated with @event, "doc" is the docstring, or the text in Annotated[str, "TEXT"]; '
            'lint=("RULE",) is an argument of @event, and of Avro(...) in Annotated'
        )
    print_problems_and_exit(problems, form, rules=LINT_RULES, good=good, bad=bad, contracts=len(found))


def _find_drift(path: Path) -> list[ContractProblem]:
    """Return the problem that a generated module differs from what the contracts say; an empty list if it does not."""
    found = path.read_text("utf-8", "replace")
    try:
        wanted = generate(load_contracts(path), list_classes(found))
    except (ContractError, SyntaxError) as why:
        first, *lines = str(why).split("\n")
        return [ContractProblem(rule="drift", file=path.as_posix(), says=first, lines=tuple(lines))]
    if found == wanted:
        return []
    lines = list(
        difflib.unified_diff(found.splitlines(), wanted.splitlines(), str(path), "as the contracts say", lineterm="")
    )
    says = "differs from the contracts; run saga contracts generate"
    return [ContractProblem(rule="drift", file=path.as_posix(), says=says, lines=tuple(lines))]


def _find_generated(module: Path | None) -> list[Path]:
    """Return the named module, or all generated modules below the current folder. Raises a usage error if the named
    module was not generated, or if there are none."""
    if module is not None:
        if module.exists() and not is_generated(module.read_text("utf-8", "replace")):
            raise click.UsageError(f"{module} was not generated, so it is not overwritten; name another file")
        return [module]
    found = [path.relative_to(Path.cwd()) for path in find_generated(Path.cwd())]
    if not found:
        raise click.UsageError(
            "there is no generated module below the current folder; name one, with its classes: "
            "saga contracts generate services/payment/events.py OrderPlaced PaymentReserved"
        )
    return found


def _load_library_of(module: Path) -> Library:
    """Load the contracts that apply to a module. Exits with a usage error if there are none, and with code 1 if they
    are invalid."""
    try:
        return load_contracts(module)
    except ContractError as why:
        print_lines(*str(why).split("\n"), err=True)
        raise click.exceptions.Exit(1) from why


def _exit_with(problems: list[str]) -> None:
    """Print the problems and exit with code 1. Do nothing if there are none."""
    for problem in problems:
        print_lines(*problem.split("\n"), err=True)
    if problems:
        raise click.exceptions.Exit(1)


# -------------------------------------------------------------------- contract problems


def print_problems_and_exit(
    problems: Sequence[ContractProblem],
    form: str | None,
    *,
    rules: Mapping[str, str],
    good: Iterable[str],
    bad: Iterable[str] = (),
    **counts: int,
) -> None:
    """Print the problems, or that there are none. If there are any, end the command with exit code 1.

    Args:
        rules: The rules that were checked, each with a sentence about it.
        good: Lines that are printed as text if there are no problems.
        bad: Lines that are printed as text after the problems.
        counts: Numbers of the things that were checked, for JSON.
    """
    match form:
        case "json":
            print_json({**counts, "problems": problems_to_json(problems)})
        case "sarif":
            print_json(problems_to_sarif(problems, rules, version("saga-choreography")))
        case _ if problems:
            for problem in problems:
                print_lines(*str(problem).split("\n"), err=True)
            print_lines(*bad, err=True)
        case _:
            print_lines(*good)
    if problems:
        raise click.exceptions.Exit(1)


def load_contracts(module: Path) -> Library:
    """Load the contracts that apply to a module. Exits with a usage error if there are none. Raises `ContractError` if
    they are invalid."""
    try:
        return find_library(module.parent)
    except DeclarationError as why:
        raise click.UsageError(str(why)) from why


def try_load_contracts(module: Path) -> tuple[Library | None, list[ContractProblem]]:
    """Load the contracts that apply to a module. If they are invalid, return `None` and all problems instead."""
    try:
        return load_contracts(module), []
    except ContractError as why:
        parts = [problem.partition(": ") for problem in why.problems]
        problems = [ContractProblem(rule="contract", file=file, says=says) for file, _, says in parts]
        return None, locate_problems(find_folder(module.parent), problems)


def find_broken_releases(library: Library) -> list[ContractProblem]:
    """Return a problem for each released version that was changed or removed, or for the file that lists the released
    versions."""
    try:
        return check_released(library.by_path, read_released(library.folder) or {})
    except ContractError as why:
        return [ContractProblem(rule="released", file=RELEASED_FILE, says=why.problems[0].partition(": ")[2])]


def locate_problems(folder: Path, problems: Iterable[ContractProblem]) -> list[ContractProblem]:
    """Return the problems of a contracts folder with line numbers added, and with paths relative to the current
    folder."""
    place = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    return [
        replace(problem, file=(place / problem.file).as_posix(), line=_find_line(folder / problem.file, problem.at))
        for problem in problems
    ]


def _find_line(file: Path, at: str) -> int:
    return find_line(file.read_text("utf-8", "replace"), at) if at and file.is_file() else 1


# -------------------------------------------------------------------- contract versions


_ANY = "any.py"


@click.command("new")
@click.argument("place", metavar="TOPIC/NAME")
@click.option("--owner", required=True, help="Name of the service that emits it.")
@click.option(
    "--key", required=True, help="Field with the saga id; its name is the kind of saga, for example order_id."
)
@click.option("--doc", required=True, help="What happened, in a sentence.")
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="NAME:TYPE:DESCRIPTION",
    help=f"A field besides the key, for example quantity:int:How many of it. Types: {KINDS}; append [] for a list, "
    "{} for a map, ? if it may be absent. RECORD.NAME is a field of a nested record.",
)
@click.option("--record", "records", multiple=True, metavar="NAME:DESCRIPTION", help="A nested record, as a type.")
@click.option("--enum", "enums", multiple=True, metavar="NAME=SYMBOL,...:DESCRIPTION", help="An enum, as a type.")
@click.option(
    "--sensitive", multiple=True, metavar="FIELD", help="A sensitive field; FIELD=false says that it is none."
)
@click.option(
    "--default",
    "defaults",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Default of a field: JSON, or the text itself. ENUM=SYMBOL is what readers use for an unknown symbol.",
)
@click.option("--starts", is_flag=True, help="It starts a saga.")
@click.option("--outcome", type=click.Choice(["success", "failure"]), help="It ends a saga.")
@click.option("--produced-externally", is_flag=True, help="Clients and services that do not own it may publish it.")
@click.option("--consumed-externally", is_flag=True, help="Consumers outside this repository read it.")
@click.option("--namespace", help="Namespace of the record.")
@click.option("--subject", help="Field that says whom it is about, for the key of its encryption.")
@click.option("--principal", help="Header in which a foreign sender says who starts the saga.")
@click.option("--id-header", help="Header with the id of messages of a sender that writes no ce_id.")
@click.option("--id-field", help="Field with that id.")
@click.option(
    "--trusted-time", is_flag=True, help="Deadlines count from its own time, even if an external client published it."
)
@click.option("--compatible", type=click.Choice(MODES), help="What the version promises to others.")
def new_contract(place: str, doc: str, key: str, **given: Any) -> None:
    """Write the first version of a contract: contracts/TOPIC/NAME.v1.avsc.

    \b
    saga contracts new orders/OrderShipped --owner order --key order_id --doc "The goods are on their way." \\
        --record "Address:Where the goods go." --field "Address.street:string:Street and number." \\
        --enum "Carrier=POST,OTHER:Who brings them." --default Carrier=OTHER --sensitive Address.street \\
        --field "to:Address:Where they go." --field "by:Carrier:Who brings them." \\
        --field "parcels:int:How many there are." --default parcels=1
    """
    topic, slash, name = place.partition("/")
    if not (topic and slash and name) or "/" in name:
        raise click.UsageError(f"{place!r} is not TOPIC/NAME, for example orders/OrderPlaced")
    texts = FieldTexts(**{name: given.pop(name) for name in FieldTexts._fields})
    try:
        parts = draft_fields(texts)
    except ValueError as why:
        raise click.UsageError(str(why)) from why
    id_ = {"name": key, "type": "string", "doc": f"The {key.removesuffix('_id')}, and with it the saga."}
    attributes = {"namespace": given.pop("namespace"), "doc": doc, "topic": topic, "key": key, **given}
    for attribute, option in (("produced_by", "produced_externally"), ("consumed_by", "consumed_externally")):
        attributes[attribute] = "external" if attributes.pop(option) else None
    schema = make_first_version(name, attributes, [id_, *parts])
    folder, path = _find_folder(Path.cwd()), f"{topic}/{name}.v1"
    problems = lint_version(make_version(schema, path, name, 1))
    if problems:
        raise click.UsageError("\n".join(str(problem) for problem in problems))
    file = folder / f"{path}.avsc"
    if file.exists():
        raise click.UsageError(f"{file} exists already; for its next version: saga contracts bump {name}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(format_schema(schema), "utf-8")
    try:
        Library.load(folder)
    except ContractError:
        file.unlink()
        raise
    print_lines(f"{_to_relative(file)} written", f"next: saga contracts generate MODULE {name}")


@click.command("bump")
@click.argument("name")
def bump_contract(name: str) -> None:
    """Create the next version of a contract, as a copy of its newest version that you then change."""
    library = _load_library_here()
    contract = library.contracts.get(name)
    if contract is None:
        raise click.UsageError(f"there is no contract {name} in {library.folder}")
    newest, known = contract.newest, read_released(library.folder)
    if known is not None and newest.path not in known:
        print_lines(f"{newest.path} is not released: change it directly, no service relies on it yet", err=True)
        raise click.exceptions.Exit(1)
    old = library.folder / f"{newest.path}.avsc"
    file = old.with_name(f"{name}.v{newest.number + 1}.avsc")
    file.write_text(old.read_text("utf-8"), "utf-8")
    print_lines(
        f"{_to_relative(file)} written as a copy of v{newest.number}; change it, and then:",
        f"  saga contracts diff {name}.v{newest.number} {name}.v{newest.number + 1}",
        "  saga contracts check",
        "  saga contracts generate",
    )


@click.command("release")
def release_contracts() -> None:
    """Mark all present versions as released: from now on they may not be changed or removed.

    It writes contracts/released.json with a digest of each version; commit it. Descriptions may still change. From then
    on `saga contracts check` reports changed versions. It exits with 1, and writes nothing, if versions are not
    compatible, or a released one has changed.
    """
    library = _load_library_here()
    problems = [*find_incompatible(library.contracts.values()), *find_broken_releases(library)]
    for problem in locate_problems(library.folder, problems):
        print_lines(*str(problem).split("\n"), err=True)
    if problems:
        raise click.exceptions.Exit(1)
    names = write_released(library.folder, library.by_path.values())
    for path in names:
        print_lines(f"{path} is released")
    print_lines(f"{count_noun(len(library.by_path), 'version')} in {_to_relative(library.folder / RELEASED_FILE)}")


@click.command("diff")
@click.argument("old")
@click.argument("new_", metavar="NEW")
@click.option(
    "--manifests",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the manifests of all services, which list who reads what. Default: manifests/ beside contracts/.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diff_contracts(old: str, new_: str, manifests: Path | None, as_json: bool) -> None:
    """Show what changed between two versions, field by field, and what it breaks, in which direction, for whom.

    OLD and NEW are versions of the contracts here (OrderPlaced.v1), or files (before/OrderPlaced.v1.avsc). The
    affected services come from the manifests: each service that consumes the contract, with the fields that its code
    may read. It exits with 1 if a change breaks what NEW promises about OLD.

    \b
    saga contracts diff OrderPlaced.v1 OrderPlaced.v2
    """
    one, other = _find_version(old), _find_version(new_)
    if one.name != other.name:
        raise click.UsageError(f"{old} and {new_} are different contracts: {one.name} and {other.name}")
    changes = list_changes(one, other)
    promised = [
        way for way in promised_directions(other.compatible) if way == "forward" or one.number not in other.upcasts
    ]
    broken = [f for change in changes for way in promised for f in getattr(change, way) if f.breaks]
    place = manifests or _find_folder(Path.cwd()).parent / FOLDER
    consumers = find_affected(changes, one, other, read_manifests(place).values())
    if as_json:
        document = {
            "old": one.path,
            "new": other.path,
            "compatible": other.compatible,
            "changes": _changes_to_json(changes),
        }
        print_json({**document, "consumers": consumers_to_json(consumers)})
    else:
        print_lines(f"{one.path} -> {other.path} ({other.compatible}): {count_noun(len(changes), 'change')}")
        for change in changes:
            print_lines(f"  {change.path or other.name}  {change.says}", *_describe_effects(change, one, other))
        if one.number in other.upcasts:
            print_lines(f"messages of v{one.number} are read by an upcaster")
        if place.is_dir():
            print_consumers(consumers, _to_relative(place), other)
        print_lines(f"{count_noun(len(broken), 'broken promise')}" if broken else "no promise is broken")
    if broken:
        raise click.exceptions.Exit(1)


def _describe_effects(change: SchemaChange, old: Version, new_: Version) -> list[str]:
    """Describe the effects of a change, one per line: which version cannot read, or misreads, messages of the other
    version."""
    lines = []
    for findings, writer, reader in ((change.backward, old, new_), (change.forward, new_, old)):
        verbs = {"fails": "cannot read", "misread": "misreads", "default": "reads"}
        for finding in findings:
            is_upcast = old.number in new_.upcasts
            advice = finding.remedy if writer is new_ or is_upcast else suggest_remedy(finding, new_, [old.number])
            remedy = f"; {advice}" if advice else ""
            verb = verbs[finding.effect]
            lines.append(
                f"    v{reader.number} {verb} messages of v{writer.number}: {finding.path} {finding.says}{remedy}"
            )
    return lines


def _changes_to_json(changes: tuple[SchemaChange, ...]) -> list[dict[str, Any]]:
    def to_json(finding: CompatibilityFinding) -> dict[str, Any]:
        return {
            "rule": finding.rule,
            "path": finding.path,
            "effect": finding.effect,
            "says": finding.says,
            "remedy": finding.remedy,
        }

    return [
        {
            "kind": change.kind,
            "old": change.old,
            "new": change.new,
            "says": change.says,
            "backward": [to_json(finding) for finding in change.backward],
            "forward": [to_json(finding) for finding in change.forward],
        }
        for change in changes
    ]


def _find_version(given: str) -> Version:
    """Return the version that an argument names. It names a file, or a version in the contracts of the current
    folder."""
    if given.endswith(".avsc"):
        if not Path(given).is_file():
            raise click.UsageError(f"there is no file {given}")
        return read_version(Path(given))
    library = _load_library_here()
    found = [version for path, version in library.by_path.items() if given in (path, path.partition("/")[2])]
    if not found:
        raise click.UsageError(
            f"there is no version {given} in {library.folder}; name a version, for example OrderPlaced.v1, or a file"
        )
    return found[0]


def _load_library_here() -> Library:
    """Load the contracts of the current folder. Exits with code 1 if they are invalid."""
    try:
        return load_contracts(Path.cwd() / _ANY)
    except ContractError as why:
        print_lines(*str(why).split("\n"), err=True)
        raise click.exceptions.Exit(1) from why


def _find_folder(start: Path) -> Path:
    """Return the contracts folder that is nearest above `start`. If there is none yet, return the path of a new one in
    the current folder."""
    try:
        return find_folder(start)
    except DeclarationError:
        return Path.cwd() / "contracts"


def _to_relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


# -------------------------------------------------------------------- contract consumers


def print_consumers(found: Sequence[AffectedConsumer], folder: Path, new: Version) -> None:
    """Print how the change affects each service that consumes the contract."""
    if not found:
        print_lines(f"no manifest in {folder} consumes it")
        return
    print_lines(f"affected services, according to the manifests in {folder}:")
    for each in found:
        version = "unknown versions" if each.version is None else f"v{each.version}"
        fields = "all fields" if isinstance(each.fields, str) else ", ".join(each.fields)
        print_lines(f"  {each.service} (reads {version}: {fields}){'' if each.concerns else ': not concerned'}")
        for concern in each.concerns:
            when = _describe_when(each, new, concern.direction == "forward")
            print_lines(f"    {when}: {concern.says}")


def consumers_to_json(found: Sequence[AffectedConsumer]) -> list[dict[str, Any]]:
    """Convert the affected consumers to JSON values."""
    return [
        {
            "service": each.service,
            "version": each.version,
            "fields": each.fields,
            "concerns": [
                {
                    "direction": concern.direction,
                    "effect": concern.effect,
                    "path": concern.change.path,
                    "says": concern.says,
                }
                for concern in each.concerns
            ],
        }
        for each in found
    ]


def _describe_when(consumer: AffectedConsumer, new: Version, is_forward: bool) -> str:
    if consumer.version is not None and consumer.version >= new.number:
        return "now"
    return f"until it is released with v{new.number}" if is_forward else f"once it is released with v{new.number}"


# -------------------------------------------------------------------- contracts register


@click.command("register")
@click.argument("names", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def register_contracts(names: tuple[str, ...], as_json: bool) -> None:
    """Register contracts in the schema registry at SAGA_REGISTRY.

    It registers contracts of topics whose topic.json has "wire": "registry": all, or those of NAMES. Each version is
    registered, the oldest first, under the subject <topic>-<full name of the record>. It may be called again at any
    time. Register before you deploy the service that emits a new version: services look up ids, and register nothing.

    The registry compares versions by its own rule for the subject; the contracts' rule is checked by `saga contracts
    check`.

    \b
    Exit code 0: all are registered.
    Exit code 1: the registry refused a version; its line says why. Newer versions of that contract were not tried.
    Exit code 2: wrong usage, or the registry cannot be used.
    """
    library = load_contracts(Path.cwd() / "any")
    unknown = [name for name in names if name not in library.contracts]
    if unknown:
        near = get_close_matches(unknown[0], library.contracts, n=1)
        hint = f"; is it {near[0]}?" if near else ""
        raise click.UsageError(f"there is no contract {', '.join(unknown)} in {library.folder}{hint}")
    contracts = find_registrable(library, names)
    found = asyncio.run(register(contracts, Settings.from_environment(), SystemClock())) if contracts else []
    if as_json:
        print_json({"registered": [asdict(each) for each in found]})
    else:
        _print_registrations(found)
    if any(each.id is None for each in found):
        raise click.exceptions.Exit(1)


def _print_registrations(found: list[Registration]) -> None:
    if not found:
        print_lines('nothing to register: no topic of these contracts has "wire": "registry" in its topic.json')
        return
    width = max(len(each.path) for each in found)
    for each in found:
        if each.id is None:
            print_lines(f"refused     {each.path:<{width}}  {each.subject}: {each.refused}")
        else:
            word = "unchanged " if each.was_there else "registered"
            print_lines(f"{word}  {each.path:<{width}}  {each.subject}: id {each.id}")


for command in (new_contract, bump_contract, release_contracts, diff_contracts, register_contracts):
    contracts.add_command(command)
