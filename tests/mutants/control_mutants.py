"""Bugs planted in what people pause and route, one each: attempts that are burnt, pauses that are forgotten, money that
stands."""

import pytest
from msgspec.structs import replace

from saga.engine.execution import admission, control_log, failure_handling
from saga.engine.execution.failure_handling import Ask
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.messages import Position
from saga.messaging.controls import Noted
from saga.progress import failed_attempts
from saga.progress.actions import RunHandler
from tests.mutants.runtime_mutants import rewritten


def a_pause_burns_attempts(patch: pytest.MonkeyPatch) -> None:
    """What waits because of it counts as if it had failed."""
    rewritten(
        patch, failure_handling, "put_off", "attempts=before + len(history)", "attempts=before + len(history) + 1"
    )


def a_pause_is_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    """The worker that has heard of it knows, and forgets it with its process."""

    async def looked(service: ServiceRuntime, at: Position) -> None:
        service.controls.until_s = service.ports.clock.monotonic_s() + 5

    patch.setattr(control_log, "look", looked)


def a_pause_is_over_as_soon_as_it_is_looked_at(patch: pytest.MonkeyPatch) -> None:
    """What was parked because of it is let through when its wake comes."""
    waits = admission._waits

    async def passed(service: ServiceRuntime, turn: ProcessingState, ask: Ask, entry: Noted) -> ProcessingState | None:
        is_parked = failed_attempts.has_wake(turn.loaded_progress, ask.action, has_begun=False)
        return None if is_parked else await waits(service, turn, ask, entry)

    patch.setattr(admission, "_waits", passed)


def a_route_drops_what_has_begun(patch: pytest.MonkeyPatch) -> None:
    """An open intent goes with its message: nobody knows any more what stands."""
    sent_away = admission._sent_away

    async def dropped(service: ServiceRuntime, turn: ProcessingState, ask: Ask, entry: Noted) -> ProcessingState:
        p = replace(turn.loaded_progress, intents=())
        return await sent_away(service, replace(turn, progress=p), ask, entry)

    patch.setattr(admission, "_is_new", lambda p, ask: isinstance(ask.action, RunHandler))
    patch.setattr(admission, "_sent_away", dropped)
