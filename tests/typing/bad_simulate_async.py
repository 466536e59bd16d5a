"""A test of a world that is async: the world has a loop of its own. Rejected by: mypy, basedpyright."""

from saga.testing import World, crash_everywhere, simulate


@simulate(seeds=20)  # bad
async def test_orders(world: World) -> None:
    world.run_until_quiet()


@crash_everywhere  # bad
async def test_crashes(world: World) -> None:
    world.run_until_quiet()
