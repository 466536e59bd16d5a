"""An upcaster of its own version. Rejected by: DeclarationError "there is no older version 2 of it"."""

from saga import upcast
from tests.testing.baskets.events import BasketFilled


@upcast(BasketFilled, 2)  # bad
def from_v2(old: BasketFilled) -> BasketFilled:
    return old
