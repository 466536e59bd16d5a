"""Shelves: pages of one pile that lie behind the first ones are listed by a page of their own, in two levels."""

from msgspec.structs import replace

from saga.progress import overflow
from saga.progress.document import OverflowSegment, SagaProgress, SegmentKind
from saga.progress.overflow import ENTRY_BYTES, OverflowBounds
from tests.progress.pieces import NOW_MS, blank

BOUNDS = OverflowBounds(shelf_max=2)


def pages(count: int, *, of: SegmentKind = "queue", level: int = 0, begin: int = 0) -> tuple[OverflowSegment, ...]:
    return tuple(
        OverflowSegment(
            of=of, name=f"{of}-{n}", count=1, newest=NOW_MS // 1000, bound="1", had="2", first=n, last=n,
            handlers=("on_a",), level=level,
        )
        for n in range(begin, begin + count)
    )  # fmt: skip


def listed(*of: OverflowSegment) -> SagaProgress:
    return replace(blank(), pages=of)


def test_the_first_pages_of_a_pile_and_few_behind_them_stay_listed() -> None:
    assert overflow.find_segments_to_index(listed(*pages(1)), BOUNDS) == ()
    assert overflow.find_segments_to_index(listed(*pages(3)), BOUNDS) == ()
    assert overflow.find_segments_to_index(listed(*pages(9, of="inbox")), BOUNDS) == (), (
        "those are joined in another way"
    )


def test_as_many_as_a_shelf_takes_go_there_from_behind_the_first_ones() -> None:
    there = pages(4)
    assert overflow.find_segments_to_index(listed(*there), BOUNDS) == [*there[2:]]
    waiting = pages(4, of="waiting")
    assert overflow.find_segments_to_index(listed(*waiting), BOUNDS) == [*waiting[2:]]


def test_shelves_lie_on_shelves_but_no_higher() -> None:
    first, on = pages(2), pages(2, level=1, begin=2)
    assert overflow.find_segments_to_index(listed(*first, *on), BOUNDS) == [*on]
    assert (
        overflow.find_segments_to_index(listed(*first, *pages(2, level=overflow.INDEX_LEVEL_MAX, begin=2)), BOUNDS)
        == ()
    )


def test_a_shelf_holds_the_entries_and_sums_of_its_pages_and_gives_them_back() -> None:
    there = pages(4)
    p = listed(*there)
    entries = [b"b" * ENTRY_BYTES, b"a" * ENTRY_BYTES]
    on, made = overflow.index_segments(p, there[2:], entries)
    assert on.pages == (*there[:2], made.page)
    assert (made.page.count, made.page.first, made.page.last, made.page.level) == (2, 2, 3, 1)
    assert (int(made.page.bound, 16), int(made.page.had, 16)) == (2, 4)
    leaf = overflow.decode_segment(made.content)
    assert leaf.entries == entries[1] + entries[0]
    assert overflow.open_index(on, made.page, leaf).pages == there
    assert overflow.list_segments(made.page, made.content) == there[2:]
    assert overflow.list_segments(replace(made.page, of="inbox"), made.content) == ()


def test_of_own_events_nothing_is_bound() -> None:
    there = tuple(replace(page, bound="", had="") for page in pages(4, of="own"))
    _, made = overflow.index_segments(listed(*there), there[2:], ())
    assert (made.page.bound, made.page.had) == ("", "")
