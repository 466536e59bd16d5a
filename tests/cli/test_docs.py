"""`saga docs build`: an AsyncAPI document and pages, in a folder that is ours."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.choreography.odd_shop import odd_shop
from tests.cli.conftest import ROOT, Call


@pytest.fixture
def built(saga: Call, folder: Path) -> Path:
    done = saga("docs", "build", "site", "--title", "The order saga", "--api-version", "3.1")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "site/index.html: 15 events, 4 services",
        "site/asyncapi.json: AsyncAPI 3",
    ]
    return folder / "site"


def test_docs_writes_pages_and_an_asyncapi_document(built: Path) -> None:
    document = json.loads((built / "asyncapi.json").read_text("utf-8"))
    assert document["info"]["title"] == "The order saga"
    assert document["info"]["version"] == "3.1"
    assert len(list((built / "events").glob("*.html"))) == 15
    assert "<title>payment &middot; The order saga</title>" in (built / "services/payment.html").read_text("utf-8")


def test_built_again_it_is_the_same_and_what_is_no_more_is_removed(saga: Call, built: Path) -> None:
    before = {path: path.read_bytes() for path in built.rglob("*.html")}
    page = (built / "events/OrderPlaced.html").read_bytes()
    (built / "events/OrderGone.html").write_bytes(page)
    (built / "events/notes.html").write_text("mine", "utf-8")
    again = saga("docs", "build", "site", "--title", "The order saga", "--json")
    assert json.loads(again.stdout) == {"out": "site", "events": 15, "services": 4, "removed": 1}
    assert not (built / "events/OrderGone.html").exists()
    assert (built / "events/notes.html").read_text("utf-8") == "mine"
    assert {path: path.read_bytes() for path in before} == before


def test_removed_pages_are_reported(saga: Call, built: Path) -> None:
    (built / "services/gone.html").write_bytes((built / "services/payment.html").read_bytes())
    assert saga("docs", "build", "site").stdout.splitlines()[-1] == "removed 1 old page"


@pytest.mark.parametrize("name", ["notes.txt", "index.html"])
def test_a_folder_that_holds_something_else_is_left_alone(saga: Call, folder: Path, name: str) -> None:
    (folder / "site").mkdir()
    (folder / "site" / name).write_text("mine", "utf-8")
    done = saga("docs", "build", "site")
    assert done.exit_code == 2
    assert "site holds other files: name an empty folder" in done.output
    assert [path.name for path in (folder / "site").iterdir()] == [name]


def test_other_manifests_may_be_named(saga: Call, folder: Path) -> None:
    (folder / "others").mkdir()
    (folder / "others/order.json").write_bytes((ROOT / "manifests/order.json").read_bytes())
    done = saga("docs", "build", "site", "--manifests", "others", "--json")
    assert json.loads(done.stdout)["services"] == 1
    assert saga("docs", "build", "site", "--manifests", "nowhere").exit_code == 2


def test_without_contracts_it_cannot_be_asked(saga: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAGA_CONTRACTS")
    done = saga("docs", "build", "site")
    assert done.exit_code == 2
    assert "there is no folder contracts/ with schemas in it" in done.output


def test_without_manifests_the_events_are_shown(saga: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGA_CONTRACTS", str(odd_shop(folder / "odd") / "contracts"))
    for path in (folder / "odd/manifests").iterdir():
        path.unlink()
    done = saga("docs", "build", "site", "--json")
    assert json.loads(done.stdout) == {"out": "site", "events": 3, "services": 0, "removed": 0}
    assert "saga manifest --write" in (folder / "site/index.html").read_text("utf-8")


def test_without_jinja2_it_names_what_to_install(folder: Path) -> None:
    code = "import sys; sys.modules['jinja2'] = None\nfrom saga.cli.main import main\nmain(['docs', 'build', 'site'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'saga-choreography[docs]'" in done.stderr
    assert not (folder / "site").exists()
