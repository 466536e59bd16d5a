"""Every block of code in the documents is checked: commands are accepted, Python runs, data can be read.

Most pages are run as a whole by tests of their own, as a reader would. Here is what is left: single blocks, run with
the names that the page takes for granted."""

import ast
import asyncio
import inspect
import json
import re
import tomllib
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import pytest
import yaml

from tests.docs.commands import commands_in_prose, commands_in_scripts, refused, unknown_options
from tests.docs.markdown import DOCUMENTS, ROOT, Block, blocks
from tests.docs.test_documents import QUOTED
from tests.docs.test_guides import RUN as RUN_AS_MODULES
from tests.docs.test_testing_page import PAGES as TESTING_PAGES
from tests.docs.test_tutorial import PAGES as TUTORIAL_PAGES

NOW = [document for document in DOCUMENTS if document.name != "CHANGELOG.md"]
"""Documents that describe the present version."""
each_document = pytest.mark.parametrize("document", NOW, ids=lambda path: path.relative_to(ROOT).as_posix())

RUN_BY_OTHERS = {
    *(f"docs/guides/{name}.md" for name in RUN_AS_MODULES),
    *TUTORIAL_PAGES,
    *TESTING_PAGES,
    *QUOTED,
    "docs/guides/testing/servers.md",
    "docs/index.md",  # the README's
    "docs/compare/code.md",
    "docs/guides/participant.md",
    "docs/start/smallest.md",
    "docs/reference/api.md",  # signatures, written from the code
}
"""Pages whose Python other tests run."""

SERVICES = """
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Annotated
from saga import *
from saga.testing import *
from services.order.events import OrderCancelled, OrderConfirmed, ShipmentBooked
from services.payment.bank import Bank as FakeBank
from services.payment.events import OrderPlaced, PaymentReserved
from services.shipping.events import ShipmentDispatched as GoodsSent
class Bank(FakeBank):
    async def check(self, card: str) -> None: ...
class FakeClient:
    def __init__(self, principal: str = "") -> None: ...
    async def __aenter__(self) -> "FakeClient": return self
    async def __aexit__(self, *_) -> None: ...
    async def publish(self, *_, principal: str = "") -> None: ...
    async def listen(self, *_, group: str) -> AsyncIterator[GoodsSent]:
        yield GoodsSent(order_id="17", tracking="t-1")
Client = FakeClient
order, payment, stock = Service("order"), Service("payment"), Service("stock")
placed = OrderPlaced(
    order_id="17", customer_id="c-1", sku="tea", quantity=1, total=Decimal("9.80"), card="card-1", address="Here 1"
)
"""
BANK = """
@payment.resource
async def opened() -> AsyncIterator[Bank]:
    yield Bank()
@dataclass(frozen=True)
class OrderStateV1:
    total: str = "0.00"
@dataclass(frozen=True)
class OrderState:
    cents: int = 0
order = Service("order", state=OrderState)
"""
UPCAST = """
@dataclass
class OrderPlacedV1:
    order_id: str
    cents: int
def upcast(kind: type, version: int): return lambda function: function
"""
GIVEN = {
    "docs/guides/check.md": SERVICES,
    "docs/guides/clients.md": f"{SERVICES}ShipmentDispatched = GoodsSent\nclient = Client()\nasync def mail(_): ...\n"
    "async def alert(_): ...\n",
    "docs/guides/contracts.md": "from typing import Annotated\nfrom saga import *\n",
    "docs/guides/deploying/changing-code.md": SERVICES + BANK,
    "docs/guides/deploying/changing-events.md": SERVICES + UPCAST,
    "docs/guides/deploying/releases.md": SERVICES,
    "docs/guides/sensitive-values.md": SERVICES,
    "docs/operating/access.md": SERVICES,
    "docs/operating/flow-control.md": SERVICES,
    "docs/operating/limits.md": SERVICES,
    "docs/reference/errors.md": f"{SERVICES}client, order = Client(), placed\n",
}
"""For each page with Python that no other test runs, what it takes for granted."""


@each_document
def test_the_command_line_accepts_every_command_of_a_page_as_it_is_typed(
    document: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(commands_in_scripts(document.read_text("utf-8"))) == []
    capsys.readouterr()  # what --help prints


def test_the_command_line_accepts_every_command_in_the_comments_of_the_compose_file() -> None:
    comments = re.findall(r"^ *#(.*)$", (ROOT / "docker-compose.yml").read_text("utf-8"), re.MULTILINE)
    scripts = "\n".join(part for line in comments for part in re.findall(r"docker compose run[^`]*", line))
    found = commands_in_scripts(f"```sh\n{scripts}\n```")
    assert len(found) >= 4
    assert refused(found) == []


@each_document
def test_a_command_named_in_a_sentence_exists_with_its_options(document: Path) -> None:
    assert list(unknown_options(commands_in_prose(document.read_text("utf-8")))) == []


@pytest.mark.parametrize(
    ("read", "language"),
    [(json.loads, "json"), (tomllib.loads, "toml"), (yaml.safe_load, "yaml")],
    ids=("json", "toml", "yaml"),
)
def test_data_in_the_documents_can_be_read(read: Callable[[str], object], language: str) -> None:
    found = [block for block in chain.from_iterable(map(blocks_of, NOW)) if block.language == language]
    assert found
    for block in found:
        for document in block.body.splitlines() if (block.title or "").endswith(".jsonl") else [block.body]:
            read(document)


def test_python_of_each_page_is_run_by_a_test() -> None:
    pages = {_name(page) for page in NOW if any(block.language == "python" for block in blocks_of(page))}
    assert pages - RUN_BY_OTHERS == {*GIVEN}


@pytest.mark.parametrize("page", GIVEN)
def test_the_python_of_a_page_runs(page: str) -> None:
    names: dict[str, object] = {"__name__": "a_page"}
    exec(GIVEN[page], names)
    # Blocks with a title are files of the reader's, which others run.
    code = [each.body for each in blocks_of(ROOT / page) if each.language == "python" and each.title is None]
    for place, body in enumerate(code):
        if not _is_summary(body, code[place + 1 :]):
            asyncio.run(_run(body, names))


def _is_summary(body: str, later: Sequence[str]) -> bool:
    """Return whether these functions have no content, because later blocks of the page show them as a whole."""
    functions = re.findall(r"def (\w+)\(.*: \.\.\.$", body, re.MULTILINE)
    return bool(functions) and all(f"def {name}(" in "".join(later) for name in functions)


async def _run(source: str, names: dict[str, object]) -> None:
    """Run a block. One that waits at its top is part of a function, and is waited for."""
    code = compile(source, "a page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    found = eval(code, names)
    if inspect.iscoroutine(found):
        await found


def test_what_the_reference_shows_is_python() -> None:
    found = [block.body for block in blocks_of(ROOT / "docs/reference/api.md") if block.language == "python"]
    for body in found:
        signature = re.fullmatch(r"(?:await )?(\w+\(.*\)(?: -> .+)?)\n", body, re.DOTALL)
        ast.parse(f"def {signature[1]}: ..." if signature else body.replace(">>> ", ""))


def blocks_of(document: Path) -> list[Block]:
    return blocks(document.read_text("utf-8"))


def _name(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()
