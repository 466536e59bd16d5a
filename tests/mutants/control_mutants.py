"""Bugs planted in what people pause and route, one each: attempts that are burnt, pauses that are forgotten, money that
stands."""

import pytest
from msgspec.structs import replace

from saga.engine.execution import control_log, failure_handling, handler_runner
from saga.engine.execution.failure_handling import RunRequest
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

    patch.setattr(control_log, "refresh", looked)


def a_pause_is_over_as_soon_as_it_is_looked_at(patch: pytest.MonkeyPatch) -> None:
    """What was parked because of it is let through when its wake comes."""
    waits = handler_runner._wait_for_pause

    async def passed(
        service: ServiceRuntime, turn: ProcessingState, ask: RunRequest, entry: Noted
    ) -> ProcessingState | None:
        is_parked = failed_attempts.has_timer(turn.loaded_progress, ask.action, has_begun=False)
        return None if is_parked else await waits(service, turn, ask, entry)

    patch.setattr(handler_runner, "_wait_for_pause", passed)


def a_route_drops_what_has_begun(patch: pytest.MonkeyPatch) -> None:
    """An open intent goes with its message: nobody knows any more what stands."""
    sent_away = handler_runner._divert

    async def dropped(service: ServiceRuntime, turn: ProcessingState, ask: RunRequest, entry: Noted) -> ProcessingState:
        p = replace(turn.loaded_progress, intents=())
        return await sent_away(service, replace(turn, progress=p), ask, entry)

    patch.setattr(handler_runner, "_is_new", lambda p, ask: isinstance(ask.action, RunHandler))
    patch.setattr(handler_runner, "_divert", dropped)
