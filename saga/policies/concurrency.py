"""Limits of concurrency: an adaptive limit of messages in flight, a queue for calls to a resource, and yielding of
low-priority messages.

*The adaptive limit* is the number of messages that a worker's store and log can take without a queue. It is derived
from the time that a write takes, compared with the time that it takes while few messages are in flight. The method is
the gradient of Netflix's `concurrency-limits` on the baseline of TCP Vegas: the latency without this worker's load, not
the average latency under it. For the alternatives see docs/decisions/05-why-the-number-in-flight-adapts.md.

1. *The baseline* is the latency that this worker's load does not cause. It follows shorter latencies within seconds. It
   follows longer ones within a minute, and only in windows with no more than `least` messages in flight, because a slow
   write then cannot be due to this load. So a store that is far away, or has become slower, counts as normal. A store
   that this worker makes slow never does.
2. *The bound* is `TOLERANCE` times the baseline plus `SLACK_S`. If writes take longer, the limit falls to where the
   latency would be within the bound again, at most by the factor `FALL_MAX`.
3. *Well below the bound*, the limit grows if it delayed something. It doubles until it falls for the first time,
   because nothing is known before. After that it grows by 3 %, 6 %, 12 % and 25 % in a row, so that bursts hardly make
   it swing. Just below the bound it stays. From `least` it grows only once the baseline is learned, because above
   `least` nothing more is learned about a store that has become slower.
4. *A write that failed*, because the store cannot be reached or its answer was lost, halves the limit, once per window.

*The call queue* (`CallQueue`) keeps the calls to one resource within its limits. *Yielding* delays low-priority
messages while a worker is saturated.

There is no clock and no randomness here: the same observations give the same limits.
"""

from dataclasses import dataclass, field, replace
from math import inf
from zlib import crc32

INFLIGHT_MIN = 64
"""Default lower bound of the limit: enough for batches, and for a write to be in progress while other messages are
published."""

WINDOW_S = 0.25
"""Minimum time, in seconds, over which writes are counted before the limit is changed."""
WRITES_MIN = 50
"""Minimum number of writes in a window. A window with fewer continues, because they say too little."""
SETTLE_S_MAX = 5.0
"""Maximum pause, in seconds, before the next window after a change of the limit; the pause is as long as a write
takes."""

TOLERANCE = 2.0
"""Multiple of the baseline that a write may take. Between one and two the store's own parallelism is used up."""
SLACK_S = 0.05
"""Further seconds that a write may take. If a write of 1 ms takes 5 ms, there is no significant queue. And under full
load the worker's own event loop, which is always busy with this many messages in flight, adds some time."""
SLOW_PART = 0.25
"""A window counts as slow if its mean latency is beyond the bound, and at least this share of its writes is, too. A few
writes that hang do not make a store slow."""
AIM = 0.85
"""Latency at which a fall of the limit aims, as a share of the bound."""
STEADY = 0.7
"""Latency from which the limit no longer grows, as a share of the bound. The range from there to the bound is so wide
that neither a fall nor a growth by `GROWTH_MAX` crosses it."""
FALL_MAX = 0.5
GROWTH_FIRST, GROWTH_AGAIN, GROWTH_MAX = 2.0, 1.03, 1.25
"""Factors by which the limit grows: until it first falls; directly after a fall; and at most. Each further growth
doubles the gain, up to the last factor."""
LEARNED = 1.15
"""A latency counts as learned up to this multiple of the baseline plus a share of the slack, because the baseline has
then caught up with it."""
FIRST_LATENCIES = 5
"""Length of the first window, in multiples of its own mean latency. The first writes to end are the fastest, so they
alone would give a wrong baseline."""
FOLLOW_S, FOLLOW_DOWN_S = 30.0, 5.0
"""Seconds in which the baseline moves two thirds of the way to a longer latency, and to a shorter one. If the baseline
were the shortest latency so far, noise alone would lower it to a value that no store can sustain."""
FOLLOWED_S_MAX = 5.0
"""Maximum seconds for which one window counts in the baseline. A window that was open over a quiet night says no more
than any other."""

BURST_S = 0.1
"""The calls that the rate allows within this many seconds may begin at once; further ones follow evenly. One timer for
each of a thousand calls per second would be too many."""
WAITING_MAX = 100
"""Maximum number of calls to one resource that wait in memory. Each belongs to a message in flight, and other work
needs messages in flight, too."""
STAYS_S = 2.0
"""Maximum seconds that a message waits in memory, from the start of its processing, before it is parked; the same as
for failed attempts."""
STAYS_S_MIN = 0.2
"""Minimum pause, in seconds, before a message that waits in memory is tried again."""
AWAY_S_MAX = 60.0
"""Maximum seconds for which a message is parked because its call was not admitted."""
AWAY_LEAST = 0.75
"""Share of `AWAY_S_MAX` up to which pauses grow. The rest is kept free, so that pauses can still be spread at
random."""
LASTS_S = 0.1
"""Assumed duration of a call, in seconds, while none has ended yet."""
NEWEST = 0.2
"""Weight of the newest call in the moving average of call durations."""
YIELDS_S_MAX = 30.0
"""Maximum seconds for which a low-priority message is held back. After that it is processed, even if the worker is
busy."""
HELD_PART = 10
"""At most 1/`HELD_PART` as many low-priority messages are held back as may be in flight. They do not count as in
flight, but take memory."""
BUSY_PART = 0.5
"""Share of a limit from which a worker counts as saturated, even if it has read everything."""


