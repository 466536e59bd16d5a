"""Event classes from contracts: write them, or see that they are what the contracts say."""

import difflib
from pathlib import Path

import click

from saga.cli.printing import tell
from saga.contracts.codegen import classes_in, generate, generated_below, is_generated
from saga.contracts.library import Library, find
from saga.errors import ContractError, DeclarationError


@click.group()
def contracts() -> None:
    """Event classes from contracts: write them, or check them.

    The contracts are the Avro schemas at contracts/<topic>/<Name>.v<N>.avsc, in the nearest folder contracts/ above a
    module, or where SAGA_CONTRACTS says.
    """


@contracts.command("generate")
@click.argument("module", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.argument("names", nargs=-1)
def generate_(module: Path | None, names: tuple[str, ...]) -> None:
    """Write the newest version of contracts as event classes.

    \b
    saga contracts generate services/payment/events.py OrderPlaced PaymentReserved
        writes this module with these classes, in this order
    saga contracts generate services/payment/events.py
        writes it anew with the classes it has
    saga contracts generate
        writes every generated module below the current folder anew
    """
    modules = _generated(module)
    if module is not None and not module.exists() and not names:
        raise click.UsageError(f"{module} is not there yet; name its classes")
    if names and module is not None:
        unknown = [name for name in names if name not in _library(module).contracts]
        if unknown:
            raise click.UsageError(f"there is no contract {', '.join(unknown)} in {_library(module).folder}")
    problems = []
    for path in modules:
        try:
            source = generate(_library(path), names or classes_in(path.read_text("utf-8")))
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
def check(module: Path | None) -> None:
    """Compare generated modules with the contracts.

    Without a module, the contracts of the current folder and every generated module below it. Exits with 1 and the
    differences if a module is not what `saga contracts generate` would write, or if contracts cannot be used.
    """
    if module is None:
        _library(Path.cwd() / "any")
    problems = []
    modules = _generated(module)
    for path in modules:
        found = path.read_text("utf-8", "replace")
        try:
            wanted = generate(_library(path), classes_in(found))
        except (ContractError, SyntaxError) as why:
            problems.append(f"{path}: {why}")
            continue
        if found != wanted:
            lines = difflib.unified_diff(
                found.splitlines(), wanted.splitlines(), str(path), "as the contracts say", lineterm=""
            )
            problems.append("\n".join([f"{path} is not what the contracts say; run saga contracts generate", *lines]))
    _end(problems)
    tell(f"{len(modules)} generated module{'s are' if len(modules) != 1 else ' is'} as the contracts say")


def _generated(module: Path | None) -> list[Path]:
    """Modules to work on: the one that is named, or all below the current folder."""
    if module is not None:
        if module.exists() and not is_generated(module.read_text("utf-8", "replace")):
            raise click.UsageError(f"{module} was not generated, and is not overwritten; name another file")
        return [module]
    found = [path.relative_to(Path.cwd()) for path in generated_below(Path.cwd())]
    if not found:
        raise click.UsageError(
            "there is no generated module below the current folder; name one, with its classes: "
            "saga contracts generate services/payment/events.py OrderPlaced PaymentReserved"
        )
    return found


def _library(module: Path) -> Library:
    """Contracts of a module; without any the command makes no sense, with broken ones the answer is no."""
    try:
        return find(module.parent)
    except DeclarationError as why:
        raise click.UsageError(str(why)) from why
    except ContractError as why:
        tell(*str(why).split("\n"), err=True)
        raise click.exceptions.Exit(1) from why


def _end(problems: list[str]) -> None:
    """Print what is wrong, if anything, and end with 1."""
    for problem in problems:
        tell(*problem.split("\n"), err=True)
    if problems:
        raise click.exceptions.Exit(1)
