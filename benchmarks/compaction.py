"""Part k of the benchmarks: how large the progress of a saga with 100,000 transitions is, and what each further message
or turn costs.

Documents are in memory. So only the toolkit is measured, and the number of bytes that it passes to a store.
"""

import asyncio
import statistics
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any, NamedTuple, cast

from benchmarks.events import OrderCancelled, OrderRequested, Pinged, Ponged
from benchmarks.parts import Figure
from saga import Event, Later, Saga, Service
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.isolated_ports import DiscardingPublisher, RecordedDocuments, StaticAssignment
from saga.engine.lifecycle import open_resources
from saga.engine.outage_watch import OutageWatch
from saga.engine.ports import Ports
from saga.engine.prepared_service import prepare
from saga.engine.progress_cache import OverflowCache
from saga.engine.service_runtime import ServiceRuntime, make_service_runtime
from saga.messages import Message, Position
from saga.messaging.names import PROGRESS
from saga.messaging.timers import TYPE, SagaTimer
from saga.progress.document import SagaProgress
from saga.store.port import Store
from saga.support.clock import SystemClock, iso

MARKS = (1_000, 10_000, 100_000)
WINDOW = 500
"""Number of turns that are measured before each mark. Overflow segments fill up and become empty within fewer turns."""
BYTES_MAX = 20 * 2**20
SAGA = "hot"
holding = Service("echo")


@holding.handler(repeats=Pinged)
async def hold(pinged: Pinged) -> Ponged:
    """Emit a result that can be undone."""
    return Ponged(order_id=pinged.order_id, text=pinged.text, amount=pinged.amount)


@holding.compensation(hold)
async def let_go(cancelled: OrderCancelled, ponged: Ponged) -> None:
    """Undo one result."""


@dataclass(frozen=True)
class Place:
    """State of the job: how many items are done."""

    items: int = 0


job = Service("echo", state=Place)


@job.handler
async def work(asked: OrderRequested, saga: Saga[Place]) -> Ponged | Later:
    """Do one of many items in each turn. A turn has an intent, a step and a transition."""
    await saga.step(one_item, saga.state.items)
    saga.state = Place(items=saga.state.items + 1)
    if saga.state.items > MARKS[-1]:
        return Ponged(order_id=asked.order_id, text="", amount=asked.total)
    return Later(after=timedelta(0))


@job.compensation(work)
async def withdraw(cancelled: OrderCancelled, ponged: Ponged) -> None:
    """Undo the job. Until then, the progress lists the results of all its turns."""


async def one_item(number: int) -> int:
    """Return the number at once. This is the step that the job calls for each item."""
    return number


class Turn(NamedTuple):
    """Cost of one turn. `seconds` is CPU time, because other processes use the machine, too."""

    seconds: float
    bytes_written: int
    document_bytes: int


class Weighed(RecordedDocuments):
    """Documents in memory, with a count of the bytes of each write."""

    written = progress = 0

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        self._weigh(collection, content)
        return await super().insert(collection, key, content, expiry_s=expiry_s)

    async def replace(
        self, collection: str, key: str, content: bytes, *, cas: int, expiry_s: float | None = None, **rest: object
    ) -> int:
        self._weigh(collection, content)
        return await super().replace(collection, key, content, cas=cas, expiry_s=expiry_s, **rest)

    def _weigh(self, collection: str, content: bytes) -> None:
        self.written += len(content)
        if collection == PROGRESS:
            self.progress = len(content)


