"""Bugs planted in the runtime, one each: what the simulation must find.

Those of a rule of docs/concepts/protocol.md are functions of `tests/exploration/test_rules.py`; the others are here.
"""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from textwrap import dedent
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace

from saga.engine.consumer import keyed_executor
from saga.engine.consumer.delivery import MessageDelivery
from saga.engine.consumer.keyed_executor import KeyedExecutor, WorkItem
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.consumer.partition_listener import PartitionListener
from saga.engine.execution import document_updates, message_processor
from saga.engine.execution.saga_context import SagaContext
from saga.engine.persistence import outbox
from saga.engine.persistence.progress_repository import ProgressRepository
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.messages import Message
from saga.messaging.operator_commands import OperatorCommand
from saga.progress import compensation, decisions, failed_attempts, ids, journal, next_action, operator_commands
from saga.progress.actions import HandlerAction
from saga.progress.document import (
    CompensableResult,
    Intent,
    PendingMessage,
    SagaProgress,
    StepRecord,
    decode_transition,
)
from saga.progress.failed_attempts import RunFailure
from saga.progress.handlers import HandlerRole, HandlerRoles
from saga.progress.journal import Commit, TransitionDetails, WriteContext
from saga.support.clock import iso

Plant: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def rewrite_source(patch: pytest.MonkeyPatch, where: ModuleType | type, name: str, before: str, after: str) -> None:
    """Replace a function by itself with one place of its source changed."""
    function: FunctionType = getattr(where, name)
    source = dedent(inspect.getsource(function))
    assert source.count(before) == 1, f"{name} has not one {before!r}: the mutant has to follow the code"
    made: dict[str, Any] = {}
    exec(compile(source.replace(before, after), f"<mutant of {name}>", "exec"), function.__globals__, made)
    patch.setattr(where, name, made[name])


# -------------------------------------------------------------------- offsets, lanes, partitions

_hand: ContextVar[WorkItem] = ContextVar("hand")
_lanes: ContextVar[KeyedExecutor] = ContextVar("lanes")


def commits_before_publishing(patch: pytest.MonkeyPatch) -> None:
    begun, deliver, publish, finished = (
        KeyedExecutor._run,
        MessageDelivery.deliver,
        ProgressRepository.publish,
        OffsetTracker.finish,
    )

    async def run(self: KeyedExecutor, saga: str, lane: Any) -> None:
        _lanes.set(self)
        await begun(self, saga, lane)

    async def delivered(self: MessageDelivery, item: WorkItem) -> bool:
        _hand.set(item)
        return await deliver(self, item)

    async def after_committing(
        repository: ProgressRepository, turn: ProcessingState, p: SagaProgress, *entry: Any
    ) -> None:
        item = _hand.get()
        _lanes.get().finish(item.tracker, item.position.offset)
        await publish(repository, turn, p, *entry)

    def once(self: OffsetTracker, offset: int) -> None:
        if offset in self.taken:
            finished(self, offset)

    patch.setattr(KeyedExecutor, "_run", run)
    patch.setattr(MessageDelivery, "deliver", delivered)
    patch.setattr(ProgressRepository, "publish", after_committing)
    patch.setattr(OffsetTracker, "finish", once)


def offsets_are_committed_past_gaps(patch: pytest.MonkeyPatch) -> None:
    def furthest(self: OffsetTracker) -> int | None:
        done = [offset for offset, finished in self.taken.items() if finished]
        return max(done) + 1 if done and max(done) + 1 > self._committed else None

    patch.setattr(OffsetTracker, "offset_to_commit", furthest)


def messages_of_one_saga_run_concurrently(patch: pytest.MonkeyPatch) -> None:
    rewrite_source(
        patch, keyed_executor.KeyedExecutor, "add", "item.message.saga", 'f"{item.message.saga} {item.position.offset}"'
    )


def a_lost_partition_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionListener, "on_lost", lambda self, partitions: None)


def an_abandoned_message_counts_as_finished(patch: pytest.MonkeyPatch) -> None:
    rewrite_source(patch, keyed_executor.KeyedExecutor, "_run", "if finished:", "if finished or True:")


# -------------------------------------------------------------------- publishing


def a_write_marks_its_own_events_as_published(patch: pytest.MonkeyPatch) -> None:
    rewrite_source(patch, journal, "append_transition", "published=p.n,", "published=p.n + 1,")


def nothing_is_marked_as_published(patch: pytest.MonkeyPatch) -> None:
    rewrite_source(patch, journal, "append_transition", "published=p.n,", "published=0,")
    rewrite_source(patch, journal, "open_intent", "published=p.n,", "published=0,")


