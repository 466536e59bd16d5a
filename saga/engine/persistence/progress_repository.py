"""Load and commit the progress, and publish its events: the only module that does so while a message is processed."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Concatenate, Literal, ParamSpec, TypeVar

from msgspec.structs import replace

from saga.engine.errors import Superseded
from saga.engine.persistence import dead_letters, overflow_store
from saga.engine.prepared_service import PreparedService
from saga.engine.processing_state import NOWHERE, ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import Ambiguous, BrokerUnavailable, Conflict, Exists, SagaError, StoreError, StoreUnavailable
from saga.messages import Message, Outgoing, Position, texts_of
from saga.messaging import envelope, timers
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.progress import history, integrity, journal, operator_commands, takeover
from saga.progress.actions import Now
from saga.progress.decisions import is_message_known
from saga.progress.document import (
    RELEASED,
    UNREADABLE,
    DeadLetterRecord,
    SagaProgress,
    Transition,
    build_messages,
    decode_progress,
    decode_transition,
    encode,
    progress_key,
)
from saga.progress.history import TransitionArchive
from saga.progress.journal import Commit, WriteContext, check_room
from saga.progress.takeover import find_undeclared
from saga.store.port import Document
from saga.telemetry.events import DeadLettered, ReplayEnded, WriteRefused

P = ParamSpec("P")
T = TypeVar("T")

WAIT_S_FIRST, WAIT_S_MAX = 0.05, 5.0
"""The pauses between two tries while store or broker cannot be reached."""
REFUSED_S_MAX = 30.0
"""The longest pause between two tries of a dead letter that the log refuses."""
REFUSED = BrokerUnavailable("a dead letter is refused in every form")
OFFERING = "publish a dead letter"
OURS = ("", timers.TYPE)
"""Types of messages that no progress knows: of a repair, and of wakes."""


async def retry_while_unavailable(
    service: ServiceRuntime,
    position: Position,
    operation: str,
    act: Callable[P, Awaitable[T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Return what `act` gives for the arguments. While store or broker cannot be reached the lane waits: no attempt of
    anything is counted."""
    pause_s, away, ports = WAIT_S_FIRST, None, service.ports
    while True:
        began = ports.clock.monotonic_s()
        try:
            value = await act(*args, **kwargs)
        except (StoreUnavailable, BrokerUnavailable) as why:
            away = why
            ports.outage_watch.unavailable(operation, why)
            await ports.assignment.pause(pause_s * (0.5 + ports.clock.chance()), position)
            pause_s = min(pause_s * 2, WAIT_S_MAX)
        except Ambiguous:
            ports.outage_watch.answer_lost()
            raise
        else:
            if operation != "get" and (load := ports.outage_watch.load) is not None:
                now = ports.clock.monotonic_s()
                load.took(now - began, now)
            if away is not None:
                ports.outage_watch.recovered(away)
            return value


def write_context(service: ServiceRuntime, turn: ProcessingState, *, appends: bool = True) -> WriteContext:
    """Collect what the next write depends on: message, time, retention, and the progress before.

    `appends`: False for a write without a transition, which need not know whether the message is new.
    """
    message, p = turn.message, turn.loaded_progress
    is_new = appends and message.type not in OURS and not turn.paged and not is_message_known(p, service.roles, message)
    is_new = is_new and turn.position != NOWHERE
    return WriteContext(
        message=message,
        position=turn.position if is_new else None,
        roles=service.roles,
        # Without a message nobody comes again after a crash: that it is whole is said when all is done and published.
        heard=service.roles.heard if message.type else p.heard,
        now_ms=service.ports.clock.now_ms(),
        retention_s=service.retention_s,
        before=p,
        told=p.told if (telling := service.ports.transition_listener) is None else telling.published_below(p),
    )


