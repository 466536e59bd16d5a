"""Refused writes are reported with their saga, operation and reason: a single one is normal, many are a problem."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from saga import Saga, Service
from saga.engine.outage_watch import OutageWatch
from saga.engine.persistence.service_record import ensure_record, note_logs
from saga.engine.prepared_service import topics_of, writes_of
from saga.errors import Ambiguous, Conflict, Exists, StoreError
from saga.progress.history import TRANSITIONS_MAX
from saga.telemetry.events import WriteRefused
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order.events import OrderPlaced
from tests.engine.real_worker import SAGA, Workplace, an_order, at_work, workplace


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Workplace]:
    async with workplace(tmp_path) as place:
        yield place


def refuse_once(place: Workplace, monkeypatch: pytest.MonkeyPatch, collection: str, why: StoreError) -> None:
    """The next write to that collection raises, and does nothing."""
    left = [why]

    def refuse(to: str) -> None:
        if left and to == collection:
            raise left.pop()

    inserts, replaces = place.store.insert, place.store.replace

    async def insert(collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        refuse(collection)
        return await inserts(collection, key, content, expiry_s=expiry_s)

    async def replace(
        collection: str,
        key: str,
        content: bytes,
        *,
        cas: int,
        expiry_s: float | None = None,
        keep_expiry: bool = False,
    ) -> int:
        refuse(collection)
        return await replaces(collection, key, content, cas=cas, expiry_s=expiry_s, keep_expiry=keep_expiry)

    monkeypatch.setattr(place.store, "insert", insert)
    monkeypatch.setattr(place.store, "replace", replace)


@pytest.mark.parametrize(
    ("collection", "why", "expected"),
    [
        ("saga", Exists("there"), (SAGA, "write", "conflict")),
        ("saga", Conflict("another"), (SAGA, "write", "conflict")),
        ("saga", Ambiguous("no answer"), (SAGA, "write", "ambiguous")),
        ("stock", Conflict("another"), (None, "update", "conflict")),
        ("stock", Ambiguous("no answer"), (None, "update", "ambiguous")),
    ],
)
async def test_a_refused_write_is_reported_and_repeated(
    place: Workplace,
    monkeypatch: pytest.MonkeyPatch,
    collection: str,
    why: StoreError,
    expected: tuple[str | None, str, str],
) -> None:
    await place.store.insert("stock", "tea", msgspec.json.encode(Stock(left=5)))
    refuse_once(place, monkeypatch, collection, why)
    async with at_work(place, inventory):
        await place.publish(an_order())
        await place.at_rest(inventory)
    assert [(refused.saga, refused.operation, refused.why) for refused in place.reported(WriteRefused)] == [expected]
    stock = await place.store.get("stock", "tea")
    assert stock is not None
    assert msgspec.json.decode(stock.content, type=Stock) == Stock(left=4, aside=1)


async def test_an_archive_whose_answer_is_lost_is_reported(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    payment = Service("payment")

    @payment.handler(repeats=OrderPlaced)
    async def note(event: OrderPlaced, saga: Saga) -> None:
        """The progress grows."""

    watching = OutageWatch("payment", place.clock, place.moments.append)
    await ensure_record(payment.declared, place.store, place.clock, watching)  # it lies in that collection, too
    await place.broker.ensure_topics(topics_of(payment.declared))
    await note_logs(place.store, "payment", await place.broker.fetch_log_ids(writes_of(payment.declared)))
    refuse_once(place, monkeypatch, "saga-archive", Ambiguous("no answer"))
    async with at_work(place, payment):
        await place.publish(*(an_order(quantity=number + 1) for number in range(TRANSITIONS_MAX + 2)))
        await place.at_rest(payment)
    assert [(refused.operation, refused.why) for refused in place.reported(WriteRefused)] == [("archive", "ambiguous")]
    assert len([document async for document in place.store.scan("saga-archive")]) > 1
