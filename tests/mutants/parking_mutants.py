"""Bugs planted in parking, one each: runs that are lost, multiplied, out of order or forgotten while they wait for
their next attempt."""

from contextvars import ContextVar
from typing import Any

import pytest
from msgspec.structs import replace

from saga.engine.consumer import timers
from saga.engine.consumer.delivery import MessageDelivery
from saga.engine.consumer.keyed_executor import KeyedExecutor, WorkItem
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.consumer.timers import TimerBuffer
from saga.engine.persistence.progress_repository import ProgressRepository
from saga.messages import Record
from saga.messaging.timers import TimerTier
from saga.policies.retry import parks
from saga.progress import decisions, failed_attempts, history, journal
from saga.progress.document import PendingMessage, SagaProgress
from tests.mutants.runtime_mutants import rewrite_source

_lanes: ContextVar[KeyedExecutor] = ContextVar("lanes")
MEMORY_S = 2.0
"""Pause of what is parked in memory only."""


def finished_once(patch: pytest.MonkeyPatch) -> None:
    finished = OffsetTracker.finish

    def once(self: OffsetTracker, offset: int) -> None:
        if offset in self.taken:
            finished(self, offset)

    patch.setattr(OffsetTracker, "finish", once)


def timers_are_finished_when_they_are_buffered(patch: pytest.MonkeyPatch) -> None:
    """Their offsets are committed, and a worker that dies holds them no more."""
    add = TimerBuffer.add

    def added(self: TimerBuffer, item: WorkItem, taken: Record, tier: TimerTier) -> None:
        add(self, item, taken, tier)
        self.executor.finish(item.tracker, item.position.offset)

    finished_once(patch)
    patch.setattr(TimerBuffer, "add", added)


def timers_are_not_published(patch: pytest.MonkeyPatch) -> None:
    rewrite_source(patch, ProgressRepository, "publish", " and entry.timer.id != state.message.id", " and False")


def timers_of_a_dead_worker_are_not_published_again(patch: pytest.MonkeyPatch) -> None:
    rewrite_source(
        patch, history, "find_unpublished", " or (entry.timer is not None and entry.timer.id != current)", ""
    )


def copies_of_a_timer_are_forwarded_too(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timers, "_name", lambda item: (item.message.saga, str(item.position)))


def a_parked_run_moves_to_the_end(patch: pytest.MonkeyPatch) -> None:
    def behind(p: SagaProgress, kept: PendingMessage) -> SagaProgress:
        name, gone = kept.handler, [kept.message.id]
        queue, waiting = journal.remove_messages(p.queue, name, gone), journal.remove_messages(p.waiting, name, gone)
        return replace(p, queue=(*queue, kept), waiting=waiting)

    patch.setattr(failed_attempts, "_move_to_head", behind)


def a_parked_run_blocks_no_later_message(patch: pytest.MonkeyPatch) -> None:
    real = decisions.is_blocked

    def blocked(p: SagaProgress, handler: str, message: Any) -> bool:
        parked = {k.message.id for k in p.queue if k.due_ms}
        queue = tuple(k for k in p.queue if not k.due_ms)
        intents = tuple(i for i in p.intents if i.message.id not in parked)
        return real(replace(p, queue=queue, intents=intents), handler, message)

    patch.setattr(decisions, "is_blocked", blocked)


def attempts_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    rewrite_source(
        patch, failed_attempts, "count_failures_before", "return pending.attempts, pending.under", "return 0, {}"
    )


class _Later(BaseException):
    """Raised through a turn whose message is parked in memory."""


def parked_runs_are_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    """Its offset is committed, and the worker that parked it comes back to it, if it lives."""
    deliver, run = MessageDelivery.deliver, KeyedExecutor._run

    def leaves(*asked: Any) -> bool:
        if parks(*asked):
            raise _Later
        return False

    async def ran(self: KeyedExecutor, saga: str, lane: Any) -> None:
        _lanes.set(self)
        await run(self, saga, lane)

    async def delivered(self: MessageDelivery, item: WorkItem) -> bool:
        lanes = _lanes.get()

        async def again() -> None:
            await self.service.ports.clock.sleep(MEMORY_S)
            lanes.add(WorkItem(item.message, item.position, item.tracker, item.received_s))

        try:
            return await deliver(self, item)
        except _Later:
            lanes.tasks.create_task(again())
            return True

    finished_once(patch)
    patch.setattr(failed_attempts, "parks", leaves)
    patch.setattr(KeyedExecutor, "_run", ran)
    patch.setattr(MessageDelivery, "deliver", delivered)
