"""Check that a rerun writes the same bytes: the real engine makes each version of a progress again from the version
before it.

The handler gets the answers that are recorded in the version, so no external system is called. It must make the same
calls in the same order, and record the same results. Some versions are skipped and not counted as checked:

- transitions in which a message was given up, because the reason of the failure is no longer known;
- versions written while a compensation replaced an original that can never finish, because it reads documents in their
  state at that time;
- versions written for a message that is no longer in the log;
- versions of runs during which the clock was set back or ahead, so that there is no single time at which a rerun writes
  the same: the run ended before it was due, or began with a message that was already too old;
- runs of handlers whose resources are not in the evidence.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace as with_

from saga.encryption.port import Keys
from saga.engine.consumer.record_router import route_record
from saga.engine.errors import Halted
from saga.engine.execution import value_codec
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.isolated_ports import FixedClock, RecordingPublisher, StaticAssignment
from saga.engine.outage_watch import OutageWatch
from saga.engine.ports import Ports
from saga.engine.prepared_service import PreparedService
from saga.engine.processing_state import ProcessingState
from saga.engine.progress_cache import OverflowCache
from saga.engine.service_runtime import make_service_runtime
from saga.errors import Conflict, Exists, SagaError
from saga.messages import Message, Position, Record, texts_of
from saga.messaging.message_ids import id_in
from saga.messaging.names import ARCHIVES, PROGRESS, is_dead_letter_topic
from saga.progress import journal as written_down
from saga.progress.document import (
    ABORT,
    FailedAttempt,
    Intent,
    PendingMessage,
    RunKey,
    SagaProgress,
    StepRecord,
    SuspendedRun,
    Transition,
    decode_progress,
    decode_transition,
)
from saga.progress.takeover import find_undeclared
from saga.store.port import Document
from saga.support.clock import from_iso, iso
from saga.testing.invariants.evidence import ServiceEvidence, Violation, split_lives

T = TypeVar("T")
Item = TypeVar("Item")


class RerunComplete(Halted):
    """Raised to end a rerun once it has made its write."""


class _RerunFailed(Halted):
    """Raised when a rerun fails at a point where the first run did not."""


class RerunStore:
    """An in-memory store for a rerun, with the documents as they were before the write that is repeated. Writing a
    progress ends the rerun.
    """

    document_bytes_max = 1 << 30

    def __init__(self, there: Mapping[tuple[str, str], Document]) -> None:
        """Create a store with these documents, by collection and key."""
        self.there = dict(there)
        self.progress: bytes | None = None
        """The progress that the rerun wrote."""

    async def get(self, collection: str, key: str) -> Document | None:
        return self.there.get((collection, key))

    async def insert(self, collection: str, key: str, content: bytes, **_: object) -> int:
        if (collection, key) in self.there:
            raise Exists(key)
        return self.accept_write((collection, key), content)

    async def replace(self, collection: str, key: str, content: bytes, *, cas: int, **_: object) -> int:
        known = self.there.get((collection, key))
        if known is not None and known.cas != cas:
            raise Conflict(key)
        return self.accept_write((collection, key), content)

    async def remove(self, collection: str, key: str, *, cas: int) -> None:
        self.there.pop((collection, key), None)

    def accept_write(self, at: tuple[str, str], content: bytes) -> int:
        """Accept a write, and return the document's new CAS."""
        if at[0] == PROGRESS:
            self.progress = content
            raise RerunComplete
        return 1


async def _fail(*asked: object) -> Any:
    raise _RerunFailed


def _make_ports(service: str, store: Any, now_ms: int, keys: Keys | None) -> Ports:
    """Return the ports of a rerun. The store, the clock and the keys work; calls of external systems and pauses
    fail.
    """
    clock = FixedClock(now_ms)
    return Ports(
        store=store,
        publisher=RecordingPublisher(),
        clock=clock,
        outage_watch=OutageWatch(service, clock, lambda moment: None),
        assignment=StaticAssignment(pause=_fail),
        batch=_fail,
        overflow_cache=OverflowCache(bytes_max=0),
        call_external=_fail,
        keys=keys,
    )


