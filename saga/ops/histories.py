"""The history of a saga in one service, and the timeline and status that operators see.

A history is the progress together with the transitions and messages that were moved to archives and overflow segments.
A progress summary is the part of a progress that a list of sagas needs. The rest is not decoded. Building a timeline
does no I/O.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw, Struct

from saga.encryption.sensitive_fields import hide_marked
from saga.errors import SagaError, StoreError, StoreUnavailable
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.ops.sources import ServiceStore
from saga.progress import history, overflow
from saga.progress.document import (
    FORMAT,
    STORED_NAMES,
    UNREADABLE,
    IntentKind,
    Outcome,
    PendingMessage,
    SagaProgress,
    SegmentKind,
    StepRecord,
    Transition,
    decode_transition,
    progress_key,
)
from saga.progress.document import decode_progress as decode_content
from saga.progress.history import fold_state
from saga.progress.overflow import claim_key
from saga.store.port import Document, NewestFirst, Store
from saga.support.clock import LATEST_MS, iso


class SummaryMessage(Struct, frozen=True, gc=False):
    """Summary of a pending message: its handler, and what it waits for."""

    handler: str
    n: int
    dead: str | None = None
    attempts: int = 0
    due_ms: int = 0
    put_off: bool = False
    decides: bool = False


class SummaryIntent(Struct, frozen=True, gc=False):
    """Summary of an open intent: handler, kind and time."""

    handler: str
    kind: IntentKind
    time: str
    name: str = ""


class SummaryRun(Struct, frozen=True, gc=False):
    """Summary of a finished run: its handler."""

    handler: str


class SummaryEvent(Struct, frozen=True, gc=False):
    """Summary of an event: its id."""

    id: str


class SummaryResult(Struct, frozen=True, gc=False):
    """Summary of a result that can be compensated: the event that reported it."""

    event: SummaryEvent


class SummarySegment(Struct, frozen=True, gc=False, rename={"kind": "of"}):
    """Summary of an overflow segment: its kind, and the number of its entries."""

    kind: str
    count: int


class SummaryTransition(Struct, frozen=True, gc=False):
    """Summary of a transition: when it was written, and its outcome."""

    time: str
    outcome: Outcome
    type: str = ""


class SummaryFailedRun(Struct, frozen=True, gc=False):
    """Summary of a suspended run: its handler, and when it continues."""

    handler: str
    due_ms: int


class SummaryAttempt(Struct, frozen=True, gc=False):
    """Summary of a failed attempt: the class of the failure."""

    blame: str | None = None


class SummaryFailure(Struct, frozen=True, gc=False):
    """Summary of a transition with its reason and failures. It is decoded only for sagas with parked runs."""

    time: str
    outcome: Outcome
    handler: str
    attempt: int = 1
    reason: str | None = None
    failures: tuple[SummaryAttempt, ...] = ()


class ProgressSummary(Struct, frozen=True, kw_only=True, gc=False, rename=STORED_NAMES):
    """The part of a progress that a list of sagas needs. Its fields are named as in
    `saga.progress.document.SagaProgress`."""

    service: str
    saga: str
    format: int = 1
    version: int = 1
    started: str | None = None
    principal: str | None = None
    outcome: str | None = None
    closed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    completed_runs: tuple[SummaryRun, ...] = ()
    results: tuple[SummaryResult, ...] = ()
    intents: tuple[SummaryIntent, ...] = ()
    queue: tuple[SummaryMessage, ...] = ()
    waiting: tuple[SummaryMessage, ...] = ()
    compensating: tuple[SummaryMessage, ...] = ()
    deadlines: tuple[SummaryMessage, ...] = ()
    suspended_runs: tuple[SummaryFailedRun, ...] = ()
    segments: tuple[SummarySegment, ...] = ()
    first: int = 0
    transitions: tuple[Raw, ...] = ()


_decoders = msgspec.json.Decoder(ProgressSummary)
_decode_entries = msgspec.json.Decoder(SummaryTransition)
_decode_failures = msgspec.json.Decoder(SummaryFailure)


def decode_summary(content: bytes) -> ProgressSummary:
    """Decode the summary of a progress document. Raises `SagaError` if the document is not a progress, or has a newer
    format."""
    try:
        seen = _decoders.decode(content)
        if seen.transitions:
            decode_transition_summary(seen.transitions[-1])
    except (*UNREADABLE, TypeError) as why:
        raise SagaError(f"it cannot be read: {why}") from why
    if seen.format > FORMAT:
        raise SagaError(f"it has format {seen.format}, and this version reads up to {FORMAT}: use the newer one")
    return seen


def decode_transition_summary(raw: Raw) -> SummaryTransition:
    """Decode the time and outcome of one transition."""
    return _decode_entries.decode(raw)


def decode_failure(raw: Raw) -> SummaryFailure | None:
    """Decode one transition with its reason and failures; `None` if it is unreadable."""
    try:
        return _decode_failures.decode(raw)
    except UNREADABLE:
        return None


# -------------------------------------------------------------------- timeline


@dataclass(frozen=True, slots=True)
class SagaHistory:
    """The complete history of a saga in one service."""

    progress: SagaProgress
    transitions: tuple[Raw, ...]
    """Encoded transitions, oldest first, including archived ones. They are exactly as written, because
    `saga.progress.history.verify` checks their bytes."""

    @property
    def service(self) -> str:
        return self.progress.service

    @property
    def entries(self) -> tuple[Transition, ...]:
        """The transitions. They are decoded on each access. Raises `msgspec.DecodeError` if one is damaged."""
        return tuple(map(decode_transition, self.transitions))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """One transition of one service, prepared for display."""

    time: str
    """Time at which the transition was written, by the service's clock; RFC 3339 with milliseconds, UTC."""
    service: str
    transition: int
    handler: str
    outcome: Outcome
    reason: str | None
    type: str
    """Type of the message that caused the transition."""
    message: str
    """Id of the message that caused the transition."""
    source: str
    """Service or application that emitted the message."""
    attempt: int
    emitted: tuple[str, ...]
    """Types of the events that the transition emitted."""
    steps: tuple[str, ...]
    """Calls of the handler in readable form: `reserve`, `update set_aside stock/tea`, `read stock/tea`."""
    calls: tuple["TimelineStep", ...]
    """The same calls with everything that is recorded about each."""
    failures: tuple["TimelineAttempt", ...]
    """Attempts that failed since the previous transition. If there were very many, only the last ones."""
    delta: dict[str, Any]
    """Fields of the state that the transition changed. After a migration, these are all fields."""
    version: int
    """Version of the state from this transition on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineStep:
    """One step, document update or read of a run."""

    kind: str
    name: str
    number: int
    """Number of the call among the run's calls of the same name."""
    input: str
    """Digest of the call's arguments."""
    arguments: str
    """The call's arguments in readable form; empty if there are none or if they were not recorded."""
    document: str | None
    """Document that was updated or read."""
    answer: str | None
    """Expected error that the call raised; `None` if it returned a result."""
    bytes: int
    """Size of the result as JSON, in bytes; 0 if the result is in a claim check."""
    claim: str | None
    """Key of the document in `saga-archive` that holds the result; `None` if the progress holds it."""
    ms: int
    """Duration of the step in milliseconds, by the worker's clock."""
    by: str | None
    """Operator who gave the answer in place of the external system; `None` if the system answered."""
    instead: str = ""
    """How the answer was obtained if a breaker or a limit refused the call; otherwise empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineAttempt:
    """One failed attempt of a run."""

    attempt: int
    """Number of the attempt, from 1."""
    time: str
    ms: int
    """Duration of the attempt in milliseconds."""
    worker: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedRunStatus:
    """A parked run. It failed or was postponed, and blocks its saga until its next attempt."""

    handler: str
    """Name of the handler, or of the compensation if that is known."""
    undoes: str | None
    """If the run is a compensation: the handler whose result it undoes."""
    attempts: int
    """Number of failed attempts."""
    next: str
    """Time of the next attempt. If that time has passed, the attempt is running or waits for a worker."""
    since: str | None
    """Time of the transition that made the message pending; `None` if that transition is archived or unreadable."""
    error: str | None
    """Reason of the last failure; `None` if the transition with that reason is archived or unreadable."""
    is_code: bool = False
    """True if the service's own code failed, so that waiting does not help."""
    put_off: bool = False
    """True if a pause, a limit or an open circuit breaker postpones the run. The service checks this every minute, and
    `next` is the time of its next check."""


