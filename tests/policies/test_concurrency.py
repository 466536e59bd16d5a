"""The limit of what is in flight finds what a store can take: properties, against a store that is simulated."""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, log
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saga.policies.concurrency import INFLIGHT_MIN, SLACK_S, TOLERANCE, WINDOW_S, InFlight

MOST = 1000


@dataclass
class Bench:
    """A worker with much to do, and a store with `servers` that each do one write at a time. Time is virtual, and what
    looks like chance is a function of the write's number."""

    service_s: Callable[[float], float]
    servers: int = 10_000
    shares: int = 1
    """Only this part of the limit can be in flight: as with one partition."""
    varies: bool = False
    limit: InFlight = field(default_factory=lambda: InFlight(INFLIGHT_MIN, MOST))
    now_s: float = 0.0
    todo: float = inf
    inflight: int = 0
    count: int = 0
    ended: list[tuple[float, float]] = field(default_factory=list)
    """End of each write, and the time that it took."""
    limits: list[tuple[float, int]] = field(default_factory=list)
    """Each change."""
    _free_s: list[float] = field(default_factory=list)
    _under_way: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._free_s = [0.0] * self.servers

    def run(self, until_s: float) -> "Bench":
        while True:
            self._begin_writes()
            if not self._under_way or self._under_way[0][0] > until_s:
                self.now_s = until_s
                return self
            self.now_s, began_s = heapq.heappop(self._under_way)
            self.limit.observe(self.now_s - began_s, self.inflight, self.now_s)
            self.inflight -= 1
            self.ended.append((self.now_s, self.now_s - began_s))
            if not self.limits or self.limits[-1][1] != self.limit.limit:
                self.limits.append((self.now_s, self.limit.limit))

    def _begin_writes(self) -> None:
        while self.todo and self.inflight < max(1, self.limit.limit // self.shares):
            self.count += 1
            self.todo -= 1
            self.inflight += 1
            served_s = max(self.now_s, heapq.heappop(self._free_s)) + self._takes_s()
            heapq.heappush(self._free_s, served_s)
            heapq.heappush(self._under_way, (served_s, self.now_s))
        if self.todo:
            self.limit.reached = True

    def _takes_s(self) -> float:
        spread = -log(1 - self.count * 7919 % 1000 / 1000) if self.varies else 1.0
        return self.service_s(self.now_s) * spread

    def rate(self, last_s: float) -> float:
        """Writes a second."""
        return sum(1 for when, _ in self.ended if when > self.now_s - last_s) / last_s

    def latency_s(self, last_s: float) -> float:
        return fmean(took for when, took in self.ended if when > self.now_s - last_s)

    def first(self, holds: Callable[[int], bool], after_s: float) -> float:
        """Time after `after_s` at which the limit was first so."""
        return next(when for when, limit in self.limits if when > after_s and holds(limit)) - after_s

    def took_s(self, burst: int) -> float:
        """Until the last of what began at a multiple of 3 s had ended."""
        return max(when for when, _ in self.ended if 3 * burst < when <= 3 * (burst + 1)) - 3 * burst

    def changes(self, after_s: float) -> list[int]:
        return [limit for when, limit in self.limits if when > after_s]


def always(seconds: float) -> Callable[[float], float]:
    return lambda _: seconds


def stepwise(first_s: float, *steps: tuple[float, float]) -> Callable[[float], float]:
    """A service time from the beginning, and others from given moments on."""

    def service_s(now_s: float) -> float:
        return [first_s, *(seconds for since_s, seconds in steps if now_s >= since_s)][-1]

    return service_s


# ---------------------------------------------------------------- a store of bounded parallelism


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize(("servers", "service_s"), [(100, 0.1), (200, 0.05), (300, 0.3), (100, 0.01)])
def test_a_crowded_store_is_kept_busy_without_a_long_queue(servers: int, service_s: float, *, varies: bool) -> None:
    bench = Bench(always(service_s), servers, varies=varies).run(12)
    assert bench.rate(4) >= 0.95 * servers / service_s
    assert bench.latency_s(4) <= TOLERANCE * service_s + SLACK_S
    assert servers <= bench.limit.limit <= servers * (TOLERANCE + SLACK_S / service_s)


def test_the_best_limit_is_found_within_seconds_and_kept() -> None:
    bench = Bench(always(0.1), 100).run(60)
    assert bench.changes(5) == []
    assert bench.limit.limit < MOST / 2


def test_a_store_that_one_partition_alone_makes_slow_is_found_as_well() -> None:
    bench = Bench(always(0.1), 100, shares=4).run(12)
    assert bench.rate(4) >= 950
    assert bench.latency_s(4) <= TOLERANCE * 0.1 + SLACK_S


def test_a_store_of_less_parallelism_than_the_least_is_not_given_much_more() -> None:
    bench = Bench(always(0.01), 8).run(60)
    least_s = INFLIGHT_MIN / 8 * 0.01
    assert bench.rate(4) >= 0.95 * 800
    assert bench.latency_s(4) <= TOLERANCE * least_s + SLACK_S


def test_our_own_event_loop_stays_busy_when_idle_writes_are_a_hundred_times_faster() -> None:
    """A loop that can do 4000 writes a second; alone, one takes no time worth mentioning."""
    bench = Bench(always(1 / 4000), servers=1)
    bench.todo = 100
    bench.run(5)
    assert bench.limit.limit == INFLIGHT_MIN
    bench.todo = inf
    bench.run(15)
    assert bench.rate(4) >= 0.95 * 4000
    assert 100 < bench.limit.limit < 400
    assert bench.latency_s(4) <= 2 * SLACK_S


# ---------------------------------------------------------------- a store that is far away


@pytest.mark.parametrize("varies", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("service_s", [0.02, 0.2])
def test_a_store_that_is_only_far_away_may_have_all(service_s: float, *, varies: bool) -> None:
    bench = Bench(always(service_s), varies=varies).run(6)
    assert bench.limit.limit == MOST
    assert bench.changes(4) == []


@pytest.mark.parametrize("service_s", [0.0, 0.001])
def test_a_store_that_is_near_may_have_all(service_s: float) -> None:
    bench = Bench(always(service_s))
    for tenths in range(1, 60):
        bench.todo = 1500.0
        bench.run(tenths / 10)
    assert bench.limit.limit == MOST


def test_a_single_partition_can_raise_the_limit_to_its_maximum() -> None:
    assert Bench(always(0.02), shares=4).run(3).limit.limit == MOST


@pytest.mark.parametrize(
    ("service_s", "varies"), [(0.3, True), pytest.param(0.6, False, marks=pytest.mark.slow), (2.0, True)]
)
def test_a_store_that_has_moved_away_is_normal_after_two_minutes_and_not_at_once(
    service_s: float, *, varies: bool
) -> None:
    bench = Bench(stepwise(0.1, (3, service_s)), varies=varies).run(20)
    assert bench.limit.limit == INFLIGHT_MIN
    assert bench.run(123).limit.limit == MOST


# ---------------------------------------------------------------- a store that becomes slow


@pytest.mark.parametrize("varies", [False, True])
def test_a_store_that_becomes_slow_soon_has_only_the_least_and_all_again_when_it_has_recovered(*, varies: bool) -> None:
    bench = Bench(stepwise(0.05, (3, 2.0), (25, 0.05)), varies=varies).run(24)
    assert bench.first(lambda limit: limit <= 0.5 * MOST, after_s=3) <= 2 * (2.0 + WINDOW_S)
    assert bench.first(lambda limit: limit == INFLIGHT_MIN, after_s=3) <= 4 * 2 * (2.0 + WINDOW_S)
    assert bench.limit.limit == INFLIGHT_MIN
    bench.run(40)
    assert bench.first(lambda limit: limit >= 0.9 * MOST, after_s=25) <= 10


def test_slowness_is_seen_when_little_is_in_flight_too() -> None:
    bench = Bench(stepwise(0.02, (3, 2.0))).run(2.5)
    assert bench.limit.limit == MOST
    for second in range(30):
        bench.todo = 40.0
        bench.run(3 + second)
    assert bench.limit.limit < MOST / 4


def test_a_few_writes_that_hung_are_not_a_slow_store() -> None:
    limit = InFlight(INFLIGHT_MIN, MOST)
    for number in range(20_000):
        limit.reached = True
        limit.observe(10.0 if number > 5000 and number % 50 == 0 else 0.02, limit.limit, number / 2000)
    assert limit.limit == MOST


def test_forty_slow_writes_are_not_a_slow_store_and_hundred_are() -> None:
    bench = Bench(always(0.02)).run(3)
    bench.limit.count_failure(3.0)
    before = bench.limit.limit
    for number in range(40):
        bench.limit.observe(10.0, 1, 3.0 + number)
    assert bench.limit.limit == before
    for number in range(60):
        bench.limit.observe(10.0, 1, 43.0 + number)
    assert bench.limit.limit < before


# ---------------------------------------------------------------- failures


def test_failures_halve_once_a_window_down_to_the_least() -> None:
    bench = Bench(always(0.02)).run(3)
    for _ in range(1000):
        bench.limit.count_failure(3.0)
    assert bench.limit.limit == MOST // 2
    limits = []
    for tenths in range(1, 30):
        bench.limit.count_failure(3 + tenths / 10)
        limits.append(bench.limit.limit)
    assert limits[:2] == [MOST // 2] * 2
    assert MOST // 4 in limits
    assert limits[-1] == INFLIGHT_MIN


def test_after_a_failure_it_grows_again_by_small_steps() -> None:
    bench = Bench(always(0.02)).run(3)
    bench.limit.count_failure(3.0)
    bench.run(10)
    after = bench.changes(3)
    assert after[-1] == MOST
    assert all(now <= before * 1.25 + 1 for before, now in pairwise([MOST // 2, *after[1:]]))


def test_failures_alone_do_not_teach_what_is_normal() -> None:
    limit = InFlight(INFLIGHT_MIN, MOST)
    for second in range(100):
        limit.count_failure(second)
    assert (limit.limit, limit.baseline_s) == (INFLIGHT_MIN, inf)


# ---------------------------------------------------------------- use, bursts, bounds


def test_a_limit_that_is_not_felt_does_not_grow() -> None:
    limit = InFlight(INFLIGHT_MIN, MOST)
    for number in range(100_000):
        limit.observe(0.01, INFLIGHT_MIN // 2, number / 1000)
    assert limit.limit == INFLIGHT_MIN


def test_reaching_the_limit_once_does_not_raise_it_for_ever() -> None:
    limit = InFlight(INFLIGHT_MIN, MOST)
    limit.reached = True
    for number in range(100_000):
        limit.observe(0.01, INFLIGHT_MIN, number / 1000)
    assert INFLIGHT_MIN < limit.limit <= 2 * INFLIGHT_MIN + 1


@pytest.mark.parametrize("size", [300, *(pytest.param(size, marks=pytest.mark.slow) for size in (1000, 2000)), 5000])
@pytest.mark.parametrize("servers", [50, 70, 100])
def test_bursts_are_done_as_fast_as_can_be_and_hardly_make_it_swing(servers: int, size: int) -> None:
    bench = Bench(always(0.02), servers)
    for burst in range(30):
        bench.todo = float(size)
        bench.run(3.0 * (burst + 1))
    late = [limit for when, limit in bench.limits if when > 45] or [bench.limit.limit]
    assert max(late) <= 2 * min(late)
    assert all(size / servers * 0.02 / 0.95 + 0.02 >= bench.took_s(burst) for burst in range(15, 30))


def test_a_quiet_night_does_not_lend_its_length_to_the_first_slow_window() -> None:
    bench = Bench(always(0.02)).run(3)
    bench.limit.count_failure(3.0)  # begins a window
    before = bench.limit.limit
    for number in range(200):
        bench.limit.observe(2.0, 10, 30_000.0 + number / 100)
    assert bench.limit.limit < before
    assert bench.limit.baseline_s < 0.7


SECONDS = st.floats(min_value=0, max_value=100)
OBSERVED = st.tuples(SECONDS, st.integers(0, 2 * MOST), st.floats(0, 10), st.booleans(), st.integers(0, 200))


def fed(limit: InFlight, observed: Iterable[tuple[float, int, float, bool, int]]) -> list[int]:
    """The limits on the way; each observation is repeated, or is a failure if it is to be repeated 0 times."""
    now_s, seen = 0.0, []
    for latency_s, inflight, later_s, reached, times in observed:
        now_s += later_s
        limit.reached |= reached
        for _ in range(times):
            now_s += 0.002
            limit.observe(latency_s, inflight, now_s)
        if not times:
            limit.count_failure(now_s)
        seen.append(limit.limit)
    return seen


@given(st.integers(1, 300), st.integers(1, 300), st.lists(OBSERVED, max_size=30))
def test_the_limit_stays_within_its_bounds_and_is_deterministic(
    least: int, most: int, observed: list[tuple[float, int, float, bool, int]]
) -> None:
    limits = fed(InFlight(least, most), observed)
    assert all(min(least, most) <= limit <= most for limit in limits)
    assert fed(InFlight(least, most), observed) == limits


@given(st.lists(OBSERVED, max_size=30))
def test_equal_bounds_fix_it(observed: list[tuple[float, int, float, bool, int]]) -> None:
    assert set(fed(InFlight(100, 100), observed)) <= {100}


def test_a_least_beyond_the_most_counts_as_the_most() -> None:
    assert InFlight(64, 7).limit == 7
