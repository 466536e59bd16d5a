"""What every kind of overflow list guarantees, once for each kind; then what is particular to one of them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from saga.errors import SagaError
from saga.messages import Message
from saga.progress import compensation, history, ids, journal, overflow
from saga.progress.decisions import find_compensations, find_parts
from saga.progress.document import (
    PAGED,
    PLAIN,
    RELEASED,
    STACKED,
    CompensableResult,
    CompletedRun,
    OverflowSegment,
    PendingMessage,
    SagaProgress,
    SegmentKind,
    SelfConsumedEvent,
)
from saga.progress.handlers import CompensationRole, HandlerRole, HandlerRoles
from saga.progress.journal import TransitionDetails
from saga.progress.overflow import ENTRY_BYTES, OverflowBounds, SegmentDocument, restore_all, segment_key
from tests.progress.pieces import NOW_MS, a_hand, a_message, a_role, an_intent, blank, kept, roles_of
from tests.progress.stored_segments import BOUNDS, LATEST, NOW_S, RETENTION_S, StoredProgress, a_context

MANY, BOTH = a_role("many", "A", many=True), a_role("both", "A", "B")
LOOKS = dataclasses.replace(a_role("looks", "B"), optional=(frozenset({"A"}),))
JOIN, MEET = a_role("join", "P", "Q", many=True), a_role("meet", "P", "M")
EACH = a_role("each", "P", many=True)
ROLES = roles_of(MANY, BOTH, LOOKS)
OWN_ROLES = roles_of(JOIN, MEET, EACH, emitted="P")


def messages(handler: str, *numbers: int, value: bytes = b"1") -> tuple[PendingMessage, ...]:
    return tuple(kept(handler, a_message("A", id=f"{handler}-{n}", value=value), n=n) for n in numbers)


def events(*numbers: int, value: bytes = b"1") -> tuple[SelfConsumedEvent, ...]:
    return tuple(
        SelfConsumedEvent(event=replace(a_message("P", id=f"p-{n}", value=value), source="svc"), n=n) for n in numbers
    )


def processed_by_each(*numbers: int) -> dict[str, int]:
    return {ids.inbox_entry(f"p-{n}", "each"): 1 for n in numbers}


def results(*numbers: int, value: bytes = b"1") -> tuple[CompensableResult, ...]:
    return tuple(
        CompensableResult(
            handler="many", cause=f"c-{n}", event=a_message("R", id=f"r-{n}", value=value), self_consumed_ids=(), n=n
        )
        for n in numbers
    )


def numbers(of: Sequence[PendingMessage | SelfConsumedEvent | CompensableResult]) -> list[int]:
    return [item.n for item in of]


class ListOfKind(NamedTuple):
    """One kind of list, as the scenarios below use it."""

    of: SegmentKind
    roles: HandlerRoles
    add: Callable[[SagaProgress, int, bytes], SagaProgress]
    get: Callable[[SagaProgress], Sequence[PendingMessage | SelfConsumedEvent | CompensableResult]]
    take: Callable[[SagaProgress], SagaProgress]
    """Take the next item: the first one, of results the newest."""
    format: int
    here: list[int]
    """Of nine items, those that stay in the progress with room for two and three to a segment."""
    moved: list[list[int]]
    large_here: list[int]
    """Of five items of 100 bytes, those that stay with room for 150 bytes and 200 to a segment."""

    def fill(self, count: int, value: bytes = b"1") -> SagaProgress:
        p = blank()
        for n in range(1, count + 1):
            p = self.add(p, n, value)
        return p

    def place_of_next(self) -> int:
        return -1 if self.of == "results" else 0

    def items(self, document: SegmentDocument) -> list[int]:
        return numbers((*document.messages, *document.results, *document.self_consumed))


def add_event(p: SagaProgress, n: int, value: bytes) -> SagaProgress:
    return replace(
        p, self_consumed=(*p.self_consumed, *events(n, value=value)), inbox={**p.inbox, **processed_by_each(n)}
    )


def take_event(p: SagaProgress) -> SagaProgress:
    had = {ids.inbox_entry(p.self_consumed[0].event.id, name): 1 for name in ("join", "meet")}
    return replace(p, self_consumed=p.self_consumed[1:], inbox={**p.inbox, **had})


QUEUE = ListOfKind(
    "queue",
    ROLES,
    lambda p, n, value: replace(p, queue=(*p.queue, *messages("both", n, value=value))),
    lambda p: p.queue,
    lambda p: replace(p, queue=p.queue[1:]),
    PAGED,
    [1, 2, 9],
    [[3, 4, 5], [6, 7, 8]],
    [1],
)
REPEATS = QUEUE._replace(
    of="waiting",
    add=lambda p, n, value: replace(p, waiting=(*p.waiting, *messages("many", n, value=value))),
    get=lambda p: p.waiting,
    take=lambda p: replace(p, waiting=p.waiting[1:]),
)
OPTIONAL = REPEATS._replace(
    add=lambda p, n, value: replace(p, waiting=(*p.waiting, *messages("looks", n, value=value))), format=RELEASED
)
EVENTS = ListOfKind(
    "own",
    OWN_ROLES,
    add_event,
    lambda p: p.self_consumed,
    take_event,
    RELEASED,
    [1, 2, 9],
    [[3, 4, 5], [6, 7, 8]],
    [1, 2, 5],
)
RESULTS = ListOfKind(
    "results",
    ROLES,
    lambda p, n, value: replace(p, results=(*p.results, *results(n, value=value))),
    lambda p: p.results,
    lambda p: replace(p, results=p.results[:-1]),
    STACKED,
    [7, 8, 9],
    [[1, 2, 3], [4, 5, 6]],
    [5],
)
KINDS = {"queue": QUEUE, "repeats": REPEATS, "optional": OPTIONAL, "self-consumed events": EVENTS, "results": RESULTS}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
each_that_expires = pytest.mark.parametrize(
    "kind", [kind for kind in KINDS.values() if kind is not RESULTS], ids=[name for name in KINDS if name != "results"]
)


# -------------------------------------------------------------------- once for each kind


@each_kind
@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_a_list_shorter_than_a_segment_stays(kind: ListOfKind, count: int) -> None:
    p = kind.fill(count)
    assert overflow.move_out(p, a_context(kind.roles)) == (p, [])
    assert overflow.find_segment_to_restore(p, a_context(kind.roles)) is None


@each_kind
def test_the_tail_of_a_long_list_moves_to_full_segments_and_items_that_decisions_need_stay(kind: ListOfKind) -> None:
    p, new = overflow.move_out(kind.fill(9), a_context(kind.roles))
    assert numbers(kind.get(p)) == kind.here
    assert [kind.items(overflow.decode_segment(made.content)) for made in new] == kind.moved
    assert {segment.kind for segment in p.segments} == {kind.of}
    assert p.format == kind.format
    assert overflow.find_segment_to_restore(p, a_context(kind.roles)) is None


@each_kind
def test_large_items_move_sooner_to_smaller_segments(kind: ListOfKind) -> None:
    bounds = OverflowBounds(head_max=10, segment_max=10, head_bytes_max=150, segment_bytes=200)
    p, new = overflow.move_out(kind.fill(5, b"x" * 100), a_context(kind.roles, bounds))
    assert numbers(kind.get(p)) == kind.large_here
    assert {len(kind.items(overflow.decode_segment(made.content))) for made in new} == {2}


@each_kind
def test_two_workers_that_move_the_same_items_write_the_same_segments(kind: ListOfKind) -> None:
    (_, first), (_, again) = (overflow.move_out(kind.fill(9), a_context(kind.roles)) for _ in range(2))
    _, other = overflow.move_out(kind.fill(9, b"2"), a_context(kind.roles))
    assert first == again
    assert {made.segment.name for made in first}.isdisjoint(made.segment.name for made in other)


@each_kind
def test_restored_items_are_in_their_places(kind: ListOfKind) -> None:
    before = kind.fill(9)
    p, new = overflow.move_out(before, a_context(kind.roles))
    contents = {made.segment.name: made.content for made in new}
    whole = restore_all(p, {segment_key("svc", "s", made.segment): made.content for made in new})
    while p.segments:
        assert p.format == kind.format
        p = overflow.restore(p, p.segments[0], overflow.decode_segment(contents[p.segments[0].name]))
    for restored in (p, whole):
        assert restored.format == PLAIN
        # An event names the handlers that may still take it, once it was in a segment.
        assert replace(restored, self_consumed=tuple(replace(o, only=()) for o in restored.self_consumed)) == before


@each_kind
def test_a_segment_is_restored_only_when_it_has_the_next_item(kind: ListOfKind) -> None:
    stored, seen = StoredProgress(kind.roles), []
    stored.write(kind.fill(9))
    while stored.segments:
        here = kind.get(stored.p)
        seen.append(here[kind.place_of_next()].n)
        count = len(stored.segments)
        taken = kind.take(stored.p)
        is_needed = overflow.find_segment_to_restore(taken, a_context(kind.roles)) is not None
        stored.write(replace(taken, n=taken.n + 1))
        assert len(stored.segments) == count or is_needed
        assert kind.get(stored.p)
    order = range(1, 10) if kind.place_of_next() == 0 else range(9, 0, -1)
    assert seen == [*order][: len(seen)]


@each_kind
@settings(max_examples=30)
@given(st.lists(st.sampled_from(["add", "add", "add", "take"]), max_size=60), st.integers(1, 3), st.integers(1, 4))
def test_every_item_is_next_exactly_once_and_in_order(kind: ListOfKind, acts: list[str], head: int, size: int) -> None:
    stored = StoredProgress(kind.roles, OverflowBounds(head_max=head, segment_max=size, index_max=2))
    there, added = list[int](), 0
    for act in acts:
        p = stored.p
        if act == "add":
            added += 1
            p = kind.add(p, added, b"1")
            there.append(added)
        elif there:
            next_ = there.pop(kind.place_of_next())
            assert kind.get(p)[kind.place_of_next()].n == next_
            p = kind.take(p)
        stored.write(replace(p, n=p.n + 1))
        assert numbers(kind.get(stored.whole)) == there
        assert len(kind.get(stored.p)) <= 2 * (head + size)
        assert len(stored.p.segments) <= 12


@each_kind
def test_a_missing_or_changed_segment_is_an_error_when_an_operator_reads_it(kind: ListOfKind) -> None:
    stored = StoredProgress(kind.roles)
    stored.write(kind.fill(9))
    with pytest.raises(SagaError, match=r"the page 'svc\|page::s::.*' of the progress of saga 's' in 'svc' is gone"):
        restore_all(stored.p, {})
    with pytest.raises(SagaError, match="was changed"):
        restore_all(stored.p, dict.fromkeys(stored.by_key, b"{}"))
    assert not any(segment.is_forgotten(10**12) for segment in stored.p.segments), "only inbox entries are forgotten"


@each_that_expires
def test_a_copied_segment_has_another_name_and_the_same_items(kind: ListOfKind) -> None:
    p, [first, _] = overflow.move_out(kind.fill(9), a_context(kind.roles))
    document = overflow.decode_segment(first.content)
    copied, new = overflow.copy_segment(p, first.segment, document, NOW_S + 10**9)
    assert new.segment == replace(first.segment, name=new.segment.name, expires=NOW_S + 10**9)
    assert new.segment.name != first.segment.name
    assert copied.segments == (new.segment, p.segments[1])
    assert overflow.decode_segment(new.content) == replace(document, expires=NOW_S + 10**9)


def list_segments_of(
    of: SegmentKind, count: int, *, level: int = 0, begin: int = 0, bound: str = "1"
) -> tuple[OverflowSegment, ...]:
    return tuple(
        OverflowSegment(
            kind=of, name=f"{of}-{n}", count=1, newest=NOW_S, items_digest=bound, inbox_digest=bound and "2",
            first=n, last=n, handlers=("on_a",), types=("P",) if of == "own" else (), level=level,
        )
        for n in range(begin, begin + count)
    )  # fmt: skip


def listed(*of: OverflowSegment) -> SagaProgress:
    return replace(blank(), segments=of)


each_that_is_indexed = pytest.mark.parametrize("of", ["queue", "waiting", "own"])


@each_that_is_indexed
def test_the_first_segments_of_a_list_stay_out_of_an_index(of: SegmentKind) -> None:
    assert overflow.find_segments_to_index(listed(*list_segments_of(of, 1)), BOUNDS) == ()
    assert overflow.find_segments_to_index(listed(*list_segments_of(of, 3)), BOUNDS) == ()


@pytest.mark.parametrize("of", ["inbox", "results"])
def test_segments_that_are_merged_or_linked_have_no_index(of: SegmentKind) -> None:
    assert overflow.find_segments_to_index(listed(*list_segments_of(of, 9)), BOUNDS) == ()


@each_that_is_indexed
def test_a_full_index_takes_the_segments_behind_the_first_ones(of: SegmentKind) -> None:
    there = list_segments_of(of, 4)
    assert overflow.find_segments_to_index(listed(*there), BOUNDS) == [*there[2:]]


@each_that_is_indexed
def test_index_segments_have_at_most_two_levels(of: SegmentKind) -> None:
    first, indexes = list_segments_of(of, 2), list_segments_of(of, 2, level=1, begin=2)
    assert overflow.find_segments_to_index(listed(*first, *indexes), BOUNDS) == [*indexes]
    highest = list_segments_of(of, 2, level=overflow.INDEX_LEVEL_MAX, begin=2)
    assert overflow.find_segments_to_index(listed(*first, *highest), BOUNDS) == ()


@each_that_is_indexed
def test_an_index_has_the_entries_and_sums_of_its_segments_and_restores_them(of: SegmentKind) -> None:
    there = list_segments_of(of, 4, bound="" if of == "own" else "1")
    entries = [b""] * 2 if of == "own" else [b"b" * ENTRY_BYTES, b"a" * ENTRY_BYTES]
    indexed, made = overflow.index_segments(listed(*there), there[2:], entries)
    assert indexed.segments == (*there[:2], made.segment)
    assert (made.segment.count, made.segment.first, made.segment.last, made.segment.level) == (2, 2, 3, 1)
    assert (made.segment.items_digest, made.segment.inbox_digest) == (("", "") if of == "own" else ("2", "4"))
    document = overflow.decode_segment(made.content)
    assert document.entries == b"".join(sorted(entries))
    assert overflow.restore(indexed, made.segment, document).segments == there
    assert overflow.list_segments(made.segment, made.content) == there[2:]
    assert overflow.list_segments(replace(made.segment, kind="inbox"), made.content) == ()


# -------------------------------------------------------------------- queued and pending messages


def test_the_lists_of_handlers_move_independently() -> None:
    waiting = (*messages("many", *range(1, 6)), *messages("both", 6))
    p, [made] = overflow.move_out(replace(blank(), waiting=waiting), a_context(ROLES))
    assert numbers(overflow.decode_segment(made.content).messages) == [3, 4, 5]
    assert [(k.handler, k.n) for k in p.waiting] == [("many", 1), ("many", 2), ("both", 6)]
    assert [(s.kind, s.handlers, s.types) for s in p.segments] == [("waiting", ("many",), ())]


def test_segments_of_events_that_a_handler_does_not_need_name_their_types() -> None:
    p, [made] = overflow.move_out(OPTIONAL.fill(7), a_context(ROLES))
    assert (made.segment.kind, made.segment.types, made.segment.count) == ("waiting", ("A",), 3)
    assert numbers(p.waiting) == [1, 2, 6, 7]


def a_segment(*, first: int, handlers: tuple[str, ...] = ("many",), of: SegmentKind = "queue") -> OverflowSegment:
    return OverflowSegment(
        kind=of, name=f"p-{first}", count=1, newest=NOW_S, expires=0, first=first, last=first + 2, handlers=handlers
    )


def test_all_messages_newer_than_a_segment_move_too() -> None:
    p = replace(blank(), queue=messages("both", 1, 8, 9, 10), segments=(a_segment(first=2, handlers=("both",)),))
    p, [made] = overflow.move_out(p, a_context(ROLES))
    assert numbers(overflow.decode_segment(made.content).messages) == [8, 9, 10]
    assert numbers(p.queue) == [1]


@pytest.mark.parametrize("kind", [QUEUE, REPEATS], ids=["queue", "repeats"])
def test_messages_of_an_open_run_or_in_processing_and_later_ones_stay(kind: ListOfKind) -> None:
    p = kind.fill(7)
    fourth = kind.get(p)[3]
    assert isinstance(fourth, PendingMessage)
    running = replace(p, intents=(an_intent("both", fourth.message),))
    assert overflow.move_out(running, a_context(ROLES)) == (running, [])
    assert overflow.move_out(p, a_context(ROLES, message=fourth.message)) == (p, [])


def test_dead_letters_stay_at_the_head_of_the_queue() -> None:
    dead = kept("both", a_message("A", id="dead"), n=0, dead="letter")
    before = replace(blank(), queue=(dead, *messages("both", 1, 2, 3, 4, 5)))
    p, [made] = overflow.move_out(before, a_context(ROLES))
    document = overflow.decode_segment(made.content)
    assert numbers(document.messages) == [3, 4, 5]
    assert p.queue[0] == dead
    assert overflow.restore(p, made.segment, document) == before
    assert restore_all(p, {segment_key("svc", "s", made.segment): made.content}) == before


def test_segments_of_handlers_that_are_not_declared_are_left_alone() -> None:
    undeclared = a_segment(first=1, handlers=("gone",), of="waiting")
    one_message = a_segment(first=1, handlers=("both",), of="waiting")
    p = replace(blank(), segments=(undeclared, one_message))
    assert overflow.find_segment_to_restore(p, a_context(ROLES)) is None
    assert overflow.move_out(p, a_context(ROLES)) == (p, [])


def test_a_segment_is_restored_when_it_has_the_first_message_of_its_list() -> None:
    segment = a_segment(first=4)

    def found(*queued: int, segment: OverflowSegment = segment) -> OverflowSegment | None:
        p = replace(blank(), queue=messages("both", *queued), segments=(segment,))
        return overflow.find_segment_to_restore(p, a_context(ROLES))

    assert found(3) is None
    assert found(8) == segment
    assert found() == segment
    assert found(segment=replace(segment, kind="inbox")) is None


def test_a_closed_segment_counts_as_processed_and_only_its_entries_are_copied() -> None:
    p, [made] = overflow.move_out(REPEATS.fill(5), a_context(ROLES))
    document = overflow.decode_segment(made.content)
    closed = p.segments[0].closed(NOW_S, NOW_S + 9)
    copied, new = overflow.copy_segment(replace(p, segments=(closed,)), closed, document, until=NOW_S + 9)
    assert overflow.decode_segment(new.content).messages == ()
    assert overflow.decode_segment(new.content).entries == document.entries
    assert (new.segment.kind, new.segment.items_digest, new.segment.count, new.segment.newest) == (
        "inbox",
        closed.items_digest,
        3,
        NOW_S,
    )
    assert copied.segments == (new.segment,)


SOON_S = NOW_S + RETENTION_S + overflow.YEAR_S // 2


def find_wrong(p: SagaProgress) -> list[str]:
    return [segment.name for segment in overflow.find_wrong_expiries(p, a_context(ROLES))]


def test_segments_outlive_an_expiring_progress_by_a_year_and_never_expire_before_an_open_one() -> None:
    waiting = replace(blank(), waiting=messages("many", 1))
    run = replace(waiting, intents=(an_intent("both", a_message("A")),))
    assert [p.is_open for p in (waiting, run)] == [False, True]
    for p in (waiting, run):
        assert overflow.compute_expiry(p, a_context(ROLES)) == NOW_S + RETENTION_S + overflow.YEAR_S
    for p in (
        replace(blank(), queue=messages("both", 1)),
        replace(blank(), compensating=messages("both", 1)),
        replace(blank(started=None), waiting=messages("many", 1)),
    ):
        assert p.is_open
        assert overflow.compute_expiry(p, a_context(ROLES)) == 0


def test_segments_are_copied_only_when_they_would_expire_too_soon_or_never() -> None:
    def waiting(until: int) -> OverflowSegment:
        return replace(a_segment(first=until, of="waiting"), expires=until)

    there = (waiting(0), waiting(SOON_S - 1), waiting(SOON_S))
    inbox = (replace(a_segment(first=1, of="inbox"), expires=1), replace(a_segment(first=2, of="inbox"), expires=0))
    assert find_wrong(replace(blank(), segments=(*there, *inbox))) == ["p-0", f"p-{SOON_S - 1}", "p-2"]
    standing = replace(blank(), queue=messages("both", 1), segments=(*there, *inbox))
    assert find_wrong(standing) == [f"p-{SOON_S - 1}", f"p-{SOON_S}", "p-2"]


# -------------------------------------------------------------------- self-consumed events


def test_events_of_one_type_for_the_same_handlers_share_segments_that_name_both() -> None:
    p, _ = overflow.move_out(EVENTS.fill(9), a_context(OWN_ROLES))
    assert [(s.first, s.last, s.count, s.handlers, s.types) for s in p.segments] == [
        (3, 5, 3, ("join", "meet"), ("P",)),
        (6, 8, 3, ("join", "meet"), ("P",)),
    ]


def test_events_of_one_transition_are_never_split() -> None:
    together = events(1, 2, 3, 4, 4, 4, 4, 5)
    together = tuple(replace(o, event=replace(o.event, id=f"p-{place}")) for place, o in enumerate(together))
    p, _ = overflow.move_out(
        replace(blank(), self_consumed=together, inbox=processed_by_each(*range(9))), a_context(OWN_ROLES)
    )
    assert numbers(p.self_consumed) == [1, 2, 5]
    assert [(s.first, s.last, s.count) for s in p.segments] == [(3, 4, 5)]


def test_a_handled_event_is_never_handled_again_even_if_its_inbox_entry_has_moved() -> None:
    stored = StoredProgress(OWN_ROLES)
    stored.write(EVENTS.fill(9))
    ran = CompletedRun(handler="meet", parameter=0, type="P", schema="", content="", message="p-1")
    stored.write(replace(stored.p, self_consumed=(), inbox={}, completed_runs=(ran,)))
    assert numbers(stored.p.self_consumed) == [3, 4, 5]
    assert [n for n, _ in find_parts(stored.p, EACH, 0)] == []
    assert [n for n, _ in find_parts(stored.p, JOIN, 0)] == [3, 4, 5]


@pytest.mark.parametrize("what", ["in processing", "in the queue", "of an open run"])
def test_events_that_decisions_need_stay(what: str) -> None:
    there = events(*range(1, 10))
    p = replace(blank(), self_consumed=there, inbox=processed_by_each(*range(1, 10)))
    if what == "in the queue":
        p = replace(p, queue=(kept("join", there[4].event, n=5),))
    elif what == "of an open run":
        p = replace(p, intents=(an_intent("join", there[4].event),))
    else:
        there = (*there[:4], replace(there[4], event=replace(there[4].event, id=LATEST.id)), *there[5:])
        p = replace(p, self_consumed=there, inbox={**p.inbox, ids.inbox_entry(LATEST.id, "each"): 1})
    stored = StoredProgress(OWN_ROLES)
    stored.write(p)
    assert 5 in numbers(stored.p.self_consumed)
    assert numbers(stored.whole.self_consumed) == [*range(1, 10)]


def test_segments_that_no_handler_needs_any_more_are_unneeded() -> None:
    p, _ = overflow.move_out(EVENTS.fill(9), a_context(OWN_ROLES))
    segments = tuple(replace(segment, handlers=("meet",)) for segment in p.segments)
    ran = CompletedRun(handler="meet", parameter=0, type="P", schema="", content="", message="p-1")
    assert overflow.find_unneeded_segments(replace(p, segments=segments), OWN_ROLES) == []
    assert overflow.find_unneeded_segments(replace(p, segments=segments, completed_runs=(ran,)), OWN_ROLES) == [
        *segments
    ]
    assert overflow.find_unneeded_segments(p, roles_of(EACH, emitted="P")) == [*p.segments]


def test_unneeded_segments_are_dropped_after_their_index_is_opened() -> None:
    stored = StoredProgress(OWN_ROLES, OverflowBounds(head_max=1, segment_max=1, index_max=2))
    stored.write(EVENTS.fill(9))
    assert [segment.level for segment in stored.p.segments] == [0, 0, 2, 1]
    stored.roles = roles_of(EACH, emitted="P")
    counts = []
    while stored.p.segments:
        stored.write(replace(stored.p, n=stored.p.n + 1))
        counts.append(len(stored.segments))
    assert counts == sorted(counts, reverse=True)
    assert numbers(stored.p.self_consumed) == [1]


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(["emit", "emit", "emit", "take", "undo"]), max_size=60),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_every_event_is_consumed_once_in_order_unless_it_is_withdrawn(acts: list[str], head: int, size: int) -> None:
    stored = StoredProgress(OWN_ROLES, OverflowBounds(head_max=head, segment_max=size, index_max=2))
    there, emitted, most = list[int](), 0, 0
    for act in acts:
        p = stored.p
        if act == "emit":
            emitted += 1
            [new] = events(emitted)
            result = CompensableResult(
                handler="reserve", cause=f"c-{emitted}", event=new.event, self_consumed_ids=(new.event.id,), n=emitted
            )
            p = replace(add_event(p, emitted, b"1"), results=(*p.results, result))
            there.append(emitted)
        elif act == "take" and there:
            first, event = next(find_parts(p, JOIN, 0))
            assert first == there.pop(0)
            had = {ids.inbox_entry(event.id, name): 1 for name in ("join", "meet")}
            p = replace(p, inbox={**p.inbox, **had}, self_consumed=tuple(o for o in p.self_consumed if o.n != first))
        elif act == "undo" and p.results:
            last = p.results[-1]
            p = replace(
                p,
                results=p.results[:-1],
                self_consumed=tuple(o for o in p.self_consumed if o.event.id != last.event.id),
            )
            there = [n for n in there if n != last.n]
        stored.write(replace(p, n=p.n + 1))
        assert numbers(stored.whole.self_consumed) == there
        most = max(most, len([segment for segment in stored.p.segments if segment.kind == "own"]))
    assert most <= 12


def test_events_of_undone_results_are_withdrawn_from_a_segment() -> None:
    stored = StoredProgress(OWN_ROLES)
    undoable = tuple(
        CompensableResult(
            handler="reserve", cause=f"c-{n}", event=events(n)[0].event, self_consumed_ids=(f"p-{n}",), n=n
        )
        for n in range(1, 6)
    )
    p = EVENTS.fill(5)
    stored.write(p)
    stored.p = replace(stored.p, results=undoable)
    assert 4 not in numbers(stored.p.self_consumed)
    stored.write(replace(stored.p, results=undoable[:3]))
    assert numbers(stored.whole.self_consumed) == [1, 2, 3]


# -------------------------------------------------------------------- results


def a_role_with_compensation(name: str, takes: str) -> HandlerRole:
    undo = CompensationRole(name=f"undo_{name}", outcomes=frozenset({"Failed"}), results=frozenset({"R"}))
    return a_role(name, takes, many=True, undo=undo)


FIRST, SECOND = a_role_with_compensation("first", "A"), a_role_with_compensation("second", "B")
RUN_ROLES = roles_of(FIRST, SECOND, a_role("join", "M", "P"), emitted="R P")
FAILED = a_message("Failed")


def run(p: SagaProgress, role: HandlerRole, number: int, emitted: list[Message]) -> SagaProgress:
    message = a_message(min(role.takes[0]), id=f"{role.name}-{number}")
    ended = TransitionDetails(cause=message.id, message=message, parts=(message,), events=emitted)
    return journal.complete_run(p, replace(a_hand(message, roles=RUN_ROLES), before=p), role, ended).snapshot


def undo(p: SagaProgress, role: HandlerRole, result: CompensableResult) -> SagaProgress:
    ended = TransitionDetails(message=FAILED, cause=result.event.id)
    return compensation.complete_compensation(
        p, replace(a_hand(FAILED, roles=RUN_ROLES), before=p), role, result, ended
    ).snapshot


def emit(type_: str, id: str, value: bytes = b"1") -> Message:
    return replace(a_message(type_, id=id), source="svc", value=value)


def run_handlers(*handlers: str) -> SagaProgress:
    p = blank()
    for n, name in enumerate(handlers):
        p = run(p, FIRST if name == "first" else SECOND, n, [emit("R", f"{name}-r{n}")])
    return p


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.sampled_from((FIRST, SECOND)), st.integers(1, 5), st.booleans()), max_size=40),
    st.lists(st.booleans(), max_size=60),
)
def test_segments_change_neither_the_order_of_compensations_nor_the_withdrawn_events(
    runs: list[tuple[HandlerRole, int, bool]], firsts: list[bool]
) -> None:
    stored, plain = StoredProgress(RUN_ROLES), blank()
    for number, (role, count, has_own) in enumerate(runs):
        emitted = [emit("R", f"r-{number}-{i}") for i in range(count)]
        emitted += [emit("P", f"p-{number}")] * has_own
        plain = run(plain, role, number, emitted)
        stored.write(run(stored.p, role, number, emitted))
    linked = [segment for segment in stored.p.segments if segment.kind == "results"]
    assert len(stored.p.results) <= 2 * (BOUNDS.head_max + BOUNDS.segment_max + 5)
    assert len(linked) <= 2, "the newest segment of each handler"
    assert (stored.p.format >= STACKED) == bool(stored.p.segments)
    while plain.results:
        assert stored.whole.results == plain.results
        assert [own.event for own in stored.whole.self_consumed] == [own.event for own in plain.self_consumed]
        assert find_compensations(stored.p, RUN_ROLES, "Failed") == find_compensations(plain, RUN_ROLES, "Failed")
        order = (FIRST, SECOND) if firsts and firsts.pop() else (SECOND, FIRST)
        role = next(role for role in order if any(r.handler == role.name for r in plain.results))
        newest = next(r for r in reversed(plain.results) if r.handler == role.name)
        assert newest == next(r for r in reversed(stored.p.results) if r.handler == role.name)
        plain = undo(plain, role, newest)
        stored.write(undo(stored.p, role, newest))
        assert stored.p.closed == plain.closed
    assert stored.p.self_consumed == plain.self_consumed == ()
    assert not stored.segments
    assert history.verify_history(stored.p.transitions, stored.p) is None


def test_a_progress_lists_the_newest_segment_of_a_handler_and_that_one_links_to_the_next() -> None:
    stored = StoredProgress(RUN_ROLES)
    stored.write(run_handlers(*["first"] * 9))
    assert [r.event.id for r in stored.p.results] == ["first-r6", "first-r7", "first-r8"]
    [segment] = stored.p.segments
    assert (segment.kind, segment.count, segment.handlers, segment.expires) == ("results", 6, ("first",), 0)
    assert len(stored.segments) == 2


def test_the_newest_result_stays_however_large_it_is() -> None:
    p = RESULTS.fill(1, b"x" * 1000)
    context = a_context(ROLES, OverflowBounds(head_max=10, segment_max=10, head_bytes_max=150, segment_bytes=200))
    assert overflow.move_out(p, context) == (p, [])


def test_the_newest_result_of_each_handler_stays_however_old_it_is() -> None:
    p, _ = overflow.move_out(run_handlers("second", *["first"] * 8), a_context(RUN_ROLES))
    assert [r.event.id for r in p.results] == ["second-r0", "first-r7", "first-r8"]


def test_the_results_of_one_run_are_never_split() -> None:
    p = run(blank(), FIRST, 0, [emit("R", f"r{i}") for i in range(7)])
    assert overflow.move_out(p, a_context(RUN_ROLES)) == (p, []), "it is the newest run"
    p, [new] = overflow.move_out(run(p, FIRST, 1, [emit("R", "last")]), a_context(RUN_ROLES))
    assert (len(p.results), new.segment.count) == (1, 7)


def test_segments_of_results_never_expire_and_each_counts_with_those_below() -> None:
    stored = StoredProgress(RUN_ROLES)
    stored.write(run_handlers(*["first"] * 9))
    p = stored.p
    assert overflow.find_wrong_expiries(p, a_context(RUN_ROLES)) == ()
    assert not p.segments[0].is_forgotten(NOW_MS)
    [below] = [segment for segment in stored.segments if segment not in p.segments]
    without = {key: content for key, content in stored.by_key.items() if key != segment_key("svc", "s", below)}
    with pytest.raises(SagaError, match="is gone"):
        restore_all(p, without)
    found = history.verify_history(p.transitions, replace(p, segments=()))
    assert found is not None
    assert "results" in found.what


def test_results_without_a_transition_number_stay_in_order() -> None:
    p = run_handlers(*["first"] * 9)
    old = replace(p, results=tuple(replace(r, n=0) for r in p.results))
    stored = StoredProgress(RUN_ROLES)
    stored.write(old)
    assert stored.whole.results == old.results
    for result in reversed(old.results):
        assert stored.p.results[-1] == result
        stored.write(undo(stored.p, FIRST, result))
    assert stored.p.closed == ("first",)
