"""Large results of steps lie in documents of their own: stored once, read by reruns alone, and no other saga's."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from saga import Retry, Saga, Service
from saga.engine.errors import Halted
from saga.engine.execution.message_processor import MessageProcessor
from saga.errors import StoreError
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.progress import history
from saga.progress.document import CLAIMED, StepRecord, progress_key
from saga.progress.overflow import BOUNDS, is_claim, parse_saga
from saga.store.sqlite.store import SqliteStore
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.driven_workers import At, Workers, place
from tests.engine.real_worker import SAGA, an_order

LARGE = BOUNDS.value_bytes_max


@dataclass
class Archive:
    """A service that fetches large scans before it answers, and what it has fetched."""

    service: Service[Any]
    fetched: list[int]


def an_archive(*, size: int = 3 * LARGE, steps: int = 3, fails: int = 0) -> Archive:
    """`fails`: times that it fails behind its last step."""
    payment, fetched, left = Service("payment", retry=Retry(in_place_s=1e9)), list[int](), [None] * fails

    async def fetch(number: int) -> str:
        fetched.append(number)
        return str(number) + "x" * size

    @payment.handler
    async def reserve(order: OrderPlaced, saga: Saga[None]) -> PaymentReserved:
        scans = [await saga.step(fetch, number) for number in range(steps)]
        if left:
            left.pop()
            raise ConnectionError("try again")
        first = "".join(scan[0] for scan in scans)
        return PaymentReserved(order_id=order.order_id, charge_id=first, amount=order.total)

    return Archive(payment, fetched)


async def claims_in(store: SqliteStore) -> dict[str, bytes]:
    return {key: d.content async for key, d in store.scan(ARCHIVES) if is_claim(key)}


async def calls_of(worker: At) -> tuple[StepRecord, ...]:
    p = await worker.progress()
    return p.intents[0].calls if p.intents else (await worker.history())[-1].calls


async def test_large_results_are_stored_once_and_the_progress_stays_small(tmp_path: Path) -> None:
    archive = an_archive()
    async with place(tmp_path) as workers:
        worker, sizes = await workers.worker(archive.service), list[int]()

        async def weigh(collection: str, key: str) -> None:
            there = await workers.store.get(PROGRESS, progress_key("payment", SAGA))
            sizes.append(0 if there is None else len(there.content))

        workers.watched.before = weigh
        await worker.takes(an_order())
        await weigh("", "")
        assert max(sizes) < 5000
        claims = await claims_in(workers.store)
        assert sorted(content[1:2] for content in claims.values()) == [b"0", b"1", b"2"]
        assert {parse_saga(key) for key in claims} == {SAGA}
        calls = await calls_of(worker)
        assert [(call.name, bytes(call.value), f"payment|claim::{SAGA}::{call.claim}" in claims) for call in calls] == [
            ("fetch", b"null", True)
        ] * 3
        p = await worker.progress()
        assert p.format == CLAIMED
        assert history.verify_history(p.transitions, p) is None


async def test_results_that_are_not_large_stay_where_they_were(tmp_path: Path) -> None:
    archive = an_archive(size=LARGE - 3)  # and a digit, and two quotes
    async with place(tmp_path) as workers:
        worker = await workers.worker(archive.service)
        await worker.takes(an_order())
        assert await claims_in(workers.store) == {}
        assert [len(bytes(call.value)) for call in await calls_of(worker)] == [LARGE] * 3


@pytest.mark.parametrize("writes", range(1, 7))
async def test_a_worker_that_resumes_after_any_write_has_the_same_results_and_repeats_no_step(
    tmp_path: Path, writes: int
) -> None:
    archive = an_archive()
    async with place(tmp_path) as workers:
        worker = await left_behind(workers, archive, writes=writes)
        recorded = (await worker.progress()).intents[0].calls
        turn = await worker.takes(an_order(), id="order")
        assert turn.is_complete
        events = [e for entry in await worker.history() for e in entry.events]
        assert len(events) == 1
        assert b"012" in events[0].value
        assert len(recorded) == (writes - 1) // 2
        assert all(archive.fetched.count(call.number - 1) == 1 for call in recorded)


class Stopped(Halted):
    """End of the worker."""


class Stop:
    """The worker dies at this write."""

    def __init__(self, after: int) -> None:
        self.left = after

    async def __call__(self, collection: str, key: str) -> None:
        if not self.left:
            raise Stopped
        self.left -= 1


async def left_behind(workers: Workers, archive: Archive, *, writes: int = 5) -> At:
    """A worker that comes after one that died: five writes are three intents, and the claims of two steps."""
    workers.watched.before = Stop(writes)
    with pytest.raises(Stopped):
        await (await workers.worker(archive.service)).takes(an_order(), id="order")
    workers.watched.before = None
    return await workers.worker(archive.service)


async def test_a_failed_attempt_reads_what_it_was_given_and_the_saga_is_for_this_version_alone(tmp_path: Path) -> None:
    archive = an_archive(fails=2)
    async with place(tmp_path) as workers:
        worker = await left_behind(workers, archive)
        p = await worker.progress()
        assert p.format == CLAIMED
        assert history.verify_history(p.transitions, p) is None
        await worker.takes(an_order(), id="order")
        assert archive.fetched == [0, 1, 2, 2], "the last was begun, and had no claim yet"
        p = await worker.progress()
        assert history.verify_history(p.transitions, p) is None


async def test_a_claim_that_is_gone_or_was_changed_holds_up_the_run_until_it_is_put_back(tmp_path: Path) -> None:
    archive = an_archive()
    async with place(tmp_path) as workers:
        worker = await left_behind(workers, archive)
        [key] = [key for key, content in (await claims_in(workers.store)).items() if content[1:2] == b"0"]
        there = await workers.store.get(ARCHIVES, key)
        assert there is not None
        for content, why in ((None, "the result of fetch is stored in .* restore it"), (b'"1"', "was changed since")):
            await workers.archive(key, content)
            with pytest.raises(StoreError, match=why):
                await worker.takes(an_order(), id="order")
            assert [entry.outcome for entry in await worker.history()] == []
        await workers.archive(key, there.content)
        await worker.takes(an_order(), id="order")
        assert [entry.outcome for entry in await worker.history()] == ["handled"]
        assert archive.fetched.count(0) == 1
        assert worker.dead == []


async def test_a_step_records_how_long_it_took_whichever_worker_ends_the_run(tmp_path: Path) -> None:
    payment, waits_s = Service("payment"), [1.5, 0.25, 7.0]
    async with place(tmp_path) as workers:

        async def slow() -> None:
            await workers.clock.sleep(waits_s.pop(0))

        @payment.handler
        async def reserve(order: OrderPlaced, saga: Saga[None]) -> PaymentReserved:
            await saga.step(slow)
            await saga.step(slow)
            return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

        worker = await left_behind(workers, Archive(payment, []), writes=2)
        await worker.takes(an_order(), id="order")
        assert [call.ms for call in await calls_of(worker)] == [1500, 7000], "of the second the answer was lost"


async def test_two_sagas_with_the_same_result_have_a_claim_each_that_never_expires(tmp_path: Path) -> None:
    archive = an_archive(steps=1)
    async with place(tmp_path) as workers:
        worker = await workers.worker(archive.service)
        for saga in ("order-1", "order-2"):
            message = worker.message(an_order(saga))
            turn = worker.begun(an_order(saga), message)
            await MessageProcessor(worker.participant).process(turn)
        keys = list(await claims_in(workers.store))
        assert sorted(map(parse_saga, keys)) == ["order-1", "order-2"]
        with closing(sqlite3.connect(tmp_path / "store.db")) as file:
            [[expiring]] = file.execute(
                "SELECT count(*) FROM documents WHERE collection = ? AND expires_at_ms IS NOT NULL", (ARCHIVES,)
            ).fetchall()
        assert expiring == 0
