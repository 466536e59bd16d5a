"""`saga sagas rebuild`: lost progresses are rebuilt from the topics, as they were, and without calls to external
systems."""

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from saga.broker.administration import OffsetBounds
from saga.broker.embedded.broker import EmbeddedAdministration, EmbeddedBroker
from saga.cli import sagas as cli
from saga.clients import events
from saga.engine.repair import rebuild_progress
from saga.errors import StoreUnavailable
from saga.messages import Partition, Record
from saga.messaging.envelope import type_of
from saga.messaging.names import PROGRESS
from saga.messaging.operator_commands import CommandValue, command_to_record
from saga.ops import repair as rebuilding
from saga.progress.document import SagaProgress, decode_progress, encode, progress_key
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from services.audit.books import read_books
from services.audit.checks import audit
from services.inventory import inventory
from services.order import order
from services.payment.bank import LedgerBank
from services.shipping import shipping
from tests.cli.conftest import Call
from tests.cli.pottery_service import Pottery, the_broker
from tests.cli.test_dead import until
from tests.cli.test_missing_topics import running
from tests.failure.failing_calls import House, house_of
from tests.failure.test_every_call import Shop

SERVICES = ("order", "payment", "inventory", "shipping")
MODULES = [f"services.{service}" for service in SERVICES]


def ran(folder: Path, act: Callable[[House], Awaitable[None]]) -> None:
    """Let all services run while something is done with them."""

    async def run() -> None:
        async with house_of(folder / ".saga") as house:
            await act(house)

    asyncio.run(run())


def ordered(folder: Path, **orders: Shop) -> None:
    """Orders that are brought to their end."""

    async def act(house: House) -> None:
        for name, shop in orders.items():
            await house.publish(shop.order(name))
        await house.at_rest()

    ran(folder, act)


def progresses(folder: Path) -> dict[str, SagaProgress]:
    async def read() -> dict[str, SagaProgress]:
        found = dict[str, SagaProgress]()
        for file in (file for service in SERVICES if (file := folder / ".saga" / f"{service}.db").exists()):
            async with SqliteStore(file, clock=SystemClock(), readonly=True) as store:
                found |= {key: decode_progress(document.content) async for key, document in store.scan(PROGRESS)}
        return found

    return asyncio.run(read())


def lose(folder: Path, service: str, *sagas: str) -> None:
    """Remove progresses, as by a store that was restored from an old copy."""

    async def removed() -> None:
        async with SqliteStore(folder / ".saga" / f"{service}.db", clock=SystemClock()) as store:
            for saga in sagas:
                document = await store.get(PROGRESS, progress_key(service, saga))
                assert document is not None
                await store.remove(PROGRESS, progress_key(service, saga), cas=document.cas)

    asyncio.run(removed())


def meaning(p: SagaProgress) -> Mapping[str, object]:
    """All that decisions read of a progress, less the times of inbox entries."""
    left_out = ("transitions", "hash", "n", "published", "first", "inbox", "wake", "heard")
    fields = {name: getattr(p, name) for name in p.__struct_fields__ if name not in left_out}
    kept = {"queue", "waiting", "compensating", "deadlines"}
    reduced = {
        name: [(k.handler, k.message) for k in value] if name in kept else value for name, value in fields.items()
    }
    return {**reduced, "inbox": set(p.inbox)}


def records(folder: Path, topic: str) -> list[Record]:
    """Everything in a topic."""

    async def scanned() -> list[Record]:
        async with EmbeddedBroker(folder / ".saga" / "broker.db", clock=SystemClock()) as broker:
            return [record async for record in broker.scan(topic)]

    return asyncio.run(scanned())


def calls(folder: Path) -> list[tuple[object, ...]]:
    """Rows of the bank and the carrier."""
    found = []
    for ledger in ("bank.db", "carrier.db"):
        with closing(sqlite3.connect(folder / ".saga" / ledger)) as file:
            found += list(file.execute("SELECT key, operation, time FROM calls ORDER BY number"))
    return found


