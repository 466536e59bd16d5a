"""`saga repair`: sagas that get no message any more hear of what earlier releases said, and of what they wait for."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace

from saga.clock import SystemClock
from saga.progress.document import decode, encode
from saga.store.sqlite import SqliteStore
from saga.wiring import load_services
from tests.cli.conftest import Call
from tests.cli.pottery_service import Pottery
from tests.cli.test_dead import until
from tests.cli.test_missing_topics import running
from tests.cli.test_parked import listed, publish
from tests.runtime.driven_workers import place
from tests.runtime.real_worker import an_order

BEGIN = """
from saga import Service
from services.payment.events import OrderPlaced, PaymentCaptured, PaymentReserved

payment = Service("payment")

@payment.handler
async def reserve(order: OrderPlaced) -> PaymentReserved:
    return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)
"""
MORE = """
@payment.handler
async def capture(reserved: PaymentReserved) -> PaymentCaptured:
    return PaymentCaptured(order_id=reserved.order_id, amount=reserved.amount)
"""


@pytest.fixture
def released(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two releases of one service, and three sagas that the first one has handled."""
    (folder / "first_release.py").write_text(BEGIN)
    (folder / "second_release.py").write_text(BEGIN + MORE)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    for name in ("first_release", "second_release"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    asyncio.run(_handled(folder))
    return folder


async def _handled(folder: Path) -> None:
    (service,) = load_services(["first_release"])
    async with place(folder) as at, SqliteStore(folder / ".saga/payment.db", clock=SystemClock()) as store:
        at.watched.store = at.store = store
        from saga import Service

        wrapped = Service("payment")
        wrapped._declared = service
        worker = await at.worker(wrapped)
        for saga in ("order-1", "order-2", "order-3"):
            await worker.takes(an_order(saga))


def handlers_of(saga: Call, id_: str) -> list[str]:
    shown = json.loads(saga("show", id_, "--json").stdout)
    return [line["handler"] for line in shown["timeline"]]


def test_all_sagas_hear_what_earlier_releases_said(released: Path, saga: Call) -> None:
    told = saga("repair", "second_release", "--dry-run")
    assert told.exit_code == 0
    assert told.stdout.splitlines() == [
        *(f"payment  order-{n}  would hear of PaymentReserved" for n in (1, 2, 3)),
        "3 sagas to go on with",
    ]
    assert handlers_of(saga, "order-1") == ["reserve"], "nothing was done"
    done = saga("repair", "second_release", "--saga", "order-2")
    assert done.stdout.splitlines() == ["payment  order-2  capture handled", "1 saga gone on with, no problems"]
    done = saga("repair", "second_release")
    assert [line.split("  ")[1] for line in done.stdout.splitlines()[:-1]] == ["order-1", "order-3"]
    for n in (1, 2, 3):
        assert handlers_of(saga, f"order-{n}") == ["reserve", "capture"]
    assert saga("repair", "second_release").stdout == "no sagas gone on with, no problems\n"
    verified = json.loads(saga("verify-history", "--json").stdout)
    assert (verified["histories"], verified["witnessed"]) == (3, 3), "what was written was told"
    traced = json.loads(saga("trace", "order-1", "--json").stdout)
    assert [(line["handler"], line["worker"]) for line in traced["lines"]] == [
        ("reserve", "saga repair"),
        ("capture", "saga repair"),
    ]


@pytest.mark.parametrize("damaged", ["progress", "transition"])
def test_a_saga_that_cannot_be_gone_on_with_is_told_and_the_others_are_done(
    released: Path, saga: Call, damaged: str
) -> None:
    asyncio.run(_damaged(released, damaged))
    done = saga("repair", "second_release", "--json")
    assert done.exit_code == 1
    lines = {line["saga"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert {"progress": "cannot be read", "transition": "Expected `object`, got `int`"}[damaged] in lines["order-2"][
        "problem"
    ]
    assert [lines[f"order-{n}"]["did"] for n in (1, 3)] == [[["capture", "handled", None]]] * 2


async def _damaged(folder: Path, what: str) -> None:
    async with SqliteStore(folder / ".saga/payment.db", clock=SystemClock()) as store:
        document = await store.get("saga", "payment::order-2")
        assert document is not None
        damaged = b"{"
        if what == "transition":
            damaged = encode(replace(decode(document.content), transitions=(Raw(b"7"),)))
        await store.replace("saga", "payment::order-2", damaged, cas=document.cas)


def test_a_release_that_takes_nothing_new_has_nothing_to_do(released: Path, saga: Call) -> None:
    assert saga("repair", "first_release", "--dry-run").stdout == "no sagas to go on with\n"


# ------------------------------------------------------------------------------- wakes that are gone

WAITING = """
from datetime import timedelta
from pathlib import Path

from {module} import CupMade, CupOrdered, CupSold

from saga import Later, Retry, Saga, Service

potter = Service("{service}")


def has_happened(what: str, cup: str) -> None:
    with Path("happened").open("a") as file:
        file.write(f"{{what}} {{cup}}\\n")


@potter.handler(retry=Retry(attempts_max=1000, delay_s_first=1, delay_s_max=1, in_place_s=0))
async def make(ordered: CupOrdered, saga: Saga) -> CupMade | Later:
    if ordered.cup_id == "parked" and not Path("mended").exists():
        raise RuntimeError("the kiln is cold")
    if ordered.cup_id == "later" and saga.waited < timedelta(seconds=3):
        return Later(after=timedelta(seconds=3))
    has_happened("made", ordered.cup_id)
    return CupMade(cup_id=ordered.cup_id)


@potter.deadline(within=timedelta(seconds=4), unless=(CupSold,))
async def remind(ordered: CupOrdered) -> None:
    has_happened("reminded", ordered.cup_id)
"""
HAPPENS = {"made parked", "made later", "made timed", "reminded parked", "reminded later", "reminded timed"}


def test_all_that_waits_goes_on_by_a_repair_after_the_topics_of_wakes_were_lost(
    embedded_pottery: Pottery, saga: Call
) -> None:
    pottery = embedded_pottery
    module = f"{pottery.module}_waiting"
    (pottery.folder / f"{module}.py").write_text(WAITING.format(module=pottery.module, service=pottery.service))
    (pottery.folder / "happened").write_text("")

    def happened() -> set[str]:
        return set((pottery.folder / "happened").read_text().splitlines())

    assert saga("topics", "apply", module).exit_code == 0
    with running(module):
        publish(saga, "CupOrdered", "parked", "later", "timed")
        until(lambda: len(listed(saga, pottery.service)) == 3 and happened() == {"made timed"})
    for file in (pottery.folder / ".saga").glob("broker.db*"):
        file.unlink()
    (pottery.folder / "mended").write_text("")
    assert saga("topics", "apply", module).exit_code == 0
    asyncio.run(SystemClock().sleep(5))  # all is due by then
    with running(module):
        asyncio.run(SystemClock().sleep(3))
        assert happened() == {"made timed"}, "nothing wakes it"
        told = saga("repair", module, "--dry-run").stdout.splitlines()
        assert [line.split("  ")[1] for line in told[:-1]] == ["later", "parked", "timed"]
        assert all("  would be woken at " in line for line in told[:-1])
        asyncio.run(SystemClock().sleep(1))
        assert happened() == {"made timed"}, "nothing was done"
        done = saga("repair", module)
        assert done.exit_code == 0
        assert all("  its wake is sent again, for " in line for line in done.stdout.splitlines()[:-1])
        until(lambda: happened() == HAPPENS, last=happened)
        until(lambda: saga("repair", module, "--dry-run").stdout == "no sagas to go on with\n")  # it has written all
    assert len((pottery.folder / "happened").read_text().splitlines()) == len(HAPPENS), "each once"
    assert saga("repair", module).stdout == "no sagas gone on with, no problems\n"
