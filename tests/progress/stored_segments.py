"""A progress with small bounds, and its overflow segments, as the runtime writes and reads them."""

from collections.abc import Sequence

from saga.messages import Message
from saga.progress import overflow
from saga.progress.document import CompensableResult, OverflowSegment, SagaProgress
from saga.progress.handlers import HandlerRoles
from saga.progress.overflow import OverflowBounds, OverflowContext, SegmentDocument
from tests.progress.pieces import NOW_MS, a_message, blank

NOW_S = NOW_MS // 1000
RETENTION_S = 1000
LATEST = a_message("Z", id="latest")
BOUNDS = OverflowBounds(head_max=2, segment_max=3, index_max=2)


def a_context(
    roles: HandlerRoles,
    bounds: OverflowBounds = BOUNDS,
    message: Message = LATEST,
    before: Sequence[CompensableResult] = (),
) -> OverflowContext:
    return OverflowContext(
        roles=roles, bounds=bounds, message=message, now_s=NOW_S, retention_s=RETENTION_S, before=before
    )


class StoredProgress:
    """What two kinds of documents hold of one saga."""

    def __init__(self, roles: HandlerRoles, bounds: OverflowBounds = BOUNDS) -> None:
        self.p, self.roles, self.bounds = blank(), roles, bounds
        self.contents: dict[str, bytes] = {}

    def write(self, p: SagaProgress) -> None:
        context = a_context(self.roles, self.bounds, before=self.p.results)
        for unneeded in overflow.find_unneeded_segments(p, self.roles):
            p = overflow.drop(p, unneeded, self.read(unneeded))
        while (segment := overflow.find_segment_to_restore(p, context)) is not None:
            p = overflow.restore(p, segment, self.read(segment), context.before)
        p, new = overflow.move_out(p, context)
        self.contents.update({made.segment.name: made.content for made in new})
        while segments := overflow.find_segments_to_index(p, self.bounds):
            entries = [self.read(each).entries if overflow.has_entries(each) else b"" for each in segments]
            p, index = overflow.index_segments(p, segments, entries)
            self.contents[index.segment.name] = index.content
        self.p = p

    def read(self, segment: OverflowSegment) -> SegmentDocument:
        return overflow.decode_segment(self.contents[segment.name])

    @property
    def segments(self) -> list[OverflowSegment]:
        """All segments, those that other segments refer to, too."""
        found, left = list[OverflowSegment](), [*self.p.segments]
        while left:
            found.append(segment := left.pop())
            left += overflow.list_segments(segment, self.contents[segment.name])
        return found

    @property
    def by_key(self) -> dict[str, bytes]:
        return {overflow.segment_key("svc", "s", segment): self.contents[segment.name] for segment in self.segments}

    @property
    def whole(self) -> SagaProgress:
        return overflow.restore_all(self.p, self.by_key)