@dataclass(frozen=True, slots=True)
class _IndexedLog:
    """Records of the log, by position and by id."""

    at: Mapping[Position, Record]
    by_id: Mapping[str, Sequence[Record]]


@dataclass(frozen=True, slots=True)
class _WriteStep:
    """The change from one version of a progress to the next, and what is known about the write that made it."""

    before: SagaProgress
    after: SagaProgress
    content: bytes
    entry: Transition | None
    """The new transition; `None` if the write is an intent."""
    time: str
    run: RunKey | None
    calls: tuple[StepRecord, ...] = ()
    failures: tuple[FailedAttempt, ...] = ()
    message: Message | None = None
    """Message of the run, if the write is an intent."""
    wakes: tuple[str, ...] = ()
    """Ids of all timers that were set before this step, newest first.

    Any of them may have caused the write: when a timer fires, the worker processes everything that is ready, and the
    later transitions of this processing need not name the timer.
    """


async def find_rerun_differences(witnessed: ServiceEvidence, log: Sequence[Record]) -> tuple[int, list[Violation]]:
    """Repeat the writes of all progresses of this service. Return the number of versions that were repeated, and a
    violation for each that came out differently.
    """
    index = _index_log(log)
    checked, found, service = 0, list[Violation](), witnessed.service
    releases = witnessed.releases or (service,)
    for saga, contents in witnessed.versions.items():
        archives = dict(witnessed.archives.get(saga, ()))
        try:
            steps = list(_list_write_steps(releases, saga, contents))
        except (SagaError, msgspec.DecodeError) as why:
            found.append(Violation("rerun", saga, service.name, str(why)))
            continue
        for step in steps:
            different = await _compare_releases(witnessed, releases, step, index, archives)
            if different is not None:
                checked += 1
                if different:
                    found.append(Violation("rerun", saga, service.name, different))
    return checked, found


def _index_log(log: Sequence[Record]) -> _IndexedLog:
    by_id: dict[str, list[Record]] = {}
    for record in log:
        if not is_dead_letter_topic(record.topic):
            id_ = texts_of(record.headers).get("ce_id", "")
            by_id.setdefault(id_ or f"{record.topic}/{record.partition}/{record.offset}", []).append(record)
    return _IndexedLog({Position(*r[:3], r.log_id): r for r in log}, by_id)


def _list_write_steps(
    releases: Sequence[PreparedService], saga: str, contents: Sequence[bytes]
) -> Iterator[_WriteStep]:
    """Yield the steps that can be repeated, in all lives of a progress."""
    for _, versions in split_lives(contents):
        before = written_down.new_progress(releases[0].name, saga, decode_progress(versions[0]).version)
        wakes: tuple[str, ...] = ()
        for content in versions:
            after = decode_progress(content)
            if before.timer is not None and before.timer.id not in wakes:
                wakes = (before.timer.id, *wakes)
            step = (
                _step_of_transition(releases, before, after, content)
                if after.n > before.n
                else _step_of_intent(before, after, content)
            )
            if step is not None and not any(i.kind == ABORT for i in (*before.intents, *after.intents)):
                yield replace(step, wakes=wakes)
            before = after


def _step_of_transition(
    releases: Sequence[PreparedService], before: SagaProgress, after: SagaProgress, content: bytes
) -> _WriteStep | None:
    entry = decode_transition(after.transitions[-1])
    if entry.outcome in ("dead", "retrying"):
        return None
    run: RunKey | None = None
    if entry.ran:
        run = ("do", entry.handler, entry.cause or entry.message)
    elif entry.outcome == "compensated" and entry.cause:
        roles = (role for release in releases for role in release.roles.handlers.values())
        original = next(role.name for role in roles if role.undo and role.undo.name == entry.handler)
        run = ("undo", original, entry.cause)
    if run is not None and _was_set_back(before, run, entry):
        return None
    return _WriteStep(before, after, content, entry, entry.time, run, entry.calls, entry.failures)


