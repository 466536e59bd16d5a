"""Whatever changes from version to version: what the check lets pass, old and new codecs read as it was written."""

import os
import tempfile
from itertools import count, islice, permutations
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from saga.contracts import codec
from saga.contracts.compatibility import compare_schemas, list_changes
from saga.contracts.library import Library, binding_of
from saga.contracts.loading import make_version
from saga.errors import ContractError
from tests.contracts.anychange import ANY, changed
from tests.contracts.anyschema import Draw, Names, fields, values
from tests.contracts.folders import generated, schema, write
from tests.contracts.test_changes import ORDER, kept, reading_with, worst
from tests.contracts.test_other_checkers import reads

EXAMPLES = int(os.environ.get("SAGA_TEST_SCHEMAS", "20"))
LONG = "SAGA_TEST_SCHEMAS" in os.environ
OURS_ALONE = {"alias", "precision", "utf-8", "uuid"}
"""Rules by which reading fails, and which Avro's checker does not have."""


def chain(draw: Draw, depth: int, length: int) -> list[dict[str, Any]]:
    """Versions, each made of the one before by one to three changes."""
    names, numbers = Names(), count(1)
    versions = [schema("Said", *fields(draw, names, depth, least=1))]
    for _ in range(length - 1):
        whole = versions[-1]
        for number in islice(numbers, draw(st.integers(1, 3))):
            whole = changed(draw, whole, names, number, ANY)
        versions.append(whole)
    return versions


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), derandomize=not LONG)
@given(data=st.data())
def test_what_the_check_lets_pass_is_read_as_it_was_written(data: st.DataObject) -> None:
    versions = chain(data.draw, 2, data.draw(st.integers(2, 3)))
    with tempfile.TemporaryDirectory() as name:
        classes = []
        for number, whole in enumerate(versions):
            try:
                Library.load(write(Path(name) / str(number), whole))
            except ContractError:
                assume(False)
            classes.append(generated(Path(name) / str(number), "Said").Said)
        bindings = [binding_of(cls) for cls in classes]
    for writer, reader in permutations(bindings, 2):
        allowed: Any = worst(*(f.effect for f in compare_schemas(writer.version.record, reader.version.record)))
        event(f"the check says {allowed}")
        if allowed in ("fails", "misread"):
            continue
        other = classes[bindings.index(reader)]
        drawn = data.draw(st.lists(values(writer.version.record, dict(writer.classes)), min_size=1, max_size=4))
        for written in drawn:
            heard = codec.decode(codec.encode(written), other, reading_with(other, writer.version))
            became = worst(*kept(written, writer.version.record, heard, reader.version.record))
            assert ORDER.index(became) <= ORDER.index(allowed), f"{written} became {heard}"


@settings(max_examples=4 * EXAMPLES, suppress_health_check=list(HealthCheck), derandomize=not LONG)
@given(data=st.data())
def test_avros_checker_finds_the_same_failures_and_the_difference_has_each_finding(data: st.DataObject) -> None:
    try:
        pair = [
            make_version(whole, f"orders/Said.v{number}", "Said", number)
            for number, whole in enumerate(chain(data.draw, 3, 2), 1)
        ]
    except ContractError:
        assume(False)
    changes = list_changes(*pair)
    for way, (writer, reader) in zip(("backward", "forward"), permutations(pair), strict=True):
        found = compare_schemas(writer.record, reader.record)
        assert sorted(f.says for change in changes for f in getattr(change, way)) == sorted(f.says for f in found)
        if all(finding.rule != "alias" for finding in found):
            ours = not any(finding.effect == "fails" and finding.rule not in OURS_ALONE for finding in found)
            assert reads(writer.schema, reader.schema) is ours
            event(f"Avro's checker says {ours}")
    assert bool(changes) is (pair[0].record != pair[1].record)
