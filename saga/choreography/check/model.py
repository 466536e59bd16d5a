"""Model the choreography of one kind of saga: what its services may do, in any order of messages. Pure functions.

The model covers every behaviour of the runtime in which no handler fails, and some more:

- Each service has an unordered set of undelivered messages, and any message may be late.
- A handler runs at once when it has all its events. It chooses any of its alternatives, and its effects happen then.
- A deadline may become due at any time while it is open.

The model relies on what the runtime guarantees (docs/concepts/protocol.md): a message is handled once; a handler
without `repeats` runs once in a saga; a service decides an outcome once; a failure outcome undoes the results of a
handler that has a compensation, and closes the handler. It also relies on operators: a handler that fails is repaired
and replayed in the end.

One behaviour is not modelled: if two reactions of one service take the same event, and one of them is retried, other
messages may come between the two (`ChoreographyModel.find_joint_reactions`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations
from typing import Literal, NamedTuple, TypeAlias

from saga.choreography.manifest import LATER, DeclaredReaction, EmittedContract, Manifest

INSTANCES = 2
"""Number of events of one contract that the model distinguishes in a saga. Further events behave like the second
one."""

MANY_MAX = 6
"""Maximum number of contracts in `Alternative.many` for which all combinations are listed."""

EventInstance: TypeAlias = tuple[str, int]
"""A contract, and the number of an event of that contract in the saga: 0 or 1."""
HandlerStatus: TypeAlias = Literal["idle", "suspended", "suspended twice", "completed", "closed"]
"""Status of a handler in a saga. A handler with `repeats` is idle whenever none of its runs is suspended."""
DeadlineStatus: TypeAlias = Literal["unopened", "open", "over"]
_BY_SUSPENDED_RUNS: Sequence[HandlerStatus] = ("idle", "suspended", "suspended twice")
"""Status of a handler with `repeats`, by the number of its suspended runs. Further ones behave like the second one."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Events that one run of a handler may emit together."""

    once: tuple[str, ...] = ()
    many: tuple[str, ...] = ()
    """Contracts whose events the run emits in any number, including none."""
    later: bool = False
    """True if the run is suspended and continues later."""

    @property
    def events(self) -> tuple[str, ...]:
        """Return the contracts whose events may be emitted."""
        return (*self.once, *self.many)

    @property
    def has_too_many_choices(self) -> bool:
        """Return whether `list_choices` lists only some of the combinations. There are 3 to the power of the number of
        contracts in `many`."""
        return len(self.many) > MANY_MAX

    def list_choices(self) -> list[tuple[str, ...]]:
        """Return the combinations of events that may be emitted together: none, one or two events of each contract in
        `many`.

        If there are too many combinations, return only these: one event of every contract in `many`, none at all, and
        one or two events of a single contract.
        """
        if self.has_too_many_choices:
            alone = [(name,) * count for name in self.many for count in (1, 2)]
            return [(*self.once, *chosen) for chosen in (self.many, (), *alone)]
        found = [self.once]
        for name in self.many:
            found = [(*before, *(name,) * count) for before in found for count in (1, 0, 2)]
        return found


@dataclass(frozen=True)
class ReactionModel:
    """A handler, deadline or compensation, reduced to what influences other reactions."""

    service: str
    name: str
    kind: Literal["handler", "deadline", "compensation"]
    parameters: tuple[frozenset[str], ...]
    """Contracts that each required event parameter takes."""
    alternatives: tuple[Alternative, ...]
    optional: frozenset[str] = frozenset()
    """Contracts of the event parameters that the reaction does not wait for."""
    repeats: frozenset[str] = frozenset()
    unless: frozenset[str] = frozenset()
    undoes: str | None = None
    within_s: float | None = None
    has_effects: bool = False
    """True if its code may change something outside of the saga, or if it has a compensation or is one: then it is
    declared to change something, wherever the code does it."""
    irreversible: bool = False

    @property
    def label(self) -> str:
        """Return the name of the service and of the reaction, as in `payment.reserve`."""
        return f"{self.service}.{self.name}"

    @cached_property
    def emits(self) -> frozenset[str]:
        """Return the contracts whose events the reaction may emit."""
        return frozenset(name for each in self.alternatives for name in each.events)

    @property
    def never_ends(self) -> bool:
        """Return whether each run is suspended at its end, whatever the handler chooses."""
        return bool(self.alternatives) and all(each.later for each in self.alternatives)

    @cached_property
    def takes(self) -> frozenset[str]:
        """Return the contracts whose events the reaction waits for."""
        return frozenset().union(*self.parameters)


