"""Actions: everything that can happen next for a message and its saga, as frozen values. Pure.

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
"""Seconds by which the clocks of a system may differ before people are told."""


class Now(Struct, frozen=True, gc=False):
    """The time of a decision, and for how long the service remembers a saga."""

    ms: int
    """Milliseconds since 1970, UTC."""
    retention_s: int
    handled_ms: int = LATEST_MS
    """Time up to which the log has been handled: whatever it held then that may concern the saga has come to its place
    here. Asked for where a deadline is due."""
    absences: tuple[tuple[int, int], ...] = ()
    """Times in which the service has written nothing, from when to when, in milliseconds since 1970."""

    @property
    def forgotten(self) -> str:
        """Return the time up to which the service may have forgotten what it did.

        That is the retention ago, or the beginning of an absence in which that time lies. To the second, so that it is
        seldom computed anew.
        """
        since_ms = (self.ms // 1000 - self.retention_s) * 1000
        return iso(next((begin for begin, end in self.absences if begin < since_ms < end), since_ms))

    @property
    def future(self) -> str:
        """Return the time after which nothing can have begun yet, unless a clock is wrong. To the second, as above."""
        return iso((self.ms // 1000 + FUTURE_S) * 1000)


class Trigger(Struct, frozen=True, kw_only=True, gc=False):
    """The message that is processed, with what this service has found out about it."""

    message: Message
    """An empty type means no message: a repair that only continues ready work."""
    bad: Mapping[str, str] = NO_HANDLERS
    """The handlers that can never decode the message, each with the reason."""
    paged: tuple[str, ...] | None = None
    """The handlers for which pages of the progress keep the message; `None`: the pages were not asked."""


class HeldBack(NamedTuple):
    """A run that must not be tried again while a message is processed, nor before some time."""

    handler: str
    compensates: bool
    due_ms: int
    message: str = ""
    """Id of the message for which alone it is held back; empty: all runs of the handler, or of its compensation."""


class ParkedRun(Struct, frozen=True, kw_only=True, gc=False):
    """A run that waits for its next attempt."""

    id: str
    """Name of this wait: what is tried and parked again has another one."""
    handler: str
    message: Message
    attempts: int
    due_ms: int
    undoes: bool = False
    """True for a compensation."""
    put_off: bool = False
    """True if a pause, a limit or an open breaker holds it up: it is looked at each minute, from `due_ms` on."""


# -------------------------------------------------------------------- nothing for a handler


class Complete(Struct, frozen=True, gc=False):
    """Nothing is left to do: the offset of the message may be committed."""


class LoadProgress(Struct, frozen=True, gc=False):
    """Read the progress from the store: it is unknown, or the cached copy may be too old to finish on."""


class ForwardTimer(Struct, frozen=True, gc=False):
    """Publish the current timer again for the earliest time at which work is due; then nothing is left to do."""

    due_ms: int
    unknown_ms: int = 0
    """Time for which the wake in hand was published first, if the store does not know its saga: that one is published
    again."""


class AwaitLog(Struct, frozen=True, gc=False):
    """Keep the current timer until the log has been handled up to a deadline's due time; then process it again."""

    due_ms: int
    look_ms: int | None
    """Time at which its turn is to be taken again in any case, for what else waits; `None`: nothing does."""


class TouchDeadline(Struct, frozen=True, gc=False):
    """Record a message that only opens or closes a deadline."""

    message: Message


class RescheduleTimer(Struct, frozen=True, gc=False):
    """Set a new timer: the current one would fire too late."""


class RecallOverflow(Struct, frozen=True, gc=False):
    """Look the message up in the overflow segments of the progress."""


# -------------------------------------------------------------------- what is done


class HandlerAction(Struct, frozen=True, gc=False):
    """Something to do with a message for a handler, or with a failure outcome for its compensation."""

    role: HandlerRole
    message: Message
    undoes: ClassVar[bool] = False
    """True for what a compensation does."""

    @property
    def name(self) -> str:
        """Return the name of the handler, or of its compensation, as in the journal."""
        return self.role.undo.name if self.undoes and self.role.undo else self.role.name


class RunHandler(HandlerAction, frozen=True, gc=False):
    """Run the handler from its start, or continue from its open intent."""

    parts: tuple[Message, ...]
    """One for each event parameter that is needed, then those of others that are there."""
    intent: Intent | None = None
    goes_on: SuspendedRun | None = None
    """The run of which this is the next turn."""


class Compensate(HandlerAction, frozen=True, gc=False):
    """Run the compensation on a result; its event is handed over beside the outcome."""

    undoes: ClassVar[bool] = True
    goes_on: ClassVar[SuspendedRun | None] = None
    result: CompensableResult

    @property
    def parts(self) -> tuple[Message, ...]:
        """Return the outcome, the event that is undone, and what its handler consumed."""
        return self.message, self.result.event, *self.result.took


