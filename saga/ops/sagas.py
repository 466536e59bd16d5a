"""Sagas as operators see them: a list, newest first, and the details of one saga in all services."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import msgspec

from saga.errors import NoStore, SagaError
from saga.ops.dead_letters import read_dead_letters
from saga.ops.histories import (
    ParkedRunStatus,
    ProgressSummary,
    SagaHistory,
    ServiceStatus,
    TimelineEntry,
    UnreadableHistory,
    build_timeline,
    can_never_run,
    compute_status,
    decode_summary,
    read_document,
    read_documents,
    read_history,
)
from saga.ops.selection import Deployment, Selection
from saga.ops.sources import ServiceStore, Warn
from saga.progress.document import Intent, PendingMessage, SagaProgress, SuspendedRun, progress_key
from saga.store.port import Document, NewestFirst
from saga.support.clock import LATEST_MS, iso
from saga.support.printable import counted

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
            _read_summaries(mine, [s for s in selection.sagas if s.startswith(selection.prefix)])
            if selection.sagas
            else None
        )
        async for seen in named or _sort_newest_first(
            mine, selection.prefix, deployment.warn, kept=selection.only_dead
        ):
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


async def _read_summaries(sources: Sequence[ServiceStore], sagas: Sequence[str]) -> AsyncIterator[SagaSummary]:
    """Progresses of these sagas."""
    for saga in dict.fromkeys(sagas):
        for source in sources:
            seen = await read_summary(source, saga)
            if seen is not None:
                yield seen


async def _sort_newest_first(
    sources: Sequence[ServiceStore], prefix: str, warn: Warn, *, kept: bool = False
) -> AsyncIterator[SagaSummary]:
    """Progresses of all these services whose saga id begins with `prefix`, newest saga first, as far as the stores know
    an order: each gives those first of which it heard last. `kept`: only those that never expire, where the store can
    tell."""
    streams = [_find_newest(source, prefix, warn, kept) for source in sources]
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


async def _find_newest(source: ServiceStore, prefix: str, warn: Warn, kept: bool) -> AsyncIterator[SagaSummary]:
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


# -------------------------------------------------------------------- saga details


FOLLOW_S = 0.5
"""Seconds between two looks of `followed`."""


@dataclass(frozen=True, slots=True)
class SagaDetails:
    """Everything that there is to see of a saga."""

    histories: tuple[SagaHistory, ...]
    """Histories, one for each service that knows it."""
    entries: tuple[TimelineEntry, ...]
    statuses: tuple[ServiceStatus, ...]
    failing: Mapping[str, str] = field(default_factory=dict)
    """Last reason for each event that cannot be undone, by id."""

    @property
    def undoing(self) -> frozenset[str]:
        """Services in which a compensation has begun and not come to its end."""
        return frozenset(h.service for h in self.histories if any(i.kind == "undo" for i in h.progress.intents))


async def read_saga(
    saga: str, deployment: Deployment, service: str | None = None, known: Mapping[str, int] | None = None
) -> SagaDetails:
    """Read a saga in all services, or in one.

    A service whose progress cannot be read is reported to `deployment.warn` and left out.

    Args:
        known: For each service the number of transitions that the caller has already.

    Raises:
        NoStore: There is no store.
        SagaError: A transition cannot be decoded.
    """
    histories = []
    async with deployment.open_stores(() if service is None else (service,)) as sources:
        for source in sources:
            try:
                found = await read_history(source, saga, (known or {}).get(source.service, 0))
            except UnreadableHistory as why:
                deployment.warn(why)
                continue
            if found is not None:
                histories.append(found)
    try:
        return SagaDetails(
            tuple(histories), tuple(build_timeline(histories)), tuple(compute_status(h.progress) for h in histories)
        )
    except msgspec.DecodeError as why:
        raise SagaError(
            f"a transition of saga {saga} cannot be read: {why}; `saga sagas verify {saga}` says where it was changed"
        ) from why


async def follow_saga(
    saga: str, deployment: Deployment, service: str | None = None
) -> AsyncIterator[list[TimelineEntry]]:
    """Transitions of a saga that are there, then again and again those that are new. Without end.

    It waits for a saga or a store that is not there yet.
    """
    known: dict[str, int] = {}
    while True:
        try:
            seen = await read_saga(saga, deployment, service, known)
        except NoStore:
            seen = SagaDetails((), (), ())
        lines = [line for line in seen.entries if line.transition >= known.get(line.service, 0)]
        known |= {h.service: h.progress.n for h in seen.histories}
        if lines:
            yield lines
        await deployment.clock.sleep(FOLLOW_S)


async def add_reasons(saga: str, seen: SagaDetails, deployment: Deployment) -> SagaDetails:
    """The same with reasons from the log, for compensations that have begun and do not come to their end."""
    found = await read_dead_letters(seen.undoing, deployment.broker_settings, deployment.clock)
    if found.problem:
        deployment.warn(f"why a compensation does not come to its end is not known: {found.problem}")
    failing = {each.undoes: each.reason for each in reversed(found.letters) if each.saga == saga and each.undoes}
    return replace(seen, failing=failing)


# -------------------------------------------------------------------- open work


UNSTARTED = "for a message that tells when the saga began; without one for ever, for its service may have forgotten it"
"""Words for what waits of a saga without a start."""


def describe_open_work(p: SagaProgress, status: ServiceStatus, failing: Mapping[str, str]) -> list[str]:
    """Everything that is still open in one service. `failing`: reasons of compensations that fail, by event."""
    found = [_describe_intent(i, failing) for i in p.intents]
    found += [_describe_parked(each, status.queue) for each in status.retries]
    dead = [k for k in (*p.queue, *p.compensating) if k.dead]
    found += [f"{k.message.type} for {k.handler} is a dead letter and blocks the saga: {k.dead}" for k in dead]
    found += [_describe_compensation(p, k) for k in p.compensating if _is_due(k)]
    found += [_describe_deadline(k) for k in p.deadlines]
    found += [_describe_suspended(c) for c in p.later]
    found += [f"{k.message.type} for {k.handler} is queued" for k in p.queue if _is_due(k)]
    waits = "is waiting" if p.started else f"waits {UNSTARTED}"
    found += [f"{k.message.type} for {k.handler} {waits}" for k in p.waiting if not can_never_run(p, k)]
    return found + [
        f"{k.message.type} for {k.handler} is left over: it can never run" for k in p.waiting if can_never_run(p, k)
    ]


def _describe_compensation(p: SagaProgress, kept: PendingMessage) -> str:
    """A handler that is to be undone, in words."""
    if p.started is None:
        return f"{kept.message.type} waits {UNSTARTED}: whether {kept.handler} did something to be undone is not known"
    return f"{kept.handler} is to be undone because of {kept.message.type}"


def _is_due(kept: PendingMessage) -> bool:
    """True if it waits for neither a person nor a time."""
    return not kept.dead and not kept.due_ms


def _describe_deadline(kept: PendingMessage) -> str:
    """A deadline that is open, in words."""
    when = f"at {iso(min(kept.due_ms, LATEST_MS))}, {kept.message.type} having opened it"
    if kept.attempts:
        return f"{kept.handler} runs again {when}: {counted(kept.attempts, 'attempt')} failed"
    return f"{kept.handler} runs {when}, unless the saga ends before"


def _describe_suspended(c: SuspendedRun) -> str:
    """A run that goes on later, in words."""
    until = f", or with {' or '.join(c.until)}" if c.until else ""
    told = f"{c.handler} goes on with {c.parts[0].type} at {iso(min(c.due_ms, LATEST_MS))}{until}"
    told += _describe_version(c)
    return f"{told}: {counted(c.attempts, 'attempt')} failed" if c.attempts else told


def _describe_version(begun: Intent | SuspendedRun) -> str:
    """Version of the handler under which a run began, where that is not the first."""
    return f" (under version {begun.handler_version})" if begun.handler_version > 1 else ""


def _describe_parked(each: ParkedRunStatus, behind: int) -> str:
    """A run that waits for its next attempt, in words. `behind`: messages in the queue."""
    what = each.handler if each.undoes is None else f"{each.handler}, which undoes what {each.undoes} did,"
    told = f"{what} is held up, and looked at each minute" if each.put_off else f"{what} is tried again at {each.next}"
    if each.attempts:
        told += f": {counted(each.attempts, 'attempt')} failed"
        told += f" since {each.since}" if each.since else ""
    if behind and each.undoes is None:
        told += f", {counted(behind, 'message')} wait{'s' if behind == 1 else ''} behind it"
    return told + (f"; the last said: {each.error}" if each.error else "")


def _describe_intent(intent: Intent, failing: Mapping[str, str]) -> str:
    """A run that has begun, in words, with the call of which nobody knows what became."""
    told = _describe_run(intent, failing)
    return told if (call := intent.open_call) is None else f"{told}; {call.in_words} has no answer"


def _describe_run(intent: Intent, failing: Mapping[str, str]) -> str:
    """The run alone; for a compensation with the reason that it does not come to its end."""
    if intent.kind == "do":
        return f"{intent.handler} has begun on {intent.message.type}{_describe_version(intent)}"
    if intent.kind == "lieu":
        return f"what {intent.handler} began is put right because of {intent.message.type}: it can never finish"
    name = intent.name or f"the compensation of {intent.handler}"
    begun = f"{name} undoes what {intent.handler} did, because of {intent.message.type}{_describe_version(intent)}"
    return f"{begun}, and fails: {failing[intent.cause]}" if intent.cause in failing else begun
