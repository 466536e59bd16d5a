"""Stacks: results beyond what a progress has room for go to pages, and come back as they are undone, newest first."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from saga.errors import SagaError
from saga.messages import Message
from saga.progress import compensation, history, journal, overflow
from saga.progress.decisions import find_compensations
from saga.progress.document import STACKED, CompensableResult, SagaProgress
from saga.progress.handlers import CompensationRole, HandlerRole
from saga.progress.journal import TransitionDetails
from saga.progress.overflow import OverflowBounds, find_wrong_expiries, iterate_lists
from tests.progress.pieces import NOW_MS, a_hand, a_message, a_role, blank, roles_of


def undoable(name: str, takes: str) -> HandlerRole:
    undo = CompensationRole(name=f"undo_{name}", outcomes=frozenset({"Failed"}), results=frozenset({"R"}))
    return a_role(name, takes, many=True, undo=undo)


FIRST, SECOND = undoable("first", "A"), undoable("second", "B")
JOIN = a_role("join", "M", "P")
ROLES = roles_of(FIRST, SECOND, JOIN, emitted="R P")
FAILED = a_message("Failed")
BOUNDS = OverflowBounds(head_max=2, page_max=3)


def ran(p: SagaProgress, role: HandlerRole, number: int, events: list[Message]) -> SagaProgress:
    message = a_message(min(role.takes[0]), id=f"{role.name}-{number}")
    ended = TransitionDetails(cause=message.id, message=message, parts=(message,), events=events)
    return journal.complete_run(p, replace(a_hand(message, roles=ROLES), before=p), role, ended).snapshot


def undone(p: SagaProgress, role: HandlerRole, result: CompensableResult) -> SagaProgress:
    ended = TransitionDetails(message=FAILED, cause=result.event.id)
    return compensation.complete_compensation(
        p, replace(a_hand(FAILED, roles=ROLES), before=p), role, result, ended
    ).snapshot


def said(type_: str, id: str) -> Message:
    return replace(a_message(type_, id=id), source="svc")


def with_results(*handlers: str, size: int = 1) -> SagaProgress:
    p = blank()
    for n, name in enumerate(handlers):
        role = FIRST if name == "first" else SECOND
        p = ran(p, role, n, [replace(said("R", f"{name}-r{n}"), value=b"x" * size)])
    return p


class Stored:
    """A progress with tiny bounds, and its pages, as the runtime writes and reads them."""

    def __init__(self, bounds: OverflowBounds = BOUNDS) -> None:
        self.bounds, self.pages, self.p = bounds, dict[str, bytes](), blank()

    def save(self, p: SagaProgress) -> None:
        while (page := overflow.find_result_segment(p)) is not None:
            content = self.pages.pop(overflow.segment_key("svc", "s", page))
            p = overflow.restore_results(p, page, overflow.decode_segment(content))
        p, new = overflow.spill_results(p, self.bounds)
        for each in new:
            self.pages[overflow.segment_key("svc", "s", each.page)] = each.content
        self.p = p

    @property
    def whole(self) -> SagaProgress:
        return overflow.restore_all(self.p, self.pages)


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.sampled_from((FIRST, SECOND)), st.integers(1, 5), st.booleans()), max_size=40),
    st.lists(st.booleans(), max_size=60),
)
def test_whatever_is_in_pages_the_same_is_undone_in_the_same_order_and_the_same_parts_are_withdrawn(
    runs: list[tuple[HandlerRole, int, bool]], firsts: list[bool]
) -> None:
    stored, plain = Stored(), blank()
    for number, (role, results, speaks) in enumerate(runs):
        events = [said("R", f"r-{number}-{i}") for i in range(results)]
        events += [said("P", f"p-{number}")] * speaks
        plain = ran(plain, role, number, events)
        stored.save(ran(stored.p, role, number, events))
    assert len(stored.p.results) <= 2 * (BOUNDS.head_max + BOUNDS.page_max + 5)
    assert len(stored.p.pages) <= 2, "the uppermost page of each handler"
    assert (stored.p.format == STACKED) == bool(stored.p.pages)
    while plain.results:
        assert stored.whole.results == plain.results
        assert stored.whole.own == plain.own
        assert find_compensations(stored.p, ROLES, "Failed") == find_compensations(plain, ROLES, "Failed")
        order = (FIRST, SECOND) if firsts and firsts.pop() else (SECOND, FIRST)
        role = next(role for role in order if any(r.handler == role.name for r in plain.results))
        newest = next(r for r in reversed(plain.results) if r.handler == role.name)
        assert newest == next(r for r in reversed(stored.p.results) if r.handler == role.name)
        plain = undone(plain, role, newest)
        stored.save(undone(stored.p, role, newest))
        assert stored.p.closed == plain.closed
    assert stored.p.own == plain.own == ()
    assert not stored.pages
    assert history.verify_history(stored.p.transitions, stored.p) is None


def test_a_few_stay() -> None:
    p = with_results(*["first"] * 4)
    assert overflow.spill_results(p, BOUNDS) == (p, []), "four are no page and a head"
    assert overflow.spill_results(blank(), BOUNDS) == (blank(), [])
    assert overflow.find_result_segment(p) is None


def test_the_oldest_go_and_what_is_left_of_a_page_stays() -> None:
    stored = Stored()
    stored.save(with_results(*["first"] * 9))
    assert [r.event.id for r in stored.p.results] == ["first-r6", "first-r7", "first-r8"]
    [page] = stored.p.pages
    assert (page.of, page.count, page.handlers, page.until) == ("results", 6, ("first",), 0)
    assert len(stored.pages) == 2, "one lies below the other"


def test_large_results_go_sooner_but_the_newest_one_stays() -> None:
    stored = Stored(OverflowBounds(head_max=10, page_max=10, head_bytes_max=150, page_bytes=200))
    stored.save(with_results(*["first"] * 3, size=100))
    assert [r.event.id for r in stored.p.results] == ["first-r2"]
    stored.save(with_results("first", size=1000))
    assert [r.event.id for r in stored.p.results] == ["first-r0"]


def test_the_newest_of_each_handler_stays_however_old_it_is() -> None:
    stored = Stored()
    stored.save(with_results("second", *["first"] * 8))
    assert [r.event.id for r in stored.p.results] == ["second-r0", "first-r7", "first-r8"]


def test_the_results_of_one_run_are_never_parted() -> None:
    p = ran(blank(), FIRST, 0, [said("R", f"r{i}") for i in range(7)])
    assert overflow.spill_results(p, BOUNDS) == (p, []), "it is the newest run"
    p, [new] = overflow.spill_results(ran(p, FIRST, 1, [said("R", "last")]), BOUNDS)
    assert (len(p.results), new.page.count) == (1, 7)


def test_pages_of_results_are_nobody_elses_and_never_expire() -> None:
    stored = Stored()
    stored.save(with_results(*["first"] * 9))
    p, now_s = stored.p, NOW_MS // 1000
    assert list(iterate_lists(p, ROLES)) == []
    assert find_wrong_expiries(p, now_s=now_s, retention_s=100) == ()
    assert not p.pages[0].is_forgotten(now_s * 2)
    below = dict(list(stored.pages.items())[1:])
    with pytest.raises(SagaError, match="is gone"):
        overflow.restore_all(p, below)
    found = history.verify_history(p.transitions, replace(p, pages=()))
    assert found is not None
    assert "results" in found.what


def test_results_of_a_version_that_did_not_say_of_which_transition_they_are_stay_in_order() -> None:
    p = with_results(*["first"] * 9)
    old = replace(p, results=tuple(replace(r, n=0) for r in p.results))
    stored = Stored()
    stored.save(old)
    assert stored.whole.results == old.results
    for result in reversed(old.results):
        assert stored.p.results[-1] == result
        stored.save(undone(stored.p, FIRST, result))
    assert stored.p.closed == ("first",)
