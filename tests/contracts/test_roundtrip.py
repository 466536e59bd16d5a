"""Whatever the schema and the value: generated classes, bytes and JSON give back what was put in."""

import json
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saga.contracts import codec, plain
from saga.contracts.codegen import classes_in, generate
from saga.contracts.library import Library, binding_of
from saga.messages import Event
from tests.contracts.anyschema import DOCS, Names, fields, values
from tests.contracts.folders import generated, schema, write


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_events_of_any_schema_come_back_from_bytes_and_from_json(data: st.DataObject) -> None:
    whole = schema("Said", *fields(data.draw, Names(), 3, least=0), doc=data.draw(DOCS))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = Library.load(write(folder, whole))
        module = generated(folder, "Said")
        assert module.__file__ is not None
        source = Path(module.__file__).read_text("utf-8")
        said: type[Event] = module.Said
        binding = binding_of(said)
    assert classes_in(source) == ["Said"]
    assert generate(library, ["Said"]) == source
    for event in data.draw(st.lists(values(binding.version.record, dict(binding.classes)), min_size=1, max_size=5)):
        # Texts are compared, because NaN is not equal to itself, and 0.0 is equal to -0.0.
        value = codec.encode(event)
        back = codec.decode(value, said, library)
        assert repr(back) == repr(event)
        assert codec.encode(back) == value
        assert codec.content(said, value).startswith(b"Said\n{")
        line = json.dumps(codec.to_json(event))
        told = codec.from_json(json.loads(line), said)
        assert repr(told) == repr(event)
        # With the bytes of what JSON tells: there are many NaN, and JSON has one.
        bare = plain.from_json(line.encode(), binding.version)
        assert codec.encode(told)[codec.HEADER_SIZE :] == bare, "without a class, too"
