"""Answers to questions about the events, runs and services of one saga, computed from everything that is known about
it. Pure functions."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, NamedTuple, TypeAlias

from saga.broker.port import partition_of
from saga.choreography.manifest import DeclaredReaction, Manifest
from saga.choreography.overview import Overview
from saga.messaging.controls import ActiveControls
from saga.messaging.names import is_timer_topic
from saga.ops.dead_letters import DeadLetter
from saga.ops.histories import SagaHistory
from saga.ops.offsets import ServiceOffsets
from saga.progress.document import SagaProgress

Result: TypeAlias = Literal["", "success", "failure"]
PROCESSED = frozenset(
    ("handled", "ignored", "noted", "compensated", "dead", "replayed", "discarded", "resolved", "released")
)
"""Outcomes of transitions after which nothing has to explain why a handler did not run: the handler no longer waits for
its message, or a dead letter says why it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedTransition:
    """A transition that a service has reported to the monitor. It is needed if the service's store is not read."""

    service: str
    handler: str
    outcome: str
    type: str
    source: str
    time: str
    emitted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedWait:
    """Something that the saga waits for in a service, as the service has reported it to the monitor."""

    service: str
    handler: str
    types: tuple[str, ...]
    since: str
    until: str | None
    ends: str


class SagaReports(NamedTuple):
    """What the monitor knows about one saga. It is needed for services whose store is not read."""

    transitions: Sequence[ReportedTransition] = ()
    waits: Sequence[ReportedWait] = ()


NO_REPORTS: Final = SagaReports()


@dataclass(frozen=True, slots=True, kw_only=True)
class SagaFacts:
    """Everything that is known about one saga. Services of which nothing could be read are missing."""

    saga: str
    now_ms: int
    overview: Overview
    """The choreography: contracts and manifests."""
    histories: Sequence[SagaHistory] = ()
    services_read: frozenset[str] = frozenset()
    """Services whose store was read, even if it does not have the saga."""
    unreadable: frozenset[str] = frozenset()
    """Services that know the saga, but whose progress of it cannot be read."""
    letters: Sequence[DeadLetter] = ()
    """Dead letters that block the saga."""
    failing: Mapping[str, str] = field(default_factory=dict)
    """Last error of each failing compensation, by the id of the event that it undoes."""
    controls: Mapping[str, ActiveControls] = field(default_factory=dict)
    offsets: Mapping[str, ServiceOffsets] = field(default_factory=dict)
    reports: SagaReports = NO_REPORTS
    notes: tuple[str, ...] = ()
    """Reasons why something could not be read."""


# -------------------------------------------------------------------- what has happened


class Happening(NamedTuple):
    """An event of the saga that is known to exist, with the service, time and handler of its emission."""

    type: str
    time: str
    service: str
    handler: str
    message: str = ""


class SagaRun(NamedTuple):
    """One transition of a service."""

    service: str
    handler: str
    outcome: str
    type: str
    time: str


