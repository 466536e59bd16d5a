"""A folder to call commands in, with the example's contracts, and the command line to call."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from saga.cli.main import main
from tests.cli.example_runs import an_order, open_shop
from tests.cli.pottery_service import Pottery, a_pottery

Call = Callable[..., Result]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; services keep their stores where they do by default: in `.saga` below it."""
    monkeypatch.chdir(tmp_path)
    for name in ("SAGA_BROKER", "SAGA_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SAGA_CONTRACTS", str(ROOT / "contracts"))
    (tmp_path / ".saga").mkdir()
    return tmp_path


@pytest.fixture
def saga(folder: Path) -> Call:
    """The command `saga`: `saga("sagas", "list", "--json")`."""

    def call(*args: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, args, input=stdin, catch_exceptions=False, prog_name="saga")

    return call


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of a shop in which order-1 was confirmed, order-2 cancelled, order-3 died in payment; order-4 has seen so
    many repetitions that its oldest transitions are archived."""
    folder = tmp_path_factory.mktemp("built")
    asyncio.run(_build(folder))
    return folder


@pytest.fixture
def shop(folder: Path, built: Path) -> Path:
    """The folder with copies of these stores, for a test of its own."""
    shutil.copytree(built, folder / ".saga", dirs_exist_ok=True)
    return folder


async def _build(folder: Path) -> None:
    async with open_shop(folder) as shop:
        await shop.settle(an_order("order-1"))
        await shop.settle(an_order("order-2", card="declined-1"))
        await shop.settle(an_order("order-3", card="broken"))
    async with open_shop(folder, "payment", "tally") as shop:
        await shop.settle(an_order("order-4"))
        await shop.again(an_order("order-4"), 70)


@pytest.fixture
def embedded_pottery(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Pottery:
    """A service of its own, in the current folder, with an embedded broker."""
    monkeypatch.setenv("SAGA_CONTRACTS", str(folder / "contracts"))
    return a_pottery(folder)


@pytest.fixture
def kafka_pottery(embedded_pottery: Pottery, kafka_address: str, monkeypatch: pytest.MonkeyPatch) -> Pottery:
    """A service of its own, in the current folder, on the Kafka that all tests share."""
    for name, value in (("BROKER", f"kafka://{kafka_address}"), ("KAFKA_REPLICATION", "1"), ("KAFKA_MIN_INSYNC", "1")):
        monkeypatch.setenv(f"SAGA_{name}", value)
    monkeypatch.setenv("SAGA_TRANSITIONS", "off")  # all services have one topic for them
    return embedded_pottery


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.slow)])
def pottery_on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Pottery:
    """A service of its own, on each broker, that does not publish its transitions."""
    monkeypatch.setenv("SAGA_TRANSITIONS", "off")
    pottery: Pottery = request.getfixturevalue(f"{request.param}_pottery")
    return pottery