@dataclass(frozen=True)
class ServiceModel:
    """The reactions of one service."""

    name: str
    reactions: Mapping[str, ReactionModel]

    @cached_property
    def handlers(self) -> tuple[ReactionModel, ...]:
        return tuple(each for each in self.reactions.values() if each.kind == "handler")

    @cached_property
    def deadlines(self) -> tuple[ReactionModel, ...]:
        return tuple(each for each in self.reactions.values() if each.kind == "deadline")

    @cached_property
    def compensations(self) -> Mapping[str, ReactionModel]:
        """Return the compensations, by the name of the handler that each undoes."""
        return {each.undoes: each for each in self.reactions.values() if each.undoes is not None}

    @cached_property
    def consumed_contracts(self) -> frozenset[str]:
        """Return the contracts whose events may cause a reaction of the service, or cancel one."""
        return frozenset().union(*(each.takes | each.optional | each.unless for each in self.reactions.values()))


@dataclass(frozen=True)
class ChoreographyModel:
    """The services that take part in one kind of saga, and the contracts of their events."""

    kind: str
    """Name of the key field, which all events of this kind of saga have."""
    services: Mapping[str, ServiceModel]
    contracts: Mapping[str, EmittedContract]
    changes: frozenset[str] = frozenset()
    """Contract names under which document changes are consumed. Like external events, changes come from outside the
    services."""
    releases: Mapping[str, tuple[ServiceModel, ...]] = field(default_factory=dict)
    """The old and the new release of each service that has both during a deployment. Either of them may take the next
    message. `services` then has the reactions of both."""

    @cached_property
    def reactions(self) -> tuple[ReactionModel, ...]:
        return tuple(each for service in self.services.values() for each in service.reactions.values())

    @cached_property
    def leaves_choices_out(self) -> bool:
        """Return whether a reaction has so many choices that not all are listed. A search then cannot be complete."""
        return any(each.has_too_many_choices for reaction in self.reactions for each in reaction.alternatives)

    @cached_property
    def successes(self) -> frozenset[str]:
        """Return the success outcomes."""
        return frozenset(name for name, each in self.contracts.items() if each.outcome == "success")

    @cached_property
    def failures(self) -> frozenset[str]:
        """Return the failure outcomes."""
        return frozenset(name for name, each in self.contracts.items() if each.outcome == "failure")

    @cached_property
    def outcomes(self) -> frozenset[str]:
        """Return the events that end a saga."""
        return self.successes | self.failures

    @cached_property
    def starts(self) -> tuple[str, ...]:
        """Return the events that may start a saga: the external events whose contracts say that they start one, or all
        external events if there are none of these."""
        outside = sorted(self.external)
        return tuple(name for name in outside if self.contracts[name].starts) or tuple(outside)

    @cached_property
    def external(self) -> frozenset[str]:
        """Return the external events: from clients, other systems, or document changes."""
        return frozenset(name for name, each in self.contracts.items() if each.produced_externally)

    @cached_property
    def emitters(self) -> Mapping[str, tuple[ReactionModel, ...]]:
        """Return, for each event, the reactions that may emit it."""
        return {name: tuple(r for r in self.reactions if name in r.emits) for name in self.contracts}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[ServiceModel, ...]]:
        """Return, for each event, the services in which it may cause or cancel a reaction."""
        return {
            name: tuple(s for s in self.services.values() if name in self.consumed_contracts[s.name])
            for name in self.contracts
        }

    @cached_property
    def consumed_contracts(self) -> Mapping[str, frozenset[str]]:
        """Return, for each service, the contracts whose events may cause or cancel a reaction in one of its
        releases."""
        return {
            name: frozenset().union(*(each.consumed_contracts for each in self.releases_of(service)))
            for name, service in self.services.items()
        }

    @cached_property
    def declarations(self) -> Mapping[str, tuple[ReactionModel, ...]]:
        """Return the declarations of each reaction, by its label: two if both releases of its service declare it."""
        found: dict[str, tuple[ReactionModel, ...]] = {}
        for service in self.services.values():
            for reaction in (each for release in self.releases_of(service) for each in release.reactions.values()):
                found[reaction.label] = (*found.get(reaction.label, ()), reaction)
        return found

    def releases_of(self, service: ServiceModel) -> tuple[ServiceModel, ...]:
        """Return the releases of a service that take messages: the service itself if there is only one."""
        return self.releases.get(service.name, (service,))

    @cached_property
    def consequences(self) -> dict[tuple[frozenset[str], object], frozenset[str]]:
        """Cache of `saga.choreography.check.search.follows`: labels of the reactions that follow a set of outcomes."""
        return {}

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Return the index of each service in `SagaState.services`."""
        return {name: place for place, name in enumerate(self.services)}

    @cached_property
    def deciders(self) -> tuple[str, ...]:
        """Return the services that may emit an outcome."""
        return tuple(
            s.name for s in self.services.values() if any(r.emits & self.outcomes for r in s.reactions.values())
        )

    def find_joint_reactions(self) -> str:
        """Describe, as readable text, two reactions of one service that take the same event; empty if there are none.

        In the model, all reactions to an event happen at once. At run time one of them may fail and be retried later.
        In the meantime a deadline, an outcome or the other reaction may come first."""
        for service in (each for one in self.services.values() for each in self.releases_of(one)):
            waiting = [*service.handlers, *service.deadlines]
            for place, first in enumerate(waiting):
                for second in waiting[place + 1 :]:
                    if both := first.takes & second.takes:
                        return (
                            f"{first.label} and {second.label} both take {min(both)}, and one may be tried again later"
                        )
        return ""

    def compensation_of(self, reaction: ReactionModel) -> ReactionModel | None:
        """Return the compensation that undoes a handler; `None` if it has none."""
        return self.services[reaction.service].compensations.get(reaction.name)

    def results_of(self, compensation: ReactionModel) -> frozenset[str]:
        """Return the contracts of the handler's results that a compensation undoes."""
        return compensation.takes - self.failures


