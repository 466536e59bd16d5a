"""Move what does not fit in a progress to overflow segments, and read it back. Pure functions.

A segment is an immutable document of its own. Its name consists of the number of the transition whose write first lists
the segment, and the digest of its content. So two workers that move the same items write the same segment. If a worker
crashes after it wrote a segment and before it wrote the progress, the segment is written again under the same name, or
no progress lists it. And a progress always refers to exactly the segments that it was written with.

Four kinds of list may grow with the number of messages: the overflow lists. Each list is in the order of the
transitions that stored its items. All kinds share one mechanism: `move_out` moves items that are not needed soon into
full segments, `restore` returns the items of a segment to their positions in the list, and `index_segments` replaces
very many segments of one list by one index segment, in up to two levels. Each kind is a subclass of `ListKind`:

- queued messages: one list. Its first messages stay, because decisions depend on them, and a segment is read back when
  its first message is the next one.
- pending messages: one list for each handler with `repeats`, and for each optional parameter; otherwise like queued
  messages.
- self-consumed events: one list for each type and set of handlers that may still consume it. The first events of each
  parameter stay, and a segment is read back when it may contain the next one, or one that was withdrawn.
- results: one list for each handler. Those of the newest runs stay, because they are compensated first, and a segment
  is read back when the handler has no other result.

A segment of results refers to the segment with the next older results, so a progress lists only the newest segment of
each handler.

Inbox entries are not a list and have functions of their own. An entry is looked up by its digest in any segment and is
never read back. Segments of entries expire with the retention, and small ones are merged into one.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from typing import Any, Generic, Literal, NamedTuple, TypeVar

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
"""Size of an inbox entry in a segment, in bytes."""
YEAR_S = 365 * 86_400
"""Segments of stored messages and events outlive their progress by at most this many seconds, and by at least half of
them."""
INDEX_LEVEL_MAX = 2
"""Maximum level of index segments: a third level would have more inbox entries than fit in a document."""
DROPPED_MAX = 16
"""Largest number of unneeded segments that one write removes: each is read first, and there may be very many."""

Item = TypeVar("Item", PendingMessage, SelfConsumedEvent, CompensableResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowBounds:
    """Limits on the parts of a progress that grow with the number of messages: beyond them, items move to segments."""

    inbox_max: int = 256
    """With more inbox entries than this, the oldest move to a segment."""
    inbox_kept: int = 64
    """Number of inbox entries that then stay in the progress."""
    small_segments_max: int = 16
    """Number of small inbox segments at which they are merged into one, so that few reads find all inbox entries of a
    saga."""
    head_max: int = 16
    head_bytes_max: int = 128 * 1024
    """Maximum number of items, and of their bytes, that stay at the head of a list; one item always stays."""
    segment_max: int = 64
    segment_bytes: int = 256 * 1024
    """Number of items, or of their bytes, that fill one segment."""
    index_max: int = 32
    """Number of segments of one list that one index segment replaces."""
    value_bytes_max: int = 64 * 1024
    """Largest step result, or document that a handler reads, that is stored in the progress. A larger one becomes a
    claim check: see `saga.engine.persistence.overflow_store`."""


BOUNDS = OverflowBounds()
"""Limits of every service. Tests replace them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowContext:
    """Everything that moving and restoring items depends on, besides the progress."""

    roles: HandlerRoles
    bounds: OverflowBounds
    message: Message
    """The message that is being processed. Items that decisions about it depend on stay in the progress."""
    now_s: int
    retention_s: int
    before: Sequence[CompensableResult] = ()
    """Results before the transition that is about to be written. If a result is no longer there, its self-consumed
    events are withdrawn."""


class SegmentDocument(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    gc=False,
    rename={"kind": "of", "expires": "until", "messages": "kept", "self_consumed": "own", "segments": "pages"},
):
    """Content of an overflow segment, as it is stored."""

    service: str
    saga: str
    kind: SegmentKind
    newest: int
    expires: int = 0
    entries: bytes
    """The inbox entries of the messages in the segment, sorted; each has `ENTRY_BYTES`."""
    messages: tuple[PendingMessage, ...] = ()
    results: tuple[CompensableResult, ...] = ()
    self_consumed: tuple[SelfConsumedEvent, ...] = ()
    segments: tuple[OverflowSegment, ...] = ()
    """The segments that it lists, if it is an index segment."""
    below: OverflowSegment | None = None
    """For results: the segment with the next older results of the same handler."""


class NewSegment(Struct, frozen=True, gc=False):
    """A segment that must be inserted before the write of the progress that lists it."""

    segment: OverflowSegment
    content: bytes


