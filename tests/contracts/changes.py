"""Table of changes of a contract from one version to the next, each with its verdict in both directions.

`test_changes.py` shows each verdict by writing with one version and reading with the other, and holds what other
checkers say against it; `docs/reference/contracts.md` has the table for people.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tests.contracts.folders import decimal, field

Verdict: TypeAlias = Literal["fine", "default", "fails", "misread"]
"""What becomes of the messages: read as they were written; a default stands in; some cannot be read; some are taken
for something else."""


@dataclass(frozen=True, kw_only=True)
class Change:
    what: str
    """The change, in the words of the page."""
    old: Sequence[dict[str, Any]]
    new: Sequence[dict[str, Any]]
    """Fields of the two versions, beside the key."""
    says_old: Sequence[dict[str, Any]]
    says_new: Sequence[dict[str, Any]]
    """Messages of the two versions, as JSON has them, without the key."""
    backward: Verdict
    """What becomes of old messages, read with the new version."""
    forward: Verdict
    """What becomes of new messages, read with the old version."""
    refused: bool = False
    """True if the two cannot stand in one folder, unless an upcaster reads the old one, whatever the mode is."""
    avro: str = ""
    """Why the checker of Avro's own library says something else; empty if it agrees."""


LOGICAL = "does not look at logical types"
DIGITS = "does not look at a decimal's digits"
ROUNDING = "resolution allows it, and rounds"
TEXT = "resolution allows it, and fails on bytes that are no UTF-8"
DEFAULT = "does not compare defaults"
ALIAS = "takes the first that fits"


def _of_type(
    what: str,
    old: Any,
    new: Any,
    says_old: Sequence[Any],
    says_new: Sequence[Any],
    verdicts: tuple[Verdict, Verdict],
    **more: Any,
) -> Change:
    """A change of the type of a field `x`."""
    return Change(
        what=what,
        old=[field("x", old)],
        new=[field("x", new)],
        says_old=[{"x": value} for value in says_old],
        says_new=[{"x": value} for value in says_new],
        backward=verdicts[0],
        forward=verdicts[1],
        **more,
    )


def _logical(kind: str, annotated: str) -> dict[str, Any]:
    return {"type": annotated, "logicalType": kind}


