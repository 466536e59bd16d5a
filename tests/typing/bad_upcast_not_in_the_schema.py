"""An upcaster of a version that resolution reads. Rejected by: DeclarationError "does not say so"."""

from saga import upcast
from tests.testing.baskets.events import BasketDone, BasketDoneV1


@upcast(BasketDone, 1)  # bad
def from_v1(old: BasketDoneV1) -> BasketDone:
    return BasketDone(basket_id=old.basket_id, note="-")
