"""Circuit breaker of a resource as a state machine: when it opens, what it lets through, when it closes."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saga import Breaker, DeclarationError
from saga.policies.breaker import TRIED_S, Circuit, admit, end_call, left_s

RULES = Breaker(failures=3, within_s=10, part=0.5, open_s=20)


@dataclass
class Calls:
    """Calls of a resource, one after another."""

    rules: Breaker = RULES
    circuit: Circuit = field(default_factory=Circuit)

    def begins(self, now_s: float) -> int | None:
        circuit = admit(self.circuit, now_s)
        if circuit is None:
            return None
        self.circuit = circuit
        return circuit.turns

    def ends(self, call: int, failed: bool | None, now_s: float) -> str:
        self.circuit = end_call(self.rules, self.circuit, call, failed, now_s)
        return self.circuit.state

    def made(self, failed: bool | None, now_s: float) -> str:
        """One call that is let through and ends at once."""
        call = self.begins(now_s)
        assert call is not None
        return self.ends(call, failed, now_s)

    def opened(self, now_s: float = 0) -> "Calls":
        for _ in range(self.rules.failures):
            self.made(True, now_s)
        assert self.circuit.state == "open"
        return self


def test_a_breaker_opens_at_its_number_of_failures_within_its_time() -> None:
    calls = Calls()
    assert [calls.made(True, now_s) for now_s in (0, 4, 8)] == ["closed", "closed", "open"]
    calls = Calls()
    assert [calls.made(True, now_s) for now_s in (0, 9, 18, 27, 36)] == ["closed"] * 5


def test_a_breaker_does_not_open_while_most_calls_succeed() -> None:
    calls = Calls()
    assert {calls.made(False, 1) for _ in range(9)} == {"closed"}
    assert [calls.made(True, 1) for _ in range(9)] == ["closed"] * 8 + ["open"]


def test_successes_that_are_too_old_do_not_keep_it_closed() -> None:
    calls = Calls()
    for _ in range(100):
        calls.made(False, 0)
    assert [calls.made(True, 12) for _ in range(3)] == ["closed", "closed", "open"]


def test_successes_and_cancelled_calls_do_not_open_a_breaker() -> None:
    calls = Calls(Breaker(failures=1, part=0))
    assert [calls.made(failed, 0) for failed in (False, None, False)] == ["closed"] * 3
    assert sum(s.ended for s in calls.circuit.slices) == 2
    assert calls.made(True, 0) == "open"


def test_an_open_one_lets_nothing_through_until_its_time_and_then_one() -> None:
    calls = Calls().opened(now_s=5)
    assert (calls.begins(5), left_s(calls.circuit, 5)) == (None, 20)
    assert (calls.begins(24.9), left_s(calls.circuit, 24)) == (None, 1)
    assert left_s(calls.circuit, 25) == 0
    first = calls.begins(25)
    assert (first is None, calls.circuit.state) == (False, "half-open")
    assert (calls.begins(25), calls.begins(99), left_s(calls.circuit, 26)) == (None, None, TRIED_S)


def test_the_one_that_succeeds_closes_it_and_one_that_fails_opens_it_for_as_long_again() -> None:
    calls = Calls().opened()
    assert calls.made(True, 20) == "open"
    assert (calls.begins(39), left_s(calls.circuit, 39)) == (None, 1)
    assert calls.made(False, 40) == "closed"
    assert [calls.made(True, 41) for _ in range(3)] == ["closed", "closed", "open"], "it begins to count again"


def test_the_one_that_is_given_up_makes_room_for_another() -> None:
    calls = Calls().opened()
    assert calls.made(None, 20) == "half-open"
    assert left_s(calls.circuit, 20) == 0
    assert calls.made(False, 20) == "closed"


def test_a_call_from_before_a_state_change_does_not_count() -> None:
    calls = Calls()
    early = calls.begins(0)
    assert early is not None
    calls.opened()
    assert calls.ends(early, False, 1) == "open"
    tries = calls.begins(20)
    assert tries is not None
    assert calls.ends(early, False, 21) == "half-open"
    assert calls.ends(tries, False, 22) == "closed"
    assert [calls.ends(early, True, 22) for _ in range(9)] == ["closed"] * 9


@st.composite
def rules(draw: st.DrawFn) -> Breaker:
    seconds = st.floats(0.01, 100)
    return Breaker(
        failures=draw(st.integers(1, 5)), within_s=draw(seconds), part=draw(st.floats(0, 1)), open_s=draw(seconds)
    )


EVENTS = st.lists(
    st.tuples(st.sampled_from(["begins", "succeeds", "fails", "given up"]), st.floats(0, 30)), max_size=60
)


@given(rules(), EVENTS)
def test_an_open_breaker_admits_one_call_at_a_time_and_never_stays_open_for_ever(
    rules: Breaker, events: list[tuple[str, float]]
) -> None:
    calls, under_way, now_s = Calls(rules), list[tuple[int, str]](), 0.0
    for what, passes_s in events:
        now_s += passes_s
        if what == "begins":
            shut = left_s(calls.circuit, now_s) > 0
            call = calls.begins(now_s)
            assert (call is None) == shut
            if call is not None:
                under_way.append((call, calls.circuit.state))
        elif under_way:
            call, _ = under_way.pop(0)
            calls.ends(call, {"succeeds": False, "fails": True, "given up": None}[what], now_s)
        trying = [call for call, state in under_way if state == "half-open" and call == calls.circuit.turns]
        assert len(trying) == (1 if calls.circuit.is_trying else 0)
        assert calls.circuit.state == "half-open" or not trying
        assert 0 <= left_s(calls.circuit, now_s) <= max(rules.open_s, TRIED_S) + 1e-6
        assert sum(s.failed for s in calls.circuit.slices) <= sum(s.ended for s in calls.circuit.slices)
    for call, _ in under_way:
        calls.ends(call, None, now_s)
    assert calls.begins(now_s + rules.open_s + 1e-6) is not None, "once all have ended it is asked again"


@given(rules(), EVENTS)
def test_a_breaker_opens_only_after_enough_failures_since_it_closed(
    rules: Breaker, events: list[tuple[str, float]]
) -> None:
    calls, now_s, failures = Calls(rules), 0.0, list[float]()
    for what, passes_s in events:
        now_s += passes_s
        before, call = calls.circuit.state, calls.begins(now_s)
        if call is None:
            continue
        if what == "fails" and before == "closed":
            failures.append(now_s)
        state = calls.ends(call, what == "fails", now_s)
        if state == "open" and before == "closed":
            assert len([f for f in failures if f > now_s - rules.within_s * 1.01]) >= rules.failures
        if state != "closed":
            failures.clear()


@pytest.mark.parametrize("failures", [0, -1, 1.5, True, "3", None])
def test_fewer_than_one_failure_is_refused(failures: int) -> None:
    with pytest.raises(DeclarationError, match=r"Breaker\(failures=.*give a whole number from 1 on"):
        Breaker(failures=failures)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), None, True])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(DeclarationError, match=r"Breaker\(within_s=.*give seconds, more than 0"):
        Breaker(within_s=seconds)
    with pytest.raises(DeclarationError, match=r"Breaker\(open_s=.*give seconds, more than 0"):
        Breaker(open_s=seconds)


@pytest.mark.parametrize("part", [-0.1, 1.1, float("nan"), None])
def test_a_part_that_is_none_is_refused(part: float) -> None:
    with pytest.raises(DeclarationError, match=r"Breaker\(part=.*give a number from 0 to 1"):
        Breaker(part=part)
