"""`saga new`: the files that it writes pass their checks in a fresh folder; and what it refuses to write."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

from saga.cli.main import main
from saga.configuration.settings import Settings, known_settings
from saga.contracts.conversion import to_raw
from saga.contracts.library import Library
from saga.errors import SagaError
from saga.scaffold.plans import PLAIN, TEMPLATES, example_of, write_files
from tests.cli.test_missing_topics import running
from tests.compose.checked import compose_here, config_of, problems_in
from tests.contracts.folders import decimal, field, schema
from tests.contracts.folders import write as write_contracts
from tests.waiting import until

BIN = Path(sys.executable).parent
RUN_S_MAX = 60.0
LONG = "a-name-that-is-as-long-as-any-may-be-her"
ROOT = Path(__file__).parents[2]
CHECKS = (
    (sys.executable, "-m", "saga.cli.main", "contracts", "check"),
    (sys.executable, "-m", "saga.cli.main", "contracts", "lint"),
    (str(BIN / "ruff"), "format", "--no-cache", "--check", "."),
    (str(BIN / "ruff"), "check", "--no-cache", "."),
    (str(BIN / "mypy"),),
    (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("SAGA_BROKER", "SAGA_STORE", "SAGA_CONTRACTS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def saga(*args: str) -> Result:
    return CliRunner().invoke(main, args, catch_exceptions=False, prog_name="saga")


def called(folder: Path, *command: str) -> str:
    """Run a command in a folder, with the toolkit as it is here, and return its output. Fails with its output if the
    command fails, or does not end: a test of pytest shows then where each of its threads is."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SAGA_", "COV_", "PYTEST_"))}
    environment = {**kept, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTEST_ADDOPTS"] = "-o faulthandler_timeout=180"
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=200)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
            stderr += "\nIT DID NOT END"
    assert process.returncode == 0, f"{command}\n{stdout}\n{stderr}"
    return stdout