@pytest.mark.parametrize("service", SERVICES)
def test_finished_sagas_are_made_as_they_were(folder: Path, saga: Call, service: str) -> None:
    ordered(folder, good=Shop(), declined=Shop(card="declined-1"), nowhere=Shop(address="Atlantis"))
    before, asked = progresses(folder), calls(folder)
    lose(folder, service, "good", "declined", "nowhere")
    result = saga("sagas", "rebuild", f"services.{service}", "--dry-run")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "3 sagas to be rebuilt, 0 cannot be"
    assert len(progresses(folder)) == len(before) - 3, "nothing was made"
    done = saga("sagas", "rebuild", f"services.{service}", "--apply")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[:-1] == result.stdout.splitlines()[:-1], "it does what the dry run printed"
    after = progresses(folder)
    assert after.keys() == before.keys()
    for key in before:
        assert meaning(after[key]) == meaning(before[key]), key
    assert saga("sagas", "verify").exit_code == 0
    ran(folder, lambda house: house.at_rest())
    assert calls(folder) == asked, "nothing outside was asked"
    assert saga("sagas", "rebuild", *MODULES, "--dry-run").stdout == "no sagas to be rebuilt, 0 cannot be\n"


def test_a_dry_run_beside_a_lost_store_creates_no_file(folder: Path, saga: Call) -> None:
    ordered(folder, good=Shop())
    for file in (folder / ".saga").glob("payment.db*"):
        file.unlink()
    before = sorted(folder.rglob("*"))
    result = saga("sagas", "rebuild", "services.payment", "--dry-run")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "1 saga to be rebuilt, 0 cannot be")
    assert saga("sagas", "rebuild", "services.payment", "--dry-run", "--saga", "none").exit_code == 1
    assert sorted(folder.rglob("*")) == before
    assert saga("sagas", "rebuild", "services.payment", "--apply").stdout.endswith("1 saga rebuilt, 0 cannot be\n")


@pytest.mark.parametrize("how", ["--dry-run", "--apply"])
def test_a_rebuild_without_a_log_is_refused_and_creates_no_file(folder: Path, saga: Call, how: str) -> None:
    result = saga("sagas", "rebuild", "services.payment", how)
    assert result.exit_code == 2
    assert "no file .saga/broker.db" in result.stderr
    assert not [*(folder / ".saga").iterdir()]


def test_a_waiting_saga_is_rebuilt_as_it_was_and_continues(folder: Path, saga: Call) -> None:
    shop = Shop()

    async def without_payment() -> None:
        async with house_of(folder / ".saga", [order, inventory, shipping]) as house:
            await house.publish(shop.order("half"))
            while house.behind() or not await house.history("shipping", "half"):
                await SystemClock().sleep(0.02)
            await house.history("order", "half")

    asyncio.run(without_payment())
    before = progresses(folder)
    assert {key: p.is_open for key, p in before.items()} == {
        "order::half": True,
        "inventory::half": False,
        "shipping::half": False,
    }
    for service in ("order", "inventory", "shipping"):
        lose(folder, service, "half")
    done = saga("sagas", "rebuild", *MODULES, "--apply")
    assert done.exit_code == 0, done.output
    assert sorted(done.stdout.splitlines()) == [
        "3 sagas rebuilt, 0 cannot be",
        "inventory  half  set_aside handled",
        "order  half  a deadline noted",
        "shipping  half  book waiting, book waiting",
    ]
    after = progresses(folder)
    assert {key: meaning(p) for key, p in after.items()} == {key: meaning(p) for key, p in before.items()}

    async def whole(house: House) -> None:
        await house.at_rest()
        assert [e.outcome for e in await house.history("order", "half")] == ["noted", "handled"]

    ran(folder, whole)
    books = asyncio.run(read_books(folder / ".saga", frozenset(["half"])))
    assert [check for check in audit(books) if check.differences] == []


