"""Every kind of document that a service writes, with a write whose answer is lost. The write landed, never landed, or
lands after the next read; the effects of the service are the same each time."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pytest

from saga import Saga, Service
from saga.engine.consumer.committer import Committer
from saga.engine.consumer.poison_guard import DeathCount
from saga.engine.persistence.service_record import known_logs
from saga.errors import Ambiguous, StoreError
from saga.messages import Partition
from saga.messaging import controls
from saga.messaging.controls import Switch
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.progress import history, overflow
from saga.progress.document import decode_transition
from saga.store.port import Document
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.real_worker import SAGA, Workplace, an_order, at_work, workplace

Mode = Literal["lost", "landed", "late"]
MODES: tuple[Mode, ...] = ("lost", "landed", "late")
ORDERS, HOUR_MS = 6, 3_600_000
KINDS = {
    *("insert progress", "replace progress", "insert archive", "insert page", "insert claim", "insert guard"),
    *("replace guard", "insert controls", "replace controls", "insert document", "replace document"),
    "replace identity",
}
"""Each way in which a service writes. A new kind of document belongs here."""


@pytest.fixture(autouse=True)
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make one saga of few messages need archives, segments and claim checks; its partitions were left by a crash."""
    monkeypatch.setattr(overflow, "BOUNDS", replace(overflow.BOUNDS, inbox_max=2, inbox_kept=1, value_bytes_max=64))
    monkeypatch.setattr(history, "TRANSITIONS_MAX", 3)
    monkeypatch.setattr(history, "TRANSITIONS_KEPT", 1)
    begin = Committer.open_partitions

    async def left(self: Committer, offsets: Mapping[Partition, int], is_current: Any) -> Collection[Partition]:
        await begin(self, offsets, is_current)
        return set(offsets)

    monkeypatch.setattr(Committer, "open_partitions", left)


@dataclass(frozen=True)
class Tally:
    """A business document that counts what was charged."""

    charged: int = 0


def charge(tally: Tally | None, amount: int) -> Tally:
    return Tally(amount if tally is None else tally.charged + amount)


def kind_of(collection: str, key: str) -> str:
    if collection == PROGRESS:
        return "progress"
    if collection != ARCHIVES:
        return "document"
    for name in ("guard", "controls", "page", "claim", "identity"):
        if key.partition("::")[0].endswith(name):
            return name
    return "archive"


