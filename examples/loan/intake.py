"""Intake: starts a saga for each loan application that another program has written as a document."""

from dataclasses import dataclass
from decimal import Decimal

from examples.loan.events import LoanRequested
from saga import Change, Service


@dataclass(frozen=True, kw_only=True)
class Application:
    """The document that the application form stores. Its key is the id of the loan."""

    applicant: str
    amount: Decimal
    income: Decimal


intake = Service("intake")
intake.document(Application, "applications")


@intake.handler
async def request(change: Change[Application]) -> LoanRequested | None:
    application = change.document
    if application is None:
        return None
    return LoanRequested(
        loan_id=change.key,
        applicant=application.applicant,
        amount=application.amount,
        income=application.income,
    )
