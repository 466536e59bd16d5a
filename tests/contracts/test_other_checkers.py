"""What the checker of Avro's own library says of the table of changes; where it differs, the table has the reason."""

import json
from typing import Any

import avro.schema
import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

from tests.contracts.changes import CHANGES, Change
from tests.contracts.folders import schema


def reads(writer: dict[str, Any], reader: dict[str, Any]) -> bool:
    """Whether Avro's checker says that all messages of the one can be read with the other."""
    pair = [avro.schema.parse(json.dumps(one)) for one in (writer, reader)]
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]  # it has types but here
    found = checker.get_compatibility(writer=pair[0], reader=pair[1])
    return bool(found.compatibility is SchemaCompatibilityType.compatible)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.what)
def test_avros_checker_agrees_or_the_table_says_why_not(change: Change) -> None:
    old, new = schema("Said", *change.old), schema("Said", *change.new)
    theirs = [reads(old, new), reads(new, old)]
    ours = [verdict in ("fine", "default") for verdict in (change.backward, change.forward)]
    assert (theirs != ours) is bool(change.avro)
    # It never sees more than we do: what it refuses, we refuse.
    assert all(their or not our for their, our in zip(theirs, ours, strict=True))
