"""Letters: writes to the applicant when the decision has been made. A letter cannot be undone."""

from collections.abc import AsyncIterator

from examples.loan.events import LetterSent, LoanApproved, LoanDeclined
from saga import Saga, Service

letters = Service("letters")


class Printer:
    """Printer of letters. If it is called again with the same key, it prints nothing."""

    def __init__(self) -> None:
        self.printed: dict[str, str] = {}

    async def print_letter(self, key: str, subject: str) -> None:
        self.printed.setdefault(key, subject)


@letters.resource(timeout_s=5)
async def printer() -> AsyncIterator[Printer]:
    yield Printer()


@letters.handler(irreversible=True)
async def write(outcome: LoanApproved | LoanDeclined, printer: Printer, saga: Saga) -> LetterSent:
    subject = "Your loan" if isinstance(outcome, LoanApproved) else f"No loan: {outcome.reason}"
    await saga.step(printer.print_letter, saga.idempotency_key("letter"), subject)
    return LetterSent(loan_id=outcome.loan_id, subject=subject)
