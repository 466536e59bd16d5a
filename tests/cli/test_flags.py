"""Broker and store can be given as flags, which win over the variables; what is blank is not given."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, Call
from tests.configuration.test_settings_given import ADDRESSES_WITH_SECRETS, SECRET

ORDERS = (ROOT / "services" / "orders.jsonl").read_bytes().splitlines(keepends=True)[0]
BROKER = [
    ("run", "services.payment"),
    ("publish", "OrderPlaced"),
    ("topics", "plan", "services.payment"),
    ("topics", "apply", "services.payment"),
    ("offsets", "show", "payment"),
    ("offsets", "reset", "payment", "--topic", "orders", "--to", "latest", "--who", "a", "--why", "b"),
    ("doctor", "services.payment"),
    ("sagas", "repair", "services.payment"),
]
STORE = [
    ("run", "services.payment"),
    ("doctor", "services.payment"),
    ("sagas", "repair", "services.payment"),
    (
        "sagas",
        "list",
    ),
    ("sagas", "show", "order-1"),
    (
        "sagas",
        "verify",
    ),
]


@pytest.mark.parametrize(
    ("flag", "command"), [*(("--broker", each) for each in BROKER), *(("--store", each) for each in STORE)]
)
def test_each_command_that_needs_it_takes_it(flag: str, command: tuple[str, ...], folder: Path, saga: Call) -> None:
    refused = saga(*command, flag, "redis://here", stdin=ORDERS)
    assert refused.exit_code == 2
    reads_stores = command[:1] == ("sagas",) and command[1] in ("list", "show", "verify")
    assert f"'redis://here'{' cannot work' if reads_stores else ''}" in refused.stderr
    assert f"there is no {flag.removeprefix('--')} 'redis'" in refused.stderr


@pytest.mark.parametrize(
    ("flag", "command"), [*(("--broker", each) for each in BROKER), *(("--store", each) for each in STORE)]
)
@pytest.mark.parametrize(
    "address",
    [each for each in ADDRESSES_WITH_SECRETS if "://" in each] + [f"couchbase://ada:{SECRET}@db/b/{{service}}"],
)
def test_no_command_shows_the_secret_in_an_address(
    flag: str, command: tuple[str, ...], address: str, folder: Path, saga: Call
) -> None:
    refused = saga(*command, flag, address, stdin=ORDERS)
    assert refused.exit_code == 2
    assert SECRET not in refused.output


@pytest.mark.parametrize("base", [f"https://ada:{SECRET}@schemas.example.org/", f"https://{SECRET}@host"])
def test_a_secret_becomes_no_part_of_events(
    base: str, folder: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_SCHEMA_BASE", base)
    refused = saga("publish", "OrderPlaced", stdin=ORDERS)
    assert refused.exit_code == 2
    assert "SAGA_SCHEMA_BASE has a user or a password" in refused.stderr
    assert SECRET not in refused.output


def test_a_flag_wins_over_the_variable_and_a_blank_one_does_not(
    folder: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_BROKER", "embedded:///.saga/variable.db")
    assert saga("publish", "OrderPlaced", "--broker", "embedded:///.saga/flag.db", stdin=ORDERS).exit_code == 0
    assert [path.name for path in sorted((folder / ".saga").glob("*.db"))] == ["flag.db"]
    assert saga("publish", "OrderPlaced", "--broker", " ", stdin=ORDERS).exit_code == 0
    assert (folder / ".saga" / "variable.db").exists()


def test_a_blank_store_is_the_one_of_the_settings(shop: Path, saga: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(saga("sagas", "list", "--json", "--store", "").stdout) == json.loads(
        saga("sagas", "list", "--json").stdout
    )
    monkeypatch.setenv("SAGA_STORE", "sqlite:///nowhere/{service}.db")
    shown = saga("sagas", "list", "--json", "--store", "sqlite:///.saga/{service}.db")
    assert len(json.loads(shown.stdout)["sagas"]) == 4
