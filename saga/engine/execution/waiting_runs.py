"""Runs that wait for a schema, or a release: looked at within a minute, written about ever more seldom.

A look reads what is deployed by now, and writes nothing: the wake is sent on. So what is deployed is met soon, by any
worker and after any restart, and a wait of days does not fill the history of its saga.
"""

from saga.engine.known_schemas import READ_S_MIN
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import NewerHandler, UnknownSchema
from saga.policies.retry import RETRY, Retry, Rule, delay_s
from saga.policies.turns import spread_of
from saga.progress.document import SagaProgress, Transition, decode_entry
from saga.support.clock import from_iso
from saga.telemetry.events import Escalated

LOOK_S_MAX = 50.0
"""Longest time from one look to the next. With the contracts read `READ_S_MIN` before it is less than a minute."""
SPREAD = 0.2
"""Part of that by which looks are spread: those that were parked in one moment do not come in one."""
UNDEPLOYED = Rule(UnknownSchema.__name__, Retry(attempts_max=10, delay_s_first=READ_S_MIN, in_place_s=0))
"""Rules for a message of a schema that is not deployed here, whatever others say. It is tried without end: people are
told after each so many attempts."""
NEWER = Rule(NewerHandler.__name__, RETRY)
"""Rules for a run that a newer version of its handler began, whatever others say: it waits for a release."""
WAYS_OUT = (
    "deploy the schema here, or the release that reads it; should there never be one, send the message to the dead "
    "letters: saga control route"
)


def wait_s(p: SagaProgress, retry: Retry, attempt: int) -> float:
    """Seconds until it is looked at, where it waits since the `attempt`-th attempt failed."""
    spread = spread_of(p.saga, p.n)
    return min(max(delay_s(retry, attempt, spread), READ_S_MIN), LOOK_S_MAX * (1 - SPREAD * spread))


def is_told(p: SagaProgress, name: str, words: str, retry: Retry, attempt: int, now_ms: int) -> bool:
    """True if the history says already that the run of this name waits, and why, and the time of its next attempt,
    which is the `attempt`-th to fail, has not come: then this was a look."""
    if attempt < 2:
        return False
    last = next((e for e in map(decode_entry, reversed(p.transitions)) if _is_of_the_wait(e, name)), None)
    if last is None or last.outcome == "released" or last.reason != words:  # who has released it waits for the attempt
        return False
    return now_ms - from_iso(last.time) < delay_s(retry, attempt - 1, spread_of(p.saga, last.n)) * 1000


def _is_of_the_wait(entry: Transition, name: str) -> bool:
    return entry.handler == name and entry.outcome in ("retrying", "released")


def escalate(service: ServiceRuntime, saga: str, handler: str, attempts: int, words: str) -> None:
    """Tell people, for it has waited for long."""
    service.ports.outage_watch.report(
        Escalated(
            service=service.name,
            saga=saga,
            handler=handler,
            reason=f"{attempts} attempts failed, the last with {words}; {WAYS_OUT}",
            steps=(),
        )
    )
