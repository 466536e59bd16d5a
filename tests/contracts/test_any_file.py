"""Whatever stands in a schema's file: it is used, or all its problems are reported; nothing else happens."""

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saga.contracts import codec
from saga.contracts.library import Library
from saga.errors import BadInput, ContractError
from tests.contracts.anyschema import DOCS, Names, fields
from tests.contracts.folders import generated, schema, write

NAMES = st.sampled_from(["", "a.b", "Said", "x" * 200, "1", "é", "a.", "null", "int", "record", "fixed", "class"])
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 5, 2**70, 10**400, 1e308, 0.5]),
    NAMES,
    st.text(max_size=4),
    st.sampled_from([[], {}, [[]], [{}], ["null"], ["null", "int"], ["int", "null"], ["null", ["null", "int"]]]),
    st.sampled_from(
        [{"type": "int"}, {"type": {"type": "int"}}, {"type": []}, {"type": "fixed", "name": "F", "size": 2}]
    ),
    st.sampled_from(
        [{"type": "array"}, {"type": "map", "values": "Said"}, {"type": "enum", "name": "E", "symbols": []}]
    ),
)
KEYS = st.sampled_from(
    [
        "type",
        "name",
        "namespace",
        "fields",
        "symbols",
        "items",
        "values",
        "default",
        "logicalType",
        "precision",
        "scale",
    ]
)


@settings(max_examples=150, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_file_is_used_or_everything_wrong_with_it_is_reported(data: st.DataObject) -> None:
    whole = schema("Said", *fields(data.draw, Names(), 3, least=1), doc=data.draw(DOCS))
    for _ in range(data.draw(st.integers(1, 2))):
        whole = spoilt(data, copy.deepcopy(whole))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        contracts = write(folder, schema("Heard"))
        (contracts / "orders/Said.v1.avsc").write_text(json.dumps(whole))
        try:
            library = Library.load(contracts)
        except ContractError:
            return
        made = generated(folder, "Said").Said
        try:
            event = codec.from_json({"order_id": "o-1"}, made)
        except BadInput:
            return  # it has other fields that must be given
        assert repr(codec.decode(codec.encode(event), made, library)) == repr(event)


def spoilt(data: st.DataObject, part: Any) -> Any:
    """With something in it replaced, left out or added."""
    if isinstance(part, dict | list) and part and data.draw(st.integers(0, 7)):
        keys: list[Any] = sorted(part) if isinstance(part, dict) else list(range(len(part)))
        key = data.draw(st.sampled_from(keys))
        match data.draw(st.integers(0, 7)):
            case 0:
                del part[key]
            case 1 if isinstance(part, dict):
                part[data.draw(KEYS)] = data.draw(JUNK)
            case 2 if isinstance(part, list):
                part.append(copy.deepcopy(part[key]))
            case _:
                part[key] = spoilt(data, part[key])
        return part
    return data.draw(JUNK)
