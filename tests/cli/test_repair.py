"""`saga sagas repair`: sagas that get no message any more receive what earlier releases emitted, and what they wait
for."""

import asyncio
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace

from saga.configuration.wiring import load_services
from saga.messages import texts_of
from saga.messaging.timers import tiers_of
from saga.ops.offsets import list_partition_states
from saga.progress.document import decode_progress, encode
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from tests.cli.conftest import Call
from tests.cli.pottery_service import Pottery, the_broker
from tests.cli.test_dead import until
from tests.cli.test_missing_topics import refused, running
from tests.cli.test_parked import listed, publish
from tests.engine.driven_workers import place
from tests.engine.real_worker import an_order
from tests.servers.plain_clients import delete_records, recreate_topic

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
    shown = json.loads(saga("sagas", "show", id_, "--json").stdout)
    return [line["handler"] for line in shown["timeline"]]


def test_all_sagas_receive_what_earlier_releases_emitted(released: Path, saga: Call) -> None:
    result = saga("sagas", "repair", "second_release", "--dry-run")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        *(f"payment  order-{n}  would handle PaymentReserved" for n in (1, 2, 3)),
        "3 sagas to resume",
    ]
    assert handlers_of(saga, "order-1") == ["reserve"], "nothing was done"
    done = saga("sagas", "repair", "second_release", "--saga", "order-2")
    assert done.stdout.splitlines() == ["payment  order-2  capture handled", "1 saga resumed, no problems"]
    done = saga("sagas", "repair", "second_release")
    assert [line.split("  ")[1] for line in done.stdout.splitlines()[:-1]] == ["order-1", "order-3"]
    for n in (1, 2, 3):
        assert handlers_of(saga, f"order-{n}") == ["reserve", "capture"]
    assert saga("sagas", "repair", "second_release").stdout == "no sagas resumed, no problems\n"
    verified = json.loads(saga("sagas", "verify", "--json").stdout)
    assert (verified["histories"], verified["witnessed"]) == (3, 3), "what was written was published"
    traced = json.loads(saga("monitor", "trace", "order-1", "--json").stdout)
    assert [(line["handler"], line["worker"]) for line in traced["lines"]] == [
        ("reserve", "saga sagas repair"),
        ("capture", "saga sagas repair"),
    ]


@pytest.mark.parametrize("how", [(), ("--dry-run",)])
def test_a_store_that_is_missing_is_refused_and_nothing_is_created(released: Path, saga: Call, how: list[str]) -> None:
    before = sorted(released.rglob("*.db"))
    result = saga("sagas", "repair", "second_release", *how, "--store", "sqlite:///elsewhere/{service}.db")
    assert result.exit_code == 2
    assert "no file elsewhere/payment.db" in result.stderr
    assert sorted(released.rglob("*.db")) == before


@pytest.mark.parametrize("damaged", ["progress", "transition"])
def test_a_saga_that_cannot_be_resumed_is_reported_and_the_others_are_done(
    released: Path, saga: Call, damaged: str
) -> None:
    asyncio.run(_damaged(released, damaged))
    done = saga("sagas", "repair", "second_release", "--json")
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
            damaged = encode(replace(decode_progress(document.content), transitions=(Raw(b"7"),)))
        await store.replace("saga", "payment::order-2", damaged, cas=document.cas)


def test_a_release_that_takes_nothing_new_has_nothing_to_do(released: Path, saga: Call) -> None:
    assert saga("sagas", "repair", "first_release", "--dry-run").stdout == "no sagas to resume\n"


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
    if ordered.cup_id == "later" and saga.elapsed < timedelta(seconds=3):
        return Later(after=timedelta(seconds=3))
    has_happened("made", ordered.cup_id)
    return CupMade(cup_id=ordered.cup_id)


@potter.deadline(within=timedelta(seconds=4), unless=(CupSold,))
async def remind(ordered: CupOrdered) -> None:
    has_happened("reminded", ordered.cup_id)
"""
HAPPENS = {"made parked", "made later", "made timed", "reminded parked", "reminded later", "reminded timed"}


@dataclass(frozen=True)
class Kiln:
    """A service in which one saga is parked, one is suspended, and one has its deadline before it; and its folder."""

    pottery: Pottery
    module: str

    def happened(self) -> list[str]:
        return sorted((self.pottery.folder / "happened").read_text().splitlines())

    def begin(self, saga: Call) -> None:
        """Run until one of the three has been made; one at least waits for a time that has come by the end."""
        assert saga("topics", "apply", self.module).exit_code == 0
        with running(self.module):
            publish(saga, "CupOrdered", "parked", "later", "timed")
            until(lambda: len(listed(saga, self.pottery.service)) == 3 and "made timed" in self.happened())
            # On a busy machine it may begin with timers after the messages, and be killed before.
            until(lambda: asyncio.run(_has_timers(self.pottery.service)))
        (self.pottery.folder / "mended").write_text("")
        asyncio.run(SystemClock().sleep(5))  # all is due by then

    def ends(self, saga: Call) -> None:
        """See all that waits happen. What was under way when the service was killed may happen twice: it is no step."""
        until(lambda: {*self.happened()} == HAPPENS, last=self.happened)
        until(
            lambda: saga("sagas", "repair", self.module, "--dry-run").stdout == "no sagas to resume\n"
        )  # it has written all


def a_kiln(pottery: Pottery) -> Kiln:
    module = f"{pottery.module}_waiting"
    (pottery.folder / f"{module}.py").write_text(WAITING.format(module=pottery.module, service=pottery.service))
    (pottery.folder / "happened").write_text("")
    return Kiln(pottery, module)


async def _has_timers(service: str) -> bool:
    """True if timers lie behind a position of the service's group."""
    async with the_broker() as broker:
        states = list_partition_states(
            await broker.describe_group(service), await broker.fetch_bounds(list(tiers_of(service)))
        )
    return any(state.offset is not None and state.offset < state.bounds.end for state in states.values())


