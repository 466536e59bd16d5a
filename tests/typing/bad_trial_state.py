"""The state of a service without state. Rejected by: mypy, basedpyright."""

from saga.testing import trial
from services.payment import payment
from services.payment.events import OrderConfirmed


async def test_capture() -> None:
    result = await trial(payment, OrderConfirmed(order_id="order-17"))
    assert result.state.paid == 3  # bad