# -------------------------------------------------------------------- from manifests


def group_by_kind(manifests: Iterable[Manifest]) -> Mapping[str, Sequence[Manifest]]:
    """Group the manifests by their kind of saga, in the order of the kinds' names."""
    by_kind: dict[str, list[Manifest]] = {}
    for each in manifests:
        by_kind.setdefault(each.kind, []).append(each)
    return {kind: by_kind[kind] for kind in sorted(by_kind)}


def build_choreography(kind: str, manifests: Iterable[Manifest]) -> ChoreographyModel:
    """Build the model of the choreography of these services, whose sagas are all of one kind."""
    ordered = sorted(manifests, key=lambda each: each.service)
    contracts: dict[str, EmittedContract] = {}
    changes = {name: collection for manifest in ordered for name, collection in manifest.changes.items()}
    for manifest in ordered:
        for each in (*manifest.emits, *manifest.consumes):
            contracts.setdefault(each.contract, each)
    for name, collection in changes.items():
        contracts[name] = EmittedContract(
            contract=name, version=1, topic=f"changes.{collection}", key=kind, starts=True, produced_externally=True
        )
    services = {
        manifest.service: ServiceModel(
            manifest.service, {each.name: _build_reaction(manifest, each) for each in manifest.reactions}
        )
        for manifest in ordered
    }
    return ChoreographyModel(kind, services, {name: contracts[name] for name in sorted(contracts)}, frozenset(changes))


