"""Rules about reads, age, results, senders, releases and batches: with one patched out, the exploration finds a
loss."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from saga.engine.execution import document_updates
from saga.engine.execution.saga_context import SagaContext
from saga.engine.persistence.progress_repository import ProgressRepository
from saga.engine.prepared_service import PreparedService
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.messages import Message, Position
from saga.messaging.message_ids import identity_of_place
from saga.progress import decisions, history, journal, takeover
from saga.progress.actions import CompensationDecision
from saga.progress.document import SagaProgress, StepRecord, Transition
from saga.progress.handlers import HandlerRole
from tests.exploration.without_a_rule import Take, check_loss
from verification import services
from verification.environment import OTHER


def unwritten_step_results_bind_a_rerun(patch: pytest.MonkeyPatch) -> None:
    def answered(saga: SagaContext) -> tuple[StepRecord, ...]:
        return tuple(saga.replay.calls)

    patch.setattr(SagaContext, "reusable_answers", property(answered))


def inbox_entries_of_kept_messages_expire(patch: pytest.MonkeyPatch) -> None:
    def trimmed(p: SagaProgress, write_context: journal.WriteContext) -> dict[str, int]:
        return {key: at for key, at in p.inbox.items() if at >= write_context.forgotten_s}

    patch.setattr(journal, "_trim_inbox", trimmed)


def an_outcome_without_a_start_finds_nothing_to_undo(patch: pytest.MonkeyPatch) -> None:
    undo_step = decisions.decide_compensation

    def at_once(p: SagaProgress, role: HandlerRole, outcome: Message) -> CompensationDecision:
        return undo_step(p, role, replace(outcome, started=outcome.started or outcome.time))

    patch.setattr(decisions, "decide_compensation", at_once)


def originals_run_between_two_undoings(patch: pytest.MonkeyPatch) -> None:
    blocked = decisions.is_blocked

    def by_the_dead_alone(p: SagaProgress, handler: str, message: Message) -> bool:
        return blocked(replace(p, compensating=tuple(k for k in p.compensating if k.dead)), handler, message)

    patch.setattr(decisions, "is_blocked", by_the_dead_alone)


def two_senders_share_an_id(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(services, "identity", lambda source, id_, type_, owner: id_)


def a_relayed_message_is_identified_by_its_offset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(services, "name_of_relayed", lambda type_, id_, offset: identity_of_place("explored", 0, offset))


def events_of_earlier_releases_are_not_taken_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(takeover, "is_takeover_due", lambda p, roles: False)


def a_failed_saga_is_new_to_later_handlers(patch: pytest.MonkeyPatch) -> None:
    over = decisions.find_closing_reason
    patch.setattr(decisions, "find_closing_reason", lambda p, role: over(replace(p, failed=()), role))


def a_message_that_one_handler_cannot_decode_is_bad_for_all(patch: pytest.MonkeyPatch) -> None:
    bad_for = PreparedService.find_undecodable

    def bad_for_all(service: ServiceRuntime, message: Message) -> Mapping[str, str]:
        bad = bad_for(service, message)
        return {role.name: why for why in bad.values() for role in service.roles.by_type[message.type]}

    patch.setattr(PreparedService, "find_undecodable", bad_for_all)


def only_the_first_update_of_a_batch_is_checked(patch: pytest.MonkeyPatch) -> None:
    stands = document_updates._is_open

    async def only_for_mine(service: ServiceRuntime, position: Any, saga: str, run: Any) -> bool:
        return saga == OTHER or await stands(service, position, saga, run)

    patch.setattr(document_updates, "_is_open", only_for_mine)


def segment_contents_outlive_the_progress_that_listed_them(patch: pytest.MonkeyPatch) -> None:
    load = ProgressRepository.load

    async def keeping(repository: ProgressRepository, turn: ProcessingState) -> ProcessingState:
        return replace(await load(repository, turn), recalled=turn.recalled, paged=turn.paged)

    patch.setattr(ProgressRepository, "load", keeping)


def a_message_of_another_log_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    def waited_for(repository: ProgressRepository, turn: ProcessingState, entry: Transition) -> bool:
        return entry.position not in (None, turn.position[:3])

    patch.setattr(ProgressRepository, "_will_be_redelivered", waited_for)


def a_position_counts_in_every_log(patch: pytest.MonkeyPatch) -> None:
    unpublished = history.find_unpublished

    def by_offset(p: SagaProgress, is_committed: Callable[[Position], bool], in_hand: str) -> Iterator[Transition]:
        return unpublished(p, lambda at: any(is_committed(at._replace(log_id=id_)) for id_ in ("", "after 1")), in_hand)

    patch.setattr(history, "find_unpublished", by_offset)


RULES: dict[Take, str] = {
    unwritten_step_results_bind_a_rerun: "a read, then a step, and another state: two owners",
    inbox_entries_of_kept_messages_expire: "an own event, taken long ago and still wanted",
    an_outcome_without_a_start_finds_nothing_to_undo: "a failure outcome without a start, after the memory",
    originals_run_between_two_undoings: "two results of many: an original comes between",
    two_senders_share_an_id: "two senders use one id",
    a_relayed_message_is_identified_by_its_offset: "a relay says the same again, without an id of ours",
    events_of_earlier_releases_are_not_taken_over: "a later release takes an own event, a transition",
    a_failed_saga_is_new_to_later_handlers: "a later release has another compensation, after the failure outcome",
    a_message_that_one_handler_cannot_decode_is_bad_for_all: "a part that one handler cannot decode",
    only_the_first_update_of_a_batch_is_checked: "two lanes' updates at once",
    segment_contents_outlive_the_progress_that_listed_them: "waiting pages: an owner comes back with what it knew",
    a_message_of_another_log_is_waited_for: (
        "a topic is created again: what nobody names takes the offset of what was written"
    ),
    a_position_counts_in_every_log: (
        "a topic is created again: what nobody names takes the offset of what was written"
    ),
}


@pytest.mark.parametrize("take_away", RULES, ids=lambda rule: rule.__name__)
def test_without_the_rule_there_is_a_loss(take_away: Take) -> None:
    check_loss(take_away, RULES[take_away])
