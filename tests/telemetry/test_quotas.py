"""The number of similar log lines a minute is bounded, and suppressed ones are counted."""

from hypothesis import given
from hypothesis import strategies as st

from saga.telemetry.logs import KINDS_MAX, LINES_MAX, OTHERS, WITHIN_S, LogQuotas, SuppressedLines
from tests.telemetry.workers import SetClock


def written(quotas: LogQuotas, kind: str, times: int) -> int:
    return sum(quotas.has_room(kind) for _ in range(times))


def test_the_first_lines_of_a_kind_are_written_and_the_others_are_counted() -> None:
    clock = SetClock()
    quotas = LogQuotas(clock)
    assert written(quotas, "a", 3 * LINES_MAX) == LINES_MAX
    assert written(quotas, "b", 1) == 1
    assert quotas.held_until_s == clock.at_s + WITHIN_S
    assert quotas.take_suppressed() == []
    clock.at_s += WITHIN_S
    assert quotas.take_suppressed() == [SuppressedLines("a", 2 * LINES_MAX, WITHIN_S)]
    assert written(quotas, "a", LINES_MAX + 1) == LINES_MAX


def test_a_logger_with_few_lines_is_never_throttled() -> None:
    clock = SetClock()
    quotas = LogQuotas(clock)
    for _ in range(20 * LINES_MAX):
        assert quotas.has_room("a")
        clock.at_s += WITHIN_S / LINES_MAX + 0.001


def test_all_that_was_held_back_can_be_had_at_the_end() -> None:
    quotas = LogQuotas(SetClock())
    written(quotas, "a", LINES_MAX + 5)
    assert quotas.take_suppressed(all_=True) == [SuppressedLines("a", 5, 0.0)]


def test_kinds_without_end_share_one_quota_and_take_no_memory() -> None:
    clock = SetClock()
    quotas = LogQuotas(clock)
    assert sum(quotas.has_room(f"kind {n}") for n in range(10 * KINDS_MAX)) == KINDS_MAX + LINES_MAX
    clock.at_s += WITHIN_S
    (held,) = quotas.take_suppressed()
    assert held.kind == OTHERS
    assert quotas.has_room("another")  # those that are quiet give up their place
    assert len(quotas._quotas) <= KINDS_MAX + 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 40)), max_size=300))
def test_every_line_is_written_or_counted_and_no_window_has_too_many(lines: list[tuple[str, float]]) -> None:
    clock = SetClock()
    quotas, wrote, held = LogQuotas(clock), dict[str, list[float]](), 0
    for kind, pause_s in lines:
        clock.at_s += pause_s / 10
        held += sum(each.lines for each in quotas.take_suppressed())
        if quotas.has_room(kind):
            wrote.setdefault(kind, []).append(clock.at_s)
    held += sum(each.lines for each in quotas.take_suppressed(all_=True))
    assert held + sum(map(len, wrote.values())) == len(lines)
    for times in wrote.values():
        for first, later in zip(times, times[2 * LINES_MAX :], strict=False):
            assert later - first >= WITHIN_S
