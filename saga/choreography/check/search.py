"""Search the model of a choreography for a sequence of events that violates a property. Pure functions.

There are two searches. `explore` visits every state, up to a limit. It makes a delivery that changes nothing at once,
because such a delivery commutes with every other move. `walk` makes random runs, for choreographies with too many
states. Each run has random weights that decide which messages are late. `shrink` removes the moves that a violation
does not need from its trace."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random  # noqa: TID251 - seeds are given: the same seed makes the same run
from typing import NamedTuple

from saga.choreography.check.model import (
    ChoreographyModel,
    ReactionModel,
    ReactionRun,
    SagaState,
    ServiceSnapshot,
    Step,
    begin,
    has_no_effect,
    list_moves,
    list_optional_moves,
    take_steps,
)

MOVES_MAX = 2_000
"""Maximum number of moves of one random run."""


class PropertyViolation(NamedTuple):
    """A violation of a property, found in one state."""

    code: str
    subject: str
    """What violates the property: the label of a reaction, an event, or outcomes."""
    at_rest: bool = False
    """True if the violation counts only in a state in which nothing is left to happen."""


class EventTrace(NamedTuple):
    """A sequence of steps from a start event to a violation."""

    start: str
    steps: tuple[Step, ...]
    violation: PropertyViolation

    @property
    def runs(self) -> tuple[ReactionRun, ...]:
        """Return all runs of the trace, in order."""
        return tuple(run for step in self.steps for run in step.runs)


# -------------------------------------------------------------------- properties


def find_violations(choreography: ChoreographyModel, state: SagaState) -> Iterator[PropertyViolation]:
    """Yield the violations in a state that are final: no later move can remove them."""
    if len(state.outcomes) > 1:
        yield PropertyViolation("two-outcomes", " and ".join(sorted(name for name, _ in state.outcomes)))
    failed = {name for name, _ in state.outcomes if name in choreography.failures}
    if not failed:
        return
    for service, known in zip(choreography.services.values(), state.services, strict=True):
        for name in sorted(known.effects):
            reaction = service.reactions[name]
            if is_because_of(choreography, reaction, choreography.outcomes):
                continue
            compensation = choreography.compensation_of(reaction)
            if reaction.irreversible:
                yield PropertyViolation("irreversible-early", reaction.label)
            elif compensation is None:
                yield PropertyViolation("no-compensation", reaction.label)
            elif failed - _taken_in_a_release(choreography, compensation) or failed & (
                known.received_outcomes | {known.outcome}
            ):
                yield PropertyViolation("not-undone", reaction.label)


def _taken_in_a_release(choreography: ChoreographyModel, reaction: ReactionModel) -> frozenset[str]:
    return frozenset().union(*(each.takes for each in choreography.declarations[reaction.label]))


def find_violations_at_rest(choreography: ChoreographyModel, state: SagaState) -> Iterator[PropertyViolation]:
    """Yield the violations in a state in which nothing is left to happen."""
    if not state.outcomes:
        # A document change starts no saga before an event is emitted because of it, nor does another external event.
        starts = frozenset(choreography.starts) - choreography.changes
        has_begun = any(name in starts or name not in choreography.external for name, _ in state.published)
        if choreography.outcomes and has_begun:
            yield PropertyViolation("no-outcome", choreography.kind, at_rest=True)
        return
    ended = {name for name, _ in state.outcomes}
    for service, known in zip(choreography.services.values(), state.services, strict=True):
        for reaction in service.handlers:
            follows_it = any(follows(choreography, reaction, frozenset({name}), any) for name in ended)
            has_it = any(part[0] == reaction.name and part[1][0] in ended for part in known.parts)
            if _waits(known, reaction) and (follows_it or has_it):
                yield PropertyViolation("waits-for-ever", reaction.label, at_rest=True)


def is_because_of(choreography: ChoreographyModel, reaction: ReactionModel, outcomes: frozenset[str]) -> bool:
    """Return whether a reaction runs only after one of these outcomes was emitted, in each release that declares the
    reaction; or whether it emits one of these outcomes itself in every run."""
    return follows(choreography, reaction, outcomes) or all(outcomes & {*each.once} for each in reaction.alternatives)


def follows(
    choreography: ChoreographyModel,
    reaction: ReactionModel,
    outcomes: frozenset[str],
    releases: Callable[[Iterable[bool]], bool] = all,
) -> bool:
    """Return whether a reaction waits for one of these outcomes, or for an event that is emitted only after one of
    them.

    `releases`: `all` if this must hold in all releases that declare the reaction, `any` if it is enough in one of them.
    """
    key = (outcomes, releases)
    if key not in choreography.consequences:
        found: set[str] = set()
        before = -1
        while before != len(found):
            before = len(found)
            found |= {
                label
                for label, declared in choreography.declarations.items()
                if releases(_waits_for(choreography, each, outcomes, found) for each in declared)
            }
        choreography.consequences[key] = frozenset(found)
    return reaction.label in choreography.consequences[key]


def _waits_for(
    choreography: ChoreographyModel, reaction: ReactionModel, outcomes: frozenset[str], labels: set[str]
) -> bool:
    return any(
        names and all(name in outcomes or _only_from(choreography, name, labels) for name in names)
        for names in reaction.parameters
    )


def _only_from(choreography: ChoreographyModel, event: str, labels: set[str]) -> bool:
    emitters = choreography.emitters[event]
    return event not in choreography.external and bool(emitters) and all(each.label in labels for each in emitters)


def _waits(known: ServiceSnapshot, reaction: ReactionModel) -> bool:
    """Return whether a handler has some of its events, but not all. A handler with `repeats` may wait for ever, so it
    does not count."""
    return not reaction.repeats and any(part[0] == reaction.name for part in known.parts)


def describe_waiting(choreography: ChoreographyModel, state: SagaState) -> str:
    """Return the labels of the handlers that have some of their events, but not all, as readable text."""
    waiting = [
        f"{service.name}.{handler}"
        for service, known in zip(choreography.services.values(), state.services, strict=True)
        for handler in sorted({part[0] for part in known.parts})
    ]
    return ", ".join(waiting)


# -------------------------------------------------------------------- exhaustive


@dataclass(frozen=True, slots=True)
class Exploration:
    """Result of an exploration."""

    states: int
    is_complete: bool
    """True if every reachable state was visited."""
    traces: tuple[EventTrace, ...]
    """The shortest trace to each violation."""
    completed: frozenset[str]
    """Labels of the reactions that have run in some state."""
    outcomes: frozenset[str]
    """Outcomes that were emitted in some state."""


def explore(choreography: ChoreographyModel, states_max: int, *, is_naive: bool = False) -> Exploration:
    """Visit the states breadth first, up to a limit, and return what was found.

    `is_naive`: True to treat deliveries without effect like all others. A test compares the results of both ways."""
    seen: dict[SagaState, tuple[SagaState, Step] | None] = {}
    found: dict[PropertyViolation, EventTrace] = {}
    completed, outcomes = set[str](), set[str]()
    starts = {begin(choreography, event): event for event in choreography.starts}
    seen.update(dict.fromkeys(starts))
    left = deque(starts)
    while left and len(seen) <= states_max:
        state = left.popleft()
        outcomes |= {name for name, _ in state.outcomes}
        moves = list_moves(choreography, state)
        violations = [*find_violations(choreography, state)]
        if not moves:
            violations += find_violations_at_rest(choreography, state)
        for violation in violations:
            if violation not in found:
                found[violation] = _make_trace(starts, seen, state, violation)
        quiet = None if is_naive else next((m for m in moves if has_no_effect(choreography, state, m)), None)
        for move in [quiet] if quiet else [*moves, *list_optional_moves(choreography, state)]:
            for step in take_steps(choreography, state, move):
                completed |= {run.label for run in step.runs}
                if step.state not in seen:
                    seen[step.state] = (state, step)
                    left.append(step.state)
    is_complete = not left and not choreography.leaves_choices_out
    return Exploration(len(seen), is_complete, tuple(found.values()), frozenset(completed), frozenset(outcomes))


def _make_trace(
    starts: Mapping[SagaState, str],
    seen: Mapping[SagaState, tuple[SagaState, Step] | None],
    state: SagaState,
    violation: PropertyViolation,
) -> EventTrace:
    steps: list[Step] = []
    while (before := seen[state]) is not None:
        state, step = before
        steps.append(step)
    return EventTrace(starts[state], tuple(reversed(steps)), violation)


# -------------------------------------------------------------------- random


def walk(choreography: ChoreographyModel, seed: int, start: str) -> tuple[list[Step], SagaState]:
    """Make one random run to its end. Each event and reaction of a service has the same random weight throughout the
    run, so some of them are always late."""
    random = Random(seed)
    weights: dict[tuple[str, str], float] = {}
    state, steps = begin(choreography, start), list[Step]()
    while len(steps) < MOVES_MAX:
        moves = list_moves(choreography, state)
        if not moves:
            break
        moves += list_optional_moves(choreography, state)
        options: list[Step] = []
        while moves and not options:  # the runtime refuses a move without options
            chances = [weights.setdefault((m.service, m.name), random.random() ** 4 + 1e-6) for m in moves]
            (move,) = random.choices(moves, chances)
            moves.remove(move)
            options = list(take_steps(choreography, state, move))
        if not options:
            break
        steps.append(random.choice(options))
        state = steps[-1].state
    return steps, state


def find_by_walks(choreography: ChoreographyModel, seeds: Iterable[int]) -> Iterator[EventTrace]:
    """Yield a trace for each violation that occurs in random runs, once for each code and subject."""
    found = set[PropertyViolation]()
    for seed in seeds:
        start = choreography.starts[seed % len(choreography.starts)]
        steps, _ = walk(choreography, seed, start)
        for count in range(len(steps) + 1):
            state = steps[count - 1].state if count else begin(choreography, start)
            violations = [*find_violations(choreography, state)]
            if count == len(steps) and not list_moves(choreography, state):
                violations += find_violations_at_rest(choreography, state)
            for violation in violations:
                if violation not in found:
                    found.add(violation)
                    yield EventTrace(start, tuple(steps[:count]), violation)


# -------------------------------------------------------------------- shrinking


def shrink(choreography: ChoreographyModel, trace: EventTrace) -> EventTrace:
    """Return a shorter trace to the same violation, without the moves that it does not need."""
    wanted = trace.violation
    steps = list(trace.steps)
    size = max(1, len(steps) // 2)
    while size:
        place = 0
        while place < len(steps):
            shorter = replay(choreography, trace.start, [*steps[:place], *steps[place + size :]])
            if shorter is not None and len(shorter) < len(steps) and _is_at(choreography, trace.start, shorter, wanted):
                steps = list(shorter)
            else:
                place += size
        size //= 2
    return EventTrace(trace.start, tuple(steps), wanted)


def replay(choreography: ChoreographyModel, start: str, steps: Sequence[Step]) -> tuple[Step, ...] | None:
    """Make the moves of these steps from the start, with the same choices. Leave out moves that are no longer
    possible."""
    state, made = begin(choreography, start), list[Step]()
    for step in steps:
        possible = [*list_moves(choreography, state), *list_optional_moves(choreography, state)]
        if step.move not in possible:
            continue
        chosen = [(run.reaction, run.emitted, run.later) for run in step.runs]
        options = list(take_steps(choreography, state, step.move))
        if not options:
            continue
        same = [o for o in options if [(r.reaction, r.emitted, r.later) for r in o.runs] == chosen]
        made.append((same or options)[0])
        state = made[-1].state
    return tuple(made)


def _is_at(choreography: ChoreographyModel, start: str, steps: Sequence[Step], wanted: PropertyViolation) -> bool:
    state = steps[-1].state if steps else begin(choreography, start)
    if not wanted.at_rest:
        return wanted in find_violations(choreography, state)
    if list_moves(choreography, state):
        return False
    return wanted in find_violations_at_rest(choreography, state)
