"""Own events that only this version of a service takes: which of them the history gives, and which it does not."""

from msgspec.structs import replace

from saga.progress import journal
from saga.progress.actions import Now
from saga.progress.document import CompensableResult, SagaProgress, SelfConsumedEvent, Transition, decode_transition
from saga.progress.handlers import CompensationRole, HandlerRoles
from saga.progress.journal import TransitionDetails
from saga.progress.takeover import is_takeover_due, take_over
from tests.progress.pieces import NOW_MS, START, a_hand, a_message, a_role, an_intent, blank, roles_of

UNDO = CompensationRole(name="undo", outcomes=frozenset({"Failed"}), results=frozenset({"R"}))
REPEATS = a_role("repeats", "A", many=True, undo=UNDO)
TAKES = a_role("takes", "R T", "Z")
OLD = roles_of(REPEATS, emitted="R T")
NEW = roles_of(REPEATS, TAKES, emitted="R T")
NOW = Now(NOW_MS, retention_s=10**9)


def a_run(p: SagaProgress, n: int, *types: str) -> SagaProgress:
    """`repeats` has run on its n-th message and emitted these."""
    cause = a_message(id=f"a{n}")
    events = [replace(a_message(type_, id=f"{type_}{n}"), source="svc") for type_ in types]
    ended = TransitionDetails(cause=cause.id, message=cause, parts=(cause,), events=events)
    return journal.complete_run(p, a_hand(cause, roles=OLD), REPEATS, ended).snapshot


def entries(p: SagaProgress) -> list[Transition]:
    return [decode_transition(raw) for raw in p.transitions]


def found(p: SagaProgress, now: Now = NOW) -> list[str]:
    return [own.event.id for own in take_over(p, NEW, entries(p), now).self_consumed]


def undone(p: SagaProgress, *ids: str) -> tuple[SagaProgress, list[Transition]]:
    """These results were undone by an earlier version."""
    gone = tuple(r for r in p.results if r.event.id not in ids)
    once = Transition(
        n=99, previous="", time=START, outcome="compensated", handler="undo", message="f", type="Failed", source="x"
    )
    return replace(p, results=gone), [*entries(p), *(replace(once, cause=id_) for id_ in ids)]


def test_events_that_only_this_version_consumes_are_found_in_the_order_of_the_history() -> None:
    p = a_run(a_run(blank(), 1, "R"), 2, "T", "R")
    assert is_takeover_due(p, NEW)
    assert not is_takeover_due(p, OLD), "an older one takes nothing that is not there"
    assert found(p) == ["R1", "T2", "R2"]


def test_a_part_that_exists_already_keeps_its_place() -> None:
    p = a_run(a_run(blank(), 1, "R"), 2, "T")
    there = SelfConsumedEvent(event=replace(a_message("T", id="T2"), source="svc"), n=1)
    assert found(replace(p, self_consumed=(there,))) == ["R1", "T2"]


def test_an_undone_result_is_not_found_and_the_others_of_its_run_are() -> None:
    p, history = undone(a_run(blank(), 1, "R", "T"), "R1")
    assert take_over(p, NEW, history, NOW).self_consumed == (), (
        "with the last result all that the run emitted is withdrawn"
    )
    p, history = undone(a_run(blank(), 1, "R", "T"), "R1")
    p = replace(
        p,
        results=(
            CompensableResult(handler="repeats", cause="a1", event=a_message("R", id="R1b"), self_consumed_ids=()),
        ),
    )
    assert [own.event.id for own in take_over(p, NEW, history, NOW).self_consumed] == ["T1"], "one more result stands"


def test_events_taken_over_are_withdrawn_with_the_last_result_of_their_run() -> None:
    p = a_run(a_run(blank(), 1, "R", "T"), 2, "R")
    assert [r.self_consumed_ids for r in take_over(p, NEW, entries(p), NOW).results] == [("R1", "T1"), ("R2",)]


def test_events_older_than_the_retention_are_not_taken_over_for_a_repeating_handler() -> None:
    again = replace_role(many=True)
    p = a_run(blank(), 1, "R")
    assert take_over(p, again, entries(p), Now(NOW_MS + 1000, retention_s=0)).self_consumed == ()
    assert [own.event.id for own in take_over(p, again, entries(p), NOW).self_consumed] == ["R1"]
    assert found(p, Now(NOW_MS + 1000, retention_s=0)) == ["R1"], "one that runs once knows that it has not"


def replace_role(*, many: bool) -> HandlerRoles:
    return roles_of(REPEATS, a_role("takes", "R T", "Z", many=many), emitted="R T")


def test_every_write_records_the_types_of_self_consumed_events() -> None:
    write_context = a_hand(a_message(), roles=NEW)
    assert journal.open_intent(
        blank(), write_context, an_intent("repeats", a_message())
    ).snapshot.self_consumed_types == (
        "R",
        "T",
    )
    assert journal.ignore_message(
        blank(), write_context, REPEATS, a_message(), "because"
    ).snapshot.self_consumed_types == (
        "R",
        "T",
    )