async def _made(pottery: Pottery) -> list[str]:
    """Ids of what the service has published, in the order in which it lies there."""
    async with the_broker() as broker:
        return [texts_of(record.headers)["ce_id"] async for record in broker.scan(pottery.made)]


def test_a_log_that_is_lost_beside_its_store_is_seen_and_a_repair_publishes_all_of_it_again(
    embedded_pottery: Pottery, saga: Call
) -> None:
    kiln = a_kiln(embedded_pottery)
    kiln.begin(saga)
    published = asyncio.run(_made(kiln.pottery))
    assert published
    for file in (kiln.pottery.folder / ".saga").glob("broker.db*"):
        file.unlink()
    result = saga("doctor", kiln.module)
    assert result.exit_code == 1
    assert "the log is gone, but the store" in result.stdout
    result = saga("sagas", "repair", kiln.module, "--dry-run")
    assert "timed  1 record would be published again" in result.stdout
    assert not [*(kiln.pottery.folder / ".saga").glob("broker.db*")], "a dry run creates no file"
    for _ in range(2):  # the first one makes a new file
        refusal = refused("run", kiln.module)
        assert "its log is new, and its store is not" in refusal
        assert f"`saga sagas repair` with the module of {kiln.pottery.service}" in refusal
    result = saga("doctor", kiln.module)
    assert result.exit_code == 1
    assert "its timers are lost" in result.stdout
    assert re.search(
        rf"^error +{kiln.pottery.made}[^:]*: it was deleted and created again", result.stdout, re.MULTILINE
    )
    result = saga("sagas", "repair", kiln.module, "--dry-run")
    assert "timed  1 record would be published again" in result.stdout
    assert asyncio.run(_made(kiln.pottery)) == []
    done = saga("sagas", "repair", kiln.module)
    assert done.exit_code == 0
    assert "timed  1 record are published again" in done.stdout
    assert "  its timer for " in done.stdout
    assert {*asyncio.run(_made(kiln.pottery))} == {*published}, "the same, with the same id"
    assert "published again" not in saga("sagas", "repair", kiln.module).stdout
    assert "deleted and created again" not in saga("doctor", kiln.module).stdout
    with running(kiln.module):
        kiln.ends(saga)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["created again", "removed"])
def test_timers_that_are_lost_while_no_worker_runs_are_published_again_by_the_service_itself(
    kafka_pottery: Pottery, saga: Call, kafka_address: str, lost: str
) -> None:
    kiln = a_kiln(kafka_pottery)
    kiln.begin(saga)
    assert saga("doctor", kiln.module).stdout.count("its timers are lost") == 0
    lose = {"created again": recreate_topic, "removed": delete_records}[
        lost
    ]  # with topics Kafka forgets positions, too
    for topic, tier in tiers_of(kiln.pottery.service).items():
        asyncio.run(lose(kafka_address, topic, tier.partitions))
    result = saga("doctor", kiln.module)
    assert result.exit_code == 1, result.stdout + saga("offsets", "show", kiln.pottery.service).stdout
    assert "its timers are lost" in result.stdout
    assert "saga sagas repair" in result.stdout
    with running(kiln.module) as service:
        kiln.ends(saga)
        assert '"event":"timers_lost"' in service.read_log()
    assert "its timers are lost" not in saga("doctor", kiln.module).stdout


@pytest.mark.slow
def test_events_of_a_topic_that_was_created_again_are_reported_and_published_again_by_a_repair(
    kafka_pottery: Pottery, saga: Call, kafka_address: str
) -> None:
    pottery = kafka_pottery
    assert saga("topics", "apply", pottery.module).exit_code == 0
    with running(pottery.module):
        publish(saga, "CupOrdered", "one", "two", "three")
        until(lambda: len(asyncio.run(_made(pottery))) == 3)
    published = asyncio.run(_made(pottery))
    asyncio.run(recreate_topic(kafka_address, pottery.made, 2))
    result = saga("doctor", pottery.module)
    assert result.exit_code == 1
    assert f"{pottery.made}: it was deleted and created again since {pottery.service} published to it" in result.stdout
    with running(pottery.module) as service:
        until(lambda: '"event":"published_lost"' in service.read_log())
        assert saga("sagas", "repair", pottery.module, "--saga", "two").stdout.splitlines() == [
            f"{pottery.service}  two  1 record are published again",
            "1 saga resumed, no problems",
        ]
        assert saga("doctor", pottery.module).exit_code == 1, "the others are not yet"
        assert saga("sagas", "repair", pottery.module).exit_code == 0
    assert {*asyncio.run(_made(pottery))} == {*published}
    assert "deleted and created again" not in saga("doctor", pottery.module).stdout


def test_a_store_that_is_lost_beside_its_log_is_seen(pottery_on: Pottery, saga: Call) -> None:
    pottery = pottery_on
    assert saga("topics", "apply", pottery.module).exit_code == 0
    with running(pottery.module):
        publish(saga, "CupOrdered", "one", "two", "three")
        until(lambda: len(asyncio.run(_made(pottery))) == 3)
        until(lambda: ", 0 not handled" in saga("offsets", "show", pottery.service).stdout)
    assert "its store is empty" not in saga("doctor", pottery.module).stdout
    for file in (pottery.folder / ".saga").glob(f"{pottery.service}.db*"):
        file.unlink()
    result = saga("doctor", pottery.module)
    assert result.exit_code == 1
    assert "its store is empty, but its group has handled messages" in result.stdout
    assert "saga sagas rebuild" in result.stdout
