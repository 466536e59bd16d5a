"""Own events that nobody takes yet go to pages from behind the first ones, and come back in order, or are withdrawn."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from saga.progress import ids, overflow
from saga.progress.decisions import find_parts
from saga.progress.document import (
    RELEASED,
    CompensableResult,
    CompletedRun,
    OverflowSegment,
    SagaProgress,
    SelfConsumedEvent,
)
from saga.progress.overflow import OverflowBounds, copy_segment, find_wrong_expiries
from tests.progress.pieces import NOW_MS, a_message, a_role, an_intent, blank, kept, roles_of

NOW_S = NOW_MS // 1000
LATEST = a_message("Z", id="in-hand")
JOIN, MEET = a_role("join", "P", "Q", many=True), a_role("meet", "P", "M")
EACH = a_role("each", "P", many=True)
ROLES = roles_of(JOIN, MEET, EACH, emitted="P")
BOUNDS = OverflowBounds(head_max=2, page_max=3, shelf_max=2)


def own(*numbers: int, value: bytes = b"1") -> tuple[SelfConsumedEvent, ...]:
    return tuple(
        SelfConsumedEvent(event=replace(a_message("P", id=f"p-{n}", value=value), source="svc"), n=n) for n in numbers
    )


def numbers(of: tuple[SelfConsumedEvent, ...]) -> list[int]:
    return [o.n for o in of]


def had_by_each(*numbers: int) -> dict[str, int]:
    return {ids.inbox_entry(f"p-{n}", "each"): 1 for n in numbers}


class Stored:
    """A progress with small bounds, and its pages, as the runtime writes and reads them."""

    def __init__(self, p: SagaProgress, bounds: OverflowBounds = BOUNDS) -> None:
        self.p, self.pages, self.bounds = p, dict[str, bytes](), bounds

    def write(self, p: SagaProgress) -> None:
        before = self.p.results
        for gone in overflow.find_unneeded(p, ROLES):
            p = overflow.open_index(p, gone, self.leaf(gone)) if gone.level else overflow.remove_segment(p, gone)
        while pages := overflow.find_withdrawn(p, before):
            p = self.taken_in(p, pages[0], before)
        while page := overflow.find_event_segment(p, ROLES):
            p = self.taken_in(p, page, before)
        p, new = overflow.spill_events(p, ROLES, self.bounds, in_hand=LATEST, now_s=NOW_S, until=0)
        self.pages.update({made.page.name: made.content for made in new})
        while pages := overflow.find_segments_to_index(p, self.bounds):
            p, shelf = overflow.index_segments(p, pages, ())
            self.pages[shelf.page.name] = shelf.content
        self.p = p

    def leaf(self, page: OverflowSegment) -> overflow.SegmentDocument:
        return overflow.decode_segment(self.pages[page.name])

    def taken_in(self, p: SagaProgress, page: OverflowSegment, before: tuple[CompensableResult, ...]) -> SagaProgress:
        leaf = self.leaf(page)
        return overflow.open_index(p, page, leaf) if page.level else overflow.restore_events(p, page, leaf, before)

    @property
    def whole(self) -> SagaProgress:
        return overflow.restore_all(
            self.p, {overflow.segment_key("svc", "s", q): self.pages[q.name] for q in self.all_pages()}
        )

    def all_pages(self) -> list[OverflowSegment]:
        found, left = list[OverflowSegment](), [*self.p.pages]
        while left:
            found.append(page := left.pop())
            left += overflow.list_segments(page, self.pages[page.name])
        return found


def test_what_is_short_stays() -> None:
    stored = Stored(blank())
    p = replace(blank(), own=own(1, 2))
    stored.write(p)
    assert stored.p == p


def test_what_is_behind_the_first_ones_of_each_handler_goes_to_full_pages() -> None:
    stored = Stored(blank())
    stored.write(replace(blank(), own=own(*range(1, 10)), inbox=had_by_each(*range(1, 10))))
    assert numbers(stored.p.own) == [1, 2, 9]
    assert [(q.first, q.last, q.count, q.handlers, q.types) for q in stored.p.pages] == [
        (3, 5, 3, ("join", "meet"), ("P",)),
        (6, 8, 3, ("join", "meet"), ("P",)),
    ]
    assert stored.p.format == RELEASED
    assert numbers(stored.whole.own) == [*range(1, 10)]


def test_what_several_say_in_one_transition_is_never_parted() -> None:
    together = own(1, 2, 3, 4, 4, 4, 4, 5)
    together = tuple(replace(o, event=replace(o.event, id=f"p-{place}")) for place, o in enumerate(together))
    stored = Stored(blank())
    stored.write(replace(blank(), own=together, inbox=had_by_each(*range(9))))
    assert numbers(stored.p.own) == [1, 2, 5]
    assert [(q.first, q.last, q.count) for q in stored.p.pages] == [(3, 4, 5)]


def test_large_ones_make_small_pages() -> None:
    stored = Stored(blank(), OverflowBounds(head_max=9, page_max=9, head_bytes_max=150, page_bytes=200))
    stored.write(replace(blank(), own=own(*range(1, 6), value=b"x" * 100), inbox=had_by_each(*range(9))))
    assert numbers(stored.p.own) == [1, 2, 5]


def test_a_handler_that_has_had_it_never_sees_it_again_even_if_its_entry_is_in_a_page_by_now() -> None:
    stored = Stored(blank())
    stored.write(replace(blank(), own=own(*range(1, 10)), inbox=had_by_each(*range(1, 10))))
    p = replace(
        stored.p,
        own=(),
        inbox={},
        ran=(CompletedRun(handler="meet", parameter=0, type="P", schema="", content="", message="p-1"),),
    )
    stored.write(p)
    assert numbers(stored.p.own) == [3, 4, 5]
    assert [n for n, _ in find_parts(stored.p, EACH, 0)] == []
    assert [n for n, _ in find_parts(stored.p, JOIN, 0)] == [3, 4, 5]


@pytest.mark.parametrize("what", ["in hand", "in the queue", "of an open run"])
def test_what_decisions_look_at_stays(what: str) -> None:
    events = own(*range(1, 10))
    p = replace(blank(), own=events, inbox=had_by_each(*range(1, 10)))
    if what == "in the queue":
        p = replace(p, queue=(kept("join", events[4].event, n=5),))
    elif what == "of an open run":
        p = replace(p, intents=(an_intent("join", events[4].event),))
    else:
        events = (*events[:4], replace(events[4], event=replace(events[4].event, id=LATEST.id)), *events[5:])
        p = replace(p, own=events, inbox={**p.inbox, ids.inbox_entry(LATEST.id, "each"): 1})
    stored = Stored(blank())
    stored.write(p)
    assert 5 in numbers(stored.p.own)
    assert numbers(stored.whole.own) == [*range(1, 10)]


def test_pages_that_nobody_takes_any_more_go() -> None:
    stored = Stored(blank())
    stored.write(replace(blank(), own=own(*range(1, 10)), inbox=had_by_each(*range(1, 10))))
    pages = tuple(replace(page, handlers=("meet",)) for page in stored.p.pages)
    ran = CompletedRun(handler="meet", parameter=0, type="P", schema="", content="", message="p-1")
    assert overflow.find_unneeded(replace(stored.p, pages=pages), ROLES) == []
    assert overflow.find_unneeded(replace(stored.p, pages=pages, ran=(ran,)), ROLES) == [*pages]
    assert overflow.find_unneeded(stored.p, roles_of(EACH, emitted="P")) == [*stored.p.pages]


def test_pages_live_as_long_as_the_progress_and_are_copied_as_they_are() -> None:
    stored = Stored(blank())
    stored.write(replace(blank(), own=own(*range(1, 6)), inbox=had_by_each(*range(1, 6))))
    [page] = stored.p.pages
    assert find_wrong_expiries(stored.p, now_s=NOW_S, retention_s=100) == (page,)
    p, new = copy_segment(stored.p, page, stored.leaf(page), NOW_S + 10**9)
    assert (new.page.until, new.page.handlers, new.page.types) == (NOW_S + 10**9, page.handlers, page.types)
    assert p.pages == (new.page,)
    assert overflow.decode_segment(new.content).own == stored.leaf(page).own


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(["say", "say", "say", "take", "undo"]), max_size=60), st.integers(1, 3), st.integers(1, 4)
)
def test_whatever_comes_each_is_taken_once_in_order_unless_it_is_withdrawn(
    acts: list[str], head: int, page: int
) -> None:
    stored = Stored(blank(), OverflowBounds(head_max=head, page_max=page, shelf_max=2))
    there, said, most = list[int](), 0, 0
    for act in acts:
        p = stored.p
        if act == "say":
            said += 1
            [new] = own(said)
            result = CompensableResult(
                handler="reserve", cause=f"c-{said}", event=new.event, own=(new.event.id,), n=said
            )
            p = replace(p, own=(*p.own, new), results=(*p.results, result), inbox={**p.inbox, **had_by_each(said)})
            there.append(said)
        elif act == "take" and there:
            first, event = next(find_parts(p, JOIN, 0))
            assert first == there.pop(0)
            p = replace(
                p, inbox={**p.inbox, ids.inbox_entry(event.id, "join"): 1, ids.inbox_entry(event.id, "meet"): 1}
            )
            p = replace(p, own=tuple(o for o in p.own if o.n != first))
        elif act == "undo" and p.results:
            last = p.results[-1]
            p = replace(p, results=p.results[:-1], own=tuple(o for o in p.own if o.event.id != last.event.id))
            there = [n for n in there if n != last.n]
        stored.write(replace(p, n=p.n + 1))
        assert numbers(stored.whole.own) == there
        most = max(most, len(stored.p.pages))
    assert most <= 12


def test_what_is_undone_is_withdrawn_from_a_page_that_comes_back() -> None:
    stored = Stored(blank())
    results = tuple(
        CompensableResult(handler="reserve", cause=f"c-{n}", event=own(n)[0].event, own=(f"p-{n}",), n=n)
        for n in range(1, 6)
    )
    p = replace(blank(), own=own(*range(1, 6)), inbox=had_by_each(*range(1, 6)), results=results)
    stored.write(p)
    stored.p = replace(stored.p, results=results)
    assert 4 not in numbers(stored.p.own)
    stored.write(replace(stored.p, results=results[:3]))
    assert numbers(stored.whole.own) == [1, 2, 3]
