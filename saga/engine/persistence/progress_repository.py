"""Load and commit the progress of sagas, and publish their events."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Concatenate, ParamSpec

from msgspec.structs import replace

from saga.engine.errors import Superseded
from saga.engine.persistence import dead_letters, outbox
from saga.engine.persistence.outbox import retry_while_unavailable
from saga.engine.persistence.overflow_store import OverflowStore
from saga.engine.ports import Heartbeat
from saga.engine.processing_state import NOWHERE, ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import Ambiguous, Conflict, Exists, SagaError, StoreError
from saga.messages import Position, texts_of
from saga.messaging import timers
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.progress import history, integrity, journal, operator_commands, takeover
from saga.progress.decisions import is_message_known
from saga.progress.document import (
    RELEASED,
    UNREADABLE,
    Intent,
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
from saga.telemetry.events import DeadLettered, ReplayEnded

P = ParamSpec("P")

OURS = ("", timers.TYPE)
"""Types of messages that are never in a progress: the empty type of a repair, and timers."""


def _decode_archive(key: str, document: Document) -> TransitionArchive:
    try:
        return history.decode_archive(document.content)
    except UNREADABLE as why:
        raise StoreError(f"the archive {key!r} cannot be read: {why}; restore it") from why


class ProgressRepository:
    """Loads and commits the progress of one service's sagas, and publishes their events. It keeps no state between
    calls."""

    def __init__(self, service: ServiceRuntime) -> None:
        self.service, self.overflow = service, OverflowStore(service)

    async def load(self, state: ProcessingState) -> ProcessingState:
        """Read the progress from the store.

        Events that are not known to be published are published first. This is not necessary if the messages that caused
        them will be redelivered, because they are published then, or before this message's first write.

        If the saga is forgotten, the message becomes a dead letter and is complete. Raises `Draining` if the worker has
        lost the partition, because it must not decide then.
        """
        service, message = self.service, state.message
        ports = service.ports
        ports.assignment.check_running(state.position)
        saga, remembered = message.saga, 0 if state.progress is None else state.cas
        key, spans = progress_key(service.name, saga), state.measurements.spans
        read = retry_while_unavailable(service, state.position, "get", ports.store.get, PROGRESS, key)
        document = await (read if spans is None else spans.around("store", "read progress", read))
        unpublished: tuple[Transition, ...] = ()
        if document is None:
            p, cas = journal.new_progress(service.name, saga, service.version), 0
        else:
            p, cas = decode_progress(document.content), document.cas
            # All events of a progress that this worker has cached were acknowledged.
            unpublished = state.unpublished
            if cas != remembered:
                unpublished = tuple(history.find_unpublished(p, ports.assignment.is_committed, message.id))
            self._check_declared(p, unpublished)
            if not all(self._will_be_redelivered(state, entry) for entry in unpublished):
                await self._publish_all(state, p, unpublished)
                unpublished = ()
            if ports.transition_listener is not None:
                ports.transition_listener.on_loaded(p)
        # What the service did for a forgotten saga is unknown, so its messages are not handled.
        if service.is_of_forgotten_saga(p, message):
            if (heartbeat := ports.heartbeat) is not None and not heartbeat.is_recent():
                await self._note_work(heartbeat, state.position)
            if service.is_of_forgotten_saga(p, message):
                await self._give_up_old(state)
                return replace(state, is_complete=True)
        if takeover.is_takeover_due(p, service.roles):
            p = await self._take_over(replace(state, cas=cas), p)
        # Entries found in segments of the previous progress are no longer valid.
        return replace(state, progress=p, cas=cas, is_current=True, unpublished=unpublished, recalled=None, paged=None)

    def _will_be_redelivered(self, state: ProcessingState, entry: Transition) -> bool:
        """Return whether the events of this unpublished transition need not be published now, because the message that
        caused it will be redelivered, and they are published then.

        The offset of that message is known not to be committed. It will be redelivered unless it is the message being
        processed, its log was replaced, or no handler of this version consumes it.
        """
        if state.position == NOWHERE or entry.position is None or entry.position == state.position[:3]:
            return False
        position = Position(*entry.position, entry.log_id)
        return entry.type in self.service.consumed and self.service.ports.assignment.is_of_current_log(position)

    async def _publish_all(self, state: ProcessingState, p: SagaProgress, entries: Sequence[Transition]) -> None:
        for entry in entries:
            await self.publish(state, p, entry)

    async def _take_over(self, state: ProcessingState, p: SagaProgress) -> SagaProgress:
        """Return the progress with the additional self-consumed events that this version of the service consumes, and
        earlier versions did not."""
        entries = [*await self._load_archives(state.position, p), *map(decode_transition, p.transitions)]
        if p.segments:
            p = await self.overflow.restore_results(state, p)
            emitted = [event for entry in entries for event in build_messages(p, entry)]
            had = await self.overflow.find_in_segments(state, p, emitted)
            p = replace(p, inbox={**dict.fromkeys(had, 0), **p.inbox})
        return takeover.take_over(p, self.service.roles, entries, self.service.decision_time())

    async def _load_archives(self, position: Position, p: SagaProgress) -> list[Transition]:
        """Return the archived transitions, oldest first. Raises `SagaError` if an archive is gone."""
        entries: list[Transition] = []
        while len(entries) < p.first:
            key = history.archive_key(self.service.name, p.saga, len(entries))
            document = await retry_while_unavailable(
                self.service, position, "get", self.service.ports.store.get, ARCHIVES, key
            )
            if document is None:
                raise StoreError(f"the archive {key!r} is missing: it was removed by hand; restore it")
            entries += map(decode_transition, _decode_archive(key, document).transitions)
        return entries

    def _check_declared(self, p: SagaProgress, unpublished: Sequence[Transition]) -> None:
        """Check that this version of the service declares everything that the progress needs.

        Raises `SagaError` otherwise. The saga then waits, and this is reported, until a version that declares
        everything processes the message.
        """
        if p.version > self.service.version:
            raise SagaError(
                f"the state of saga {p.saga!r} has version {p.version}, and this version of {self.service.name!r} "
                f"knows {self.service.version}: a newer release has migrated it; deploy that one"
            )
        missing = list(find_undeclared(p, self.service.roles))
        emitted = {event.type for entry in unpublished for event in entry.events}
        missing += sorted(f"event {type_}" for type_ in emitted - self.service.contracts.keys())
        if missing:
            raise SagaError(
                f"the progress of saga {p.saga!r} needs what this version of {self.service.name!r} does not declare: "
                f"{', '.join(missing)}; deploy a version that does, and look whether another service has the same name"
            )

    async def _give_up_old(self, state: ProcessingState) -> None:
        """Make a dead letter of a message whose saga is older than the retention. No progress is written."""
        message = state.message
        letter = dead_letters.from_forgotten(
            self.service.name, message, state.position, self.service.contracts[message.type]
        )
        await outbox.send_dead_letter(self.service, state.position, letter)
        headers = texts_of(letter.headers)
        if self.service.ports.outage_watch.is_news(headers["dead_id"]):
            self.service.ports.outage_watch.report(
                DeadLettered(
                    service=self.service.name,
                    saga=message.saga,
                    message=message.id,
                    type=message.type,
                    reason=headers["dead_reason"],
                    remedy=headers["dead_remedy"],
                    blame="data",
                    owner=self.service.contracts[message.type].owner,
                )
            )

    def _note_work(self, heartbeat: Heartbeat, position: Position) -> Awaitable[None]:
        """Record in the store that the service is running, so that its absences are known later."""
        return retry_while_unavailable(self.service, position, "write", heartbeat.record)

    async def commit(
        self,
        state: ProcessingState,
        record_it: Callable[Concatenate[SagaProgress, WriteContext, P], Commit],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> ProcessingState:
        """Write the progress that `record_it` returns with one compare-and-swap, then publish its events.

        `record_it` is called with the progress, the context of this write, and the arguments. Raises `TooLarge`, and
        `Superseded` if the progress has to be reloaded and the next action decided again.
        """
        p, ports, stages = state.loaded_progress, self.service.ports, state.measurements
        written = record_it(p, self._write_context(state, p), *args, **kwargs)
        clock, entry = ports.clock, written.entry
        began = clock.monotonic_s()
        state = await self.write_progress(state, written)
        saved = clock.monotonic_s()
        stages.persisted_s += saved - began
        if entry is not None:
            if ports.transition_listener is not None and state.progress is not None:
                ports.transition_listener.on_written(state.progress, entry, stages)
            if entry.events or entry.letters or entry.timer is not None:
                await self.publish(state, written.snapshot, entry)
                stages.published_s += clock.monotonic_s() - saved
            stages.outcomes.append((entry.handler, entry.outcome, entry.reason))
            if written.snapshot.replays:
                self._report_replay(written.snapshot, entry)
            if entry.outcome not in ("ignored", "waiting", "queued"):
                stages.attempts = max(stages.attempts, entry.attempt)
        return state

    def _report_replay(self, p: SagaProgress, entry: Transition) -> None:
        """Report the result of an operator's replay, if this transition ends it."""
        result = operator_commands.find_replay_result(p, entry)
        if result is not None:
            ended = ReplayEnded(
                service=self.service.name, saga=p.saga, handler=entry.handler, message=entry.message, result=result
            )
            self.service.ports.outage_watch.report(ended)

    async def write_progress(self, state: ProcessingState, written: Commit) -> ProcessingState:
        """Write the progress without publishing its events. An ambiguous write counts as refused and is never repeated,
        because it may still take effect.

        Raises `Superseded`, and `TooLarge` for a progress that can never be written.
        """
        service, at, p = self.service, state.position, written.snapshot
        ports = service.ports
        if (heartbeat := ports.heartbeat) is not None and not heartbeat.is_recent():
            await self._note_work(heartbeat, at)
        if state.unpublished:
            await self._publish_all(state, state.loaded_progress, state.unpublished)
        if state.recalled:  # these entries are in segments already
            p = replace(p, inbox={entry: at for entry, at in p.inbox.items() if entry not in state.recalled})
        if (
            p.results
            or p.suspended_runs
            or p.format == RELEASED
            or (p.intents and integrity.may_affect_format(p.intents))
        ):
            p = integrity.update_format(p)
        content, bounds = encode(p), service.bounds
        emptied: list[tuple[str, int]] = []
        large = len(content) > history.HISTORY_BYTES_MAX
        count = len(p.queue + p.waiting + p.results + p.self_consumed)
        if large or p.segments or len(p.inbox) > bounds.inbox_max or count > bounds.head_max:
            before = p
            p, emptied = await self.overflow.move_overflow(state, p)
            p = integrity.update_format(p)
            content = content if p is before else encode(p)
            large = len(content) > history.HISTORY_BYTES_MAX
        if large or len(p.transitions) > history.TRANSITIONS_MAX:
            if (archive := history.build_archive(p)) is not None:
                p = await self.write_archive(at, p, archive)
                content = encode(p)
            check_room(written, p, len(content), ports.store.document_bytes_max)
        store, where = ports.store, progress_key(service.name, p.saga)
        expiry_s = None if p.is_open else service.retention_s
        try:
            if state.cas:
                work = retry_while_unavailable(
                    service, at, "write", store.replace, PROGRESS, where, content, cas=state.cas, expiry_s=expiry_s
                )
            else:
                work = retry_while_unavailable(
                    service, at, "write", store.insert, PROGRESS, where, content, expiry_s=expiry_s
                )
            cas = await (
                work if (spans := state.measurements.spans) is None else spans.around("store", "write progress", work)
            )
        except (Conflict, Exists, Ambiguous) as why:
            outbox.report_refused_write(service, p.saga, "write", why)
            raise Superseded from why
        if emptied:
            await self.overflow.remove_segments(emptied)
        return replace(state, progress=p, cas=cas, is_current=True, unpublished=())

    async def write_intent(self, state: ProcessingState, intent: Intent) -> ProcessingState:
        """Write an intent, so that the call that begins now is known after a crash. Raises `Superseded` and
        `TooLarge`."""
        p = state.loaded_progress
        context = self._write_context(state, p, appends=False)
        return await self.write_progress(state, journal.open_intent(p, context, intent))

    async def write_archive(self, position: Position, p: SagaProgress, archive: TransitionArchive) -> SagaProgress:
        """Archive the oldest published transitions in an insert-only document, and return the progress without them."""
        store, key = self.service.ports.store, history.archive_key(self.service.name, p.saga, p.first)
        content = encode(archive)
        try:
            # Without expiry: archives live at least as long as the progress, which every write renews.
            await retry_while_unavailable(self.service, position, "archive", store.insert, ARCHIVES, key, content)
        except Exists:
            there = await retry_while_unavailable(self.service, position, "get", store.get, ARCHIVES, key)
            if there is None:
                raise StoreError(
                    f"the archive {key!r} existed and is missing now: it was removed by hand; restore it"
                ) from None
            earlier = _decode_archive(key, there)
            if history.is_of_another_saga(p, earlier):  # archive of an earlier saga with this id, which is forgotten
                await self._replace_archive(position, p.saga, key, content, there.cas)
            else:
                archive = earlier
        except Ambiguous as why:
            outbox.report_refused_write(self.service, p.saga, "archive", why)
            raise Superseded from why
        return history.remove_archived(p, archive)

    async def _replace_archive(self, position: Position, saga: str, key: str, content: bytes, cas: int) -> None:
        store = self.service.ports.store
        try:
            await retry_while_unavailable(
                self.service, position, "archive", store.replace, ARCHIVES, key, content, cas=cas
            )
        except (Conflict, Ambiguous) as why:
            outbox.report_refused_write(self.service, saga, "archive", why)
            raise Superseded from why

    async def publish(self, state: ProcessingState, p: SagaProgress, entry: Transition) -> None:
        """Publish the events and the timer of a transition, in order, and return when all are acknowledged.

        The events of later transitions are published after these. A timer that is being processed is not published
        again.
        """
        service, position = self.service, state.position
        records, count = outbox.outbox_records(service, p, entry), len(entry.events)
        if entry.timer is not None and entry.timer.id != state.message.id:
            records.insert(count, outbox.timer_record(service, p.saga, entry.timer.id, entry.timer.due_ms))
            count += 1
        began_s = service.ports.clock.monotonic_s()
        try:
            await outbox.send(service, position, records)
        except Exception:  # a dead letter that the log refuses must not block anything else
            if not entry.letters:
                raise
            if count:
                await outbox.send(service, position, records[:count])
            for letter in records[count:]:
                await outbox.send_dead_letter(service, position, letter)
        if state.measurements.spans is not None:
            state.measurements.spans.published(build_messages(p, entry), began_s)
        for dead in entry.letters:
            if service.ports.outage_watch.is_news(dead.id):
                outbox.report_dead_letter(service, p.saga, dead)

    def _write_context(self, state: ProcessingState, p: SagaProgress, *, appends: bool = True) -> WriteContext:
        """Collect everything that the next write depends on: message, time, retention, and the previous progress.

        `appends`: False for a write without a transition. Such a write need not know whether the message is new.
        """
        service, message = self.service, state.message
        roles, listener = service.roles, service.ports.transition_listener
        is_new = (
            appends
            and message.type not in OURS
            and not state.paged
            and state.position != NOWHERE
            and not is_message_known(p, roles, message)
        )
        return WriteContext(
            message=message,
            position=state.position if is_new else None,
            roles=roles,
            # Without a message nothing is redelivered after a crash: a repair records it once everything is published.
            self_consumed_types=roles.self_consumed_types if message.type else p.self_consumed_types,
            now_ms=service.ports.clock.now_ms(),
            retention_s=service.retention_s,
            before=p,
            transitions_published=p.transitions_published if listener is None else listener.published_below(p),
        )
