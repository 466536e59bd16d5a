"""Decide whether everything is all right: the state of each service, what needs attention, and one verdict.
Pure functions.

A **problem** is something that does not end by itself and delays sagas; `bad` ones need a person. Problems are found
from transition events, from the consumer groups on the broker, from open escalations, and from active controls.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

from saga.messaging.controls import ControlEntry, describe_switch
from saga.monitor.views import MonitorActivity, ServiceActivity, StuckSaga, Why
from saga.monitor.web.service_watch import LagPoint
from saga.ops.offsets import ServiceOffsets
from saga.support.printable import count_noun

Severity: TypeAlias = Literal["bad", "warn"]
RunState: TypeAlias = Literal["running", "not running", "not known"]

LAG_LEAST = 100
"""Minimum lag, in messages, of a service that falls behind. In addition, the lag must have grown for `GROWING_POINTS`
minutes."""
GROWING_POINTS = 4
"""Number of minutes in a row in which the lag must grow before a service counts as falling behind."""


class ProblemLink(NamedTuple):
    """A link to a page on which a problem can be examined."""

    text: str
    path: str
    query: Mapping[str, str]


class ProblemKind(NamedTuple):
    """A kind of problem that any service can have."""

    severity: Severity
    text: str
    """Text about the problem if several services have it."""
    runbook: str = ""
    """Name of the runbook; empty if there is none."""


NOT_RUNNING = ProblemKind("bad", "no process runs, and messages wait", "nobody-works")
STOPPED = ProblemKind("warn", "no process runs", "nobody-works")
BEHIND = ProblemKind("warn", "more messages wait each minute", "lag")
ESCALATED = ProblemKind("bad", "something could not be undone", "escalation")
STORM = ProblemKind("bad", "handlers retry more often than they finish", "retry-storm")
BREAKER = ProblemKind("warn", "circuit breakers are open", "breaker-open")
CONTROLLED = ProblemKind("warn", "messages are paused, or routed to the dead letters")
STUCK: Mapping[Why, ProblemKind] = {
    "dead": ProblemKind("bad", "dead letters block sagas", "quarantine"),
    "failing": ProblemKind("bad", "the service's own code fails", "roll-back"),
    "overdue": ProblemKind("bad", "work that was due has not run", "stuck-saga"),
    "waiting": ProblemKind("warn", "events are missing for longer than usual", "stuck-saga"),
    "silent": ProblemKind("warn", "nothing is reported of sagas that have not ended", "stuck-saga"),
}


@dataclass(frozen=True, slots=True)
class ServiceProblem:
    """Something that delays sagas and does not end by itself."""

    kind: ProblemKind
    service: str
    """The service that has the problem; empty if no particular service has it."""
    text: str
    weight: int
    """Number of sagas or messages that the problem affects."""
    since_ms: int | None = None
    links: tuple[ProblemLink, ...] = ()


class ProblemGroup(NamedTuple):
    """Problems of one kind. Those that affect the most sagas or messages come first."""

    kind: ProblemKind
    problems: Sequence[ServiceProblem]

    @property
    def everywhere(self) -> ProblemLink | None:
        """Link to the page on which this kind of problem can be examined for all services; `None` if there is no such
        page."""
        links = self.problems[0].links
        if not links:
            return None
        text, path, query = links[-1]
        return ProblemLink(text, path, {name: value for name, value in query.items() if name != "service"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceCard:
    """Everything that the overview shows about a service."""

    service: str
    offsets: ServiceOffsets | None
    """Offsets and members; `None` if they are not known."""
    activity: ServiceActivity | None
    """What is happening in the service; `None` if nothing was reported in the last hour."""
    lags: Sequence[LagPoint] = ()
    controls: Sequence[ControlEntry] = ()
    """Active pauses, limits and routes."""
    flags: int = 0
    """Number of flags that are set."""
    escalations: int = 0
    blocked: int = 0
    """Number of sagas that dead letters block according to the stores."""
    problems: Sequence[ServiceProblem] = ()

    @property
    def run_state(self) -> RunState:
        """Whether a process of the service runs."""
        if self.offsets is None:
            return "not known"
        return "running" if self.offsets.members else "not running"

    @property
    def dead(self) -> int:
        """Number of sagas that a dead letter blocks. The transitions of old ones may not be kept any more."""
        return max(self.blocked, self.activity.stuck.get("dead", 0) if self.activity is not None else 0)

    @property
    def severity(self) -> Severity | None:
        """The worst severity of the service's problems; `None` if it has none."""
        return min((each.kind.severity for each in self.problems), default=None)


