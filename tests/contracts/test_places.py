"""The line of a field is the one on which its name stands, whatever else is called so."""

import json

import pytest

from saga.contracts.checks import find_line
from tests.contracts.folders import field, schema

PART = {"type": "record", "name": "Part", "fields": [field("note", "string"), field("x", "int")]}
WHOLE = schema(
    "Said",
    field("note", "string"),
    field("name", "string", default='"name": "note"', doc='"name": "x"'),
    field("parts", {"type": "array", "items": ["null", PART]}),
    field("more", {"type": "map", "values": "Part"}),
    field("given", {"type": "record", "name": "Given", "fields": [field("name", "string")]}, default={"name": "note"}),
    field("x", "int"),
)


@pytest.mark.parametrize("indent", [1, 4])
def test_each_field_is_found_where_it_is_defined(indent: int) -> None:
    text = json.dumps(WHOLE, indent=indent)
    lines = text.splitlines()
    inside = next(i for i, line in enumerate(lines) if '"Part"' in line)
    after = next(i for i, line in enumerate(lines) if '"Given"' in line)
    found = {
        at: find_line(text, at) - 1 for at in ("note", "parts[].note", "more{}.note", "parts[].x", "x", "given.name")
    }
    assert all(f'"name": "{at.rpartition(".")[2]}"' in lines[line] for at, line in found.items())
    assert found["note"] < inside < found["parts[].note"] == found["more{}.note"] < found["parts[].x"] < after
    assert after < found["given.name"] < found["x"]


def test_what_is_not_there_is_on_the_first_line() -> None:
    for text in (json.dumps(WHOLE, indent=1), "{", "[]", '{"fields": 1}'):
        for at in ("", "nothing", "note.x", "parts[].nothing", "x[].y"):
            assert find_line(text, at) == 1
