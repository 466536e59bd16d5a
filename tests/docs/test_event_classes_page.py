"""The page of contracts begins with classes that a reader can copy: its files are written, its commands called."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from saga.contracts.event_classes import EventAttributes
from saga.contracts.loading import ATTRIBUTES
from tests.contracts.declared import declare
from tests.docs.markdown import ROOT, blocks
from tests.docs.test_contract_reference import rows
from tests.docs.test_tutorial import Shell, first_missing

HEADING = "Events as classes"
PAGE = (ROOT / "docs/guides/contracts.md").read_text("utf-8")
SECTION = next(part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE) if part.startswith(HEADING))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path, Path(sys.executable).parent)
    try:
        yield shell
    finally:
        shell.end()


def test_the_files_and_commands_of_the_page_do_what_it_says(tmp_path: Path, shell: Shell) -> None:
    printed, checked = "", 0
    for block in blocks(SECTION):
        if block.title is not None:
            file = tmp_path / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.body, "utf-8")
        elif block.language == "sh":
            printed = shell.call(block.body)
        else:
            assert (missing := first_missing(block.body, printed)) is None, f"{missing!r} is not in:\n{printed}"
            checked += 1
    assert checked >= 2


def test_the_commands_for_a_new_contract_do_what_the_page_says(tmp_path: Path, shell: Shell) -> None:
    text = (ROOT / "docs/guides/evolving-contracts.md").read_text("utf-8")
    [script] = [block.body for block in blocks(text) if "--record" in block.body]
    first = "saga contracts new orders/OrderShipped --owner order --key order_id --doc 'It is on its way.'"
    shell.call(f"{first}\n{script}saga contracts lint\nsaga contracts check\n")
    module = (tmp_path / "shop/parcels.py").read_text("utf-8")
    assert ["class Address:" in module, "class ParcelSent(" in module, "class OrderShipped(" in module] == [True] * 3


@pytest.mark.parametrize(("hint", "type_"), rows(HEADING))
def test_an_annotation_is_the_type_that_the_page_says(hint: str, type_: str) -> None:
    whole = declare("Said", f"value: {hint.partition('`')[0]}").newest.schema
    assert whole["fields"][1]["type"] == json.loads(type_)


def test_each_attribute_of_a_contract_is_one_of_a_class() -> None:
    assert set(EventAttributes.__annotations__) == {*ATTRIBUTES, "version", "aliases", "namespace"}
