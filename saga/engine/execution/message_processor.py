"""Process one message: decide the next action, carry it out, repeat.

docs/concepts/protocol.md gives the reason for each line of this table:

| what happens | then |
|---|---|
| a crash before the write | redelivered; recorded answers are reused, other calls repeated with the same key |
| a crash after the write, before publishing | redelivered; publishes its events then, or before the saga's next write |
| a crash after publishing, before the commit | redelivered; found in the inbox; receivers drop repeats by id |
| two workers own the partition | the second write is refused; its worker reloads and decides again, or stops |
| the write's answer is lost | never written again blindly: reload and decide again |
| the publish's answer is lost | publish again; same ids |
"""

from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace

from saga.engine import recorded_values
from saga.engine.errors import Superseded, describe_exception
from saga.engine.execution import control_log
from saga.engine.execution.abort import close_documents, make_abort_request, record_abort
from saga.engine.execution.failure_handling import FailureHandler, Write
from saga.engine.execution.handler_runner import HandlerRunner, RunResult, RunSuperseded
from saga.engine.execution.runs import AttemptFailed, RunRequest
from saga.engine.execution.step_replay import combine_answers
from saga.engine.execution.value_codec import STATE, encrypt_answer
from saga.engine.limits import CallNotAdmitted
from saga.engine.persistence import outbox
from saga.engine.persistence.progress_repository import ProgressRepository
from saga.engine.processing_state import Measurements, ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import Permanent, SchemaUnasked, TooLarge
from saga.messages import Message, Position
from saga.messaging.message_ids import own_identity
from saga.policies.concurrency import STAYS_S
from saga.progress import ids, journal
from saga.progress.actions import (
    NO_HANDLERS,
    Abort,
    Action,
    ApplyCommand,
    AwaitLog,
    Compensate,
    Complete,
    ForwardTimer,
    HandlerAction,
    LoadProgress,
    Now,
    RecallOverflow,
    RecordDecision,
    RescheduleTimer,
    RunHandler,
    TouchDeadline,
)
from saga.progress.admission import Divert, Wait, admit
from saga.progress.compensation import complete_compensation
from saga.progress.document import Intent, PendingMessage, SagaProgress, SuspendedRun
from saga.progress.failed_attempts import HISTORY_MAX, count_failures_before
from saga.progress.journal import Commit, TransitionDetails, WriteContext
from saga.progress.next_action import (
    RELOAD,
    choose_next_action,
    hold_back,
    is_message_complete,
    record_decision,
)
from saga.progress.operator_commands import apply_command
from saga.progress.suspended_runs import compute_cause
from saga.progress.timers import is_deadline_overdue
from saga.support.clock import from_iso, iso
from saga.telemetry.events import DeadlinePassedLog, StartInFuture, TimerKept

UNJUDGED: Mapping[str, str] = {"": "a schema registry has to be asked first"}
"""Value of `Trigger.undecodable` while it is unknown which handlers can decode the message. `advance` then determines
it."""


