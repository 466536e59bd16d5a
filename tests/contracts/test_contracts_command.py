"""`saga contracts generate` and `saga contracts check`, as a user calls them."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from saga.cli.contracts import contracts
from saga.contracts import library
from saga.contracts.checking import REASON
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
    """Each command is a process of its own, which reads the contracts anew."""
    library._loaded.cache_clear()


def test_generate_writes_a_module_that_check_accepts(folder: Path) -> None:
    done = saga("generate", "services/order/events.py", "Placed", "Asked")
    assert (done.exit_code, done.output) == (0, "services/order/events.py written\n")
    source = (folder / "services/order/events.py").read_text("utf-8")
    assert source.index("class Placed(Event)") < source.index("class Asked(Event)")
    done = saga("check")
    assert (done.exit_code, done.output.splitlines()) == (
        0,
        [
            "the 2 versions of 2 contracts fit each other",
            f"full_transitive, the default, because {REASON}: 2 contracts",
            "1 generated module is as the contracts say",
        ],
    )
    done = saga("generate")
    assert (done.exit_code, done.output) == (0, "services/order/events.py is as the contracts say\n")


def test_check_names_the_file_and_the_difference_and_generate_mends_it(folder: Path) -> None:
    saga("generate", "a/events.py", "Placed")
    saga("generate", "b/events.py", "Asked")
    write(folder, schema("Placed", field("note", "string", default="")), version=2)
    forget_folders()
    done = saga("check")
    assert done.exit_code == 1
    assert "a/events.py: is not what the contracts say; run saga contracts generate [drift]\n" in done.output
    assert '+    note: str = ""' in done.output
    assert "b/events.py" not in done.output
    assert saga("check", "b/events.py").exit_code == 0
    assert saga("check", "a/events.py").exit_code == 1
    done = saga("generate")
    assert (done.exit_code, done.output) == (0, "a/events.py written\nb/events.py is as the contracts say\n")
    assert saga("check").exit_code == 0


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
        (["generate", "events.py"], "events.py is not there yet; name its classes"),
        (["generate", "by_hand.py", "Placed"], "by_hand.py was not generated, and is not overwritten"),
        (["generate", "by_hand.py"], "by_hand.py was not generated, and is not overwritten"),
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
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "0 generated modules are as the contracts say")


def test_check_tells_each_promise_that_a_version_breaks_and_what_to_do(folder: Path) -> None:
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
        "field with another name [type]",
        "v3 cannot read messages of v1, v2: colour is written with BLUE, which is not known where it is read, and "
        "enum Colour has no default; keep all symbols; only an enum that has a default from its first version on can "
        "have new ones [symbols]",
        "v3 cannot read messages of v1, v2: note is not in what is written, and has no default where it is read; give "
        "it a default in the first version that has it, or an alias if it was renamed [no-default]",
        "v1, v2 cannot read messages of v3: total is written as string and read as int; leave its type, and add a "
        "field with another name [type]",
    ]
    assert 'its "compatible", by default full_transitive' in done.output


def test_json_and_sarif_have_the_same_problems(folder: Path) -> None:
    write(folder, schema("Placed", field("note", "string")), version=2)
    done = saga("check", "--json")
    assert done.exit_code == 1
    told = json.loads(done.output)
    assert (told["versions"], told["modules"]) == (3, 0)
    assert [(p["rule"], p["file"], p["at"]) for p in told["problems"]] == [
        ("no-default", "contracts/orders/Placed.v2.avsc", "note")
    ]
    done = saga("check", "--sarif")
    assert done.exit_code == 1
    run = json.loads(done.output)["runs"][0]
    (result,) = run["results"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "no-default"
    assert result["message"]["text"].startswith("v2 cannot read messages of v1: note is not in what is written")
    assert [at["physicalLocation"]["artifactLocation"]["uri"] for at in result["locations"]] == [
        "contracts/orders/Placed.v2.avsc"
    ]


def test_a_folder_that_cannot_be_used_is_told_in_every_form(folder: Path) -> None:
    saga("generate", "events.py", "Placed")
    write(folder, schema("Asked", owner=None))
    forget_folders()
    assert 'contracts/orders/Asked.v1.avsc: "owner" is missing [contract]' in saga("check").output
    forget_folders()
    told = json.loads(saga("check", "--json").output)
    assert [(p["rule"], p["file"], p["says"]) for p in told["problems"]] == [
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