@pytest.mark.slow
def test_generated_files_pass_all_their_checks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first service, one beside it, one with as long a name as may be, and one that hears an event of all types, of a
    saga that cannot fail."""
    assert saga("new", "project", "shop").exit_code == 0
    shop = folder / "shop"
    monkeypatch.chdir(shop)
    write_contracts(shop, of_all_types())
    assert saga("new", "service", "payment", "--hears", "OrderPlaced").exit_code == 0
    assert saga("new", "service", LONG, "--hears", "PaymentDone").exit_code == 0
    assert saga("new", "service", "stock", "--hears", "BasketFilled").exit_code == 0
    assert not (shop / "contracts/stock/StockTakenBack.v1.avsc").exists(), "nothing can fail there"
    assert "compensation" not in (shop / "services/stock/__init__.py").read_text()
    assert "compensation" in (shop / "services/payment/__init__.py").read_text()
    for command in CHECKS:
        called(shop, *command)
    modules = ("services.order", "services.payment", "services.stock", f"services.{LONG.replace('-', '_')}")
    called(shop, sys.executable, "-m", "saga.cli.main", "topics", "plan", *modules)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("template", [each for each in TEMPLATES if each != PLAIN])
def test_a_template_passes_all_that_it_promises(folder: Path, template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert saga("new", "project", "shop", "--template", template).exit_code == 0
    shop = folder / "shop"
    monkeypatch.chdir(shop)
    modules = [f"services.{service}" for service in TEMPLATES[template].events]
    for command in CHECKS:
        called(shop, *command)
    called(shop, sys.executable, "-m", "saga.cli.main", "check", *modules)
    called(shop, sys.executable, "-m", "saga.cli.main", "topics", "plan", *modules)
    compose = sorted(shop.glob("docker-compose*.yml"))
    assert len(compose) == len(modules) + (template == "servers")
    assert [problems_in(file) for file in compose] == [[]] * len(compose)
    assert saga("new", "service", "stock", "--hears", "OrderPlaced").exit_code == 0


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_first_saga_of_a_template_is_started_as_its_readme_says(
    folder: Path, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert saga("new", "project", "shop", "--template", template).exit_code == 0
    monkeypatch.chdir(folder / "shop")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    start = TEMPLATES[template].start
    assert f"\n{start}\nsaga sagas show order-1 --wait 10s\n" in Path("README.md").read_text()
    with ExitStack() as stack:
        for service in TEMPLATES[template].events:
            stack.enter_context(running(f"services.{service}"))
        until(lambda: all(Path(f".saga/{service}.db").exists() for service in TEMPLATES[template].events), RUN_S_MAX)
        subprocess.run(["sh", "-c", start], check=True, capture_output=True)
        until(lambda: "ended with OrderConfirmed" in saga("sagas", "show", "order-1").output, RUN_S_MAX)


def test_an_example_has_decimals_that_their_contract_allows(tmp_path: Path) -> None:
    sizes = ((1, 0), (1, 1), (4, 4), (3, 2))
    parts = [field(f"part_{p}_{s}", decimal(p, s), doc="A part.") for p, s in sizes]
    contract = Library.load(write_contracts(tmp_path, schema("Weighed", *parts))).contracts["Weighed"]
    text, _ = example_of(contract, "")
    assert re.findall(r'Decimal\("(.*?)"\)', text) == ["1", "0.1", "0.0001", "1"]
    for each in contract.newest.record.fields[1:]:
        (value,) = re.findall(rf'{each.name}=Decimal\("(.*?)"\)', text)
        to_raw(each.type, {})(Decimal(value))


def test_a_file_among_the_contracts_that_is_none_of_them_does_not_matter(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert saga("new", "project", "shop").exit_code == 0
    monkeypatch.chdir(folder / "shop")
    Path("contracts/.DS_Store").write_bytes(b"\xff\xfe")
    assert saga("new", "service", "stock").exit_code == 0


def test_a_service_that_reacts_to_an_outcome_has_nothing_to_undo(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert saga("new", "project", "shop").exit_code == 0
    monkeypatch.chdir(folder / "shop")
    for name, outcome in (("parcel", "OrderConfirmed"), ("complaints", "OrderCancelled")):
        assert saga("new", "service", name, "--hears", outcome).exit_code == 0
        assert "compensation" not in Path(f"services/{name}/__init__.py").read_text()
    monkeypatch.setenv("PYTHONPATH", ".")
    called(Path(), sys.executable, "-m", "saga.cli.main", "check", *(f"services.{n}" for n in ("order", "parcel")))


def test_a_new_service_is_undone_on_every_failure_outcome(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert saga("new", "project", "shop").exit_code == 0
    shop = folder / "shop"
    monkeypatch.chdir(shop)
    cancelled = json.loads((shop / "contracts/orders/OrderCancelled.v1.avsc").read_text())
    (shop / "contracts/orders/OrderExpired.v1.avsc").write_text(json.dumps({**cancelled, "name": "OrderExpired"}))
    assert saga("new", "service", "stock", "--hears", "OrderPlaced").exit_code == 0
    assert "failed: OrderCancelled | OrderExpired, done" in (shop / "services/stock/__init__.py").read_text()
    assert "OrderExpired" not in (shop / "tests/test_stock.py").read_text(), "it would be an unused import"


def of_all_types() -> dict[str, Any]:
    uuid, day = {"type": "string", "logicalType": "uuid"}, {"type": "int", "logicalType": "date"}
    moment = {"type": "long", "logicalType": "timestamp-millis"}
    size = {"type": "enum", "name": "Size", "doc": "How large.", "symbols": ["SMALL", "LARGE"], "default": "SMALL"}
    part = {"type": "record", "name": "PartOfIt", "doc": "A part.", "fields": [field("sum", decimal(), doc="A sum.")]}
    made = schema(
        "BasketFilled",
        field("basket_id", "string", doc="The basket."),
        field("total", decimal(), doc="What it costs, in euros."),
        field("rate", decimal(2, 2), doc="A part of one."),
        field("customer_id", uuid, doc="Who."),
        field("day", day, doc="When."),
        field("filled_at", moment, doc="When, exactly."),
        field("size", size, doc="How large."),
        field("part", part, doc="A part."),
        field("words", {"type": "array", "items": "string"}, doc="Words."),
        field("prices", {"type": "map", "values": "long"}, doc="Prices."),
        field("note", ["null", "string"], doc="A note.", lint=["optional-default"]),
        field("weight", "double", doc="A weight.", lint=["unit"]),
        field("is_gift", "boolean", doc="A gift."),
        field("picture", "bytes", doc="A picture."),
        topic="baskets", owner="basket", key="basket_id", starts=True, produced_by="external",
    )  # fmt: skip
    return {**made, "fields": made["fields"][1:]}


def test_compose_files_name_what_is_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yaml = pytest.importorskip("yaml")
    assert saga("new", "project", "shop").exit_code == 0
    monkeypatch.chdir(folder / "shop")
    assert saga("new", "service", "stock-taking").exit_code == 0
    whole = yaml.safe_load(Path("docker-compose.yml").read_text())
    own = yaml.safe_load(Path("docker-compose.stock-taking.yml").read_text())
    services, volumes = {**whole["services"], **own["services"]}, {**whole["volumes"], **own["volumes"]}
    assert set(services) == {"kafka", "topics", "order", "stock-taking"}
    for name in ("order", "stock-taking"):
        assert services[name]["command"] == f"run services.{name.replace('-', '_')}"
        assert services[name]["depends_on"].keys() <= services.keys()
        assert [volume.partition(":")[0] for volume in services[name]["volumes"]] == [name]
        assert name in volumes
        assert services[name]["env_file"] == services["topics"]["env_file"] == ["settings.env"]


@pytest.fixture
def compose_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Compose files of a project with two services."""
    assert saga("new", "project", "shop").exit_code == 0
    monkeypatch.chdir(folder / "shop")
    assert saga("new", "service", "stock-taking").exit_code == 0
    return [folder / "shop" / name for name in ("docker-compose.yml", "docker-compose.stock-taking.yml")]


