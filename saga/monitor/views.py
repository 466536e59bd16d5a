"""The queries to the monitor that a page or a command can make, and the answers.

Answers are values that `msgspec.json.encode` can encode directly. Times are in milliseconds since 1970, durations in
milliseconds. Code that shows answers to people must escape them, because names, ids and classes of errors come from
outside.
"""

from typing import Literal, Protocol

from msgspec import Struct

Why = Literal["dead", "failing", "overdue", "waiting", "silent"]
"""Reason why a saga is stuck. `dead`: a dead letter waits for a person. `failing`: the service's own code fails.
`overdue`: work that was due has not run. `waiting`: a handler waits longer than usual. `silent`: nothing was reported
for longer than usual."""

PAGE_MAX = 1000
"""Maximum number of sagas on a page, and of entries in any other answer."""


class SagaFilter(Struct, frozen=True, kw_only=True):
    """Filter of sagas. A saga has to match every field that is set."""

    text: str = ""
    """Part of the saga id."""
    service: str = ""
    """Name of a service that has reported a transition of the saga."""
    outcome: Literal["", "none", "success", "failure"] = ""
    """Result of the saga; `none` means that it has no outcome yet."""
    kind: str = ""
    """Kind of the saga: the type of the message that started it."""
    since_ms: int | None = None
    """The saga began at this time or later."""
    before_ms: int | None = None
    """The saga began before this time."""
    dead: bool = False
    """True to select only sagas that a dead letter blocks in some service."""
    open: bool = False
    """True to select only sagas with unfinished work in some service."""
    stuck_ms: int | None = None
    """The saga is stuck at this time."""


class PageRequest(Struct, frozen=True, kw_only=True):
    """Which part of a long answer is requested."""

    limit: int = 50
    """Maximum number of sagas on the page; at most `PAGE_MAX`."""
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
    """Event type with which the saga ended; empty if it has no outcome yet."""
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
    """A page of matching sagas. Those that changed last come first; in a list of sagas without an outcome, those that
    began first."""

    rows: tuple[SagaRow, ...]
    next: str
    """`PageRequest.after` of the next page; empty if there is none."""
    looked: int
    """Number of sagas that were examined for the page. If it becomes very large, the page ends early."""
    known: int
    """Number of all sagas that the monitor tracks."""


class TimelineRow(Struct, frozen=True, kw_only=True):
    """A transition of a saga as a row of its timeline."""

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
    """Types of the emitted events. If there are very many, only the first ones."""
    steps: tuple[str, ...]
    error: str
    """Class of the failure; empty if there was none."""
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
    """The handler that waits. It is empty if it is not known which handler should run next."""
    for_: tuple[str, ...]
    """Types of the events that the handler waits for; empty if it waits for a time or a person."""
    since_ms: int
    until_ms: int | None
    """Time at which the saga resumes even if nothing happens before; `None` if no time is set."""
    ends: str
    """Description of the event, time or command that ends the wait."""


class StuckSaga(Struct, frozen=True, kw_only=True):
    """A saga that does not continue by itself, or should already have continued."""

    saga: str
    why: Why
    since_ms: int
    """Time since which the saga counts as stuck; see `saga.monitor.stuck_detection` for each reason."""
    measure_ms: int
    """How long the saga was allowed to wait before it counted as stuck."""
    awaited: SagaWait


class StuckFilter(Struct, frozen=True, kw_only=True):
    """Filter of stuck sagas. A stuck saga has to match every field that is set."""

    why: str = ""
    service: str = ""
    """The service in which the saga is stuck. It never matches `silent` sagas, which are not stuck in a particular
    service."""
    kind: str = ""
    """Kind of the saga: the type of the message that started it."""
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
    """Stuck sagas. Those stuck longest come first. A saga that is stuck in several services appears once for each of
    them."""

    sagas: tuple[StuckSaga, ...]
    more: bool
    """True if there are further stuck sagas."""
    next: str = ""
    """`PageRequest.after` of the next page; empty if there is none."""
    counts: tuple[StuckCount, ...] = ()
    """Numbers of all sagas that have been stuck for at least the filter's `age_ms`. The filter's other fields do not
    apply."""
    unanswered: tuple[str, ...] = ()
    """Reasons why the answer is incomplete: partitions of a shared monitor that could not be queried."""


