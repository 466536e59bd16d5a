"""Adaptive limit of messages in flight: as many as a worker's store and log can take without making them wait.

They say it by how long a write takes, to either, compared with how long it takes while few are in flight. It is the
gradient of Netflix's `concurrency-limits` on the baseline of TCP Vegas: the latency without our load, not the average
of what we see under it. For the alternatives see docs/decisions/05-why-the-number-in-flight-adapts.md.

1. *The baseline* is the latency that is not ours to answer for. It follows shorter latencies within seconds; longer
   ones within a minute, and only from windows with no more than `least` messages in flight: what is slow then is not
   slow because of us. So a store that is far away, or has become so, is normal; one that we make slow never is.
2. *The bound* is `TOLERANCE` times the baseline and `SLACK_S`. Beyond it the limit falls, to where the latency would be
   within it again, at most to `FALL_MAX` of what it was.
3. *Well below the bound*, and if the limit held something back, it grows: twofold until it first fell, as nothing is
   known yet; then by 3 %, 6 %, 12 % and 25 % in a row, so that bursts hardly make it swing. In between it stays. From
   `least` it grows only once the baseline is learned: above, nothing more is learned of a store that is slower now.
4. *A write that failed*, because the store cannot be reached or its answer was lost, halves it, once for each window.

There is no clock and no chance in here: the same observations give the same limits.
"""

from dataclasses import dataclass, field, replace
from math import inf
from zlib import crc32

INFLIGHT_MIN = 64
"""Lowest limit, unless settings give another: enough for batches, and for a write to be under way while others are
published."""

WINDOW_S = 0.25
"""Shortest time over which writes are counted before the limit is decided on."""
WRITES_MIN = 50
"""Fewest writes in a window: with fewer it goes on, for they say nothing."""
SETTLE_S_MAX = 5.0
"""Longest pause before the next window after a change of the limit; otherwise it lasts as long as a write."""

TOLERANCE = 2.0
"""Multiple of the baseline that a write may take. From one to two the store's own parallelism is used up."""
SLACK_S = 0.05
"""Time that a write may take on top. A write of 1 ms that takes 5 is no queue worth mentioning, and under full load our
own event loop adds some: with this much in flight it is always busy."""
SLOW_PART = 0.25
"""Part of a window's writes that must be beyond the bound, as its mean must, for it to be slow: a few that hung are not
a slow store."""
AIM = 0.85
"""Part of the bound that a fall of the limit aims at."""
STEADY = 0.7
"""Part of the bound from which on the limit grows no more. Neither a fall nor a growth by `GROWTH_MAX` leads beyond the
other end."""
FALL_MAX = 0.5
GROWTH_FIRST, GROWTH_AGAIN, GROWTH_MAX = 2.0, 1.03, 1.25
"""Factors of growth: until the limit first falls; after a fall; and the largest, which is reached as each growth
doubles the gain."""
LEARNED = 1.15
"""Multiple of the baseline, the slack's share added, up to which a latency counts as learned: the baseline has caught
up with it."""
FIRST_LATENCIES = 5
"""Length of the first window, in means of its own latency: the first writes to end are the fastest, and no baseline."""
FOLLOW_S, FOLLOW_DOWN_S = 30.0, 5.0
"""Times in which the baseline takes on two thirds of a longer latency, and of a shorter one. Were it simply the least
that there ever was, noise alone would lead it to where no store can stay."""
FOLLOWED_S_MAX = 5.0
"""Most time that one window counts for in the baseline: one that was open over a quiet night says no more than
another."""

