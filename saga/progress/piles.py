"""Messages that are queued, or wait for a handler with `many`, beyond what a progress has room for. Pure.

A pile is in order: first what is in the progress up to where its pages begin, then the pages, then what came since. The
first of a pile is always in the progress, so that decisions, which look at the first only, need no page.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from saga.messages import Message
from saga.progress import ids, own_piles
from saga.progress.document import OverflowSegment, PendingMessage, SagaProgress, SegmentKind, compute_format
from saga.progress.handlers import HandlerRoles
from saga.progress.spill import ENTRY_BYTES, NewSegment, OverflowBounds, SegmentDocument, new_segment

YEAR_S = 365 * 86_400
"""Pages of what is kept outlive their progress by up to so much, and by half of it at least."""


class OverflowList(Struct, frozen=True, gc=False):
    """Messages that are kept in one order: the queue, or those that wait for one handler."""

    of: SegmentKind
    handler: str
    """Empty for the queue."""
    types: frozenset[str]
    """Types of events that the handler does not need, of a pile of these; else empty."""
    here: tuple[PendingMessage, ...]
    """Messages of the pile that are in the progress, in order, less dead letters."""
    pages: tuple[OverflowSegment, ...]


def iterate_lists(p: SagaProgress, roles: HandlerRoles) -> Iterator[OverflowList]:
    """All that may grow without end: for each parameter that a handler needs, other than the first of one with `many`,
    only one message waits."""
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
    """A page whose first message is the first of its pile: it belongs into the progress."""
    for pile in iterate_lists(p, roles) if p.pages else ():
        if pile.pages and (not pile.here or pile.here[0].n > pile.pages[0].first):
            return pile.pages[0]
    return None


def restore_messages(p: SagaProgress, page: OverflowSegment, leaf: SegmentDocument) -> SagaProgress:
    """The progress with a page's messages in their places, and without the page."""
    pages = tuple(other for other in p.pages if other.name != page.name)
    p = replace(p, pages=pages, format=compute_format(pages, p.deadlines, p.later, p.version))
    if page.of == "waiting":
        return replace(p, waiting=_sort_messages((*p.waiting, *leaf.kept)))
    dead = tuple(k for k in p.queue if k.dead is not None)
    return replace(p, queue=(*dead, *_sort_messages((*(k for k in p.queue if k.dead is None), *leaf.kept))))


def compute_expiry(p: SagaProgress, *, now_s: int, memory_s: int) -> int:
    """From when on pages of what is kept may expire; 0: never, as a progress that may stand. Else they outlive it by so
    much that they are seldom renewed, and that a run which was begun and left finds them after months."""
    return 0 if p.may_stand else now_s + memory_s + YEAR_S


def find_wrong_expiries(p: SagaProgress, *, now_s: int, memory_s: int) -> Sequence[OverflowSegment]:
    """Pages that expire though the progress may stand, or too soon, or never though nothing needs them: of each a copy
    takes its place."""
    soon = now_s + memory_s + YEAR_S // 2

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
    """The progress with a copy in the page's place that expires then. Of one that is the inbox's by now only the
    entries are copied."""
    entries = [leaf.entries[at : at + ENTRY_BYTES] for at in range(0, len(leaf.entries), ENTRY_BYTES)]
    kept = () if page.of == "inbox" else leaf.kept
    if page.of == "own":
        new = own_piles.new_event_segment(p, leaf.own, newest=page.newest, until=until)
    else:
        new = new_segment(p, page.of, entries, newest=page.newest, until=until, kept=kept, types=page.types)
    return replace(p, pages=tuple(new.page if other is page else other for other in p.pages)), new


def spill_messages(
    p: SagaProgress, roles: HandlerRoles, bounds: OverflowBounds, *, in_hand: Message, now_s: int, until: int = 0
) -> tuple[SagaProgress, Sequence[NewSegment]]:
    """The progress with the ends of its piles in pages that may expire then, where they are too long.

    The message in hand stays, those of open runs, and what follows them: settling looks at these, and at no page.
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
    """Messages of a pile that may go: all behind its pages; without any, all but its head."""
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
    """Pages cut from these messages, as many as are full."""
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
