"""A search for what is too large to be visited whole: the first states, breadth first, then walks to some ends."""

from saga.testing.simulation.chance import Chance
from verification.explore import Report, explore_from
from verification.promises import Promises
from verification.scenario import Scenario

MOVES_MAX = 400
"""A walk that goes in circles ends after so many moves."""


def search(scenario: Scenario, *, seed: int, states_max: int, walks: int) -> Report:
    """Every state, if there are no more than `states_max`; else so many of them, and so many walks. Stops at the first
    loss."""
    world = scenario.world()
    promises = Promises(world, scenario)
    report = explore_from(world, promises, scenario, states_max=states_max)
    if report.loss is not None or report.exhausted:
        return report
    chance, states, ends = Chance(seed), report.states, report.ends
    for walk in range(walks):
        s = scenario.first(world)
        trace: list[str] = []
        for move in range(MOVES_MAX):
            loss = promises.broken(s)
            moves = list(world.moves(s)) if loss is None else []
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