def merge_releases(old: ChoreographyModel, new: ChoreographyModel) -> ChoreographyModel:
    """Return the model of a deployment, during which processes of the old and the new release of each service take
    messages.

    If the releases of a service differ only in what handlers return and do, the service is modelled as one release
    whose handlers have the alternatives of both."""
    services: dict[str, ServiceModel] = {}
    releases: dict[str, tuple[ServiceModel, ...]] = {}
    for name in sorted({*old.services, *new.services}):
        versions = [each.services[name] for each in (old, new) if name in each.services]
        together = dict(versions[0].reactions)
        for label, reaction in versions[-1].reactions.items():
            together[label] = _join_reactions(together[label], reaction) if label in together else reaction
        services[name] = ServiceModel(name, together)
        if len(versions) == 2 and not _have_one_shape(*versions):
            releases[name] = tuple(versions)
    contracts = {**old.contracts, **new.contracts}
    return ChoreographyModel(
        new.kind, services, {name: contracts[name] for name in sorted(contracts)}, old.changes | new.changes, releases
    )


def _have_one_shape(old: ServiceModel, new: ServiceModel) -> bool:
    return {name: _shape(each) for name, each in old.reactions.items()} == {
        name: _shape(each) for name, each in new.reactions.items()
    }


def _shape(reaction: ReactionModel) -> tuple[object, ...]:
    """Return the attributes of a reaction that determine when it runs, and what it closes and undoes."""
    return (reaction.kind, reaction.parameters, reaction.repeats, reaction.unless, reaction.undoes)


def _join_reactions(old: ReactionModel, new: ReactionModel) -> ReactionModel:
    return replace(
        new,
        optional=old.optional | new.optional,
        alternatives=tuple(dict.fromkeys((*old.alternatives, *new.alternatives))),
        has_effects=old.has_effects or new.has_effects,
        irreversible=old.irreversible or new.irreversible,
        within_s=max(old.within_s, new.within_s) if old.within_s and new.within_s else new.within_s,
    )


def _build_reaction(manifest: Manifest, declared: DeclaredReaction) -> ReactionModel:
    is_undone = any(each.undoes == declared.name for each in manifest.reactions)
    return ReactionModel(
        service=manifest.service,
        name=declared.name,
        kind=declared.kind,
        parameters=tuple(map(frozenset, declared.takes)),
        alternatives=tuple(map(_build_alternative, declared.returns)),
        optional=frozenset(declared.optional),
        repeats=frozenset(declared.repeats),
        unless=frozenset(declared.unless),
        undoes=declared.undoes,
        within_s=declared.within_s,
        has_effects=declared.has_effects or is_undone or declared.undoes is not None,
        irreversible=declared.irreversible,
    )


def _build_alternative(returned: Sequence[str]) -> Alternative:
    return Alternative(
        once=tuple(name for name in returned if name != LATER and not name.endswith("*")),
        many=tuple(name.rstrip("*") for name in returned if name.endswith("*")),
        later=LATER in returned,
    )


# -------------------------------------------------------------------- states


class ServiceSnapshot(NamedTuple):
    """The state of one service in a saga, as far as the model knows it."""

    delivered: frozenset[EventInstance] = frozenset()
    parts: frozenset[tuple[str, EventInstance]] = frozenset()
    """Events that wait for the other events of a handler, each with the name of the handler."""
    handlers: tuple[tuple[str, HandlerStatus], ...] = ()
    """Status of each handler that is not idle, sorted by name."""
    deadlines: tuple[tuple[str, DeadlineStatus], ...] = ()
    """Status of each deadline that has been opened, sorted by name."""
    results: frozenset[tuple[str, int]] = frozenset()
    """Results that compensations would undo. Each is the name of the handler, and the number of its result: 0 or 1."""
    effects: frozenset[str] = frozenset()
    """Names of reactions whose effects have not been undone."""
    outcome: str = ""
    """Outcome that the service emitted; empty if it has not emitted one."""
    received_outcomes: frozenset[str] = frozenset()
    """Outcomes that the service received or emitted."""


