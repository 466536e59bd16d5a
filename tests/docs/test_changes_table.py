"""The tables of changes on the page about contracts are those that the tests show."""

from tests.docs.changes_table import COMMAND, PAGE, page


def test_the_tables_are_as_the_tests_show() -> None:
    assert PAGE.read_text("utf-8") == page(), f"run {COMMAND}"
