"""React to a failed attempt: retry in memory, park the run until its next attempt, or make a dead letter.

`saga.progress.failed_attempts` decides. Here the decision is carried out and reported. If something has to be recorded,
it is returned as a `Write`, because only the message processor commits.
"""

from collections.abc import Callable, Iterator
from functools import partial
from math import ceil
from typing import NamedTuple

from msgspec.structs import replace

from saga.engine.errors import NotDeterministic, format_stack
from saga.engine.execution.runs import AttemptFailed, RunRequest
from saga.engine.persistence import dead_letters, outbox
from saga.engine.persistence.dead_letters import DEADLY, describe_deaths
from saga.engine.persistence.outbox import OFFERING, REFUSED, offer_dead_letter
from saga.engine.persistence.progress_repository import ProgressRepository
from saga.engine.processing_state import NOWHERE, ProcessingState
from saga.errors import (
    BadInput,
    BreakerOpen,
    KeyMissing,
    NewerHandler,
    Permanent,
    SagaError,
    SchemaUnasked,
    TooLarge,
    UnknownSchema,
    UpcasterFailed,
)
from saga.messages import Message, Outgoing
from saga.messaging.operator_commands import OperatorCommand
from saga.policies import concurrency
from saga.policies.retry import count_attempts
from saga.progress import failed_attempts, ids, journal
from saga.progress.actions import AlreadyPending, AlreadyProcessed, Compensate, HandlerAction, HeldBack, Ignore
from saga.progress.admission import Divert, Wait
from saga.progress.decisions import decide, find_pending_compensation, is_compensated
from saga.progress.document import DeadLetterRecord, FailedAttempt, Intent, SagaProgress
from saga.progress.failed_attempts import HISTORY_MAX, FailureVerdict, RunFailure, count_failures_before
from saga.progress.handlers import COMMAND
from saga.progress.journal import Commit, WriteContext
from saga.support.clock import iso
from saga.telemetry.events import Escalated, Failed, Parked, PutOff, Retrying

PAUSE_S_MAX = 30.0
"""Longest pause in memory, in seconds, if an operator waits for the result or has to be alerted. It overrides the retry
rules."""
NOT_DETERMINISTIC = (
    "let the handler make the same steps, in the same order, with the same arguments in every rerun, as the version"
    " that began it does, and replay it; or find out what the external system did, and enter it: saga dead resolve"
)
NEWER_HANDLER = (
    "deploy the release that began it, then retry it: saga dead replay; or find out what the external system"
    " did, and enter it, so that this release can continue: saga dead resolve"
)
OVERSIZED_REMEDY = (
    "let the service keep less of a saga (its state, results of steps, events that can be undone), or split the saga; "
    "this one stays quarantined"
)
ESCALATION_REMEDY = (
    "repair the system that it calls, or fix its code: it is retried without limit, and continues once it succeeds"
)
REASON_MAX = 200
"""Maximum number of characters that are recorded of the reason of each failed attempt."""
WAYS_OUT = (
    "deploy the schema here, or the release that reads it; should there never be one, send the message to the dead "
    "letters: saga control route"
)


class Write(NamedTuple):
    """A write that is necessary after a run."""

    state: ProcessingState
    """State before the write, with the answers that a rerun can reuse."""
    record: Callable[[SagaProgress, WriteContext], Commit]
    held_back: HeldBack | None = None
    """The run, if it must not be retried while this message is processed."""


