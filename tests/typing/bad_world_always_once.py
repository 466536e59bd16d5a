"""An invariant that was looked at once, before anything happened. Rejected by: mypy, basedpyright."""

from saga.testing import World
from services.payment.bank import Bank


def test_payment(world: World) -> None:
    bank = Bank()
    world.always("nobody is charged twice", len(bank.taken) <= 1)  # bad