def _was_set_back(before: SagaProgress, run: RunKey, entry: Transition) -> bool:
    """Return True if a parked run ended before the time at which it was due. The clock was then set back in between, so
    there is no single time at which the run is due and its rerun writes the same.
    """
    has_begun = any((i.kind, i.handler, i.cause) == run for i in before.intents)
    return has_begun and any(
        pending.handler == run[1] and pending.due_ms > from_iso(entry.time)
        for pending in (*before.queue, *before.compensating, *before.deadlines)
    )


def _step_of_intent(before: SagaProgress, after: SagaProgress, content: bytes) -> _WriteStep | None:
    """Return the step in which an intent was added, or got another call; `None` unless exactly one intent has
    changed.
    """
    known = set(map(_identify_intent, before.intents))
    new = [intent for intent in after.intents if _identify_intent(intent) not in known]
    if len(new) != 1:
        return None
    (intent,) = new
    run: RunKey = (intent.kind, intent.handler, intent.cause)
    time = intent.time
    if any((i.kind, i.handler, i.cause) == run for i in before.intents):
        # An intent keeps the time at which its run began. A run that was parked or suspended continued when it was due.
        pending: tuple[PendingMessage | SuspendedRun, ...] = (
            *before.queue,
            *before.compensating,
            *before.deadlines,
            *before.suspended_runs,
        )
        time = iso(max(from_iso(time), *[k.due_ms for k in pending if k.handler == intent.handler], 0))
    return _WriteStep(before, after, content, None, time, run, intent.calls, message=intent.message)


def _identify_intent(intent: Intent) -> tuple[object, ...]:
    begins = intent.begins and (intent.begins.kind, intent.begins.name, intent.begins.number)
    return intent.kind, intent.handler, intent.cause, len(intent.calls), begins


async def _compare_releases(
    witnessed: ServiceEvidence,
    releases: Sequence[PreparedService],
    step: _WriteStep,
    log: _IndexedLog,
    archives: Mapping[str, bytes],
) -> str | None:
    """Repeat the step under each release that may have made it. Return an empty string if the bytes are the same under
    one of them, otherwise the difference; `None` if the step cannot be repeated.
    """
    answers = [
        await _compare_rerun(replace(witnessed, service=release), step, log, archives)
        for release in releases
        if len(releases) == 1 or _can_have_made(release, step)
    ]
    known = [answer for answer in answers if answer is not None]
    return None if not known else "" if "" in known else known[0]


def _can_have_made(release: PreparedService, step: _WriteStep) -> bool:
    """Return True if this release may have made the step."""
    p = step.before
    is_known = step.run is None or step.run[1] in release.roles.handlers
    return is_known and p.version <= release.version and not find_undeclared(p, release.roles)


async def _compare_rerun(
    witnessed: ServiceEvidence, step: _WriteStep, log: _IndexedLog, archives: Mapping[str, bytes]
) -> str | None:
    """Repeat the step, and return the difference between its write and the rerun's; an empty string if they are equal.
    Return `None` if the message that caused the write is no longer known, a resource is missing, or the clock was set
    ahead.

    If several messages may have caused the write, it is enough that one of them gives the same bytes.
    """
    if step.run is not None and not _has_resources(witnessed, step.run):
        return None
    if _was_set_ahead(step, witnessed.service.retention_s):
        return None
    answers = []
    for message, position in _find_causes(witnessed.service, step, log):
        made = await _rerun_step(witnessed, step, message, position, archives)
        if made == step.content:
            return ""
        answers.append(made)
    if not answers:
        return None
    made, what = answers[0], _describe_step(step)
    if made is None:
        return f"{what}: a rerun fails or writes nothing"
    return f"{what}: a rerun writes something else: {_describe_difference(step.content, made)}"


