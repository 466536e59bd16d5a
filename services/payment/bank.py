"""The client of the bank. A real client would call the bank over HTTP, with the same methods. This bank is simulated by
a ledger in a file."""

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path

from services.ledger import Answer, Call, Contradiction, Ledger, was_made


class Declined(Exception):
    """Raised if the bank refuses a charge, because the card is blocked."""


def is_blocked(card: str) -> bool:
    return card.startswith("declined")


def check_answers(card: str) -> None:
    """Raise `ConnectionError` if the issuer of the card does not answer. That is the case for cards `silent-...` while
    the file named by PAYMENT_SILENCE exists."""
    file = os.environ.get("PAYMENT_SILENCE")
    if file and card.startswith("silent") and Path(file).exists():
        raise ConnectionError("the card's issuer does not answer")


class Bank:
    """A bank with its books in memory, for tests. `Bank.connect()` returns one whose books survive its process."""

    def __init__(self) -> None:
        self.held: dict[str, Decimal] = {}
        self.taken: dict[str, Decimal] = {}
        self.calls: dict[str, Call] = {}

    @classmethod
    @asynccontextmanager
    async def connect(cls) -> AsyncGenerator["Bank"]:
        """Open the bank whose ledger is in the file PAYMENT_LEDGER. Each answer is delayed by PAYMENT_LATENCY_MS."""
        path = Path(os.environ.get("PAYMENT_LEDGER") or ".saga/bank.db")
        async with Ledger(path, latency_s=float(os.environ.get("PAYMENT_LATENCY_MS") or "0") / 1000) as ledger:
            yield LedgerBank(ledger)

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        """Set `amount` aside. Return the id of the charge. Raises `Declined`, and `Contradiction` if the key was used
        for another call."""
        call = Call("reserve", key, (card, str(amount)))
        repeated = was_made(self.calls, key, call)
        self.calls[key] = call
        if is_blocked(card):
            raise Declined("card declined")
        if not repeated:
            self.held[key] = amount
        return key

    async def capture(self, key: str, charge_id: str) -> None:
        """Take the amount that was set aside. Raises `Contradiction` if the charge is unknown or was released."""
        call = Call("capture", charge_id)
        if not was_made(self.calls, key, call):
            self.taken[charge_id] = self._no_longer_held(call)
            self.calls[key] = call

    async def release(self, key: str, charge_id: str) -> None:
        """Release the amount that was set aside. Raises `Contradiction` if the charge is unknown or was captured."""
        call = Call("release", charge_id)
        if not was_made(self.calls, key, call):
            self._no_longer_held(call)
            self.calls[key] = call

    def _no_longer_held(self, call: Call) -> Decimal:
        if call.subject not in self.held:
            raise Contradiction(f"{call.operation} of charge {call.subject!r}, of which nothing is held")
        return self.held.pop(call.subject)


class LedgerBank(Bank):
    """A bank with its books in a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        check_answers(card)
        answer = Answer("card declined", refused=True) if is_blocked(card) else Answer(key)
        given = await self._ledger.once(key, Call("reserve", key, (card, str(amount))), lambda _: answer)
        if given.refused:
            raise Declined(given.text)
        return given.text

    async def capture(self, key: str, charge_id: str) -> None:
        await self._settle(key, Call("capture", charge_id))

    async def release(self, key: str, charge_id: str) -> None:
        await self._settle(key, Call("release", charge_id))

    async def _settle(self, key: str, call: Call) -> None:
        def rule(done: Sequence[str]) -> Answer:
            if list(done) != ["reserve"]:
                state = f"was {done[-1]}d" if done else "is unknown"
                raise Contradiction(f"{call.operation} of charge {call.subject!r}, which {state}")
            return Answer("done")

        await self._ledger.once(key, call, rule)
