"""Printing of what is wrong with contracts, in each form that the commands have, and the end that it means."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import click

from saga.cli.printing import tell, tell_json
from saga.contracts.checks import (
    RELEASED_FILE,
    ContractProblem,
    check_released,
    find_line,
    problems_to_json,
    problems_to_sarif,
    read_released,
)
from saga.contracts.library import Library, find_folder, find_library
from saga.errors import ContractError, DeclarationError

F = TypeVar("F", bound=Callable[..., Any])


def form_options(command: F) -> F:
    """Give a command the flags `--json` and `--sarif`."""
    sarif = click.option("--sarif", "form", flag_value="sarif", help="Print SARIF 2.1.0, for what shows it in reviews.")
    return click.option("--json", "form", flag_value="json", help="Print JSON.")(sarif(command))


def end_with(
    problems: Sequence[ContractProblem],
    form: str | None,
    *,
    rules: Mapping[str, str],
    good: Iterable[str],
    bad: Iterable[str] = (),
    **counts: int,
) -> None:
    """Print problems, or that there are none, and end: with 1 if there are any. `rules`: those that were applied, each
    with a sentence; `good` and `bad`: lines for people, if there are no problems, and behind those there are; `counts`:
    what was looked at, for JSON."""
    match form:
        case "json":
            tell_json({**counts, "problems": problems_to_json(problems)})
        case "sarif":
            tell_json(problems_to_sarif(problems, rules, version("saga-choreography")))
        case _ if problems:
            for problem in problems:
                tell(*str(problem).split("\n"), err=True)
            tell(*bad, err=True)
        case _:
            tell(*good)
    if problems:
        raise click.exceptions.Exit(1)


def folder_of(module: Path) -> Library:
    """Contracts of a module. Without any the command makes no sense; raises `ContractError` if they cannot be used."""
    try:
        return find_library(module.parent)
    except DeclarationError as why:
        raise click.UsageError(str(why)) from why


def usable(module: Path) -> tuple[Library | None, list[ContractProblem]]:
    """Contracts of a module, or all that keeps them from being used."""
    try:
        return folder_of(module), []
    except ContractError as why:
        parts = [problem.partition(": ") for problem in why.problems]
        problems = [ContractProblem(rule="contract", file=file, says=says) for file, _, says in parts]
        return None, shown(find_folder(module.parent), problems)


def broken_releases(library: Library) -> list[ContractProblem]:
    """Problems of released versions that have changed, or are gone; or of the file that says which are released."""
    try:
        return check_released(library.by_path, read_released(library.folder) or {})
    except ContractError as why:
        return [ContractProblem(rule="released", file=RELEASED_FILE, says=why.problems[0].partition(": ")[2])]


def shown(folder: Path, problems: Iterable[ContractProblem]) -> list[ContractProblem]:
    """Problems in a folder of contracts, with the paths of files as they are from here, and with lines."""
    place = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    return [
        replace(problem, file=(place / problem.file).as_posix(), line=_line(folder / problem.file, problem.at))
        for problem in problems
    ]


def _line(file: Path, at: str) -> int:
    return find_line(file.read_text("utf-8", "replace"), at) if at and file.is_file() else 1