@dataclass(frozen=True, slots=True, order=True)
class FirstMessage:
    """The first message of a saga that a service handled."""

    time: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """The status of a saga in one service."""

    service: str
    saga: str
    state: str
    """State in one word: `quarantined`, `retrying` (a run was parked and waits for its next attempt), `begun` (a
    handler is running), or the outcome of the last transition."""
    version: int
    """Version of the saga's state in this service. Migrations raise it."""
    outcome: str | None
    """Event type with which this service ended the saga; `None` if it did not."""
    has_failed: bool
    """True if the service has received a failure outcome."""
    started: str | None
    principal: str | None
    """Principal that started the saga, as far as this service knows; `None` if no message named one."""
    first: FirstMessage | None
    """First message that this service handled; `None` if that transition is archived, or if there is none."""
    changed: str
    """Time of the last transition or of the last open intent, whichever is later. Empty if there is neither."""
    queue: int
    waiting: int
    """Number of messages that wait for other messages of a fan-in, or for a suspended run that uses them to
    continue."""
    unstarted: int
    """Number of messages, including outcomes, that wait because no message with the start of the saga has arrived.

    The service cannot know whether it has handled this saga before and forgotten it. So these messages wait for one
    that contains the start time. If none arrives, they wait for ever.
    """
    left: int
    """Number of fan-in messages whose handler can never run. They are removed when the retention ends."""
    intents: int
    compensating: int
    parked: int
    """Number of parked runs. `queue` and `compensating` do not include them."""
    retries: tuple[ParkedRunStatus, ...]
    """The parked runs, each with its last error and the time of its next attempt."""
    deadlines: int
    """Number of open deadlines."""
    later: int
    """Number of suspended runs."""
    dead: int
    """Number of dead letters that block the saga. `queue` and `compensating` do not include them."""

    @property
    def needs_person(self) -> bool:
        """True if the saga can only continue after a person has acted, because a dead letter blocks it or because the
        service's own code fails."""
        return bool(self.dead) or any(each.is_code for each in self.retries)

    @property
    def is_open(self) -> bool:
        """True if anything is unfinished: a pending or queued message, an open intent, a deadline, a suspended run or a
        dead letter."""
        pending = self.queue or self.waiting or self.unstarted or self.compensating or self.parked or self.deadlines
        return bool(pending or self.later or self.intents or self.dead)


