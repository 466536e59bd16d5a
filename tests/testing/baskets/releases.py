"""Releases of the shop and of the till, and the drawer that all tills use.

Release 1 knows the first versions. Release 2 reads both, and still emits the first: its readers need no newer one.
Release 3 reads both, and says the second.
"""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from saga import Retry, Saga, Service
from tests.testing.baskets import upcasters as upcasters  # what a service imports with its events
from tests.testing.baskets.events import (
    BasketDone,
    BasketDoneV1,
    BasketDropped,
    BasketFilled,
    BasketFilledV1,
    BasketGivenBack,
    BasketHandedOver,
    BasketPaid,
    BasketPaidV1,
    BasketRefused,
    Tender,
)

PATIENT = Retry(attempts_max=60, delay_s_max=1)
LIMIT_CENTS = 100_000
"""Largest sum that the till takes."""


class Drawer:
    """The external system of the till: it takes each sum once, by key, and fails as often as it is asked to."""

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails
        self.noted: list[tuple[str, str, int]] = []

    def lines(self) -> list[tuple[str, str, int]]:
        """What was done, with which receipt and how many cents."""
        return self.noted

    def add(self, what: str, receipt: str, cents: int) -> None:
        """Add a line."""
        self.noted.append((what, receipt, cents))

    def book(self, what: str) -> dict[str, int]:
        """Cents by receipt."""
        return {receipt: cents for done, receipt, cents in self.lines() if done == what}

    @property
    def taken(self) -> dict[str, int]:
        return self.book("take")

    @property
    def handed_over(self) -> dict[str, int]:
        return self.book("hand over")

    @property
    def given_back(self) -> dict[str, int]:
        return self.book("give back")

    async def take(self, key: str, cents: int) -> str:
        return self._note("take", key, cents)

    async def hand_over(self, key: str, receipt: str, cents: int) -> None:
        assert self.taken[receipt] == cents, f"{receipt} is of {self.taken[receipt]} cents, and not of {cents}"
        self._note("hand over", receipt, cents)

    async def give_back(self, key: str, receipt: str, cents: int) -> None:
        assert self.taken[receipt] == cents, f"{receipt} is of {self.taken[receipt]} cents, and not of {cents}"
        self._note("give back", receipt, cents)

    def _note(self, what: str, receipt: str, cents: int) -> str:
        known = self.book(what).get(receipt)
        if known is None:
            self.add(what, receipt, cents)
        assert known in (None, cents), f"{what} of {receipt} twice, with {known} and {cents} cents"
        if self.fails:
            self.fails -= 1
            raise ConnectionError("no answer")
        return receipt


class FileDrawer(Drawer):
    """Drawer of which the lines are in a file of the current folder: all tills share it."""

    FILE = Path("drawer")

    def lines(self) -> list[tuple[str, str, int]]:
        whole = [line.rsplit(" ", 2) for line in self.FILE.read_text().splitlines()] if self.FILE.exists() else []
        return [(what, receipt, int(cents)) for what, receipt, cents in whole]

    def add(self, what: str, receipt: str, cents: int) -> None:
        with self.FILE.open("a") as file:
            file.write(f"{what} {receipt} {cents}\n")


def till(release: int, kept: type[Drawer] = Drawer) -> Service[Any]:
    """The till in one of its releases. `kept`: its drawer, where no test gives another one."""
    made = Service("till", retry=PATIENT)

    @made.resource
    async def drawer() -> AsyncIterator[Drawer]:
        yield kept()

    (_first_till if release == 1 else _newer_till)(made, says_old=release == 2)
    return made


