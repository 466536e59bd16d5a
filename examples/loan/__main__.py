"""Run the example with `python -m examples.loan`: four applications, written as documents. Two of them need a person,
who decides one and forgets the other."""

import asyncio
import os
import sqlite3
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import msgspec

from examples.loan.events import LoanApproved, LoanDeclined, ReviewDecided, ReviewReminded, ReviewRequested
from examples.loan.funds import BUDGET, Budget
from examples.loan.intake import Application
from examples.running import insert_documents, run_services, use_folder
from saga import Client

MODULES = [f"examples.loan.{name}" for name in ("intake", "scoring", "funds", "approval", "letters")]
PATIENCE = timedelta(seconds=60)
DAY_S = 1
APPLICATIONS = {
    "loan-good": Application(applicant="Ada", amount=Decimal(1000), income=Decimal(1500)),
    "loan-bad": Application(applicant="Bob", amount=Decimal(1000), income=Decimal(100)),
    "loan-asked": Application(applicant="Cleo", amount=Decimal(1000), income=Decimal(1000)),
    "loan-forgotten": Application(applicant="Dan", amount=Decimal(1000), income=Decimal(1000)),
}


def write_applications(store: Path) -> None:
    """Write the applications as another program would: with its own database driver, without the toolkit."""
    with closing(sqlite3.connect(store, timeout=30)) as connection, connection:
        for key, application in APPLICATIONS.items():
            connection.execute(
                "INSERT INTO business_documents (collection, key, content) VALUES ('applications', ?, ?)",
                (key, msgspec.json.encode(application).decode()),
            )


async def answer(client: Client) -> None:
    """Play the person who decides: print each question, and approve one of the applications after its first
    reminder."""
    async for event in client.listen(ReviewRequested, ReviewReminded, begin="beginning"):
        match event:
            case ReviewRequested(loan_id=loan_id, applicant=applicant, score=score):
                print(f"{loan_id}: a person is asked about {applicant}, whose score is {score}")
            case ReviewReminded(loan_id=loan_id, number=number):
                print(f"{loan_id}: reminder {number}")
                if loan_id == "loan-asked":
                    await client.publish(ReviewDecided(loan_id=loan_id, approved=True, by="Grace"))


async def main() -> None:
    """Run the services, write the applications, and print how each loan ended."""
    folder = use_folder("loan")
    os.environ["LOAN_DAY_S"] = str(DAY_S)
    await insert_documents("funds", "budgets", {BUDGET: Budget(free=Decimal(10_000))})
    await insert_documents("intake", "applications", {})  # creates the store that the form writes to
    with run_services(folder, MODULES):
        async with Client() as client, asyncio.TaskGroup() as tasks:
            person = tasks.create_task(answer(client))
            write_applications(folder / "intake.db")
            for loan_id in APPLICATIONS:
                match await client.outcome(loan_id, LoanApproved, LoanDeclined, within=PATIENCE):
                    case LoanApproved():
                        print(f"{loan_id}: approved")
                    case LoanDeclined(reason=reason):
                        print(f"{loan_id}: declined, {reason}")
                    case None:
                        raise SystemExit(f"{loan_id} has not ended: see {folder / 'services.log'}")
            person.cancel()


if __name__ == "__main__":
    asyncio.run(main())