def _list_overflow(p: SagaProgress | ProgressSummary, of: SegmentKind) -> int:
    """Count the messages in overflow segments of this kind."""
    return sum(page.count for page in p.segments if page.kind == of)


def can_never_run(p: SagaProgress | ProgressSummary, pending: PendingMessage | SummaryMessage) -> bool:
    """Return whether the handler that a message waits for can no longer run."""
    if pending.handler in p.closed or any(ran.handler == pending.handler for ran in p.completed_runs):
        return True
    return pending.decides and p.outcome is not None


def _find_first(p: SagaProgress | ProgressSummary) -> FirstMessage | None:
    if p.first or not p.transitions:
        return None
    try:
        first = decode_transition_summary(p.transitions[0])
    except UNREADABLE:  # the state of a saga is known without it
        return None
    return FirstMessage(first.time, first.type)


def compute_status(p: SagaProgress | ProgressSummary) -> ServiceStatus:
    """Compute the status of a saga in one service from the service's progress."""
    last = decode_transition_summary(p.transitions[-1]) if p.transitions else None
    left = sum(1 for pending in p.waiting if can_never_run(p, pending))
    dead = sum(1 for pending in (*p.queue, *p.compensating) if pending.dead)
    retries = tuple(_list_parked_runs(p))
    waiting = len(p.waiting) - left + _list_overflow(p, "waiting")
    compensating = sum(1 for pending in p.compensating if not (pending.dead or pending.due_ms))
    if dead:
        state = "quarantined"
    elif retries:
        state = "retrying"
    elif p.intents or last is None:
        state = "begun"
    else:
        state = last.outcome
    return ServiceStatus(
        service=p.service,
        saga=p.saga,
        state=state,
        version=p.version,
        outcome=p.outcome,
        has_failed=bool(p.failed),
        started=p.started,
        principal=p.principal,
        first=_find_first(p),
        changed=max([last.time if last else "", *(intent.time for intent in p.intents)]),
        queue=sum(1 for pending in p.queue if not (pending.dead or pending.due_ms)) + _list_overflow(p, "queue"),
        waiting=waiting if p.started else 0,
        unstarted=0 if p.started else waiting + compensating,
        left=left,
        intents=len(p.intents),
        compensating=compensating if p.started else 0,
        parked=len(retries),
        retries=retries,
        deadlines=len(p.deadlines),
        later=len(p.suspended_runs),
        dead=dead,
    )


