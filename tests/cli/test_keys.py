"""`saga keys`, `saga keys forget` and `saga sagas show --reveal`, with a running service that encrypts values."""

import json
import os
import shutil
from pathlib import Path

import pytest

from saga.ops.doctor import describe_missing
from tests.cli.conftest import Call
from tests.cli.pottery_service import Pottery
from tests.cli.test_dead import blocked, until
from tests.cli.test_doctor import found_by
from tests.cli.test_missing_topics import running
from tests.cli.test_rebuild import handled_for_good, lose

WHO = ("--who", "ada", "--why", "a test")
SOURCE = """
from dataclasses import dataclass, field
from typing import ClassVar

from saga import Event, Retry, Service


@dataclass(frozen=True, kw_only=True, slots=True)
class CupOrdered(Event):
    __contract__: ClassVar[str] = "{topic}/CupOrdered.v1"
    cup_id: str
    customer_id: str
    name: str = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class CupMade(Event):
    __contract__: ClassVar[str] = "{made}/CupMade.v1"
    cup_id: str
    customer_id: str
    name: str | None = field(default=None, repr=False)


potter = Service("{service}", start="beginning")


@potter.handler(retry=Retry(attempts_max=1))
async def make(ordered: CupOrdered) -> CupMade | None:
    if ordered.name.startswith("Broken"):
        raise RuntimeError("the kiln is cold")
    if ordered.name.startswith("Late"):
        return None
    return CupMade(cup_id=ordered.cup_id, customer_id=ordered.customer_id, name=ordered.name)
"""

ADMIRE = """
@potter.handler
async def admire(made: CupMade) -> None:
    assert made.name.startswith("Ada")
"""


@pytest.fixture
def kiln(embedded_pottery: Pottery, monkeypatch: pytest.MonkeyPatch) -> str:
    """A service whose events say for whom a cup is; the module. There are no keys yet."""
    pottery = embedded_pottery
    customer, name = {"name": "customer_id", "type": "string"}, {"name": "name", "type": "string", "sensitive": True}
    maybe = {**name, "type": ["null", "string"], "default": None}
    for topic, event, field in ((pottery.topic, "CupOrdered", name), (pottery.made, "CupMade", maybe)):
        path = pottery.folder / "contracts" / topic / f"{event}.v1.avsc"
        schema = json.loads(path.read_text())
        schema |= {"subject": "customer_id", "fields": [*schema["fields"], customer, field]}
        path.write_text(json.dumps(schema))
    pottery.declare(30)
    module = f"kiln_{pottery.service.replace('-', '_')}"
    source = SOURCE.format(topic=pottery.topic, made=pottery.made, service=pottery.service)
    (pottery.folder / f"{module}.py").write_text(source)
    monkeypatch.setenv("SAGA_KEYS", str(pottery.folder / "keys"))
    return module


def ordered(saga: Call, cup: str, name: str = "Ada SECRET", customer: str = "customer-1") -> int:
    line = json.dumps({"cup_id": cup, "customer_id": customer, "name": name})
    return saga("publish", "CupOrdered", stdin=line).exit_code


def names(saga: Call, cup: str, *more: str) -> list[object]:
    """Names in the events that the service emitted of a cup."""
    shown = json.loads(saga("sagas", "show", cup, "--values", "--json", *more).output)
    return [e["fields"]["name"] for line in shown["timeline"] for e in line["values"]]


