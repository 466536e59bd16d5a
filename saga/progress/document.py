"""The progress: the one document that a service stores for a saga, with its current values and its transitions.

JSON, so that people and tools can read it; the same in every store. All values are immutable: a decision makes a new
one. The current values hold all that decisions read; the transitions are the journal, and the outbox.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias

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
"""The newest that this version reads."""
PLAIN, PAGED, TIMED, CONTINUED, STACKED, VERSIONED, CLAIMED, RELEASED = 1, 2, 3, 4, 5, 6, 7, 8
"""Formats: plain; with pages, deadlines, runs that go on later, results in pages; with a state of a later version than
the first; with a run that has begun and whose answers lie in claims; with a run that a later version of its handler
than the first has begun, or a call in the place of another; with results that keep what their handler took, or with
pages of own events, of events that a handler does not need, or shelves. No older version decides on them."""

Outcome = Literal[
    "handled", "later", "ignored", "noted", "waiting", "queued", "retrying", "compensated", "dead",
    "replayed", "discarded", "resolved", "released",
]  # fmt: skip
IntentKind = Literal["do", "undo", "lieu"]
RunKey: TypeAlias = tuple[IntentKind, str, str]
"""Kind, handler and cause of one run."""
SegmentKind = Literal["inbox", "queue", "waiting", "results", "own"]


class AbortAction(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A call that takes back what its run did before it recorded the call."""

    call: str
    """`resource.method`, or `module:function`: another process finds it by that."""
    args: tuple[Raw, ...] = ()
    named: dict[str, Raw] = {}
    """Arguments that were given by name."""
    saga: tuple[str, ...] = ()
    """Places and names of the arguments that are the saga itself."""
    after: int = 0
    """Calls of its turn that were answered before; 0 for one of an earlier turn."""


