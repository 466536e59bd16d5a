"""Each decision that the limit of what is in flight takes at the end of a window, one at a time."""

from itertools import pairwise
from math import inf

from saga.policies.concurrency import (
    FOLLOW_DOWN_S,
    INFLIGHT_MIN,
    SETTLE_S_MAX,
    SLOW_PART,
    WINDOW_S,
    WRITES_MIN,
    InFlight,
)

MOST = 1000
NORMAL_S, SLOW_S = 0.02, 2.0


class Windows:
    """Fills windows with writes that each take the given time."""

    def __init__(self, least: int = INFLIGHT_MIN) -> None:
        self.limit = InFlight(least, MOST)
        self.now_s = 0.0
        self.window(NORMAL_S, reached=False)
        self.now_s += WINDOW_S  # it is not known when the first writes began: they alone teach nothing
        self.limit.observe(NORMAL_S, 1, self.now_s)

    def window(self, latency_s: float, *, reached: bool = True, inflight: int = 1, slow: int = WRITES_MIN) -> int:
        """The limit after a window; `slow` of its writes take so long, the others as is normal."""
        self.now_s += SETTLE_S_MAX + WINDOW_S
        self.limit.reached = reached
        for number in range(WRITES_MIN):
            self.limit.observe(latency_s if number < slow else NORMAL_S, inflight, self.now_s)
        return self.limit.limit

    def learned(self) -> "Windows":
        """Normal is known, and the limit well above the least."""
        for _ in range(6):
            self.window(NORMAL_S)
        assert self.limit.limit > 4 * INFLIGHT_MIN
        return self


def test_the_first_window_waits_for_more_than_the_fastest_writes() -> None:
    limit = InFlight(INFLIGHT_MIN, MOST)
    limit.reached = True
    for _ in range(WRITES_MIN):
        limit.observe(1.0, 1, 10.0)
    assert limit.baseline_s == inf
    limit.observe(1.0, 1, 13.9)
    assert limit.baseline_s == inf
    limit.observe(1.0, 1, 14.0)
    assert limit.baseline_s == 1.0


def test_a_limit_that_is_felt_grows_until_the_most_and_one_that_is_not_stays() -> None:
    windows = Windows()
    first = windows.window(NORMAL_S)
    assert first == 2 * INFLIGHT_MIN + 1
    assert windows.window(NORMAL_S, reached=False) == first
    for _ in range(10):
        windows.window(NORMAL_S)
    assert windows.limit.limit == MOST


def test_a_slow_window_halves_it_at_most_and_never_goes_below_the_least() -> None:
    windows = Windows().learned()
    before = windows.limit.limit
    assert windows.window(SLOW_S) == before // 2
    for _ in range(10):
        windows.window(SLOW_S * 10)
    assert windows.limit.limit == INFLIGHT_MIN


def test_a_window_that_is_slow_because_of_few_does_not_count() -> None:
    windows = Windows().learned()
    before = windows.limit.limit
    assert windows.window(100 * SLOW_S, reached=False, slow=int(SLOW_PART * WRITES_MIN)) == before
    assert windows.window(100 * SLOW_S, reached=False, slow=int(SLOW_PART * WRITES_MIN) + 1) < before


def test_after_a_fall_it_grows_by_small_steps_that_double() -> None:
    windows = Windows().learned()
    windows.window(SLOW_S)
    limits = [windows.limit.limit, *(windows.window(NORMAL_S) for _ in range(5))]
    growth = [round(now / before - 1, 2) for before, now in pairwise(limits)]
    assert growth == sorted(growth)
    assert 0.03 <= growth[0] <= 0.05
    assert 0.23 <= growth[-1] <= 0.26


def test_writes_under_an_earlier_limit_are_not_counted() -> None:
    windows = Windows()
    windows.window(NORMAL_S)
    before = windows.limit.limit
    for _ in range(10 * WRITES_MIN):
        windows.limit.observe(SLOW_S, 1, windows.now_s + NORMAL_S / 2)
    assert windows.limit.limit == before
    assert windows.window(NORMAL_S) > before


def test_failures_count_once_a_window() -> None:
    windows = Windows().learned()
    before = windows.limit.limit
    for _ in range(100):
        windows.limit.count_failure(windows.now_s)
    assert windows.limit.limit == before // 2
    windows.limit.count_failure(windows.now_s + WINDOW_S)
    assert windows.limit.limit == before // 4


def test_the_normal_latency_falls_soon_and_rises_only_with_little_in_flight() -> None:
    windows = Windows().learned()
    windows.window(NORMAL_S / 2, reached=False)
    assert abs(windows.limit.baseline_s - NORMAL_S / 2) < NORMAL_S * FOLLOW_DOWN_S / 100
    low_s = windows.limit.baseline_s
    windows.window(NORMAL_S, reached=False, inflight=INFLIGHT_MIN + 1)
    assert windows.limit.baseline_s == low_s
    windows.window(NORMAL_S, reached=False, inflight=INFLIGHT_MIN)
    assert low_s < windows.limit.baseline_s < NORMAL_S


def test_at_the_least_it_grows_only_while_latencies_are_hardly_above_normal() -> None:
    windows = Windows()
    assert windows.window(NORMAL_S + 0.04, inflight=INFLIGHT_MIN + 1) == INFLIGHT_MIN
    assert windows.window(NORMAL_S, inflight=INFLIGHT_MIN + 1) > INFLIGHT_MIN


def test_the_same_of_both_bounds_is_fixed() -> None:
    limit = InFlight(64, 7)
    limit.reached = True
    for number in range(10 * WRITES_MIN):
        limit.observe(NORMAL_S if number % 2 else SLOW_S, 1, number / 10)
    limit.count_failure(1e6)
    assert limit.limit == limit.least == 7
