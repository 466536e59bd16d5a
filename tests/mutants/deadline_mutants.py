"""Bugs planted in deadlines, one each."""

from contextvars import ContextVar
from typing import Any

import pytest
from msgspec.structs import replace

from saga.engine.consumer.delivery import MessageDelivery
from saga.engine.consumer.keyed_executor import KeyedExecutor, WorkItem
from saga.engine.persistence.progress_repository import ProgressRepository
from saga.engine.processing_state import ProcessingState
from saga.progress import timers
from saga.progress.document import SagaProgress
from saga.progress.journal import Commit
from tests.mutants.parking_mutants import finished_once

_hand: ContextVar[WorkItem] = ContextVar("hand")
_lanes: ContextVar[KeyedExecutor] = ContextVar("lanes")


def deadlines_are_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    """No wake is named for them: the worker that opens one comes back to it at its time, if it lives."""
    waits_for_time, save = timers.find_timed_work, ProgressRepository.write_progress
    run, deliver = KeyedExecutor._run, MessageDelivery.deliver

    def others(p: SagaProgress) -> frozenset[tuple[str, str, int]]:
        return waits_for_time(replace(p, deadlines=()) if p.deadlines else p)

    async def saved(repository: ProgressRepository, turn: ProcessingState, written: Commit) -> ProcessingState:
        known = () if turn.progress is None else turn.progress.deadlines
        after = await save(repository, turn, written)
        lanes, item, clock = _lanes.get(), _hand.get(), repository.service.ports.clock

        async def again(due_ms: int) -> None:
            await clock.sleep(max(0, due_ms - clock.now_ms()) / 1000)
            lanes.add(WorkItem(item.message, item.position, item.tracker, item.received_s))

        for opened in written.snapshot.deadlines:
            if opened not in known:
                lanes.tasks.create_task(again(opened.due_ms))
        return after

    async def ran(self: KeyedExecutor, saga: str, lane: Any) -> None:
        _lanes.set(self)
        await run(self, saga, lane)

    async def delivered(self: MessageDelivery, item: WorkItem) -> bool:
        _hand.set(item)
        return await deliver(self, item)

    finished_once(patch)
    patch.setattr(timers, "find_timed_work", others)
    patch.setattr(ProgressRepository, "write_progress", saved)
    patch.setattr(KeyedExecutor, "_run", ran)
    patch.setattr(MessageDelivery, "deliver", delivered)