class OverflowSegment(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Reference to an overflow segment: an immutable document of its own. See `saga.progress.overflow`."""

    of: SegmentKind
    name: str
    count: int
    newest: int
    """Time at which its newest entry was made, in seconds since 1970."""
    until: int = 0
    """Time from which on it may have expired, in seconds since 1970; 0: it never does."""
    bound: str = ""
    """Sum of the digests of its items, as `count` with those of the pages below it: see `saga.progress.integrity`."""
    had: str = ""
    """Sum that takes the place of `bound` once nobody will ever handle what is kept in it, and it counts as had."""
    first: int = 0
    last: int = 0
    """The transitions that kept its first and its last message."""
    handlers: tuple[str, ...] = ()
    """Handlers for which messages are kept in it, sorted; of results the one whose they are, of own events those that
    have not had them."""
    types: tuple[str, ...] = ()
    """Types of the messages in it, sorted, where their handlers do not say which: of own events, and of events that a
    handler does not need."""
    level: int = 0
    """More than 0 for a shelf, which lists pages of a level less: see `saga.progress.overflow`."""

    def closed(self, now_s: int, until: int) -> "OverflowSegment":
        """Return it as a segment of the inbox: the messages in it are never handled.

        One that never expires stays so until the next write replaces it by one that does.
        """
        until = min(self.until, until)
        none = ()
        return replace(
            self, of="inbox", bound=self.had, had="", handlers=none, types=none, level=0, newest=now_s, until=until
        )

    def is_forgotten(self, now_s: int) -> bool:
        """Return True if everything in it is older than the retention."""
        return self.of == "inbox" and 0 < self.until < now_s


class StepRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A step, a document update or a document read of a handler, as begun; with its answer, once that is recorded."""

    kind: Literal["step", "update", "read"]
    name: str
    """The function's own name; for a read the document's collection."""
    number: int
    """Counted by name, in order of calls."""
    input: str
    """Digest of the arguments."""
    arguments: str = ""
    """The arguments themselves, for people, where they are short and the run was given nothing sensitive."""
    document: str | None = None
    """`collection/key`, for updates and reads."""
    value: Raw = Raw(b"null")
    """Value that it gave."""
    claim: str = ""
    """Name of the document that holds the value in its place: see `saga.engine.persistence.overflow_store`."""
    ms: int = 0
    """Milliseconds that a step took, by the clock of the worker that made it; for people."""
    answer: str | None = None
    """The declared exception it raised, by class name; `value` then holds its arguments."""
    instead: str = ""
    """Way by which it came, if the call was refused: the function that was called in its place, or `remembered`."""
    by: str | None = None
    """Person who gave this answer in the place of the outside: for this name and number, whatever a rerun asks with."""

    @property
    def in_words(self) -> str:
        """Describe the call for people, with its arguments if they are recorded."""
        return f"{self.kind} {self.name}" + (f"({self.arguments})" if self.arguments else "")


class Intent(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The durable record that a run has begun, with everything that a rerun may see."""

    handler: str
    kind: IntentKind
    name: str = ""
    """Name of the compensation itself, for people; of an intent of kind `undo`."""
    cause: str
    message: Message
    parts: tuple[Message, ...]
    """For `do` one for each parameter, then those that may be absent; for `undo` outcome, result, what was taken."""
    state: dict[str, Any]
    version: int = 1
    """Version of that state: a run goes on with the state that it began on, whatever comes of the saga's own."""
    handler_version: int = 1
    """Version of the handler, or compensation, under which the run began: no older one goes on with it."""
    time: str
    begins: StepRecord | None = None
    """Call that began with the write of this note; nobody knows yet how it ended."""
    calls: tuple[StepRecord, ...] = ()
    undo_with: tuple[AbortAction, ...] = ()
    """Calls with which it is taken back, should it never come to its end, in the order in which they were said."""
    left: tuple[StepRecord, ...] = ()
    """For `lieu` what the original did, or earlier turns of it, and nothing takes back."""
    maybe: StepRecord | None = None
    """For `lieu` with `on_abort`, whose calls the others are, the one that the original had begun."""

    @property
    def open_call(self) -> StepRecord | None:
        """Return the call that has begun and has no answer. If the run failed after the call, its answer is in the
        intent too."""
        begins = self.begins
        if begins is None or any((c.name, c.number) == (begins.name, begins.number) for c in self.calls):
            return None
        return begins


class PendingMessage(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message stored for a handler, in `queue`, `waiting`, `compensating` or `deadlines`."""

    handler: str
    message: Message
    n: int
    """The number of the transition that kept it first: its place among the others, which goes wherever it goes."""
    dead: str | None = None
    """The id of its dead letter: it stays at the head of the queue until a person decides."""
    bad: str | None = None
    """Reason for which it can never be decoded."""
    attempts: int = 0
    """Number of attempts that have failed."""
    under: dict[str, int] = {}
    """Number of them under each of the rules that have a name: see `saga.policies.retry`."""
    due_ms: int = 0
    """Time, in milliseconds since 1970, until which it is parked: then the next attempt is made. 0: it is not."""
    delay_ms: int = 0
    """Milliseconds for which it was to be parked when that time was set; 0: not told."""
    put_off: bool = False
    """True if a pause, a limit or an open breaker parked it last, and not a failed attempt."""
    decides: bool = False
    """True for a part in `waiting` whose handler may emit an outcome: it never runs once the saga has ended here."""
    disputed: tuple[tuple[str, int], ...] = ()
    """Steps and reads of a dead run, by name and number, on which its record and its code differ: a person may answer
    these whatever is recorded, and of the others only the open call."""


class SuspendedRun(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A run that returned `Later`: it continues at a time or on an event. What its turns did is recorded."""

    handler: str
    parts: tuple[Message, ...]
    """The messages that it needs, one for each event parameter; the first stands for all."""
    n: int
    """Number of the transition that ended its last turn."""
    turn: int
    """Number of its turns that are over."""
    handler_version: int = 1
    """Version of the handler under which its first turn began."""
    first_ms: int
    """Time of its first turn, in milliseconds since 1970."""
    seen_ms: int
    """Time of its last turn."""
    due_ms: int
    """Time at which it goes on, if nothing for which it waits comes before; of the next attempt, if one has failed."""
    delay_ms: int = 0
    """Milliseconds for which it was to wait when that time was set, by a failed attempt or because it was put off; 0:
    by its last turn."""
    until: tuple[str, ...] = ()
    """Types for which it waits."""
    by: str = ""
    """Message that was in hand when its last turn ended."""
    attempts: int = 0
    """Attempts of its next turn that have failed."""
    under: dict[str, int] = {}
    """Number of them under each of the rules that have a name."""
    calls: tuple[StepRecord, ...] = ()
    """Steps and updates of its turns that nothing takes back, of very many the newest: see `saga.progress.journal`."""
    undo_with: tuple[AbortAction, ...] = ()


class CompensableResult(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An event of a run that the handler's compensation can undo."""

    handler: str
    cause: str
    event: Message
    took: tuple[Message, ...] = ()
    """Messages that its handler took, of those that its compensation names."""
    own: tuple[str, ...]
    """Ids of the own events of that run, withdrawn as parts with its last result."""
    n: int = 0
    """Number of the transition that says it; 0 also from versions that did not tell."""


class SelfConsumedEvent(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An event that this service both emits and consumes; consumed from transition `n`, not from the log."""

    event: Message
    n: int
    only: tuple[str, ...] = ()
    """Handlers that it is for, of one that was in a page: the others had had it. Empty: all that take its type."""

    def is_for(self, handler: str) -> bool:
        """Return whether a handler that consumes its type may not have processed it."""
        return not self.only or handler in self.only


class CompletedRun(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message that a handler has completed a run on."""

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
    """Earliest time for which something waited when it was named, in milliseconds since 1970."""


class FailedAttempt(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An attempt that failed, for people."""

    time: str
    """Time at which it failed."""
    ms: int
    """Milliseconds that it took."""
    reason: str
    worker: str = ""
    rule: str = ""
    """Name of the rules for trying it again under which it counts, if they have one."""
    blame: Blame | None = None
    """Class of the failure: who can mend it."""


class SagaProgress(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The progress of one saga in one service."""

    service: str
    saga: str
    format: int = PLAIN
    started: str | None = None
    """Time at which the saga began; `None`: no message has told yet."""
    principal: str | None = None
    """Principal that began it, as the message says that told when; `None`: nobody said."""
    state: dict[str, Any] = {}
    version: int = 1
    """Version of the state: of the release that wrote the progress first, until a run of a later one ends."""
    outcome: str | None = None
    """The outcome that this service emitted."""
    inbox: dict[str, int] = {}
    """Entry of (message, handler) -> time at which it was made, in seconds since 1970."""
    ran: tuple[CompletedRun, ...] = ()
    closed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    """The types of the failure outcomes because of which something was undone or closed here."""
    results: tuple[CompensableResult, ...] = ()
    own: tuple[SelfConsumedEvent, ...] = ()
    heard: tuple[str, ...] = ()
    """Types of own events that the version which wrote this takes: others that it emitted are in transitions alone."""
    intents: tuple[Intent, ...] = ()
    queue: tuple[PendingMessage, ...] = ()
    waiting: tuple[PendingMessage, ...] = ()
    compensating: tuple[PendingMessage, ...] = ()
    deadlines: tuple[PendingMessage, ...] = ()
    """Messages that opened a deadline which is open: each runs at its time."""
    later: tuple[SuspendedRun, ...] = ()
    """Runs that go on later."""
    pages: tuple[OverflowSegment, ...] = ()
    """Pages with what does not fit in here, oldest first."""
    wake: CurrentTimer | None = None
    """The current wake; `None`: nothing waits for time."""
    replays: int = 0
    n: int = 0
    """Number of transitions; the next one gets this number."""
    published: int = 0
    """The events of all transitions below this number are published."""
    told: int = 0
    """All transitions below this number are told to whoever watches: see `saga.transitions`."""
    hash: str = ""
    """SHA-256 of the last transition's bytes."""
    first: int = 0
    """The number of the first transition that is in here; those before are archived."""
    transitions: tuple[Raw, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether the saga has open work in this service. Then the document never expires."""
        return bool(self.intents or self.deadlines or self.later) or self.may_stand

    @property
    def may_stand(self) -> bool:
        """Whether the saga may stay open until an operator acts."""
        return bool(self.queue or self.compensating or (self.waiting and self.started is None))

    @property
    def is_quarantined(self) -> bool:
        """Whether a dead letter of a handler or a compensation blocks the saga until an operator decides."""
        return any(k.dead for k in (*self.queue, *self.compensating))


class EmittedEvent(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An event as its transition holds it; the rest of its envelope is the transition's and the saga's."""

    id: str
    type: str
    schema: str
    value: bytes


class DeadLetterRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A dead letter or an escalation: a message that was given up, or a compensation that could not be completed."""

    id: str
    what: Literal["dead letter", "escalation", "dropped", "replayed", "discarded", "resolved"]
    handler: str
    reason: str
    remedy: str
    message: Message
    attempts: int = 0
    where: str | None = None
    """Place in the service's code at which the last attempt failed."""
    stack: tuple[str, ...] = ()
    """Places that led there, outermost first; bounded."""
    blame: Blame | None = None
    """Class of the failure: who can mend it."""
    state: str = ""
    """The saga's state before the run that failed, as JSON; cut if it is long."""
    calls: tuple[str, ...] = ()
    """Calls that ran or may have happened, for a person to put right."""


class Transition(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One write of the progress: which message caused it, for which handler, what came of it, and what it emits."""

    n: int
    previous: str
    """SHA-256 of the bytes of the transition before; of the first what `saga.progress.integrity.seed` gives."""
    time: str
    outcome: Outcome
    handler: str
    message: str
    type: str
    source: str
    cause: str = ""
    position: tuple[str, int, int] | None = None
    """Place of the message in the log, if the progress knew nothing of it: or what a zombie did is never published."""
    log_id: str = ""
    """Id of that log."""
    reason: str | None = None
    attempt: int = 1
    failures: tuple[FailedAttempt, ...] = ()
    """Attempts that failed since the transition before; of very many the last ones."""
    delta: dict[str, Any] = {}
    """The fields of the state that changed; all of them, where the version is a new one."""
    version: int = 1
    """Version of the state from here on."""
    changes: dict[str, str] = {}
    """Digests of what changed of the rest of the snapshot, and when the saga began: see `saga.progress.integrity`."""
    events: tuple[EmittedEvent, ...] = ()
    calls: tuple[StepRecord, ...] = ()
    shown: tuple[str, ...] = ()
    """Messages that the run was shown, and did not need."""
    letters: tuple[DeadLetterRecord, ...] = ()
    wake: CurrentTimer | None = None
    """Wake that is the current one from here on, and is published with the events."""
    trace: str | None = None

    @property
    def ran(self) -> bool:
        """Return True if a handler ran: to its end, or to the end of a turn."""
        return self.outcome in ("handled", "later")


_encoder = msgspec.json.Encoder()
_snapshots = msgspec.json.Decoder(SagaProgress)
_entries = msgspec.json.Decoder(Transition)
encode = _encoder.encode
UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""Errors raised for a value that cannot be written as JSON."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors raised for bytes that are no JSON, not of the type, or nested without end."""


def decode_progress(content: bytes) -> SagaProgress:
    """Decode a progress as read from a store. Raises `SagaError` for one that this version cannot read."""
    try:
        snapshot = _snapshots.decode(content)
    except UNREADABLE as why:
        said = f"a progress document cannot be read: {why}; restore it, or read it with the version that wrote it"
        raise SagaError(said) from why
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
    """Build the events of a transition, with their whole envelope."""
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
    """Return the format of a progress with these, and with a state of this version."""
    if pages and any(page.types or page.level for page in pages):
        return RELEASED
    if version > 1:
        return VERSIONED
    stacked = any(page.of == "results" for page in pages)
    return STACKED if stacked else CONTINUED if later else TIMED if deadlines else PAGED if pages else PLAIN


def is_covered(said: tuple[AbortAction, ...], number: int) -> bool:
    """Return whether one of these takes back the call of that number (from 0) of the same turn."""
    return any(number < each.after for each in said)


_S = TypeVar("_S", bound="DataclassInstance | None", default=None)
_S_co = TypeVar("_S_co", bound="DataclassInstance | None", default=None, covariant=True)


@dataclass(frozen=True, kw_only=True)
class TransitionView:
    """A transition, for people and tests."""

    handler: str
    outcome: Outcome
    reason: str | None
    """Reason for which it was ignored, is waiting, or died; `None` if handled."""


@dataclass(frozen=True, kw_only=True)
class Progress(Generic[_S_co]):
    """The progress of one saga in one service, for tools and tests to read."""

    service: str
    saga_id: str
    state: _S_co
    transitions: tuple[TransitionView, ...]
    """Oldest first; archived ones are left out."""


def build_view(p: SagaProgress, state: _S) -> Progress[_S]:
    """Build the view of a progress document, with the state as the service's class."""
    transitions = tuple(
        TransitionView(handler=entry.handler, outcome=entry.outcome, reason=entry.reason)
        for entry in map(decode_transition, p.transitions)
    )
    return Progress(service=p.service, saga_id=p.saga, state=state, transitions=transitions)
