"""All runs of a scenario: one for each seed, or with a crash at every point; the first failure is shrunk and told."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from saga.errors import SagaError
from saga.progress.decisions import TOO_OLD
from saga.telemetry.events import DeadLettered
from saga.testing.decorators import Crashes, Mode, Replayed, Seeds
from saga.testing.simulation.plan import APPLICATION, Planned
from saga.testing.simulation.run import Care, Run, Scenario, check_repeatable, run
from saga.testing.simulation.schedules import Schedule
from saga.testing.simulation.shrinking import Shrunk, shrink
from saga.testing.simulation.trace import Asked, Noted
from saga.testing.world import Written

CAREFUL = 3
"""Number of first runs that are guarded, and made again transition by transition."""
PAIRS_POINTS_MAX = 60
"""Most points of a short run: in one with no more, pairs of crashes are tried, too."""
PAIRS_MAX = 2_000
"""Most pairs that are tried; the seed says which."""


@dataclass(slots=True)
class Tally:
    """Counts of all runs: published events, written documents, faults, dead letters."""

    runs: int = 0
    events: int = 0
    documents: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    points: int = 0
    """Points at which a process died, for `crash_everywhere`."""
    pairs: int = 0
    pairs_in_all: int = 0
    dead: Counter[str] = field(default_factory=Counter)
    """Reasons that messages were given up: a saga that stands still because of one is no failure, but it is told."""

    ended: bool = False
    """True if any saga has come to an outcome, or none is there to come to."""

    def add(self, done: Run) -> None:
        self.runs += 1
        self.ended = self.ended or not done.world.decides or any(map(done.world.outcome, done.world.sagas()))
        said = [each for n, each in enumerate(done.world.published) if n not in done.schedule.without]
        written = sum(isinstance(each, Written) for each in said)
        self.events, self.documents = self.events + len(said) - written, self.documents + written
        self.faults.update(planted.kind for planted in done.schedule.planted)
        for line in done.world.trace.lines:
            if isinstance(line, Noted) and isinstance(line.moment, DeadLettered):
                self.dead[_why_dead(line.moment)] += 1


def _why_dead(letter: DeadLettered) -> str:
    """Reason of a dead letter without the saga's name, so that those of different sagas are one."""
    if letter.reason.startswith(TOO_OLD):
        return f"{TOO_OLD}, after an expiry"
    return f"{letter.service}.{letter.handler or letter.type}: {letter.reason}"


@dataclass(frozen=True, slots=True)
class Failed:
    """The first run that failed, and the smallest that fails in the same way."""

    first: Run
    shrunk: Shrunk


def run_all(
    scenario: Scenario, mode: Mode, tally: Tally, care: Care, seeds: Sequence[int] | None = None
) -> Failed | None:
    """Run a scenario as its decorator says, or under these seeds only; `None`: all is well.

    Raises `SagaError` if no saga ended at all, but for dead letters.
    """
    for schedule in _schedules(scenario, mode, seeds, tally, care):
        careful = tally.runs < CAREFUL
        watched = replace(care, guarded=careful, rerun=careful)
        done = run(scenario, schedule, watched)
        if tally.runs == 0:
            check_repeatable(scenario, schedule, done)
        tally.add(done)
        if done.failure is not None:
            return Failed(done, shrink(scenario, done, watched))
    if tally.dead and not tally.ended:
        [(why, _)] = tally.dead.most_common(1)
        raise SagaError(
            f"no saga ended in {tally.runs:,} runs: each stands still because of a dead letter, so nothing was tested; "
            f"most of them: {why}"
        )
    return None


def _schedules(
    scenario: Scenario, mode: Mode, seeds: Sequence[int] | None, tally: Tally, care: Care
) -> Iterator[Schedule]:
    match mode:
        case Seeds(count, faults):
            for number in range(count) if seeds is None else seeds:
                yield Schedule(seed=number, drawn=faults)
        case Replayed(number, faults, without):
            yield Schedule.parsed(number, faults, without)
        case Crashes(pairs):
            for number in seeds or (0,):
                yield from _crashes(scenario, Schedule(seed=number), pairs, tally, care)


def _crashes(
    scenario: Scenario, schedule: Schedule, pairs: bool | None, tally: Tally, care: Care
) -> Iterator[Schedule]:
    """Schedules of `crash_everywhere`: without a crash, then with one at each point, then with two."""
    yield schedule
    points = points_of(run(scenario, schedule, care))
    tally.points += len(points)
    follow: list[Schedule] = []
    for point in points:
        one = replace(schedule, planted=(point,))
        yield one
        if pairs or (pairs is None and len(points) <= PAIRS_POINTS_MAX):
            after = points_of(run(scenario, one, care), since=point)
            follow += [replace(one, planted=(point, second)) for second in after]
    tally.pairs_in_all += len(follow)
    step = max(1, -(-len(follow) // PAIRS_MAX))
    for two in follow[schedule.seed % step :: step]:
        tally.pairs += 1
        yield two


def points_of(done: Run, since: Planned | None = None) -> list[Planned]:
    """Points at which a process can die in such a run: before and after each operation, in order."""
    points: dict[Planned, None] = {}
    begun = since is None
    for line in done.world.trace.lines:
        if not isinstance(line, Asked):
            begun = begun or getattr(line, "planned", None) == since
            continue
        operation = line.operation
        if not begun or operation.process == APPLICATION:
            continue
        for after in (False, True) if operation.what != "poll" else (True,):
            points[Planned(operation.process, operation.number, "crash", after)] = None
    if since is not None:
        points.pop(since, None)
    return list(points)