def _first_till(till: Service[Any], *, says_old: bool) -> None:
    @till.handler
    async def pay(filled: BasketFilledV1, drawer: Drawer, saga: Saga[None]) -> BasketPaidV1 | BasketRefused:
        if filled.amount > LIMIT_CENTS:
            return BasketRefused(basket_id=filled.basket_id, reason="too much")
        receipt = await saga.step(drawer.take, saga.idempotency_key("take"), filled.amount)
        return BasketPaidV1(basket_id=filled.basket_id, amount=filled.amount, receipt=receipt)

    @till.handler
    async def hand_over(done: BasketDoneV1, paid: BasketPaidV1, drawer: Drawer, saga: Saga[None]) -> BasketHandedOver:
        await saga.step(drawer.hand_over, saga.idempotency_key("hand"), paid.receipt, paid.amount)
        return BasketHandedOver(basket_id=done.basket_id, receipt=paid.receipt)

    @till.compensation(pay)
    async def give_back(
        dropped: BasketDropped, paid: BasketPaidV1, drawer: Drawer, saga: Saga[None]
    ) -> BasketGivenBack:
        await saga.step(drawer.give_back, saga.idempotency_key("back"), paid.receipt, paid.amount)
        return BasketGivenBack(basket_id=dropped.basket_id, receipt=paid.receipt)


def _newer_till(till: Service[Any], *, says_old: bool) -> None:
    @till.handler
    async def pay(filled: BasketFilled, drawer: Drawer, saga: Saga[None]) -> BasketPaid | BasketPaidV1 | BasketRefused:
        if filled.amount > LIMIT_CENTS * 10:
            return BasketRefused(basket_id=filled.basket_id, reason="too much")
        receipt = await saga.step(drawer.take, saga.idempotency_key("take"), filled.amount // 10)
        if says_old:
            return BasketPaidV1(basket_id=filled.basket_id, amount=filled.amount // 10, receipt=receipt)
        return BasketPaid(basket_id=filled.basket_id, tender=Tender(amount=filled.amount), receipt=receipt)

    @till.handler
    async def hand_over(done: BasketDone, paid: BasketPaid, drawer: Drawer, saga: Saga[None]) -> BasketHandedOver:
        await saga.step(drawer.hand_over, saga.idempotency_key("hand"), paid.receipt, paid.tender.amount // 10)
        return BasketHandedOver(basket_id=done.basket_id, receipt=paid.receipt)

    @till.compensation(pay)
    async def give_back(dropped: BasketDropped, paid: BasketPaid, drawer: Drawer, saga: Saga[None]) -> BasketGivenBack:
        await saga.step(drawer.give_back, saga.idempotency_key("back"), paid.receipt, paid.tender.amount // 10)
        return BasketGivenBack(basket_id=dropped.basket_id, receipt=paid.receipt)


def shop(release: int) -> Service[Any]:
    """The shop in one of its releases: it has the sum that was paid compared with the one of the basket."""
    made = Service("shop", retry=PATIENT)
    (_first_shop if release == 1 else _newer_shop)(made, says_old=release == 2)
    return made


def _first_shop(shop: Service[Any], *, says_old: bool) -> None:
    @shop.handler
    async def finish(paid: BasketPaidV1, filled: BasketFilledV1) -> BasketDoneV1 | BasketDropped:
        if paid.amount != filled.amount:
            return BasketDropped(basket_id=filled.basket_id, reason=f"{paid.amount} is not {filled.amount}")
        return BasketDoneV1(basket_id=filled.basket_id)

    @shop.handler
    async def drop(refused: BasketRefused) -> BasketDropped:
        return BasketDropped(basket_id=refused.basket_id, reason=refused.reason)

    @shop.deadline(within=timedelta(days=1))
    async def expire(filled: BasketFilledV1) -> BasketDropped:
        return BasketDropped(basket_id=filled.basket_id, reason="nobody has paid")


def _newer_shop(shop: Service[Any], *, says_old: bool) -> None:
    @shop.handler
    async def finish(paid: BasketPaid, filled: BasketFilled) -> BasketDone | BasketDoneV1 | BasketDropped:
        if (paid.tender.amount, paid.tender.currency) != (filled.amount, filled.currency):
            return BasketDropped(basket_id=filled.basket_id, reason=f"{paid.tender} is not {filled.amount}")
        return (
            BasketDoneV1(basket_id=filled.basket_id) if says_old else BasketDone(basket_id=filled.basket_id, note="!")
        )

    @shop.handler
    async def drop(refused: BasketRefused) -> BasketDropped:
        return BasketDropped(basket_id=refused.basket_id, reason=refused.reason)

    @shop.deadline(within=timedelta(days=1))
    async def expire(filled: BasketFilled) -> BasketDropped:
        return BasketDropped(basket_id=filled.basket_id, reason="nobody has paid")
