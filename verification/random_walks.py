"""Search a scenario that has too many states: visit the first states breadth first, then make random walks to some
ends."""

from saga.testing.fault_plans import Chance
from verification.explore import Report, explore_from
from verification.promises import Promises
from verification.scenario import Scenario

MOVES_MAX = 400
"""Largest number of moves of a walk. It ends walks that go round in circles."""


def search(scenario: Scenario, *, seed: int, states_max: int, walks: int) -> Report:
    """Visit every state, if there are at most `states_max`; otherwise visit so many, and make random walks. Stop at the
    first violation."""
    space = scenario.space()
    promises = Promises(space, scenario)
    report = explore_from(space, promises, scenario, states_max=states_max)
    if report.loss is not None or report.exhausted:
        return report
    chance, states, ends = Chance(seed), report.states, report.ends
    for walk in range(walks):
        s = scenario.first(space)
        trace: list[str] = []
        for move in range(MOVES_MAX):
            loss = promises.broken(s)
            moves = list(space.moves(s)) if loss is None else []
            if loss is None and not moves:
                ends += 1
                loss = promises.broken_at_the_end(s)
            if loss is not None:
                return Report(
                    scenario=scenario.name, states=states, ends=ends, exhausted=False, loss=loss, trace=tuple(trace)
                )
            if not moves:
                break
            what, s = moves[int(chance.draw(f"{walk} {move}") * len(moves))]
            trace.append(what)
            states += 1
    return Report(scenario=scenario.name, states=states, ends=ends, exhausted=False)
