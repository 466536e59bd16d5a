"""All that is wrong with a line: found whenever reading it fails, never else, and each thing once with its path."""

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saga.contracts import codec
from saga.contracts.library import Library, binding_of
from saga.errors import BadInput
from tests.contracts.anyschema import Names, fields, values
from tests.contracts.folders import event, generated, schema, write
from tests.contracts.test_codec import FIELDS
from tests.contracts.test_json_form import WHOLE

JUNK = st.sampled_from([None, 5, -1, 2**70, 0.5, 1e300, "x", "\ud800", "2026-02-30", True, [], [None], {}, {"a": 1}])


@pytest.fixture(scope="module")
def event_class(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return event(tmp_path_factory.mktemp("problems"), *FIELDS)


def test_each_wrong_thing_is_reported_with_its_path_in_the_order_of_the_line(event_class: Any) -> None:
    wrong = {
        **WHOLE,
        "lines": [{"sku": 1}, {"sku": "b", "price": "9.801"}, 7, {"sku": "d", "price": "1", "colour": "red"}],
        "color": "BLUE",
        "prices": {"x": "12345.6", "\ud800": "1.0", "y" * 100: None},
        "count": 2**31,
        "ratio": "1",
        "n" * 100: 0,
    }
    del wrong["order_id"]
    assert list(codec.find_json_problems(wrong, event_class)) == [
        "Said: lines[0].sku: is a whole number, not text",
        "Said: lines[0].price: is missing",
        "Said: lines[1].price: has more than 2 digits after the point; round it before",
        "Said: lines[2]: must be an object with the fields of Line",
        "Said: lines[3].colour: Line has no such field; it has sku, price",
        "Said: color: must be one of RED, GREEN",
        "Said: prices['x']: must be a number with at most 4 digits before the point",
        "Said: prices['\\ud800']: half of a surrogate pair is no text",
        f"Said: prices['{'y' * 60}...']: must be a decimal as text: \"9.80\"",
        "Said: count: must lie between -2147483648 and 2147483647",
        "Said: ratio: is text, not a number",
        f"Said: {'n' * 60}...: Said has no such field; it has {', '.join(['order_id', *(f['name'] for f in FIELDS)])}",
        "Said: order_id: is missing",
    ]
    assert not list(codec.find_json_problems(WHOLE, event_class))


@pytest.mark.parametrize("data", [None, [], "text", 5])
def test_what_is_no_object_is_one_problem(event_class: Any, data: object) -> None:
    assert list(codec.find_json_problems(data, event_class)) == ["Said: must be an object with the fields of Said"]


@settings(max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_something_is_wrong_exactly_when_a_line_is_refused(data: st.DataObject) -> None:
    whole = schema("Said", *fields(data.draw, Names(), 3, least=1))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Library.load(write(folder, whole))
        event_class = generated(folder, "Said").Said
        binding = binding_of(event_class)
    made = data.draw(values(binding.version.record, dict(binding.classes)))
    line = json.loads(json.dumps(codec.to_json(made)))
    for _ in range(data.draw(st.integers(0, 3))):
        line = spoilt(data, copy.deepcopy(line))
    found = list(codec.find_json_problems(line, event_class))
    try:
        codec.encode(codec.from_json(line, event_class))
    except BadInput:
        assert found
    else:
        assert found == []


def spoilt(data: st.DataObject, line: Any) -> Any:
    """With something in it replaced, left out or added."""
    if isinstance(line, dict | list) and line and data.draw(st.integers(0, 9)):
        keys: list[Any] = sorted(line) if isinstance(line, dict) else list(range(len(line)))
        key = data.draw(st.sampled_from(keys))
        match data.draw(st.integers(0, 5)):
            case 0:
                del line[key]
            case 1 if isinstance(line, dict):
                line["another"] = data.draw(JUNK)
            case _:
                line[key] = spoilt(data, line[key])
        return line
    return data.draw(JUNK)
