"""Bugs planted in what people pause and route, one each: attempts that are burnt, pauses that are forgotten, money that
stands."""

import pytest
from msgspec.structs import replace

from saga.engine.execution import control_log
from saga.engine.execution.failure_handling import FailureHandler, Write
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.execution.runs import RunRequest
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.messages import Position
from saga.progress import admission, failed_attempts
from saga.progress.actions import RunHandler
from saga.progress.admission import Divert
from tests.mutants.runtime_mutants import rewrite_source


def a_pause_burns_attempts(patch: pytest.MonkeyPatch) -> None:
    """What waits because of it counts as if it had failed."""
    rewrite_source(
        patch, FailureHandler, "postpone", "attempts=before + len(history)", "attempts=before + len(history) + 1"
    )


def a_pause_is_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    """The worker that has heard of it knows, and forgets it with its process."""

    async def looked(service: ServiceRuntime, at: Position) -> None:
        service.controls.until_s = service.ports.clock.monotonic_s() + 5

    patch.setattr(control_log, "refresh", looked)


def a_pause_ends_when_its_timer_fires(patch: pytest.MonkeyPatch) -> None:
    """What was parked because of it is let through when its wake comes."""
    run = MessageProcessor._run

    async def passed(processor: MessageProcessor, state: ProcessingState, request: RunRequest) -> ProcessingState:
        if failed_attempts.has_timer(state.loaded_progress, request.action, has_begun=False):
            return await processor._attempt(state, request)
        return await run(processor, state, request)

    patch.setattr(MessageProcessor, "_run", passed)


def a_route_drops_open_intents(patch: pytest.MonkeyPatch) -> None:
    """Drop an open intent with its message: what was begun is no longer known."""
    divert = FailureHandler.divert

    def dropped(handler: FailureHandler, state: ProcessingState, request: RunRequest, why: Divert) -> Write:
        p = replace(state.loaded_progress, intents=())
        return divert(handler, replace(state, progress=p), request, why)

    patch.setattr(admission, "is_divertible", lambda action, *, has_begun: isinstance(action, RunHandler))
    patch.setattr(FailureHandler, "divert", dropped)
