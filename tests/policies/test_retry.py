"""Delays between attempts of a failed handler, in place or parked, and retry settings that are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saga import DeclarationError, Retry
from saga.policies.retry import DELAY_S_LONGEST, delay_s, parks, without_end

SECONDS = st.floats(min_value=0, max_value=1e6)
RETRIES = st.builds(
    Retry, attempts_max=st.integers(1, 1000), delay_s_first=SECONDS, delay_s_max=SECONDS, in_place_s=SECONDS
)
CHANCES = st.floats(min_value=0, max_value=1)


@given(RETRIES, st.integers(1, 10**9), CHANCES)
def test_a_delay_is_within_its_limit_and_spread_by_up_to_a_half(retry: Retry, attempt: int, chance: float) -> None:
    longest = delay_s(retry, attempt, 0)
    assert longest <= retry.delay_s_max
    assert longest / 2 <= delay_s(retry, attempt, chance) <= longest
    assert delay_s(retry, attempt, 1) == longest / 2


@given(RETRIES, st.integers(1, 60))
def test_each_delay_is_twice_the_one_before_until_the_limit(retry: Retry, attempt: int) -> None:
    now, then = (delay_s(retry, a, 0) for a in (attempt, attempt + 1))
    assert then == min(now * 2, retry.delay_s_max)


def test_the_first_delay_is_the_first() -> None:
    assert delay_s(Retry(delay_s_first=3), 1, 0) == 3


def test_the_default_retries_outlive_an_outage_of_an_hour_for_any_jitter() -> None:
    waits = [sum(delay_s(Retry(), n, chance) for n in range(1, Retry().attempts_max)) for chance in (0, 1)]
    assert 3600 < waits[1] < waits[0]
    one_less = sum(delay_s(Retry(), n, 1) for n in range(1, Retry().attempts_max - 1))
    assert one_less < 3600, "fewer attempts would not do"
    assert "outlive an outage of an hour" in (Retry.__doc__ or "").replace("\n    ", " ")


# ---------------------------------------------------------------- in place, or parked


def attempts_in_place(retry: Retry) -> int:
    """Attempts up to the one whose delay parks the saga."""
    return next(attempt for attempt in range(1, 1000) if parks(retry, attempt))


def test_the_defaults_wait_in_place_for_less_than_two_seconds_and_then_park() -> None:
    assert attempts_in_place(Retry()) == 4
    assert sum(delay_s(Retry(), attempt, 0) for attempt in (1, 2, 3)) <= Retry().in_place_s == 2


def test_a_delay_that_ends_just_in_time_is_waited_for_in_place() -> None:
    assert not parks(Retry(delay_s_first=2), 1)
    assert parks(Retry(delay_s_first=2.01), 1)
    assert not parks(Retry(delay_s_first=0.5, in_place_s=1.5), 2)
    assert parks(Retry(delay_s_first=0.5, in_place_s=1.5), 3)


def test_delays_at_their_limit_count_as_long_as_they_are() -> None:
    assert attempts_in_place(Retry(delay_s_first=1, delay_s_max=1, in_place_s=10)) == 11
    assert attempts_in_place(Retry(in_place_s=0)) == 1
    assert not parks(Retry(in_place_s=0, delay_s_max=0), 1000), "no delay, nothing to wait for"


@given(RETRIES, st.integers(1, 60))
def test_a_run_that_was_parked_is_parked_again(retry: Retry, attempt: int) -> None:
    assert parks(retry, attempt) <= parks(retry, attempt + 1)


@given(RETRIES)
def test_unlimited_attempts_are_parked_in_the_end_with_delays_of_at_least_half_a_second(
    retry: Retry,
) -> None:
    endless = without_end(retry)
    assert parks(endless, round(retry.in_place_s) + 1000) or retry.in_place_s > 1000
    assert delay_s(endless, 1, chance=1) >= 0.5
    assert delay_s(endless, 10, chance=0) == max(delay_s(retry, 10, chance=0), min(512, max(retry.delay_s_max, 1)))


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("attempts_max", [0, -1, 1.5, float("nan"), True, "3"])
def test_less_than_one_attempt_is_refused(attempts_max: int) -> None:
    with pytest.raises(DeclarationError, match=r"Retry\(attempts_max=.*give a whole number from 1 on"):
        Retry(attempts_max=attempts_max)


@pytest.mark.parametrize("delay", [-0.1, float("nan"), float("inf"), None, True])
def test_a_delay_that_is_no_time_is_refused(delay: float) -> None:
    with pytest.raises(DeclarationError, match=r"Retry\(delay_s_first=.*give seconds, from 0 to 31536000, a year"):
        Retry(delay_s_first=delay)
    with pytest.raises(DeclarationError, match=r"Retry\(delay_s_max=.*give seconds, from 0 to 31536000, a year"):
        Retry(delay_s_max=delay)
    with pytest.raises(DeclarationError, match=r"Retry\(in_place_s=.*give seconds, 0 or more"):
        Retry(in_place_s=delay)


@pytest.mark.parametrize("delay", [DELAY_S_LONGEST + 1, 1e308, 10**400])
def test_a_delay_of_more_than_a_year_is_refused(delay: float) -> None:
    with pytest.raises(DeclarationError, match=r"Retry\(delay_s_first=.*give seconds, from 0 to 31536000, a year"):
        Retry(delay_s_first=delay)
    with pytest.raises(DeclarationError, match=r"Retry\(delay_s_max=.*give seconds, from 0 to 31536000, a year"):
        Retry(delay_s_max=delay)
    assert Retry(delay_s_first=DELAY_S_LONGEST, delay_s_max=DELAY_S_LONGEST, in_place_s=delay).in_place_s == delay
    assert Retry(attempts_max=10**400).attempts_max == 10**400


def test_never_is_a_tuple_of_exceptions() -> None:
    assert Retry(never=(KeyError, OSError)).never == (KeyError, OSError)
    with pytest.raises(DeclarationError, match=r"of one it is \(KeyError,\)"):
        Retry(never=KeyError)  # type: ignore[arg-type] # the mistake
    with pytest.raises(DeclarationError, match="give a tuple of exception classes"):
        Retry(never=(KeyboardInterrupt,))  # type: ignore[arg-type] # the mistake
