"""Each rule of docs/concepts/protocol.md prevents a loss: with the rule patched out, the exploration finds it."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from saga.engine.errors import Superseded
from saga.engine.execution import document_updates, message_processor
from saga.engine.execution.saga_context import SagaContext
from saga.engine.persistence import outbox, progress_repository
from saga.engine.persistence.overflow_store import OverflowStore
from saga.engine.persistence.progress_repository import ProgressRepository
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import Ambiguous, BrokerUnavailable
from saga.messages import Message, Outgoing, Position
from saga.progress import compensation, decisions, history, journal, next_action, overflow
from saga.progress.actions import CloseHandler, Compensate, CompensationDecision
from saga.progress.document import CompensableResult, Intent, IntentKind, SagaProgress, Transition, progress_key
from saga.progress.handlers import HandlerRole
from saga.progress.journal import Commit, TransitionDetails, WriteContext
from saga.progress.overflow import OverflowContext
from tests.exploration.without_a_rule import Take, check_loss
from verification.services import message
from verification.state import TOPICS, Move, State
from verification.state_space import StateSpace


def keys_from_transition_numbers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SagaContext, "idempotency_key", lambda self, name: f"{name}-{self.processing.loaded_progress.n}")


def readers_do_not_publish(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(history, "find_unpublished", lambda p, is_committed, in_hand: ())


def events_that_another_message_publishes_count_as_published(patch: pytest.MonkeyPatch) -> None:
    load = ProgressRepository.load

    async def loaded(repository: ProgressRepository, turn: ProcessingState) -> ProcessingState:
        return replace(await load(repository, turn), unpublished=())

    patch.setattr(ProgressRepository, "load", loaded)


def a_progress_with_unpublished_events_is_cached(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProcessingState, "is_cacheable", property(lambda turn: turn.cas > 0))


def unpublished_events_are_left_to_a_message_that_never_comes(patch: pytest.MonkeyPatch) -> None:
    elsewhere = ProgressRepository._will_be_redelivered

    def left(repository: ProgressRepository, turn: ProcessingState, entry: Transition) -> bool:
        return entry.position is None or elsewhere(repository, turn, entry)

    patch.setattr(ProgressRepository, "_will_be_redelivered", left)


def no_intent(patch: pytest.MonkeyPatch) -> None:
    async def begin(self: SagaContext, asked: Any) -> None:
        return None

    patch.setattr(SagaContext, "_begin", begin)


def an_open_intent_blocks_no_other_message(patch: pytest.MonkeyPatch) -> None:
    blocked = decisions.is_blocked
    patch.setattr(decisions, "is_blocked", lambda p, handler, m: blocked(replace(p, intents=()), handler, m))


def a_dead_letter_blocks_no_other_message(patch: pytest.MonkeyPatch) -> None:
    blocked = decisions.is_blocked
    patch.setattr(
        decisions,
        "is_blocked",
        lambda p, handler, m: blocked(replace(p, queue=tuple(k for k in p.queue if k.dead is None)), handler, m),
    )


def a_rerun_writes_the_whole_state_back(patch: pytest.MonkeyPatch) -> None:
    delta = SagaContext.changed_state
    patch.setattr(SagaContext, "changed_state", lambda self: {**self.intent.state, **delta(self)})


def a_rerun_sees_the_current_state(patch: pytest.MonkeyPatch) -> None:
    init = SagaContext.__init__

    def look(self: Any, repository: Any, turn: ProcessingState, request: Any, intent: Any, codec: Any) -> None:
        codec.state = turn.loaded_progress.state
        init(self, repository, turn, request, replace(intent, state=codec.state), codec)

    patch.setattr(SagaContext, "__init__", look)


def compensations_close_nothing(patch: pytest.MonkeyPatch) -> None:
    close = compensation._close_handler

    def leave_open(p: SagaProgress, write_context: WriteContext, role: HandlerRole, outcome: Message) -> Any:
        after, letters = close(p, write_context, role, outcome)
        return replace(after, closed=p.closed, failed=p.failed), letters

    patch.setattr(compensation, "_close_handler", leave_open)


def a_second_outcome(patch: pytest.MonkeyPatch) -> None:
    emitted = journal.apply_emitted_events
    patch.setattr(
        journal, "apply_emitted_events", lambda p, roles, events: replace(emitted(p, roles, events), outcome=None)
    )


def handlers_run_for_every_message(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decisions, "_decide_repetition", lambda p, role, index, m: None)


def a_removal_counts_as_the_first_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decisions, "is_removal", lambda identity: False)


def nothing_is_settled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(next_action, "find_next_ready", lambda *asked: None)


def compensations_do_not_wait_for_originals(patch: pytest.MonkeyPatch) -> None:
    def at_once(p: SagaProgress, role: HandlerRole, outcome: Message) -> CompensationDecision:
        if any(result.handler == role.name for result in p.results):
            return Compensate(role, outcome, decisions.find_newest_result(p, role.name))
        return CloseHandler(role, outcome)

    patch.setattr(decisions, "decide_compensation", at_once)


def originals_are_not_dropped(patch: pytest.MonkeyPatch) -> None:
    close = compensation._close_handler

    def keep(p: SagaProgress, write_context: WriteContext, role: HandlerRole, outcome: Message) -> Any:
        after, letters = close(p, write_context, role, outcome)
        return replace(after, queue=p.queue, waiting=p.waiting), letters

    patch.setattr(compensation, "_close_handler", keep)


def self_consumed_events_are_no_parts(patch: pytest.MonkeyPatch) -> None:
    emitted = journal.apply_emitted_events
    patch.setattr(
        journal, "apply_emitted_events", lambda p, roles, events: replace(emitted(p, roles, events), self_consumed=())
    )


def self_consumed_parts_are_not_withdrawn(patch: pytest.MonkeyPatch) -> None:
    undone = compensation.complete_compensation

    def keep(
        p: SagaProgress,
        write_context: WriteContext,
        role: HandlerRole,
        result: CompensableResult,
        ended: TransitionDetails,
    ) -> Commit:
        written = undone(p, write_context, role, result, ended)
        return Commit(replace(written.snapshot, self_consumed=p.self_consumed), written.entry)

    patch.setattr(message_processor, "complete_compensation", keep)


def failed_runs_of_a_withdrawn_event_run_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compensation, "_drop_withdrawn_runs", lambda p, write_context, withdrawn, ended: (p, ended))


def only_the_newest_result_is_undone(patch: pytest.MonkeyPatch) -> None:
    undone = compensation.complete_compensation

    def forget(
        p: SagaProgress,
        write_context: WriteContext,
        role: HandlerRole,
        result: CompensableResult,
        ended: TransitionDetails,
    ) -> Commit:
        others = tuple(r for r in p.results if r is result or r.handler != role.name)
        return undone(replace(p, results=others), write_context, role, result, ended)

    patch.setattr(message_processor, "complete_compensation", forget)


def updates_do_not_look_at_the_progress(patch: pytest.MonkeyPatch) -> None:
    async def stands(*_: Any) -> bool:
        return True

    patch.setattr(document_updates, "_is_open", stands)


def refusals_leave_no_marker(patch: pytest.MonkeyPatch) -> None:
    encode, put = document_updates._encode_document, document_updates._put

    def encode_changes(document: Any, body: Any, head: Any) -> bytes:
        return b"" if body is None else encode(document, body, head)

    async def skip(service: Any, position: Any, collection: str, key: str, document: Any, content: bytes) -> bool:
        if not content:
            return True
        return await put(service, position, collection, key, document, content)

    patch.setattr(document_updates, "_encode_document", encode_changes)
    patch.setattr(document_updates, "_put", skip)


def an_ended_intent_leaves_no_never_marker(patch: pytest.MonkeyPatch) -> None:
    async def look(
        service: ServiceRuntime, position: Position, collection: str, key: str, marker: str, mark: Any
    ) -> Any:
        document = await service.ports.store.get(collection, key)
        return document_updates._decode_head(collection, key, document).markers.get(marker, mark)

    patch.setattr(document_updates, "withdraw", look)


def every_transition_records_its_position(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(progress_repository, "is_message_known", lambda p, roles, m: False)


def open_intents_are_not_settled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decisions, "_find_resumable", lambda p, roles, intent, now_ms: None)


def a_pending_message_is_decided_again_when_it_is_redelivered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decisions, "is_pending", lambda p, handler, m: False)


def an_abort_takes_over_all_messages_of_its_handler(patch: pytest.MonkeyPatch) -> None:
    intent_with = decisions.find_intent

    def any_of(p: SagaProgress, handler: str, m: Message, kind: IntentKind = "do") -> Intent | None:
        if kind == "lieu":
            return next((i for i in p.intents if i.kind == kind and i.handler == handler), None)
        return intent_with(p, handler, m)

    patch.setattr(decisions, "find_intent", any_of)


def a_later_message_overtakes_pending_ones(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decisions, "is_other_message_first", lambda p, role, m: False)


def a_failed_send_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    async def send(service: ServiceRuntime, position: Position, outgoing: Sequence[Outgoing]) -> None:
        try:
            await service.ports.publisher.publish(outgoing)
        except BrokerUnavailable:
            return

    patch.setattr(outbox, "send", send)


def an_ambiguous_write_counts_as_successful(patch: pytest.MonkeyPatch) -> None:
    save = ProgressRepository.write_progress

    async def believe(repository: ProgressRepository, turn: ProcessingState, written: Commit) -> ProcessingState:
        try:
            return await save(repository, turn, written)
        except Superseded as why:
            if not isinstance(why.__cause__, Ambiguous):
                raise
            return replace(turn, progress=written.snapshot, is_current=True)

    patch.setattr(ProgressRepository, "write_progress", believe)


def an_ambiguous_write_is_overwritten(patch: pytest.MonkeyPatch) -> None:
    save = ProgressRepository.write_progress

    async def insist(repository: ProgressRepository, turn: ProcessingState, written: Commit) -> ProcessingState:
        try:
            return await save(repository, turn, written)
        except Superseded as why:
            if not isinstance(why.__cause__, Ambiguous):
                raise
            service = repository.service
            key = progress_key(service.name, turn.message.saga)
            there = await service.ports.store.get("saga", key)
            return await save(repository, replace(turn, cas=there.cas if there else 0, is_current=True), written)

    patch.setattr(ProgressRepository, "write_progress", insist)


def segments_are_not_searched(patch: pytest.MonkeyPatch) -> None:
    async def recalled(repository: OverflowStore, turn: ProcessingState) -> ProcessingState:
        return replace(turn, recalled={}, paged=())

    patch.setattr(OverflowStore, "recall", recalled)


def segments_are_named_by_numbers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(overflow, "digest_content", lambda content: "")


def a_segment_with_an_ambiguous_write_counts_as_written(patch: pytest.MonkeyPatch) -> None:
    inserted = OverflowStore._insert_segment

    async def believe(*args: Any, **rest: Any) -> None:
        try:
            await inserted(*args, **rest)
        except Superseded:
            return

    patch.setattr(OverflowStore, "_insert_segment", believe)


def inbox_entries_of_the_current_message_move_to_segments(patch: pytest.MonkeyPatch) -> None:
    move, other = overflow.move_inbox_entries, message("-", "-")

    def move_all(p: SagaProgress, context: OverflowContext, merged: Any) -> Any:
        return move(p, dataclasses.replace(context, message=other), merged)

    patch.setattr(overflow, "move_inbox_entries", move_all)


def inbox_entries_of_kept_messages_move_to_segments(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal, "iterate_messages", lambda p: ())


def messages_in_segments_are_decided_again(patch: pytest.MonkeyPatch) -> None:
    recalled = OverflowStore.recall

    async def forget(repository: OverflowStore, turn: ProcessingState) -> ProcessingState:
        return replace(await recalled(repository, turn), paged=())

    patch.setattr(OverflowStore, "recall", forget)


def segments_are_not_restored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(overflow.Messages, "find_segment_to_restore", lambda *args: None)


def segments_are_restored_behind_later_messages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(overflow, "_sort_items", tuple)


def segments_are_removed_before_the_progress_is_written(patch: pytest.MonkeyPatch) -> None:
    within = OverflowStore.move_overflow

    async def hasty(repository: OverflowStore, turn: ProcessingState, p: SagaProgress) -> Any:
        p, emptied = await within(repository, turn, p)
        await repository.remove_segments(emptied)
        return p, ()

    patch.setattr(OverflowStore, "move_overflow", hasty)


def the_current_message_moves_to_a_segment(patch: pytest.MonkeyPatch) -> None:
    find, other = overflow.Messages.find_tails, message("-", "-")

    def find_all(kind: overflow.Messages, p: SagaProgress, context: OverflowContext) -> Any:
        return find(kind, p, dataclasses.replace(context, message=other))

    patch.setattr(overflow.Messages, "find_tails", find_all)


def a_rebalance_cancels_running_handlers(patch: pytest.MonkeyPatch) -> None:
    rebalances = StateSpace._rebalances

    def ended(self: StateSpace, s: State) -> Iterator[Move]:
        for what, moved in rebalances(self, s):
            (t,) = [t for t, owner in enumerate(s.owner) if moved.owner[t] != owner]
            old = moved.workers[s.owner[t]]
            if old.turn >= 0 and self._turns[old.turn].turn.position.topic == TOPICS[t]:
                moved = moved.with_worker(s.owner[t], old._replace(turn=-1, history=(), cache=0, content=0))
            yield what, moved

    patch.setattr(StateSpace, "_rebalances", ended)


RULES: dict[Take, str] = {
    a_rebalance_cancels_running_handlers: "a slow handler: its partition goes and comes back",
    keys_from_transition_numbers: "two steps: a step fails",
    readers_do_not_publish: "two steps: a step fails",
    events_that_another_message_publishes_count_as_published: "later: the event comes alone",
    a_progress_with_unpublished_events_is_cached: "a part that one handler cannot decode",
    unpublished_events_are_left_to_a_message_that_never_comes: "a settle chain of three",
    no_intent: "two steps: a step fails",
    an_open_intent_blocks_no_other_message: "two kinds of failure: by a step",
    a_dead_letter_blocks_no_other_message: "a dead letter without an intent",
    a_rerun_writes_the_whole_state_back: "the outcome: two handlers undone",
    a_rerun_sees_the_current_state: "the outcome: two handlers undone",
    compensations_close_nothing: "the outcome: two handlers undone",
    a_second_outcome: "the decider's race: crash",
    handlers_run_for_every_message: "a repetition with equal content",
    a_removal_counts_as_the_first_change: "a document removed, and made again",
    nothing_is_settled: "two steps: a step fails",
    compensations_do_not_wait_for_originals: "the outcome, at any time: a step fails, zombie",
    originals_are_not_dropped: "the outcome: two handlers undone",
    self_consumed_events_are_no_parts: "a settle chain of three",
    self_consumed_parts_are_not_withdrawn: "the outcome: an own part withdrawn",
    failed_runs_of_a_withdrawn_event_run_again: "parked: on an own event that is withdrawn meanwhile",
    only_the_newest_result_is_undone: "many: a step fails",
    updates_do_not_look_at_the_progress: "an update, its marker pruned",
    refusals_leave_no_marker: "an update refused while another saga gives",
    an_ended_intent_leaves_no_never_marker: "a dead update, a zombie inside it",
    every_transition_records_its_position: "a zombie settles a chain",
    open_intents_are_not_settled: "a step on an own event fails",
    a_pending_message_is_decided_again_when_it_is_redelivered: "two steps: a step fails",
    an_abort_takes_over_all_messages_of_its_handler: "a dead letter of many, two owners",
    a_later_message_overtakes_pending_ones: "a fan-in of many with an own part, two owners",
    a_failed_send_is_forgotten: "a step fails, lost answers",
    an_ambiguous_write_counts_as_successful: "a step fails, lost answers",
    an_ambiguous_write_is_overwritten: "two steps: lost answers",
    segments_are_not_searched: "inbox pages: duplicates, crash, rebalance",
    segments_are_named_by_numbers: "inbox pages: two put aside different entries",
    a_segment_with_an_ambiguous_write_counts_as_written: "inbox pages: lost answers",
    inbox_entries_of_the_current_message_move_to_segments: "inbox pages: two owners",
    inbox_entries_of_kept_messages_move_to_segments: "inbox pages: an own event for two",
    messages_in_segments_are_decided_again: "queue pages: a dead letter that the outcome drops, crash",
    segments_are_not_restored: "queue pages: a dead letter that the outcome drops, crash",
    segments_are_restored_behind_later_messages: "queue pages: pages between what was there before and what came since",
    segments_are_removed_before_the_progress_is_written: "queue pages: a dead letter that the outcome drops, crash",
    the_current_message_moves_to_a_segment: "queue pages: a dead letter that the outcome drops, crash",
}


@pytest.mark.parametrize("take_away", RULES, ids=lambda rule: rule.__name__)
def test_without_the_rule_there_is_a_loss(take_away: Take) -> None:
    check_loss(take_away, RULES[take_away])