def test_a_run_of_which_nothing_is_known_is_made_by_the_service_under_the_same_key(
    folder: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bank has set the money aside, and its answer was lost; then the progress."""
    keys: list[str] = []
    reserve = LedgerBank.reserve

    async def answers_nothing(self: LedgerBank, key: str, card: str, amount: Decimal) -> str:
        keys.append(key)
        await reserve(self, key, card, amount)
        raise ConnectionError("the answer was lost")

    async def until_parked(house: House) -> None:
        await house.publish(Shop().order("lost"))
        while house.behind() or not await house.history("payment", "lost"):
            await SystemClock().sleep(0.02)

    with monkeypatch.context() as patch:
        patch.setattr(LedgerBank, "reserve", answers_nothing)
        ran(folder, until_parked)
    lose(folder, "payment", "lost")
    done = saga("sagas", "rebuild", "services.payment", "--apply", "--json")
    [report] = map(json.loads, done.stdout.splitlines())
    assert (report["did"], report["left"], report["open"]) == ([["reserve", "retrying"]], ["reserve"], True)
    wakes = [wake for wake in records(folder, "payment.wake.now") if dict(wake.headers)["ce_id"] == b"rebuilt"]
    assert len(wakes) == 2, "one before the progress is there, one after"
    ran(folder, lambda house: house.at_rest())
    assert [row[:2] for row in calls(folder) if row[1] == "reserve"] == [(keys[0], "reserve")]
    assert len(set(keys)) == 1
    books = asyncio.run(read_books(folder / ".saga", frozenset(["lost"])))
    assert [check for check in audit(books) if check.differences] == []


def test_unpublished_events_of_a_rebuilt_saga_are_published(
    folder: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered(folder, one=Shop())
    lose(folder, "order", "one")
    [published] = [record for record in records(folder, "orders") if type_of(record) == "OrderConfirmed"]
    monkeypatch.setattr(rebuilding, "_decode_own", lambda service, record: None)  # as if it were not there
    line = saga("sagas", "rebuild", "services.order", "--dry-run").stdout.splitlines()[0]
    assert line == "order  one  a deadline noted, confirm handled; published now: OrderConfirmed"
    assert saga("sagas", "rebuild", "services.order", "--apply").exit_code == 0
    [first, second] = [record for record in records(folder, "orders") if type_of(record) == "OrderConfirmed"]
    assert (first, second.value) == (published, published.value)
    assert dict(first.headers)["ce_id"] == dict(second.headers)["ce_id"]


def test_existing_progresses_are_never_changed_and_one_flag_is_required(folder: Path, saga: Call) -> None:
    ordered(folder, one=Shop(), other=Shop())
    lose(folder, "payment", "one", "other")
    assert saga("sagas", "rebuild", "services.payment").exit_code == 2
    assert saga("sagas", "rebuild", "services.payment", "--dry-run", "--apply").exit_code == 2
    assert saga("sagas", "rebuild", "services.payment", "--apply", "--saga", "one").stdout.startswith(
        "payment  one  reserve"
    )
    before = progresses(folder)
    assert "payment::other" not in before
    assert (
        saga("sagas", "rebuild", "services.payment", "--apply").stdout.splitlines()[-1] == "1 saga rebuilt, 0 cannot be"
    )
    assert progresses(folder)["payment::one"] == before["payment::one"]


def test_a_worker_that_comes_first_keeps_its_progress(
    folder: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered(folder, one=Shop())
    lose(folder, "payment", "one")
    made = rebuild_progress

    async def rebuild_during_a_write(*args: Any, **named: Any) -> Any:
        rebuilt = await made(*args, **named)
        async with SqliteStore(folder / ".saga" / "payment.db", clock=SystemClock()) as store:
            await store.insert(PROGRESS, "payment::one", encode(SagaProgress(service="payment", saga="one")))
        return rebuilt

    monkeypatch.setattr(rebuilding, "rebuild_progress", rebuild_during_a_write)
    done = saga("sagas", "rebuild", "services.payment", "--apply")
    assert done.exit_code == 1
    assert "payment  one  cannot be rebuilt: its progress is there by now: it is left as it is" in done.stdout
    assert progresses(folder)["payment::one"].n == 0


@pytest.mark.slow
def test_a_rebuild_that_was_interrupted_between_archive_and_progress_is_continued(
    folder: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(house: House) -> None:
        once = events.to_record(Shop().order("long"), house.clock.now_ms())
        repeats = [
            once._replace(headers=tuple((n, b"%s-%d" % (v, i) if n == "ce_id" else v) for n, v in once.headers))
            for i in range(70)
        ]
        await house.broker.publish(repeats)
        await house.at_rest()

    ran(folder, act)
    before = progresses(folder)["payment::long"]
    assert before.first, "a part of it is in an archive"
    for file in (folder / ".saga").glob("payment.db*"):
        file.unlink()
    insert = SqliteStore.insert

    async def refuses_progress(self: SqliteStore, collection: str, key: str, *args: Any, **named: Any) -> int:
        if collection == PROGRESS:
            raise StoreUnavailable("the disk is full")
        return await insert(self, collection, key, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "insert", refuses_progress)
        assert saga("sagas", "rebuild", "services.payment", "--apply").exit_code == 2
    assert "payment::long" not in progresses(folder)
    done = saga("sagas", "rebuild", "services.payment", "--apply")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "1 saga rebuilt, 0 cannot be"), done.output
    assert meaning(progresses(folder)["payment::long"]) == meaning(before)


def test_decisions_of_operators_are_not_rebuilt(folder: Path, saga: Call) -> None:
    ordered(folder, one=Shop())
    lose(folder, "payment", "one")

    async def command(house: House) -> None:
        await house.broker.publish(
            [
                command_to_record(
                    "payment", "one", "discard", CommandValue(dead="d", who="ada", why="-"), house.clock.now_ms()
                )
            ]
        )

    ran(folder, command)
    if "payment::one" in progresses(folder):  # the service has taken it
        lose(folder, "payment", "one")
    result = saga("sagas", "rebuild", "services.payment", "--dry-run")
    assert result.exit_code == 1
    assert "payment  one  cannot be rebuilt: a person has decided about it" in result.stdout


def test_a_saga_of_which_the_log_has_lost_the_beginning_is_refused(
    folder: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered(folder, one=Shop())
    lose(folder, "payment", "one")
    bounds = EmbeddedAdministration.fetch_bounds

    async def trimmed(self: EmbeddedAdministration, topics: Collection[str]) -> Mapping[Partition, OffsetBounds]:
        there = await bounds(self, topics)
        return {at: OffsetBounds(max(0, end - 1) if at.topic == "orders" else 0, end) for at, (_, end) in there.items()}

    monkeypatch.setattr(EmbeddedAdministration, "fetch_bounds", trimmed)
    result = saga("sagas", "rebuild", "services.payment", "--dry-run")
    assert result.exit_code == 1
    assert "payment  one  cannot be rebuilt: it began at 20" in result.stdout
    assert "and the log has lost what was in orders before 20" in result.stdout


def test_a_finished_saga_that_is_older_than_memory_is_no_loss(
    folder: Path, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered(folder, one=Shop())
    lose(folder, "payment", "one")

    class InAMonth(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() + 31 * 86_400_000

    monkeypatch.setattr(cli, "SystemClock", InAMonth)
    result = saga("sagas", "rebuild", "services.payment", "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "no sagas to be rebuilt, 0 cannot be\n")


def test_unhandled_messages_are_left_to_the_service(folder: Path, saga: Call) -> None:
    ordered(folder, one=Shop())
    lose(folder, "payment", "one")
    before = saga("sagas", "rebuild", *MODULES, "--dry-run").stdout

    async def publish() -> None:
        now_ms = SystemClock().now_ms()
        orders = [Shop(quantity=2).order("one"), Shop().order("later")]
        async with EmbeddedBroker(folder / ".saga" / "broker.db", clock=SystemClock()) as broker:
            await broker.publish([events.to_record(event, now_ms) for event in orders])

    asyncio.run(publish())
    assert saga("sagas", "rebuild", *MODULES, "--dry-run").stdout == before


# -------------------------------------------------------------------- on files and on Kafka


def handled_for_good(service: str, topic: str) -> int:
    """Count the topic's records that the service never comes to again, even if it is killed now: `saga sagas rebuild`
    leaves the others to it."""

    async def positions() -> Mapping[Partition, int]:
        async with the_broker() as broker:
            return (await broker.describe_group(service)).positions

    return sum(position for partition, position in asyncio.run(positions()).items() if partition.topic == topic)


def test_a_rebuild_works_on_each_broker_and_its_events_are_published(
    pottery_on: Pottery, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_TRANSITIONS", "on")
    module, service = pottery_on.module, pottery_on.service
    assert saga("topics", "apply", module).exit_code == 0
    lines = "\n".join(json.dumps({"cup_id": f"cup-{n}"}) for n in range(3))
    assert saga("publish", "CupOrdered", stdin=lines).exit_code == 0

    def made() -> set[str]:
        listed = saga("sagas", "list", "--json")
        return {each["saga"] for each in json.loads(listed.stdout)["sagas"]} if not listed.exit_code else set()

    def committed() -> bool:
        return handled_for_good(service, pottery_on.topic) == 3

    with running(module):
        until(lambda: len(made()) == 3)
        until(committed)
    lose(pottery_on.folder, service, "cup-0", "cup-2")
    assert made() == {"cup-1"}
    with running(module):
        until(committed)
        done = saga("sagas", "rebuild", module, "--apply")
        assert done.exit_code == 0, done.output
        assert done.stdout.splitlines() == [
            f"{service}  cup-0  make handled",
            f"{service}  cup-2  make handled",
            "2 sagas rebuilt, 0 cannot be",
        ]
    assert made() == {"cup-0", "cup-1", "cup-2"}
    verified = saga("sagas", "verify", "--json")
    found = json.loads(verified.stdout)
    assert (verified.exit_code, found["broken"]) == (0, [])
    assert (found["histories"], found["witnessed"], found["rebuilt"]) == (3, 3, 2)
    assert (
        "2 of them were rebuilt by saga sagas rebuild: events published before that" in saga("sagas", "verify").stdout
    )