async def load(service: ServiceRuntime, turn: ProcessingState) -> ProcessingState:
    """Read the progress from the store. Whoever reads it first publishes what is not known as published; what another
    message brings, only if this turn writes. Raises `Draining`: a run whose write was refused is not decided again by a
    worker that has lost the partition."""
    service.ports.assignment.check_running(turn.position)
    saga, remembered = turn.message.saga, 0 if turn.progress is None else turn.cas
    key = progress_key(service.name, saga)
    spans, read = (
        turn.measurements.spans,
        retry_while_unavailable(service, turn.position, "get", service.ports.store.get, PROGRESS, key),
    )
    document = await (read if spans is None else spans.around("store", "read progress", read))
    unpublished: tuple[Transition, ...] = ()
    if document is None:
        p, cas = journal.new_progress(service.name, saga, service.version), 0
    else:
        p, cas = decode_progress(document.content), document.cas
        # What this worker remembers it has brought to its end: all of it was acknowledged, but for what this turn read.
        unpublished = turn.unpublished
        if cas != remembered:
            unpublished = tuple(history.find_unpublished(p, service.ports.assignment.is_committed, turn.message.id))
        _check_declared(service, p, unpublished)
        if not all(_is_brought_elsewhere(service, turn, entry) for entry in unpublished):
            await _publish_all(service, turn, p, unpublished)
            unpublished = ()
        if service.ports.transition_listener is not None:
            service.ports.transition_listener.on_loaded(p)
    if p.started is None and is_older_than_retention(service, turn.message):  # what is kept here may be all new to us
        await _note_work(service, turn.position)
        if is_older_than_retention(service, turn.message):
            await _give_up_old(service, turn)
            return replace(turn, is_complete=True)
    if takeover.is_takeover_due(p, service.roles):
        p = await _take_over(service, replace(turn, cas=cas), p)
    # What pages of the progress before said of the message is of no use any more.
    return replace(turn, progress=p, cas=cas, is_current=True, unpublished=unpublished, recalled=None, paged=None)


def _is_brought_elsewhere(service: ServiceRuntime, turn: ProcessingState, entry: Transition) -> bool:
    """True if the message under which a transition was written is another one, and comes again if its events are not
    published: it was not committed before, its log is still read, and a handler of this version takes it."""
    if turn.position == NOWHERE or entry.position is None or entry.position == turn.position[:3]:
        return False
    position = Position(*entry.position, entry.log_id)
    return entry.type in service.consumed and service.ports.assignment.is_of_current_log(position)


async def _publish_all(
    service: ServiceRuntime, turn: ProcessingState, p: SagaProgress, entries: Sequence[Transition]
) -> None:
    for entry in entries:
        await publish(service, turn, p, entry)


async def _take_over(service: ServiceRuntime, turn: ProcessingState, p: SagaProgress) -> SagaProgress:
    """The progress with the own events that the version of the service before did not take."""
    entries = [*await _load_archives(service, turn.position, p), *map(decode_transition, p.transitions)]
    if p.pages:
        p = await overflow_store.restore_results(service, turn, p)
        said = [event for entry in entries for event in build_messages(p, entry)]
        had = await overflow_store.find_in_segments(service, turn, p, said)
        p = replace(p, inbox={**dict.fromkeys(had, 0), **p.inbox})
    return takeover.take_over(p, service.roles, entries, decision_time(service))


async def _load_archives(service: ServiceRuntime, position: Position, p: SagaProgress) -> list[Transition]:
    """The transitions that are in archives, oldest first. Raises `SagaError` if one is gone."""
    entries: list[Transition] = []
    while len(entries) < p.first:
        key = history.archive_key(service.name, p.saga, len(entries))
        document = await retry_while_unavailable(service, position, "get", service.ports.store.get, ARCHIVES, key)
        if document is None:
            raise StoreError(f"the archive {key!r} is gone: somebody removes documents by hand; restore it")
        entries += map(decode_transition, _decode_archive(key, document).transitions)
    return entries


def _decode_archive(key: str, document: Document) -> TransitionArchive:
    try:
        return history.decode_archive(document.content)
    except UNREADABLE as why:
        raise StoreError(f"the archive {key!r} cannot be read: {why}; restore it") from why


