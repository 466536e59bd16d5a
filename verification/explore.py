"""Search all reachable states breadth first, so that the trace to a violation is as short as possible."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from verification.promises import Promises
from verification.scenario import Scenario
from verification.state import State
from verification.state_space import StateSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of a search."""

    scenario: str
    states: int
    ends: int
    """Number of states in which nothing more can happen."""
    exhausted: bool
    loss: str | None = None
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        verdict = self.loss or ("holds" if self.exhausted else "holds so far")
        lines = [f"{self.scenario:<44} {self.states:>8} states {self.ends:>5} ends  {verdict}"]
        return "\n".join([*lines, *(f"  {i:2}. {move}" for i, move in enumerate(self.trace, 1))])


def explore(scenario: Scenario, *, states_max: int = 3_000_000, goes_on: Callable[[], bool] = lambda: True) -> Report:
    """Visit every state of a scenario, as far as `states_max` and `goes_on` allow. Stop at the first violation."""
    space = scenario.space()
    return explore_from(space, Promises(space, scenario), scenario, states_max=states_max, goes_on=goes_on)


def explore_from(
    space: StateSpace,
    promises: Promises,
    scenario: Scenario,
    *,
    states_max: int,
    goes_on: Callable[[], bool] = lambda: True,
) -> Report:
    """Explore a scenario as `explore` does, with a space and promises that may have cached results of an earlier
    search."""
    first = scenario.first(space)
    parents: dict[State, tuple[State, str] | None] = {first: None}
    todo, ends, exhausted = deque([first]), 0, True
    while todo:
        s = todo.popleft()
        loss = promises.broken(s)
        if loss is None:
            moved = False
            for what, after in space.moves(s):
                moved = True
                came = s, what
                if parents.setdefault(after, came) is came:  # a single lookup, because hashing a state is slow
                    todo.append(after)
            if not moved:
                ends += 1
                loss = promises.broken_at_the_end(s)
        if loss is not None:
            return Report(
                scenario=scenario.name,
                states=len(parents),
                ends=ends,
                exhausted=False,
                loss=loss,
                trace=_trace(parents, s),
            )
        if len(parents) > states_max or (len(parents) % 256 == 0 and not goes_on()):
            exhausted = False
            break
    return Report(scenario=scenario.name, states=len(parents), ends=ends, exhausted=exhausted)


def _trace(parents: dict[State, tuple[State, str] | None], s: State) -> tuple[str, ...]:
    moves = []
    while (parent := parents[s]) is not None:
        s, what = parent
        moves.append(what)
    return tuple(reversed(moves))
