"""The payment service of the example at a bank in trouble: silent, or contradicting itself, while a file says so.

`saga run tests.torture.troubled_payment`
"""

import os
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Literal

from saga import Breaker, Retry, Service
from saga.support.clock import SystemClock
from services.ledger import Contradiction, Ledger
from services.payment import capture, release, reserve
from services.payment.bank import Bank, Declined, LedgerBank

Trouble = Literal["silent", "contradicts", "slow"]
SLOW_S = 4.0
"""Time that a slow bank takes for each call: less than a call may take."""
TROUBLE = "PAYMENT_TROUBLE"
"""Name of the variable that names the file."""

CLOCK = SystemClock()
payment = Service("payment", retry=Retry(in_place_s=1, never=(Contradiction,)))


class TroubledBank(LedgerBank):
    """Bank whose trouble a file tells: its only word is a `Trouble`. Without the file it has none."""

    def __init__(self, ledger: Ledger, file: Path) -> None:
        super().__init__(ledger)
        self._file = file

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        await self._check()
        return await super().reserve(key, card, amount)

    async def capture(self, key: str, charge_id: str) -> None:
        await self._check()
        await super().capture(key, charge_id)

    async def release(self, key: str, charge_id: str) -> None:
        await self._check()
        await super().release(key, charge_id)

    async def _check(self) -> None:
        try:
            trouble = self._file.read_text("utf-8")
        except FileNotFoundError:
            return
        if trouble == "silent":
            raise ConnectionError("the bank does not answer")
        if trouble == "slow":
            await CLOCK.sleep(SLOW_S)
            return
        raise Contradiction("the bank's books contradict each other")


@payment.resource(timeout_s=5, expected_errors=(Declined,), breaker=Breaker(open_s=3))
async def bank() -> AsyncIterator[Bank]:
    async with Ledger(Path(os.environ["PAYMENT_LEDGER"])) as ledger:
        yield TroubledBank(ledger, Path(os.environ[TROUBLE]))


payment.handler(reserve)
payment.handler(capture)
payment.compensation(reserve)(release)
