"""Pages of a progress: documents of their own, which never change, for what has no room in it. Pure.

A page is named by the number of the transition whose write first lists it, and by its content. So two workers that put
the same aside make the same page, one that crashed in between leaves a page that is found again or that nobody lists,
and no page is ever another one's: whoever reads a progress reads exactly the pages it was written with.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

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
from saga.progress.handlers import HandlerRoles

ENTRY_BYTES = 12
"""Bytes of an inbox entry, as pages hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowBounds:
    """Bounds of what stays in a progress of all that grows with the number of messages."""

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
    """So many pages of one order become a shelf: see `saga.progress.shelves`."""
    value_bytes_max: int = 64 * 1024
    """A larger result of a step, or document that a handler reads, is a document of its own: see
    `saga.engine.persistence.overflow_store`."""


BOUNDS = OverflowBounds()
"""Bounds of every service. Tests put others here."""


class SegmentDocument(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The document of a page."""

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
    """The page with the results that are older than these. See `saga.progress.stacks`."""


class NewSegment(Struct, frozen=True, gc=False):
    """A page that is to be inserted before the progress that lists it is written."""

    page: OverflowSegment
    content: bytes


_leaves = msgspec.json.Decoder(SegmentDocument)


def decode_segment(content: bytes) -> SegmentDocument:
    """A page as read from a store. Raises what `saga.progress.document.UNREADABLE` lists."""
    return _leaves.decode(content)


def segment_key(service: str, saga: str, page: OverflowSegment) -> str:
    """The page's key, in collection `saga-archive`: no service has a `|` in its name, so no archive is called so."""
    return f"{service}|page::{saga}::{page.name}"


def claim_key(service: str, saga: str, claim: str) -> str:
    """The key of a claim, in collection `saga-archive`."""
    return f"{service}|claim::{saga}::{claim}"


def parse_saga(key: str) -> str:
    """The saga of any key in collection `saga-archive`: of a page, of a claim, or of an archive."""
    return key.partition("::")[2].rpartition("::")[0]


def is_segment(key: str) -> bool:
    """True if a key in collection `saga-archive` is a page's."""
    return key.partition("::")[0].endswith("|page")


def is_archive(key: str) -> bool:
    """True if a key in collection `saga-archive` is an archive's: what else lies there has a `|` in its first part."""
    return "|" not in key.partition("::")[0]


def is_claim(key: str) -> bool:
    """True if a key in collection `saga-archive` is a claim's."""
    return key.partition("::")[0].endswith("|claim")


def digest_content(content: bytes) -> str:
    """Digest in which a page's name ends, and that names a claim."""
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
    """A page of this, as the write of `p` will list it."""
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
    """True if a page's entries, which are sorted, hold this one. Each message of a saga asks all its pages."""
    wanted, count = bytes.fromhex(entry), len(entries) // ENTRY_BYTES
    at = bisect_left(range(count), wanted, key=lambda i: entries[i * ENTRY_BYTES : (i + 1) * ENTRY_BYTES])
    return entries[at * ENTRY_BYTES : (at + 1) * ENTRY_BYTES] == wanted


# -------------------------------------------------------------------- inbox


def find_segments_to_merge(p: SagaProgress, bounds: OverflowBounds) -> tuple[OverflowSegment, ...]:
    """The small pages that the next page of the inbox takes in, once there are many."""
    large = bounds.small_pages_max * (bounds.inbox_max - bounds.inbox_kept)
    small = tuple(page for page in p.pages if page.of == "inbox" and page.count < large)
    return small if len(small) >= bounds.small_pages_max else ()


def spill_inbox(
    p: SagaProgress,
    roles: HandlerRoles,
    bounds: OverflowBounds,
    *,
    in_hand: Message,
    memory_s: int,
    merged: Sequence[tuple[OverflowSegment, bytes]] = (),
) -> tuple[SagaProgress, NewSegment] | None:
    """The progress with its oldest inbox entries in a page; `None` while too few of them may go.

    Those of messages that are held or in hand stay: what follows decides about them without a look at pages. So do
    those without a time, which `saga.progress.takeover` made. `merged`: pages to be taken in, with their entries.
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
    until = newest + memory_s
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


# -------------------------------------------------------------------- for tools and tests


def list_segments(page: OverflowSegment, content: bytes) -> tuple[OverflowSegment, ...]:
    """Pages that a page lists in its turn. Raises what `saga.progress.document.UNREADABLE` lists."""
    if page.of == "inbox":  # of one that was a shelf before, only the entries count
        return ()
    leaf = decode_segment(content)
    return leaf.pages if leaf.below is None else (leaf.below,)


def restore_all(p: SagaProgress, leaves: Mapping[str, bytes], *, now_s: int = 0) -> SagaProgress:
    """The progress as if it had no bounds: with all that its pages hold. `leaves`: their documents, by key. Pages that
    may have expired by `now_s` and are not there stay pages.

    Raises `SagaError` for a page that is not there, or not as it was written.
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
