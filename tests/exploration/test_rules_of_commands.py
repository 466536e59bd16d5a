"""Rules about operator commands: with one patched out, the exploration finds a loss."""

from typing import Any

import pytest
from msgspec.structs import replace

from saga.engine.execution.saga_context import SagaContext
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.messages import Message
from saga.messaging.operator_commands import OperatorCommand
from saga.progress import decisions, failed_attempts, journal, operator_commands, timers
from saga.progress.actions import AdmitAsNew, BeginAbort, Discard, RejectCommand, Release
from saga.progress.document import Intent, PendingMessage, SagaProgress, decode_transition
from saga.progress.failed_attempts import find_parked_runs
from saga.progress.journal import Commit, WriteContext
from tests.exploration.without_a_rule import Take, check_loss

decide_command, replayed, discarded = (
    operator_commands.decide_command,
    operator_commands._apply_replay,
    operator_commands.discard_message,
)


def replays_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    def uncounted(
        p: SagaProgress, write_context: WriteContext, command: OperatorCommand, kept: PendingMessage
    ) -> Commit:
        append = journal.append_transition

        def same(p: SagaProgress, *rest: Any) -> Commit:
            return append(replace(p, replays=p.replays - 1), *rest)

        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(journal, "append_transition", same)
            return replayed(p, write_context, command, kept)

    patch.setattr(operator_commands, "_apply_replay", uncounted)


def a_command_is_executed_each_time_it_is_delivered(patch: pytest.MonkeyPatch) -> None:
    into = journal.add_to_inbox
    patch.setattr(operator_commands, "COMMAND", "another name each time")
    patch.setattr(
        journal, "add_to_inbox", lambda p, write_context, name, ids_: into(p, write_context, f"{name}{p.n}", ids_)
    )


def a_replay_forgets_open_intents(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        operator_commands,
        "_apply_replay",
        lambda p, write_context, command, kept: replayed(replace(p, intents=()), write_context, command, kept),
    )


def a_begun_run_is_discarded_without_an_abort(patch: pytest.MonkeyPatch) -> None:
    def at_once(p: SagaProgress, roles: Any, command: OperatorCommand, *given: Any) -> Any:
        action = decide_command(p, roles, command, *given)
        if not isinstance(action, BeginAbort):
            return action
        return Discard(command, next(k for k in p.queue if k.dead == command.dead))

    def forgotten(
        p: SagaProgress, write_context: WriteContext, command: OperatorCommand, kept: PendingMessage, **remains: Any
    ) -> Commit:
        return discarded(replace(p, intents=()), write_context, command, kept)

    patch.setattr(operator_commands, "decide_command", at_once)
    patch.setattr(operator_commands, "discard_message", forgotten)


def discarded_messages_are_not_in_the_inbox(patch: pytest.MonkeyPatch) -> None:
    def absent(
        p: SagaProgress, write_context: WriteContext, command: OperatorCommand, kept: PendingMessage, **remains: Any
    ) -> Commit:
        into = journal.add_to_inbox
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(
                journal, "add_to_inbox", lambda p, write_context, name, ids_: into(p, write_context, name, ())
            )
            return discarded(p, write_context, command, kept, **remains)

    patch.setattr(operator_commands, "discard_message", absent)


def dead_letters_of_a_decider_may_be_discarded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operator_commands, "_why_not_discardable", lambda p, roles, role, kept: None)


def a_deadline_that_may_be_closed_counts_as_a_certain_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(timers, "is_end_certain", lambda p, roles: bool(p.deadlines))


def an_aborted_run_may_be_replayed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operator_commands, "_why_not_replayable", lambda p, kept: None)
    intent_with = decisions.find_intent
    patch.setattr(
        decisions,
        "find_intent",
        lambda p, handler, message, kind="do": None if kind == "lieu" else intent_with(p, handler, message, kind),
    )


def an_answered_call_counts_as_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Intent, "open_call", property(lambda intent: intent.begins))


def a_message_may_be_admitted_as_new_twice(patch: pytest.MonkeyPatch) -> None:
    as_new = operator_commands._decide_admission

    def again(p: SagaProgress, *given: Any) -> Any:
        first = next(n for n, raw in enumerate(p.transitions) if decode_transition(raw).letters)
        return as_new(replace(p, transitions=p.transitions[: first + 1]), *given)

    patch.setattr(operator_commands, "_decide_admission", again)


def a_forgotten_saga_is_recorded_as_compensated(patch: pytest.MonkeyPatch) -> None:
    as_new = operator_commands._decide_admission

    def closing(p: SagaProgress, *given: Any) -> Any:
        action = as_new(replace(p, n=1), *given)
        return action if p.n == 0 else as_new(p, *given)

    patch.setattr(operator_commands, "_decide_admission", closing)


