"""Find work of a saga that no message will trigger, or whose timer may be missing, from its progress alone.
Pure functions."""

from msgspec import Struct

from saga.messages import Message
from saga.progress import suspended_runs, takeover, timers
from saga.progress.decisions import find_next_ready, find_pending_compensation, is_pending
from saga.progress.document import ABORT, Intent, SagaProgress, decode_transition
from saga.progress.handlers import HandlerRoles
from saga.support.clock import LATEST_MS, from_iso, iso


class StrandedWork(Struct, frozen=True, kw_only=True):
    """Work of a saga that no message and no timer will continue: a repair has to trigger it."""

    self_consumed_types: tuple[str, ...] = ()
    """Types of own events that this version consumes, and the version that wrote the progress did not."""
    wakes_at: str | None = None
    """Time of the saga's current timer, which may be missing."""
    begun: tuple[Intent, ...] = ()
    """Open runs whose message is stored only in their intent: they continue only if the message is redelivered."""
    ready: str | None = None
    """Handler of work that is ready and has no timer."""

    @property
    def is_any(self) -> bool:
        return bool(self.self_consumed_types or self.begun or self.ready or self.wakes_at is not None)

    @property
    def is_wake_alone(self) -> bool:
        """Return True if all of the work continues by itself once the timer fires."""
        return not (self.self_consumed_types or self.begun or self.ready)

    @property
    def triggers(self) -> tuple[Message, ...]:
        """Return the messages of the runs in `begun`, each once: redelivering them continues the runs."""
        return tuple({i.message.id: i.message for i in self.begun}.values())


def find_stranded_work(p: SagaProgress, roles: HandlerRoles, now_ms: int, quiet_ms: int) -> StrandedWork:
    """Find work of this saga that possibly nothing triggers.

    `quiet_ms`: time without a write after which no worker is assumed to be processing ready work. Raises the errors in
    `saga.progress.document.UNREADABLE` if a transition is damaged.
    """
    newly_consumed = (
        tuple(sorted(set(roles.self_consumed_types) - set(p.self_consumed_types)))
        if takeover.is_takeover_due(p, roles)
        else ()
    )
    due_ms = timers.find_earliest_ms(p)
    at = None if due_ms is None else iso(min(due_ms, LATEST_MS))
    if not (p.is_open or p.self_consumed or p.waiting) or takeover.find_undeclared(p, roles):
        return StrandedWork(self_consumed_types=newly_consumed, wakes_at=at)
    begun = tuple(intent for intent in p.intents if _is_kept_by_its_intent_alone(p, intent))
    step = find_next_ready(p, roles, now_ms) if p.timer is None else None
    if not (begun or step) or now_ms - _last_ms(p) < quiet_ms:
        return StrandedWork(self_consumed_types=newly_consumed, wakes_at=at)
    return StrandedWork(
        self_consumed_types=newly_consumed, wakes_at=at, begun=begun, ready=None if step is None else step.role.name
    )


def _is_kept_by_its_intent_alone(p: SagaProgress, intent: Intent) -> bool:
    if intent.message.source == p.service or intent.kind == ABORT:  # found by `find_next_ready`, or by its outcome
        return False
    if intent.kind == "undo":
        return find_pending_compensation(p, intent.handler, intent.message) is None
    if any(k.handler == intent.handler and k.message.id == intent.message.id for k in p.deadlines):
        return False
    if p.suspended_runs and suspended_runs.find_suspended_run(p, intent.handler, intent.message.id) is not None:
        return False
    return not any(is_pending(p, intent.handler, part) for part in intent.parts)


def _last_ms(p: SagaProgress) -> int:
    """Return the time of the saga's last write."""
    times = [from_iso(intent.time) for intent in p.intents if intent.time]
    if p.transitions:
        times.append(from_iso(decode_transition(p.transitions[-1]).time))
    return max(times, default=0)
