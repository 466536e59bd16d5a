"""Inbox entries in overflow segments: with the rest they are the whole inbox, and names tell contents apart."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from saga.errors import SagaError
from saga.messages import Message
from saga.progress import ids, journal, overflow
from saga.progress.document import PAGED, OverflowSegment, SagaProgress, SelfConsumedEvent, decode_progress, encode
from saga.progress.handlers import HandlerRole
from saga.progress.journal import TransitionDetails
from saga.progress.overflow import (
    NewSegment,
    OverflowBounds,
    contains_entry,
    restore_all,
    segment_key,
)
from saga.support.clock import iso
from tests.progress.pieces import NOW_MS, a_hand, a_message, a_role, blank, kept, roles_of
from tests.progress.stored_segments import RETENTION_S, a_context

MANY = a_role("many", "A", many=True)
OWN = a_role("own", "P", many=True)
BOTH = a_role("both", "B", "P")
ROLES = roles_of(MANY, OWN, BOTH, emitted="P")
SMALL = OverflowBounds(inbox_max=8, inbox_kept=3, small_segments_max=3)


def complete(p: SagaProgress, id: str, *, role: HandlerRole = MANY, now_ms: int = NOW_MS) -> SagaProgress:
    message = replace(a_message("A" if role is MANY else "P", id=id), time=iso(now_ms))
    write_context = a_hand(message, roles=ROLES, now_ms=now_ms, retention_s=10**9)
    return journal.complete_run(
        p, write_context, role, TransitionDetails(cause=id, message=message, parts=(message,))
    ).snapshot


def move(
    p: SagaProgress, message: Message, merged: Sequence[tuple[OverflowSegment, bytes]] = ()
) -> tuple[SagaProgress, NewSegment] | None:
    return overflow.move_inbox_entries(p, a_context(ROLES, SMALL, message), merged)


class Store:
    """Segments as the runtime writes and reads them."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def write(self, p: SagaProgress, message: str) -> SagaProgress:
        merged = [
            (segment, overflow.decode_segment(self.contents[segment_key(p.service, p.saga, segment)]).entries)
            for segment in overflow.find_segments_to_merge(p, SMALL)
        ]
        moved = move(p, a_message("A", id=message), merged)
        if moved is None:
            return p
        p, new = moved
        self.contents[segment_key(p.service, p.saga, new.segment)] = new.content
        return decode_progress(encode(p))


@settings(max_examples=40)
@given(st.lists(st.integers(0, 30), max_size=80))
def test_segments_and_the_rest_are_the_whole_inbox(numbers: list[int]) -> None:
    p, store, plain = blank(), Store(), dict[str, int]()
    for number in dict.fromkeys(numbers):
        p = store.write(complete(p, f"m-{number}"), f"m-{number}")
        plain[ids.inbox_entry(f"m-{number}", "many")] = NOW_MS // 1000
        assert len(p.inbox) <= SMALL.inbox_max
        assert restore_all(p, store.contents).inbox == plain
    for number in range(31):
        entry = ids.inbox_entry(f"m-{number}", "many")
        found = any(
            contains_entry(overflow.decode_segment(content).entries, entry) for content in store.contents.values()
        )
        assert (entry in p.inbox or found) == (number in numbers)


def test_small_segments_are_merged_before_there_are_many() -> None:
    p, store, most = blank(), Store(), 0
    for number in range(2000):
        p = store.write(complete(p, f"m-{number}"), f"m-{number}")
        most = max(most, sum(segment.count < 15 for segment in p.segments))
    assert most <= SMALL.small_segments_max
    assert len(restore_all(p, store.contents).inbox) == 2000
    assert sum(segment.count for segment in p.segments) + len(p.inbox) == 2000
    assert all(segment.count < 25 for segment in p.segments)


def test_a_progress_with_segments_is_refused_by_versions_without_them() -> None:
    p, store = blank(), Store()
    assert p.format == 1
    assert b"format" not in encode(p)
    for number in range(20):
        p = store.write(complete(p, f"m-{number}"), f"m-{number}")
    assert p.format == PAGED == 2


def test_inbox_entries_of_stored_and_current_messages_stay() -> None:
    p, store = blank(), Store()
    own = SelfConsumedEvent(event=a_message("P", id="own-1"), n=0)
    p = complete(replace(p, self_consumed=(own,)), "own-1", role=OWN)
    p = complete(p, "mine")
    for number in range(20):
        p = store.write(complete(p, f"m-{number}"), "mine")
    assert {ids.inbox_entry("own-1", "own"), ids.inbox_entry("mine", "many")} <= set(p.inbox)
    assert len(p.inbox) <= SMALL.inbox_max