class Abort(HandlerAction, frozen=True, gc=False):
    """Close a run that never finishes: close its documents to it, make its `on_abort` calls, and show a person what
    remains."""

    undoes: ClassVar[bool] = True
    goes_on: ClassVar[SuspendedRun | None] = None
    intent: Intent

    @property
    def parts(self) -> tuple[Message, ...]:
        """Return the messages that the run was given."""
        return self.intent.parts


# -------------------------------------------------------------------- what is only written down


class RecordDecision(HandlerAction, frozen=True, gc=False):
    """Record a decision: `saga.progress.next_action.record_decision` does it. No handler runs."""


class Ignore(RecordDecision, frozen=True, gc=False):
    """Record that the message is ignored, with the reason."""

    reason: str


class Reject(RecordDecision, frozen=True, gc=False):
    """Make a dead letter of a message that must not run. It does not block the saga."""

    reason: str
    remedy: str


class KeepPending(RecordDecision, frozen=True, gc=False):
    """Keep the message pending until the other parts are here, or until the start of the saga is known."""

    reason: str


class Enqueue(RecordDecision, frozen=True, gc=False):
    """Keep the message behind what blocks the saga."""

    reason: str
    bad: str | None = None
    """Why it can never be decoded."""


class DelayCompensation(RecordDecision, frozen=True, gc=False):
    """Keep the outcome until its compensation can do something."""

    undoes: ClassVar[bool] = True
    known: bool
    """True if the original has begun and will be brought to its end; false if nobody has told when the saga began: what
    was done here may be forgotten."""


class BeginAbort(RecordDecision, frozen=True, gc=False):
    """Replace the intent of a run that is a dead letter: from now on nothing revives it."""

    undoes: ClassVar[bool] = True


class CloseHandler(RecordDecision, frozen=True, gc=False):
    """Close the handler: nothing is left to undo, and it will never run in this saga."""

    undoes: ClassVar[bool] = True


# -------------------------------------------------------------------- what a person commands


class ApplyCommand(Struct, frozen=True, gc=False):
    """Record the result of an operator command. No user code runs."""

    command: OperatorCommand


class Replay(ApplyCommand, frozen=True, gc=False):
    """Retry a dead letter."""

    kept: PendingMessage


class AdmitAsNew(ApplyCommand, frozen=True, gc=False):
    """Process a message of which nothing is stored as a new one."""

    message: Message
    takers: tuple[HandlerRole, ...]
    """Handlers that have not had it."""
    undone: tuple[HandlerRole, ...] = ()
    """Handlers whose compensations have not had it."""
    bad: Mapping[str, str] = NO_HANDLERS
    """The handlers that can never decode it, each with the reason."""


class Discard(ApplyCommand, frozen=True, gc=False):
    """Drop a dead letter: its message is never processed."""

    kept: PendingMessage


class Release(ApplyCommand, frozen=True, gc=False):
    """Retry a parked run at once."""

    run: ParkedRun


class AnswerStep(ApplyCommand, frozen=True, gc=False):
    """Record an operator's answer for a call of a dead run, and retry the run."""

    kept: PendingMessage
    intent: Intent


class ResolveEscalation(ApplyCommand, frozen=True, gc=False):
    """Close an escalation: an operator has corrected what it reports."""

    escalation: DeadLetterRecord | None
    """The escalation; `None`: its transition is archived."""


class RejectCommand(ApplyCommand, frozen=True, gc=False):
    """Do nothing, and record the reason."""

    reason: str


# -------------------------------------------------------------------- nothing yet


class AlreadyProcessed(Struct, frozen=True, gc=False):
    """The handler has already processed the message: it is in the inbox."""


class AlreadyPending(Struct, frozen=True, gc=False):
    """The message is already stored for the handler, and runs when it is ready."""


MessageDecision: TypeAlias = AlreadyProcessed | AlreadyPending | Ignore | Reject | KeepPending | Enqueue | RunHandler
"""Everything that can happen to a message for one handler."""
CompensationDecision: TypeAlias = DelayCompensation | BeginAbort | Abort | Compensate | CloseHandler
"""Everything that the compensation of a handler can do next."""
RecordedDecision: TypeAlias = Ignore | Reject | KeepPending | Enqueue | DelayCompensation | BeginAbort | CloseHandler
"""Every decision that is only recorded: no user code runs."""
CommandDecision: TypeAlias = Replay | AdmitAsNew | Discard | Release | AnswerStep | ResolveEscalation | RejectCommand
"""Every result of a command that needs only a write."""
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
