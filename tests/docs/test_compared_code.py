"""The page with the same participant in four libraries: lines are counted as the page says, and ours runs."""

import ast
import asyncio
import importlib
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest

from saga.testing import trial
from tests.docs.markdown import ROOT, blocks
from tests.docs.test_smallest_service import call, environment

__all__ = ["environment"]
PAGE = (ROOT / "docs/compare/code.md").read_text("utf-8")
MESSAGE_BASES = {"Event", "BaseModel"}
FROM_OUTSIDE = {"OrderPlaced", "Order"}


def count_lines(sources: list[str]) -> tuple[int, int]:
    """Lines of messages and of logic, without imports, empty lines, and the message that comes from outside."""
    messages = logic = 0
    for source in sources:
        lines = source.splitlines()
        for statement in ast.parse(source).body:
            begin = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
            count = sum(1 for line in lines[begin - 1 : statement.end_lineno] if line.strip())
            bases = {ast.unparse(base) for base in getattr(statement, "bases", [])}
            if isinstance(statement, ast.Import | ast.ImportFrom | ast.With) or (
                isinstance(statement, ast.ClassDef) and statement.name in FROM_OUTSIDE
            ):
                continue
            messages, logic = (messages + count, logic) if bases & MESSAGE_BASES else (messages, logic + count)
    return messages, logic


def test_the_table_has_the_number_of_lines_of_each_section() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(#\w+\) \| (\d+) \| (\d+) \|", PAGE, re.MULTILINE)
    told = {name: (int(messages), int(logic)) for name, messages, logic in rows}
    sections = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
    counted = {name: count_lines([b.body for b in blocks(text)]) for name, text in sections.items()}
    assert told == counted
    assert counted["saga"][0] <= 10
    assert counted["saga"][1] <= 15


@pytest.fixture
def modules(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, ModuleType]]:
    """The modules of the page, with their contracts."""
    files = {block.title: block.body for block in blocks(PAGE) if block.title is not None}
    for name, body in files.items():
        (tmp_path / name).write_text(body, "utf-8")
    assert "3 event classes" in call("saga contracts write", tmp_path, environment)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = [name.removesuffix(".py") for name in files]
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        del sys.modules[name]


def test_our_participant_undoes_what_it_did_and_ends_what_is_late(modules: dict[str, ModuleType]) -> None:
    events, payment = modules["events"], modules["payment"].payment
    placed, cancelled = events.OrderPlaced(order_id="1", card="card"), events.OrderCancelled(order_id="1")
    late, early, repeated = modules["bank"].Bank(), modules["bank"].Bank(), modules["bank"].Bank()
    seen = asyncio.run(trial(payment, placed, timedelta(minutes=15), use=[late]))
    assert [type(event) for event in seen.emitted] == [events.PaymentTaken, events.OrderCancelled]
    assert (len(late.charges), len(late.refunds)) == (1, 1)
    asyncio.run(trial(payment, cancelled, placed, timedelta(minutes=15), use=[early]))
    assert (early.charges, early.refunds) == ({}, {})
    asyncio.run(trial(payment, placed, placed, cancelled, cancelled, use=[repeated]))
    assert (len(repeated.charges), len(repeated.refunds)) == (1, 1)