class FailureHandler:
    """Carries out decisions about failed, postponed and diverted runs. It keeps no state between calls."""

    def __init__(self, repository: ProgressRepository) -> None:
        self.service, self.repository = repository.service, repository

    async def react(self, request: RunRequest, failed: AttemptFailed) -> ProcessingState | Write:
        """React to a failed attempt: retry now or later with the answers so far, or give up after the last attempt."""
        service, ports, why = self.service, self.service.ports, failed.error
        earlier = failed.state.attempts_of(request.run)
        state = failed.state.carry(request.run, failed.reusable_answers, earlier)
        if isinstance(why, SchemaUnasked):
            await service.schemas.ask(why.id, ports.ask_registry)
            return state
        if isinstance(why, UnknownSchema) and await service.schemas.know(
            why, ports.reload_contracts, ports.outage_watch
        ):
            return state
        if (
            isinstance(why, TimeoutError) and ports.outage_watch.outages > failed.outages
        ):  # the timeout passed during an outage
            return state.drop_progress()
        verdict = self._judge(request, failed, earlier)
        is_postponed, looks = failed.postponed_s is not None, verdict.is_recheck and state.unsent_escalation is None
        writes_first = verdict.parks and not verdict.gives_up and not request.action.undoes
        if not state.is_current and (is_postponed or looks or not writes_first):
            # With an outdated progress anything may fail, so only a failure with the current one counts.
            # A write would notice that the progress is outdated.
            known = await self.repository.load(state)
            if known.is_complete or known.cas != state.cas:
                return known
            state = known
        if failed.postponed_s is not None:
            wait = Wait(failed.reason, failed.postponed_s, failed.where, isinstance(why, BreakerOpen))
            return await self.postpone(state, request, wait, _intent_with_answers(state, request, failed))
        if looks:  # the run continues to wait, and its timer is forwarded
            return _hold_back(state, request, ports.clock.now_ms() + ceil(verdict.wait_s * 1000))
        self._report_failed(request, failed)
        if verdict.gives_up:
            return self._give_up(state, request, failed, verdict)
        self._report_next_attempt(state, request, failed, verdict)
        if request.action.undoes:  # a compensation is retried without limit, and that is reported
            state = await self._escalate(state, request, failed, verdict)
        elif isinstance(why, UnknownSchema) and verdict.attempt % verdict.attempts_max == 0:
            self._report_long_wait(request, failed, verdict)
        if verdict.parks and state.unsent_escalation is None:  # parking would lose the unsent escalation
            bad = None  # the fault may be in another message of the fan-in
            if isinstance(why, UnknownSchema) and not request.action.undoes:
                bad = service.why_undecodable(request.action.role, request.action.message)
            failure = replace(_run_failure(failed, verdict), undecodable=bad)
            return self._park(state, request, failure, _intent_with_answers(state, request, failed), verdict.wait_s)
        if state.position == NOWHERE and verdict.attempt >= verdict.attempts_max:  # a repair continues with other sagas
            raise SagaError(
                f"{request.handler.name} failed {verdict.attempt} times, the last with {failed.reason}; "
                "repair the system that it calls, or fix its code, then run the repair again"
            )
        is_awaited = state.unsent_escalation is not None or isinstance(request.action.message, OperatorCommand)
        await ports.assignment.pause(min(verdict.wait_s, PAUSE_S_MAX) if is_awaited else verdict.wait_s, state.position)
        return state.carry(request.run, failed.reusable_answers, verdict.history)

    def _judge(self, request: RunRequest, failed: AttemptFailed, earlier: tuple[FailedAttempt, ...]) -> FailureVerdict:
        ports = self.service.ports
        now_ms = ports.clock.now_ms()
        attempt = FailedAttempt(
            time=iso(now_ms),
            ms=round(failed.duration_s * 1000),
            reason=failed.reason[:REASON_MAX],
            worker=ports.worker,
            rule=failed.rule.name,
            blame=failed.blame,
        )
        return failed_attempts.judge_failure(
            failed.state.loaded_progress,
            request.action,
            failed.failure,
            (*earlier, attempt),
            (now_ms, ports.clock.chance()),
            schemas_may_come=ports.waits_for_schemas,
        )

    # ---------------------------------------------------------------- giving up

    def _give_up(
        self, state: ProcessingState, request: RunRequest, failed: AttemptFailed, verdict: FailureVerdict
    ) -> Write:
        """Make a dead letter of the message after its last attempt."""
        failure = replace(
            _run_failure(failed, verdict),
            remedy=_remedy(failed.error, verdict.attempts_max),
            under={},
            stack=format_stack(failed.error, failed.secrets),
            blame=failed.blame_of_error,
            disputed=failed.disputed_calls,
        )
        # A progress that is too large has no room for the answers.
        is_too_large = isinstance(failed.error, TooLarge)
        intent = None if is_too_large else _intent_with_answers(state, request, failed)
        return Write(state, partial(failed_attempts.give_up, action=request.action, failure=failure, intent=intent))

    def give_up_poisonous(self, state: ProcessingState, request: RunRequest) -> Write:
        """Make a dead letter of a message on which processes die, without running its handler again."""
        p = state.loaded_progress
        before, _ = count_failures_before(p, request.action)
        failure = RunFailure(reason=describe_deaths(state.deaths), remedy=DEADLY, attempts=before, blame="code")
        intent = request.find_intent(p)
        return Write(
            replace(state, deaths=0),
            partial(failed_attempts.give_up, action=request.action, failure=failure, intent=intent),
        )

    def divert(self, state: ProcessingState, request: RunRequest, divert: Divert) -> Write:
        """Make a dead letter of a message that an operator's route diverts."""
        before, _ = count_failures_before(state.loaded_progress, request.action)
        failure = RunFailure(
            reason=divert.reason,
            remedy=f"end the route, then replay it: saga control route {self.service.name} ... --off; saga dead replay",
            attempts=before + len(state.attempts_of(request.run)),
            blame="person",
        )
        return Write(state, partial(failed_attempts.give_up, action=request.action, failure=failure, intent=None))

    # ---------------------------------------------------------------- postponing and parking

    async def postpone(
        self, state: ProcessingState, request: RunRequest, wait: Wait, intent: Intent | None
    ) -> ProcessingState | Write:
        """Postpone a run because of a pause, a limit or a breaker. This does not count as an attempt.

        The run waits in memory if the wait is short. For a longer one, the run is parked for up to a minute, with its
        number of attempts unchanged. If the journal already records this wait, the timer is forwarded without a write.
        `intent`: the run's intent with the last answers, if the run has begun.
        """
        ports, p, action = self.service.ports, state.loaded_progress, request.action
        history, begun = state.attempts_of(request.run), request.find_intent(p)
        before, named = count_failures_before(p, action)
        since_ms = failed_attempts.find_postponed_since_ms(p, action, before + len(history), wait.reason)
        left_s = wait.left_s
        if wait.grows and since_ms is not None:
            left_s = max(left_s, (ports.clock.now_ms() - since_ms) / 1000)
        left_s = concurrency.postponed_s(left_s, concurrency.spread_of(p.saga, p.n))
        passed_s = ports.clock.monotonic_s() - state.measurements.begun_s
        # A command is never parked, because it is not a message of the saga.
        in_memory = (
            concurrency.waits_in_memory(left_s, passed_s)
            or state.unsent_escalation is not None
            or isinstance(action.message, OperatorCommand)
        )
        ports.outage_watch.report(
            PutOff(
                service=self.service.name,
                saga=state.message.saga,
                handler=request.handler.name,
                message=action.message.id,
                delay_s=left_s,
                is_parked=not in_memory,
                error=wait.reason,
            )
        )
        if in_memory:
            await ports.assignment.pause(min(left_s, PAUSE_S_MAX), state.position)
            return state.drop_progress()
        is_new = since_ms is None or intent != begun
        if not is_new and failed_attempts.has_timer(p, action, has_begun=begun is not None):
            return _hold_back(state, request, ports.clock.now_ms() + ceil(left_s * 1000))
        failure = RunFailure(
            reason=wait.reason,
            where=wait.where,
            remedy="",
            attempts=before + len(history),
            under=count_attempts(named, [failed.rule for failed in history]),
            history=history[-HISTORY_MAX:],
            put_off=True,
            undecodable=None if action.undoes else self.service.why_undecodable(action.role, action.message),
        )
        return self._park(state, request, failure, intent, left_s)

    def _park(
        self, state: ProcessingState, request: RunRequest, failure: RunFailure, intent: Intent | None, wait_s: float
    ) -> Write:
        """Park a run until its next attempt.

        The run is held back while this message is processed. Otherwise, if a write takes longer than the delay, the run
        would be due again after each write, and processing would never end.
        """
        due_ms = self.service.ports.clock.now_ms() + ceil(wait_s * 1000)
        record = partial(failed_attempts.park, action=request.action, failure=failure, intent=intent, due_ms=due_ms)
        return Write(state, record, _held_back(request, due_ms))

    # ---------------------------------------------------------------- reports

    def _report_failed(self, request: RunRequest, failed: AttemptFailed) -> None:
        self.service.ports.outage_watch.report(
            Failed(
                service=self.service.name,
                saga=failed.state.message.saga,
                handler=request.handler.name,
                kind=type(failed.error).__name__,
                blame=failed.blame_of_error,
            )
        )

    def _report_next_attempt(
        self, state: ProcessingState, request: RunRequest, failed: AttemptFailed, verdict: FailureVerdict
    ) -> None:
        kind = Parked if verdict.parks else Retrying
        self.service.ports.outage_watch.report(
            kind(
                service=self.service.name,
                saga=state.message.saga,
                handler=request.handler.name,
                message=request.action.message.id,
                attempt=verdict.attempt,
                attempts_max=verdict.attempts_max,
                delay_s=verdict.wait_s,
                error=failed.reason,
                where=failed.where,
            )
        )

    def _report_long_wait(self, request: RunRequest, failed: AttemptFailed, verdict: FailureVerdict) -> None:
        """Report a run that has waited for its schema for a long time."""
        self.service.ports.outage_watch.report(
            Escalated(
                service=self.service.name,
                saga=failed.state.message.saga,
                handler=request.handler.name,
                reason=f"{verdict.attempts} attempts failed, the last with {failed.reason}; {WAYS_OUT}",
                steps=(),
            )
        )

    async def _escalate(
        self, state: ProcessingState, request: RunRequest, failed: AttemptFailed, verdict: FailureVerdict
    ) -> ProcessingState:
        """Escalate a compensation that keeps failing, once after each round of attempts."""
        due = None
        if verdict.attempt % verdict.attempts_max == 0:
            due = self._escalation(state, request, failed, verdict)
        return await self._publish_escalation(state, due)

    def _escalation(
        self, state: ProcessingState, request: RunRequest, failed: AttemptFailed, verdict: FailureVerdict
    ) -> Outgoing | None:
        """Report an escalation, and return its record for the dead-letter topic; `None` if no record is due.

        A record is due after 1, 2, 4, 8 ... rounds of attempts, because a failure that lasts for days brings little new
        information.
        """
        ports, p, action = self.service.ports, state.loaded_progress, request.action
        undone = action.result.event if isinstance(action, Compensate) else action.message
        handler, attempt = request.handler.name, verdict.attempts
        letter = DeadLetterRecord(
            id=ids.dead_letter_id(p.service, p.saga, f"{handler}|failing|{attempt}", undone.id, p.replays),
            kind="escalation",
            handler=handler,
            reason=f"{attempt} attempts failed, the last with {failed.reason}",
            remedy=ESCALATION_REMEDY,
            message=action.message,
            attempts=attempt,
        )
        rounds = verdict.attempt // verdict.attempts_max
        is_due = not rounds & (rounds - 1)
        ports.outage_watch.report(
            Escalated(
                service=self.service.name,
                saga=p.saga,
                handler=handler,
                reason=letter.reason,
                steps=(),
                id=letter.id if is_due else None,
            )
        )
        if not is_due:
            return None
        return dead_letters.escalation_to_outgoing(
            self.service.name,
            replace(
                letter, calls=tuple(f"{call.description} ran{call.attribution}" for call in failed.reusable_answers)
            ),
            iso(ports.clock.now_ms()),
            undone.id,
            f"event {undone.id} of {self.service.name} in saga {p.saga}",
            self.service.contracts.get(action.message.type),
        )

    async def _publish_escalation(self, state: ProcessingState, due: Outgoing | None) -> ProcessingState:
        """Try to publish the escalation that is due, or the last one that the log has refused.

        If the log refuses it, that is reported, and publishing is tried again after the next attempt. Attempts do not
        wait for it.
        """
        ports, letter = self.service.ports, due or state.unsent_escalation
        if letter is None:
            return state
        refusal = await offer_dead_letter(self.service, letter, lambda form: ports.publisher.publish([form]))
        if refusal is not None:
            ports.outage_watch.unavailable(OFFERING, refusal)
            return replace(state, unsent_escalation=letter)
        if state.unsent_escalation is not None:
            ports.outage_watch.recovered(REFUSED)
        return replace(state, unsent_escalation=None)

    # ---------------------------------------------------------------- a progress that is too large

    async def give_up_oversized(
        self, state: ProcessingState, action: HandlerAction, why: TooLarge
    ) -> ProcessingState | Write:
        """Make a dead letter of a message, because the store refuses its progress as too large.

        The dead letter contains the whole message, and is durable before anything else is done.
        """
        id_ = await self._publish_oversized(state, action.message, action.name, why)
        if not state.loaded_progress.is_quarantined:
            record = partial(
                failed_attempts.give_up_without_content, action=action, letter=id_, reason=dead_letters.TOO_LARGE
            )
            return Write(state, record)
        return await self.give_up_unwritten(state, action, why)

    async def give_up_unwritten(self, state: ProcessingState, action: HandlerAction, why: TooLarge) -> ProcessingState:
        """Finish a message whose progress can record nothing more: make dead letters for its other handlers, too."""
        for name in self._other_handlers(state, action):
            await self._publish_oversized(state, state.message, name, why)
        return replace(state, is_complete=True)

    async def reject_oversized_command(
        self, state: ProcessingState, command: OperatorCommand, why: TooLarge
    ) -> ProcessingState:
        """Report that an operator's command is not carried out, because it cannot be recorded."""
        await self._publish_oversized(state, command, COMMAND, why)
        return replace(state, is_complete=True)

    async def _publish_oversized(self, state: ProcessingState, message: Message, name: str, why: TooLarge) -> str:
        """Publish the whole message as a handler's dead letter, and return the id of the dead letter."""
        service, saga = self.service, message.saga
        dead = DeadLetterRecord(
            id=ids.dead_letter_id(service.name, saga, name, message.id, state.loaded_progress.replays),
            kind="dead letter",
            handler=name,
            reason=f"{dead_letters.TOO_LARGE}: {why}",
            remedy=OVERSIZED_REMEDY,
            message=message,
            blame="code",
        )
        is_processed = message.id == state.message.id
        whole = state.position.place if is_processed else f"the progress of saga {saga} in {service.name}"
        letter = dead_letters.to_outgoing(service.name, dead, message.time, whole, service.contracts.get(message.type))
        await outbox.send_dead_letter(service, state.position, letter)
        if service.ports.outage_watch.is_news(f"too large {saga} {name}"):
            outbox.report_dead_letter(service, saga, dead)
        return dead.id

    def _other_handlers(self, state: ProcessingState, action: HandlerAction) -> Iterator[str]:
        """Yield the other handlers and compensations that still have to process the message and have not stored it."""
        service, p, message = self.service, state.loaded_progress, state.message
        roles = service.roles
        for role in roles.by_type.get(message.type, ()):
            if role.name != action.name and role.name not in (state.paged or ()):
                decision = decide(
                    p, role, message, now=service.decision_time(), undecodable=state.undecodable.get(role.name)
                )
                if not isinstance(decision, AlreadyProcessed | AlreadyPending | Ignore):
                    yield role.name
        for role in roles.undone_by.get(message.type, ()):
            name = role.undo.name if role.undo else role.name
            if (
                name != action.name
                and not is_compensated(p, role, message)
                and find_pending_compensation(p, role.name, message) is None
            ):
                yield name