@dataclass(slots=True)
class InFlight:
    """Adaptive limit on the number of a worker's messages that may be waiting for store or log. It stays between
    `least` and `most`, and is fixed if both are equal."""

    least: int
    """Lower bound of the limit; it is lowered to `most` if it is larger."""
    most: int
    limit: int = field(init=False)
    """Current limit. It begins at `least`, because the baseline can be learned only there, and so that many workers
    that start together do not harm a struggling store."""
    reached: bool = False
    """True if the limit delayed something in this window; the worker sets it. A limit that delays nothing does not
    grow.
    """
    baseline_s: float = field(init=False, default=inf)
    _growth: float = GROWTH_FIRST
    _from_s: float = 0.0
    """Time at which the window begins. Writes that end before belong to an earlier limit."""
    _until_s: float = 0.0
    _calm_s: float = 0.0
    """Time until which further failures are not counted, because they belong to one that was counted."""
    _bound_s: float = inf
    _writes: int = 0
    _slow: int = 0
    _latency_s: float = 0.0
    _inflight: int = 0
    """Sums over the window."""

    def __post_init__(self) -> None:
        self.least = self.limit = min(self.least, self.most)

    def observe(self, latency_s: float, inflight: int, now_s: float) -> None:
        """Record a write that has just ended, with the number of messages in flight.

        It is called for each write, so it only counts until the window is full.
        """
        if now_s < self._from_s:
            return
        self._writes += 1
        self._latency_s += latency_s
        self._inflight += inflight
        if latency_s > self._bound_s:
            self._slow += 1
        if now_s >= self._until_s and self._writes >= WRITES_MIN:
            self._decide(now_s)

    def count_failure(self, now_s: float) -> None:
        """Record a write that failed because the store was unavailable or its answer was lost.

        Several writes that fail together count once.
        """
        if now_s < self._calm_s:
            return
        self._falls_to(FALL_MAX)
        self._begin(now_s, 0.0)
        self._calm_s = self._until_s

    def _decide(self, now_s: float) -> None:
        mean_s, before = self._latency_s / self._writes, self.limit
        if self.baseline_s == inf and self._is_too_early(mean_s, now_s):
            return
        if mean_s > self._bound_s and self._slow >= SLOW_PART * self._writes:
            self._falls_to(AIM * self._bound_s / mean_s)
        elif self.reached and mean_s <= self._steady_s():
            self._grows()
        self._learn(mean_s, now_s)
        self._begin(now_s, 0.0 if self.limit == before else mean_s)

    def _is_too_early(self, mean_s: float, now_s: float) -> bool:
        """Return whether the first window continues. Its beginning is unknown, and is estimated from its first
        `WRITES_MIN` writes."""
        if not self._from_s:
            self._from_s = now_s - mean_s
        self._until_s = self._from_s + FIRST_LATENCIES * mean_s
        return now_s < self._until_s

    def _steady_s(self) -> float:
        """Return the largest latency, in seconds, at which the limit may grow."""
        steady_s = STEADY * self._bound_s
        return steady_s if self.limit > self.least else min(steady_s, LEARNED * self.baseline_s + STEADY * SLACK_S)

    def _falls_to(self, part: float) -> None:
        self._growth = GROWTH_AGAIN
        self.limit = max(self.least, int(self.limit * max(FALL_MAX, part)))

    def _grows(self) -> None:
        self.limit = min(self.most, int(self.limit * self._growth) + 1)
        if self._growth < GROWTH_MAX:
            self._growth = min(GROWTH_MAX, 2 * self._growth - 1)

    def _learn(self, mean_s: float, now_s: float) -> None:
        took_s = min(now_s - self._from_s, FOLLOWED_S_MAX)
        if self.baseline_s == inf:
            self.baseline_s = mean_s
        elif mean_s < self.baseline_s:
            self.baseline_s += (mean_s - self.baseline_s) * min(1.0, took_s / FOLLOW_DOWN_S)
        elif self._inflight <= self.least * self._writes:
            self.baseline_s += (mean_s - self.baseline_s) * took_s / FOLLOW_S
        self._bound_s = TOLERANCE * self.baseline_s + SLACK_S

    def _begin(self, now_s: float, settle_s: float) -> None:
        """Begin a new window, once the writes that began under another limit have ended."""
        self._from_s = now_s + min(settle_s, SETTLE_S_MAX)
        self._until_s = self._from_s + WINDOW_S
        self._writes = self._slow = self._inflight = 0
        self._latency_s = 0.0
        self.reached = False


# -------------------------------------------------------------------- turns


