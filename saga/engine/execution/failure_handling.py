"""Handle a failed attempt: retry at once, park the run until its next attempt, or make a dead letter of the message."""

from collections.abc import Callable, Iterator, Mapping
from math import ceil
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from saga.declarations.values import Reaction
from saga.engine.errors import NotDeterministic, Superseded, find_origin, format_stack
from saga.engine.execution.beginning import why_undecodable
from saga.engine.execution.saga_context import RunningSaga
from saga.engine.known_schemas import READ_S_MIN
from saga.engine.persistence import dead_letters, progress_repository
from saga.engine.persistence.dead_letters import DEADLY, of_deaths
from saga.engine.persistence.progress_repository import OFFERING, REFUSED, offer_dead_letter
from saga.engine.processing_state import NOWHERE, HeldBack, ProcessingState, RunKey
from saga.engine.recorded_values import list_answerable_calls
from saga.engine.service_runtime import ServiceRuntime
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
from saga.messaging.operator_commands import Command
from saga.policies import turns
from saga.policies.blame import Blame, blame_of
from saga.policies.retry import Retry, attempts_under, counted, delay_s, parks, without_end
from saga.policies.turns import spread_of
from saga.progress import failed_attempts, ids, journal, suspended_runs
from saga.progress import failed_attempts as put_off_runs
from saga.progress.actions import Abort, AlreadyPending, AlreadyProcessed, Compensate, HandlerAction, Ignore, RunHandler
from saga.progress.decisions import decide, find_pending_compensation, is_compensated
from saga.progress.document import (
    DeadLetterRecord,
    FailedAttempt,
    Intent,
    SagaProgress,
    StepRecord,
    Transition,
    decode_transition,
)
from saga.progress.failed_attempts import RunFailure
from saga.progress.handlers import COMMAND
from saga.progress.journal import Commit, WriteContext
from saga.support.clock import from_iso, iso
from saga.telemetry.events import Escalated, Failed, Parked, PutOff, Retrying

HISTORY_MAX = 20
"""Attempts of which a transition tells, at most: the last ones."""
PAUSE_S_MAX = 30.0
"""Longest pause in place where people wait for what comes of it, or are to be told: whatever the rules say."""
NOT_DETERMINISTIC = (
    "let the handler make the same steps, in the same order, with the same arguments in every rerun, as the version"
    " that began it does, and replay it; or look what the outside did, and say it: saga dead resolve"
)
NEWER_HANDLER = (
    "deploy the release that began it, then have it tried again: saga dead replay; or look what the outside did, and"
    " say it, which has this release go on: saga dead resolve"
)
REASON_MAX = 200
"""Characters of what it says of each."""


class RunRequest(Struct, frozen=True, kw_only=True, gc=False):
    """What to run: a handler on its messages, a compensation on the result it undoes, or the abort of a run."""

    action: RunHandler | Compensate | Abort
    handler: Reaction
    run: RunKey
    ends: Callable[[SagaProgress, WriteContext, tuple[StepRecord, ...]], Commit] | None = None
    """Function that records the end of an abort; `None` for handlers and compensations."""

    @property
    def version(self) -> int:
        """Version of the handler under which it runs, if nothing of it has begun yet."""
        c = self.action.goes_on
        return self.handler.version if c is None else c.handler_version


class NotAdmitted(NamedTuple):
    """Why a run may not begin or continue now: a pause, a limit or an open breaker."""

    reason: str
    left_s: float
    """Seconds after which to ask again."""
    where: str | None = None
    """Place in the service's code that asked."""
    grows: bool = False
    """True if nobody knows how long it will be: each pause is as long as it has waited, up to a minute."""


class Verdict(NamedTuple):
    """What follows from a failed attempt."""

    hopeless: bool
    """True if it was the last one: it becomes a dead letter."""
    parks: bool
    wait_s: float
    """Seconds until the next one."""
    attempt: int
    attempts_max: int
    """Number of this one, and of all that there may be, under the rules that hold."""
    attempts: int
    """Number of all that have failed."""
    under: dict[str, int]
    """Number of them under each of the rules that have a name."""
    history: tuple[FailedAttempt, ...]
    """Attempts among them that failed in this turn."""
    is_look: bool = False
    """True if it was no attempt: what it waits for was not there, and all that is known already."""

    def is_written(self, ask: RunRequest) -> bool:
        """True if what follows first is a write, which the store refuses if the progress is not what it has."""
        return self.parks and not self.hopeless and not ask.action.undoes


