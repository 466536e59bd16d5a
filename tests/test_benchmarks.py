"""The benchmarks still measure what is there: each part that knows tables or parts of the toolkit runs, on little."""

import pytest

from benchmarks import (
    compaction,
    failing,
    instructions,
    many_contracts,
    message_path,
    monitor,
    outages,
    parts,
    published_transitions,
    watched,
)
from saga.monitor.queries import Queries
from saga.monitor.read_model import ReadModel
from saga.monitor.views import PageRequest, SagaFilter


@pytest.mark.parametrize("part", [parts.messages, parts.hot_saga, parts.chain, parts.one_at_a_time])
def test_a_part_of_the_benchmarks_runs(part: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MESSAGES", 200), ("ROUNDS", 1), ("SAGAS", 20), ("FEW", 5), ("HOT", 120)):
        monkeypatch.setattr(parts, name, value)
    assert callable(part)
    figures = part()
    assert figures
    assert all(figure.value >= 0 for figure in figures)


def test_the_part_with_failing_sagas_runs_and_keeps_their_order() -> None:
    figures = {figure.name: figure.value for figure in failing.failing_sagas(others=40, rounds=1, outage_s=0.5)}
    assert figures["g attempts that failed, of each failing saga"] >= 1


def test_the_part_with_a_bank_that_is_away_asks_it_less_with_a_breaker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ASKING", 40), ("AWAY_S", 1.0), ("HANGS_S", 0.02), ("OPEN_S", 0.5)):
        monkeypatch.setattr(outages, name, value)
    figures = {figure.name: figure.value for figure in outages.breaker()}
    assert 0 < figures["j calls in vain, with a breaker"] <= figures["j calls in vain, without a breaker"]


def test_the_part_with_a_saga_of_very_many_transitions_runs_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MARKS", (60, 120, 240)), ("WINDOW", 50)):
        monkeypatch.setattr(compaction, name, value)
    figures = {figure.name: figure.value for figure in compaction.compaction()}
    for what in ("results", "undoing", "job"):
        assert 0 < figures[f"k {what}: document, at most, at 240"] < 100


@pytest.mark.slow
def test_the_part_that_counts_instructions_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FEW", 10), ("MANY", 40), ("IN_FLIGHT", 10)):
        monkeypatch.setattr(instructions, name, value)
    monkeypatch.setattr(parts, "IN_FLIGHT", 10)
    chain, example, published = (figure.value for figure in instructions.instructions())
    assert published > chain > 10_000
    assert example > chain


def test_the_part_that_follows_a_message_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FOLLOWED", 1), ("IDLE_S", 0.5), ("AFTER_S", 0.2)):
        monkeypatch.setattr(message_path, name, value)
    calls, functions, files, moves, returns, engine_calls, engine_files = (
        figure.value for figure in message_path.message_path()
    )
    assert calls >= functions > files > 10
    assert calls > moves > returns > 0
    assert calls > engine_calls > 10
    assert files > engine_files > 10


@pytest.mark.slow
def test_the_part_with_very_many_contracts_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_contracts, "CONTRACTS", 2)
    assert all(figure.value > 0 for figure in many_contracts.contracts())


def test_the_part_with_the_monitor_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SAGAS", 400), ("THROUGH", 200), ("SMALL", 20), ("TIMES", 2)):
        monkeypatch.setattr(monitor, name, value)
    assert all(figure.value >= 0 for figure in monitor.monitor())


def test_sagas_that_are_copied_are_as_if_they_had_been_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "STUCK", 1)  # of the others that run each has a deadline
    begin_ms, due_ms, count = 1_795_270_000_000, 1_795_270_060_000, 90
    copied, folded = watched.population(count, begin_ms, due_ms), ReadModel()
    for n in range(count):
        watched.fold(folded, n, begin_ms, due_ms)

    def everything(folds: ReadModel) -> list[object]:
        views, later_ms = Queries(folds), due_ms + 600_000
        return [
            *(views.saga(watched.name_of(n), later_ms) for n in range(count)),
            *(
                views.sagas(which, PageRequest(limit=7))
                for which in (SagaFilter(), SagaFilter(outcome="none"), SagaFilter(open=True))
            ),
            views.stuck(later_ms),
            folds.taken,
        ]

    copied.waits = folded.waits  # sums, as rates are: those of the sagas that are folded
    assert everything(copied) == everything(folded)
    assert len(Queries(copied).stuck(due_ms + 600_000).sagas) == 5


@pytest.mark.slow
def test_the_part_with_published_transitions_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MESSAGES", 200), ("SAGAS", 20)):
        monkeypatch.setattr(parts, name, value)
    monkeypatch.setattr(published_transitions, "ROUNDS", 1)
    assert all(figure.value > 0 for figure in published_transitions.transitions())
