"""The JSON form of events: what is written, what is read, and where a line is wrong."""

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from saga.contracts import codec
from saga.errors import BadInput
from tests.contracts.folders import generated, schema, write
from tests.contracts.test_codec import FIELDS

WHOLE = {
    "order_id": "o-1",
    "lines": [{"sku": "a", "price": "9.80"}],
    "color": "GREEN",
    "prices": {"x": "-0.5"},
    "note": "é",
    "count": 3,
    "big": 4,
    "ratio": 0.25,
    "small": "-Infinity",
    "raw": "AP8=",
    "yes": True,
    "day": "2026-11-21",
    "millis": "2026-11-21T14:06:40.120Z",
    "micros": "2026-11-21T14:06:40.000001Z",
    "ident": "00000000-0000-0000-0000-000000000005",
    "total": "1000000.00",
}


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("json")
    write(folder, schema("Said", *FIELDS))
    return generated(folder, "Said")


def test_every_kind_of_value_has_its_form(module: Any) -> None:
    made: Any = codec.from_json(WHOLE, module.Said)
    assert made == module.Said(
        order_id="o-1",
        lines=(module.Line(sku="a", price=Decimal("9.80")),),
        color=module.Color.GREEN,
        prices={"x": Decimal("-0.5")},
        note="é",
        count=3,
        big=4,
        ratio=0.25,
        small=float("-inf"),
        raw=b"\x00\xff",
        yes=True,
        day=date(2026, 11, 21),
        millis=datetime(2026, 11, 21, 14, 6, 40, 120000, tzinfo=UTC),
        micros=datetime(2026, 11, 21, 14, 6, 40, 1, tzinfo=UTC),
        ident=UUID(int=5),
        total=Decimal("1000000.00"),
    )
    assert codec.to_json(made) == WHOLE
    assert json.loads(json.dumps(codec.to_json(made))) == WHOLE


def test_fields_with_a_default_may_be_left_out(module: Any) -> None:
    assert codec.from_json({"order_id": "o-1"}, module.Said) == module.Said(order_id="o-1")


def test_a_whole_number_will_do_for_a_float(module: Any) -> None:
    made: Any = codec.from_json({"order_id": "o-1", "ratio": 2}, module.Said)
    assert type(made.ratio) is float


def test_another_zone_is_the_same_time(module: Any) -> None:
    made: Any = codec.from_json({"order_id": "o", "micros": "2026-11-21t15:06:40+01:00"}, module.Said)
    assert repr(made.micros) == repr(datetime(2026, 11, 21, 14, 6, 40, tzinfo=UTC))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"order_id": 5}, "Said: order_id: is a whole number, not text"),
        ({"orderid": "o-1"}, "Said: orderid: Said has no such field; it has order_id, lines,"),
        ({"total": 9.8}, 'Said: total: must be a decimal as text: "9.80"'),
        ({"total": "9,80"}, "Said: total: must be a decimal as text"),
        ({"total": "NaN"}, "Said: total: must be a decimal as text"),
        ({"total": "0.001"}, "Said: total: has more than 2 digits after the point"),
        ({"color": "BLUE"}, "Said: color: must be one of RED, GREEN"),
        ({"color": ["RED"]}, "Said: color: must be one of RED, GREEN"),
        ({"lines": {}}, "Said: lines: must be a list"),
        ({"lines": [{"sku": "a", "price": "1"}, {"sku": "a"}]}, "Said: lines[1].price: is missing"),
        ({"lines": [5]}, "Said: lines[0]: must be an object with the fields of Line"),
        ({"prices": []}, "Said: prices: must be an object"),
        ({"prices": {"x": 1}}, "Said: prices['x']: must be a decimal as text"),
        ({"raw": "###"}, "Said: raw: must be bytes as base64 text"),
        ({"raw": 5}, "Said: raw: must be bytes as base64 text"),
        ({"count": 1.5}, "Said: count: is a number, not a whole number"),
        ({"count": 2**31}, "Said: count: must lie between"),
        ({"ratio": "1"}, "Said: ratio: is text, not a number"),
        ({"ratio": True}, "Said: ratio: is true or false, not a number"),
        ({"ratio": 10**400}, "Said: ratio: is too great a number"),
        ({"ratio": 2**53 + 1}, "Said: ratio: is a whole number with more digits"),
        ({"yes": "true"}, "Said: yes: is text, not true or false"),
        ({"yes": None}, "Said: yes: is None, not true or false"),
        ({"day": "2026-02-30"}, 'Said: day: must be a date as text: "2026-11-21"'),
        ({"day": "20260230"}, "Said: day: must be a date as text"),
        ({"millis": "2026-11-21T14:06:40"}, "Said: millis: must be a time with its zone as text"),
        ({"millis": "2026-11-21T14:06:40.1234Z"}, "Said: millis: has microseconds"),
        ({"micros": "2026-11-21T14:06:40.1234567Z"}, "Said: micros: must be a time with its zone as text"),
        ({"micros": "0001-01-01T00:00:00+01:00"}, "Said: micros: must be a time with its zone as text"),
        ({"ident": "5"}, "Said: ident: must be a UUID as text"),
        ({"order_id": "\ud800"}, "Said: order_id: half of a surrogate pair is no text"),
    ],
)
def test_the_field_that_is_wrong_is_named(module: Any, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput, match=re.escape(problem)):
        codec.from_json({"order_id": "o-1", **change}, module.Said)


def test_a_missing_field_is_named(module: Any) -> None:
    with pytest.raises(BadInput, match=r"^Said: order_id: is missing$"):
        codec.from_json({}, module.Said)


@pytest.mark.parametrize("data", [None, [], "text", 5])
def test_an_event_is_an_object(module: Any, data: object) -> None:
    with pytest.raises(BadInput, match=r"^Said: must be an object with the fields of Said$"):
        codec.from_json(data, module.Said)
