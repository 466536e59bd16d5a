"""Marks of sensitive values, by the type of what holds them."""

import base64
import html
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Annotated, Any, Generic, NewType, TypedDict, TypeVar
from urllib import parse

import msgspec
import pytest
from typing_extensions import TypeAliasType, TypeVarTuple

from saga import sensitive
from saga.encryption.sensitive_fields import (
    HIDDEN,
    TEXT_MAX,
    collect_texts,
    find_marks,
    find_secrets,
    hide_marked,
    mark,
    redact_text,
    unwrap_marked,
)


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
def test_sensitive_fields_are_redacted_at_every_depth_and_restored_unchanged(
    changed: dict[str, Any], seen: dict[str, object]
) -> None:
    value, marks = Everything(**changed), find_marks(Everything)
    assert marks is not None
    plain = msgspec.json.decode(msgspec.json.encode(value, order="deterministic"))
    recorded = marks.change(value, plain, mark)
    always = {"text": HIDDEN, "maybe": HIDDEN, "card": {"number": HIDDEN, "year": 30}}
    assert hide_marked(recorded) == {**plain, **always, **seen}
    assert unwrap_marked(recorded) == plain
    assert msgspec.convert(unwrap_marked(recorded), Everything) == value
    assert sorted(find_secrets(recorded)) == sorted(marks.texts(value))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs the type statement")
def test_sensitive_is_found_behind_a_type_statement() -> None:
    names: dict[str, Any] = {"Annotated": Annotated, "sensitive": sensitive}
    exec("type Secret = Annotated[str, sensitive]", names)
    marks = find_marks(names["Secret"])
    assert marks is not None
    assert marks.change("4111", "4111", mark) == {"_sensitive": "4111"}


T = TypeVar("T")
Maybe = TypeAliasType("Maybe", T | None, type_params=(T,))


@dataclass(frozen=True)
class Page(Generic[T]):
    items: tuple[T, ...]
    owner: Annotated[str, sensitive] = "me"


CardOnFile = NewType("CardOnFile", Card)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Page[int], Page((1,))),
        (list[Page[int]], [Page((1,))]),
        (Page[Page[int]] | None, Page((Page((1,)),))),
        (Page[Card], Page((Card("4242"),))),
        (CardOnFile, Card("4242")),
        (dict[str, CardOnFile], {"a": Card("4242")}),
    ],
)
def test_sensitive_fields_of_a_generic_class_and_of_a_new_type_are_redacted(hint: Any, value: object) -> None:
    marks = find_marks(hint)
    assert marks is not None
    plain = msgspec.json.decode(msgspec.json.encode(value))
    recorded = marks.change(value, plain, mark)
    assert not re.search("me|4242", json.dumps(hide_marked(recorded)))
    assert msgspec.convert(unwrap_marked(recorded), hint) == value


def test_sensitive_is_found_in_the_argument_of_an_alias_with_parameters() -> None:
    marks = find_marks(Maybe[Annotated[str, sensitive]])
    assert marks is not None
    assert marks.change("4111", "4111", mark) == {"_sensitive": "4111"}
    assert find_marks(Maybe[str]) is None


def test_sensitive_is_found_in_the_arguments_of_an_alias_that_takes_any_number_of_them() -> None:
    several: Any = TypeVarTuple  # type checkers want both to be declared in a module
    alias: Any = TypeAliasType
    types = several("types")
    row = alias("row", tuple[*types], type_params=(types,))  # type: ignore[valid-type] # made above
    marks = find_marks(row[Annotated[str, sensitive], int])
    assert marks is not None
    assert marks.change(("4111", 1), ["4111", 1], mark) == {"_sensitive": ["4111", 1]}
    assert find_marks(row[str, int]) is None
    assert find_marks(row) is None


@pytest.mark.parametrize("hint", [int, str | None, dict[str, Any], list[int], type, Any, None, ..., [], Mapping])
def test_types_without_sensitive_fields_are_recognised(hint: Any) -> None:
    assert find_marks(hint) is None


@pytest.mark.parametrize("value", [None, 3, "text", [1], {"number": 3}, object()])
def test_a_value_of_the_wrong_type_is_redacted_as_a_whole(value: object) -> None:
    marks = find_marks(Card)
    assert marks is not None
    assert marks.change(value, ["something"], mark) == {"_sensitive": ["something"]}


def test_a_short_text_is_redacted_as_a_whole_word_and_a_longer_one_anywhere() -> None:
    assert redact_text("12 of 312, with 4242 in x4242x", ["12", "4242"]) == "*** of 312, with *** in x***x"


def test_a_text_is_redacted_in_quoted_form_too() -> None:
    secret = "O'Hara\n\"\\ü"
    for quoted in (repr(secret), ascii(secret), msgspec.json.encode(secret).decode(), f"{[secret]}"):
        assert redact_text(quoted, [secret]) in ("'***'", '"***"', "['***']", '["***"]'), quoted


