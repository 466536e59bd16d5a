"""The queries that a page or a command can make to the monitor, and their answers.

Answers are values that `msgspec.json.encode` can encode directly. Times are in milliseconds since 1970, durations in
milliseconds. Code that shows answers to people must escape them, because names, ids and classes of errors come from
outside.
"""

from typing import Literal, Protocol

from msgspec import Struct

Why = Literal["dead", "failing", "overdue", "waiting", "silent"]
"""Reason why a saga is stuck: `dead`: a dead letter waits for a person. `failing`: the service's own code fails.
`overdue`: due work has not run. `waiting`: it waits longer than usual. `silent`: nothing was reported for longer than
usual.
"""

PAGE_MAX = 1000
"""Maximum number of sagas on a page, and of entries in any other answer."""


class SagaFilter(Struct, frozen=True, kw_only=True):
    """Filter of sagas: a saga matches if it satisfies every field that is set."""

    text: str = ""
    """Part of the saga id."""
    service: str = ""
    """Name of a service that has reported a transition of the saga."""
    outcome: Literal["", "none", "success", "failure"] = ""
    """Result of the saga; `none` means that it has no outcome yet."""
    kind: str = ""
    """Kind of the saga: type of the message that started it."""
    since_ms: int | None = None
    """Time at which, or after which, the saga began."""
    before_ms: int | None = None
    """Time before which the saga began."""
    dead: bool = False
    """True to select only sagas that a dead letter blocks in some service."""
    open: bool = False
    """True to select only sagas with unfinished work in some service."""
    stuck_ms: int | None = None
    """Time at which the saga is stuck."""


class PageRequest(Struct, frozen=True, kw_only=True):
    """The requested part of a long answer."""

    limit: int = 50
    """Maximum number of sagas on the page, up to `PAGE_MAX`."""
    after: str = ""
    """`SagaPage.next` of the previous page; empty for the first page."""


WHOLE_PAGE = PageRequest(limit=PAGE_MAX)
"""Request for a page of the maximum size."""


class SagaRow(Struct, frozen=True, kw_only=True):
    """Summary of a saga in one row."""

    saga: str
    began_ms: int
    """Time of the saga's first known transition."""
    changed_ms: int
    """Time of the saga's last known transition."""
    result: Literal["", "success", "failure"]
    """Result of the saga; empty if it has no outcome yet."""
    outcome: str
    """Event with which the saga ended; empty if it has no outcome yet."""
    transitions: int
    kind: str = ""
    """Type of the message that started the saga."""
    services: tuple[str, ...]
    """Services that have reported a transition of the saga."""
    open: tuple[str, ...]
    """Services in which the saga has unfinished work."""
    dead: bool
    """True if a dead letter blocks the saga in some service."""


class SagaPage(Struct, frozen=True, kw_only=True):
    """A page of matching sagas, those that changed last first."""

    rows: tuple[SagaRow, ...]
    next: str
    """`PageRequest.after` of the next page; empty if there is none."""
    looked: int
    """Number of sagas that were examined. If this becomes very large, the page ends early."""
    known: int
    """Number of all sagas that the monitor tracks."""


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
    """Service or client that emitted the message."""
    emitted: tuple[str, ...]
    """Types of the events that were emitted. If there are very many, only the first ones."""
    steps: tuple[str, ...]
    error: str
    """Class of the failure; empty if none."""
    attempt: int
    worker: str
    queued_ms: int | None
    """Time from the receipt of the message to the start of its processing; `None` if unknown."""
    handler_ms: int | None
    """Time spent in the handler and in earlier handlers of the same message; `None` if unknown."""


class SagaWait(Struct, frozen=True, kw_only=True):
    """Something that a saga waits for in one service."""

    service: str
    handler: str
    """Handler that waits. Empty if any handler of the last emitted events may be missing."""
    for_: tuple[str, ...]
    """Types of the events that the handler waits for; empty if it waits for a time or a person."""
    since_ms: int
    until_ms: int | None
    """Time at which the saga resumes even if nothing happens before; `None` if none is set."""
    ends: str
    """Description of the event, time or command that ends the wait."""


class StuckSaga(Struct, frozen=True, kw_only=True):
    """A saga that does not continue by itself, or should already have continued."""

    saga: str
    why: Why
    since_ms: int
    """Time since which the saga counts as stuck; see `saga.monitor.stuck_detection` for each reason."""
    measure_ms: int
    """How long the saga was allowed to wait before that."""
    awaited: SagaWait


class StuckFilter(Struct, frozen=True, kw_only=True):
    """Filter of stuck sagas: one matches if it satisfies every field that is set."""

    why: str = ""
    service: str = ""
    """Service in which the saga is stuck. It never matches `silent` sagas, which are stuck in no particular service."""
    kind: str = ""
    """Kind of the saga: type of the message that started it."""
    age_ms: int = 0
    """Minimum time for which the saga has been stuck."""


EVERYTHING = StuckFilter()
"""Filter that every stuck saga matches."""


class StuckCount(Struct, frozen=True, kw_only=True, order=True):
    """Number of sagas that are stuck for one reason, in one service, of one kind."""

    why: Why
    service: str
    """Service in which they are stuck; empty for `silent` sagas."""
    kind: str
    count: int


