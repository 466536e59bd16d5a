"""`saga contracts generate` and `saga contracts check`, as a user calls them."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from saga.cli.contracts import contracts
from saga.contracts import library
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
    assert (done.exit_code, done.output) == (0, "1 generated module is as the contracts say\n")
    done = saga("generate")
    assert (done.exit_code, done.output) == (0, "services/order/events.py is as the contracts say\n")


def test_check_names_the_file_and_the_difference_and_generate_mends_it(folder: Path) -> None:
    saga("generate", "a/events.py", "Placed")
    saga("generate", "b/events.py", "Asked")
    write(folder, schema("Placed", field("note", "string", default="")), version=2)
    forget_folders()
    done = saga("check")
    assert done.exit_code == 1
    assert "a/events.py is not what the contracts say; run saga contracts generate" in done.output
    assert '+    note: str = ""' in done.output
    assert "b/events.py" not in done.output
    assert saga("check", "b/events.py").exit_code == 0
    assert saga("check", "a/events.py").exit_code == 1
    done = saga("generate")
    assert (done.exit_code, done.output) == (0, "a/events.py written\nb/events.py is as the contracts say\n")
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
        (["check"], "there is no generated module below the current folder; name one"),
        (["check", "nowhere.py"], "File 'nowhere.py' does not exist"),
        (["generate", "events.py", "Nothing"], "there is no contract Nothing in"),
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


def test_without_contracts_the_command_makes_no_sense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = saga("generate", "events.py", "Placed")
    assert done.exit_code == 2
    assert "there is no folder contracts/ with schemas in it" in done.output