_documents = msgspec.json.Decoder(SegmentDocument)


def decode_segment(content: bytes) -> SegmentDocument:
    """Decode a segment as read from a store. Raises the errors in `saga.progress.document.UNREADABLE`."""
    return _documents.decode(content)


def segment_key(service: str, saga: str, segment: OverflowSegment) -> str:
    """Return a segment's key in collection `saga-archive`.

    It is never equal to the key of an archive, because service names contain no `|`.
    """
    return f"{service}|page::{saga}::{segment.name}"


def claim_key(service: str, saga: str, claim: str) -> str:
    """Return the key of a claim check in collection `saga-archive`."""
    return f"{service}|claim::{saga}::{claim}"


def parse_saga(key: str) -> str:
    """Return the saga from the key of a segment, a claim check or an archive in collection `saga-archive`."""
    return key.partition("::")[2].rpartition("::")[0]


def is_segment(key: str) -> bool:
    """Return True if a key in collection `saga-archive` belongs to a segment."""
    return key.partition("::")[0].endswith("|page")


def is_archive(key: str) -> bool:
    """Return True if a key in collection `saga-archive` belongs to an archive: only then the key's first part contains
    no `|`."""
    return "|" not in key.partition("::")[0]


def is_claim(key: str) -> bool:
    """Return True if a key in collection `saga-archive` belongs to a claim check."""
    return key.partition("::")[0].endswith("|claim")


def digest_content(content: bytes) -> str:
    """Return the digest of a document's content: the end of a segment's name, or the name of a claim check."""
    return blake2b(content, digest_size=16).hexdigest()


def _make_segment(p: SagaProgress, segment: OverflowSegment, **content: Any) -> NewSegment:
    """Encode a segment, and name it for the next write of `p`, which will list it. `content`: fields of
    `SegmentDocument`."""
    document = SegmentDocument(
        service=p.service,
        saga=p.saga,
        kind=segment.kind,
        newest=segment.newest,
        expires=segment.expires,
        **{"entries": b"", **content},
    )
    encoded = encode(document)
    return NewSegment(replace(segment, name=f"{p.n:09}-{digest_content(encoded)}"), encoded)


def _with_segments(p: SagaProgress, segments: tuple[OverflowSegment, ...]) -> SagaProgress:
    return replace(p, segments=segments, format=compute_format(segments, p.deadlines, p.suspended_runs, p.version))


def _replace_segment(p: SagaProgress, segment: OverflowSegment, *others: OverflowSegment) -> SagaProgress:
    """Return the progress with this segment replaced by other segments, or by none."""
    at = p.segments.index(segment)
    return _with_segments(p, (*p.segments[:at], *others, *p.segments[at + 1 :]))


# -------------------------------------------------------------------- the mechanism, for every kind of list


def move_out(p: SagaProgress, context: OverflowContext) -> tuple[SagaProgress, Sequence[NewSegment]]:
    """Move the ends of lists that are too long to new segments. Only full segments are made."""
    new: list[NewSegment] = []
    until = compute_expiry(p, context)
    for kind in LIST_KINDS.values():
        for tail in kind.find_tails(p, context):
            for items in kind.cut(tail.items, context.bounds):
                below = kind.find_below(p, tail)
                segment, content = kind.describe(tail, items, below)
                if kind.expires:
                    segment = replace(segment, newest=context.now_s, expires=until)
                made = _make_segment(p, segment, **content)
                p = kind.remove(p, items)
                p = _with_segments(p, (*(other for other in p.segments if other is not below), made.segment))
                new.append(made)
    return p, new


def find_segment_to_restore(p: SagaProgress, context: OverflowContext) -> OverflowSegment | None:
    """Return a segment that has to be read back, because decisions depend on its items, or because they were
    withdrawn."""
    found = (kind.find_segment_to_restore(p, context) for kind in LIST_KINDS.values()) if p.segments else ()
    return next((segment for segment in found if segment is not None), None)


def restore(
    p: SagaProgress, segment: OverflowSegment, document: SegmentDocument, before: Sequence[CompensableResult] = ()
) -> SagaProgress:
    """Return the progress with a segment replaced by its contents: its items, or the segments that an index segment
    lists.

    `before`: see `OverflowContext`.
    """
    if segment.level:
        return open_index(p, segment, document)
    p = _replace_segment(p, segment, *(() if document.below is None else (document.below,)))
    kind = LIST_KINDS[segment.kind]
    return kind.put_back(p, getattr(document, kind.stored), before)


