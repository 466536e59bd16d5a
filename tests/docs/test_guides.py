"""The guides about services are run: their Python blocks are a module each, and what they assert holds."""

import importlib
import inspect
import re
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, fields
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest

from saga import Change, Later, Saga, Service
from saga.declarations.annotations import ReturnShape, parse_shape
from saga.declarations.changes import is_change
from saga.declarations.values import Parameter
from services.intake import OrderDocument
from services.order import events as of_order
from services.payment import events as of_payment
from services.payment.bank import Bank
from tests.docs.markdown import ROOT, blocks

GUIDES = ROOT / "docs/guides"
RUN = ("handlers", "compensation", "fan-in", "deadlines", "long-jobs", "external-calls", "documents", "change-streams")
"""Guides that are modules: each is imported, from its first block to its last."""
PAGES = sorted(page for page in GUIDES.rglob("*.md") if page != GUIDES / "README.md")
LINES_BEFORE_MAX = 5
PAGE = (GUIDES / "handlers.md").read_text("utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("guide_")]:
        del sys.modules[name]


def import_guide(name: str, folder: Path) -> ModuleType:
    """Write the Python blocks of a guide into a module, and import it."""
    text = (GUIDES / f"{name}.md").read_text("utf-8")
    code = "\n\n".join(block.body for block in blocks(text) if block.language == "python")
    module = f"guide_{name.replace('-', '_')}"
    (folder / f"{module}.py").write_text(code, "utf-8")
    importlib.invalidate_caches()
    return importlib.import_module(module)


@pytest.mark.parametrize("name", RUN)
def test_a_guide_runs_from_its_first_block_to_its_last(name: str, folder: Path) -> None:
    module = import_guide(name, folder)
    assert any(isinstance(each, Service) for each in vars(module).values())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(GUIDES).as_posix())
def test_a_guide_begins_with_its_example(page: Path) -> None:
    title, _, rest = page.read_text("utf-8").partition("\n")
    assert title.startswith("# ")
    before, example, _ = rest.partition("\n```")
    assert example
    assert len(before.splitlines()) <= LINES_BEFORE_MAX, "the rules come after the example"
    assert not re.search(r"^([-*|#]|\d+\.)", before, re.MULTILINE), "the rules come after the example"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(GUIDES).as_posix())
def test_the_list_of_guides_names_each(page: Path) -> None:
    folder, name = page.relative_to(GUIDES).parts[:-1], page.name
    listed = (GUIDES / "README.md").read_text("utf-8")
    first = "/".join((*folder, "README.md" if folder else name))
    assert f"({first})" in listed


# The tables of what a handler takes and returns


@dataclass(frozen=True)
class OrderState:
    """State that a row of the table names."""

    paid: bool = False


def rows(heading: str, table: int = 0) -> list[list[str]]:
    """Cells of a table below a heading, without its head; code without its backticks."""
    [part] = [part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE) if part.startswith(heading)]
    found = re.findall(r"(?:^\|.*\n)+", part, re.MULTILINE)[table].splitlines()[2:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in found]
    return [[cell.replace("\\|", "|").strip("`") for cell in row] for row in cells]


USED: tuple[type, ...] = (AsyncIterator, Bank, Change, Later, OrderDocument, OrderState, Saga, timedelta)


def names() -> dict[str, Any]:
    """The names that the tables use."""
    return {
        **{name: value for name, value in vars(of_order).items() if isinstance(value, type)},
        **{name: value for name, value in vars(of_payment).items() if isinstance(value, type)},
        **{each.__name__: each for each in USED},
        "reserved": of_payment.PaymentReserved(order_id="o", charge_id="c", amount=Decimal(1)),
        "declined": of_payment.PaymentDeclined(order_id="o", reason="no money"),
    }


def declare(taken: list[str], returned: str = "None", *, undoes: bool = False) -> tuple[Parameter, ...]:
    """The parameters of a handler, or of a compensation, that takes this."""
    known = names()
    service = Service("payment", state=OrderState)
    service.document(OrderDocument, "orders")
    code = f"async def react({', '.join(taken)}) -> {returned}: ...\nasync def bank() -> AsyncIterator[Bank]: yield\n"
    code += "async def reserve(order: OrderPlaced) -> PaymentReserved: ...\n"
    exec(code, known)
    service.resource(known["bank"])
    if undoes:
        service.handler(known["reserve"])
        service.compensation(known["reserve"])(known["react"])
    else:
        service.handler(known["react"])
    return service.declared.reactions[-1].parameters


def with_event(taken: str) -> list[str]:
    """The parameter, with an event beside it if it takes none that starts a run."""
    return [taken] if re.search(r"Placed|Declined", taken) else [taken, "placed: OrderPlaced"]


def test_the_tables_have_every_kind_of_parameter() -> None:
    found: list[Parameter] = []
    for taken, *_ in rows("What a handler may take"):
        waits = "Later[OrderConfirmed]" if "| None" in taken else "None"
        found += declare(with_event(taken), waits)[: taken.count(":")]
    [cancelled, reserved, *originals] = [taken for taken, *_ in rows("What a handler may take", 1)]
    for original in originals:
        found += declare([cancelled, reserved, original], undoes=True)
    assert {each.role for each in found} == set(get_args(get_type_hints(Parameter)["role"]))
    for flag in (each.name for each in fields(Parameter) if get_type_hints(Parameter)[each.name] is bool):
        assert any(getattr(each, flag) for each in found), f"no row shows a parameter that is {flag}"
    for shown in (
        lambda each: len(each.events) > 1,
        lambda each: any(map(is_change, each.events)),
        lambda each: each.of_original and each.optional,
        lambda each: each.gives is not None,
    ):
        assert any(map(shown, found))


def shapes_in(shape: ReturnShape) -> Iterator[str]:
    yield type(shape).__name__
    for part in shape.parts:
        yield from shapes_in(part)


def test_the_table_has_every_kind_of_return_and_each_example_fits() -> None:
    found: set[str] = set()
    for annotation, example, _ in rows("What a handler may return"):
        shape = parse_shape(eval(annotation, names()), "the page")
        assert shape.fit(eval(example, names())) is not None, f"{annotation}: {example} does not fit"
        found |= set(shapes_in(shape))
    assert found == {kind.__name__ for kind in ReturnShape.__subclasses__()}


def test_the_table_has_all_that_a_saga_offers() -> None:
    shown = {match[1] for what, _ in rows("What `saga` offers") if (match := re.search(r"saga\.(\w+)", what))}
    assert shown == {name for name in vars(Saga) if not name.startswith("_")}


def test_the_table_has_every_option() -> None:
    shown = {(name, kind) for name, kinds, _ in rows("Options") for kind in kinds.split(", ")}
    options = {
        (name, kind)
        for kind in ("handler", "compensation", "deadline")
        for name, parameter in inspect.signature(getattr(Service, kind)).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert shown == options
