"""Watch store and broker: their load, when they cannot be reached, and when that is reported."""

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, TypeVar

from saga.errors import RegistryUnavailable, SagaError, StoreError
from saga.messaging.message_ids import Tracing
from saga.support.clock import Clock
from saga.telemetry.events import Recovered, Report, Unavailable

T = TypeVar("T")

What: TypeAlias = Literal["store", "broker", "registry"]
WHAT: tuple[What, ...] = ("store", "broker", "registry")

NEWS_MAX = 1000
MOMENT_EVERY_S = 60.0
"""Seconds between two moments that tell people that store or broker cannot be reached."""
QUIET_S = 60.0
"""Seconds without a failure after which nothing waits: it counts as reachable."""


class LoadListener(Protocol):
    """Listens to how store and broker cope with their load."""

    def took(self, seconds: float, now_s: float) -> None:
        """Take note that a write, or a publication, was acknowledged just now after so long."""

    def on_failure(self) -> None:
        """Take note that one was refused as too much, could not be made, or lost its answer."""

    def eased(self) -> None:
        """Take note that one more message waits for something else than store and broker."""


@dataclass(slots=True)
class OutageWatch:
    """What one worker knows of the availability of its store and broker."""

    service: str
    clock: Clock
    report: Report
    """Receives telemetry events, for logs and alerts."""
    tracing: Tracing | None = None
    """Choice of what is traced; `None`: nothing is."""
    load: LoadListener | None = None
    """Listener for how long each write to the store took, and to the log."""
    outages: int = 0
    """Count of `unavailable`. What runs out of time meanwhile has not failed."""
    idle: int = 0
    """Lanes that wait for what is neither store nor log: for the outside, or until they are tried again."""
    _news: dict[str, None] = field(default_factory=dict)
    """The dead letters that were reported last, oldest first."""
    _away: dict[str, float] = field(default_factory=dict)
    """Store or broker -> since when it cannot be reached."""
    _reported: dict[str, float] = field(default_factory=dict)
    """When each outage was last reported, by what could not be reached."""
    _failed: dict[str, float] = field(default_factory=dict)
    """Store or broker -> when it last could not be reached."""

    def answer_lost(self) -> None:
        """Take note of a write whose answer was lost."""
        if self.load is not None:
            self.load.on_failure()

    def unavailable(self, operation: str, why: SagaError) -> None:
        """Take note that store or broker could not be reached. It is reported once a minute."""
        self.outages += 1
        now, what = self.clock.monotonic_s(), _what(why)
        since = self._away.setdefault(what, now)
        self._failed[what] = now
        self.answer_lost()
        reported_s = self._reported.get(what)
        if reported_s is None or now - reported_s >= MOMENT_EVERY_S:
            self._reported[what] = now
            self.report(
                Unavailable(service=self.service, what=what, operation=operation, error=str(why), since_s=now - since)
            )

    def recovered(self, why: SagaError) -> None:
        """Take note that what raised `why` has answered again."""
        self.answered(_what(why))

    def answered(self, what: What) -> None:
        """Take note that it can be reached. It is reported if the outage was."""
        since = self._away.pop(what, None)
        if since is not None and self._reported.get(what, since - 1) >= since:
            self.report(Recovered(service=self.service, what=what, away_s=self.clock.monotonic_s() - since))

    def away(self) -> dict[str, float]:
        """Return for how many seconds store or broker cannot be reached."""
        now = self.clock.monotonic_s()
        return {what: now - since for what, since in self._away.items()}

    def forget_failures(self) -> None:
        """Forget the failures of messages that are gone, as with their partition.

        A message that still waits for store or broker tries, and fails, more often than every `QUIET_S` seconds.
        """
        now = self.clock.monotonic_s()
        for what in WHAT:
            if what in self._away and now - self._failed[what] > QUIET_S:
                self.answered(what)

    async def idling(self, what: Awaitable[T]) -> T:
        """Await something else than store and broker: meanwhile they have one message less in flight."""
        self.idle += 1
        if self.load is not None:
            self.load.eased()
        try:
            return await what
        finally:
            self.idle -= 1

    def is_news(self, id_: str) -> bool:
        """Return whether this process has not reported this yet; asking counts as reporting."""
        if id_ in self._news:
            return False
        self._news[id_] = None
        if len(self._news) > NEWS_MAX:
            del self._news[next(iter(self._news))]
        return True


def _what(why: SagaError) -> What:
    if isinstance(why, StoreError):
        return "store"
    return "registry" if isinstance(why, RegistryUnavailable) else "broker"