class SagaState(NamedTuple):
    """The state of one saga in all services."""

    published: frozenset[EventInstance]
    services: tuple[ServiceSnapshot, ...]
    """Snapshots of the services, in the order of `ChoreographyModel.services`."""
    outcomes: frozenset[tuple[str, str]] = frozenset()
    """The outcomes that were emitted, each with the service that emitted it. For an outcome from outside, the service
    is an empty string."""


class ReactionRun(NamedTuple):
    """One run of a reaction."""

    service: str
    reaction: str
    taken: tuple[str, ...]
    """Contracts of the events that the run took."""
    emitted: tuple[str, ...]
    later: bool = False

    @property
    def label(self) -> str:
        """Return the name of the service and of the reaction, as in `payment.reserve`."""
        return f"{self.service}.{self.reaction}"


class Move(NamedTuple):
    """The next thing that happens in a saga: an event is delivered, a deadline becomes due, a suspended run continues,
    or an external event arrives."""

    kind: Literal["start", "deliver", "deadline", "turn"]
    service: str
    name: str
    """Name of the event or of the reaction."""
    number: int = 0


class Step(NamedTuple):
    """A move, the runs that it caused, and the state after it."""

    move: Move
    runs: tuple[ReactionRun, ...]
    state: SagaState


def begin(choreography: ChoreographyModel, event: str) -> SagaState:
    """Return the state in which the event that starts the saga is published and not yet delivered."""
    snapshots = tuple(ServiceSnapshot() for _ in choreography.services)
    return SagaState(frozenset({(event, 0)}), snapshots, _outcomes_from_outside(choreography, event))


def _outcomes_from_outside(choreography: ChoreographyModel, event: str) -> frozenset[tuple[str, str]]:
    """Return what an external event adds to `SagaState.outcomes`."""
    return frozenset({(event, "")} if event in choreography.outcomes else ())


def list_moves(choreography: ChoreographyModel, state: SagaState) -> list[Move]:
    """Return the moves that must happen at some time: deliveries, open deadlines, and suspended runs that continue."""
    found: list[Move] = []
    for service, known in zip(choreography.services.values(), state.services, strict=True):
        consumed = choreography.consumed_contracts[service.name]
        found += [
            Move("deliver", service.name, name, number)
            for name, number in sorted(state.published - known.delivered)
            if name in consumed
        ]
        found += [Move("deadline", service.name, name) for name, status in known.deadlines if status == "open"]
        found += [move for move in _list_turns(service, known) if not service.reactions[move.name].never_ends]
    return found


def _list_turns(service: ServiceModel, known: ServiceSnapshot) -> list[Move]:
    """Return the next turn of each handler that has a suspended run."""
    return [Move("turn", service.name, name) for name, status in known.handlers if status in _BY_SUSPENDED_RUNS[1:]]


def list_optional_moves(choreography: ChoreographyModel, state: SagaState) -> list[Move]:
    """Return the moves that may or may not happen: those of external events, and turns of handlers that never end.

    A saga in which nothing else is left to happen has come to rest: no such turn brings it to an end."""
    found = list_external_moves(choreography, state)
    for service, known in zip(choreography.services.values(), state.services, strict=True):
        found += [move for move in _list_turns(service, known) if service.reactions[move.name].never_ends]
    return found


def list_external_moves(choreography: ChoreographyModel, state: SagaState) -> list[Move]:
    """Return the moves of external events, each of which may or may not happen."""
    repeated = frozenset().union(*(each.repeats for some in choreography.declarations.values() for each in some))
    found: list[Move] = []
    for name in sorted(choreography.external):
        number = sum(instance[0] == name for instance in state.published)
        if number < (INSTANCES if name in repeated else 1):
            found.append(Move("start", "", name, number))
    return found


