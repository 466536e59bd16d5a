"""Prove properties of a choreography from its declarations, without a search. Pure functions.

The rules cover the usual style: one service decides; a deadline leads from the start to a failure outcome; each effect
is undone on every failure outcome; reactions to an outcome wait only for events that the outcome implies. If a rule
cannot prove a property, the property may still hold for another reason, and a search has to decide. `find_defects` does
the opposite: it finds properties that the declarations alone show to be violated.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

from saga.choreography.check.model import (
    Alternative,
    ChoreographyModel,
    Move,
    ReactionModel,
    SagaState,
    Step,
    begin,
    list_moves,
    take_steps,
)
from saga.choreography.check.search import follows, is_because_of
from saga.choreography.manifest import Manifest

RUN_MOVES_MAX = 20_000
"""Maximum number of moves of one planned run."""


class Defect(NamedTuple):
    """A problem that is visible in the declarations alone."""

    code: str
    subject: str
    text: str


# -------------------------------------------------------------------- events


def find_certain_events(choreography: ChoreographyModel, given: Iterable[str]) -> frozenset[str]:
    """Return the events that will certainly be emitted once the events in `given` have been emitted, unless a failure
    outcome closes their handlers. This holds whatever handlers choose, and however late messages are."""
    certain, before = set(given), -1
    while before != len(certain):
        before = len(certain)
        for reaction in choreography.reactions:
            # A handler that may emit an outcome does not run if its service has emitted one before.
            is_sure = reaction.kind == "handler" and not reaction.emits & choreography.outcomes
            if is_sure and all(names & certain for names in reaction.parameters):
                certain |= _emitted_in_any_case(reaction)
    return frozenset(certain)


def _emitted_in_any_case(reaction: ReactionModel) -> frozenset[str]:
    """Return the events that a run emits whichever alternative it chooses; none if the run may be suspended."""
    if any(each.later for each in reaction.alternatives):
        return frozenset()
    return frozenset(reaction.emits).intersection(*(each.once for each in reaction.alternatives))


def find_implied_events(choreography: ChoreographyModel) -> Mapping[str, frozenset[str]]:
    """Return the events that each event implies: itself, and all events that must have been emitted before it."""
    every = frozenset(choreography.contracts)
    implied = {name: frozenset({name}) if name in choreography.external else every for name in choreography.contracts}
    while True:
        before = dict(implied)
        for name in choreography.contracts:
            if name in choreography.external:
                continue
            needs = [_needed_before(before, each) for each in choreography.emitters[name]]
            implied[name] = frozenset({name}) | (every.intersection(*needs) if needs else frozenset())
        if implied == before:
            return implied


def _needed_before(implied: Mapping[str, frozenset[str]], reaction: ReactionModel) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for names in reaction.parameters:
        each = [implied[name] for name in names]
        found |= each[0].intersection(*each)
    return found


# -------------------------------------------------------------------- proofs


def prove_one_outcome(choreography: ChoreographyModel) -> str | None:
    """Return why every saga ends in exactly one outcome; `None` if this rule cannot prove it.

    The rule requires two things. One service emits all outcomes, at most one in a run, so that the runtime lets it
    decide only once. Each event that starts a saga leads to a deadline of that service that only an outcome cancels,
    and that always emits an outcome."""
    if len(choreography.deciders) != 1 or not choreography.starts or choreography.outcomes & choreography.external:
        return None
    (decider,) = choreography.deciders
    service = choreography.services[decider]
    if not all(_emits_at_most_one(choreography, each) for each in service.reactions.values()):
        return None
    ends = [
        each
        for each in service.deadlines
        if not each.unless and all(len(choreography.outcomes & {*a.once}) == 1 for a in each.alternatives)
    ]
    ends = [each for each in ends if not any(a.later for a in each.alternatives)]
    for begun in _list_beginnings(choreography):
        certain = find_certain_events(choreography, begun)
        if not any(each.takes & certain for each in ends):
            return None
    names = ", ".join(f"{each.label} within {each.within_s:g} s" for each in ends)
    return f"{decider} alone decides, once; a deadline ends every saga that nothing else ends ({names})"


def _list_beginnings(choreography: ChoreographyModel) -> Iterator[Sequence[str]]:
    """Yield the sets of events with which a saga may begin.

    Each set is an event that starts a saga, or the events that have certainly been emitted when a handler that takes
    only document changes and other external events emits something that does not end the saga at once.
    """
    changes = choreography.changes
    begun = frozenset(choreography.starts) - changes
    yield from ([name] for name in choreography.starts if name in begun)
    implied = find_implied_events(choreography) if changes else {}
    for reaction in choreography.reactions if changes else ():
        if all(names & choreography.external - begun for names in reaction.parameters):
            taken = _needed_before(implied, reaction)
            for each in reaction.alternatives:
                if each.events and not choreography.outcomes & {*each.once}:
                    yield [*taken, *each.once]


def _emits_at_most_one(choreography: ChoreographyModel, reaction: ReactionModel) -> bool:
    return all(
        len([name for name in each.once if name in choreography.outcomes]) <= 1
        and not choreography.outcomes & {*each.many}
        for each in reaction.alternatives
    )


def _without_undone(choreography: ChoreographyModel) -> ChoreographyModel:
    """Return the choreography without the handlers that a failure outcome may close before they run."""
    undone = {f"{each.service}.{each.undoes}" for each in choreography.reactions if each.undoes is not None}
    remaining = ChoreographyModel(choreography.kind, choreography.services, choreography.contracts)
    remaining.__dict__["reactions"] = tuple(each for each in choreography.reactions if each.label not in undone)
    return remaining


def prove_undone(choreography: ChoreographyModel) -> str | None:
    """Return why a failed saga leaves no effect that should have been undone; `None` if this rule cannot prove it.

    The rule requires that each handler with effects either runs only because of an outcome, or has a compensation for
    every failure outcome that may be emitted or come from outside. Irreversible handlers, and sagas with two outcomes,
    are covered by other properties."""
    failures = frozenset(
        name for name in choreography.failures if choreography.emitters[name] or name in choreography.external
    )
    covered = 0
    for reaction in choreography.reactions:
        if reaction.kind == "compensation" or not reaction.has_effects or reaction.irreversible:
            continue
        if is_because_of(choreography, reaction, choreography.outcomes):
            continue
        compensation = choreography.compensation_of(reaction)
        if compensation is None or not failures <= compensation.takes:
            return None
        covered += 1
    if not covered:
        return "no handler has effects before the outcome"
    return f"{_each(covered)} with effects before the outcome is undone on every failure outcome"


def prove_irreversible_late(choreography: ChoreographyModel) -> str | None:
    """Return why nothing irreversible happens before success is certain; `None` if this rule cannot prove it."""
    found = [each for each in choreography.reactions if each.irreversible]
    if not all(is_because_of(choreography, each, choreography.outcomes) for each in found):
        return None
    if not found:
        return "no handler is declared irreversible"
    return f"{_each(len(found))} that is irreversible runs because of an outcome"


def prove_no_endless_wait(choreography: ChoreographyModel) -> str | None:
    """Return why no handler that waits for an outcome waits for ever; `None` if this rule cannot prove it.

    The rule requires two things. At most one service emits outcomes, and no outcome comes from outside, because a
    second outcome could close handlers whose events the first one implies. Each handler that follows an outcome waits
    otherwise only for events that come before that outcome in every saga, or that certainly follow it."""
    if len(choreography.deciders) > 1 or choreography.outcomes & choreography.external:
        return None
    implied, count = find_implied_events(choreography), 0
    remaining = _without_undone(choreography)
    for outcome in sorted(choreography.outcomes):
        is_failure = outcome in choreography.failures
        certain = find_certain_events(remaining if is_failure else choreography, implied[outcome])
        if is_failure:  # undoing removes a handler's events from the events that wait in its own service
            certain -= {
                name for each in choreography.reactions for name in each.emits if each not in remaining.reactions
            }
        for reaction in choreography.reactions:
            if reaction.kind != "handler" or not _may_run_after(choreography, reaction, outcome):
                continue
            count += 1
            if not all(names & certain for names in reaction.parameters):
                return None
    if not count:
        return "no handler follows an outcome"
    return f"{_each(count)} that follows an outcome waits only for what the outcome implies"


def _may_run_after(choreography: ChoreographyModel, reaction: ReactionModel, outcome: str) -> bool:
    """Return whether a handler takes this outcome, possibly with other events, or waits for events that follow from it.
    The answer is False if the outcome closes the handler."""
    compensation = choreography.compensation_of(reaction)
    if compensation is not None and outcome in compensation.takes:
        return False  # the outcome closes it
    return outcome in reaction.takes or follows(choreography, reaction, frozenset({outcome}))


def _each(count: int) -> str:
    """Return a phrase for this number of handlers, as the subject of a sentence."""
    return "the one handler" if count == 1 else f"each of {count} handlers"


# -------------------------------------------------------------------- plans


Plan: TypeAlias = dict[str, Alternative]
"""Reactions that must run so that an event is emitted, by label, each with the alternative that it must choose."""


@dataclass(slots=True)
class Witnesses:
    """Reactions and outcomes that have occurred in some run of the model, and so are possible."""

    completed: set[str] = field(default_factory=set)
    """Labels of the reactions that have run."""
    outcomes: set[str] = field(default_factory=set)


def find_witnesses(choreography: ChoreographyModel) -> Witnesses:
    """Find out which reactions and successes are possible. For each one that has not occurred yet, make a run that is
    planned to reach it."""
    found, costs = Witnesses(), estimate_costs(choreography)
    targets = [frozenset({name}) for name in sorted(choreography.successes)]
    for names in targets:
        _run_plan(choreography, _make_plan(choreography, costs, [names]), found)
    for reaction in choreography.reactions:
        if reaction.label not in found.completed:
            _run_plan(choreography, _make_plan(choreography, costs, [*reaction.parameters, reaction.label]), found)
    return found


def estimate_costs(choreography: ChoreographyModel) -> Mapping[str, float]:
    """Return the least number of runs that are needed to emit each event, if every handler makes the right choices.
    Events that can never be emitted are left out."""
    costs: dict[str, float] = dict.fromkeys(choreography.external, 0)
    possible = [each for each in choreography.reactions if not waits_for_exclusive_events(choreography, each)]
    is_settled = False
    while not is_settled:
        is_settled = True
        for reaction in possible:
            cost = _cost_of(costs, reaction)
            for name in reaction.emits if cost is not None else ():
                if cost is not None and cost + 1 < costs.get(name, float("inf")):
                    costs[name], is_settled = cost + 1, False
    return costs


def waits_for_exclusive_events(choreography: ChoreographyModel, reaction: ReactionModel) -> bool:
    """Return whether a reaction waits for two events that never occur together, because a single handler that runs once
    emits either one or the other."""
    for place, names in enumerate(reaction.parameters):
        for others in reaction.parameters[place + 1 :]:
            sources = {each.label: each for name in names | others for each in choreography.emitters[name]}
            if len(sources) != 1 or (names | others) & choreography.external:
                continue
            (source,) = sources.values()
            # A compensation runs for each result, a suspended run for each turn.
            runs_once = source.kind != "compensation" and not source.repeats
            runs_once = runs_once and not any(each.later for each in source.alternatives)
            together = any({*each.events} & names and {*each.events} & others for each in source.alternatives)
            if runs_once and not together:
                return True
    return False


def _cost_of(costs: Mapping[str, float], reaction: ReactionModel) -> float | None:
    """Return the number of runs that are needed for all events that a reaction waits for; `None` if it can never
    run."""
    cost = 0.0
    for names in reaction.parameters:
        needs = [costs[name] for name in names if name in costs]
        if not needs:
            return None
        cost += min(needs)
    return cost


def _make_plan(
    choreography: ChoreographyModel, costs: Mapping[str, float], wanted: Iterable[frozenset[str] | str]
) -> tuple[Plan, str]:
    """Return a plan that leads to one event from each set in `wanted`, and the event that starts the saga. A string in
    `wanted` is the label of a reaction that should run, with any choice."""
    plan, start = Plan(), choreography.starts[0] if choreography.starts else ""
    left = [*wanted]
    while left:
        names = left.pop(0)
        if isinstance(names, str):
            plan.setdefault(names, Alternative())
            continue
        events = sorted((name for name in names if name in costs), key=lambda name: (costs[name], name))
        if not events or any(name in each.events for name in events for each in plan.values()):
            continue
        if events[0] in choreography.external:
            start = events[0] if events[0] in choreography.starts else start
            continue
        ways = [(_cost_of(costs, each), each.label, each) for each in choreography.emitters[events[0]]]
        possible = [(cost, label, each) for cost, label, each in ways if cost is not None and label not in plan]
        if possible:
            _, label, reaction = min(possible, key=lambda way: (way[0], way[1]))
            fitting = [each for each in reaction.alternatives if events[0] in each.events]
            plan[label] = min(fitting, key=lambda each: (each.later, len(each.events)))
            left = [*reaction.parameters, *left]
    return plan, start


def _run_plan(choreography: ChoreographyModel, planned: tuple[Plan, str], found: Witnesses) -> None:
    """Make a run in which reactions choose as planned, and add the reactions and outcomes that occurred to `found`.

    Outcomes are delivered after everything else, and only planned deadlines become due."""
    plan, start = planned
    if not start:
        return
    state = begin(choreography, start)
    left = [Move("deliver", s.name, start) for s in choreography.consumers[start]]
    left += [Move("start", "", name) for name in sorted(choreography.external - {start})]
    refused = set[Move]()
    for _ in range(RUN_MOVES_MAX):
        others = [m for m in list_moves(choreography, state) if m.kind != "deliver"] if not left else []
        others += _list_due(choreography, state, plan)
        moves = [m for m in (*left, *others) if m.kind != "deadline" or f"{m.service}.{m.name}" in plan]
        moves = [m for m in moves if m not in refused]
        if not moves:
            return
        move = min(moves, key=partial(_rank, choreography, plan))
        left = [each for each in left if each != move]
        options = take_steps(choreography, state, move)
        step = min(options, key=partial(_differs, choreography, plan), default=None)
        if step is None:  # the runtime refuses all that a handler may return
            refused.add(move)
            continue
        found.completed |= {run.label for run in step.runs}
        found.outcomes |= {name for name, _ in step.state.outcomes}
        for name, number in sorted(step.state.published - state.published):
            left += [
                Move("deliver", s.name, name, number) for s in choreography.consumers[name] if s.name != move.service
            ]
        state = step.state


def _list_due(choreography: ChoreographyModel, state: SagaState, plan: Plan) -> list[Move]:
    """Return a move for each planned deadline that is open."""
    found = []
    for label in plan:
        service, _, name = label.partition(".")
        if (name, "open") in state.services[choreography.places[service]].deadlines:
            found.append(Move("deadline", service, name))
    return found


def _rank(choreography: ChoreographyModel, plan: Plan, move: Move) -> int:
    """Return the rank of a move; the move with the lowest rank is made first. Events that planned reactions need come
    first, then planned deadlines, then other events. Outcomes come last."""
    if move.kind == "start":
        return 0
    if move.kind != "deliver":
        return 1
    service = choreography.services[move.service]
    needed = any(move.name in each.takes and each.label in plan for each in service.reactions.values())
    return (0 if needed else 2) + 3 * (move.name in choreography.outcomes)


def _differs(choreography: ChoreographyModel, plan: Plan, step: Step) -> int:
    """Return the number of runs in a step that did not choose what was planned, or emitted an outcome that was not
    planned: it ends what the plan still waits for."""
    differing = 0
    for run in step.runs:
        if run.label in plan and plan[run.label].events:
            differing += sorted(run.emitted) != sorted(plan[run.label].events)
        else:
            differing += not choreography.outcomes.isdisjoint(run.emitted)
    return differing


# -------------------------------------------------------------------- defects


def find_defects(choreography: ChoreographyModel) -> Iterator[Defect]:
    """Yield the problems that are visible in the declarations alone."""
    yield from _find_loose_ends(choreography)
    yield from _find_refused_results(choreography)
    yield from _find_owners(choreography)
    yield from _find_reactions_to_neighbours(choreography)
    for cycle in find_loops(choreography):
        labels = " -> ".join(each.label for each in (*cycle, cycle[0]))
        yield Defect("endless-loop", cycle[0].label, f"each run may cause the next one, without end: {labels}")
    for reaction in choreography.reactions:
        if reaction.never_ends:
            yield Defect(
                "endless-loop", reaction.label, "each turn is followed by another one: it always returns Later"
            )


def find_contradictions(manifests: Iterable[Manifest]) -> Iterator[Defect]:
    """Yield the contracts that manifests describe differently, because they come from releases that do not fit
    together."""
    known: dict[str, tuple[str, tuple[object, ...]]] = {}
    for manifest in manifests:
        for each in (*manifest.emits, *manifest.consumes):
            attributes = (each.topic, each.key, each.outcome, each.starts, each.produced_externally)
            service, before = known.setdefault(each.contract, (manifest.service, attributes))
            if before != attributes:
                text = f"the manifests of {service} and {manifest.service} differ in its topic, key, outcome or start"
                yield Defect("contradiction", each.contract, text)


def find_direct_calls(manifests: Iterable[Manifest]) -> Iterator[Defect]:
    """Yield the reactions that call resources without `saga.step`."""
    for manifest in manifests:
        for reaction in manifest.reactions:
            if reaction.direct:
                text = (
                    f"it calls {', '.join(reaction.direct)} beside saga.step: the answer is not recorded, and each "
                    "rerun calls again"
                )
                yield Defect("direct-call", f"{manifest.service}.{reaction.name}", text)


def _find_loose_ends(choreography: ChoreographyModel) -> Iterator[Defect]:
    if not choreography.starts:
        yield Defect("no-start", choreography.kind, "no event comes from outside, so no saga ever begins")
    if not choreography.outcomes:
        yield Defect("no-outcome", choreography.kind, "no contract is an outcome, so no saga ever ends")
    for name, contract in choreography.contracts.items():
        consumers, emitters = choreography.consumers[name], choreography.emitters[name]
        if not emitters and not contract.produced_externally:
            services = ", ".join(each.name for each in consumers)
            yield Defect("no-producer", name, f"{services} waits for it, and no service emits it")
        if not consumers and not contract.consumed_externally and emitters:
            yield Defect("no-consumer", name, f"{emitters[0].label} emits it, and no service consumes it")


def _find_refused_results(choreography: ChoreographyModel) -> Iterator[Defect]:
    for reaction in choreography.reactions:
        for each in reaction.alternatives:
            outcomes = [name for name in each.once if name in choreography.outcomes]
            if len(outcomes) > 1:
                text = f"it returns {' and '.join(outcomes)} together, which the runtime refuses"
                yield Defect("two-outcomes", reaction.label, text)


def _find_owners(choreography: ChoreographyModel) -> Iterator[Defect]:
    if len(choreography.deciders) > 1:
        services = " and ".join(choreography.deciders)
        yield Defect("two-deciders", choreography.kind, f"{services} both emit outcomes: let one service decide")
    elif choreography.deciders and (outside := choreography.outcomes & choreography.external):
        text = f"{choreography.deciders[0]} emits outcomes, and {' and '.join(sorted(outside))} comes from outside"
        yield Defect("two-deciders", choreography.kind, f"{text}: let one service decide")


def _find_reactions_to_neighbours(choreography: ChoreographyModel) -> Iterator[Defect]:
    """Yield handlers with effects that react to an event of another service, although the deciding service fails the
    saga because of the same event. If such a handler undoes work, it does so for only one of several possible failures.
    """
    if len(choreography.deciders) != 1:
        return
    decider = choreography.services[choreography.deciders[0]]
    for reaction in choreography.reactions:
        if reaction.kind != "handler" or reaction.service == decider.name or not reaction.has_effects:
            continue
        for name in sorted(reaction.takes - choreography.outcomes - choreography.external):
            causes = [
                h
                for h in decider.handlers
                if h.parameters == (frozenset({name}),) or (len(h.parameters) == 1 and name in h.takes)
            ]
            leads = [h for h in causes if all(choreography.failures & {*a.once} for a in h.alternatives)]
            emitters = choreography.emitters[name]
            if leads and len(reaction.parameters) == 1 and all(each.service != reaction.service for each in emitters):
                text = (
                    f"{reaction.label} acts on {name}, on which {leads[0].label} fails the saga: act on the outcome, "
                    "with a compensation, because the saga may fail for another reason"
                )
                yield Defect("neighbours-failure", reaction.label, text)


def find_loops(choreography: ChoreographyModel) -> list[tuple[ReactionModel, ...]]:
    """Return cycles of reactions that may run without end, because each one has `repeats` and runs once for every event
    of the previous one."""
    nexts = {
        each.label: [other for other in choreography.reactions if other.repeats & each.emits]
        for each in choreography.reactions
    }
    by_label = {each.label: each for each in choreography.reactions}
    found: dict[frozenset[str], tuple[ReactionModel, ...]] = {}
    for first in choreography.reactions:
        if not first.repeats:
            continue
        paths: list[tuple[str, ...]] = [(first.label,)]
        seen = {first.label}
        while paths:
            path = paths.pop(0)
            for other in nexts[path[-1]]:
                if other.label == first.label:
                    found.setdefault(frozenset(path), tuple(by_label[label] for label in path))
                    paths = []
                    break
                if other.label not in seen:
                    seen.add(other.label)
                    paths.append((*path, other.label))
    return list(found.values())