def reusable_answers(saga: RunningSaga) -> tuple[StepRecord, ...]:
    """Return the step results that a rerun can reuse. Without a persisted intent nothing can be reused."""
    return tuple(saga.calls) if saga.intent.begins is not None else ()


async def handle_failure(
    service: ServiceRuntime, saga: RunningSaga, ask: RunRequest, why: Exception
) -> ProcessingState:
    """Handle a failed attempt: retry now or later with the answers received so far, or give up after the last one."""
    turn, ports = saga.turn, service.ports
    if isinstance(why, SchemaUnasked):
        await service.schemas.ask(why.id, ports.ask_registry)
        return turn.carry(ask.run, reusable_answers(saga), turn.attempts_of(ask.run))
    words, calls = saga.words_of(why), reusable_answers(saga)
    if isinstance(why, UnknownSchema) and await service.schemas.know(why, ports.reload_contracts, ports.outage_watch):
        return turn.carry(ask.run, calls, turn.attempts_of(ask.run))
    if isinstance(why, TimeoutError) and ports.outage_watch.outages > saga.outages:  # it went by while the lane waited
        return turn.drop_progress().carry(ask.run, calls, turn.attempts_of(ask.run))
    is_put_off = saga.put_off_s is not None or saga.lets_pass(why)
    verdict = _judge(service, saga, ask, why, words)
    looks = verdict.is_look and turn.unsent_escalation is None
    if not turn.is_current and (is_put_off or looks or not verdict.is_written(ask)):
        # On an old progress anything may fail: it counts if that one is what the store has. A write asks by itself.
        known = await progress_repository.load(service, turn)
        if known.is_complete or known.cas != turn.cas:
            return known.carry(ask.run, calls, turn.attempts_of(ask.run))
        turn = known
    if is_put_off:
        return await _put_off_call(service, saga, turn, ask, why)
    if looks:  # it waits on, and its wake is sent on
        return _hold_back(turn, ask, ports.clock.now_ms() + ceil(verdict.wait_s * 1000))
    ports.outage_watch.report(_failed_event(saga, why))
    if verdict.hopeless:
        failure = _last_failure(saga, why, words, verdict)
        intent = None if isinstance(why, TooLarge) else _with_calls(turn, ask, saga)  # there is no room for its calls
        turn = await progress_repository.commit(service, turn, failed_attempts.give_up, ask.action, failure, intent)
        return turn.drop_carried(ask.run)
    where = find_origin(why)
    _report_failure(service, turn, ask, verdict, words, where)
    if ask.action.undoes:  # it is tried without end, and people are told
        turn = await _escalate(service, turn, ask, verdict, words, calls)
    elif isinstance(why, UnknownSchema) and verdict.attempt % verdict.attempts_max == 0:
        report_long_wait(service, turn.message.saga, ask.handler.name, verdict.attempts, words)
    if verdict.parks and turn.unsent_escalation is None:  # else what people have to be told would be forgotten
        bad = _undecodable(service, ask) if isinstance(why, UnknownSchema) else None
        failure = replace(_failure(words, where, verdict), bad=bad)
        return await _park(service, turn, ask, failure, _with_calls(turn, ask, saga), verdict.wait_s)
    if turn.position == NOWHERE and verdict.attempt >= verdict.attempts_max:  # of a repair, with other sagas before it
        raise repair_error(ask.handler.name, verdict.attempt, words)
    is_awaited = turn.unsent_escalation is not None or isinstance(ask.action.message, Command)
    await ports.assignment.pause(min(verdict.wait_s, PAUSE_S_MAX) if is_awaited else verdict.wait_s, turn.position)
    return turn.carry(ask.run, calls, verdict.history)