def _check_declared(service: PreparedService, p: SagaProgress, unpublished: Sequence[Transition]) -> None:
    """Check that no other version of the service, or service of its name, has more to do here than this one can. Raises
    `SagaError`: the lane waits, and people are told, until a version that declares it takes the message."""
    if p.version > service.version:
        raise SagaError(
            f"the state of saga {p.saga!r} has version {p.version}, and this version of {service.name!r} knows "
            f"{service.version}: a newer release has migrated it, and takes it from here; deploy that one"
        )
    missing = list(find_undeclared(p, service.roles))
    emitted = {event.type for entry in unpublished for event in entry.events}
    missing += sorted(f"event {type_}" for type_ in emitted - service.contracts.keys())
    if missing:
        raise SagaError(
            f"the progress of saga {p.saga!r} needs what this version of {service.name!r} does not declare: "
            f"{', '.join(missing)}; deploy a version that does, and look whether another service has the same name"
        )


async def _give_up_old(service: ServiceRuntime, turn: ProcessingState) -> None:
    """Make a dead letter of a message whose saga is older than the retention, without a progress."""
    message = turn.message
    letter = dead_letters.older_than_memory(service.name, message, turn.position, service.contracts[message.type])
    await send_dead_letter(service, turn.position, letter)
    headers = texts_of(letter.headers)
    if service.ports.outage_watch.is_news(headers["dead_id"]):
        service.ports.outage_watch.report(
            DeadLettered(
                service=service.name,
                saga=message.saga,
                message=message.id,
                type=message.type,
                reason=headers["dead_reason"],
                remedy=headers["dead_remedy"],
                blame="data",
                owner=service.contracts[message.type].owner,
            )
        )


async def _note_work(service: ServiceRuntime, position: Position) -> None:
    """Record in the store that the service works now, so that its absences are known later."""
    if (work := service.ports.heartbeat) is not None and not work.is_recent():
        await retry_while_unavailable(service, position, "write", work.record)


def is_older_than_retention(service: ServiceRuntime, message: Message) -> bool:
    """Return True if the saga of the message began before the retention: it may have been handled and forgotten."""
    if message.started is None:
        return False
    return message.started < decision_time(service).forgotten


def decision_time(service: ServiceRuntime) -> Now:
    """Return the time for a decision that is made now, with the retention and the absences of the service."""
    work = service.ports.heartbeat
    return Now(service.ports.clock.now_ms(), service.retention_s, absences=() if work is None else work.absences)


async def commit(
    service: ServiceRuntime,
    turn: ProcessingState,
    record_it: Callable[Concatenate[SagaProgress, WriteContext, P], Commit],
    *args: P.args,
    **kwargs: P.kwargs,
) -> ProcessingState:
    """Write the progress that `record_it` makes by one compare-and-swap, then publish its events.

    `record_it` is given the progress, the circumstances of this write, and the arguments. Raises `Superseded`: decide
    again; `TooLarge`.
    """
    written = record_it(turn.loaded_progress, write_context(service, turn), *args, **kwargs)
    clock, stages, entry = service.ports.clock, turn.measurements, written.entry
    began = clock.monotonic_s()
    turn = await checkpoint(service, turn, written)
    saved = clock.monotonic_s()
    stages.persisted_s += saved - began
    if entry is not None:
        if service.ports.transition_listener is not None and turn.progress is not None:
            service.ports.transition_listener.on_written(turn.progress, entry, stages)
        if entry.events or entry.letters or entry.wake is not None:
            await publish(service, turn, written.snapshot, entry)
            stages.published_s += clock.monotonic_s() - saved
        stages.outcomes.append((entry.handler, entry.outcome, entry.reason))
        if written.snapshot.replays:
            _report_replay(service, written.snapshot, entry)
        if entry.outcome not in ("ignored", "waiting", "queued"):
            stages.attempts = max(stages.attempts, entry.attempt)
    return turn


def _report_replay(service: ServiceRuntime, p: SagaProgress, entry: Transition) -> None:
    """Report the end of what a person had tried again, if this transition is it."""
    result = operator_commands.find_replay_result(p, entry)
    if result is not None:
        said = ReplayEnded(
            service=service.name, saga=p.saga, handler=entry.handler, message=entry.message, result=result
        )
        service.ports.outage_watch.report(said)