def events_go_out_in_any_order(patch: pytest.MonkeyPatch) -> None:
    records_of = outbox.outbox_records
    patch.setattr(outbox, "outbox_records", lambda service, p, entry: list(records_of(service, p, entry))[::-1])


def republished_events_have_another_time(patch: pytest.MonkeyPatch) -> None:
    real = outbox.outbox_records

    def records_of(service: ServiceRuntime, p: SagaProgress, entry: Any) -> Any:
        return real(service, p, replace(entry, time=iso(service.ports.clock.now_ms())))

    patch.setattr(outbox, "outbox_records", records_of)


# -------------------------------------------------------------------- the write


def progresses_are_written_without_compare_and_swap(patch: pytest.MonkeyPatch) -> None:
    rewrite_source(
        patch,
        ProgressRepository,
        "write_progress",
        "if state.cas:",
        "there = await store.get(PROGRESS, where)\n        if there is not None:\n"
        "            work = store.replace(PROGRESS, where, content, cas=there.cas, expiry_s=expiry_s)\n"
        "        elif state.cas:",
    )


# -------------------------------------------------------------------- ids and intents


def keys_from_attempts(patch: pytest.MonkeyPatch) -> None:
    def key(self: SagaContext, name: str) -> str:
        made = ids.idempotency_key(
            name, self.service.name, self.processing.message.saga, self.handler.name, self.intent.cause
        )
        return f"{made}-{self.processing.attempts_of(self.run)}"

    patch.setattr(SagaContext, "idempotency_key", key)


def keys_without_their_cause(patch: pytest.MonkeyPatch) -> None:
    def key(self: SagaContext, name: str) -> str:
        return ids.idempotency_key(name, self.service.name, self.processing.message.saga, self.handler.name, "")

    patch.setattr(SagaContext, "idempotency_key", key)


def markers_from_the_time(patch: pytest.MonkeyPatch) -> None:
    marker = SagaContext.marker
    patch.setattr(SagaContext, "marker", lambda self, call: f"{marker(self, call)}-{self.service.ports.clock.now_ms()}")


def a_step_begins_without_an_intent(patch: pytest.MonkeyPatch) -> None:
    begin = SagaContext._begin

    async def begun(self: SagaContext, asked: StepRecord) -> None:
        if asked.kind == "update":
            await begin(self, asked)

    patch.setattr(SagaContext, "_begin", begun)


def step_results_are_kept_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    begun = journal.open_intent

    def without(p: SagaProgress, write_context: WriteContext, intent: Intent) -> Commit:
        return begun(p, write_context, replace(intent, calls=(), begins=None))

    patch.setattr(journal, "open_intent", without)


# -------------------------------------------------------------------- decisions and what they record


def queued_messages_are_put_in_front(patch: pytest.MonkeyPatch) -> None:
    rewrite_source(
        patch,
        journal,
        "enqueue_message",
        "(*remove_messages(p.queue, role.name, [message.id]), pending)",
        "(pending, *remove_messages(p.queue, role.name, [message.id]))",
    )


def a_second_failure_event_counts_as_other_content(patch: pytest.MonkeyPatch) -> None:
    rewrite_source(
        patch,
        decisions,
        "_decide_repetition",
        "is_another = type_ == message.type and schema == message.schema and content != mine",
        "is_another = content != mine",
    )


def the_inbox_is_trimmed_by_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal, "_trim_inbox", lambda p, write_context: dict(list(p.inbox.items())[-journal.INBOX_MAX :]))


def a_pending_message_is_dropped(patch: pytest.MonkeyPatch) -> None:
    def waiting(
        p: SagaProgress, write_context: WriteContext, role: HandlerRole, message: Message, reason: str
    ) -> Commit:
        return journal.ignore_message(p, write_context, role, message, reason)

    patch.setattr(journal, "keep_pending", waiting)


# -------------------------------------------------------------------- compensation


def a_result_is_undone_twice(patch: pytest.MonkeyPatch) -> None:
    undone = compensation.complete_compensation

    def again(
        p: SagaProgress,
        write_context: WriteContext,
        role: HandlerRole,
        result: CompensableResult,
        ended: TransitionDetails,
    ) -> Commit:
        written = undone(p, write_context, role, result, ended)
        if any(decode_transition(raw).cause == result.event.id for raw in p.transitions):
            return written
        rewound = replace(written.snapshot, results=p.results, closed=p.closed, compensating=p.compensating)
        return Commit(replace(rewound, inbox=p.inbox), written.entry)

    patch.setattr(message_processor, "complete_compensation", again)


