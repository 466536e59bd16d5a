"""Rules for modules: each has a first sentence, functions are short, and nothing names this machine."""

import ast
import re
import subprocess
import sys

import pytest

from tests.docs.markdown import DOCUMENTS, MODULES, ROOT, wrong_in

FUNCTION_LINES_MAX, ARGUMENTS_MAX = 70, 6
_MACHINE = re.compile(r"(?<![\w.:/])/(?:home|root|work|Users|tmp|opt|mnt)/")
_STARTED = re.compile(r'"-m", "(saga(?:\.\w+)+)"')
STARTED = sorted({name for module in MODULES for name in _STARTED.findall(module.read_text("utf-8"))})


def first_sentence(docstring: str) -> str:
    """Up to the first full stop that ends a sentence, or all of the first paragraph."""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph)[0]


def unsaid(text: str) -> str:
    """What is wrong with the first sentence of a module; empty if nothing is."""
    docstring = ast.get_docstring(ast.parse(text))
    if not docstring:
        return "it has no docstring"
    sentence = first_sentence(docstring)
    if not sentence.endswith("."):
        return f"{sentence!r} does not end with a full stop"
    return "" if len(sentence.split()) >= 3 else f"{sentence!r} says too little"


def test_a_module_says_in_its_first_sentence_what_it_is_for() -> None:
    assert wrong_in(MODULES, unsaid) == {}


def test_a_first_sentence_that_is_missing_open_or_too_short_is_found() -> None:
    assert unsaid("import os\n") == "it has no docstring"
    assert unsaid('"""Names of all things"""\n') == "'Names of all things' does not end with a full stop"
    assert unsaid('"""Some names."""\n') == "'Some names.' says too little"
    assert unsaid('"""Names of all things. And more"""\n') == ""


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


def test_a_function_is_short_and_takes_few_arguments_or_says_why_not() -> None:
    assert wrong_in(MODULES, oversized) == {}


def test_a_function_that_is_too_large_is_found_unless_a_reason_stands_beside_it() -> None:
    six = "a, b, c, *d, e, **f"
    assert oversized(f"class A:\n    def six(self, {six}): ...") == []
    assert oversized(f"class A:\n    def seven(self, x, {six}): ...") == ["seven: 7 arguments, 1 lines"]
    assert oversized(f"def seven(x, {six}): ...") == ["seven: 7 arguments, 1 lines"]
    assert oversized(f"async def seven(  # for a reason\n    x, {six}\n): ...") == []
    assert oversized("def long():\n" + "    x = 1\n" * 69) == []
    assert oversized("def long():\n" + "    x = 1\n" * 70) == ["long: 0 arguments, 71 lines"]


def test_no_file_names_a_folder_of_one_machine() -> None:
    assert wrong_in([*MODULES, *DOCUMENTS], _MACHINE.findall) == {}


def test_a_folder_of_one_machine_is_found() -> None:
    assert _MACHINE.findall("see " + "/ho" + "me/ada and /etc") == ["/ho" + "me/"]


def test_there_are_modules_to_look_at() -> None:
    assert len(MODULES) > 40


def test_what_is_wrong_is_told_of_each_file_in_which_it_is_and_of_no_other() -> None:
    one, other, third = MODULES[:3]
    wanted = {one.read_text("utf-8"): "too old", third.read_text("utf-8"): ["line 1"]}
    told = wrong_in(MODULES[:3], lambda text: wanted.get(text, []))
    assert told == {one.relative_to(ROOT).as_posix(): "too old", third.relative_to(ROOT).as_posix(): ["line 1"]}
    assert other.relative_to(ROOT).as_posix() not in told


@pytest.mark.parametrize("name", STARTED)
def test_what_the_toolkit_starts_as_a_process_says_nothing_of_being_there_twice(name: str) -> None:
    started = subprocess.run(
        [sys.executable, "-m", name], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert "RuntimeWarning" not in started.stderr


def test_there_are_processes_to_look_at() -> None:
    assert {"saga.store.couchbase.lister", "saga.testing.processes.worker"} <= set(STARTED)
