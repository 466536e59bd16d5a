"""The audit reads the services' own stores and the ledgers; its exit code is whether they agree."""

import asyncio
import json
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec import Raw

from saga import Event
from saga.contracts.codec import encode as encode_event
from saga.messages import Message, name_of
from saga.ops.sources import ServiceStore
from saga.progress.document import EmittedEvent, PendingMessage, SagaProgress, Transition, encode, progress_key
from saga.progress.history import TransitionArchive, archive_key
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from services.audit.__main__ import main
from services.audit.books import all_orders, orders_of
from services.inventory import seed
from services.inventory.events import InventoryHandedOut, InventoryReserved
from services.inventory.items import items
from services.inventory.stock import Stock
from services.ledger import Ledger
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.bank import Bank, Declined, LedgerBank
from services.payment.events import PaymentDeclined, PaymentReserved
from services.shipping.carrier import Carrier, LedgerCarrier
from services.shipping.events import ShipmentBooked

SKU = "tea-assam-250g"
PRICE = Decimal("9.80")
EARLY, LATE = "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:01.000Z"


def an_entry(n: int, because: str, *events: Event, time: str = EARLY) -> Transition:
    """A transition that emitted these."""
    emitted = tuple(
        EmittedEvent(id=f"e-{n}-{i}", type=name_of(type(event)), schema=event.__contract__, value=encode_event(event))
        for i, event in enumerate(events)
    )
    return Transition(
        n=n, previous="", time=time, outcome="handled", handler="h", message="m", type=because, source="s",
        events=emitted,
    )  # fmt: skip


def a_progress(service: str, id_: str, *entries: Transition, queue: tuple[PendingMessage, ...] = ()) -> SagaProgress:
    raws = tuple(Raw(encode(entry)) for entry in entries)
    return SagaProgress(service=service, saga=id_, n=len(raws), transitions=raws, queue=queue)