def drop(p: SagaProgress, segment: OverflowSegment, document: SegmentDocument) -> SagaProgress:
    """Return the progress without this segment.

    An index segment is replaced by the segments that it lists, which have to be dropped one by one.
    """
    return open_index(p, segment, document) if segment.level else _replace_segment(p, segment)


def find_segments_to_index(p: SagaProgress, bounds: OverflowBounds) -> Sequence[OverflowSegment]:
    """Return the segments of one list that one index segment may replace; empty if there are too few."""
    lists: dict[tuple[object, ...], list[OverflowSegment]] = {}
    for segment in p.segments:
        if segment.kind in ("queue", "waiting", "own"):
            whose = () if segment.kind == "queue" else (segment.handlers, segment.types)
            lists.setdefault((segment.kind, *whose), []).append(segment)
    for segments in lists.values():
        if len(segments) < bounds.index_max:
            continue
        place = 0
        for level, alike in groupby(segments, key=lambda segment: segment.level):
            run = list(alike)
            # The first segments are read back next.
            run, place = run[0 if place else bounds.index_max :], place + len(run)
            if len(run) >= bounds.index_max and level < INDEX_LEVEL_MAX:
                return run[: bounds.index_max]
    return ()


def index_segments(
    p: SagaProgress, segments: Sequence[OverflowSegment], entries: Sequence[bytes]
) -> tuple[SagaProgress, NewSegment]:
    """Return the progress with these segments replaced by one index segment. `entries`: the inbox entries of each
    segment."""
    first = segments[0]
    index = OverflowSegment(
        kind=first.kind,
        name="",
        count=sum(segment.count for segment in segments),
        newest=max(segment.newest for segment in segments),
        expires=min(segment.expires for segment in segments),
        items_digest=_sum_digests([segment.items_digest for segment in segments]),
        inbox_digest=_sum_digests([segment.inbox_digest for segment in segments]),
        first=first.first,
        last=segments[-1].last,
        handlers=tuple(sorted({name for segment in segments for name in segment.handlers})),
        types=first.types,
        level=first.level + 1,
    )
    all_ = sorted({entry for packed in entries for entry in _split_entries(packed)})
    new = _make_segment(p, index, entries=b"".join(all_), segments=tuple(segments))
    at, gone = p.segments.index(first), {segment.name for segment in segments}
    rest = [segment for segment in p.segments[at:] if segment.name not in gone]
    return _with_segments(p, (*p.segments[:at], new.segment, *rest)), new


def open_index(p: SagaProgress, index: OverflowSegment, document: SegmentDocument) -> SagaProgress:
    """Return the progress with an index segment replaced by the segments that it lists."""
    return _replace_segment(p, index, *document.segments)


def _sum_digests(bounds: Sequence[str]) -> str:
    """Return the sum of the segments' digests. Segments of self-consumed events have no digest."""
    return integrity.format_sum(sum(int(bound, 16) for bound in bounds)) if any(bounds) else ""


def compute_expiry(p: SagaProgress, context: OverflowContext) -> int:
    """Return the time from which new segments may expire; 0 for never, if the saga may stay open until an operator
    acts.

    Otherwise segments outlive the progress by a long time, so that they seldom have to be renewed, and a run that is
    continued only after months still finds them.
    """
    return 0 if p.may_stand else context.now_s + context.retention_s + YEAR_S


def find_wrong_expiries(p: SagaProgress, context: OverflowContext) -> Sequence[OverflowSegment]:
    """Return segments that expire too soon, or that never expire although they should. The caller replaces each by a
    copy."""
    soon = context.now_s + context.retention_s + YEAR_S // 2

    def is_wrong(segment: OverflowSegment) -> bool:
        if segment.kind == "results":  # like archives, they never expire
            return False
        if segment.kind == "inbox" or not p.may_stand:
            return not segment.expires or (segment.kind != "inbox" and segment.expires < soon)
        return segment.expires > 0

    return tuple(segment for segment in p.segments if is_wrong(segment))


def copy_segment(
    p: SagaProgress, segment: OverflowSegment, document: SegmentDocument, until: int
) -> tuple[SagaProgress, NewSegment]:
    """Return the progress with the segment replaced by a copy that expires at `until`.

    A copy of an inbox segment contains only the entries, because all its messages count as handled.
    """
    if segment.kind == "inbox":
        new = make_inbox_segment(p, _split_entries(document.entries), newest=segment.newest, until=until)
    else:
        content = {
            "entries": document.entries,
            "messages": document.messages,
            "self_consumed": document.self_consumed,
        }
        new = _make_segment(p, replace(segment, expires=until), **content)
    return replace(p, segments=tuple(new.segment if other is segment else other for other in p.segments)), new


