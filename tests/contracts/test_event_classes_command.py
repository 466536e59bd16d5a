"""`saga contracts write` and `saga contracts check` with events that are declared as classes, as a user calls them."""

import errno
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from saga.cli.contracts import contracts
from saga.contracts import library
from tests.contracts.folders import put, schema, write

EVENTS = '''
"""Events of the payment service."""

from typing import Annotated

from saga import Event, event


@event(topic="payments", key="order_id", owner="payment"{more})
class Paid(Event):
    """It is paid."""

    order_id: Annotated[str, "The order."]
{line}
'''
PLACE = "payments/Paid.v1.avsc"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty repository, being the current folder. Nothing of it stays imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    forget()


def forget() -> None:
    """Each command is a process of its own, which imports modules and reads contracts again."""
    library._load_cached.cache_clear()
    importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("shop", "till")]:
        del sys.modules[name]


def saga(*arguments: str) -> Result:
    forget()
    return CliRunner().invoke(contracts, arguments)


def declare(folder: Path, line: str = "", more: str = "", module: str = "shop/events.py") -> None:
    put(folder / module, EVENTS.format(line=f"    {line}", more=more))


def release(folder: Path) -> None:
    assert saga("write").exit_code == 0
    assert saga("release").exit_code == 0


def test_a_contract_is_written_once_and_check_accepts_it(folder: Path) -> None:
    declare(folder)
    done = saga("check")
    assert done.exit_code == 2
    assert "there is no folder contracts/" in done.output
    done = saga("write")
    last = "1 event class; next: saga contracts check"
    assert (done.exit_code, done.output.splitlines()) == (0, [f"contracts/{PLACE} written", last])
    assert json.loads((folder / "contracts" / PLACE).read_text())["doc"] == "It is paid."
    done = saga("write", "shop/events.py")
    assert (done.exit_code, done.output) == (0, "1 event class; all contracts are up to date\n")
    done = saga("check")
    assert done.exit_code == 0
    assert done.output.splitlines()[-1] == "1 event class says what contracts/ has"
    assert saga("check", "shop/events.py").exit_code == 0
    assert json.loads(saga("check", "--json").output)["classes"] == 1


def test_check_says_which_class_differs_where_and_what_to_type(folder: Path) -> None:
    declare(folder)
    saga("write")
    declare(folder, "note: str = ''")
    done = saga("check")
    assert done.exit_code == 1
    wanted = (
        f"shop/events.py: Paid and contracts/{PLACE} differ: note: added: string, default ''; run saga contracts write"
    )
    assert f"{wanted} [class]" in done.output
    [problem] = json.loads(saga("check", "shop/events.py", "--json").output)["problems"]
    assert (problem["rule"], problem["line"]) == ("class", 10)
    assert saga("write").exit_code == 0
    assert saga("check").exit_code == 0


def test_a_changed_description_is_drift_and_is_written_even_where_it_is_released(folder: Path) -> None:
    declare(folder, "note: str = ''")
    release(folder)
    declare(folder, "note: Annotated[str, 'A word.'] = ''")
    assert (
        "differ: a description, a lint rule or the layout of the file; run saga contracts write" in saga("check").output
    )
    assert saga("write").exit_code == 0
    assert saga("check").exit_code == 0


def test_a_released_version_is_never_changed_and_the_next_one_is_written(folder: Path) -> None:
    declare(folder)
    release(folder)
    before = (folder / "contracts" / PLACE).read_text()
    declare(folder, "note: str = ''")
    for command in ("check", "write"):
        done = saga(command)
        assert done.exit_code == 1
        remedy = "version 1 is released: make the change in the next one, with version=2, or take it back"
        assert f"differ: note: added: string, default ''; {remedy} [class]" in done.output
    assert (folder / "contracts" / PLACE).read_text() == before
    declare(folder, "note: str = ''", ", version=2")
    done = saga("write")
    assert (done.exit_code, done.output.splitlines()[0]) == (0, "contracts/payments/Paid.v2.avsc written")
    assert (folder / "contracts" / PLACE).read_text() == before
    assert saga("check").exit_code == 0


@pytest.mark.parametrize(
    ("more", "remedy"),
    [
        (", version=3", "the newest version in contracts/ is 1: set version=2"),
        (", version=2", "version 1 is not released: set version=1, and its file is written again"),
    ],
)
def test_a_number_that_cannot_be_next_is_refused(folder: Path, more: str, remedy: str) -> None:
    declare(folder)
    saga("write")
    write(folder, schema("Asked"))
    put(folder / "contracts/released.json", '{"format": 1, "versions": {}}')
    declare(folder, "note: str = ''", more)
    done = saga("write")
    assert done.exit_code == 1
    assert remedy in done.output
    assert not (folder / "contracts/payments/Paid.v2.avsc").exists()