def _judge(service: ServiceRuntime, saga: RunningSaga, ask: RunRequest, why: Exception, words: str) -> Verdict:
    """Decide what follows from a failed attempt: the retry rules, the number of attempts, and the delay."""
    turn = saga.turn
    rule, retry = saga.rule(why)
    is_awaited = isinstance(why, UnknownSchema | NewerHandler)  # what a rollout brings by itself is nobody's to mend
    blame = None if is_awaited else blame_of(type(why), called=why is saga.outside)
    history = (*turn.attempts_of(ask.run), _attempt(service, saga, words, rule, blame))
    before, named = count_failures_before(turn.loaded_progress, ask)
    attempts, named = before + len(history), counted(named, [failed.rule for failed in history])
    waits = isinstance(why, UnknownSchema | KeyMissing | NewerHandler)  # nobody deploys, or restores a key, in place
    attempt, is_unknown = attempts_under(rule, attempts, named), isinstance(why, UnknownSchema)
    may_come = is_unknown and (service.ports.waits_for_schemas or attempt < retry.attempts_max)
    hopeless = not may_come and (
        isinstance(why, BadInput | NotDeterministic | TooLarge)
        or (
            isinstance(ask.action, RunHandler)
            and (isinstance(why, (Permanent, *retry.never)) or attempt >= retry.attempts_max)
        )
    )
    if ask.action.undoes and attempt >= retry.attempts_max:
        retry = without_end(retry)
    clock, is_look = service.ports.clock, False
    wait_s = delay_s(retry, attempt, clock.chance())
    if is_unknown or isinstance(why, NewerHandler):
        is_look = before > 0 and is_recorded_wait(
            turn.loaded_progress, ask.action.name, words, retry, attempt, clock.now_ms()
        )
        wait_s = look_wait_s(turn.loaded_progress, retry, attempt)
    elif waits:
        wait_s = max(wait_s, READ_S_MIN)  # each attempt looks at what is there by then
    return Verdict(
        hopeless=hopeless,
        # Of a command it is a person who waits, and no outcome to be kept.
        parks=(waits or parks(retry, attempt)) and not isinstance(ask.action.message, Command),
        wait_s=wait_s,
        attempt=attempt,
        attempts_max=retry.attempts_max,
        attempts=attempts,
        under=named,
        history=history,
        is_look=is_look,
    )


async def _escalate(  # a compensation that fails is told with all that is known of it
    service: ServiceRuntime,
    turn: ProcessingState,
    ask: RunRequest,
    verdict: Verdict,
    words: str,
    calls: tuple[StepRecord, ...],
) -> ProcessingState:
    """Escalate a compensation that keeps failing, after each round of attempts."""
    undoes = ask.action.result.event if isinstance(ask.action, Compensate) else ask.action.message
    due = None
    if verdict.attempt % verdict.attempts_max == 0:
        letter = escalation_letter(turn, ask.handler.name, ask.action.message, undoes, verdict.attempts, words)
        rounds = verdict.attempt // verdict.attempts_max
        due = report_escalation(service, turn, letter, undoes, rounds=rounds, calls=calls)
    return await publish_escalation(service, turn, due)


def _failed_event(saga: RunningSaga, why: Exception) -> Failed:
    """Make the telemetry event of a failed attempt."""
    return Failed(
        service=saga.service.name,
        saga=saga.turn.message.saga,
        handler=saga.handler.name,
        kind=type(why).__name__,
        blame=blame_of(type(why), called=why is saga.outside),
    )


def _report_failure(  # a failed attempt is told with all that is known of it
    service: ServiceRuntime, turn: ProcessingState, ask: RunRequest, verdict: Verdict, words: str, where: str | None
) -> None:
    kind = Parked if verdict.parks else Retrying
    service.ports.outage_watch.report(
        kind(
            service=service.name,
            saga=turn.message.saga,
            handler=ask.handler.name,
            message=ask.action.message.id,
            attempt=verdict.attempt,
            attempts_max=verdict.attempts_max,
            delay_s=verdict.wait_s,
            error=words,
            where=where,
        )
    )