# -------------------------------------------------------------------- the kinds of list


class Tail(NamedTuple, Generic[Item]):
    """Items at the end of one list that may move to segments, in order."""

    kind: SegmentKind
    items: Sequence[Item]
    handlers: tuple[str, ...] = ()
    """Handlers of the list, if the items do not name them."""
    has_types: bool = False
    """True if segments have to name the types of their messages, because the handler alone does not determine them."""


class ListKind(ABC, Generic[Item]):
    """One kind of overflow list: which items may move, how a segment describes them, and when they are needed."""

    field: str
    """Field of the progress that contains the items."""
    stored: str
    """Field of a segment's document that contains the items."""
    expires = True

    @abstractmethod
    def find_tails(self, p: SagaProgress, context: OverflowContext) -> Iterable[Tail[Item]]:
        """Return, for each list, the items at its end that may move."""

    @abstractmethod
    def find_segment_to_restore(self, p: SagaProgress, context: OverflowContext) -> OverflowSegment | None:
        """Return a segment that has to be read back, because decisions depend on one of its items."""

    def describe(
        self, tail: Tail[Item], items: tuple[Item, ...], below: OverflowSegment | None
    ) -> tuple[OverflowSegment, dict[str, Any]]:
        """Return a segment for these items of a tail, still without name and times, and the fields of its document.

        `below`: the segment with the next older items, if this kind links its segments.
        """
        first, last, names = items[0].n, items[-1].n, tail.handlers
        segment = OverflowSegment(
            kind=tail.kind, name="", count=len(items), newest=0, first=first, last=last, handlers=names
        )
        return segment, {self.stored: items}

    @abstractmethod
    def get_size(self, item: Item) -> int:
        """Return the size of an item in bytes, as counted against the limits."""

    def get_group(self, item: Item) -> Hashable:
        """Return a group key: successive items with the same key must be in the same segment."""
        return id(item)

    def find_below(self, p: SagaProgress, tail: Tail[Item]) -> OverflowSegment | None:
        """Return the segment with the next older items, to which a new segment of this list has to refer; `None` if
        this kind does not link its segments, or if there is none."""
        return None

    def cut(self, items: Iterable[Item], bounds: OverflowBounds) -> Iterator[tuple[Item, ...]]:
        """Divide items into full segments. Items at the end that fill no segment are left out."""
        part: list[Item] = []
        size = 0
        for _, group in groupby(items, key=self.get_group):
            together = list(group)
            part += together
            size += sum(map(self.get_size, together))
            if len(part) >= bounds.segment_max or size >= bounds.segment_bytes:
                yield tuple(part)
                part, size = [], 0

    def remove(self, p: SagaProgress, items: Iterable[Item]) -> SagaProgress:
        """Return the progress without these items."""
        gone = set(map(id, items))
        return replace(p, **{self.field: tuple([item for item in getattr(p, self.field) if id(item) not in gone])})

    def put_back(self, p: SagaProgress, items: Sequence[Item], before: Sequence[CompensableResult]) -> SagaProgress:
        """Return the progress with the items of a segment at their positions. `before`: see `OverflowContext`."""
        return replace(p, **{self.field: _sort_items((*getattr(p, self.field), *items))})