@dataclass
class Worker:
    """A worker that gets one message after the other, with the costs of its turns."""

    participant: ServiceRuntime
    documents: Weighed
    turns: list[Turn] = field(default_factory=list)
    known: tuple[SagaProgress, int] | None = None

    async def take(self, message: Message) -> None:
        """Handle one message until it is finished."""
        turn = MessageProcessor(self.participant).begin(message, Position("pings", 0, len(self.turns)), self.known)
        began, written = time.process_time(), self.documents.written
        while not turn.is_complete:
            turn = await MessageProcessor(self.participant).advance(turn)
            if turn.progress is not None:
                self.known = turn.progress, turn.cas
            if self.documents.written > written:
                now = time.process_time()
                self.turns.append(Turn(now - began, self.documents.written - written, self.documents.progress))
                began, written = now, self.documents.written

    def message(self, event: Event, id: str) -> Message:
        """Return the event as a message of another service."""
        type_, schema, value = self.participant.encode(event, SAGA)
        now = iso(self.participant.ports.clock.now_ms())
        return Message(id=id, type=type_, schema=schema, saga=SAGA, source="others", time=now, value=value, started=now)


def compaction() -> list[Figure]:
    """(k) Measure one saga of 100,000 transitions, in memory: results that are all undone, then a job of many turns"""
    return [*asyncio.run(_results()), *asyncio.run(_job())]


async def _worker(service: Service[Any], stack: AsyncExitStack) -> Worker:
    clock, documents = SystemClock(), Weighed(BYTES_MAX)
    ports = Ports(
        store=cast(Store, documents),  # has the methods of a store that a turn uses
        publisher=DiscardingPublisher(2**20),
        clock=clock,
        outage_watch=OutageWatch("echo", clock, lambda moment: None),
        assignment=StaticAssignment(),
        batch=cast(Any, None),  # only business documents use it, and there are none here
        overflow_cache=OverflowCache(),
    )
    resources = await open_resources(service.declared, stack, clock, 9, ())
    return Worker(make_service_runtime(prepare(service.declared), resources, ports), documents)


async def _results() -> list[Figure]:
    async with AsyncExitStack() as stack:
        worker = await _worker(holding, stack)
        for number in range(MARKS[-1]):
            pinged = Pinged(order_id=SAGA, text=f"{number:06}" + "x" * 94, amount=Decimal("9.80"))
            await worker.take(worker.message(pinged, f"ping-{number}"))
        done, worker.turns = worker.turns, []
        await worker.take(worker.message(OrderCancelled(order_id=SAGA, reason="late"), "cancelled"))
        assert len(worker.turns) == MARKS[-1]
        assert worker.known is not None
        assert worker.known[0].closed == ("hold",)
    return [*_figures("results", done), *_figures("undoing", worker.turns)]


async def _job() -> list[Figure]:
    async with AsyncExitStack() as stack:
        worker = await _worker(job, stack)
        asked = OrderRequested(
            order_id=SAGA, customer_id="c-1", sku="tea", quantity=1, total=Decimal("9.80"), address="Kiel"
        )
        await worker.take(worker.message(asked, "asked"))
        while worker.known is not None and worker.known[0].n < MARKS[-1]:
            wake = worker.known[0].timer
            assert wake is not None
            now = iso(worker.participant.ports.clock.now_ms())
            await worker.take(
                SagaTimer(
                    id=wake.id, type=TYPE, schema="", saga=SAGA, source="echo", time=now, value=b"", due_ms=wake.due_ms
                )
            )
    return list(_figures("job", worker.turns))


def _figures(what: str, turns: list[Turn]) -> Iterator[Figure]:
    looked_at = [turns[mark - WINDOW : mark] for mark in MARKS]
    for mark, window in zip(MARKS, looked_at, strict=True):
        yield Figure(f"k {what}: document, at most, at {mark:,}", max(t.document_bytes for t in window) / 1e3, "KB")
        yield Figure(f"k {what}: written in a turn", statistics.fmean(t.bytes_written for t in window) / 1e3, "KB")
    first, *_, last = (statistics.fmean(t.seconds for t in window) * 1e6 for window in looked_at)
    yield Figure(f"k {what}: CPU of a turn at {MARKS[0]:,}", first, "us")
    yield Figure(f"k {what}: CPU of a turn at {MARKS[-1]:,}, in that at {MARKS[0]:,}", last / first, "times")