class LossyAnswers:
    """Writes of a store, of which the `n`-th of one kind gets no answer."""

    def __init__(self, place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = Counter[str]()
        self.fault: tuple[str, int, Mode] | None = None
        self._late: list[Callable[[], Awaitable[int]]] = []
        store = place.store
        get, insert, replaced = store.get, store.insert, store.replace

        async def read(collection: str, key: str) -> Document | None:
            document = await get(collection, key)
            while self._late:
                with suppress(StoreError):
                    await self._late.pop()()
            return document

        async def inserting(collection: str, key: str, content: bytes, **more: Any) -> int:
            return await self._write("insert", collection, key, lambda: insert(collection, key, content, **more))

        async def replacing(collection: str, key: str, content: bytes, **more: Any) -> int:
            return await self._write("replace", collection, key, lambda: replaced(collection, key, content, **more))

        monkeypatch.setattr(store, "get", read)
        monkeypatch.setattr(store, "insert", inserting)
        monkeypatch.setattr(store, "replace", replacing)

    async def _write(self, operation: str, collection: str, key: str, act: Callable[[], Awaitable[int]]) -> int:
        kind = f"{operation} {kind_of(collection, key)}"
        self.calls[kind] += 1
        if self.fault is None or self.fault[:2] != (kind, self.calls[kind]):
            return await act()
        _, _, mode = self.fault
        self.fault = None
        if mode == "landed":
            await act()
        elif mode == "late":
            self._late.append(act)
        raise Ambiguous(f"planted: no answer ({mode})")


class Books(NamedTuple):
    """Effects of a run that have to be the same, whatever was lost."""

    charged: int
    events: tuple[str, ...]
    outcomes: Counter[str]
    switches: list[float]


def payment_of() -> Service[Any]:
    payment = Service("payment")
    payment.document(Tally, "tallies")

    async def scan(number: int) -> str:
        return f"{number}" * 100

    @payment.handler(repeats=OrderPlaced)
    async def reserve(order: OrderPlaced, saga: Saga) -> PaymentReserved:
        scanned = await saga.step(scan, order.quantity)
        await saga.update(Tally, "all", charge, order.quantity)
        return PaymentReserved(order_id=order.order_id, charge_id=scanned[:1], amount=order.total)

    return payment


async def run(
    folder: Path, fault: tuple[str, int, Mode] | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[Books, Counter[str]]:
    """Take all messages of a saga and two switches, with one answer lost. Return the effects and the writes by kind."""
    payment = payment_of()
    async with workplace(folder) as place:
        async with at_work(place, payment):
            await place.at_rest(payment)
            while not await known_logs(place.store, "payment"):  # noted beside the messages, once
                await place.clock.sleep(0.001)
        place.clock.ahead_ms += HOUR_MS  # so the service notes again that it works
        await place.publish(*(an_order(quantity=n) for n in range(1, ORDERS + 1)))
        record = [record async for record in place.broker.scan("orders")][1]
        key = f"guard::payment::{record.topic}/{record.partition}/{record.offset}@{record.log_id}"
        await place.store.insert(ARCHIVES, key, msgspec.json.encode(DeathCount(1)))
        for n, percent in enumerate((10, 20)):
            switch = Switch(flag="new", percent=percent)
            now_ms = place.clock.now_ms() + n
            await place.broker.publish(
                [controls.control_to_record("payment", switch, who="ada", why="test", now_ms=now_ms)]
            )
        answers = LossyAnswers(place, monkeypatch)
        answers.fault = fault
        async with at_work(place, payment):
            await place.at_rest(payment)
        assert answers.fault is None, "the run never came to it"
        return await books(place, payment), answers.calls


async def books(place: Workplace, payment: Service[Any]) -> Books:
    p = await place.progress(payment)
    tally, switches = (
        await place.store.get("tallies", "all"),
        await place.store.get(ARCHIVES, controls.control_log_key("payment")),
    )
    assert p is not None
    assert tally is not None
    assert switches is not None
    book = controls.decode_control_log("payment", switches.content)
    archives = [d.content async for key, d in place.store.scan(ARCHIVES, history.archive_key("payment", SAGA, 0)[:-9])]
    transitions = [decode_transition(raw) for raw in p.transitions]
    for content in archives:
        transitions += [decode_transition(raw) for raw in history.decode_archive(content).transitions]
    keys = [overflow.segment_key("payment", SAGA, page) for page in p.segments]
    keys += [overflow.claim_key("payment", SAGA, call.claim) for t in transitions for call in t.calls if call.claim]
    assert [key for key in keys if await place.store.get(ARCHIVES, key) is None] == [], "named, and not durable"
    assert len(keys) > ORDERS
    records = await place.records("payments")
    return Books(
        charged=msgspec.json.decode(tally.content, type=Tally).charged,
        events=tuple(dict.fromkeys(str(dict(r.headers)["ce_id"]) for r in records)),
        outcomes=Counter(t.outcome for t in transitions),
        switches=[entry.switch.percent for entry in controls.entries_of(book)],
    )


@pytest.mark.parametrize("is_each", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_an_answer_that_is_lost_changes_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_each: bool
) -> None:
    with monkeypatch.context() as patched:
        expected, calls = await run(tmp_path / "none", None, patched)
    assert calls.keys() == KINDS
    assert (expected.charged, len(expected.events), expected.switches) == (21, ORDERS, [10, 20])
    for kind, count in sorted(calls.items()):
        for n in sorted({1, 2, count} & {*range(1, count + 1)}) if is_each else (count,):
            for mode in MODES:
                with monkeypatch.context() as patched:
                    found, _ = await run(tmp_path / f"{kind} {n} {mode}", (kind, n, mode), patched)
                assert found == expected, (kind, n, mode)
