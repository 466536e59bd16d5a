"""The client of the carrier. A real client would call the carrier over HTTP, with the same methods. This carrier is
simulated by a ledger in a file."""

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from services.ledger import Answer, Call, Contradiction, Ledger, was_made


class Refused(Exception):
    """Raised if the carrier does not deliver to an address."""


def is_undeliverable(address: str) -> bool:
    return "Atlantis" in address


class Carrier:
    """A carrier with its books in memory, for tests. `Carrier.connect()` returns one whose books survive its
    process."""

    def __init__(self) -> None:
        self.booked: dict[str, str] = {}
        self.dispatched: dict[str, str] = {}
        self.calls: dict[str, Call] = {}

    @classmethod
    @asynccontextmanager
    async def connect(cls) -> AsyncGenerator["Carrier"]:
        """Open the carrier whose ledger is in the file SHIPPING_LEDGER. Each answer is delayed by
        SHIPPING_LATENCY_MS."""
        path = Path(os.environ.get("SHIPPING_LEDGER") or ".saga/carrier.db")
        async with Ledger(path, latency_s=float(os.environ.get("SHIPPING_LATENCY_MS") or "0") / 1000) as ledger:
            yield LedgerCarrier(ledger)

    async def book(self, key: str, address: str, parcels: int) -> str:
        """Book a delivery to `address`. Return the id of the booking. Raises `Refused`, and `Contradiction` if the key
        was used for another call."""
        call = Call("book", key, (address, str(parcels)))
        repeated = was_made(self.calls, key, call)
        self.calls[key] = call
        if is_undeliverable(address):
            raise Refused(f"nobody delivers to {address}")
        if not repeated:
            self.booked[key] = address
        return key

    async def dispatch(self, key: str, booking_id: str) -> str:
        """Send the goods. Return the tracking number. Raises `Contradiction` if the booking is unknown or was
        cancelled."""
        call = Call("dispatch", booking_id)
        if not was_made(self.calls, key, call):
            self.dispatched[booking_id] = self._no_longer_booked(call)
            self.calls[key] = call
        return f"tracking-{booking_id}"

    async def unbook(self, key: str, booking_id: str) -> None:
        """Cancel the booking. Raises `Contradiction` if the booking is unknown or its goods have been sent."""
        call = Call("unbook", booking_id)
        if not was_made(self.calls, key, call):
            self._no_longer_booked(call)
            self.calls[key] = call

    def _no_longer_booked(self, call: Call) -> str:
        if call.subject not in self.booked:
            raise Contradiction(f"{call.operation} of booking {call.subject!r}, which does not stand")
        return self.booked.pop(call.subject)


class LedgerCarrier(Carrier):
    """A carrier with its books in a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    async def book(self, key: str, address: str, parcels: int) -> str:
        answer = Answer(key)
        if is_undeliverable(address):
            answer = Answer(f"nobody delivers to {address}", refused=True)
        given = await self._ledger.once(key, Call("book", key, (address, str(parcels))), lambda _: answer)
        if given.refused:
            raise Refused(given.text)
        return given.text

    async def dispatch(self, key: str, booking_id: str) -> str:
        return await self._settle(key, Call("dispatch", booking_id), f"tracking-{booking_id}")

    async def unbook(self, key: str, booking_id: str) -> None:
        await self._settle(key, Call("unbook", booking_id), "done")

    async def _settle(self, key: str, call: Call, answer: str) -> str:
        def rule(done: Sequence[str]) -> Answer:
            if list(done) != ["book"]:
                state = f"had its {done[-1]} before" if done else "is unknown"
                raise Contradiction(f"{call.operation} of booking {call.subject!r}, which {state}")
            return Answer(answer)

        return (await self._ledger.once(key, call, rule)).text