def _held_back(request: RunRequest, due_ms: int) -> HeldBack:
    action = request.action
    return HeldBack(action.role.name, action.undoes, due_ms, action.message.id)


def _hold_back(state: ProcessingState, request: RunRequest, due_ms: int) -> ProcessingState:
    """Return the state in which this run, but no other run of its handler, is not retried before `due_ms`."""
    return replace(state, held_back=(*state.held_back, _held_back(request, due_ms)))


def _intent_with_answers(state: ProcessingState, request: RunRequest, failed: AttemptFailed) -> Intent | None:
    """Return the run's open intent with the last answers added; `None` if the run has not begun."""
    intent = request.find_intent(state.loaded_progress)
    if intent is None:
        return None
    undo_with = failed.abort_actions if intent.kind == "do" else intent.undo_with
    return replace(intent, calls=failed.answers, undo_with=undo_with)


def _run_failure(failed: AttemptFailed, verdict: FailureVerdict) -> RunFailure:
    return RunFailure(
        reason=failed.reason,
        where=failed.where,
        remedy="",
        attempts=verdict.attempts,
        under=verdict.under,
        history=verdict.history[-HISTORY_MAX:],
    )


def _remedy(why: Exception, attempts_max: int) -> str:
    """Return what an operator can do about a run that was given up."""
    if isinstance(why, NotDeterministic):
        return f"{why.way}{NOT_DETERMINISTIC}"
    if isinstance(why, NewerHandler):
        return NEWER_HANDLER
    if isinstance(why, UpcasterFailed):
        return "fix the upcaster and deploy it, then retry it: saga dead replay"
    if isinstance(why, KeyMissing):
        return "restore the key, then retry it: saga dead replay; or discard it: its sender has forged it"
    if isinstance(why, BadInput):
        return "fix its sender; this dead letter has the original, or says where it is"
    if isinstance(why, TooLarge):
        return OVERSIZED_REMEDY
    if isinstance(why, Permanent):
        return "fix the handler"
    return f"look why {attempts_max} attempts failed; " + journal.REPLAY
