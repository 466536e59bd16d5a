"""Rules about timers and deadlines: with one patched out, the exploration finds a loss."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from saga.engine.execution import message_processor
from saga.engine.persistence.progress_repository import ProgressRepository
from saga.messages import Message
from saga.messaging.timers import TYPE as TIMER_TYPE
from saga.progress import decisions, failed_attempts, history, ids, journal, next_action, timers
from saga.progress.actions import Complete, ForwardTimer, RescheduleTimer
from saga.progress.document import CurrentTimer, PendingMessage, SagaProgress
from tests.exploration.without_a_rule import Take, check_loss

woken, at_rest, choose_next_action = timers.set_timer, next_action._at_rest, next_action.choose_next_action
unpublished = history.find_unpublished
touched, may_run = timers.touch_deadlines, timers.may_deadline_run


def newly_parked_runs_rely_on_the_current_timer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timers, "set_timer", lambda p, before, *asked: woken(p, p, *asked))


def early_timers_are_dropped(patch: pytest.MonkeyPatch) -> None:
    def dropped(*asked: Any) -> Any:
        action = at_rest(*asked)
        return Complete() if isinstance(action, ForwardTimer) else action

    patch.setattr(next_action, "_at_rest", dropped)


def other_timers_are_dropped_before_ready_runs(patch: pytest.MonkeyPatch) -> None:
    def dropped(p: SagaProgress | None, roles: Any, trigger: Any, now: Any, certain: bool) -> Any:
        message = trigger.message
        if p is None or message.type != TIMER_TYPE or (p.timer is not None and p.timer.id == message.id):
            return choose_next_action(p, roles, trigger, now, certain)
        return Complete() if certain else next_action.RELOAD

    patch.setattr(message_processor, "choose_next_action", dropped)


def a_clock_that_is_ahead_sets_the_timer(patch: pytest.MonkeyPatch) -> None:
    def believed(*asked: Any) -> Any:
        action = at_rest(*asked)
        return Complete() if isinstance(action, RescheduleTimer) else action

    patch.setattr(next_action, "_at_rest", believed)


def each_write_sets_a_timer(patch: pytest.MonkeyPatch) -> None:
    def named(p: SagaProgress, *asked: Any) -> tuple[SagaProgress, CurrentTimer | None]:
        return woken(replace(p, timer=None), *asked)

    patch.setattr(timers, "set_timer", named)
    patch.setattr(
        next_action,
        "_at_rest",
        lambda p, *asked: Complete() if timers.compute_next_check(p, asked[2].ms) is None else RescheduleTimer(),
    )


def readers_publish_the_timer_that_is_being_handled(patch: pytest.MonkeyPatch) -> None:
    publish = ProgressRepository.publish

    async def all_of_it(repository: Any, turn: Any, p: Any, entry: Any) -> None:
        await publish(repository, replace(turn, message=replace(turn.message, id="")), p, entry)

    patch.setattr(history, "find_unpublished", lambda p, is_committed, in_hand: unpublished(p, is_committed, ""))
    patch.setattr(ProgressRepository, "publish", all_of_it)


def overdue_blocked_runs_have_no_timer(patch: pytest.MonkeyPatch) -> None:
    def forgotten(p: SagaProgress, now_ms: int, before: SagaProgress | None = None) -> int | None:
        return min([due for _, _, due in timers.find_timed_work(p) if due > now_ms], default=None)

    patch.setattr(timers, "compute_next_check", forgotten)


def runs_blocked_by_a_dead_letter_keep_setting_timers(patch: pytest.MonkeyPatch) -> None:
    def all_of_it(p: SagaProgress) -> frozenset[tuple[str, str, int]]:
        kept = (*p.queue, *p.compensating, *p.deadlines)
        waits = [(k.handler, k.message.id, k.due_ms) for k in kept if k.due_ms]
        return frozenset([*waits, *map(timers._of_turn, timers.find_timed_runs(p))])

    patch.setattr(timers, "find_timed_work", all_of_it)


def begun_runs_wait_behind_a_dead_letter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timers, "_find_unblocked_runs", lambda p: set())


def a_dead_letter_does_not_change_the_timer(patch: pytest.MonkeyPatch) -> None:
    def left(p: SagaProgress, before: SagaProgress | None, now_ms: int) -> tuple[SagaProgress, CurrentTimer | None]:
        revived = before and replace(before, queue=(), compensating=())
        return (p, None) if p.is_quarantined and p.timer is not None else woken(p, revived, now_ms)

    patch.setattr(timers, "set_timer", left)


def readers_publish_no_timer(patch: pytest.MonkeyPatch) -> None:
    def without(p: SagaProgress, *asked: Any) -> Any:
        return [entry for entry in unpublished(p, *asked) if entry.events or entry.letters]

    patch.setattr(history, "find_unpublished", without)


def a_parked_message_moves_behind_the_queue(patch: pytest.MonkeyPatch) -> None:
    def behind(p: SagaProgress, kept: PendingMessage) -> SagaProgress:
        gone = [kept.message.id]
        rest = journal.remove_messages(p.queue, kept.handler, gone)
        return replace(p, queue=(*rest, kept), waiting=journal.remove_messages(p.waiting, kept.handler, gone))

    patch.setattr(failed_attempts, "_move_to_head", behind)


def a_pending_message_that_is_parked_gets_a_new_order_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failed_attempts, "find_order_number", lambda p, handler, message: None)


def timers_are_decided_from_the_cache(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(next_action, "TIMER_TYPE", "another")


def deadlines_are_opened_only_when_their_event_is_handled(patch: pytest.MonkeyPatch) -> None:
    def opened(p: SagaProgress, roles: Any, messages: Sequence[Message], now_ms: int) -> SagaProgress:
        after = touched(p, roles, messages, now_ms)
        ended = {ids.inbox_entry(m.id, role.name) for m in messages for role in roles.by_type.get(m.type, ())}
        if not ended or not ended.isdisjoint(p.inbox):
            return after
        return replace(after, deadlines=p.deadlines)

    patch.setattr(timers, "touch_deadlines", opened)


def deadlines_are_closed_only_while_they_are_open(patch: pytest.MonkeyPatch) -> None:
    def closed(p: SagaProgress, roles: Any, messages: Sequence[Message], now_ms: int) -> SagaProgress:
        after = touched(p, roles, messages, now_ms)
        there = {k.handler for k in p.deadlines}
        kept = tuple(name for name in after.closed if name in p.closed or name in there or name not in roles.deadlines)
        return replace(after, closed=kept)

    patch.setattr(timers, "touch_deadlines", closed)


def deadlines_ignore_open_runs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timers, "may_deadline_run", lambda p, roles: True)


def deadlines_overtake_a_begun_decider(patch: pytest.MonkeyPatch) -> None:
    def passes(p: SagaProgress, roles: Any) -> bool:
        head = p.queue[0] if p.queue and p.queue[0].due_ms else None
        return may_run(p, roles) or (head is not None and {i.handler for i in p.intents} <= {head.handler})

    patch.setattr(timers, "may_deadline_run", passes)


def the_open_intent_of_a_deadline_is_dropped_with_it(patch: pytest.MonkeyPatch) -> None:
    def dropped(p: SagaProgress, roles: Any, messages: Sequence[Message], now_ms: int) -> SagaProgress:
        after = touched(replace(p, intents=()), roles, messages, now_ms)
        return replace(after, intents=p.intents)

    patch.setattr(timers, "touch_deadlines", dropped)


def begun_deadlines_are_not_resumed(patch: pytest.MonkeyPatch) -> None:
    resumable = decisions._find_resumable

    def without(p: SagaProgress, roles: Any, intent: Any, now_ms: int) -> Any:
        return None if intent.handler in roles.deadlines else resumable(p, roles, intent, now_ms)

    patch.setattr(decisions, "_find_resumable", without)


def events_for_deadlines_alone_are_not_recorded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timers, "touches_deadline", lambda p, roles, message: False)


def timers_of_unknown_sagas_are_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timers, "check_unknown_saga", lambda *_: None)


def a_deadline_runs_before_the_log_is_handled_up_to_its_due_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timers, "waits_for_log", lambda *asked: False)


def deadlines_overtake_paused_runs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timers, "_is_pending", lambda kept: False)


def times_set_by_a_clock_that_was_ahead_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timers, "limit_delays", lambda p, *asked: p)


RULES: dict[Take, str] = {
    times_set_by_a_clock_that_was_ahead_are_kept: "clock: ahead for a moment, what is parked",
    a_deadline_runs_before_the_log_is_handled_up_to_its_due_time: "deadline: an answer that the log had in time",
    deadlines_overtake_paused_runs: "paused: an answer that came in time, beside a deadline",
    newly_parked_runs_rely_on_the_current_timer: "deadline: two of them, and what is parked",
    early_timers_are_dropped: "parked: wakes come too early, a rebalance",
    other_timers_are_dropped_before_ready_runs: "deadline: by a step that fails",
    a_clock_that_is_ahead_sets_the_timer: "deadline: a clock that is ahead",
    each_write_sets_a_timer: "parked twice",
    overdue_blocked_runs_have_no_timer: "deadline: two of them, and what is parked",
    runs_blocked_by_a_dead_letter_keep_setting_timers: "a deadline waits behind a dead letter",
    begun_runs_wait_behind_a_dead_letter: "a dead letter of an undoing, and a deadline that has begun",
    a_dead_letter_does_not_change_the_timer: "replay: a deadline waits behind it: its wake comes early",
    readers_publish_no_timer: "parked twice",
    readers_publish_the_timer_that_is_being_handled: "parked: many wakes come too early",
    a_parked_message_moves_behind_the_queue: "parked: of two, the second before its turn",
    a_pending_message_that_is_parked_gets_a_new_order_number: (
        "parked: one of many that waited for an own part, others wait behind it"
    ),
    timers_are_decided_from_the_cache: "parked: wakes come to an owner with an old cache",
    deadlines_are_opened_only_when_their_event_is_handled: "deadline: it makes the saga fail",
    deadlines_are_closed_only_while_they_are_open: "deadline: what closes it comes before or behind",
    deadlines_ignore_open_runs: "deadline: behind a decider that is parked",
    deadlines_overtake_a_begun_decider: "deadline: behind a decider that is parked",
    the_open_intent_of_a_deadline_is_dropped_with_it: "deadline: closed while it is under way",
    begun_deadlines_are_not_resumed: "deadline: closed while it is under way",
    events_for_deadlines_alone_are_not_recorded: "deadline: alone",
    timers_of_unknown_sagas_are_dropped: "parked: the wake comes to another project's service of that name",
}


@pytest.mark.parametrize("take_away", RULES, ids=lambda rule: rule.__name__)
def test_without_the_rule_there_is_a_loss(take_away: Take) -> None:
    check_loss(take_away, RULES[take_away])
