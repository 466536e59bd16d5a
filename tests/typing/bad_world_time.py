"""A time without its unit. Rejected by: mypy, basedpyright."""

from saga.testing import World


def test_later(world: World) -> None:
    world.run_for(60)  # bad
