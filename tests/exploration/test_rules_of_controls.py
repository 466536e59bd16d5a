"""Each rule about what people pause and route is there for a loss: take the rule away, and the exploration finds it."""

from typing import Any

import pytest
from msgspec.structs import replace

from saga.engine.execution.failure_handling import FailureHandler
from saga.engine.execution.message_processor import MessageProcessor
from saga.progress import admission, failed_attempts
from saga.progress.actions import RunHandler
from saga.progress.failed_attempts import RunFailure
from tests.exploration.without_a_rule import Take, check_loss

parked, written = failed_attempts.park, MessageProcessor._write_run


def a_pause_counts_an_attempt(patch: pytest.MonkeyPatch) -> None:
    def counted(p: Any, write_context: Any, action: Any, failure: RunFailure, intent: Any, *, due_ms: int) -> Any:
        return parked(p, write_context, action, replace(failure, attempts=failure.attempts + 1), intent, due_ms=due_ms)

    patch.setattr(failed_attempts, "park", counted)


def a_pause_ends_the_turn(patch: pytest.MonkeyPatch) -> None:
    async def ended(handler: Any, state: Any, *asked: Any) -> Any:
        return replace(state, is_complete=True)

    patch.setattr(FailureHandler, "postpone", ended)


def a_run_that_is_parked_already_keeps_no_timer(patch: pytest.MonkeyPatch) -> None:
    async def left(processor: Any, request: Any, reaction: Any) -> Any:
        state = await written(processor, request, reaction)
        return replace(state, is_complete=True) if state.held_back else state

    patch.setattr(MessageProcessor, "_write_run", left)


def a_route_diverts_a_begun_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "is_divertible", lambda action, *, has_begun: isinstance(action, RunHandler))


def a_paused_turn_waits_in_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failed_attempts, "_waits_in_place", lambda *asked: True)


RULES: dict[Take, str] = {
    a_pause_counts_an_attempt: "paused: a crash",
    a_pause_ends_the_turn: "paused: a rebalance",
    a_run_that_is_parked_already_keeps_no_timer: "paused: a rebalance",
    a_route_diverts_a_begun_run: "routed: while it is under way",
    a_paused_turn_waits_in_place: "paused: a turn whose event comes",
}


LONG = {a_paused_turn_waits_in_place}
"""It takes as long as all others together, so `make test-slow` alone goes through it."""
EACH = [pytest.param(rule, marks=[pytest.mark.slow] if rule in LONG else [], id=rule.__name__) for rule in RULES]


@pytest.mark.parametrize("take_away", EACH)
def test_without_the_rule_the_exploration_finds_a_loss(take_away: Take) -> None:
    check_loss(take_away, RULES[take_away])