def take_steps(choreography: ChoreographyModel, state: SagaState, move: Move) -> Iterator[Step]:
    """Make a move. Yield a step for each combination of results of the reactions that run because of it."""
    if move.kind == "start":
        outcomes = state.outcomes | _outcomes_from_outside(choreography, move.name)
        published = state.published | {(move.name, move.number)}
        yield Step(move, (), state._replace(published=published, outcomes=outcomes))
        return
    service = choreography.services[move.service]
    for release in choreography.releases_of(service):
        known = state.services[choreography.places[move.service]]
        if choreography.releases and _has_undeclared_work(release, known, move):
            continue  # the release leaves the saga to the other one
        for working in _Working.begin(choreography, state, release).carry_out(move):
            yield Step(move, tuple(working.runs), working.finish(state))


def _has_undeclared_work(release: ServiceModel, known: ServiceSnapshot, move: Move) -> bool:
    """Return whether the saga has open work, or results that may have to be undone, of a handler that this release does
    not declare."""
    names = {move.name for move in _list_turns(release, known)}
    names |= {name for name, status in known.deadlines if status == "open"}
    names |= {name for name, _ in known.results} | ({move.name} if move.kind in ("deadline", "turn") else set())
    return not names <= release.reactions.keys()


def has_no_effect(choreography: ChoreographyModel, state: SagaState, move: Move) -> bool:
    """Return whether a delivery does nothing except that it marks the event as delivered. Such a delivery has no effect
    at any later time either."""
    if move.kind != "deliver":
        return False
    place = choreography.places[move.service]
    before = state.services[place]
    steps = list(take_steps(choreography, state, move))
    after = before._replace(delivered=before.delivered | {(move.name, move.number)})
    return len(steps) == 1 and not steps[0].runs and steps[0].state.services[place] == after