def _list_parked_runs(p: SagaProgress | ProgressSummary) -> Iterator[ParkedRunStatus]:
    """Yield the parked runs. Transitions are decoded only if there are parked runs."""
    for pending in p.queue:
        if pending.due_ms and not pending.dead:
            yield _to_parked_run(p, pending, pending.handler, undoes=None)
    for pending in p.compensating:
        if pending.due_ms and not pending.dead:
            intents = [i for i in p.intents if i.kind == "undo" and i.handler == pending.handler]
            yield _to_parked_run(p, pending, intents[0].name if intents else "", undoes=pending.handler)


def _to_parked_run(
    p: SagaProgress | ProgressSummary, pending: PendingMessage | SummaryMessage, name: str, undoes: str | None
) -> ParkedRunStatus:
    """Describe a parked run.

    Args:
        pending: The pending message of the run.
        name: Name of the handler or compensation. If it is empty, the name is taken from the last failure.
        undoes: If the run is a compensation: the handler whose result it undoes.
    """
    last = next(
        (found for raw in reversed(p.transitions) if (found := _read_failure(raw, pending, name, undoes))), None
    )
    first = (
        decode_failure(p.transitions[pending.n - p.first]) if 0 <= pending.n - p.first < len(p.transitions) else None
    )
    return ParkedRunStatus(
        handler=name or (last.handler if last else pending.handler),
        undoes=undoes,
        attempts=pending.attempts,
        next=iso(min(pending.due_ms, LATEST_MS)),
        since=None if first is None else first.time,
        error=None if last is None else last.reason,
        is_code=last is not None and bool(last.failures) and last.failures[-1].blame == "code",
        put_off=pending.put_off,
    )


def _read_failure(
    raw: Raw, pending: PendingMessage | SummaryMessage, name: str, undoes: str | None
) -> SummaryFailure | None:
    """Return the transition if it reports the failure of this pending message, otherwise `None`.

    A compensation without an intent is named only in the transition. So without a `name`, the transition is recognised
    by its other fields.
    """
    failure = decode_failure(raw)
    if failure is None or (failure.outcome, failure.attempt) != ("retrying", pending.attempts):
        return None
    return failure if failure.handler == name or (not name and failure.handler != undoes) else None


def build_timeline(histories: Iterable[SagaHistory]) -> list[TimelineEntry]:
    """Merge the transitions of all services into one order: by time, but no transition comes before its cause.

    The cause of a transition is the transition that emitted its message. It comes first even if the clocks of two
    machines differ. The transitions of one service stay in order.
    """
    known = {h.service: h for h in histories}
    entries = {service: h.entries for service, h in known.items()}
    emitters = {
        event.id: (service, entry.n)
        for service, of_one in entries.items()
        for entry in of_one
        for event in entry.events
    }
    heads = dict.fromkeys(entries, 0)
    lines = []
    while left := [service for service in sorted(entries) if heads[service] < len(entries[service])]:
        nexts = {service: entries[service][heads[service]] for service in left}

        def is_due(service: str, nexts: dict[str, Transition] = nexts) -> bool:
            by, n = emitters.get(nexts[service].message, (service, -1))
            return by == service or by not in nexts or nexts[by].n > n

        # Manipulated journals may name each other as causes. Then only the time decides.
        chosen = min([s for s in left if is_due(s)] or left, key=lambda service: nexts[service].time)
        lines.append(_timeline_entry(known[chosen], nexts[chosen]))
        heads[chosen] += 1
    return lines


