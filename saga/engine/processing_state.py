"""The state between two decisions: one immutable value with everything that is known of a message being processed."""

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
"""Position of a processing that no record triggered."""


class Measurements(Struct):
    """Outcome of one message, and how long each stage took in seconds. For people; decisions never read it."""

    received_s: float = 0.0
    begun_s: float = 0.0
    handler_s: float = 0.0
    persisted_s: float = 0.0
    published_s: float = 0.0
    outcomes: list[tuple[str, str, str | None]] = []
    """Handler, outcome and reason of each transition written."""
    attempts: int = 0
    spans: TurnSpans | None = None
    """Spans of the message; `None`: it is not traced."""

    def span(
        self, kind: KindOfSpan, name: str, parts: Sequence[Message] = (), answers: tuple[type[BaseException], ...] = ()
    ) -> AbstractContextManager[str]:
        """Trace what the block does, if the message is traced: see `TurnSpans.of`."""
        return UNTRACED if self.spans is None else self.spans.of(kind, name, parts, answers)


class ProcessingState(Trigger, frozen=True, kw_only=True, gc=False):
    """State of processing one message: the progress that was read, its version, and answers to reuse."""

    position: Position
    progress: SagaProgress | None = None
    """Progress as read or written last; `None`: to be read."""
    cas: int = 0
    """Version of the progress; 0: the store holds none."""
    is_current: bool = False
    """True if the progress was read or written for this message; one from a cache may be old."""
    unpublished: tuple[Transition, ...] = ()
    """Transitions whose events may be unpublished: other messages publish them, or this one before it writes."""
    recalled: dict[str, int] | None = None
    """Inbox entries of the message that are in segments of the progress; known together with `paged`."""
    deaths: int = 0
    """Number of times that the process died of this message, if its next run is given up for that; else 0."""
    held_back: tuple[HeldBack, ...] = ()
    """Stored runs that are not ready for this message: it has parked them, or an operator has stopped them."""
    is_complete: bool = False
    """True if nothing is left to do."""
    awaited_log: AwaitLog | None = None
    """The processing ends here for now: its timer is kept until the log has been handled so far."""
    results: tuple[tuple[RunKey, tuple[StepRecord, ...]], ...] = ()
    """Results of runs that were refused their write, or failed: not asked for again."""
    attempts: tuple[tuple[RunKey, tuple[FailedAttempt, ...]], ...] = ()
    """Attempts that failed for this message, by run."""
    unsent_escalation: Outgoing | None = None
    """Dead letter about a failing compensation that the log has refused up to now; dropped when the run ends."""
    measurements: Measurements

    @property
    def loaded_progress(self) -> SagaProgress:
        """Return the progress, once it has been read, with what its segments say about the message."""
        assert self.progress is not None
        if not self.recalled:
            return self.progress
        return replace(self.progress, inbox={**self.recalled, **self.progress.inbox})

    @property
    def is_cacheable(self) -> bool:
        """Return True if the progress is stored, and all events that it records are published."""
        return self.progress is not None and self.cas > 0 and not self.unpublished

    def drop_progress(self) -> "ProcessingState":
        """Forget the progress: everything is decided again, on the progress as it is by then."""
        return replace(self, progress=None, cas=0, is_current=False, unpublished=(), recalled=None, paged=None)

    def results_of(self, run: RunKey) -> tuple[StepRecord, ...]:
        return next((calls for known, calls in self.results if known == run), ()) if self.results else ()

    def attempts_of(self, run: RunKey) -> tuple[FailedAttempt, ...]:
        return next((failed for known, failed in self.attempts if known == run), ()) if self.attempts else ()

    def carry(
        self, run: RunKey, calls: tuple[StepRecord, ...], attempts: tuple[FailedAttempt, ...]
    ) -> "ProcessingState":
        """Keep what an unfinished run has got so far."""
        return replace(
            self,
            results=(*(r for r in self.results if r[0] != run), *(((run, calls),) if calls else ())),
            attempts=(*(a for a in self.attempts if a[0] != run), *(((run, attempts),) if attempts else ())),
        )

    def drop_carried(self, run: RunKey) -> "ProcessingState":
        """Drop what a run has carried: it has ended."""
        if not (self.results or self.attempts):
            return self
        return replace(self.carry(run, (), ()), unsent_escalation=None)
