"""All runs of one scenario: seeds, a crash at every point, and what is left of a failing run once it is shrunk."""

from dataclasses import replace

import pytest

from saga.errors import SagaError
from saga.testing import World, faults
from saga.testing.decorators import Crashes, Mode, Seeds
from saga.testing.fault_plans import Schedule
from saga.testing.simulation import runs as module
from saga.testing.simulation.runs import (
    RUNS_MAX,
    FailedScenario,
    Run,
    RunOptions,
    Scenario,
    Tally,
    find_crash_points,
    run,
    run_all,
    shrink,
)
from services.payment import payment
from services.payment.bank import Bank
from services.simulate import an_order as books_order
from tests.services.waiting_order import order
from tests.testing.plugin.buggy_service import Drawer, an_order, scenario, till

MANY = faults.of("delay", "duplicate", rate=0.2)
BREAKING = MANY | faults.of("crash", rate=0.2)


def tried(asked: Scenario, mode: Mode, tally: Tally | None = None) -> FailedScenario | None:
    return run_all(asked, mode, Tally() if tally is None else tally, RunOptions())


def failing(asked: Scenario, mode: Mode) -> FailedScenario:
    failed = tried(asked, mode)
    assert failed is not None, "no run fails"
    return failed


def failures(asked: Scenario) -> list[FailedScenario]:
    """Those of the first few seeds. A crash at some place may take several events to come to pass, so not each of them
    can be shrunk to one."""
    several = [run_all(asked, Seeds(1, BREAKING), Tally(), RunOptions(), [seed]) for seed in range(3)]
    return [failed for failed in several if failed is not None]


@pytest.mark.slow
def test_a_shrunk_run_has_the_one_fault_and_the_one_event_that_it_takes() -> None:
    several = failures(scenario(orders=4, asked_max=1))
    for failed in several:
        assert len(failed.first.schedule.planted) > 5
        assert len(failed.shrunk.run.schedule.planted) == 1
        assert failed.shrunk.run.schedule.without
        assert failed.shrunk.run.signature == failed.first.signature
    assert {0, 2, 3} in [failed.shrunk.run.schedule.without for failed in several]


@pytest.mark.slow
def test_nothing_more_can_be_left_out_of_a_shrunk_run() -> None:
    asked = scenario(orders=3, asked_max=2)
    small = failing(asked, Seeds(400, BREAKING)).shrunk.run.schedule
    assert len(small.planted) > 1
    smaller = [replace(small, planted=(*small.planted[:n], *small.planted[n + 1 :])) for n in range(len(small.planted))]
    smaller += [replace(small, without=small.without | {n}) for n in range(3) if n not in small.without]
    assert [run(asked, schedule, RunOptions()).failure for schedule in smaller] == [None] * len(smaller)


@pytest.mark.slow
def test_a_shrunk_run_fails_in_the_way_of_the_first_though_a_smaller_one_fails_in_another() -> None:
    def asked(world: World) -> None:
        drawer = Drawer()
        world.start(till, use=[drawer])
        world.publish(*map(an_order, range(4)))
        world.always("c-1 is asked once", lambda: drawer.asked["c-1"] <= 1)
        world.run_until_quiet()
        assert len(drawer.asked) == 4, "an order is left out"

    several = failures(asked)
    for failed in several:
        assert str(failed.first.failure).startswith("your own invariant: c-1 is asked once")
        assert failed.shrunk.run.signature == failed.first.signature
        assert str(failed.shrunk.run.failure).startswith("your own invariant: c-1 is asked once")
    assert {0, 2, 3} in [failed.shrunk.run.schedule.without for failed in several]


def test_a_shrunk_run_fails_again_when_it_is_run_from_its_schedule() -> None:
    asked = scenario(orders=3, asked_max=1)
    small = failing(asked, Seeds(100, BREAKING)).shrunk.run
    again = run(asked, small.schedule, RunOptions())
    assert str(again.failure) == str(small.failure)
    assert again.world.trace.fingerprint() == small.world.trace.fingerprint()


def test_shrinking_ends_after_so_many_runs_with_the_smallest_found() -> None:
    asked = scenario(orders=4, asked_max=1)
    failed = failing(asked, Seeds(100, BREAKING))
    assert failed.shrunk.runs < RUNS_MAX
    cut_short = shrink(asked, failed.first, RunOptions(), runs_max=3)
    assert cut_short.runs == 3
    assert cut_short.run.failure is not None