async def give_up_poisonous(service: ServiceRuntime, turn: ProcessingState, ask: RunRequest) -> ProcessingState:
    """Make a dead letter of a message on which the process dies, and do nothing else with it."""
    p, (before, _) = turn.loaded_progress, count_failures_before(turn.loaded_progress, ask)
    failure = RunFailure(reason=of_deaths(turn.deaths), remedy=DEADLY, attempts=before, blame="code")
    intent = find_intent(p, ask.run)
    turn = await progress_repository.commit(service, turn, failed_attempts.give_up, ask.action, failure, intent)
    return replace(turn.drop_carried(ask.run), deaths=0)


async def _put_off_call(
    service: ServiceRuntime, saga: RunningSaga, turn: ProcessingState, ask: RunRequest, why: Exception
) -> ProcessingState:
    """Postpone a run because a limit or a breaker did not admit a call."""
    turn = turn.carry(ask.run, reusable_answers(saga), turn.attempts_of(ask.run))
    refused = NotAdmitted(saga.words_of(why), saga.put_off_s or 0, find_origin(why), isinstance(why, BreakerOpen))
    return await put_off(service, turn, ask, refused, _with_calls(turn, ask, saga))


async def put_off(
    service: ServiceRuntime, turn: ProcessingState, ask: RunRequest, why: NotAdmitted, intent: Intent | None
) -> ProcessingState:
    """Put a run off that a pause, a limit or a breaker holds up; that is no attempt. Wait in the lane for a short time,
    then park the run, its attempts unchanged, for a minute at most. If the history has that wait already, send the wake
    on without a write. `intent`: with the last results, if it has begun."""
    ports, p, history, begun = (
        service.ports,
        turn.loaded_progress,
        turn.attempts_of(ask.run),
        find_intent(turn.loaded_progress, ask.run),
    )
    before, named = count_failures_before(p, ask)
    since_ms, left_s = (
        put_off_runs.find_postponed_since_ms(p, ask.action, before + len(history), why.reason),
        why.left_s,
    )
    if why.grows and since_ms is not None:
        left_s = max(left_s, (ports.clock.now_ms() - since_ms) / 1000)
    left_s = turns.away_s(left_s, turns.spread_of(p.saga, p.n))
    passed_s = ports.clock.monotonic_s() - turn.measurements.begun_s
    # What people wish is never parked: it is no message of the saga.
    in_memory = (
        turns.stays(left_s, passed_s) or turn.unsent_escalation is not None or isinstance(ask.action.message, Command)
    )
    ports.outage_watch.report(
        PutOff(
            service=service.name,
            saga=turn.message.saga,
            handler=ask.handler.name,
            message=ask.action.message.id,
            delay_s=left_s,
            is_parked=not in_memory,
            error=why.reason,
        )
    )
    if in_memory:
        await ports.assignment.pause(min(left_s, PAUSE_S_MAX), turn.position)
        return turn.drop_progress()
    is_new = since_ms is None or intent != begun
    if not is_new and put_off_runs.has_timer(p, ask.action, has_begun=begun is not None):
        return _hold_back(turn, ask, ports.clock.now_ms() + ceil(left_s * 1000))
    failure = RunFailure(
        reason=why.reason,
        where=why.where,
        remedy="",
        attempts=before + len(history),
        under=counted(named, [failed.rule for failed in history]),
        history=history[-HISTORY_MAX:],
        put_off=True,
    )
    return await _park(service, turn, ask, failure, intent, left_s)


async def _park(  # a run is parked with all that is known of it
    service: ServiceRuntime,
    turn: ProcessingState,
    ask: RunRequest,
    failure: RunFailure,
    intent: Intent | None,
    wait_s: float,
) -> ProcessingState:
    """Park a run. It has a wake now, and is not ready in this turn again, which would never end while a write takes
    longer than the delay: the saga's other messages would not be taken, and the offset would not be committed."""
    action, due_ms = ask.action, service.ports.clock.now_ms() + ceil(wait_s * 1000)
    turn = await progress_repository.commit(service, turn, failed_attempts.park, action, failure, intent, due_ms=due_ms)
    return _hold_back(turn.drop_carried(ask.run), ask, due_ms)


