"""Rules for modules: every one says what it is for, none is too long, and none speaks of this machine."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import DOCUMENTS, MODULES, ROOT

LINES_MAX, FUNCTION_LINES_MAX, ARGUMENTS_MAX = 400, 70, 6
_MACHINE = re.compile(r"(?<![\w.:/])/(?:home|root|work|Users|tmp|opt|mnt)/")
_STARTED = re.compile(r'"-m", "(saga(?:\.\w+)+)"')
STARTED = sorted({name for module in MODULES for name in _STARTED.findall(module.read_text("utf-8"))})
modules = pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())


def first_sentence(docstring: str) -> str:
    """Up to the first full stop that ends a sentence, or all of the first paragraph."""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph)[0]


@modules
def test_a_module_says_in_its_first_sentence_what_it_is_for(module: Path) -> None:
    docstring = ast.get_docstring(ast.parse(module.read_text("utf-8")))
    assert docstring, "it has no docstring"
    sentence = first_sentence(docstring)
    assert sentence.endswith("."), f"{sentence!r} does not end with a full stop"
    assert len(sentence.split()) >= 3, f"{sentence!r} says too little"


@modules
def test_a_module_is_no_longer_than_400_lines(module: Path) -> None:
    assert len(module.read_text("utf-8").splitlines()) <= LINES_MAX


def oversized(text: str) -> list[str]:
    """Functions with more lines or arguments than are allowed, and no comment behind their `def` that says why."""
    lines, found = text.splitlines(), []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or "  # " in lines[node.lineno - 1]:
            continue
        given = node.args
        names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        count = len(names) - (names[:1] in (["self"], ["cls"])) + len([a for a in (given.vararg, given.kwarg) if a])
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if count > ARGUMENTS_MAX or length > FUNCTION_LINES_MAX:
            found.append(f"{node.name}: {count} arguments, {length} lines")
    return found


@modules
def test_a_function_is_short_and_takes_few_arguments_or_says_why_not(module: Path) -> None:
    assert oversized(module.read_text("utf-8")) == []


def test_a_function_that_is_too_large_is_found_unless_a_reason_stands_beside_it() -> None:
    six = "a, b, c, *d, e, **f"
    assert oversized(f"class A:\n    def six(self, {six}): ...") == []
    assert oversized(f"class A:\n    def seven(self, x, {six}): ...") == ["seven: 7 arguments, 1 lines"]
    assert oversized(f"def seven(x, {six}): ...") == ["seven: 7 arguments, 1 lines"]
    assert oversized(f"async def seven(  # for a reason\n    x, {six}\n): ...") == []
    assert oversized("def long():\n" + "    x = 1\n" * 69) == []
    assert oversized("def long():\n" + "    x = 1\n" * 70) == ["long: 0 arguments, 71 lines"]


@pytest.mark.parametrize("file", [*MODULES, *DOCUMENTS], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_file_names_a_folder_of_one_machine(file: Path) -> None:
    assert not _MACHINE.search(file.read_text("utf-8"))


def test_there_are_modules_to_look_at() -> None:
    assert len(MODULES) > 40


@pytest.mark.parametrize("name", STARTED)
def test_what_the_toolkit_starts_as_a_process_says_nothing_of_being_there_twice(name: str) -> None:
    started = subprocess.run(
        [sys.executable, "-m", name], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert "RuntimeWarning" not in started.stderr


def test_there_are_processes_to_look_at() -> None:
    assert {"saga.store.couchbase.lister", "saga.testing.processes.worker"} <= set(STARTED)