BURST_S = 0.1
"""Time whose calls may begin at once; the others follow evenly. A timer for each of a thousand calls a second would be
too many."""
WAITING_MAX = 100
"""Calls to one resource that wait in memory, at most: they hold messages in flight, of which others need some."""
STAYS_S = 2.0
"""Longest time that a message waits in memory, from the start of its turn, before it is parked. It is that of failed
attempts, too."""
STAYS_S_MIN = 0.2
"""Shortest pause before it is asked again in memory."""
AWAY_S_MAX = 60.0
"""Longest time that what was sent away stays away."""
AWAY_LEAST = 0.75
"""Part of that from which on pauses grow no longer: the rest spreads them."""
LASTS_S = 0.1
"""Time that a call is taken to last while none has ended."""
NEWEST = 0.2
"""Part that the last call has in how long calls last."""
YIELDS_S_MAX = 30.0
"""Longest time that a message yields: then it goes as any other, however much there is to do."""
HELD_PART = 10
"""Messages that yield, at most, as a part of what may be in flight: they take no room in it, but memory."""
BUSY_PART = 0.5
"""Part of a bound from which on a worker counts as saturated, even if it has read all there is."""


@dataclass(slots=True)
class InFlight:
    """Limit of the messages of one worker that may be waiting for store or log, from `least` to `most`; the same of
    both means fixed."""

    least: int
    """Lower bound, at most `most`."""
    most: int
    limit: int = field(init=False)
    """Present limit. It begins with `least`: only there the baseline can be learned, and many workers that start
    together against an ill store do no harm."""
    reached: bool = False
    """True if the limit held something back in this window; set by the worker. A limit that is not felt does not
    grow."""
    baseline_s: float = field(init=False, default=inf)
    _growth: float = GROWTH_FIRST
    _from_s: float = 0.0
    """Time at which the window begins; before, writes still tell of an earlier limit."""
    _until_s: float = 0.0
    _calm_s: float = 0.0
    """Time until which failures are those that have been counted."""
    _bound_s: float = inf
    _writes: int = 0
    _slow: int = 0
    _latency_s: float = 0.0
    _inflight: int = 0
    """Sums over the window."""

    def __post_init__(self) -> None:
        self.least = self.limit = min(self.least, self.most)

    def observe(self, latency_s: float, inflight: int, now_s: float) -> None:
        """Take in a write that has just ended, with how many messages may be waiting. It is called for each write, so
        it only counts until the window is full."""
        if now_s < self._from_s:
            return
        self._writes += 1
        self._latency_s += latency_s
        self._inflight += inflight
        if latency_s > self._bound_s:
            self._slow += 1
        if now_s >= self._until_s and self._writes >= WRITES_MIN:
            self._decide(now_s)

    def failed(self, now_s: float) -> None:
        """Take in a write that failed, as the store could not be reached, or whose answer was lost. Many that fail
        together count once."""
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
        """Return whether the first window goes on. It began about when its first 50 writes did, which is not known."""
        if not self._from_s:
            self._from_s = now_s - mean_s
        self._until_s = self._from_s + FIRST_LATENCIES * mean_s
        return now_s < self._until_s

    def _steady_s(self) -> float:
        """Longest latency with which the limit may grow."""
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
    """State of the turns of one resource. Times are those of a monotonic clock."""

    running: int = 0
    waiting: int = 0
    free_s: float = -inf
    """Time from which on the next call may begin, were there no bursts."""
    back_s: float = -inf
    """Time at which what was last sent away is to be back."""
    lasts_s: float = LASTS_S
    """Time that a call lasts, about."""

    def runs(self) -> "CallQueue":
        """The state with one more that runs."""
        return replace(self, running=self.running + 1)

    def waits(self, more: int) -> "CallQueue":
        """The state with more, or fewer, that wait."""
        return replace(self, waiting=self.waiting + more)


def has_free_turn(line: CallQueue, at_once_max: int | None) -> bool:
    """Return whether a call that comes now runs now: nobody waits, and not too many run."""
    return at_once_max is None or (line.running < at_once_max and not line.waiting)