@dataclass(frozen=True, slots=True)
class SystemOverview:
    """The overview of all services: their cards, their problems, and one verdict."""

    verdict: Literal["good", "warn", "bad", "unknown"]
    sentence: str
    cards: Sequence[ServiceCard]
    """The services. Those with the worst problems come first."""
    groups: Sequence[ProblemGroup]
    """All problems by kind. The worst kind comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts:
    """The facts about all services from which the overview is built."""

    activity: MonitorActivity
    offsets: Mapping[str, ServiceOffsets] = field(default_factory=dict)
    is_broker_known: bool = True
    """False if the broker could not be read."""
    are_letters_known: bool = True
    """False if dead letters and escalations, or a part of them, could not be read, or are still being read."""
    lags: Mapping[str, Sequence[LagPoint]] = field(default_factory=dict)
    controls: Mapping[str, Sequence[ControlEntry]] = field(default_factory=dict)
    flags: Mapping[str, int] = field(default_factory=dict)
    escalations: Mapping[str, int] = field(default_factory=dict)
    blocked: Mapping[str, int] = field(default_factory=dict)
    """Numbers of sagas that dead letters block, according to the stores."""


def build_overview(facts: ServiceFacts) -> SystemOverview:
    """Build the overview from what is known about the services."""
    activities = {each.service: each for each in facts.activity.services}
    controlled = (name for name, active in facts.controls.items() if active)
    names = sorted({*activities, *facts.offsets, *controlled, *facts.escalations, *facts.blocked})
    cards = [_build_card(name, activities.get(name), facts) for name in names]
    found = [problem for card in cards for problem in card.problems]
    if facts.activity.silent and (oldest := facts.activity.oldest_silent) is not None:
        found.append(_describe_stuck("silent", "", facts.activity.silent, oldest))
    cards.sort(key=lambda card: (card.severity or "~", -sum(each.weight for each in card.problems), card.service))
    verdict, sentence = _judge(found, cards, facts)
    return SystemOverview(verdict, sentence, cards, group_problems(found))


def group_problems(problems: Iterable[ServiceProblem]) -> list[ProblemGroup]:
    """Group problems by kind. The kinds with the worst severity come first; among these, the kinds that affect the most
    sagas and messages."""
    groups: dict[ProblemKind, list[ServiceProblem]] = {}
    for each in sorted(problems, key=_rank_problem):
        groups.setdefault(each.kind, []).append(each)
    found = [ProblemGroup(kind, each) for kind, each in groups.items()]
    return sorted(found, key=lambda group: (group.kind.severity, -sum(each.weight for each in group.problems)))


def _rank_problem(problem: ServiceProblem) -> tuple[str, int, str, str]:
    return problem.kind.severity, -problem.weight, problem.service, problem.text


def _judge(
    problems: Sequence[ServiceProblem], cards: Sequence[ServiceCard], facts: ServiceFacts
) -> tuple[Literal["good", "warn", "bad", "unknown"], str]:
    if bad := [each for each in problems if each.kind.severity == "bad"]:
        services = len({each.service for each in bad})
        where = f" in {services} services" if services > 1 else ""
        return "bad", f"{count_noun(len(bad), 'problem')}{where} {'needs' if len(bad) == 1 else 'need'} a person"
    if not facts.is_broker_known:
        return "unknown", "Whether the services run is not known"
    if cards and not facts.are_letters_known:
        return "unknown", "Whether something could not be undone is not known"
    if problems:
        return "warn", f"Nothing needs a person, but {count_noun(len(problems), 'thing')} should be watched"
    if not cards:
        return "unknown", "No service has started yet"
    running = sum(card.run_state == "running" for card in cards)
    return (
        "good",
        f"All is well: {count_noun(running, 'service')} {'runs' if running == 1 else 'run'}, and no saga is stuck",
    )


def _build_card(service: str, activity: ServiceActivity | None, facts: ServiceFacts) -> ServiceCard:
    card = ServiceCard(
        service=service,
        offsets=facts.offsets.get(service),
        activity=activity,
        lags=facts.lags.get(service, ()),
        controls=facts.controls.get(service, ()),
        flags=facts.flags.get(service, 0),
        escalations=facts.escalations.get(service, 0),
        blocked=facts.blocked.get(service, 0),
    )
    return replace(card, problems=sorted(_find_problems(card), key=_rank_problem))


def _find_problems(card: ServiceCard) -> Iterator[ServiceProblem]:
    yield from _find_broker_problems(card)
    if card.escalations:
        text = f"{count_noun(card.escalations, 'escalation')}: something could not be undone"
        to = ProblemLink("Escalations", "/dead", {"service": card.service, "what": "escalation"})
        yield ServiceProblem(ESCALATED, card.service, text, card.escalations, links=(to,))
    activity = card.activity
    if card.dead:
        oldest = next((each for each in activity.oldest if each.why == "dead"), None) if activity is not None else None
        yield _describe_stuck("dead", card.service, card.dead, oldest)
    if activity is not None:
        for why, count in activity.stuck.items():
            if why == "dead":
                continue
            oldest = next((each for each in activity.oldest if each.why == why), None)
            yield _describe_stuck(why, card.service, count, oldest)
        for handler in activity.storms:
            text, to = f"{handler} retries more often than it finishes", ProblemLink("Throughput", "/rates", {})
            yield ServiceProblem(STORM, card.service, text, activity.failures, links=(to,))
        if behind := activity.behind_breaker:
            wait = f"{count_noun(behind, 'saga')} {'waits' if behind == 1 else 'wait'}"
            text = f"a circuit breaker is open, and {wait} behind it"
            to = ProblemLink("Its open sagas", "/sagas", {"service": card.service, "state": "open"})
            yield ServiceProblem(BREAKER, card.service, text, behind, links=(to,))
    for entry in card.controls:
        if entry.switch.kind in ("pause", "route"):
            text = f"{describe_switch(entry.switch)}, by {entry.who}: {entry.why}"
            to = ProblemLink("Controls", "/controls", {})
            yield ServiceProblem(CONTROLLED, card.service, text, 0, links=(to,))


def _find_broker_problems(card: ServiceCard) -> Iterator[ServiceProblem]:
    offsets = card.offsets
    if offsets is None:
        return
    if not offsets.members:
        waiting = f", and {count_noun(offsets.lag, 'message')} {'waits' if offsets.lag == 1 else 'wait'}"
        text = f"no process of it runs{waiting if offsets.lag else ''}"
        yield ServiceProblem(NOT_RUNNING if offsets.lag else STOPPED, card.service, text, offsets.lag)
    elif offsets.lag >= LAG_LEAST and is_growing(card.lags):
        text = f"it falls behind: {count_noun(offsets.lag, 'message')} wait, and more each minute"
        yield ServiceProblem(BEHIND, card.service, text, offsets.lag)


def is_growing(lags: Sequence[LagPoint]) -> bool:
    """Return whether the lag grew in each of the last `GROWING_POINTS` minutes.

    >>> [is_growing([LagPoint(0, lag) for lag in lags]) for lags in ((1, 2, 3, 4, 5), (1, 2, 3, 3, 4), (1, 2))]
    [True, False, False]
    """
    last = [each.lag for each in lags][-GROWING_POINTS - 1 :]
    return len(last) > GROWING_POINTS and all(one < other for one, other in pairwise(last))


def _describe_stuck(why: Why, service: str, count: int, oldest: StuckSaga | None) -> ServiceProblem:
    links = []
    if oldest is not None:
        links.append(ProblemLink(f"Saga {oldest.saga}", "/saga", {"id": oldest.saga}))
    if why == "dead":
        links.append(ProblemLink("Dead letters", "/dead", {"service": service}))
    elif service:
        links.append(ProblemLink("Stuck sagas", "/sagas", {"service": service, "state": "stuck"}))
    else:
        links.append(ProblemLink("Stuck sagas", "/stuck", {}))
    text = f"{STUCK[why].text}: {count_noun(count, 'saga')}"
    return ServiceProblem(STUCK[why], service, text, count, None if oldest is None else oldest.since_ms, tuple(links))
