"""Run a scenario many times: once for each seed, or with a crash at each possible point. The first failure is shrunk
and returned for the report.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from traceback import extract_tb
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from saga.declarations.values import Reaction
from saga.errors import SagaError
from saga.progress.decisions import TOO_OLD
from saga.support.printable import count_noun
from saga.telemetry.events import DeadLettered
from saga.testing.decorators import Crashes, Mode, Replayed, Seeds
from saga.testing.fault_plans import (
    APPLICATION,
    POSSIBLE,
    FaultPlan,
    Faults,
    Operation,
    PlannedFault,
    RandomPlan,
    Schedule,
)
from saga.testing.simulation.network import InjectedFault, OperationRecord, TraceNote
from saga.testing.simulation.simulated_world import SimulatedWorld
from saga.testing.world import CheckFailed, DocumentWrite

if TYPE_CHECKING:
    from saga.ops.dead_letters import DeadLetter

Scenario: TypeAlias = Callable[[SimulatedWorld], None]
Line: TypeAlias = OperationRecord | InjectedFault | TraceNote
ELSEWHERE = (
    "something in a service, its fakes or the test depends on more than the seed: a global that the test does not "
    "create again, the order of a set, an id() or a hash()"
)
FAILURES: tuple[type[BaseException], ...] = (Exception,)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a scenario, with its result."""

    schedule: Schedule
    """Schedule that repeats this run. Faults that were drawn at random are planned faults in it."""
    failure: BaseException | None
    world: SimulatedWorld

    @property
    def signature(self) -> tuple[type, str]:
        """Identity of the failure, by which shrinking recognises it: the exception's class, with the name of the
        invariant or the line that raised it.
        """
        assert self.failure is not None
        if isinstance(self.failure, CheckFailed):
            return CheckFailed, self.failure.invariant
        raised = extract_tb(self.failure.__traceback__)[-1]
        return type(self.failure), f"{raised.filename}:{raised.lineno}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run: additional checks, each of which takes time, and the exceptions that count as a failure."""

    guarded: bool = False
    """True to detect accidental use of real time, randomness, threads and the network."""
    rerun: bool = False
    """True to repeat each transition and check that the result has the same bytes."""
    failures: tuple[type[BaseException], ...] = FAILURES
    """Exceptions that count as a failure of the scenario. The default includes `CheckFailed`, the error for a broken
    invariant.
    """


def run(scenario: Scenario, schedule: Schedule, care: RunOptions) -> Run:
    """Run the scenario once. If it fails, the result contains the exception."""
    failure: BaseException | None = None
    with _no_collector(), SimulatedWorld(schedule.seed, schedule.plan(), guarded=care.guarded) as world:
        world.left_out = schedule.without
        try:
            scenario(world)
            world.verify(rerun=care.rerun)
        except care.failures as why:
            failure = why
    return Run(world.schedule(), failure, world)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Disable Python's cyclic garbage collector within the block. It would take a sixth of a run's time, and would find
    little garbage before the world has ended.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def check_repeatable(scenario: Scenario, schedule: Schedule, first: Run) -> None:
    """Repeat a run that passed. Raises `SagaError` if the second run differs from the first, or fails."""
    if first.failure is not None:
        return  # reported as a failure of the scenario
    again = run(scenario, schedule, RunOptions())
    if first.world.fingerprint() != again.world.fingerprint():
        difference = _find_first_difference(schedule.seed, first.world.trace.lines, again.world.trace.lines)
        raise SagaError(f"{difference}\n{ELSEWHERE}") from again.failure
    if again.failure is not None:
        difference = f"seed {schedule.seed} fails the second time only: {again.failure}"
        raise SagaError(f"{difference}\n{ELSEWHERE}") from again.failure


def _find_first_difference(seed: int, ones: Sequence[Line], twos: Sequence[Line]) -> str:
    """Describe where two runs of one seed begin to differ."""
    for one, two in zip(ones, twos, strict=False):
        if one != two:
            return f"seed {seed} runs another way the second time, from {one.time_s:.4f} s on:\n  {one}\n  {two}"
    if len(ones) == len(twos):
        return f"seed {seed} does the same the second time, and writes or says something else"
    longer, which = (ones, "first") if len(ones) > len(twos) else (twos, "second")
    return f"seed {seed} goes on longer the {which} time:\n  {longer[min(len(ones), len(twos))]}"


Item = TypeVar("Item")
Sought: TypeAlias = tuple[str, str, str]
"""Identity of an operation that does not depend on its number: service, kind, and target such as a document or a
topic.
"""

RUNS_MAX = 300
"""Maximum number of runs for shrinking. After that many, the smallest failing run so far is returned."""


