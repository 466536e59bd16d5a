"""Starting what is no service: a handler. Rejected by: mypy, basedpyright."""

from saga.testing import World
from services.payment import reserve


def test_payment(world: World) -> None:
    world.start(reserve)  # bad
