"""The page of what a contract may hold says what is so: each row of its tables is tried."""

import json
import re
from pathlib import Path

import pytest

from saga.contracts import codec, loading
from saga.contracts.codegen import generate
from saga.contracts.library import Library, binding_of
from saga.errors import ContractError
from saga.messages import Topic
from tests.contracts.folders import event, field, schema, write
from tests.docs.markdown import ROOT

PAGES = ("docs/guides/contracts.md", "docs/reference/contracts.md")
PAGE = "\n".join((ROOT / page).read_text("utf-8") for page in PAGES)


def rows(heading: str, table: int = 0) -> list[list[str]]:
    """Cells of a table below a heading, without its head; code without its backticks."""
    part = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    text = next(text for text in part if text.startswith(heading))
    found = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)[table].splitlines()[2:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in found]
    return [[cell.replace("\\|", "|").strip("`") for cell in row] for row in cells]


@pytest.mark.parametrize(("type_", "kind", "line"), rows("Types"))
def test_a_type_is_in_the_class_and_in_json_as_the_page_says(type_: str, kind: str, line: str, tmp_path: Path) -> None:
    event_class = event(tmp_path, field("value", json.loads(type_)))
    source = generate(Library.load(tmp_path / "contracts"), ["Said"])
    assert f"    value: {kind}\n" in source
    fields = {"order_id": "o", "value": json.loads(line)}
    made = codec.from_json(fields, event_class)
    assert codec.to_json(made) == fields
    assert codec.decode(codec.encode(made), event_class, binding_of(event_class).library) == made


def test_each_kind_of_type_has_a_row() -> None:
    kinds = {json.dumps(json.loads(type_)) for type_, *_ in rows("Types")}
    logical = {json.loads(type_)["logicalType"] for type_ in kinds if "logicalType" in type_}
    assert logical == {"decimal", "uuid", "date", "timestamp-millis", "timestamp-micros"}
    assert {f'"{name}"' for name in ("boolean", "int", "long", "float", "double", "string", "bytes")} <= kinds


@pytest.mark.parametrize(("type_", "problem"), rows("What is refused"))
def test_what_the_page_says_is_refused_is(type_: str, problem: str, tmp_path: Path) -> None:
    write(tmp_path, schema("Said", field("value", json.loads(type_))))
    with pytest.raises(ContractError) as refused:
        Library.load(tmp_path / "contracts")
    assert problem in str(refused.value)


def test_all_attributes_of_a_contract_are_on_the_page() -> None:
    assert [name for name, _ in rows("A contract's attributes")] != []
    assert {name for name, _ in rows("A contract's attributes")} == set(loading.ATTRIBUTES)


def test_all_settings_of_a_topic_are_on_the_page() -> None:
    assert [name for name, _ in rows("Files")] == list(Topic._fields[1:])
    [given] = re.findall(r"```json\n(.*)\n```", PAGE)
    assert Topic("t", **json.loads(given)) == Topic("t")
