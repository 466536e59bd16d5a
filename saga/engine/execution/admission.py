"""Runs that people have stopped: paused, sent to the dead letters, or beyond a limit. Nothing of them has begun, so it
is no attempt of anything; and what has begun is never sent away, only made to wait."""

from msgspec.structs import replace

from saga.engine.errors import describe_exception
from saga.engine.execution import failure_handling
from saga.engine.execution.failure_handling import Ask, PutOffBy
from saga.engine.limits import CallNotAdmitted
from saga.engine.persistence import progress_repository
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.messaging import active_controls
from saga.messaging.controls import Noted
from saga.policies.turns import AWAY_S_MAX
from saga.progress import failed_attempts
from saga.progress.actions import RunHandler
from saga.progress.document import Intent, SagaProgress
from saga.progress.failed_attempts import RunFailure
from saga.support.clock import from_iso


async def after(service: ServiceRuntime, turn: ProcessingState, ask: Ask) -> ProcessingState | None:
    """State after what people have switched has stopped a run; `None`: it may begin."""
    controls, now_ms = service.controls.in_force, service.ports.clock.now_ms()
    entry = active_controls.pause_of(controls, service.name, ask.action.name, now_ms)
    if entry is not None:
        return await _waits(service, turn, ask, entry)
    if not _is_new(turn.loaded_progress, ask):
        return None
    entry = active_controls.route_of(controls, ask.action.name, {m.type for m in ask.action.parts}, now_ms)
    return None if entry is None else await _sent_away(service, turn, ask, entry)


def _is_new(p: SagaProgress, ask: Ask) -> bool:
    """True for a run of a handler on a message, of which nothing has begun: nobody would know what stands of it, and
    nobody takes back what a compensation or a deadline is for."""
    action = ask.action
    return (
        isinstance(action, RunHandler)
        and action.goes_on is None
        and not action.role.is_deadline
        and failure_handling.opened(p, ask.run) is None
    )


async def has_no_turn(
    service: ServiceRuntime, turn: ProcessingState, ask: Ask, refusal: CallNotAdmitted
) -> ProcessingState:
    """Put off a run beyond the limit that people have set to its handler."""
    return await failure_handling.put_off(
        service, turn, ask, PutOffBy(describe_exception(refusal.why), refusal.left_s), _intent(turn, ask)
    )


async def _waits(service: ServiceRuntime, turn: ProcessingState, ask: Ask, entry: Noted) -> ProcessingState:
    """Have a run wait until its pause is over, or until somebody has to look whether it is."""
    clock = service.ports.clock
    left_s = AWAY_S_MAX / 2  # with what spreads it: who ends a pause waits for what comes of it
    if entry.switch.until is not None:
        left_s = min(left_s, max(0.0, (from_iso(entry.switch.until) - clock.now_ms()) / 1000))
    reason = active_controls.words_of(service.name, entry)
    return await failure_handling.put_off(service, turn, ask, PutOffBy(reason, left_s), _intent(turn, ask))


def _intent(turn: ProcessingState, ask: Ask) -> Intent | None:
    """The open intent, with what the run has got since; `None` if it has not begun anything."""
    intent, calls = failure_handling.opened(turn.loaded_progress, ask.run), turn.results_of(ask.run)
    return intent if intent is None or len(calls) <= len(intent.calls) else replace(intent, calls=calls)


async def _sent_away(service: ServiceRuntime, turn: ProcessingState, ask: Ask, entry: Noted) -> ProcessingState:
    """Make a dead letter of a message, as a person wants."""
    p = turn.loaded_progress
    failure = RunFailure(
        reason=active_controls.words_of(service.name, entry),
        remedy=f"end the route, then replay it: saga control route {service.name} ... --off; saga dead replay",
        attempts=failure_handling.failed_before(p, ask)[0] + len(turn.attempts_of(ask.run)),
        blame="person",
    )
    written = failed_attempts.give_up(p, progress_repository.in_hand(service, turn), ask.action, failure, None)
    return (await progress_repository.write(service, turn, written)).drop_carried(ask.run)
