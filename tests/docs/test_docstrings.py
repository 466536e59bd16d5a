"""Docstrings open with a noun or a verb that a newcomer understands, and give the reason after it."""

import ast
import re

from tests.docs.markdown import ROOT, wrong_in

FOLDERS = ("saga", "services", "verification", "benchmarks")
RIDDLES = {
    *("what", "whether", "who", "whom", "whose", "as", "of"),
    *("where", "which", "how", "that", "those", "when", "if"),
}
"""Words that open a docstring which has to be read to its end before it says anything."""
_WORD = re.compile(r"[^\W\d_]+")
HELD = sorted(module for folder in FOLDERS for module in (ROOT / folder).rglob("*.py"))


def openings(text: str) -> list[str]:
    """Docstrings that open with a riddle: of modules, classes and functions, and those below a name or a field."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        said = node.value.value
        if not isinstance(said, str):
            continue
        first = _WORD.search(said)
        if first is None or first[0].lower() in RIDDLES:
            found.append(f"line {node.lineno}: {' '.join(said.split())[:80]}")
    return found


def test_a_docstring_opens_with_a_noun_or_a_verb() -> None:
    assert wrong_in(HELD, openings) == {}


def test_there_are_modules_to_look_at() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in HELD} == set(FOLDERS)


def test_riddles_are_found_wherever_a_docstring_can_be() -> None:
    text = '''"""How it is read."""
NAME = 1
"""What it is called."""


class Turn:
    """*Where* a turn stands
    between two writes."""

    undo: bool
    """Whether it is undone."""

    async def run(self):
        """When it's
        over."""
        """..."""
'''
    assert openings(text) == [
        "line 1: How it is read.",
        "line 3: What it is called.",
        "line 7: *Where* a turn stands between two writes.",
        "line 11: Whether it is undone.",
        "line 14: When it's over.",
        "line 16: ...",
    ]


def test_a_noun_a_verb_and_other_strings_are_let_be() -> None:
    text = '''"""A turn, which is how a message is handled."""
NAME = "What else"
"""True if a turn, whether or not it ends, was asked for."""
print("Who is it?")


def offset():
    """Offset of the message: whatever is before it is handled."""
    return f"If {NAME}"
'''
    assert openings(text) == []
