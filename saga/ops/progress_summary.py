"""Part of a progress that a list of sagas shows, read without the rest: messages and transitions are passed over."""

import msgspec
from msgspec import Raw, Struct

from saga.errors import SagaError
from saga.progress.document import FORMAT, UNREADABLE, IntentKind, Outcome


class SummaryMessage(Struct, frozen=True, gc=False):
    """Kept message: for which handler it is."""

    handler: str
    n: int
    dead: str | None = None
    attempts: int = 0
    due_ms: int = 0
    put_off: bool = False
    decides: bool = False


class SummaryIntent(Struct, frozen=True, gc=False):
    """Open intent: whose it is, and since when."""

    handler: str
    kind: IntentKind
    time: str
    name: str = ""


class SummaryRun(Struct, frozen=True, gc=False):
    """Run that has ended: whose it was."""

    handler: str


class SummaryEvent(Struct, frozen=True, gc=False):
    """Event: its id."""

    id: str


class SummaryResult(Struct, frozen=True, gc=False):
    """Result that can be undone: the event that said it."""

    event: SummaryEvent


class SummaryPage(Struct, frozen=True, gc=False):
    """Page in a document of its own: how much is in it."""

    of: str
    count: int


class SummaryTransition(Struct, frozen=True, gc=False):
    """Transition: when it was written, and what became of the message."""

    time: str
    outcome: Outcome


class SummaryFailedRun(Struct, frozen=True, gc=False):
    """A run that goes on later."""

    handler: str
    due_ms: int


class SummaryAttempt(Struct, frozen=True, gc=False):
    """Attempt that failed: the class of the failure."""

    blame: str | None = None


class SummaryFailure(Struct, frozen=True, gc=False):
    """Transition, with why it was written: looked at only where a run is parked."""

    time: str
    outcome: Outcome
    handler: str
    attempt: int = 1
    reason: str | None = None
    failures: tuple[SummaryAttempt, ...] = ()


class ProgressSummary(Struct, frozen=True, kw_only=True, gc=False):
    """A progress, with the names of `saga.progress.document.SagaProgress`."""

    service: str
    saga: str
    format: int = 1
    version: int = 1
    started: str | None = None
    principal: str | None = None
    outcome: str | None = None
    closed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    ran: tuple[SummaryRun, ...] = ()
    results: tuple[SummaryResult, ...] = ()
    intents: tuple[SummaryIntent, ...] = ()
    queue: tuple[SummaryMessage, ...] = ()
    waiting: tuple[SummaryMessage, ...] = ()
    compensating: tuple[SummaryMessage, ...] = ()
    deadlines: tuple[SummaryMessage, ...] = ()
    later: tuple[SummaryFailedRun, ...] = ()
    pages: tuple[SummaryPage, ...] = ()
    first: int = 0
    transitions: tuple[Raw, ...] = ()


_glances = msgspec.json.Decoder(ProgressSummary)
_entries = msgspec.json.Decoder(SummaryTransition)
_failures = msgspec.json.Decoder(SummaryFailure)


def decode_summary(content: bytes) -> ProgressSummary:
    """A progress as read from a store. Raises `SagaError` for what is none, or of a newer version."""
    try:
        seen = _glances.decode(content)
        if seen.transitions:
            decode_last_transition(seen.transitions[-1])
    except (*UNREADABLE, TypeError) as why:
        raise SagaError(f"it cannot be read: {why}") from why
    if seen.format > FORMAT:
        raise SagaError(f"it has format {seen.format}, and this version reads up to {FORMAT}: use the newer one")
    return seen


def decode_last_transition(raw: Raw) -> SummaryTransition:
    """One transition of a progress."""
    return _entries.decode(raw)


def decode_failure(raw: Raw) -> SummaryFailure | None:
    """One transition of a progress with its reason; `None`: it cannot be read."""
    try:
        return _failures.decode(raw)
    except UNREADABLE:
        return None