def _hold_back(turn: ProcessingState, ask: RunRequest, due_ms: int) -> ProcessingState:
    """The turn in which a run, and none that its handler has on another message, is not looked at again before then."""
    later = HeldBack(ask.action.role.name, ask.action.undoes, due_ms, ask.action.message.id)
    return replace(turn, held_back=(*turn.held_back, later))


def count_failures_before(p: SagaProgress, ask: RunRequest) -> tuple[int, Mapping[str, int]]:
    """Return how many attempts failed before this message was taken, and how many of them under each named rule."""
    if p.wake is None:  # what is parked has one
        return 0, {}
    name, message = ask.action.role.name, ask.action.message.id
    if ask.action.undoes:
        kept = find_pending_compensation(p, name, ask.action.message)
    else:
        kept = next((k for k in (*p.queue[:1], *p.deadlines) if k.handler == name and k.message.id == message), None)
    if kept is not None:
        return kept.attempts, kept.under
    c = suspended_runs.find_suspended_run(p, name, message) if p.later else None
    return (0, {}) if c is None else (c.attempts, c.under)


def _attempt(service: ServiceRuntime, saga: RunningSaga, words: str, rule: str, blame: Blame | None) -> FailedAttempt:
    clock = service.ports.clock
    return FailedAttempt(
        time=iso(clock.now_ms()),
        ms=round((clock.monotonic_s() - saga.begun_s) * 1000),
        reason=words[:REASON_MAX],
        worker=service.ports.worker,
        rule=rule,
        blame=blame,
    )


def _failure(words: str, where: str | None, verdict: Verdict, remedy: str = "") -> RunFailure:
    return RunFailure(
        reason=words,
        where=where,
        remedy=remedy,
        attempts=verdict.attempts,
        under=verdict.under,
        history=verdict.history[-HISTORY_MAX:],
    )


def _last_failure(saga: RunningSaga, why: Exception, words: str, verdict: Verdict) -> RunFailure:
    failure = _failure(words, find_origin(why), verdict, _remedy(why, verdict.attempts_max))
    return replace(
        failure,
        under={},
        stack=format_stack(why, saga.secrets()),
        blame=blame_of(type(why), called=why is saga.outside),
        disputed=_disputed_calls(saga, why),
    )


def _disputed_calls(saga: RunningSaga, why: Exception) -> tuple[tuple[str, int], ...]:
    """Steps and reads that a person may answer whatever is recorded: this release cannot go by the record."""
    if isinstance(why, NewerHandler):
        return list_answerable_calls(saga.intent.calls)
    return why.disputed if isinstance(why, NotDeterministic) else ()


def _undecodable(service: ServiceRuntime, ask: RunRequest) -> str | None:
    """Return why the parked message cannot be decoded. `None`: the fault is in another message of the fan-in."""
    return None if ask.action.undoes else why_undecodable(service, ask.action.role, ask.action.message)


def find_intent(p: SagaProgress, run: RunKey) -> Intent | None:
    """Return the open intent of a run."""
    return next((i for i in p.intents if (i.kind, i.handler, i.cause) == run), None) if p.intents else None


def _with_calls(turn: ProcessingState, ask: RunRequest, saga: RunningSaga) -> Intent | None:
    """The open intent with the last results; `None` if the run had not begun anything."""
    open_ = find_intent(turn.loaded_progress, ask.run)
    if open_ is None:
        return None
    return replace(open_, calls=saga.answers, undo_with=saga.taken_back_with if open_.kind == "do" else open_.undo_with)


def _remedy(why: Exception, attempts_max: int) -> str:
    if isinstance(why, NotDeterministic):
        return f"{why.way}{NOT_DETERMINISTIC}"
    if isinstance(why, NewerHandler):
        return NEWER_HANDLER
    if isinstance(why, UpcasterFailed):
        return "mend the upcaster and deploy it, then have it tried again: saga dead replay"
    if isinstance(why, KeyMissing):
        return (
            "restore the key, then have it tried again: saga dead replay; or discard it: whoever sent it has forged it"
        )
    if isinstance(why, BadInput):
        return "mend its sender; this dead letter has the original, or says where it is"
    if isinstance(why, TooLarge):
        return OVERSIZED_REMEDY
    if isinstance(why, Permanent):
        return "mend the handler"
    return f"look why {attempts_max} attempts failed; " + journal.REPLAY