async def checkpoint(service: ServiceRuntime, turn: ProcessingState, written: Commit) -> ProcessingState:
    """Write the progress alone. An ambiguous write is refused as well: it is never made again, for it may still land.

    Raises `Superseded`, and `TooLarge` for a progress that can never be written.
    """
    await _note_work(service, turn.position)
    p = written.snapshot
    if turn.unpublished:
        await _publish_all(service, turn, turn.loaded_progress, turn.unpublished)
    if turn.recalled:  # these are in pages already
        p = replace(p, inbox={entry: at for entry, at in p.inbox.items() if entry not in turn.recalled})
    if p.results or p.later or p.format == RELEASED or (p.intents and integrity.may_affect_format(p.intents)):
        p = integrity.update_format(p)
    content, bounds = encode(p), service.bounds
    emptied: list[tuple[str, int]] = []
    large = len(content) > history.HISTORY_BYTES_MAX
    # Else nothing goes to pages.
    kept = len(p.queue + p.waiting + p.results + p.own)
    if large or p.pages or len(p.inbox) > bounds.inbox_max or kept > bounds.head_max:
        before = p
        p, emptied = await overflow_store.move_overflow(service, turn, p)
        content = content if p is before else encode(p)
        large = len(content) > history.HISTORY_BYTES_MAX
    if large or len(p.transitions) > history.TRANSITIONS_MAX:
        if (archive := history.build_archive(p)) is not None:
            p = await write_archive(service, turn.position, p, archive)
            content = encode(p)
        check_room(written, p, len(content), service.ports.store.document_bytes_max)
    store, where = service.ports.store, progress_key(service.name, p.saga)
    expiry_s, at = None if p.is_open else service.retention_s, turn.position
    try:
        if turn.cas:
            work = retry_while_unavailable(
                service, at, "write", store.replace, PROGRESS, where, content, cas=turn.cas, expiry_s=expiry_s
            )
        else:
            work = retry_while_unavailable(
                service, at, "write", store.insert, PROGRESS, where, content, expiry_s=expiry_s
            )
        cas = await (
            work if (spans := turn.measurements.spans) is None else spans.around("store", "write progress", work)
        )
    except (Conflict, Exists, Ambiguous) as why:
        report_refused_write(service, p.saga, "write", why)
        raise Superseded from why
    if emptied:
        await overflow_store.remove_segments(service, emptied)
    return replace(turn, progress=p, cas=cas, is_current=True, unpublished=())


def report_refused_write(
    service: ServiceRuntime, saga: str | None, operation: Literal["write", "archive", "update"], why: StoreError
) -> None:
    """Report a refused write, for those who count them."""
    kind: Literal["conflict", "ambiguous"] = "ambiguous" if isinstance(why, Ambiguous) else "conflict"
    service.ports.outage_watch.report(WriteRefused(service=service.name, saga=saga, operation=operation, why=kind))


async def write_archive(
    service: ServiceRuntime, position: Position, p: SagaProgress, archive: TransitionArchive
) -> SagaProgress:
    """Archive the oldest published transitions, in an insert-only document, and return the progress without them."""
    store, key = service.ports.store, history.archive_key(service.name, p.saga, p.first)
    content = encode(archive)
    try:
        # Without expiry: archives live at least as long as the progress, which every write renews.
        await retry_while_unavailable(service, position, "archive", store.insert, ARCHIVES, key, content)
    except Exists:
        there = await retry_while_unavailable(service, position, "get", store.get, ARCHIVES, key)
        if there is None:
            raise StoreError(f"the archive {key!r} was there and is gone: somebody removes documents by hand") from None
        earlier = _decode_archive(key, there)
        if history.is_of_another_saga(p, earlier):  # it had this id before the memory: nobody knows it any more
            await _replace_archive(service, position, p.saga, key, content, there.cas)
        else:
            archive = earlier
    except Ambiguous as why:
        report_refused_write(service, p.saga, "archive", why)
        raise Superseded from why
    return history.remove_archived(p, archive)


async def _replace_archive(
    service: ServiceRuntime, position: Position, saga: str, key: str, content: bytes, cas: int
) -> None:
    store = service.ports.store
    try:
        await retry_while_unavailable(service, position, "archive", store.replace, ARCHIVES, key, content, cas=cas)
    except (Conflict, Ambiguous) as why:
        report_refused_write(service, saga, "archive", why)
        raise Superseded from why


