"""`saga contracts diff` with manifests: for which services a change breaks what."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call
from tests.contracts.folders import field, put, schema, write

ADDRESS = {"type": "record", "name": "Address", "fields": [field("street", "string"), field("city", "string")]}
SHORT = {**ADDRESS, "fields": ADDRESS["fields"][:1]}


def manifest(folder: Path, service: str, version: int, fields: Any, **more: Any) -> None:
    """A manifest of a service that hears `Placed`, and nothing else."""
    use = {"contract": "Placed", "version": version, "topic": "orders", "key": "order_id", "fields": fields, **more}
    document = {"format": 1, "service": service, "kind": "order_id", "retention_s": 60, "emits": [], "reactions": []}
    put(folder / f"{service}.json", json.dumps({**document, "consumes": [use]}))


@pytest.fixture
def placed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A contract of which the second version drops a field, renames another, and drops a part of a third."""
    before = (field("note", "string"), field("total", "int"), field("address", ADDRESS), field("sku", "string"))
    after = (field("amount", "int", aliases=["total"]), field("address", SHORT), field("sku", "string"))
    contracts = write(folder, schema("Placed", *before))
    write(folder, schema("Placed", *after), version=2)
    monkeypatch.setenv("SAGA_CONTRACTS", str(contracts))
    return folder / "manifests"


def listed_consumers(done: Any) -> dict[str, list[tuple[str, str, str]]]:
    """By service the direction, the effect and the path of each concern."""
    return {
        each["service"]: [(c["direction"], c["effect"], c["path"]) for c in each["concerns"]]
        for each in json.loads(done.stdout)["consumers"]
    }


def test_the_effect_of_the_change_is_shown_for_each_service(saga: Call, placed: Path) -> None:
    manifest(placed, "stock", 1, ["order_id", "sku"])
    manifest(placed, "billing", 1, ["order_id", "total"])
    manifest(placed, "parcels", 1, ["address.city"])
    done = saga("contracts", "diff", "Placed.v1", "Placed.v2")
    lines = done.stdout.splitlines()
    at = lines.index("affected services, according to the manifests in manifests:")
    assert lines[at + 1] == "  billing (reads v1: order_id, total)"
    assert {line.strip() for line in lines[at + 2 : lines.index("  parcels (reads v1: address.city)")]} == {
        "until it is released with v2: note is not in what is written, and has no default where it is read",
        "until it is released with v2: total is not in what is written, and has no default where it is read",
        "until it is released with v2: address.city is not in what is written, and has no default where it is read",
        "once it is released with v2: its code may read total, which the newer version does not have: it is amount "
        "there",
    }
    found = listed_consumers(saga("contracts", "diff", "Placed.v1", "Placed.v2", "--json"))
    assert ("backward", "gone", "amount") in found["billing"]
    assert ("backward", "gone", "address.city") in found["parcels"]
    assert {effect for _, effect, _ in found["stock"]} == {"fails"}, "it cannot read the message at all until then"


def test_only_who_reads_a_field_is_concerned_by_its_default(
    saga: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contracts = write(folder, schema("Placed", field("note", "string", default=""), field("sku", "string")))
    write(folder, schema("Placed", field("sku", "string")), version=2)
    monkeypatch.setenv("SAGA_CONTRACTS", str(contracts))
    manifest(folder / "manifests", "stock", 1, ["order_id", "sku"])
    manifest(folder / "manifests", "notes", 1, ["note"])
    manifest(folder / "manifests", "copies", 1, "all", because="keep hands it on whole")
    manifest(folder / "manifests", "ahead", 2, "all")
    done = saga("contracts", "diff", "Placed.v1", "Placed.v2")
    assert done.exit_code == 0, done.output
    assert "  stock (reads v1: order_id, sku): not concerned" in done.stdout.splitlines()
    assert "  ahead (reads v2: all fields): not concerned" in done.stdout.splitlines()
    assert "  copies (reads v1: all fields)" in done.stdout.splitlines()
    both = [("forward", "default", "note"), ("backward", "gone", "note")]
    found = listed_consumers(saga("contracts", "diff", "Placed.v1", "Placed.v2", "--json"))
    assert found == {"ahead": [], "copies": both, "notes": both, "stock": []}


def test_a_consumer_of_the_newer_version_still_reads_old_messages(
    saga: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contracts = write(folder, schema("Placed"))
    write(folder, schema("Placed", field("sku", "string", default="tea")), version=2)
    monkeypatch.setenv("SAGA_CONTRACTS", str(contracts))
    manifest(folder / "manifests", "ahead", 2, ["sku"])
    manifest(folder / "manifests", "behind", 1, ["order_id"])
    lines = saga("contracts", "diff", "Placed.v1", "Placed.v2").stdout.splitlines()
    at = lines.index("  ahead (reads v2: sku)")
    assert lines[at + 1] == "    now: sku is not in what is written: its default 'tea' stands in"
    assert lines[at + 2] == "  behind (reads v1: order_id): not concerned"


def test_fields_read_by_an_upcaster_are_not_affected(saga: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contracts = write(folder, schema("Placed", field("cents", "int")))
    euros = schema("Placed", field("euros", "int"), compatible="backward", upcasts=[1])
    write(folder, euros, version=2)
    monkeypatch.setenv("SAGA_CONTRACTS", str(contracts))
    manifest(folder / "manifests", "ahead", 2, "all", upcasts=[1])
    manifest(folder / "manifests", "behind", 1, "all")
    found = listed_consumers(saga("contracts", "diff", "Placed.v1", "Placed.v2", "--json"))
    assert found == {"ahead": [], "behind": [("forward", "fails", "cents"), ("backward", "gone", "cents")]}


def test_unknown_consumers_count_as_reading_everything(
    saga: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contracts = write(folder, schema("Placed", field("note", "string", default=""), consumed_by="external"))
    write(folder, schema("Placed", consumed_by="external"), version=2)
    monkeypatch.setenv("SAGA_CONTRACTS", str(contracts))
    (folder / "others").mkdir()
    lines = saga("contracts", "diff", "Placed.v1", "Placed.v2", "--manifests", "others").stdout.splitlines()
    at = lines.index("affected services, according to the manifests in others:")
    assert lines[at + 1] == "  consumers outside (reads unknown versions: all fields)"


def test_without_manifests_no_consumer_is_named(saga: Call, placed: Path) -> None:
    assert "manifest" not in saga("contracts", "diff", "Placed.v1", "Placed.v2").stdout
    placed.mkdir()
    assert "no manifest in manifests consumes it" in saga("contracts", "diff", "Placed.v1", "Placed.v2").stdout
    assert saga("contracts", "diff", "Placed.v1", "Placed.v2", "--manifests", "nowhere").exit_code == 2
    put(placed / "odd.json", "{}")
    refused = saga("contracts", "diff", "Placed.v1", "Placed.v2")
    assert refused.exit_code == 2
    assert "odd.json: is no manifest" in refused.output
