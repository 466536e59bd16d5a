"""Actions: everything that can happen next for a message and its saga, as frozen values. Pure functions.

`saga.progress.next_action.choose_next_action` chooses one, the engine carries it out, and `saga.progress.journal`
records it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, NamedTuple, TypeAlias

from msgspec import Struct

from saga.messages import Message
from saga.messaging.operator_commands import OperatorCommand
from saga.progress.document import CompensableResult, DeadLetterRecord, Intent, PendingMessage, SuspendedRun
from saga.progress.handlers import HandlerRole
from saga.support.clock import LATEST_MS, iso

NO_HANDLERS: Mapping[str, str] = MappingProxyType({})


FUTURE_S = 3600
"""Seconds by which a message's time may lie in the future. A later time means that a clock is wrong."""


class Now(Struct, frozen=True, gc=False):
    """The time of a decision, and how long the service remembers a saga."""

    ms: int
    """Milliseconds since 1970, UTC."""
    retention_s: int
    handled_ms: int = LATEST_MS
    """Time up to which the log has been handled: every event of the saga that was published before that time is already
    in the progress. It is determined only if a deadline is due."""
    absences: tuple[tuple[int, int], ...] = ()
    """Periods in which the service wrote nothing: begin and end of each, in milliseconds since 1970."""

    @property
    def forgotten(self) -> str:
        """Return the time before which the service may have forgotten the messages that it handled.

        This is now minus the retention. If that time falls in an absence, it is the beginning of the absence, because
        the service handled nothing after that. It is rounded to seconds, so that it seldom changes.
        """
        since_ms = (self.ms // 1000 - self.retention_s) * 1000
        return iso(next((begin for begin, end in self.absences if begin < since_ms < end), since_ms))

    @property
    def future(self) -> str:
        """Return the latest plausible time of a message, rounded to seconds. A later time means that a clock is
        wrong."""
        return iso((self.ms // 1000 + FUTURE_S) * 1000)


class Trigger(Struct, frozen=True, kw_only=True, gc=False):
    """The message that is processed, with what the service knows about it."""

    message: Message
    """The message. An empty type means that there is none, because a repair continues work that is ready."""
    undecodable: Mapping[str, str] = NO_HANDLERS
    """Handlers that can never decode the message, with the reason for each."""
    paged: tuple[str, ...] | None = None
    """Handlers for which the message is pending in an overflow segment; `None` if the segments were not searched.

    For a command, these are the handlers and compensations that, according to the segments, have processed the message
    in the command, or for which it is pending.
    """


class HeldBack(NamedTuple):
    """A run that must not be retried while the current message is processed, and not before `due_ms`."""

    handler: str
    compensates: bool
    due_ms: int
    message: str = ""
    """Id of the message whose run is held back; empty if all runs of the handler, or of its compensation, are held
    back."""


class ParkedRun(Struct, frozen=True, kw_only=True, gc=False):
    """A run that waits for its next attempt."""

    id: str
    """Id of this wait. If the run is retried and parked again, the new wait has another id."""
    handler: str
    message: Message
    attempts: int
    due_ms: int
    undoes: bool = False
    """True for a compensation."""
    put_off: bool = False
    """True if a pause, a limit or an open breaker postpones the run. From `due_ms` on, it is checked every minute."""


# -------------------------------------------------------------------- nothing for a handler


class Complete(Struct, frozen=True, gc=False):
    """Nothing is left to do: the offset of the message may be committed."""


class LoadProgress(Struct, frozen=True, gc=False):
    """Read the progress from the store, because it is not cached, or because the cached copy may be too old to finish
    the message with."""


class ForwardTimer(Struct, frozen=True, gc=False):
    """Publish the current timer again for the earliest time at which work is due, and finish the message."""

    due_ms: int
    unknown_ms: int = 0
    """If the store has no progress of the timer's saga: the time for which the timer was first published. Otherwise
    0."""


class AwaitLog(Struct, frozen=True, gc=False):
    """Hold the current timer until the log has been handled up to a deadline's due time, then process it again."""

    due_ms: int
    look_ms: int | None
    """Time at which the timer is processed again in any case, because other work is due; `None` if no other work
    waits."""


class TouchDeadline(Struct, frozen=True, gc=False):
    """Record a message that only opens or closes a deadline; no handler consumes it."""

    message: Message


class RescheduleTimer(Struct, frozen=True, gc=False):
    """Set a new timer: the current one would fire too late."""


class RecallOverflow(Struct, frozen=True, gc=False):
    """Look the message up in the overflow segments of the progress."""


# -------------------------------------------------------------------- what is done


class HandlerAction(Struct, frozen=True, gc=False):
    """Base of the actions for one handler: what to do with a message or, for the compensation, with a failure
    outcome."""

    role: HandlerRole
    message: Message
    undoes: ClassVar[bool] = False
    """True for an action of the compensation."""

    @property
    def name(self) -> str:
        """Return the name of the handler, or of its compensation, as in the journal."""
        return self.role.undo.name if self.undoes and self.role.undo else self.role.name


class RunHandler(HandlerAction, frozen=True, gc=False):
    """Run the handler from its start, or continue from its open intent."""

    parts: tuple[Message, ...]
    """One message for each required event parameter, then the messages of optional parameters that are there."""
    intent: Intent | None = None
    goes_on: SuspendedRun | None = None
    """The suspended run that this turn continues; `None` for a new run."""


class Compensate(HandlerAction, frozen=True, gc=False):
    """Run the compensation of a handler for one of its results. It gets the failure outcome and the event of the
    result."""

    undoes: ClassVar[bool] = True
    goes_on: ClassVar[SuspendedRun | None] = None
    result: CompensableResult

    @property
    def parts(self) -> tuple[Message, ...]:
        """Return the outcome, the event that is undone, and the stored messages that the handler consumed."""
        return self.message, self.result.event, *self.result.consumed


class Abort(HandlerAction, frozen=True, gc=False):
    """Undo a run that will never finish: prevent its pending document updates, make its `on_abort` calls, and report
    the remaining effects to an operator."""

    undoes: ClassVar[bool] = True
    goes_on: ClassVar[SuspendedRun | None] = None
    intent: Intent

    @property
    def parts(self) -> tuple[Message, ...]:
        """Return the messages that the run was given."""
        return self.intent.parts


# -------------------------------------------------------------------- what is only written down


class RecordDecision(HandlerAction, frozen=True, gc=False):
    """A decision for which no handler runs: `saga.progress.next_action.record_decision` records it."""


class Ignore(RecordDecision, frozen=True, gc=False):
    """Record that the message is ignored, with the reason."""

    reason: str


class Reject(RecordDecision, frozen=True, gc=False):
    """Make a dead letter of a message that must not be handled. The dead letter does not block the saga."""

    reason: str
    remedy: str


class KeepPending(RecordDecision, frozen=True, gc=False):
    """Keep the message pending until the other events of its handler have arrived, the start of the saga is known, or
    earlier pending messages have been handled. A message for an optional parameter is kept until the handler runs."""

    reason: str


class Enqueue(RecordDecision, frozen=True, gc=False):
    """Queue the message behind the run or dead letter that blocks the saga."""

    reason: str
    undecodable: str | None = None
    """Reason why the message can never be decoded."""


class DelayCompensation(RecordDecision, frozen=True, gc=False):
    """Keep the outcome until its compensation can run or close the handler."""

    undoes: ClassVar[bool] = True
    known: bool
    """True if the compensation waits for the handler's run, which has begun and will finish. False if it waits until
    the start of the saga is known: before that, the service may have forgotten what it did."""


class BeginAbort(RecordDecision, frozen=True, gc=False):
    """Replace the intent of a run that will never finish, so that nothing continues the run."""

    undoes: ClassVar[bool] = True


class CloseHandler(RecordDecision, frozen=True, gc=False):
    """Close the handler: there is nothing to undo, and it will never run in this saga."""

    undoes: ClassVar[bool] = True


# -------------------------------------------------------------------- what a person commands


class ApplyCommand(Struct, frozen=True, gc=False):
    """Record the result of an operator command. No user code runs."""

    command: OperatorCommand


class Replay(ApplyCommand, frozen=True, gc=False):
    """Retry a dead letter: attempt its run again."""

    pending: PendingMessage


class AdmitAsNew(ApplyCommand, frozen=True, gc=False):
    """Process a message as new, because the progress has no record of it."""

    message: Message
    takers: tuple[HandlerRole, ...]
    """Handlers that have not processed the message."""
    undone: tuple[HandlerRole, ...] = ()
    """Handlers whose compensations have not processed the message."""
    undecodable: Mapping[str, str] = NO_HANDLERS
    """Handlers that can never decode the message, with the reason for each."""


class Discard(ApplyCommand, frozen=True, gc=False):
    """Drop a dead letter: its message is never processed."""

    pending: PendingMessage


class Release(ApplyCommand, frozen=True, gc=False):
    """Make the next attempt of a parked run at once."""

    run: ParkedRun


class AnswerStep(ApplyCommand, frozen=True, gc=False):
    """Record an operator's answer to a call of a dead run, and retry the run."""

    pending: PendingMessage
    intent: Intent


class ResolveEscalation(ApplyCommand, frozen=True, gc=False):
    """Close an escalation: an operator has corrected the problem that it reports."""

    escalation: DeadLetterRecord | None
    """The escalation; `None` if its transition is archived."""


class RejectCommand(ApplyCommand, frozen=True, gc=False):
    """Reject the command: change nothing else, and record the reason."""

    reason: str


# -------------------------------------------------------------------- nothing yet


class AlreadyProcessed(Struct, frozen=True, gc=False):
    """The handler has already processed the message: it is in the inbox."""


class AlreadyPending(Struct, frozen=True, gc=False):
    """The message is already stored for the handler, and its run begins when it is ready."""


MessageDecision: TypeAlias = AlreadyProcessed | AlreadyPending | Ignore | Reject | KeepPending | Enqueue | RunHandler
"""Everything that can happen to a message for one handler."""
CompensationDecision: TypeAlias = DelayCompensation | BeginAbort | Abort | Compensate | CloseHandler
"""Everything that the compensation of a handler can do next."""
RecordedDecision: TypeAlias = Ignore | Reject | KeepPending | Enqueue | DelayCompensation | BeginAbort | CloseHandler
"""Every decision that is only recorded: no user code runs."""
CommandDecision: TypeAlias = Replay | AdmitAsNew | Discard | Release | AnswerStep | ResolveEscalation | RejectCommand
"""Every result of an operator command that runs no user code."""
Action: TypeAlias = (
    Complete
    | LoadProgress
    | RecallOverflow
    | ForwardTimer
    | AwaitLog
    | RescheduleTimer
    | TouchDeadline
    | RunHandler
    | Compensate
    | Abort
    | RecordedDecision
    | CommandDecision
)
"""Everything that can happen next."""
