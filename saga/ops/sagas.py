"""Sagas as operators see them: a list of sagas, newest first, and the details of one saga in all services."""

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

from saga.contracts.contract import Contract
from saga.errors import NoStore, SagaError, StoreUnavailable
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
from saga.progress.document import ABORT, UNREADABLE, Intent, PendingMessage, SagaProgress, SuspendedRun, progress_key
from saga.store.port import Document, NewestFirst
from saga.support.clock import LATEST_MS, iso
from saga.support.printable import count_noun

OPEN = ("queue", "waiting", "unstarted", "intents", "compensating", "parked", "deadlines", "later", "dead")
QUIET_MS = 3_600_000
"""Time in milliseconds without changes after which pending fan-in messages of an ended saga count as left over.

It is so long that no service can still send the other messages of the fan-in.
"""
LOOKED_AT_MAX = 20_000
"""Maximum number of documents that are read per service to find the newest sagas, if the store cannot list by time."""


SagaState: TypeAlias = Literal["dead", "damaged", "failing", "retrying", "open", "ended", "idle"]
"""State of a saga over all services, in one word. `idle` means that nothing is unfinished and that there is no
outcome."""


@dataclass(frozen=True, slots=True)
class SagaSummary:
    """The summary of a progress, or the reason why the progress cannot be read."""

    source: ServiceStore
    saga: str
    progress: ProgressSummary | None
    damage: str = ""

    @property
    def key(self) -> str:
        return progress_key(self.source.service, self.saga)

    @property
    def rank(self) -> str:
        """Sort key by start time. Newer sagas have larger keys. A saga without a known start has the largest."""
        return (self.progress and self.progress.started) or "~"


@dataclass(frozen=True, slots=True)
class ListedSaga:
    """One saga with its status in each service."""

    saga: str
    statuses: tuple[ServiceStatus, ...]
    damaged: tuple[SagaSummary, ...] = ()
    """Progresses of the saga that cannot be read."""
    now_ms: int = 0

    @property
    def outcome(self) -> str | None:
        return next((s.outcome for s in self.statuses if s.outcome), None)

    @property
    def started(self) -> str | None:
        return min((s.started for s in self.statuses if s.started), default=None)

    @property
    def principals(self) -> tuple[str, ...]:
        """Principals that started the saga. There is at most one, unless several messages started it."""
        return tuple(dict.fromkeys(s.principal for s in self.statuses if s.principal))

    @property
    def changed(self) -> str:
        return max((s.changed for s in self.statuses), default="")

    @property
    def kind(self) -> str | None:
        """Type of the first message that a service handled: the earliest, if several services know theirs. `None` if no
        service does, because those transitions are archived."""
        first = min((s.first for s in self.statuses if s.first is not None), default=None)
        return None if first is None else first.type

    @property
    def is_over(self) -> bool:
        """True if the saga has an outcome.

        The progress of the service that ended the saga may have expired, or may be in another store. So it is enough if
        any service knows of a failure outcome.
        """
        return self.outcome is not None or self.is_failure

    @property
    def is_failure(self) -> bool:
        """True if a service has received a failure outcome."""
        return any(s.has_failed for s in self.statuses)

    @property
    def state(self) -> SagaState:
        """State of the saga in one word. What needs a person takes precedence over what is unfinished."""
        retries = [run for s in self.statuses for run in s.retries]
        unfinished = set(self.open) - ({"waiting"} if self.is_over else set())
        if any(s.dead for s in self.statuses):
            return "dead"
        if self.damaged:
            return "damaged"
        if any(run.is_code for run in retries):
            return "failing"
        if retries:
            return "retrying"
        if unfinished:
            return "open"
        return "ended" if self.is_over else "idle"

    @property
    def open(self) -> dict[str, int]:
        """Number of open items of each kind, over all services. Kinds without open items are left out."""
        counts = {sort: sum(getattr(s, sort) for s in self.statuses) for sort in OPEN}
        counts["waiting"] -= self._left_over(any(counts[sort] for sort in OPEN if sort != "waiting"))
        return {sort: count for sort, count in counts.items() if count}

    @property
    def left(self) -> int:
        """Number of pending fan-in messages whose handler can no longer run. They expire with the progress."""
        return sum(s.left + s.waiting for s in self.statuses) - self.open.get("waiting", 0)

    def _left_over(self, others: bool) -> int:
        """Return the number of pending fan-in messages that count as left over: all of them if the saga has ended, has
        not changed for `QUIET_MS`, and has nothing else open, otherwise 0.

        `others`: True if anything but pending fan-in messages is open.
        """
        if not self.is_over or others or self.changed > iso(self.now_ms - QUIET_MS):
            return 0
        return sum(s.waiting for s in self.statuses)


