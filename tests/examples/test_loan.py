"""The loan example: a score decides, or a person does, and the budget agrees with what was decided."""

import asyncio
from datetime import timedelta
from decimal import Decimal

from examples.loan.approval import DAY, REMINDERS, approval
from examples.loan.events import (
    FundsReserved,
    LoanApproved,
    LoanDeclined,
    LoanRequested,
    LoanScored,
    ReviewDecided,
    ReviewReminded,
    ReviewRequested,
)
from examples.loan.funds import BUDGET, Budget, funds
from examples.loan.intake import Application, intake
from examples.loan.letters import Printer, letters
from examples.loan.scoring import Bureau, scoring
from saga.testing import World, faults, simulate, trial

SERVICES = (intake, scoring, funds, approval, letters)
BUDGET_FREE = Decimal(10_000)


def start(world: World, printer: Printer) -> None:
    world.start(*SERVICES, use=[Bureau(), printer], documents={BUDGET: Budget(free=BUDGET_FREE)})


def apply(world: World, loan_id: str, *, amount: int = 1000, income: int) -> None:
    world.write(intake, loan_id, Application(applicant="Ada", amount=Decimal(amount), income=Decimal(income)))


def budget(world: World) -> Budget | None:
    return world.read(funds, Budget, BUDGET)


def test_a_good_score_approves_at_once_and_the_amount_is_paid(world: World) -> None:
    printer = Printer()
    start(world, printer)
    apply(world, "loan-1", income=1500)
    world.run_until_quiet()
    assert world.outcome("loan-1") is LoanApproved
    assert budget(world) == Budget(free=BUDGET_FREE - 1000)
    assert list(printer.printed.values()) == ["Your loan"]


def test_a_bad_score_declines_and_the_amount_is_in_the_budget_again(world: World) -> None:
    start(world, Printer())
    apply(world, "loan-1", income=100)
    world.run_until_quiet()
    assert world.outcome("loan-1") is LoanDeclined
    assert budget(world) == Budget(free=BUDGET_FREE)


def test_a_person_who_answers_after_the_first_reminder_decides(world: World) -> None:
    start(world, Printer())
    apply(world, "loan-1", income=1000)
    world.run_for(DAY + timedelta(hours=1))
    assert world.outcome("loan-1") is None
    world.publish(ReviewDecided(loan_id="loan-1", approved=True, by="Grace"))
    world.run_until_quiet()
    assert world.outcome("loan-1") is LoanApproved
    assert budget(world) == Budget(free=BUDGET_FREE - 1000)


def test_an_approver_without_an_answer_is_reminded_three_times_and_then_the_loan_is_declined(world: World) -> None:
    printer = Printer()
    start(world, printer)
    apply(world, "loan-1", income=1000)
    world.run_until_quiet()
    assert world.outcome("loan-1") is LoanDeclined
    assert list(printer.printed.values()) == ["No loan: no person decided in time"]
    assert budget(world) == Budget(free=BUDGET_FREE)


def test_the_person_is_asked_once_and_reminded_three_times() -> None:
    requested = LoanRequested(loan_id="loan-1", applicant="Ada", amount=Decimal(1000), income=Decimal(1000))
    reserved, scored = FundsReserved(loan_id="loan-1", amount=Decimal(1000)), LoanScored(loan_id="loan-1", score=500)
    seen = asyncio.run(trial(approval, requested, reserved, scored, *[DAY] * (REMINDERS + 1)))
    assert [type(event) for event in seen.emitted] == [ReviewRequested, *[ReviewReminded] * REMINDERS, LoanDeclined]


@simulate(seeds=25, faults=faults.everything())
def test_the_budget_agrees_with_the_decisions_whatever_happens(world: World) -> None:
    start(world, Printer())
    apply(world, "loan-1", amount=4000, income=8000)
    apply(world, "loan-2", amount=4000, income=4000)
    apply(world, "loan-3", amount=4000, income=8000)
    world.publish(ReviewDecided(loan_id="loan-2", approved=True, by="Grace"))
    world.run_until_quiet()
    outcomes = [world.outcome(f"loan-{number}") for number in (1, 2, 3)]
    assert all(outcome in (LoanApproved, LoanDeclined) for outcome in outcomes)
    assert budget(world) == Budget(free=BUDGET_FREE - 4000 * outcomes.count(LoanApproved))
