"""A handler that reacts to nothing. Rejected by: DeclarationError "order.confirm reacts to nothing"."""

from saga import Saga, Service
from services.order.events import OrderConfirmed

order = Service("order")


@order.handler  # bad
async def confirm(saga: Saga) -> OrderConfirmed:
    return OrderConfirmed(order_id="")
