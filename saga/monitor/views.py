"""Answers of the monitor, and the queries that a page or a command may make.

Answers are values that `msgspec.json.encode` writes as they are: times are milliseconds since 1970, durations
milliseconds. Code that shows them to a person has to escape them: names, ids and classes of errors come from outside.
"""

from typing import Literal, Protocol

from msgspec import Struct

Why = Literal["dead", "failing", "overdue", "waiting", "silent"]
"""Reason why a saga is stuck: a dead letter waits for a person; the service's own code fails; something due has not
run; it waits longer than usual; nothing was reported of it for longer than usual."""

PAGE_MAX = 1000
"""Most sagas on a page, and most entries of any other answer."""


class SagaFilter(Struct, frozen=True, kw_only=True):
    """Filter of sagas: a saga matches if it satisfies every field that is set."""

    text: str = ""
    """Part of the saga id."""
    service: str = ""
    """Service that has reported a transition of the saga."""
    outcome: Literal["", "none", "success", "failure"] = ""
    """Result of the saga; `none`: it has no outcome yet."""
    before_ms: int | None = None
    """The saga began before this time."""
    dead: bool = False
    """If true, a dead letter blocks the saga in some service."""
    open: bool = False
    """If true, the saga has unfinished work in some service."""
    stuck_ms: int | None = None
    """The saga is stuck at this time."""


class PageRequest(Struct, frozen=True, kw_only=True):
    """Which part of a long answer is wanted."""

    limit: int = 50
    """Most sagas on the page, up to `PAGE_MAX`."""
    after: str = ""
    """`SagaPage.next` of the previous page; empty for the first page."""


class SagaRow(Struct, frozen=True, kw_only=True):
    """Summary of a saga in one row."""

    saga: str
    began_ms: int
    """Time of its first known transition."""
    changed_ms: int
    """Time of its last known transition."""
    result: Literal["", "success", "failure"]
    """Result of the saga; empty if it has no outcome yet."""
    outcome: str
    """Event with which it ended."""
    transitions: int
    services: tuple[str, ...]
    """Services that have reported a transition of it."""
    open: tuple[str, ...]
    """Services in which it has unfinished work."""
    dead: bool
    """True if a dead letter blocks it in some service."""


class SagaPage(Struct, frozen=True, kw_only=True):
    """One page of the matching sagas, last changed first."""

    rows: tuple[SagaRow, ...]
    next: str
    """`PageRequest.after` of the next page; empty if there is none."""
    looked: int
    """Number of sagas that were examined: a page also ends when these become very many."""
    known: int
    """Number of sagas that the monitor tracks, whatever the filter."""


class TimelineRow(Struct, frozen=True, kw_only=True):
    """Transition of a saga as a row of its timeline."""

    service: str
    number: int
    time_ms: int
    handler: str
    outcome: str
    type: str
    """Type of the message that was handled."""
    source: str
    """Service or client that emitted it."""
    emitted: tuple[str, ...]
    """Types of the events that were emitted; only the first ones of very many."""
    steps: tuple[str, ...]
    error: str
    """Class of the failure; empty if none."""
    attempt: int
    worker: str
    queued_ms: int | None
    """Time from receipt of the message to its turn; `None` if unknown."""
    handler_ms: int | None
    """Time in the handler, and in earlier handlers of the same message; `None` if unknown."""


class SagaWait(Struct, frozen=True, kw_only=True):
    """Something that a saga waits for in one service."""

    service: str
    handler: str
    """Handler that waits; empty for any handler of the last emitted events."""
    for_: tuple[str, ...]
    """Types of the events that it waits for; empty if it waits for a time or a person."""
    since_ms: int
    until_ms: int | None
    """Time at which it resumes by itself if nothing comes before; `None` if none is set."""
    ends: str
    """Description of the event, time or command that would end the wait."""


class StuckSaga(Struct, frozen=True, kw_only=True):
    """A saga that does not resume by itself, or should have."""

    saga: str
    why: Why
    since_ms: int
    """Time since which it is stuck, as `why` measures it."""
    measure_ms: int
    """Time that it was allowed to wait before that."""
    awaited: SagaWait


