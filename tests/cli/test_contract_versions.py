"""Releases of two services with different versions of their events, as real processes over the same topics: deployed in
the wrong order, rolled back and forward, each killed. Nothing is lost, dead or misread.

On files in every run; on Kafka too with SAGA_TEST_VERSIONS_ON_KAFKA=1.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from saga import Client, Event
from tests.cli.conftest import ROOT, Call
from tests.cli.test_dead import until
from tests.cli.test_missing_topics import Running, refused, running
from tests.cli.test_parked import listed
from tests.testing.baskets.events import BasketFilled, BasketFilledV1
from tests.testing.baskets.releases import FileDrawer

CENTS = (980, 1250)
BROKERS = ["embedded", *(["kafka"] if os.environ.get("SAGA_TEST_VERSIONS_ON_KAFKA") else [])]


class Market:
    """Processes of the shop and of the till, one of each."""

    def __init__(self, saga: Call, processes: ExitStack) -> None:
        self.saga, self._processes = saga, processes
        self._running: dict[str, Running] = {}
        self.baskets: list[str] = []

    @staticmethod
    def module(service: str, release: int) -> str:
        """Module of a release."""
        drawer = ", FileDrawer" if service == "till" else ""
        source = f"from tests.testing.baskets.releases import FileDrawer as FileDrawer, {service} as made\n\n"
        Path(f"{service}_{release}.py").write_text(f"{source}{service} = made({release}{drawer})\n")
        return f"{service}_{release}"

    def deploy(self, service: str, release: int) -> None:
        """Run a release instead of the process that is there: that is killed."""
        if service in self._running:
            self._running[service].kill()
            self._running[service].wait()
        process = running(self.module(service, release))
        self._running[service] = self._processes.enter_context(process)

    def fill(self, version: int) -> list[str]:
        """Fill two baskets, as a client that knows this version; their ids."""
        ids = [f"b-{len(self.baskets) + n}" for n in range(len(CENTS))]
        filled: list[Event] = [
            BasketFilledV1(basket_id=id_, amount=cents)
            if version == 1
            else BasketFilled(basket_id=id_, amount=cents * 10)
            for id_, cents in zip(ids, CENTS, strict=True)
        ]
        asyncio.run(publish_all(filled))
        self.baskets += ids
        return ids

    def until(self, holds: Callable[[], bool]) -> None:
        until(holds, last=lambda: "\n".join(each.read_log()[-3000:] for each in self._running.values()))

    @staticmethod
    def handed_over(count: int) -> bool:
        """Return whether so many baskets are handed over."""
        return len(FileDrawer().handed_over) >= count

    def outcome(self, basket: str) -> str | None:
        """Outcome that the shop has decided on."""
        shown = self.saga("sagas", "show", basket, "--json")
        found: str | None = json.loads(shown.stdout)["services"]["shop"]["outcome"] if shown.exit_code == 0 else None
        return found

    def waits(self, baskets: list[str], schema: str) -> bool:
        """Return whether all of these wait for a release of the shop that reads the schema."""
        seen = listed(self.saga, "shop")
        retries = [seen[basket]["retries"] if basket in seen else [] for basket in baskets]
        return all(r and r[0]["error"].startswith(f"NewerVersion: it is of {schema}, ") for r in retries)


async def publish_all(events: list[Event]) -> None:
    async with Client() as client:
        for event in events:
            await client.publish(event)


@pytest.fixture(params=BROKERS)
def market(
    request: pytest.FixtureRequest, folder: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Market]:
    monkeypatch.setenv("SAGA_CONTRACTS", str(ROOT / "tests/testing/baskets/contracts"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    if request.param == "kafka":
        address = request.getfixturevalue("kafka_address")
        settings = {"BROKER": f"kafka://{address}", "KAFKA_REPLICATION": "1", "KAFKA_MIN_INSYNC": "1"}
        for name, value in settings.items():
            monkeypatch.setenv(f"SAGA_{name}", value)
    with ExitStack() as processes:
        market = Market(saga, processes)
        for service in ("shop", "till"):
            applied = saga("topics", "apply", market.module(service, 1))
            assert applied.exit_code == 0, applied.output
        yield market


WITHOUT = """
from tests.testing.baskets.events import BasketFilled

from saga import Service

till = Service("till")


@till.handler
async def pay(filled: BasketFilled) -> None: ...
"""


def test_a_service_without_its_upcaster_does_not_start_and_shows_what_to_write(
    folder: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SAGA_CONTRACTS")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    Path("without.py").write_text(WITHOUT)
    message = refused("run", "without")
    assert "baskets/BasketFilled.v2 reads version 1 by an upcaster, and there is none: declare it where" in message
    assert "@upcast(BasketFilled, 1) above a function that takes a BasketFilledV1" in message


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_releases_come_in_the_wrong_order_and_go_back_and_nothing_is_lost(market: Market) -> None:
    market.deploy("shop", 1)
    market.deploy("till", 1)
    market.fill(1)
    market.until(lambda: market.handed_over(2))
    # A till that says the second version, before anybody reads it: its sagas wait at the shop, others go on.
    market.deploy("till", 3)
    waiting = market.fill(1)
    market.until(lambda: market.waits(waiting, "tills/BasketPaid.v2"))
    # Rolled back to the release that says the first version, as it should have been; a client is too early as well.
    market.deploy("till", 2)
    market.fill(1)
    market.until(lambda: market.handed_over(4))
    early = market.fill(2)
    market.until(lambda: market.waits(early, "baskets/BasketFilled.v2"))
    # The shop reads both, and all that has waited goes on; then the till says the second version again.
    market.deploy("shop", 3)
    market.until(lambda: market.handed_over(len(market.baskets)))
    market.deploy("till", 3)
    market.fill(1)
    market.fill(2)
    market.until(lambda: market.handed_over(len(market.baskets)))
    market.until(lambda: all(market.outcome(basket) == "BasketDone" for basket in market.baskets))
    drawer = FileDrawer()
    assert sorted(drawer.handed_over.values()) == sorted(CENTS * (len(market.baskets) // len(CENTS)))
    assert drawer.taken == drawer.handed_over
    assert drawer.given_back == {}
    assert json.loads(market.saga("dead", "list", "--json").stdout)["letters"] == []
    verified = market.saga("sagas", "verify")
    assert verified.exit_code == 0, verified.output
