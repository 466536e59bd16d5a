"""A third store adapter, of a folder of its own and one line in the table: all that asks adapters knows it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from saga.configuration import adapters, wiring
from saga.configuration.settings import Settings, known_settings
from saga.errors import ConfigurationError
from saga.store.port import Store
from saga.support.clock import SystemClock
from saga.testing.conformance.store import OpenStore, PassTime, StoreConformance
from tests.adapters.drawers import store as drawers
from tests.adapters.drawers.adapter import DRAWERS, DrawerOptions
from tests.cli.conftest import Call, embedded_pottery, folder, saga
from tests.cli.pottery_service import Pottery
from tests.store.conftest import SettableClock

__all__ = ["embedded_pottery", "folder", "saga"]

ADDRESS = "drawer://cupboard/{service}"
LOCKED = {"SAGA_STORE": ADDRESS, "SAGA_DRAWER_LOCK": "locked"}


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(adapters, "STORES", (*adapters.STORES, DRAWERS))
    yield
    drawers.DRAWERS.clear()
    drawers.KEYS.clear()
    drawers.LAST[0] = 0


def problems(environ: dict[str, str]) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as refused:
        Settings.read(environ)
    return refused.value.problems


class TestDrawers(StoreConformance):
    """It is a store like the others."""

    @pytest.fixture
    def clock(self) -> SettableClock:
        return SettableClock()

    @pytest.fixture
    def opens(self, clock: SettableClock) -> OpenStore:
        def opened() -> Store:
            return adapters.store_at(Settings(store=ADDRESS), "payment", clock)

        return opened

    @pytest.fixture
    def passes(self, clock: SettableClock) -> PassTime:
        async def passed(seconds: float) -> None:
            clock.ahead_s += seconds

        return passed


def test_its_settings_are_settings_like_any_other() -> None:
    settings = Settings.read({**LOCKED, "SAGA_DRAWER_KEY": "s3cret"})
    assert settings.of(DrawerOptions) == DrawerOptions(drawer_lock="locked", drawer_key="s3cret")
    assert settings != Settings.read({"SAGA_STORE": ADDRESS})
    assert "s3cret" not in repr(settings)
    assert {"SAGA_DRAWER_LOCK", "SAGA_DRAWER_KEY"} < known_settings().keys()
    assert "drawer://CUPBOARD/DRAWER" in known_settings()["SAGA_STORE"].takes


def test_invalid_settings_of_a_third_store_are_reported_with_all_others() -> None:
    assert problems({**LOCKED, "SAGA_DRAIN_S": "x"}) == (
        "SAGA_DRAIN_S is 'x': it must be a number of seconds from 0 to 3600",
        "SAGA_DRAWER_LOCK=locked needs SAGA_DRAWER_KEY",
    )
    assert problems({"SAGA_STORE": ADDRESS, "SAGA_DRAWER_LOCK": "ajar"}) == (
        "SAGA_DRAWER_LOCK is 'ajar': it must be one of: open, locked",
    )
    assert problems({"SAGA_DRAWER_LOOK": "open"}) == (
        "SAGA_DRAWER_LOOK is not a setting; did you mean SAGA_DRAWER_LOCK?",
    )


def test_invalid_settings_of_an_unused_store_are_no_problem() -> None:
    assert Settings.read({"SAGA_DRAWER_LOCK": "locked"}).store == Settings().store


def test_its_addresses_are_checked_and_named_to_who_gives_a_wrong_one() -> None:
    (problem,) = problems({"SAGA_STORE": "drawer://cupboard"})
    assert "cupboard and drawer are missing" in problem
    (problem,) = problems({"SAGA_STORE": "redis://here"})
    assert "there is no store 'redis'" in problem
    assert problem.endswith("couchbase://host/bucket, or drawer://cupboard/drawer")


def test_modules_needed_only_for_opening_are_imported_on_opening() -> None:
    code = (
        "import sys; import saga.configuration.settings;"
        "from saga.configuration import adapters; import tests.adapters.drawers.adapter;"
        "drivers = 'aiokafka', 'couchbase', 'sqlite3', 'tests.adapters.drawers.store';"
        "print([name for name in drivers if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_services_run_on_it_and_people_see_what_they_do(
    saga: Call, embedded_pottery: Pottery, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**LOCKED, "SAGA_DRAWER_KEY": "brass"}.items():
        monkeypatch.setenv(name, value)
    mine = f"drawer://cupboard/{embedded_pottery.service}"
    assert saga("publish", "CupOrdered", stdin='{"cup_id": "cup-1"}\n').exit_code == 0
    asyncio.run(_run(embedded_pottery, mine))
    assert drawers.KEYS[mine] == "brass"

    listed = json.loads(saga("sagas", "list", "--store", mine, "--json").stdout)
    assert [each["saga"] for each in listed["sagas"]] == ["cup-1"]
    assert saga("sagas", "verify", "--store", mine).exit_code == 0
    shown = saga("sagas", "show", "cup-1", "--store", mine)
    assert "CupOrdered -> CupMade" in shown.stdout
    refused = saga("sagas", "list", "--store", "drawer://cupboard")
    assert refused.exit_code == 2
    assert "cupboard and drawer are missing" in refused.stderr

    report = json.loads(saga("doctor", embedded_pottery.module, "--json").stdout)
    mine_of = {each["what"]: each for each in report["findings"] if each["about"] == f"store {mine}"}
    assert mine_of["it closes well"]["remedy"] == "get a cellar"
    assert any("its clock agrees with this machine" in what for what in mine_of)
    assert [key for _, key in drawers.DRAWERS[mine] if "probe" in key] == []


async def _run(pottery: Pottery, drawer: str) -> None:
    """Run the service as `saga run` does, until the order is handled."""
    stop, clock = asyncio.Event(), SystemClock()

    async def handled() -> None:
        while not any("cup-1" in key for _, key in drawers.DRAWERS[drawer]):
            await clock.sleep(0.01)
        stop.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(handled())
        services = wiring.load_services([pottery.module])
        await wiring.run(services, Settings.from_environment(), lambda _: None, stop)


def test_the_doctor_reports_a_drawer_that_does_not_open(
    saga: Call, embedded_pottery: Pottery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_STORE", "drawer://cupboard/all")
    drawers.KEYS["drawer://cupboard/all"] = "iron"
    result = saga("doctor", embedded_pottery.module)
    assert result.exit_code == 2
    assert "SAGA_DRAWER_KEY is not that of drawer://cupboard/all" in result.stdout