class StuckSagas(Struct, frozen=True, kw_only=True):
    """Stuck sagas, those stuck longest first. A saga that is stuck in several services appears once for each."""

    sagas: tuple[StuckSaga, ...]
    more: bool
    """True if there are further stuck sagas."""
    next: str = ""
    """`PageRequest.after` of the next page; empty if there is none."""
    counts: tuple[StuckCount, ...] = ()
    """Numbers of all sagas that have been stuck for the filter's minimum age. Its other fields do not apply."""
    unanswered: tuple[str, ...] = ()
    """Reasons why the answer is incomplete: partitions of a shared monitor that could not be queried."""


class KnownNames(Struct, frozen=True, kw_only=True):
    """Names that filters can have, in order, at most `PAGE_MAX` of each."""

    services: tuple[str, ...]
    kinds: tuple[str, ...]
    """Types of the messages that started the tracked sagas."""


class Timeline(Struct, frozen=True, kw_only=True):
    """Everything that the monitor knows about one saga."""

    row: SagaRow
    lines: tuple[TimelineRow, ...]
    """Transitions ordered by time, those of one service by number."""
    missing: int
    """Number of transitions that have not been reported: gaps below the highest transition number of each service."""
    left_out: int
    """Number of older transitions that are left out of `lines`, because it holds only the newest."""
    awaited: tuple[SagaWait, ...]
    stuck: tuple[StuckSaga, ...]
    unanswered: tuple[str, ...] = ()
    """Reasons why the answer is incomplete: partitions of a shared monitor that could not be queried."""


class MinuteRate(Struct, frozen=True, kw_only=True):
    """Transitions of a handler in one minute."""

    minute_ms: int
    transitions: int
    failures: int
    """Number of these transitions that report a failure."""


class HandlerRate(Struct, frozen=True, kw_only=True):
    """Transitions of one handler in the last hour."""

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
    """Durations in milliseconds that 50 %, 95 % and 99 % of the handler's runs did not exceed."""
    queued_p95_ms: float
    """Time in milliseconds that 95 % of its messages did not exceed while they waited for their run."""
    storm: bool
    """True if the handler has a retry storm; see `saga.monitor.counters`."""
    slices: tuple[MinuteRate, ...]
    """The minutes in which there were transitions, oldest first."""


class HandlerRates(Struct, frozen=True, kw_only=True):
    """Rates of all handlers, busiest first."""

    minutes: int
    """Length in minutes of the period that is counted. It ends with the newest transition."""
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


class MinuteActivity(Struct, frozen=True, kw_only=True):
    """Transitions of a service in one minute."""

    minute_ms: int
    transitions: int
    failures: int
    p95_ms: float
    """Duration that 95 % of the runs of this minute did not exceed, in milliseconds; 0 without a run."""


class ServiceActivity(Struct, frozen=True, kw_only=True):
    """Current activity of one service, according to its transition events."""

    service: str
    minutes: tuple[MinuteActivity, ...]
    """The minutes of the last hour in which there were transitions, oldest first."""
    per_s: float
    """Transitions per second in the last five whole minutes."""
    p95_ms: float
    """Duration that 95 % of the runs of the last five minutes did not exceed, in milliseconds; 0 without a run."""
    failures: int
    """Number of transitions of the last five minutes that report a failure."""
    storms: tuple[str, ...]
    """Handlers that have a retry storm."""
    parked: int
    """Number of sagas with a parked run in this service."""
    behind_breaker: int
    """Number of these sagas whose run waits for an open circuit breaker."""
    stuck: dict[Why, int]
    """Number of sagas that are stuck in this service, by reason. Reasons that do not occur are missing."""
    oldest: tuple[StuckSaga, ...]
    """For each of these reasons, the saga that has been stuck longest. The longest of them comes first."""


class MonitorActivity(Struct, frozen=True, kw_only=True):
    """Current activity of all services, according to their transition events."""

    newest_ms: int
    """Time of the newest transition; 0 if there is none."""
    sagas: int
    in_flight: int
    """Number of sagas without an outcome."""
    services: tuple[ServiceActivity, ...]
    """Services by name."""
    silent: int
    """Number of `silent` sagas. They are stuck in no particular service."""
    oldest_silent: StuckSaga | None


class ErrorClass(Struct, frozen=True, kw_only=True):
    """Failures of one class in one handler in the last hour."""

    service: str
    handler: str
    error: str
    count: int
    last_ms: int
    saga: str
    """Saga in which the last such failure happened."""


class HotSaga(Struct, frozen=True, kw_only=True):
    """Saga with very many transitions."""

    saga: str
    transitions: int


class HotPartition(Struct, frozen=True, kw_only=True):
    """A partition that gets more than its share of a topic's messages."""

    topic: str
    partition: int
    transitions: int
    """Number of transitions in the last hour that messages of this partition caused."""
    share: float
    """Ratio of this partition's transitions to the mean of the topic's partitions that had any."""


class HotSpots(Struct, frozen=True, kw_only=True):
    """Sagas and partitions with unusually many transitions, hottest first."""

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
        """Return one saga across all services; `None` if nothing was reported about it, or if the monitor has dropped
        it.
        """

    def rates(self) -> HandlerRates:
        """Return the rates and durations of each handler."""

    def names(self) -> KnownNames:
        """Return the services and kinds of sagas that are known."""

    def stuck(self, now_ms: int, which: StuckFilter = EVERYTHING, page: PageRequest = WHOLE_PAGE) -> StuckSagas:
        """Return a page of the sagas that are stuck now, and the numbers of all of them."""

    def activity(self, now_ms: int) -> MonitorActivity:
        """Return what is happening in each service now."""

    def errors(self) -> tuple[ErrorClass, ...]:
        """Return failures by class, most frequent first."""

    def hot(self) -> HotSpots:
        """Return hot sagas and partitions."""
