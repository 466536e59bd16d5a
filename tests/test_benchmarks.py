"""The benchmarks still measure what is there: each part that knows tables or parts of the toolkit runs, on little."""

import pytest

from benchmarks import failing, parts


@pytest.mark.parametrize("part", [parts.messages, parts.hot_saga, parts.chain, parts.one_at_a_time])
def test_a_part_of_the_benchmarks_runs(part: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MESSAGES", 200), ("ROUNDS", 1), ("SAGAS", 20), ("FEW", 5), ("HOT", 120)):
        monkeypatch.setattr(parts, name, value)
    assert callable(part)
    figures = part()
    assert figures
    assert all(figure.value >= 0 for figure in figures)


def test_the_part_with_failing_sagas_runs_and_keeps_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("OTHERS", 40), ("ROUNDS", 1), ("OUTAGE_S", 0.5)):
        monkeypatch.setattr(failing, name, value)
    figures = {figure.name: figure.value for figure in failing.failing_sagas()}
    assert figures["g attempts that failed, of each failing saga"] >= 1