class StuckSagas(Struct, frozen=True, kw_only=True):
    """Stuck sagas, longest first."""

    sagas: tuple[StuckSaga, ...]
    more: bool
    """True if there are more than these."""
    unanswered: tuple[str, ...] = ()
    """Reasons why the answer is incomplete: partitions of a shared monitor that could not be queried."""


class Timeline(Struct, frozen=True, kw_only=True):
    """Everything that is known of one saga."""

    row: SagaRow
    lines: tuple[TimelineRow, ...]
    """Transitions by time; those of one service by number."""
    missing: int
    """Number of transitions that are not known, or not known yet: gaps below the highest number of each service."""
    left_out: int
    """Number of the oldest transitions that are left out of `lines`, which holds only the newest."""
    awaited: tuple[SagaWait, ...]
    stuck: tuple[StuckSaga, ...]
    unanswered: tuple[str, ...] = ()
    """Reasons why the answer is incomplete: partitions of a shared monitor that could not be queried."""


class MinuteRate(Struct, frozen=True, kw_only=True):
    """Transitions of a handler in one minute."""

    minute_ms: int
    transitions: int
    failures: int
    """Number of them that report a failure."""


class HandlerRate(Struct, frozen=True, kw_only=True):
    """Transitions of one handler in the last minutes."""

    service: str
    handler: str
    transitions: int
    per_s: float
    """Transitions per second in the last five whole minutes."""
    runs: int
    retries: int
    dead: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    """Durations of its runs: 50 %, 95 % and 99 % of them took no longer."""
    queued_p95_ms: float
    """Time that 95 % of its messages at most waited for their run."""
    storm: bool
    """True if it retries more often than it finishes."""
    slices: tuple[MinuteRate, ...]
    """Minutes with any transitions, oldest first."""


class HandlerRates(Struct, frozen=True, kw_only=True):
    """Rates of all handlers, busiest first."""

    minutes: int
    """Length of the window in minutes, up to the newest transition."""
    newest_ms: int
    """Time of the newest transition; 0 if there is none."""
    sagas: int
    in_flight: int
    """Number of sagas without an outcome."""
    taken: int
    """Number of transitions applied since the monitor began to read."""
    handlers: tuple[HandlerRate, ...]
    unanswered: tuple[str, ...] = ()
    """Reasons why the answer is incomplete: partitions of a shared monitor that could not be queried."""


class ErrorClass(Struct, frozen=True, kw_only=True):
    """Failures of one class in one handler, in the last minutes."""

    service: str
    handler: str
    error: str
    count: int
    last_ms: int
    saga: str
    """Saga of the last failure."""


class HotSaga(Struct, frozen=True, kw_only=True):
    """Saga with very many transitions."""

    saga: str
    transitions: int


class HotPartition(Struct, frozen=True, kw_only=True):
    """Partition that gets more than its share of a topic's messages."""

    topic: str
    partition: int
    transitions: int
    """Transitions caused by its messages in the last minutes."""
    share: float
    """How many times the mean of the topic's partitions it gets, counting only partitions with messages."""


class HotSpots(Struct, frozen=True, kw_only=True):
    """Sagas and partitions that get more than others, hottest first."""

    sagas: tuple[HotSaga, ...]
    partitions: tuple[HotPartition, ...]
    unanswered: tuple[str, ...] = ()
    """Reasons why the answer is incomplete: partitions of a shared monitor that could not be queried."""


class Views(Protocol):
    """Interface of the monitor's queries. Each answer is bounded, and takes less than a tenth of a second with a
    million sagas."""

    def sagas(self, which: SagaFilter, page: PageRequest) -> SagaPage:
        """Return a page of the sagas that match the filter."""

    def saga(self, saga: str, now_ms: int) -> Timeline | None:
        """Return one saga across all services; `None` if nothing was reported of it, or it has been forgotten."""

    def rates(self) -> HandlerRates:
        """Return the rates and durations of each handler."""

    def stuck(self, now_ms: int) -> StuckSagas:
        """Return the sagas that are stuck now."""

    def errors(self) -> tuple[ErrorClass, ...]:
        """Return failures by class, most frequent first."""

    def hot(self) -> HotSpots:
        """Return hot sagas and partitions."""