# -------------------------------------------------------------------- waiting for a schema or a release


LOOK_S_MAX = 50.0
"""Longest time from one look to the next. With the contracts read `READ_S_MIN` before it is less than a minute."""
SPREAD = 0.2
"""Part of that by which looks are spread: those that were parked in one moment do not come in one."""
WAYS_OUT = (
    "deploy the schema here, or the release that reads it; should there never be one, send the message to the dead "
    "letters: saga control route"
)


def look_wait_s(p: SagaProgress, retry: Retry, attempt: int) -> float:
    """Seconds until it is looked at, where it waits since the `attempt`-th attempt failed."""
    spread = spread_of(p.saga, p.n)
    return min(max(delay_s(retry, attempt, spread), READ_S_MIN), LOOK_S_MAX * (1 - SPREAD * spread))


def is_recorded_wait(p: SagaProgress, name: str, words: str, retry: Retry, attempt: int, now_ms: int) -> bool:
    """True if the history says already that the run of this name waits, and why, and the time of its next attempt,
    which is the `attempt`-th to fail, has not come: then this was a look."""
    if attempt < 2:
        return False
    last = next((e for e in map(decode_transition, reversed(p.transitions)) if _records_wait(e, name)), None)
    if last is None or last.outcome == "released" or last.reason != words:  # who has released it waits for the attempt
        return False
    return now_ms - from_iso(last.time) < delay_s(retry, attempt - 1, spread_of(p.saga, last.n)) * 1000


def _records_wait(entry: Transition, name: str) -> bool:
    return entry.handler == name and entry.outcome in ("retrying", "released")


def report_long_wait(service: ServiceRuntime, saga: str, handler: str, attempts: int, words: str) -> None:
    """Tell people, for it has waited for long."""
    service.ports.outage_watch.report(
        Escalated(
            service=service.name,
            saga=saga,
            handler=handler,
            reason=f"{attempts} attempts failed, the last with {words}; {WAYS_OUT}",
            steps=(),
        )
    )


# -------------------------------------------------------------------- escalations


REMEDY = "put right what it calls, or mend it: it is tried without end, and goes on as soon as it can"


def escalation_letter(
    turn: ProcessingState, handler: str, outcome: Message, undoes: Message, attempt: int, error: str
) -> DeadLetterRecord:
    """Tidings of `handler`, which is to undo what `undoes` says because of `outcome`."""
    p = turn.loaded_progress
    return DeadLetterRecord(
        id=ids.dead_letter_id(p.service, p.saga, f"{handler}|failing|{attempt}", undoes.id, p.replays),
        what="escalation",
        handler=handler,
        reason=f"{attempt} attempts failed, the last with {error}",
        remedy=REMEDY,
        message=outcome,
        attempts=attempt,
    )


def repair_error(handler: str, attempt: int, error: str) -> SagaError:
    """Error with which a repair leaves a saga whose compensation fails."""
    return SagaError(
        f"{handler} failed {attempt} times, the last with {error}; "
        "put right what it calls, or mend it, and repair it again"
    )


def report_escalation(
    service: ServiceRuntime,
    turn: ProcessingState,
    letter: DeadLetterRecord,
    undoes: Message,
    *,
    rounds: int,
    calls: tuple[StepRecord, ...],
) -> Outgoing | None:
    """Tell people at once. The record is due after 1, 2, 4, 8 ... `rounds` of attempts: what fails for days says little
    new. `calls`: what ran already."""
    ports, saga = service.ports, turn.loaded_progress.saga
    is_due = not rounds & (rounds - 1)
    ports.outage_watch.report(
        Escalated(
            service=service.name,
            saga=saga,
            handler=letter.handler,
            reason=letter.reason,
            steps=(),
            id=letter.id if is_due else None,
        )
    )
    if not is_due:
        return None
    whole = f"event {undoes.id} of {service.name} in saga {saga}"
    return dead_letters.failing(
        service.name,
        replace(letter, calls=tuple(f"{call.in_words} ran" for call in calls)),
        iso(ports.clock.now_ms()),
        undoes.id,
        whole,
        service.contracts.get(letter.message.type),
    )