class MessageProcessor:
    """Carries out one decision at a time, and is the only part that commits. It decides nothing itself and keeps no
    state between calls."""

    def __init__(self, service: ServiceRuntime) -> None:
        self.service = service
        self.repository = ProgressRepository(service)
        self.runner = HandlerRunner(self.repository)
        self.failures = FailureHandler(self.repository)

    def begin(
        self,
        message: Message,
        position: Position,
        cached: tuple[SagaProgress, int] | None,
        measurements: Measurements | None = None,
    ) -> ProcessingState:
        """Return the first state for a message, with the cached progress.

        A message that starts a young saga needs no read. Its progress is assumed to be empty, and the first write
        inserts it.
        """
        service = self.service
        p, cas = cached or (None, 0)
        if p is None:
            if message.type in service.starts:
                now, started = service.decision_time(), message.started
                if started is None or started >= now.forgotten:
                    p = journal.new_progress(service.name, message.saga, service.version)
                    if started is not None and started > now.future:
                        self._report_future(message, started)
        elif (p.started is None or p.replays) and service.is_of_forgotten_saga(p, message):
            p, cas = None, 0
        # Checked only if the message may become pending: one that can never be decoded must not wait for other events.
        bad = NO_HANDLERS
        if message.started is None or message.type in service.roles.joined:
            try:
                bad = service.find_undecodable(message)
            except SchemaUnasked:
                bad = UNJUDGED
        return ProcessingState(
            message=message,
            position=position,
            undecodable=bad,
            progress=p,
            cas=cas,
            measurements=measurements or Measurements(),
        )

    async def process(self, state: ProcessingState) -> ProcessingState:
        """Process one message until it is finished, so that its offset may be committed."""
        while not state.is_complete:
            state = await self.advance(state)
        return state

    async def advance(self, state: ProcessingState) -> ProcessingState:
        """Carry out one decision, which reads or writes the progress at most once.

        A refused write is not an error: the next decision is made on the reloaded progress.
        """
        service, repository = self.service, self.repository
        action: Action = RELOAD
        try:
            if state.undecodable:  # a schema may have been deployed meanwhile
                state = replace(state, undecodable=service.find_undecodable(state.message))
            if state.progress is not None:  # without the progress nothing can be decided
                now = service.decision_time()
                if state.progress.deadlines:
                    now = await self._add_log_progress(state, now)
                p = self.prepare_progress(state, now.ms)
                action = choose_next_action(p, service.roles, state, now, state.is_current)
            match action:
                case RunHandler() | Compensate():
                    state = await self._run(state, self._request(action))
                case Complete():
                    return replace(state, is_complete=True)
                case LoadProgress():
                    return await repository.load(state)
                case RecallOverflow():
                    return await repository.overflow.recall(state)
                case RecordDecision() | TouchDeadline() | RescheduleTimer():
                    state = await repository.commit(state, record_decision, action)
                case ForwardTimer() | AwaitLog():
                    return await self._end_with_timer(state, action)
                case Abort():
                    state = await self._abort(state, action)
                case ApplyCommand():
                    service.schemas.doubt()
                    command = await encrypt_answer(service, state, action)
                    state = await repository.commit(state, apply_command, command)
        except Superseded:
            return state.drop_progress()
        except SchemaUnasked as why:
            await service.schemas.ask(why.id, service.ports.ask_registry)
            return state
        except TooLarge as why:
            return await self._give_up_oversized(state, action, why)
        return self._complete_if_finished(state)

    def prepare_progress(self, state: ProcessingState, now_ms: int) -> SagaProgress | None:
        """Return the progress as decisions see it, without the runs that are held back.

        If the first message of the queue could not be decoded when it arrived, it is decoded again, because this
        version may know its schema.
        """
        p, service = state.progress, self.service
        if p is None or not (state.recalled or state.held_back or p.queue):
            return p
        p = hold_back(state.loaded_progress, state.held_back, now_ms) if state.held_back else state.loaded_progress
        if not p.queue or p.queue[0].undecodable is None:
            return p
        head = p.queue[0]
        bad = service.why_undecodable(service.roles.handlers[head.handler], head.message)
        return replace(p, queue=(replace(head, undecodable=bad), *p.queue[1:]))

    def _complete_if_finished(self, state: ProcessingState) -> ProcessingState:
        """Complete the message if the next decision would only confirm that it is finished.

        It is not finished if a deadline has become due meanwhile.
        """
        p = state.progress
        if p is None or not state.is_current or not is_message_complete(p, self.service.roles, state):
            return state
        if p.deadlines and is_deadline_overdue(p, self.service.ports.clock.now_ms()):
            return state
        return replace(state, is_complete=True)

    async def _give_up_oversized(self, state: ProcessingState, action: Action, why: TooLarge) -> ProcessingState:
        """Make a dead letter of a message because the store refuses its progress as too large; reject an operator's
        command.

        Raises `why` again if the refused write was for neither a handler nor a command.
        """
        if isinstance(action, ApplyCommand):
            return await self.failures.reject_oversized_command(state, action.command, why)
        if not isinstance(action, HandlerAction):
            raise why
        reaction = await self.failures.give_up_oversized(state, action, why)
        if not isinstance(reaction, Write):
            return reaction
        try:
            return await self._write(reaction)
        except TooLarge:
            return await self.failures.give_up_unwritten(state, action, why)
        except Superseded:
            return state.drop_progress()

    # ---------------------------------------------------------------- runs

    def _request(self, action: RunHandler | Compensate) -> RunRequest:
        """Make the request to run a handler, to continue an open run, or to run a compensation."""
        name, handlers = action.role.name, self.service.handlers
        if isinstance(action, Compensate):
            return RunRequest(action=action, handler=handlers[action.name], run=("undo", name, action.result.event.id))
        if (intent := action.intent) is not None:
            action, cause = replace(action, message=intent.message), intent.cause
        else:
            cause = compute_cause(action.parts[: len(action.role.takes)], action.goes_on)
        return RunRequest(action=action, handler=handlers[name], run=("do", name, cause))

    async def _run(self, state: ProcessingState, request: RunRequest) -> ProcessingState:
        """Run a handler if operators' controls admit it, and record how it ended."""
        if state.deaths:
            return await self._write_run(request, self.failures.give_up_poisonous(state, request))
        service = self.service
        clock, controls = service.ports.clock, service.controls
        if clock.monotonic_s() >= controls.until_s:
            await control_log.refresh(service, state.position)
        if not controls.stops:
            return await self._attempt(state, request)
        begun = request.find_intent(state.loaded_progress)
        refusal = admit(
            service.name, controls.in_force, request.action, has_begun=begun is not None, now_ms=clock.now_ms()
        )
        if isinstance(refusal, Divert):
            return await self._write_run(request, self.failures.divert(state, request, refusal))
        limiter = service.limiters.get(request.action.name)
        if refusal is None and limiter is not None and limiter.is_needed:
            try:
                permit = await limiter.enter(state.position, clock.monotonic_s() + STAYS_S)
            except CallNotAdmitted as why:
                refusal = Wait(describe_exception(why.why), why.left_s)
            else:
                try:
                    return await self._attempt(state, request)
                finally:
                    limiter.leave(permit, failed=False)
        if refusal is None:
            return await self._attempt(state, request)
        intent = _add_answers(begun, state, request)
        return await self._write_run(request, await self.failures.postpone(state, request, refusal, intent))

    async def _attempt(self, state: ProcessingState, request: RunRequest) -> ProcessingState:
        """Run a handler once, and record its result or react to its failure."""
        outcome = await self.runner.run(state, request)
        if isinstance(outcome, RunResult):
            context = outcome.context
            try:
                after = await self.repository.commit(context.processing, record_run, self.service, request, outcome)
            except TooLarge as why:  # the result of the run, added to the progress
                outcome = self.runner.make_failure(context, why)
            except Superseded:  # decided again; steps that were answered are not repeated
                return self.runner.carry(context).drop_progress()
            else:
                return after.drop_carried(request.run)
        if isinstance(outcome, RunSuperseded):
            return outcome.state
        return await self._react(request, outcome)

    async def _react(self, request: RunRequest, failed: AttemptFailed) -> ProcessingState:
        """React to a failed attempt, and record what follows from it."""
        try:
            return await self._write_run(request, await self.failures.react(request, failed))
        except Superseded:
            earlier = failed.state.attempts_of(request.run)
            return failed.state.carry(request.run, failed.reusable_answers, earlier).drop_progress()

    async def _abort(self, state: ProcessingState, action: Abort) -> ProcessingState:
        """Abort a run that never finishes: close its documents, and make the calls that undo its steps, if it declared
        any.

        A document that cannot be closed is a failed attempt, so it is retried as any compensation is.
        """
        request = make_abort_request(self.service, action)
        begun_s = self.service.ports.clock.monotonic_s()
        try:
            request.remains.extend(await close_documents(self.service, state, action.intent))
        except Permanent as why:
            context = await self.runner.open(state, request, action.intent)
            context.begun_s = begun_s
            return await self._react(request, self.runner.make_failure(context, why))
        if action.intent.undo_with:
            return await self._run(state, request)
        return await self.repository.commit(state, record_abort, action, request.remains, ())

    async def _write_run(self, request: RunRequest, reaction: ProcessingState | Write) -> ProcessingState:
        """Write what follows from the end of a run, if anything. Then drop the answers that were carried over for the
        run."""
        if not isinstance(reaction, Write):
            return reaction
        state = (await self._write(reaction)).drop_carried(request.run)
        held_back = reaction.held_back
        return state if held_back is None else replace(state, held_back=(*state.held_back, held_back))

    async def _write(self, write: Write) -> ProcessingState:
        return await self.repository.commit(write.state, write.record)

    # ---------------------------------------------------------------- timers

    async def forward_timer(self, state: ProcessingState, action: ForwardTimer) -> ProcessingState:
        """Publish the timer again for a later time, and finish the message."""
        service, p, due_ms, unknown_ms = self.service, state.loaded_progress, action.due_ms, action.unknown_ms
        timer = state.message.id if p.timer is None else p.timer.id
        record = outbox.timer_record(service, p.saga, timer, due_ms, unknown_ms=unknown_ms)
        await outbox.send(service, state.position, [record])
        if unknown_ms:
            wait_s = (due_ms - service.ports.clock.now_ms()) / 1000
            report = TimerKept(service=service.name, saga=p.saga, timer=timer, again_s=wait_s)
            service.ports.outage_watch.report(report)
            state.measurements.outcomes.append(("", "kept", "this store knows no such saga"))
        return replace(state, is_complete=True)

    async def _end_with_timer(self, state: ProcessingState, action: ForwardTimer | AwaitLog) -> ProcessingState:
        """Finish the message by forwarding its timer, or by keeping the timer until the log has been handled far
        enough.

        If another worker owns the partitions of the saga, the timer is forwarded to it, because only that worker knows
        how far they have been handled.
        """
        if isinstance(action, ForwardTimer):
            return await self.forward_timer(state, action)
        if not self.service.ports.assignment.is_at_home(state.message.saga, state.position):
            return await self.forward_timer(state, ForwardTimer(action.due_ms))
        return replace(state, is_complete=True, awaited_log=action)

    async def _add_log_progress(self, state: ProcessingState, now: Now) -> Now:
        """Return `now` with the time up to which the log has been handled, if a deadline is due.

        An event that closes the deadline may still be unread in the log, so the deadline runs only after the log has
        been handled up to its due time.
        """
        p = state.loaded_progress
        if not is_deadline_overdue(p, now.ms):
            return now
        due_ms = max(k.due_ms for k in p.deadlines if k.due_ms <= now.ms)
        handled_ms = await self.service.ports.assignment.handled_ms(p.saga, due_ms)
        for k in p.deadlines:
            if now.ms >= k.due_ms > handled_ms:
                self._report_grace(p, k, now.ms)
        return replace(now, handled_ms=handled_ms)

    def _report_grace(self, p: SagaProgress, k: PendingMessage, now_ms: int) -> None:
        """Report a deadline that runs because its grace is over, although the log has not been handled up to its due
        time."""
        service, watch = self.service, self.service.ports.outage_watch
        grace_ms = service.roles.handlers[k.handler].grace_ms
        if grace_ms is None or now_ms < k.due_ms + grace_ms or not watch.is_news(f"{p.saga} {k.handler} {k.due_ms}"):
            return
        why = f"the grace of {k.handler} is over, {grace_ms / 1000:g} s after due time: the log was not handled so far"
        watch.report(DeadlinePassedLog(service=service.name, saga=p.saga, topic=None, partition=None, error=why))

    def _report_future(self, message: Message, started: str) -> None:
        """Report, once, a saga whose start is far ahead of this worker's clock."""
        service, watch = self.service, self.service.ports.outage_watch
        if watch.is_news(f"{message.saga} begins at {started}"):
            watch.report(
                StartInFuture(
                    service=service.name,
                    saga=message.saga,
                    message=message.id,
                    type=message.type,
                    begins=started,
                    ahead_s=(from_iso(started) - service.ports.clock.now_ms()) / 1000,
                )
            )