def test_segments_older_than_the_retention_are_dropped() -> None:
    p, store = blank(), Store()
    for number in range(12):
        p = store.write(complete(p, f"old-{number}"), "-")
    assert len(p.segments) == 1
    old = p
    later_ms = NOW_MS + RETENTION_S * 1000 + 1000
    for number in range(12):
        p = store.write(complete(p, f"new-{number}", now_ms=later_ms), "-")
    (segment,) = p.segments
    assert segment.expires == later_ms // 1000 + RETENTION_S
    assert ids.inbox_entry("old-0", "many") not in restore_all(p, store.contents).inbox
    with pytest.raises(SagaError, match=r"the page 'svc\|page::s::.*' of the progress of saga 's' in 'svc' is gone"):
        restore_all(old, {}, now_s=NOW_MS // 1000)
    assert restore_all(old, {}, now_s=later_ms // 1000).segments == old.segments, "it may have expired"
    changed = {key: content.replace(b'"newest"', b'"Newest"') for key, content in store.contents.items()}
    with pytest.raises(SagaError, match="was changed"):
        restore_all(old, changed)


def test_a_clock_ahead_by_more_than_the_retention_drops_no_segment() -> None:
    p, store = blank(), Store()
    for number in range(12):
        p = store.write(complete(p, f"old-{number}"), "-")
    message = a_message("A", id="ahead")
    write_context = a_hand(message, roles=ROLES, now_ms=NOW_MS + 2 * RETENTION_S * 1000, retention_s=RETENTION_S)
    after = journal.ignore_message(p, write_context, MANY, message, "for a test").snapshot
    assert after.segments == p.segments


def test_segments_are_named_by_their_content() -> None:
    p = blank()
    for number in range(9):
        p = complete(p, f"m-{number}")
    first, again = (move(p, a_message()) for _ in range(2))
    other = move(complete(p, "x"), a_message())
    assert first is not None
    assert again is not None
    assert other is not None
    assert first[1] == again[1]
    assert first[1].segment.name != other[1].segment.name


def test_bytes_across_two_entries_do_not_count_as_an_entry() -> None:
    first, second = bytes(range(12)), bytes(range(12, 24))
    assert contains_entry(first + second, second.hex())
    assert not contains_entry(first + second, (first[6:] + second[:6]).hex())
    hidden = first[6:] + second[:6]
    assert contains_entry(first + hidden + second, hidden.hex())
    assert not contains_entry(b"", first.hex())


def test_the_keys_of_segments_claims_and_archives_do_not_mix() -> None:
    key = segment_key("payment", "a::b", OverflowSegment(kind="inbox", name="1-x", count=1, newest=0))
    assert overflow.is_segment(key)
    assert overflow.parse_saga(key) == "a::b"
    assert not key.startswith("payment::")
    assert not overflow.is_segment("payment::a::b::000000000")
    claim = overflow.claim_key("payment", "a::b", "c")
    assert (overflow.parse_saga(claim), overflow.is_claim(claim), overflow.is_segment(claim)) == ("a::b", True, False)
    assert not overflow.is_claim(key)
    assert list(map(overflow.is_archive, (key, claim, "payment::a::b::000000000"))) == [False, False, True]
    assert overflow.parse_saga("payment::a::b::000000000") == "a::b"


def test_a_segment_of_messages_for_a_closed_handler_counts_as_processed() -> None:
    segment = OverflowSegment(
        kind="waiting",
        name="p",
        count=3,
        newest=1,
        expires=20,
        items_digest="0x1",
        inbox_digest="0x2",
        first=4,
        last=6,
        handlers=("many",),
    )
    had = segment.closed(now_s=7, until=9)
    assert (had.kind, had.items_digest, had.inbox_digest, had.handlers) == ("inbox", "0x2", "", ())
    assert (had.name, had.count, had.newest, had.expires) == ("p", 3, 7, 9)
    assert not had.is_forgotten(9)
    assert had.is_forgotten(10)
    assert not segment.is_forgotten(10**12), "what is kept is never forgotten"
    assert segment.closed(now_s=7, until=30).expires == 20, "no later than its document"
    assert replace(segment, expires=0).closed(now_s=7, until=9).expires == 0, "it never expires, until it is copied"


def test_a_missing_segment_is_an_error_unless_it_may_have_expired() -> None:
    p, store = blank(), Store()
    for number in range(SMALL.inbox_max + 1):
        p = store.write(complete(p, f"m-{number}"), f"m-{number}")
    [segment] = p.segments
    with pytest.raises(SagaError, match=r"the page '.*::s::.*' of the progress of saga 's' in 'svc' is gone"):
        restore_all(p, {})
    assert restore_all(p, {}, now_s=segment.expires + 1) == p
    with pytest.raises(SagaError, match="was changed"):
        restore_all(p, {segment_key("svc", "s", segment): b"{}"})


def test_a_progress_without_segments_is_complete() -> None:
    p = replace(blank(), queue=(kept("both", a_message("B")),))
    assert restore_all(p, {}) is p
