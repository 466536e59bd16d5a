"""Limits of calls: how many at once, how many a second, and when a postponed call returns."""

from hypothesis import given
from hypothesis import strategies as st

from saga.policies.concurrency import (
    AWAY_S_MAX,
    BURST_S,
    LASTS_S,
    STAYS_S,
    CallQueue,
    end_turn,
    postpone,
    postponed_s,
    reserve,
    spread_of,
    waits_in_memory,
)

RATES = st.floats(0.01, 10_000)
TIMES = st.lists(st.floats(0, 5), min_size=1, max_size=40)


@given(RATES, TIMES)
def test_never_more_calls_begin_than_the_rate_allows_in_any_time(rate: float, between: list[float]) -> None:
    line, now_s, begun = CallQueue(), 0.0, list[float]()
    for passes_s in between:
        now_s += passes_s
        line, begins_s = reserve(line, rate, now_s)
        assert begins_s >= now_s
        begun.append(begins_s)
    assert begun == sorted(begun), "first come, first served"
    for n, first_s in enumerate(begun):
        for count, last_s in enumerate(begun[n:]):
            assert count <= rate * (last_s - first_s + BURST_S) * 1.000001 + 1


@given(RATES)
def test_a_call_that_comes_after_a_quiet_time_begins_at_once(rate: float) -> None:
    line, _ = reserve(CallQueue(), rate, 0)
    assert reserve(line, rate, 1 / rate + 1)[1] == 1 / rate + 1


def test_a_tenth_of_a_second_may_begin_at_once() -> None:
    line, begun = CallQueue(), list[float]()
    for _ in range(12):
        line, begins_s = reserve(line, 100, 50)
        begun.append(round(begins_s, 6))
    assert begun == [50] * 10 + [50.01, 50.02]


def test_running_and_waiting_are_counted() -> None:
    line = CallQueue().runs().runs().waits(1).waits(1).waits(-1)
    assert (line.running, line.waiting) == (2, 1)
    line = end_turn(line, None)
    assert (line.running, line.lasts_s) == (1, LASTS_S), "what was given up says nothing of how long it lasts"
    for _ in range(50):
        line = end_turn(line.runs(), 3.0)
    assert 2.9 < line.lasts_s <= 3.0


@given(st.integers(1, 50), st.integers(0, 100), st.floats(0.001, 20), st.integers(1, 200))
def test_postponed_calls_return_one_by_one_behind_waiting_ones(
    at_once: int, waiting: int, lasts_s: float, count: int
) -> None:
    line, lefts = CallQueue(waiting=waiting, lasts_s=lasts_s), list[float]()
    for _ in range(count):
        line, left_s = postpone(line, at_once, None, 7)
        lefts.append(left_s)
    assert lefts == sorted(lefts)
    assert min(AWAY_S_MAX, waiting * lasts_s / at_once) <= lefts[0] + 1e-6
    assert lefts[-1] <= AWAY_S_MAX + 1e-6


def test_the_slower_of_two_limits_sets_when_postponed_calls_return() -> None:
    assert postpone(CallQueue(lasts_s=1), 2, 0.5, 0)[1] == 2
    assert postpone(CallQueue(lasts_s=9), 2, 0.5, 0)[1] == 4.5
    assert postpone(CallQueue(lasts_s=9), None, 0.5, 0)[1] == 2
    assert round(postpone(CallQueue(back_s=3), 1, None, 100)[1], 6) == LASTS_S, "those of long ago are back"


def test_a_message_stays_in_memory_for_two_seconds_of_its_turn_in_all() -> None:
    assert waits_in_memory(STAYS_S, 0)
    assert not waits_in_memory(STAYS_S, 0.1)
    assert waits_in_memory(0.5, 1.5)
    assert not waits_in_memory(0, 2.1)


@given(st.floats(0, 1e6), st.floats(0, 1))
def test_nothing_is_away_for_more_than_a_minute_nor_asks_without_a_pause(left: float, spread: float) -> None:
    away = postponed_s(left, spread)
    assert 0.2 <= away <= 60
    assert away >= min(left, 45)
    assert postponed_s(left, 1) - postponed_s(left, 0) == min(postponed_s(left, 0), 60 - postponed_s(left, 0))


def test_sagas_are_spread_evenly() -> None:
    spreads = [spread_of(f"order-{n}", 1) for n in range(1000)]
    assert all(0 <= spread <= 1 for spread in spreads)
    assert all(150 < len([s for s in spreads if n <= 5 * s < n + 1]) < 250 for n in range(5))
    assert spread_of("order-1", 1) != spread_of("order-1", 2)
