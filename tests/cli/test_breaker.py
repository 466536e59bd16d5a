"""A resource that is down for a while is left alone by its breaker, and no attempt is lost to that."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery
from tests.cli.test_dead import blocked, mend, until
from tests.cli.test_missing_topics import running
from tests.cli.test_parked import ends, parked, publish

CUPS = [f"cup-{n}" for n in range(6)]
DOWN_S, OPEN_S, FAILURES, ATTEMPTS_MAX = 7.0, 2.0, 3, 10
SOURCE = """
from collections.abc import AsyncIterator
from pathlib import Path

from {module} import CupMade, CupOrdered, CupSold

from saga import Breaker, Retry, Saga, Service

potter = Service("{service}")


class Kiln:
    async def fire(self, key: str, cup: str) -> str:
        with Path("asked").open("a") as file:
            file.write(f"{{cup}}\\n")
        if not Path("mended").read_text():
            raise ConnectionError("the kiln is cold")
        with Path("fired").open("a") as file:
            file.write(f"{{key}} {{cup}}\\n")
        return "baked"


@potter.resource(
    breaker=Breaker(failures={failures}, within_s=60, open_s={open_s}),
    at_once_max=2,
    retry=Retry(attempts_max={attempts_max}, delay_s_first=0.1, delay_s_max=0.1, in_place_s=0.3),
)
async def kiln() -> AsyncIterator[Kiln]:
    yield Kiln()


@potter.handler
async def make(ordered: CupOrdered, kiln: Kiln, saga: Saga) -> CupMade:
    await saga.step(kiln.fire, saga.idempotency_key("fire"), ordered.cup_id)
    return CupMade(cup_id=ordered.cup_id)


@potter.handler
async def forget(sold: CupSold) -> None:
    return None
"""


@pytest.fixture
def kiln(pottery_on: Pottery, saga: Call) -> str:
    """Module of a potter whose kiln is cold until there is something in the file `mended`."""
    name = f"{pottery_on.module}_spared"
    limits = {"failures": FAILURES, "open_s": OPEN_S, "attempts_max": ATTEMPTS_MAX}
    source = SOURCE.format(module=pottery_on.module, service=pottery_on.service, **limits)
    (pottery_on.folder / f"{name}.py").write_text(source)
    for file in ("mended", "asked", "fired"):
        (pottery_on.folder / file).write_text("")
    assert saga("topics", "apply", name).exit_code == 0
    return name


def asked() -> list[str]:
    return Path("asked").read_text().split()


@pytest.mark.slow
def test_a_kiln_that_is_cold_for_longer_than_all_attempts_take_is_asked_seldom_and_costs_no_cup(
    kiln: str, saga: Call, pottery_on: Pottery
) -> None:
    service = pottery_on.service
    with running(kiln):
        publish(saga, "CupOrdered", *CUPS)
        until(lambda: len(asked()) >= FAILURES)
        asyncio.run(CLOCK.sleep(DOWN_S))
        # Each cup may have begun before it opened, once on a progress that had not been read.
        assert len(asked()) <= FAILURES + 2 * len(CUPS) + DOWN_S / OPEN_S
        until(lambda: parked(saga, service) == set(CUPS))
        assert blocked(saga) == set()
        shown = saga("sagas", "show", CUPS[-1]).stdout
        assert "BreakerOpen: the breaker of kiln is open: calls to it failed" in shown
        mend(pottery_on, "the kiln")
        until(lambda: all(ends(saga, cup) == [("make", "handled")] for cup in CUPS))
    assert blocked(saga) == set()
    fired = [line.split() for line in Path("fired").read_text().splitlines()]
    assert sorted(cup for _, cup in {(key, cup) for key, cup in fired}) == CUPS
    lines = json.loads(saga("sagas", "show", CUPS[0], "--json").stdout)["timeline"]
    assert {line["outcome"] for line in lines} == {"retrying", "handled"}
    verified = saga("sagas", "verify")
    assert verified.exit_code == 0, verified.output
