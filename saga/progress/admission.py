"""Decide whether a run may begin, or whether an operator's control postpones or diverts it. Pure functions."""

from typing import NamedTuple

from saga.messaging import controls as control_log
from saga.messaging.controls import ActiveControls, ControlEntry
from saga.policies.concurrency import AWAY_S_MAX
from saga.progress.actions import HandlerAction, RunHandler
from saga.support.clock import from_iso


class Wait(NamedTuple):
    """Decision that a run may not begin or continue now, because of a pause, a limit or an open breaker."""

    reason: str
    left_s: float
    """Seconds after which to try again."""
    where: str | None = None
    """Place in the service's code that made the refused call."""
    grows: bool = False
    """True if it is unknown how long the wait will take. Then each pause is as long as the run has waited so far, up to
    a minute."""


class Divert(NamedTuple):
    """Decision that a message becomes a dead letter instead of reaching its handler, because an operator has set a
    route."""

    reason: str


def admit(
    service: str, controls: ActiveControls, action: HandlerAction, *, has_begun: bool, now_ms: int
) -> Wait | Divert | None:
    """Decide whether a run may begin or continue; `None` if it may.

    `has_begun`: True if the run has an open intent. A run that has begun is never diverted, because it may have had
    effects. Compensations, deadlines and suspended runs are never diverted either, because they must not be lost. All
    of these can only be paused.
    """
    pause = control_log.find_pause(controls, service, action.name, now_ms)
    if pause is not None:
        return Wait(control_log.describe_entry(service, pause), _pause_left_s(pause, now_ms))
    if not is_divertible(action, has_begun=has_begun):
        return None
    assert isinstance(action, RunHandler)
    route = control_log.find_route(controls, action.name, {m.type for m in action.parts}, now_ms)
    return None if route is None else Divert(control_log.describe_entry(service, route))


def is_divertible(action: HandlerAction, *, has_begun: bool) -> bool:
    """Return True if the message may go to the dead letters instead of its handler: its run is new, and it is neither a
    compensation nor a deadline."""
    return isinstance(action, RunHandler) and action.goes_on is None and not action.role.is_deadline and not has_begun


def _pause_left_s(pause: ControlEntry, now_ms: int) -> float:
    """Return the seconds until the pause ends or is checked again. An operator may end it at any time."""
    left_s = AWAY_S_MAX / 2  # spreading can double this
    if pause.switch.until is None:
        return left_s
    return min(left_s, max(0.0, (from_iso(pause.switch.until) - now_ms) / 1000))