@dataclass(slots=True)
class Shrunk:
    """The smallest failing run that shrinking has found."""

    run: Run
    runs: int
    """Number of runs that shrinking needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedSchedule(Schedule):
    """A schedule whose planned faults hit the same operations as in an earlier run, even if the numbers of these
    operations have changed.

    It is needed because leaving out a fault or an event changes the numbers of all later operations.
    """

    places: tuple[tuple[Sought, int], ...]
    """For each planned fault, the identity of the operation that it hits, and the number of earlier operations with the
    same identity.
    """

    def plan(self) -> FaultPlan:
        return RecognisingPlan(dict(zip(self.places, self.planted, strict=True)))


class RecognisingPlan:
    """A fault plan that recognises operations by their identity instead of their number."""

    def __init__(self, sought: dict[tuple[Sought, int], PlannedFault]) -> None:
        self._sought = sought
        self._seen: Counter[Sought] = Counter()

    def fault_at(self, operation: Operation, now_s: float) -> PlannedFault | None:
        sought = _identify_operation(operation)
        planned = self._sought.get((sought, self._seen[sought]))
        self._seen[sought] += 1
        if planned is None or operation.what not in POSSIBLE[planned.kind]:
            return None
        return planned._replace(process=operation.process, number=operation.number)


def shrink(scenario: Scenario, failing: Run, care: RunOptions, runs_max: int = RUNS_MAX) -> Shrunk:
    """Find a smaller run that fails in the same way, by leaving out faults and events."""
    found = Shrunk(failing, 0)
    events = range(len(failing.world.published))

    calm: dict[frozenset[int], bool] = {frozenset(): True}

    def is_calm(without: frozenset[int]) -> bool:
        """Return True if the scenario passes without these events and without any faults.

        A scenario that asserts something about an event always fails without that event. Such a failure would explain
        nothing, so the event is not left out.
        """
        if without not in calm:
            if found.runs >= runs_max:
                return False
            found.runs += 1
            calm[without] = run(scenario, Schedule(seed=failing.schedule.seed, without=without), care).failure is None
        return calm[without]

    def fails(planted: Sequence[PlannedFault], without: frozenset[int]) -> bool:
        """Return True if the scenario still fails in the same way with only these faults. The faults are tried at the
        same operation numbers, then at the same operations.
        """
        if not isinstance(failing.failure, CheckFailed) and not is_calm(without):
            return False
        by_number = Schedule(seed=failing.schedule.seed, planted=tuple(planted), without=without)
        return tried(by_number) or bool(planted and tried(_move_schedule(found.run, by_number)))

    def tried(schedule: Schedule) -> bool:
        if found.runs >= runs_max:
            return False
        found.runs += 1
        smaller = run(scenario, schedule, care)
        if smaller.failure is None or smaller.signature != failing.signature:
            return False
        found.run = smaller
        return True

    while True:
        before = found.run.schedule
        _leave_out(lambda: found.run.schedule.planted, lambda kept: fails(kept, found.run.schedule.without))
        _leave_out(
            lambda: [n for n in events if n not in found.run.schedule.without],
            lambda kept: fails(found.run.schedule.planted, frozenset(events) - set(kept)),
        )
        if found.run.schedule == before or found.runs >= runs_max:
            return found


def _move_schedule(of: Run, schedule: Schedule) -> MovedSchedule:
    """Return the schedule with each fault bound to the operation that it hit in the run `of`, so that it hits the same
    operation even if the numbers change.
    """
    places = _find_places(of)
    return MovedSchedule(
        seed=schedule.seed,
        planted=schedule.planted,
        without=schedule.without,
        places=tuple(places[planted] for planted in schedule.planted),
    )


def _find_places(of: Run) -> dict[PlannedFault, tuple[Sought, int]]:
    """Return the operation that each fault of a run hit, in the form of `MovedSchedule.places`."""
    numbers: dict[tuple[str, int], int] = {}
    seen: Counter[Sought] = Counter()
    places: dict[PlannedFault, tuple[Sought, int]] = {}
    for line in of.world.trace.lines:
        if isinstance(line, TraceNote):
            continue
        operation = line.operation
        asked, sought = (operation.process, operation.number), _identify_operation(operation)
        if asked not in numbers:
            numbers[asked] = seen[sought]
            seen[sought] += 1
        if isinstance(line, InjectedFault):
            places[line.planned] = sought, numbers[asked]
    return places


def _identify_operation(operation: Operation) -> Sought:
    return operation.service, operation.what, operation.where


def _leave_out(items: Callable[[], Sequence[Item]], fails: Callable[[Sequence[Item]], bool]) -> None:
    """Try to leave out items: halves first, then quarters and so on, down to single items. An item stays out if `fails`
    returns True for the remaining items.

    `items`: returns the items that have not been left out yet.
    """
    size = len(items())
    while size:
        at = 0
        while at < len(items()):
            left = [*items()[:at], *items()[at + size :]]
            if not fails(left):
                at += size
        size //= 2


CAREFUL = 3
"""Number of runs, counted from the first, that also detect stray calls (see `saga.testing.simulation.guard`) and repeat
each transition.
"""
PAIRS_POINTS_MAX = 60
"""By default, pairs of crashes are tried only if a run has at most this many crash points."""
PAIRS_MAX = 2_000
"""Maximum number of pairs of crashes that are tried. If there are more pairs, the seed selects some of them."""


@dataclass(slots=True)
class Tally:
    """Counts events, documents, faults and dead letters over all runs."""

    runs: int = 0
    events: int = 0
    documents: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    points: int = 0
    """Number of crash points that `crash_everywhere` has tried."""
    pairs: int = 0
    pairs_in_all: int = 0
    dead: Counter[str] = field(default_factory=Counter)
    """Number of dead letters by reason. A saga that a dead letter blocks is not a failure, but it is reported."""

    ended: bool = False
    """True if some saga has reached an outcome, if no service emits outcomes, or if the test has sent an operator
    command, which expects a dead letter.
    """

    reactions: dict[str, Reaction] = field(default_factory=dict)
    """Handlers, compensations and deadlines of all services, by label such as `payment.release`."""
    reached: set[str] = field(default_factory=set)
    """Labels of the handlers, compensations and deadlines that have completed at least one run."""

    targets: set[str] = field(default_factory=set)
    """Names that a fault's target can match: the topics of all runs, and the services and `service.handler` names of
    operations in runs whose faults were drawn at random.
    """

    mistakes: dict[str, None] = field(default_factory=dict)
    """Descriptions of the exceptions that fakes raised by mistake; see `describe_mistake`."""

    def add(self, done: Run) -> None:
        self.runs += 1
        self.mistakes |= done.world.workers.mistakes
        self.reached |= done.world.workers.reached
        self.targets.update(done.world.cluster.topics)
        if isinstance(done.world.network.plan, RandomPlan):
            self.targets |= done.world.network.plan.targets
        for name, releases in done.world.workers.releases.items():
            declared = (each.prepared.declared for each in releases)
            self.reactions |= {f"{name}.{reaction.name}": reaction for each in declared for reaction in each.reactions}
        self.ended = self.ended or not done.world.emits_outcomes or done.world.has_commanded
        self.ended = self.ended or any(map(done.world.outcome, done.world.sagas()))
        published = [each for n, each in enumerate(done.world.published) if n not in done.schedule.without]
        written = sum(isinstance(each, DocumentWrite) for each in published)
        self.events, self.documents = self.events + len(published) - written, self.documents + written
        self.faults.update(planted.kind for planted in done.schedule.planted)
        for line in done.world.trace.lines:
            if isinstance(line, TraceNote) and isinstance(line.moment, DeadLettered):
                self.dead[describe_dead_letter(line.moment)] += 1

    def list_unreached(self, allowed: Sequence[Callable[..., object]] = ()) -> list[str]:
        """Return the handlers, compensations and deadlines that no run has reached, each with its kind. Functions in
        `allowed` are left out.
        """
        return [
            f"{label} ({reaction.kind})"
            for label, reaction in self.reactions.items()
            if label not in self.reached and reaction.function not in allowed
        ]


def describe_dead_letter(letter: "DeadLettered | DeadLetter") -> str:
    """Return the service, handler and reason of a dead letter. The saga's id is left out, so that equal reasons of
    different sagas are counted together.
    """
    if letter.reason.startswith(TOO_OLD):
        return f"{TOO_OLD}, after an expiry"
    return f"{letter.service}.{letter.handler or letter.type}: {letter.reason}"


@dataclass(frozen=True, slots=True)
class FailedScenario:
    """The first failing run of a scenario, and the smallest run that fails in the same way."""

    first: Run
    shrunk: Shrunk


def run_all(
    scenario: Scenario, mode: Mode, tally: Tally, care: RunOptions, seeds: Sequence[int] | None = None
) -> FailedScenario | None:
    """Run a scenario as its decorator prescribes, or only with these seeds. Return `None` if no run fails.

    Raises `SagaError` if no saga ended at all because of dead letters; for faults with a target that does not exist in
    these worlds; and, if the decorator requires it, for handlers that no run has reached. One seed alone, or a recorded
    schedule, may end with a dead letter and may reach few handlers.
    """
    for schedule in _schedules(scenario, mode, seeds, tally, care):
        careful = tally.runs < CAREFUL
        watched = replace(care, guarded=careful, rerun=careful)
        done = run(scenario, schedule, watched)
        if tally.runs == 0:
            check_repeatable(scenario, schedule, done)
        tally.add(done)
        if done.failure is not None:
            return FailedScenario(done, shrink(scenario, done, watched))
    if seeds is None and not isinstance(mode, Replayed):
        check_some_ended(tally)
    if isinstance(mode, Seeds):
        check_targets(tally, mode.faults)
    if isinstance(mode, Seeds) and mode.unreached is not None and seeds is None:
        _check_all_reached(tally, mode.unreached)
    return None


def check_some_ended(tally: Tally) -> None:
    """Raise `SagaError` if there are dead letters and no saga has ended."""
    if tally.dead and not tally.ended:
        [(why, _)] = tally.dead.most_common(1)
        mistakes = "".join(f"; {mistake}" for mistake in tally.mistakes)
        raise SagaError(
            f"no saga ended in {count_noun(tally.runs, 'run')}: each stands still because of a dead letter, so nothing "
            f"was tested; most of them: {why}{mistakes}"
        )


def check_targets(tally: Tally, faults: Faults) -> None:
    """Raise `SagaError` for faults with a target that does not exist in these worlds, because such faults never
    happen.
    """
    known = {"*"} | tally.targets | tally.reactions.keys()
    unknown = list(dict.fromkeys(rule.target for rule in faults.rules if rule.target not in known))
    if unknown:
        near = {name: get_close_matches(name, known, n=1) for name in unknown}
        named = ", ".join(f"{name!r}{f' (did you mean {near[name][0]!r}?)' if near[name] else ''}" for name in unknown)
        raise SagaError(
            f"in {count_noun(tally.runs, 'run')} the faults for target {named} never happened: no service, topic or "
            "service.handler of these worlds has that name"
        )


def _check_all_reached(tally: Tally, allowed: Sequence[Callable[..., object]]) -> None:
    """Raise `SagaError` if there are handlers that no run has reached, except for those in `allowed`."""
    if missed := tally.list_unreached(allowed):
        raise SagaError(
            f"in {count_noun(tally.runs, 'run')} these handlers never ran, so the test shows nothing about them: "
            f"{', '.join(missed)}. Publish events, or add faults, that reach them; name the functions of those "
            "that need not run: simulate(unreached=[...])"
        )


def _schedules(
    scenario: Scenario, mode: Mode, seeds: Sequence[int] | None, tally: Tally, care: RunOptions
) -> Iterator[Schedule]:
    match mode:
        case Seeds(count, faults):
            for number in range(count) if seeds is None else seeds:
                yield Schedule(seed=number, drawn=faults)
        case Replayed(number, faults, without):
            yield Schedule.parse(number, faults, without)
        case Crashes(pairs):
            for number in seeds or (0,):
                yield from _crash_schedules(scenario, Schedule(seed=number), pairs, tally, care)


def _crash_schedules(
    scenario: Scenario, schedule: Schedule, pairs: bool | None, tally: Tally, care: RunOptions
) -> Iterator[Schedule]:
    """Yield the schedules of `crash_everywhere`: one without a crash, then one for each crash point, then those with
    two crashes.
    """
    yield schedule
    points = find_crash_points(run(scenario, schedule, care))
    tally.points += len(points)
    follow: list[Schedule] = []
    for point in points:
        one = replace(schedule, planted=(point,))
        yield one
        if pairs or (pairs is None and len(points) <= PAIRS_POINTS_MAX):
            after = find_crash_points(run(scenario, one, care), since=point)
            follow += [replace(one, planted=(point, second)) for second in after]
    tally.pairs_in_all += len(follow)
    step = max(1, -(-len(follow) // PAIRS_MAX))
    for two in follow[schedule.seed % step :: step]:
        tally.pairs += 1
        yield two


def find_crash_points(done: Run, since: PlannedFault | None = None) -> list[PlannedFault]:
    """Return the points of a run at which a process can die, in order: before and after each operation, except for a
    poll, where the only point is after it.

    `since`: return only points after this fault.
    """
    points: dict[PlannedFault, None] = {}
    begun = since is None
    for line in done.world.trace.lines:
        if not isinstance(line, OperationRecord):
            begun = begun or getattr(line, "planned", None) == since
            continue
        operation = line.operation
        if not begun or operation.process == APPLICATION:
            continue
        for after in (False, True) if operation.what != "poll" else (True,):
            points[PlannedFault(operation.process, operation.number, "crash", after)] = None
    if since is not None:
        points.pop(since, None)
    return list(points)
