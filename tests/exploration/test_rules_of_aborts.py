"""Rules about the abort of an original that never finishes: with one patched out, the exploration finds a loss."""

from typing import Any

import pytest
from msgspec.structs import replace

from saga.engine.execution.saga_context import SagaContext
from saga.engine.execution.step_replay import StepReplay
from saga.progress import compensation, failed_attempts
from saga.progress.document import ABORT, SagaProgress
from tests.exploration.without_a_rule import Take, check_loss


def registered_abort_actions_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SagaContext, "abort_actions", ())


def an_abort_has_the_keys_of_the_original(patch: pytest.MonkeyPatch) -> None:
    sealed = compensation.make_abort_intent

    def as_it_was(p: SagaProgress, *asked: Any) -> Any:
        intent = sealed(p, *asked)
        original = next(iter(i for i in p.intents if i.kind == "do"), None)
        return intent if original is None else replace(intent, calls=original.calls, begins=original.begins)

    patch.setattr(compensation, "make_abort_intent", as_it_was)


def finished_turns_are_not_aborted(patch: pytest.MonkeyPatch) -> None:
    sealed = compensation.make_abort_intent
    patch.setattr(compensation, "make_abort_intent", lambda p, *asked: replace(sealed(p, *asked), undo_with=()))


def a_parked_abort_forgets_its_answers(patch: pytest.MonkeyPatch) -> None:
    updated = failed_attempts._update_intent
    patch.setattr(
        failed_attempts,
        "_update_intent",
        lambda p, intent: p if intent is not None and intent.kind == ABORT else updated(p, intent),
    )


def answers_of_operators_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepReplay, "position", property(lambda self: self._next))


RULES: dict[Take, str] = {
    registered_abort_actions_are_forgotten: "taken back: crash",
    an_abort_has_the_keys_of_the_original: "taken back: crash",
    finished_turns_are_not_aborted: "taken back: turns that are over",
    a_parked_abort_forgets_its_answers: "taken back: that fails behind an answer",
    answers_of_operators_are_not_counted: "resolve: a step that an abort undoes",
}


@pytest.mark.parametrize("take_away", RULES, ids=lambda rule: rule.__name__)
def test_without_the_rule_there_is_a_loss(take_away: Take) -> None:
    check_loss(take_away, RULES[take_away])
