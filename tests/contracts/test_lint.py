"""Style of contracts: each rule finds what it is for, lets pass what is fine, and can be silenced."""

from pathlib import Path
from typing import Any

import pytest

from saga.contracts.checks import LINT_RULES, ContractProblem, lint, lint_version
from saga.contracts.library import Library
from saga.contracts.loading import make_version
from tests.contracts.folders import decimal, field

ROOT = Path(__file__).parents[2]
WORDS: dict[str, Any] = {"type": "enum", "name": "Way", "doc": "A way.", "symbols": ["AIR", "SEA"], "default": "SEA"}


def event_schema(
    name: str = "GoodsSent", topic: str = "goods", key: str = "order_id", **attributes: Any
) -> dict[str, Any]:
    """A schema with which nothing is wrong, but for what is given."""
    fields = attributes.pop("fields", [])
    return {
        "type": "record",
        "name": name,
        "doc": "The goods were sent.",
        "topic": topic,
        "key": key,
        "owner": "order",
        **attributes,
        "fields": [field(key, "string", doc="The order."), *fields],
    }


def problems(schema: dict[str, Any]) -> list[ContractProblem]:
    return lint_version(make_version(schema, f"{schema['topic']}/{schema['name']}.v1", schema["name"], 1))


def of(name: str, type_: Any = "string", doc: str = "It.", **attributes: Any) -> dict[str, Any]:
    """A schema with one field more."""
    return event_schema(fields=[field(name, type_, doc=doc, **attributes)])


def part(*fields: dict[str, Any], name: str = "Part", **attributes: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "doc": "A part.", **attributes, "fields": list(fields)}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def optional(type_: Any, name: str = "x") -> dict[str, Any]:
    return of(name, ["null", type_], default=None)


def without_default(enum: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in enum.items() if key != "default"}


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("type-case", event_schema("goods_sent"), "", "the event goods_sent is not called in CamelCase"),
    ("type-case", of("x", WORDS | {"name": "way"}), "x", "x: the enum way is not called in CamelCase"),
    ("type-case", of("x", part(field("a", "int", doc="A."), name="part")), "x", "x: the record part is not called in"),
    ("field-case", of("orderTotal"), "orderTotal", "orderTotal: is not called in snake_case"),
    ("field-case", of("Note"), "Note", "Note: is not called in snake_case"),
    (
        "symbol-case",
        of("x", WORDS | {"symbols": ["SEA", "air"]}),
        "x",
        "x: the symbols of Way are not",
    ),
    ("topic-case", event_schema(topic="Goods_sent"), "", "the topic Goods_sent is not lower case"),
    ("doc", event_schema(doc=" "), "", "the event GoodsSent has no description"),
    ("doc", of("x", doc=""), "x", "x: it has no description"),
    ("doc", of("x", part(field("a", "int"))), "x.a", "x.a: it has no description"),
    (
        "doc",
        of("x", {"type": "array", "items": part(field("a", "int", doc="A."), doc="")}),
        "x[]",
        "x[]: the record Part",
    ),
    ("doc", of("x", {"type": "map", "values": WORDS | {"doc": None}}), "x{}", "x{}: the enum Way has no description"),
    ("key-name", event_schema(key="order"), "", "the key order is the name of the kind of saga"),
    ("sensitive", of("card"), "card", "card: sounds like personal data or a secret"),
    ("sensitive", of("customer_email"), "customer_email", "customer_email: sounds like"),
    ("sensitive", of("iban"), "iban", "iban: sounds like"),
    ("sensitive", of("phone_number"), "phone_number", "phone_number: sounds like"),
    ("sensitive", of("first_name"), "first_name", "first_name: sounds like"),
    (
        "sensitive",
        of("who", ["null", part(field("tax_id", "string", doc="T."))], default=None),
        "who.tax_id",
        "who.tax_id: s",
    ),
    ("unit", of("weight", "int"), "weight", "weight: is a measure without a unit"),
    ("unit", of("timeout", "double"), "timeout", "timeout: is a measure without a unit"),
    ("unit", of("amount", decimal()), "amount", "amount: is a measure without a unit"),
    (
        "unit",
        of("weight", "int", doc="What a parcel may weigh, in a d, an h or an m."),
        "weight",
        "weight: is a measure",
    ),
    ("unit", of("m_weight", "int"), "m_weight", "m_weight: is a measure without a unit"),
    (
        "unit",
        of("weights", {"type": "array", "items": part(field("weight", "int", doc="W."))}),
        "weights[].weight",
        "weig",
    ),
    ("unit", optional("long", "max_age"), "max_age", "max_age: is a measure"),
    ("money-float", of("total_eur", "double"), "total_eur", "total_eur: is money as double, which rounds"),
    ("money-float", of("price_usd", ["null", "float"], default=None), "price_usd", "price_usd: is money as float"),
    ("time-type", of("paid_at"), "paid_at", "paid_at: is called like a time and is string"),
    ("time-type", of("due_date", "long"), "due_date", "due_date: is called like a time and is long"),
    ("optional-default", of("note", ["null", "string"]), "note", "note: is optional, and has no default"),
    (
        "enum-default",
        of("x", {k: v for k, v in WORDS.items() if k != "default"}),
        "x",
        "x: the enum Way has no default",
    ),
    ("silenced", of("x", lint=["units"]), "x", "x: \"lint\" names 'units', which is no rule"),
    ("silenced", of("x", lint=[["unit"]]), "x", "x: \"lint\" names ['unit'], which is no rule"),
    ("silenced", event_schema(lint="unit"), "", '"lint" is a list of rules, as ["unit"], not \'unit\''),
]


