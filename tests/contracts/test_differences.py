"""What changed between two versions: each change once, with all that it does to readers, and whom it concerns."""

import pytest

from saga.contracts.compatibility import Consumer, SchemaChange, compare_schemas, find_concerns, list_changes
from saga.contracts.contract import Version
from saga.contracts.loading import make_version
from tests.contracts import changes
from tests.contracts.changes import CHANGES
from tests.contracts.folders import decimal, field, schema


def version(*fields: dict[str, object], number: int = 1, **attributes: object) -> Version:
    return make_version(schema("Said", *fields, **attributes), f"orders/Said.v{number}", "Said", number)


def summarize(change: SchemaChange) -> tuple[str, str | None, str | None, list[str], list[str]]:
    ways = [[f"{finding.rule} {finding.effect}" for finding in way] for way in (change.backward, change.forward)]
    return change.says, change.old, change.new, ways[0], ways[1]


def part(*fields: dict[str, object], name: str = "Part") -> dict[str, object]:
    return {"type": "record", "name": name, "fields": list(fields)}


def test_each_kind_of_change_is_reported_with_its_effects() -> None:
    colour = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
    old = version(
        field("gone", "int"),
        field("total", "int"),
        field("colour", colour),
        field("many", {"type": "array", "items": part(field("price", decimal(12, 2)))}),
        field("note", "string", default=""),
        field("card", "string"),
    )
    new = version(
        field("added", "string"),
        field("amount", "long", aliases=["total"]),
        field("colour", {**colour, "symbols": ["RED", "NAVY"], "default": "RED"}),
        field("many", {"type": "array", "items": part(field("price", decimal(12, 4)))}),
        field("note", "string", default="none"),
        field("card", "string", sensitive=True),
        number=2,
        upcasts=[1],
        doc="It was said.",
    )
    assert [summarize(change) for change in list_changes(old, new)] == [
        ('"upcasts": none -> [1]', "", "", [], []),
        ("its description", "", "", [], []),
        ("added: string", None, "added", ["no-default fails"], []),
        ("renamed: total -> amount, alias total", "total", "amount", [], ["no-default fails"]),
        ("type: int -> long", "total", "amount", [], []),
        ("symbols: added NAVY; removed BLUE", "colour", "colour", ["symbols default"], ["symbols fails"]),
        ("default of enum Colour: none -> RED", "colour", "colour", [], []),
        (
            "type: decimal(12,2) -> decimal(12,4)",
            "many[].price",
            "many[].price",
            ["logical-type misread"],
            ["logical-type misread"],
        ),
        ("default: '' -> 'none'", "note", "note", ["default-changed misread"], ["default-changed misread"]),
        ("sensitive", "card", "card", [], []),
        ("removed: int", "gone", None, [], ["no-default fails"]),
    ]


def test_versions_that_are_the_same_have_no_changes() -> None:
    one = version(field("total", decimal()))
    assert list_changes(one, one) == ()
    moved = version(field("b", "int"), field("a", "int")), version(field("a", "int"), field("b", "int"))
    assert [change.kind for change in list_changes(*moved)] == ["order"]


def test_a_field_that_keeps_its_name_is_not_renamed_by_an_alias() -> None:
    old = version(field("x", "int"), field("y", "int"))
    changed = list_changes(old, version(field("x", "int", aliases=["y"]), number=2))
    assert [(c.kind, c.old, c.new) for c in changed] == [("aliases", "x", "x"), ("removed", "y", None)]


def test_a_field_that_gets_its_older_name_back_has_the_findings_of_the_one_that_is_gone() -> None:
    """The older version reads the newer one by its alias, so it finds what its own field cannot take."""
    inner = part(field("price", "int"))
    old = version(field("amount", "int", aliases=["total"]), field("parts", inner, aliases=["lines"]))
    new = version(field("total", "long"), field("lines", part(field("price", "long"))), number=2)
    assert [summarize(change) for change in list_changes(old, new)] == [
        ("added: long", None, "total", ["no-default fails"], []),
        ("added: record Part", None, "lines", ["no-default fails"], []),
        ("removed: int", "amount", None, [], ["type fails"]),
        ("removed: record Part", "parts", None, [], ["type fails"]),
    ]


def test_what_becomes_optional_is_one_change_and_those_inside_are_their_own() -> None:
    old = version(field("x", "int"), field("y", part(field("a", "int"))))
    new = version(
        field("x", ["null", "long"], default=None),
        field("y", ["null", part(field("a", "int"), field("b", "int", default=0))]),
    )
    assert [(c.kind, c.path, c.says) for c in list_changes(old, new)] == [
        ("type", "x", "type: int -> optional long"),
        ("default", "x", "default: none -> None"),
        ("type", "y", "type: record Part -> optional record Part"),
        ("added", "y.b", "added: int, default 0"),
    ]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.what)
def test_every_finding_belongs_to_one_change_and_to_its_path(change: changes.Change) -> None:
    old, new = version(*change.old), version(*change.new, number=2)
    found = list_changes(old, new)
    assert sorted(f.says for c in found for f in c.backward) == sorted(
        f.says for f in compare_schemas(old.record, new.record)
    )
    assert sorted(f.says for c in found for f in c.forward) == sorted(
        f.says for f in compare_schemas(new.record, old.record)
    )
    for one in found:
        assert all(finding.path == one.new for finding in one.backward)
        assert all(finding.path == one.old for finding in one.forward)
        assert all(one.says != finding.says for finding in (*one.backward, *one.forward)), "it was not seen as a change"


def test_a_change_concerns_services_that_may_read_its_field_and_a_failure_all_of_them() -> None:
    old = version(
        field("total", decimal(12, 2)), field("note", "string", default=""), field("at", part(field("x", "int")))
    )
    new = version(field("total", decimal(12, 4)), field("at", part(field("x", "string"))), number=2)
    consumers = [
        Consumer(service="bank", fields=frozenset({"total"})),
        Consumer(service="post", fields=frozenset({"note", "order_id"})),
        Consumer(service="maps", fields=frozenset({"at.x"})),
        Consumer(service="lake", fields=None),
    ]
    found = {
        (c.service, c.direction, c.effect, c.change.path) for c in find_concerns(list_changes(old, new), consumers)
    }
    fails = {(s, way, "fails", "at.x") for s in ("bank", "post", "maps", "lake") for way in ("backward", "forward")}
    misread = {(s, way, "misread", "total") for s in ("bank", "lake") for way in ("backward", "forward")}
    note = {
        (s, way, effect, "note")
        for s in ("post", "lake")
        for way, effect in (("forward", "default"), ("backward", "gone"))
    }
    assert found == fails | misread | note


def test_a_consumer_of_a_part_is_concerned_by_the_whole_and_the_other_way_round() -> None:
    lines = {"type": "array", "items": part(field("price", decimal(12, 2)), field("sku", "string"))}
    dearer = {"type": "array", "items": part(field("price", decimal(12, 3)), field("sku", "string"))}
    changed = list_changes(version(field("lines", lines)), version(field("lines", dearer), number=2))
    names = ["lines", "lines.price", "lines.sku", "line"]
    consumers = [Consumer(service=name, fields=frozenset({name})) for name in names]
    assert {concern.service for concern in find_concerns(changed, consumers)} == {"lines", "lines.price"}
