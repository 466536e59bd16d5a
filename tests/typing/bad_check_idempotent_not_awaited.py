"""A check that is not awaited, so never made. Rejected by: mypy, basedpyright."""

from saga.testing import check_idempotent
from services.payment import payment


async def test_payment() -> None:
    check_idempotent(payment)  # bad