async def list_sagas(selection: Selection, deployment: Deployment) -> AsyncIterator[ListedSaga | None]:
    """Yield the selected sagas: in the order of the selection's saga ids if it has any, otherwise newest first.

    If there may be more than `limit`, yield `None` after the last one. If the selection has no saga ids, and a store
    cannot list its sagas, raise `NoListing` before the first saga.
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
            mine, selection.prefix, deployment.warn, never_expiring=selection.only_dead
        ):
            if seen.saga in shown or not _may_be_chosen(selection, seen):
                continue
            if len(shown) == selection.limit:
                yield None
                return
            found = await _complete(seen, mine, deployment)
            if not _is_chosen(selection, found):
                continue
            shown.add(seen.saga)
            yield found


async def list_every_saga(selection: Selection, deployment: Deployment) -> AsyncIterator[ListedSaga]:
    """Yield the selected sagas as `list_sagas` does, but all of them, whatever the limit of the selection is."""
    async for each in list_sagas(replace(selection, limit=sys.maxsize), deployment):
        if each is not None:
            yield each


async def read_summary(source: ServiceStore, saga: str) -> SagaSummary | None:
    """Read the summary of a saga's progress; `None` if the service has no progress of the saga."""
    try:
        document = await read_document(source, saga)
    except UnreadableHistory as why:
        return SagaSummary(source, saga, None, str(why))
    return None if document is None else _decode_summary(source, saga, document)


def _may_be_chosen(selection: Selection, seen: SagaSummary) -> bool:
    """Return whether the selection may include the saga, so that the saga must be read in the other services, too.

    A damaged progress may have any state, but does not count as dead.
    """
    if seen.progress is None:
        return not selection.only_dead
    if selection.principal is not None and seen.progress.principal != selection.principal:
        return False
    status = compute_status(seen.progress) if selection.only_open or selection.only_dead else None
    return status is None or (status.needs_person if selection.only_dead else status.is_open)


def _is_chosen(selection: Selection, found: ListedSaga) -> bool:
    """Return whether the selection includes the saga, by what all services know of it. What is only in a damaged
    progress is not known.
    """
    if selection.only_open and not found.open:
        return False
    if selection.only_dead and not any(status.needs_person for status in found.statuses):
        return False
    return selection.principal is None or not found.principals or selection.principal in found.principals


async def _complete(seen: SagaSummary, sources: Sequence[ServiceStore], deployment: Deployment) -> ListedSaga:
    """Add the statuses in all other services to a saga. Progresses that cannot be read are reported to
    `deployment.warn`."""
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
    """Yield the summaries of these sagas in all services."""
    for saga in dict.fromkeys(sagas):
        for source in sources:
            seen = await read_summary(source, saga)
            if seen is not None:
                yield seen


async def _sort_newest_first(
    sources: Sequence[ServiceStore], prefix: str, warn: Warn, *, never_expiring: bool = False
) -> AsyncIterator[SagaSummary]:
    """Yield summaries of the sagas whose id begins with `prefix`, newest first as far as the stores allow.

    Each store yields the sagas first that changed last, and these streams are merged by start time. With
    `never_expiring`, only progresses that never expire are yielded, if the store can list those.
    """
    streams = [_find_newest(source, prefix, warn, never_expiring) for source in sources]
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


async def _find_newest(
    source: ServiceStore, prefix: str, warn: Warn, never_expiring: bool
) -> AsyncIterator[SagaSummary]:
    documents, found = read_documents(source, prefix, never_expiring=never_expiring), list[tuple[str, str]]()
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
"""Seconds between two reads of `follow_saga`."""


