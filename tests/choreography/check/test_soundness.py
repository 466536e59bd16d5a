"""What the check says of random choreographies is so: in the model, visited state by state, and on the real runtime."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from saga.choreography.check.model import ChoreographyModel, build_choreography
from saga.choreography.check.reports import format_moves
from saga.choreography.check.search import explore, follows, is_because_of
from saga.choreography.check.verdicts import PROPERTIES, ChoreographyVerdict, check_choreography
from saga.choreography.manifest import Manifest, make_manifest
from saga.testing import faults
from saga.testing.fault_plans import Chance, RandomPlan
from saga.testing.simulation.simulated_world import SimulatedWorld
from saga.testing.stand_ins import StandIns, choose_by_digest, make_stand_ins
from saga.testing.trace_replay import parse_move, replay_trace
from tests.choreography.check.building import KIND, START, random_choreography

STATES_MAX = 200_000
FEW = range(25)
MANY = [pytest.param(range(first, first + 35), marks=pytest.mark.slow) for first in (25, 60, 95)]


def make(seed: int) -> tuple[list[Manifest], ChoreographyModel]:
    manifests = random_choreography(seed, 2 + seed % 3).manifests
    return manifests, build_choreography(KIND, manifests)


def checked(seeds: Iterable[int]) -> Iterable[tuple[int, list[Manifest], ChoreographyVerdict]]:
    for seed in seeds:
        manifests, choreography = make(seed)
        yield seed, manifests, check_choreography(choreography)


@pytest.mark.parametrize("seeds", [FEW, *MANY])
def test_verdicts_agree_with_a_visit_of_every_state(seeds: range) -> None:
    seen = set[str]()
    for seed in seeds:
        _, choreography = make(seed)
        everything = explore(choreography, STATES_MAX, is_naive=True)
        reduced = explore(choreography, STATES_MAX)
        assert everything.is_complete
        assert reduced.is_complete
        violations = {each.violation for each in everything.traces}
        assert violations == {each.violation for each in reduced.traces}, seed
        assert (everything.completed, everything.outcomes) == (reduced.completed, reduced.outcomes), seed
        for verdict in check_choreography(choreography).properties:
            true = {each.code for each in violations} & {*PROPERTIES[verdict.property]}
            found = {each.code for each in verdict.findings if each.trace is not None}
            assert found == true, (seed, verdict)
            if verdict.status == "not decided":
                assert choreography.find_joint_reactions() in verdict.how
                seen.add("not decided")
                continue
            if verdict.property == "success can be reached":
                assert (verdict.status == "proved") == bool(everything.outcomes & choreography.successes), seed
            if verdict.property == "every handler can run":
                idle = {each.label for each in choreography.reactions} - everything.completed
                subjects = {each.subject for each in verdict.findings}
                joint = choreography.find_joint_reactions()  # then a visit of every state decides nothing
                assert subjects <= idle if joint else subjects == idle, seed
            seen |= {verdict.status, *true, "searched" if "states" in verdict.how else "by a rule"}
    assert {
        "proved",
        "found",
        "not decided",
        "searched",
        "by a rule",
        "no-outcome",
        "not-undone",
        "no-compensation",
    } <= seen


@pytest.mark.parametrize("seeds", [FEW, *MANY])
def test_counterexamples_happen_on_the_real_runtime(seeds: range) -> None:
    replayed = 0
    for seed, manifests, verdict in checked(seeds):
        for finding in verdict.findings:
            if finding.trace is not None:
                assert replay_trace(manifests, finding.trace), (seed, finding)
                moves = [parse_move(text)[0] for text in format_moves(finding.trace)]
                assert moves == [step.move for step in finding.trace.steps]
                replayed += 1
    assert replayed > len(seeds) / 4


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 70), marks=pytest.mark.slow)])
def test_proved_choreographies_run_clean_under_all_faults(seeds: range, tmp_path: Path) -> None:
    runs = 0
    for seed, manifests, verdict in checked(seeds):
        for number in range(3) if verdict.status == "proved" else ():
            stand_ins = make_stand_ins(manifests, tmp_path / f"{seed}-{number}", choose_by_digest(seed * 10 + number))
            run_under_faults(stand_ins, number)
            runs += 1
    assert runs > len(seeds) / 4


def run_under_faults(stand_ins: StandIns, seed: int) -> None:
    """Run two sagas to their end, with every fault that the world knows, and compare the books."""
    sagas = (f"one-{seed}", f"two-{seed}")
    choreography, book = stand_ins.choreography, stand_ins.book
    with SimulatedWorld(seed, RandomPlan(faults.everything(), Chance(seed)), guarded=False) as world:
        use = [book] if any(each.declared.resources for each in stand_ins.services.values()) else []
        world.start(*stand_ins.services.values(), use=use)
        for saga in sagas:
            world.publish(stand_ins.make_event(START, saga))
        world.run_until_quiet()
        world.verify()
        for saga in sagas:
            outcome = world.outcome(saga)
            assert outcome is not None
            for label in book.list_standing(saga) if outcome.__name__ in choreography.failures else ():
                reaction = next(each for each in choreography.reactions if each.label == label)
                assert is_because_of(choreography, reaction, choreography.outcomes), label
            for name, service in stand_ins.services.items():
                progress = world.progress(name, saga)
                for kept in progress.waiting if progress is not None else ():
                    reaction = choreography.services[name].reactions[kept.handler]
                    assert not follows(choreography, reaction, frozenset({outcome.__name__})), (saga, kept.handler)
                assert service.declared.name == name


@pytest.mark.slow
def test_stand_ins_declare_what_the_manifests_say(tmp_path: Path) -> None:
    for seed in range(20):
        manifests, _ = make(seed)
        stand_ins = make_stand_ins(manifests, tmp_path / str(seed), choose_by_digest(0))
        for manifest in manifests:
            again = make_manifest(stand_ins.services[manifest.service].declared)
            for each in manifest.reactions:
                made = again.reaction(each.name)
                assert made is not None
                for name in ("kind", "takes", "returns", "undoes", "within_s", "unless", "repeats", "irreversible"):
                    assert getattr(made, name) == getattr(each, name), (seed, each.name, name)
