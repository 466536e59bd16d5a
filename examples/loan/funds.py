"""Funds: reserves the amount in the budget of the bank, pays it out, or puts it back."""

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Self

from examples.loan.events import (
    FundsRefused,
    FundsReleased,
    FundsReserved,
    LoanApproved,
    LoanDeclined,
    LoanPaid,
    LoanRequested,
)
from saga import Saga, Service

BUDGET = "loans"


class Exhausted(Exception):
    """Raised if the rest of the budget is smaller than the amount."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Money that the bank may lend."""

    free: Decimal
    reserved: Decimal = Decimal(0)

    def reserve(self, amount: Decimal) -> Self:
        if amount > self.free:
            raise Exhausted(f"{self.free} left, {amount} asked for")
        return replace(self, free=self.free - amount, reserved=self.reserved + amount)

    def release(self, amount: Decimal) -> Self:
        return replace(self, free=self.free + amount, reserved=self.reserved - amount)

    def pay(self, amount: Decimal) -> Self:
        return replace(self, reserved=self.reserved - amount)


funds = Service("funds")
funds.document(Budget, "budgets", expected_errors=(Exhausted,))


@funds.handler
async def reserve(requested: LoanRequested, saga: Saga) -> FundsReserved | FundsRefused:
    try:
        await saga.update(Budget, BUDGET, Budget.reserve, requested.amount)
    except Exhausted as why:
        return FundsRefused(loan_id=requested.loan_id, reason=str(why))
    return FundsReserved(loan_id=requested.loan_id, amount=requested.amount)


@funds.handler
async def pay(approved: LoanApproved, reserved: FundsReserved, saga: Saga) -> LoanPaid:
    await saga.update(Budget, BUDGET, Budget.pay, reserved.amount)
    return LoanPaid(loan_id=approved.loan_id, amount=reserved.amount)


@funds.compensation(reserve)
async def release(declined: LoanDeclined, reserved: FundsReserved, saga: Saga) -> FundsReleased:
    await saga.update(Budget, BUDGET, Budget.release, reserved.amount)
    return FundsReleased(loan_id=declined.loan_id, amount=reserved.amount)
