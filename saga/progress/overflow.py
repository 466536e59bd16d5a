"""Move what does not fit in a progress to overflow segments, and read it back. Pure.

A segment is an immutable document of its own. Its name is the number of the transition whose write lists it first, and
the digest of its content. So two workers that move the same items write the same segment; a crash between the two
writes leaves a segment that is found again or that no progress lists; and a progress always refers to exactly the
segments that it was written with.

What moves, in which order, and what stays in the progress:

- inbox entries: the oldest move; those of messages that are still stored or being processed stay; - queued messages,
and pending messages of a handler with `repeats` or with optional events: those behind the head of their
  list move, because decisions read only the first;
- self-consumed events: those behind the first ones of each handler that may take them move;
- results: the oldest runs of each handler move; each segment lists the one below it, because results are compensated
  newest first;
- segments themselves: very many that follow each other in one list are replaced by one index segment that lists them.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from saga.errors import SagaError
from saga.messages import Message
from saga.progress import ids, integrity, journal
from saga.progress.document import (
    CompensableResult,
    OverflowSegment,
    PendingMessage,
    SagaProgress,
    SegmentKind,
    SelfConsumedEvent,
    compute_format,
    encode,
)
from saga.progress.handlers import HandlerRole, HandlerRoles

ENTRY_BYTES = 12
"""Bytes of an inbox entry, as pages hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowBounds:
    """Limits on what stays in a progress of everything that grows with the number of messages."""

    inbox_max: int = 256
    """With more entries than this, the oldest go to a page."""
    inbox_kept: int = 64
    """Number of entries that stay then."""
    small_pages_max: int = 16
    """So many small pages of inbox entries become one: it takes few reads to know a saga's whole inbox."""
    head_max: int = 16
    head_bytes_max: int = 128 * 1024
    """So much of what is queued, or waits for one handler, stays at the head; one message always does."""
    page_max: int = 64
    page_bytes: int = 256 * 1024
    """So many more messages, or bytes of them, are a page."""
    shelf_max: int = 32
    """So many pages of one order become a shelf: see `saga.progress.overflow`."""
    value_bytes_max: int = 64 * 1024
    """A larger result of a step, or document that a handler reads, is a document of its own: see
    `saga.engine.persistence.overflow_store`."""


BOUNDS = OverflowBounds()
"""Bounds of every service. Tests put others here."""


