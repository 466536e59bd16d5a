"""Business documents at a real worker: applied once, whatever else is in them, and many updates in few writes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
import pytest
from msgspec.structs import replace as with_
from typing_extensions import TypeAliasType

from saga import Retry, Saga, Service, sensitive
from saga.declarations.values import Declared
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.errors import Superseded
from saga.engine.execution import document_updates
from saga.engine.execution.document_updates import PRUNE_FROM, Marker
from saga.engine.isolated_ports import RecordingPublisher
from saga.engine.prepared_service import prepare
from saga.engine.service_runtime import make_service_runtime
from saga.errors import SagaError, StoreError
from saga.messages import Position
from saga.store.port import Document
from saga.store.sqlite.store import SqliteStore
from saga.telemetry.events import Escalated, Retrying
from saga.testing.trials import TrialClock, trial_ports
from services.inventory.events import InventoryRejected, InventoryReserved
from services.inventory.stock import OutOfStock, Stock
from services.order.events import OrderCancelled
from services.payment.events import OrderPlaced
from tests.engine.real_worker import SAGA, Workplace, an_order, at_work, workplace

Reaction = InventoryReserved | InventoryRejected


@dataclass(frozen=True)
class Count:
    orders: int = 0

    @staticmethod
    def counted(count: "Count | None") -> "Count":
        return Count(orders=count.orders + 1 if count else 1)

    def one_more(self) -> tuple[Self, int]:
        return replace(self, orders=self.orders + 1), self.orders + 1


def inventory_of(attempts_max: int = 2) -> Service:
    """Sets aside, and says no when there is none."""
    inventory = Service("inventory")
    inventory.document(Stock, "stock", expected_errors=(OutOfStock,))

    @inventory.handler(retry=Retry(attempts_max=attempts_max))
    async def set_aside(order: OrderPlaced, saga: Saga) -> InventoryReserved | InventoryRejected:
        try:
            await saga.update(Stock, order.sku, Stock.set_aside, order.quantity)
        except OutOfStock as why:
            return InventoryRejected(order_id=order.order_id, reason=str(why))
        return InventoryReserved(order_id=order.order_id, sku=order.sku, quantity=order.quantity)

    return inventory


async def stored(place: Workplace, key: str = "tea", collection: str = "stock") -> dict[str, object]:
    """A document as JSON."""
    document = await place.store.get(collection, key)
    assert document is not None
    return msgspec.json.decode(document.content, type=dict[str, object])


async def markers_of(place: Workplace, key: str = "tea") -> dict[str, Marker]:
    """The markers of a document."""
    head = msgspec.json.encode((await stored(place, key))["_saga"])
    return msgspec.json.decode(head, type=document_updates.Head).markers


async def test_fields_that_the_class_does_not_know_are_kept(tmp_path: Path) -> None:
    inventory = inventory_of()
    async with workplace(tmp_path) as place, at_work(place, inventory):
        await place.store.insert("stock", "tea", b'{"left": 5, "shelf": {"row": 7}, "note": "\\u00fc"}')
        await place.publish(an_order(quantity=2))
        await place.at_rest(inventory)
        document = await stored(place)
        assert {k: v for k, v in document.items() if k != "_saga"} == {
            "left": 3,
            "aside": 2,
            "shelf": {"row": 7},
            "note": "ü",
        }


async def test_a_refusal_changes_nothing_but_the_markers_and_is_an_answer(tmp_path: Path) -> None:
    inventory = inventory_of()
    async with workplace(tmp_path) as place, at_work(place, inventory):
        await place.store.insert("stock", "tea", b'{"left":1,"shelf":7}')
        await place.publish(an_order(quantity=2))
        await place.at_rest(inventory)
        document = await stored(place)
        assert {k: v for k, v in document.items() if k != "_saga"} == {"left": 1, "shelf": 7}
        (entry,) = await place.history(inventory)
        assert [(c.name, c.document, c.answer) for c in entry.calls] == [("set_aside", "stock/tea", "OutOfStock")]
        assert [e.type for e in entry.events] == ["InventoryRejected"]
        assert not place.reported(Retrying)


async def test_the_expiry_of_a_document_is_kept(tmp_path: Path) -> None:
    inventory = inventory_of()
    async with workplace(tmp_path) as place, at_work(place, inventory):
        await place.store.insert("stock", "tea", b'{"left":5}', expiry_s=3600)
        await place.publish(an_order(quantity=2))
        await place.at_rest(inventory)
        assert (await stored(place))["left"] == 3
        place.clock.ahead_ms += 3_599_000
        assert await place.store.get("stock", "tea") is not None
        place.clock.ahead_ms += 1000
        assert await place.store.get("stock", "tea") is None


async def test_a_missing_document_is_a_dead_letter_with_the_reason(tmp_path: Path) -> None:
    inventory = inventory_of()
    async with workplace(tmp_path) as place, at_work(place, inventory):
        await place.publish(an_order())
        await place.at_rest(inventory)
        ((_, headers),) = await place.dead(inventory)
        assert headers["dead_reason"] == (
            "Permanent: there is no document 'tea' in 'stock': create it, or let the first parameter of set_aside be "
            "`Stock | None`"
        )
        assert await place.store.get("stock", "tea") is None


async def test_a_key_that_is_no_text_is_a_dead_letter_and_concerns_no_other_saga(tmp_path: Path) -> None:
    counter, keys = Service("counter"), list[Any]([None, 17, "", "\ud800", "all"])
    counter.document(Count, "counts")

    @counter.handler
    async def count(order: OrderPlaced, saga: Saga) -> None:
        if order.sku == "rum":
            await saga.read(Count, keys[order.quantity])
        await saga.update(Count, keys[order.quantity], Count.counted)

    async with workplace(tmp_path) as place, at_work(place, counter):
        orders = [an_order(f"{sku}-{n}", sku=sku, quantity=n) for sku in ("rum", "tea") for n in range(len(keys))]
        await place.publish(*orders)
        await place.at_rest(counter)
        reasons = {headers["dead_reason"] for _, headers in await place.dead(counter)}
        assert {reason.partition(" was given as the key of a Count: ")[0] for reason in reasons} == {
            "Permanent: None", "Permanent: 17", "Permanent: ''", "Permanent: '\\ud800'"
        }  # fmt: skip
        assert (await stored(place, "all", "counts"))["orders"] == 2


async def test_a_document_that_does_not_fit_is_a_dead_letter_with_the_reason(tmp_path: Path) -> None:
    inventory = inventory_of()
    async with workplace(tmp_path) as place, at_work(place, inventory):
        await place.store.insert("stock", "tea", b'{"left":"many"}')
        await place.store.insert("stock", "rum", b"[1]")
        await place.publish(an_order(), an_order("order-2", sku="rum"))
        await place.at_rest(inventory)
        reasons = sorted(headers["dead_reason"] for _, headers in await place.dead(inventory))
        assert reasons[0].startswith(
            "Permanent: document 'rum' of 'stock' is no JSON object as the toolkit writes it: "
        )
        assert reasons[1].startswith("Permanent: document 'tea' of 'stock' is no Stock: Expected `int`, got `str`")
        assert await stored(place) == {"left": "many"}


async def test_an_absent_document_is_created_by_a_function_that_takes_none(tmp_path: Path) -> None:
    counter = Service("counter")
    counter.document(Count, "counts")

    @counter.handler
    async def count(order: OrderPlaced, saga: Saga) -> None:
        await saga.update(Count, "all", Count.counted)
        await saga.update(Count, "all", Count.counted)

    async with workplace(tmp_path) as place, at_work(place, counter):
        await place.publish(an_order(), an_order("order-2"))
        await place.at_rest(counter)
        assert (await stored(place, "all", "counts"))["orders"] == 4


async def test_an_attempt_that_has_written_nothing_reads_a_document_again(tmp_path: Path) -> None:
    counter, seen = Service("counter"), list[Count | None]()
    counter.document(Count, "counts")

    @counter.handler
    async def count(order: OrderPlaced, saga: Saga) -> None:
        seen.append(await saga.read(Count, "all"))
        if seen[-1] is None:
            if len(seen) == 3:
                await place.store.insert("counts", "all", b'{"orders":7}')
            raise LookupError("not there yet")

    async with workplace(tmp_path) as place, at_work(place, counter):
        await place.publish(an_order())
        await place.at_rest(counter)
        assert seen == [None, None, None, Count(7)]
        (entry,) = await place.history(counter)
        assert [(c.kind, bytes(c.value)) for c in entry.calls] == [("read", b'{"orders":7}')]


async def test_a_rerun_sees_a_document_as_it_was_recorded_with_the_intent(tmp_path: Path) -> None:
    counter, seen = Service("counter"), list[Count | None]()
    counter.document(Count, "counts")

    @counter.handler
    async def count(order: OrderPlaced, saga: Saga) -> None:
        seen.append(await saga.read(Count, "all"))
        orders = await saga.update(Count, "all", Count.one_more)
        assert orders == 8
        if len(seen) < 3:
            raise LookupError("once more")

    async with workplace(tmp_path) as place, at_work(place, counter):
        await place.store.insert("counts", "all", b'{"orders":7}')
        await place.publish(an_order())
        await place.at_rest(counter)
        assert seen == [Count(7)] * 3
        assert (await stored(place, "all", "counts"))["orders"] == 8


class CountingStore(SqliteStore):
    """Counts what is written to documents, and takes its time as a disk does."""

    written = 0

    async def replace(
        self,
        collection: str,
        key: str,
        content: bytes,
        *,
        cas: int,
        expiry_s: float | None = None,
        keep_expiry: bool = False,
    ) -> int:
        if collection == "stock":
            self.written += 1
            await asyncio.sleep(0.005)  # noqa: TID251 - so that others come up meanwhile
        return await super().replace(collection, key, content, cas=cas, expiry_s=expiry_s, keep_expiry=keep_expiry)


async def test_fifty_sagas_that_update_one_document_at_once_end_in_few_writes_and_right_numbers(tmp_path: Path) -> None:
    inventory = inventory_of()
    place = Workplace(tmp_path)
    store = CountingStore(tmp_path / "store.db", clock=place.clock)
    place.store = store
    async with place.opened(), at_work(place, inventory):
        await store.insert("stock", "tea", b'{"left":45}')
        await place.publish(*(an_order(f"order-{n}") for n in range(50)))
        await place.at_rest(inventory)
        document = await stored(place)
        assert (document["left"], document["aside"]) == (0, 45)
        types = [r.headers[0][1] for r in await place.records("inventory")]
        assert (types.count(b"InventoryReserved"), types.count(b"InventoryRejected")) == (45, 5)
        assert store.written <= 10
        assert len(await markers_of(place)) == 50


async def test_an_update_that_was_applied_and_not_recorded_is_found_and_not_applied_again(tmp_path: Path) -> None:
    counter, runs, results = Service("counter"), list[int](), list[int]()
    counter.document(Count, "counts")

    @counter.handler
    async def count(order: OrderPlaced, saga: Saga) -> None:
        runs.append(1)
        results.append(await saga.update(Count, "all", Count.one_more))
        if len(runs) == 1:
            await asyncio.sleep(60)  # noqa: TID251 - the worker stops before

    async with workplace(tmp_path) as place:
        await place.store.insert("counts", "all", b'{"orders":7}')
        async with at_work(place, counter, limits=FlowLimits(drain_s=0.02)):
            await place.publish(an_order())
            await place.until(lambda: len(results) == 1)
        for _ in range(2):
            async with at_work(place, counter):
                await place.publish(an_order())
                await place.at_rest(counter)
        assert results == [8, 8]
        assert (await stored(place, "all", "counts"))["orders"] == 8


class Refusal(Exception):
    """An answer."""


async def test_the_abort_of_a_handler_escalates_each_call_in_effect(tmp_path: Path) -> None:
    inventory = Service("inventory")
    inventory.document(Stock, "stock", expected_errors=(OutOfStock,))
    inventory.document(Count, "counts")

    class Bell:
        async def ring(self, how: str) -> str:
            if how == "softly":
                raise Refusal("too late in the evening")
            if how == "loudly":
                raise OSError("no sound")
            return how

    @inventory.resource(expected_errors=(Refusal,))
    async def bell() -> AsyncIterator[Bell]:
        yield Bell()

    @inventory.handler(retry=Retry(attempts_max=1))
    async def set_aside(order: OrderPlaced, bell: Bell, saga: Saga) -> InventoryReserved:
        await saga.step(bell.ring, "first")
        with suppress(Refusal):
            await saga.step(bell.ring, "softly")
        await saga.update(Stock, "tea", Stock.set_aside, 1)
        with suppress(OutOfStock):
            await saga.update(Stock, "tea", Stock.set_aside, 100)
        await saga.step(bell.ring, "loudly")
        return InventoryReserved(order_id=order.order_id, sku=order.sku, quantity=order.quantity)

    @inventory.compensation(set_aside)
    async def put_back(cancelled: OrderCancelled, reserved: InventoryReserved) -> None: ...

    async with workplace(tmp_path) as place, at_work(place, inventory):
        await place.store.insert("stock", "tea", b'{"left":45}')
        await place.publish(an_order(), OrderCancelled(order_id=SAGA, reason="-"))
        await place.at_rest(inventory)
        calls = ["step ring may have happened", "update set_aside on stock/tea was applied", "step ring ran"]
        dead, escalation, dropped = await place.dead(inventory)
        assert [v for n, v in escalation[0].headers if n == "dead_call"] == [call.encode() for call in calls]
        assert [headers["dead_what"] for _, headers in (dead, escalation, dropped)] == [
            "dead letter",
            "escalation",
            "dropped",
        ]
        assert "its effects remain and have to be corrected by hand" in escalation[1]["dead_reason"]
        assert [list(e.steps) for e in place.reported(Escalated)] == [calls]
        p = await place.progress(inventory)
        assert p is not None
        assert (p.closed, p.is_open) == (("set_aside",), False)


class ContestedStore(CountingStore):
    """Another writer is faster once: it changes the document right before the replace."""

    contested = False

    async def replace(
        self,
        collection: str,
        key: str,
        content: bytes,
        *,
        cas: int,
        expiry_s: float | None = None,
        keep_expiry: bool = False,
    ) -> int:
        if collection == "stock" and not self.contested:
            self.contested = True
            await super().replace(collection, key, b'{"left":20}', cas=cas)
        return await super().replace(collection, key, content, cas=cas, expiry_s=expiry_s, keep_expiry=keep_expiry)


async def test_an_update_that_lost_a_race_is_made_on_the_newer_document(tmp_path: Path) -> None:
    inventory, place = inventory_of(), Workplace(tmp_path)
    place.store = ContestedStore(tmp_path / "store.db", clock=place.clock)
    async with place.opened(), at_work(place, inventory):
        await place.store.insert("stock", "tea", b'{"left":5}')
        await place.publish(an_order(quantity=2))
        await place.at_rest(inventory)
        document = await stored(place)
        assert (document["left"], document["aside"]) == (18, 2)
        assert not place.reported(Retrying), "it is no attempt"


def an_update(declared: Declared) -> document_updates.DocumentUpdate:
    return document_updates.DocumentUpdate(
        declared=declared.documents[0],
        key="tea",
        marker="m",
        saga=SAGA,
        run=("do", "set_aside", "c"),
        change=Stock.set_aside,
        args=(1,),
        kwargs={},
        until_s=1e12,
    )


async def test_an_update_that_was_ruled_out_is_refused_and_leaves_the_document_as_it_is(tmp_path: Path) -> None:
    declared, clock = inventory_of().declared, TrialClock()
    async with SqliteStore(tmp_path / "store.db", clock=clock) as store:
        service = make_service_runtime(
            prepare(declared), {}, trial_ports(declared.name, store, clock, RecordingPublisher())
        )
        never = Marker(saga=SAGA, handler="set_aside", kind="do", cause="c", never=True)
        content = msgspec.json.encode({"left": 5, "_saga": document_updates.Head(markers={"m": never})})
        await store.insert("stock", "tea", content)
        update = an_update(declared)
        with pytest.raises(Superseded):
            await document_updates.apply(service, Position("orders", 0, 0), update)
        found = await store.get("stock", "tea")
        assert found is not None
        assert found.content == content


async def test_a_batched_update_that_crashes_fails_alone(tmp_path: Path) -> None:
    declared, clock = inventory_of().declared, TrialClock()

    def ends(stock: Stock) -> Stock:
        raise SystemExit("enough")

    async with SqliteStore(tmp_path / "store.db", clock=clock) as store:
        service = make_service_runtime(
            prepare(declared), {}, trial_ports(declared.name, store, clock, RecordingPublisher())
        )
        await store.insert("stock", "tea", b'{"left":5}')
        good, bad = an_update(declared), with_(an_update(declared), marker="bad", change=ends, args=())
        run = [{"handler": "set_aside", "kind": "do", "cause": "c"}]
        await store.insert("saga", f"inventory::{SAGA}", msgspec.json.encode({"intents": run}))
        made = await document_updates.apply_together(
            service, Position("orders", 0, 0), [good, bad, with_(good, marker="last")]
        )
        found = await store.get("stock", "tea")
    assert found is not None
    assert document_updates.as_kind(found.content, Stock) == Stock(left=3, aside=2)
    assert [type(each) for each in made] == [Marker, RuntimeError, Marker]
    assert str(made[1]) == "ends raised SystemExit, which is no Exception"


async def test_an_update_of_a_saga_whose_progress_cannot_be_read_any_more_is_not_made(tmp_path: Path) -> None:
    declared, clock = inventory_of().declared, TrialClock()
    async with SqliteStore(tmp_path / "store.db", clock=clock) as store:
        service = make_service_runtime(
            prepare(declared), {}, trial_ports(declared.name, store, clock, RecordingPublisher())
        )
        await store.insert("saga", f"inventory::{SAGA}", b'{"intents":[{"handler')
        cas = await store.insert("stock", "tea", b'{"left":5}')
        with pytest.raises(SagaError, match="the progress of saga 'order-1' cannot be read any more"):
            await document_updates.apply(service, Position("orders", 0, 0), an_update(declared))
        assert await store.get("stock", "tea") == Document(b'{"left":5}', cas)


async def test_a_batched_update_with_an_unreadable_progress_fails_alone(tmp_path: Path) -> None:
    declared, clock = inventory_of().declared, TrialClock()
    async with SqliteStore(tmp_path / "store.db", clock=clock) as store:
        service = make_service_runtime(
            prepare(declared), {}, trial_ports(declared.name, store, clock, RecordingPublisher())
        )
        await store.insert("saga", f"inventory::{SAGA}", b'{"intents":[{"handler')
        intents = {"intents": [{"handler": "set_aside", "kind": "do", "cause": "c"}]}
        await store.insert("saga", "inventory::sound", msgspec.json.encode(intents))
        await store.insert("stock", "tea", b'{"left":5}')
        updates = [an_update(declared), with_(an_update(declared), saga="sound", marker="n")]
        damaged, sound = await document_updates.apply_together(service, Position("orders", 0, 0), updates)
        assert isinstance(damaged, StoreError)
        assert isinstance(sound, Marker)
        found = await store.get("stock", "tea")
        assert found is not None
        assert document_updates.as_kind(found.content, Stock) == Stock(left=4, aside=1)


async def test_markers_that_are_not_needed_are_pruned_when_there_are_many(tmp_path: Path) -> None:
    inventory = inventory_of()
    markers = {f"m{n}": Marker(saga=f"over-{n}", handler="set_aside", kind="do", cause="c") for n in range(PRUNE_FROM)}
    open_ = Marker(saga="open", handler="set_aside", kind="do", cause="c")
    intents = {"intents": [{"handler": "set_aside", "kind": "do", "cause": "c"}]}
    async with workplace(tmp_path) as place:
        await place.store.insert("saga", "inventory::open", msgspec.json.encode(intents))
        await place.store.insert("saga", "inventory::damaged", b'{"intents":[{"handler')
        kept = {"open": open_, "damaged": msgspec.structs.replace(open_, saga="damaged")}
        content = {"left": 5, "_saga": document_updates.Head(markers={**markers, **kept})}
        await place.store.insert("stock", "many", msgspec.json.encode(content))
        content = {"left": 5, "_saga": document_updates.Head(markers=markers)}
        await place.store.insert("stock", "few", msgspec.json.encode(content))
        async with at_work(place, inventory):
            await place.publish(an_order(sku="many"), an_order("order-2", sku="few"))
            await place.at_rest(inventory)
        assert [marker.saga for marker in (await markers_of(place, "many")).values()] == ["open", "damaged", SAGA]
        assert len(await markers_of(place, "few")) == PRUNE_FROM + 1, "few are not worth the reads"


async def test_with_as_many_open_markers_as_may_be_an_update_fails_for_the_time_being(tmp_path: Path) -> None:
    inventory = inventory_of(attempts_max=1000)  # however busy the machine is, the room comes in time
    async with workplace(tmp_path) as place:
        open_ = {
            f"m{n}": Marker(saga="stuck", handler="set_aside", kind="do", cause=f"c{n}")
            for n in range(document_updates.MARKERS_MAX)
        }
        intents = [
            {"handler": "set_aside", "kind": "do", "cause": f"c{n}"} for n in range(document_updates.MARKERS_MAX)
        ]
        await place.store.insert("saga", "inventory::stuck", msgspec.json.encode({"intents": intents}))
        content = {"left": 5, "_saga": document_updates.Head(markers=open_)}
        cas = await place.store.insert("stock", "tea", msgspec.json.encode(content))
        async with at_work(place, inventory):
            await place.publish(an_order())
            await place.until(lambda: bool(place.reported(Retrying)))
            assert place.reported(Retrying)[0].error == (
                "SagaError: 1000 updates of one document are under way: it is too hot, or its sagas are stuck"
            )
            await place.store.replace("stock", "tea", b'{"left":5}', cas=cas)
            await place.at_rest(inventory)
        assert [e.outcome for e in await place.history(inventory, SAGA)] == ["handled"]


@dataclass(frozen=True)
class Shelf:
    items: int = 0
    label: str = ""
    load: float = 0


def put_on(shelf: Shelf | None, what: str) -> Shelf:
    shelf = replace(shelf or Shelf(), items=shelf.items + 1 if shelf else 1)
    unusable: dict[str, Shelf] = {
        "half": replace(shelf, label="\udcff"),
        "endless": replace(shelf, load=float("nan")),
        "wrong": replace(shelf, items="many"),  # type: ignore[arg-type] # no checker has seen it
    }
    return unusable.get(what, shelf)


@pytest.mark.parametrize("what", ["half", "endless", "wrong"])
async def test_a_document_that_could_not_be_read_again_is_not_written_and_concerns_no_other_saga(
    tmp_path: Path, what: str
) -> None:
    shelves, runs = Service("inventory"), list[str]()
    shelves.document(Shelf, "shelves")

    @shelves.handler
    async def fill(order: OrderPlaced, saga: Saga) -> None:
        runs.append(order.order_id)
        await saga.update(Shelf, "first", put_on, order.sku)

    async with workplace(tmp_path) as place, at_work(place, shelves):
        await place.publish(*(an_order(f"order-{n}", sku=what if n % 5 == 3 else "tea") for n in range(20)))
        await place.at_rest(shelves)
        dead = [headers for _, headers in await place.dead(shelves)]
        assert len(dead) == 4
        begins = "Permanent: the Shelf that put_on returned cannot be written and read again: "
        assert all(headers["dead_reason"].startswith(begins) for headers in dead)
        assert sorted(runs) == sorted(f"order-{n}" for n in range(20)), "each runs once"
        assert (await stored(place, "first", "shelves"))["items"] == 16


@dataclass(frozen=True)
class Wallet:
    card: Annotated[Literal["none", "visa"], sensitive] = "none"


def keep_card(wallet: Wallet | None) -> Wallet:
    return Wallet(card="visa-4711")  # type: ignore[arg-type] # no checker has seen it


async def test_the_reason_why_a_document_could_not_be_read_again_shows_nothing_sensitive(tmp_path: Path) -> None:
    wallets = Service("inventory")
    wallets.document(Wallet, "wallets")

    @wallets.handler
    async def fill(order: OrderPlaced, saga: Saga) -> None:
        await saga.update(Wallet, "first", keep_card)

    async with workplace(tmp_path) as place, at_work(place, wallets):
        await place.publish(an_order())
        await place.at_rest(wallets)
        ((_, headers),) = await place.dead(wallets)
        assert "Invalid enum value '***'" in headers["dead_reason"]


MaybeShelf = TypeAliasType("MaybeShelf", Shelf | None)
Counted = TypeAliasType("Counted", Shelf | tuple[Shelf, int])


def count_up(shelf: MaybeShelf) -> Counted:
    more = put_on(shelf, "tea")
    return more, more.items


async def test_an_update_whose_types_are_aliases_creates_a_document_and_gives_back_a_result(tmp_path: Path) -> None:
    shelves, counts = Service("inventory"), list[object]()
    shelves.document(Shelf, "shelves")

    @shelves.handler
    async def fill(order: OrderPlaced, saga: Saga) -> None:
        counts.append(await saga.update(Shelf, "first", count_up))

    async with workplace(tmp_path) as place, at_work(place, shelves):
        await place.publish(an_order(), an_order("order-2"))
        await place.at_rest(shelves)
        assert counts == [1, 2]


def put_with_load(shelf: Shelf) -> tuple[Shelf, float]:
    return put_on(shelf, "tea"), float("nan")


def put_with_text(shelf: Shelf) -> Shelf:
    return put_on(shelf, "tea"), "one more"  # type: ignore[return-value] # no checker has seen it


@pytest.mark.parametrize(("change", "type_"), [(put_with_load, "float"), (put_with_text, "None")])
async def test_an_update_whose_result_could_not_be_read_again_is_not_made(
    tmp_path: Path, change: Callable[[Shelf], tuple[Shelf, Any]], type_: str
) -> None:
    shelves = Service("inventory")
    shelves.document(Shelf, "shelves")

    @shelves.handler
    async def fill(order: OrderPlaced, saga: Saga) -> None:
        await saga.update(Shelf, "first", change)

    async with workplace(tmp_path) as place, at_work(place, shelves):
        await place.store.insert("shelves", "first", b'{"items":7}')
        await place.publish(an_order())
        await place.at_rest(shelves)
        ((_, headers),) = await place.dead(shelves)
        assert headers["dead_reason"].startswith(f"Permanent: what '{change.__name__}' gives back is no {type_}: ")
        assert await stored(place, "first", "shelves") == {"items": 7}