def a_message_admitted_as_new_stays_in_the_inbox(patch: pytest.MonkeyPatch) -> None:
    admitted = operator_commands._apply_admission

    def there(p: SagaProgress, write_context: WriteContext, action: AdmitAsNew) -> Commit:
        written = admitted(p, write_context, action)
        return replace(written, snapshot=replace(written.snapshot, inbox={**p.inbox, **written.snapshot.inbox}))

    patch.setattr(operator_commands, "_apply_admission", there)


init = SagaContext.__init__


def a_resolved_call_is_made_again(patch: pytest.MonkeyPatch) -> None:
    def forgetful(self: SagaContext, *given: Any) -> None:
        init(self, *given)
        self.replay._resolved = {}

    patch.setattr(SagaContext, "__init__", forgetful)


def any_step_may_be_resolved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(operator_commands, "_why_not_answerable", lambda kept, intent, given, known: None)


def cached_calls_override_a_resolution(patch: pytest.MonkeyPatch) -> None:
    def stubborn(self: SagaContext, repository: Any, turn: ProcessingState, request: Any, *others: Any) -> None:
        init(self, repository, turn, request, *others)
        self.replay.calls = list(turn.results_of(request.run)) or self.replay.calls

    patch.setattr(SagaContext, "__init__", stubborn)


def a_release_applies_to_any_parked_run(patch: pytest.MonkeyPatch) -> None:
    def at_once(p: SagaProgress, command: OperatorCommand) -> Any:
        return next((Release(command, run) for run in find_parked_runs(p)), RejectCommand(command, "nothing waits"))

    patch.setattr(operator_commands, "_decide_release", at_once)


def a_replayed_deadline_is_parked_as_an_open_one(patch: pytest.MonkeyPatch) -> None:
    at_the_head = failed_attempts._move_to_head
    patch.setattr(
        failed_attempts,
        "_move_to_head",
        lambda p, kept: p if kept.due_ms and kept.handler == "expire" else at_the_head(p, kept),
    )


def messages_from_before_the_retention_reach_a_new_progress(patch: pytest.MonkeyPatch) -> None:
    def without_a_start(service: ServiceRuntime, p: SagaProgress, message: Message) -> bool:
        return p.started is None and service.is_older_than_retention(message)

    patch.setattr(ServiceRuntime, "is_of_forgotten_saga", without_a_start)


RULES: dict[Take, str] = {
    a_release_applies_to_any_parked_run: "release: it fails again, and two people want it",
    replays_are_not_counted: "replay: it dies again, and is replayed again",
    a_command_is_executed_each_time_it_is_delivered: "discard: refused by who decides, then replayed",
    a_replay_forgets_open_intents: "replay: what was read stays, while another saga gives",
    a_begun_run_is_discarded_without_an_abort: "discard: of what has changed a document",
    discarded_messages_are_not_in_the_inbox: "discard: crash",
    dead_letters_of_a_decider_may_be_discarded: "discard: refused by who decides, then replayed",
    a_deadline_that_may_be_closed_counts_as_a_certain_end: "discard: refused where something may close the deadline",
    a_message_may_be_admitted_as_new_twice: "handled as new: for a handler that takes many",
    a_forgotten_saga_is_recorded_as_compensated: "handled as new: of the outcome",
    messages_from_before_the_retention_reach_a_new_progress: (
        "handled as new: behind the outcome of a run that is forgotten"
    ),
    a_message_admitted_as_new_stays_in_the_inbox: "handled as new: for a handler that takes many",
    a_resolved_call_is_made_again: "resolve: crash",
    any_step_may_be_resolved: "resolve: a step that nobody asks for",
    cached_calls_override_a_resolution: "resolve: the first of two steps, while a zombie has its answer",
    an_answered_call_counts_as_open: "replay: of what failed behind its last step",
    a_replayed_deadline_is_parked_as_an_open_one: "replay: of a deadline that fails again, and is parked",
    an_aborted_run_may_be_replayed: "discard and replay: two people disagree",
}


LONG = {a_release_applies_to_any_parked_run, any_step_may_be_resolved}
"""They take as long as all others together, so `make test-slow` alone goes through them."""
EACH = [pytest.param(rule, marks=[pytest.mark.slow] if rule in LONG else [], id=rule.__name__) for rule in RULES]


@pytest.mark.parametrize("take_away", EACH)
def test_without_the_rule_there_is_a_loss(take_away: Take) -> None:
    check_loss(take_away, RULES[take_away])