@dataclass(slots=True)
class _Working:
    """The state of one service while it makes a move. It is copied wherever a handler has a choice."""

    choreography: ChoreographyModel
    service: ServiceModel
    published: frozenset[EventInstance]
    delivered: frozenset[EventInstance]
    parts: frozenset[tuple[str, EventInstance]]
    handlers: dict[str, HandlerStatus]
    deadlines: dict[str, DeadlineStatus]
    results: frozenset[tuple[str, int]]
    effects: frozenset[str]
    outcome: str
    received: frozenset[str]
    runs: list[ReactionRun] = field(default_factory=list)
    agenda: list[tuple[str, str, int]] = field(default_factory=list)
    """What remains to be done in this move, in order, as a task, a name and a number. `event`: react to the event with
    this name and number. `order`: react to it with its handlers in each possible order. `run`: run the reaction with
    this name. `turn`: continue a suspended run of it."""

    @classmethod
    def begin(cls, choreography: ChoreographyModel, state: SagaState, service: ServiceModel) -> "_Working":
        known = state.services[choreography.places[service.name]]
        return cls(
            choreography, service, state.published, known.delivered, known.parts,
            dict(known.handlers), dict(known.deadlines), known.results, known.effects, known.outcome,
            known.received_outcomes,
        )  # fmt: skip

    def copy(self) -> "_Working":
        return _Working(
            self.choreography, self.service, self.published, self.delivered, self.parts, {**self.handlers},
            {**self.deadlines}, self.results, self.effects, self.outcome, self.received, [*self.runs], [*self.agenda],
        )  # fmt: skip

    def finish(self, state: SagaState) -> SagaState:
        place = self.choreography.places[self.service.name]
        known = ServiceSnapshot(
            self.delivered, self.parts, tuple(sorted(self.handlers.items())), tuple(sorted(self.deadlines.items())),
            self.results, self.effects, self.outcome, self.received,
        )  # fmt: skip
        services = (*state.services[:place], known, *state.services[place + 1 :])
        emitted = {(n, self.service.name) for run in self.runs for n in run.emitted if n in self.choreography.outcomes}
        return SagaState(self.published, services, state.outcomes | emitted)

    def carry_out(self, move: Move) -> Iterator["_Working"]:
        if move.kind == "deliver":
            self.delivered |= {(move.name, move.number)}
            self.agenda.append(("event", move.name, move.number))
        elif move.kind == "deadline":
            self.deadlines[move.name] = "over"
            self.agenda.append(("run", move.name, 0))
        else:
            self.agenda.append(("turn", move.name, 0))
        yield from self.settle()

    def settle(self) -> Iterator["_Working"]:
        """Do everything in `agenda`. Yield a copy for each combination of choices."""
        while self.agenda:
            what, name, number = self.agenda.pop(0)
            if what == "event":
                self.take_event((name, number))
            elif what == "order":
                yield from self._each_order(name, number)
                return
            else:
                yield from self._each_choice(self.service.reactions[name], is_turn=what == "turn")
                return
        yield self

    # ---------------------------------------------------------------- events

    def take_event(self, event: EventInstance) -> None:
        """React to an event: open or close deadlines, start compensations, and pass the event to its handlers."""
        name = event[0]
        failed = name in self.choreography.failures
        if name in self.choreography.outcomes:
            self.received |= {name}
        for deadline in self.service.deadlines:
            if name in deadline.unless or name in self.choreography.outcomes:
                self.deadlines[deadline.name] = "over"
            elif name in deadline.takes and deadline.name not in self.deadlines and not self.outcome:
                self.deadlines[deadline.name] = "open"
        undone = [c for c in self.service.compensations.values() if failed and name in c.takes]
        for compensation in undone:
            self.close_or_undo(compensation)
        takers = [h.name for h in self.service.handlers if name in h.takes]
        if sum(bool(self.service.reactions[h].emits & self.choreography.outcomes) for h in takers) > 1:
            self.agenda.append(("order", name, event[1]))  # which of them decides depends on their order
            return
        for handler in takers:
            self.take_part(self.service.reactions[handler], event)

    def _each_order(self, name: str, number: int) -> Iterator["_Working"]:
        takers = [h for h in self.service.handlers if name in h.takes]
        deciding = [h for h in takers if h.emits & self.choreography.outcomes]
        others = [h for h in takers if h not in deciding]
        for order in permutations(deciding):
            copy = self.copy()
            for handler in (*order, *others):
                copy.take_part(handler, (name, number))
            yield from copy.settle()

    def close_or_undo(self, compensation: ReactionModel) -> None:
        """Undo the results of a handler, if it has any, and close the handler."""
        handler = compensation.undoes or ""
        if self.handlers.get(handler) == "closed":
            return
        self.parts = frozenset(part for part in self.parts if part[0] != handler)
        undone = [each for each in self.results if each[0] == handler]
        if undone:  # a compensation runs once for each result
            self.results -= {*undone}
            self.agenda += [("run", compensation.name, 0)] * len(undone)
            self._withdraw(self.service.reactions[handler])
        self.effects -= {handler}
        self.handlers[handler] = "closed"

    def _withdraw(self, original: ReactionModel) -> None:
        """Remove the events that an undone handler emitted from the events that wait in its own service."""
        others = {n for each in self.service.reactions.values() if each is not original for n in each.emits}
        own = original.emits - others
        self.parts = frozenset(part for part in self.parts if part[1][0] not in own)

    def take_part(self, handler: ReactionModel, event: EventInstance) -> None:
        """Pass an event to a handler. Run the handler if it now has all its events."""
        status = self.handlers.get(handler.name, "idle")
        decides = bool(handler.emits & self.choreography.outcomes)
        if status == "closed" or (decides and self.outcome):
            return
        there = {waiting[0] for name, waiting in self.parts if name == handler.name}
        if event[0] not in handler.repeats:
            has_run = not handler.repeats and status != "idle"
            if has_run or any(event[0] in names and names & there for names in handler.parameters):
                return
        self.parts |= {(handler.name, event)}
        there.add(event[0])
        if all(names & there for names in handler.parameters):
            self.agenda.append(("run", handler.name, 0))

    # ---------------------------------------------------------------- runs

    def _each_choice(self, reaction: ReactionModel, *, is_turn: bool) -> Iterator["_Working"]:
        """Run a reaction if it may still run. Yield a copy for each of its choices."""
        if reaction.kind == "handler" and self.handlers.get(reaction.name) == "closed":
            yield from self.settle()
            return
        if reaction.emits & self.choreography.outcomes and self.outcome:
            self.handlers[reaction.name] = "completed"
            yield from self.settle()
            return
        taken = () if is_turn else self._consume(reaction)
        for alternative in reaction.alternatives:
            for emitted in alternative.list_choices():
                if sum(name in self.choreography.outcomes for name in emitted) > 1:
                    continue  # the runtime refuses it: see `find_defects`
                copy = self.copy()
                if reaction.kind == "handler":
                    copy.set_status(reaction, alternative.later, is_turn=is_turn)
                copy.end_run(reaction, taken, emitted, alternative.later)
                yield from copy.settle()

    def _consume(self, reaction: ReactionModel) -> tuple[str, ...]:
        """Remove the waiting events that a run takes, and return their contracts. If more events of `repeats` are
        waiting, put another run on the agenda."""
        if reaction.kind != "handler":
            return tuple(min(names) for names in reaction.parameters[:1])
        mine = sorted(part for part in self.parts if part[0] == reaction.name)
        if not reaction.repeats:
            self.parts -= {*mine}
            return tuple(event[0] for _, event in mine)
        repeated = [part for part in mine if part[1][0] in reaction.repeats]
        self.parts -= {*repeated[:1]}
        if len(repeated) > 1:
            self.agenda.append(("run", reaction.name, 0))
        used = [part for part in mine if part not in repeated]
        return tuple(part[1][0] for part in (*repeated[:1], *used))

    def set_status(self, handler: ReactionModel, later: bool, *, is_turn: bool) -> None:
        """Set the status of a handler after a run. `later`: whether the run is suspended now; `is_turn`: whether it was
        suspended before."""
        if not handler.repeats:
            self.handlers[handler.name] = "suspended" if later else "completed"
            return
        status = self.handlers.get(handler.name, "idle")
        if status not in _BY_SUSPENDED_RUNS:
            return  # completed in another release, in which it has no `repeats`
        count = min(_BY_SUSPENDED_RUNS.index(status) - is_turn + later, INSTANCES)
        self.handlers[handler.name] = _BY_SUSPENDED_RUNS[count]
        if not count:
            del self.handlers[handler.name]

    def end_run(self, reaction: ReactionModel, taken: tuple[str, ...], emitted: tuple[str, ...], later: bool) -> None:
        """Record a finished run: its effects and the events that it emitted."""
        self.runs.append(ReactionRun(self.service.name, reaction.name, taken, emitted, later))
        self._record_effect(reaction, emitted)
        for name in emitted:
            number = 0 if (name, 0) not in self.published else 1
            if (name, number) in self.published:
                continue  # further events of this contract behave like the second one
            self.published |= {(name, number)}
            if name in self.choreography.outcomes:
                self.outcome = name
                for deadline in self.service.deadlines:
                    self.deadlines[deadline.name] = "over"
            self.delivered |= {(name, number)}  # the service consumes its own events from its progress
            if name in self.service.consumed_contracts:
                self.agenda.append(("event", name, number))

    def _record_effect(self, reaction: ReactionModel, emitted: tuple[str, ...]) -> None:
        compensation = self.service.compensations.get(reaction.name)
        if compensation is None:
            if reaction.has_effects or reaction.irreversible:
                self.effects |= {reaction.name}
            return
        undoable = self.choreography.results_of(compensation)
        for _ in range(sum(name in undoable for name in emitted)):
            self.results |= {(reaction.name, int((reaction.name, 0) in self.results))}
            self.effects |= {reaction.name}
