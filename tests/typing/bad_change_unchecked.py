"""A changed document used without asking whether it was removed. Rejected by: mypy, basedpyright."""

from saga import Change
from tests.service.documents import OrderDocument


async def place(change: Change[OrderDocument]) -> str:
    return change.document.customer_id  # bad