@dataclass(frozen=True, slots=True)
class SagaDetails:
    """The histories, the timeline and the statuses of a saga in all services."""

    histories: tuple[SagaHistory, ...]
    """One history for each service that has a progress of the saga."""
    entries: tuple[TimelineEntry, ...]
    statuses: tuple[ServiceStatus, ...]
    failing: Mapping[str, str] = field(default_factory=dict)
    """Last error of each failing compensation, by the id of the event that it undoes."""
    services_read: frozenset[str] = frozenset()
    """Services whose store was read, even if it does not have the saga."""
    unreadable: frozenset[str] = frozenset()
    """Services that know the saga, but whose progress or history of it cannot be read."""

    @property
    def undoing(self) -> frozenset[str]:
        """Services in which a compensation is in progress."""
        return frozenset(h.service for h in self.histories if any(i.kind == "undo" for i in h.progress.intents))


async def read_saga(
    saga: str, deployment: Deployment, service: str | None = None, known: Mapping[str, int] | None = None
) -> SagaDetails:
    """Read a saga in all services, or in one.

    If a progress cannot be read, this is reported to `deployment.warn`, and the service is left out.

    Args:
        service: The only service to read; `None` for all.
        known: For each service, the number of transitions that the caller already has.

    Raises:
        NoStore: There is no store.
        SagaError: A transition cannot be decoded.
    """
    histories, read, unreadable = [], set[str](), set[str]()
    async with deployment.open_stores(() if service is None else (service,)) as sources:
        for source in sources:
            try:
                found = await read_history(source, saga, (known or {}).get(source.service, 0))
            except UnreadableHistory as why:
                deployment.warn(why)
                unreadable.add(source.service)
                continue
            read.add(source.service)
            if found is not None:
                histories.append(found)
    try:
        return SagaDetails(
            tuple(histories),
            tuple(build_timeline(histories)),
            tuple(compute_status(h.progress) for h in histories),
            services_read=frozenset(read),
            unreadable=frozenset(unreadable),
        )
    except UNREADABLE as why:
        raise SagaError(
            f"a transition of saga {saga} cannot be read: {why}; `saga sagas verify {saga}` shows where it was changed"
        ) from why


async def follow_saga(
    saga: str, deployment: Deployment, service: str | None = None
) -> AsyncIterator[list[TimelineEntry]]:
    """Yield the existing transitions of a saga, then new ones as they are written. This never ends.

    The saga and the stores need not exist yet. Each warning is given once. A store that becomes unavailable is one, and
    is read again.
    """
    known: dict[str, int] = {}
    warned, has_read = set[str](), False

    def warn_once(why: object) -> None:
        if str(why) not in warned:
            warned.add(str(why))
            deployment.warn(why)

    warning = replace(deployment, warn=warn_once)
    while True:
        try:
            seen, has_read = await read_saga(saga, warning, service, known), True
        except NoStore:
            seen = SagaDetails((), (), ())
        except StoreUnavailable as why:
            if not has_read:
                raise
            warn_once(why)
            seen = SagaDetails((), (), ())
        lines = [line for line in seen.entries if line.transition >= known.get(line.service, 0)]
        known |= {h.service: h.progress.n for h in seen.histories}
        if lines:
            yield lines
        await deployment.clock.sleep(FOLLOW_S)


async def wait_for_end(
    saga: str, deployment: Deployment, contracts: Mapping[str, Contract], seconds_max: float
) -> list[str]:
    """Wait until a saga has ended in all services that know it, at most `seconds_max` seconds. Return what it still
    waits for; empty if it has ended.

    The saga and the stores need not exist yet. A store that is unavailable is read again until the time is over; then
    `StoreUnavailable` is raised.

    Args:
        contracts: Contracts by event. They say which outcomes are failures.
    """
    clock, quiet = deployment.clock, replace(deployment, warn=lambda _: None)
    until_s = clock.monotonic_s() + seconds_max
    while True:
        try:
            seen = await read_saga(saga, quiet)
        except NoStore:
            seen = SagaDetails((), (), ())
        except StoreUnavailable:
            if clock.monotonic_s() >= until_s:
                raise
            await clock.sleep(FOLLOW_S)
            continue
        left = find_unfinished(seen, contracts)
        if not left or clock.monotonic_s() >= until_s:
            return left
        await clock.sleep(min(FOLLOW_S, max(0.0, until_s - clock.monotonic_s())))


