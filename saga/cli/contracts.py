"""Contracts: check that their versions fit each other, and write event classes from them."""

import difflib
from pathlib import Path

import click

from saga.cli.contract_problems import broken_releases, end_with, folder_of, form_options, shown, usable
from saga.cli.contract_versions import bump, diff, new, release
from saga.cli.contracts_register import register_contracts
from saga.cli.printing import tell
from saga.contracts.checks import CHECK_RULES, REASON, ContractProblem, counted, describe_modes, find_incompatible, lint
from saga.contracts.checks import LINT_RULES as LINT_RULES
from saga.contracts.codegen import find_generated, generate, is_generated, list_classes, why_unknown
from saga.contracts.library import Library
from saga.errors import ContractError

PROMISES = (
    'What a version promises is its "compatible", by default full_transitive: it reads messages of all earlier '
    f"versions, and they read its messages, because {REASON}. docs/contracts.md says which change is safe, in which "
    "order."
)


@click.group()
def contracts() -> None:
    """Check contracts, write event classes, register schemas.

    The contracts are the Avro schemas at contracts/<topic>/<Name>.v<N>.avsc, in the nearest folder contracts/ above a
    module, or where SAGA_CONTRACTS says.
    """


@contracts.command("generate")
@click.argument("module", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.argument("names", nargs=-1)
def generate_(module: Path | None, names: tuple[str, ...]) -> None:
    """Write contracts as event classes: their newest versions, or those that are named.

    \b
    saga contracts generate services/payment/events.py OrderPlaced PaymentReserved
        writes this module with these classes, in this order
    saga contracts generate services/payment/events.py OrderPlaced OrderPlaced.v1
        the same, with version 1 as the class OrderPlacedV1, for an upcaster
    saga contracts generate services/payment/events.py
        writes it anew with the classes it has
    saga contracts generate
        writes every generated module below the current folder anew
    """
    modules = _generated(module)
    if module is not None and not module.exists() and not names:
        raise click.UsageError(f"{module} is not there yet; name its classes")
    if names and module is not None:
        wrong = [why for name in names if (why := why_unknown(_library(module), name)) is not None]
        if wrong:
            raise click.UsageError("; ".join(wrong))
    problems = []
    for path in modules:
        try:
            source = generate(_library(path), names or list_classes(path.read_text("utf-8")))
        except (ContractError, SyntaxError) as why:
            problems.append(f"{path}: {why}")
            continue
        if path.exists() and path.read_text("utf-8") == source:
            tell(f"{path} is as the contracts say")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, "utf-8")
        tell(f"{path} written")
    _end(problems)


@contracts.command()
@click.argument("module", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@form_options
def check(module: Path | None, form: str | None) -> None:
    """Check that versions of contracts fit each other, and that generated modules are what they say.

    A version promises what its file says by "compatible": backward, it reads messages of the version before; forward,
    that one reads its messages; full, both; with _transitive, of all versions before. Without a word it is
    full_transitive: topics, queues and archives keep messages of all versions, and services are deployed, and rolled
    back, independently of each other. Versions that it names in "upcasts" are read by upcasters.

    Without a module, the contracts of the current folder and every generated module below it. Exits with 1 and what is
    wrong if a version breaks its promise, if a module is not what `saga contracts generate` would write, or if
    contracts cannot be used, or a version that is released (`saga contracts release`) has changed.
    """
    problems: list[ContractProblem] = []
    if module is not None:
        modules = _generated(module)
        library = None
    else:
        modules = [path.relative_to(Path.cwd()) for path in find_generated(Path.cwd())]
        library, problems = usable(Path.cwd() / "any.py")
    good, bad, versions = [], [], 0
    if library is not None:
        found, versions = library.contracts.values(), len(library.by_path)
        breaks = find_incompatible(found)
        problems += shown(library.folder, [*breaks, *broken_releases(library)])
        good += [
            f"{counted(len(found), 'contract')} in {counted(versions, 'version')}: all fit each other",
            *describe_modes(found),
        ]
        bad += [PROMISES] if breaks else []
    # A folder that cannot be read is one problem, not one in each of its modules.
    problems += [drift for path in modules if not problems or library is not None for drift in _drift(path)]
    good.append(f"{len(modules)} generated module{'s are' if len(modules) != 1 else ' is'} as the contracts say")
    end_with(problems, form, rules=CHECK_RULES, good=good, bad=bad, versions=versions, modules=len(modules))


@contracts.command("lint")
@form_options
def lint_(form: str | None) -> None:
    """Check the style of contracts: names, descriptions, key, sensitive fields, units of numbers.

    Looks at the newest version of each contract; older ones are as they are. A field or a record, with all in it, is
    left out of a rule by "lint": ["unit"] in the schema. Exits with 1 if something is found, each with its rule.
    """
    library, problems = usable(Path.cwd() / "any.py")
    found = () if library is None else library.contracts.values()
    if library is not None:
        problems += shown(library.folder, lint(found))
    good = [f"{counted(len(found), 'contract')}: nothing to say"]
    bad = ['a field or a record is left out of a rule by "lint": ["RULE"] in it']
    end_with(problems, form, rules=LINT_RULES, good=good, bad=bad, contracts=len(found))


for command in (new, bump, release, diff, register_contracts):
    contracts.add_command(command)


def _drift(path: Path) -> list[ContractProblem]:
    """Difference of a generated module from what the contracts say, if there is one."""
    found = path.read_text("utf-8", "replace")
    try:
        wanted = generate(folder_of(path), list_classes(found))
    except (ContractError, SyntaxError) as why:
        first, *lines = str(why).split("\n")
        return [ContractProblem(rule="drift", file=path.as_posix(), says=first, lines=tuple(lines))]
    if found == wanted:
        return []
    lines = list(
        difflib.unified_diff(found.splitlines(), wanted.splitlines(), str(path), "as the contracts say", lineterm="")
    )
    says = "is not what the contracts say; run saga contracts generate"
    return [ContractProblem(rule="drift", file=path.as_posix(), says=says, lines=tuple(lines))]


def _generated(module: Path | None) -> list[Path]:
    """Modules to work on: the one that is named, or all below the current folder."""
    if module is not None:
        if module.exists() and not is_generated(module.read_text("utf-8", "replace")):
            raise click.UsageError(f"{module} was not generated, and is not overwritten; name another file")
        return [module]
    found = [path.relative_to(Path.cwd()) for path in find_generated(Path.cwd())]
    if not found:
        raise click.UsageError(
            "there is no generated module below the current folder; name one, with its classes: "
            "saga contracts generate services/payment/events.py OrderPlaced PaymentReserved"
        )
    return found


def _library(module: Path) -> Library:
    """Contracts of a module; without any the command makes no sense, with broken ones the answer is no."""
    try:
        return folder_of(module)
    except ContractError as why:
        tell(*str(why).split("\n"), err=True)
        raise click.exceptions.Exit(1) from why


def _end(problems: list[str]) -> None:
    """Print what is wrong, if anything, and end with 1."""
    for problem in problems:
        tell(*problem.split("\n"), err=True)
    if problems:
        raise click.exceptions.Exit(1)