def _add_answers(begun: Intent | None, state: ProcessingState, request: RunRequest) -> Intent | None:
    """Return an open intent with the answers received since; `None` if the run has not begun."""
    carried = state.results_of(request.run)
    return begun if begun is None else replace(begun, calls=combine_answers(begun.calls, carried))


def record_run(
    p: SagaProgress, context: WriteContext, service: ServiceRuntime, request: RunRequest, result: RunResult
) -> Commit:
    """Record a run that ended or was suspended."""
    saga, delta = result.context, result.changed_state
    state, intent, action, answers = saga.processing, saga.intent, request.action, saga.replay.answers
    if isinstance(action, Abort):
        return record_abort(p, context, action, request.remains, answers)
    if service.migrations:
        encrypt_state = partial(saga.codec.encrypt, what=STATE)
        p, delta = recorded_values.migrate_progress(service, p, delta, saga.codec.older_state, encrypt_state)
    if request.handler.may_wait and not intent.time:  # only the intent records the time that a suspended run saw
        context = replace(context, now_ms=saga.time_ms)
    failed = state.attempts_of(request.run)
    emitted = [
        Message(
            id=own_identity(
                service.name,
                ids.event_id(event.type, service.name, p.saga, request.handler.name, intent.cause, index),
                service.contracts[event.type].owner,
            ),
            type=event.type,
            schema=event.schema,
            saga=p.saga,
            source=service.name,
            time=context.time,
            value=event.value,
            started=p.started or state.message.started,
            trace=action.message.trace,
            principal=journal.determine_principal(p, state.message),
        )
        for index, event in enumerate(result.events)
    ]
    details = TransitionDetails(
        message=action.message,
        cause=intent.cause,
        parts=intent.parts,
        attempt=count_failures_before(p, action)[0] + len(failed) + 1,
        failures=failed[-HISTORY_MAX:],
        delta=delta,
        events=emitted,
        calls=answers,
    )
    if isinstance(action, Compensate):
        return complete_compensation(p, context, action.role, action.result, details)
    if request.handler.may_wait:
        details = replace(details, shown=tuple(m.id for m in details.parts[len(action.role.takes) :]))
    if result.suspended is not None:
        details = replace(details, reason=_describe_suspension(result.suspended))
        return journal.suspend_run(p, context, action.role, details, result.suspended)
    return journal.complete_run(p, context, action.role, details)


def _describe_suspension(c: SuspendedRun) -> str:
    """Describe when a suspended run continues, or which event continues it."""
    return f"it goes on at {iso(c.due_ms)}{', or with ' if c.awaited_types else ''}{' or '.join(c.awaited_types)}"