def _enum(*symbols: str, name: str = "Colour", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def _part(*fields: dict[str, Any], name: str = "Part", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def _array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _map(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


UUID_ = _logical("uuid", "string")
DATE = _logical("date", "int")
MILLIS = _logical("timestamp-millis", "long")
MICROS = _logical("timestamp-micros", "long")
AN_ID = "6f2b7f0e-6a1c-4f57-8f3a-0d9a1c2b3e4f"
INT, LONG, DOUBLE = [5, -(2**31)], [5, 2**62 + 1], [0.5, 1e300]
MOMENT = ["2026-11-23T10:00:00Z"]
A = field("a", "string")
GREY = _enum("RED", "GREEN", "GREY", default="GREY")

FIELDS: list[Change] = [
    Change(
        what="a field with a default is added",
        old=[A],
        new=[A, field("x", "int", default=0)],
        says_old=[{"a": "1"}],
        says_new=[{"a": "1", "x": 7}],
        backward="default",
        forward="fine",
    ),
    Change(
        what="a field without a default is added",
        old=[A],
        new=[A, field("x", "int")],
        says_old=[{"a": "1"}],
        says_new=[{"a": "1", "x": 7}],
        backward="fails",
        forward="fine",
    ),
    Change(
        what="an optional field with default null is added",
        old=[A],
        new=[A, field("x", ["null", "string"], default=None)],
        says_old=[{"a": "1"}],
        says_new=[{"a": "1", "x": "b"}, {"a": "1"}],
        backward="default",
        forward="fine",
    ),
    Change(
        what="an optional field without a default is added",
        old=[A],
        new=[A, field("x", ["null", "string"])],
        says_old=[{"a": "1"}],
        says_new=[{"a": "1", "x": None}],
        backward="fails",
        forward="fine",
    ),
    Change(
        what="a field with a default is removed",
        old=[A, field("x", "int", default=0)],
        new=[A],
        says_old=[{"a": "1", "x": 7}],
        says_new=[{"a": "1"}],
        backward="fine",
        forward="default",
    ),
    Change(
        what="a field without a default is removed",
        old=[A, field("x", "int")],
        new=[A],
        says_old=[{"a": "1", "x": 7}],
        says_new=[{"a": "1"}],
        backward="fine",
        forward="fails",
    ),
    Change(
        what="fields change places",
        old=[A, field("x", "int")],
        new=[field("x", "int"), A],
        says_old=[{"a": "1", "x": 7}],
        says_new=[{"a": "1", "x": 7}],
        backward="fine",
        forward="fine",
    ),
    Change(
        what="docs change, or a field becomes sensitive",
        old=[A],
        new=[A | {"doc": "A letter.", "sensitive": True}],
        says_old=[{"a": "1"}],
        says_new=[{"a": "1"}],
        backward="fine",
        forward="fine",
    ),
    Change(
        what="a field is renamed, with an alias",
        old=[field("x", "int")],
        new=[field("y", "int", aliases=["x"])],
        says_old=[{"x": 7}],
        says_new=[{"y": 7}],
        backward="fine",
        forward="fails",
    ),
    Change(
        what="a field is renamed, without an alias",
        old=[field("x", "int")],
        new=[field("y", "int")],
        says_old=[{"x": 7}],
        says_new=[{"y": 7}],
        backward="fails",
        forward="fails",
    ),
    Change(
        what="a field with a default is renamed, with an alias",
        old=[field("x", "int", default=0)],
        new=[field("y", "int", default=0, aliases=["x"])],
        says_old=[{"x": 7}],
        says_new=[{"y": 7}],
        backward="fine",
        forward="default",
    ),
    Change(
        what="a field is renamed and its type widened, with an alias",
        old=[field("x", "int", default=0)],
        new=[field("y", "long", default=0, aliases=["x"])],
        says_old=[{"x": 7}],
        says_new=[{"y": 2**40}],
        backward="fine",
        forward="default",
    ),
    Change(
        what="an alias is added",
        old=[field("x", "int")],
        new=[field("x", "int", aliases=["y"])],
        says_old=[{"x": 7}],
        says_new=[{"x": 7}],
        backward="fine",
        forward="fine",
    ),
    Change(
        what="a field takes the alias of one that was beside it",
        old=[field("y", "int"), field("x", "int")],
        new=[field("x", "int", aliases=["y"])],
        says_old=[{"y": 1, "x": 7}],
        says_new=[{"x": 7}],
        backward="misread",
        forward="fails",
        avro=ALIAS,
    ),
    Change(
        what="the same, behind it",
        old=[field("x", "int"), field("y", "int")],
        new=[field("x", "int", aliases=["y"])],
        says_old=[{"y": 1, "x": 7}],
        says_new=[{"x": 7}],
        backward="fails",
        forward="fails",
        avro=ALIAS,
    ),
    Change(
        what="a default is added to a field",
        old=[field("x", "int")],
        new=[field("x", "int", default=3)],
        says_old=[{"x": 7}],
        says_new=[{"x": 7}],
        backward="fine",
        forward="fine",
    ),
    Change(
        what="a field loses its default",
        old=[field("x", "int", default=3)],
        new=[field("x", "int")],
        says_old=[{"x": 7}],
        says_new=[{"x": 7}],
        backward="fine",
        forward="fine",
    ),
    Change(
        what="a default changes",
        old=[field("x", "int", default=3)],
        new=[field("x", "int", default=4)],
        says_old=[{"x": 7}],
        says_new=[{"x": 7}],
        backward="misread",
        forward="misread",
        avro=DEFAULT,
    ),
    Change(
        what="text becomes bytes, with the same default",
        old=[field("x", "string", default="a")],
        new=[field("x", "bytes", default="a")],
        says_old=[{"x": "b"}],
        says_new=[{"x": "/w=="}],
        backward="fine",
        forward="fails",
        avro=TEXT,
    ),
    Change(
        what="the default of an optional field changes from null to a value",
        old=[field("x", ["null", "int"], default=None)],
        new=[field("x", ["int", "null"], default=4)],
        says_old=[{"x": 7}, {"x": None}],
        says_new=[{"x": 7}, {"x": None}],
        backward="misread",
        forward="misread",
        avro=DEFAULT,
    ),
]
SCALARS: list[Change] = [
    _of_type("int becomes long", "int", "long", INT, LONG, ("fine", "fails")),
    _of_type("int becomes double", "int", "double", [2**31 - 1], DOUBLE, ("fine", "fails")),
    _of_type("int becomes float", "int", "float", [2**24 + 1], [0.5], ("misread", "fails"), avro=ROUNDING),
    _of_type("long becomes float", "long", "float", [2**24 + 1], [0.5], ("misread", "fails"), avro=ROUNDING),
    _of_type("long becomes double", "long", "double", [2**53 + 1], DOUBLE, ("misread", "fails"), avro=ROUNDING),
    _of_type("float becomes double", "float", "double", [0.5], DOUBLE, ("fine", "fails")),
    _of_type("long becomes int", "long", "int", LONG, INT, ("fails", "fine")),
    _of_type("string becomes bytes", "string", "bytes", ["é"], ["/w=="], ("fine", "fails"), avro=TEXT),
    _of_type("int becomes string", "int", "string", INT, ["5"], ("fails", "fails")),
    _of_type("string becomes long", "string", "long", ["5"], LONG, ("fails", "fails")),
    _of_type("boolean becomes int", "boolean", "int", [True], INT, ("fails", "fails")),
    _of_type("boolean becomes string", "boolean", "string", [True], ["true"], ("fails", "fails")),
    _of_type("double becomes string", "double", "string", DOUBLE, ["0.5"], ("fails", "fails")),
    _of_type("bytes becomes long", "bytes", "long", ["/w=="], LONG, ("fails", "fails")),
    _of_type("string becomes an enum", "string", _enum("RED"), ["RED"], ["RED"], ("fails", "fails")),
    _of_type("string becomes a record", "string", _part(A), ["1"], [{"a": "1"}], ("fails", "fails")),
]
LOGICALS: list[Change] = [
    _of_type(
        "a decimal gets another scale",
        decimal(12, 2),
        decimal(12, 4),
        ["9.80"],
        ["9.8012"],
        ("misread", "misread"),
        refused=True,
        avro=LOGICAL,
    ),
    _of_type(
        "a decimal gets more digits",
        decimal(4, 2),
        decimal(6, 2),
        ["99.99"],
        ["9999.99"],
        ("fine", "fails"),
        avro=DIGITS,
    ),
    _of_type(
        "a decimal gets fewer digits",
        decimal(6, 2),
        decimal(4, 2),
        ["9999.99"],
        ["99.99"],
        ("fails", "fine"),
        avro=DIGITS,
    ),
    _of_type(
        "bytes become a decimal",
        "bytes",
        decimal(),
        ["AQ=="],
        ["9.80"],
        ("misread", "misread"),
        refused=True,
        avro=LOGICAL,
    ),
    _of_type("a double becomes a decimal", "double", decimal(), [9.8], ["9.80"], ("fails", "fails"), refused=True),
    _of_type(
        "a string becomes a decimal",
        "string",
        decimal(),
        ["9"],
        ["0.57"],
        ("misread", "misread"),
        refused=True,
        avro=LOGICAL,
    ),
    _of_type(
        "an int becomes a date", "int", DATE, [5], ["2026-11-23"], ("misread", "misread"), refused=True, avro=LOGICAL
    ),
    _of_type(
        "a date becomes a string", DATE, "string", ["2026-11-23"], ["2026-11-23"], ("fails", "fails"), refused=True
    ),
    _of_type(
        "a date becomes a timestamp",
        DATE,
        MILLIS,
        ["2026-11-23"],
        MOMENT,
        ("misread", "fails"),
        refused=True,
        avro=LOGICAL,
    ),
    _of_type(
        "a long becomes a timestamp", "long", MILLIS, [5], MOMENT, ("misread", "misread"), refused=True, avro=LOGICAL
    ),
    _of_type(
        "milliseconds become microseconds",
        MILLIS,
        MICROS,
        MOMENT,
        ["1970-01-02T10:00:00Z"],
        ("misread", "misread"),
        refused=True,
        avro=LOGICAL,
    ),
    _of_type(
        "a uuid becomes a string",
        UUID_,
        "string",
        [AN_ID],
        ["order-7"],
        ("fine", "fails"),
        refused=True,
        avro=LOGICAL,
    ),
    _of_type(
        "a string becomes a uuid",
        "string",
        UUID_,
        ["order-7"],
        [AN_ID],
        ("fails", "fine"),
        refused=True,
        avro=LOGICAL,
    ),
]
ENUMS: list[Change] = [
    _of_type("an enum gets a symbol", _enum("RED"), _enum("RED", "BLUE"), ["RED"], ["BLUE"], ("fine", "fails")),
    _of_type("an enum loses a symbol", _enum("RED", "BLUE"), _enum("RED"), ["BLUE"], ["RED"], ("fails", "fine")),
    _of_type(
        "an enum with a default gets a symbol",
        GREY,
        _enum("RED", "GREEN", "GREY", "BLUE", default="GREY"),
        ["RED"],
        ["BLUE"],
        ("fine", "default"),
    ),
    _of_type(
        "an enum with a default loses a symbol",
        GREY,
        _enum("RED", "GREY", default="GREY"),
        ["GREEN"],
        ["RED"],
        ("default", "fine"),
    ),
    _of_type(
        "an enum gets a symbol, and its first default",
        _enum("RED"),
        _enum("RED", "GREY", default="GREY"),
        ["RED"],
        ["GREY"],
        ("fine", "fails"),
    ),
    _of_type(
        "an enum gets a default, or another one",
        GREY,
        _enum("RED", "GREEN", "GREY", default="RED"),
        ["GREEN"],
        ["GREEN"],
        ("fine", "fine"),
    ),
    _of_type("symbols change places", _enum("RED", "BLUE"), _enum("BLUE", "RED"), ["RED"], ["RED"], ("fine", "fine")),
    _of_type("a symbol is renamed", _enum("RED", "BLUE"), _enum("RED", "NAVY"), ["BLUE"], ["NAVY"], ("fails", "fails")),
    _of_type("an enum is renamed", _enum("RED"), _enum("RED", name="Paint"), ["RED"], ["RED"], ("fails", "fails")),
    _of_type(
        "an enum is renamed, with an alias",
        _enum("RED"),
        _enum("RED", name="Paint", aliases=["Colour"]),
        ["RED"],
        ["RED"],
        ("fine", "fails"),
    ),
    _of_type("an enum becomes a string", _enum("RED"), "string", ["RED"], ["RED"], ("fails", "fails")),
]
OPTIONALS: list[Change] = [
    _of_type("a field becomes optional", "string", ["null", "string"], ["1"], ["1", None], ("fine", "fails")),
    _of_type("a field is no longer optional", ["null", "string"], "string", ["1", None], ["1"], ("fails", "fine")),
    _of_type(
        "null and the type change places", ["null", "int"], ["int", "null"], [5, None], [5, None], ("fine", "fine")
    ),
    _of_type(
        "what is optional gets a wider type", ["null", "int"], ["null", "long"], [5, None], [2**40], ("fine", "fails")
    ),
    _of_type("a field becomes optional, and wider", "int", ["null", "double"], [5], [0.5, None], ("fine", "fails")),
    _of_type(
        "what is optional gets another type",
        ["null", "int"],
        ["null", "string"],
        [5, None],
        ["5", None],
        ("fails", "fails"),
    ),
    _of_type(
        "an optional decimal gets another scale",
        ["null", decimal(12, 2)],
        ["null", decimal(12, 3)],
        ["9.80", None],
        ["9.801", None],
        ("misread", "misread"),
        refused=True,
        avro=LOGICAL,
    ),
    _of_type(
        "an optional enum gets a symbol",
        ["null", _enum("RED")],
        ["null", _enum("RED", "BLUE")],
        ["RED"],
        ["BLUE"],
        ("fine", "fails"),
    ),
]
NESTED: list[Change] = [
    _of_type("an array's items become wider", _array("int"), _array("long"), [[5], []], [[2**40]], ("fine", "fails")),
    _of_type(
        "an array's items become optional",
        _array("int"),
        _array(["null", "int"]),
        [[5]],
        [[5, None]],
        ("fine", "fails"),
    ),
    _of_type("an array gets other items", _array("int"), _array("string"), [[5]], [["5"]], ("fails", "fails")),
    _of_type("one becomes many", "int", _array("int"), [5], [[5]], ("fails", "fails")),
    _of_type(
        "a map's values become wider", _map("float"), _map("double"), [{"k": 0.5}], [{"k": 0.1}], ("fine", "fails")
    ),
    _of_type("a map gets other values", _map("int"), _map("string"), [{"k": 5}], [{"k": "5"}], ("fails", "fails")),
    _of_type("a map becomes an array", _map("int"), _array("int"), [{"k": 5}], [[5]], ("fails", "fails")),
    _of_type(
        "decimals in an array get another scale",
        _array(decimal(8, 2)),
        _array(decimal(8, 3)),
        [["1.50"]],
        [["1.501"]],
        ("misread", "misread"),
        refused=True,
        avro=LOGICAL,
    ),
    _of_type(
        "a record inside gets a field with a default",
        _part(A),
        _part(A, field("n", "int", default=0)),
        [{"a": "1"}],
        [{"a": "1", "n": 7}],
        ("default", "fine"),
    ),
    _of_type(
        "a record inside gets a field without a default",
        _part(A),
        _part(A, field("n", "int")),
        [{"a": "1"}],
        [{"a": "1", "n": 7}],
        ("fails", "fine"),
    ),
    _of_type(
        "a record inside loses a field without a default",
        _part(A, field("n", "int")),
        _part(A),
        [{"a": "1", "n": 7}],
        [{"a": "1"}],
        ("fine", "fails"),
    ),
    _of_type(
        "a record in an array gets a field without a default",
        _array(_part(A)),
        _array(_part(A, field("n", "int"))),
        [[{"a": "1"}]],
        [[{"a": "1", "n": 7}]],
        ("fails", "fine"),
    ),
    _of_type(
        "a record in a map gets a field with a default",
        _map(_part(A)),
        _map(_part(A, field("n", "int", default=0))),
        [{"k": {"a": "1"}}],
        [{"k": {"a": "1", "n": 7}}],
        ("default", "fine"),
    ),
    _of_type(
        "an optional record gets a field without a default",
        ["null", _part(A)],
        ["null", _part(A, field("n", "int"))],
        [{"a": "1"}, None],
        [{"a": "1", "n": 7}, None],
        ("fails", "fine"),
    ),
    _of_type(
        "an enum inside a record in an array gets a symbol",
        _array(_part(field("c", _enum("RED")))),
        _array(_part(field("c", _enum("RED", "BLUE")))),
        [[{"c": "RED"}]],
        [[{"c": "BLUE"}]],
        ("fine", "fails"),
    ),
    _of_type(
        "a record inside is renamed",
        _part(A),
        _part(A, name="Piece"),
        [{"a": "1"}],
        [{"a": "1"}],
        ("fails", "fails"),
    ),
    _of_type(
        "a record inside is renamed, with an alias",
        _part(A),
        _part(A, name="Piece", aliases=["Part"]),
        [{"a": "1"}],
        [{"a": "1"}],
        ("fine", "fails"),
    ),
    _of_type(
        "a record inside with a namespace is renamed, with its full name as an alias",
        _part(A, namespace="shop"),
        _part(A, name="Piece", namespace="shop", aliases=["shop.Part"]),
        [{"a": "1"}],
        [{"a": "1"}],
        ("fine", "fails"),
    ),
    _of_type(
        "a record inside becomes a map",
        _part(A),
        _map("string"),
        [{"a": "1"}],
        [{"a": "1"}],
        ("fails", "fails"),
    ),
    _of_type(
        "a record inside becomes an enum of its name",
        _part(A),
        _enum("RED", name="Part"),
        [{"a": "1"}],
        ["RED"],
        ("fails", "fails"),
    ),
    Change(
        what="a record inside gets a field with a default, in the default of a field",
        old=[field("x", _part(field("a", "string", default="1")), default={})],
        new=[field("x", _part(field("a", "string", default="1"), field("n", "int", default=0)), default={})],
        says_old=[{"x": {"a": "2"}}, {}],
        says_new=[{"x": {"a": "2", "n": 7}}, {}],
        backward="default",
        forward="fine",
    ),
    Change(
        what="the default of a field inside a record changes",
        old=[field("x", _part(A, field("n", "int", default=0)))],
        new=[field("x", _part(A, field("n", "int", default=1)))],
        says_old=[{"x": {"a": "1", "n": 7}}],
        says_new=[{"x": {"a": "1", "n": 7}}],
        backward="misread",
        forward="misread",
        avro=DEFAULT,
    ),
    Change(
        what="a record that two fields share gets a field with a default",
        old=[field("x", _part(A)), field("y", "Part")],
        new=[field("x", _part(A, field("n", "int", default=0))), field("y", "Part")],
        says_old=[{"x": {"a": "1"}, "y": {"a": "2"}}],
        says_new=[{"x": {"a": "1", "n": 7}, "y": {"a": "2", "n": 8}}],
        backward="default",
        forward="fine",
    ),
    Change(
        what="a shared record is defined at another field",
        old=[field("x", _part(A)), field("y", "Part")],
        new=[field("y", _part(A)), field("x", "Part")],
        says_old=[{"x": {"a": "1"}, "y": {"a": "2"}}],
        says_new=[{"x": {"a": "1"}, "y": {"a": "2"}}],
        backward="fine",
        forward="fine",
    ),
]

GROUPS: dict[str, list[Change]] = {
    "Fields, names and defaults": FIELDS,
    "Numbers, text and bytes": SCALARS,
    "Logical types": LOGICALS,
    "Enums": ENUMS,
    "Optional fields": OPTIONALS,
    "Arrays, maps and records inside": NESTED,
}
CHANGES: list[Change] = [change for group in GROUPS.values() for change in group]