class SegmentDocument(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Content of an overflow segment, as it is stored."""

    service: str
    saga: str
    of: SegmentKind
    newest: int
    until: int = 0
    entries: bytes
    """The inbox entries of what it holds, each of `ENTRY_BYTES`, sorted."""
    kept: tuple[PendingMessage, ...] = ()
    results: tuple[CompensableResult, ...] = ()
    own: tuple[SelfConsumedEvent, ...] = ()
    pages: tuple[OverflowSegment, ...] = ()
    """Pages that it lists, of a shelf."""
    below: OverflowSegment | None = None
    """The page with the results that are older than these. See `saga.progress.overflow`."""


class NewSegment(Struct, frozen=True, gc=False):
    """A segment to insert before the write of the progress that lists it."""

    page: OverflowSegment
    content: bytes


_leaves = msgspec.json.Decoder(SegmentDocument)


def decode_segment(content: bytes) -> SegmentDocument:
    """Decode a segment as read from a store. Raises what `saga.progress.document.UNREADABLE` lists."""
    return _leaves.decode(content)


def segment_key(service: str, saga: str, page: OverflowSegment) -> str:
    """Return a segment's key in collection `saga-archive`. No service name has a `|`, so it is never the key of an
    archive."""
    return f"{service}|page::{saga}::{page.name}"


def claim_key(service: str, saga: str, claim: str) -> str:
    """Return the key of a claim check in collection `saga-archive`."""
    return f"{service}|claim::{saga}::{claim}"


def parse_saga(key: str) -> str:
    """Return the saga of a key in collection `saga-archive`: of a segment, a claim or an archive."""
    return key.partition("::")[2].rpartition("::")[0]


def is_segment(key: str) -> bool:
    """Return True if a key in collection `saga-archive` is that of a segment."""
    return key.partition("::")[0].endswith("|page")


def is_archive(key: str) -> bool:
    """Return True if a key in collection `saga-archive` is that of an archive: all others have a `|` in their first
    part."""
    return "|" not in key.partition("::")[0]


def is_claim(key: str) -> bool:
    """Return True if a key in collection `saga-archive` is that of a claim check."""
    return key.partition("::")[0].endswith("|claim")


def digest_content(content: bytes) -> str:
    """Return the digest of a content: the end of a segment's name, and the name of a claim check."""
    return blake2b(content, digest_size=16).hexdigest()


def new_segment(  # of which progress, what is in it, and until when
    p: SagaProgress,
    of: SegmentKind,
    entries: Iterable[bytes],
    *,
    newest: int,
    until: int = 0,
    kept: tuple[PendingMessage, ...] = (),
    types: tuple[str, ...] = (),
) -> NewSegment:
    """Make a segment of these items, as the write of `p` will list it."""
    entries = sorted(entries)
    packed = b"".join(entries)
    content = encode(
        SegmentDocument(service=p.service, saga=p.saga, of=of, newest=newest, until=until, entries=packed, kept=kept)
    )
    name, count = f"{p.n:09}-{digest_content(content)}", len(packed) // ENTRY_BYTES
    bound = integrity.sum_entry_digests(entry.hex() for entry in entries)
    page = OverflowSegment(of=of, name=name, count=count, newest=newest, until=until, bound=bound, types=types)
    if kept:
        page = replace(
            page,
            bound=integrity.sum_digests(kept),
            had=bound,
            first=kept[0].n,
            last=kept[-1].n,
            handlers=tuple(sorted({k.handler for k in kept})),
        )
    return NewSegment(page, content)


def contains_entry(entries: bytes, entry: str) -> bool:
    """Return True if a segment's entries, which are sorted, contain this one. Each message of a saga asks all its
    segments."""
    wanted, count = bytes.fromhex(entry), len(entries) // ENTRY_BYTES
    at = bisect_left(range(count), wanted, key=lambda i: entries[i * ENTRY_BYTES : (i + 1) * ENTRY_BYTES])
    return entries[at * ENTRY_BYTES : (at + 1) * ENTRY_BYTES] == wanted


# -------------------------------------------------------------------- inbox entries


def find_segments_to_merge(p: SagaProgress, bounds: OverflowBounds) -> tuple[OverflowSegment, ...]:
    """Return the small inbox segments that the next one replaces, once there are many."""
    large = bounds.small_pages_max * (bounds.inbox_max - bounds.inbox_kept)
    small = tuple(page for page in p.pages if page.of == "inbox" and page.count < large)
    return small if len(small) >= bounds.small_pages_max else ()


def spill_inbox(
    p: SagaProgress,
    roles: HandlerRoles,
    bounds: OverflowBounds,
    *,
    in_hand: Message,
    retention_s: int,
    merged: Sequence[tuple[OverflowSegment, bytes]] = (),
) -> tuple[SagaProgress, NewSegment] | None:
    """Return the progress with its oldest inbox entries in a segment; `None` while too few of them may move.

    Entries of messages that are stored or being processed stay, so that decisions about them need no segment; so do
    entries without a time, which `saga.progress.takeover` makes. `merged`: segments to merge into the new one, with
    their entries.
    """
    if len(p.inbox) <= bounds.inbox_max:
        return None
    held = {
        ids.inbox_entry(m.id, name)
        for m in (in_hand, *journal.iterate_messages(p))
        for name in roles.names.get(m.type, ())
    }
    free = [entry for entry, at in p.inbox.items() if at and entry not in held]
    going = free[: max(0, len(free) - bounds.inbox_kept)]
    if len(going) < bounds.inbox_max - bounds.inbox_kept:
        return None
    newest = max(*(p.inbox[entry] for entry in going), *(page.newest for page, _ in merged), 0)
    until = newest + retention_s
    entries = {bytes.fromhex(entry) for entry in going}
    for _, packed in merged:
        entries.update(packed[at : at + ENTRY_BYTES] for at in range(0, len(packed), ENTRY_BYTES))
    new = new_segment(p, "inbox", entries, newest=newest, until=until)
    gone = {page.name for page, _ in merged}
    pages = tuple(page for page in p.pages if page.name not in gone)
    left = set(going)
    inbox = {entry: at for entry, at in p.inbox.items() if entry not in left}
    pages = (*pages, new.page)
    return replace(p, format=compute_format(pages, p.deadlines, p.later, p.version), inbox=inbox, pages=pages), new


# -------------------------------------------------------------------- reading everything, for tools and tests


def list_segments(page: OverflowSegment, content: bytes) -> tuple[OverflowSegment, ...]:
    """Return the segments that an index segment lists. Raises what `saga.progress.document.UNREADABLE` lists."""
    if page.of == "inbox":  # of one that was a shelf before, only the entries count
        return ()
    leaf = decode_segment(content)
    return leaf.pages if leaf.below is None else (leaf.below,)


def restore_all(p: SagaProgress, leaves: Mapping[str, bytes], *, now_s: int = 0) -> SagaProgress:
    """Return the progress with everything that its segments hold, as if it had no bounds.

    Args:
        leaves: the segments' documents, by key. Segments that may have expired by `now_s` and are missing stay.

    Raises:
        SagaError: a segment is missing, or was changed since it was written.
    """
    if not p.pages:
        return p
    inbox: dict[str, int] = {}
    kept: dict[SegmentKind, list[PendingMessage]] = {"queue": [], "waiting": []}
    stacked: list[tuple[CompensableResult, ...]] = []
    own = list(p.own)
    unread: list[OverflowSegment] = []
    left = [*reversed(p.pages)]
    while left:
        page = left.pop()
        key = segment_key(p.service, p.saga, page)
        content = leaves.get(key)
        if content is None and page.is_forgotten(now_s):
            unread.append(page)
        elif content is None:
            raise SagaError(f"the page {key!r} of the progress of saga {p.saga!r} in {p.service!r} is gone")
        elif page.name.rpartition("-")[2] != digest_content(content):
            raise SagaError(f"the page {key!r} of the progress of saga {p.saga!r} in {p.service!r} was changed")
        elif page.of == "results":
            stacked.append(decode_segment(content).results)
            left += list_segments(page, content)
        elif page.of == "own":
            own += decode_segment(content).own
            left += list_segments(page, content)
        elif page.of != "inbox":
            kept[page.of] += decode_segment(content).kept
            left += list_segments(page, content)
        else:
            entries = decode_segment(content).entries
            for at in range(0, len(entries), ENTRY_BYTES):
                inbox[entries[at : at + ENTRY_BYTES].hex()] = page.newest
    older = [result for part in reversed(stacked) for result in part]
    dead = [k for k in p.queue if k.dead is not None]
    queue = sorted([*kept["queue"], *(k for k in p.queue if k.dead is None)], key=lambda k: k.n)
    p = replace(
        p,
        format=compute_format(unread, p.deadlines, p.later, p.version),
        inbox={**p.inbox, **inbox},
        results=tuple(sorted(older + list(p.results), key=lambda result: result.n)),
        queue=(*dead, *queue),
        waiting=tuple(sorted([*p.waiting, *kept["waiting"]], key=lambda k: k.n)),
        own=tuple(sorted(own, key=lambda o: o.n)),
        pages=tuple(unread),
    )
    return integrity.update_format(p)


# -------------------------------------------------------------------- queued and pending messages


YEAR_S = 365 * 86_400
"""Pages of what is kept outlive their progress by up to so much, and by half of it at least."""


class OverflowList(Struct, frozen=True, gc=False):
    """Messages that are stored in one order: the queue, or those that are pending for one handler."""

    of: SegmentKind
    handler: str
    """Empty for the queue."""
    types: frozenset[str]
    """Types of events that the handler does not need, of a pile of these; else empty."""
    here: tuple[PendingMessage, ...]
    """Messages of the pile that are in the progress, in order, less dead letters."""
    pages: tuple[OverflowSegment, ...]


def iterate_lists(p: SagaProgress, roles: HandlerRoles) -> Iterator[OverflowList]:
    """Iterate over the lists of messages that may grow without limit.

    For every required parameter other than the first one of a handler with `repeats`, at most one message is pending.
    """
    pages = [page for page in p.pages if page.of in ("queue", "waiting")]
    if p.queue or pages:
        alive = tuple(k for k in p.queue if k.dead is None)
        yield OverflowList("queue", "", frozenset(), alive, tuple(page for page in pages if page.of == "queue"))
    for name in {k.handler: None for k in p.waiting} | {page.handlers[0]: None for page in pages if page.of != "queue"}:
        role = roles.handlers.get(name)
        if role is None:
            continue
        waiting = [k for k in p.waiting if k.handler == name]
        mine = [page for page in pages if page.of == "waiting" and page.handlers == (name,)]
        if role.many:
            here = tuple(k for k in waiting if k.message.type in role.takes[0])
            yield OverflowList("waiting", name, frozenset(), here, tuple(page for page in mine if not page.types))
        for types in role.optional:
            here = tuple(k for k in waiting if k.message.type in types)
            yield OverflowList("waiting", name, types, here, tuple(q for q in mine if not types.isdisjoint(q.types)))


def find_message_segment(p: SagaProgress, roles: HandlerRoles) -> OverflowSegment | None:
    """Return a segment that holds the first message of its list: it has to be read back into the progress."""
    for pile in iterate_lists(p, roles) if p.pages else ():
        if pile.pages and (not pile.here or pile.here[0].n > pile.pages[0].first):
            return pile.pages[0]
    return None


def restore_messages(p: SagaProgress, page: OverflowSegment, leaf: SegmentDocument) -> SagaProgress:
    """Return the progress with the segment's messages in their places, and without the segment."""
    pages = tuple(other for other in p.pages if other.name != page.name)
    p = replace(p, pages=pages, format=compute_format(pages, p.deadlines, p.later, p.version))
    if page.of == "waiting":
        return replace(p, waiting=_sort_messages((*p.waiting, *leaf.kept)))
    dead = tuple(k for k in p.queue if k.dead is not None)
    return replace(p, queue=(*dead, *_sort_messages((*(k for k in p.queue if k.dead is None), *leaf.kept))))


def compute_expiry(p: SagaProgress, *, now_s: int, retention_s: int) -> int:
    """Return the time from which on segments of stored messages may expire; 0 for never, as a progress that may stand.

    Otherwise they outlive the progress by so much that they are seldom renewed, and that a run which was begun and left
    finds them after months.
    """
    return 0 if p.may_stand else now_s + retention_s + YEAR_S


def find_wrong_expiries(p: SagaProgress, *, now_s: int, retention_s: int) -> Sequence[OverflowSegment]:
    """Return segments that expire too soon or never, although they should: a copy replaces each."""
    soon = now_s + retention_s + YEAR_S // 2

    def is_wrong(page: OverflowSegment) -> bool:
        if page.of == "results":  # as archives, they never do
            return False
        if page.of == "inbox" or not p.may_stand:
            return not page.until or (page.of != "inbox" and page.until < soon)
        return page.until > 0

    return tuple(page for page in p.pages if is_wrong(page))


def copy_segment(
    p: SagaProgress, page: OverflowSegment, leaf: SegmentDocument, until: int
) -> tuple[SagaProgress, NewSegment]:
    """Return the progress with a copy of the segment that expires then. Of a segment whose messages are all in the
    inbox only the entries are copied."""
    entries = [leaf.entries[at : at + ENTRY_BYTES] for at in range(0, len(leaf.entries), ENTRY_BYTES)]
    kept = () if page.of == "inbox" else leaf.kept
    if page.of == "own":
        new = new_event_segment(p, leaf.own, newest=page.newest, until=until)
    else:
        new = new_segment(p, page.of, entries, newest=page.newest, until=until, kept=kept, types=page.types)
    return replace(p, pages=tuple(new.page if other is page else other for other in p.pages)), new


def spill_messages(
    p: SagaProgress, roles: HandlerRoles, bounds: OverflowBounds, *, in_hand: Message, now_s: int, until: int = 0
) -> tuple[SagaProgress, Sequence[NewSegment]]:
    """Return the progress with the tails of its lists in segments, where the lists are too long.

    The message that is being processed stays, and the messages of open runs and what follows them: what is settled next
    is found without a segment.
    """
    new: list[NewSegment] = []
    staying = {in_hand.id} | {part.id for intent in p.intents for part in intent.parts}
    for pile in iterate_lists(p, roles):
        for part in _cut_messages(list(_find_message_tail(pile, bounds, staying)), bounds):
            entries = [bytes.fromhex(ids.inbox_entry(k.message.id, k.handler)) for k in part]
            types = tuple(sorted({k.message.type for k in part})) if pile.types else ()
            made = new_segment(p, pile.of, entries, newest=now_s, until=until, kept=part, types=types)
            gone = {id(k) for k in part}
            p = replace(
                p,
                format=compute_format((*p.pages, made.page), p.deadlines, p.later, p.version),
                queue=tuple(k for k in p.queue if id(k) not in gone),
                waiting=tuple(k for k in p.waiting if id(k) not in gone),
                pages=(*p.pages, made.page),
            )
            new.append(made)
    return p, new


def _find_message_tail(pile: OverflowList, bounds: OverflowBounds, staying: set[str]) -> Iterator[PendingMessage]:
    """Return the messages of a list that may move: all behind its segments; without segments, all but the head."""
    size = 0
    for place, kept in enumerate(pile.here):
        if kept.message.id in staying:
            return
        size += len(kept.message.value)
        if pile.pages:
            if kept.n > pile.pages[-1].last:
                yield kept
        elif place and (place >= bounds.head_max or size > bounds.head_bytes_max):
            yield kept


def _cut_messages(tail: list[PendingMessage], bounds: OverflowBounds) -> Iterator[tuple[PendingMessage, ...]]:
    """Return as many full segments as these messages fill."""
    part: list[PendingMessage] = []
    size = 0
    for kept in tail:
        part.append(kept)
        size += len(kept.message.value)
        if len(part) >= bounds.page_max or size >= bounds.page_bytes:
            yield tuple(part)
            part, size = [], 0


def _sort_messages(kept: tuple[PendingMessage, ...]) -> tuple[PendingMessage, ...]:
    return tuple(sorted(kept, key=lambda k: k.n))


# -------------------------------------------------------------------- self-consumed events


_Parameter = tuple[str, frozenset[str]]
"""Handler, and the types that one of its parameters takes."""
DROPPED_MAX = 16
"""Pages that nobody needs any more, removed by one write at most: each is read first, and there may be very many."""


def find_event_segment(p: SagaProgress, roles: HandlerRoles) -> OverflowSegment | None:
    """Return a segment that may hold the first self-consumed event for a parameter: it has to be read back."""
    pages = [page for page in p.pages if page.of == "own"]
    first = _find_first_numbers(p, roles) if pages else {}
    for page in sorted(pages, key=lambda page: page.first):
        for role in _find_consumers(p, roles, page):
            if page.first <= first.get((role.name, _find_parameter_types(role, page.types[0])), page.first):
                return page
    return None


def _find_first_numbers(p: SagaProgress, roles: HandlerRoles) -> Mapping[_Parameter, int]:
    """Return, for each parameter, the transition that emitted its first self-consumed event in the progress."""
    first: dict[_Parameter, int] = {}
    for own in p.own:
        for role in journal.find_remaining_consumers(p, roles, own):
            first.setdefault((role.name, _find_parameter_types(role, own.event.type)), own.n)
    return first


def find_unneeded(p: SagaProgress, roles: HandlerRoles) -> Sequence[OverflowSegment]:
    """Return segments of events that no handler will ever take, at most `DROPPED_MAX`."""
    gone = [page for page in p.pages if page.of == "own" and not any(True for _ in _find_consumers(p, roles, page))]
    return gone[:DROPPED_MAX]


def find_withdrawn(p: SagaProgress, before: Sequence[CompensableResult]) -> Sequence[OverflowSegment]:
    """Return segments that may hold events withdrawn because results were undone. `before`: the results until then."""
    pages = [page for page in p.pages if page.of == "own"]
    undone = _find_undone(p, before) if pages else ()
    # A result of a version that did not tell its transition may be of any.
    return [page for page in pages if any(not r.n or page.first <= r.n <= page.last for r in undone)]


def restore_events(
    p: SagaProgress, page: OverflowSegment, leaf: SegmentDocument, before: Sequence[CompensableResult]
) -> SagaProgress:
    """Return the progress with a segment's events in their places, without withdrawn events and without the segment."""
    p = remove_segment(p, page)
    left = {(result.handler, result.cause) for result in p.results}
    withdrawn = set[str]()
    for result in _find_undone(p, before):
        withdrawn.add(result.event.id)
        withdrawn.update(() if (result.handler, result.cause) in left else result.own)
    back = [own for own in leaf.own if own.event.id not in withdrawn]
    return replace(p, own=tuple(sorted((*p.own, *back), key=lambda own: own.n)))


def remove_segment(p: SagaProgress, page: OverflowSegment) -> SagaProgress:
    """Return the progress without this segment."""
    pages = tuple(other for other in p.pages if other.name != page.name)
    return replace(p, pages=pages, format=compute_format(pages, p.deadlines, p.later, p.version))


def spill_events(
    p: SagaProgress, roles: HandlerRoles, bounds: OverflowBounds, *, in_hand: Message, now_s: int, until: int
) -> tuple[SagaProgress, Sequence[NewSegment]]:
    """Return the progress with self-consumed events that are not needed soon in segments, where there are too many.

    Events that are being processed, stored for a handler, or part of a run under way stay: decisions look at them.
    """
    if len(p.own) < bounds.page_max and sum(len(own.event.value) for own in p.own) < bounds.page_bytes:
        return p, ()  # no page is full
    new: list[NewSegment] = []
    for tail in _find_event_tails(p, roles, bounds, in_hand):
        for part in _cut_events(tail, bounds):
            made = new_event_segment(p, part, newest=now_s, until=until)
            gone, pages = {o.event.id for o in part}, (*p.pages, made.page)
            p = replace(
                p,
                own=tuple([o for o in p.own if o.event.id not in gone]),
                pages=pages,
                format=compute_format(pages, p.deadlines, p.later, p.version),
            )
            new.append(made)
    return p, new


def new_event_segment(p: SagaProgress, part: Sequence[SelfConsumedEvent], *, newest: int, until: int) -> NewSegment:
    """Make a segment of these events, which are of one type and for the same handlers, as the write of `p` will list
    it."""
    leaf = SegmentDocument(
        service=p.service, saga=p.saga, of="own", newest=newest, until=until, entries=b"", own=tuple(part)
    )
    content = encode(leaf)
    page = OverflowSegment(
        of="own",
        name=f"{p.n:09}-{digest_content(content)}",
        count=len(part),
        newest=newest,
        until=until,
        first=part[0].n,
        last=part[-1].n,
        handlers=part[0].only,
        types=(part[0].event.type,),
    )
    return NewSegment(page, content)


def _find_event_tails(
    p: SagaProgress, roles: HandlerRoles, bounds: OverflowBounds, in_hand: Message
) -> Iterator[Sequence[SelfConsumedEvent]]:
    """Return the self-consumed events behind the first ones of each handler, by type and handlers, in order."""
    staying = {in_hand.id} | {k.message.id for k in (*p.queue, *p.waiting)}
    staying |= {part.id for intent in p.intents for part in intent.parts} | {m.id for c in p.later for m in c.parts}
    heads: dict[_Parameter, _Head] = {}
    tails: defaultdict[tuple[str, tuple[str, ...]], list[SelfConsumedEvent]] = defaultdict(list)
    for own in p.own:
        takers = list(journal.find_remaining_consumers(p, roles, own))
        # Asked of every one: each counts.
        beyond = [
            heads.setdefault((r.name, _find_parameter_types(r, own.event.type)), _Head()).is_full(own, bounds)
            for r in takers
        ]
        if takers and all(beyond) and own.event.id not in staying:
            names = tuple(sorted(role.name for role in takers))
            tails[own.event.type, names].append(replace(own, only=names))
    return iter(tails.values())


class _Head:
    """Counts the first self-consumed events of one parameter. Events of one transition are never parted."""

    def __init__(self) -> None:
        self.count = self.size = self.last = 0

    def is_full(self, own: SelfConsumedEvent, bounds: OverflowBounds) -> bool:
        """Return whether all events from this one on may move to segments."""
        full = self.count >= bounds.head_max or self.size >= bounds.head_bytes_max
        if full and own.n != self.last:
            return True
        self.count, self.size, self.last = self.count + 1, self.size + len(own.event.value), own.n
        return False


def _cut_events(tail: Sequence[SelfConsumedEvent], bounds: OverflowBounds) -> Iterator[Sequence[SelfConsumedEvent]]:
    """Return as many full segments as these events fill."""
    part: list[SelfConsumedEvent] = []
    size = 0
    for _, together in groupby(tail, key=lambda own: own.n):
        said = list(together)
        part += said
        size += sum(len(own.event.value) for own in said)
        if len(part) >= bounds.page_max or size >= bounds.page_bytes:
            yield part
            part, size = [], 0


def _find_consumers(p: SagaProgress, roles: HandlerRoles, page: OverflowSegment) -> Iterator[HandlerRole]:
    """Return the handlers that may take the events in a segment."""
    for role in roles.by_type.get(page.types[0], ()):
        if role.name in page.handlers and (role.many or not any(ran.handler == role.name for ran in p.ran)):
            yield role


def _find_parameter_types(role: HandlerRole, type_: str) -> frozenset[str]:
    """Return the types of the handler's parameter that takes this one."""
    return next(types for types in (*role.takes, *role.optional) if type_ in types)


def _find_undone(p: SagaProgress, before: Sequence[CompensableResult]) -> Sequence[CompensableResult]:
    """Return the results that were there before and are gone."""
    here = {(result.handler, result.event.id) for result in p.results}
    return [result for result in before if (result.handler, result.event.id) not in here]


# -------------------------------------------------------------------- results


def find_result_segment(p: SagaProgress) -> OverflowSegment | None:
    """Return the top segment of a handler whose results are all in segments: decisions look at the newest result."""
    stacked = [page for page in p.pages if page.of == "results"]
    if not stacked:
        return None
    here = {result.handler for result in p.results}
    return next((page for page in stacked if page.handlers[0] not in here), None)


def restore_results(p: SagaProgress, page: OverflowSegment, leaf: SegmentDocument) -> SagaProgress:
    """Return the progress with a segment's results in their places, and the segment below in place of the segment."""
    below = () if leaf.below is None else (leaf.below,)
    at = p.pages.index(page)
    pages = (*p.pages[:at], *below, *p.pages[at + 1 :])
    # Where two are of one transition, or of a version that did not say of which, those of the page are older.
    results = _sort_results((*leaf.results, *p.results))
    return replace(p, results=results, pages=pages, format=compute_format(pages, p.deadlines, p.later, p.version))


def spill_results(p: SagaProgress, bounds: OverflowBounds) -> tuple[SagaProgress, Sequence[NewSegment]]:
    """Move the oldest results of each handler to segments, where there are too many."""
    new: list[NewSegment] = []
    gone: set[int] = set()
    pages = p.pages
    for handler in {result.handler: None for result in p.results}:
        for part in _cut_runs(_find_older_runs([r for r in p.results if r.handler == handler], bounds), bounds):
            below = next((q for q in pages if q.of == "results" and q.handlers == (handler,)), None)
            made = _new_result_segment(p, handler, part, below)
            pages = (*(page for page in pages if page is not below), made.page)
            gone.update(map(id, part))
            new.append(made)
    if not new:
        return p, new
    results = tuple([result for result in p.results if id(result) not in gone])
    return replace(p, format=compute_format(pages, p.deadlines, p.later, p.version), results=results, pages=pages), new


def _new_result_segment(
    p: SagaProgress, handler: str, part: tuple[CompensableResult, ...], below: OverflowSegment | None
) -> NewSegment:
    """Make a segment of these results on top of the one below, as the write of `p` will list it."""
    count, bound = len(part), int(integrity.sum_digests(part), 16)
    if below is not None:
        count, bound = count + below.count, bound + int(below.bound, 16)
    leaf = SegmentDocument(
        service=p.service, saga=p.saga, of="results", newest=0, entries=b"", results=part, below=below
    )
    content = encode(leaf)
    name = f"{p.n:09}-{digest_content(content)}"
    page = OverflowSegment(
        of="results", name=name, count=count, newest=0, bound=integrity.format_sum(bound), handlers=(handler,)
    )
    return NewSegment(page, content)


def _find_older_runs(mine: list[CompensableResult], bounds: OverflowBounds) -> list[tuple[CompensableResult, ...]]:
    """Return the runs of a handler whose results may move, oldest first: all but the newest, and those that there is
    room for."""
    runs = [tuple(run) for _, run in groupby(mine, key=lambda result: result.cause)]
    count = size = 0
    for place in range(len(runs) - 1, -1, -1):
        count, size = count + len(runs[place]), size + _measure_run(runs[place])
        if place < len(runs) - 1 and (count > bounds.head_max or size > bounds.head_bytes_max):
            return runs[: place + 1]
    return []


def _cut_runs(
    runs: list[tuple[CompensableResult, ...]], bounds: OverflowBounds
) -> Iterator[tuple[CompensableResult, ...]]:
    """Return as many full segments as these runs fill."""
    part: list[CompensableResult] = []
    size = 0
    for run in runs:
        part += run
        size += _measure_run(run)
        if len(part) >= bounds.page_max or size >= bounds.page_bytes:
            yield tuple(part)
            part, size = [], 0


def _sort_results(results: tuple[CompensableResult, ...]) -> tuple[CompensableResult, ...]:
    return tuple(sorted(results, key=lambda result: result.n))


def _measure_run(run: tuple[CompensableResult, ...]) -> int:
    return sum(len(result.event.value) + sum(map(len, result.own)) for result in run)


# -------------------------------------------------------------------- segments that list segments


INDEX_LEVEL_MAX = 2
"""A shelf of shelves is as high as it gets: a third level would have more inbox entries than a document may."""


def find_segments_to_index(p: SagaProgress, bounds: OverflowBounds) -> Sequence[OverflowSegment]:
    """Return the segments of one list that one index segment may replace; empty if there are too few."""
    piles: dict[tuple[object, ...], list[OverflowSegment]] = {}
    for page in p.pages:
        if page.of in ("queue", "waiting", "own"):
            whose = () if page.of == "queue" else (page.handlers, page.types)
            piles.setdefault((page.of, *whose), []).append(page)
    for pages in piles.values():
        if len(pages) < bounds.shelf_max:
            continue
        place = 0
        for level, alike in groupby(pages, key=lambda page: page.level):
            run = list(alike)
            # The first ones are read back next.
            run, place = run[0 if place else bounds.shelf_max :], place + len(run)
            if len(run) >= bounds.shelf_max and level < INDEX_LEVEL_MAX:
                return run[: bounds.shelf_max]
    return ()


def index_segments(
    p: SagaProgress, pages: Sequence[OverflowSegment], entries: Sequence[bytes]
) -> tuple[SagaProgress, NewSegment]:
    """Return the progress with an index segment in place of these segments. `entries`: the inbox entries of each."""
    of, first = pages[0].of, pages[0]
    all_ = sorted({packed[at : at + ENTRY_BYTES] for packed in entries for at in range(0, len(packed), ENTRY_BYTES)})
    newest, until = max(page.newest for page in pages), min(page.until for page in pages)
    packed, listed = b"".join(all_), tuple(pages)
    leaf = SegmentDocument(
        service=p.service, saga=p.saga, of=of, newest=newest, until=until, entries=packed, pages=listed
    )
    content = encode(leaf)
    shelf = OverflowSegment(
        of=of,
        name=f"{p.n:09}-{digest_content(content)}",
        count=sum(page.count for page in pages),
        newest=newest,
        until=until,
        bound=_sum_digests([page.bound for page in pages]),
        had=_sum_digests([page.had for page in pages]),
        first=first.first,
        last=pages[-1].last,
        handlers=tuple(sorted({name for page in pages for name in page.handlers})),
        types=first.types,
        level=first.level + 1,
    )
    at, gone = p.pages.index(first), {page.name for page in pages}
    rest = [page for page in p.pages[at:] if page.name not in gone]
    left = (*p.pages[:at], shelf, *rest)
    return replace(p, pages=left, format=compute_format(left, p.deadlines, p.later, p.version)), NewSegment(
        shelf, content
    )


def open_index(p: SagaProgress, shelf: OverflowSegment, leaf: SegmentDocument) -> SagaProgress:
    """Return the progress with the segments that an index lists in its place."""
    at = p.pages.index(shelf)
    pages = (*p.pages[:at], *leaf.pages, *p.pages[at + 1 :])
    return replace(p, pages=pages, format=compute_format(pages, p.deadlines, p.later, p.version))


def _sum_digests(bounds: Sequence[str]) -> str:
    """Return the sum of the segments' digests. Segments of self-consumed events have none."""
    return integrity.format_sum(sum(int(bound, 16) for bound in bounds)) if any(bounds) else ""