@dataclass(frozen=True, slots=True)
class CallQueue:
    """State of the calls to one resource: how many run and wait, and when further ones may begin. Times are
    monotonic."""

    running: int = 0
    waiting: int = 0
    free_s: float = -inf
    """Time from which the next call could begin if there were no bursts."""
    back_s: float = -inf
    """Time at which the last postponed call is to be tried again."""
    lasts_s: float = LASTS_S
    """Average duration of a call."""

    def runs(self) -> "CallQueue":
        """Return the state with one more call running."""
        return replace(self, running=self.running + 1)

    def waits(self, more: int) -> "CallQueue":
        """Return the state with `more` additional calls waiting; a negative number means fewer."""
        return replace(self, waiting=self.waiting + more)


def reserve(line: CallQueue, rate_per_s: float, now_s: float) -> tuple[CallQueue, float]:
    """Reserve the next time at which a call may begin under the rate limit. Return the new state and this time.

    >>> line, times = CallQueue(), []
    >>> for _ in range(3):
    ...     line, begins_s = reserve(line, 4, now_s=10)
    ...     times.append(begins_s)
    >>> times
    [10, 10.25, 10.5]
    """
    apart_s = 1 / rate_per_s
    begins_s = max(now_s, line.free_s - max(0, BURST_S - apart_s))
    return replace(line, free_s=max(line.free_s, now_s) + apart_s), begins_s


def end_turn(line: CallQueue, lasted_s: float | None) -> CallQueue:
    """Return the state after the end of a call. `lasted_s`: how long it took; `None` if it was abandoned, so its
    duration is unknown."""
    lasts_s = line.lasts_s if lasted_s is None else line.lasts_s + NEWEST * (lasted_s - line.lasts_s)
    return replace(line, running=line.running - 1, lasts_s=lasts_s)


def postpone(
    line: CallQueue, at_once_max: int | None, rate_per_s: float | None, now_s: float
) -> tuple[CallQueue, float]:
    """Postpone one more call. Return the new state, and the number of seconds after which to try the call again.

    That is after all calls that wait in memory, and after all calls that were postponed earlier.

    >>> line = CallQueue(waiting=8, lasts_s=0.5)
    >>> line, first_s = postpone(line, 2, None, now_s=10)
    >>> line, second_s = postpone(line, 2, None, now_s=10)
    >>> first_s, second_s
    (2.25, 2.5)
    """
    apart_s = max(line.lasts_s / at_once_max if at_once_max else 0, 1 / rate_per_s if rate_per_s else 0)
    back_s = min(max(line.back_s, now_s + line.waiting * apart_s) + apart_s, now_s + AWAY_S_MAX)
    return replace(line, back_s=back_s), back_s - now_s


def waits_in_memory(left_s: float, passed_s: float) -> bool:
    """Return whether a message waits in memory until it is tried again, instead of being parked.

    `passed_s`: seconds since its processing began.
    """
    return passed_s + left_s <= STAYS_S


def postponed_s(left_s: float, spread: float) -> float:
    """Return the seconds after which to retry a message that may be tried again in `left_s` seconds.

    The times are spread, so that not all messages come back together, and never exceed a minute. `spread`: from 0 to 1.

    >>> [postponed_s(left_s, spread) for left_s in (0, 10, 3600) for spread in (0, 1)]
    [0.2, 0.4, 10, 20, 45.0, 60.0]
    """
    least_s = min(max(left_s, STAYS_S_MIN), AWAY_S_MAX * AWAY_LEAST)
    return least_s + spread * min(least_s, AWAY_S_MAX - least_s)


def spread_of(saga: str, transition: int) -> float:
    """Return a number from 0 to 1 that differs between sagas, and between transitions of one saga.

    >>> round(spread_of("order-17", 3), 3), round(spread_of("order-17", 4), 3)
    (0.673, 0.196)
    """
    return crc32(f"{saga} {transition}".encode()) / 0xFFFFFFFF


# -------------------------------------------------------------------- yielding


def is_saturated(busy: int, limit: int, inflight: int, most: int, *, is_behind: bool) -> bool:
    """Return whether a worker is so busy that low-priority messages have to wait.

    Args:
        busy: Number of messages that may be waiting for store or log.
        limit: Current limit of that number.
        inflight: Number of all messages in flight.
        most: Largest number of messages in flight.
        is_behind: True if the log holds more than the worker has read.

    >>> is_saturated(32, 64, 40, 1000, is_behind=False), is_saturated(31, 64, 40, 1000, is_behind=False)
    (True, False)
    >>> is_saturated(3, 64, 500, 1000, is_behind=False), is_saturated(3, 64, 3, 1000, is_behind=True)
    (True, True)
    """
    return is_behind or busy >= limit * BUSY_PART or inflight >= most * BUSY_PART


def postponed_max(most: int) -> int:
    """Return how many low-priority messages may be held back, given that `most` messages may be in flight.

    >>> postponed_max(1000), postponed_max(3)
    (100, 1)
    """
    return max(1, most // HELD_PART)
