"""The state between two decisions: one immutable value with everything known about the message that is processed."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from msgspec import Struct
from msgspec.structs import replace

from saga.engine.trace_spans import UNTRACED, TurnSpans
from saga.engine.trace_spans import Kind as KindOfSpan
from saga.messages import Message, Outgoing, Position
from saga.progress.actions import AwaitLog, HeldBack, Trigger
from saga.progress.document import FailedAttempt, RunKey, SagaProgress, StepRecord, Transition

NOWHERE = Position("(repair)", 0, 0)
"""Position of processing that no record triggered."""


class Measurements(Struct):
    """Outcomes of one message, and the seconds that each stage took. They are only reported: decisions never read
    them."""

    received_s: float = 0.0
    begun_s: float = 0.0
    handler_s: float = 0.0
    persisted_s: float = 0.0
    published_s: float = 0.0
    outcomes: list[tuple[str, str, str | None]] = []
    """Handler, outcome and reason of each transition that was written."""
    attempts: int = 0
    spans: TurnSpans | None = None
    """Spans of the message; `None` if it is not traced."""

    def span(self, kind: KindOfSpan, name: str, parts: Sequence[Message] = ()) -> AbstractContextManager[str]:
        """Record the block as a span, if the message is traced: see `TurnSpans.of`."""
        return UNTRACED if self.spans is None else self.spans.of(kind, name, parts)


class ProcessingState(Trigger, frozen=True, kw_only=True, gc=False):
    """State of processing one message: the progress as read, its version in the store, and answers that can be
    reused."""

    position: Position
    progress: SagaProgress | None = None
    """Progress as last read or written; `None` if it has to be read."""
    cas: int = 0
    """Version of the progress in the store; 0 if the store has none."""
    is_current: bool = False
    """True if the progress was read or written while this message is processed. Otherwise it is a cached copy, which
    may be outdated."""
    unpublished: tuple[Transition, ...] = ()
    """Transitions whose events may be unpublished. They are published when their own messages are processed, or here
    before the next write."""
    recalled: dict[str, int] | None = None
    """Inbox entries of the message that were found in overflow segments; `None`, like `paged`, if the segments were not
    searched."""
    deaths: int = 0
    """Number of times that the process died on this message, if its next run must be given up for that reason;
    otherwise 0."""
    held_back: tuple[HeldBack, ...] = ()
    """Stored runs that must not be retried while this message is processed, because they were parked meanwhile, or an
    operator has stopped them."""
    is_complete: bool = False
    """True if the message is finished."""
    awaited_log: AwaitLog | None = None
    """If set, processing ends for now, and the timer is kept until the log has been handled far enough."""
    results: tuple[tuple[RunKey, tuple[StepRecord, ...]], ...] = ()
    """Results of calls, by run. They are kept for runs that failed or whose write was refused, so that a new attempt
    reuses them."""
    attempts: tuple[tuple[RunKey, tuple[FailedAttempt, ...]], ...] = ()
    """Failed attempts made while this message is processed, by run."""
    unsent_escalation: Outgoing | None = None
    """Escalation of a failing compensation that could not be published yet; dropped when the run ends."""
    measurements: Measurements

    @property
    def loaded_progress(self) -> SagaProgress:
        """Return the progress, once it has been read. Its inbox includes the message's entries from overflow
        segments."""
        p = self.progress
        assert p is not None
        return replace(p, inbox={**self.recalled, **p.inbox}) if self.recalled else p

    @property
    def is_cacheable(self) -> bool:
        """Return True if the progress is stored, and all events that it records are published."""
        return self.progress is not None and self.cas > 0 and not self.unpublished

    def drop_progress(self) -> "ProcessingState":
        """Drop the progress, so that it is reloaded and everything is decided again."""
        return replace(self, progress=None, cas=0, is_current=False, unpublished=(), recalled=None, paged=None)

    def results_of(self, run: RunKey) -> tuple[StepRecord, ...]:
        return next((calls for known, calls in self.results if known == run), ()) if self.results else ()

    def attempts_of(self, run: RunKey) -> tuple[FailedAttempt, ...]:
        return next((failed for known, failed in self.attempts if known == run), ()) if self.attempts else ()

    def carry(
        self, run: RunKey, calls: tuple[StepRecord, ...], attempts: tuple[FailedAttempt, ...]
    ) -> "ProcessingState":
        """Keep the results and failed attempts of an unfinished run."""
        return replace(
            self,
            results=(*(r for r in self.results if r[0] != run), *(((run, calls),) if calls else ())),
            attempts=(*(a for a in self.attempts if a[0] != run), *(((run, attempts),) if attempts else ())),
        )

    def drop_carried(self, run: RunKey) -> "ProcessingState":
        """Drop the results and failed attempts of a run that has ended."""
        if not (self.results or self.attempts):
            return self
        return replace(self.carry(run, (), ()), unsent_escalation=None)