def find_transition(history: SagaHistory, n: int) -> tuple[TimelineEntry, dict[str, Any]]:
    """Return transition `n`, and the state right after it, with all fields that had been set until then. Raises
    `LookupError` if there is no such transition."""
    entry = next((entry for entry in history.entries if entry.n == n), None)
    if entry is None:
        raise LookupError(n)
    return _timeline_entry(history, entry), hide_marked(fold_state(history.entries, before=n + 1))


def _timeline_entry(history: SagaHistory, entry: Transition) -> TimelineEntry:
    return TimelineEntry(
        time=entry.time,
        service=history.service,
        transition=entry.n,
        handler=entry.handler,
        outcome=entry.outcome,
        reason=entry.reason,
        type=entry.type,
        message=entry.message,
        source=entry.source,
        attempt=entry.attempt,
        emitted=tuple(event.type for event in entry.events),
        steps=tuple(map(_find_step, entry.calls)),
        calls=tuple(_timeline_step(history.progress, call) for call in entry.calls),
        delta=hide_marked(entry.delta),
        version=entry.version,
        failures=tuple(_list_failures(entry)),
    )


def _list_failures(entry: Transition) -> Iterator[TimelineAttempt]:
    """Yield the failed attempts of a transition with their numbers.

    If the run failed, all of its attempts have failed. If it succeeded, all but the last one have.
    """
    last = entry.attempt if entry.outcome in ("retrying", "dead") else entry.attempt - 1
    for number, each in enumerate(entry.failures, start=last - len(entry.failures) + 1):
        yield TimelineAttempt(attempt=number, time=each.time, ms=each.ms, worker=each.worker, reason=each.reason)


def _timeline_step(p: SagaProgress, call: StepRecord) -> TimelineStep:
    return TimelineStep(
        kind=call.kind,
        name=call.name,
        number=call.number,
        input=call.input,
        arguments=call.arguments,
        document=call.document,
        answer=call.answer,
        bytes=0 if call.claim else len(bytes(call.value)),
        claim=claim_key(p.service, p.saga, call.claim) if call.claim else None,
        ms=call.ms,
        by=call.by,
        instead=call.instead,
    )


def _find_step(call: StepRecord) -> str:
    if call.by is not None:
        return f"{call.name} according to {call.by}"
    if call.kind == "step":
        return call.name
    return f"read {call.document}" if call.kind == "read" else f"update {call.name} {call.document}"


# -------------------------------------------------------------------- histories


class UnreadableHistory(SagaError):
    """Raised if a document of a saga is damaged, or was written by a newer version of saga."""


async def read_documents(
    source: ServiceStore, prefix: str = "", *, never_expiring: bool = False
) -> AsyncIterator[tuple[str, Document]]:
    """Yield the ids of a service's sagas that begin with `prefix`, each with its progress document.

    If the store can list by age, the newest come first, and damaged documents are included unchanged. For such stores,
    `never_expiring` limits the list to documents that never expire.
    """
    whole, store = progress_key(source.service, prefix), source.store
    found = (
        store.scan_newest(PROGRESS, whole, kept=never_expiring)
        if isinstance(store, NewestFirst)
        else store.scan(PROGRESS, whole)
    )
    async for key, document in found:
        yield key.removeprefix(progress_key(source.service, "")), document


async def read_document(source: ServiceStore, saga: str) -> Document | None:
    """Read the progress document of a saga; `None` if the service does not know the saga. Raises `UnreadableHistory` if
    the document is damaged."""
    return await _get(source.store, PROGRESS, progress_key(source.service, saga), f"saga {saga} in {source.service}")


