"""The progress: the one document that a service stores for a saga, with its current values and its transitions.

It is JSON, so that people and tools can read it, and it is the same in every store. All values are immutable: a
decision creates new ones. Decisions read only the current values. The transitions are the journal. The events of
transitions that are not known to be published are the outbox.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace
from typing_extensions import TypeVar

from saga.errors import SagaError
from saga.messages import Message
from saga.policies.retry import Blame

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FORMAT = 8
"""Newest format of a progress that this version of the toolkit reads."""
PLAIN, PAGED, TIMED, CONTINUED, STACKED, VERSIONED, CLAIMED, RELEASED = 1, 2, 3, 4, 5, 6, 7, 8
"""Formats of a progress. Each stands for contents that older versions of the toolkit would misread, so they refuse to
decide on such a progress:

- `PLAIN`: nothing of what follows.
- `PAGED`: overflow segments.
- `TIMED`: open deadlines.
- `CONTINUED`: suspended runs.
- `STACKED`: results in overflow segments.
- `VERSIONED`: a state of version 2 or later.
- `CLAIMED`: an open run with answers in claim checks.
- `RELEASED`: a run that was started under handler version 2 or later; an unanswered call that is a fallback; results
  that store messages which their handler consumed; index segments; or segments that name the types of their messages.
"""

Outcome = Literal[
    "handled", "later", "ignored", "noted", "waiting", "queued", "retrying", "compensated", "dead",
    "replayed", "discarded", "resolved", "released",
]  # fmt: skip
IntentKind = Literal["do", "undo", "lieu"]
ABORT: Final = "lieu"
"""Kind of an intent that replaces a run which will never finish, as it is stored: it undoes the calls of that run."""
RunKey: TypeAlias = tuple[IntentKind, str, str]
"""Key of one run: its kind, handler and cause."""
SegmentKind = Literal["inbox", "queue", "waiting", "results", "own"]


class AbortAction(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A call that undoes what its run did; the run declared it with `saga.on_abort`."""

    call: str
    """Name by which another process finds the function: `resource.method` or `module:function`."""
    args: tuple[Raw, ...] = ()
    named: dict[str, Raw] = {}
    """Arguments that were passed by name."""
    saga: tuple[str, ...] = ()
    """Positions and names of the arguments at which the saga object itself is passed."""
    after: int = 0
    """Number of the turn's calls (steps, updates, reads) that were answered before the run declared this abort action.
    It undoes these calls and no later ones. 0 if an earlier turn declared it.
    """


class OverflowSegment(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    gc=False,
    rename={"kind": "of", "expires": "until", "items_digest": "bound", "inbox_digest": "had"},
):
    """Reference to an overflow segment: an immutable document of its own. See `saga.progress.overflow`."""

    kind: SegmentKind
    name: str
    count: int
    newest: int
    """Time at which the newest entry of the segment was made, in seconds since 1970."""
    expires: int = 0
    """Time after which the segment may have expired, in seconds since 1970; 0 if it never expires."""
    items_digest: str = ""
    """Sum of the digests of the segment's items. Like `count`, it includes the items of the segments to which this one
    refers. See `saga.progress.integrity`."""
    inbox_digest: str = ""
    """Sum of the digests of the inbox entries of the segment's messages. It replaces `items_digest` when the handler is
    closed, because the messages then count as handled."""
    first: int = 0
    last: int = 0
    """Numbers of the transitions that stored its first and its last item."""
    handlers: tuple[str, ...] = ()
    """Names of handlers, sorted. For messages: the handlers for which they are stored. For results: the handler whose
    results they are. For self-consumed events: the handlers that have not processed them."""
    types: tuple[str, ...] = ()
    """Types of the messages in the segment, sorted, if their handlers do not determine them: for self-consumed events,
    and for events of optional parameters."""
    level: int = 0
    """0 for a segment that holds items; 1 or 2 for an index segment, which lists segments of the level below. See
    `saga.progress.overflow`."""

    def closed(self, now_s: int, until: int) -> "OverflowSegment":
        """Return the segment as an inbox segment, because the messages in it will never be handled.

        A segment that never expires keeps that until the next write replaces it with a copy that expires.
        """
        until = min(self.expires, until)
        none = ()
        return replace(
            self,
            kind="inbox",
            items_digest=self.inbox_digest,
            inbox_digest="",
            handlers=none,
            types=none,
            level=0,
            newest=now_s,
            expires=until,
        )

    def is_forgotten(self, now_s: int) -> bool:
        """Return True if everything in the segment is older than the retention."""
        return self.kind == "inbox" and 0 < self.expires < now_s


class StepRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A step, document update, or read (of a document or a flag) of a handler. A step or update is recorded when it
    begins, and again with its answer; a read only with its answer."""

    kind: Literal["step", "update", "read"]
    name: str
    """The function's own name; for a read, the document's collection, or `flag` with the flag's name."""
    number: int
    """Number of the call among the calls of this name in the run."""
    input: str
    """Digest of the arguments."""
    arguments: str = ""
    """The arguments as readable text; empty if they are long, or if the run was given sensitive values."""
    document: str | None = None
    """`collection/key` for updates and reads of documents; `flag/name` for a flag; `None` for a step."""
    value: Raw = Raw(b"null")
    """Value that the call returned."""
    claim: str = ""
    """Claim check: the name of the document that stores a value too large for the progress; `value` is then null. See
    `saga.engine.persistence.overflow_store`."""
    ms: int = 0
    """Milliseconds that a step took, by the clock of the worker that ran it. For display only."""
    answer: str | None = None
    """Class name of the declared exception that the call raised; `value` then holds the exception's arguments. `None`
    if it returned."""
    instead: str = ""
    """Where the answer came from if the call itself was refused: the name of the fallback function, or `remembered` for
    the last good answer. Empty if the call was made."""
    by: str | None = None
    """Operator who supplied this answer in place of the external system. It applies to the call of this name and
    number, whatever arguments a rerun passes."""

    @property
    def description(self) -> str:
        """Describe the call as readable text, with its arguments if they are recorded."""
        return f"{self.kind} {self.name}" + (f"({self.arguments})" if self.arguments else "")

    @property
    def attribution(self) -> str:
        """Name the operator who supplied the answer, as the end of a sentence; empty if it came from the call."""
        return "" if self.by is None else f", as {self.by} says"


class Intent(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    gc=False,
    rename={"not_undone": "left", "unanswered_call": "maybe"},
):
    """The durable record that a run has begun, with everything that a rerun may see."""

    handler: str
    kind: IntentKind
    name: str = ""
    """Name of the compensation, for display; only for an intent of kind `undo`."""
    cause: str
    message: Message
    parts: tuple[Message, ...]
    """Messages that the run was given. For `do`: one for each required parameter, then the optional ones that are
    there. For `undo`: the outcome, the result, and the messages that the handler consumed."""
    state: dict[str, Any]
    version: int = 1
    """Version of `state`. A run continues with the state that it began with, even if the saga's own state was converted
    since."""
    handler_version: int = 1
    """Version of the handler, or compensation, that began the run. No older version continues it."""
    time: str
    begins: StepRecord | None = None
    """The call that was about to begin when this intent was written. Its answer is unknown until it is in `calls`."""
    calls: tuple[StepRecord, ...] = ()
    undo_with: tuple[AbortAction, ...] = ()
    """Calls that undo the run if it never finishes, in the order in which the run declared them."""
    not_undone: tuple[StepRecord, ...] = ()
    """For kind `ABORT`: calls of the original run, or of its earlier turns, that nothing undoes."""
    unanswered_call: StepRecord | None = None
    """For kind `ABORT` with `on_abort` calls: the call of the original run that had begun and has no answer. `begins`
    and `calls` belong to the abort."""

    @property
    def open_call(self) -> StepRecord | None:
        """Return the call that had begun when the intent was last written, if its answer is not recorded; `None`
        otherwise.

        A run that fails after it got the answer leaves no open call, because the failure is recorded together with the
        answers.
        """
        begins = self.begins
        if begins is None or any((c.name, c.number) == (begins.name, begins.number) for c in self.calls):
            return None
        return begins


class PendingMessage(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, rename={"undecodable": "bad"}):
    """A message stored for a handler, in `queue`, `waiting`, `compensating` or `deadlines`."""

    handler: str
    message: Message
    n: int
    """Number of the transition that first stored the message. It determines the message's position in its list, and
    does not change when the message moves to another list or to a segment."""
    dead: str | None = None
    """Id of the message's dead letter. The message stays at the head of the queue until an operator decides."""
    undecodable: str | None = None
    """Reason why the message can never be decoded."""
    attempts: int = 0
    """Number of failed attempts."""
    under: dict[str, int] = {}
    """Number of failed attempts under each named rule: see `saga.policies.retry`."""
    due_ms: int = 0
    """Time of the next attempt, in milliseconds since 1970, until which the message is parked; 0 if it is not parked.
    """
    delay_ms: int = 0
    """Length in milliseconds of the wait that ends at `due_ms`; 0 if unknown."""
    put_off: bool = False
    """True if the message was last parked because of a pause, a limit or an open breaker, not after a failed attempt.
    """
    decides: bool = False
    """True for a pending message whose handler may emit an outcome. That handler never runs after the saga has ended in
    this service."""
    disputed: tuple[tuple[str, int], ...] = ()
    """Steps and reads of a dead run, by name and number, where the handler's code and the run's record differ. An
    operator may answer these even if an answer is recorded. Of the run's other calls, only the open one may be
    answered."""


