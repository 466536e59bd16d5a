"""An upcaster that takes another event. Rejected by: DeclarationError "it takes BasketPaidV1: let it take Basket"."""

from saga import upcast
from tests.testing.baskets.events import BasketFilled, BasketPaidV1


@upcast(BasketFilled, 1)  # bad
def from_v1(old: BasketPaidV1) -> BasketFilled:
    return BasketFilled(basket_id=old.basket_id, amount=old.amount * 10)