def test_the_next_version_is_written_where_nothing_is_released(folder: Path) -> None:
    declare(folder)
    saga("write")
    declare(folder, "note: str = ''", ", version=2")
    assert saga("write").output.splitlines()[0] == "contracts/payments/Paid.v2.avsc written"


def test_a_class_that_is_not_the_newest_version_is_refused(folder: Path) -> None:
    declare(folder)
    release(folder)
    declare(folder, "note: str = ''", ", version=2")
    saga("write")
    declare(folder)
    for command in ("check", "write"):
        assert "contracts/ has version 2 already: set version=2 [class]" in saga(command).output


def test_a_released_file_that_says_the_same_in_other_words_is_left_alone(folder: Path) -> None:
    declare(folder)
    words = {"type": {"type": "string"}, "doc": "The order."}
    whole = schema("Paid", topic="payments", owner="payment", starts=False, doc="It is paid.")
    write(folder, {**whole, "fields": [{"name": "order_id", **words}]})
    before = (folder / "contracts" / PLACE).read_text()
    assert saga("release").exit_code == 0
    assert saga("check").exit_code == 0
    assert saga("write").exit_code == 0
    assert (folder / "contracts" / PLACE).read_text() == before


def test_nothing_is_written_if_one_of_the_files_cannot_be(folder: Path) -> None:
    declare(folder)
    put(folder / "till/events.py", EVENTS.format(line="", more="").replace("Paid", "Rung").replace("payments", "tills"))
    put(folder / "contracts/tills", "a file where the folder of the topic would be")
    done = saga("write")
    assert done.exit_code == 1, done.exception
    assert "contracts/tills: it cannot be written: File exists" in done.output
    assert "no contract was written" in done.output
    assert not (folder / "contracts" / PLACE).exists()


def test_a_full_disk_is_reported_with_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *_: object) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    declare(folder)
    monkeypatch.setattr(Path, "write_text", full)
    done = saga("write")
    assert done.exit_code == 1, done.exception
    assert f"contracts/{PLACE}: it cannot be written: No space left on device" in done.output
    assert not (folder / "contracts" / PLACE).exists()


def test_an_old_file_that_a_full_disk_has_taken_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *_: object) -> int:
        self.open("wb").close()
        raise OSError(errno.ENOSPC, "No space left on device")

    declare(folder)
    assert saga("write").exit_code == 0
    declare(folder, line='note: Annotated[str, "A note."] = ""')
    monkeypatch.setattr(Path, "write_text", full)
    monkeypatch.setattr(Path, "write_bytes", full)
    done = saga("write")
    assert done.exit_code == 1, done.exception
    assert f"contracts/{PLACE}: its old content is lost: restore it from version control" in done.output


def test_nothing_is_written_if_the_folder_could_not_be_loaded_then(folder: Path) -> None:
    write(folder, schema("Other", topic="payments", owner="till"))
    declare(folder)
    done = saga("write")
    assert done.exit_code == 1
    assert "a topic has one owner" in done.output
    assert "no contract was written: correct that" in done.output
    assert not (folder / "contracts" / PLACE).exists()
    (folder / "contracts/payments/Other.v1.avsc").unlink()
    assert saga("write").exit_code == 0
    before = (folder / "contracts" / PLACE).read_text()
    write(folder, schema("Other", topic="payments", owner="payment"))
    declare(folder, more=", outcome='failure'")
    write(folder, schema("End", topic="ends", owner="till", outcome="success"))
    done = saga("write")
    assert "one service decides how a saga of kind 'order_id' ends" in done.output
    assert (folder / "contracts" / PLACE).read_text() == before


def test_two_classes_of_one_contract_are_refused_and_one_may_be_imported(folder: Path) -> None:
    declare(folder)
    put(
        folder / "till/events.py",
        "from saga import event\nfrom shop.events import Paid\n\n__all__ = ['Paid', 'event']\n",
    )
    assert saga("write").exit_code == 0
    declare(folder, module="till/events.py")
    own = (folder / "till/events.py").read_text().replace("Paid", "Counted").replace('"payments"', '"counts"')
    put(folder / "till/events.py", own.replace("from saga import", "from shop.events import Paid\nfrom saga import"))
    assert saga("write").output.splitlines()[0] == "contracts/counts/Counted.v1.avsc written"
    declare(folder, module="till/events.py")
    done = saga("check")
    assert (
        "till/events.py: Paid is declared in shop/events.py, too; import the class from one of the two" in done.output
    )