class SuspendedRun(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    gc=False,
    rename={"awaited_types": "until", "last_message": "by"},
):
    """A run that returned `Later`: it continues at a time or on an event. The calls of its earlier turns are
    recorded."""

    handler: str
    parts: tuple[Message, ...]
    """The messages that the run needs, one for each event parameter; the first identifies the run."""
    n: int
    """Number of the transition that ended its last turn."""
    turn: int
    """Number of finished turns."""
    handler_version: int = 1
    """Version of the handler under which its first turn began."""
    first_ms: int
    """Time of its first turn, in milliseconds since 1970."""
    seen_ms: int
    """Time of its last turn, in milliseconds since 1970."""
    due_ms: int
    """Time at which the run continues if no awaited event arrives before. After a failed attempt, it is the time of the
    next attempt. In milliseconds since 1970."""
    delay_ms: int = 0
    """Length in milliseconds of the wait that ends at `due_ms`, if a failed attempt or a postponement set `due_ms`; 0
    if the last turn set it."""
    awaited_types: tuple[str, ...] = ()
    """Types of the awaited events."""
    last_message: str = ""
    """Id of the message that was being processed when the last turn ended."""
    attempts: int = 0
    """Number of failed attempts of the next turn."""
    under: dict[str, int] = {}
    """Number of failed attempts under each named rule."""
    calls: tuple[StepRecord, ...] = ()
    """Steps and updates of earlier turns that nothing undoes; only the newest if there are very many. See
    `saga.progress.journal`."""
    undo_with: tuple[AbortAction, ...] = ()


class CompensableResult(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    gc=False,
    rename={"consumed": "took", "self_consumed_ids": "own"},
):
    """An event of a run that the handler's compensation can undo."""

    handler: str
    cause: str
    event: Message
    consumed: tuple[Message, ...] = ()
    """Messages that the handler consumed and that its compensation takes as parameters."""
    self_consumed_ids: tuple[str, ...]
    """Ids of the run's self-consumed events. They are withdrawn when the last result of the run is undone."""
    n: int = 0
    """Number of the transition that emitted the event; 0 if an older version of the toolkit, which did not record it,
    wrote the result."""