async def add_reasons(saga: str, seen: SagaDetails, deployment: Deployment) -> SagaDetails:
    """Add the errors of failing compensations, which are read from `<service>.dead`."""
    found = await read_dead_letters(seen.undoing, deployment.broker_settings, deployment.clock)
    if found.problem:
        deployment.warn(f"why a compensation fails is not known: {found.problem}")
    failing = {each.undoes: each.reason for each in reversed(found.letters) if each.saga == saga and each.undoes}
    return replace(seen, failing=failing)


# -------------------------------------------------------------------- open work


UNSTARTED = "for a message with the start of the saga; if none comes, for ever: its service may have forgotten the saga"
"""What a message waits for if the start of its saga is not known."""


class OpenWork(NamedTuple):
    """The unfinished work of a saga, and its messages that are left over. Each entry is the name of a service and a
    description."""

    open: tuple[tuple[str, str], ...]
    left_over: tuple[tuple[str, str], ...]
    """Messages of fan-ins that will never be handled, and need no action. They expire with the progress."""


def list_open_work(seen: SagaDetails, *, has_outcome: bool = False) -> OpenWork:
    """List what is unfinished in all services and, separately, what is left over.

    A message of a fan-in is left over if its handler can never run, or if the saga has ended and nothing else is open.

    Args:
        has_outcome: True if the saga is known to have ended, even if none of the services that were read knows it.
    """
    open_, waiting, left_over = list[tuple[str, str]](), list[tuple[str, str]](), list[tuple[str, str]]()
    for history, status in zip(seen.histories, seen.statuses, strict=True):
        p, name = history.progress, status.service
        open_ += [(name, what) for what in describe_open_work(p, status, seen.failing)]
        for k in p.waiting:
            if can_never_run(p, k):
                left_over.append((name, f"{k.message.type} for {k.handler}: it can never run"))
            elif p.started:
                waiting.append((name, f"{k.message.type} for {k.handler}"))
    is_over = has_outcome or any(status.outcome is not None or status.has_failed for status in seen.statuses)
    if open_ or not is_over:
        open_ += [(name, f"{what} is waiting") for name, what in waiting]
    else:
        left_over += [(name, f"{what}: its other events did not come before the end") for name, what in waiting]
    return OpenWork(tuple(open_), tuple(left_over))


def find_unfinished(seen: SagaDetails, contracts: Mapping[str, Contract]) -> list[str]:
    """Describe why a saga has not ended in the services that know it; empty if it has ended.

    A saga has ended if its outcome is known, no service has open work and, after a failure, nothing is left to
    compensate. If a progress cannot be read, its open work is not known, so the saga has not certainly ended.
    """
    failures = {type_ for h in seen.histories for type_ in h.progress.failed}
    outcomes = {s.outcome for s in seen.statuses if s.outcome}
    failures |= {each for each in outcomes if each in contracts and contracts[each].outcome == "failure"}
    reasons = [] if outcomes or failures else ["no outcome yet"]
    reasons += [f"{service}: its progress cannot be read" for service in sorted(seen.unreadable)]
    work = list_open_work(seen, has_outcome=bool(failures)).open
    reasons += [f"{service}: {what}" for service, what in work]
    if failures:
        busy, because = {service for service, _ in work}, " and ".join(sorted(failures))
        reasons += [
            f"{history.service}: {handler} is to be undone because of {because}"
            for history in seen.histories
            if history.service not in busy
            for handler in _list_compensable(history.progress)
        ]
    return reasons


def _list_compensable(p: SagaProgress) -> list[str]:
    """List the handlers that have results which a compensation can undo."""
    stored = (name for page in p.segments if page.kind == "results" for name in page.handlers)
    return sorted({*(result.handler for result in p.results), *stored})