def test_a_truncated_text_shows_no_part_of_a_secret() -> None:
    secret = "s" * 300
    for before in (TEXT_MAX - 299, TEXT_MAX - 1, TEXT_MAX - 600):
        assert "ss" not in redact_text("x" * before + secret * 2, [secret])


# ---------------------------------------------------------------- ways to write a text

SECRETS = (
    "4111-1111-1111-1111",
    "DE89 3704 0044 0532 0130 00",
    "Jürgen Müßig",
    "O'Hara & Söhne <info@example.org>",
    "80331 München, Straße 5/b",
    "p4ss/word+with=signs?",
    "日本語のテキスト",
    'a "quoted"\ttext\\',
    "hunter2",
)
WAYS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "upper": str.upper,
    "lower": str.lower,
    "title": str.title,
    "swapped": str.swapcase,
    "casefolded": str.casefold,
    "repr": repr,
    "ascii": ascii,
    "JSON": json.dumps,
    "JSON in its own letters": lambda text: json.dumps(text, ensure_ascii=False),
    "JSON in JSON": lambda text: json.dumps(json.dumps({"x": text})),
    "address": parse.quote,
    "address, all quoted": lambda text: parse.quote(text, safe=""),
    "form": parse.quote_plus,
    "form, upper": lambda text: parse.quote_plus(text.upper()),
    "address in an address": lambda text: parse.quote(parse.quote(text, safe=""), safe=""),
    "address in small letters": lambda text: parse.quote(text).lower(),
    "markup": html.escape,
    "markup in ASCII": lambda text: text.encode("ascii", "xmlcharrefreplace").decode(),
    "bytes": lambda text: repr(text.encode()),
    "wrong encoding": lambda text: text.encode().decode("latin-1"),
    "another wrong encoding": lambda text: text.encode().decode("cp1252", "replace"),
    "lost letters": lambda text: text.encode("ascii", "replace").decode(),
    "taken apart": lambda text: unicodedata.normalize("NFD", text),
    "taken apart, quoted": lambda text: parse.quote(unicodedata.normalize("NFD", text)),
    "put together": lambda text: unicodedata.normalize("NFC", text),
    "digits": lambda text: text.encode().hex(),
    "upper digits": lambda text: text.encode().hex().upper(),
    "base64": lambda text: base64.b64encode(text.encode()).decode().strip("="),
    "base64 in an address": lambda text: base64.urlsafe_b64encode(text.encode()).decode().strip("="),
    "without separators": lambda text: re.sub("[ -]", "", text) if text[-1].isdigit() else text,
    "in groups of five": lambda text: (
        " ".join(re.findall(".{1,5}", re.sub("[ -]", "", text))) if text[-1].isdigit() else text
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_redacted_in_every_spelling(secret: str, way: str) -> None:
    written = WAYS[way](secret)
    if written.count("?") >= len(written) - 3:  # no letter is left of it
        return
    left = redact_text(f"the bank refuses <{written}> today", ["other", secret, "12"])
    assert written.strip("\"'b") not in left
    assert HIDDEN in left
    assert len(left) < len("the bank refuses <> today") + 20, left


@pytest.mark.parametrize("neighbours", [("", ""), ("a", "b"), ("user:", ""), ("xy", "!?")])
def test_a_secret_is_redacted_inside_base64(neighbours: tuple[str, str]) -> None:
    packed = base64.b64encode("hunter2-SECRET".join(neighbours).encode()).decode()
    assert len(redact_text(packed, ["hunter2-SECRET"])) < len(packed) - 12


@pytest.mark.parametrize(
    ("secret", "written"),
    [
        ("1980-05-17", repr(date(1980, 5, 17))),
        ("1980-05-17", "17.05.1980"),
        ("1980-05-17", "05/17/1980"),
        ("2026-11-21T14:06:40.123Z", "2026-11-21 14:06:40.123000"),
        ("2026-11-21T14:06:40.123Z", repr(datetime(2026, 11, 21, 14, 6, 40, 123000, UTC))),
        ("1234567", "1,234,567"),
    ],
)
def test_a_date_time_or_number_is_redacted_in_every_format(secret: str, written: str) -> None:
    assert HIDDEN in redact_text(f"refused: {written}.", [secret])
    assert written not in redact_text(f"refused: {written}.", [secret])


def test_a_sensitive_boolean_is_redacted_where_it_is_a_whole_word() -> None:
    assert list(collect_texts([True, None, False])) == ["True", "False"]
    assert redact_text("positive=True, true; construed", ["True"]) == "positive=***, ***; construed"


def test_text_without_secrets_is_not_changed() -> None:
    text = "the order 4712 of customer-18 in Kiel, 1980-05-18, was refused: 41 of 412 pieces"
    assert redact_text(text, ["4711", "customer-17", "1980-05-17", "12", "", "Köln"]) == text
