"""How the code reads: every module says what it is for, none is too long, and none speaks of this machine."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import DOCUMENTS, MODULES, ROOT

LINES_MAX = 400
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
