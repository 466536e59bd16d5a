"""A contracts folder: what is found in it, and everything that is refused, all at once."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastavro.schema import fingerprint

from saga.contracts import contract
from saga.contracts.contract import fingerprint_of
from saga.contracts.library import Library, contract_of, find_library
from saga.errors import ContractError, DeclarationError
from saga.messages import Event, Topic
from tests.contracts.folders import decimal, field, generated, put, schema, write

RECORD = {"type": "record", "name": "Part", "fields": [field("size", "int")]}


def record_of(*fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Part", "fields": list(fields), **more}


def enum_of(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": ["A"], **more}


def problems_of(folder: Path) -> list[str]:
    with pytest.raises(ContractError) as caught:
        Library.load(folder / "contracts")
    return list(caught.value.problems)


def test_a_contract_has_what_its_schema_says(tmp_path: Path) -> None:
    placed = schema(
        "OrderPlaced", field("total", decimal()), starts=True, produced_by="external", consumed_by="external"
    )
    write(tmp_path, placed, schema("OrderCancelled", outcome="failure"))
    write(tmp_path, {**placed, "doc": "Newer.", "fields": [*placed["fields"], field("n", "int", default=1)]}, version=2)
    library = Library.load(tmp_path / "contracts")
    contract = library.contracts["OrderPlaced"]
    assert (contract.topic, contract.key, contract.owner, contract.doc) == ("orders", "order_id", "order", "Newer.")
    assert (contract.starts, contract.produced_externally, contract.consumed_externally, contract.outcome) == (
        True,
        True,
        True,
        None,
    )
    cancelled = library.contracts["OrderCancelled"]
    assert (cancelled.starts, cancelled.produced_externally, cancelled.consumed_externally) == (False, False, False)
    assert cancelled.outcome == "failure"
    assert [version.path for version in contract.versions] == ["orders/OrderPlaced.v1", "orders/OrderPlaced.v2"]
    assert contract.versions[0].schema == placed
    for version in contract.versions:
        assert library.by_path[version.path] is version
        assert library.by_fingerprint[version.fingerprint] is version
    assert "orders/OrderPlaced.v3" not in library.by_path
    assert b"\0" * 8 not in library.by_fingerprint
    assert hash(contract)


def test_versions_may_be_ten_or_more(tmp_path: Path) -> None:
    for number in range(1, 12):
        write(tmp_path, schema("Said", *(field(f"f{n}", "int", default=0) for n in range(number))), version=number)
    versions = Library.load(tmp_path / "contracts").contracts["Said"].versions
    assert [version.number for version in versions] == list(range(1, 12))


def test_of_versions_with_one_fingerprint_the_newest_answers(tmp_path: Path) -> None:
    write(tmp_path, schema("Said"))
    write(tmp_path, schema("Said", doc="Said otherwise."), version=2)
    library = Library.load(tmp_path / "contracts")
    first, second = library.contracts["Said"].versions
    assert first.fingerprint == second.fingerprint
    assert library.by_fingerprint[first.fingerprint] is second


def test_the_fingerprint_is_the_one_of_the_specification(tmp_path: Path) -> None:
    write(tmp_path, schema("Said", field("total", decimal())))
    version = Library.load(tmp_path / "contracts").contracts["Said"].versions[0]
    canonical = (
        '{"name":"Said","type":"record","fields":[{"name":"order_id","type":"string"},{"name":"total","type":"bytes"}]}'
    )
    assert version.fingerprint == rabin(canonical.encode()).to_bytes(8, "little")
    assert rabin(b'"null"') == 0x63DD24E7CC258F8A


def rabin(data: bytes) -> int:
    """CRC-64-AVRO, written from the specification, bit by bit."""
    empty = 0xC15D213AA4D7A795
    fingerprint = empty
    for byte in data:
        fingerprint ^= byte
        for _ in range(8):
            fingerprint = (fingerprint >> 1) ^ (empty if fingerprint & 1 else 0)
    return fingerprint


def test_a_topic_has_its_settings_or_the_defaults(tmp_path: Path) -> None:
    write(tmp_path, schema("A"), schema("B", topic="payments", owner="payment"), schema("C", topic="log", owner="log"))
    put(tmp_path / "contracts/payments/topic.json", '{"partitions": 3, "retention_days": 0.5}')
    put(tmp_path / "contracts/log/topic.json", '{"retention_days": null}')
    put(tmp_path / "contracts/README.md", "Anything else may lie here.")
    assert Library.load(tmp_path / "contracts").topics == {
        "log": Topic("log", 12, None),
        "orders": Topic("orders", 12, 7),
        "payments": Topic("payments", 3, 0.5),
    }


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ({"topic": "payments"}, "\"topic\" is 'payments', but the file is in the folder 'orders'"),
        ({"topic": None}, '"topic" is missing'),
        ({"key": None}, '"key" is missing'),
        ({"owner": None}, '"owner" is missing'),
        ({"owner": 5}, '"owner" must be text, not 5'),
        ({"owner": "Order Service"}, "the name of a service is lower case letters, digits and -"),
        ({"key": "id"}, "its key 'id' is none of its fields"),
        ({"key": "number"}, "field number: the key must be a string (or a uuid)"),
        (
            {"principal": "x-user"},
            '"principal" says who begins a saga: it goes with "starts": true and "produced_by": "external"',
        ),
        ({"id_header": "x id"}, '"id_header" is the name of a header, as in "id", not \'x id\''),
        ({"id_header": 5}, '"id_header" is the name of a header, as in "id", not 5'),
        ({"id_header": "ce_id"}, "\"id_header\" is 'ce_id', which is read anyway"),
        ({"id_header": "id", "id_field": "order_id"}, "keep one of them"),
        ({"id_field": 5}, '"id_field" is the name of a field, not 5'),
        ({"id_field": "nobody"}, "its \"id_field\" 'nobody' is none of its fields"),
        (
            {"principal": "x user", "starts": True, "produced_by": "external"},
            '"principal" is the name of a header, as in "x-user", not \'x user\'',
        ),
        (
            {"principal": 5, "starts": True, "produced_by": "external"},
            '"principal" is the name of a header, as in "x-user", not 5',
        ),
        (
            {"principal": "ce_source", "starts": True, "produced_by": "external"},
            "\"principal\" is 'ce_source', which says something else of each event: name a header of its sender's",
        ),
        ({"starts": "yes"}, "\"starts\" is true or false, not 'yes'"),
        ({"outcome": "maybe"}, '"outcome" is "success" or "failure", not \'maybe\''),
        ({"produced_by": "everywhere"}, '"produced_by" can only be "external", not \'everywhere\''),
        ({"consumed_by": True}, '"consumed_by" can only be "external", not True'),
        ({"said": "outside"}, '"said": "outside" is called "produced_by": "external"'),
        ({"heard": "outside"}, '"heard": "outside" is called "consumed_by": "external"'),
        ({"start": True}, '"start" means nothing here: is it "starts"?'),
        ({"name": "Spoken"}, "the record is called 'Spoken', the file 'Said'"),
        ({"type": "enum"}, 'must be an object with "type": "record"'),
        ({"namespace": "a..b"}, "\"namespace\" is names with dots between, not 'a..b'"),
    ],
)
def test_an_attribute_that_cannot_be_is_a_problem(tmp_path: Path, attributes: dict[str, Any], problem: str) -> None:
    whole = {**schema("Said", field("number", "int")), **attributes}
    text = json.dumps({name: value for name, value in whole.items() if value is not None})
    put(tmp_path / "contracts/orders/Said.v1.avsc", text)
    (found,) = problems_of(tmp_path)
    assert found.startswith("orders/Said.v1.avsc: ")
    assert problem in found


@pytest.mark.parametrize(
    ("type_", "problem"),
    [
        ("fixed", "field f: fixed is not supported; use bytes"),
        ({"type": "fixed", "name": "Four", "size": 4}, "field f: fixed is not supported"),
        ("null", "field f: null stands only in a union"),
        ("Nothing", "field f: there is no type 'Nothing'"),
        (5, "field f: 5 is no type"),
        (["string", "int"], "field f: a union may only make a field optional"),
        (["null", "string", "int"], "field f: a union may only make a field optional"),
        ({"type": "array"}, "field f[]: None is no type"),
        ({"type": "map", "values": "fixed"}, "field f{}: fixed is not supported"),
        (
            {"type": "long", "logicalType": "timestamp-nanos"},
            "field f: logical type 'timestamp-nanos' is not",
        ),
        ({"type": "int", "logicalType": "time-millis"}, "field f: logical type 'time-millis' is not supported"),
        ({"type": "bytes", "logicalType": "uuid"}, "field f: logical type uuid goes with string, not with bytes"),
        ({"type": "string", "logicalType": "decimal"}, "field f: logical type decimal goes with bytes"),
        (decimal(2, 3), "field f: decimal needs whole numbers 0 <= scale <= precision"),
        ({"type": "bytes", "logicalType": "decimal"}, "field f: decimal needs whole numbers"),
        ({"type": "enum", "name": "E", "symbols": []}, "field f: an enum needs symbols"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "field f: an enum's symbols must differ"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "field f: the enum's default 'B' is none"),
        ({"type": "record", "name": "Part", "fields": []}, "field f: record Part has no fields"),
        ({"type": "record", "name": "None", "fields": [field("a", "int")]}, "field f: 'None' is no name for a type"),
        ({"type": "record", "name": "Said", "fields": [field("a", "int")]}, "field f: the type Said is defined twice"),
        ({"type": "array", "items": "Said"}, "field f[]: Said contains itself; recursive types are not supported"),
        (
            {"type": "record", "name": "Part", "fields": [field("a", "int"), field("b", "fixed"), field("c", "null")]},
            "field f.b: fixed is not supported",
        ),
    ],
)
def test_a_type_that_is_not_supported_is_a_problem_with_its_path(tmp_path: Path, type_: Any, problem: str) -> None:
    write(tmp_path, schema("Said", field("f", type_)))
    assert problems_of(tmp_path)[0].startswith(f"orders/Said.v1.avsc: {problem}")


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (field("class", "int"), "field class: this name cannot be an attribute in Python"),
        (field("__x", "int"), "field __x: this name cannot be an attribute in Python"),
        (field("a-b", "int"), "a field needs a name (letters, digits, _)"),
        (field("order_id", "int"), "record Said has the field order_id twice"),
        (field("f", "int", sensitive="very"), "field f: \"sensitive\" is true or false, not 'very'"),
        (field("f", "int", aliases="old"), 'field f: "aliases" is a list of names'),
        *(
            (field("f", {"type": "enum", "name": "E", "symbols": ["A"], "aliases": aliases}), message)
            for aliases in ("old", [1], ["a-b"], ["shop."])
            for message in ['field f: "aliases" of E is a list of names']
        ),
        (field("f", "int", default="1"), "field f: its default is '1', which is no int"),
        (field("f", "int", default=True), "field f: its default is True, which is no int"),
        (field("f", "int", default=2**31), "field f: its default is 2147483648, which is outside of what int can be"),
        (field("f", "string", default=None), "field f: its default is None, which is no string"),
        (field("f", decimal(2, 0), default="\u0064"), "field f: its default has more than 2 digits"),
        (field("f", "bytes", default="\u0100"), "field f: its default has characters above U+00FF"),
        (field("f", {"type": "string", "logicalType": "uuid"}, default="x"), "field f: its default badly formed"),
        (field("f", ["null", "int"], default=1), "field f: its default must be of the union's first type"),
        (field("f", ["int", "null"], default=None), "field f: its default must be of the union's first type"),
        (field("f", {"type": "array", "items": "int"}, default=["a"]), "field f: its default is 'a', which is no int"),
        (field("f", RECORD, default={}), "field f: its default leaves out 'size', which has no default"),
        (field("f", RECORD, default={"size": 1, "x": 1}), "field f: its default names 'x', which is no field of Part"),
    ],
)
def test_a_field_that_cannot_be_is_a_problem(tmp_path: Path, wrong: dict[str, Any], problem: str) -> None:
    write(tmp_path, schema("Said", wrong))
    (found,) = problems_of(tmp_path)
    assert found.startswith(f"orders/Said.v1.avsc: {problem}")


TAKEN = "the name of another field, too: take the alias away, or rename the other field"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ([field("y", "int", aliases=["x"]), field("x", "int")], f"field y: its alias x is {TAKEN}"),
        ([field("x", "int"), field("y", "int", aliases=["x"])], f"field y: its alias x is {TAKEN}"),
        (
            [field("y", "int", aliases=["x"]), field("z", "int", aliases=["old", "x"])],
            f"field z: its alias x is {TAKEN.replace('the name of another field', 'an alias of the field y')}",
        ),
        (
            [field("p", ["null", record_of(field("a", "int"), field("b", "int", aliases=["a"]))])],
            f"field p.b: its alias a is {TAKEN}",
        ),
        *(
            (
                [field("e", enum_of("A")), field("f", enum_of("B", aliases=[alias]))][::order],
                f"field f: the type shop.B has the alias {name}, which is the name of another type of the file, too",
            )
            for order in (1, -1)
            for alias, name in (("A", "shop.A"), ("shop.A", "shop.A"), ("Said", "shop.Said"))
        ),
        (
            [field("p", record_of(field("e", enum_of("E")), aliases=["E"]))],
            "field p: the type shop.Part has the alias shop.E, which is the name of another type of the file, too",
        ),
    ],
)
def test_an_alias_that_names_something_else_in_the_file_is_refused(
    tmp_path: Path, fields: list[dict[str, Any]], problem: str
) -> None:
    write(tmp_path, schema("Said", *fields, namespace="shop"))
    (found,) = problems_of(tmp_path)
    assert found.startswith(f"orders/Said.v1.avsc: {problem}")


def test_an_alias_that_is_clear_is_used(tmp_path: Path) -> None:
    part = record_of(field("y", "int", aliases=["x"]), aliases=["Part", "other.E", "Old"])
    fields = [field("y", "int", aliases=["x", "x", "y"]), field("p", part), field("e", enum_of("E", aliases=["Old"]))]
    contract = Library.load(write(tmp_path, schema("Said", *fields, namespace="shop"))).contracts["Said"]
    assert contract.newest.record.fields[1].aliases == ("x", "x", "y")


def test_all_problems_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    contracts = write(tmp_path, schema("A", field("f", "fixed"), field("g", "null"), starts=5), schema("B", key=None))
    put(contracts / "orders/C.v1.avsc", "{")
    put(contracts / "orders/D.v1.avsc", '{"type": "record", "type": "record"}')
    put(contracts / "orders/E.v1.avsc", '{"type": NaN}')
    put(contracts / "orders/NoVersion.avsc", "{}")
    put(contracts / "orders/Zero.v0.avsc", "{}")
    put(contracts / "Above.v1.avsc", "{}")
    put(contracts / "orders/deep/Below.v1.avsc", "{}")
    put(contracts / "orders/topic.json", '{"partitions": 0, "retention_days": -1, "retention": 1}')
    put(contracts / "empty/topic.json", "{}")
    problems = problems_of(tmp_path)
    assert [problem.partition(": ")[0] for problem in problems] == [
        "Above.v1.avsc",
        *["orders/A.v1.avsc"] * 3,
        "orders/B.v1.avsc",
        "orders/C.v1.avsc",
        "orders/D.v1.avsc",
        "orders/E.v1.avsc",
        "orders/NoVersion.avsc",
        "orders/Zero.v0.avsc",
        "orders/deep/Below.v1.avsc",
        "empty/topic.json",
        *["orders/topic.json"] * 3,
    ]
    assert "the name 'type' comes twice in one object" in problems[6]
    assert "NaN is no number in JSON" in problems[7]
    assert problems[-3].endswith('"partitions" is a whole number from 1 to 10000, not 0')
    assert problems[-2].endswith('"retention_days" is a number above 0, or null for ever, not -1')
    assert problems[-1].endswith(
        '"retention" means nothing here; there are "partitions", "retention_days", "wire", "id_header" and "id_field"'
    )


@pytest.mark.parametrize("days", ["1" + "0" * 400, "1e300", "true", "0"])
def test_a_retention_that_no_broker_can_have_is_refused(tmp_path: Path, days: str) -> None:
    contracts = write(tmp_path, schema("Said"))
    put(contracts / "orders/topic.json", f'{{"retention_days": {days}}}')
    (problem,) = problems_of(tmp_path)
    assert problem.startswith('orders/topic.json: "retention_days" is a number above 0, or null for ever, not ')


@pytest.mark.parametrize(("text", "problem"), [("[", "is no JSON"), ("[]", "must be an object")])
def test_a_topic_file_must_be_an_object(tmp_path: Path, text: str, problem: str) -> None:
    write(tmp_path, schema("Said"))
    put(tmp_path / "contracts/orders/topic.json", text)
    assert problems_of(tmp_path)[0].startswith(f"orders/topic.json: {problem}")


def test_every_version_must_be_kept(tmp_path: Path) -> None:
    write(tmp_path, schema("Said"), version=2)
    write(tmp_path, schema("Said"), version=4)
    assert problems_of(tmp_path) == [
        "orders/Said.v1.avsc: is missing, though v4 is there: keep every version",
        "orders/Said.v3.avsc: is missing, though v4 is there: keep every version",
    ]


def test_a_name_belongs_to_one_topic(tmp_path: Path) -> None:
    write(tmp_path, schema("Said"), schema("Said", topic="talks"))
    assert problems_of(tmp_path) == ["talks/Said: the name is taken by orders/Said; names are unique over all topics"]


def test_a_topic_and_the_outcomes_of_a_kind_have_one_owner(tmp_path: Path) -> None:
    write(tmp_path, schema("A"), schema("B", owner="payment"))
    assert problems_of(tmp_path) == [
        "orders/B.v1.avsc: its owner is 'payment', that of orders/A.v1.avsc is 'order'; "
        "a topic has one owner: give each its own topic"
    ]
    write(tmp_path, schema("B", outcome="success"), schema("C", topic="c", owner="c", outcome="failure"))
    assert problems_of(tmp_path) == [
        "orders/B.v1.avsc: is an outcome owned by 'order', c/C.v1.avsc one owned by 'c'; "
        "one service decides how a saga of kind 'order_id' ends"
    ]


@pytest.mark.parametrize(
    ("name", "then", "now"),
    [
        ("key", "order_id", "other_id"),
        ("owner", "order", "orders"),
        ("starts", False, True),
        ("outcome", None, "success"),
        ("produced_by", None, "external"),
        ("consumed_by", "external", None),
        ("namespace", "shop", "mall"),
    ],
)
def test_what_was_agreed_never_changes_between_versions(tmp_path: Path, name: str, then: Any, now: Any) -> None:
    write(tmp_path, schema("Said", field("other_id", "string"), **{name: then}))
    write(tmp_path, schema("Said", field("other_id", "string"), **{name: now}), version=2)
    found = [problem for problem in problems_of(tmp_path) if problem.startswith("orders/Said.v2.avsc")]
    assert f'orders/Said.v2.avsc: "{name}" is {now!r}, in orders/Said.v1.avsc {then!r}; it never changes' in found


def test_one_fingerprint_with_other_logical_types_is_refused(tmp_path: Path) -> None:
    line = {"type": "record", "name": "Line", "fields": [field("price", decimal(12, 2))]}
    write(tmp_path, schema("Said", field("lines", {"type": "array", "items": line})))
    line = {"type": "record", "name": "Line", "fields": [field("price", decimal(12, 3))]}
    write(tmp_path, schema("Said", field("lines", {"type": "array", "items": line})), version=2)
    assert problems_of(tmp_path) == [
        "orders/Said.v2.avsc: has the same fingerprint as orders/Said.v1.avsc, but other logical types, so one would "
        "be read as the other: lines[].price is decimal(12,2) in one and decimal(12,3) in the other; "
        "give the field another name"
    ]


def test_other_logical_types_are_refused_with_other_fingerprints_too(tmp_path: Path) -> None:
    write(tmp_path, schema("Said", field("at", {"type": "long", "logicalType": "timestamp-millis"})))
    new = field("when", ["null", {"type": "long", "logicalType": "timestamp-micros"}], default=None, aliases=["at"])
    write(tmp_path, schema("Said", new), version=2)
    (problem,) = problems_of(tmp_path)
    assert "its logical types are not those of orders/Said.v1.avsc" in problem


def test_a_decimal_may_become_longer(tmp_path: Path) -> None:
    write(tmp_path, schema("Said", field("total", decimal(12, 2))))
    write(tmp_path, schema("Said", field("total", decimal(14, 2))), version=2)
    assert len(Library.load(tmp_path / "contracts").contracts["Said"].versions) == 2


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    assert problems_of(tmp_path) == ["there is no such folder: make it, or set SAGA_CONTRACTS"]


def test_the_nearest_folder_with_schemas_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, schema("Said"))
    (tmp_path / "services/contracts").mkdir(parents=True)  # holds no schema: a package, say
    library = find_library(tmp_path / "services/payment")
    assert library.folder == (tmp_path / "contracts").resolve()
    assert find_library(tmp_path) is library
    monkeypatch.chdir(tmp_path / "services")
    assert find_library() is library
    write(tmp_path / "services", schema("Other"))
    assert list(find_library(tmp_path / "services/payment").contracts) == ["Other"]


def test_the_environment_says_where_contracts_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "here", schema("Said"))
    write(tmp_path / "there", schema("Other"))
    monkeypatch.setenv("SAGA_CONTRACTS", str(tmp_path / "there/contracts"))
    assert list(find_library(tmp_path / "here").contracts) == ["Other"]
    monkeypatch.setenv("SAGA_CONTRACTS", str(tmp_path / "nowhere"))
    with pytest.raises(DeclarationError, match=r"SAGA_CONTRACTS is .*nowhere', which is no folder"):
        find_library(tmp_path / "here")


@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_variable_says_nothing_of_where_contracts_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blank: str
) -> None:
    write(tmp_path, schema("Said"))
    monkeypatch.setenv("SAGA_CONTRACTS", blank)
    assert list(find_library(tmp_path).contracts) == ["Said"]


def test_a_base_of_schemas_with_a_password_is_refused_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, schema("Said"))
    monkeypatch.setenv("SAGA_SCHEMA_BASE", "https://ada:s3cr3t@schemas.example.org/")
    with pytest.raises(DeclarationError, match="SAGA_SCHEMA_BASE has a user or a password") as refused:
        find_library(tmp_path)
    assert "s3cr3t" not in str(refused.value)


def test_a_folder_that_is_read_again_computes_fingerprints_of_what_is_new_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []

    def counted(canonical: str, algorithm: str) -> str:
        computed.append(canonical)
        return fingerprint(canonical, algorithm)

    monkeypatch.setattr(contract, "fingerprint", counted)
    fingerprint_of.cache_clear()
    placed = schema("OrderPlaced")
    write(tmp_path, placed, schema("OrderCancelled"))
    first = Library.load(tmp_path / "contracts")
    again = Library.load(tmp_path / "contracts")
    assert len(computed) == 2
    write(tmp_path, {**placed, "fields": [*placed["fields"], field("n", "int", default=1)]}, version=2)
    newer = Library.load(tmp_path / "contracts")
    assert len(computed) == 3
    one, two = newer.contracts["OrderPlaced"].versions
    assert one.fingerprint != two.fingerprint
    for library in (first, again):
        assert library.contracts["OrderPlaced"].versions[0].fingerprint == one.fingerprint


def test_no_contracts_at_all_is_a_declaration_error(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"there is no folder contracts/ with schemas in it at or above"):
        find_library(tmp_path)


def test_a_class_without_a_contract_is_refused() -> None:
    class Nothing(Event):
        pass

    with pytest.raises(
        DeclarationError, match=r"Nothing has no contract: declare it with @event .*contracts/<topic>/Nothing.v1.avsc"
    ):
        contract_of(Nothing)


SOURCE_OF_SAID = """
    __contract__: ClassVar[str] = "orders/Said.v1"
    order_id: str
    total: Decimal
    lines: tuple[Line, ...] = ()
    note: str | None = None
    color: Color = Color.RED
