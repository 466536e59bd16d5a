"""Each rule about what people pause and route is there for a loss: take the rule away, and the exploration finds it."""

from typing import Any

import pytest
from msgspec.structs import replace

from saga.engine.execution import handler_runner
from saga.progress import failed_attempts
from saga.progress.actions import RunHandler
from saga.progress.failed_attempts import RunFailure
from tests.exploration.without_a_rule import Take, check_loss

parked, after = failed_attempts.park, handler_runner.apply_controls


def a_pause_counts_an_attempt(patch: pytest.MonkeyPatch) -> None:
    def counted(p: Any, hand: Any, action: Any, failure: RunFailure, intent: Any, *, due_ms: int) -> Any:
        return parked(p, hand, action, replace(failure, attempts=failure.attempts + 1), intent, due_ms=due_ms)

    patch.setattr(failed_attempts, "park", counted)


def a_pause_ends_the_turn(patch: pytest.MonkeyPatch) -> None:
    async def ended(service: Any, turn: Any, *asked: Any) -> Any:
        return replace(turn, is_complete=True)

    patch.setattr(handler_runner, "_wait_for_pause", ended)


def what_waits_already_keeps_no_wake(patch: pytest.MonkeyPatch) -> None:
    async def left(service: Any, turn: Any, ask: Any) -> Any:
        state = await after(service, turn, ask)
        return replace(state, is_complete=True) if state is not None and state.held_back else state

    patch.setattr(handler_runner, "apply_controls", left)


def a_route_takes_what_has_begun(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(handler_runner, "_is_new", lambda p, ask: isinstance(ask.action, RunHandler))


def a_turn_that_is_paused_waits_where_it_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failed_attempts, "_waits_in_place", lambda *asked: True)


RULES: dict[Take, str] = {
    a_pause_counts_an_attempt: "paused: a crash",
    a_pause_ends_the_turn: "paused: a rebalance",
    what_waits_already_keeps_no_wake: "paused: a rebalance",
    a_route_takes_what_has_begun: "routed: while it is under way",
    a_turn_that_is_paused_waits_where_it_is: "paused: a turn whose event comes",
}


@pytest.mark.parametrize("take_away", RULES, ids=lambda rule: rule.__name__)
def test_without_the_rule_the_exploration_finds_a_loss(take_away: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    check_loss(take_away, RULES[take_away], monkeypatch)
