"""Rules for modules: each says what it is for, functions are short and take few parameters, no path of one machine."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.docs.markdown import DOCUMENTS, MODULES, ROOT, wrong_in

PARAMETERS_MAX, LINES_MAX = 6, 70
SOURCES = [*MODULES, *sorted(path for folder in ("services", "benchmarks") for path in (ROOT / folder).rglob("*.py"))]
_MACHINE = re.compile(r"(?<![\w.:/])/(?:home|root|work|Users|tmp|opt|mnt)/")
_STARTED = re.compile(r'"-m", "(saga(?:\.\w+)+)"')
STARTED = sorted({name for module in MODULES for name in _STARTED.findall(module.read_text("utf-8"))})

# The two lists below only shrink: group parameters into a value, split a function, then lower or remove its entry.
# `Service.resource` and `trial` keep theirs: each parameter is an option that users of the package write by its name.
MORE_PARAMETERS = {
    "Service.handler": 7,
    "Service.resource": 7,
    "StateSpace.__init__": 8,
    "_declared": 8,
    "command": 8,
    "_row": 7,
    "kafka": 7,
    "message": 10,
    "rebuild": 7,
    "trial": 7,
}
"""Functions that take more parameters than `PARAMETERS_MAX`, with how many. Commands take one for each option."""

MORE_LINES = {
    "answers": 90,
    "deadlines": 127,
    "discards": 84,
    "fan_ins": 114,
    "parked": 147,
    "parked_and_undone": 92,
    "paused": 86,
    "piles": 81,
    "releases": 73,
    "replays": 130,
    "scenarios": 98,
    "versions": 74,
}
"""Functions of more lines than `LINES_MAX`, with how many. Those of `verification` are lists of scenarios."""


def first_sentence(text: str) -> str:
    """Return the first sentence of a module's docstring, or an empty string if it has none."""
    paragraph = " ".join((ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0].split())
    found = re.match(r".+?\.(?=\s|$)", paragraph)
    return found[0] if found else ""


def test_every_module_has_a_first_sentence() -> None:
    assert wrong_in(MODULES, lambda text: not first_sentence(text)) == {}


def test_a_module_without_a_first_sentence_is_found() -> None:
    assert first_sentence("import os\n") == ""
    assert first_sentence('"""Names of a.b"""\n') == ""
    assert first_sentence('"""Read the names. And more"""\n') == "Read the names."


def functions(node: ast.AST, owner: str = "") -> Iterator[tuple[str, int, int]]:
    """Yield each function below a node: its name, with that of its class, its parameters and its lines."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = child.args
            names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
            count = len(names) - (names[:1] in (["self"], ["cls"]))
            count += (arguments.vararg is not None) + (arguments.kwarg is not None)
            yield owner + child.name, count, (child.end_lineno or child.lineno) - child.lineno + 1
        yield from functions(child, f"{child.name}." if isinstance(child, ast.ClassDef) else owner)


def oversized(text: str) -> list[str]:
    """Functions that are larger than allowed, or than the lists above say."""
    return [
        f"{name}: {parameters} parameters, {lines} lines"
        for name, parameters, lines in functions(ast.parse(text))
        if parameters > MORE_PARAMETERS.get(name, PARAMETERS_MAX) or lines > MORE_LINES.get(name, LINES_MAX)
    ]


def test_functions_take_few_parameters_and_are_short() -> None:
    assert wrong_in(SOURCES, oversized) == {}


def test_a_function_that_is_small_enough_by_now_is_taken_off_the_lists() -> None:
    found = [each for path in SOURCES for each in functions(ast.parse(path.read_text("utf-8")))]
    assert set(MORE_PARAMETERS) - {name for name, parameters, _ in found if parameters > PARAMETERS_MAX} == set()
    assert set(MORE_LINES) - {name for name, _, lines in found if lines > LINES_MAX} == set()


def test_a_function_that_is_too_large_is_found() -> None:
    six = "a, b, c, *d, e, **f"
    assert oversized(f"class A:\n    def six(self, {six}): ...") == []
    assert oversized(f"class A:\n    def seven(self, x, {six}): ...") == ["A.seven: 7 parameters, 1 lines"]
    assert oversized(f"def seven(x, {six}): ...") == ["seven: 7 parameters, 1 lines"]
    assert oversized(f"async def seven(  # for a reason\n    x, {six}\n): ...") == ["seven: 7 parameters, 3 lines"]
    assert oversized(f"def outer():\n    if True:\n        def seven(x, {six}): ...") == [
        "seven: 7 parameters, 1 lines"
    ]
    assert oversized("def long():\n" + "    x = 1\n" * 69) == []
    assert oversized("def long():\n" + "    x = 1\n" * 70) == ["long: 0 parameters, 71 lines"]


def test_no_file_contains_a_path_of_one_machine() -> None:
    assert wrong_in([*MODULES, *DOCUMENTS], _MACHINE.findall) == {}


def test_a_path_of_one_machine_is_found() -> None:
    assert _MACHINE.findall("see " + "/ho" + "me/ada and /etc") == ["/ho" + "me/"]


def test_the_modules_are_found() -> None:
    assert len(MODULES) > 40


def test_a_fault_is_reported_for_the_files_that_have_it_and_for_no_other() -> None:
    one, other, third = MODULES[:3]
    wanted = {one.read_text("utf-8"): "too old", third.read_text("utf-8"): ["line 1"]}
    found = wrong_in(MODULES[:3], lambda text: wanted.get(text, []))
    assert found == {one.relative_to(ROOT).as_posix(): "too old", third.relative_to(ROOT).as_posix(): ["line 1"]}
    assert other.relative_to(ROOT).as_posix() not in found


@pytest.mark.parametrize("name", STARTED)
def test_a_module_that_is_started_as_a_process_is_not_imported_before(name: str) -> None:
    started = subprocess.run(
        [sys.executable, "-m", name], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert "RuntimeWarning" not in started.stderr


def test_the_started_modules_are_found() -> None:
    assert "saga.testing.processes.worker" in STARTED
