"""A saga with thousands of results that can be undone: its document stays small, and each is undone once."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from dataclasses import replace as with_
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from msgspec.structs import replace

from saga import Event, Later, Saga, Service
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.isolated_ports import RecordedDocuments
from saga.engine.progress_cache import OverflowCache
from saga.errors import StoreError
from saga.messages import Position
from saga.messaging import timers
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.messaging.timers import SagaTimer
from saga.ops.histories import UnreadableHistory, read_history
from saga.ops.sources import ServiceStore
from saga.progress import history, journal, overflow
from saga.progress.document import SagaProgress, encode
from saga.store.port import Document, Store
from services.payment.events import OrderCancelled, OrderConfirmed, OrderPlaced, PaymentDeclined, PaymentReserved
from tests.engine.driven_workers import At, Workers, place
from tests.engine.real_worker import SAGA, an_order
from tests.progress.pieces import START

TINY = overflow.OverflowBounds(head_max=2, segment_max=3)
CANCELLED = OrderCancelled(order_id=SAGA, reason="no")


@dataclass
class Bank:
    """A service whose reservations are released when the order is cancelled, and what was released."""

    released: list[str]
    service: Service[Any]


def a_bank(*, steps: bool = False) -> Bank:
    payment, released = Service("payment"), list[str]()

    async def let_go(charge_id: str) -> None:
        released.append(charge_id)

    @payment.handler(repeats=OrderPlaced)
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id=f"c-{order.quantity}", amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved, saga: Saga[None]) -> None:
        if steps:
            await saga.step(let_go, reserved.charge_id)
        else:
            released.append(reserved.charge_id)

    return Bank(released, payment)


class Cost(NamedTuple):
    """What a turn asked of the store."""

    reads: int
    writes: int
    bytes_: int
    document: int


class Counting(RecordedDocuments):
    """Store in memory that counts what is asked of it."""

    reads = writes = bytes_ = document = 0

    async def get(self, collection: str, key: str) -> Document | None:
        self.reads += 1
        return await super().get(collection, key)

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        self._count(collection, content)
        return await super().insert(collection, key, content, expiry_s=expiry_s)

    async def replace(self, collection: str, key: str, content: bytes, *, cas: int, **rest: Any) -> int:
        self._count(collection, content)
        return await super().replace(collection, key, content, cas=cas, **rest)

    def _count(self, collection: str, content: bytes) -> None:
        self.writes, self.bytes_ = self.writes + 1, self.bytes_ + len(content)
        if collection == PROGRESS:
            self.document = len(content)


class Measured:
    """One worker that has its progress in its cache, and the costs of its turns."""

    def __init__(self, at: At) -> None:
        self.at, self.store = at, Counting(2**24)
        self.cached: tuple[SagaProgress, int] | None = None
        ports = with_(at.participant.ports, store=cast(Store, self.store), overflow_cache=OverflowCache())
        self.participant = with_(at.participant, ports=ports)

    async def takes(self, event: Event, id: str) -> list[Cost]:
        """The message to its end; costs of each of its steps that writes."""
        self.at.offset += 1
        position, store = Position("orders", 0, self.at.offset), self.store
        turn, costs = (
            MessageProcessor(self.participant).begin(self.at.message(event, id=id), position, self.cached),
            list[Cost](),
        )
        while not turn.is_complete:
            reads, writes, bytes_ = store.reads, store.writes, store.bytes_
            turn = await MessageProcessor(self.participant).advance(turn)
            if turn.progress is not None:
                self.cached = turn.progress, turn.cas
            if store.writes > writes:
                costs.append(Cost(store.reads - reads, store.writes - writes, store.bytes_ - bytes_, store.document))
        return costs


def most(costs: Sequence[Cost]) -> Cost:
    return Cost(*map(max, zip(*costs, strict=True)))


@pytest.mark.slow
async def test_neither_the_document_nor_a_turn_grows_with_thousands_of_results(tmp_path: Path) -> None:
    bank, count = a_bank(), 3000
    async with place(tmp_path) as workers:
        worker = Measured(await workers.worker(bank.service))
        costs = [cost for n in range(count) for cost in await worker.takes(an_order(quantity=n), f"order-{n}")]
        undoing = await worker.takes(CANCELLED, "cancelled")
    assert bank.released == [f"c-{n}" for n in reversed(range(count))]
    early, late = most(costs[300:900]), most(costs[-600:])
    assert late.document <= early.document * 1.15 < 100_000, "one time the pages are full together, another time not"
    assert (early.reads, late.reads) == (0, 0)
    assert late.writes <= early.writes + 1 <= 5, "history, results, inbox, progress"
    assert len(undoing) == count
    assert most(undoing).document <= early.document * 1.15
    assert max(cost.reads for cost in undoing) <= 2, "a page, and the progress at the end"
    assert max(cost.writes for cost in undoing) <= 2, "history, and the progress"
    assert worker.cached is not None
    p, _ = worker.cached
    assert (p.results, p.closed, p.n) == ((), ("reserve",), 2 * count)
    assert {page.kind for page in p.segments} == {"inbox"}
    assert not [key for (_, key), (there, _) in worker.store.there.items() if b'"of":"results"' in there.content]


@asynccontextmanager
async def with_tiny_pages(tmp_path: Path, bank: Bank, orders: int) -> AsyncIterator[Workers]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overflow, "BOUNDS", TINY)
        async with place(tmp_path) as workers:
            worker = await workers.worker(bank.service)
            for n in range(orders):
                await worker.takes(an_order(quantity=n), id=f"order-{n}")
            yield workers


@pytest.mark.parametrize("steps", [False, True], ids=["plain", "with steps"])
async def test_a_worker_that_resumes_after_any_write_undoes_each_result_once(tmp_path: Path, steps: bool) -> None:
    bank = a_bank(steps=steps)
    async with with_tiny_pages(tmp_path, bank, 20) as workers:
        for _ in range(200):
            worker = await workers.worker(bank.service)
            turn = await worker.takes(CANCELLED, id="cancelled", writes_max=1)
            if turn.is_complete:
                break
        p = await worker.progress()
        assert (p.results, p.segments, p.closed) == ((), (), ("reserve",))
        assert list(dict.fromkeys(bank.released)) == [f"c-{n}" for n in reversed(range(20))]
        done = [entry.cause for entry in await worker.history() if entry.handler == "release"]
        assert len(set(done)) == len(done) == 20
        assert len(bank.released) == 20 or steps, "a step whose answer was not recorded is asked for again, by its key"


async def test_a_missing_or_changed_segment_of_results_blocks_the_compensation_until_it_is_put_back(
    tmp_path: Path,
) -> None:
    bank = a_bank()
    async with with_tiny_pages(tmp_path, bank, 20) as workers:
        worker = await workers.worker(bank.service)
        [page] = (await worker.progress()).segments
        key = overflow.segment_key("payment", SAGA, page)
        there = await workers.store.get(ARCHIVES, key)
        assert there is not None
        for content, why in ((None, "lists the page .* restore it"), (b"{}", "was changed since it was written")):
            await workers.archive(key, content)
            with pytest.raises(StoreError, match=why):
                await worker.takes(CANCELLED, id="cancelled")
            assert (await worker.progress()).closed == ()
        await workers.archive(key, there.content)
        await worker.takes(CANCELLED, id="cancelled")
        assert sorted(set(bank.released)) == sorted(f"c-{n}" for n in range(20))
        assert (await worker.progress()).closed == ("reserve",)


async def test_a_job_of_many_turns_that_is_closed_names_its_last_calls_and_how_many_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "CALLS_MAX", 3)
    payment, sizes = Service("payment"), list[int]()

    async def post(number: int) -> None: ...

    @payment.handler
    async def reserve(order: OrderPlaced, saga: Saga[None]) -> PaymentReserved | Later:
        await saga.step(post, len(sizes))
        return Later(after=timedelta(0))

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    async with place(tmp_path) as workers:
        worker = await workers.worker(payment)
        await worker.takes(an_order())
        for _ in range(30):
            p = await worker.progress()
            sizes.append(len(encode(replace(p, transitions=()))))
            assert p.timer is not None
            wake = SagaTimer(
                id=p.timer.id,
                type=timers.TYPE,
                schema="",
                saga=SAGA,
                source="payment",
                time=START,
                value=b"",
                due_ms=p.timer.due_ms,
            )
            await MessageProcessor(worker.participant).process(
                MessageProcessor(worker.participant).begin(wake, Position("w", 0, len(sizes)), None)
            )
        assert sizes[-1] <= sizes[5] + 20
        await worker.takes(CANCELLED)
        [letter] = (await worker.history())[-1].letters
        assert list(letter.calls) == [
            *["step post ran"] * 3,
            "and 28 before these, listed by `saga sagas show --steps`, ran",
        ]


async def test_tools_see_all_results_however_segments_are_nested(tmp_path: Path) -> None:
    async with with_tiny_pages(tmp_path, a_bank(), 20) as workers:
        source = ServiceStore("payment", workers.store, workers.clock)
        found = await read_history(source, SAGA)
        assert found is not None
        p = found.progress
        assert [r.cause for r in p.results] == [f"order-{n}" for n in range(20)]
        assert history.verify_history(found.transitions, p) is None
        pages = [(key, d) async for key, d in workers.store.scan(ARCHIVES) if overflow.is_segment(key)]
        assert len(pages) > 3
        lowest, _ = pages[0]
        await workers.archive(lowest, None)
        with pytest.raises(UnreadableHistory, match="is gone"):
            await read_history(source, SAGA)
        await workers.archive(lowest, b"[")
        with pytest.raises(UnreadableHistory, match="cannot be read"):
            await read_history(source, SAGA)


async def test_a_version_that_handles_more_self_consumed_events_withdraws_those_of_results_in_segments_too(
    tmp_path: Path,
) -> None:
    def version(*, joins: bool) -> Service[Any]:
        payment = Service("payment")

        @payment.handler(repeats=OrderPlaced)
        async def reserve(order: OrderPlaced) -> tuple[PaymentReserved, PaymentDeclined]:
            reserved = PaymentReserved(order_id=order.order_id, charge_id=f"c-{order.quantity}", amount=order.total)
            return reserved, PaymentDeclined(order_id=order.order_id, reason="emitted beside it")

        @payment.compensation(reserve)
        async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

        if joins:

            @payment.handler
            async def join(confirmed: OrderConfirmed, declined: PaymentDeclined) -> None: ...

        return payment

    async with with_tiny_pages(tmp_path, Bank([], version(joins=False)), 20) as workers:
        worker = await workers.worker(version(joins=True))
        await worker.takes(an_order(quantity=20), id="order-20")
        p = await worker.progress()
        assert len(p.self_consumed) + sum(page.count for page in p.segments if page.kind == "own") == 21
        assert {page.kind for page in p.segments} >= {"own", "results"}
        await worker.takes(CANCELLED, id="cancelled")
        p = await worker.progress()
        assert (p.self_consumed, p.results, p.segments) == ((), (), ())
