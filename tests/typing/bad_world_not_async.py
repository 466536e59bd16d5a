"""Waiting for a world, which runs when it is told to. Rejected by: mypy, basedpyright."""

from saga.testing import World


async def run(world: World) -> None:
    await world.run_until_quiet()  # bad
