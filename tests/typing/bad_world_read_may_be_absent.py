"""A document of a world that may be absent, used without asking. Rejected by: mypy, basedpyright."""

from saga.testing import World
from services.inventory import inventory
from services.inventory.stock import Stock


def test_stock(world: World) -> None:
    assert world.read(inventory, Stock, "tea").left == 3  # bad