def test_from_a_first_key_to_an_erasure(kiln: str, saga: Call, folder: Path) -> None:
    refused = saga("publish", "CupOrdered", stdin='{"cup_id": "c", "customer_id": "d", "name": "e"}')
    assert refused.exit_code == 2
    assert "make one: saga keys new" in refused.output
    assert saga("keys", "new", *WHO).exit_code == 0
    with running(kiln):
        assert ordered(saga, "cup-1") == 0
        until(lambda: saga("sagas", "show", "cup-1").exit_code == 0)
        assert names(saga, "cup-1") == ["***"]
        assert names(saga, "cup-1", "--reveal", *WHO) == ["Ada SECRET"]
    (secret,) = (folder / "keys" / "subjects").glob("??/*.json")
    secret.rename(folder / "aside")
    shown = json.loads(saga("sagas", "show", "cup-1", "--values", "--reveal", *WHO, "--json").output)
    assert "restore what it lacks" in shown["timeline"][0]["values"][0]["problem"]
    (folder / "aside").rename(secret)
    assert [path for path in folder.rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()] == []
    assert "1 secret wrapped again" not in saga("keys", "rewrap", *WHO).output
    assert saga("keys", "forget", "customer-1", *WHO).output == "customer-1 is forgotten\n"
    assert saga("keys", "forget", "customer-1", *WHO).exit_code == 1
    assert names(saga, "cup-1", "--reveal", *WHO) == ["erased"]
    again = saga("publish", "CupOrdered", stdin='{"cup_id": "x", "customer_id": "customer-1", "name": "e"}')
    assert again.exit_code == 1
    assert "the key of its customer_id was erased" in again.output
    book = [json.loads(line) for line in saga("keys", "log", "--json").output.splitlines()]
    assert [line["did"] for line in book] == ["new", "reveal", "reveal", "rewrap", "forget", "forget", "reveal"]
    assert {(line["who"], line["why"]) for line in book} == {("ada", "a test")}
    assert "reveal  cup-1  ada: a test" in saga("keys", "log").output


def test_tools_that_run_handlers_decrypt_values(kiln: str, embedded_pottery: Pottery, saga: Call, folder: Path) -> None:
    service = embedded_pottery.service
    assert saga("keys", "new", *WHO).exit_code == 0
    with running(kiln):
        assert ordered(saga, "cup-1", "Late SECRET") == 0
        assert ordered(saga, "cup-2", "Broken SECRET") == 0
        assert ordered(saga, "cup-3") == 0
        until(
            lambda: (
                saga("sagas", "show", "cup-1").exit_code == saga("sagas", "show", "cup-3").exit_code == 0
                and blocked(saga) == {"cup-2"}
            )
        )
        until(lambda: handled_for_good(service, embedded_pottery.topic) == 3)
    source = (folder / f"{kiln}.py").read_text()
    (folder / f"{kiln}_mended.py").write_text(source.replace("Broken", "No"))
    done = saga("dead", "replay", service, "--all", *WHO, "--dry-run", "--code", f"{kiln}_mended")
    assert (done.exit_code, done.stdout.splitlines()[2].strip()) == (0, "make would be handled"), done.output
    lose(folder, service, "cup-1")
    rebuilt = saga("sagas", "rebuild", kiln, "--apply")
    assert "1 saga rebuilt, 0 cannot be" in rebuilt.output
    assert "make handled" in rebuilt.output
    (folder / f"{kiln}_more.py").write_text(f"{source}\n{ADMIRE}")
    assert "admire handled" in saga("sagas", "repair", f"{kiln}_more").output
    assert [path for path in folder.rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()] == []