async def publish(service: ServiceRuntime, turn: ProcessingState, p: SagaProgress, entry: Transition) -> None:
    """Publish the events of a transition, in order, with its wake, if that is not in hand; return when all are
    acknowledged. Nothing later goes out before."""
    position, records, count = turn.position, outbox_records(service, p, entry), len(entry.events)
    if entry.wake is not None and entry.wake.id != turn.message.id:
        records.insert(count, timer_record(service, p.saga, entry.wake.id, entry.wake.due_ms))
        count += 1
    began_s = service.ports.clock.monotonic_s()
    try:
        await send(service, position, records)
    except Exception:  # a dead letter that the log does not take keeps back nothing else
        if not entry.letters:
            raise
        if count:
            await send(service, position, records[:count])
        for letter in records[count:]:
            await send_dead_letter(service, position, letter)
    if turn.measurements.spans is not None:
        turn.measurements.spans.published(build_messages(p, entry), began_s)
    for dead in entry.letters:
        if service.ports.outage_watch.is_news(dead.id):
            report_dead_letter(service, p.saga, dead)


def send(service: ServiceRuntime, position: Position, outgoing: Sequence[Outgoing]) -> Coroutine[object, object, None]:
    """Publish records. Returns when all are acknowledged."""
    return retry_while_unavailable(service, position, "publish", service.ports.publisher.publish, outgoing)


async def send_dead_letter(service: ServiceRuntime, position: Position, whole: Outgoing) -> None:
    """Return when the dead letter is acknowledged: whole, or with as much of the original as the log takes. While it is
    refused in every form it waits, and people are told."""
    ports, pause_s, was_refused = service.ports, WAIT_S_FIRST, False
    while (
        refusal := await offer_dead_letter(service, whole, lambda form: send(service, position, [form]))
    ) is not None:
        was_refused = True
        ports.outage_watch.unavailable(OFFERING, refusal)
        await ports.assignment.pause(pause_s, position)
        pause_s = min(pause_s * 2, REFUSED_S_MAX)
    if was_refused:
        ports.outage_watch.recovered(REFUSED)


async def offer_dead_letter(
    service: ServiceRuntime, whole: Outgoing, publish: Callable[[Outgoing], Awaitable[None]]
) -> BrokerUnavailable | None:
    """Offer the dead letter to the log once: whole, then in ever smaller forms. `None` once it is acknowledged, else
    why it is not."""
    refusal = REFUSED
    for form in dead_letters.forms(whole, service.ports.publisher.record_bytes_max):
        try:
            await publish(form)
        except BrokerUnavailable as why:  # for a smaller one, too
            return why
        except Exception as why:  # noqa: BLE001 - whatever it is: what cannot be handled must not end who handles
            refusal = BrokerUnavailable(f"{REFUSED}: {type(why).__name__}: {why}")
        else:
            return None
    return refusal


def report_dead_letter(service: ServiceRuntime, saga: str, letter: DeadLetterRecord) -> None:
    """Report a dead letter or an escalation to people."""
    moment = dead_letters.moment(service.name, saga, letter, service.contracts.get(letter.message.type))
    if moment is not None:
        service.ports.outage_watch.report(moment)


# -------------------------------------------------------------------- outbox


def timer_record(service: ServiceRuntime, saga: str, id_: str, due_ms: int, *, unknown_ms: int = 0) -> Outgoing:
    """Make the record of a timer that is published now."""
    now_ms = service.ports.clock.now_ms()
    return timers.to_record(service.name, saga, id_, due_ms, now_ms, unknown_ms=unknown_ms)


def outbox_records(service: ServiceRuntime, p: SagaProgress, entry: Transition) -> list[Outgoing]:
    """Records of a transition: events, in recorded order, then dead letters. All is built from what the progress holds,
    so a repeat has the same bytes."""
    contracts = service.contracts
    said = build_messages(p, entry)
    if (tracing := service.ports.outage_watch.tracing) is not None:
        said = [replace(m, trace=tracing.handed_on(m)) for m in said]
    records = [envelope.to_record(m, contracts[m.type]) for m in said]
    if not entry.letters:  # nearly always
        return records
    return records + [
        dead_letters.letter(
            service.name,
            letter,
            entry.time,
            f"transition {entry.n} of {service.name} in saga {p.saga}",
            contracts.get(letter.message.type),
        )
        for letter in entry.letters
    ]
