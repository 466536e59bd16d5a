"""An event with a field of the wrong type. Rejected by: mypy, basedpyright."""

from services.payment.events import PaymentReserved

PaymentReserved(order_id="order-17", charge_id="c-17", amount=9.80)  # bad
