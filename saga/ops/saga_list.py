"""Sagas to list: the newest first, each as all services see it, one at a time."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from saga.errors import SagaError
from saga.ops.histories import UnreadableHistory, read_document, read_documents
from saga.ops.progress_summary import ProgressSummary, decode_summary
from saga.ops.selection import Deployment, Selection
from saga.ops.sources import ServiceStore, Warn
from saga.ops.timeline import ServiceStatus, compute_status
from saga.progress.document import progress_key
from saga.store.port import Document, NewestFirst
from saga.support.clock import iso

OPEN = ("queue", "waiting", "unstarted", "intents", "compensating", "parked", "deadlines", "later", "dead")
QUIET_MS = 3_600_000
"""Quiet time after which a part of an ended saga waits for nothing: nobody is left who could send the other one."""
LOOKED_AT_MAX = 20_000
"""Most documents of a service that are looked at to list the newest, in a store that knows no order of time."""


@dataclass(frozen=True, slots=True)
class SagaSummary:
    """A progress at a glance, or the reason that it cannot be read."""

    source: ServiceStore
    saga: str
    progress: ProgressSummary | None
    damage: str = ""

    @property
    def key(self) -> str:
        return progress_key(self.source.service, self.saga)

    @property
    def rank(self) -> str:
        """Text by which newer sagas rank higher: when they began; a saga without a start ranks highest."""
        return (self.progress and self.progress.started) or "~"


@dataclass(frozen=True, slots=True)
class ListedSaga:
    """One saga, as the services that know it see it."""

    saga: str
    statuses: tuple[ServiceStatus, ...]
    damaged: tuple[SagaSummary, ...] = ()
    """Progresses of it that cannot be read."""
    now_ms: int = 0

    @property
    def outcome(self) -> str | None:
        return next((s.outcome for s in self.statuses if s.outcome), None)

    @property
    def started(self) -> str | None:
        return min((s.started for s in self.statuses if s.started), default=None)

    @property
    def principals(self) -> tuple[str, ...]:
        """Principals that began it, as the services know: one, or none; several if more than one event began it."""
        return tuple(dict.fromkeys(s.principal for s in self.statuses if s.principal))

    @property
    def changed(self) -> str:
        return max((s.changed for s in self.statuses), default="")

    @property
    def open(self) -> dict[str, int]:
        """Counts by sort, over all services, of all that is kept and to which something can still happen."""
        counts = {sort: sum(getattr(s, sort) for s in self.statuses) for sort in OPEN}
        counts["waiting"] -= self._left_over(any(counts[sort] for sort in OPEN if sort != "waiting"))
        return {sort: count for sort, count in counts.items() if count}

    @property
    def left(self) -> int:
        """Parts of fan-ins to which nothing can happen any more: they are forgotten with the memory."""
        return sum(s.left + s.waiting for s in self.statuses) - self.open.get("waiting", 0)

    def _left_over(self, others: bool) -> int:
        """Number of waiting parts that belong to a saga that is over. Who ended it may have forgotten it since, or keep
        it in another store: that it failed others know, too."""
        is_over = self.outcome is not None or any(s.has_failed for s in self.statuses)
        if not is_over or others or self.changed > iso(self.now_ms - QUIET_MS):
            return 0
        return sum(s.waiting for s in self.statuses)


async def list_sagas(selection: Selection, deployment: Deployment) -> AsyncIterator[ListedSaga | None]:
    """Yield the selected sagas, newest first, or in the order of their ids in the selection.

    After `limit` sagas it yields `None` if there may be more. Raises `NoListing` before the first saga if the selection
    names none and a store cannot list them.
    """
    async with AsyncExitStack() as stack:
        mine = await stack.enter_async_context(deployment.open_stores(selection.services))
        shown = set[str]()
        named = (
            _summaries_of(mine, [s for s in selection.sagas if s.startswith(selection.prefix)])
            if selection.sagas
            else None
        )
        async for seen in named or _newest_first(mine, selection.prefix, deployment.warn, kept=selection.only_dead):
            if seen.saga in shown or not _may_be_chosen(selection, seen):
                continue
            if len(shown) == selection.limit:
                yield None
                return
            found = await _complete(seen, mine, deployment)
            if (selection.only_open and not found.open) or (
                selection.only_dead and not any(status.needs_person for status in found.statuses)
            ):
                continue
            shown.add(seen.saga)
            yield found


async def read_summary(source: ServiceStore, saga: str) -> SagaSummary | None:
    """Progress of a saga at a glance; `None` if the service does not know it."""
    try:
        document = await read_document(source, saga)
    except UnreadableHistory as why:
        return SagaSummary(source, saga, None, str(why))
    return None if document is None else _decode_summary(source, saga, document)


def _may_be_chosen(selection: Selection, seen: SagaSummary) -> bool:
    """True if it is worth while to ask the other services. A damaged progress may be anything."""
    if seen.progress is None:
        return not selection.only_dead
    if selection.principal is not None and seen.progress.principal != selection.principal:
        return False
    status = compute_status(seen.progress) if selection.only_open or selection.only_dead else None
    return status is None or (status.needs_person if selection.only_dead else status.is_open)


async def _complete(seen: SagaSummary, sources: Sequence[ServiceStore], deployment: Deployment) -> ListedSaga:
    """The saga in every service; progresses that cannot be read are told."""
    every = []
    for source in sources:
        if source is seen.source:
            every.append(seen)
            continue
        found = await read_summary(source, seen.saga)
        if found is not None:
            every.append(found)
    damaged = tuple(each for each in every if each.progress is None)
    for each in damaged:
        deployment.warn(f"saga {each.saga} in {each.source.service} (document {each.key}): {each.damage}")
    statuses = tuple(compute_status(each.progress) for each in every if each.progress is not None)
    return ListedSaga(seen.saga, statuses, damaged, deployment.clock.now_ms())


def _decode_summary(source: ServiceStore, saga: str, document: Document) -> SagaSummary:
    try:
        return SagaSummary(source, saga, decode_summary(document.content))
    except SagaError as why:
        return SagaSummary(source, saga, None, str(why))


async def _summaries_of(sources: Sequence[ServiceStore], sagas: Sequence[str]) -> AsyncIterator[SagaSummary]:
    """Progresses of these sagas."""
    for saga in dict.fromkeys(sagas):
        for source in sources:
            seen = await read_summary(source, saga)
            if seen is not None:
                yield seen


async def _newest_first(
    sources: Sequence[ServiceStore], prefix: str, warn: Warn, *, kept: bool = False
) -> AsyncIterator[SagaSummary]:
    """Progresses of all these services whose saga id begins with `prefix`, newest saga first, as far as the stores know
    an order: each gives those first of which it heard last. `kept`: only those that never expire, where the store can
    tell."""
    streams = [_newest_of(source, prefix, warn, kept) for source in sources]
    heads = [(head, stream) for stream in streams if (head := await anext(stream, None))]
    while heads:
        which = max(range(len(heads)), key=lambda i: heads[i][0].rank)
        found, stream = heads[which]
        yield found
        head = await anext(stream, None)
        if head is None:
            del heads[which]
        else:
            heads[which] = head, stream


async def _newest_of(source: ServiceStore, prefix: str, warn: Warn, kept: bool) -> AsyncIterator[SagaSummary]:
    documents, found = read_documents(source, prefix, kept=kept), list[tuple[str, str]]()
    if isinstance(source.store, NewestFirst):
        async for saga, document in documents:
            yield _decode_summary(source, saga, document)
        return
    async for saga, document in documents:
        if len(found) == LOOKED_AT_MAX:
            warn(
                f"the store of {source.service} lists its documents by key only: looked at the first {LOOKED_AT_MAX}; "
                "name the beginning of an id with --prefix to see others"
            )
            break
        found.append((_decode_summary(source, saga, document).rank, saga))
    for _, saga in sorted(found, reverse=True):
        seen = await read_summary(source, saga)
        if seen is not None:
            yield seen