def _was_set_ahead(step: _WriteStep, retention_s: int) -> bool:
    """Return True if a run began with a new message that was older than the retention at the time of the write. The
    clock was then set ahead between the decision to run and the write, so a rerun at the time of the write would reject
    the message.
    """
    message = step.message
    if message is None or from_iso(message.time) + 1000 * retention_s >= from_iso(step.time):
        return False
    return all(stored.id != message.id for stored in written_down.iterate_messages(step.before))


def _has_resources(witnessed: ServiceEvidence, run: RunKey) -> bool:
    service, (kind, name, _) = witnessed.service, run
    role = service.roles.handlers[name]
    handler = service.handlers[role.undo.name if kind == "undo" and role.undo else name]
    return all(p.gives in witnessed.resources for p in handler.parameters if p.gives is not None)


def _find_causes(service: PreparedService, step: _WriteStep, log: _IndexedLog) -> Iterator[tuple[Message, Position]]:
    """Yield the messages that may have caused the step, the most likely first."""
    if step.entry is not None and step.entry.position is not None:
        record = log.at.get(Position(*step.entry.position, step.entry.log_id))
        if record is not None:
            yield from _route_messages(service, [record])
        return
    if step.message is not None and step.message.source != service.name:
        yield step.message, Position("", 0, 0)
    ids = [step.entry.message] if step.entry is not None else []
    if step.message is not None:
        ids.append(step.message.id)
    ids += step.wakes
    ids += [c.last_message for c in step.after.suspended_runs]
    ids += [decode_transition(raw).message for raw in reversed(step.before.transitions)]
    for id_ in dict.fromkeys(ids):
        for found in _route_messages(service, log.by_id.get(id_in(id_), ())):
            if found[0].id == id_ and found[0].saga == step.after.saga:
                yield found


def _route_messages(service: PreparedService, records: Sequence[Record]) -> Iterator[tuple[Message, Position]]:
    for record in records:
        message = route_record(record, service)
        if isinstance(message, Message):
            yield message, Position(*record[:3], record.log_id)


async def _rerun_step(
    witnessed: ServiceEvidence, step: _WriteStep, message: Message, position: Position, archives: Mapping[str, bytes]
) -> bytes | None:
    """Repeat the step with this message, and return the progress that the rerun writes; `None` if it fails or writes
    nothing.
    """
    store = RerunStore({(ARCHIVES, key): Document(content, 1) for key, content in archives.items()})
    ports = _make_ports(witnessed.service.name, store, from_iso(step.time), witnessed.keys)
    service = make_service_runtime(witnessed.service, witnessed.resources, ports)
    message = await value_codec.encrypt_message(service, message, position)
    turn: ProcessingState = MessageProcessor(service).begin(
        message, position, (step.before, int(bool(step.before.transitions)))
    )
    turn = with_(turn, is_current=True)
    if step.run is not None:
        turn = turn.carry(step.run, step.calls, step.failures)
    try:
        while (
            not turn.is_complete and turn.progress is not None
        ):  # `None`: the progress would be loaded again, so this was not the version that the first run used
            turn = await MessageProcessor(service).advance(turn)
    except RerunComplete:
        return store.progress
    except _RerunFailed:
        return None
    return None


def _describe_step(step: _WriteStep) -> str:
    if step.entry is not None:
        return f"transition {step.entry.n}, {step.entry.handler} {step.entry.outcome}"
    return f"the intent of {step.run[1] if step.run else 'an unknown handler'} after {len(step.calls)} calls"


def _describe_difference(there: bytes, made: bytes) -> str:
    at = next((i for i, (a, b) in enumerate(zip(there, made, strict=False)) if a != b), min(len(there), len(made)))
    return f"...{there[max(0, at - 40) : at + 40]!r}... became ...{made[max(0, at - 40) : at + 40]!r}..."
