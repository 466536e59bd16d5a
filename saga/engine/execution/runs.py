"""Runs of handlers as values: what to run, and why an attempt failed."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from saga.declarations.values import Reaction
from saga.engine.errors import NotDeterministic, find_origin
from saga.engine.processing_state import ProcessingState
from saga.engine.recorded_values import list_answerable_calls
from saga.errors import BadInput, KeyMissing, NewerHandler, Permanent, TooLarge, UnknownSchema
from saga.policies.retry import Blame, FailureRule, classify_failure
from saga.progress.actions import Abort, Compensate, RunHandler
from saga.progress.decisions import find_run_intent
from saga.progress.document import AbortAction, Intent, RunKey, SagaProgress, StepRecord
from saga.progress.failed_attempts import Failure


class RunRequest(Struct, frozen=True, kw_only=True, gc=False):
    """What to run: a handler on its messages, a compensation for one result, or the abort of a run."""

    action: RunHandler | Compensate | Abort
    handler: Reaction
    run: RunKey
    remains: list[str] = []
    """For an abort: effects that remain for an operator to correct. The abort adds to the list while it runs."""

    @property
    def version(self) -> int:
        """Version of the handler that begins the run or began its first turn. An open intent may have another one."""
        c = self.action.goes_on
        return self.handler.version if c is None else c.handler_version

    def find_intent(self, p: SagaProgress) -> Intent | None:
        """Return the open intent of the run; `None` if the run has not begun."""
        return find_run_intent(p, self.run) if p.intents else None

    def make_intent(self, p: SagaProgress) -> Intent:
        """Make the intent that is written before the first step."""
        kind, name, cause = self.run
        return Intent(
            handler=name,
            kind=kind,
            name=self.handler.name if kind == "undo" else "",
            cause=cause,
            message=self.action.message,
            parts=self.action.parts,
            state=p.state,
            version=p.version,
            handler_version=self.version,
            time="",
        )


class AttemptFailed(Struct, frozen=True, kw_only=True):  # tracked: the frames of its error may hold it
    """A failed attempt, with everything that the decision about it needs."""

    state: ProcessingState
    """State after the last checkpoint of the attempt."""
    error: Exception
    reason: str
    """Description of the error, without sensitive values."""
    secrets: tuple[str, ...]
    """Sensitive strings that the handler was given, to be hidden in reports."""
    rule: FailureRule
    """Retry rule that applies to the error."""
    is_of_call: bool
    """True if the error comes from the external function that a step called."""
    postponed_s: float | None
    """Seconds after which to try again, if a limit or a breaker refused a call; then the attempt does not count.
    Otherwise `None`."""
    duration_s: float
    outages: int
    """Value of `OutageWatch.outages` when the attempt began."""
    reusable_answers: tuple[StepRecord, ...]
    """Step results that a rerun can reuse."""
    answers: tuple[StepRecord, ...]
    """All step results."""
    abort_actions: tuple[AbortAction, ...]
    recorded: tuple[StepRecord, ...]
    """Calls in the run's intent."""

    @property
    def blame(self) -> Blame | None:
        """Who can correct the cause; `None` if the error will end by itself once the rollout in progress is
        finished."""
        if isinstance(self.error, UnknownSchema | NewerHandler):
            return None
        return self.blame_of_error

    @property
    def blame_of_error(self) -> Blame:
        """Who can correct the cause, whether or not a rollout is in progress."""
        return classify_failure(type(self.error), called=self.is_of_call)

    @property
    def where(self) -> str | None:
        """Place in the service's code that raised the error."""
        return find_origin(self.error)

    @property
    def failure(self) -> Failure:
        """The error, reduced to what the decision about the attempt needs."""
        error = self.error
        waits_for: Literal["schema", "key", "release"] | None = next(
            (name for kind, name in _AWAITED.items() if isinstance(error, kind)), None
        )
        return Failure(
            reason=self.reason,
            rule=self.rule,
            waits_for=waits_for,
            is_final=isinstance(error, BadInput | NotDeterministic | TooLarge),
            is_permanent=isinstance(error, (Permanent, *self.rule.retry.never)),
        )

    @property
    def disputed_calls(self) -> tuple[tuple[str, int], ...]:
        """Steps and reads that an operator may answer even if they have a recorded answer, because this release cannot
        follow the record."""
        if isinstance(self.error, NewerHandler):
            return list_answerable_calls(self.recorded)
        return self.error.disputed if isinstance(self.error, NotDeterministic) else ()


_AWAITED: Mapping[type[Exception], Literal["schema", "key", "release"]] = {
    UnknownSchema: "schema",
    KeyMissing: "key",
    NewerHandler: "release",
}
"""Errors that no operator has to correct: they end once the schema, key or release that the run waits for is there."""
