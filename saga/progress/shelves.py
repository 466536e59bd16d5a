"""Shelves: pages that list pages, so that a progress lists few of them however many messages are kept. Pure.

Pages of one pile are used in order, the oldest first. So those in between lie on shelves, as those do in their turn;
the first pages of a pile, and what came since the last shelf, are listed in the progress. A shelf is opened, and its
pages listed again, when one of them is needed.
"""

from collections.abc import Sequence
from itertools import groupby

from msgspec.structs import replace

from saga.progress import integrity
from saga.progress.document import OverflowSegment, SagaProgress, compute_format, encode
from saga.progress.spill import ENTRY_BYTES, NewSegment, OverflowBounds, SegmentDocument, digest_content

INDEX_LEVEL_MAX = 2
"""A shelf of shelves is as high as it gets: a third level would have more inbox entries than a document may."""


def find_segments_to_index(p: SagaProgress, bounds: OverflowBounds) -> Sequence[OverflowSegment]:
    """Pages that follow each other in their pile and go to a shelf together; empty: there is none."""
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
    """The progress with a shelf in the place of these pages. `entries`: of each those of the messages in it."""
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
    """The progress with the pages of a shelf in its place."""
    at = p.pages.index(shelf)
    pages = (*p.pages[:at], *leaf.pages, *p.pages[at + 1 :])
    return replace(p, pages=pages, format=compute_format(pages, p.deadlines, p.later, p.version))


def _sum_digests(bounds: Sequence[str]) -> str:
    """Sum of what binds pages; of own events nothing does."""
    return integrity.format_sum(sum(int(bound, 16) for bound in bounds)) if any(bounds) else ""
