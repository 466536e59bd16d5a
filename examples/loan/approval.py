"""Approval: decides by the score, or asks a person. The person is reminded three times, once a day."""

import os
from dataclasses import dataclass, replace
from datetime import timedelta

from examples.loan.events import (
    FundsRefused,
    FundsReserved,
    LoanApproved,
    LoanDeclined,
    LoanRequested,
    LoanScored,
    ReviewDecided,
    ReviewReminded,
    ReviewRequested,
)
from saga import Later, Saga, Service

GOOD, BAD = 700, 300
REMINDERS = 3
DAY = timedelta(seconds=float(os.environ.get("LOAN_DAY_S") or 24 * 3600))
"""Time between reminders: a day. The demonstration sets it to a second."""


@dataclass(frozen=True, kw_only=True)
class Review:
    """State of the saga: how often the person has been asked or reminded so far."""

    letters: int = 0


approval = Service("approval", state=Review)


@approval.handler
async def decide(
    scored: LoanScored,
    requested: LoanRequested,
    reserved: FundsReserved,
    decided: ReviewDecided | None,
    saga: Saga[Review],
) -> (
    LoanApproved
    | LoanDeclined
    | tuple[ReviewRequested, Later[ReviewDecided]]
    | tuple[ReviewReminded, Later[ReviewDecided]]
):
    loan_id, wait = scored.loan_id, Later(until=ReviewDecided, within=DAY)
    if scored.score >= GOOD:
        return LoanApproved(loan_id=loan_id)
    if scored.score < BAD:
        return LoanDeclined(loan_id=loan_id, reason=f"the score is {scored.score}")
    if decided is not None:
        if decided.approved:
            return LoanApproved(loan_id=loan_id)
        return LoanDeclined(loan_id=loan_id, reason=f"declined by {decided.by}")
    letters = saga.state.letters
    if letters > REMINDERS:
        return LoanDeclined(loan_id=loan_id, reason="no person decided in time")
    saga.state = replace(saga.state, letters=letters + 1)
    if letters:
        return ReviewReminded(loan_id=loan_id, number=letters), wait
    return ReviewRequested(loan_id=loan_id, applicant=requested.applicant, score=scored.score), wait


@approval.handler
async def decline(refused: FundsRefused) -> LoanDeclined:
    return LoanDeclined(loan_id=refused.loan_id, reason=refused.reason)


@approval.deadline(within=7 * DAY)
async def expire(requested: LoanRequested) -> LoanDeclined:
    return LoanDeclined(loan_id=requested.loan_id, reason="no answer within a week")
