"""Finds the commands of `saga` in the documents, and what the command line does not accept of them."""

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import dropwhile, groupby
from pathlib import Path

import click
import pytest

from saga.cli.main import main

_SCRIPT = re.compile(r"^ *```(sh|console)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
CONTAINERS = ("client", "operator", "topics")
"""Containers whose entry point is `saga`, so that `docker compose run` leaves the word out."""
_ENDS = frozenset("|&();<>")
_NO_PROSE = re.compile(r"^ *```.*?^ *```$|^\|.*?$", re.MULTILINE | re.DOTALL)


def commands_in_scripts(text: str) -> list[str]:
    """Return the commands in the scripts of a page. What a console prints is left out."""
    lines = [
        line.removeprefix("$ ")
        for language, script in _SCRIPT.findall(text)
        for line in script.replace("\\\n", " ").splitlines()
        if language == "sh" or line.startswith("$ ")
    ]
    return [shlex.join(["saga", *rest]) for line in lines for words in _split(line) for rest in _after_saga(words)]


def _after_saga(words: list[str]) -> list[list[str]]:
    """Return what is behind the word `saga`, if this is such a command, and what a container with `saga` as its entry
    point gets."""
    if words[:1] == ["saga"]:
        return [words[1:]]
    if words[:3] == ["docker", "compose", "run"]:
        return [words[place + 1 :] for place, word in enumerate(words) if word in CONTAINERS]
    return []


def _split(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a line of the shell, without the variables before it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    for is_end, words in groupby(lexer, lambda word: set(word) <= _ENDS):
        if not is_end:
            yield list(dropwhile(lambda word: re.match(r"[A-Z_]+=", word), words))


def commands_in_prose(text: str) -> list[str]:
    """Return the commands in the sentences of a page. Tables name commands without their arguments, and are left
    out."""
    return [" ".join(span.split()) for span in re.findall(r"`(saga [^`]*)`", _NO_PROSE.sub("", text))]


def refused(commands: Sequence[str]) -> list[str]:
    """Return the commands that the command line does not accept, each with the reason."""
    problems: list[str] = []
    for command in commands:
        try:
            taken, words = _resolve(command)
            with _any_path():
                taken.make_context("saga", words)
        except click.exceptions.Exit:
            pass  # --help
        except click.ClickException as why:
            problems.append(f"{command}: {why.format_message()}")
    return problems


def unknown_options(commands: Sequence[str]) -> Iterator[str]:
    """Yield the commands that do not exist, or name an option that they do not have; arguments may be missing."""
    for command in commands:
        try:
            taken, words = _resolve(command)
        except click.ClickException as why:
            yield f"{command}: {why.format_message()}"
            continue
        known = {name for parameter in taken.params for name in (*parameter.opts, *parameter.secondary_opts)}
        for word in words:
            if word.startswith("--") and word.partition("=")[0] not in {*known, "--help"}:
                yield f"{command}: no option {word}"


@contextmanager
def _any_path() -> Iterator[None]:
    """Accept files and folders that are the reader's, and not here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(click.Path, "convert", lambda _, value, *__: Path(value))
        yield


def _resolve(command: str) -> tuple[click.Command, list[str]]:
    """Return the command of the command line, and its arguments. A group of commands may stand alone."""
    taken: click.Command = main
    _, *words = shlex.split(command)
    while isinstance(taken, click.Group) and words and not words[0].startswith("-"):
        _, found, words = taken.resolve_command(click.Context(taken), words)
        assert found is not None
        taken = found
    return taken, words