def test_a_module_that_cannot_be_imported_is_named_with_the_reason(folder: Path) -> None:
    declare(folder, more=", start=True")
    for command in ("write", "check"):
        write(folder, schema("Asked"))
        done = saga(command)
        assert done.exit_code == 1
        assert "shop/events.py: shop.events: @event above shop.events.Paid: start= means nothing here" in done.output
    declare(folder, "note: str = 1 / 0")
    assert "shop/events.py: shop.events: fails while it is imported: ZeroDivisionError" in saga("write").output


@pytest.mark.parametrize(("text", "line", "says"), [
    ("import absent_package\n", 1, "cannot be imported: No module named 'absent_package'; it is imported at "),
    ("x = (\n", 1, "fails while it is imported: SyntaxError: '(' was never closed ("),
    ("\nx = 1 / 0\n", 2, "fails while it is imported: ZeroDivisionError: division by zero ("),
])  # fmt: skip
def test_the_file_that_has_to_be_corrected_is_named_and_not_the_one_that_imports_it(
    folder: Path, text: str, line: int, says: str
) -> None:
    declare(folder)
    write(folder, schema("Asked"))
    put(folder / "shop/__init__.py", text)
    [problem] = json.loads(saga("check", "--json").stdout)["problems"]
    assert (problem["file"], problem["line"]) == ("shop/__init__.py", line)
    assert problem["says"].startswith(f"shop.events: {says}{folder / 'shop/__init__.py'}:{line}")
    assert f"shop/__init__.py: shop.events: {says}" in saga("write").output


def test_generated_modules_are_named_as_the_next_step_only_if_there_are_some(folder: Path) -> None:
    declare(folder)
    assert saga("write").output.splitlines()[-1] == "1 event class; next: saga contracts check"
    saga("generate", "till/events.py", "Paid")
    declare(folder, "note: str = ''")
    assert saga("write").output.splitlines()[-1] == (
        "1 event class; next: saga contracts generate, saga contracts check"
    )


def test_without_event_classes_write_says_so(folder: Path) -> None:
    put(folder / "shop/events.py", "from flask import event\n\n\n@event('saga')\nclass Paid: ...\n")
    put(folder / "shop/broken.py", "from saga import event\n@event(\n")
    done = saga("write")
    assert done.exit_code == 2
    assert "there is no class decorated with @event below the current folder" in done.output
    assert "decorated with @event in shop/events.py" in saga("write", "shop/events.py").output


def test_a_package_that_handles_its_new_event_is_imported_before_the_contract_is_there(folder: Path) -> None:
    declare(folder, more=", starts=True, produced_by='external'")
    handler = 'shop = Service("payment")\n\n\n@shop.handler\nasync def take(paid: Paid) -> None: ...\n'
    put(folder / "shop/__init__.py", f"from saga import Service\nfrom shop.events import Paid\n\n{handler}")
    assert saga("write").exit_code == 0
    assert saga("check").exit_code == 0


def test_a_package_may_declare_events_itself_by_any_name_of_the_decorator(folder: Path) -> None:
    declare(folder, module="shop/__init__.py")
    source = (folder / "shop/__init__.py").read_text()
    assert saga("write").exit_code == 0
    spellings = {"import saga\nfrom saga import Event": "saga.event", "from saga import Event, event as e": "e"}
    for imported, used in spellings.items():
        text = source.replace("from saga import Event, event", imported).replace("@event", f"@{used}")
        put(folder / "shop/__init__.py", text)
        assert saga("check").output.splitlines()[-1] == "1 event class says what contracts/ has"
        assert "shop" in sys.modules
        assert "shop.__init__" not in sys.modules


def test_modules_below_a_source_folder_have_the_names_by_which_python_imports_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(folder, module="src/shop/events.py")
    monkeypatch.syspath_prepend(folder / "src")
    assert saga("write").exit_code == 0
    assert sys.modules["shop.events"].__file__ == str(folder / "src/shop/events.py")


def test_lint_says_where_the_description_of_a_class_is(folder: Path) -> None:
    write(folder, schema("Asked"))
    hint = 'in a class decorated with @event, "doc" is the docstring, or the text in Annotated[str, "TEXT"]; '
    assert hint not in saga("lint").output
    declare(folder)
    done = saga("lint")
    assert done.exit_code == 1
    assert hint in done.output
