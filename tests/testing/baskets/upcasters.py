"""Upcasters of the baskets: sums are in tenths of a cent from version 2 on."""

from saga import upcast
from tests.testing.baskets.events import BasketFilled, BasketFilledV1, BasketPaid, BasketPaidV1, Tender


@upcast(BasketFilled, 1)
def filled_from_v1(old: BasketFilledV1) -> BasketFilled:
    return BasketFilled(basket_id=old.basket_id, amount=old.amount * 10)


@upcast(BasketPaid, 1)
def paid_from_v1(old: BasketPaidV1) -> BasketPaid:
    return BasketPaid(basket_id=old.basket_id, tender=Tender(amount=old.amount * 10), receipt=old.receipt)
