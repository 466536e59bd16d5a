"""Whatever the schema and the value: generated classes, bytes and JSON give back what was put in."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saga.contracts import codec, foreign_values
from saga.contracts.codegen import generate, list_classes
from saga.contracts.compatibility import list_changes
from saga.contracts.examples import make_example
from saga.contracts.library import Library, binding_of
from saga.contracts.loading import make_version
from saga.messages import Event
from tests.contracts.anyschema import DOCS, Names, fields, values
from tests.contracts.folders import field, generated, schema, write


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_events_of_any_schema_come_back_from_bytes_and_from_json(data: st.DataObject) -> None:
    whole = schema("Said", *fields(data.draw, Names(), 3, least=0), doc=data.draw(DOCS))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = Library.load(write(folder, whole))
        module = generated(folder, "Said")
        assert module.__file__ is not None
        source = Path(module.__file__).read_text("utf-8")
        event_class: type[Event] = module.Said
        binding = binding_of(event_class)
    assert list_classes(source) == ["Said"]
    assert generate(library, ["Said"]) == source
    assert list(codec.find_json_problems(make_example(library.contracts["Said"]), event_class)) == []
    for event in data.draw(st.lists(values(binding.version.record, dict(binding.classes)), min_size=1, max_size=5)):
        # Texts are compared, because NaN is not equal to itself, and 0.0 is equal to -0.0.
        value = codec.encode(event)
        back = codec.decode(value, event_class, library)
        assert repr(back) == repr(event)
        assert codec.encode(back) == value
        assert codec.content(event_class, value).startswith(b"Said\n{")
        line = json.dumps(codec.to_json(event))
        decoded = codec.from_json(json.loads(line), event_class)
        assert repr(decoded) == repr(event)
        # With the bytes of what JSON tells: there are many NaN, and JSON has one.
        bare = foreign_values.from_foreign_json(line.encode(), binding.version)
        assert codec.encode(decoded)[codec.HEADER_SIZE :] == bare, "without a class, too"


NUMBERS: list[Any] = [0, 1, -1, 1000, 1e3, 0.5, -0.0, 2**24 + 1, 2**53 + 1, 10**30]
"""Defaults of floats as a file may have them: whole numbers, too, which JSON does not tell from others."""
SHAPES: dict[str, Callable[[int, str, Any], dict[str, Any]]] = {
    "a number": lambda n, kind, number: field(f"x{n}", kind, default=number),
    "optional": lambda n, kind, number: field(f"x{n}", [kind, "null"], default=number),
    "a list": lambda n, kind, number: field(f"x{n}", {"type": "array", "items": kind}, default=[number] * 2),
    "a list of optional": lambda n, kind, number: field(
        f"x{n}", {"type": "array", "items": ["null", kind]}, default=[None, number]
    ),
    "a map": lambda n, kind, number: field(f"x{n}", {"type": "map", "values": kind}, default={"a": number}),
    "a record": lambda n, kind, number: field(f"x{n}", _part(n, field("y", kind)), default={"y": number}),
    "a part of a record": lambda n, kind, number: field(
        f"x{n}", _part(n, field("y", kind, default=number)), default={}
    ),
}


def _part(n: int, inside: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": f"Part{n}", "fields": [inside]}


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_float_whose_default_is_a_whole_number_is_that_float_everywhere(
    tmp_path: Path, shape: str, kind: str
) -> None:
    write(tmp_path, schema("Said"))
    wholes = [[SHAPES[shape](n, kind, as_(number)) for n, number in enumerate(NUMBERS)] for as_ in (lambda x: x, float)]
    library = Library.load(write(tmp_path, schema("Said", *wholes[0]), version=2))
    module = generated(tmp_path, "Said", "Said.v1")
    event = module.Said(order_id="o")
    for copy in (
        codec.decode(codec.encode(event), module.Said, library),
        codec.decode(codec.encode(module.SaidV1(order_id="o")), module.Said, library),
        codec.from_json({"order_id": "o"}, module.Said),
        codec.from_json(json.loads(json.dumps(codec.to_json(event))), module.Said),
    ):
        assert repr(copy) == repr(event)
    path = "orders/Said.v2"
    as_floats = make_version(schema("Said", *wholes[1]), path, "Said", 2)
    mine = library.contracts["Said"].newest
    assert repr(as_floats.record) == repr(mine.record)
    assert as_floats.fingerprint == mine.fingerprint
    assert list_changes(mine, as_floats) == ()


@pytest.mark.parametrize(
    ("key", "example"),
    [("string", "order-1"), ({"type": "string", "logicalType": "uuid"}, "00000000-0000-4000-8000-000000000001")],
)
def test_the_saga_id_of_an_example_is_one_that_the_contract_allows(key: Any, example: str, tmp_path: Path) -> None:
    whole = {**schema("Sold"), "fields": [{"name": "order_id", "type": key}]}
    library = Library.load(write(tmp_path, whole))
    made = make_example(library.contracts["Sold"])
    assert made == {"order_id": example}
    assert list(codec.find_json_problems(made, generated(tmp_path, "Sold").Sold)) == []


@pytest.mark.parametrize(
    ("precision", "scale", "example"),
    [(5, 0, "1"), (5, 2, "1.00"), (2, 2, "0.10"), (38, 37, f"1.{'0' * 37}"), (38, 38, f"0.1{'0' * 37}")],
)
def test_the_example_of_a_decimal_has_its_scale_however_many_digits_it_has(
    precision: int, scale: int, example: str, tmp_path: Path
) -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    library = Library.load(write(tmp_path, schema("Sold", {"name": "total", "type": decimal, "doc": "Euros."})))
    made = make_example(library.contracts["Sold"])
    assert made["total"] == example