def describe_open_work(p: SagaProgress, status: ServiceStatus, failing: Mapping[str, str]) -> list[str]:
    """Describe the unfinished work of a saga in one service.

    Messages of fan-ins are left out if the saga's start is known, because whether they are open depends on the other
    services. `list_open_work` adds them. `failing`: last errors of failing compensations, by event id.
    """
    found = [_describe_intent(i, failing) for i in p.intents]
    found += [_describe_parked(each, status.queue) for each in status.retries]
    dead = [k for k in (*p.queue, *p.compensating) if k.dead]
    found += [f"{k.message.type} for {k.handler} is a dead letter and blocks the saga: {k.dead}" for k in dead]
    found += [_describe_compensation(p, k) for k in p.compensating if _is_due(k)]
    found += [_describe_deadline(k) for k in p.deadlines]
    found += [_describe_suspended(c) for c in p.suspended_runs]
    found += [f"{k.message.type} for {k.handler} is queued" for k in p.queue if _is_due(k)]
    unstarted = [] if p.started else [k for k in p.waiting if not can_never_run(p, k)]
    return found + [f"{k.message.type} for {k.handler} waits {UNSTARTED}" for k in unstarted]


def _describe_compensation(p: SagaProgress, pending: PendingMessage) -> str:
    """Describe a handler whose result has to be compensated."""
    if p.started is None:
        unknown = f"whether {pending.handler} did something to be undone is not known"
        return f"{pending.message.type} waits {UNSTARTED}: {unknown}"
    return f"{pending.handler} is to be undone because of {pending.message.type}"


def _is_due(pending: PendingMessage) -> bool:
    """Return whether a message can be processed now, because it waits neither for an operator nor for a time."""
    return not pending.dead and not pending.due_ms


def _describe_deadline(pending: PendingMessage) -> str:
    """Describe an open deadline."""
    when = f"at {iso(min(pending.due_ms, LATEST_MS))}, {pending.message.type} having opened it"
    if pending.attempts:
        return f"{pending.handler} runs again {when}: {count_noun(pending.attempts, 'attempt')} failed"
    return f"{pending.handler} runs {when}, unless the saga ends before"


def _describe_suspended(c: SuspendedRun) -> str:
    """Describe a suspended run."""
    until = f", or with {' or '.join(c.awaited_types)}" if c.awaited_types else ""
    text = f"{c.handler} goes on with {c.parts[0].type} at {iso(min(c.due_ms, LATEST_MS))}{until}"
    text += _describe_version(c)
    return f"{text}: {count_noun(c.attempts, 'attempt')} failed" if c.attempts else text


def _describe_version(begun: Intent | SuspendedRun) -> str:
    """Describe the handler version under which a run began; empty for the first version."""
    return f" (under version {begun.handler_version})" if begun.handler_version > 1 else ""


def _describe_parked(each: ParkedRunStatus, behind: int) -> str:
    """Describe a parked run. `behind`: number of messages queued behind it."""
    what = each.handler if each.undoes is None else f"{each.handler}, which undoes what {each.undoes} did,"
    text = f"{what} is postponed, and checked each minute" if each.put_off else f"{what} is tried again at {each.next}"
    if each.attempts:
        text += f": {count_noun(each.attempts, 'attempt')} failed"
        text += f" since {each.since}" if each.since else ""
    if behind and each.undoes is None:
        text += f", {count_noun(behind, 'message')} wait{'s' if behind == 1 else ''} behind it"
    return text + (f"; last error: {each.error}" if each.error else "")


def _describe_intent(intent: Intent, failing: Mapping[str, str]) -> str:
    """Describe a run that has begun, and its external call without a known result, if there is one."""
    text = _describe_run(intent, failing)
    return text if (call := intent.open_call) is None else f"{text}; {call.description} has no answer"


def _describe_run(intent: Intent, failing: Mapping[str, str]) -> str:
    """Describe a run without its external call. If a compensation fails, its last error is included."""
    if intent.kind == "do":
        return f"{intent.handler} has begun on {intent.message.type}{_describe_version(intent)}"
    if intent.kind == ABORT:
        return f"{intent.handler} is aborted because of {intent.message.type}: it can never finish"
    name = intent.name or f"the compensation of {intent.handler}"
    begun = f"{name} undoes what {intent.handler} did, because of {intent.message.type}{_describe_version(intent)}"
    return f"{begun}, and fails: {failing[intent.cause]}" if intent.cause in failing else begun
