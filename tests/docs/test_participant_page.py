"""The guide of a whole service does what it says, in as many lines as it says."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, blocks
from tests.docs.test_tutorial import Shell, first_missing

PAGE = blocks((ROOT / "docs/guides/participant.md").read_text("utf-8"))
FILES = {block.title: block.body for block in PAGE if block.title is not None}
CONTRACT, LOGIC = "shop/payment/events.py", "shop/payment/__init__.py"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path, Path(sys.executable).parent)
    try:
        yield shell
    finally:
        shell.end()


def lines_of(source: str) -> int:
    """Lines of code without imports, descriptions and empty lines."""
    tree = ast.parse(source)
    left_out: set[int] = set()
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            assert isinstance(node, ast.stmt)
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code = (number for number, line in enumerate(source.splitlines(), 1) if line.strip())
    return len([number for number in code if number not in left_out])


def test_a_line_is_one_of_code() -> None:
    assert lines_of('"""Text.\n\nMore."""\nfrom a import (\n    b,\n)\n\nx = [\n    1,\n]\n') == 3


def test_a_participant_with_a_compensation_and_a_deadline_is_15_lines_of_logic_and_10_of_contract() -> None:
    assert lines_of(FILES[CONTRACT]) <= 10
    assert lines_of(FILES[LOGIC]) <= 15
    assert all(part in FILES[LOGIC] for part in ("@payment.handler", "@payment.compensation(", "@payment.deadline("))


def test_the_files_and_commands_of_the_page_do_what_it_says(tmp_path: Path, shell: Shell) -> None:
    for title, body in FILES.items():
        file = tmp_path / title
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(body, "utf-8")
    printed = ""
    for block in PAGE:
        if block.language == "sh":
            printed = shell.call(block.body)
        elif block.language == "text":
            assert (missing := first_missing(block.body, printed)) is None, f"{missing!r} is not in:\n{printed}"
    assert "3 passed" in printed
