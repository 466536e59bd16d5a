"""Any text can be printed: what a terminal obeys is written as its code, and nothing else is changed."""

from hypothesis import given
from hypothesis import strategies as st

from saga.support.printable import printable, printable_lines

ANY = st.text(st.characters())  # halves of surrogate pairs too


@given(ANY)
def test_printed_text_is_one_line_of_visible_characters(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    shown.encode("utf-8")


@given(ANY)
def test_visible_characters_are_not_changed(text: str) -> None:
    visible = "".join(c for c in text if c.isprintable())
    assert printable(visible) == visible


@given(ANY)
def test_only_the_first_of_several_lines_is_not_indented(text: str) -> None:
    first, *others = printable_lines(text)
    assert len(others) == text.count("\n")
    assert all(line.isprintable() for line in (first, *others))
    assert all(line.startswith(" ") for line in others)
