"""Scoring: asks a credit bureau for a score. The bureau is slow and allows only few calls at once, so calls are limited
and retried."""

from collections.abc import AsyncIterator
from decimal import Decimal

from examples.loan.events import LoanRequested, LoanScored
from saga import Breaker, Retry, Saga, Service

scoring = Service("scoring")


class Bureau:
    """A credit bureau. This one computes the score from the income and the amount in the application."""

    async def score(self, applicant: str, amount: Decimal, income: Decimal) -> int:
        """Return a score from 0 to 1000."""
        return max(0, min(1000, int(500 * income / amount)))


@scoring.resource(timeout_s=10, at_once_max=4, breaker=Breaker(), retry=Retry(attempts_max=8))
async def bureau() -> AsyncIterator[Bureau]:
    yield Bureau()


@scoring.handler
async def score(requested: LoanRequested, bureau: Bureau, saga: Saga) -> LoanScored:
    number = await saga.step(bureau.score, requested.applicant, requested.amount, requested.income)
    return LoanScored(loan_id=requested.loan_id, score=number)
