"""What a version promises is what is checked: each mode, against the versions that it names."""

from pathlib import Path
from typing import Any

import pytest

from saga.contracts.compatibility import compare_schemas, find_breaks
from saga.contracts.contract import DEFAULT_MODE, MODES
from saga.contracts.library import Library
from saga.contracts.loading import make_version
from tests.contracts.changes import CHANGES
from tests.contracts.folders import decimal, field, schema, write


def breaks(folder: Path, *versions: dict[str, Any]) -> list[tuple[int, int, str, str]]:
    """Newer, older, direction and rule of what is broken between these versions."""
    for number, whole in enumerate(versions, 1):
        contracts = write(folder, whole, version=number)
    found = find_breaks(Library.load(contracts).contracts["Said"])
    return [(f.newer.number, f.older.number, f.direction, f.finding.rule) for f in found]


WIDER, NARROWER = field("n", "long"), field("n", "int")
BACKWARD, FORWARD = "backward", "forward"


@pytest.mark.parametrize(
    ("mode", "directions", "all_"),
    [
        ("none", [], False),
        ("backward", [BACKWARD], False),
        ("forward", [FORWARD], False),
        ("full", [BACKWARD, FORWARD], False),
        ("backward_transitive", [BACKWARD], True),
        ("forward_transitive", [FORWARD], True),
        ("full_transitive", [BACKWARD, FORWARD], True),
        (None, [BACKWARD, FORWARD], True),
    ],
)
def test_a_mode_names_directions_and_versions(
    tmp_path: Path, mode: str | None, directions: list[str], all_: bool
) -> None:
    others = field("n", "string")  # read neither way
    found = breaks(
        tmp_path,
        schema("Said", NARROWER),
        schema("Said", NARROWER, field("x", "int", default=0)),
        schema("Said", others, compatible=mode),
    )
    assert set(found) == {(3, older, way, "type") for older in ([1, 2] if all_ else [2]) for way in directions}


def test_there_is_a_test_of_each_mode() -> None:
    assert len(MODES) == 7
    assert DEFAULT_MODE == "full_transitive"


def test_a_version_is_held_to_its_own_mode_and_not_to_that_of_a_later_one(tmp_path: Path) -> None:
    one, two = schema("Said", NARROWER), schema("Said", WIDER, compatible="backward")
    three = schema("Said", WIDER, field("x", "int", default=0), compatible="full")
    assert breaks(tmp_path, one, two, three) == []
    four = schema("Said", WIDER)
    assert breaks(tmp_path, one, two, three, four) == [(4, 1, FORWARD, "type")]


def test_a_default_of_the_version_between_does_not_help_the_first(tmp_path: Path) -> None:
    versions = [schema("Said"), schema("Said", field("x", "int", default=0)), schema("Said", field("x", "int"))]
    assert breaks(tmp_path, *versions) == [(3, 1, BACKWARD, "no-default")]


def test_a_version_that_is_upcast_is_not_compared_backward_and_forward_all_the_same(tmp_path: Path) -> None:
    one = schema("Said", field("total", decimal(12, 2)))
    two = schema("Said", field("total", decimal(12, 4)), field("x", "int"), upcasts=[1])
    assert breaks(tmp_path, one, two) == [(2, 1, FORWARD, "logical-type")]
    two["compatible"] = "backward_transitive"
    assert breaks(tmp_path, one, two) == []
    three = {**two, "upcasts": [2]}
    three["fields"] = [*two["fields"], field("y", "int")]
    assert (3, 1, BACKWARD, "no-default") in breaks(tmp_path / "b", one | {"fields": [one["fields"][0]]}, two, three)


def test_a_version_after_a_step_in_meaning_does_not_promise_more_than_the_step(tmp_path: Path) -> None:
    """Version 1 has cents, the others have euros in the same field. The schemas alone would let version 1 read all."""
    note = field("note", "string", default="")
    one, two = schema("Said", WIDER), schema("Said", WIDER, note, upcasts=[1], compatible="backward_transitive")
    three = schema("Said", WIDER, note, field("x", "int", default=0), upcasts=[1])
    assert breaks(tmp_path / "a", one, two, three) == [(3, 1, FORWARD, "upcasts")]
    for mode in ("backward_transitive", "full", "none"):
        assert breaks(tmp_path / mode, one, two, {**three, "compatible": mode}) == []
    assert breaks(tmp_path / "b", one, {**two, "compatible": "full_transitive"}, three) == [], "more is promised"
    full = {**two, "compatible": "full"}
    found = breaks(
        tmp_path / "d", one, full, {**three, "compatible": "full"}, {**three, "compatible": "full_transitive"}
    )
    assert found == [], "version 2 lets version 1 read the new meaning, and version 3 says nothing about version 1"
    back = {**three, "upcasts": [2]}
    assert breaks(tmp_path / "c", one, two, {**back, "compatible": "full_transitive"}) == [], "cents again"


def test_what_is_optional_is_looked_into_even_if_it_may_not_be_absent_any_more() -> None:
    pair = [
        make_version(schema("Said", field("x", type_)), f"orders/Said.v{number}", "Said", number).record
        for number, type_ in enumerate((["null", "int"], "string"), 1)
    ]
    assert [finding.rule for finding in compare_schemas(*pair)] == ["optional", "type"]


def test_a_default_of_another_type_is_no_finding_of_its_own() -> None:
    pair = [
        make_version(
            schema("Said", field("x", type_, default=default)), f"orders/Said.v{number}", "Said", number
        ).record
        for number, (type_, default) in enumerate((("int", 0), ("string", "none")), 1)
    ]
    assert [finding.rule for finding in compare_schemas(*pair)] == ["type"]


def test_each_finding_that_breaks_says_what_to_do(tmp_path: Path) -> None:
    for change in CHANGES:
        old, new = schema("Said", *change.old), schema("Said", *change.new)
        pair = []
        for name, whole in (("old", old), ("new", new)):
            library = Library.load(write(tmp_path / change.what.replace(" ", "-") / name, whole))
            pair.append(library.contracts["Said"].newest.record)
        for finding in (*compare_schemas(*pair), *compare_schemas(*reversed(pair))):
            assert bool(finding.remedy) is finding.breaks
            assert finding.path
