"""An upcaster that reads a field which the older version has not. Rejected by: mypy, basedpyright."""

from saga import upcast
from tests.testing.baskets.events import BasketFilled, BasketFilledV1


@upcast(BasketFilled, 1)
def from_v1(old: BasketFilledV1) -> BasketFilled:
    return BasketFilled(basket_id=old.basket_id, amount=old.amount * 10, currency=old.currency)  # bad