class KnownNames(Struct, frozen=True, kw_only=True):
    """Names that filters can have, sorted. There are at most `PAGE_MAX` of each kind."""

    services: tuple[str, ...]
    kinds: tuple[str, ...]
    """Types of the messages that started the tracked sagas."""


class Timeline(Struct, frozen=True, kw_only=True):
    """Everything that the monitor knows about one saga."""

    row: SagaRow
    lines: tuple[TimelineRow, ...]
    """The transitions, ordered by time, service and number."""
    missing: int
    """Number of transitions that were not reported although the same service reported one with a higher number."""
    left_out: int
    """Number of older transitions that are not in `lines`, which contains only the newest ones."""
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
    """Time in milliseconds for which the messages of the handler waited for their run; 95 % of them did not exceed
    it."""
    storm: bool
    """True if the handler has a retry storm; see `saga.monitor.counters`."""
    slices: tuple[MinuteRate, ...]
    """The minutes in which there were transitions, oldest first."""


class HandlerRates(Struct, frozen=True, kw_only=True):
    """Rates of all handlers, busiest first."""

    minutes: int
    """Length of the period that is counted, in minutes. The period ends with the newest transition."""
    newest_ms: int
    """Time of the newest transition; 0 if there is none."""
    sagas: int
    in_flight: int
    """Number of sagas without an outcome."""
    taken: int
    """Number of transitions that were applied since the monitor began to read."""
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
    """What is happening in one service now, according to its transition events."""

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
    """For each of these reasons, the saga that has been stuck longest. These sagas are sorted, longest first."""


class MonitorActivity(Struct, frozen=True, kw_only=True):
    """What is happening in all services now, according to their transition events."""

    newest_ms: int
    """Time of the newest transition; 0 if there is none."""
    sagas: int
    in_flight: int
    """Number of sagas without an outcome."""
    services: tuple[ServiceActivity, ...]
    """The services, sorted by name."""
    silent: int
    """Number of `silent` sagas, which are not stuck in a particular service."""
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
    """A saga with very many transitions."""

    saga: str
    transitions: int


class HotPartition(Struct, frozen=True, kw_only=True):
    """A partition that gets more than its share of a topic's messages."""

    topic: str
    partition: int
    transitions: int
    """Number of transitions in the last hour that messages of this partition caused."""
    share: float
    """Ratio of this partition's transitions to the mean of those partitions of the topic that had any."""


class HotSpots(Struct, frozen=True, kw_only=True):
    """Sagas and partitions with unusually many transitions, hottest first."""

    sagas: tuple[HotSaga, ...]
    partitions: tuple[HotPartition, ...]
    unanswered: tuple[str, ...] = ()
    """Reasons why the answer is incomplete: partitions of a shared monitor that could not be queried."""


class Views(Protocol):
    """The queries that a monitor answers. Each answer is bounded, and takes less than a tenth of a second with a
    million sagas."""

    def sagas(self, which: SagaFilter, page: PageRequest) -> SagaPage:
        """Return a page of the sagas that match the filter."""

    def saga(self, saga: str, now_ms: int) -> Timeline | None:
        """Return one saga over all services. Return `None` if nothing was reported about it, or if the monitor has
        dropped it."""

    def rates(self) -> HandlerRates:
        """Return the rates and durations of each handler."""

    def names(self) -> KnownNames:
        """Return the services and kinds of sagas that are known."""

    def stuck(self, now_ms: int, which: StuckFilter = EVERYTHING, page: PageRequest = WHOLE_PAGE) -> StuckSagas:
        """Return a page of the sagas that are stuck now, and the numbers of all stuck sagas."""

    def activity(self, now_ms: int) -> MonitorActivity:
        """Return what is happening in each service now."""

    def errors(self) -> tuple[ErrorClass, ...]:
        """Return failures by class, most frequent first."""

    def hot(self) -> HotSpots:
        """Return hot sagas and partitions."""
