"""Piles: what is queued, or waits for a handler that takes many, goes to pages from its end and comes back in order."""

import dataclasses

from msgspec.structs import replace

from saga.progress import overflow
from saga.progress.document import PAGED, PLAIN, OverflowSegment, PendingMessage, SagaProgress, SegmentKind
from saga.progress.overflow import OverflowBounds
from tests.progress.pieces import NOW_MS, a_message, a_role, an_intent, blank, kept, roles_of

NOW_S = NOW_MS // 1000
MANY = a_role("many", "A", many=True)
BOTH = a_role("both", "A", "B")
ROLES = roles_of(MANY, BOTH)
BOUNDS = OverflowBounds(head_max=2, page_max=3)
LATEST = a_message("Z", id="in-hand")


def numbered(handler: str, *numbers: int, value: bytes = b"1") -> tuple[PendingMessage, ...]:
    return tuple(kept(handler, a_message("A", id=f"{handler}-{n}", value=value), n=n) for n in numbers)


def numbers(of: tuple[PendingMessage, ...]) -> list[int]:
    return [k.n for k in of]


def spilled(p: SagaProgress, bounds: OverflowBounds = BOUNDS) -> tuple[SagaProgress, list[overflow.SegmentDocument]]:
    p, new = overflow.spill_messages(p, ROLES, bounds, in_hand=LATEST, now_s=NOW_S)
    return p, [overflow.decode_segment(made.content) for made in new]


def a_page(*, first: int, handlers: tuple[str, ...] = ("many",), of: SegmentKind = "queue") -> OverflowSegment:
    return OverflowSegment(
        of=of, name=f"p-{first}", count=1, newest=NOW_S, until=0, first=first, last=first + 2, handlers=handlers
    )


def test_what_is_short_stays() -> None:
    p = replace(blank(), queue=numbered("both", 1, 2), waiting=numbered("many", 3, 4))
    assert spilled(p) == (p, [])
    assert spilled(blank()) == (blank(), [])


def test_the_end_of_a_queue_goes_to_full_pages_and_the_head_stays() -> None:
    p, leaves = spilled(replace(blank(), queue=numbered("both", *range(1, 10))))
    assert [numbers(leaf.kept) for leaf in leaves] == [[3, 4, 5], [6, 7, 8]]
    assert numbers(p.queue) == [1, 2, 9]
    assert [(page.of, page.first, page.last) for page in p.pages] == [("queue", 3, 5), ("queue", 6, 8)]
    assert p.format == PAGED


def test_a_head_of_large_messages_is_short_and_so_are_pages() -> None:
    bounds = OverflowBounds(head_max=10, page_max=10, head_bytes_max=150, page_bytes=200)
    p, leaves = spilled(replace(blank(), queue=numbered("both", *range(1, 6), value=b"x" * 100)), bounds)
    assert [numbers(leaf.kept) for leaf in leaves] == [[2, 3], [4, 5]]
    assert numbers(p.queue) == [1]


def test_what_waits_for_a_handler_that_takes_many_goes_by_itself() -> None:
    waiting = (*numbered("many", *range(1, 6)), *numbered("both", 6))
    p, [leaf] = spilled(replace(blank(), waiting=waiting))
    assert numbers(leaf.kept) == [3, 4, 5]
    assert [(k.handler, k.n) for k in p.waiting] == [("many", 1), ("many", 2), ("both", 6)]
    assert [(page.of, page.handlers) for page in p.pages] == [("waiting", ("many",))]


def test_behind_pages_all_that_is_newer_goes() -> None:
    p = replace(blank(), queue=numbered("both", 1, 8, 9, 10), pages=(a_page(first=2, handlers=("both",)),))
    p, [leaf] = spilled(p)
    assert numbers(leaf.kept) == [8, 9, 10]
    assert numbers(p.queue) == [1]


def test_the_parts_of_an_open_run_stay_and_all_behind_them() -> None:
    queue = numbered("both", *range(1, 8))
    p = replace(blank(), queue=queue, intents=(an_intent("both", queue[3].message),))
    assert spilled(p) == (p, [])


def test_dead_letters_are_no_part_of_the_queue() -> None:
    dead = kept("both", a_message("A", id="dead"), n=0, dead="letter")
    p, [leaf] = spilled(replace(blank(), queue=(dead, *numbered("both", 1, 2, 3, 4, 5))))
    assert numbers(leaf.kept) == [3, 4, 5]
    assert p.queue[0] == dead


def test_pages_of_handlers_that_are_not_declared_are_left_alone() -> None:
    pages = (a_page(first=1, handlers=("gone",), of="waiting"), a_page(first=1, handlers=("both",), of="waiting"))
    assert [pile.of for pile in overflow.iterate_lists(replace(blank(), pages=pages), ROLES)] == ["queue"]