def results_are_undone_oldest_first(patch: pytest.MonkeyPatch) -> None:
    rewrite_source(patch, decisions, "find_newest_result", "reversed(p.results)", "p.results")


# -------------------------------------------------------------------- dead letters


def dead_letters_are_not_published(patch: pytest.MonkeyPatch) -> None:
    records_of = outbox.outbox_records
    patch.setattr(
        outbox,
        "outbox_records",
        lambda service, p, entry: records_of(service, p, replace(entry, letters=())),
    )


def a_dead_letter_blocks_no_other_message(patch: pytest.MonkeyPatch) -> None:
    def blocked(p: SagaProgress, handler: str, message: Message) -> bool:
        return any(not decisions.is_dead_letter(p, intent) for intent in p.intents)

    patch.setattr(decisions, "is_blocked", blocked)


def a_dead_letter_is_dropped(patch: pytest.MonkeyPatch) -> None:
    def dead(
        p: SagaProgress, write_context: WriteContext, action: HandlerAction, failure: RunFailure, intent: Intent | None
    ) -> Commit:
        return journal.ignore_message(p, write_context, action.role, action.message, failure.reason)

    patch.setattr(failed_attempts, "give_up", dead)


# -------------------------------------------------------------------- documents


def updates_leave_no_marker(patch: pytest.MonkeyPatch) -> None:
    rewrite_source(patch, document_updates, "apply_together", ", **new}", "}")


def documents_are_written_without_compare_and_swap(patch: pytest.MonkeyPatch) -> None:
    rewrite_source(
        patch,
        document_updates,
        "_put",
        "if document is None:",
        "there = await store.get(collection, key)\n        if there is not None:\n"
        "            return await store.replace(collection, key, content, cas=there.cas, keep_expiry=True)\n"
        "        if document is None:",
    )


# -------------------------------------------------------------------- expected survivors


def a_revoked_partition_is_kept(patch: pytest.MonkeyPatch) -> None:
    """Survives: a rebalance waits for no run. A worker that continues with what it no longer has is refused by the
    compare-and-swap, and its commits by the group; letting go at once only saves work that others do, too.
    """

    async def on_revoked(self: PartitionListener, partitions: Any) -> None:
        return None

    patch.setattr(PartitionListener, "on_revoked", on_revoked)


def decisions_without_a_write_trust_the_cache(patch: pytest.MonkeyPatch) -> None:
    """Survives, as it does the exploration. An old cache can make a turn end only with "it is in the inbox" or "it is
    kept already". Inbox entries do not go away. And what is kept is made ready by a write alone, whose message is not
    committed before whatever it made ready is done: if its worker dies, that message comes back, and is either new to
    the cache of its next worker, so that a write is refused, or leads to one that reads. The rule stands guard over
    two others, line 1a and settling, and costs a read.
    """
    rewrite_source(patch, next_action, "choose_next_action", "if certain or only_had else RELOAD", "")
    patch.setattr(message_processor, "choose_next_action", next_action.choose_next_action)


def the_cache_outlives_a_rebalance(patch: pytest.MonkeyPatch) -> None:
    """Survives: what is in a cache may be old at any time, as another worker may have another topic of the same saga.
    A write on it is refused, and what ends without a write is decided again. Clearing it only saves refused writes.
    """
    for way in ("on_revoked", "on_lost"):
        rewrite_source(patch, PartitionListener, way, "self.cache.clear()", "pass")


def both_trust_an_old_cache(patch: pytest.MonkeyPatch) -> None:
    """The two above, together. Played for 400 seeds of each restless scenario, with the topics of a saga shared out to
    different workers, so that caches do get old: nothing was lost.
    """
    decisions_without_a_write_trust_the_cache(patch)
    the_cache_outlives_a_rebalance(patch)


# -------------------------------------------------------------------- commands


def a_second_replay_counts_as_a_duplicate(patch: pytest.MonkeyPatch) -> None:
    """Execute a command to one saga once."""
    decide = operator_commands.decide_command

    def once(p: SagaProgress, roles: HandlerRoles, command: OperatorCommand) -> Any:
        return None if p.replays else decide(p, roles, command)

    patch.setattr(operator_commands, "decide_command", once)


def a_replay_takes_the_message_out_of_the_queue(patch: pytest.MonkeyPatch) -> None:
    """It counts on the message to come again."""
    replayed = operator_commands._apply_replay

    def forgotten(
        p: SagaProgress, write_context: WriteContext, command: OperatorCommand, kept: PendingMessage
    ) -> Commit:
        return replayed(replace(p, queue=tuple(k for k in p.queue if k is not kept)), write_context, command, kept)

    patch.setattr(operator_commands, "_apply_replay", forgotten)
