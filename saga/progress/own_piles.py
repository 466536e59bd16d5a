"""Own events that handlers here wait for in vain, beyond what a progress has room for. Pure.

Each handler takes those of a parameter in their order. So the first ones of every handler are in the progress, and
those behind them in pages, each of one type and for the same handlers; a page comes back when it holds the first one of
anybody. Undoing a result withdraws what its run said: the page that has it comes back first, for no page ever changes.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from msgspec.structs import replace

from saga.messages import Message
from saga.progress import journal
from saga.progress.document import (
    CompensableResult,
    OverflowSegment,
    SagaProgress,
    SelfConsumedEvent,
    compute_format,
    encode,
)
from saga.progress.handlers import HandlerRole, HandlerRoles
from saga.progress.spill import NewSegment, OverflowBounds, SegmentDocument, digest_content

_Parameter = tuple[str, frozenset[str]]
"""Handler, and the types that one of its parameters takes."""
DROPPED_MAX = 16
"""Pages that nobody needs any more, removed by one write at most: each is read first, and there may be very many."""


def find_event_segment(p: SagaProgress, roles: HandlerRoles) -> OverflowSegment | None:
    """A page that may hold the first own event of a parameter: it belongs into the progress."""
    pages = [page for page in p.pages if page.of == "own"]
    first = _find_first_numbers(p, roles) if pages else {}
    for page in sorted(pages, key=lambda page: page.first):
        for role in _find_consumers(p, roles, page):
            if page.first <= first.get((role.name, _find_parameter_types(role, page.types[0])), page.first):
                return page
    return None


def _find_first_numbers(p: SagaProgress, roles: HandlerRoles) -> Mapping[_Parameter, int]:
    """For each parameter the transition that said the first own event for it that is in the progress."""
    first: dict[_Parameter, int] = {}
    for own in p.own:
        for role in journal.find_remaining_consumers(p, roles, own):
            first.setdefault((role.name, _find_parameter_types(role, own.event.type)), own.n)
    return first


def find_unneeded(p: SagaProgress, roles: HandlerRoles) -> Sequence[OverflowSegment]:
    """Pages of events that no handler will ever take, some of very many."""
    gone = [page for page in p.pages if page.of == "own" and not any(True for _ in _find_consumers(p, roles, page))]
    return gone[:DROPPED_MAX]


def find_withdrawn(p: SagaProgress, before: Sequence[CompensableResult]) -> Sequence[OverflowSegment]:
    """Pages that may hold what is withdrawn because results were undone. `before`: the results until then."""
    pages = [page for page in p.pages if page.of == "own"]
    undone = _find_undone(p, before) if pages else ()
    # A result of a version that did not tell its transition may be of any.
    return [page for page in pages if any(not r.n or page.first <= r.n <= page.last for r in undone)]


def restore_events(
    p: SagaProgress, page: OverflowSegment, leaf: SegmentDocument, before: Sequence[CompensableResult]
) -> SagaProgress:
    """The progress with a page's events in their places, less those that are withdrawn, and without the page."""
    p = remove_segment(p, page)
    left = {(result.handler, result.cause) for result in p.results}
    withdrawn = set[str]()
    for result in _find_undone(p, before):
        withdrawn.add(result.event.id)
        withdrawn.update(() if (result.handler, result.cause) in left else result.own)
    back = [own for own in leaf.own if own.event.id not in withdrawn]
    return replace(p, own=tuple(sorted((*p.own, *back), key=lambda own: own.n)))


def remove_segment(p: SagaProgress, page: OverflowSegment) -> SagaProgress:
    """The progress without a page."""
    pages = tuple(other for other in p.pages if other.name != page.name)
    return replace(p, pages=pages, format=compute_format(pages, p.deadlines, p.later, p.version))


def spill_events(
    p: SagaProgress, roles: HandlerRoles, bounds: OverflowBounds, *, in_hand: Message, now_s: int, until: int
) -> tuple[SagaProgress, Sequence[NewSegment]]:
    """The progress with own events that nobody takes soon in pages that may expire then, where there are too many.

    What is in hand, kept for whatever, or part of a run that is under way stays: decisions look at it.
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
    """A page of these events, which are of one type and for the same handlers, as the write of `p` will list it."""
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
    """Own events behind the first ones of each handler that may take them, by type and handlers; in order."""
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
    """First own events of one parameter, as they are counted. Those of one transition are never parted."""

    def __init__(self) -> None:
        self.count = self.size = self.last = 0

    def is_full(self, own: SelfConsumedEvent, bounds: OverflowBounds) -> bool:
        """Return whether there was room for others only before this one."""
        full = self.count >= bounds.head_max or self.size >= bounds.head_bytes_max
        if full and own.n != self.last:
            return True
        self.count, self.size, self.last = self.count + 1, self.size + len(own.event.value), own.n
        return False


def _cut_events(tail: Sequence[SelfConsumedEvent], bounds: OverflowBounds) -> Iterator[Sequence[SelfConsumedEvent]]:
    """Pages cut from these events, as many as are full."""
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
    """Handlers that may take what is in a page."""
    for role in roles.by_type.get(page.types[0], ()):
        if role.name in page.handlers and (role.many or not any(ran.handler == role.name for ran in p.ran)):
            yield role


def _find_parameter_types(role: HandlerRole, type_: str) -> frozenset[str]:
    """Types of the parameter of a handler that takes this one."""
    return next(types for types in (*role.takes, *role.optional) if type_ in types)


def _find_undone(p: SagaProgress, before: Sequence[CompensableResult]) -> Sequence[CompensableResult]:
    """Results that were there before and are not any more."""
    here = {(result.handler, result.event.id) for result in p.results}
    return [result for result in before if (result.handler, result.event.id) not in here]
