"""Marks of sensitive values, by the type of what holds them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from saga import sensitive
from saga.marks import HIDDEN, TEXT_MAX, hidden, mark, marks_of, secrets_in, unmarked, without


@dataclass(frozen=True)
class Card:
    number: Annotated[str, sensitive]
    year: int = 30


@dataclass(frozen=True)
class Node:
    name: Annotated[str, sensitive]
    next: "Node | None" = None


class Named(msgspec.Struct, rename="camel"):
    holder_name: Annotated[str, sensitive]
    the_year: int = 30


class Typed(TypedDict):
    name: Annotated[str, sensitive]


@dataclass(frozen=True)
class Everything:
    plain: str = "seen"
    text: Annotated[str, sensitive] = "hide"
    absent: Annotated[str | None, sensitive] = None
    maybe: Annotated[int, sensitive] | None = 7
    card: Card = Card("4242")
    cards: tuple[Card, ...] = ()
    pair: tuple[Card, str] | None = None
    named: Named | None = None
    by_name: Mapping[str, str] | None = None
    by_key: dict[str, Card] | None = None
    by_secret: dict[Annotated[str, sensitive], str] | None = None
    either: Card | str | int = 0
    typed: Typed | None = None
    node: Node | None = None


@pytest.mark.parametrize(
    ("changed", "seen"),
    [
        ({}, {}),
        ({"cards": (Card("1"), Card("2"))}, {"cards": [{"number": HIDDEN, "year": 30}] * 2}),
        ({"pair": (Card("1"), "x")}, {"pair": HIDDEN}),
        ({"named": Named("me")}, {"named": {"holderName": HIDDEN, "theYear": 30}}),
        ({"by_name": {"a": "b"}}, {"by_name": {"a": "b"}}),
        (
            {"by_key": {"b": Card("1"), "a": Card("2", 31)}},
            {"by_key": {"b": {"number": HIDDEN, "year": 30}, "a": {"number": HIDDEN, "year": 31}}},
        ),
        ({"by_secret": {"a": "b"}}, {"by_secret": HIDDEN}),
        ({"either": Card("1")}, {"either": {"number": HIDDEN, "year": 30}}),
        ({"either": "text"}, {"either": "text"}),
        ({"typed": {"name": "me"}}, {"typed": HIDDEN}),
        ({"node": Node("a", Node("b"))}, {"node": {"name": HIDDEN, "next": {"name": HIDDEN, "next": None}}}),
    ],
)
def test_what_is_marked_is_hidden_wherever_it_stands_and_comes_back_whole(
    changed: dict[str, Any], seen: dict[str, object]
) -> None:
    value, marks = Everything(**changed), marks_of(Everything)
    assert marks is not None
    plain = msgspec.json.decode(msgspec.json.encode(value, order="deterministic"))
    recorded = marks.changed(value, plain, mark)
    always = {"text": HIDDEN, "maybe": HIDDEN, "card": {"number": HIDDEN, "year": 30}}
    assert hidden(recorded) == {**plain, **always, **seen}
    assert unmarked(recorded) == plain
    assert msgspec.convert(unmarked(recorded), Everything) == value
    assert sorted(secrets_in(recorded)) == sorted(marks.texts(value))


@pytest.mark.parametrize("hint", [int, str | None, dict[str, Any], list[int], type, Any, None, ..., [], Mapping])
def test_types_without_a_mark_have_none(hint: Any) -> None:
    assert marks_of(hint) is None


@pytest.mark.parametrize("value", [None, 3, "text", [1], {"number": 3}, object()])
def test_a_value_that_is_not_of_its_type_is_hidden_as_a_whole(value: object) -> None:
    marks = marks_of(Card)
    assert marks is not None
    assert marks.changed(value, ["something"], mark) == {"_sensitive": ["something"]}


def test_a_short_text_is_hidden_where_it_stands_alone_and_a_longer_one_anywhere() -> None:
    assert without("12 of 312, with 4242 in x4242x", ["12", "4242"]) == "*** of 312, with *** in x***x"


def test_a_text_is_hidden_as_it_is_quoted_too() -> None:
    secret = "O'Hara\n\"\\ü"
    for quoted in (repr(secret), ascii(secret), msgspec.json.encode(secret).decode(), f"{[secret]}"):
        assert without(quoted, [secret]) in ("'***'", '"***"', "['***']", '["***"]'), quoted


def test_of_a_text_without_end_nothing_is_left_that_may_be_cut_in_two() -> None:
    secret = "s" * 300
    for before in (TEXT_MAX - 299, TEXT_MAX - 1, TEXT_MAX - 600):
        assert "ss" not in without("x" * before + secret * 2, [secret])