def test_generated_compose_files_match_the_compose_specification(compose_files: list[Path]) -> None:
    for file in compose_files:
        assert problems_in(file) == []
        assert "SAGA_" not in file.read_text(), "settings are in one place"
    file = compose_files[0]
    file.write_text(file.read_text().replace("restart: unless-stopped", "restarts: unless-stopped"))
    (problem,) = problems_in(file)
    assert problem.startswith("services.order: Unevaluated properties are not allowed ('restarts' was unexpected)")


@pytest.mark.parametrize("template", [PLAIN, "servers"])
def test_all_containers_are_set_in_one_file(folder: Path, template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    yaml = pytest.importorskip("yaml")
    assert saga("new", "project", "shop", "--template", template).exit_code == 0
    lines = (folder / "shop/settings.env").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert settings.keys() <= known_settings().keys()
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    settled = Settings.from_environment()
    files = {path.name: yaml.safe_load(path.read_text()) for path in (folder / "shop").glob("docker-compose*.yml")}
    hosts = {host for file in files.values() for host in file["services"]}
    assert urlsplit(settled.broker).hostname in hosts
    assert template != "servers" or urlsplit(settled.store).hostname in hosts
    used = {
        name: service.get("env_file")
        for file in files.values()
        for name, service in file["services"].items()
        if service.get("build") or name == "couchbase-init"
    }
    assert used.keys() >= {"topics", "order"}
    assert set(map(tuple, used.values())) == {("settings.env",)}


def test_the_project_on_couchbase_installs_what_its_containers_need(folder: Path) -> None:
    assert saga("new", "project", "shop", "--template", "servers").exit_code == 0
    extras = tomllib.loads(Path("shop/pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["servers"] == ["saga-choreography[couchbase,kafka,monitor]"]
    assert "'.[servers]'" in Path("shop/Dockerfile").read_text()
    assert "'.[dev,servers]'" in Path("shop/README.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_the_project_on_servers_is_tested_on_kafka_and_couchbase(folder: Path, server_jars: Path) -> None:
    assert saga("new", "project", "shop", "--template", "servers").exit_code == 0
    pytest_here = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
    assert "1 passed" in called(folder / "shop", *pytest_here, "tests/test_servers.py")
    in_worlds = called(folder / "shop", *pytest_here, "--saga-world=servers", "tests/test_order.py")
    assert "4 passed" in in_worlds
    assert "as real processes on servers" in in_worlds


def test_compose_itself_understands_all_files_together(compose_files: list[Path]) -> None:
    yaml = pytest.importorskip("yaml")
    compose = compose_here()
    if compose is None:
        pytest.skip("NOT READ BY COMPOSE: there is no `docker compose` here, nor docker-compose")
    understood = yaml.safe_load(config_of(compose, *compose_files))
    assert understood["services"].keys() == {"kafka", "topics", "order", "stock-taking"}
    assert understood["services"]["topics"]["command"] in (
        "topics apply services.order",
        ["topics", "apply", "services.order"],
    )
    assert understood["volumes"].keys() == {"kafka", "order", "stock-taking"}
    file = compose_files[1]
    file.write_text(file.read_text().replace("  stock-taking: {}", "  another: {}"))
    with pytest.raises(AssertionError, match="stock-taking"):
        config_of(compose, *compose_files)


def test_make_finds_all_services_by_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert saga("new", "project", "shop").exit_code == 0
    monkeypatch.chdir(folder / "shop")
    assert saga("new", "service", "payment").exit_code == 0
    output = subprocess.run(["make", "--dry-run", "up"], capture_output=True, text=True, check=True).stdout
    assert re.search(r'MODULES="services\.(order services\.payment|payment services\.order)"', output)
    assert "-f docker-compose.yml" in output
    assert "-f docker-compose.payment.yml" in output


# -------------------------------------------------------------------- what is refused


def test_existing_files_are_not_overwritten_and_all_of_them_are_listed(folder: Path) -> None:
    (folder / "shop/tests").mkdir(parents=True)
    (folder / "shop/tests/test_order.py").write_text("mine")
    (folder / "shop/Makefile").symlink_to("nowhere")
    result = saga("new", "project", "shop")
    assert result.exit_code == 2
    assert [line for line in result.stderr.splitlines() if line.startswith("  - ")] == [
        "  - shop/Makefile exists already", "  - shop/tests/test_order.py exists already"
    ]  # fmt: skip
    assert sorted(path.name for path in (folder / "shop").rglob("*")) == ["Makefile", "test_order.py", "tests"]
    assert (folder / "shop/tests/test_order.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Shop", "'Shop' cannot be a service: a name is at most 40 lower case letters and digits"),
        ("1shop", "begins with a letter"),
        ("shop-", "in parts with `-` between them"),
        ("../shop", "cannot be a service"),
        ("x" * 41, "at most 40"),
        ("client", "clients publish under that name"),
        ("saga", "the toolkit's own topics"),
        ("class", "it is a word of Python"),
        ("orders", "a topic orders is in "),
        ("order", "exists already"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused(
    folder: Path, name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert saga("new", "project", "shop").exit_code == 0
    monkeypatch.chdir(folder / "shop")
    before = sorted(folder.rglob("*"))
    result = saga("new", "service", name)
    assert result.exit_code == 2
    assert message in result.stderr
    assert sorted(folder.rglob("*")) == before, "nothing was written"


@pytest.mark.parametrize("cause", ["OrderPlaced", "OrderConfirmed", "BasketFilled"])
def test_no_service_can_have_a_name_that_its_generated_code_uses(
    folder: Path, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the templates use: a name that was not refused would mean two things in one module."""
    assert saga("new", "project", "shop").exit_code == 0
    monkeypatch.chdir(folder / "shop")
    write_contracts(folder / "shop", of_all_types())
    assert saga("new", "service", "stock", "--hears", cause).exit_code == 0
    used = set[str]().union(*(names_used(Path(f)) for f in ("services/stock/__init__.py", "tests/test_stock.py")))
    assert {"work", "trial", "list", "result"} <= used
    for name in sorted(used - {"stock"}):
        result = saga("new", "service", name.replace("_", "-"), "--hears", cause)
        assert f"its generated code uses {name} for another thing" in result.stderr


def test_no_service_can_have_the_name_of_a_container_of_the_compose_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compose merges the containers of one name, so the broker would run the service, or nobody create the topics."""
    yaml = pytest.importorskip("yaml")
    containers = set[str]()
    for template in TEMPLATES:
        monkeypatch.chdir(folder)
        assert saga("new", "project", template, "--template", template).exit_code == 0
        monkeypatch.chdir(folder / template)
        for file in Path().glob("docker-compose*.yml"):
            containers |= yaml.safe_load(file.read_text())["services"].keys()
    services = {service for template in TEMPLATES.values() for service in template.events}
    assert services < containers
    for name in sorted(containers - services):
        result = saga("new", "service", name)
        assert result.exit_code == 2
        assert f"'{name}' cannot be a service: a container of the compose files is called so" in result.stderr


def names_used(file: Path) -> set[str]:
    """The names of a module and the builtins it uses, as far as a service could have them. Parameters hide nothing that
    their function needs, and no service is called as a test."""
    nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.name for node in nodes if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef | ast.alias)}
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return {name for name in names - parameters if name.islower() and not name.startswith("test_") and "." not in name}


def test_all_reasons_against_a_new_service_are_reported_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = saga("new", "service", "Payment")
    assert result.exit_code == 2
    assert "'Payment' cannot be a service" in result.stderr
    assert f"{folder} is no project" in result.stderr
    assert saga("new", "project", "shop").exit_code == 0
    monkeypatch.chdir(folder / "shop")
    result = saga("new", "service", "Payment", "--hears", "Nothing")
    assert "'Payment' cannot be a service" in result.stderr
    assert "--hears 'Nothing': there is no such contract; there are OrderCancelled, OrderConfirmed, OrderPlaced" in (
        result.stderr
    )
    assert saga("new", "service", "payment").exit_code == 0
    (folder / "shop/services/payment/__init__.py").unlink()
    again = saga("new", "service", "payment")
    assert "a contract PaymentDone is in " in again.stderr
    assert "a contract PaymentTakenBack is in " in again.stderr
    assert "a topic payment is in " in again.stderr


def test_without_exactly_one_start_event_the_event_must_be_given(folder: Path) -> None:
    write_contracts(folder, schema("Placed", starts=True), schema("Begun", topic="others", owner="other", starts=True))
    (folder / "services").mkdir()
    result = saga("new", "service", "payment")
    assert (result.exit_code, "give the event that it reacts to, --hears EVENT: Begun, Placed" in result.stderr) == (
        2,
        True,
    )
    assert saga("new", "service", "payment", "--hears", "Begun").exit_code == 0


def test_files_written_before_a_failure_are_removed(folder: Path) -> None:
    (folder / "there").write_text("a file")
    with pytest.raises(SagaError, match=r"nothing was written: .*there"):
        write_files(folder, {"a/b/c.txt": "text", "there/d.txt": "text"})
    assert sorted(path.name for path in folder.rglob("*")) == ["there"]


def test_generated_files_are_listed_as_json(folder: Path) -> None:
    report = json.loads(saga("new", "project", "shop", "--json").stdout)
    assert "shop/pyproject.toml" in report["written"]
    assert all((folder / path).is_file() for path in report["written"])