def test_a_crash_everywhere_finds_what_goes_wrong_at_one_point_only() -> None:
    asked, tally = scenario(orders=2, asked_max=1), Tally()
    points = find_crash_points(run(asked, Schedule(seed=0), RunOptions()))
    wrong = [p for p in points if run(asked, Schedule(seed=0, planted=(p,)), RunOptions()).failure is not None]
    assert 0 < len(wrong) <= 2 < len(points)
    failed = tried(asked, Crashes(pairs=False), tally)
    assert failed is not None
    assert failed.first.schedule.planted == (wrong[0],)
    assert (tally.points, tally.runs) == (len(points), points.index(wrong[0]) + 2)
    assert len(failed.shrunk.run.schedule.planted) == 1


def test_every_point_is_tried_where_nothing_goes_wrong() -> None:
    tally = Tally()
    assert tried(scenario(orders=1, asked_max=2), Crashes(pairs=False), tally) is None
    assert tally.runs == tally.points + 1
    assert tally.faults == {"crash": tally.points}


@pytest.mark.slow
def test_a_bug_that_needs_two_crashes_is_found_by_pairs() -> None:
    failed = failing(scenario(orders=2, asked_max=2), Crashes(pairs=None))
    assert [planted.kind for planted in failed.shrunk.run.schedule.planted] == ["crash", "crash"]


def pairs_tried(monkeypatch: pytest.MonkeyPatch, seed: int) -> tuple[Tally, list[int]]:
    """The numbers of the points at which the first of two crashes is."""
    seen: list[Schedule] = []

    def watched(scenario: Scenario, schedule: Schedule, care: RunOptions) -> Run:
        seen.append(schedule)
        return run(scenario, schedule, care)

    monkeypatch.setattr(module, "run", watched)
    monkeypatch.setattr(module, "PAIRS_MAX", 40)
    tally = Tally()
    assert run_all(scenario(orders=1, asked_max=9), Crashes(pairs=True), tally, RunOptions(), [seed]) is None
    points = list(dict.fromkeys(schedule.planted for schedule in seen if len(schedule.planted) == 1))
    return tally, [points.index(schedule.planted[:1]) for schedule in seen if len(schedule.planted) == 2]


def test_the_pairs_that_are_tried_are_spread_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    tally, firsts = pairs_tried(monkeypatch, seed=0)
    assert 20 <= tally.pairs <= 40 < tally.pairs_in_all
    assert firsts == sorted(firsts)
    assert firsts[0] <= 1
    assert firsts[-1] >= tally.points - 2
    assert len(set(firsts)) > tally.points * 0.8


def test_another_seed_tries_other_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pairs_tried(monkeypatch, seed=0)[1] != pairs_tried(monkeypatch, seed=1)[1]


def test_points_are_counted_for_all_seeds() -> None:
    counts = []
    for seeds in ([0], [1], [0, 1]):
        tally = Tally()
        assert run_all(scenario(orders=1, asked_max=2), Crashes(pairs=False), tally, RunOptions(), seeds) is None
        counts.append(tally.points)
    assert counts[2] == counts[0] + counts[1]


def test_runs_in_which_every_saga_dies_test_nothing_and_say_so() -> None:
    class Mute(Bank):
        async def reserve(self, key, card, amount):  # type: ignore[no-untyped-def] # no annotation: nothing is recorded
            return key

    def asked(world: World) -> None:
        world.start(order, payment, use=[Mute()])
        world.publish(books_order("o-1"))
        world.run_until_quiet()

    with pytest.raises(SagaError, match=r"no saga ended in 5 runs: .*payment.reserve: .*has no return annotation"):
        tried(asked, Seeds(5, faults.of("delay")))


def test_faults_whose_target_is_nothing_in_the_world_are_reported() -> None:
    asked = scenario(orders=1, asked_max=99)
    for known in ("till", "till.ring", "orders", "application", "*"):
        assert tried(asked, Seeds(1, faults.of("delay", target=known))) is None
    with pytest.raises(
        SagaError, match=r"^in 2 runs the faults for target 'tlil' \(did you mean 'till'\?\) never happ"
    ):
        tried(asked, Seeds(2, MANY | faults.of("delay", "duplicate", target="tlil")))
    with pytest.raises(
        SagaError, match=r"^in 1 run the faults for target 'xyz', 'till.rung' \(did you mean 'till.ring'"
    ):
        tried(asked, Seeds(1, faults.of("delay", target="xyz") | faults.of("delay", target="till.rung")))