class Run:
    """The files of a run in which `order-1` was confirmed and `order-2` declined."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def store(self, service: str) -> SqliteStore:
        return SqliteStore(self.folder / f"{service}.db", clock=SystemClock())

    async def keep(self, *progresses: SagaProgress) -> None:
        for p in progresses:
            async with self.store(p.service) as store:
                await store.insert("saga", progress_key(p.service, p.saga), encode(p))

    async def make(self) -> None:
        async with AsyncExitStack() as open_:
            bank: Bank = LedgerBank(await open_.enter_async_context(Ledger(self.folder / "bank.db")))
            carrier: Carrier = LedgerCarrier(await open_.enter_async_context(Ledger(self.folder / "carrier.db")))
            charge, booking = await bank.reserve("k-1", "visa-1", PRICE), await carrier.book("k-1", "Kiel", 2)
            await bank.capture("k-2", charge)
            await carrier.dispatch("k-2", booking)
        reserved = InventoryReserved(order_id="order-1", sku=SKU, quantity=2)
        handed_out = InventoryHandedOut(order_id="order-1", sku=SKU, quantity=2)
        async with self.store("inventory") as store:
            await seed.seed(store)
            document = await store.get("stock", SKU)
            assert document is not None
            left = json.loads(document.content)["left"] - 2
            await store.replace("stock", SKU, encode(Stock(left=left)), cas=document.cas)
        await self.keep(
            a_progress("order", "order-1", an_entry(0, "ShipmentBooked", OrderConfirmed(order_id="order-1"))),
            a_progress(
                "order", "order-2", an_entry(0, "PaymentDeclined", OrderCancelled(order_id="order-2", reason="no"))
            ),
            a_progress(
                "payment",
                "order-1",
                an_entry(0, "OrderPlaced", PaymentReserved(order_id="order-1", charge_id=charge, amount=PRICE)),
            ),
            a_progress(
                "payment", "order-2", an_entry(0, "OrderPlaced", PaymentDeclined(order_id="order-2", reason="no"))
            ),
            a_progress(
                "inventory",
                "order-1",
                an_entry(0, "OrderPlaced", reserved),
                an_entry(1, "OrderConfirmed", handed_out, time=LATE),
            ),
            a_progress(
                "shipping",
                "order-1",
                an_entry(0, "OrderPlaced", ShipmentBooked(order_id="order-1", booking_id=booking)),
            ),
        )

    async def audit(self, *options: str) -> Result:
        """The command, in a thread: it has an event loop of its own."""
        return await asyncio.to_thread(CliRunner().invoke, main, ["--dir", str(self.folder), *options])

    async def differences(self, *options: str) -> list[str]:
        result = await self.audit("--json", *options)
        found = [difference for check in json.loads(result.output)["checks"] for difference in check["differences"]]
        assert result.exit_code == (1 if found else 0)
        return found


@pytest.fixture
async def run(tmp_path: Path) -> Run:
    made = Run(tmp_path)
    await made.make()
    return made


async def test_books_that_agree_exit_with_0(run: Run) -> None:
    assert await run.differences() == []
    result = await run.audit()
    assert result.exit_code == 0
    assert "cancelled: PaymentDeclined       1" in result.output
    assert "9.80 set aside = 9.80 captured + 0.00 released" in result.output
    assert "2 orders = 1 confirmed + 1 cancelled" in result.output
    total = sum(item.left for item in items())
    assert f"{total} articles = 2 handed out + {total - 2} left" in result.output
    assert "DIFFERS" not in result.output


async def test_a_wrong_stock_count_is_a_difference_and_exits_with_1(run: Run) -> None:
    async with run.store("inventory") as store:
        document = await store.get("stock", SKU)
        assert document is not None
        await store.replace("stock", SKU, encode(Stock(left=1)), cas=document.cas)
    (difference,) = await run.differences()
    assert difference.startswith(f"{SKU}: ")
    assert "DIFFERS  the stock balances" in (await run.audit()).output


async def test_an_article_that_vanished_is_a_difference(run: Run) -> None:
    async with run.store("inventory") as store:
        document = await store.get("stock", "grinder-hand")
        assert document is not None
        await store.remove("stock", "grinder-hand", cas=document.cas)
    assert await run.differences() == ["grinder-hand: 46 at first, 0 handed out, 0 left, 0 set aside"]


async def test_a_charge_that_no_service_knows_is_a_difference(run: Run) -> None:
    async with Ledger(run.folder / "bank.db") as ledger:
        await LedgerBank(ledger).reserve("k-9", "visa-9", PRICE)
    assert await run.differences() == ["charge k-9: no order knows it"]


async def test_a_booking_that_no_service_knows_is_a_difference(run: Run) -> None:
    async with Ledger(run.folder / "carrier.db") as ledger:
        await LedgerCarrier(ledger).book("k-9", "Leeds", 1)
    assert await run.differences() == ["booking k-9: no order knows it"]


async def test_a_declined_charge_is_no_effect(run: Run) -> None:
    async with Ledger(run.folder / "bank.db") as ledger:
        with pytest.raises(Declined):
            await LedgerBank(ledger).reserve("k-9", "declined-9", PRICE)
    assert await run.differences() == []


async def test_a_dead_letter_is_a_difference(run: Run) -> None:
    message = Message(id="m", type="T", schema="t/T.v1", saga="order-3", source="s", time=EARLY, value=b"")
    dead = a_progress("payment", "order-3", queue=(PendingMessage(handler="h", message=message, n=0, dead="dead-1"),))
    await run.keep(dead, a_progress("order", "order-3", an_entry(0, "X", OrderConfirmed(order_id="order-3"))))
    assert "order-3: not at rest in payment" in await run.differences()


async def test_an_outcome_in_an_archive_counts(run: Run) -> None:
    """An order whose oldest transition lies in an archive, and the same one still in the progress: counted once."""
    first = an_entry(0, "PaymentDeclined", OrderCancelled(order_id="order-3", reason="no"))
    second = an_entry(1, "InventoryRejected")
    raws = tuple(Raw(encode(entry)) for entry in (first, second))
    archive = TransitionArchive(service="order", saga="order-3", first=0, transitions=raws[:1])
    untrimmed = a_progress("order", "order-3", first, second)
    trimmed = SagaProgress(service="order", saga="order-4", n=2, first=1, transitions=raws[1:])
    async with run.store("order") as store:
        await store.insert("saga-archive", archive_key("order", "order-3", 0), encode(archive))
        moved = TransitionArchive(service="order", saga="order-4", first=0, transitions=raws[:1])
        await store.insert("saga-archive", archive_key("order", "order-4", 0), encode(moved))
    await run.keep(untrimmed, trimmed)
    async with run.store("order") as store:
        kept = await all_orders(ServiceStore("order", store))
    assert kept["order-3"].entries == kept["order-4"].entries == (first, second)
    assert await run.differences() == []


async def test_an_order_of_the_file_that_no_service_knows_is_a_difference(run: Run, tmp_path: Path) -> None:
    orders = tmp_path / "orders.jsonl"
    orders.write_text('{"order_id": "order-1"}\n{"order_id": "order-8"}\n', "utf-8")
    assert await run.differences("--orders", str(orders)) == ["order-8: no service knows it"]
    orders.write_text('{"order_id": "order-1"}\n{"order": "order-8"}\n', "utf-8")
    result = await run.audit("--orders", str(orders))
    assert result.exit_code == 2
    assert "line 2: Object missing required field `order_id`" in result.output


@pytest.mark.parametrize("missing", ["shipping.db", "bank.db"])
async def test_missing_books_exit_with_2_and_are_named(run: Run, missing: str) -> None:
    (run.folder / missing).unlink()
    result = await run.audit()
    assert result.exit_code == 2
    assert missing in result.output


async def test_seeding_again_does_not_change_existing_stock(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'inventory.db'}"
    for new in (20, 0):
        result = await asyncio.to_thread(CliRunner().invoke, seed.main, ["--store", url])
        assert (result.exit_code, result.output) == (0, f"{new} articles put into {url}, {20 - new} were there\n")
    async with SqliteStore(tmp_path / "inventory.db", clock=SystemClock()) as store:
        seeded = {key: json.loads(document.content) async for key, document in store.scan("stock")}
    assert seeded == {item.sku: {"left": item.left, "aside": 0} for item in items()}


async def test_seeding_a_store_without_a_bucket_is_refused() -> None:
    result = CliRunner().invoke(seed.main, ["--store", "couchbase://here"])
    assert result.exit_code == 2
    assert "the bucket is missing: couchbase://host/bucket" in result.output


async def test_seeding_uses_the_store_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGA_STORE", f"sqlite:///{tmp_path}/{{service}}.db")
    result = await asyncio.to_thread(CliRunner().invoke, seed.main, [])
    assert (result.exit_code, (tmp_path / "inventory.db").is_file()) == (0, True)


async def test_stores_outside_the_folder_are_read_too(run: Run, tmp_path: Path) -> None:
    orders = tmp_path / "orders.jsonl"
    orders.write_text('{"order_id": "order-1"}\n{"order_id": "order-2"}\n', "utf-8")
    by_folder = await run.audit("--json", "--orders", str(orders))
    elsewhere = ("--json", "--orders", str(orders), "--store", f"sqlite:///{run.folder}/{{service}}.db")
    assert (await run.audit(*elsewhere)).output == by_folder.output
    assert (await run.audit(*elsewhere, "--by-key")).output == by_folder.output


async def test_services_that_share_a_store_are_read_separately(run: Run, tmp_path: Path) -> None:
    shared = tmp_path / "shared.db"
    async with SqliteStore(shared, clock=SystemClock()) as all_:
        for service in ("order", "payment", "inventory", "shipping"):
            async with run.store(service) as store:
                for collection in ("saga", "stock"):
                    async for key, document in store.scan(collection):
                        await all_.insert(collection, key, document.content)
    assert await run.differences("--store", f"sqlite:///{shared}") == []


async def test_an_archive_is_found_by_its_key(run: Run) -> None:
    raws = tuple(Raw(encode(an_entry(n, "InventoryRejected"))) for n in range(3))
    async with run.store("order") as store:
        for first in range(2):
            archive = TransitionArchive(
                service="order", saga="order-3", first=first, transitions=raws[first : first + 1]
            )
            await store.insert("saga-archive", archive_key("order", "order-3", first), encode(archive))
    await run.keep(SagaProgress(service="order", saga="order-3", n=3, first=2, transitions=raws[2:]))
    async with run.store("order") as store:
        source = ServiceStore("order", store)
        kept = await orders_of(source, ["order-3", "order-9"])
        assert kept == {"order-3": (await all_orders(source))["order-3"]}
    assert [entry.n for entry in kept["order-3"].entries] == [0, 1, 2]


async def test_a_lookup_by_key_needs_the_list_of_keys(run: Run) -> None:
    result = await run.audit("--by-key")
    assert result.exit_code == 2
    assert "--orders" in result.output