class SelfConsumedEvent(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An event that this service both emits and consumes. Its handlers get it from transition `n`, not from the log."""

    event: Message
    n: int
    only: tuple[str, ...] = ()
    """Handlers that have not processed the event, if it was in an overflow segment. Empty: all handlers that consume
    its type."""

    def is_for(self, handler: str) -> bool:
        """Return False if it is known, from the event's segment, that the handler has processed the event."""
        return not self.only or handler in self.only


class CompletedRun(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message on which a handler has completed a run."""

    handler: str
    parameter: int
    type: str
    schema: str
    content: str
    message: str


class CurrentTimer(Struct, frozen=True, kw_only=True, gc=False):
    """The current timer of a saga: any other timer message that arrives is stale."""

    id: str
    due_ms: int
    """Earliest time at which work was due when the timer was set, in milliseconds since 1970."""


class FailedAttempt(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A failed attempt, as the journal shows it."""

    time: str
    """Time at which the attempt failed."""
    ms: int
    """Milliseconds that the attempt took."""
    reason: str
    worker: str = ""
    rule: str = ""
    """Name of the retry rule under which the attempt counts; empty for a rule without a name."""
    blame: Blame | None = None
    """Class of the failure: who can correct its cause."""


STORED_NAMES = {
    "completed_runs": "ran",
    "self_consumed": "own",
    "self_consumed_types": "heard",
    "suspended_runs": "later",
    "segments": "pages",
    "timer": "wake",
    "transitions_published": "told",
}
"""Fields of a progress that have another name in its JSON: the first versions of the toolkit wrote these names."""


class SagaProgress(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, rename=STORED_NAMES):
    """The progress of one saga in one service."""

    service: str
    saga: str
    format: int = PLAIN
    started: str | None = None
    """Time at which the saga began; `None` if no message has carried it yet."""
    principal: str | None = None
    """Principal that began the saga, from the first message that carried the time of its start; `None` if that message
    named none."""
    state: dict[str, Any] = {}
    version: int = 1
    """Version of the state. The release that first wrote the progress sets it, and the end of a run of a later release
    raises it."""
    outcome: str | None = None
    """The outcome that this service emitted."""
    inbox: dict[str, int] = {}
    """Maps the inbox entry of each (message, handler) to the time at which it was made, in seconds since 1970."""
    completed_runs: tuple[CompletedRun, ...] = ()
    closed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    """Types of the failure outcomes that caused something to be undone or closed here."""
    results: tuple[CompensableResult, ...] = ()
    self_consumed: tuple[SelfConsumedEvent, ...] = ()
    self_consumed_types: tuple[str, ...] = ()
    """Types of own events that the version of the service which wrote this progress consumes. Other own events are only
    in the transitions."""
    intents: tuple[Intent, ...] = ()
    queue: tuple[PendingMessage, ...] = ()
    waiting: tuple[PendingMessage, ...] = ()
    compensating: tuple[PendingMessage, ...] = ()
    deadlines: tuple[PendingMessage, ...] = ()
    """Messages that opened a deadline which is still open. Each deadline handler runs at its time."""
    suspended_runs: tuple[SuspendedRun, ...] = ()
    """Suspended runs."""
    segments: tuple[OverflowSegment, ...] = ()
    """References to the overflow segments, oldest first."""
    timer: CurrentTimer | None = None
    """The current timer; `None` if nothing waits for a time."""
    replays: int = 0
    n: int = 0
    """Number of transitions; the next one gets this number."""
    published: int = 0
    """The events of all transitions below this number are published."""
    transitions_published: int = 0
    """The transition events of all transitions below this number are published on the topic `saga.transitions`, for
    monitors."""
    hash: str = ""
    """SHA-256 of the last transition's bytes."""
    first: int = 0
    """Number of the first transition in this document; earlier ones are archived."""
    transitions: tuple[Raw, ...] = ()

    @property
    def is_open(self) -> bool:
        """Return whether the saga has open work in this service. Then the document never expires."""
        return bool(self.intents or self.deadlines or self.suspended_runs) or self.may_stand

    @property
    def may_stand(self) -> bool:
        """Return whether the saga may stay open until an operator acts."""
        return bool(self.queue or self.compensating or (self.waiting and self.started is None))

    @property
    def is_quarantined(self) -> bool:
        """Return whether a dead letter of a handler or a compensation blocks the saga until an operator decides."""
        return any(k.dead for k in (*self.queue, *self.compensating))


class EmittedEvent(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An event as its transition stores it. The other fields of its envelope come from the transition and the saga."""

    id: str
    type: str
    schema: str
    value: bytes


class DeadLetterRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, rename={"kind": "what"}):
    """A dead letter or an escalation: a message that was given up, or a compensation that could not be completed."""

    id: str
    kind: Literal["dead letter", "escalation", "dropped", "replayed", "discarded", "resolved"]
    handler: str
    reason: str
    remedy: str
    message: Message
    attempts: int = 0
    where: str | None = None
    """Place in the service's code at which the last attempt failed."""
    stack: tuple[str, ...] = ()
    """Places in the code that led to the failure, outermost first; their number is limited."""
    blame: Blame | None = None
    """Class of the failure: who can correct its cause."""
    state: str = ""
    """The saga's state before the failed run, as JSON; truncated if it is long."""
    calls: tuple[str, ...] = ()
    """Calls that ran or may have run, and that a person has to correct by hand."""


class Transition(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, rename={"timer": "wake"}):
    """One entry of the journal: the message that caused it, the handler, the outcome, and the emitted events."""

    n: int
    previous: str
    """SHA-256 of the bytes of the previous transition; for the first transition,
    `saga.progress.integrity.get_initial_hash`."""
    time: str
    outcome: Outcome
    handler: str
    message: str
    type: str
    source: str
    cause: str = ""
    position: tuple[str, int, int] | None = None
    """Position of the message in the log. Once its offset is committed, the events are known to be published. `None` if
    the progress knew the message before: its offset may have been committed already, and then the events of a
    transition that a zombie wrote would never be published."""
    log_id: str = ""
    """Id of the log to which `position` belongs."""
    reason: str | None = None
    attempt: int = 1
    failures: tuple[FailedAttempt, ...] = ()
    """Attempts that failed since the previous transition; only the last ones if there are very many."""
    delta: dict[str, Any] = {}
    """The fields of the state that changed; all fields if the state has a new version."""
    version: int = 1
    """Version of the state from this transition on."""
    changes: dict[str, str] = {}
    """For each digested field that changed, the difference of its digest sums; also the start of the saga and its
    principal, if new. See `saga.progress.integrity`."""
    events: tuple[EmittedEvent, ...] = ()
    calls: tuple[StepRecord, ...] = ()
    shown: tuple[str, ...] = ()
    """Ids of the optional messages that the run was given, if its handler may return `Later`."""
    letters: tuple[DeadLetterRecord, ...] = ()
    timer: CurrentTimer | None = None
    """Timer that is the current one from this transition on. It is published with the events."""
    trace: str | None = None

    @property
    def ran(self) -> bool:
        """Return True if a handler ran to its end, or to the end of a turn."""
        return self.outcome in ("handled", "later")


_encoder = msgspec.json.Encoder()
_snapshots = msgspec.json.Decoder(SagaProgress)
_entries = msgspec.json.Decoder(Transition)
encode = _encoder.encode
UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""Errors raised for a value that cannot be written as JSON."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors raised for bytes that are not JSON, do not fit the type, or are nested too deeply."""


def decode_progress(content: bytes) -> SagaProgress:
    """Decode a progress as read from a store.

    Raises `SagaError` if the bytes cannot be decoded, or if their format is newer than this version reads.
    """
    try:
        snapshot = _snapshots.decode(content)
    except UNREADABLE as why:
        text = f"a progress document cannot be read: {why}; restore it, or read it with the version that wrote it"
        raise SagaError(text) from why
    if snapshot.format > FORMAT:
        raise SagaError(
            f"the progress of saga {snapshot.saga!r} has format {snapshot.format}, this version reads up to {FORMAT}: "
            "run the newer version of the toolkit"
        )
    return snapshot


def decode_transition(raw: Raw) -> Transition:
    """Decode one transition of a progress."""
    return _entries.decode(raw)


def build_messages(p: SagaProgress, entry: Transition) -> list[Message]:
    """Build the messages of a transition's events, with complete envelopes."""
    return [
        Message(
            id=e.id,
            type=e.type,
            schema=e.schema,
            saga=p.saga,
            source=p.service,
            time=entry.time,
            value=e.value,
            started=p.started,
            trace=entry.trace,
            principal=p.principal,
        )
        for e in entry.events
    ]


def progress_key(service: str, saga: str) -> str:
    """Return the key of a progress document, in collection `saga`."""
    return f"{service}::{saga}"


def compute_format(
    pages: Sequence[OverflowSegment], deadlines: Sequence[object], later: Sequence[object], version: int
) -> int:
    """Return the format of a progress with these segments, deadlines and suspended runs, and with this version of the
    state."""
    if pages and any(page.types or page.level for page in pages):
        return RELEASED
    if version > 1:
        return VERSIONED
    stacked = any(page.kind == "results" for page in pages)
    return STACKED if stacked else CONTINUED if later else TIMED if deadlines else PAGED if pages else PLAIN


def is_covered(actions: tuple[AbortAction, ...], number: int) -> bool:
    """Return whether one of these abort actions undoes a call of the same turn. `number`: the call's number, from 0."""
    return any(number < each.after for each in actions)


_S = TypeVar("_S", bound="DataclassInstance | None", default=None)
_S_co = TypeVar("_S_co", bound="DataclassInstance | None", default=None, covariant=True)


@dataclass(frozen=True, kw_only=True)
class TransitionView:
    """A transition, as tools and tests read it."""

    handler: str
    outcome: Outcome
    reason: str | None
    """Reason why the message was ignored, is waiting, or became a dead letter; `None` if it was handled."""


@dataclass(frozen=True, kw_only=True)
class Progress(Generic[_S_co]):
    """The progress of one saga in one service, for tools and tests to read."""

    service: str
    saga_id: str
    state: _S_co
    transitions: tuple[TransitionView, ...]
    """Transitions, oldest first, without the archived ones."""


def build_view(p: SagaProgress, state: _S) -> Progress[_S]:
    """Build the view of a progress document, with the state as the service's class."""
    transitions = tuple(
        TransitionView(handler=entry.handler, outcome=entry.outcome, reason=entry.reason)
        for entry in map(decode_transition, p.transitions)
    )
    return Progress(service=p.service, saga_id=p.saga, state=state, transitions=transitions)
