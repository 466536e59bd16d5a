"""Waits of a failed handler, and retries that are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saga import DeclarationError, Retry
from saga.policies.retry import delay_s

SECONDS = st.floats(min_value=0, max_value=1e6)
RETRIES = st.builds(Retry, attempts_max=st.integers(1, 1000), delay_s_first=SECONDS, delay_s_max=SECONDS)
CHANCES = st.floats(min_value=0, max_value=1)


@given(RETRIES, st.integers(1, 10**9), CHANCES, SECONDS)
def test_a_delay_is_within_its_limits_and_spread_by_up_to_a_half(
    retry: Retry, attempt: int, chance: float, limit_s: float
) -> None:
    longest = delay_s(retry, attempt, 0, limit_s=limit_s)
    assert longest <= min(retry.delay_s_max, limit_s)
    assert longest / 2 <= delay_s(retry, attempt, chance, limit_s=limit_s) <= longest
    assert delay_s(retry, attempt, 1, limit_s=limit_s) == longest / 2


@given(RETRIES, st.integers(1, 60), SECONDS)
def test_each_delay_is_twice_the_one_before_until_a_limit(retry: Retry, attempt: int, limit_s: float) -> None:
    now, then = (delay_s(retry, a, 0, limit_s=limit_s) for a in (attempt, attempt + 1))
    assert then == min(now * 2, retry.delay_s_max, limit_s)


def test_the_first_delay_is_the_first() -> None:
    assert delay_s(Retry(delay_s_first=3), 1, 0) == 3


def test_the_defaults_outlive_an_outage_of_two_to_four_minutes_as_the_docstring_says() -> None:
    waits = [sum(delay_s(Retry(), n, chance) for n in range(1, Retry().attempts_max)) for chance in (0, 1)]
    assert 120 < waits[1] < waits[0]
    assert 240 < waits[0] < 300
    assert "two to four minutes" in (Retry.__doc__ or "").replace("\n    ", " ")


@pytest.mark.parametrize("attempts_max", [0, -1, 1.5, float("nan"), True, "3"])
def test_less_than_one_attempt_is_refused(attempts_max: int) -> None:
    with pytest.raises(DeclarationError, match=r"Retry\(attempts_max=.*give a whole number from 1 on"):
        Retry(attempts_max=attempts_max)


@pytest.mark.parametrize("delay", [-0.1, float("nan"), float("inf"), None])
def test_a_delay_that_is_no_time_is_refused(delay: float) -> None:
    with pytest.raises(DeclarationError, match=r"Retry\(delay_s_first=.*give seconds, 0 or more"):
        Retry(delay_s_first=delay)
    with pytest.raises(DeclarationError, match=r"Retry\(delay_s_max=.*give seconds, 0 or more"):
        Retry(delay_s_max=delay)


def test_never_is_a_tuple_of_exceptions() -> None:
    assert Retry(never=(KeyError, OSError)).never == (KeyError, OSError)
    with pytest.raises(DeclarationError, match=r"of one it is \(KeyError,\)"):
        Retry(never=KeyError)  # type: ignore[arg-type] # the mistake
    with pytest.raises(DeclarationError, match="give a tuple of exception classes"):
        Retry(never=(KeyboardInterrupt,))  # type: ignore[arg-type] # the mistake
