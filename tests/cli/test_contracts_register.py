"""`saga contracts register` and the doctor, on a real schema registry."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call
from tests.contracts.folders import decimal, field, generated, put, schema, write
from tests.servers.registry import RegistryServer

SERVICE = """
from saga import Service
from {events} import Sold

shop = Service("shop")

@shop.handler
async def sell(sold: Sold) -> Sold | None: ...
"""


def sold(topic: str, *fields: dict[str, Any], **attributes: Any) -> dict[str, Any]:
    return schema("Sold", *fields, topic=topic, owner="shop", starts=True, produced_by="external", **attributes)


@pytest.fixture
def contracts(folder: Path, monkeypatch: pytest.MonkeyPatch, schema_registry: RegistryServer) -> Path:
    """The folder of contracts, and the registry in the settings."""
    monkeypatch.setenv("SAGA_CONTRACTS", str(folder / "contracts"))
    monkeypatch.setenv("SAGA_REGISTRY", schema_registry.url)
    return folder / "contracts"


def agree(folder: Path, topic: str, *schemas: dict[str, Any], wire: str = "registry") -> None:
    """Write versions of a contract, and the wire format of its topic."""
    for number, whole in enumerate(schemas, 1):
        write(folder, whole, version=number)
    put(folder / "contracts" / topic / "topic.json", json.dumps({"wire": wire}))


def test_each_version_is_registered_once_without_what_is_ours(
    saga: Call, folder: Path, contracts: Path, schema_registry: RegistryServer
) -> None:
    topic, price = "sales-once", field("price", decimal(), sensitive=True)
    first = sold(topic, price, namespace="org.example")
    agree(folder, topic, first, {**first, "fields": [*first["fields"], field("note", "string", default="-")]})
    done = saga("contracts", "register")
    assert done.exit_code == 0, done.output
    one, two = done.stdout.splitlines()
    assert one.startswith(f"registered  {topic}/Sold.v1  {topic}-org.example.Sold: id ")
    assert two.startswith(f"registered  {topic}/Sold.v2  {topic}-org.example.Sold: id ")
    kept = json.loads(schema_registry.ask(f"/schemas/ids/{one.rpartition(' ')[2]}")["schema"])
    assert kept.keys() == {"type", "name", "namespace", "doc", "fields"}
    assert kept["fields"][1] == {"name": "price", "type": decimal()}
    again = saga("contracts", "register", "Sold", "--json")
    report = json.loads(again.stdout)["registered"]
    assert [(each["path"], each["was_there"], each["refused"]) for each in report] == [
        (f"{topic}/Sold.v1", True, ""),
        (f"{topic}/Sold.v2", True, ""),
    ]
    assert [str(each["id"]) for each in report] == [line.rpartition(" ")[2] for line in (one, two)]


def test_other_words_in_the_docs_are_no_other_schema(saga: Call, folder: Path, contracts: Path) -> None:
    topic = "sales-docs"
    agree(folder, topic, sold(topic))
    first = saga("contracts", "register").stdout
    agree(folder, topic, sold(topic, doc="Other words."))
    assert saga("contracts", "register").stdout == first.replace("registered", "unchanged ")


def test_a_schema_refused_by_the_registry_is_reported_and_newer_ones_are_not_tried(
    saga: Call, folder: Path, contracts: Path, schema_registry: RegistryServer
) -> None:
    topic = "sales-refused"
    wider = [field("count", "long"), field("note", "string", default="")]
    first = sold(topic, field("count", "int"))
    agree(
        folder,
        topic,
        first,
        {**sold(topic, wider[0]), "compatible": "none"},
        {**sold(topic, *wider), "compatible": "none"},
    )
    schema_registry.register(f"{topic}-Sold", {**first, "fields": [field("count", "string")]})
    schema_registry.ask(f"/config/{topic}-Sold", {"compatibility": "FULL"}, "PUT")
    done = saga("contracts", "register")
    assert done.exit_code == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"refused     {topic}/Sold.v1  {topic}-Sold: ")
    assert "ncompatible" in line


def test_topics_of_single_objects_have_nothing_to_register(saga: Call, folder: Path, contracts: Path) -> None:
    agree(folder, "sales-plain", sold("sales-plain"), wire="single-object")
    done = saga("contracts", "register")
    assert (done.exit_code, done.stdout.partition(":")[0]) == (0, "nothing to register")


def test_wrong_usage_exits_with_2(saga: Call, folder: Path, contracts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agree(folder, "sales-wrongly", sold("sales-wrongly"))
    done = saga("contracts", "register", "Sodl")
    assert done.exit_code == 2
    assert "there is no contract Sodl in" in done.output
    assert "is it Sold?" in done.output
    monkeypatch.setenv("SAGA_REGISTRY", "http://127.0.0.1:1")
    away = saga("contracts", "register")
    assert away.exit_code == 2
    assert "the schema registry at http://127.0.0.1:1 cannot be used: " in away.output
    monkeypatch.delenv("SAGA_REGISTRY")
    unset = saga("contracts", "register")
    assert unset.exit_code == 2
    assert "no schema registry is set: SAGA_REGISTRY" in unset.output


def test_the_doctor_reports_what_is_not_registered_or_that_all_is(
    saga: Call, folder: Path, contracts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "sales-doctor"
    agree(folder, topic, sold(topic))
    events = generated(folder, "Sold")
    module = f"{events.__name__}_shop"
    (folder / f"{module}.py").write_text(SERVICE.format(events=events.__name__), "utf-8")
    monkeypatch.syspath_prepend(str(folder))
    wrong = saga("doctor", module)
    assert wrong.exit_code == 1, wrong.output
    assert f"{topic}/Sold.v1 is not registered as {topic}-Sold" in wrong.stdout
    assert "to do: saga contracts register" in wrong.stdout
    assert saga("contracts", "register").exit_code == 0
    right = saga("doctor", module)
    assert "it has the schemas of all emitted events" in right.stdout
    assert "is not registered" not in right.stdout
    monkeypatch.setenv("SAGA_REGISTRY", "http://127.0.0.1:1")
    away = saga("doctor", module)
    assert away.exit_code == 2
    assert "registry http://127.0.0.1:1: " in away.stdout
    monkeypatch.delenv("SAGA_REGISTRY")
    unset = saga("doctor", module)
    assert f'{topic}/topic.json says "wire": "registry", and no schema registry is set: SAGA_REGISTRY' in unset.stdout