def test_the_doctor_looks_at_the_folder_of_keys(
    kiln: str, saga: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key_findings(exit_code: int = 0) -> list[tuple[str, str]]:
        found = found_by(saga, kiln, exit_code=exit_code)
        return [(each.severity, each.what) for each in found if each.about == f"keys {folder / 'keys'}"]

    ((severity, what),) = key_findings(1)
    assert (severity, "make one: saga keys new" in what) == ("error", True)
    assert saga("keys", "new", *WHO).exit_code == 0
    for n in range(7):
        assert ordered(saga, f"cup-{n}", customer=f"customer-{n}") == 0
    assert saga("keys", "forget", "customer-6", *WHO).exit_code == 0
    assert key_findings() == [("ok", "secrets of 6 subjects can be read; 1 are forgotten")]
    (first,) = (folder / "keys").glob("*.key")
    assert saga("keys", "new", *WHO).exit_code == 0
    assert key_findings()[0][0] == "ok"
    assert saga("keys", "rewrap", *WHO).exit_code == 0
    assert key_findings()[0] == ("warning", f"no secret is wrapped any more with {first.name}")
    first.unlink()
    may = os.access
    with monkeypatch.context() as others:
        others.setattr("os.access", lambda path, mode: not str(path).endswith("keys") and may(path, mode))
        assert key_findings(1)[0] == ("error", f"{folder / 'keys'} may not be written")
    for each in (folder / "keys" / "subjects").glob("??/*.json"):
        if b"wrapped" in each.read_bytes():
            each.write_bytes(b"[]")
    errors = key_findings(1)
    assert [severity for severity, _ in errors] == ["error"] * 6
    assert errors[0][1].endswith("is no key of a subject: restore it")
    assert errors[-1][1] == "1 more cannot be read"


def test_the_doctor_sees_that_a_service_seals_with_another_folder_of_keys(
    kiln: str, embedded_pottery: Pottery, saga: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = embedded_pottery.service

    def key_problems(exit_code: int) -> list[tuple[str, str]]:
        found = found_by(saga, kiln, exit_code=exit_code)
        return [(each.severity, each.what) for each in found if each.about.startswith("keys") and each.severity != "ok"]

    assert saga("keys", "new", *WHO).exit_code == 0
    with running(kiln):
        for n in range(3):
            assert ordered(saga, f"cup-{n}", customer=f"customer-{n}") == 0
        until(lambda: handled_for_good(service, embedded_pottery.topic) == 3)
    assert saga("keys", "forget", "customer-2", *WHO).exit_code == 0
    assert key_problems(0) == []
    monkeypatch.setenv("SAGA_KEYS", str(folder / "other-keys"))
    assert saga("keys", "new", *WHO).exit_code == 0
    none = f"of 3 secrets with which {service} has encrypted values, 3 are not in this folder"
    assert key_problems(1) == [("error", none)]
    shutil.copytree(folder / "keys" / "subjects", folder / "other-keys" / "subjects", dirs_exist_ok=True)
    shutil.copytree(folder / "keys" / "made", folder / "other-keys" / "made", dirs_exist_ok=True)
    for key in (folder / "keys").glob("*.key"):
        shutil.copy(key, folder / "other-keys")
    assert key_problems(0) == []


@pytest.mark.parametrize(("missing", "severity"), [(0, None), (1, "warning"), (3, "error")])
def test_a_secret_that_is_missing_is_no_other_folder_yet(missing: int, severity: str | None) -> None:
    found = [each.severity for each in describe_missing("keys", "potter", missing, 3)]
    assert found == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("sagas", "show", "cup-1", "--reveal", *WHO), "--reveal needs --values: give both"),
        (("sagas", "show", "cup-1", "--reveal", "--values"), "--who is needed for the audit: give it"),
        (("sagas", "show", "cup-1", "--reveal", "--values", "--who", "ada"), "--why is needed for the audit: give it"),
        (("keys", "forget", "cup-1", "--who", "ada"), "Missing option '--why'"),
    ],
)
def test_nothing_is_revealed_or_forgotten_without_a_name_and_a_reason(
    command: tuple[str, ...], problem: str, kiln: str, saga: Call
) -> None:
    done = saga(*command)
    assert done.exit_code == 2
    assert problem in done.output


def test_without_a_folder_of_keys_the_error_names_its_setting(saga: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAGA_KEYS", raising=False)
    for command in (("keys", "new", *WHO), ("keys", "log"), ("keys", "forget", "customer-1", *WHO)):
        done = saga(*command)
        assert done.exit_code == 2
        assert "set SAGA_KEYS to the one that all services share" in done.output


def test_a_sensitive_field_that_cannot_be_sealed_keeps_the_service_from_starting(
    kiln: str, embedded_pottery: Pottery, saga: Call
) -> None:
    assert saga("keys", "new", *WHO).exit_code == 0
    contracts = Path(os.environ["SAGA_CONTRACTS"])
    path = contracts / embedded_pottery.topic / "CupOrdered.v1.avsc"
    schema = json.loads(path.read_text())
    schema["fields"][2] = {"name": "name", "type": {"type": "array", "items": "string"}, "sensitive": True}
    path.write_text(json.dumps(schema))
    module = embedded_pottery.folder / f"{kiln}.py"
    source = module.read_text().replace("name: str = field", "name: tuple[str, ...] = field")
    module.write_text(source.replace("name=ordered.name", "name=None"))
    refused = saga("run", kiln)
    assert refused.exit_code == 2
    assert "field name is sensitive and array of string: a string or bytes" in refused.output
    refused = saga("publish", "CupOrdered", stdin='{"cup_id": "c", "customer_id": "d", "name": ["e"]}')
    assert refused.exit_code == 1
    assert "mark the fields inside of it" in refused.output
