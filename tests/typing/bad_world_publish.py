"""Publishing into a world what is no event. Rejected by: mypy, basedpyright."""

from saga.testing import World


def test_orders(world: World) -> None:
    world.publish({"order_id": "order-17"})  # bad
