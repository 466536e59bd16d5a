"""`saga manifest`: printed, written, and a release that is compared with the one before."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import ROOT, Call

SERVICES = ("services.order", "services.payment")


@pytest.fixture
def released(folder: Path) -> Path:
    """The manifests of the example's last release, to be edited."""
    place = folder / "manifests"
    place.mkdir()
    for path in (ROOT / "manifests").glob("*.json"):
        (place / path.name).write_bytes(path.read_bytes())
    return place


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def test_the_printed_manifest_is_the_committed_one(saga: Call) -> None:
    printed = saga("manifest", "services.payment")
    assert printed.exit_code == 0, printed.output
    assert printed.stdout == (ROOT / "manifests/payment.json").read_text("utf-8")


def test_a_manifest_is_printed_on_one_line(saga: Call) -> None:
    printed = saga("manifest", *SERVICES, "--json")
    assert printed.stdout.count("\n") == 1
    assert [each["service"] for each in json.loads(printed.stdout)] == ["order", "payment"]


def test_manifest_writes_one_file_for_each_service(saga: Call, folder: Path) -> None:
    first = saga("manifest", "--write", *SERVICES, "--folder", "m")
    assert first.exit_code == 0, first.output
    assert first.stdout.splitlines() == ["m/order.json written", "m/payment.json written"]
    for name in ("order.json", "payment.json"):
        assert (folder / "m" / name).read_bytes() == (ROOT / "manifests" / name).read_bytes()
    again = saga("manifest", "--write", *SERVICES, "--folder", "m", "--json")
    assert json.loads(again.stdout)["written"] == []
    assert saga("manifest", "--write", *SERVICES, "--folder", "m").stdout.splitlines() == [
        "m/order.json is unchanged",
        "m/payment.json is unchanged",
    ]


def test_the_same_release_passes(saga: Call) -> None:
    checked = saga("manifest", "--check", *SERVICES)
    assert checked.exit_code == 0, checked.output
    assert checked.stdout.splitlines() == [
        f"{ROOT}/manifests/order.json is up to date",
        f"{ROOT}/manifests/payment.json is up to date",
    ]


def test_a_renamed_handler_is_refused_with_the_way_out_and_not_written(saga: Call, released: Path) -> None:
    edit(released / "payment.json", '"name": "reserve"', '"name": "hold"')
    before = (released / "payment.json").read_bytes()
    checked = saga("manifest", "--check", "services.payment", "--folder", "manifests")
    assert checked.exit_code == 1
    lines = checked.stdout.splitlines()
    assert lines[0].startswith("refused   payment  hold: handler renamed to reserve?")
    assert lines[1].strip().startswith("keep the name hold; when no open saga has work of it")
    assert lines[2] == "harmless  payment  reserve: is new: a handler"
    written = saga("manifest", "--write", "services.payment", "--folder", "manifests")
    assert written.exit_code == 1
    assert written.stdout.splitlines()[-1] == "manifests/payment.json is not written"
    assert (released / "payment.json").read_bytes() == before


def test_a_refused_change_is_written_when_accepted_explicitly(saga: Call, released: Path) -> None:
    edit(released / "payment.json", '"name": "reserve"', '"name": "hold"')
    written = saga("manifest", "--write", "--anyway", "services.payment", "--folder", "manifests")
    assert written.exit_code == 0, written.output
    assert written.stdout.splitlines()[-1] == "manifests/payment.json written"
    assert saga("manifest", "--check", "services.payment", "--folder", "manifests").exit_code == 0


def test_one_refused_change_prevents_all_writes(saga: Call, released: Path) -> None:
    (released / "order.json").unlink()
    edit(released / "payment.json", '"name": "reserve"', '"name": "hold"')
    written = saga("manifest", "--write", *SERVICES, "--folder", "manifests")
    assert written.exit_code == 1
    assert not (released / "order.json").exists()