def reserve(line: CallQueue, rate_per_s: float, now_s: float) -> tuple[CallQueue, float]:
    """The next turn: the state in which it is taken, and the time at which it is.

    >>> line, times = Line(), []
    >>> for _ in range(3):
    ...     line, begins_s = reserved(line, 4, now_s=10)
    ...     times.append(begins_s)
    >>> times
    [10, 10.25, 10.5]
    """
    apart_s = 1 / rate_per_s
    begins_s = max(now_s, line.free_s - max(0, BURST_S - apart_s))
    return replace(line, free_s=max(line.free_s, now_s) + apart_s), begins_s


def end_turn(line: CallQueue, lasted_s: float | None) -> CallQueue:
    """The state after the end of a call. `lasted_s`: `None` if it was given up, and says nothing."""
    lasts_s = line.lasts_s if lasted_s is None else line.lasts_s + NEWEST * (lasted_s - line.lasts_s)
    return replace(line, running=line.running - 1, lasts_s=lasts_s)


def postpone(
    line: CallQueue, at_once_max: int | None, rate_per_s: float | None, now_s: float
) -> tuple[CallQueue, float]:
    """The state with one more that comes back later, and after how many seconds: behind those that wait, and those that
    were sent away before.

    >>> line = Line(waiting=8, lasts_s=0.5)
    >>> line, first_s = sent_away(line, 2, None, now_s=10)
    >>> line, second_s = sent_away(line, 2, None, now_s=10)
    >>> first_s, second_s
    (2.25, 2.5)
    """
    apart_s = max(line.lasts_s / at_once_max if at_once_max else 0, 1 / rate_per_s if rate_per_s else 0)
    back_s = min(max(line.back_s, now_s + line.waiting * apart_s) + apart_s, now_s + AWAY_S_MAX)
    return replace(line, back_s=back_s), back_s - now_s


def waits_in_memory(left_s: float, passed_s: float) -> bool:
    """Return whether a message waits in memory until it is asked again, and is not parked. `passed_s`: since its turn
    began."""
    return passed_s + left_s <= STAYS_S


def postponed_s(left_s: float, spread: float) -> float:
    """Seconds after which what may be asked again in `left_s` is: spread, so that not all come back together, and never
    beyond a minute. `spread`: from 0 to 1.

    >>> [away_s(left_s, spread) for left_s in (0, 10, 3600) for spread in (0, 1)]
    [0.2, 0.4, 10, 20, 45.0, 60.0]
    """
    least_s = min(max(left_s, STAYS_S_MIN), AWAY_S_MAX * AWAY_LEAST)
    return least_s + spread * min(least_s, AWAY_S_MAX - least_s)


def spread_of(saga: str, transition: int) -> float:
    """Number from 0 to 1 that differs from saga to saga, and from one time to the next.

    >>> round(spread_of("order-17", 3), 3), round(spread_of("order-17", 4), 3)
    (0.673, 0.196)
    """
    return crc32(f"{saga} {transition}".encode()) / 0xFFFFFFFF


# -------------------------------------------------------------------- yielding


def is_saturated(busy: int, limit: int, inflight: int, most: int, *, is_behind: bool) -> bool:
    """Return whether a worker has so much to do that what may wait does. `busy`: messages that may be waiting for store
    or log, of which it takes `limit` now; `inflight`: all, of which it takes `most` ever; `is_behind`: there is more
    than it has read.

    >>> is_saturated(32, 64, 40, 1000, is_behind=False), is_saturated(31, 64, 40, 1000, is_behind=False)
    (True, False)
    >>> is_saturated(3, 64, 500, 1000, is_behind=False), is_saturated(3, 64, 3, 1000, is_behind=True)
    (True, True)
    """
    return is_behind or busy >= limit * BUSY_PART or inflight >= most * BUSY_PART


def postponed_max(most: int) -> int:
    """Number of messages that yield at a time, at most.

    >>> held_max(1000), held_max(3)
    (100, 1)
    """
    return max(1, most // HELD_PART)
