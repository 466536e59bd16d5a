"""Watch store, broker, schema registry and key folder: how loaded they are, and when they are unavailable."""

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, TypeVar, get_args

from saga.errors import KeysUnavailable, RegistryUnavailable, SagaError, StoreError
from saga.messaging.message_ids import Tracing
from saga.support.clock import Clock
from saga.telemetry.events import Recovered, Report, Unavailable

T = TypeVar("T")

What: TypeAlias = Literal["store", "broker", "registry", "key folder"]
WHAT: tuple[What, ...] = get_args(What)

NEWS_MAX = 1000
MOMENT_EVERY_S = 60.0
"""Minimum seconds between two reports that the same dependency is unavailable."""
QUIET_S = 60.0
"""Seconds without a new failure after which an unavailable dependency counts as available again. A message that still
waited for it would have retried, and failed, more often than that."""


class LoadListener(Protocol):
    """Receives measurements of how well store and broker cope with their load."""

    def took(self, seconds: float, now_s: float) -> None:
        """Record that a write or a publication was acknowledged just now, and how many seconds it took."""

    def on_failure(self) -> None:
        """Record that a write or publication was refused because of overload, failed, or got no answer."""

    def eased(self) -> None:
        """Record that one more message waits for something other than store or broker."""


@dataclass(slots=True)
class OutageWatch:
    """The availability of store, broker, registry and key folder, as one worker observes it."""

    service: str
    clock: Clock
    report: Report
    """Receives telemetry events, for logs and alerts."""
    tracing: Tracing | None = None
    """Decides what is traced; `None` if nothing is."""
    load: LoadListener | None = None
    """Listener that learns how long each write to store and log takes."""
    outages: int = 0
    """Number of calls of `unavailable`. If it grows during an attempt that times out, the attempt does not count as
    failed."""
    idle: int = 0
    """Number of messages that wait for something other than store and log: for an external system, or for their next
    attempt."""
    _news: dict[str, None] = field(default_factory=dict)
    """Ids that were reported, dead letters for example, oldest first. Only the most recent are kept."""
    _away: dict[str, float] = field(default_factory=dict)
    """For each unavailable dependency, the time at which its outage began."""
    _reported: dict[str, float] = field(default_factory=dict)
    """For each dependency, the time at which an outage was last reported."""
    _failed: dict[str, float] = field(default_factory=dict)
    """For each dependency, the time of its last failure."""

    def answer_lost(self) -> None:
        """Record that the answer to a write was lost."""
        if self.load is not None:
            self.load.on_failure()

    def unavailable(self, operation: str, why: SagaError) -> None:
        """Record that the dependency whose call raised `why` is unavailable. This is reported at most once a minute."""
        self.outages += 1
        now, what = self.clock.monotonic_s(), _what(why)
        since = self._away.setdefault(what, now)
        self._failed[what] = now
        if what in ("store", "broker"):
            self.answer_lost()
        reported_s = self._reported.get(what)
        if reported_s is None or now - reported_s >= MOMENT_EVERY_S:
            self._reported[what] = now
            self.report(
                Unavailable(service=self.service, what=what, operation=operation, error=str(why), since_s=now - since)
            )

    def recovered(self, why: SagaError) -> None:
        """Record that the dependency whose call had raised `why` has answered again."""
        self.answered(_what(why))

    def answered(self, what: What) -> None:
        """Record that `what` is available. If its outage was reported, the recovery is reported, too."""
        since = self._away.pop(what, None)
        if since is not None and self._reported.get(what, since - 1) >= since:
            self.report(Recovered(service=self.service, what=what, away_s=self.clock.monotonic_s() - since))

    def away(self) -> dict[str, float]:
        """Return the current outages: for each unavailable dependency, the seconds since its outage began."""
        now = self.clock.monotonic_s()
        return {what: now - since for what, since in self._away.items()}

    def forget_failures(self) -> None:
        """End outages that no message observes any more, for example because its partition was revoked.

        A message that still waits would have retried, and failed, within `QUIET_S` seconds.
        """
        now = self.clock.monotonic_s()
        for what in WHAT:
            if what in self._away and now - self._failed[what] > QUIET_S:
                self.answered(what)

    async def idling(self, what: Awaitable[T]) -> T:
        """Await something other than store and broker. Meanwhile the message does not count as load on them."""
        self.idle += 1
        if self.load is not None:
            self.load.eased()
        try:
            return await what
        finally:
            self.idle -= 1

    def is_news(self, id_: str) -> bool:
        """Return True if this process has not reported this id yet. Asking counts as reporting."""
        if id_ in self._news:
            return False
        self._news[id_] = None
        if len(self._news) > NEWS_MAX:
            del self._news[next(iter(self._news))]
        return True


def _what(why: SagaError) -> What:
    if isinstance(why, KeysUnavailable):
        return "key folder"
    if isinstance(why, StoreError):
        return "store"
    return "registry" if isinstance(why, RegistryUnavailable) else "broker"