def test_an_event_that_another_manifest_hears_is_kept(saga: Call, released: Path) -> None:
    emits: list[dict[str, Any]] = json.loads((released / "payment.json").read_text("utf-8"))["emits"]
    other = {"contract": "PaymentNoted", "version": 1, "topic": "payments", "key": "order_id"}
    manifest = json.loads((released / "payment.json").read_text("utf-8"))
    (released / "payment.json").write_text(json.dumps({**manifest, "emits": [*emits, other]}), "utf-8")
    assert saga("manifest", "--check", "services.payment", "--folder", "manifests").exit_code == 0
    elsewhere = {
        "format": 1,
        "service": "elsewhere",
        "kind": "order_id",
        "retention_s": 60,
        "consumes": [{**other, "fields": "all"}],
        "emits": [],
        "reactions": [],
    }
    (released / "elsewhere.json").write_text(json.dumps(elsewhere), "utf-8")
    checked = saga("manifest", "--check", "services.payment", "--folder", "manifests", "--json")
    assert checked.exit_code == 1
    [refused] = json.loads(checked.stdout)["services"][0]["differences"]
    assert (refused["verdict"], refused["where"]) == ("refused", "PaymentNoted")
    assert refused["what"] == "is no longer emitted, but is consumed by elsewhere"


def test_external_consumers_count_and_the_release_before_does_not(saga: Call, released: Path) -> None:
    manifest: dict[str, Any] = json.loads((released / "payment.json").read_text("utf-8"))
    noted = {"contract": "PaymentNoted", "version": 1, "topic": "payments", "key": "order_id"}
    outside = {"contract": "InventoryPutBack", "version": 1, "topic": "inventory", "key": "order_id"}
    manifest["emits"] += [noted, outside]
    manifest["consumes"] += [{**noted, "fields": "all"}]
    (released / "payment.json").write_text(json.dumps(manifest), "utf-8")
    checked = saga("manifest", "--check", "services.payment", "--folder", "manifests", "--json")
    found = json.loads(checked.stdout)["services"][0]["differences"]
    assert [(each["verdict"], each["where"], each["what"]) for each in found] == [
        ("refused", "InventoryPutBack", "is no longer emitted, but is consumed by external consumers"),
        ("harmless", "PaymentNoted", "is no longer emitted, and has no consumer"),
    ]


def test_a_harmless_change_passes_with_the_advice_to_write_it(saga: Call, released: Path) -> None:
    edit(released / "payment.json", '["card", "order_id", "total"]', '["order_id", "total"]')
    checked = saga("manifest", "--check", "services.payment", "--folder", "manifests")
    assert checked.exit_code == 0, checked.output
    assert checked.stdout.splitlines() == [
        "harmless  payment  payment: differs in texts, times or fields read",
        "manifests/payment.json differs harmlessly: run saga manifest --write when this is released",
    ]
    assert json.loads(saga("manifest", "--check", "services.payment", "--folder", "manifests", "--json").stdout) == {
        "harmless": True,
        "services": [
            {
                "service": "payment",
                "is_new": False,
                "differences": [
                    {
                        "service": "payment",
                        "where": "payment",
                        "what": "differs in texts, times or fields read",
                        "way_out": "",
                        "verdict": "harmless",
                    }
                ],
            }
        ],
    }


def test_without_a_release_before_the_answer_is_no(saga: Call, folder: Path) -> None:
    checked = saga("manifest", "--check", "services.payment", "--folder", "nowhere")
    assert checked.exit_code == 1
    assert checked.stdout == (
        "nowhere/payment.json does not exist: write it with saga manifest --write, and commit it\n"
    )


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("services.payment", "--check", "--write"), "--check compares, --write compares and writes"),
        (("services.payment", "--anyway"), "--anyway goes with --write"),
        (("services.nowhere",), "services.nowhere"),
        ((), "Missing argument"),
    ],
)
def test_asked_wrongly(saga: Call, args: tuple[str, ...], problem: str) -> None:
    asked = saga("manifest", *args)
    assert asked.exit_code == 2
    assert problem in asked.output


def test_a_damaged_manifest_is_reported_and_escaped(saga: Call, released: Path) -> None:
    edit(released / "order.json", '"service": "order"', '"service": "\\u001b[2Jorder"')
    checked = saga("manifest", "--check", "services.payment", "--folder", "manifests")
    assert checked.exit_code == 2
    assert "order.json: '\\x1b[2Jorder' is no name of a service" in checked.output
    assert "\x1b" not in checked.output


def test_an_odd_name_in_a_manifest_moves_no_terminal(saga: Call, released: Path) -> None:
    edit(released / "payment.json", '"bank": "Bank"', '"b\\u001b[2Jank": "Bank\\nall is well"')
    checked = saga("manifest", "--check", "services.payment", "--folder", "manifests")
    assert checked.exit_code == 1
    assert "\x1b" not in checked.output
    assert "all is well" not in checked.stdout.splitlines()