async def publish_escalation(service: ServiceRuntime, turn: ProcessingState, due: Outgoing | None) -> ProcessingState:
    """Offer the log the record that is due, or the last one that it has refused. While it refuses it people are told,
    and it is offered again after the next attempt: attempts do not wait for it."""
    ports, letter = service.ports, due or turn.unsent_escalation
    if letter is None:
        return turn
    refusal = await offer_dead_letter(service, letter, lambda form: ports.publisher.publish([form]))
    if refusal is not None:
        ports.outage_watch.unavailable(OFFERING, refusal)
        return replace(turn, unsent_escalation=letter)
    if turn.unsent_escalation is not None:
        ports.outage_watch.recovered(REFUSED)
    return replace(turn, unsent_escalation=None)


# -------------------------------------------------------------------- a progress that is too large


OVERSIZED_REMEDY = (
    "let the service keep less of a saga (its state, results of steps, events that can be undone), or split the saga; "
    "this one stays quarantined"
)


async def give_up_oversized(
    service: ServiceRuntime, turn: ProcessingState, action: HandlerAction, why: TooLarge
) -> ProcessingState:
    """Make the message a dead letter with all it said, durable before anything else."""
    id_ = await _publish_oversized(service, turn, action.message, action.name, why)
    p = turn.loaded_progress
    try:
        if not p.is_quarantined:
            return await progress_repository.commit(
                service,
                turn,
                failed_attempts.give_up_without_content,
                action,
                letter=id_,
                reason=dead_letters.TOO_LARGE,
            )
    except TooLarge:
        pass
    except Superseded:
        return turn.drop_progress()
    for name in _other_handlers(service, turn, action):  # nothing can be written of them either
        await _publish_oversized(service, turn, turn.message, name, why)
    return replace(turn, is_complete=True)


async def reject_oversized_command(
    service: ServiceRuntime, turn: ProcessingState, command: Command, why: TooLarge
) -> ProcessingState:
    """Say that what a person commanded cannot be written down, and so is not done."""
    await _publish_oversized(service, turn, command, COMMAND, why)
    return replace(turn, is_complete=True)


async def _publish_oversized(
    service: ServiceRuntime, turn: ProcessingState, message: Message, name: str, why: TooLarge
) -> str:
    """Say the message whole on `<service>.dead`, for this handler; id of the dead letter."""
    saga = message.saga
    dead = DeadLetterRecord(
        id=ids.dead_letter_id(service.name, saga, name, message.id, turn.loaded_progress.replays),
        what="dead letter",
        handler=name,
        reason=f"{dead_letters.TOO_LARGE}: {why}",
        remedy=OVERSIZED_REMEDY,
        message=message,
        blame="code",
    )
    in_hand = message.id == turn.message.id
    whole = turn.position.place if in_hand else f"the progress of saga {saga} in {service.name}"
    letter = dead_letters.letter(service.name, dead, message.time, whole, service.contracts.get(message.type))
    await progress_repository.send_dead_letter(service, turn.position, letter)
    if service.ports.outage_watch.is_news(f"too large {saga} {name}"):
        progress_repository.report_dead_letter(service, saga, dead)
    return dead.id


def _other_handlers(service: ServiceRuntime, turn: ProcessingState, action: HandlerAction) -> Iterator[str]:
    """Names of the other handlers and compensations that the message in hand is for, and that nothing is kept for."""
    p, roles, message = turn.loaded_progress, service.roles, turn.message
    for role in roles.by_type.get(message.type, ()):
        if role.name != action.name and role.name not in (turn.paged or ()):
            decision = decide(
                p, role, message, now=progress_repository.decision_time(service), bad=turn.bad.get(role.name)
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
