"""Results that can be undone, beyond what a progress has room for. Pure.

They are undone newest first, so what a handler left is a stack: its newest results are in the progress, older ones in
pages, each of which lists the one below it. The progress lists only the uppermost page of each handler: however many
results there are, that is all it has to say of them. A run's results are never parted, for what a run said is withdrawn
with the last of them.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec.structs import replace

from saga.progress import integrity
from saga.progress.document import CompensableResult, OverflowSegment, SagaProgress, compute_format, encode
from saga.progress.spill import NewSegment, OverflowBounds, SegmentDocument, digest_content


def find_result_segment(p: SagaProgress) -> OverflowSegment | None:
    """The uppermost page of a handler of which the progress has no result left: decisions look at the newest one of
    each handler."""
    stacked = [page for page in p.pages if page.of == "results"]
    if not stacked:
        return None
    here = {result.handler for result in p.results}
    return next((page for page in stacked if page.handlers[0] not in here), None)


def restore_results(p: SagaProgress, page: OverflowSegment, leaf: SegmentDocument) -> SagaProgress:
    """The progress with a page's results in their places, and with the page below in the place of the page."""
    below = () if leaf.below is None else (leaf.below,)
    at = p.pages.index(page)
    pages = (*p.pages[:at], *below, *p.pages[at + 1 :])
    # Where two are of one transition, or of a version that did not say of which, those of the page are older.
    results = _sort_results((*leaf.results, *p.results))
    return replace(p, results=results, pages=pages, format=compute_format(pages, p.deadlines, p.later, p.version))


def spill_results(p: SagaProgress, bounds: OverflowBounds) -> tuple[SagaProgress, Sequence[NewSegment]]:
    """The progress with the oldest results of each handler in pages, where there are too many."""
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
    """A page of these results on top of the one below, as the write of `p` will list it."""
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
    """Runs of a handler whose results may go, oldest first: all but the newest, and those that there is room for."""
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
    """Pages cut from these runs, as many as are full."""
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
