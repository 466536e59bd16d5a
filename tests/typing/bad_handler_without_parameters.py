"""A handler without any parameter. Rejected by: mypy, basedpyright."""

from saga import Service
from services.order.events import OrderConfirmed

order = Service("order")


@order.handler  # bad
async def confirm() -> OrderConfirmed:
    return OrderConfirmed(order_id="")