class SagaSituation:
    """Answers to questions about one saga, computed from the facts about it."""

    def __init__(self, facts: SagaFacts) -> None:
        self.facts = facts
        self.progresses: Mapping[str, SagaProgress] = {h.service: h.progress for h in facts.histories}
        self.manifests: Mapping[str, Manifest] = {each.stored: each for each in facts.overview.manifests.values()}
        self.runs: list[SagaRun] = []
        self.happened: dict[str, Happening] = {}
        taken: list[Happening] = []
        for history in facts.histories:
            for entry in history.entries:
                self.runs.append(SagaRun(history.service, entry.handler, entry.outcome, entry.type, entry.time))
                taken.append(Happening(entry.type, entry.time, entry.source, "", entry.message))
                for event in entry.events:
                    self._add(Happening(event.type, entry.time, history.service, entry.handler, event.id))
            taken += [Happening(m.type, m.time, m.source, "", m.id) for m in _list_messages(history.progress)]
        for each in facts.reports.transitions:
            if each.service not in self.progresses:
                self.runs.append(SagaRun(each.service, each.handler, each.outcome, each.type, each.time))
                taken.append(Happening(each.type, each.time, each.source, ""))
                for type_ in each.emitted:
                    self._add(Happening(type_, each.time, each.service, each.handler))
        started = min((p.started for p in self.progresses.values() if p.started), default=None)
        for happening in sorted(taken, key=lambda happening: happening.time):
            if happening.type and "." not in happening.type:  # not a timer or an operator command
                contract = facts.overview.contracts.get(happening.type)
                begins = contract is not None and contract.starts
                time = started if begins and started is not None else happening.time
                self.happened.setdefault(happening.type, happening._replace(time=time))

    def _add(self, happening: Happening) -> None:
        known = self.happened.get(happening.type)
        if known is None or happening.time < known.time:
            self.happened[happening.type] = happening

    # ---------------------------------------------------------------- outcome

    def result_of(self, type_: str) -> Result:
        contract = self.facts.overview.contracts.get(type_)
        if contract is not None and contract.outcome is not None:
            return "success" if contract.outcome == "success" else "failure"
        return "failure" if any(type_ in p.failed for p in self.progresses.values()) else ""

    @cached_property
    def outcome(self) -> Happening | None:
        """The outcome of the saga; `None` if none is known."""
        decided = {p.outcome for p in self.progresses.values() if p.outcome}
        found = [each for type_, each in self.happened.items() if type_ in decided or self.result_of(type_)]
        return min(found, key=lambda each: each.time, default=None)

    # ---------------------------------------------------------------- services

    def get_reaction(self, service: str, handler: str) -> DeclaredReaction | None:
        """Return the declared handler, compensation or deadline with this name or stored name; `None` if there is
        none."""
        manifest = self.manifests.get(service)
        reactions = () if manifest is None else manifest.reactions
        return next((r for r in reactions if handler in (r.name, stored_name(r))), None)

    def find_compensation(self, service: str, handler: str) -> DeclaredReaction | None:
        """Return the declared compensation of a handler; `None` if there is none."""
        manifest, undone = self.manifests.get(service), self.get_reaction(service, handler)
        reactions = () if manifest is None else manifest.reactions
        return next((r for r in reactions if r.undoes in (handler, undone and undone.name) and r.undoes), None)

    def is_down(self, service: str) -> bool:
        """Return whether it is certain that no worker of the service runs."""
        offsets = self.facts.offsets.get(service)
        return offsets is not None and not offsets.members

    def is_visible(self, service: str) -> bool:
        """Return whether a service's store, offsets or reports are available, so that something is known about what it
        did."""
        facts = self.facts
        return (
            service in facts.services_read
            or service in facts.offsets
            or any(run.service == service for run in self.runs)
        )

    def count_behind(self, service: str, topic: str | None = None) -> int:
        """Return how many records a service has not handled in the partitions of this saga: in one topic, or in all
        except timer topics.

        Other partitions do not matter, because all records of a saga are in the partition of its key.
        """
        offsets = self.facts.offsets.get(service)
        if offsets is None:
            return 0
        partitions = Counter(at.topic for at in offsets.states)
        key = self.facts.saga.encode()
        return sum(
            state.lag
            for at, state in offsets.states.items()
            if (at.topic == topic or (topic is None and not is_timer_topic(at.topic)))
            and at.number == partition_of(key, partitions[at.topic])
        )

    def describe_last(self, service: str) -> str:
        """Describe the last transition of the saga in a service."""
        if service in self.facts.unreadable:
            return f"what {service} last wrote is in it"
        runs = [run for run in self.runs if run.service == service]
        if not runs:
            return f"{service} has written nothing about this saga"
        last = max(runs, key=lambda run: run.time)
        handler = f" ({last.handler})" if last.handler else ""
        return f"{service} last wrote `{last.outcome}` for {last.type}{handler} at {last.time}"

    def knows(self, service: str, type_: str) -> bool:
        """Return whether a service has received an event of this type, according to its progress or to the monitor."""
        if any(run.service == service and run.type == type_ for run in self.runs):
            return True
        p = self.progresses.get(service)
        return p is not None and any(message.type == type_ for message in _list_messages(p))

    def is_pending(self, service: str, reaction: DeclaredReaction) -> bool:
        """Return whether the progress of a service contains a message or a run of this handler."""
        p = self.progresses.get(service)
        if p is None:
            return False
        names = {each.handler for each in (*p.queue, *p.waiting)} | {each.handler for each in p.intents}
        names |= {each.handler for each in p.suspended_runs}
        return not names.isdisjoint((reaction.name, stored_name(reaction)))

    def has_processed(self, service: str, reaction: DeclaredReaction) -> bool:
        """Return whether a handler or compensation has finished, or can no longer run."""
        names = {reaction.name, stored_name(reaction)}
        p = self.progresses.get(service)
        if p is not None and (names & {*p.closed} or any(run.handler in names for run in p.completed_runs)):
            return True
        return any(r.service == service and r.handler in names and r.outcome in PROCESSED for r in self.runs)


class KnownMessage(NamedTuple):
    """The type, time, source and id of a message that a progress contains."""

    type: str
    time: str
    source: str
    id: str


def _list_messages(p: SagaProgress) -> Iterator[KnownMessage]:
    pending = [k.message for k in (*p.queue, *p.waiting, *p.compensating, *p.deadlines)]
    parts = [*(m for i in p.intents for m in i.parts), *(m for c in p.suspended_runs for m in c.parts)]
    for m in (*pending, *parts):
        yield KnownMessage(m.type, m.time, m.source, m.id)


def stored_name(reaction: DeclaredReaction) -> str:
    """Return the name under which progresses store work of a handler."""
    return reaction.ids.partition("|")[2]


def list_outcomes(situation: SagaSituation, result: Result = "") -> list[str]:
    """List the outcomes of this kind of saga: all, or those with this result."""
    known = {*situation.progresses, *(run.service for run in situation.runs)}
    kinds = {manifest.kind for name, manifest in situation.manifests.items() if name in known}
    outcomes = [each for kind in sorted(kinds) for each in situation.facts.overview.outcomes(kind)]
    return [each.name for each in outcomes if not result or each.outcome == result]


def list_undone(situation: SagaSituation) -> Iterator[tuple[str, str]]:
    """Yield the service and the type of each event that was compensated. A compensation for which no event is found had
    nothing to undo."""
    for run in situation.runs:
        reaction = situation.get_reaction(run.service, run.handler) if run.outcome == "compensated" else None
        undone = None if reaction is None else situation.get_reaction(run.service, reaction.undoes or "")
        if reaction is not None and undone is not None:
            results = {*undone.emits} & {*reaction.hears}
            yield from ((run.service, type_) for type_ in results if type_ in situation.happened)