def test_a_page_comes_back_once_it_has_the_first_of_its_pile() -> None:
    page = a_page(first=4)
    assert overflow.find_message_segment(blank(), ROLES) is None
    assert overflow.find_message_segment(replace(blank(), queue=numbered("both", 3), pages=(page,)), ROLES) is None
    assert overflow.find_message_segment(replace(blank(), queue=numbered("both", 8), pages=(page,)), ROLES) == page
    assert overflow.find_message_segment(replace(blank(), pages=(page,)), ROLES) == page
    memory = replace(page, of="inbox")
    assert overflow.find_message_segment(replace(blank(), pages=(memory,)), ROLES) is None


def test_what_comes_back_is_in_its_place() -> None:
    dead = kept("both", a_message("A", id="dead"), n=0, dead="letter")
    before = replace(blank(), queue=(dead, *numbered("both", *range(1, 9))))
    p, leaves = spilled(before)
    for leaf in reversed(leaves):
        assert p.format == PAGED
        p = overflow.restore_messages(p, p.pages[-1], leaf)
    assert p == before
    assert p.format == PLAIN


def test_what_waited_comes_back_among_what_waits() -> None:
    before = replace(blank(), waiting=numbered("many", 1, 2, 3, 4, 5))
    p, [leaf] = spilled(before)
    assert overflow.restore_messages(p, p.pages[0], leaf) == before


MEMORY_S = 86_400
SOON_S = NOW_S + MEMORY_S + overflow.YEAR_S // 2


def wrong(p: SagaProgress) -> list[str]:
    return [page.name for page in overflow.find_wrong_expiries(p, now_s=NOW_S, retention_s=MEMORY_S)]


def test_pages_outlive_a_progress_that_expires_by_a_year_and_one_that_may_stand_without_end() -> None:
    waiting = replace(blank(), waiting=numbered("many", 1))
    run = replace(waiting, intents=(an_intent("both", a_message("A")),))
    assert [p.is_open for p in (waiting, run)] == [False, True]
    for p in (waiting, run):
        assert overflow.compute_expiry(p, now_s=NOW_S, retention_s=MEMORY_S) == NOW_S + MEMORY_S + overflow.YEAR_S
    for p in (
        replace(blank(), queue=numbered("both", 1)),
        replace(blank(), compensating=numbered("both", 1)),
        replace(blank(started=None), waiting=numbered("many", 1)),
    ):
        assert p.is_open
        assert overflow.compute_expiry(p, now_s=NOW_S, retention_s=MEMORY_S) == 0


def test_pages_are_copied_only_when_they_would_go_too_soon_or_never() -> None:
    def waiting(until: int) -> OverflowSegment:
        return replace(a_page(first=until, of="waiting"), until=until)

    pages = (waiting(0), waiting(SOON_S - 1), waiting(SOON_S))
    inbox = (replace(a_page(first=1, of="inbox"), until=1), replace(a_page(first=2, of="inbox"), until=0))
    assert wrong(replace(blank(), pages=(*pages, *inbox))) == ["p-0", f"p-{SOON_S - 1}", "p-2"]
    standing = replace(blank(), queue=numbered("both", 1), pages=(*pages, *inbox))
    assert wrong(standing) == [f"p-{SOON_S - 1}", f"p-{SOON_S}", "p-2"]


def test_a_copy_has_a_name_of_its_own_and_holds_the_same() -> None:
    p, [leaf, _] = spilled(replace(blank(), waiting=numbered("many", *range(1, 9))))
    copy, new = overflow.copy_segment(p, p.pages[0], leaf, until=7)
    assert overflow.decode_segment(new.content).kept == leaf.kept
    assert copy.pages == (new.page, p.pages[1])
    assert new.page == replace(p.pages[0], name=new.page.name, until=7)
    assert new.page.name != p.pages[0].name


def test_of_a_page_that_the_inbox_has_taken_only_the_entries_are_copied() -> None:
    p, [leaf] = spilled(replace(blank(), waiting=numbered("many", *range(1, 6))))
    had = p.pages[0].closed(NOW_S, NOW_S + 9)
    copy, new = overflow.copy_segment(replace(p, pages=(had,)), had, leaf, until=NOW_S + 9)
    assert overflow.decode_segment(new.content).kept == ()
    assert overflow.decode_segment(new.content).entries == leaf.entries
    assert (new.page.of, new.page.bound, new.page.count, new.page.newest) == ("inbox", had.bound, 3, NOW_S)
    assert copy.pages == (new.page,)


def test_events_that_a_handler_does_not_need_go_to_pages_by_their_parameter() -> None:
    looks = dataclasses.replace(a_role("looks", "B"), optional=(frozenset({"A"}),))
    p = replace(blank(), waiting=numbered("looks", *range(1, 8)))
    p, new = overflow.spill_messages(p, roles_of(looks), BOUNDS, in_hand=LATEST, now_s=NOW_S)
    assert [(made.page.of, made.page.types, made.page.count) for made in new] == [("waiting", ("A",), 3)]
    assert numbers(p.waiting) == [1, 2, 6, 7]