async def _get(store: Store, collection: str, key: str, what: str) -> Document | None:
    """Read a document. Raises `UnreadableHistory` if the document is damaged; the message of the error begins with
    `what`."""
    try:
        return await store.get(collection, key)
    except StoreUnavailable:
        raise
    except StoreError as why:
        raise UnreadableHistory(f"{what}: {why}") from why


def decode_progress(source: ServiceStore, saga: str, document: Document) -> SagaProgress:
    """Decode the progress in a document. Raises `UnreadableHistory` if it is damaged, or was written by a newer
    version."""
    try:
        return decode_content(document.content)
    except SagaError as why:
        raise UnreadableHistory(f"saga {saga} in {source.service}: {why}") from why


async def read_history(source: ServiceStore, saga: str, since: int = 0) -> SagaHistory | None:
    """Read all transitions of a saga in a service, including archived ones. Return `None` if the service does not know
    the saga.

    Archives are not read if the progress itself contains all transitions from number `since` on. Raises
    `UnreadableHistory` if a document is damaged.
    """
    document = await read_document(source, saga)
    if document is None:
        return None
    return await complete_history(source, decode_progress(source, saga, document), since)


async def read_histories(source: ServiceStore) -> AsyncIterator[SagaHistory]:
    """Yield the histories of all sagas that a service knows, as `read_history` returns them."""
    async for saga, document in read_documents(source):
        yield await complete_history(source, decode_progress(source, saga, document))


async def complete_history(source: ServiceStore, p: SagaProgress, since: int = 0) -> SagaHistory:
    """Add to a progress that is already loaded what `read_history` would read besides it.

    These are the overflow segments and, unless the progress contains all transitions from number `since` on, the
    archives.
    """
    p = await _add_overflow(source, p)
    return SagaHistory(p, p.transitions) if p.first <= since else await add_archives(source.store, p)


async def add_archives(store: Store, p: SagaProgress) -> SagaHistory:
    """Return the history of a progress, including its archived transitions as far as the archives exist. Raises
    `UnreadableHistory` if an archive is damaged."""
    # The progress was read first, so no transition can have moved to an archive unseen. An archive that the progress
    # does not know of yet repeats transitions of the progress. An archive that does not follow the one before belongs
    # to an earlier saga with the same id: it is not read.
    archived, what = list[Raw](), f"an archive of saga {p.saga} in {p.service}"
    try:
        while len(archived) < p.first:
            key = history.archive_key(p.service, p.saga, len(archived))
            document = await _get(store, ARCHIVES, key, f"{what} cannot be read")
            if document is None:
                break
            archive = history.decode_archive(document.content)
            if (archive.saga, archive.first) != (p.saga, len(archived)) or not archive.transitions:
                break
            archived += archive.transitions
    except UNREADABLE as why:
        raise UnreadableHistory(f"{what} cannot be read: {why}") from why
    return SagaHistory(p, (*archived, *p.transitions))


async def _add_overflow(source: ServiceStore, p: SagaProgress) -> SagaProgress:
    """Return the progress together with the contents of all its overflow segments. Raises `UnreadableHistory` if a
    segment is damaged.

    A running worker moves messages out of segments, and then removes the segments. So if a segment is missing, the
    progress is read again. If it still lists the same segments, the missing one is an error.
    """
    what = f"a page of {p.saga} in {source.service}"
    while True:
        leaves, left, is_missing = dict[str, bytes](), [*p.segments], False
        while left:
            page = left.pop()
            key = overflow.segment_key(p.service, p.saga, page)
            document = await _get(source.store, ARCHIVES, key, f"{what} cannot be read")
            if document is None:
                is_missing = True
                continue
            leaves[key] = document.content
            try:
                left += overflow.list_segments(page, document.content)
            except UNREADABLE as why:
                raise UnreadableHistory(f"{what} cannot be read: {why}") from why
        if is_missing and (document := await read_document(source, p.saga)) is not None:
            now = decode_progress(source, p.saga, document)
            if now.segments != p.segments:
                p = now
                continue
        try:
            return overflow.restore_all(p, leaves, now_s=source.clock.now_ms() // 1000)
        except (SagaError, *UNREADABLE) as why:
            raise UnreadableHistory(f"{what} cannot be read: {why}") from why
