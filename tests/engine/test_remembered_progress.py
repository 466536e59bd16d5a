"""Attempts on a progress that a worker remembers: a failure counts if the store has that one, and no worker calls
the handler again to find out."""

from pathlib import Path

import pytest

from saga import Retry, Service
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.processing_state import ProcessingState
from saga.telemetry.events import Parked, Retrying
from services.payment.events import OrderPlaced
from tests.engine.driven_workers import At, Workers, place
from tests.engine.real_worker import an_order

IN_PLACE, PARKS = Retry(delay_s_first=0.5), Retry(in_place_s=0)


class Shop:
    """A service whose handler fails on what it is asked to, and how often it was called."""

    def __init__(self, retry: Retry) -> None:
        self.fails, self.called = 0, list[str]()
        self.service = Service("payment")

        @self.service.handler(repeats=OrderPlaced, retry=retry)
        async def note(placed: OrderPlaced) -> None:
            self.called.append(placed.sku)
            if self.fails:
                self.fails -= 1
                raise ConnectionError("away")


async def fails_once(shop: Shop, workers: Workers, *, old: bool) -> tuple[At, ProcessingState, int]:
    """A worker that remembers a progress, which is `old` if another worker has written since, and whose next message
    fails for once; the turn on it, and how often the store was read."""
    one, other = await workers.worker(shop.service), await workers.worker(shop.service)
    remembered = await one.takes(an_order(sku="tea"))
    if old:
        await other.takes(an_order(sku="rum"))
    shop.called.clear()
    shop.fails, reads = 1, workers.watched.reads
    turn = one.begun(an_order(), one.message(an_order(sku="gin")), known=remembered)
    turn = await MessageProcessor(one.participant).process(turn)
    return one, turn, workers.watched.reads - reads


async def test_in_place_it_counts_after_a_read_that_finds_the_same(tmp_path: Path) -> None:
    shop = Shop(IN_PLACE)
    async with place(tmp_path) as workers:
        worker, _, reads = await fails_once(shop, workers, old=False)
        assert (shop.called, reads) == (["gin", "gin"], 1), "nor is it read again during the pause"
        assert [m.attempt for m in worker.moments if isinstance(m, Retrying)] == [1]
        last = (await worker.history())[-1]
        assert (last.outcome, last.attempt, len(last.failures)) == ("handled", 2, 1)


async def test_in_place_it_does_not_count_on_one_that_is_old(tmp_path: Path) -> None:
    shop = Shop(IN_PLACE)
    async with place(tmp_path) as workers:
        worker, _, reads = await fails_once(shop, workers, old=True)
        assert (shop.called, reads) == (["gin", "gin"], 1)
        assert not [m for m in worker.moments if isinstance(m, Retrying)]
        last = (await worker.history())[-1]
        assert (last.outcome, last.attempt, last.failures) == ("handled", 1, ())


async def test_a_parked_failure_counts_without_a_read_of_the_progress(tmp_path: Path) -> None:
    shop = Shop(PARKS)
    async with place(tmp_path) as workers:
        worker, _, reads = await fails_once(shop, workers, old=False)
        assert (shop.called, reads) == (["gin"], 0)
        last = (await worker.history())[-1]
        assert (last.outcome, last.attempt, len(last.failures)) == ("retrying", 1, 1)


async def test_a_failure_whose_parking_is_refused_does_not_count(tmp_path: Path) -> None:
    shop = Shop(PARKS)
    async with place(tmp_path) as workers:
        worker, _, reads = await fails_once(shop, workers, old=True)
        assert (shop.called, reads) == (["gin", "gin"], 1)
        assert [(e.outcome, e.attempt) for e in await worker.history()] == [("handled", 1)] * 3
        assert not (await worker.progress()).queue


@pytest.mark.parametrize("old", [True, False])
async def test_the_last_attempt_is_a_dead_letter_only_if_it_counts(tmp_path: Path, old: bool) -> None:
    shop = Shop(Retry(attempts_max=1))
    async with place(tmp_path) as workers:
        worker, _, _ = await fails_once(shop, workers, old=old)
        assert shop.called == (["gin", "gin"] if old else ["gin"])
        assert len(worker.dead) == (0 if old else 1)
        assert not [m for m in worker.moments if isinstance(m, Parked)]


async def test_the_first_message_of_a_saga_counts_if_the_store_has_nothing(tmp_path: Path) -> None:
    shop = Shop(IN_PLACE)
    async with place(tmp_path) as workers:
        worker = await workers.worker(shop.service)
        await worker.takes(an_order("order-9"))  # by now it knows what people have switched
        shop.called.clear()
        shop.fails, reads = 1, workers.watched.reads
        await worker.takes(an_order(sku="gin"))
        assert (shop.called, workers.watched.reads - reads) == (["gin", "gin"], 1)
        assert [entry.attempt for entry in await worker.history()] == [2]
