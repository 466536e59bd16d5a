"""Upcasters that are async, give no event, or take none. Rejected by: mypy, basedpyright."""

from saga import upcast
from tests.testing.baskets.events import BasketFilled, BasketFilledV1


@upcast(BasketFilled, 1)  # bad
async def later(old: BasketFilledV1) -> BasketFilled:
    return BasketFilled(basket_id=old.basket_id, amount=old.amount * 10)


@upcast(BasketFilled, 1)  # bad
def bare(old: BasketFilledV1) -> int:
    return 0


@upcast(BasketFilled, 1)  # bad
def made_up() -> BasketFilled:
    return BasketFilled(basket_id="b", amount=0)


@upcast(BasketFilled, "1")  # bad
def by_text(old: BasketFilledV1) -> BasketFilled:
    return BasketFilled(basket_id=old.basket_id, amount=old.amount * 10)
