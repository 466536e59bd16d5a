"""Answers of the monitor, and the questions that a page or a command may ask it.

Answers are values that `msgspec.json.encode` writes as they stand: times are milliseconds since 1970, durations
milliseconds. Whoever shows one to a person escapes it: names, ids and classes of errors came from outside.
"""

from typing import Literal, Protocol

from msgspec import Struct

Why = Literal["dead", "failing", "overdue", "waiting", "silent"]
"""Reason for which a saga is stuck: a dead letter waits for a person; the service's own code fails; what was due has
not run; it waits longer than is usual; nothing was told of it for longer than is usual."""

PAGE_MAX = 1000
"""Most sagas on a page, and most entries of each other answer."""


class SagaFilter(Struct, frozen=True, kw_only=True):
    """Choice of sagas: those for which all that is given holds."""

    text: str = ""
    """Part of the saga's id."""
    service: str = ""
    """Service that has told something of it."""
    outcome: Literal["", "none", "success", "failure"] = ""
    """Result of the saga; `none`: it has no outcome yet."""
    before_ms: int | None = None
    """Time before which it began."""
    dead: bool = False
    """True: a dead letter blocks it somewhere."""
    open: bool = False
    """True: something of it is still to happen somewhere."""
    stuck_ms: int | None = None
    """Time at which it is stuck."""


class PageRequest(Struct, frozen=True, kw_only=True):
    """Part of a long answer."""

    limit: int = 50
    """Most sagas on it, up to `PAGE_MAX`."""
    after: str = ""
    """`SagaPage.next` of the page before; empty: the first page."""


class SagaRow(Struct, frozen=True, kw_only=True):
    """A saga in one line."""

    saga: str
    began_ms: int
    """Time of its first transition that is known."""
    changed_ms: int
    """Time of its last one."""
    result: Literal["", "success", "failure"]
    """Result with which it ended; empty: it has no outcome yet."""
    outcome: str
    """Event with which it ended."""
    transitions: int
    services: tuple[str, ...]
    """Services that have told something of it."""
    open: tuple[str, ...]
    """Services in which something of it is still to happen."""
    dead: bool
    """True: a dead letter blocks it somewhere."""


class SagaPage(Struct, frozen=True, kw_only=True):
    """Sagas that were asked for, last changed first."""

    rows: tuple[SagaRow, ...]
    next: str
    """`PageRequest.after` of the next page; empty: there is none."""
    looked: int
    """Number of sagas that were looked at: a page ends, too, when these are very many."""
    known: int
    """Number of sagas that the monitor knows, whatever was asked for."""


class TimelineRow(Struct, frozen=True, kw_only=True):
    """Transition of a saga, as one line of its timeline."""

    service: str
    number: int
    time_ms: int
    handler: str
    outcome: str
    type: str
    """Type of the message that was handled."""
    source: str
    """Service or client that sent it."""
    emitted: tuple[str, ...]
    """Types of the events that followed; of very many the first."""
    steps: tuple[str, ...]
    error: str
    """Class of the failure; empty: none."""
    attempt: int
    worker: str
    queued_ms: int | None
    """Time between taking the message and its turn; `None`: nobody saw it."""
    handler_ms: int | None
    """Time in the handler, and in others of its message before; `None`: nobody saw it."""


class SagaWait(Struct, frozen=True, kw_only=True):
    """Something that a saga waits for in one service."""

    service: str
    handler: str
    """Handler that waits; empty: whoever takes what was said last."""
    for_: tuple[str, ...]
    """Types of events that it waits for; empty: a time, or a person."""
    since_ms: int
    until_ms: int | None
    """Time at which it goes on by itself, if nothing comes before; `None`: no time is set."""
    ends: str
    """Event, time or command that would end it, in words."""


class StuckSaga(Struct, frozen=True, kw_only=True):
    """A saga that does not go on by itself, or ought to have."""

    saga: str
    why: Why
    since_ms: int
    """Time since which it is stuck, by the measure of `why`."""
    measure_ms: int
    """Time that was allowed for it before."""
    awaited: SagaWait