def _sort_items(items: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(sorted(items, key=lambda item: item.n))


# -------------------------------------------------------------------- queued and pending messages


class MessageList(NamedTuple):
    """One ordered list of stored messages: the queue, or the messages pending for one parameter of a handler."""

    here: tuple[PendingMessage, ...]
    """Messages of the list that are in the progress, in order, without dead letters."""
    segments: tuple[OverflowSegment, ...]
    has_types: bool = False


class Messages(ListKind[PendingMessage]):
    """The lists of messages in the queue or in `waiting`: those pending for a handler with `repeats`, or for an
    optional parameter.

    Other pending messages need no segments, because at most one message is pending for every other required parameter.
    """

    stored = "messages"

    def __init__(self, of: Literal["queue", "waiting"]) -> None:
        self.of: SegmentKind = of
        self.field = of

    def iterate_lists(self, p: SagaProgress, roles: HandlerRoles) -> Iterator[MessageList]:
        """Yield the lists of this kind that may grow without limit."""
        segments = tuple(segment for segment in p.segments if segment.kind == self.of)
        if self.of == "queue":
            if p.queue or segments:
                yield MessageList(tuple(k for k in p.queue if k.dead is None), segments)
            return
        for name in {k.handler: None for k in p.waiting} | {segment.handlers[0]: None for segment in segments}:
            role = roles.handlers.get(name)
            if role is None:
                continue
            waiting = [k for k in p.waiting if k.handler == name]
            mine = [segment for segment in segments if segment.handlers == (name,)]
            if role.many:
                here = tuple(k for k in waiting if k.message.type in role.takes[0])
                yield MessageList(here, tuple(segment for segment in mine if not segment.types))
            for types in role.optional:
                here = tuple(k for k in waiting if k.message.type in types)
                yield MessageList(here, tuple(s for s in mine if not types.isdisjoint(s.types)), has_types=True)

    def find_tails(self, p: SagaProgress, context: OverflowContext) -> Iterator[Tail[PendingMessage]]:
        """Yield the messages of each list that may move: those after its last segment or, if it has no segments, after
        its head.

        The message that is being processed and the messages of open runs stay, and so do all messages behind them. So
        the next message of the list is found without reading a segment.
        """
        staying = {context.message.id} | {part.id for intent in p.intents for part in intent.parts}
        for messages in self.iterate_lists(p, context.roles):
            tail = _find_message_tail(messages, context.bounds, staying)
            yield Tail(self.of, list(tail), has_types=messages.has_types)

    def find_segment_to_restore(self, p: SagaProgress, context: OverflowContext) -> OverflowSegment | None:
        """Return a segment that contains the first message of its list."""
        for here, segments, _ in self.iterate_lists(p, context.roles):
            if segments and (not here or here[0].n > segments[0].first):
                return segments[0]
        return None

    def describe(
        self, tail: Tail[PendingMessage], items: tuple[PendingMessage, ...], below: OverflowSegment | None
    ) -> tuple[OverflowSegment, dict[str, Any]]:
        entries = sorted(ids.inbox_entry(k.message.id, k.handler) for k in items)
        segment, content = super().describe(tail, items, below)
        segment = replace(
            segment,
            items_digest=integrity.sum_digests(items),
            inbox_digest=integrity.sum_entry_digests(entries),
            handlers=tuple(sorted({k.handler for k in items})),
            types=tuple(sorted({k.message.type for k in items})) if tail.has_types else (),
        )
        return segment, {**content, "entries": bytes.fromhex("".join(entries))}

    def get_size(self, item: PendingMessage) -> int:
        return len(item.message.value)

    def put_back(
        self, p: SagaProgress, items: Sequence[PendingMessage], before: Sequence[CompensableResult]
    ) -> SagaProgress:
        # Dead letters stay at the head of the queue.
        here: tuple[PendingMessage, ...] = getattr(p, self.field)
        dead, alive = [k for k in here if k.dead is not None], [k for k in here if k.dead is None]
        return replace(p, **{self.field: (*dead, *_sort_items((*alive, *items)))})


def _find_message_tail(messages: MessageList, bounds: OverflowBounds, staying: set[str]) -> Iterator[PendingMessage]:
    size = 0
    for place, message in enumerate(messages.here):
        if message.message.id in staying:
            return
        size += len(message.message.value)
        if messages.segments:
            if message.n > messages.segments[-1].last:
                yield message
        elif place and (place >= bounds.head_max or size > bounds.head_bytes_max):
            yield message


# -------------------------------------------------------------------- results


class Results(ListKind[CompensableResult]):
    """The lists of results, one for each handler. Their segments form a linked list. The results of one run stay
    together in one place.

    Like archives, these segments never expire.
    """

    field = stored = "results"
    expires = False

    def find_tails(self, p: SagaProgress, context: OverflowContext) -> Iterator[Tail[CompensableResult]]:
        for handler in {result.handler: None for result in p.results}:
            mine = [result for result in p.results if result.handler == handler]
            yield Tail("results", self.find_older(mine, context.bounds), (handler,))

    def find_older(self, mine: Sequence[CompensableResult], bounds: OverflowBounds) -> Sequence[CompensableResult]:
        """Return the results of a handler that may move.

        The results of the newest run stay. Results of earlier runs stay as far as the limits of the head allow.
        """
        runs = [tuple(run) for _, run in groupby(mine, key=self.get_group)]
        count = size = 0
        for place in range(len(runs) - 1, -1, -1):
            count, size = count + len(runs[place]), size + sum(map(self.get_size, runs[place]))
            if place < len(runs) - 1 and (count > bounds.head_max or size > bounds.head_bytes_max):
                return [result for run in runs[: place + 1] for result in run]
        return ()

    def find_segment_to_restore(self, p: SagaProgress, context: OverflowContext) -> OverflowSegment | None:
        """Return the newest segment of a handler that has no results outside segments."""
        here = {result.handler for result in p.results}
        return next((s for s in p.segments if s.kind == "results" and s.handlers[0] not in here), None)

    def find_below(self, p: SagaProgress, tail: Tail[CompensableResult]) -> OverflowSegment | None:
        return next((s for s in p.segments if s.kind == "results" and s.handlers == tail.handlers), None)

    def describe(
        self, tail: Tail[CompensableResult], items: tuple[CompensableResult, ...], below: OverflowSegment | None
    ) -> tuple[OverflowSegment, dict[str, Any]]:
        count, bound = len(items), int(integrity.sum_digests(items), 16)
        if below is not None:
            count, bound = count + below.count, bound + int(below.items_digest, 16)
        segment, content = super().describe(tail, items, below)
        segment = replace(segment, count=count, items_digest=integrity.format_sum(bound), first=0, last=0)
        return segment, {**content, "below": below}

    def get_size(self, item: CompensableResult) -> int:
        return len(item.event.value) + sum(map(len, item.self_consumed_ids))

    def get_group(self, item: CompensableResult) -> Hashable:
        return item.cause

    def put_back(
        self, p: SagaProgress, items: Sequence[CompensableResult], before: Sequence[CompensableResult]
    ) -> SagaProgress:
        # If two belong to the same transition, or to an unknown one, the one from the segment is older.
        return replace(p, results=_sort_items((*items, *p.results)))


# -------------------------------------------------------------------- self-consumed events


_Parameter = tuple[str, frozenset[str]]
"""A handler, and the types that one of its parameters accepts."""


class SelfConsumedEvents(ListKind[SelfConsumedEvent]):
    """The lists of events that the service itself consumes. Events of one transition stay together.

    In a segment, an event names the handlers that may still consume it.
    """

    field = stored = "self_consumed"

    def find_tails(self, p: SagaProgress, context: OverflowContext) -> Sequence[Tail[SelfConsumedEvent]]:
        """Return the events that may move, grouped by type and handlers: those behind the head of each parameter's
        list.

        Events that are being processed, stored for a handler, or part of an open or suspended run stay, because
        decisions depend on them.
        """
        bounds = context.bounds
        if (
            len(p.self_consumed) < bounds.segment_max
            and sum(map(self.get_size, p.self_consumed)) < bounds.segment_bytes
        ):
            return ()  # no segment is full
        staying = {context.message.id} | {k.message.id for k in (*p.queue, *p.waiting)}
        staying |= {part.id for intent in p.intents for part in intent.parts} | {
            m.id for c in p.suspended_runs for m in c.parts
        }
        heads: defaultdict[_Parameter, _Head] = defaultdict(_Head)
        tails: defaultdict[tuple[str, tuple[str, ...]], list[SelfConsumedEvent]] = defaultdict(list)
        for own in p.self_consumed:
            takers = list(journal.find_remaining_consumers(p, context.roles, own))
            # A list, not a generator: `is_full` has to count the event for every handler.
            beyond = [heads[_find_parameter(role, own.event.type)].is_full(own, bounds) for role in takers]
            if takers and all(beyond) and own.event.id not in staying:
                tails[own.event.type, tuple(sorted(role.name for role in takers))].append(own)
        return [Tail("own", events, names) for (_, names), events in tails.items()]

    def find_segment_to_restore(self, p: SagaProgress, context: OverflowContext) -> OverflowSegment | None:
        """Return a segment that may contain withdrawn events, or the first event for a parameter."""
        segments = sorted((s for s in p.segments if s.kind == "own"), key=lambda segment: segment.first)
        if not segments:
            return None
        return self.find_withdrawn(p, context.before) or self.find_first(p, context.roles, segments)

    def find_withdrawn(self, p: SagaProgress, before: Sequence[CompensableResult]) -> OverflowSegment | None:
        """Return a segment that may contain withdrawn events, because results of the same transitions were just undone;
        `None` if there is none."""
        undone = _find_undone(p, before)
        for segment in p.segments:
            # A result without the number of its transition, from an older version, may belong to any transition.
            if segment.kind == "own" and any(not r.n or segment.first <= r.n <= segment.last for r in undone):
                return segment
        return None

    def find_first(
        self, p: SagaProgress, roles: HandlerRoles, segments: Iterable[OverflowSegment]
    ) -> OverflowSegment | None:
        """Return the first of these segments that may contain the oldest event for a parameter of a handler, while the
        progress contains no older one. `None` if there is none.
        """
        first: dict[_Parameter, int] = {}
        for own in p.self_consumed:
            for role in journal.find_remaining_consumers(p, roles, own):
                first.setdefault(_find_parameter(role, own.event.type), own.n)
        for segment in segments:
            for role in _find_consumers(p, roles, segment):
                if segment.first <= first.get(_find_parameter(role, segment.types[0]), segment.first):
                    return segment
        return None

    def describe(
        self, tail: Tail[SelfConsumedEvent], items: tuple[SelfConsumedEvent, ...], below: OverflowSegment | None
    ) -> tuple[OverflowSegment, dict[str, Any]]:
        segment, _ = super().describe(tail, items, below)
        stored = tuple([replace(own, only=tail.handlers) for own in items])
        return replace(segment, types=(items[0].event.type,)), {self.stored: stored}

    def get_size(self, item: SelfConsumedEvent) -> int:
        return len(item.event.value)

    def get_group(self, item: SelfConsumedEvent) -> Hashable:
        return item.n

    def put_back(
        self, p: SagaProgress, items: Sequence[SelfConsumedEvent], before: Sequence[CompensableResult]
    ) -> SagaProgress:
        left = {(result.handler, result.cause) for result in p.results}
        withdrawn = set[str]()
        for result in _find_undone(p, before):
            withdrawn.add(result.event.id)
            withdrawn.update(() if (result.handler, result.cause) in left else result.self_consumed_ids)
        return super().put_back(p, [own for own in items if own.event.id not in withdrawn], before)


def find_unneeded_segments(p: SagaProgress, roles: HandlerRoles) -> Sequence[OverflowSegment]:
    """Return segments of self-consumed events that no handler will ever consume: up to `DROPPED_MAX` of them."""
    gone = [s for s in p.segments if s.kind == "own" and not any(True for _ in _find_consumers(p, roles, s))]
    return gone[:DROPPED_MAX]


class _Head:
    """Counts the events at the head of one parameter's list, which stay in the progress. Events of one transition stay
    together."""

    def __init__(self) -> None:
        self.count = self.size = self.last = 0

    def is_full(self, own: SelfConsumedEvent, bounds: OverflowBounds) -> bool:
        """Return True if the head is full, so that this event and all later ones may move to segments. Otherwise count
        the event."""
        full = self.count >= bounds.head_max or self.size >= bounds.head_bytes_max
        if full and own.n != self.last:
            return True
        self.count, self.size, self.last = self.count + 1, self.size + len(own.event.value), own.n
        return False


def _find_consumers(p: SagaProgress, roles: HandlerRoles, segment: OverflowSegment) -> Iterator[HandlerRole]:
    """Yield the handlers that may consume the events in a segment."""
    for role in roles.by_type.get(segment.types[0], ()):
        if role.name in segment.handlers and (
            role.many or not any(ran.handler == role.name for ran in p.completed_runs)
        ):
            yield role


def _find_parameter(role: HandlerRole, type_: str) -> _Parameter:
    """Return the handler's parameter that accepts this type."""
    return role.name, next(types for types in (*role.takes, *role.optional) if type_ in types)


def _find_undone(p: SagaProgress, before: Sequence[CompensableResult]) -> Sequence[CompensableResult]:
    """Return the results that are in `before` and no longer in the progress."""
    here = {(result.handler, result.event.id) for result in p.results}
    return [result for result in before if (result.handler, result.event.id) not in here]


LIST_KINDS: Mapping[SegmentKind, ListKind[Any]] = {
    "queue": Messages("queue"),
    "waiting": Messages("waiting"),
    "results": Results(),
    "own": SelfConsumedEvents(),
}
"""All kinds of list, in the order in which they move and are read back."""


# -------------------------------------------------------------------- inbox entries


def has_entries(segment: OverflowSegment) -> bool:
    """Return True if the segment lists inbox entries. Otherwise it need not be searched for a message."""
    return segment.kind not in ("results", "own")


def contains_entry(entries: bytes, entry: str) -> bool:
    """Return True if a segment's sorted entries contain this entry.

    This is a binary search, because each message of a saga is looked up in all its segments.
    """
    wanted, count = bytes.fromhex(entry), len(entries) // ENTRY_BYTES
    at = bisect_left(range(count), wanted, key=lambda i: entries[i * ENTRY_BYTES : (i + 1) * ENTRY_BYTES])
    return entries[at * ENTRY_BYTES : (at + 1) * ENTRY_BYTES] == wanted


def _split_entries(packed: bytes) -> Iterator[bytes]:
    return (packed[at : at + ENTRY_BYTES] for at in range(0, len(packed), ENTRY_BYTES))


def find_segments_to_merge(p: SagaProgress, bounds: OverflowBounds) -> tuple[OverflowSegment, ...]:
    """Return the small inbox segments that the next inbox segment replaces, once there are many of them."""
    large = bounds.small_segments_max * (bounds.inbox_max - bounds.inbox_kept)
    small = tuple(segment for segment in p.segments if segment.kind == "inbox" and segment.count < large)
    return small if len(small) >= bounds.small_segments_max else ()


def move_inbox_entries(
    p: SagaProgress, context: OverflowContext, merged: Sequence[tuple[OverflowSegment, bytes]] = ()
) -> tuple[SagaProgress, NewSegment] | None:
    """Return the progress with its oldest inbox entries moved to a segment; `None` while too few of them may move.

    Entries of the message that is being processed and of stored messages stay, so that decisions about them need no
    segment. Entries without a time, which `saga.progress.takeover` makes, stay too. `merged`: segments to merge into
    the new one, with their entries.
    """
    bounds = context.bounds
    if len(p.inbox) <= bounds.inbox_max:
        return None
    staying = {
        ids.inbox_entry(m.id, name)
        for m in (context.message, *journal.iterate_messages(p))
        for name in context.roles.names.get(m.type, ())
    }
    free = [entry for entry, at in p.inbox.items() if at and entry not in staying]
    going = free[: max(0, len(free) - bounds.inbox_kept)]
    if len(going) < bounds.inbox_max - bounds.inbox_kept:
        return None
    newest = max(*(p.inbox[entry] for entry in going), *(segment.newest for segment, _ in merged), 0)
    entries = {bytes.fromhex(entry) for entry in going}
    entries.update(entry for _, packed in merged for entry in _split_entries(packed))
    new = make_inbox_segment(p, entries, newest=newest, until=newest + context.retention_s)
    gone, left = {segment.name for segment, _ in merged}, set(going)
    p = replace(p, inbox={entry: at for entry, at in p.inbox.items() if entry not in left})
    return _with_segments(p, (*(s for s in p.segments if s.name not in gone), new.segment)), new


def make_inbox_segment(p: SagaProgress, entries: Iterable[bytes], *, newest: int, until: int) -> NewSegment:
    """Make a segment of these inbox entries, and name it for the next write of `p`, which will list it."""
    entries = sorted(entries)
    bound = integrity.sum_entry_digests(entry.hex() for entry in entries)
    segment = OverflowSegment(
        kind="inbox", name="", count=len(entries), newest=newest, expires=until, items_digest=bound
    )
    return _make_segment(p, segment, entries=b"".join(entries))


# -------------------------------------------------------------------- reading everything, for tools and tests


def list_segments(segment: OverflowSegment, content: bytes) -> tuple[OverflowSegment, ...]:
    """Return the segments that a segment refers to. Raises the errors in `saga.progress.document.UNREADABLE`."""
    if segment.kind == "inbox":  # of a former index segment, only the entries count
        return ()
    document = decode_segment(content)
    return document.segments if document.below is None else (document.below,)


def restore_all(p: SagaProgress, documents: Mapping[str, bytes], *, now_s: int = 0) -> SagaProgress:
    """Return the progress with the contents of all its segments, as if a progress had no size limit.

    Args:
        documents: the segments' contents, by key. A missing segment that may have expired by `now_s` stays listed.

    Raises:
        SagaError: a segment is missing, or was changed since it was written.
    """
    if not p.segments:
        return p
    inbox: dict[str, int] = {}
    found: dict[SegmentKind, list[Any]] = {of: [] for of in LIST_KINDS}
    unread: list[OverflowSegment] = []
    left = [*reversed(p.segments)]
    while left:
        segment = left.pop()
        key = segment_key(p.service, p.saga, segment)
        content = documents.get(key)
        if content is None and segment.is_forgotten(now_s):
            unread.append(segment)
        elif content is None:
            raise SagaError(f"the page {key!r} of the progress of saga {p.saga!r} in {p.service!r} is gone")
        elif segment.name.rpartition("-")[2] != digest_content(content):
            raise SagaError(f"the page {key!r} of the progress of saga {p.saga!r} in {p.service!r} was changed")
        elif segment.kind == "inbox":
            inbox.update((entry.hex(), segment.newest) for entry in _split_entries(decode_segment(content).entries))
        else:
            found[segment.kind].append(getattr(decode_segment(content), LIST_KINDS[segment.kind].stored))
            left += list_segments(segment, content)
    found["results"].reverse()  # a segment below has older results
    for of, kind in LIST_KINDS.items():
        p = kind.put_back(p, [item for items in found[of] for item in items], ())
    return integrity.update_format(_with_segments(replace(p, inbox={**p.inbox, **inbox}), tuple(unread)))
