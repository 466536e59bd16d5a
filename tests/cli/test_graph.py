"""`saga graph`: a picture of the choreography from manifests, their folders, or modules."""

import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, Call

PICTURE = ROOT / "docs/pictures/choreography.svg"


def events(saga: Call, *args: str) -> list[str]:
    done = saga("graph", "--format", "json", *args)
    assert done.exit_code == 0, done.output
    return [each["name"] for each in json.loads(done.stdout)["events"]]


def test_the_picture_in_the_documents_is_what_the_command_draws(saga: Call) -> None:
    drawn = saga("graph", "--title", "The order saga").stdout
    assert PICTURE.read_text("utf-8") == drawn, (
        'run `saga graph --title "The order saga" --output docs/pictures/choreography.svg`'
    )
    for page in ("README.md", "docs/guides/choreography.md"):
        assert "pictures/choreography.svg" in (ROOT / page).read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "title", "services"),
    [
        ("travel", "A trip", ("trips", "flights", "hotels", "cars", "insurance", "payments", "mail")),
        ("loan", "A loan", ("intake", "scoring", "funds", "approval", "letters")),
    ],
)
def test_the_pictures_of_the_examples_are_what_the_command_draws(
    saga: Call, monkeypatch: pytest.MonkeyPatch, name: str, title: str, services: tuple[str, ...]
) -> None:
    monkeypatch.setenv("SAGA_CONTRACTS", str(ROOT / "examples" / name / "contracts"))
    modules = [f"examples.{name}.{service}" for service in services]
    drawn = saga("graph", "--title", title, *modules).stdout
    assert (ROOT / f"docs/pictures/{name}.svg").read_text("utf-8") == drawn, f"draw docs/pictures/{name}.svg again"


def test_the_diagram_in_the_documents_is_what_the_command_prints(saga: Call) -> None:
    page = (ROOT / "docs/guides/choreography.md").read_text("utf-8")
    shown = re.search(r"\$ saga graph (.+)\n\.\.\.\n((?:.+\n)+?)\.\.\.\n", page)
    assert shown is not None
    assert shown[2] in saga("graph", *shown[1].split()).stdout


def test_graph_draws_the_manifests_beside_the_contracts(saga: Call, folder: Path) -> None:
    done = saga("graph", "--output", "pictures/shop.svg")
    assert (done.exit_code, done.output) == (0, "")
    root = ET.fromstring((folder / "pictures/shop.svg").read_text("utf-8"))
    assert root.attrib["aria-label"] == "Choreography: 4 services, 15 events"


@pytest.mark.parametrize(
    ("form", "begin"), [("svg", "<svg "), ("mermaid", "---\n"), ("dot", "digraph "), ("json", "{\n")]
)
def test_each_format_is_printed(saga: Call, form: str, begin: str) -> None:
    done = saga("graph", "--format", form, "--title", "Shop \x1b")
    assert done.exit_code == 0
    assert done.stdout.startswith(begin)
    assert "\x1b" not in done.stdout


def test_parts_are_drawn(saga: Call) -> None:
    assert len(events(saga)) == 15
    assert events(saga, "--from", "OrderConfirmed")[0] == "OrderConfirmed"
    assert len(events(saga, "--from", "OrderConfirmed")) == 4
    assert "InventoryReserved" not in events(saga, "--service", "payment")
    assert "InventoryReserved" in events(saga, "--service", "payment", "--service", "inventory")
    assert events(saga, "--service", "payment", "--from", "OrderConfirmed") == ["OrderConfirmed", "PaymentCaptured"]


def test_sources_are_manifests_folders_and_modules(saga: Call, folder: Path) -> None:
    shutil.copytree(ROOT / "manifests", folder / "theirs")
    (folder / "theirs/shipping.json").unlink()
    payment = str(folder / "theirs/payment.json")
    assert "PaymentReserved" in events(saga, payment)
    assert "InventoryReserved" not in events(saga, payment)
    assert "ShipmentDispatched" not in events(saga, "theirs")
    assert "ShipmentDispatched" in events(saga, "theirs", "services.shipping")
    assert "ShipmentDispatched" in events(saga, "--manifests", "theirs", "services.shipping")
    assert events(saga, "services.intake") == ["ChangeOf_orders", "OrderPlaced"]


def test_a_folder_that_is_a_package_is_a_module(saga: Call, folder: Path) -> None:
    (folder / "drawn_pots").mkdir()
    (folder / "drawn_pots/__init__.py").write_text("from services.payment import payment\n__all__ = ['payment']\n")
    assert "PaymentCaptured" in events(saga, "drawn_pots")


def test_a_module_replaces_a_manifest_of_the_same_service(saga: Call, folder: Path) -> None:
    old = json.loads((ROOT / "manifests/payment.json").read_text("utf-8"))
    old["reactions"] = [each for each in old["reactions"] if each["name"] != "capture"]
    (folder / "payment.json").write_text(json.dumps(old))
    made = saga("graph", "--format", "mermaid", "payment.json").stdout
    assert "capture" not in made
    assert "capture" in saga("graph", "--format", "mermaid", "payment.json", "services.payment").stdout


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--from", "OrderGone"), "there is no event 'OrderGone'; there are InventoryHandedOut, "),
        (("--service", "bank"), "there is no service 'bank'; there are inventory, order, payment, shipping"),
        (("gone.json",), "gone.json cannot be used"),
        (("services.gone",), "services.gone: "),
        (("empty",), "there is no manifest"),
        (("--format", "png"), "'png'"),
        (("damaged.json",), "damaged.json cannot be used"),
    ],
)
def test_asked_wrongly(saga: Call, folder: Path, args: tuple[str, ...], problem: str) -> None:
    (folder / "empty").mkdir()
    (folder / "damaged.json").write_text("[]")
    done = saga("graph", *args)
    assert done.exit_code == 2
    assert problem in done.output


def test_without_contracts_sources_are_named(
    saga: Call, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SAGA_CONTRACTS", str(tmp_path / "gone/contracts"))
    done = saga("graph")
    assert done.exit_code == 2
    assert "or name manifests or modules" in done.output
    assert len(events(saga, str(ROOT / "manifests"))) == 15
