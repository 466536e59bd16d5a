"""Bugs planted in runs that go on later, one each: what is repeated, forgotten, or goes on though it was closed."""

from typing import Any

import pytest
from msgspec.structs import replace

from saga.messages import Message
from saga.progress import compensation, decisions, journal, suspended_runs
from saga.progress.document import SagaProgress
from saga.progress.handlers import HandlerRole
from saga.progress.journal import WriteContext


def a_turn_repeats_the_steps_of_the_last_one(patch: pytest.MonkeyPatch) -> None:
    """The state is not saved with the wait, and so the job does not know how far it has come."""
    gone_on = journal.suspend_run

    def forgetful(p: SagaProgress, write_context: WriteContext, role: HandlerRole, ended: Any, next_turn: Any) -> Any:
        return gone_on(p, write_context, role, replace(ended, delta={}), next_turn)

    patch.setattr(journal, "suspend_run", forgetful)


def a_turn_waits_for_events_of_the_last_turn(patch: pytest.MonkeyPatch) -> None:
    """What has come is not gone with the turn that saw it, and ends the next wait at once."""
    gone_on = journal.suspend_run

    def kept(p: SagaProgress, write_context: WriteContext, role: HandlerRole, ended: Any, next_turn: Any) -> Any:
        return gone_on(p, write_context, role, replace(ended, shown=()), next_turn)

    patch.setattr(journal, "suspend_run", kept)


def closed_suspended_runs_continue(patch: pytest.MonkeyPatch) -> None:
    close, why_over = compensation._close_handler, decisions.find_closing_reason

    def left(p: SagaProgress, write_context: WriteContext, role: HandlerRole, outcome: Message) -> Any:
        after, letters = close(p, write_context, role, outcome)
        return replace(after, suspended_runs=p.suspended_runs, format=p.format), letters

    def never(p: SagaProgress, role: HandlerRole) -> str | None:
        return None if any(c.handler == role.name for c in p.suspended_runs) else why_over(p, role)

    patch.setattr(compensation, "_close_handler", left)
    patch.setattr(decisions, "find_closing_reason", never)


def a_suspended_run_keeps_its_lane(patch: pytest.MonkeyPatch) -> None:
    """It goes on under the message that began it: what comes meanwhile waits for its end."""
    ready = suspended_runs.find_ready_runs
    patch.setattr(
        suspended_runs, "find_ready_runs", lambda p, roles, now_ms, in_hand: ready(p, roles, now_ms + 10**7, None)
    )