"""


@pytest.mark.parametrize(
    ("then", "now", "difference"),
    [
        ('"orders/Said.v1"', '"orders/Said.v9"', r"is of orders/Said.v9, but there is no .*/orders/Said.v9.avsc"),
        ('"orders/Said.v1"', '"orders/Heard.v1"', r"call the class Heard"),
        ("total: Decimal", "total: float", r"total: is float in the class, decimal\(12,2\) in the schema"),
        ("    order_id: str\n", "", "order_id: is missing in the class"),
        ("    order_id: str\n", "    order_id: str\n    more: int\n", "more: is not in the schema"),
        ("    order_id: str\n    total: Decimal\n", "    total: Decimal\n    order_id: str\n", "in another order"),
        ("tuple[Line, ...]", "list[Line]", "lines: is list in the class, array of record Line in the schema"),
        (
            "tuple[Line, ...]",
            "tuple[Color, ...]",
            r"lines\[\]: is Color, not Line",
        ),
        ("str | None = None", "str | None", "note: its default is None in the schema"),
        ("str | None = None", 'str | None = ""', "note: its default is None in the schema"),
        ("str | None = None", 'str = ""', "note: is str in the class, optional string in the schema"),
        ("order_id: str", 'order_id: str = "x"', "order_id: has a default in the class, none in the schema"),
        ("color: Color = Color.RED", "color: Color = Color.GREEN", "color: its default is <Color.RED"),
        ("color: Color = Color.RED", 'color: str = "RED"', "color: is str, not a StrEnum"),
        ("size: int", "size: bool", r"lines\[\].size: is bool in the class, int in the schema"),
        ('    GREEN = "GREEN"\n', "", "color: the words of Color are RED, GREEN in the schema|its default"),
        ("total: Decimal", "total: 'Unknown'", "an annotation cannot be understood: name 'Unknown' is not defined"),
    ],
)
def test_a_class_that_drifted_from_its_schema_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, now: str, difference: str
) -> None:
    line = {"type": "record", "name": "Line", "fields": [field("size", "int")]}
    color = {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}
    contract = schema(
        "Said",
        field("total", decimal()),
        field("lines", {"type": "array", "items": line}, default=[]),
        field("note", ["null", "string"], default=None),
        field("color", color, default="RED"),
    )
    write(tmp_path, contract, schema("Heard"))
    module = generated(tmp_path, "Said", "Heard")
    assert contract_of(module.Said).name == "Said"
    assert contract_of(module.Said) is contract_of(module.Said)
    assert module.__file__ is not None
    source = Path(module.__file__).read_text("utf-8")
    assert SOURCE_OF_SAID in source
    assert source.count(then) >= 1
    namespace: dict[str, Any] = {"__name__": module.__name__}
    exec(source.replace(then, now, 1), namespace)
    monkeypatch.setattr(module, "Said", namespace["Said"])
    with pytest.raises(DeclarationError, match=difference) as caught:
        contract_of(namespace["Said"])
    assert "saga contracts generate" in str(caught.value)
