"""Many runs of one scenario: seeds, a crash at every point, and what is left of a failing run once it is shrunk."""

from dataclasses import replace

import pytest

from saga.testing import World, faults
from saga.testing.scenarios import Crashes, Mode, Seeds
from saga.testing.simulation import many as many_module
from saga.testing.simulation.many import PAIRS_MAX, Failed, Tally, many
from saga.testing.simulation.runs import Care, Scenario, run
from saga.testing.simulation.schedules import Schedule
from saga.testing.simulation.shrinking import RUNS_MAX, shrink
from tests.testing.plugin.till import Drawer, an_order, scenario, till

MANY = faults.of("delay", "duplicate", rate=0.2)
BREAKING = MANY | faults.of("crash", rate=0.2)


def tried(asked: Scenario, mode: Mode, tally: Tally | None = None) -> Failed | None:
    return many(asked, mode, Tally() if tally is None else tally, Care())


def failing(asked: Scenario, mode: Mode) -> Failed:
    failed = tried(asked, mode)
    assert failed is not None, "no run fails"
    return failed


def test_a_shrunk_run_has_the_one_fault_and_the_one_event_that_it_takes() -> None:
    failed = failing(scenario(orders=4, asked_max=1), Seeds(100, BREAKING))
    assert len(failed.first.schedule.planted) > 5
    small = failed.shrunk.run.schedule
    assert len(small.planted) == 1
    assert small.without == {0, 2, 3}
    assert failed.shrunk.run.signature == failed.first.signature


def test_nothing_more_can_be_left_out_of_a_shrunk_run() -> None:
    asked = scenario(orders=3, asked_max=2)
    small = failing(asked, Seeds(400, BREAKING)).shrunk.run.schedule
    assert len(small.planted) > 1
    smaller = [replace(small, planted=(*small.planted[:n], *small.planted[n + 1 :])) for n in range(len(small.planted))]
    smaller += [replace(small, without=small.without | {n}) for n in range(3) if n not in small.without]
    assert [run(asked, schedule, Care()).failure for schedule in smaller] == [None] * len(smaller)


def test_a_shrunk_run_fails_in_the_way_of_the_first_though_a_smaller_one_fails_in_another() -> None:
    def asked(world: World) -> None:
        drawer = Drawer()
        world.start(till, use=[drawer])
        world.publish(*map(an_order, range(3)))
        world.always("c-1 is asked once", lambda: drawer.asked["c-1"] <= 1)
        world.run_until_quiet()
        assert len(drawer.asked) == 3, "an order is left out"

    failed = failing(asked, Seeds(100, BREAKING))
    assert str(failed.first.failure).startswith("your own invariant: c-1 is asked once")
    assert failed.shrunk.run.signature == failed.first.signature
    assert str(failed.shrunk.run.failure).startswith("your own invariant: c-1 is asked once")
    assert failed.shrunk.run.schedule.without == {0, 2}


def test_a_shrunk_run_fails_again_when_it_is_run_from_its_schedule() -> None:
    asked = scenario(orders=3, asked_max=1)
    small = failing(asked, Seeds(100, BREAKING)).shrunk.run
    again = run(asked, small.schedule, Care())
    assert str(again.failure) == str(small.failure)
    assert again.world.trace.fingerprint() == small.world.trace.fingerprint()


def test_shrinking_ends_after_so_many_runs_with_the_smallest_found() -> None:
    asked = scenario(orders=4, asked_max=1)
    failed = failing(asked, Seeds(100, BREAKING))
    assert failed.shrunk.runs < RUNS_MAX
    cut_short = shrink(asked, failed.first, Care(), runs_max=3)
    assert cut_short.runs == 3
    assert cut_short.run.failure is not None


def test_a_crash_everywhere_finds_what_goes_wrong_at_one_point_only() -> None:
    tally = Tally()
    failed = tried(scenario(orders=2, asked_max=1), Crashes(pairs=False), tally)
    assert failed is not None
    (planted,) = failed.shrunk.run.schedule.planted
    assert (planted.kind, tally.points > 10, tally.runs <= tally.points + 1) == ("crash", True, True)


def test_every_point_is_tried_where_nothing_goes_wrong() -> None:
    tally = Tally()
    assert tried(scenario(orders=1, asked_max=2), Crashes(pairs=False), tally) is None
    assert tally.runs == tally.points + 1
    assert tally.faults == {"crash": tally.points}


def test_what_needs_two_crashes_is_found_by_pairs_on_a_short_run() -> None:
    failed = failing(scenario(orders=2, asked_max=2), Crashes(pairs=None))
    assert [planted.kind for planted in failed.shrunk.run.schedule.planted] == ["crash", "crash"]


def test_the_pairs_that_are_tried_are_spread_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, tally = scenario(orders=1, asked_max=9), Tally()
    monkeypatch.setattr(many_module, "PAIRS_MAX", 40)
    seen: list[Schedule] = []

    def watched(one: Scenario, schedule: Schedule, care: Care) -> object:
        seen.append(schedule)
        return run(one, schedule, care)

    monkeypatch.setattr(many_module, "run", watched)
    assert tried(asked, Crashes(pairs=True), tally) is None
    firsts = list(dict.fromkeys(s.planted[0] for s in seen if len(s.planted) == 1))
    begun = {s.planted[0] for s in seen if len(s.planted) == 2}
    assert 20 <= tally.pairs <= 40 < tally.pairs_in_all
    assert firsts.index(next(f for f in firsts if f in begun)) < len(firsts) // 4
    assert PAIRS_MAX > 40
