"""Pages: what a progress puts aside is what a whole one would hold, and names tell contents apart."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from saga.errors import SagaError
from saga.progress import ids, journal, overflow
from saga.progress.document import PAGED, OverflowSegment, SagaProgress, SelfConsumedEvent, decode_progress, encode
from saga.progress.handlers import HandlerRole
from saga.progress.journal import TransitionDetails
from saga.progress.overflow import OverflowBounds, contains_entry, restore_all, segment_key
from saga.support.clock import iso
from tests.progress.pieces import NOW_MS, a_hand, a_message, a_role, blank, kept, roles_of

MANY = a_role("many", "A", many=True)
OWN = a_role("own", "P", many=True)
BOTH = a_role("both", "B", "P")
ROLES = roles_of(MANY, OWN, BOTH, emitted="P")
SMALL = OverflowBounds(inbox_max=8, inbox_kept=3, small_pages_max=3)
MEMORY_S = 1000


def handled(p: SagaProgress, id: str, *, role: HandlerRole = MANY, now_ms: int = NOW_MS) -> SagaProgress:
    message = replace(a_message("A" if role is MANY else "P", id=id), time=iso(now_ms))
    hand = a_hand(message, roles=ROLES, now_ms=now_ms, retention_s=10**9)
    return journal.complete_run(p, hand, role, TransitionDetails(cause=id, message=message, parts=(message,))).snapshot


class Store:
    """Pages as the runtime writes and reads them."""

    def __init__(self) -> None:
        self.leaves: dict[str, bytes] = {}

    def spilled(self, p: SagaProgress, in_hand: str) -> SagaProgress:
        leaves = {page.name: self.leaves[segment_key(p.service, p.saga, page)] for page in p.pages}
        merged = [
            (page, overflow.decode_segment(leaves[page.name]).entries)
            for page in overflow.find_segments_to_merge(p, SMALL)
        ]
        message = a_message("A", id=in_hand)
        spilled = overflow.spill_inbox(p, ROLES, SMALL, in_hand=message, retention_s=MEMORY_S, merged=merged)
        if spilled is None:
            return p
        p, new = spilled
        self.leaves[segment_key(p.service, p.saga, new.page)] = new.content
        return decode_progress(encode(p))


@settings(max_examples=40)
@given(st.lists(st.integers(0, 30), max_size=80))
def test_pages_and_the_rest_are_the_whole_inbox(numbers: list[int]) -> None:
    p, store, plain = blank(), Store(), dict[str, int]()
    for number in dict.fromkeys(numbers):
        p = store.spilled(handled(p, f"m-{number}"), f"m-{number}")
        plain[ids.inbox_entry(f"m-{number}", "many")] = NOW_MS // 1000
        assert len(p.inbox) <= SMALL.inbox_max
        assert restore_all(p, store.leaves).inbox == plain
    for number in range(31):
        entry = ids.inbox_entry(f"m-{number}", "many")
        found = any(
            contains_entry(overflow.decode_segment(content).entries, entry) for content in store.leaves.values()
        )
        assert (entry in p.inbox or found) == (number in numbers)


def test_small_pages_become_one_before_there_are_many() -> None:
    p, store, most = blank(), Store(), 0
    for number in range(2000):
        p = store.spilled(handled(p, f"m-{number}"), f"m-{number}")
        most = max(most, sum(page.count < 15 for page in p.pages))
    assert most <= SMALL.small_pages_max
    assert len(restore_all(p, store.leaves).inbox) == 2000
    assert sum(page.count for page in p.pages) + len(p.inbox) == 2000
    assert all(page.count < 25 for page in p.pages)


def test_a_progress_with_pages_is_not_read_by_a_version_that_knows_none() -> None:
    p, store = blank(), Store()
    assert p.format == 1
    assert b"format" not in encode(p)
    for number in range(20):
        p = store.spilled(handled(p, f"m-{number}"), f"m-{number}")
    assert p.format == PAGED == 2


def test_entries_of_what_is_held_or_in_hand_stay() -> None:
    p, store = blank(), Store()
    own = SelfConsumedEvent(event=a_message("P", id="own-1"), n=0)
    p = handled(replace(p, own=(own,)), "own-1", role=OWN)
    p = handled(p, "mine")
    for number in range(20):
        p = store.spilled(handled(p, f"m-{number}"), "mine")
    assert {ids.inbox_entry("own-1", "own"), ids.inbox_entry("mine", "many")} <= set(p.inbox)
    assert len(p.inbox) <= SMALL.inbox_max


def test_pages_older_than_the_memory_are_forgotten() -> None:
    p, store = blank(), Store()
    for number in range(12):
        p = store.spilled(handled(p, f"old-{number}"), "-")
    assert len(p.pages) == 1
    old = p
    later_ms = NOW_MS + MEMORY_S * 1000 + 1000
    for number in range(12):
        p = store.spilled(handled(p, f"new-{number}", now_ms=later_ms), "-")
    (page,) = p.pages
    assert page.until == later_ms // 1000 + MEMORY_S
    assert ids.inbox_entry("old-0", "many") not in restore_all(p, store.leaves).inbox
    with pytest.raises(SagaError, match=r"the page 'svc\|page::s::.*' of the progress of saga 's' in 'svc' is gone"):
        restore_all(old, {}, now_s=NOW_MS // 1000)
    assert restore_all(old, {}, now_s=later_ms // 1000).pages == old.pages, "it may have expired"
    changed = {key: content.replace(b'"newest"', b'"Newest"') for key, content in store.leaves.items()}
    with pytest.raises(SagaError, match="was changed"):
        restore_all(old, changed)


def test_a_clock_that_is_ahead_by_more_than_the_memory_forgets_no_page() -> None:
    p, store = blank(), Store()
    for number in range(12):
        p = store.spilled(handled(p, f"old-{number}"), "-")
    message = a_message("A", id="ahead")
    hand = a_hand(message, roles=ROLES, now_ms=NOW_MS + 2 * MEMORY_S * 1000, retention_s=MEMORY_S)
    after = journal.ignore_message(p, hand, MANY, message, "for a test").snapshot
    assert after.pages == p.pages


def test_another_content_is_another_name_and_the_same_content_the_same() -> None:
    p = blank()
    for number in range(9):
        p = handled(p, f"m-{number}")
    first, again = (overflow.spill_inbox(p, ROLES, SMALL, in_hand=a_message(), retention_s=MEMORY_S) for _ in range(2))
    other = overflow.spill_inbox(handled(p, "x"), ROLES, SMALL, in_hand=a_message(), retention_s=MEMORY_S)
    assert first is not None
    assert again is not None
    assert other is not None
    assert first[1] == again[1]
    assert first[1].page.name != other[1].page.name


def test_an_entry_that_only_looks_like_one_across_two_others_is_not_in_a_page() -> None:
    first, second = bytes(range(12)), bytes(range(12, 24))
    assert contains_entry(first + second, second.hex())
    assert not contains_entry(first + second, (first[6:] + second[:6]).hex())
    hidden = first[6:] + second[:6]
    assert contains_entry(first + hidden + second, hidden.hex())
    assert not contains_entry(b"", first.hex())


def test_the_keys_of_pages_and_archives_do_not_mix() -> None:
    key = segment_key("payment", "a::b", OverflowSegment(of="inbox", name="1-x", count=1, newest=0))
    assert overflow.is_segment(key)
    assert overflow.parse_saga(key) == "a::b"
    assert not key.startswith("payment::")
    assert not overflow.is_segment("payment::a::b::000000000")
    claim = overflow.claim_key("payment", "a::b", "c")
    assert (overflow.parse_saga(claim), overflow.is_claim(claim), overflow.is_segment(claim)) == ("a::b", True, False)
    assert not overflow.is_claim(key)
    assert list(map(overflow.is_archive, (key, claim, "payment::a::b::000000000"))) == [False, False, True]
    assert overflow.parse_saga("payment::a::b::000000000") == "a::b"


def test_what_waits_in_pages_for_a_handler_that_is_closed_counts_as_had() -> None:
    page = OverflowSegment(
        of="waiting",
        name="p",
        count=3,
        newest=1,
        until=20,
        bound="0x1",
        had="0x2",
        first=4,
        last=6,
        handlers=("many",),
    )
    had = page.closed(now_s=7, until=9)
    assert (had.of, had.bound, had.had, had.handlers) == ("inbox", "0x2", "", ())
    assert (had.name, had.count, had.newest, had.until) == ("p", 3, 7, 9)
    assert not had.is_forgotten(9)
    assert had.is_forgotten(10)
    assert not page.is_forgotten(10**12), "what is kept is never forgotten"
    assert page.closed(now_s=7, until=30).until == 20, "no later than its document"
    assert replace(page, until=0).closed(now_s=7, until=9).until == 0, "it never expires, until it is copied"


def test_a_page_that_is_gone_is_told_unless_it_may_have_expired() -> None:
    p, store = blank(), Store()
    for number in range(SMALL.inbox_max + 1):
        p = store.spilled(handled(p, f"m-{number}"), f"m-{number}")
    [page] = p.pages
    with pytest.raises(SagaError, match=r"the page '.*::s::.*' of the progress of saga 's' in 'svc' is gone"):
        restore_all(p, {})
    assert restore_all(p, {}, now_s=page.until + 1) == p
    with pytest.raises(SagaError, match="was changed"):
        restore_all(p, {segment_key("svc", "s", page): b"{}"})


def test_messages_in_pages_come_back_to_where_they_would_be() -> None:
    queue = tuple(kept("both", a_message("B", id=f"b-{n}"), n=n) for n in range(5))
    dead = kept("both", a_message("B", id="dead"), n=9, dead="letter")
    p = replace(blank(), queue=(dead, *queue))
    bounds = OverflowBounds(head_max=2, page_max=3)
    aside, [made] = overflow.spill_messages(p, ROLES, bounds, in_hand=a_message("A"), now_s=NOW_MS // 1000)
    assert restore_all(aside, {segment_key("svc", "s", made.page): made.content}) == p


def test_a_progress_without_pages_is_whole() -> None:
    p = replace(blank(), queue=(kept("both", a_message("B")),))
    assert restore_all(p, {}) is p