@pytest.mark.parametrize(("rule", "schema", "at", "says"), BAD, ids=[f"{rule} {says[:30]}" for rule, _, _, says in BAD])
def test_a_rule_finds_what_it_is_for(rule: str, schema: dict[str, Any], at: str, says: str) -> None:
    (found,) = problems(schema)
    assert (found.rule, found.at) == (rule, at)
    assert found.says.startswith(says)
    assert found.file == f"{schema['topic']}/{schema['name']}.v1.avsc"


@pytest.mark.parametrize(
    "schema",
    [
        event_schema(),
        of("x", WORDS),
        of("x", WORDS | {"symbols": ["air", "by_sea"], "default": "air"}),
        of("x", WORDS | {"symbols": ["Air", "BySea"], "default": "Air"}),
        of("card", sensitive=True),
        of("card_kind", sensitive=False),
        of("card_count", "int"),
        of("address_id"),
        of("weight_kg", "int"),
        of("weight", "int", doc="What it weighs, in grams."),
        of("timeout_s", "double"),
        of("total", decimal(), doc="What it costs, in euros."),
        of("quantity", "int"),
        of("weight"),  # no number
        of("paid_at", {"type": "long", "logicalType": "timestamp-millis"}),
        of("due_date", ["null", {"type": "int", "logicalType": "date"}], default=None),
        of("format"),
        event_schema(fields=[field("price", decimal(), doc="It."), field("currency", "string", doc="It.")]),
        event_schema(topic="shop.goods-sent"),
    ],
    ids=lambda schema: f"{schema['topic']} {schema['fields'][-1]['name']}",
)
def test_what_is_fine_is_let_pass(schema: dict[str, Any]) -> None:
    assert problems(schema) == []


@pytest.mark.parametrize(("rule", "schema", "at"), [bad[:3] for bad in BAD if bad[0] != "silenced"])
def test_each_rule_can_be_silenced_at_the_record_for_all_in_it(rule: str, schema: dict[str, Any], at: str) -> None:
    assert problems(schema | {"lint": [rule]}) == []


def test_a_rule_is_silenced_where_the_schema_names_it_and_nowhere_else() -> None:
    fields = [field("weight", "int", doc="It.", lint=["unit"]), field("length", "int", doc="It.")]
    assert [found.at for found in problems(event_schema(fields=fields))] == ["length"]
    inside = part(*(dict(one) for one in fields))
    assert [found.at for found in problems(event_schema(fields=[field("x", inside, doc="It.")]))] == ["x.length"]
    whole = part(*(dict(one) for one in fields), lint=["unit"])
    assert problems(event_schema(fields=[field("x", whole, doc="It.")])) == []


def test_every_rule_has_a_test_and_a_sentence() -> None:
    assert {bad[0] for bad in BAD} | {"contract"} == set(LINT_RULES)
    page = (ROOT / "docs/reference/contracts.md").read_text("utf-8")
    for rule, sentence in LINT_RULES.items():
        assert f"| `{rule}` | {sentence} |" in page


def test_a_type_used_twice_is_reported_once_and_the_newest_version_alone(tmp_path: Path) -> None:
    schema = event_schema(fields=[field("x", part(field("a", "int"))), field("y", "Part", doc="It.")])
    schema["fields"][1]["doc"] = "It."
    assert [found.at for found in problems(schema)] == ["x.a"]


def test_the_contracts_of_the_example_have_the_style() -> None:
    assert lint(Library.load(ROOT / "contracts").contracts.values()) == []
