"""The model has every behaviour of the runtime: wherever a real saga comes to rest, the model can come to rest, too."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from random import Random  # noqa: TID251 - seeds are given: the same seed makes the same run
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from saga.choreography.check.model import (
    ChoreographyModel,
    SagaState,
    begin,
    build_choreography,
    list_external_moves,
    list_moves,
    take_steps,
)
from saga.choreography.check.search import explore
from saga.choreography.check.verdicts import check_manifests
from saga.choreography.manifest import DeclaredReaction, Manifest
from saga.testing.stand_ins import choose_by_digest
from saga.testing.trace_replay import RuntimeReplay, open_replay, replay_trace
from tests.choreography.check.building import KIND, START, Choreo, compensation, deadline, handler, random_choreography

MOVES_MAX = 300
STATES_MAX = 200_000


class RestingPoint(NamedTuple):
    """What can be seen of a saga in which nothing is left to happen."""

    published: frozenset[str]
    standing: frozenset[str]
    waiting: frozenset[str]


def undoing(returns: str) -> Choreo:
    """A worker whose handler returns this, and whose compensation says one of two things for each result."""
    return (
        Choreo()
        .service(
            "w", handler("work", START, returns, effects=True), compensation("undo", "work", "Cancelled + R", "U | V")
        )
        .service("d", handler("decide", START, "Cancelled | Confirmed"))
        .service("m", handler("both", "U + V"), handler("note", "Confirmed / R"))
    )


CASES: Mapping[str, Callable[[], Choreo]] = {
    "two events start the saga, and a handler waits for both": lambda: (
        Choreo(starts=("A", "B"))
        .service("w", handler("work", "A + B", "Done | No"))
        .service(
            "d",
            handler("confirm", "Done", "Confirmed"),
            handler("cancel", "No", "Cancelled"),
            deadline("expire_a", "A", "Cancelled"),
            deadline("expire_b", "B", "Cancelled"),
        )
        .service("m", handler("note", "Confirmed / Cancelled"))
    ),
    "an outcome that is only waited for in a suspended run closes the deadlines of its service": lambda: (
        Choreo()
        .service("d", handler("confirm", START, "Confirmed"))
        .service("r", handler("see", START, "Seen | @later", maybe="Confirmed"), deadline("remind", START, "Reminded"))
        .service("m", handler("both", "Confirmed + Reminded"), handler("note", "Seen"))
    ),
    "one run has two results, and each is undone": lambda: undoing("R R"),
    "one run has any number of results, and each is undone": lambda: undoing("R*"),
    "an event from outside comes twice, and each result is undone": lambda: (
        Choreo(external=("Asked",))
        .service(
            "w",
            handler("work", "Asked", "R", effects=True, repeats="Asked"),
            compensation("undo", "work", "Cancelled + R", "U | V"),
        )
        .service("d", handler("decide", START, "Cancelled | Confirmed"))
        .service("m", handler("both", "U + V"), handler("note", "Confirmed / R"))
    ),
    "a handler takes the outcome or another event": lambda: (
        Choreo()
        .service("w", handler("work", f"{START} + Confirmed / Go", "Done", effects=True))
        .service("g", handler("go", START, "Go"))
        .service("d", handler("decide", START, "Confirmed | Cancelled"))
        .service("m", handler("note", "Done / Cancelled"))
    ),
    "a compensation takes an event that its handler took": lambda: (
        Choreo()
        .service(
            "w",
            handler("work", f"{START} + Go", "Done", effects=True),
            compensation("undo", "work", "Cancelled + Done", took="Go"),
        )
        .service("g", handler("go", START, "Go"))
        .service("d", handler("confirm", "Done", "Confirmed"), deadline("expire", START, "Cancelled"))
        .service("m", handler("note", "Confirmed / Cancelled"))
    ),
    "two failure outcomes, of which a compensation takes one": lambda: (
        Choreo(failure=("Cancelled", "Expired"))
        .service("w", handler("work", START, "Done", effects=True), compensation("undo", "work", "Cancelled + Done"))
        .service("d", handler("cancel", START, "Cancelled | -"), deadline("expire", START, "Expired"))
        .service("m", handler("note", "Expired / Cancelled"), handler("count", "Done"))
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if n % 2 else []) for n, name in enumerate(CASES)]
)
def test_the_model_has_every_behaviour_of_the_runtime(name: str) -> None:
    compare(CASES[name]().manifests, range(25))


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 50), marks=pytest.mark.slow)])
def test_the_model_has_every_behaviour_of_random_choreographies(seeds: range) -> None:
    for seed in seeds:
        compare(random_choreography(seed, 2 + seed % 3).manifests, range(seed, seed + 3))


def compare(manifests: list[Manifest], seeds: range) -> None:
    possible = list_resting_points(build_choreography(KIND, manifests))
    for seed in seeds:
        seen = asyncio.run(run_at_random(manifests, seed))
        assert seen is None or seen in possible, (seed, seen)


def list_resting_points(choreography: ChoreographyModel) -> set[RestingPoint]:
    seen = {begin(choreography, event) for event in choreography.starts}
    left, found = deque(seen), set[RestingPoint]()
    while left:
        assert len(seen) < STATES_MAX
        state = left.popleft()
        moves = list_moves(choreography, state)
        if not moves:
            found.add(summarize(choreography, state))
        for move in [*moves, *list_external_moves(choreography, state)]:
            new = {step.state for step in take_steps(choreography, state, move)} - seen
            seen |= new
            left.extend(new)
    return found


def summarize(choreography: ChoreographyModel, state: SagaState) -> RestingPoint:
    services = list(zip(choreography.services.values(), state.services, strict=True))
    return RestingPoint(
        frozenset(name for name, _ in state.published),
        frozenset(f"{s.name}.{r}" for s, k in services for r in k.effects if s.reactions[r].kind != "compensation"),
        frozenset(f"{s.name}.{handler}" for s, k in services for handler, _ in k.parts),
    )


async def run_at_random(manifests: list[Manifest], seed: int) -> RestingPoint | None:
    """Run one saga on the real runtime, with reactions declared and messages delivered in random order. Return `None`
    if it goes on and on."""
    random = Random(seed)
    shuffled = [replace(m, reactions=tuple(random.sample(m.reactions, len(m.reactions)))) for m in manifests]
    weights: dict[tuple[str, str, str], float] = {}
    async with open_replay(shuffled, choose_by_digest(seed)) as replay:
        choreography = replay.stand_ins.choreography
        replay.publish(random.choice(choreography.starts))
        for _ in range(MOVES_MAX):
            left = await replay.list_moves()
            if not left:
                saga = await replay.describe()
                assert not list_dead_letters(replay)
                published = frozenset(name for name, records in replay.published.items() if records)
                return RestingPoint(published, saga.standing, saga.waiting)
            left += list_external_moves(choreography, SagaState(replay.list_published(), ()))
            chances = [weights.setdefault(move[:3], random.random() ** 4 + 1e-6) for move in left]
            (move,) = random.choices(left, chances)
            await replay.make(move)
    return None


def list_dead_letters(replay: RuntimeReplay) -> list[str]:
    """Return the services that gave a message up: a stand-in does nothing that the runtime refuses."""
    return [
        service
        for service, participant in replay.participants.items()
        for record in participant.log.messages
        if any(name == "dead_id" for name, _ in record.headers)
    ]


# -------------------------------------------------------------------- findings that came of it


def started_by_a_document(*reactions: DeclaredReaction) -> Choreo:
    """A service that makes an event of a document, or ignores it, one that does something, and one that decides."""
    return (
        Choreo(starts=(), to_outside=("Confirmed", "Cancelled"), changes={"ChangeOf_forms": "forms"})
        .service("intake", handler("read", "ChangeOf_forms", "Asked | -"))
        .service("w", handler("work", "Asked", "Done"))
        .service("d", *reactions)
    )


def test_a_change_of_a_document_that_causes_no_event_begins_no_saga() -> None:
    made = started_by_a_document(handler("ok", "Done", "Confirmed"), deadline("end", "Asked", "Cancelled"))
    (verdict,) = check_manifests(made.manifests)
    assert (verdict.status, verdict.findings) == ("proved", ())
    found = explore(build_choreography(KIND, made.manifests), STATES_MAX)
    assert (found.is_complete, found.traces) == (True, ())


def test_a_saga_that_a_document_begins_and_nothing_ends_is_found_and_replayed() -> None:
    made = started_by_a_document(handler("ok", "Done", "Confirmed | -"))
    (verdict,) = check_manifests(made.manifests)
    (finding,) = verdict.findings
    assert (finding.code, finding.trace is not None) == ("no-outcome", True)
    assert finding.trace is not None
    assert {name for run in finding.trace.runs for name in run.emitted} == {"Asked", "Done"}
    assert replay_trace(made.manifests, finding.trace)


def test_a_deadline_that_begins_with_only_one_of_two_events_of_a_document_ends_not_every_saga() -> None:
    made = (
        Choreo(starts=(), to_outside=("Confirmed", "Cancelled"), changes={"ChangeOf_forms": "forms"})
        .service("intake", handler("read", "ChangeOf_forms", "Asked | Inquired"))
        .service("d", handler("ok", "Asked / Inquired", "Confirmed | -"), deadline("end", "Asked", "Cancelled"))
    )
    (verdict,) = check_manifests(made.manifests)
    assert [each.code for each in verdict.findings] == ["no-outcome"]


def test_a_handler_of_a_document_and_an_external_event_that_nothing_ends_is_found_and_replayed() -> None:
    made = (
        Choreo(
            starts=(), external=("Signed",), to_outside=("Confirmed", "Cancelled"), changes={"ChangeOf_forms": "forms"}
        )
        .service("intake", handler("read", "ChangeOf_forms + Signed", "Asked"))
        .service("d", handler("decide", "Asked", "Confirmed | Cancelled | -"))
    )
    (verdict,) = check_manifests(made.manifests)
    (finding,) = verdict.findings
    assert finding.code == "no-outcome"
    assert finding.trace is not None
    assert replay_trace(made.manifests, finding.trace)


@pytest.mark.parametrize(
    ("returns", "found"), [("Packed | -", ["no-outcome"]), ("Confirmed | -", []), ("Confirmed | Cancelled", [])]
)
def test_an_external_event_beside_a_document_begins_a_saga_if_something_is_emitted_that_does_not_end_it(
    returns: str, found: list[str]
) -> None:
    made = (
        Choreo(
            starts=(), external=("Signed",), to_outside=("Confirmed", "Cancelled"), changes={"ChangeOf_forms": "forms"}
        )
        .service("intake", handler("read", "ChangeOf_forms", "Asked | -"))
        .service(
            "d",
            handler("sign", "Signed", returns),
            handler("ok", "Asked / Packed" if "Packed" in returns else "Asked", "Confirmed | -"),
            deadline("end", "Asked", "Cancelled"),
        )
    )
    (verdict,) = check_manifests(made.manifests)
    assert [each.code for each in verdict.findings] == found
    assert verdict.properties[0].status == ("found" if found else "proved")


def test_a_finding_that_needs_two_external_events_of_one_contract_is_replayed() -> None:
    made = (
        Choreo(external=("Item",), to_outside=("Confirmed", "Cancelled"))
        .service("pack", handler("weigh", f"Item + {START}", "Light | Heavy", repeats="Item"))
        .service("truck", handler("load", "Light + Heavy", "Loaded", effects=True))
        .service("d", handler("ok", "Loaded", "Confirmed"), deadline("end", START, "Cancelled"))
    )
    (verdict,) = check_manifests(made.manifests)
    (finding,) = verdict.findings
    assert (finding.code, finding.subject) == ("no-compensation", "truck.load")
    assert finding.trace is not None
    assert replay_trace(made.manifests, finding.trace)


def test_an_event_that_only_a_suspended_run_waits_for_has_a_consumer() -> None:
    made = (
        Choreo(to_outside=("Confirmed", "Cancelled"))
        .service("w", handler("work", START, "Done"))
        .service("v", handler("extra", START, "Extra"))
        .service("d", handler("ok", "Done", "Confirmed | @later", maybe="Extra"), deadline("end", START, "Cancelled"))
    )
    (verdict,) = check_manifests(made.manifests)
    assert (verdict.status, verdict.findings) == ("proved", ())


def test_a_handler_that_has_only_its_own_services_outcome_waits_for_ever_in_the_replay_too() -> None:
    made = (
        Choreo(to_outside=("No", "Cancelled"))
        .service("w", handler("work", START, "Done | No"))
        .service("d", handler("ok", START, "Confirmed"), handler("finish", "Confirmed + Done"))
    )
    (verdict,) = check_manifests(made.manifests)
    (finding,) = (each for each in verdict.findings if each.code == "waits-for-ever")
    assert finding.subject == "d.finish"
    assert finding.trace is not None
    assert replay_trace(made.manifests, finding.trace)


def test_two_starts_or_two_results_give_no_false_finding() -> None:
    for name in (
        "two events start the saga, and a handler waits for both",
        "one run has two results, and each is undone",
    ):
        (verdict,) = check_manifests(CASES[name]().manifests)
        assert {each.code for each in verdict.findings}.isdisjoint({"never-runs", "no-success"})


def test_a_handler_with_very_many_choices_is_checked_and_not_called_proved() -> None:
    names = [f"E{number}" for number in range(65)]
    made = (
        Choreo(to_outside=("Confirmed", "Cancelled", *names))
        .service("w", handler("work", START, " ".join(f"{name}*" for name in names)))
        .service("d", handler("confirm", "E0", "Confirmed"), handler("cancel", "E1", "Cancelled"))
    )
    (verdict,) = check_manifests(made.manifests)
    assert "no-outcome" in {each.code for each in verdict.findings}
    judged = {each.property: each.status for each in verdict.properties}
    assert judged["success can be reached"] == "proved"
    made.service("n", handler("late", "E2"), handler("both", "Confirmed + E2"))
    (verdict,) = check_manifests(made.manifests)
    assert ("waits-for-ever", "n.both") in {each.key for each in verdict.findings}


def test_a_search_that_leaves_choices_out_proves_nothing() -> None:
    many = " ".join(f"E{number}*" for number in range(7))
    made = (
        Choreo(to_outside=("Confirmed", "Cancelled", *(f"E{number}" for number in range(7))))
        .service("w", handler("work", START, many))
        .service("d", handler("confirm", START, "Confirmed | Cancelled"))
        .service("n", handler("three", "E1 + E2 + E3"), handler("some", "E1 + E4 + Confirmed / E6"))
    )
    choreography = build_choreography(KIND, made.manifests)
    assert choreography.leaves_choices_out
    assert not explore(choreography, STATES_MAX).is_complete


def test_many_handlers_of_one_event_are_not_ordered_in_every_way() -> None:
    others = [handler(f"h{number}", f"{START} + Go", "-") for number in range(12)]
    made = (
        Choreo(to_outside=("Confirmed", "Cancelled"))
        .service("g", handler("go", START, "Go"))
        .service(
            "d",
            handler("confirm", f"{START} + Go", "Confirmed"),
            handler("cancel", f"Go + {START}", "Cancelled"),
            *others,
        )
    )
    explored = explore(build_choreography(KIND, made.manifests), STATES_MAX)
    assert explored.is_complete
    assert explored.outcomes == {"Confirmed", "Cancelled"}


def test_a_handler_that_may_return_no_event_and_no_later_in_a_list_ends_its_saga_nowhere() -> None:
    made = (
        Choreo(to_outside=("Confirmed",))
        .service("w", handler("poll", START, "Asked* | Asked* @later"))
        .service("d", handler("confirm", "Asked", "Confirmed", repeats="Asked"))
    )
    (verdict,) = check_manifests(made.manifests)
    assert [each.code for each in verdict.findings] == ["no-outcome"]


def test_a_handler_that_always_returns_later_brings_no_saga_to_an_end() -> None:
    made = (
        Choreo(to_outside=("Confirmed", "Asked"))
        .service("w", handler("poll", START, "Asked @later"))
        .service("d", handler("confirm", START, "Confirmed | -"))
    )
    (verdict,) = check_manifests(made.manifests)
    assert {each.key for each in verdict.findings} == {("endless-loop", "w.poll"), ("no-outcome", KIND)}
    (trace,) = [each.trace for each in verdict.findings if each.trace is not None]
    assert replay_trace(made.manifests, trace)


def test_a_suspended_run_of_a_handler_with_repeats_ends() -> None:
    made = (
        Choreo(to_outside=("Confirmed", "Cancelled"), external=("Note", "Extra"))
        .service("w", handler("poll", "Note", "A @later | C", repeats="Note"))
        .service(
            "d",
            handler("confirm", "A", "Confirmed"),
            handler("cancel", "C", "Cancelled"),
            deadline("expire", START, "Cancelled"),
        )
        .service("s", handler("ship", "Confirmed + Extra"))
    )
    (verdict,) = check_manifests(made.manifests)
    (finding,) = verdict.findings
    assert finding.key == ("waits-for-ever", "s.ship")
    assert finding.trace is not None
    assert replay_trace(made.manifests, finding.trace)


def test_a_deadline_can_run_beside_a_handler_that_may_decide_at_once() -> None:
    made = (
        Choreo(to_outside=("Confirmed", "Cancelled"))
        .service("w", handler("work", START, "Done | -"))
        .service(
            "d",
            handler("accept", START, "Cancelled | -"),
            handler("confirm", "Done", "Confirmed"),
            deadline("expire", START, "Cancelled"),
        )
    )
    (verdict,) = check_manifests(made.manifests)
    assert verdict.status == "proved"
