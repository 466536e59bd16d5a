"""Steps in meaning between versions, as the files say them: `"upcasts"`."""

from pathlib import Path
from typing import Any

import pytest

from saga.contracts.library import Library
from tests.contracts.folders import decimal, field, schema, write
from tests.contracts.test_library import problems_of

CENTS, EUROS = field("cents", "long"), field("euros", decimal())
NOTE = field("note", "string", default="")


def versions(folder: Path, *each: tuple[list[dict[str, Any]], object]) -> None:
    """Write versions of one contract: fields, and what it says of upcasts."""
    for number, (fields, upcasts) in enumerate(each, 1):
        write(folder, schema("Said", *fields, upcasts=upcasts), version=number)


def steps(folder: Path) -> list[set[int]]:
    contract = Library.load(folder / "contracts").contracts["Said"]
    return [set(version.upcasts) for version in contract.versions]


def test_a_version_says_which_older_ones_it_reads_by_an_upcaster(tmp_path: Path) -> None:
    versions(tmp_path, ([CENTS], None), ([EUROS], [1]), ([EUROS, NOTE], [1]))
    assert steps(tmp_path) == [set(), {1}, {1}]


@pytest.mark.parametrize("given", ["1", 1, [True], ["1"], [1, 1], {"1": 1}, None, [[1]]])
def test_upcasts_are_a_list_of_numbers_each_once(tmp_path: Path, given: object) -> None:
    write(tmp_path, schema("Said", CENTS))
    second = {**schema("Said", EUROS), "upcasts": given}
    write(tmp_path, second, version=2)
    (problem,) = problems_of(tmp_path)
    assert problem.startswith('orders/Said.v2.avsc: "upcasts" is a list of numbers of older versions')


def test_only_older_versions_are_upcast(tmp_path: Path) -> None:
    versions(tmp_path, ([CENTS], [1]), ([EUROS], [0, 2, 3]))
    assert problems_of(tmp_path) == [
        'orders/Said.v1.avsc: "upcasts" names version 1: it names versions before this one, of which there are none',
        *(
            f'orders/Said.v2.avsc: "upcasts" names version {number}: it names versions before this one, from 1 to 1'
            for number in (0, 2, 3)
        ),
    ]


def test_other_logical_types_are_a_step_for_an_upcaster(tmp_path: Path) -> None:
    versions(tmp_path, ([field("sum", decimal(12, 2))], None), ([field("sum", decimal(12, 3)), NOTE], None))
    (problem,) = problems_of(tmp_path)
    assert problem.endswith('have an upcaster read the older version: "upcasts": [1]')
    versions(tmp_path, ([field("sum", decimal(12, 2))], None), ([field("sum", decimal(12, 3)), NOTE], [1]))
    assert steps(tmp_path) == [set(), {1}]


def test_what_a_version_reads_as_one_that_is_upcast_is_upcast_too(tmp_path: Path) -> None:
    versions(tmp_path, ([CENTS], None), ([CENTS, NOTE], None), ([EUROS, NOTE], [2]))
    assert problems_of(tmp_path) == [
        'orders/Said.v3.avsc: "upcasts" has to name version 1, too: version 2, which it upcasts, reads version 1 as '
        "itself"
    ]


def test_a_version_after_a_step_names_what_was_upcast_before_it(tmp_path: Path) -> None:
    versions(tmp_path, ([CENTS], None), ([EUROS], [1]), ([EUROS, NOTE], None))
    assert problems_of(tmp_path) == [
        'orders/Said.v3.avsc: "upcasts" has to name version 1, too: version 2 upcasts it, and this one reads version 2 '
        "as itself"
    ]


def test_a_version_with_the_fingerprint_of_an_upcast_one_is_upcast_too(tmp_path: Path) -> None:
    """A reader takes messages of version 1 for those of version 2, and would not call the upcaster of version 1."""
    versions(tmp_path, ([CENTS], None), ([{**CENTS, "doc": "The sum."}], None), ([CENTS, NOTE], [1]))
    assert problems_of(tmp_path) == [
        'orders/Said.v3.avsc: "upcasts" has to name version 2, too: it has the fingerprint of version 1, which this '
        "one upcasts"
    ]
    versions(tmp_path, ([CENTS], None), ([{**CENTS, "doc": "The sum."}], None), ([CENTS, NOTE], [1, 2]))
    assert steps(tmp_path) == [set(), set(), {1, 2}]


def test_a_step_may_be_taken_back(tmp_path: Path) -> None:
    versions(tmp_path, ([CENTS], None), ([EUROS], [1]), ([CENTS, NOTE], [2]))
    assert steps(tmp_path) == [set(), {1}, {2}]


def test_steps_between_versions_of_one_fingerprint_are_refused(tmp_path: Path) -> None:
    versions(tmp_path, ([field("sum", decimal(12, 2))], None), ([field("sum", decimal(12, 3))], [1]))
    assert any("upcasts version 1 and has its fingerprint" in problem for problem in problems_of(tmp_path))
    versions(tmp_path, ([CENTS], None), ([EUROS], [1]), ([CENTS], [2]))
    (problem,) = problems_of(tmp_path)
    assert problem.startswith("orders/Said.v3.avsc: has the fingerprint of version 1, and version 2 between them")