class StuckSagas(Struct, frozen=True, kw_only=True):
    """Sagas that are stuck, longest first."""

    sagas: tuple[StuckSaga, ...]
    more: bool
    """True: there are more than these."""
    unanswered: tuple[str, ...] = ()
    """Reasons why something is missing: parts that a shared monitor could not ask for."""


class Timeline(Struct, frozen=True, kw_only=True):
    """All that is known of one saga."""

    row: SagaRow
    lines: tuple[TimelineRow, ...]
    """Transitions by time; those of one service by number."""
    missing: int
    """Number of transitions that were told of no more, or not yet: gaps below the last number of each service."""
    left_out: int
    """Number of the oldest that are not in `lines`: it holds the newest only."""
    awaited: tuple[SagaWait, ...]
    stuck: tuple[StuckSaga, ...]
    unanswered: tuple[str, ...] = ()
    """Reasons why something is missing: parts that a shared monitor could not ask for."""


class MinuteRate(Struct, frozen=True, kw_only=True):
    """Transitions of a handler in one minute."""

    minute_ms: int
    transitions: int
    failures: int
    """Number of them that tell of a failure."""


class HandlerRate(Struct, frozen=True, kw_only=True):
    """Transitions of one handler in the last minutes."""

    service: str
    handler: str
    transitions: int
    per_s: float
    """Transitions a second in the last five whole minutes."""
    runs: int
    retries: int
    dead: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    """Times of its runs: half, 95 % and 99 % of them took no longer."""
    queued_p95_ms: float
    """Time between message and run that 95 % did not exceed."""
    storm: bool
    """True: it retries more than it gets done."""
    slices: tuple[MinuteRate, ...]
    """Minutes in which there was something, oldest first."""


class HandlerRates(Struct, frozen=True, kw_only=True):
    """Rates of all handlers, busiest first."""

    minutes: int
    """Length of the window, in minutes up to the newest transition."""
    newest_ms: int
    """Time of the newest transition; 0: there is none."""
    sagas: int
    in_flight: int
    """Sagas without an outcome."""
    taken: int
    """Transitions folded since the monitor began to read."""
    handlers: tuple[HandlerRate, ...]
    unanswered: tuple[str, ...] = ()
    """Reasons why something is missing: parts that a shared monitor could not ask for."""


class ErrorClass(Struct, frozen=True, kw_only=True):
    """Failures of one class in one handler, in the last minutes."""

    service: str
    handler: str
    error: str
    count: int
    last_ms: int
    saga: str
    """Saga of the last one."""


class HotSaga(Struct, frozen=True, kw_only=True):
    """Saga with very many transitions."""

    saga: str
    transitions: int


class HotPartition(Struct, frozen=True, kw_only=True):
    """Partition that gets more than its share of a topic's messages."""

    topic: str
    partition: int
    transitions: int
    """Transitions because of its messages, in the last minutes."""
    share: float
    """Factor over the mean of the topic's partitions from which anything came."""


class HotSpots(Struct, frozen=True, kw_only=True):
    """Keys and partitions that get more than others, hottest first."""

    sagas: tuple[HotSaga, ...]
    partitions: tuple[HotPartition, ...]
    unanswered: tuple[str, ...] = ()
    """Reasons why something is missing: parts that a shared monitor could not ask for."""


class Views(Protocol):
    """Monitor, as those see it who ask. Each answer is bounded, and comes in less than a tenth of a second at a million
    sagas."""

    def sagas(self, which: SagaFilter, page: PageRequest) -> SagaPage:
        """Page of the sagas that are meant."""

    def saga(self, saga: str, now_ms: int) -> Timeline | None:
        """One saga across all services; `None`: nothing was told of it, or it was forgotten since."""

    def rates(self) -> HandlerRates:
        """Rates and times of each handler."""

    def stuck(self, now_ms: int) -> StuckSagas:
        """Sagas that are stuck now."""

    def errors(self) -> tuple[ErrorClass, ...]:
        """Failures by class, most first."""

    def hot(self) -> HotSpots:
        """Hot keys and partitions."""
