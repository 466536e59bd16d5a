"""Rules about suspended runs: with one patched out, the exploration finds a loss."""

from typing import Any

import pytest
from msgspec.structs import replace

from saga.engine.execution import message_processor, runs
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.execution.saga_context import SagaContext
from saga.progress import decisions, failed_attempts, journal, suspended_runs, timers
from saga.progress.actions import RunHandler
from saga.progress.decisions import find_earlier_parts
from saga.progress.document import SagaProgress, SuspendedRun
from tests.exploration.without_a_rule import Take, check_loss

gone_on = journal.suspend_run


def turns_share_their_keys(patch: pytest.MonkeyPatch) -> None:
    cause_of = suspended_runs.compute_cause
    patch.setattr(message_processor, "compute_cause", lambda parts, c: cause_of(parts, None))


def events_of_the_last_turn_are_given_to_the_next(patch: pytest.MonkeyPatch) -> None:
    def kept(p: SagaProgress, write_context: Any, role: Any, ended: Any, next_turn: Any) -> Any:
        written = gone_on(p, write_context, role, replace(ended, shown=()), next_turn)
        entry = replace(written.entry, shown=ended.shown) if written.entry else None
        return (
            replace(written, entry=entry)
            if not ended.shown
            else suspend_without_taking(p, write_context, role, ended, next_turn)
        )

    def suspend_without_taking(p: SagaProgress, write_context: Any, role: Any, ended: Any, next_turn: Any) -> Any:
        into_inbox = journal.add_to_inbox
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(
                journal,
                "add_to_inbox",
                lambda p, write_context, handler, messages: into_inbox(p, write_context, handler, ()),
            )
            inner.setattr(journal, "remove_messages", lambda kept, handler, messages: kept)
            return gone_on(p, write_context, role, ended, next_turn)

    patch.setattr(journal, "suspend_run", kept)


def a_rerun_of_a_turn_sees_later_events(patch: pytest.MonkeyPatch) -> None:
    run, opened = MessageProcessor._request, decisions.find_run_intent
    roles: dict[str, Any] = {}

    def known(processor: MessageProcessor, action: RunHandler) -> Any:
        roles[action.role.name] = action.role
        return run(processor, action)

    def find_intent_with_current_parts(p: SagaProgress, key: Any) -> Any:
        intent = opened(p, key)
        c = suspended_runs.find_suspended_run(p, intent.handler, intent.message.id) if intent else None
        if intent is None or c is None:
            return intent
        return replace(intent, parts=suspended_runs.collect_run_parts(p, roles[intent.handler], c))

    patch.setattr(MessageProcessor, "_request", known)
    patch.setattr(runs, "find_run_intent", find_intent_with_current_parts)


def a_rerun_of_a_turn_has_another_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SagaContext, "time_ms", property(SagaContext._now_ms))


def turns_ignore_open_runs_of_others(patch: pytest.MonkeyPatch) -> None:
    going = decisions._find_ready_suspended_run

    def passes(p: SagaProgress, *asked: Any) -> Any:
        return going(replace(p, queue=(), intents=(), compensating=()), *asked)

    patch.setattr(decisions, "_find_ready_suspended_run", passes)


def begun_turns_are_not_resumed(patch: pytest.MonkeyPatch) -> None:
    resumable = decisions._find_resumable

    def without(p: SagaProgress, roles: Any, intent: Any, now_ms: int) -> Any:
        return None if p.suspended_runs else resumable(p, roles, intent, now_ms)

    patch.setattr(decisions, "_find_resumable", without)


def turns_wait_in_memory_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timers, "find_timed_runs", lambda p: ())


def side_effects_of_turns_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal, "_has_side_effect", lambda call: False)


def a_turn_that_is_given_up_starts_the_run_over(patch: pytest.MonkeyPatch) -> None:
    dead = failed_attempts.give_up

    def forgotten(p: SagaProgress, *asked: Any, **more: Any) -> Any:
        return dead(replace(p, suspended_runs=(), intents=()), *asked, **more)

    patch.setattr(failed_attempts, "give_up", forgotten)


def a_discarded_suspended_run_continues(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(suspended_runs, "find_suspended_run", lambda p, handler, message: None)


def the_message_of_a_suspended_run_is_handled_again(patch: pytest.MonkeyPatch) -> None:
    def nowhere(p: SagaProgress, handler: str, message: str) -> SuspendedRun | None:
        return None

    kept = decisions.is_pending
    patch.setattr(decisions, "is_pending", lambda p, *asked: kept(replace(p, suspended_runs=()), *asked))
    patch.setattr(
        decisions, "find_earlier_parts", lambda p, *asked: find_earlier_parts(replace(p, suspended_runs=()), *asked)
    )
    patch.setattr(suspended_runs, "find_suspended_run", nowhere)


RULES: dict[Take, str] = {
    turns_share_their_keys: "later: a job",
    events_of_the_last_turn_are_given_to_the_next: "later: it needs the event twice",
    a_rerun_of_a_turn_sees_later_events: "later: an event and the time race",
    a_rerun_of_a_turn_has_another_time: "later: it needs the event twice",
    turns_ignore_open_runs_of_others: "later: undone between turns",
    begun_turns_are_not_resumed: "later: a job moves",
    turns_wait_in_memory_alone: "later: at a time",
    side_effects_of_turns_are_forgotten: "later: nothing covers its turns",
    a_turn_that_is_given_up_starts_the_run_over: "replay: a turn that is dead",
    a_discarded_suspended_run_continues: "discard: a turn that is dead",
    the_message_of_a_suspended_run_is_handled_again: "later: a job moves",
}


@pytest.mark.parametrize("take_away", RULES, ids=lambda rule: rule.__name__)
def test_without_the_rule_there_is_a_loss(take_away: Take) -> None:
    check_loss(take_away, RULES[take_away])
