"""An upcaster that gives another. Rejected by: DeclarationError "it returns BasketPaidV1: let it return Basket"."""

from saga import upcast
from tests.testing.baskets.events import BasketFilled, BasketFilledV1, BasketPaidV1


@upcast(BasketFilled, 1)  # bad
def from_v1(old: BasketFilledV1) -> BasketPaidV1:
    return BasketPaidV1(basket_id=old.basket_id, amount=old.amount, receipt="-")
