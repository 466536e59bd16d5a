"""Events of a loan. `saga contracts write` makes their contracts from these classes."""

from decimal import Decimal
from typing import Annotated, TypeAlias

from saga import Avro, Event, event

Money: TypeAlias = Annotated[Decimal, Avro("decimal(12,2)")]


@event(topic="loans", key="loan_id", owner="intake", starts=True)
class LoanRequested(Event):
    """A customer asks for a loan."""

    loan_id: str
    applicant: str
    amount: Money
    income: Money


@event(topic="scores", key="loan_id", owner="scoring")
class LoanScored(Event):
    """The bureau's score of the applicant."""

    loan_id: str
    score: int


@event(topic="funds", key="loan_id", owner="funds")
class FundsReserved(Event):
    """The amount is reserved in the budget."""

    loan_id: str
    amount: Money


@event(topic="funds", key="loan_id", owner="funds")
class FundsRefused(Event):
    """The budget is exhausted."""

    loan_id: str
    reason: str


@event(topic="funds", key="loan_id", owner="funds", consumed_by="external")
class FundsReleased(Event):
    """The amount is in the budget again."""

    loan_id: str
    amount: Money


@event(topic="funds", key="loan_id", owner="funds", consumed_by="external")
class LoanPaid(Event):
    """The amount was paid out."""

    loan_id: str
    amount: Money


@event(topic="reviews", key="loan_id", owner="approval", consumed_by="external")
class ReviewRequested(Event):
    """A person has to decide."""

    loan_id: str
    applicant: str
    score: int


@event(topic="reviews", key="loan_id", owner="approval", consumed_by="external")
class ReviewReminded(Event):
    """It is not decided yet."""

    loan_id: str
    number: int


@event(topic="answers", key="loan_id", owner="people", produced_by="external")
class ReviewDecided(Event):
    """A person has decided."""

    loan_id: str
    approved: bool
    by: str


@event(topic="decisions", key="loan_id", owner="approval", outcome="success")
class LoanApproved(Event):
    """The loan is granted."""

    loan_id: str


@event(topic="decisions", key="loan_id", owner="approval", outcome="failure")
class LoanDeclined(Event):
    """The loan is not granted."""

    loan_id: str
    reason: str


@event(topic="letters", key="loan_id", owner="letters", consumed_by="external")
class LetterSent(Event):
    """The applicant got a letter."""

    loan_id: str
    subject: str
